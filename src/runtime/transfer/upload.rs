//! Arrays that come into an arena.
//!
//! ```text
//!  new ---> a block ---fill---> host memory:    the bytes are written    a view of them, defined at once
//!                               a GPU's memory: copies are queued        a view after them, defined when it is ready;
//!                                                                        until then it is neither moved nor freed
//! ```
//!
//! On a GPU no thread waits here for a copy. The engine's programs come after the view's definition, which comes
//! after what was put on one of its streams; that stream was made to wait for the arena's copies. The block itself is
//! free of older work: it was freed only after the programs that used it were done, as seen from the host.

use std::sync::Arc;

use smallvec::smallvec;

use crate::{
    device::Carrier,
    engine::{Outcome, buffers::ready_event},
    error::Result,
    memory::Provenance,
    report::snapshot::OriginKind,
    runtime::{
        allocator::allocate::allocate_or_explain,
        buffer::{Buffer, storage::Storage},
        client::{Client, MemorySpace},
        device_memory::{Allocation, origins::ORIGINS},
        in_flight::Resources,
        shape::Shape,
    },
    sys,
    units::Address,
};

/// A block that an array is uploaded to.
pub struct Upload<'a> {
    client: &'a Client,
    space: MemorySpace<'a>,
    shape: Arc<Shape>,
    allocation: Allocation,
}

impl<'a> Upload<'a> {
    /// A block of `space` for an array of this shape, whose element type is aliasable. `kind` says where it comes
    /// from.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED.
    pub fn new(client: &'a Client, space: MemorySpace<'a>, shape: Arc<Shape>, kind: OriginKind) -> Result<Self> {
        let provenance = Provenance { origin: ORIGINS.of_shape(kind, &shape), ..Provenance::default() };
        let allocation = allocate_or_explain(&client.allocator, space.arena, &shape, provenance)?;
        Ok(Self { client, space, shape, allocation })
    }

    /// The buffer of the block with the bytes that it has.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// The client must be alive.
    pub unsafe fn as_it_is(self) -> Outcome<Arc<Buffer>> {
        // SAFETY: the client is alive, as this function asks; the block is aligned, holds the array, and is freed
        // only after the view.
        let view =
            unsafe { self.client.session.view(self.space.memory, self.allocation.address(), self.shape.array())? };
        let buffer = self.buffer(view);
        {
            let mut state = buffer.state();
            state.mark_defined();
            // Before 0.114 the engine reports the view ready only after the programs that were started before.
            state.queued = true;
        }
        Ok(buffer)
    }

    /// The buffer of the bytes that `fill` brings to the block with the carrier of its memory. [`Buffer::begin_use`]
    /// was called for each of `sources`; they are in use until the bytes are there.
    ///
    /// # Errors
    /// The device's, or the engine's; nothing writes to the block any more then, and the sources are not in use.
    ///
    /// # Safety
    /// The client must be alive, and `fill` write to nothing but the array in the block.
    pub unsafe fn fill(
        self,
        sources: &[Arc<Buffer>],
        fill: impl FnOnce(&dyn Carrier, Address) -> Result<()>,
    ) -> Outcome<Arc<Buffer>> {
        let carrier = &*self.space.arena.carrier;
        // SAFETY: the client is alive, `fill` writes to the block alone, and the carrier is the memory's own.
        unsafe { self.fill_by(carrier, sources, fill) }
    }

    /// As [`Self::fill`], with another carrier of the same device.
    ///
    /// # Errors
    /// As [`Self::fill`].
    ///
    /// # Safety
    /// As [`Self::fill`]; the carrier must be one of the device, and reach the block.
    pub unsafe fn fill_by(
        self,
        carrier: &dyn Carrier,
        sources: &[Arc<Buffer>],
        fill: impl FnOnce(&dyn Carrier, Address) -> Result<()>,
    ) -> Outcome<Arc<Buffer>> {
        let filled = fill(carrier, self.allocation.block().address);
        if carrier.is_host() {
            sources.iter().for_each(|source| source.end_use());
            filled?;
            // SAFETY: the client is alive, as this function asks.
            return unsafe { self.as_it_is() };
        }
        // SAFETY: client and device are alive, as this function asks; the block is aligned, holds the array, and is
        // freed only after the view, which is a live buffer of the client.
        let viewed = filled.map_err(Into::into).and_then(|()| unsafe {
            let view = self.client.session.view_behind(
                (self.space.device.handle, self.space.memory),
                carrier,
                self.allocation.address(),
                self.shape.array(),
            )?;
            Ok((view, ready_event(self.client.session, view)))
        });
        let (view, ready) = match viewed {
            Ok(viewed) => viewed,
            Err(failure) => {
                // What was queued already must not write to memory that is reused by then.
                carrier.finish();
                sources.iter().for_each(|source| source.end_use());
                return Err(failure);
            }
        };
        let client = self.client;
        let buffer = self.buffer(view);
        buffer.state().queued = true;
        match ready {
            Ok(ready) if !ready.is_ready() => {
                buffer.begin_use()?;
                let (buffers, results) = (sources.iter().cloned().collect(), smallvec![Arc::clone(&buffer)]);
                client.allocator.in_flight.track(&ready, None, Resources { buffers, results, ..Resources::default() });
            }
            ready => {
                if ready.is_err() {
                    carrier.finish();
                }
                sources.iter().for_each(|source| source.end_use());
                buffer.mark_defined();
            }
        }
        Ok(buffer)
    }

    fn buffer(self, view: *mut sys::PJRT_Buffer) -> Arc<Buffer> {
        let storage = Storage::Arena(self.allocation);
        let MemorySpace { device, memory, .. } = self.space;
        Buffer::new(self.client.session, device.handle, memory, self.shape, view, storage)
    }
}
