//! `PJRT_AsyncHostToDeviceTransferManager`: arrays first, their bytes later, in pieces and from any thread.
//!
//! ```text
//!  Create    a block for each array, or a manager of the engine's for one that cannot lie in an arena
//!  Transfer  memcpy into the block; nothing is asynchronous about it, so the event that it returns is ready
//!  Retrieve  after the last transfer: a view of the block
//!            before: an alias buffer of the engine, which the last transfer fulfils with a view of the block
//!  Error     the alias gets the error
//!  Destroy   arrays that are not complete become errors
//! ```
//!
//! The manager is pjrt-arena's. The engine of PJRT 0.81 has one too, but it keeps the arrays in memory of its own,
//! and it checks neither indices nor ranges: it reads past its lists, and a refused range leaves its destructor
//! waiting for ever.

use std::{ptr, sync::Arc};

use crate::{
    api::entry::Entry,
    device::{HostArray, strided},
    engine::{
        Args, EngineBuffer, Outcome, Raw,
        failure::required,
        views::{self, Array, ViewKind},
    },
    error::{Error, Result},
    memory::Provenance,
    report::snapshot::OriginKind,
    runtime::{
        allocator::allocate::allocate_or_explain,
        client::{self, Client, MemorySpace},
        device_memory::origins::ORIGINS,
        shape::{Shape, dense_size, element_bytes},
        transfer::{
            async_slot::{EngineManager, Reason, Slot, WriteTarget},
            host::{destination, is_default_layout},
            specs::{Spec, literal_strides, specs},
        },
    },
    sys::{self, slice},
    units::Bytes,
};

/// A scalar of any element type, which is neither read nor written.
#[repr(align(64))]
struct Scalar([u8; 64]);

const _: () = assert!(align_of::<Scalar>() == views::ALIGNMENT);

static SCALAR: Scalar = Scalar([0; 64]);

/// What a caller's `PJRT_AsyncHostToDeviceTransferManager` is.
struct Manager {
    client: Arc<Client>,
    device: Raw<sys::PJRT_Device>,
    slots: Vec<Slot>,
    /// A buffer of the engine that is ready, and so are its events: before 0.89 there is no other way to make one.
    /// `None` if no array lies in an arena.
    ready: Option<EngineBuffer>,
}

impl Manager {
    /// Shares ownership of the manager behind a caller's handle: a callback that runs inside the call may destroy the
    /// handle.
    ///
    /// # Errors
    /// INVALID_ARGUMENT naming `function` if the handle is NULL, FAILED_PRECONDITION once the client is destroyed.
    ///
    /// # Safety
    /// `manager` must be NULL or a live handle of this library.
    unsafe fn share(manager: *mut sys::PJRT_AsyncHostToDeviceTransferManager, function: &str) -> Outcome<Arc<Self>> {
        let manager = required(manager, function, "transfer_manager")?.cast::<Self>().cast_const();
        // SAFETY: the handle is not NULL, so it is the pointer of an `Arc`, alive during the call; the strong count
        // that is added here is the result's.
        let manager = unsafe {
            Arc::increment_strong_count(manager);
            Arc::from_raw(manager)
        };
        if !manager.client.session.is_open() {
            return Err(Error::failed_precondition(format!("{function}: the client has been destroyed")).into());
        }
        Ok(manager)
    }

    /// The array with this index.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is none.
    fn slot(&self, index: i32, function: &str) -> Result<&Slot> {
        usize::try_from(index).ok().and_then(|index| self.slots.get(index)).ok_or_else(|| {
            Error::invalid_argument(format!(
                "{function}: buffer_index is {index}, the transfer manager has {} buffers",
                self.slots.len()
            ))
        })
    }

    /// Has the engine's own manager write; the event of the write.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// `call` must satisfy its function's contract, with a live manager of the engine's.
    unsafe fn write_by_engine<A: Args>(
        &self,
        call: A,
        event: impl FnOnce(&A) -> *mut sys::PJRT_Event,
    ) -> Outcome<*mut sys::PJRT_Event> {
        // SAFETY: the struct satisfies the function's contract, as this function asks.
        let args = unsafe { self.client.session.engine.call(call)? };
        Ok(event(&args))
    }

