//! The engine's memories of the host.

use crate::{
    engine::{Engine, Raw},
    program::HostMemory,
    sys::{self, slice, text},
};

/// The engine's memories of the host, for one device.
#[derive(Clone, Copy, Default)]
pub struct HostMemories {
    pinned: Option<Raw<sys::PJRT_Memory>>,
    unpinned: Option<Raw<sys::PJRT_Memory>>,
}

impl HostMemories {
    /// Those of `device`; none, where the engine does not say.
    ///
    /// # Safety
    /// The device must be alive.
    pub unsafe fn find(engine: &'static Engine, device: *mut sys::PJRT_Device) -> Self {
        let mut found = Self::default();
        // SAFETY: the device is alive, as this function asks, and so long live its memories and their names, whose
        // numbers the engine gives.
        unsafe {
            let args = engine.call(sys::PJRT_Device_AddressableMemories_Args { device, ..Default::default() });
            let memories = args.map_or(&[][..], |args| slice(args.memories, args.num_memories));
            for &memory in memories {
                let Ok(kind) = engine.call(sys::PJRT_Memory_Kind_Args { memory, ..Default::default() }) else {
                    continue;
                };
                match text(kind.kind, kind.kind_size) {
                    kind if kind == HostMemory::Pinned.name() => found.pinned = Some(Raw(memory)),
                    kind if kind == HostMemory::Unpinned.name() => found.unpinned = Some(Raw(memory)),
                    _ => {}
                }
            }
        }
        found
    }

    /// The one that a result is bound to.
    pub fn of(&self, bound: HostMemory) -> Option<Raw<sys::PJRT_Memory>> {
        match bound {
            HostMemory::Pinned => self.pinned,
            HostMemory::Unpinned => self.unpinned,
        }
    }
}
