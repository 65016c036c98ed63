//! `PJRT_Device`: memory statistics. Everything else passes to the engine.

use crate::{
    api::entry::Entry,
    engine::{Outcome, failure::required, process},
    memory::Strategy,
    runtime::client,
    sys,
    units::Bytes,
};

fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.get()).unwrap_or(i64::MAX)
}

impl Entry for sys::PJRT_Device_MemoryStats_Args {
    unsafe fn run(&mut self) -> Outcome {
        let handle = required(self.device, "PJRT_Device_MemoryStats", "device")?;
        let client = client::of_device(handle);
        let Some(arena) = client.as_ref().and_then(|client| client.device(handle)?.arena.as_ref()) else {
            // A device of another process, or one whose memory stays with the engine.
            // SAFETY: the caller's promise, handed on as it is.
            *self = unsafe { process::engine()?.call(*self)? };
            return Ok(());
        };
        // What the engine is done with is free, whether or not a call has noticed.
        if let Some(client) = &client {
            client.allocator.drain();
        }
        let stats = arena.stats();
        // The caller does not clear the struct: every flag is written.
        self.bytes_in_use = signed(stats.bytes_in_use);
        self.peak_bytes_in_use = signed(stats.peak_bytes_in_use);
        self.peak_bytes_in_use_is_set = true;
        self.num_allocs = i64::try_from(stats.num_allocs).unwrap_or(i64::MAX);
        self.num_allocs_is_set = true;
        self.largest_alloc_size = signed(stats.largest_alloc_size);
        self.largest_alloc_size_is_set = true;
        // Constant from creation on: JAX compiles against it (engine behaviour T17). It is what arrays can have together, as callers size them by
        // it. XLA's `bfc` says what its pool has, all of which arrays can have too. So what an engine without a pool has for programs
        // for good is no part of it, nor of anything below: these numbers are of the arena's pool. XLA's compiler then takes the device for
        // smaller than it is by the share, and is a little too careful.
        self.bytes_limit = signed(stats.limit);
        self.bytes_limit_is_set = true;
        // What the strategy tpu sets aside for programs, or what a GPU's engine may take for them of the same limit; nothing elsewhere.
        let granted = arena.shared.as_ref().map_or(Bytes::ZERO, |shared| shared.budget.taken().1);
        self.bytes_reserved = signed(stats.reserved_bytes + granted);
        self.bytes_reserved_is_set = true;
        self.peak_bytes_reserved = signed(stats.peak_reserved_bytes);
        self.peak_bytes_reserved_is_set = true;
        self.bytes_reservable_limit = signed(match arena.strategy() {
            Strategy::Tpu => stats.free_bytes + stats.reserved_bytes,
            Strategy::Preallocate | Strategy::Growing | Strategy::Platform => stats.limit,
        });
        self.bytes_reservable_limit_is_set = true;
        self.largest_free_block_bytes = signed(stats.largest_free_block);
        self.largest_free_block_bytes_is_set = true;
        self.pool_bytes = signed(stats.pool_bytes);
        self.pool_bytes_is_set = true;
        self.peak_pool_bytes = signed(stats.peak_pool_bytes);
        self.peak_pool_bytes_is_set = true;
        self.peak_allocated_bytes = signed(stats.peak_bytes_in_use);
        self.peak_allocated_bytes_is_set = true;
        Ok(())
    }
}

impl Entry for sys::PJRT_Device_ClearMemoryStats_Args {
    unsafe fn run(&mut self) -> Outcome {
        let handle = required(self.device, "PJRT_Device_ClearMemoryStats", "device")?;
        let client = client::of_device(handle);
        if let Some(arena) = client.as_ref().and_then(|client| client.device(handle)?.arena.as_ref()) {
            arena.clear_peaks();
            return Ok(());
        }
        // SAFETY: the caller's promise, handed on as it is.
        unsafe { process::engine()?.call(*self)? };
        Ok(())
    }
}
