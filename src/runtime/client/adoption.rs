//! Buffers that the engine made, wrapped: what and where they are, and where their memory is counted.
//!
//! ```text
//!  the engine's memory     counted in `engine_bytes`, and where it has a limit (`pinned_host.rs`) as part of that;
//!                          admitted before the engine was asked, except results that could not be foreseen
//!  an outsider's memory    counted in `foreign_bytes`
//! ```

use std::sync::Arc;

use crate::{
    engine::{EngineBuffer, EngineError, Outcome, Raw},
    runtime::{
        allocator::admission::Admission,
        buffer::{
            Buffer, Place,
            storage::{Access, Counted, Foreign, Storage},
        },
        client::Client,
        shape::Shape,
    },
    sys,
};

impl Client {
    /// Wraps a buffer that the engine made in memory of its own.
    ///
    /// # Errors
    /// The engine's, if it cannot say what the buffer is.
    pub fn adopt(&self, buffer: EngineBuffer) -> Outcome<Arc<Buffer>> {
        let described = describe(&buffer)?;
        Ok(self.adopt_unadmitted(buffer, described))
    }

    /// As [`Self::adopt`], of a result of a program, which is the `expected` one if the engine cannot say what it is:
    /// the program may write it at this moment, so it must be wrapped. It lies in the memory that the program binds it
    /// to, whatever the engine says. A result without memory counts as nothing.
    pub fn adopt_result(
        &self,
        buffer: EngineBuffer,
        expected: (&Arc<Shape>, Place),
        bound: Option<Raw<sys::PJRT_Memory>>,
        has_memory: bool,
    ) -> Arc<Buffer> {
        let (shape, (device, memory)) = describe(&buffer).unwrap_or_else(|error| {
            log::warn!("the engine cannot say what a result is, so it is what the program says: {}", error.message());
            (Arc::clone(expected.0), expected.1)
        });
        let memory = bound.unwrap_or(memory);
        if !has_memory {
            return self.wrap_empty(buffer, (shape, (device, memory)));
        }
        self.adopt_unadmitted(buffer, (shape, (device, memory)))
    }

    /// Wraps a buffer that was made without an admission.
    fn adopt_unadmitted(&self, buffer: EngineBuffer, (shape, place): Described) -> Arc<Buffer> {
        let charge = self.pinned(place.1.0).and_then(|(_, pinned)| pinned.charge_made(shape.size));
        let admission = charge.map_or(Admission::Unlimited, Admission::Pinned);
        self.count_and_wrap(buffer, (shape, place), admission)
    }

    /// As [`Self::adopt`], of a buffer that was admitted before it was made.
    ///
    /// # Errors
    /// As [`Self::adopt`].
    pub fn adopt_admitted(&self, buffer: EngineBuffer, admission: Admission<'_>) -> Outcome<Arc<Buffer>> {
        let described = describe(&buffer)?;
        Ok(self.count_and_wrap(buffer, described, admission))
    }

    fn count_and_wrap(&self, buffer: EngineBuffer, described: Described, admission: Admission<'_>) -> Arc<Buffer> {
        let (shape, (device, memory)) = &described;
        let counted = admission.count(self.engine_bytes(device.0, memory.0), shape.size);
        Self::wrap(buffer, described, counted)
    }

    /// As [`Self::adopt`], of a buffer without memory: one that holds an error, or has yet to get memory.
    ///
    /// # Errors
    /// As [`Self::adopt`].
    pub fn adopt_empty(&self, buffer: EngineBuffer) -> Outcome<Arc<Buffer>> {
        let described = describe(&buffer)?;
        Ok(self.wrap_empty(buffer, described))
    }

    fn wrap_empty(&self, buffer: EngineBuffer, (shape, (device, memory)): Described) -> Arc<Buffer> {
        let nothing = Counted::new(self.engine_bytes(device.0, memory.0), 0);
        Self::wrap(buffer, (shape, (device, memory)), nothing)
    }

    /// As [`Self::adopt`], of a buffer whose memory is `counted` already.
    ///
    /// # Errors
    /// As [`Self::adopt`].
    pub fn adopt_counted(&self, buffer: EngineBuffer, counted: Counted) -> Outcome<Arc<Buffer>> {
        let described = describe(&buffer)?;
        Ok(Self::wrap(buffer, described, counted))
    }

    fn wrap(buffer: EngineBuffer, (shape, place): Described, counted: Counted) -> Arc<Buffer> {
        Buffer::new(buffer, place, shape, Storage::Engine(counted))
    }

    /// Wraps a buffer that the engine made over memory of an outsider, which programs may use as `access` says.
    /// `dense_at` is the array's address, if that is known: see [`crate::runtime::buffer::storage::Foreign`].
    ///
    /// # Errors
    /// As [`Self::adopt`].
    ///
    /// # Safety
    /// This process must be able to read the array at `dense_at`.
    pub unsafe fn adopt_foreign(
        &self,
        buffer: EngineBuffer,
        access: Access,
        dense_at: Option<usize>,
    ) -> Outcome<Arc<Buffer>> {
        let (shape, place) = describe(&buffer)?;
        let foreign = Foreign::new(dense_at, self.foreign_bytes(place.0.0), shape.size);
        Ok(Buffer::foreign(buffer, place, shape, access, foreign))
    }
}

/// What a buffer is, and the device and the memory that it lies in.
type Described = (Arc<Shape>, Place);

/// What a buffer of the engine is and where.
///
/// # Errors
/// The engine's.
fn describe(buffer: &EngineBuffer) -> Result<Described, EngineError> {
    let buffer = buffer.live()?;
    let kind = buffer.ask::<sys::PJRT_Buffer_ElementType_Args>()?.type_;
    let dims = buffer.list::<sys::PJRT_Buffer_Dimensions_Args>()?;
    let size = buffer.ask::<sys::PJRT_Buffer_OnDeviceSizeInBytes_Args>()?.on_device_size_in_bytes;
    let device = buffer.ask::<sys::PJRT_Buffer_Device_Args>()?.device;
    let memory = buffer.ask::<sys::PJRT_Buffer_Memory_Args>();
    let place = (Raw(device), memory.map_or(Raw::NULL, |answer| Raw(answer.memory)));
    Ok((Arc::new(Shape::new(kind, dims, size)), place))
}
