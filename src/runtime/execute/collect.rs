//! After the engine was called: which memory each result has, and what is still in use.

use std::{any::Any, sync::Arc};

use smallvec::SmallVec;

use crate::{
    engine::{EngineEvent, Session, buffers::is_consumed, views},
    runtime::{
        buffer::usage::{Definition, User},
        device_memory::allocation::Allocation,
        executable::loaded::Origin,
        execute::{
            candidates::Candidate,
            context::Context,
            device_launch::{DeviceLaunch, large_result},
            launch::Launch,
            results::results,
        },
        in_flight::{Consumed, Resources},
    },
};

/// After a launch that the engine refused or gave up: arguments that it has consumed all the same are gone, and
/// everything else is freed. Programs that it has launched on other devices before may be under way.
#[cold]
pub fn abandon(launch: &mut Launch<'_>) {
    let client = &launch.call.loaded.client;
    let (session, engine) = (client.session, client.session.engine);
    let mut waited_for = Vec::new();
    for device in &mut launch.devices {
        let mut resources = Resources { user: User::Execution, ..Resources::default() };
        let mut consumed = Vec::new();
        for argument in device.arguments.iter_mut().filter(|argument| argument.may_be_consumed()) {
            // SAFETY: the handle is a live buffer of the client while the argument is in use.
            let gone = unsafe { is_consumed(session, argument.handle) };
            if let Some(storage) = argument.finish_donation(gone, true) {
                consumed.push(argument.handle);
                resources.leftovers.extend(storage.into_allocation());
            }
        }
        match device.queue(client) {
            Some(queue) => {
                resources.buffers.extend(device.arguments.iter_mut().filter_map(|argument| argument.into_operation()));
                // SAFETY: the client is open during the call that executes one of its programs; the views are not used
                // again.
                unsafe { device.track_behind(client, queue, resources) };
            }
            None => waited_for.push((consumed, resources.leftovers)),
        }
    }
    // A program that ends gives up what it was donated. Buffers of other owners are freed after that too, and all
    // waiting comes first: one device's memory is not another's, but an argument's may be an outsider's.
    waited_for.iter().flat_map(|(consumed, _)| consumed).for_each(|&handle| {
        // SAFETY: the handle is the argument's, which its owner keeps alive during the call, and the client is open.
        unsafe { views::end(engine, handle) };
    });
    // A view that a program on another device was donated is destroyed only when that program is done, so the block
    // is not reused before that.
    launch.devices.clear();
}

/// Makes candidates of the memory of donated arguments that the engine has consumed.
fn finish_donations(device: &mut DeviceLaunch<'_>, session: &Session, candidates: &mut SmallVec<[Candidate; 8]>) {
    for (number, argument) in device.arguments.iter_mut().enumerate().filter(|(_, argument)| argument.may_be_consumed())
    {
        // SAFETY: the handle is a live buffer of the client while the argument is in use.
        let consumed = unsafe { is_consumed(session, argument.handle) };
        if let Some(storage) = argument.finish_donation(consumed, false) {
            candidates.push(Candidate::consumed(number, storage));
        }
    }
}

/// Deletes the arguments whose copies were consumed, and makes candidates of the copies' memory.
#[cold]
fn finish_copies(
    device: &mut DeviceLaunch<'_>,
    candidates: &mut SmallVec<[Candidate; 8]>,
    consumed_views: &mut Consumed,
    leftovers: &mut Vec<Allocation>,
) {
    for copy in device.copies.drain(..) {
        let consumed = copy.destination.view.is_consumed();
        consumed_views.push(copy.destination.view.release());
        let Some(allocation) = copy.destination.block.take() else { continue };
        if !consumed {
            leftovers.push(allocation);
            continue;
        }
        candidates.push(Candidate::new(Origin::Argument(copy.argument), allocation, None));
        // The caller donated the array, whatever memory the program took for it.
        if let Some(argument) = device.arguments.get(copy.argument)
            && argument.buffer().delete().is_err()
        {
            log::warn!("the engine could not delete the array that argument {} stood for", copy.argument);
        }
    }
    // In the order of executions without copies, so that what one execution shows holds for the other.
    candidates.sort_by_key(|candidate| candidate.origin);
}

