//! Where bytes live: the devices that give regions to an arena.

pub mod cuda;
pub mod fake;
pub mod host;
mod pieces;
pub mod strided;

use std::fmt;

use crate::{
    error::Result,
    memory::compaction::Costs,
    units::{Address, Bytes},
};

/// A device that can move bytes and forget them.
pub trait Mover: Send + Sync + fmt::Debug {
    /// What moving costs.
    fn costs(&self) -> Costs;

    /// Moves `bytes` from `from` to `to`; the two may overlap. What the source holds afterwards is undefined.
    ///
    /// # Errors
    /// The device's reason; the source is whole then.
    ///
    /// # Safety
    /// Both ranges lie in regions of this device, and nobody reads or writes them meanwhile.
    unsafe fn relocate(&self, from: Address, to: Address, bytes: Bytes) -> Result<()>;

    /// Gives the memory behind `bytes` from `from` on back to the system while the addresses stay, as far as whole
    /// pages allow; what they hold afterwards is undefined. Returns how much went back.
    ///
    /// # Errors
    /// The device's reason.
    ///
    /// # Safety
    /// The range lies in a region of this device, and nobody reads or writes it meanwhile.
    unsafe fn discard(&self, from: Address, bytes: Bytes) -> Result<Bytes>;
}
