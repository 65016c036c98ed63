//! What an array takes in a TPU's memory, where XLA lays it out in tiles of the vector registers: 8 sublanes by 128
//! lanes of 32 bits. Rows and columns that do not fill a tile are padded.
//!
//! ```text
//!   f32[10,200]   T(8,128)          16 rows x 256 columns are stored      16384 bytes, 8000 of them data
//!
//!          0        128       256
//!        0 +---------+---------+    a narrower type packs rows into the 32 bits: two of 16 bits, four of 8,
//!          |  tile   |  tile   |    eight of 4. T(8,128)(2,1) is a tile of 8 x 128 elements of 16 bits, whose
//!        8 +---------+---------+    rows lie two by two; in bytes it is half of T(8,128).
//!          | 2 rows  | padding |
//!       16 +---------+---------+
//! ```
//!
//! # The rule
//! With 32 / bits elements to a word ("pack"), an array whose dimensions lie as they are written, the last fastest:
//!
//! | rank | tile | source |
//! | --- | --- | --- |
//! | 2 and more | `T(r,128)`: the last dimension is padded to 128, the one before to `r` rows | XLA's `docs/tiled_layout.md` |
//! | | `r`: the rows there are, rounded up to a power of two, from pack to 8 | same ("small tile format"); one row as in HLO dumps of TPU v5e and v6e, such as `f32[1,6144]{1,0:T(1,128)}`, `bf16[1,6144]{1,0:T(2,128)(2,1)}`, `pred[1,1]{1,0:T(4,128)(4,1)}`; the document says `T(2,128)` for 32 bits |
//! | 1 | `T(n)`: padded to `n`, the length rounded up to a power of two, from 128 x pack to 1024 | dumps: `f32[4]{0:T(128)}`, `s32[301]{0:T(512)}`, `s32[2048]{0:T(1024)}`, `bf16[128]{0:T(256)(128)(2,1)}`, `bf16[6144]{0:T(1024)(128)(2,1)}`, `pred[1]{0:T(512)(128)(4,1)}` |
//! | 0 | `T(128 x pack)`: 512 bytes | dumps: `f32[]{:T(128)}`, `bf16[]{:T(256)}`, `pred[]{:T(512)}`, `s8[]{:T(512)}` |
//!
//! A 64-bit type counts as two arrays of 32 bits, since XLA's compiler for TPUs replaces it by a pair (its messages
//! call that the X64 rewriting), complex64 as two of f32. A predicate takes a byte.
//!
//! # How sure that is
//! - Certain: the padding of rank 2 and more for 32, 16 and 8 bits. The tests hold sizes that TPUs reported.
//! - Inferred: the upper bound of 1024 for one dimension of 8 bits and all of 4 bits but `T(8,128)(8,1)`, which one
//!   dump shows; 2 bits; that both halves of a 64-bit type are tiled alike; complex64.
//! - Not modelled: the order of dimensions, which XLA chooses by itself. A TPU holds `f32[16,8]` as `{0,1:T(8,128)}` in
//!   half the bytes of `{1,0:T(8,128)}`; [`smallest`] says how few bytes another order can take. Nor programs' own
//!   scratch, taller tiles (`T(16,128)(2,1)`, `T(32,128)(4,1)`: more bytes only where the rows do not fill them),
//!   alignment between buffers, and TPU v2 and v3, whose smallest tiles are larger (`f32[]{:T(256)}`, one row of bf16
//!   as `T(4,128)(2,1)`).

use std::fmt;

use crate::{
    error::{Error, Result},
    units::Bytes,
};

/// Columns of a tile: the lanes of a vector register.
const LANES: u32 = 128;
/// Rows of a full tile: the sublanes of a vector register.
const SUBLANES: u32 = 8;
/// The longest tile of an array of one dimension: a whole register.
const LONGEST: u32 = LANES * SUBLANES;
/// Bits of a lane.
const WORD: u32 = 32;

/// An element type, as far as it matters to its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// Bits of an element in one plane: 2, 4, 8, 16 or 32.
    bits: u32,
    /// Arrays that one array becomes: two for 64 bits.
    planes: u32,
}

