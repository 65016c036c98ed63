//! After the engine was called: which memory is whose now, and what is still in use.

use std::{any::Any, sync::Arc};

use smallvec::SmallVec;

use crate::{
    engine::{EngineEvent, Session, buffers::is_consumed, views},
    runtime::{
        buffer::usage::{Definition, User},
        executable::loaded::Origin,
        execute::{
            candidates::Candidate,
            context::Context,
            device_launch::{DeviceLaunch, large_result},
            launch::Launch,
            results::results,
        },
        in_flight::Resources,
    },
};

/// After a launch that the engine refused or gave up: arguments that it has consumed all the same are gone, and everything else
/// goes back. What it has launched on other devices until then may be under way.
#[cold]
pub fn give_up(launch: &mut Launch<'_>) {
    let client = &launch.call.loaded.client;
    let (session, engine) = (client.session, client.session.engine);
    let mut waited_for = Vec::new();
    for device in &mut launch.devices {
        let mut resources = Resources { user: User::Execution, ..Resources::default() };
        let mut consumed = Vec::new();
        for argument in device.arguments.iter_mut().filter(|argument| argument.may_be_consumed()) {
            // SAFETY: the handle is alive while the argument is held.
            let gone = unsafe { is_consumed(session, argument.handle) };
            if let Some(storage) = argument.settle(gone, true) {
                consumed.push(argument.handle);
                resources.leftovers.extend(storage.into_allocation());
            }
        }
        match device.queue(client) {
            Some(queue) => {
                resources.buffers.extend(device.arguments.iter_mut().filter_map(|argument| argument.into_flight()));
                // SAFETY: the client is open during the call that executes one of its programs; the views are not used again.
                unsafe { device.leave_behind(client, queue, resources) };
            }
            None => waited_for.push((consumed, resources.leftovers)),
        }
    }
    // A program's end is the end of what it was donated. Memory that others have in use goes back after that too, and all waiting
    // comes first: the memory of one device is not another's, but an argument's may be an outsider's.
    waited_for.iter().flat_map(|(consumed, _)| consumed).for_each(|&handle| {
        // SAFETY: the handle is the argument's, which its owner keeps alive during the call.
        unsafe { views::end(engine, handle) };
    });
    // A view that a program on another device was donated already is destroyed only when that program is done, so the block is
    // not reused under it.
    launch.devices.clear();
}

/// Hands on the memory of the donated arguments that the engine has consumed.
fn settle_arguments(device: &mut DeviceLaunch<'_>, session: &Session, candidates: &mut SmallVec<[Candidate; 8]>) {
    for (number, argument) in device.arguments.iter_mut().enumerate().filter(|(_, argument)| argument.may_be_consumed())
    {
        // SAFETY: the handle is alive while the argument is held.
        let consumed = unsafe { is_consumed(session, argument.handle) };
        if let Some(storage) = argument.settle(consumed, false) {
            candidates.push(Candidate::consumed(number, storage));
        }
    }
}

/// Deletes the arguments whose copies were consumed, and hands on the memory of these among the candidates.
#[cold]
fn settle_copies(device: &mut DeviceLaunch<'_>, candidates: &mut SmallVec<[Candidate; 8]>, resources: &mut Resources) {
    for copy in device.copies.drain(..) {
        let consumed = copy.destination.view.is_consumed();
        resources.consumed.push(copy.destination.view.release());
        let Some(allocation) = copy.destination.block.take() else { continue };
        if !consumed {
            resources.leftovers.push(allocation);
            continue;
        }
        candidates.push(Candidate::new(Origin::Argument(copy.argument), allocation));
        // The caller donated the array, whoever's memory the program took for it.
        if let Some(argument) = device.arguments.get(copy.argument)
            && argument.buffer().delete().is_err()
        {
            log::warn!("the engine could not delete the array that argument {} stood for", copy.argument);
        }
    }
    // In the order that executions without copies have, so that what is learned from one holds for the other.
    candidates.sort_by_key(|candidate| candidate.origin);
}

