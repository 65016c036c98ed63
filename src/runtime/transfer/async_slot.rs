//! One array of a transfer manager.
//!
//! ```text
//!  stage     Open --- last transfer ---> Closed
//!              \----- SetBufferError, Destroy ---> Failed
//!  receiver  Nobody -- RetrieveBuffer --> Served      nothing is left to do: the caller has a view of the block
//!                  \-- before the end --> Promised    the caller has an alias buffer, which shows nothing yet
//!  due       not Open, no copy under way, Promised: the alias gets a view of the block, or the error
//! ```
//!
//! The bytes are copied without a lock: `copies` keeps the block in place, and whoever ends the last copy does what is
//! due. The engine is called for it after the lock is given up, because it runs callbacks of whoever waits for the
//! array, and those may use, or destroy, the manager.

use std::{ffi::c_void, ptr, sync::Arc};

use parking_lot::Mutex;

use crate::{
    engine::{EngineError, EngineEvent, Outcome, Raw, views},
    error::{Error, Result},
    runtime::{
        buffer::{
            Buffer,
            storage::{Counted, Storage},
            usage::Life,
        },
        client::Client,
        device_memory::Allocation,
        shape::Shape,
    },
    sys,
};

/// Why a buffer holds an error; the words are the caller's own.
#[derive(Clone)]
pub struct Reason {
    /// A canonical code other than OK.
    pub code: sys::PJRT_Error_Code,
    /// Not necessarily UTF-8.
    pub message: Vec<u8>,
}

/// What may still be done to the bytes.
enum Stage {
    /// Anything.
    Open,
    /// Nothing: the last transfer was accepted.
    Closed,
    /// Nothing: the array holds this error.
    Failed(Reason),
}

/// Who has the buffer.
enum Receiver {
    /// It was not retrieved yet.
    Nobody,
    /// It was retrieved before its bytes were there.
    Promised(Promise),
    /// The caller, for good.
    Served,
}

/// An alias buffer of the engine that the caller has, and what gives it its bytes. The buffer is taken up.
struct Promise {
    buffer: Arc<Buffer>,
    callback: Raw<sys::PJRT_FulfillAliasBufferCallback>,
}

/// Where the bytes go.
enum Place {
    /// Into a block of an arena.
    Arena {
        shape: Arc<Shape>,
        device: Raw<sys::PJRT_Device>,
        memory: Raw<sys::PJRT_Memory>,
        /// Where the block begins.
        address: usize,
    },
    /// To the engine's own transfer manager of this one array, which lies in memory of the engine.
    Engine(Raw<sys::PJRT_AsyncHostToDeviceTransferManager>),
}

struct State {
    stage: Stage,
    receiver: Receiver,
    /// Calls that write bytes at this moment.
    copies: usize,
    /// The block, until the buffer has it.
    block: Option<Allocation>,
    /// What the engine's memory counts as, likewise.
    counted: Option<Counted>,
}

/// What is to be done after the lock is given up.
enum Due {
    Deliver(Promise, Allocation),
    Fail(Option<Promise>, Reason),
}

/// One array.
pub struct Slot {
    index: usize,
    /// Bytes on the device.
    pub size: usize,
    place: Place,
    state: Mutex<State>,
}

/// A write that was accepted. It must end with [`Slot::end`].
#[must_use]
pub enum Definition {
    /// To this address.
    Arena(usize),
    /// Through the engine's manager, which has this one array.
    Engine(Raw<sys::PJRT_AsyncHostToDeviceTransferManager>),
}

impl Slot {
    fn new(index: usize, size: usize, place: Place, block: Option<Allocation>) -> Self {
        let state = State { stage: Stage::Open, receiver: Receiver::Nobody, copies: 0, block, counted: None };
        Self { index, size, place, state: Mutex::new(state) }
    }

    /// An array in a block of the arena of `device`, whose memory is `memory`.
    pub fn in_arena(
        index: usize,
        shape: Arc<Shape>,
        device: Raw<sys::PJRT_Device>,
        memory: Raw<sys::PJRT_Memory>,
        block: Allocation,
    ) -> Self {
        let size = shape.size;
        Self::new(index, size, Place::Arena { shape, device, memory, address: block.address() }, Some(block))
    }