/// After a launch that the engine accepted: passes the results of the device with the number `index` to the caller,
/// in the memory that they lie in, and keeps what the program may still use until `event`.
///
/// # Safety
/// The engine must have filled in the caller's lists.
#[inline]
pub unsafe fn collect(launch: &mut Launch<'_>, index: usize, event: Option<EngineEvent>, context: Option<&Context>) {
    let call = launch.call;
    let loaded = call.loaded;
    let client = &loaded.client;
    let engine = client.session.engine;
    loaded.program.executions.count();
    // SAFETY: the engine has filled the list in.
    let outputs = unsafe { call.outputs(index) };
    let mut candidates: SmallVec<[Candidate; 8]> = SmallVec::new();
    let (mut consumed, mut leftovers) = (Consumed::new(), Vec::new());
    let device = &mut launch.devices[index];
    for (number, destination) in device.destinations.drain(..).enumerate() {
        consumed.push(destination.view.release());
        if let Some(allocation) = destination.block.take() {
            candidates.push(Candidate::new(Origin::Destination(number), allocation, destination.reused));
        }
    }
    if call.donated().is_none_or(|donated| !donated.is_empty()) {
        finish_donations(device, client.session, &mut candidates);
    }
    if !device.copies.is_empty() {
        finish_copies(device, &mut candidates, &mut consumed, &mut leftovers);
    }
    // What the engine put into memory of its own is counted when it is wrapped.
    device.pinned = None;
    let (writing, behind) = match &event {
        Some(event) if !event.is_ready() => (Definition::Pending, None),
        Some(event) if event.wait().is_err() => match device.queue(client) {
            // The device may still execute what was launched of it, and the executions before.
            Some(queue) => (Definition::Pending, Some(queue)),
            None => (Definition::Failed, None),
        },
        _ => (Definition::Defined, None),
    };
    // SAFETY: the engine has just made the outputs, one for each result, and nothing else owns them; the client is
    // open.
    let results = unsafe { results(loaded, device, outputs, &mut candidates, writing) };
    match &event {
        Some(event) if writing == Definition::Pending => {
            leftovers.extend(candidates.into_iter().filter_map(|candidate| candidate.allocation));
            let user = User::Execution;
            let mut resources = Resources { user, consumed, leftovers, ..Resources::default() };
            // SAFETY: the caller's handle of the context is alive during the call.
            resources.context = context.map(|context| unsafe { context.share() } as Arc<dyn Any + Send + Sync>);
            resources.scratch = device.scratch.take();
            resources.buffers.extend(device.arguments.iter_mut().filter_map(|argument| argument.into_operation()));
            resources.results.extend(results.iter().map(Arc::clone));
            match behind {
                // SAFETY: the client is open during the call that executes one of its programs.
                Some(queue) => unsafe { client.allocator.in_flight.track_behind(queue, engine, resources) },
                None => {
                    // SAFETY: the outputs are live buffers of the engine, one for each result.
                    let ready = unsafe { large_result(loaded, outputs) };
                    client.allocator.in_flight.track(event, ready, resources);
                }
            }
        }
        _ => {
            for view in consumed {
                // SAFETY: the client is open, the view has no other owner, and the program is done, so this does not
                // block.
                unsafe { views::destroy(engine, view.0) };
            }
        }
    }
    let places = call.output_list(index);
    for (output, result) in results.into_iter().enumerate() {
        // SAFETY: the caller's list has one entry for each output, and is the caller's memory, which this call may
        // write.
        unsafe { *places.add(output) = result.into_raw() };
    }
    let events = call.args.device_complete_events;
    if !events.is_null() {
        // SAFETY: the caller passes an array with one entry for each device.
        unsafe { *events.add(index) = event.map_or(std::ptr::null_mut(), EngineEvent::into_raw) };
    }
}

/// Deletes arguments that were donated but only read: the engine frees each when the program has read it.
#[inline]
pub fn release(launch: &Launch<'_>) {
    let released = &launch.call.loaded.program.plan.released;
    if released.is_empty() {
        return;
    }
    for index in 0..launch.call.args.num_devices {
        for &argument in released.iter().filter(|&&argument| !launch.call.keeps(argument)) {
            let deleted = launch.call.argument(index, argument).and_then(|buffer| buffer.delete());
            // The results are passed on already, so this is no error of the call.
            _ = deleted.inspect_err(|failure| log::warn!("a donated array stays: {failure:?}"));
        }
    }
}
