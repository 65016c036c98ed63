//! The engine's buffer and the memory behind it, and how both are taken out to be used again.

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
    /// Its owner destroyed it while it was in use: block and handle wait for the end of that, to be used again.
    pub recycling: bool,
    /// Its bytes were brought by us, by our stream of the device that it belongs to or before: what is put there from now on comes
    /// after them. Until the buffer is whole, that is one use of it.
    pub queued: bool,
}

impl Body {
    /// Of a buffer that its owner holds.
    pub fn new(handle: *mut sys::PJRT_Buffer, storage: Storage) -> Self {
        Self { handle: Raw(handle), storage, recycling: false, queued: false }
    }

    /// The engine's buffer.
    pub fn handle(&self) -> Raw<sys::PJRT_Buffer> {
        self.handle
    }

    /// Takes the engine's buffer out; NULL if there is none any more.
    pub fn take_handle(&mut self) -> Raw<sys::PJRT_Buffer> {
        std::mem::replace(&mut self.handle, Raw::NULL)
    }

    /// The buffer lies elsewhere now, and this is its view.
    pub fn move_to(&mut self, view: Raw<sys::PJRT_Buffer>, address: Address) {
        self.handle = view;
        if let Storage::Arena(held) = &mut self.storage {
            held.moved_to(address);
        }
    }

    /// Puts another buffer of the engine in its place, which is not destroyed.
    pub fn set_handle(&mut self, handle: Raw<sys::PJRT_Buffer>) {
        self.handle = handle;
    }

    /// The block, if it is one of ours.
    pub fn held(&self) -> Option<&Allocation> {
        self.storage.held()
    }
}

impl State<Body> {
    /// Takes the memory of a buffer that nobody needs any more.
    pub fn settle(&mut self) -> Option<Storage> {
        (self.is_free() && !matches!(self.storage, Storage::Gone))
            .then(|| std::mem::replace(&mut self.storage, Storage::Gone))
    }

    /// Takes block and handle of a buffer that its owner destroys, if they are fit to be written again: nobody uses the
    /// bytes, nobody was promised that their address stays, and no error clings to the handle.
    pub fn spare(&mut self) -> Option<(Allocation, Raw<sys::PJRT_Buffer>)> {
        if self.move_barrier().is_some() || self.handle().is_null() || self.held().is_none() {
            return None;
        }
        self.end(Life::Deleted);
        self.take_out()
    }

    /// Takes the block of a buffer that is recycling while executions on its device, and nothing else, still use it; and the handle,
    /// which is the caller's to destroy.
    pub fn take_while_executing(&mut self) -> Option<(Allocation, Raw<sys::PJRT_Buffer>)> {
        if !self.recycling || !self.is_used_by_executions_alone() {
            return None;
        }
        let taken = self.take_out()?;
        self.recycling = false;
        Some(taken)
    }

    /// As [`Self::spare`], of one that programs still use: retires the block, and leaves it and the handle to the last of
    /// them. Whether it did.
    pub fn begin_recycling(&mut self) -> bool {
        if self.move_barrier() != Some(MoveBarrier::InUse) || self.is_copied() || self.handle().is_null() {
            return false;
        }
        let Some(held) = self.held() else { return false };
        held.retire();
        self.end(Life::Deleted);
        self.recycling = true;
        true
    }

    /// Takes the handle of a buffer that is recycling, because its home goes first.
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
        std::mem::replace(&mut self.storage, Storage::Gone).into_allocation().map(|held| (held, view))
    }
}
