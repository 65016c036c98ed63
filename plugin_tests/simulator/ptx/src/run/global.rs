//! Global memory: what neighbouring lanes use side by side is one access.
//!
//! ```text
//!   lanes      0  1  2  3 | 4 | 5  6  7        three accesses in place of eight
//!   addresses  0  4  8 12 | 0 | 60 60 60       the last one only where lanes load
//! ```

use std::ops::Range;

use crate::{
    Memory,
    value::{Lanes, WARP},
};

/// The most bytes that one lane uses at once.
pub const MOST: usize = 32;

/// The bytes of all lanes, each from its number times its width on.
pub type Buffer = [u8; WARP * MOST];

/// Lanes of a mask that follow each other, as do their addresses by `stride`.
fn run(addresses: &Lanes, mask: u32, from: usize, stride: u64) -> Range<usize> {
    let mut end = from + 1;
    while end < WARP && mask >> end & 1 == 1 && addresses[end] == addresses[end - 1].wrapping_add(stride) {
        end += 1;
    }
    from..end
}

/// Loads `width` bytes for each lane of a mask.
///
/// # Errors
/// What the memory says.
pub fn load(
    memory: &mut dyn Memory,
    (addresses, mask): (&Lanes, u32),
    width: usize,
    into: &mut Buffer,
) -> Result<(), String> {
    let mut lane = 0;
    while lane < WARP {
        if mask >> lane & 1 == 0 {
            lane += 1;
            continue;
        }
        let beside = run(addresses, mask, lane, width as u64);
        let same = run(addresses, mask, lane, 0);
        memory.load(addresses[lane], &mut into[lane * width..beside.end * width])?;
        if same.len() > 1 {
            for other in same.start + 1..same.end {
                into.copy_within(lane * width..(lane + 1) * width, other * width);
            }
        }
        lane = beside.end.max(same.end);
    }
    Ok(())
}

/// Stores `width` bytes for each lane of a mask; where two lanes store to one place, the last one stays.
///
/// # Errors
/// What the memory says.
pub fn store(
    memory: &mut dyn Memory,
    (addresses, mask): (&Lanes, u32),
    width: usize,
    from: &Buffer,
) -> Result<(), String> {
    let mut lane = 0;
    while lane < WARP {
        if mask >> lane & 1 == 0 {
            lane += 1;
            continue;
        }
        let beside = run(addresses, mask, lane, width as u64);
        memory.store(addresses[lane], &from[lane * width..beside.end * width])?;
        lane = beside.end;
    }
    Ok(())
}

/// An element of each lane's bytes, which are `width`.
pub fn unpack(from: &Buffer, width: usize, offset: usize, bytes: u8, values: &mut Lanes) {
    match bytes {
        1 => unpack_of::<1>(from, width, offset, values),
        2 => unpack_of::<2>(from, width, offset, values),
        4 => unpack_of::<4>(from, width, offset, values),
        _ => unpack_of::<8>(from, width, offset, values),
    }
}

fn unpack_of<const N: usize>(from: &Buffer, width: usize, offset: usize, values: &mut Lanes) {
    for (part, value) in from.chunks_exact(width).zip(values) {
        let mut all = [0; 8];
        all[..N].copy_from_slice(&part[offset..offset + N]);
        *value = u64::from_le_bytes(all);
    }
}

/// Puts an element into each lane's bytes, which are `width`.
pub fn pack(into: &mut Buffer, width: usize, offset: usize, bytes: u8, values: &Lanes) {
    match bytes {
        1 => pack_of::<1>(into, width, offset, values),
        2 => pack_of::<2>(into, width, offset, values),
        4 => pack_of::<4>(into, width, offset, values),
        _ => pack_of::<8>(into, width, offset, values),
    }
}

fn pack_of<const N: usize>(into: &mut Buffer, width: usize, offset: usize, values: &Lanes) {
    for (part, value) in into.chunks_exact_mut(width).zip(values) {
        part[offset..offset + N].copy_from_slice(&value.to_le_bytes()[..N]);
    }
}
