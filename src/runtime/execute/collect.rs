//! After the engine was called: who has which memory now, and who watches over it.

use std::{any::Any, sync::Arc};

use smallvec::SmallVec;

use crate::{
    engine::{EngineEvent, views},
    runtime::{
        buffer::{
            Buffer,
            usage::{User, Writing},
        },
        executable::loaded::Origin,
        execute::{
            Launch,
            candidates::{Candidate, consumed_stand_ins},
            context::Context,
            device_launch::{abandon, large_result},
            results::results,
        },
        in_flight::{Consumed, Resources},
    },
};

impl Launch<'_> {
    /// After a run that the engine refused or gave up: arguments that it has consumed all the same are gone, and everything else goes
    /// back. What it has launched on other devices until then may be under way.
    ///
    /// # Safety
    /// The client must be alive; nothing of the launch is used again.
    #[cold]
    pub(super) unsafe fn give_up(&mut self) {
        let client = &self.call.loaded.client;
        let (engine, num_args) = (client.session.engine, self.call.args.num_args);
        let mut waited_for = Vec::new();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let seats = &mut self.passengers.seats[index * num_args..][..num_args];
            let mut cargo = Resources { user: User::Run, ..Resources::default() };
            let handles = &self.handles[index * self.width..];
            let mut consumed = Vec::new();
            // SAFETY: the handles are alive; the engine gave up on the programs, or is done with them, or will be waited for. The
            // caller's arguments are shares of `Arc`s, alive during the call.
            unsafe {
                self.passengers.gifts.settle(engine, index, handles, true, |argument, memory| {
                    consumed.push(handles[argument]);
                    cargo.leftovers.extend(memory.into_held());
                });
                match lane.queue(client) {
                    Some(queue) => {
                        cargo.buffers.extend(seats.iter_mut().filter_map(Option::take).map(|buffer| again(buffer)));
                        lane.leave_behind(client, queue, cargo);
                    }
                    None => waited_for.push((consumed, cargo.leftovers)),
                }
            }
        }
        // A program's end is the end of what it was donated. Memory that others have in use goes back after that too, and
        // all waiting comes first: the memory of one device is not another's, but an argument's may be an outsider's.
        waited_for.iter().flat_map(|(consumed, _)| consumed).for_each(|&handle| {
            // SAFETY: the handle is the argument's, which its owner keeps alive during the call.
            unsafe { views::end(engine, handle) }
        });
        // SAFETY: the caller's promise.
        unsafe { abandon(client, &mut self.lanes) };
    }

    /// After a run that the engine took: the results of the device with this number are the caller's, in the memory that they lie in,
    /// and what the program may still use is watched until `event`.
    ///
    /// # Safety
    /// The engine must have filled in the caller's lists. The client and the caller's arguments must be alive.
    pub(super) unsafe fn settle(&mut self, index: usize, event: Option<EngineEvent>, context: Option<&Context>) {
        let loaded = self.call.loaded;
        let (client, num_args) = (&loaded.client, self.call.args.num_args);
        let engine = client.session.engine;
        let (lane, passengers) = (&mut self.lanes[index], &mut self.passengers);
        loaded.program.executions.count();
        let seats = index * num_args..(index + 1) * num_args;
        // SAFETY: the caller's promise.
        let outputs = unsafe { self.call.outputs(index) };
        let mut candidates: SmallVec<[Candidate; 8]> = SmallVec::new();
        let mut consumed = Consumed::new();
        for (number, destination) in lane.destinations.drain(..).enumerate() {
            consumed.push(destination.view);
            let candidate = Candidate::new(Origin::Destination(number), destination.held);
            candidates.push(Candidate { shell: destination.shell, ..candidate });
        }
        let mut leftovers = Vec::new();
        // SAFETY: the handles are alive.
        unsafe {
            passengers.gifts.settle(engine, index, &self.handles[index * self.width..], false, |argument, storage| {
                candidates.push(Candidate::consumed(argument, storage));
            });
            let arguments = &passengers.seats[seats.clone()];
            let stand_ins = &mut lane.stand_ins;
            consumed_stand_ins(loaded, arguments, stand_ins, &mut candidates, &mut consumed, &mut leftovers);
        }
        // What the engine put into memory of its own counts by itself from here on.
        lane.pinned = None;
        let (writing, behind) = match &event {
            Some(event) if !event.is_ready() => (Writing::UnderWay, None),
            Some(event) if event.wait().is_err() => match lane.queue(client) {
                // The device may still be at what was launched of it, and at the runs before.
                Some(queue) => (Writing::UnderWay, Some(queue)),
                None => (Writing::Failed, None),
            },
            _ => (Writing::Done, None),
        };
        // SAFETY: the outputs are live buffers of the engine that are ours from here on.
        let results = unsafe { results(loaded, lane, outputs, &mut candidates, writing) };
        match &event {
            Some(event) if writing == Writing::UnderWay => {
                // SAFETY: the caller's context is alive during the call.
                let context = context.map(|context| unsafe { context.share() } as Arc<dyn Any + Send + Sync>);
                let scratch = lane.scratch.take();
                let mut cargo = Resources { consumed, context, scratch, user: User::Run, ..Resources::default() };
                for seat in &mut passengers.seats[seats] {
                    // SAFETY: the caller's arguments are shares of `Arc`s, alive during the call.
                    cargo.buffers.extend(seat.take().map(|buffer| unsafe { again(buffer) }));
                }
                cargo.results.extend(results.iter().map(Arc::clone));
                cargo.leftovers = leftovers;
                cargo.leftovers.extend(candidates.into_iter().filter_map(|candidate| candidate.held));
                // SAFETY: as above; the client is alive while its executable is.
                unsafe {
                    match behind {
                        Some(queue) => client.allocator.in_flight.launch_behind(queue, engine, cargo),
                        None => client.allocator.in_flight.launch(event, large_result(loaded, outputs), cargo),
                    }
                }
            }
            _ => {
                for view in consumed {
                    // SAFETY: the program is done, so this does not block; nobody else knows the view.
                    unsafe { views::destroy(engine, view.0) };
                }
            }
        }
        let places = self.call.places(index);
        for (output, result) in results.into_iter().enumerate() {
            // SAFETY: there is one place for each output.
            unsafe { *places.add(output) = result.into_raw() };
        }
        let events = self.call.args.device_complete_events;
        if !events.is_null() {
            // SAFETY: the caller passes one place a device.
            unsafe { *events.add(index) = event.map_or(std::ptr::null_mut(), EngineEvent::into_raw) };
        }
    }
}

/// One more share of a caller's argument.
///
/// # Safety
/// `buffer` must be what [`Buffer::borrow`] gave for a handle that is still alive.
unsafe fn again(buffer: &Buffer) -> Arc<Buffer> {
    // SAFETY: the caller's promise: the buffer lies in an `Arc`, one share of which is the handle.
    unsafe {
        Arc::increment_strong_count(buffer);
        Arc::from_raw(buffer)
    }
}