impl Element {
    /// The type of `bits` bits, complex64 being one of 64; `None` for any other count than 2, 4, 8, 16, 32 and 64. TPUs
    /// have nothing wider: complex128 is refused there (jax issue 19769).
    pub const fn of_bits(bits: u32) -> Option<Self> {
        match bits {
            2 | 4 | 8 | 16 | 32 => Some(Self { bits, planes: 1 }),
            64 => Some(Self { bits: 32, planes: 2 }),
            _ => None,
        }
    }

    /// The type that XLA's notation of shapes calls `name`, such as `bf16` or `pred`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for any other name, and for types that a TPU does not have.
    pub fn named(name: &str) -> Result<Self> {
        let bits = match name {
            "s2" | "u2" => 2,
            "s4" | "u4" | "f4e2m1fn" => 4,
            "pred" | "s8" | "u8" | "f8e5m2" | "f8e4m3" | "f8e4m3fn" | "f8e4m3b11fnuz" | "f8e3m4" | "f8e5m2fnuz"
            | "f8e4m3fnuz" | "f8e8m0fnu" => 8,
            "s16" | "u16" | "f16" | "bf16" => 16,
            "s32" | "u32" | "f32" => 32,
            "s64" | "u64" | "f64" | "c64" => 64,
            "c128" => return Err(Error::invalid_argument("a TPU has no arrays of c128; allowed: c64 and narrower")),
            _ => {
                return Err(Error::invalid_argument(format!(
                    "`{}` is no element type of a TPU; allowed are XLA's names, such as pred, s32, u8, bf16, f32, f8e4m3fn, \
                     c64",
                    name.escape_debug()
                )));
            }
        };
        Self::of_bits(bits).ok_or_else(|| Error::internal(format!("{name} has {bits} bits, which no element has")))
    }

    /// Elements in a word, which is also how many rows a word spans.
    const fn pack(self) -> u32 {
        WORD / self.bits
    }
}

/// The tiles of a layout; prints as XLA prints them: `T(8,128)(2,1)`, with `2x ` before it for a pair of arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    element: Element,
    shape: Tile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tile {
    /// No dimension at all: one tile of one row's words.
    Scalar,
    /// So many elements.
    Line(u32),
    /// So many rows of 128 elements.
    Rows(u32),
}

impl fmt::Display for Tiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pack = self.element.pack();
        if self.element.planes > 1 {
            write!(f, "{}x ", self.element.planes)?;
        }
        match self.shape {
            Tile::Scalar => write!(f, "T({})", LANES * pack)?,
            Tile::Line(length) if pack == 1 => write!(f, "T({length})")?,
            Tile::Line(length) => write!(f, "T({length})({LANES})({pack},1)")?,
            Tile::Rows(rows) if pack == 1 => write!(f, "T({rows},{LANES})")?,
            Tile::Rows(rows) => write!(f, "T({rows},{LANES})({pack},1)")?,
        }
        // XLA marks elements that are narrower than a byte with their bits.
        if self.element.bits < 8 {
            write!(f, "E({})", self.element.bits)?;
        }
        Ok(())
    }
}

/// What an array takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes with padding.
    pub bytes: Bytes,
    /// Bytes of the elements alone, those narrower than a byte packed; never more than `bytes`.
    pub dense: Bytes,
    /// The tiles, for people.
    pub tiles: Tiles,
}

/// What an array of `dims` takes on a TPU when its dimensions lie in the order in which they are written, the last
/// fastest. Nothing for an array without elements. `None` where a dimension is negative or the bytes pass 2⁶⁴ - 1.
///
/// O(rank); allocates nothing. Source and limits of the rule: the module's documentation.
pub fn footprint(element: Element, dims: &[i64]) -> Option<Footprint> {
    match *dims {
        [.., rows, columns] => two_minor(element, dims, rows, columns),
        _ => one_minor(element, dims),
    }
}

