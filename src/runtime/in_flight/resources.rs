//! What an operation keeps alive.

use std::{any::Any, mem, sync::Arc};

use smallvec::SmallVec;

use crate::{
    engine::EngineBuffer,
    runtime::{
        buffer::{Buffer, VacantBuffer, usage::User},
        device_memory::{Allocation, ScratchReservation},
        dispatch::Timed,
    },
};

/// Buffers of the engine that a program has consumed: destroying one blocks while the program still runs (engine
/// behaviour T3).
pub type Consumed = SmallVec<[EngineBuffer; 4]>;

/// What an operation keeps until it is reaped.
#[derive(Default)]
pub struct Resources {
    /// Buffers in use; [`Buffer::begin_use`] was called for each.
    pub buffers: SmallVec<[Arc<Buffer>; 4]>,
    /// Buffers that the operation writes, in use as well.
    pub results: SmallVec<[Arc<Buffer>; 2]>,
    /// Blocks without a buffer that the engine may still use.
    pub leftovers: Vec<Allocation>,
    /// What the buffers are used for.
    pub user: User,
    /// The part of the arena that is reserved for its scratch.
    pub scratch: Option<ScratchReservation>,
    /// Buffers to destroy.
    pub consumed: Consumed,
    /// The execute context, which the program may still read.
    pub context: Option<Arc<dyn Any + Send + Sync>>,
    /// Who is told how long it took.
    pub timed: Option<Timed>,
}

impl Resources {
    /// The buffers that have to be destroyed before the engine's client is.
    pub(super) fn take_engine_buffers(&mut self) -> Consumed {
        let mut taken = mem::take(&mut self.consumed);
        let all = self.buffers.iter().chain(&self.results);
        taken.extend(all.filter_map(|buffer| buffer.state().take_view_of_recycling()));
        taken
    }

    /// Frees all memory, and passes each buffer whose last use this was, and which is to be recycled, to `recycle`.
    pub(super) fn release_memory(&mut self, succeeded: bool, mut recycle: impl FnMut(VacantBuffer)) {
        self.leftovers.clear();
        self.scratch = None;
        for buffer in self.buffers.drain(..) {
            if let Some(vacant) = buffer.end_operation_use(false, self.user) {
                recycle(vacant);
            }
        }
        for result in self.results.drain(..) {
            if !succeeded {
                result.state().mark_failed();
            }
            if let Some(vacant) = result.end_operation_use(succeeded, self.user) {
                recycle(vacant);
            }
        }
    }
}
