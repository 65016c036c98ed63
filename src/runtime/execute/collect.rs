//! After the engine was called: which memory each result has, and what is still in use.

use std::{any::Any, mem, ptr, sync::Arc};

use smallvec::SmallVec;

use crate::{
    engine::{
        EngineEvent,
        views::{self, is_consumed},
    },
    runtime::{
        buffer::usage::{Definition, User},
        device_memory::Allocation,
        dispatch::Thread,
        execute::{
            argument::Argument,
            call::{Call, Outputs},
            candidates::Candidate,
            device_launch::{DeviceLaunch, large_result},
            launch::Launch,
            results::results,
        },
        in_flight::{Consumed, Resources},
    },
};

/// What keeps the caller's execute context until the program, which may read it, is done.
fn context(call: Call<'_>) -> Option<Arc<dyn Any + Send + Sync>> {
    call.context.map(|context| context.share() as _)
}

/// After a launch that the engine refused or gave up: arguments that it has consumed all the same are gone, and
/// everything else is freed. Programs that it has launched may be under way, of several devices on those before, or
/// where it `threw`, unless the launch knows better.
#[cold]
pub fn abandon(launch: &mut Launch<'_>, threw: bool) {
    let client = &launch.call.loaded.client;
    let may_run = launch.under_way.unwrap_or(launch.devices.len() > 1 || threw);
    let are_known = launch.call.donated().is_some();
    let mut waited_for = Vec::new();
    for (index, device) in launch.devices.iter_mut().enumerate() {
        let donates = are_known && device.arguments.iter().any(Argument::may_be_consumed)
            || !(device.destinations.is_empty() && device.copies.is_empty());
        let mut resources = Resources { user: User::Execution, context: context(launch.call), ..Resources::default() };
        let mut consumed = Vec::new();
        let arguments = device.arguments.iter_mut().enumerate();
        for (number, argument) in arguments.filter(|(_, argument)| argument.may_be_consumed()) {
            let gone = is_consumed(argument.live(), false);
            if let Some(storage) = argument.finish_donation(gone, true) {
                consumed.push((index, number));
                resources.leftovers.extend(storage.into_block());
            }
        }
        match device.queue(client) {
            Some(queue) => {
                resources.buffers.extend(device.arguments.iter_mut().filter_map(|argument| argument.into_operation()));
                device.track_behind(client, queue, resources);
            }
            // A program that has begun has consumed what it was donated; of one that was donated nothing nobody knows.
            None if may_run && (!donates || !consumed.is_empty() || device.has_begun()) => {
                resources.buffers.extend(device.arguments.iter_mut().map(Argument::into_stranded));
                device.move_into(&mut resources);
                client.allocator.in_flight.strand(resources);
                // What it reads on a nested client it reads for ever, and nobody else gets that client.
                mem::forget(launch.nested.take());
            }
            None => waited_for.push((consumed, resources.leftovers)),
        }
    }
    // A program that ends gives up what it was donated. Buffers of other owners are freed after that too, and all
    // waiting comes first: one device's memory is not another's, but an argument's may be an outsider's.
    for &(index, number) in waited_for.iter().flat_map(|(consumed, _)| consumed) {
        views::end(launch.devices[index].arguments[number].live());
    }
    launch.devices.clear();
}

/// Makes candidates of the memory of donated arguments that the engine has consumed. If it does not say whether it has,
/// an argument is gone if the donations `are_known`: a result may lie there.
fn finish_donations(device: &mut DeviceLaunch<'_>, are_known: bool, candidates: &mut SmallVec<[Candidate; 8]>) {
    for (number, argument) in device.arguments.iter_mut().enumerate().filter(|(_, argument)| argument.may_be_consumed())
    {
        let consumed = is_consumed(argument.live(), are_known);
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
        let consumed = copy.view.is_consumed();
        consumed_views.push(copy.view);
        if !consumed {
            leftovers.push(copy.allocation);
            continue;
        }
        candidates.push(Candidate::new(copy.argument, copy.allocation));
        // The caller donated the array, whatever memory the program took for it.
        if let Some(argument) = device.arguments.get(copy.argument)
            && argument.buffer().delete().is_err()
        {
            log::warn!("the engine could not delete the array that argument {} stood for", copy.argument);
        }
    }
    // In the order of executions without copies, so that what one execution shows holds for the other.
    candidates.sort_by_key(|candidate| candidate.argument);
}

