//! The machine's own memory: anonymous mappings.
//!
//! ```text
//!  mapped:    |   head   |page|      region, aligned to 2 MiB      |page| tail |
//!             unmapped at once                                        unmapped at once
//! ```
//!
//! The pages beside a region are its margins: mapped, never used. The engine's vectorised loops load a few bytes
//! outside of an array and drop them (seen: one element before the first one, in a convolution of XLA of November
//! 2025). Malloc's memory always has neighbours; at the end of a mapping such a load would end the process.
//!
//! A region is a promise, not memory (`MAP_NORESERVE`): the kernel gives a page at its first use, and takes it back
//! when the region is released. Regions of 2 MiB and more start at a multiple of 2 MiB, where huge pages can serve them
//! if the administrator wants them; they ask for huge pages where the user says so (`huge`).
//!
//! What is written where: `mapping` owns pages; `carrier` brings arrays in; `mover` moves blocks within regions and
//! gives their pages back, by copying or by `exchange`; `huge` asks for huge pages; `cuts` keeps the book of the
//! mappings that exchanges leave; `folder` has memory in files; `counted` binds regions to a
//! budget that other processes share; `capacity` says how much memory there is, `mappable` and `control_group` what the
//! system's limits let the process have of it.

mod backing;
mod capacity;
mod carrier;
mod control_group;
mod counted;
mod cuts;
mod exchange;
mod exchanges;
mod folder;
mod huge;
mod mappable;
mod mapping;
mod mover;
mod pages;
mod process;
#[cfg(test)]
mod tests;

pub use crate::device::host::backing::HostBacking;
pub use crate::device::host::capacity::capacity;
pub use crate::device::host::carrier::HostMemory;
pub use crate::device::host::control_group::ControlGroup;
pub use crate::device::host::counted::CountedBacking;
pub use crate::device::host::folder::FolderBacking;
pub use crate::device::host::huge::HugePages;
pub use crate::device::host::huge::huge_pages;
pub use crate::device::host::mappable::Mappable;
pub use crate::device::host::process::resident;
pub use crate::device::host::process::share_malloc_arenas;
pub use crate::device::host::process::trim_malloc;
