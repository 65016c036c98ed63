//! Where bytes live: the devices that allocate regions for an arena.

mod array;
pub mod cuda;
pub mod fake;
pub mod host;
mod pieces;
mod shift;
pub mod strided;

use std::fmt;

pub use crate::device::array::HostArray;

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
    /// Both ranges lie in regions of this device, and nothing else reads or writes them meanwhile.
    unsafe fn relocate(&self, from: Address, to: Address, bytes: Bytes) -> Result<()>;

    /// Returns the memory behind `bytes` from `from` on to the system while the addresses stay, as far as whole
    /// pages allow; what they hold afterwards is undefined. The result is how much was returned.
    ///
    /// # Errors
    /// The device's reason.
    ///
    /// # Safety
    /// The range lies in a region of this device, and nothing else reads or writes it meanwhile.
    unsafe fn discard(&self, from: Address, bytes: Bytes) -> Result<Bytes>;
}

/// A device that bytes can be brought to.
///
/// ```text
///  host arrays --upload--> | what the device does by itself, in order | --order--> a stream of the engine
///  other blocks --copy---> |   (host memory: nothing; it is done)     |
/// ```
pub trait Carrier: Mover {
    /// Whether this process reads and writes the device's memory by its addresses. Then all that is said here is done
    /// when a call returns.
    fn is_host(&self) -> bool;

    /// Copies an array, dense with the last dimension fastest, to `to`. On return the source may change; the bytes are
    /// there for work that comes after [`Self::order`].
    ///
    /// # Errors
    /// The device's reason; the contents of the destination are undefined then, and nothing writes to it any more.
    ///
    /// # Safety
    /// The dense array lies in one region of this device, apart from the source, and nothing else reads or writes it
    /// until the copy is there.
    unsafe fn upload(&self, from: HostArray<'_>, to: Address) -> Result<()>;

    /// Copies `bytes` from `from`, in a region of this or another device of the same kind, to `to`; the two do not
    /// overlap. The bytes are there for work that comes after [`Self::order`].
    ///
    /// # Errors
    /// As [`Self::upload`].
    ///
    /// # Safety
    /// Both ranges are allocated, the source's bytes are there, and until the copy is there nothing else writes them,
    /// or reads or writes the destination.
    unsafe fn copy(&self, from: Address, to: Address, bytes: Bytes) -> Result<()>;

    /// As [`Self::copy`]; the bytes are there on return, for everybody. Memory of the host has them there anyway.
    ///
    /// # Errors
    /// As [`Self::upload`].
    ///
    /// # Safety
    /// As [`Self::copy`], until this returns.
    unsafe fn copy_now(&self, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        // SAFETY: the contract is that of `copy`.
        unsafe { self.copy(from, to, bytes) }
    }

    /// Makes sure that there is memory behind `bytes` from `from` on, after some of it was returned with
    /// [`Mover::discard`]. Cheap where nothing was. Memory of the host comes by itself.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED with the device's reason, or with the numbers of the limit.
    fn populate(&self, _from: Address, _bytes: Bytes) -> Result<()> {
        Ok(())
    }

    /// Makes sure that `bytes` from `from` on can be read where they are: memory in files is where the disk reads it.
    ///
    /// # Errors
    /// DATA_LOSS with the disk's reason.
    fn check_readable(&self, _from: Address, _bytes: Bytes) -> Result<()> {
        Ok(())
    }

    /// Lets what is put on `stream`, a stream of the engine on this device, from here on wait for all that was uploaded
    /// and copied so far.
    ///
    /// # Errors
    /// The device's reason.
    ///
    /// # Safety
    /// `stream` is a live stream of this device.
    unsafe fn order(&self, stream: isize) -> Result<()>;

    /// Waits until all that was uploaded and copied so far is there, or never will be. For when something failed.
    fn finish(&self);
}

/// Memory that the engine takes for itself on a device, beside the arena: its programs' scratch.
pub trait ScratchPool: Send + Sync + fmt::Debug {
    /// What the pool holds of the device, in use or not.
    ///
    /// # Errors
    /// The device's reason.
    fn reserved(&self) -> Result<Bytes>;

    /// Returns to the device what no program needs any more, as far as it is known, down to `keep`; the result is what
    /// the pool holds after that.
    ///
    /// # Errors
    /// The device's reason.
    fn trim(&self, keep: Bytes) -> Result<Bytes>;

    /// What the pool holds and no program uses, as far as its users have freed it: [`Self::trim`] may bring some of it
    /// only after [`Self::synchronize`].
    ///
    /// # Errors
    /// The device's reason.
    fn unused(&self) -> Result<Bytes>;

    /// Waits for all that was put on the device so far: then the pool knows what is free.
    ///
    /// # Errors
    /// The device's reason.
    fn synchronize(&self) -> Result<()>;

    /// What the device has free, for anybody.
    ///
    /// # Errors
    /// The device's reason.
    fn free_on_device(&self) -> Result<Bytes>;
}
