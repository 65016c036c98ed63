//! `PJRT_LoadedExecutable_Execute`: the hot path.
//!
//! ```text
//! call      the call and its options are checked (call.rs); a program with host callbacks gets a client of the engine
//!           to itself (nested.rs)
//! launch    prepare   the program's scratch (strategy tpu), a block for each destination of each device, and a view of
//!                     it; copies of arguments that are donated but cannot be (device_launch.rs, donation_copy.rs)
//!                     where arrays are spilled, the arguments come back first (wanted.rs)
//!           acquire   each argument: is it live? Then nothing moves or frees its bytes from here on (argument.rs)
//!           start     the engine runs on the views; no lock is held; a program with host callbacks is waited for
//! collect   consumed arguments give up their memory; each result is matched by address with a destination or a
//!           consumed argument, and what matches nothing is the engine's own (collect.rs, results.rs). Programs under
//!           way become operations in flight (in_flight/); one that is done, the usual case for small ones, needs none
//! ```
//!
//! A launch that holds destinations waits for no memory, unless it is its turn (`launch.rs`): two would wait for each
//! other.
//!
//! Allocation comes before anything is acquired, so that the program's own arguments may be moved to make room for
//! its results. Every failure before collecting leaves all arguments as they were, unless the engine itself consumed
//! them. From collecting on nothing fails. Nothing is ever run twice.

pub mod argument;
pub mod call;
pub mod candidates;
pub mod collect;
pub mod context;
pub mod destination;
pub mod device_launch;
pub mod donation_copy;
pub mod host_callbacks;
pub mod launch;
mod needs;
pub mod nested;
pub mod results;
pub mod unplaced;
pub mod wanted;

use std::mem::MaybeUninit;

use crate::{
    engine::Outcome,
    runtime::{
        executable::loaded::Loaded,
        execute::{call::Call, launch::Launch, nested::NestedRun},
    },
    sys,
};

/// Runs a program: call, launch, collect.
///
/// # Errors
/// INVALID_ARGUMENT for a call that is not as the program asks, RESOURCE_EXHAUSTED, or the engine's.
///
/// # Safety
/// What the caller passed must be as the C API says: lists as long as their numbers, handles and the context alive.
#[inline]
pub unsafe fn execute(loaded: &Loaded, args: &sys::PJRT_LoadedExecutable_Execute_Args) -> Outcome {
    let client = &*loaded.client;
    client.allocator.in_flight.reap_in_order();
    let mut room = MaybeUninit::uninit();
    // SAFETY: the lists are as long as their numbers, and handles and context alive, as this function asks.
    let call = unsafe { Call::check(args, loaded, &mut room)? };
    let mut launch = Launch::new(call);
    if nested::is_called_for(loaded.program.plan.host_callbacks) {
        launch.nested = Some(Box::new(NestedRun::begin(call)?));
    }
    launch.prepare()?;
    launch.acquire()?;
    let started = match launch.start() {
        Ok(started) => started,
        Err(error) => {
            collect::abandon(&mut launch, error.is_exception());
            return Err(error.into());
        }
    };
    for (index, (event, outputs)) in started.into_devices().enumerate() {
        collect::collect(&mut launch, index, event, outputs);
    }
    collect::release(&launch);
    if launch.spills() {
        client.prefetcher.wake();
    }
    Ok(())
}
