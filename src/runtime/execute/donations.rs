//! Buffers that a call of the engine may consume.
//!
//! ```text
//!   launch   says that it takes the argument, waits for our copies of it   one critical section with its taking up
//!            a program from a callback reads it ---> a stand-in is given instead (stand_in.rs), nobody waits
//!            the engine is called
//!            consumed: its memory goes on in a result, or not: it is the owner's as before
//!   reader   comes in between: the engine copies, or the reader is refused (reading.rs)
//! ```
//!
//! The engine orders what it knows of: its own copies, and the programs of one client. What it does not know of is a memcpy
//! of ours that is under way, and what a program on another client reads. So a program that runs on another client
//! (`beside.rs`) gets only what nobody else uses, and from then on nobody else may; what somebody uses, it reads.
//!
//! Whoever waits here has told of arguments that it takes, uses some, and reads none; nobody waits for any of that. So neither
//! two launches with the same arguments in another order, nor a callback, can wait for itself.

use smallvec::SmallVec;

use crate::{
    engine::{Engine, Outcome},
    error::{Error, Result},
    runtime::{
        buffer::{
            Buffer,
            storage::{Access, Storage},
            usage::User,
        },
        device_memory::Allocation,
        executable::loaded::{Donations, Loaded},
        execute::{candidates::is_consumed, device_launch::DeviceLaunch, donation_copy},
    },
    sys,
};

/// One argument that a launch may consume.
struct ArgumentDonation<'a> {
    device: usize,
    argument: usize,
    buffer: &'a Buffer,
    kind: Kind,
}

/// How an argument may be consumed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// By the engine, which knows the buffer.
    Known,
    /// By a program on another client, which has it alone.
    Alone,
    /// Not at all: a program on another client reads it, and its owner loses it if the program takes what it read for
    /// its own.
    Read,
}

/// Arguments that a launch may consume, in the order of devices and arguments. What is not settled when the call ends was
/// never given.
#[derive(Default)]
pub struct DonationHolds<'a> {
    all: SmallVec<[ArgumentDonation<'a>; 4]>,
    settled: usize,
}

impl<'a> DonationHolds<'a> {
    /// Begins a run's use of an argument that it may consume, among the `arguments` of its device, whose number among
    /// the call's comes first. Gives the engine's buffer.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it was deleted or donated. Where a program from a host callback reads it: RESOURCE_EXHAUSTED, if there is
    /// no room for a copy of it, or FAILED_PRECONDITION, if there can be none.
    ///
    /// # Safety
    /// The client must be alive.
    pub unsafe fn take_up(
        &mut self,
        buffer: &'a Buffer,
        (device, argument): (usize, usize),
        arguments: &[*mut sys::PJRT_Buffer],
        lane: &mut DeviceLaunch<'_>,
        loaded: &Loaded,
    ) -> Outcome<*mut sys::PJRT_Buffer> {
        if let Some(handle) = buffer.take_up_to_give(User::Run)? {
            self.all.push(ArgumentDonation { device, argument, buffer, kind: Kind::Known });
            return Ok(handle);
        }
        // SAFETY: the caller's promise.
        unsafe { donation_copy::for_lent(lane, loaded, argument, arguments, buffer)? };
        Ok(buffer.take_up_for(User::Run)?)
    }

    /// As [`Self::take_up`], for a program on another client of the engine: gives the address of the block that it may
    /// write to. `None` if it may only read; `is_known` says that it will consume the argument.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it was deleted or donated.
    pub fn take_alone(
        &mut self,
        buffer: &'a Buffer,
        (device, argument): (usize, usize),
        is_known: bool,
    ) -> Result<Option<usize>> {
        let mut state = buffer.state();
        buffer.live_handle(&state)?;
        let address = state.held().map(Allocation::address).filter(|_| is_known && buffer.access == Access::Full);
        let taken = address.filter(|_| state.take_alone());
        let kind = if taken.is_some() { Kind::Alone } else { Kind::Read };
        self.all.push(ArgumentDonation { device, argument, buffer, kind });
        Ok(taken)
    }

    /// Ends the use that the last [`Self::take_alone`] began, where nothing came of it.
    pub fn land_last(&mut self) {
        if let Some(gift) = self.all.pop() {
            drop(gift.end(false, true));
            gift.buffer.land_for(User::Run);
        }
    }