    /// An array of the engine's: the only one of `manager`, `size` bytes, which are `counted`. Destroyed with [`Slot::destroy`].
    pub fn in_engine(
        index: usize,
        size: usize,
        manager: Raw<sys::PJRT_AsyncHostToDeviceTransferManager>,
        counted: Counted,
    ) -> Self {
        let mut slot = Self::new(index, size, Place::Engine(manager), None);
        slot.state.get_mut().counted = Some(counted);
        slot
    }

    /// The array's shape, if it lies in an arena.
    pub fn shape(&self) -> Option<&Shape> {
        match &self.place {
            Place::Arena { shape, .. } => Some(shape),
            Place::Engine(_) => None,
        }
    }

    /// Accepts a write; after the `last` one no other is.
    ///
    /// # Errors
    /// INVALID_ARGUMENT after the last transfer or an error, as the engine's own manager says it.
    pub fn begin(&self, function: &str, last: bool) -> Result<Definition> {
        let mut state = self.state.lock();
        self.require_open(&state, function)?;
        if last {
            state.stage = Stage::Closed;
        }
        state.copies += 1;
        Ok(match self.place {
            Place::Arena { address, .. } => Definition::Arena(address),
            Place::Engine(manager) => Definition::Engine(manager),
        })
    }

    fn require_open(&self, state: &State, function: &str) -> Result<()> {
        let index = self.index;
        match &state.stage {
            Stage::Open => Ok(()),
            Stage::Closed => Err(Error::invalid_argument(format!(
                "{function} requested for buffer index {index} which has already been fully transferred"
            ))),
            Stage::Failed(reason) => Err(Error::invalid_argument(format!(
                "{function} requested for buffer index {index} which already holds an error: {}",
                String::from_utf8_lossy(&reason.message)
            ))),
        }
    }

    /// Ends a write that was begun, and delivers the array if it was the last.
    ///
    /// # Errors
    /// The engine's, if it cannot show the array; who waits for it gets the same error.
    pub fn end(&self, client: &Arc<Client>) -> Outcome {
        let due = {
            let mut state = self.state.lock();
            state.copies -= 1;
            state.due()
        };
        self.act(client, due)
    }

    /// The array becomes an error.
    ///
    /// # Errors
    /// INVALID_ARGUMENT after the last transfer or an error.
    pub fn fail(&self, client: &Arc<Client>, function: &str, reason: Reason) -> Outcome {
        let due = {
            let mut state = self.state.lock();
            self.require_open(&state, function)?;
            state.stage = Stage::Failed(reason);
            state.due()
        };
        self.act(client, due)
    }

    /// Hands the buffer over. It shows its bytes once they are all there.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it was retrieved before; the engine's.
    pub fn retrieve(&self, client: &Arc<Client>, function: &str) -> Outcome<Arc<Buffer>> {
        let mut state = self.state.lock();
        if !matches!(state.receiver, Receiver::Nobody) {
            return Err(Error::invalid_argument(format!(
                "{function}: the buffer with index {} was retrieved before",
                self.index
            ))
            .into());
        }
        let (shape, device, memory, address) = match &self.place {
            Place::Arena { shape, device, memory, address } => (shape, *device, *memory, *address),
            Place::Engine(manager) => {
                // SAFETY: the manager is alive, has an array 0, and gives it away for the first time.
                let buffer = unsafe {
                    let args =
                        client.session.engine.call(sys::PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args {
                            transfer_manager: manager.0,
                            buffer_index: 0,
                            ..Default::default()
                        })?;
                    state.receiver = Receiver::Served;
                    match state.counted.take() {
                        Some(counted) => client.adopt_counted(args.buffer_out, counted)?,
                        None => client.adopt(args.buffer_out)?,
                    }
                };
                return Ok(buffer);
            }
        };
        let wrap = |handle, storage| Buffer::new(client.session, device, memory, Arc::clone(shape), handle, storage);
        let complete = matches!(state.stage, Stage::Closed) && state.copies == 0;
        if let Some(block) = state.block.take_if(|_| complete) {
            // SAFETY: the block is aligned, holds the whole array, and goes to the buffer, which frees it after the view.
            match unsafe { show(client, memory, shape, address, Showing::View) } {
                Ok(view) => {
                    state.receiver = Receiver::Served;
                    let buffer = wrap(view, Storage::Arena(block));
                    buffer.mark_defined();
                    return Ok(buffer);
                }
                Err(error) => {
                    state.block = Some(block);
                    return Err(error.into());
                }
            }
        }
        // SAFETY: the client and its memory are alive, the dimensions and the layout live for the call.
        let alias = views::with_layout(ptr::null_mut(), shape.dims.len(), |shape_layout| unsafe {
            client.session.engine.call(sys::PJRT_Client_CreateAliasBuffer_Args {
                client: client.session.handle.0,
                memory: memory.0,
                shape_dims: shape.dims.as_ptr(),
                shape_num_dims: shape.dims.len(),
                shape_element_type: shape.element_type,
                shape_layout,
                ..Default::default()
            })
        })?;
        // Until the promise is kept the engine has nothing for this buffer, and the block is the slot's.
        let nothing = Counted::new(client.engine_bytes(device.0, memory.0), 0);
        let buffer = wrap(alias.alias_buffer, Storage::Engine(nothing));
        // Its owner may delete it, or donate it, before the bytes are there.
        buffer.begin_use()?;
        let callback = Raw(alias.fulfill_alias_buffer_cb);
        state.receiver = Receiver::Promised(Promise { buffer: Arc::clone(&buffer), callback });
        let due = state.due();
        drop(state);
        self.act(client, due)?;
        Ok(buffer)
    }