/// The smallest footprint of the array in any order of its dimensions, and that order, the fastest first; of equal ones
/// the first that leaves the later dimensions the faster. It is a lower bound for whatever order XLA chooses under the
/// same rule of tiles. `None` as for [`footprint`].
///
/// O(rank²): only the two fastest dimensions are padded, so they alone decide.
pub fn smallest(element: Element, dims: &[i64]) -> Option<(Footprint, Vec<usize>)> {
    let descending = || (0..dims.len()).rev();
    if dims.len() < 2 {
        return Some((footprint(element, dims)?, descending().collect()));
    }
    let mut best: Option<(Footprint, usize, usize)> = None;
    for minor in descending() {
        for second in descending().filter(|&second| second != minor) {
            // An order that pads beyond 2⁶⁴ bytes is no reason to refuse one that does not.
            let Some(found) = two_minor(element, dims, dims[second], dims[minor]) else { continue };
            if best.is_none_or(|(smallest, ..)| found.bytes < smallest.bytes) {
                best = Some((found, minor, second));
            }
        }
    }
    let (found, minor, second) = best?;
    let rest = descending().filter(|&dim| dim != minor && dim != second);
    Some((found, [minor, second].into_iter().chain(rest).collect()))
}

/// Rank 2 and more: `rows` and `columns` are the two fastest of `dims`, in any position.
fn two_minor(element: Element, dims: &[i64], rows: i64, columns: i64) -> Option<Footprint> {
    let (rows, columns) = (u128::try_from(rows).ok()?, u128::try_from(columns).ok()?);
    let tile = power_of_two(rows, element.pack(), element.pack().max(SUBLANES));
    let elements = count(dims)?;
    // No padding where there is nothing to pad; both are factors of the count elsewhere.
    let others = elements.checked_div(rows.checked_mul(columns)?).unwrap_or(0);
    let padded = others.checked_mul(padded(rows, tile)?)?.checked_mul(padded(columns, LANES)?)?;
    found(element, elements, padded, Tile::Rows(tile))
}

/// Rank 1 and 0.
fn one_minor(element: Element, dims: &[i64]) -> Option<Footprint> {
    let elements = count(dims)?;
    let shortest = LANES * element.pack();
    match *dims {
        [] => found(element, elements, shortest.into(), Tile::Scalar),
        _ => {
            let tile = power_of_two(elements, shortest, shortest.max(LONGEST));
            found(element, elements, padded(elements, tile)?, Tile::Line(tile))
        }
    }
}

fn found(element: Element, elements: u128, padded: u128, shape: Tile) -> Option<Footprint> {
    let bytes = |elements: u128| {
        let bits = elements.checked_mul((element.bits * element.planes).into())?;
        u64::try_from(bits.div_ceil(8)).ok().map(Bytes::new)
    };
    Some(Footprint { bytes: bytes(padded)?, dense: bytes(elements)?, tiles: Tiles { element, shape } })
}

/// How many elements `dims` span. A zero counts whatever stands beside it.
fn count(dims: &[i64]) -> Option<u128> {
    if dims.iter().any(|&dim| dim < 0) {
        return None;
    }
    if dims.contains(&0) {
        return Some(0);
    }
    dims.iter().try_fold(1u128, |product, &dim| product.checked_mul(u128::try_from(dim).ok()?))
}

/// `length` rounded up to a power of two, at least `low`, at most `high`; both are powers of two.
fn power_of_two(length: u128, low: u32, high: u32) -> u32 {
    u32::try_from(length).map_or(high, |length| length.clamp(low, high).next_power_of_two())
}

