//! One array of a transfer manager.
//!
//! `delivery.rs` says when it is delivered, or fails. The engine is called without a lock then, because it calls back
//! those that wait for the array, and they may use, or destroy, the manager.

use std::{ptr, sync::Arc};

use parking_lot::Mutex;

use crate::{
    engine::{
        EngineBuffer, EngineError, Live, Outcome, Raw, Session,
        failure::discard,
        views::{self, ClientMemory, HostBytes},
    },
    error::{Error, Result},
    runtime::{
        buffer::{
            Buffer, pjrt_buffer,
            storage::{Counted, Storage},
            usage::Life,
        },
        client::{Client, MemorySpace},
        device_memory::Allocation,
        shape::Shape,
        transfer::delivery::{Delivery, Due, Receipt, Refusal},
    },
    sys,
};

/// Why a buffer holds an error; the caller's words.
#[derive(Clone)]
pub struct Reason {
    /// A canonical code other than OK.
    pub code: sys::PJRT_Error_Code,
    /// Not necessarily UTF-8.
    pub message: Vec<u8>,
}

/// The caller's alias buffer of the engine, and the callback that gives it its bytes. The buffer is in use.
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
        /// The block's address.
        address: usize,
    },
    /// To the engine's own transfer manager of this one array, which lies in memory of the engine, counted until the
    /// buffer has the count.
    Engine(EngineManager, Mutex<Option<Counted>>),
}

/// A transfer manager of the engine for one array. Dropped, it is destroyed, unless its client is gone.
pub struct EngineManager {
    session: &'static Session,
    handle: Raw<sys::PJRT_AsyncHostToDeviceTransferManager>,
}

impl EngineManager {
    /// Owns a manager.
    ///
    /// # Safety
    /// `handle` must be a live manager of the session's client that nobody else destroys, with one array.
    pub unsafe fn own(session: &'static Session, handle: *mut sys::PJRT_AsyncHostToDeviceTransferManager) -> Self {
        Self { session, handle: Raw(handle) }
    }

    /// The buffer of the array.
    ///
    /// # Errors
    /// The engine's: it was retrieved before; or that the client is gone.
    fn retrieve(&self) -> Outcome<EngineBuffer> {
        let open = self.session.open()?;
        // SAFETY: the client is open, so the manager is alive. The buffer is new, with no other owner.
        unsafe {
            let args = open.engine.call(sys::PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args {
                transfer_manager: self.handle.0,
                buffer_index: 0,
                ..Default::default()
            })?;
            Ok(EngineBuffer::own(self.session, args.buffer_out))
        }
    }

    /// The array becomes an error.
    ///
    /// # Errors
    /// The engine's, or that the client is gone.
    fn fail(&self, reason: &Reason) -> Outcome {
        let open = self.session.open()?;
        // SAFETY: the client is open, so the manager is alive; the message lives for the call.
        unsafe {
            open.engine.call(sys::PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args {
                transfer_manager: self.handle.0,
                buffer_index: 0,
                error_code: reason.code,
                error_message: reason.message.as_ptr().cast(),
                error_message_size: reason.message.len(),
                ..Default::default()
            })?
        };
        Ok(())
    }
}

impl Drop for EngineManager {
    fn drop(&mut self) {
        if !self.session.is_open() {
            return;
        }
        let args = sys::PJRT_AsyncHostToDeviceTransferManager_Destroy_Args {
            transfer_manager: self.handle.0,
            ..Default::default()
        };
        // SAFETY: the client is there, so the manager is alive; it is owned here, and this is its end.
        discard(unsafe { self.session.engine.call(args) }, "destroy a transfer manager");
    }
}

/// One array.
pub struct Slot {
    index: usize,
    /// Bytes on the device.
    pub size: usize,
    place: Place,
    delivery: Delivery<Promise, Allocation, Reason>,
}

/// A write that was accepted. It must end with [`Slot::end`].
#[must_use]
pub enum WriteTarget<'a> {
    /// To this address, an array of this shape.
    Arena(usize, &'a Shape),
    /// Through the engine's manager, which has this one array.
    Engine(Raw<sys::PJRT_AsyncHostToDeviceTransferManager>),
}

impl Slot {
    /// An array in a block of the arena of `space`, which holds it.
    pub fn in_arena(index: usize, shape: Arc<Shape>, space: MemorySpace<'_>, block: Allocation) -> Self {
        let (size, (device, memory)) = (shape.size, space.place());
        let place = Place::Arena { shape, device, memory, address: block.address() };
        Self { index, size, place, delivery: Delivery::new(Some(block)) }
    }

    /// An array in the engine's memory: the only one of `manager`, `size` bytes, which are `counted`.
    pub fn in_engine(index: usize, size: usize, manager: EngineManager, counted: Counted) -> Self {
        let place = Place::Engine(manager, Mutex::new(Some(counted)));
        Self { index, size, place, delivery: Delivery::new(None) }
    }