    /// An event that has happened.
    ///
    /// # Errors
    /// The engine's.
    fn ready_event(&self) -> Outcome<*mut sys::PJRT_Event> {
        let ready = self.ready.as_ref().ok_or_else(|| Error::internal("a manager without a ready buffer"))?;
        Ok(ready.ready_event()?.into_raw())
    }
}

/// The device of `memory`, the first if there are several (as XLA has it).
///
/// # Errors
/// INVALID_ARGUMENT if the client has no such memory; the engine's.
///
/// # Safety
/// The client must be alive. `memory` may be any address.
unsafe fn device_of(client: &Client, memory: *mut sys::PJRT_Memory) -> Outcome<Raw<sys::PJRT_Device>> {
    const NAME: &str = "PJRT_Client_CreateBuffersForAsyncHostToDevice";
    required(memory, NAME, "memory")?;
    if let Some(device) = client.device_of_memory(memory) {
        return Ok(device.handle());
    }
    // SAFETY: the client is alive, as this function asks, and with it the lists, whose lengths the engine gives; the
    // memory is only used once it is found to be one of the client's.
    unsafe {
        let client_args =
            sys::PJRT_Client_AddressableMemories_Args { client: client.session.handle.0, ..Default::default() };
        let all = client.session.engine.call(client_args)?;
        if !slice(all.addressable_memories, all.num_addressable_memories).contains(&memory) {
            return Err(Error::invalid_argument(format!("{NAME}: {memory:p} is no memory of the client")).into());
        }
        let of =
            client.session.engine.call(sys::PJRT_Memory_AddressableByDevices_Args { memory, ..Default::default() })?;
        let first = slice(of.devices, of.num_devices).first();
        let first = first.ok_or_else(|| Error::invalid_argument(format!("{NAME}: the memory belongs to no device")))?;
        Ok(Raw(*first))
    }
}

/// The memory and the size of an array that can lie in an arena.
///
/// # Safety
/// The layout must be NULL or valid.
unsafe fn arena_for<'a>(
    client: &'a Client,
    spec: &Spec<'_>,
    memory: *mut sys::PJRT_Memory,
) -> Option<(MemorySpace<'a>, Bytes)> {
    // Without aliases (0.77) a buffer cannot be retrieved before its bytes are there.
    client.session.engine.slot(sys::PJRT_Client_CreateAliasBuffer_Args::SLOT)?;
    // Pieces that go to a GPU have an order of their own, which the engine's manager keeps.
    if client.session.view_kind == ViewKind::Device {
        return None;
    }
    // SAFETY: the layout is NULL or valid, as this function asks.
    let plain = unsafe { is_default_layout(spec.layout) };
    destination(client, ptr::null_mut(), memory)
        .filter(|_| plain && client.session.aliasable.contains(spec.raw.element_type))
        .zip(dense_size(spec.raw.element_type, spec.dims))
}

/// A manager of the engine's with this one array. The array's memory exists and counts from here on.
///
/// # Errors
/// The engine's; RESOURCE_EXHAUSTED where the limit of `memory` has no room for the array.
///
/// # Safety
/// The client and the memory must be alive, the layout NULL or valid.
unsafe fn by_engine(
    client: &Client,
    index: usize,
    spec: &Spec<'_>,
    (device, memory): (*mut sys::PJRT_Device, *mut sys::PJRT_Memory),
) -> Outcome<Slot> {
    let admitted = client.admit_shape((device, memory), spec.raw.element_type, spec.dims)?;
    let (mut raw, mut layout) = (spec.raw, spec.layout);
    // SAFETY: client and memory are alive, as this function asks; shape and layout live for the call. The manager is
    // new, with no other owner.
    unsafe {
        let args = client.session.engine.call(sys::PJRT_Client_CreateBuffersForAsyncHostToDevice_Args {
            client: client.session.handle.0,
            shape_specs: &raw mut raw,
            num_shape_specs: 1,
            device_layouts: &raw mut layout,
            num_device_layouts: usize::from(!layout.is_null()),
            memory,
            ..Default::default()
        })?;
        let manager = args.transfer_manager;
        let size = client.session.engine.call(sys::PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args {
            transfer_manager: manager,
            buffer_index: 0,
            ..Default::default()
        });
        let bytes = size.as_ref().map_or(0, |args| args.buffer_size);
        let counted = admitted.count(client.engine_bytes(device, memory), bytes);
        let slot = Slot::in_engine(index, bytes, EngineManager::own(client.session, manager), counted);
        size?;
        Ok(slot)
    }
}

