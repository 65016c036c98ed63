//! One argument of an execution on one device, in use from its acquisition to the end of the execution.
//!
//! ```text
//!   Read       the program reads it; the engine knows the buffer
//!   Donated    the program may consume it. From here on pjrt-arena begins no copy, and those under way were waited for
//!   Exclusive  a program on another client of the engine may write to it: nothing else uses it
//!   Lent       a program on another client reads it. If it was donated, its owner loses it once the program has
//!              consumed what it read
//! ```
//!
//! The engine orders what it knows of: its own copies, and the programs of one client. It does not know of a memcpy
//! by pjrt-arena, nor of what a program on another client reads. So a program that runs on another client
//! (`nested.rs`) is donated only arrays that nothing else uses, and from then on nothing else may use them; an array
//! that something uses, it only reads.
//!
//! A launch that waits here has announced donations, uses some buffers, and reads none; nothing waits for any of
//! that. So neither two launches with the same arguments in another order, nor a callback, can wait for itself.

use std::sync::Arc;

use crate::{
    engine::{EngineBuffer, EngineError, Live, asynchronous::Dependency},
    error::Result,
    memory::Execution,
    runtime::{
        buffer::{
            Buffer, BufferRef,
            storage::{Access, Storage},
            usage::{Definition, Undonated, User},
        },
        device_memory::Allocation,
    },
    sys,
};

/// How an argument is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Read,
    Donated,
    Exclusive,
    Lent {
        donated: bool,
    },
    /// An operation in flight uses it, or nothing any more.
    Released,
}

/// See the module's documentation. What it still uses when it is dropped was never passed to a program, or the
/// program is done.
pub struct Argument<'a> {
    buffer: BufferRef<'a>,
    /// What the engine is passed: the buffer's own view, which stays while the buffer is in use, or another one that
    /// the launch keeps until its arguments are dropped.
    handle: *mut sys::PJRT_Buffer,
    /// What is known of the execution that writes it.
    pub definition: Definition,
    hold: Hold,
}

impl<'a> Argument<'a> {
    /// An argument that the program reads.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it was deleted or donated.
    pub fn read(buffer: BufferRef<'a>) -> Result<Self> {
        let (handle, definition) = buffer.begin_use_and_tell(User::Execution)?;
        Ok(Self { buffer, handle, definition, hold: Hold::Read })
    }

    /// As [`Self::read`], of an `undonated` argument, by this launch.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it was deleted or donated.
    pub fn read_undonated(buffer: BufferRef<'a>, undonated: &Arc<Undonated>, launch: Execution) -> Result<Self> {
        let (handle, definition) = buffer.begin_undonated_use(undonated, launch)?;
        Ok(Self { buffer, handle, definition, hold: Hold::Read })
    }

    /// An argument that the program may consume; `None` while a program from a host callback reads it: that program
    /// ends after an unknown time, and may wait for a thread that would wait for it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it was deleted or donated.
    pub fn donate(buffer: BufferRef<'a>) -> Result<Option<Self>> {
        let begun = buffer.begin_donation(User::Execution)?;
        Ok(begun.map(|(handle, definition)| Self { buffer, handle, definition, hold: Hold::Donated }))
    }

    /// An argument in a block of an arena that a program on another client may consume, and the block's address.
    /// `None` if something uses it or programs may not write to it: then the program only reads it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it was deleted or donated.
    pub fn donate_exclusively(buffer: BufferRef<'a>) -> Result<Option<(Self, usize)>> {
        let mut state = buffer.state();
        let handle = buffer.live_handle(&state)?;
        let address = state.allocation().map(Allocation::address).filter(|_| buffer.access == Access::Full);
        let address = address.filter(|_| state.donate_exclusively());
        drop(state);
        Ok(address
            .map(|address| (Self { buffer, handle, definition: Definition::Defined, hold: Hold::Exclusive }, address)))
    }

    /// An argument that a program on another client reads, by `view`, for as long as the program runs. `donated` says
    /// that the program was to consume it. The launch keeps the view until this is dropped.
    pub(super) fn lent(buffer: BufferRef<'a>, view: &EngineBuffer, donated: bool) -> Self {
        Self { buffer, handle: view.raw(), definition: Definition::Defined, hold: Hold::Lent { donated } }
    }