    /// The array's shape, if it lies in an arena.
    pub fn shape(&self) -> Option<&Shape> {
        match &self.place {
            Place::Arena { shape, .. } => Some(shape),
            Place::Engine(..) => None,
        }
    }

    /// Accepts a write; no write is accepted after the `last` one.
    ///
    /// # Errors
    /// INVALID_ARGUMENT after the last transfer or an error, as the engine's own manager says it.
    pub fn begin(&self, function: &str, last: bool) -> Result<WriteTarget<'_>> {
        self.delivery.begin(last).map_err(|refusal| self.refused(function, refusal))?;
        Ok(match &self.place {
            Place::Arena { address, shape, .. } => WriteTarget::Arena(*address, shape),
            Place::Engine(manager, _) => WriteTarget::Engine(manager.handle),
        })
    }

    fn refused(&self, function: &str, refusal: Refusal<Reason>) -> Error {
        let index = self.index;
        match refusal {
            Refusal::Complete => Error::invalid_argument(format!(
                "{function} requested for buffer index {index} which has already been fully transferred"
            )),
            Refusal::Failed(reason) => Error::invalid_argument(format!(
                "{function} requested for buffer index {index} which already holds an error: {}",
                String::from_utf8_lossy(&reason.message)
            )),
        }
    }

    /// Ends a write that was begun, and delivers the array if it was the last.
    ///
    /// # Errors
    /// The engine's, if it cannot take a view of the array; the alias buffer gets the same error.
    pub fn end(&self, client: &Arc<Client>) -> Outcome {
        self.act(client, self.delivery.end())
    }

    /// The array becomes an error.
    ///
    /// # Errors
    /// INVALID_ARGUMENT after the last transfer or an error.
    pub fn fail(&self, client: &Arc<Client>, function: &str, reason: Reason) -> Outcome {
        let due = self.delivery.fail(reason).map_err(|refusal| self.refused(function, refusal))?;
        self.act(client, due)
    }

    /// Retrieves the buffer. Its bytes are defined once they are all there.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it was retrieved before; the engine's.
    pub fn retrieve(&self, client: &Arc<Client>, function: &str) -> Outcome<Arc<Buffer>> {
        let retrieved = match &self.place {
            Place::Arena { shape, device, memory, .. } => self.retrieve_from_arena(client, shape, (*device, *memory)),
            Place::Engine(manager, counted) => {
                let give = |_: Option<&mut _>| manager.retrieve().map(Receipt::Served);
                self.delivery.retrieve(give).map(|given| match (given?.0, counted.lock().take()) {
                    (buffer, Some(counted)) => client.adopt_counted(buffer, counted),
                    (buffer, None) => client.adopt(buffer),
                })
            }
        };
        retrieved.unwrap_or_else(|| {
            let index = self.index;
            let why = format!("{function}: the buffer with index {index} was retrieved before");
            Err(Error::invalid_argument(why).into())
        })
    }

    /// `None` if it was retrieved before.
    fn retrieve_from_arena(
        &self,
        client: &Arc<Client>,
        shape: &Arc<Shape>,
        (device, memory): pjrt_buffer::Place,
    ) -> Option<Outcome<Arc<Buffer>>> {
        let wrap = |view, storage| Buffer::new(view, (device, memory), Arc::clone(shape), storage);
        let given = self.delivery.retrieve(|complete| {
            let open = client.session.open()?;
            if let Some(place) = complete
                && let Some(block) = place.take()
            {
                // SAFETY: the client is open, and the memory its own; the block is aligned, holds the whole array, and
                // goes to the buffer, which frees it only after the view and what uses it.
                match unsafe { EngineBuffer::view(client.session, memory, block.address(), shape.array()) } {
                    Ok(view) => {
                        let buffer = wrap(view, Storage::Arena(block));
                        buffer.mark_defined();
                        return Ok(Receipt::Served(buffer));
                    }
                    Err(error) => {
                        *place = Some(block);
                        return Err(error.into());
                    }
                }
            }
            // SAFETY: the client is open, and the memory its own; dimensions and layout live for the call. The buffer
            // is new, with no other owner.
            let (alias, callback) = views::with_layout(ptr::null_mut(), shape.dims.len(), |shape_layout| unsafe {
                let made = open.engine.call(sys::PJRT_Client_CreateAliasBuffer_Args {
                    client: open.handle.0,
                    memory: memory.0,
                    shape_dims: shape.dims.as_ptr(),
                    shape_num_dims: shape.dims.len(),
                    shape_element_type: shape.element_type,
                    shape_layout,
                    ..Default::default()
                })?;
                let alias = EngineBuffer::own(client.session, made.alias_buffer);
                Ok::<_, EngineError>((alias, Raw(made.fulfill_alias_buffer_cb)))
            })?;
            // Until the array is complete the engine has no memory for this buffer, and the block is the slot's.
            let nothing = Counted::new(client.engine_bytes(device.0, memory.0), 0);
            let buffer = wrap(alias, Storage::Engine(nothing));
            // In use, because its owner may delete it, or donate it, before the bytes are there.
            buffer.begin_use()?;
            let promise = Promise { buffer: Arc::clone(&buffer), callback };
            Ok(Receipt::Promised(buffer, promise))
        });
        given.map(|given: Outcome<_>| {
            let (buffer, due) = given?;
            self.act(client, due)?;
            Ok(buffer)
        })
    }

    /// No more transfers will come: an array that is still open becomes an error.
    pub fn abandon(&self, client: &Arc<Client>) {
        let due = self.delivery.abandon(|| {
            // XLA's words (`host_to_device_transfer_manager.cc`).
            let message = b"Async transfer object was deleted before transfers completed.".to_vec();
            Reason { code: sys::PJRT_Error_Code_INTERNAL, message }
        });
        // The engine's own manager does the same when it is destroyed.
        if let Place::Arena { .. } = self.place
            && let Err(failure) = self.act(client, due)
        {
            log::warn!("an abandoned transfer: {failure:?}");
        }
    }

    /// Does what became due, without the lock.
    fn act(&self, client: &Arc<Client>, due: Option<Due<Promise, Allocation, Reason>>) -> Outcome {
        match (due, &self.place) {
            (Some(Due::Deliver(promise, block)), Place::Arena { shape, memory, .. }) => {
                promise.deliver(client, *memory, shape, block)
            }
            (Some(Due::Fail(Some(promise), reason)), Place::Arena { .. }) => {
                promise.fulfil(client, Err(&reason));
                Ok(())
            }
            (Some(Due::Fail(_, reason)), Place::Engine(manager, _)) => manager.fail(&reason),
            _ => Ok(()),
        }
    }
}

