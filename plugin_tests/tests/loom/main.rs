//! Every interleaving of the threads that share something: a model for each part of the library that synchronises.
//!
//! The files under test are the library's own, compiled against the model checker's locks and atomic numbers. What the
//! locks guard is modelled by cells: the checker reports two threads that meet in one.

mod arena;
mod async_slot;
mod buffer;
mod group;
mod in_flight;
mod launches_alone;
mod memory;
mod output_cache;
#[allow(dead_code, missing_docs, reason = "see the types that it stands for")]
mod sync;

macro_rules! library {
    ($($path:literal $name:ident;)*) => {$(
        #[path = $path]
        #[allow(
            dead_code,
            missing_docs,
            unused_imports,
            reason = "the library uses and documents what the models here do not need"
        )]
        mod $name;
    )*};
}

library! {
    "../../../src/group/signal.rs" signal;
    "../../../src/memory/arena/lock.rs" lock;
    "../../../src/runtime/buffer/usage.rs" usage;
    "../../../src/runtime/allocator/kept.rs" kept;
    "../../../src/runtime/in_flight/launches.rs" launches;
    "../../../src/runtime/in_flight/queue.rs" queue;
    "../../../src/runtime/transfer/delivery.rs" delivery;
}

use std::sync::Arc;

/// Checks `threads` in every interleaving, or in those with at most so many `preemptions`, under both ways to keep a
/// total order of what is sequentially consistent.
fn every_interleaving(preemptions: impl Into<Option<usize>>, threads: impl Fn() + Send + Sync + 'static) {
    let threads = Arc::new(threads);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into();
    for fences in [sync::Fences::AfterStores, sync::Fences::BeforeLoads] {
        fences.choose();
        let threads = Arc::clone(&threads);
        builder.check(move || threads());
    }
}