    /// After the launch on `device`: hands on the memory of those arguments that the engine consumed. The others are their owners' as
    /// before. `failed` says that the engine refused the launch, or gave it up.
    ///
    /// # Safety
    /// The handles must be alive, one for each argument of the device in the same order. Devices come in ascending order.
    pub unsafe fn settle(
        &mut self,
        engine: &'static Engine,
        device: usize,
        handles: &[*mut sys::PJRT_Buffer],
        failed: bool,
        mut give: impl FnMut(usize, Storage),
    ) {
        while let Some(gift) = self.all.get(self.settled).filter(|gift| gift.device == device) {
            self.settled += 1;
            // SAFETY: the caller's promise.
            let consumed = unsafe { is_consumed(engine, handles[gift.argument]) };
            if let Some(storage) = gift.end(consumed, failed) {
                give(gift.argument, storage);
            }
        }
    }
}

impl Drop for DonationHolds<'_> {
    fn drop(&mut self) {
        for gift in &self.all[self.settled..] {
            drop(gift.end(false, true));
        }
    }
}

impl ArgumentDonation<'_> {
    /// As [`Buffer::end_gift`].
    fn end(&self, consumed: bool, failed: bool) -> Option<Storage> {
        match self.kind {
            Kind::Known => self.buffer.end_gift(consumed, failed),
            Kind::Alone => {
                let mut state = self.buffer.state();
                if consumed {
                    return Some(std::mem::replace(&mut state.storage, Storage::Gone));
                }
                state.give_back();
                None
            }
            Kind::Read => {
                if consumed && let Err(failure) = self.buffer.delete() {
                    log::warn!("a donated array stays: {failure:?}");
                }
                None
            }
        }
    }
}

/// A buffer that one call of the engine may consume.
pub struct DonationHold<'a> {
    buffer: &'a Buffer,
    handle: *mut sys::PJRT_Buffer,
    ended: bool,
}

impl DonationHold<'_> {
    /// The engine's buffer.
    pub fn handle(&self) -> *mut sys::PJRT_Buffer {
        self.handle
    }

    /// The engine has consumed it: gives its memory.
    pub fn consumed(mut self) -> Storage {
        self.ended = true;
        self.buffer.end_gift(true, false).unwrap_or(Storage::Gone)
    }
}

impl Drop for DonationHold<'_> {
    fn drop(&mut self) {
        if !self.ended {
            drop(self.buffer.end_gift(false, true));
        }
        self.buffer.land();
    }
}

/// Which of a program's arguments it may consume; asked for each of them in ascending order.
pub struct DonationCursor<'a> {
    any: bool,
    only: &'a [usize],
}

impl<'a> DonationCursor<'a> {
    /// Those of a plan.
    pub fn new(donations: &'a Donations) -> Self {
        match donations {
            Donations::Only(only) => Self { any: false, only },
            Donations::Unknown => Self { any: true, only: &[] },
        }
    }

    /// Whether it may consume this one.
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

impl Buffer {
    /// As [`Buffer::take_up_for`], for a call that may consume the buffer: until [`Buffer::end_gift`] nobody but the engine
    /// begins to read the bytes, and who read them has done so. `None` if a program of another client reads them.
    ///
    /// # Errors
    /// As [`Buffer::take_up`].
    fn take_up_to_give(&self, user: User) -> Result<Option<*mut sys::PJRT_Buffer>> {
        let Some(mut state) = self.usage().lock_to_take() else { return Ok(None) };
        let handle = self.live_handle(&state).inspect_err(|_| state.end_taking())?;
        state.begin_use(user);
        Ok(Some(handle))
    }

    /// Begins a call that consumes the buffer.
    ///
    /// # Errors
    /// As [`Buffer::take_up`]; FAILED_PRECONDITION while a program from a host callback reads it.
    pub fn give(&self) -> Result<DonationHold<'_>> {
        let handle = self.take_up_to_give(User::Transfer)?.ok_or_else(lent)?;
        Ok(DonationHold { buffer: self, handle, ended: false })
    }

    /// Ends a call that may have `consumed` the buffer. Gives the memory then, unless the call `failed` and another that is under
    /// way was given the buffer too: it is that one which has consumed it, or they both failed, and the last gives the memory.
    fn end_gift(&self, consumed: bool, failed: bool) -> Option<Storage> {
        let mut state = self.state();
        state.end_taking();
        if !consumed || failed && state.is_being_taken() {
            return None;
        }
        state.donate();
        Some(std::mem::replace(&mut state.storage, Storage::Gone))
    }
}

/// What who would be given a buffer is told that a program from a callback reads.
pub fn lent() -> Error {
    Error::failed_precondition(
        "a program that a host callback runs reads the array, which can be neither donated nor copied meanwhile",
    )
}
