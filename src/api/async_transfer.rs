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
    api::{
        call::{Call, Lends},
        entry::Entry,
        transfer_manager::Manager,
    },
    device::{HostArray, strided},
    engine::{
        Args, EngineBuffer, EngineEvent, Failure, Outcome, Raw,
        views::{self, Array, ViewKind},
    },
    error::Error,
    handlers::python::stacks,
    memory::Provenance,
    report::snapshot::OriginKind,
    runtime::{
        allocator::allocate::allocate_or_explain,
        client::{self, Client, MemorySpace},
        device_memory::origins::ORIGINS,
        shape::{Shape, dense_size, element_bytes},
        transfer::{
            async_slot::{EngineManager, Reason, Slot, WriteTarget},
            host::destination,
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

/// Shares ownership of the call's manager: a callback that runs inside the call may destroy the handle.
///
/// # Errors
/// INVALID_ARGUMENT naming the function if the handle is NULL, FAILED_PRECONDITION once the client is destroyed.
fn manager_of<A: Lends<Manager>>(call: &Call<'_, A>) -> Outcome<Arc<Manager>> {
    let manager = call.share("transfer_manager")?;
    if !manager.client.session.is_open() {
        let function = Call::<A>::FUNCTION;
        return Err(Error::failed_precondition(format!("{function}: the client has been destroyed")).into());
    }
    Ok(manager)
}

/// The device of the call's memory, the first if there are several (as XLA has it). The memory may be any address.
///
/// # Errors
/// INVALID_ARGUMENT if the client has no such memory; the engine's.
fn device_of(call: &Call<'_, Create>, client: &Client) -> Outcome<Raw<sys::PJRT_Device>> {
    let memory = call.required(call.memory, "memory")?;
    if let Some(device) = client.device_of_memory(memory) {
        return Ok(device.handle());
    }
    let refuse = |why: String| Err(Error::invalid_argument(format!("{}: {why}", Call::<Create>::FUNCTION)).into());
    let session = client.session.open()?;
    // SAFETY: the client is open, and with it the lists, whose lengths the engine gives; the memory is only used once
    // it is found to be one of the client's.
    let devices = unsafe {
        let client_args = sys::PJRT_Client_AddressableMemories_Args { client: session.handle.0, ..Default::default() };
        let all = session.engine.call(client_args)?;
        if !slice(all.addressable_memories, all.num_addressable_memories).contains(&memory) {
            return refuse(format!("{memory:p} is no memory of the client"));
        }
        let of = session.engine.call(sys::PJRT_Memory_AddressableByDevices_Args { memory, ..Default::default() })?;
        slice(of.devices, of.num_devices)
    };
    match devices.first() {
        Some(first) => Ok(Raw(*first)),
        None => refuse("the memory belongs to no device".to_owned()),
    }
}

/// The memory and the size of an array that can lie in an arena.
fn arena_for<'a>(
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
    destination(client, ptr::null_mut(), memory)
        .filter(|_| spec.has_default_layout() && client.session.can_view(spec.element_type(), spec.dims))
        .zip(dense_size(spec.element_type(), spec.dims))
}

/// A manager of the engine's with this one array. The array's memory exists and counts from here on.
///
/// # Errors
/// The engine's; RESOURCE_EXHAUSTED where the limit of the call's memory has no room for the array.
fn by_engine(
    call: &Call<'_, Create>,
    client: &Client,
    device: Raw<sys::PJRT_Device>,
    (index, spec): (usize, &Spec<'_>),
) -> Outcome<Slot> {
    let session = client.session.open()?;
    let admitted = client.admit_shape((device.0, call.memory), spec.element_type(), spec.dims)?;
    let (mut raw, mut layout) = spec.raw();
    // SAFETY: the client is open, and the memory alive, as the call asks; shape and layout, which is NULL or valid,
    // live for the call. The manager is new, with no other owner.
    unsafe {
        let args = session.engine.call(Create {
            client: session.handle.0,
            shape_specs: &raw mut raw,
            num_shape_specs: 1,
            device_layouts: &raw mut layout,
            num_device_layouts: usize::from(!layout.is_null()),
            memory: call.memory,
            ..Default::default()
        })?;
        let manager = args.transfer_manager;
        let size = session.engine.call(sys::PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args {
            transfer_manager: manager,
            buffer_index: 0,
            ..Default::default()
        });
        let bytes = size.as_ref().map_or(0, |args| args.buffer_size);
        let counted = admitted.count(client.engine_bytes(device.0, call.memory), bytes);
        let slot = Slot::in_engine(index, bytes, EngineManager::own(client.session, manager), counted);
        size?;
        Ok(slot)
    }
}

/// A buffer of the engine in `space` that is ready, and so are its events.
///
/// # Errors
/// The engine's.
fn ready_buffer(client: &Client, space: MemorySpace<'_>, kind: sys::PJRT_Buffer_Type) -> Outcome<EngineBuffer> {
    client.session.open()?;
    let address = SCALAR.0.as_ptr().expose_provenance();
    // SAFETY: the client is open, and with it its memory. The scalar is aligned, as large as any element, and lives for
    // ever; nothing writes to it, because the view is never passed to a program.
    Ok(unsafe { EngineBuffer::view(client.session, space.memory(), address, Array::new(kind, &[]))? })
}

type Create = sys::PJRT_Client_CreateBuffersForAsyncHostToDevice_Args;

impl Entry for Create {
    fn run(call: Call<'_, Self>) -> Outcome {
        let client = client::find(call.client)?;
        client.allocator.in_flight.reap_in_order();
        let device = device_of(&call, &client)?;
        // SAFETY: the lists are as long as the struct says, its layouts NULL or valid, as the call asks.
        let specs = unsafe { specs(&call, client.session.engine.minor())? };
        // If something fails, dropping the manager frees what was made until then.
        let mut manager =
            Manager { client: Arc::clone(&client), device, slots: Vec::with_capacity(specs.len()), ready: None };
        for (index, spec) in specs.iter().enumerate() {
            let Some((space, size)) = arena_for(&client, spec, call.memory) else {
                manager.slots.push(by_engine(&call, &client, device, (index, spec))?);
                continue;
            };
            if manager.ready.is_none() {
                manager.ready = Some(ready_buffer(&client, space, spec.element_type())?);
            }
            let shape = Arc::new(Shape::new(spec.element_type(), spec.dims, size.get() as usize));
            let origin = ORIGINS.made_by(ORIGINS.of_shape(OriginKind::Transfer, &shape), stacks::current());
            let block = allocate_or_explain(
                &client.allocator,
                space.arena(),
                &shape,
                Provenance { origin, ..Provenance::default() },
            )?;
            manager.slots.push(Slot::in_arena(index, shape, space, block));
        }
        call.out().transfer_manager = Arc::into_raw(Arc::new(manager)).cast_mut().cast();
        Ok(())
    }
}

/// Ends a write, also one that failed: its event for the caller.
///
/// # Errors
/// The write's, or as [`Slot::end`].
fn end_write(manager: &Manager, slot: &Slot, outcome: Outcome<Option<EngineEvent>>) -> Outcome<*mut sys::PJRT_Event> {
    let ended = slot.end(&manager.client);
    let event = outcome?;
    ended?;
    Ok(event.map_or(ptr::null_mut(), EngineEvent::into_raw))
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_TransferData_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let name = Call::<Self>::FUNCTION;
        let manager = manager_of(&call)?;
        let slot = manager.slot(call.buffer_index, name)?;
        let range = usize::try_from(call.offset).ok().zip(usize::try_from(call.transfer_size).ok());
        let Some((offset, len)) =
            range.filter(|(offset, len)| offset.checked_add(*len).is_some_and(|end| end <= slot.size))
        else {
            return Err(Error::invalid_argument(format!(
                "{name}: offset {} and transfer_size {} reach outside of the buffer with index {}, which has {} bytes",
                call.offset, call.transfer_size, call.buffer_index, slot.size
            ))
            .into());
        };
        if len > 0 {
            call.required(call.data.cast_mut(), "data")?;
        }
        let outcome = match slot.begin(name, call.is_last_transfer)? {
            WriteTarget::Arena(address, _) => {
                if len > 0 {
                    // SAFETY: `data` is not NULL and has `len` bytes, as the call asks; the range lies in the block,
                    // which stays until the write ends. A caller that sends to overlapping ranges at once gets the
                    // bytes of either, as from any engine.
                    unsafe {
                        let to = ptr::with_exposed_provenance_mut::<u8>(address).add(offset);
                        ptr::copy_nonoverlapping(call.data.cast::<u8>(), to, len);
                    }
                }
                manager.ready_event().map(Some)
            }
            // SAFETY: the engine's manager is alive while this one is, and has an array 0 of this size; `data` is the
            // caller's, valid until the event, which is new and has no other owner.
            WriteTarget::Engine(inner) => unsafe {
                let args = Self { transfer_manager: inner.0, buffer_index: 0, ..*call };
                let engine = manager.client.session.engine;
                let written = engine.call(args).map(|args| EngineEvent::own(engine, args.done_with_h2d_transfer));
                written.map_err(Failure::from)
            },
        };
        call.out().done_with_h2d_transfer = end_write(&manager, slot, outcome)?;
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let name = Call::<Self>::FUNCTION;
        let manager = manager_of(&call)?;
        let slot = manager.slot(call.buffer_index, name)?;
        let strides = match slot.shape() {
            // SAFETY: the dimensions are as many as the struct says, its layout NULL or valid, as the call asks.
            Some(shape) => unsafe { literal_strides(&call, shape)? },
            None => None,
        };
        if slot.size > 0 {
            call.required(call.data.cast_mut(), "data")?;
        }
        let outcome = match slot.begin(name, true)? {
            WriteTarget::Arena(address, shape) => {
                // SAFETY: the literal has the shape of the array and, where it is not dense, these strides, which reach
                // every element once; the block holds the dense array and stays until the write ends.
                unsafe {
                    let element = element_bytes(shape.element_type).map_or(1, usize::from);
                    let literal = HostArray::new(call.data.cast(), &shape.dims, strides.as_deref(), element);
                    strided::copy_to_dense(literal, ptr::with_exposed_provenance_mut(address));
                }
                manager.ready_event().map(Some)
            }
            // SAFETY: the engine's manager is alive while this one is, and has an array 0 of this size; `data` is the
            // caller's, valid until the event, which is new and has no other owner.
            WriteTarget::Engine(inner) => unsafe {
                let args = Self { transfer_manager: inner.0, buffer_index: 0, ..*call };
                let engine = manager.client.session.engine;
                let written = engine.call(args).map(|args| EngineEvent::own(engine, args.done_with_h2d_transfer));
                written.map_err(Failure::from)
            },
        };
        call.out().done_with_h2d_transfer = end_write(&manager, slot, outcome)?;
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let name = Call::<Self>::FUNCTION;
        let manager = manager_of(&call)?;
        let buffer = manager.slot(call.buffer_index, name)?.retrieve(&manager.client, name)?;
        call.out().buffer_out = buffer.into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let name = Call::<Self>::FUNCTION;
        let manager = manager_of(&call)?;
        let slot = manager.slot(call.buffer_index, name)?;
        let (first, last) = (sys::PJRT_Error_Code_CANCELLED, sys::PJRT_Error_Code_UNAUTHENTICATED);
        if !(first.0..=last.0).contains(&call.error_code.0) {
            return Err(Error::invalid_argument(format!(
                "{name}: error_code is {}; errors have codes {} to {}",
                call.error_code.0, first.0, last.0
            ))
            .into());
        }
        let reason = Reason { code: call.error_code, message: call.error_message().to_vec() };
        slot.fail(&manager.client, name, reason)
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let manager = manager_of(&call)?;
        call.out().buffer_count = manager.slots.len();
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let manager = manager_of(&call)?;
        let size = manager.slot(call.buffer_index, Call::<Self>::FUNCTION)?.size;
        call.out().buffer_size = size;
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_Device_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let manager = manager_of(&call)?;
        call.out().device_out = manager.device.0;
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let _manager = manager_of(&call)?;
        if call.transfer_metadata.is_null() && call.num_metadata > 0 {
            let why =
                format!("{}: transfer_metadata is NULL, num_metadata is {}", Call::<Self>::FUNCTION, call.num_metadata);
            return Err(Error::invalid_argument(why).into());
        }
        // Metadata annotates traces of the engine's transfers; copies into an arena are done when the call returns.
        Ok(())
    }
}

impl Entry for sys::PJRT_AsyncHostToDeviceTransferManager_Destroy_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        if let Some(manager) = call.take() {
            for slot in &manager.slots {
                slot.abandon(&manager.client);
            }
        }
        Ok(())
    }
}