impl Promise {
    /// The array is complete in `block`.
    fn deliver(self, client: &Arc<Client>, memory: Raw<sys::PJRT_Memory>, shape: &Shape, block: Allocation) -> Outcome {
        let address = block.address();
        let donated = {
            let mut state = self.buffer.state();
            if state.life() == Life::Donated {
                Some(block)
            } else {
                state.storage = Storage::Arena(block);
                None
            }
        };
        let Ok(open) = client.session.open() else {
            self.buffer.end_use();
            return Ok(());
        };
        // SAFETY: the client is open, and the memory its own; the block holds the whole array, aligned, and stays while
        // the buffer is in use and the engine's programs use it. The copy is new, with no other owner.
        let source = unsafe {
            if donated.is_none() {
                EngineBuffer::view(client.session, memory, address, shape.array())
            } else {
                // A program that was donated the array before its bytes were there has a result that cannot be matched
                // with the block. That result counts as the engine's, so the engine gets a copy.
                let place = ClientMemory { client: open.client(), memory: Live::new(open.engine, memory.0) };
                let copy = views::from_host(place, address, shape.array(), HostBytes::Copied);
                copy.map(|copy| EngineBuffer::own(client.session, copy.into_raw()))
            }
        };
        match source {
            Ok(source) => {
                self.fulfil(client, Ok(&source));
                Ok(())
            }
            Err(error) => {
                let reason = Reason { code: sys::PJRT_Error_Code_INTERNAL, message: error.message().into_bytes() };
                self.fulfil(client, Err(&reason));
                Err(error.into())
            }
        }
    }

    /// Fulfils the alias with its bytes or its error, and ends its use.
    fn fulfil(self, client: &Arc<Client>, outcome: Result<&EngineBuffer, &Reason>) {
        if let Ok(open) = client.session.open() {
            let (code, message) = outcome.err().map_or((sys::PJRT_Error_Code(0), &[][..]), |r| (r.code, &r.message));
            // SAFETY: the client is open, and the callback its alias's, used once; the buffer is alive, or NULL with
            // a message that lives for the call.
            let fulfilled = unsafe {
                open.engine.call(sys::PJRT_Client_FulfillAliasBuffer_Args {
                    client: open.handle.0,
                    buffer: outcome.map_or(ptr::null_mut(), EngineBuffer::raw),
                    status_code: code,
                    error_message: message.as_ptr().cast(),
                    error_message_size: message.len(),
                    fulfill_alias_buffer_cb: self.callback.0,
                    ..Default::default()
                })
            };
            // XLA returns the very error that an alias is given, so only a refused array is logged.
            match (outcome, fulfilled) {
                (Ok(_), Err(error)) => log::error!("the engine refused the bytes of a transfer: {}", error.message()),
                (Ok(_), Ok(_)) => {
                    self.buffer.mark_defined();
                    self.buffer.enter_residents();
                }
                (Err(_), _) => {}
            }
        }
        self.buffer.end_use();
    }
}
