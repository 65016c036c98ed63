//! Buffers that the engine made, wrapped: what and where they are, and where their memory is counted.
//!
//! ```text
//!  the engine's memory     counted in `engine_bytes`, and where it has a limit (`pinned_host.rs`) as part of that;
//!                          admitted before the engine was asked, except results that could not be foreseen
//!  an outsider's memory    counted in `foreign_bytes`
//! ```

use std::{ptr, sync::Arc};

use crate::{
    engine::{EngineError, Outcome, Raw, session::Session, views},
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
    /// The engine's, if it cannot say what the buffer is; the handle is destroyed then.
    ///
    /// # Safety
    /// `handle` must be a live buffer of the client's engine without another owner.
    pub unsafe fn adopt(&self, handle: *mut sys::PJRT_Buffer) -> Outcome<Arc<Buffer>> {
        // SAFETY: the handle is a live buffer of this client without another owner, as this function asks.
        let described = unsafe { describe(self.session, handle)? };
        Ok(self.unforeseen(handle, described))
    }

    /// As [`Self::adopt`], of a result of a program, which is the `expected` one if the engine cannot say what it is:
    /// the program may write it at this moment, so it must be wrapped. It lies in the memory that the program binds
    /// it to, whatever the engine says. A result without memory counts as nothing.
    ///
    /// # Safety
    /// As [`Self::adopt`].
    pub unsafe fn adopt_result(
        &self,
        handle: *mut sys::PJRT_Buffer,
        expected: (&Arc<Shape>, Place),
        bound: Option<Raw<sys::PJRT_Memory>>,
        has_memory: bool,
    ) -> Arc<Buffer> {
        // SAFETY: the handle is a live buffer of this client without another owner, as this function asks.
        let (shape, (device, memory)) = unsafe { look(self.session, handle) }.unwrap_or_else(|error| {
            log::warn!("the engine cannot say what a result is, so it is what the program says: {}", error.message());
            (Arc::clone(expected.0), expected.1)
        });
        let memory = bound.unwrap_or(memory);
        if !has_memory {
            let nothing = Counted::new(self.engine_bytes(device.0, memory.0), 0);
            return Buffer::new(self.session, device, memory, shape, handle, Storage::Engine(nothing));
        }
        self.unforeseen(handle, (shape, (device, memory)))
    }

    /// Wraps a buffer that was made without an admission.
    fn unforeseen(&self, handle: *mut sys::PJRT_Buffer, (shape, place): (Arc<Shape>, Place)) -> Arc<Buffer> {
        let charge = self.pinned(place.1.0).and_then(|(_, pinned)| pinned.charge_made(shape.size));
        let admission = charge.map_or(Admission::Unlimited, Admission::Pinned);
        self.admitted(handle, (shape, place), admission)
    }

    /// As [`Self::adopt`], of a buffer that was admitted before it was made.
    ///
    /// # Errors
    /// As [`Self::adopt`].
    ///
    /// # Safety
    /// As [`Self::adopt`].
    pub unsafe fn adopt_admitted(
        &self,
        handle: *mut sys::PJRT_Buffer,
        admission: Admission<'_>,
    ) -> Outcome<Arc<Buffer>> {
        // SAFETY: the handle is a live buffer of this client without another owner, as this function asks.
        let described = unsafe { describe(self.session, handle)? };
        Ok(self.admitted(handle, described, admission))
    }

    fn admitted(
        &self,
        handle: *mut sys::PJRT_Buffer,
        (shape, (device, memory)): (Arc<Shape>, Place),
        admission: Admission<'_>,
    ) -> Arc<Buffer> {
        let counted = admission.count(self.engine_bytes(device.0, memory.0), shape.size);
        Buffer::new(self.session, device, memory, shape, handle, Storage::Engine(counted))
    }

    /// As [`Self::adopt`], of a buffer whose memory is `counted` already.
    ///
    /// # Errors
    /// As [`Self::adopt`].
    ///
    /// # Safety
    /// As [`Self::adopt`].
    pub unsafe fn adopt_counted(&self, handle: *mut sys::PJRT_Buffer, counted: Counted) -> Outcome<Arc<Buffer>> {
        // SAFETY: the handle is a live buffer of this client without another owner, as this function asks.
        let (shape, (device, memory)) = unsafe { describe(self.session, handle)? };
        Ok(Buffer::new(self.session, device, memory, shape, handle, Storage::Engine(counted)))
    }

    /// Wraps a buffer that the engine made over memory of an outsider, which programs may use as `access` says.
    /// `dense_at` is the array's address, if that is known: see [`crate::runtime::buffer::storage::Foreign`].
    ///
    /// # Errors
    /// As [`Self::adopt`].
    ///
    /// # Safety
    /// As [`Self::adopt`]; this process must be able to read the array at `dense_at`.
    pub unsafe fn adopt_foreign(
        &self,
        handle: *mut sys::PJRT_Buffer,
        access: Access,
        dense_at: Option<usize>,
    ) -> Outcome<Arc<Buffer>> {
        // SAFETY: the handle is a live buffer of this client without another owner, as this function asks.
        let (shape, place) = unsafe { describe(self.session, handle)? };
        let foreign = Foreign::new(dense_at, self.foreign_bytes(place.0.0), shape.size);
        Ok(Buffer::foreign(self.session, place, shape, handle, access, foreign))
    }
}

/// What a buffer of the engine is and where.
///
/// # Errors
/// The engine's; the handle is destroyed then.
///
/// # Safety
/// `handle` must be alive, without another owner.
unsafe fn describe(session: &Session, handle: *mut sys::PJRT_Buffer) -> Result<(Arc<Shape>, Place), EngineError> {
    // SAFETY: the handle is alive and has no other owner, as this function asks: it is destroyed once.
    unsafe { look(session, handle).inspect_err(|_| views::destroy(session.engine, handle)) }
}

/// As [`describe`], but the handle is never destroyed.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// `handle` must be alive.
unsafe fn look(session: &Session, handle: *mut sys::PJRT_Buffer) -> Result<(Arc<Shape>, Place), EngineError> {
    let engine = session.engine;
    // SAFETY: the handle is alive, as this function asks, and so long live the dimensions, whose number the engine
    // gives.
    unsafe {
        let kind = engine.call(sys::PJRT_Buffer_ElementType_Args { buffer: handle, ..Default::default() })?;
        let dims = engine.call(sys::PJRT_Buffer_Dimensions_Args { buffer: handle, ..Default::default() })?;
        let size = engine.call(sys::PJRT_Buffer_OnDeviceSizeInBytes_Args { buffer: handle, ..Default::default() })?;
        let dims = crate::sys::slice(dims.dims, dims.num_dims);
        let shape = Arc::new(Shape::new(kind.type_, dims, size.on_device_size_in_bytes));
        Ok((shape, place(session, handle)?))
    }
}

/// The device and the memory of a buffer of the engine.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// `handle` must be alive.
unsafe fn place(session: &Session, handle: *mut sys::PJRT_Buffer) -> Result<Place, EngineError> {
    // SAFETY: the handle is alive, as this function asks.
    unsafe {
        let device = session.engine.call(sys::PJRT_Buffer_Device_Args { buffer: handle, ..Default::default() })?;
        let memory = session.engine.call(sys::PJRT_Buffer_Memory_Args { buffer: handle, ..Default::default() });
        Ok((Raw(device.device), Raw(memory.map_or(ptr::null_mut(), |m| m.memory))))
    }
}