    /// Nothing more will come: what is still open becomes an error.
    pub fn abandon(&self, client: &Arc<Client>) {
        let due = {
            let mut state = self.state.lock();
            if matches!(state.stage, Stage::Open) {
                // XLA's words (`host_to_device_transfer_manager.cc`).
                let message = b"Async transfer object was deleted before transfers completed.".to_vec();
                state.stage = Stage::Failed(Reason { code: sys::PJRT_Error_Code_INTERNAL, message });
            }
            state.due()
        };
        // The engine's own manager says the same when it is destroyed.
        if let Place::Arena { .. } = self.place
            && let Err(failure) = self.act(client, due)
        {
            log::warn!("an abandoned transfer: {failure:?}");
        }
    }

    /// Destroys the engine's manager, if there is one.
    ///
    /// # Safety
    /// The client must be alive, and the slot not be used again.
    pub unsafe fn destroy(&self, client: &Client) {
        let Place::Engine(manager) = self.place else { return };
        // SAFETY: the manager is ours, alive, and this is its end.
        let destroyed = unsafe {
            client.session.engine.call(sys::PJRT_AsyncHostToDeviceTransferManager_Destroy_Args {
                transfer_manager: manager.0,
                ..Default::default()
            })
        };
        if let Err(error) = destroyed {
            log::warn!("the engine could not destroy a transfer manager: {}", error.message());
        }
    }