impl Entry for sys::PJRT_Client_CreateBuffersForAsyncHostToDevice_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = client::find(self.client)?;
        client.allocator.in_flight.reap_in_order();
        // SAFETY: the client is alive during the call.
        let device = unsafe { device_of(&client, self.memory)? };
        // SAFETY: the lists are as long as the caller's struct says, its layouts NULL or valid, as `run` asks.
        let specs = unsafe { specs(self, client.session.engine.minor())? };
        // If something fails, dropping the manager frees what was made until then.
        let mut manager =
            Manager { client: Arc::clone(&client), device, slots: Vec::with_capacity(specs.len()), ready: None };
        for (index, spec) in specs.iter().enumerate() {
            // SAFETY: the layout is NULL or valid.
            let Some((space, size)) = (unsafe { arena_for(&client, spec, self.memory) }) else {
                // SAFETY: the client and its memory are alive.
                manager.slots.push(unsafe { by_engine(&client, index, spec, (device.0, self.memory))? });
                continue;
            };
            if manager.ready.is_none() {
                let address = SCALAR.0.as_ptr().expose_provenance();
                let kind = spec.raw.element_type;
                // SAFETY: client and memory are alive during the call. The scalar is aligned, as large as any element,
                // and lives for ever; nothing writes to it, because the view is never passed to a program.
                let view =
                    unsafe { EngineBuffer::view(client.session, space.memory(), address, Array::new(kind, &[]))? };
                manager.ready = Some(view);
            }
            let shape = Arc::new(Shape::new(spec.raw.element_type, spec.dims, size.get() as usize));
            let origin = ORIGINS.of_shape(OriginKind::Transfer, &shape);
            let block = allocate_or_explain(
                &client.allocator,
                space.arena(),
                &shape,
                Provenance { origin, ..Provenance::default() },
            )?;
            manager.slots.push(Slot::in_arena(index, shape, space, block));
        }
        self.transfer_manager = Arc::into_raw(Arc::new(manager)).cast_mut().cast();
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_TransferData_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_AsyncHostToDeviceTransferManager_TransferData";
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks.
        let manager = unsafe { Manager::share(self.transfer_manager, NAME)? };
        let slot = manager.slot(self.buffer_index, NAME)?;
        let range = usize::try_from(self.offset).ok().zip(usize::try_from(self.transfer_size).ok());
        let Some((offset, len)) =
            range.filter(|(offset, len)| offset.checked_add(*len).is_some_and(|end| end <= slot.size))
        else {
            return Err(Error::invalid_argument(format!(
                "{NAME}: offset {} and transfer_size {} reach outside of the buffer with index {}, which has {} bytes",
                self.offset, self.transfer_size, self.buffer_index, slot.size
            ))
            .into());
        };
        if len > 0 {
            required(self.data.cast_mut(), NAME, "data")?;
        }
        let outcome = match slot.begin(NAME, self.is_last_transfer)? {
            WriteTarget::Arena(address) => {
                if len > 0 {
                    // SAFETY: `data` has `len` bytes, as `run` asks; the range lies in the block, which stays until
                    // the write ends. A caller that sends to overlapping ranges at once gets the bytes of either, as
                    // from any engine.
                    unsafe {
                        let to = ptr::with_exposed_provenance_mut::<u8>(address).add(offset);
                        ptr::copy_nonoverlapping(self.data.cast::<u8>(), to, len);
                    }
                }
                manager.ready_event()
            }
            // SAFETY: the engine's manager is alive while this one is, and has an array 0 of this size; `data` is the
            // caller's, valid until the event.
            WriteTarget::Engine(inner) => unsafe {
                let call = Self { transfer_manager: inner.0, buffer_index: 0, ..*self };
                manager.write_by_engine(call, |args| args.done_with_h2d_transfer)
            },
        };
        // Also after an error, because the write is over.
        let ended = slot.end(&manager.client);
        self.done_with_h2d_transfer = outcome?;
        ended
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_AsyncHostToDeviceTransferManager_TransferLiteral";
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks.
        let manager = unsafe { Manager::share(self.transfer_manager, NAME)? };
        let slot = manager.slot(self.buffer_index, NAME)?;
        let strides = match slot.shape() {
            // SAFETY: the dimensions are as many as the caller's struct says, its layout NULL or valid, as `run`
            // asks.
            Some(shape) => unsafe { literal_strides(self, shape)? },
            None => None,
        };
        if slot.size > 0 {
            required(self.data.cast_mut(), NAME, "data")?;
        }
        let outcome = match (slot.begin(NAME, true)?, slot.shape()) {
            (WriteTarget::Arena(address), Some(shape)) => {
                // SAFETY: the literal has the shape of the array and, where it is not dense, these strides, which reach
                // every element once; the block holds the dense array and stays until the write ends.
                unsafe {
                    let element = element_bytes(shape.element_type).map_or(1, usize::from);
                    let literal = HostArray::new(self.data.cast(), &shape.dims, strides.as_deref(), element);
                    strided::copy_to_dense(literal, ptr::with_exposed_provenance_mut(address));
                }
                manager.ready_event()
            }
            (WriteTarget::Arena(_), None) => Err(Error::internal("an array in an arena has no shape").into()),
            // SAFETY: the engine's manager is alive while this one is, and has an array 0 of this size; `data` is the
            // caller's, valid until the event.
            (WriteTarget::Engine(inner), _) => unsafe {
                let call = Self { transfer_manager: inner.0, buffer_index: 0, ..*self };
                manager.write_by_engine(call, |args| args.done_with_h2d_transfer)
            },
        };
        let ended = slot.end(&manager.client);
        self.done_with_h2d_transfer = outcome?;
        ended
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer";
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks.
        let manager = unsafe { Manager::share(self.transfer_manager, NAME)? };
        let slot = manager.slot(self.buffer_index, NAME)?;
        self.buffer_out = slot.retrieve(&manager.client, NAME)?.into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_AsyncHostToDeviceTransferManager_SetBufferError";
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks.
        let manager = unsafe { Manager::share(self.transfer_manager, NAME)? };
        let slot = manager.slot(self.buffer_index, NAME)?;
        let (first, last) = (sys::PJRT_Error_Code_CANCELLED, sys::PJRT_Error_Code_UNAUTHENTICATED);
        if !(first.0..=last.0).contains(&self.error_code.0) {
            return Err(Error::invalid_argument(format!(
                "{NAME}: error_code is {}; errors have codes {} to {}",
                self.error_code.0, first.0, last.0
            ))
            .into());
        }
        // SAFETY: the message is as long as the caller's struct says, as `run` asks.
        let message: &[u8] = unsafe { slice(self.error_message.cast(), self.error_message_size) };
        slot.fail(&manager.client, NAME, Reason { code: self.error_code, message: message.to_vec() })
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks.
        let manager =
            unsafe { Manager::share(self.transfer_manager, "PJRT_AsyncHostToDeviceTransferManager_BufferCount")? };
        self.buffer_count = manager.slots.len();
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_AsyncHostToDeviceTransferManager_BufferSize";
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks.
        let manager = unsafe { Manager::share(self.transfer_manager, NAME)? };
        self.buffer_size = manager.slot(self.buffer_index, NAME)?.size;
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_Device_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks.
        let manager = unsafe { Manager::share(self.transfer_manager, "PJRT_AsyncHostToDeviceTransferManager_Device")? };
        self.device_out = manager.device.0;
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args {
    unsafe fn run(&mut self) -> Outcome {
        const NAME: &str = "PJRT_AsyncHostToDeviceTransferManager_AddMetadata";
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks.
        let _manager = unsafe { Manager::share(self.transfer_manager, NAME)? };
        if self.transfer_metadata.is_null() && self.num_metadata > 0 {
            let why = format!("{NAME}: transfer_metadata is NULL, num_metadata is {}", self.num_metadata);
            return Err(Error::invalid_argument(why).into());
        }
        // Metadata annotates traces of the engine's transfers; copies into an arena are done when the call returns.
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_Destroy_Args {
    unsafe fn run(&mut self) -> Outcome {
        if self.transfer_manager.is_null() {
            return Ok(());
        }
        // SAFETY: the handle is not NULL, so it is the pointer of an `Arc` whose strong count the caller gives up.
        let manager = unsafe { Arc::from_raw(self.transfer_manager.cast::<Manager>().cast_const()) };
        for slot in &manager.slots {
            slot.abandon(&manager.client);
        }
        Ok(())
    }
}
