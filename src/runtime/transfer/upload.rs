//! Arrays on their way into an arena.
//!
//! ```text
//!  new ---> a block ---fill---> host memory:    the bytes are there      a view of them, whole at once
//!                               a GPU's memory: copies are queued        a view that comes after them, whole when it is
//!                                                                        ready; until then nobody moves or frees it
//! ```
//!
//! On a GPU nobody waits here for a copy. The engine's programs come after the view's definition, which comes after what was
//! put on one of its streams; that stream was made to wait for our copies. The block itself is free of older work: it went
//! back to the arena only after the programs that used it were done, as seen from the host.

use std::sync::Arc;

use smallvec::smallvec;

use crate::{
    device::Carrier,
    engine::{EngineError, EngineEvent, Outcome},
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

/// A block that an array is brought to.
pub struct Upload<'a> {
    client: &'a Client,
    site: MemorySpace<'a>,
    shape: Arc<Shape>,
    held: Allocation,
}

impl<'a> Upload<'a> {
    /// A block of `site` for an array of this shape, whose element type is viewable. `kind` says where it comes from.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED.
    pub fn new(client: &'a Client, site: MemorySpace<'a>, shape: Arc<Shape>, kind: OriginKind) -> Result<Self> {
        let maker = Provenance { origin: ORIGINS.of_shape(kind, &shape), ..Provenance::default() };
        let held = allocate_or_explain(&client.allocator, site.arena, &shape, maker)?;
        Ok(Self { client, site, shape, held })
    }

    /// The buffer of a block that is as it is.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// The client must be alive.
    pub unsafe fn as_it_is(self) -> Outcome<Arc<Buffer>> {
        // SAFETY: the caller's promise; the block is aligned, holds the array, and is freed only after the view.
        let view = unsafe { self.client.session.view(self.site.memory, self.held.address(), self.shape.array())? };
        let buffer = self.buffer(view);
        {
            let mut state = buffer.state();
            state.mark_defined();
            // Before 0.114 the engine calls the view ready only after the programs that were started before.
            state.queued = true;
        }
        Ok(buffer)
    }

    /// The buffer of the bytes that `fill` brings to the block with the carrier of its memory. `sources` are in use until they are
    /// there; each was taken up.
    ///
    /// # Errors
    /// The device's, or the engine's; then nothing writes to the block any more, and the sources have landed.
    ///
    /// # Safety
    /// The client must be alive, and `fill` write to nothing but the array in the block.
    pub unsafe fn fill(
        self,
        sources: &[Arc<Buffer>],
        fill: impl FnOnce(&dyn Carrier, Address) -> Result<()>,
    ) -> Outcome<Arc<Buffer>> {
        let carrier = &*self.site.arena.carrier;
        // SAFETY: the caller's promise.
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
        let filled = fill(carrier, self.held.block().address);
        if carrier.is_host() {
            sources.iter().for_each(|source| source.land());
            filled?;
            // SAFETY: the caller's promise.
            return unsafe { self.as_it_is() };
        }
        // SAFETY: the caller's promise; as in `as_it_is`.
        let viewed = filled.map_err(Into::into).and_then(|()| unsafe {
            let view = self.client.session.view_behind(
                (self.site.device.handle, self.site.memory),
                carrier,
                self.held.address(),
                self.shape.array(),
            )?;
            Ok((view, ready_event(self.client, view)))
        });
        let (view, ready) = match viewed {
            Ok(viewed) => viewed,
            Err(failure) => {
                // What was queued already must not write to memory that is somebody else's by then.
                carrier.finish();
                sources.iter().for_each(|source| source.land());
                return Err(failure);
            }
        };
        let client = self.client;
        let buffer = self.buffer(view);
        buffer.state().queued = true;
        match ready {
            Ok(Some(ready)) if !ready.is_ready() => {
                buffer.begin_use()?;
                let (buffers, results) = (sources.iter().cloned().collect(), smallvec![Arc::clone(&buffer)]);
                client.allocator.in_flight.track(&ready, None, Resources { buffers, results, ..Resources::default() });
            }
            ready => {
                if ready.is_err() {
                    carrier.finish();
                }
                sources.iter().for_each(|source| source.land());
                buffer.mark_defined();
            }
        }
        Ok(buffer)
    }

    fn buffer(self, view: *mut sys::PJRT_Buffer) -> Arc<Buffer> {
        let storage = Storage::Arena(self.held);
        let MemorySpace { device, memory, .. } = self.site;
        Buffer::new(self.client.session, device.handle, memory, self.shape, view, storage)
    }
}

/// The event of a view that was just made; none if the engine has none for it.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// `view` must be alive.
unsafe fn ready_event(client: &Client, view: *mut sys::PJRT_Buffer) -> Result<Option<EngineEvent>, EngineError> {
    // SAFETY: the caller's promise; the event is ours.
    unsafe {
        let args =
            client.session.engine.call(sys::PJRT_Buffer_ReadyEvent_Args { buffer: view, ..Default::default() })?;
        Ok(EngineEvent::own(client.session.engine, args.event))
    }
}
