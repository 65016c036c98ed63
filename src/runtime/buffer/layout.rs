//! How arrays are laid out: the engine is asked once for each shape.

use crate::{
    engine::{EngineBuffer, EngineError, Live, Outcome},
    runtime::{
        buffer::Buffer,
        shape::{Layout, Shape},
    },
    sys::{self, slice},
};

/// How the array is laid out. The engine is asked once for all arrays of the shape.
///
/// # Errors
/// As [`Buffer::hold`], or the engine's.
pub fn layout(buffer: &Buffer) -> Outcome<&Layout> {
    buffer.shape.layout.get_or_try_init(|| ask(buffer))
}

/// Asks the engine how the array is laid out.
fn ask(buffer: &Buffer) -> Outcome<Layout> {
    let hold = buffer.hold()?;
    Ok(layout_of(hold.live())?)
}

/// How the array in a buffer of the engine is laid out.
///
/// # Errors
/// The engine's.
pub fn layout_of(buffer: Live<'_, sys::PJRT_Buffer>) -> Result<Layout, EngineError> {
    let answer = buffer.ask::<sys::PJRT_Buffer_GetMemoryLayout_Args>()?;
    // SAFETY: the engines give a layout of the tiled kind; its arrays live as long as the buffer, and their lengths are
    // as the engine says.
    unsafe {
        let tiled = answer.layout.__bindgen_anon_1.tiled;
        let tile_dim_sizes = slice(tiled.tile_dim_sizes, tiled.num_tiles).to_vec();
        Ok(Layout {
            minor_to_major: slice(tiled.minor_to_major, tiled.minor_to_major_size).to_vec(),
            tile_dims: slice(tiled.tile_dims, tile_dim_sizes.iter().sum()).to_vec(),
            tile_dim_sizes,
        })
    }
}

/// Notes how a result of the engine is laid out, if that is not known yet. An engine that does not say uses the
/// default layout. `output` holds an array of the shape.
pub fn note_layout(output: &EngineBuffer, shape: &Shape) {
    if shape.layout.get().is_none()
        && let Ok(layout) = output.live().and_then(layout_of)
    {
        // Another thread may have been first; there is one answer.
        _ = shape.layout.set(layout);
    }
}

impl Layout {
    /// The layout as the C API shows it; the arrays live as long as `self`.
    pub fn as_c(&self) -> sys::PJRT_Buffer_MemoryLayout {
        let tiled = sys::PJRT_Buffer_MemoryLayout_Tiled {
            struct_size: size_of::<sys::PJRT_Buffer_MemoryLayout_Tiled>(),
            minor_to_major: self.minor_to_major.as_ptr(),
            minor_to_major_size: self.minor_to_major.len(),
            tile_dims: self.tile_dims.as_ptr(),
            tile_dim_sizes: self.tile_dim_sizes.as_ptr(),
            num_tiles: self.tile_dim_sizes.len(),
            ..Default::default()
        };
        let mut layout = sys::PJRT_Buffer_MemoryLayout {
            struct_size: size_of::<sys::PJRT_Buffer_MemoryLayout>(),
            type_: sys::PJRT_Buffer_MemoryLayout_Type_Tiled,
            ..Default::default()
        };
        layout.__bindgen_anon_1.tiled = tiled;
        layout
    }
}
