//! Buffers that the engine makes and that are wrapped here: views of outsiders' memory, uninitialised and error
//! buffers, aliases.

use std::{ffi::c_void, ptr, sync::Arc};

use smallvec::smallvec;

use crate::{
    api::{
        call::{Call, Donation, LendsBuffer},
        entry::Entry,
    },
    config::EngineKind,
    engine::{Args, EngineBuffer, Outcome, process, views},
    error::{Error, Result},
    report::snapshot::OriginKind,
    runtime::{
        buffer::{donation_hold::DonationHold, storage::Access},
        client,
        in_flight::Resources,
        shape::{Shape, dense_size},
        transfer::{host::destination, upload::Upload},
    },
    sys::{self, CStruct},
};

/// The callback for a view whose maker passed none: engines call it without looking whether there is one, and end the
/// process.
extern "C" fn ignore_deletion(_: *mut c_void, _: *mut c_void) {}

/// Refuses a call that says neither a device nor a memory.
///
/// # Errors
/// INVALID_ARGUMENT.
fn require_place<A: CStruct>(
    _: &Call<'_, A>,
    device: *mut sys::PJRT_Device,
    memory: *mut sys::PJRT_Memory,
) -> Result<()> {
    if device.is_null() && memory.is_null() {
        let why = format!("{} requires either a device or a memory", Call::<A>::FUNCTION);
        return Err(Error::invalid_argument(why));
    }
    Ok(())
}

impl Entry for sys::PJRT_Client_CreateViewOfDeviceBuffer_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let client = client::find(call.client)?;
        require_place(&call, call.device, call.memory)?;
        // This process cannot read another platform's memory.
        let readable = process::kind() == Some(EngineKind::Cpu)
            && call.has_default_layout()
            && client.session.aliasable.contains(call.element_type);
        let on_delete_callback = call.on_delete_callback.or(Some(ignore_deletion));
        // SAFETY: the struct satisfies the function's contract, as a call's does; the buffer is new, with no other
        // owner. On a CPU the memory that the caller passes is this process'.
        let buffer = unsafe {
            let theirs = client.session.engine.call(Self { on_delete_callback, ..*call })?;
            let made = EngineBuffer::own(client.session, theirs.buffer);
            let at = call.device_buffer_ptr.expose_provenance();
            client.adopt_foreign(made, Access::ReadOnly, readable.then_some(at))?
        };
        call.out().buffer = buffer.into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_CreateUninitializedBuffer_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let client = client::find(call.client)?;
        require_place(&call, call.device, call.memory)?;
        let (dims, plain) = (call.shape_dims(), call.has_default_layout());
        let space = destination(&client, call.device, call.memory)
            .filter(|_| plain && client.session.can_view(call.shape_element_type, dims))
            .zip(dense_size(call.shape_element_type, dims));
        // SAFETY: the client is alive during the call; the struct satisfies the function's contract, as a call's does,
        // and the engine's buffer is new, with no other owner.
        let buffer = unsafe {
            match space {
                Some((space, size)) => {
                    let shape = Arc::new(Shape::new(call.shape_element_type, dims, size.get() as usize));
                    // The caller asked for bytes as they are.
                    Upload::new(&client, space, shape, OriginKind::Other)?.as_it_is()?
                }
                None => {
                    let place = (call.device, call.memory);
                    let admitted = client.admit_shape(place, call.shape_element_type, dims)?;
                    let theirs = client.session.engine.call(*call)?;
                    client.adopt_admitted(EngineBuffer::own(client.session, theirs.buffer), admitted)?
                }
            }
        };
        call.out().buffer = buffer.into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_CreateErrorBuffer_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let client = client::find(call.client)?;
        // SAFETY: dimensions and layout are as the struct says, which satisfies the function's contract, as a call's
        // does; the buffer is new, with no other owner.
        let made = unsafe {
            let theirs = views::with_layout(call.shape_layout, call.shape_num_dims, |shape_layout| {
                client.session.engine.call(Self { shape_layout, ..*call })
            })?;
            EngineBuffer::own(client.session, theirs.buffer)
        };
        call.out().buffer = client.adopt_empty(made)?.into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_CreateAliasBuffer_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let client = client::find(call.client)?;
        let dims = call.shape_dims();
        // An alias has no memory of its own: it gets that of the buffer which fulfils it. Where memory has a limit of
        // its own it counts from the beginning, so that what is promised can come.
        let admitted = match client.pinned(call.memory) {
            Some(_) => Some(client.admit_shape((ptr::null_mut(), call.memory), call.shape_element_type, dims)?),
            None => None,
        };
        // SAFETY: dimensions and layout are as the struct says, which satisfies the function's contract, as a call's
        // does; the buffer is new, with no other owner.
        let (theirs, alias) = unsafe {
            let theirs = views::with_layout(call.shape_layout, dims.len(), |shape_layout| {
                client.session.engine.call(Self { shape_layout, ..*call })
            })?;
            (theirs, EngineBuffer::own(client.session, theirs.alias_buffer))
        };
        let promise = theirs.fulfill_alias_buffer_cb;
        let adopted = match admitted {
            Some(admitted) => client.adopt_admitted(alias, admitted),
            None => client.adopt_empty(alias),
        };
        let alias = adopted.inspect_err(|_| {
            // Nobody else will keep it.
            let message = "the alias could not be described";
            // SAFETY: the promise is new, and ends here; the text outlives the call.
            // XLA returns the very error that an alias is given.
            _ = unsafe {
                client.session.engine.call(sys::PJRT_Client_FulfillAliasBuffer_Args {
                    client: client.session.handle.0,
                    status_code: sys::PJRT_Error_Code_INTERNAL,
                    error_message: message.as_ptr().cast(),
                    error_message_size: message.len(),
                    fulfill_alias_buffer_cb: promise,
                    ..Default::default()
                })
            };
        })?;
        client.aliases.wait(promise.addr(), &alias);
        let out = call.out();
        out.fulfill_alias_buffer_cb = promise;
        out.alias_buffer = alias.into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_FulfillAliasBuffer_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let client = client::find(call.client)?;
        // Without a buffer the alias is to hold an error.
        let buffer = if call.buffer.is_null() { None } else { Some(call.buffer()?.share()) };
        let donation = buffer.as_deref().map(DonationHold::new).transpose()?;
        let handle = donation.as_ref().map_or(ptr::null_mut(), DonationHold::handle);
        // SAFETY: the hold keeps the handle alive, for the engine to consume; the rest of the struct is the caller's.
        let kept = unsafe { client.session.engine.call(call.with_buffer(handle)) };
        // The promise is used up in any case, and so is the buffer, if the engine has taken it.
        let taken = donation.filter(|donation| kept.is_ok() || donation.is_consumed());
        client.aliases.fulfil(call.fulfill_alias_buffer_cb.addr(), taken);
        kept?;
        Ok(())
    }
}

