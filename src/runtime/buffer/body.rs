//! The engine's buffer and the memory behind it, and how both are taken out to be reused.

use crate::{
    engine::Raw,
    memory::MoveBarrier,
    runtime::{
        buffer::{
            storage::Storage,
            usage::{Life, State},
        },
        device_memory::Allocation,
    },
    sys,
    units::Address,
};

/// The engine's buffer and the memory behind it.
pub struct Body {
    /// The engine's buffer; NULL once destroyed.
    handle: Raw<sys::PJRT_Buffer>,
    /// Where the bytes are.
    pub storage: Storage,
    /// The owner destroyed the buffer while it was in use: block and handle are reused after its last use.
    pub recycling: bool,
    /// pjrt-arena's stream of the device, or the host before it, wrote the bytes: what that stream does from now on
    /// comes after them. Until the buffer is defined, that is one use of it.
    pub queued: bool,
}

impl Body {
    /// The body of a live buffer.
    pub fn new(handle: *mut sys::PJRT_Buffer, storage: Storage) -> Self {
        Self { handle: Raw(handle), storage, recycling: false, queued: false }
    }

    /// The engine's buffer.
    pub fn handle(&self) -> Raw<sys::PJRT_Buffer> {
        self.handle
    }

    /// Takes the engine's buffer out; NULL if it was taken before.
    pub fn take_handle(&mut self) -> Raw<sys::PJRT_Buffer> {
        std::mem::replace(&mut self.handle, Raw::NULL)
    }

    /// Records the buffer's new address, and its view there.
    pub fn move_to(&mut self, view: Raw<sys::PJRT_Buffer>, address: Address) {
        self.handle = view;
        if let Storage::Arena(allocation) = &mut self.storage {
            allocation.moved_to(address);
        }
    }

    /// Replaces the engine's buffer, without destroying the previous one.
    pub fn set_handle(&mut self, handle: Raw<sys::PJRT_Buffer>) {
        self.handle = handle;
    }

    /// The block, if the bytes are in an arena.
    pub fn allocation(&self) -> Option<&Allocation> {
        self.storage.allocation()
    }
}

impl State<Body> {
    /// Takes the memory of a buffer that is deleted or donated and that nothing uses.
    pub fn take_unneeded(&mut self) -> Option<Storage> {
        (self.is_free() && !matches!(self.storage, Storage::Gone))
            .then(|| std::mem::replace(&mut self.storage, Storage::Gone))
    }

    /// Takes block and handle of a buffer that its owner destroys, if they can be written again: nothing uses the
    /// bytes, no outsider knows their address, and the handle holds no error.
    pub fn take_for_reuse(&mut self) -> Option<(Allocation, Raw<sys::PJRT_Buffer>)> {
        if self.move_barrier().is_some() || self.handle().is_null() || self.allocation().is_none() {
            return None;
        }
        self.end(Life::Deleted);
        self.take_out()
    }

    /// Takes the block of a buffer that is recycling while executions on its device, and nothing else, still use it;
    /// and the handle, which the caller must destroy.
    pub fn take_while_executing(&mut self) -> Option<(Allocation, Raw<sys::PJRT_Buffer>)> {
        if !self.recycling || !self.is_used_by_executions_alone() {
            return None;
        }
        let taken = self.take_out()?;
        self.recycling = false;
        Some(taken)
    }

    /// As [`Self::take_for_reuse`], of a buffer that programs still use: retires the block, and leaves block and
    /// handle to the end of the last use. Whether it did.
    pub fn begin_recycling(&mut self) -> bool {
        if self.move_barrier() != Some(MoveBarrier::InUse) || self.is_copied() || self.handle().is_null() {
            return false;
        }
        let Some(allocation) = self.allocation() else { return false };
        allocation.retire();
        self.end(Life::Deleted);
        self.recycling = true;
        true
    }

    /// Takes the handle of a buffer that is recycling, because the client ends first.
    pub fn take_handle_of_recycling(&mut self) -> Option<Raw<sys::PJRT_Buffer>> {
        let handle = self.handle();
        (self.recycling && !handle.is_null()).then(|| {
            self.set_handle(Raw::NULL);
            handle
        })
    }

    /// Takes block and handle out; `None` if there is no block.
    pub fn take_out(&mut self) -> Option<(Allocation, Raw<sys::PJRT_Buffer>)> {
        let view = self.handle();
        self.set_handle(Raw::NULL);
        std::mem::replace(&mut self.storage, Storage::Gone).into_allocation().map(|allocation| (allocation, view))
    }
}
