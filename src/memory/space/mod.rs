//! The free-space index: which parts of the regions are taken, and where the next block goes.
//!
//! ```text
//!  region 0                                                      region 1
//!  |  live   |hole|  live  | retired |        hole        |      |   live   |         hole         |
//!   node 1 <-> 4 <-> 2   <->  3     <->  5                        node 6 <-> 7     neighbours by address
//!              |                         |                                   |
//!  bins:  [..]-4                    [..]-5-------------------------------[..]-7    holes by size
//! ```
//!
//! Everything lies outside of the memory it describes: one node of at most 32 bytes per block or hole and no table
//! per granule, so that a pool of 100 GiB with 10,000 blocks costs less than 1 MiB.
//!
//! *Placement* is best fit by (size, region, address) among the first 16 holes of the request's own bin, then of the
//! next non-empty bin, then in the rest of the own bin. On recorded traces this needs no more memory than exact best
//! fit, at a bounded price. A hole is always split; a rule such as XLA's (`BFCAllocator`: split only when
//! twice the request or 128 MiB larger) costs 2.8 points of capacity on the mean of the same traces.
//!
//! *Coalescing* is immediate: two holes never touch. Neighbours never cross a region's edge.
//!
//! Complexity: `allocate`, `free` and `retire` are O(1), except that an allocation which finds no larger hole looks
//! through the whole own bin before it gives up. Pinned spans are kept in order besides (`barriers.rs`), O(log pinned),
//! so that a block about to be pinned finds its place without a look at all spans (`around.rs`), and the
//! size of the largest hole is kept for statistics (`largest.rs`).

pub(super) mod around;
pub(super) mod barriers;
pub(super) mod bins;
pub(super) mod index;
mod largest;
pub(super) mod moves;
pub(super) mod node;
#[cfg(test)]
mod tests;
