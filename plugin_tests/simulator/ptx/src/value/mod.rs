//! What registers hold, and how it is computed with.
//!
//! ```text
//!   types   the types that qualifiers name
//!   float   half, bfloat16, single and double precision: conversions, flushing, limits
//!   round   sums, products, quotients and roots, rounded once and in any direction
//! ```

pub mod float;
pub mod round;
pub mod types;

/// The lanes of a warp.
pub const WARP: usize = 32;

/// One register of a warp: a value for each lane, in the lower bits, the others zero.
pub type Lanes = [u64; WARP];

/// What a register's bits are read as.
pub trait Bits: Copy {
    /// Reads the lower bits.
    fn of(bits: u64) -> Self;
    /// The bits, the unused ones zero.
    fn bits(self) -> u64;
}

macro_rules! bits {
    ($($unsigned:ty, $type:ty);*) => {$(
        impl Bits for $type {
            fn of(bits: u64) -> Self {
                bits as Self
            }
            fn bits(self) -> u64 {
                self as $unsigned as u64
            }
        }
    )*};
}

bits!(u8, u8; u8, i8; u16, u16; u16, i16; u32, u32; u32, i32; u64, u64; u64, i64);

impl Bits for f32 {
    fn of(bits: u64) -> Self {
        Self::from_bits(bits as u32)
    }
    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Bits for f64 {
    fn of(bits: u64) -> Self {
        Self::from_bits(bits)
    }
    fn bits(self) -> u64 {
        self.to_bits()
    }
}
