//! The engine's memories of the host.

use crate::{
    engine::{Live, Raw},
    program::HostMemory,
    sys,
};

/// The engine's memories of the host, for one device.
#[derive(Clone, Copy, Default)]
pub struct HostMemories {
    pinned: Option<Raw<sys::PJRT_Memory>>,
    unpinned: Option<Raw<sys::PJRT_Memory>>,
}

impl HostMemories {
    /// Those of `device`, and again the `pinned_host` one; none, where the engine does not say.
    pub fn find<'a>(device: Live<'a, sys::PJRT_Device>) -> (Self, Option<Live<'a, sys::PJRT_Memory>>) {
        let (mut found, mut pinned) = (Self::default(), None);
        for memory in device.handles::<sys::PJRT_Device_AddressableMemories_Args, _>().unwrap_or_default() {
            match memory.text::<sys::PJRT_Memory_Kind_Args>() {
                Ok(kind) if kind == HostMemory::Pinned.name() => pinned = Some(memory),
                Ok(kind) if kind == HostMemory::Unpinned.name() => found.unpinned = Some(Raw(memory.raw())),
                _ => {}
            }
        }
        found.pinned = pinned.map(|memory| Raw(memory.raw()));
        (found, pinned)
    }

    /// The one that a result is bound to.
    pub fn of(&self, bound: HostMemory) -> Option<Raw<sys::PJRT_Memory>> {
        match bound {
            HostMemory::Pinned => self.pinned,
            HostMemory::Unpinned => self.unpinned,
        }
    }
}