fn padded(length: u128, tile: u32) -> Option<u128> {
    length.checked_next_multiple_of(tile.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(name: &str, dims: &[i64]) -> Footprint {
        footprint(Element::named(name).unwrap(), dims).unwrap()
    }

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// Sizes and layouts that TPUs printed. Where a report has another order of dimensions, they stand here in the
    /// order of the memory, which has the same tiles.
    #[test]
    fn sizes_that_tpus_reported() {
        let seen: &[(&str, &[i64], &str, u64)] = &[
            // XLA, docs/errors/error_0102.md.
            ("bf16", &[16, 1280, 40], "T(8,128)(2,1)", 5_242_880),
            ("bf16", &[16, 40, 1280], "T(8,128)(2,1)", 1_638_400),
            // Google's guide to out-of-memory errors on Cloud TPU: 14.00G, 2.62G.
            ("s32", &[29_360_128, 10], "T(8,128)", 14 * GIB),
            // tensorflow issue 30803: 8.00G; flowpm issue 27: 32.00G.
            ("f32", &[256, 512, 128, 2], "T(8,128)", 8 * GIB),
            ("s32", &[8_388_608, 8, 4], "T(8,128)", 32 * GIB),
            // A ResNet on a TPU v3: f32[4,128,128,9,18]{4,3,0,2,1}, bf16[4,512,512,64]{3,0,2,1},
            // f32[4,256,256,64]{3,0,2,1}.
            ("f32", &[128, 128, 4, 9, 18], "T(8,128)", 512 * MIB),
            ("bf16", &[512, 512, 4, 64], "T(4,128)(2,1)", 256 * MIB),
            ("f32", &[256, 256, 4, 64], "T(4,128)", 128 * MIB),
            // RESOURCE_EXHAUSTED: Allocation (size=...) would exceed memory.
            ("u8", &[327_680, 327_680], "T(8,128)(4,1)", 107_374_182_400),
            ("f32", &[64_768, 151_936], "T(8,128)", 39_362_363_392),
            ("bf16", &[12, 524_288, 3072], "T(8,128)(2,1)", 38_654_705_664),
            // JAX on a TPU v5e; the three arguments make 6656 bytes: f32[16,8]{0,1}, f32[8,4]{0,1}, f32[4].
            ("f32", &[8, 16], "T(8,128)", 4096),
            ("f32", &[4, 8], "T(4,128)", 2048),
            ("f32", &[4], "T(128)", 512),
        ];
        for &(name, dims, tiles, bytes) in seen {
            let found = of(name, dims);
            assert_eq!((found.bytes.get(), found.tiles.to_string().as_str()), (bytes, tiles), "{name}{dims:?}");
        }
    }

    /// Layouts without a size, from dumps of HLO; XLA's own tests hold many of them.
    #[test]
    fn tiles_that_dumps_show() {
        let seen: &[(&str, &[i64], &str)] = &[
            ("f32", &[], "T(128)"),
            ("s32", &[], "T(128)"),
            ("bf16", &[], "T(256)"),
            ("u16", &[], "T(256)"),
            ("pred", &[], "T(512)"),
            ("s8", &[], "T(512)"),
            ("u32", &[10], "T(128)"),
            ("u32", &[256], "T(256)"),
            ("s32", &[301], "T(512)"),
            ("s32", &[2048], "T(1024)"),
            ("bf16", &[4], "T(256)(128)(2,1)"),
            ("bf16", &[128], "T(256)(128)(2,1)"),
            ("bf16", &[4096], "T(1024)(128)(2,1)"),
            ("bf16", &[786_432], "T(1024)(128)(2,1)"),
            ("pred", &[1], "T(512)(128)(4,1)"),
            ("f32", &[1, 6144], "T(1,128)"),
            ("s32", &[1, 1, 128], "T(1,128)"),
            ("u32", &[2, 256], "T(2,128)"),
            ("bf16", &[1, 6144], "T(2,128)(2,1)"),
            ("bf16", &[2, 8192], "T(2,128)(2,1)"),
            ("bf16", &[7, 7, 3, 64], "T(4,128)(2,1)"),
            ("pred", &[1, 1], "T(4,128)(4,1)"),
            ("pred", &[32, 6144], "T(8,128)(4,1)"),
            ("s8", &[56, 4096, 4096], "T(8,128)(4,1)"),
            ("f8e4m3fn", &[7168, 2048], "T(8,128)(4,1)"),
            ("s4", &[8, 1, 32_768, 256], "T(8,128)(8,1)E(4)"),
        ];
        for &(name, dims, tiles) in seen {
            assert_eq!(of(name, dims).tiles.to_string(), tiles, "{name}{dims:?}");
        }
    }

    #[test]
    fn what_the_rule_makes_of_the_other_types() {
        assert_eq!(of("f32", &[10, 200]).bytes.get(), 16 * KIB);
        assert_eq!(of("f32", &[10, 200]).dense.get(), 8000);
        for name in ["s64", "f64", "c64"] {
            let (pair, half) = (of(name, &[3, 5]), of("f32", &[3, 5]));
            assert_eq!((pair.bytes.get(), pair.dense.get()), (2 * half.bytes.get(), 3 * 5 * 8));
            assert_eq!(pair.tiles.to_string(), "2x T(4,128)");
        }
        assert_eq!(of("u4", &[3, 5]).bytes.get(), 8 * 128 / 2);
        assert_eq!(of("u4", &[3, 5]).dense.get(), 8, "15 halves of a byte");
        assert_eq!(of("s2", &[3, 5]).tiles.to_string(), "T(16,128)(16,1)E(2)");
        for name in ["pred", "s4", "bf16", "f32"] {
            assert_eq!(of(name, &[]).bytes.get(), 512, "{name}: a row of words");
        }
    }

    #[test]
    fn no_elements_take_nothing() {
        for dims in [&[0][..], &[0, 5], &[5, 0], &[i64::MAX, i64::MAX, i64::MAX, 0], &[0, 3, 3]] {
            let (found, (least, _)) = (of("f32", dims), smallest(Element::named("f32").unwrap(), dims).unwrap());
            assert_eq!((found.bytes, found.dense, least.bytes), (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO), "{dims:?}");
        }
    }

    #[test]
    fn what_has_no_footprint() {
        let byte = Element::named("s8").unwrap();
        for dims in [&[-1][..], &[3, -1], &[-1, 0], &[i64::MAX, i64::MAX], &[i64::MAX; 40], &[i64::MAX, 4, 2]] {
            assert_eq!(footprint(byte, dims), None, "{dims:?}");
            assert_eq!(smallest(byte, dims), None, "{dims:?}");
        }
        // One byte of 2⁶³ - 1 elements is 2⁶³ with padding; 128 lanes for each are too many.
        assert_eq!(footprint(byte, &[i64::MAX]).unwrap().bytes.get(), 1 << 63);
        assert_eq!(footprint(byte, &[i64::MAX, 1]), None);
        assert_eq!(smallest(byte, &[1 << 60, 1]).unwrap().0.bytes.get(), 1 << 62);
        assert_eq!(Element::of_bits(128), None);
        assert!(Element::named("c128").unwrap_err().message.contains("c128"));
        assert!(Element::named("float32").unwrap_err().message.contains("`float32`"));
    }

    #[test]
    fn the_order_that_takes_least() {
        let least = |name, dims: &[i64]| smallest(Element::named(name).unwrap(), dims).unwrap();
        for (dims, order, bytes) in
            [(&[16, 8][..], &[0, 1][..], 4096), (&[8, 4], &[0, 1], 2048), (&[2048, 2048], &[1, 0], 16 * MIB)]
        {
            let (found, seen) = least("f32", dims);
            assert_eq!((seen.as_slice(), found.bytes.get()), (order, bytes), "{dims:?}");
        }
        let (found, order) = least("bf16", &[16, 1280, 40]);
        assert_eq!((order.as_slice(), found.bytes.get()), (&[1, 2, 0][..], 1_638_400));
        assert_eq!(least("f32", &[7]).1, [0]);
        assert_eq!(least("f32", &[]).1, [0usize; 0]);
    }

    proptest! {
        #[test]
        fn padding_is_whole_tiles_and_no_order_beats_the_smallest(
            bits in prop::sample::select(vec![2u32, 4, 8, 16, 32, 64]),
            dims in prop::collection::vec(0i64..300, 0..5),
            swap in any::<prop::sample::Index>(),
        ) {
            let element = Element::of_bits(bits).unwrap();
            let found = footprint(element, &dims).unwrap();
            let (least, order) = smallest(element, &dims).unwrap();
            prop_assert!(found.dense <= least.bytes && least.bytes <= found.bytes && found.dense == least.dense);
            prop_assert!(found.bytes.is_multiple_of(Bytes::new(512)), "whole rows of words: {}", found.bytes);
            let elements: i64 = dims.iter().product();
            prop_assert_eq!(found.dense.get(), (elements as u64 * u64::from(bits)).div_ceil(8));
            // The order is a permutation, and laid out in it the array takes what was said.
            let mut turned: Vec<i64> = order.iter().rev().map(|&dim| dims[dim]).collect();
            prop_assert_eq!(footprint(element, &turned).unwrap().bytes, least.bytes);
            if !turned.is_empty() {
                let last = turned.len() - 1;
                turned.swap(swap.index(last + 1), last);
                prop_assert!(footprint(element, &turned).unwrap().bytes >= least.bytes);
            }
        }

        #[test]
        fn nothing_panics(bits: u32, dims: Vec<i64>) {
            if let Some(element) = Element::of_bits(bits % 65) {
                let (found, least) = (footprint(element, &dims), smallest(element, &dims));
                prop_assert!(found.is_none() || least.is_some());
            }
        }
    }
}
