//! Buffers that the engine makes and that are wrapped here: views of outsiders' memory, uninitialised and error
//! buffers, aliases.

use std::{ffi::c_void, ptr, sync::Arc};

use crate::{
    api::entry::Entry,
    config::EngineKind,
    engine::{Args, EngineBuffer, Outcome, process, views},
    error::Error,
    report::snapshot::OriginKind,
    runtime::{
        allocator::admission::Admission,
        buffer::{
            buffer_ref::BufferRef,
            donation_hold::DonationHold,
            storage::{Access, Storage},
        },
        client,
        shape::{Shape, dense_size},
        transfer::{
            host::{destination, is_default_layout},
            upload::Upload,
        },
    },
    sys::{self, slice},
};

/// The callback for a view whose maker passed none: engines call it without looking whether there is one, and end the
/// process.
unsafe extern "C" fn ignore_deletion(_: *mut c_void, _: *mut c_void) {}

impl Entry for sys::PJRT_Client_CreateViewOfDeviceBuffer_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = client::find(self.client)?;
        if self.memory.is_null() && self.device.is_null() {
            return Err(Error::invalid_argument(
                "PJRT_Client_CreateViewOfDeviceBuffer requires either a device or a memory",
            )
            .into());
        }
        // SAFETY: the struct satisfies the function's contract, as `run` asks, and goes to the engine unchanged.
        unsafe {
            let args = client
                .session
                .engine
                .call(Self { on_delete_callback: self.on_delete_callback.or(Some(ignore_deletion)), ..*self })?;
            let made = EngineBuffer::own(client.session, args.buffer);
            let at = self.device_buffer_ptr.expose_provenance();
            // This process cannot read another platform's memory.
            let readable = process::kind() == Some(EngineKind::Cpu)
                && is_default_layout(self.layout)
                && client.session.aliasable.contains(self.element_type);
            self.buffer = client.adopt_foreign(made, Access::ReadOnly, readable.then_some(at))?.into_raw();
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_CreateUninitializedBuffer_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = client::find(self.client)?;
        if self.memory.is_null() && self.device.is_null() {
            return Err(Error::invalid_argument(
                "PJRT_Client_CreateUninitializedBuffer requires either a device or a memory",
            )
            .into());
        }
        // SAFETY: dimensions and layout are as the caller's struct says, as `run` asks: the layout NULL or valid.
        let (dims, plain) =
            unsafe { (slice(self.shape_dims, self.shape_num_dims), is_default_layout(self.shape_layout)) };
        let space = destination(&client, self.device, self.memory)
            .filter(|_| plain && client.session.aliasable.contains(self.shape_element_type))
            .zip(dense_size(self.shape_element_type, dims));
        // SAFETY: the client is alive during the call; the struct satisfies the function's contract, as `run` asks,
        // and the engine's buffer is new, with no other owner.
        self.buffer = unsafe {
            match space {
                Some((space, size)) => {
                    let shape = Arc::new(Shape::new(self.shape_element_type, dims, size.get() as usize));
                    // The caller asked for bytes as they are.
                    Upload::new(&client, space, shape, OriginKind::Other)?.as_it_is()?
                }
                None => {
                    let place = (self.device, self.memory);
                    let admitted = client.admit_shape(place, self.shape_element_type, dims)?;
                    let args = client.session.engine.call(*self)?;
                    client.adopt_admitted(EngineBuffer::own(client.session, args.buffer), admitted)?
                }
            }
        }
        .into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_CreateErrorBuffer_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = client::find(self.client)?;
        // SAFETY: dimensions and layout are as the caller's struct says, as `run` asks, and the struct satisfies the
        // function's contract; the buffer is new, with no other owner.
        unsafe {
            let args = views::with_layout(self.shape_layout, self.shape_num_dims, |shape_layout| {
                client.session.engine.call(Self { shape_layout, ..*self })
            })?;
            self.buffer = client.adopt(EngineBuffer::own(client.session, args.buffer))?.into_raw();
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_CreateAliasBuffer_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = client::find(self.client)?;
        // SAFETY: dimensions and layout are as the caller's struct says, as `run` asks, and the struct satisfies the
        // function's contract; the buffer is new, with no other owner.
        unsafe {
            let dims = slice(self.shape_dims, self.shape_num_dims);
            // An alias has no memory of its own: it gets that of the buffer which fulfils it.
            let admitted = match client.pinned(self.memory) {
                Some(_) => client.admit_shape((ptr::null_mut(), self.memory), self.shape_element_type, dims)?,
                None => Admission::Unlimited,
            };
            let args = views::with_layout(self.shape_layout, dims.len(), |shape_layout| {
                client.session.engine.call(Self { shape_layout, ..*self })
            })?;
            self.fulfill_alias_buffer_cb = args.fulfill_alias_buffer_cb;
            let alias = EngineBuffer::own(client.session, args.alias_buffer);
            self.alias_buffer = client.adopt_admitted(alias, admitted)?.into_raw();
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_FulfillAliasBuffer_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = client::find(self.client)?;
        if self.buffer.is_null() {
            // SAFETY: the struct satisfies the function's contract, as `run` asks; the alias is to hold an error.
            unsafe { client.session.engine.call(*self)? };
            return Ok(());
        }
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks.
        let buffer = unsafe { BufferRef::borrow(self.buffer, "PJRT_Client_FulfillAliasBuffer")?.share() };
        let donation = DonationHold::new(&buffer)?;
        // SAFETY: the hold keeps the handle alive; the rest of the struct is the caller's.
        let outcome = unsafe { client.session.engine.call(Self { buffer: donation.handle(), ..*self }) };
        if outcome.is_ok() {
            match donation.consumed() {
                // The alias counts as many bytes.
                Storage::Engine(counted) => drop(counted),
                // The alias uses the memory from here on, for how long the engine does not say: it stays until the
                // client ends.
                other => std::mem::forget(other),
            }
        }
        Ok(outcome.map(drop)?)
    }
}

/// Has the engine make a new buffer of the memory of a donated one. `args` makes the engine's call of a handle.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, FAILED_PRECONDITION while a program from a host callback reads it, or the
/// engine's.
///
/// # Safety
/// The client must be alive, and the struct that `args` makes satisfy its function's contract.
unsafe fn donate<A: Args>(
    buffer: BufferRef<'_>,
    args: impl FnOnce(*mut sys::PJRT_Buffer) -> A,
    result: impl FnOnce(&A) -> *mut sys::PJRT_Buffer,
) -> Outcome<(A, *mut sys::PJRT_Buffer)> {
    let buffer = buffer.share();
    let client = client::of_buffer(&buffer)?;
    let donation = DonationHold::new(&buffer)?;
    // SAFETY: the hold keeps the handle alive; the struct satisfies the contract, as this function asks. The result is
    // a new buffer of the client, with no other owner.
    let (args, result) = unsafe {
        let args = client.session.engine.call(args(donation.handle()))?;
        let result = EngineBuffer::own(client.session, result(&args));
        let result = client.adopt_foreign(result, buffer.access, None)?;
        (args, result)
    };
    // The source's memory is the result's from here on.
    result.state().storage = donation.consumed();
    Ok((args, result.into_raw()))
}

impl Entry for sys::PJRT_Buffer_Bitcast_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks, and so is its client; the struct
        // is the caller's.
        let (_, result) = unsafe {
            let buffer = BufferRef::borrow(self.buffer, "PJRT_Buffer_Bitcast")?;
            donate(buffer, |buffer| Self { buffer, ..*self }, |args| args.out_buffer)?
        };
        self.out_buffer = result;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_DonateWithControlDependency_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is NULL or alive during the call, as `run` asks, and so is its client; the struct
        // is the caller's.
        let (args, result) = unsafe {
            let buffer = BufferRef::borrow(self.buffer, "PJRT_Buffer_DonateWithControlDependency")?;
            donate(buffer, |buffer| Self { buffer, ..*self }, |args| args.out_buffer)?
        };
        self.callback_data = args.callback_data;
        self.dependency_ready_callback = args.dependency_ready_callback;
        self.out_buffer = result;
        Ok(())
    }
}