    /// Does what became due, without the lock.
    fn act(&self, client: &Arc<Client>, due: Option<Due>) -> Outcome {
        match (due, &self.place) {
            (Some(Due::Deliver(promise, block)), Place::Arena { shape, memory, .. }) => {
                promise.deliver(client, *memory, shape, block)
            }
            (Some(Due::Fail(Some(promise), reason)), Place::Arena { .. }) => {
                promise.keep(client, Err(&reason));
                Ok(())
            }
            (Some(Due::Fail(_, reason)), Place::Engine(manager)) => {
                // SAFETY: the manager is alive; its array 0 is open, since ours was, and gets an error this once.
                unsafe {
                    client.session.engine.call(sys::PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args {
                        transfer_manager: manager.0,
                        buffer_index: 0,
                        error_code: reason.code,
                        error_message: reason.message.as_ptr().cast(),
                        error_message_size: reason.message.len(),
                        ..Default::default()
                    })?
                };
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl State {
    /// What is to be done now that something changed. Each thing is due once: a promise is taken out, and an array fails
    /// once, when its last copy has ended.
    fn due(&mut self) -> Option<Due> {
        if self.copies > 0 || matches!(self.stage, Stage::Open) {
            return None;
        }
        let promise = match std::mem::replace(&mut self.receiver, Receiver::Nobody) {
            Receiver::Promised(promise) => {
                self.receiver = Receiver::Served;
                Some(promise)
            }
            other => {
                self.receiver = other;
                None
            }
        };
        if let Stage::Failed(reason) = &self.stage {
            // Nobody will see the bytes.
            self.block = None;
            return Some(Due::Fail(promise, reason.clone()));
        }
        // Without a promise the block waits for whoever retrieves the buffer.
        let promise = promise?;
        self.block.take().map(|block| Due::Deliver(promise, block))
    }
}

impl Promise {
    /// The array is complete in `block`.
    fn deliver(self, client: &Arc<Client>, memory: Raw<sys::PJRT_Memory>, shape: &Shape, block: Allocation) -> Outcome {
        let address = block.address();
        let unclaimed = {
            let mut state = self.buffer.state();
            if state.life() == Life::Donated {
                Some(block)
            } else {
                state.storage = Storage::Arena(block);
                None
            }
        };
        // A program that was donated the array before its bytes were there has a result that nobody could match with the
        // block. That result counts as the engine's, so the engine gets a copy.
        let showing = if unclaimed.is_some() { Showing::Copy } else { Showing::View };
        if !client.session.is_open() {
            self.buffer.land();
            return Ok(());
        }
        // SAFETY: the client is alive; the block holds the whole array, aligned, and stays while the buffer is taken up
        // and the engine's programs use it.
        match unsafe { show(client, memory, shape, address, showing) } {
            Ok(source) => {
                self.keep(client, Ok(source));
                // SAFETY: the source was ours and is consumed; only its handle is left.
                unsafe { views::destroy(client.session.engine, source) };
                Ok(())
            }
            Err(error) => {
                let reason = Reason { code: sys::PJRT_Error_Code_INTERNAL, message: error.message().into_bytes() };
                self.keep(client, Err(&reason));
                Err(error.into())
            }
        }
    }

    /// Gives the alias its bytes or its error, and lets go of it.
    fn keep(self, client: &Arc<Client>, outcome: Result<*mut sys::PJRT_Buffer, &Reason>) {
        if client.session.is_open() {
            let (code, message) = outcome.err().map_or((sys::PJRT_Error_Code(0), &[][..]), |r| (r.code, &r.message));
            // SAFETY: the callback is called this once, with a live buffer or a message that lives for the call.
            let kept = unsafe {
                client.session.engine.call(sys::PJRT_Client_FulfillAliasBuffer_Args {
                    client: client.session.handle.0,
                    buffer: outcome.unwrap_or(ptr::null_mut()),
                    status_code: code,
                    error_message: message.as_ptr().cast(),
                    error_message_size: message.len(),
                    fulfill_alias_buffer_cb: self.callback.0,
                    ..Default::default()
                })
            };
            // XLA returns the very error that an alias is given, so only a refused array is news.
            match (outcome, kept) {
                (Ok(_), Err(error)) => log::error!("the engine refused the bytes of a transfer: {}", error.message()),
                (Ok(_), Ok(_)) => {
                    self.buffer.mark_defined();
                    self.buffer.enter_residents();
                }
                (Err(_), _) => {}
            }
        }
        self.buffer.land();
    }
}

/// How the engine is to show bytes of ours.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Showing {
    /// In place.
    View,
    /// As a copy of its own.
    Copy,
}

/// A buffer of the engine with the array at `address`.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// As for [`views::view`]; for a copy the array must only hold for the call.
unsafe fn show(
    client: &Client,
    memory: Raw<sys::PJRT_Memory>,
    shape: &Shape,
    address: usize,
    showing: Showing,
) -> Result<*mut sys::PJRT_Buffer, EngineError> {
    let (engine, handle) = (client.session.engine, client.session.handle.0);
    if showing == Showing::View {
        // SAFETY: the caller's promise.
        return unsafe { client.session.view(memory, address, shape.array()) };
    }
    // SAFETY: the array holds for the call, which is all that the engine is told it may rely on.
    unsafe {
        let args = engine.call(sys::PJRT_Client_BufferFromHostBuffer_Args {
            client: handle,
            data: ptr::with_exposed_provenance::<c_void>(address),
            type_: shape.element_type,
            dims: shape.dims.as_ptr(),
            num_dims: shape.dims.len(),
            host_buffer_semantics: sys::PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
            memory: memory.0,
            ..Default::default()
        })?;
        drop(EngineEvent::own(engine, args.done_with_host_buffer));
        Ok(args.buffer)
    }
}