/// After a launch that the engine took: the results of the device with the number `index` are the caller's, in the memory that they
/// lie in, and what the program may still use is kept until `event`.
///
/// # Safety
/// The engine must have filled in the caller's lists.
pub unsafe fn collect(launch: &mut Launch<'_>, index: usize, event: Option<EngineEvent>, context: Option<&Context>) {
    let call = launch.call;
    let loaded = call.loaded;
    let client = &loaded.client;
    let engine = client.session.engine;
    loaded.program.executions.count();
    // SAFETY: the engine has filled the list in.
    let outputs = unsafe { call.outputs(index) };
    let mut candidates: SmallVec<[Candidate; 8]> = SmallVec::new();
    let mut resources = Resources { user: User::Execution, ..Resources::default() };
    let device = &mut launch.devices[index];
    for (number, destination) in device.destinations.drain(..).enumerate() {
        resources.consumed.push(destination.view.release());
        if let Some(allocation) = destination.block.take() {
            let candidate = Candidate::new(Origin::Destination(number), allocation);
            candidates.push(Candidate { reused: destination.reused, ..candidate });
        }
    }
    settle_arguments(device, client.session, &mut candidates);
    if !device.copies.is_empty() {
        settle_copies(device, &mut candidates, &mut resources);
    }
    // What the engine put into memory of its own counts by itself from here on.
    device.pinned = None;
    let (writing, behind) = match &event {
        Some(event) if !event.is_ready() => (Definition::Pending, None),
        Some(event) if event.wait().is_err() => match device.queue(client) {
            // The device may still be at what was launched of it, and at the executions before.
            Some(queue) => (Definition::Pending, Some(queue)),
            None => (Definition::Failed, None),
        },
        _ => (Definition::Defined, None),
    };
    // SAFETY: the outputs are live buffers of the engine that are ours from here on.
    let results = unsafe { results(loaded, device, outputs, &mut candidates, writing) };
    match &event {
        Some(event) if writing == Definition::Pending => {
            // SAFETY: the caller's context is alive during the call.
            resources.context = context.map(|context| unsafe { context.share() } as Arc<dyn Any + Send + Sync>);
            resources.scratch = device.scratch.take();
            resources.buffers.extend(device.arguments.iter_mut().filter_map(|argument| argument.into_flight()));
            resources.results.extend(results.iter().map(Arc::clone));
            resources.leftovers.extend(candidates.into_iter().filter_map(|candidate| candidate.allocation));
            match behind {
                // SAFETY: the client is open during the call that executes one of its programs.
                Some(queue) => unsafe { client.allocator.in_flight.track_behind(queue, engine, resources) },
                None => {
                    // SAFETY: the outputs are alive, and ours.
                    let ready = unsafe { large_result(loaded, outputs) };
                    client.allocator.in_flight.track(event, ready, resources);
                }
            }
        }
        _ => {
            for view in std::mem::take(&mut resources.consumed) {
                // SAFETY: the program is done, so this does not block; the view is ours.
                unsafe { views::destroy(engine, view.0) };
            }
        }
    }
    let places = call.places(index);
    for (output, result) in results.into_iter().enumerate() {
        // SAFETY: there is one place for each output.
        unsafe { *places.add(output) = result.into_raw() };
    }
    let events = call.args.device_complete_events;
    if !events.is_null() {
        // SAFETY: the caller passes one place a device.
        unsafe { *events.add(index) = event.map_or(std::ptr::null_mut(), EngineEvent::into_raw) };
    }
}

/// Deletes what was donated but only read: gone when the program has read it.
pub fn release(launch: &Launch<'_>) {
    let released = &launch.call.loaded.program.plan.released;
    if released.is_empty() {
        return;
    }
    for index in 0..launch.call.args.num_devices {
        for &argument in released.iter().filter(|&&argument| !launch.call.keeps(argument)) {
            let deleted = launch.call.argument(index, argument).and_then(|buffer| buffer.delete());
            // The results are the caller's already.
            _ = deleted.inspect_err(|failure| log::warn!("a donated array stays: {failure:?}"));
        }
    }
}