/// Has the engine make a new buffer of the memory of the call's: its answer, the new buffer and the struct for the
/// results.
///
/// # Errors
/// INVALID_ARGUMENT for a deleted buffer, FAILED_PRECONDITION while a program from a host callback reads it, or the
/// engine's.
fn donate<'a, A>(call: Call<'a, A>) -> Outcome<(A, *mut sys::PJRT_Buffer, &'a mut A)>
where
    A: Args + LendsBuffer<Use = Donation>,
{
    let buffer = call.buffer()?.share();
    let client = client::of_buffer(&buffer)?;
    let donation = DonationHold::new(&buffer)?;
    // SAFETY: the hold keeps the handle alive, for the engine to consume; the rest of the struct is the caller's. The
    // result is a new buffer of the client, with no other owner, and no address of it is said to be readable.
    let (theirs, result) = unsafe {
        let theirs = client.session.engine.call(call.with_buffer(donation.handle()))?;
        let made = EngineBuffer::own(client.session, theirs.made());
        (theirs, client.adopt_foreign(made, buffer.access, None)?)
    };
    // The source's memory is the result's from here on, which is new: nobody has donated it.
    drop(donation.consumed(&result));
    // What the result waits for may use the memory, too.
    if let Some(event) = result.hold_live()?.ready_event().ok().filter(|event| !event.is_ready()) {
        result.begin_use()?;
        let buffers = smallvec![Arc::clone(&result)];
        client.allocator.in_flight.track(&event, None, Resources { buffers, ..Resources::default() });
    }
    Ok((theirs, result.into_raw(), call.out()))
}

impl Entry for sys::PJRT_Buffer_Bitcast_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let (_, result, out) = donate(call)?;
        out.out_buffer = result;
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_DonateWithControlDependency_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let (theirs, result, out) = donate(call)?;
        out.callback_data = theirs.callback_data;
        out.dependency_ready_callback = theirs.dependency_ready_callback;
        out.out_buffer = result;
        Ok(())
    }
}