    /// Has the program that is donated this argument wait for what is given back; `None` if it is not donated, or if
    /// anything else uses it.
    pub fn wait_for(&mut self) -> Option<std::result::Result<Dependency, EngineError>> {
        if self.hold != Hold::Donated {
            return None;
        }
        let outcome = self.buffer.wait_for()?;
        Some(outcome.map(|(handle, dependency)| {
            self.handle = handle;
            dependency
        }))
    }

    /// Has the engine be passed another view. The launch keeps it until this is dropped.
    pub(super) fn pass(&mut self, view: &EngineBuffer) {
        self.handle = view.raw();
    }

    /// What the engine is passed.
    #[inline]
    pub fn raw(&self) -> *mut sys::PJRT_Buffer {
        self.handle
    }

    /// What the engine is passed, to be asked.
    #[inline]
    pub fn live(&self) -> Live<'_, sys::PJRT_Buffer> {
        // SAFETY: the client is alive while its program is executed; the view stays while the buffer is in use, or the
        // launch keeps it until this is dropped.
        unsafe { Live::new(self.buffer.session.engine, self.handle) }
    }

    /// The buffer.
    pub fn buffer(&self) -> &'a Buffer {
        self.buffer.get()
    }

    /// Whether the program may have consumed it.
    pub fn may_be_consumed(&self) -> bool {
        matches!(self.hold, Hold::Donated | Hold::Exclusive | Hold::Lent { donated: true })
    }

    /// After the launch: if the program has `consumed` a donated argument, returns its memory, which a result takes
    /// over. If not, the argument is its owner's as before. `failed` says that the engine refused the launch, or gave
    /// it up.
    pub fn finish_donation(&mut self, consumed: bool, failed: bool) -> Option<Storage> {
        match self.hold {
            Hold::Donated => {
                self.hold = Hold::Read;
                self.buffer.end_donation(consumed, failed)
            }
            Hold::Exclusive => {
                self.hold = Hold::Read;
                let mut state = self.buffer.state();
                if consumed {
                    return Some(state.give_up());
                }
                state.undo_donation();
                None
            }
            Hold::Lent { donated: true } => {
                self.hold = Hold::Lent { donated: false };
                if consumed && let Err(failure) = self.buffer.delete() {
                    log::warn!("a donated array stays: {failure:?}");
                }
                None
            }
            Hold::Read | Hold::Lent { donated: false } | Hold::Released => None,
        }
    }

    /// Passes the use of an argument on to an operation in flight, which ends it; `None` if it is not in use. Its
    /// donation is finished.
    pub fn into_operation(&mut self) -> Option<Arc<Buffer>> {
        if self.hold != Hold::Read {
            return None;
        }
        self.hold = Hold::Released;
        Some(self.buffer.share())
    }

    /// As [`Self::into_operation`], for an operation whose end nobody will know: what is lent to it stays so.
    #[cold]
    pub fn into_stranded(&mut self) -> Arc<Buffer> {
        if self.hold == Hold::Read {
            self.hold = Hold::Released;
        }
        self.buffer.share()
    }
}

impl Drop for Argument<'_> {
    #[inline]
    fn drop(&mut self) {
        // First, because what was donated and is not consumed must not be freed when its use ends.
        if self.may_be_consumed() {
            drop(self.finish_donation(false, true));
        }
        if self.hold == Hold::Read {
            self.buffer.end_use_for(User::Execution);
        }
    }
}

/// Which of a program's arguments it may consume; asked for each of them in ascending order.
pub struct DonationCursor<'a> {
    any: bool,
    only: &'a [usize],
}

impl<'a> DonationCursor<'a> {
    /// These arguments; `None`: it may consume any.
    pub fn new(donated: Option<&'a [usize]>) -> Self {
        Self { any: donated.is_none(), only: donated.unwrap_or(&[]) }
    }

    /// Whether the program may consume this one.
    pub fn has(&mut self, argument: usize) -> bool {
        match self.only {
            [first, rest @ ..] if *first == argument => {
                self.only = rest;
                true
            }
            _ => self.any,
        }
    }
}