/// After a launch that the engine accepted: passes the results of the device with the number `index` to the caller,
/// in the memory that they lie in, and keeps what the program may still use until `event`.
#[inline]
pub fn collect(launch: &mut Launch<'_>, index: usize, event: Option<EngineEvent>, outputs: Outputs<'_>) {
    let call = launch.call;
    let loaded = call.loaded;
    let client = &loaded.client;
    loaded.program.executions.count();
    let mut candidates: SmallVec<[Candidate; 8]> = SmallVec::new();
    let (mut consumed, mut leftovers) = (Consumed::new(), Vec::new());
    let device = &mut launch.devices[index];
    let donated = call.donated();
    if donated.is_none_or(|donated| !donated.is_empty()) {
        finish_donations(device, donated.is_some(), &mut candidates);
    }
    if !device.copies.is_empty() {
        finish_copies(device, &mut candidates, &mut consumed, &mut leftovers);
    }
    // What the engine put into memory of its own is counted when it is wrapped.
    device.pinned = None;
    let (may_fail, began) = (launch.may_fail, launch.began.filter(|_| index == 0));
    let (writing, behind) = match &event {
        Some(event) if !event.is_ready() => (Definition::Pending { may_fail }, None),
        Some(event) if event.wait().is_err() => match device.queue(client) {
            // The device may still execute what was launched of it, and the executions before.
            Some(queue) => (Definition::Pending { may_fail: true }, Some(queue)),
            None => (Definition::Failed, None),
        },
        _ => (Definition::Defined, None),
    };
    match began {
        _ if writing.is_pending() => {}
        Some((began, Thread::Callers)) => loaded.program.dispatch.note_inline(began.elapsed()),
        Some((began, Thread::Engines)) => loaded.timed(began).end(),
        None => {}
    }
    // Asked before the outputs are wrapped.
    let ready = if writing.is_pending() && behind.is_none() { large_result(loaded, &outputs) } else { None };
    let mut written = SmallVec::new();
    let mut entries = call.output_list(index).iter();
    results(loaded, device, outputs, &mut candidates, writing, &mut consumed, |result| {
        if writing.is_pending() {
            written.push(Arc::clone(&result));
        }
        if let Some(entry) = entries.next() {
            entry.set(result.into_raw());
        }
    });
    if let Some(event) = event.as_ref().filter(|_| writing.is_pending()) {
        leftovers.extend(candidates.into_iter().filter_map(|candidate| candidate.allocation));
        let user = User::Execution;
        let mut resources =
            Resources { user, consumed, leftovers, results: written, context: context(call), ..Resources::default() };
        device.move_into(&mut resources);
        resources.scratch = device.scratch.take();
        resources.timed = began.map(|(began, _)| loaded.timed(began));
        resources.buffers.extend(device.arguments.iter_mut().filter_map(|argument| argument.into_operation()));
        match behind {
            Some(queue) => client.allocator.in_flight.track_behind(queue, resources),
            None => client.allocator.in_flight.track(event, ready, resources),
        }
    }
    let events = call.args.device_complete_events;
    if !events.is_null() {
        let event =
            if writing == Definition::Defined { Some(EngineEvent::happened(client.session.engine)) } else { event };
        // SAFETY: the caller passes an array with one entry for each device.
        unsafe { *events.add(index) = event.map_or(ptr::null_mut(), EngineEvent::into_raw) };
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
