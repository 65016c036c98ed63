//! Buffers that the engine makes for us to wrap: views of outsiders' memory, uninitialised and error buffers, aliases.

use std::{ffi::c_void, ptr, sync::Arc};

use crate::{
    api::entry::Entry,
    config::EngineKind,
    engine::{Outcome, process, views},
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

/// Told of the end of a view whose maker does not want to know: engines call the callback without looking whether there
/// is one, and end the process.
unsafe extern "C" fn nobody_listens(_: *mut c_void, _: *mut c_void) {}

impl Entry for sys::PJRT_Client_CreateViewOfDeviceBuffer_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = client::find(self.client)?;
        if self.memory.is_null() && self.device.is_null() {
            return Err(Error::invalid_argument(
                "PJRT_Client_CreateViewOfDeviceBuffer requires either a device or a memory",
            )
            .into());
        }
        // SAFETY: the caller's promise, handed on as it is.
        unsafe {
            let args = client
                .session
                .engine
                .call(Self { on_delete_callback: self.on_delete_callback.or(Some(nobody_listens)), ..*self })?;
            let at = self.device_buffer_ptr.expose_provenance();
            // Another platform's memory is not this process's to read.
            let readable = process::kind() == Some(EngineKind::Cpu)
                && is_default_layout(self.layout)
                && client.session.aliasable.contains(self.element_type);
            self.buffer = client.adopt_foreign(args.buffer, Access::ReadOnly, readable.then_some(at))?.into_raw();
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
        // SAFETY: the caller's arrays are as long as it says, its layout NULL or valid.
        let (dims, plain) =
            unsafe { (slice(self.shape_dims, self.shape_num_dims), is_default_layout(self.shape_layout)) };
        let home = destination(&client, self.device, self.memory)
            .filter(|_| plain && client.session.aliasable.contains(self.shape_element_type))
            .zip(dense_size(self.shape_element_type, dims));
        // SAFETY: the client is alive; otherwise the caller's promise, handed on as it is.
        self.buffer = unsafe {
            match home {
                Some((space, size)) => {
                    let shape = Arc::new(Shape::new(self.shape_element_type, dims, size.get() as usize));
                    // Whatever the bytes are, they are what was asked for.
                    Upload::new(&client, space, shape, OriginKind::Other)?.as_it_is()?
                }
                None => {
                    let place = (self.device, self.memory);
                    let admitted = client.admit_shape(place, self.shape_element_type, dims)?;
                    let args = client.session.engine.call(*self)?;
                    client.adopt_admitted(args.buffer, admitted)?
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
        // SAFETY: the caller's array is as long as it says; its promise, handed on as it is.
        unsafe {
            let args = views::with_layout(self.shape_layout, self.shape_num_dims, |shape_layout| {
                client.session.engine.call(Self { shape_layout, ..*self })
            })?;
            self.buffer = client.adopt(args.buffer)?.into_raw();
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_CreateAliasBuffer_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = client::find(self.client)?;
        // SAFETY: the caller's array is as long as it says; its promise, handed on as it is.
        unsafe {
            let dims = slice(self.shape_dims, self.shape_num_dims);
            // It stands for the memory of what it will show, and takes none itself.
            let admitted = match client.pinned(self.memory) {
                Some(_) => client.admit_shape((ptr::null_mut(), self.memory), self.shape_element_type, dims)?,
                None => Admission::Unlimited,
            };
            let args = views::with_layout(self.shape_layout, dims.len(), |shape_layout| {
                client.session.engine.call(Self { shape_layout, ..*self })
            })?;
            self.fulfill_alias_buffer_cb = args.fulfill_alias_buffer_cb;
            self.alias_buffer = client.adopt_admitted(args.alias_buffer, admitted)?.into_raw();
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_FulfillAliasBuffer_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = client::find(self.client)?;
        if self.buffer.is_null() {
            // SAFETY: the caller's promise; the alias is to hold an error.
            unsafe { client.session.engine.call(*self)? };
            return Ok(());
        }
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { BufferRef::borrow(self.buffer, "PJRT_Client_FulfillAliasBuffer")?.share() };
        let giving = DonationHold::new(&buffer)?;
        // SAFETY: the handle is alive while the buffer is being given.
        let outcome = unsafe { client.session.engine.call(Self { buffer: giving.handle(), ..*self }) };
        if outcome.is_ok() {
            match giving.consumed() {
                // The alias counts as much.
                Storage::Engine(counted) => drop(counted),
                // The alias shares the memory now, for how long the engine does not say: it stays until the client ends.
                other => std::mem::forget(other),
            }
        }
        Ok(outcome.map(drop)?)
    }
}

impl Entry for sys::PJRT_Buffer_Bitcast_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { BufferRef::borrow(self.buffer, "PJRT_Buffer_Bitcast")?.share() };
        let client = client::of_buffer(&buffer)?;
        let giving = DonationHold::new(&buffer)?;
        // SAFETY: the handle is alive while the buffer is being given.
        let outcome = unsafe { client.session.engine.call(Self { buffer: giving.handle(), ..*self }) };
        match outcome {
            // The source's memory goes on in the result, which looks at it as another type.
            // SAFETY: the result was just made and is ours.
            Ok(args) => unsafe { client.adopt_foreign(args.out_buffer, buffer.access, None) }.map(|result| {
                result.state().storage = giving.consumed();
                self.out_buffer = result.into_raw();
            }),
            Err(error) => Err(error.into()),
        }
    }
}

impl Entry for sys::PJRT_Buffer_DonateWithControlDependency_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { BufferRef::borrow(self.buffer, "PJRT_Buffer_DonateWithControlDependency")?.share() };
        let client = client::of_buffer(&buffer)?;
        let giving = DonationHold::new(&buffer)?;
        // SAFETY: the handle is alive while the buffer is being given.
        let outcome = unsafe { client.session.engine.call(Self { buffer: giving.handle(), ..*self }) };
        match outcome {
            Ok(args) => {
                self.callback_data = args.callback_data;
                self.dependency_ready_callback = args.dependency_ready_callback;
                // SAFETY: the result was just made and is ours.
                unsafe { client.adopt_foreign(args.out_buffer, buffer.access, None) }.map(|result| {
                    result.state().storage = giving.consumed();
                    self.out_buffer = result.into_raw();
                })
            }
            Err(error) => Err(error.into()),
        }
    }
}
