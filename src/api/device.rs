//! `PJRT_Device`: memory statistics. Everything else passes to the engine.

use crate::{
    api::{call::Call, entry::Entry},
    engine::Outcome,
    memory::Strategy,
    runtime::{allocator::allocate::clear_peaks, client},
    sys,
    units::Bytes,
};

fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.get()).unwrap_or(i64::MAX)
}

impl Entry for sys::PJRT_Device_MemoryStats_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let handle = call.required(call.device, "device")?;
        let client = client::of_device(handle);
        let Some(arena) = client.as_ref().and_then(|client| client.device(handle)?.arena.as_ref()) else {
            // A device of another process, or one whose memory stays with the engine.
            let (theirs, out) = call.forward();
            *out = theirs?;
            return Ok(());
        };
        // Memory that the engine is done with is free, whether or not a call has noticed.
        if let Some(client) = &client {
            client.allocator.drain();
        }
        let stats = arena.stats();
        // The caller does not clear the struct: every flag is written.
        let out = call.out();
        out.bytes_in_use = signed(stats.bytes_in_use);
        out.peak_bytes_in_use = signed(stats.peak_bytes_in_use);
        out.peak_bytes_in_use_is_set = true;
        out.num_allocs = i64::try_from(stats.num_allocs).unwrap_or(i64::MAX);
        out.num_allocs_is_set = true;
        out.largest_alloc_size = signed(stats.largest_alloc_size);
        out.largest_alloc_size_is_set = true;
        // Constant from creation on: JAX compiles against it (engine behaviour T17). It is what arrays can have
        // together, because callers size them by it. XLA's `bfc` reports its pool, all of which arrays can have too.
        // So the fixed share of an engine without a pool is no part of it, nor of any number below: these are the
        // arena pool's. XLA's compiler then takes the device for smaller than it is by the share, and is a little too
        // careful.
        out.bytes_limit = signed(stats.limit);
        out.bytes_limit_is_set = true;
        // The strategy tpu's reservation for programs, or the part of the same limit that a GPU's engine may take for
        // them; nothing elsewhere.
        let granted = arena.shared.as_ref().map_or(Bytes::ZERO, |shared| shared.budget.taken().1);
        let reserved = stats.reserved_bytes + granted;
        out.bytes_reserved = signed(reserved);
        out.bytes_reserved_is_set = true;
        // What is granted has no peak of its own: it goes back only where arrays need it.
        out.peak_bytes_reserved = signed(stats.peak_reserved_bytes.max(reserved));
        out.peak_bytes_reserved_is_set = true;
        out.bytes_reservable_limit = signed(match arena.strategy() {
            Strategy::Tpu => stats.free_bytes + stats.reserved_bytes,
            Strategy::Preallocate | Strategy::Growing | Strategy::Platform => stats.limit,
        });
        out.bytes_reservable_limit_is_set = true;
        out.largest_free_block_bytes = signed(stats.largest_free_block);
        out.largest_free_block_bytes_is_set = true;
        out.pool_bytes = signed(stats.pool_bytes);
        out.pool_bytes_is_set = true;
        out.peak_pool_bytes = signed(stats.peak_pool_bytes);
        out.peak_pool_bytes_is_set = true;
        out.peak_allocated_bytes = signed(stats.peak_used_bytes);
        out.peak_allocated_bytes_is_set = true;
        Ok(())
    }
}

impl Entry for sys::PJRT_Device_ClearMemoryStats_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let handle = call.required(call.device, "device")?;
        if let Some(client) = client::of_device(handle)
            && let Some(arena) = client.device(handle).and_then(|device| device.arena.as_ref())
        {
            clear_peaks(&client.allocator, arena);
            return Ok(());
        }
        call.forward().0.map(drop)
    }
}
