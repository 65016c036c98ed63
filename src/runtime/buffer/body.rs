//! The engine's buffer and the memory behind it, and how both are taken out to be reused.

use crate::{
    engine::{EngineBuffer, Raw},
    memory::MoveBarrier,
    runtime::{
        buffer::{
            storage::Storage,
            usage::{Life, State, Trust},
        },
        device_memory::Allocation,
    },
    sys,
    units::Address,
};

/// The engine's buffer and the memory behind it.
pub struct Body {
    /// The engine's buffer, until it is taken out to be destroyed or reused. It goes before the memory does.
    view: Option<EngineBuffer>,
    /// Where the bytes are.
    pub storage: Storage,
    /// The owner destroyed the buffer while it was in use: block and handle are reused after its last use.
    pub recycling: bool,
    /// pjrt-arena's stream of the device, or the host before it, wrote the bytes: what that stream does from now on
    /// comes after them. Until the buffer is defined, that is one use of it.
    pub queued: bool,
    /// So many launches are about to use the bytes: they are not spilled.
    pub wanted: u32,
    /// There is no array in the block: see [`crate::runtime::buffer::vacant`].
    vacant: bool,
}

/// A vacant buffer's handle and block.
#[derive(Clone, Copy)]
pub struct Vacated {
    /// The engine's buffer.
    pub handle: Raw<sys::PJRT_Buffer>,
    /// The block's address.
    pub address: usize,
    /// Whether the block is retired in the arena.
    pub retired: bool,
    /// Whether the engine's buffer holds no error.
    pub whole: bool,
    /// Whether a transfer or a query has used the bytes.
    pub transferred: bool,
}

impl Body {
    /// The body of a live buffer.
    pub fn new(view: EngineBuffer, storage: Storage) -> Self {
        Self { view: Some(view), storage, recycling: false, queued: false, wanted: 0, vacant: false }
    }

    /// That of a buffer without an array.
    pub fn vacant(view: EngineBuffer, storage: Storage) -> Self {
        Self { vacant: true, ..Self::new(view, storage) }
    }

    /// The engine's buffer.
    #[inline]
    pub fn view(&self) -> Option<&EngineBuffer> {
        self.view.as_ref()
    }

    /// Takes the engine's buffer out. It is dropped without a lock.
    #[must_use]
    pub fn take_view(&mut self) -> Option<EngineBuffer> {
        self.view.take()
    }

    /// Replaces the engine's buffer. The previous one is dropped without a lock.
    #[must_use]
    pub fn replace_view(&mut self, view: EngineBuffer) -> Option<EngineBuffer> {
        self.view.replace(view)
    }

    /// Records the buffer's new address, and its view there. The previous view is dropped without a lock.
    #[must_use]
    pub fn move_to(&mut self, view: EngineBuffer, address: Address) -> Option<EngineBuffer> {
        if let Some(allocation) = self.storage.allocation_mut() {
            allocation.moved_to(address);
        }
        self.replace_view(view)
    }

    /// The block, if the bytes are in an arena.
    pub fn allocation(&self) -> Option<&Allocation> {
        self.storage.allocation().filter(|_| !self.vacant)
    }

    /// As [`Self::allocation`], or the block of the memory that the array is spilled to.
    pub fn block(&self) -> Option<&Allocation> {
        self.storage.block().filter(|_| !self.vacant)
    }
}

impl State<Body> {
    /// Takes the memory of a buffer that is deleted or donated and that nothing uses.
    pub fn take_unneeded(&mut self) -> Option<Storage> {
        (self.is_free() && !self.vacant && !matches!(self.storage, Storage::Gone))
            .then(|| std::mem::replace(&mut self.storage, Storage::Gone))
    }

    /// Gives up the memory of a donated buffer for what has it from now on. Of a buffer that is donated nobody may use
    /// an address.
    pub fn give_up(&mut self) -> Storage {
        // Another call has passed it on, and the use by this buffer has not ended.
        if matches!(self.storage, Storage::Successor(_)) {
            return Storage::Gone;
        }
        let storage = std::mem::replace(&mut self.storage, Storage::Gone);
        if self.is_address_known()
            && let Some(allocation) = storage.allocation()
        {
            allocation.unpin();
        }
        storage
    }

    /// Says that the block's owner is gone and the engine still uses it.
    pub fn retire(&mut self) {
        if let Some(allocation) = self.allocation() {
            allocation.retire();
        }
    }

    /// Makes a buffer that its owner destroys vacant, if block and handle can be written again: nothing uses the bytes,
    /// no outsider knows their address, and the handle holds no error.
    #[inline]
    pub fn vacate(&mut self) -> Option<Vacated> {
        if self.move_barrier().is_some() {
            return None;
        }
        let vacated = self.vacate_free(false)?;
        self.end(Life::Deleted);
        Some(vacated)
    }

    /// As [`Self::vacate`], of a buffer that is free, and whose block is `retired` or not.
    #[inline]
    pub fn vacate_free(&mut self, retired: bool) -> Option<Vacated> {
        let handle = Raw(self.view()?.raw());
        if let Storage::Copied(_) = self.storage {
            self.storage = Storage::Arena(self.take_block()?);
        }
        let address = self.allocation()?.address();
        self.vacant = true;
        Some(Vacated { handle, address, retired, whole: self.is_defined(), transferred: self.is_transferred() })
    }

    /// Makes a vacant buffer live, with bytes that a program writes, or has written.
    #[inline]
    pub fn occupy(&mut self) {
        (self.vacant, self.queued) = (false, false);
        self.revive();
    }

    /// Whom the engine's buffer may be donated to, of a buffer that is recycling.
    pub fn trust_of_recycling(&self) -> Trust {
        if self.recycling && self.view.is_some() { self.trust() } else { Trust::Nobody }
    }

    /// Takes the block of a buffer that is recycling while executions on its device, and nothing else, still use it;
    /// and the engine's buffer, if there still is one. That is dropped without a lock.
    pub fn take_while_executing(&mut self) -> Option<(Option<EngineBuffer>, Allocation)> {
        if !self.recycling || !self.is_used_by_executions_alone() {
            return None;
        }
        let taken = self.take_out()?;
        self.recycling = false;
        Some(taken)
    }

    /// As [`Self::vacate`], of a buffer that programs still use: retires the block, and leaves block and
    /// handle to the end of the last use. Whether it did.
    pub fn begin_recycling(&mut self) -> bool {
        if self.move_barrier() != Some(MoveBarrier::InUse) || self.is_copied() || self.view.is_none() {
            return false;
        }
        let Storage::Arena(allocation) = &self.storage else { return false };
        allocation.retire();
        self.end(Life::Deleted);
        self.recycling = true;
        true
    }

    /// Takes the engine's buffer of one that is recycling, because the client ends first.
    pub fn take_view_of_recycling(&mut self) -> Option<EngineBuffer> {
        if self.recycling { self.take_view() } else { None }
    }

    /// Takes block and engine's buffer out; `None` if there is no block. That buffer is dropped without a lock.
    pub fn take_out(&mut self) -> Option<(Option<EngineBuffer>, Allocation)> {
        let allocation = self.take_block()?;
        self.vacant = false;
        Some((self.take_view(), allocation))
    }

    fn take_block(&mut self) -> Option<Allocation> {
        std::mem::replace(&mut self.storage, Storage::Gone).into_allocation()
    }
}
