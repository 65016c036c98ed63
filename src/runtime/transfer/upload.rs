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

use std::{ptr, sync::Arc};

use smallvec::smallvec;

use crate::{
    device::Carrier,
    engine::{EngineBuffer, Failure, Outcome},
    error::Result,
    handlers::python::stacks,
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
        debug_assert!(client.devices.iter().any(|device| ptr::eq(device, space.device())), "another client's memory");
        let origin = ORIGINS.made_by(ORIGINS.of_shape(kind, &shape), stacks::current());
        let provenance = Provenance { origin, ..Provenance::default() };
        let allocation = allocate_or_explain(&client.allocator, space.arena(), &shape, provenance)?;
        Ok(Self { client, space, shape, allocation })
    }

    /// The buffer of the block with the bytes that it has.
    ///
    /// # Errors
    /// The engine's, or that the client is gone.
    pub fn as_it_is(self) -> Outcome<Arc<Buffer>> {
        let session = self.client.session;
        session.open()?;
        // SAFETY: the client is open, and the memory its own; the block is aligned, holds the array, and goes to the
        // buffer, which frees it only after the view and what uses it.
        let view =
            unsafe { EngineBuffer::view(session, self.space.memory(), self.allocation.address(), self.shape.array())? };
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
    /// The device's, or the engine's, or that the client is gone; nothing writes to the block any more then, and the
    /// sources are not in use.
    pub fn fill(
        self,
        sources: &[Arc<Buffer>],
        fill: impl FnOnce(&dyn Carrier, Address) -> Result<()>,
    ) -> Outcome<Arc<Buffer>> {
        let carrier = &*self.space.arena().carrier;
        self.fill_by(carrier, sources, fill)
    }

    /// As [`Self::fill`], with the carrier of the device's own memory, which reaches its `pinned_host` memory too.
    ///
    /// # Errors
    /// As [`Self::fill`].
    pub fn fill_by_device(
        self,
        sources: &[Arc<Buffer>],
        fill: impl FnOnce(&dyn Carrier, Address) -> Result<()>,
    ) -> Outcome<Arc<Buffer>> {
        let arena = self.space.device().arena.as_ref().unwrap_or(self.space.arena());
        self.fill_by(&*arena.carrier, sources, fill)
    }

    /// As [`Self::fill`], with a carrier of the device.
    fn fill_by(
        self,
        carrier: &dyn Carrier,
        sources: &[Arc<Buffer>],
        fill: impl FnOnce(&dyn Carrier, Address) -> Result<()>,
    ) -> Outcome<Arc<Buffer>> {
        let filled = fill(carrier, self.allocation.block().address);
        if carrier.is_host() {
            sources.iter().for_each(|source| source.end_use());
            filled?;
            return self.as_it_is();
        }
        let session = self.client.session;
        let place = self.space.place();
        let open = filled.and_then(|()| session.open());
        let viewed = open.map_err(Failure::from).and_then(|_| {
            // SAFETY: the client is open, and device and memory its own; the carrier is the device's. The block is
            // aligned, holds the array, and goes to the buffer, which frees it only after the view and what uses it.
            let view = unsafe {
                EngineBuffer::view_behind(session, place, carrier, self.allocation.address(), self.shape.array())?
            };
            let ready = view.ready_event();
            Ok((view, ready))
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

    fn buffer(self, view: EngineBuffer) -> Arc<Buffer> {
        Buffer::new(view, self.space.place(), self.shape, Storage::Arena(self.allocation))
    }
}
