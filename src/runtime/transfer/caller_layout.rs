//! A caller's `PJRT_Buffer_MemoryLayout`, read once.

use crate::sys::{self, slice};

/// What a caller asks for.
pub enum CallerLayout<'a> {
    /// NULL: the default layout.
    Default,
    /// An order of the dimensions.
    Tiled {
        /// Dimension numbers, the fastest-varying first.
        minor_to_major: &'a [i64],
        /// How many tiles there are.
        tiles: usize,
    },
    /// Another kind of layout: strides.
    Other,
}

impl<'a> CallerLayout<'a> {
    /// The layout that the caller passed.
    ///
    /// # Safety
    /// `layout` must be NULL or valid for `'a`.
    pub unsafe fn read(layout: *const sys::PJRT_Buffer_MemoryLayout) -> Self {
        // SAFETY: the layout is NULL or valid, as this function asks; its type says which field of the union is set,
        // and the array there has the size that it says.
        unsafe {
            match layout.as_ref() {
                None => Self::Default,
                Some(layout) if layout.type_ == sys::PJRT_Buffer_MemoryLayout_Type_Tiled => {
                    let tiled = layout.__bindgen_anon_1.tiled;
                    let minor_to_major = slice(tiled.minor_to_major, tiled.minor_to_major_size);
                    Self::Tiled { minor_to_major, tiles: tiled.num_tiles }
                }
                Some(_) => Self::Other,
            }
        }
    }

    /// Whether it is the default one: dense, the last dimension fastest, no tiles.
    pub fn is_default(&self) -> bool {
        match self {
            Self::Default => true,
            Self::Tiled { minor_to_major: order, tiles } => {
                *tiles == 0 && order.iter().rev().copied().eq(0..order.len() as i64)
            }
            Self::Other => false,
        }
    }
}
