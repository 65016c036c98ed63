//! Bringing arrays into the host's memory: copies, done when they return.

use std::ptr;

use crate::{
    device::{Carrier, HostArray, Mover, host::backing::HostBacking, strided},
    error::Result,
    units::{Address, Bytes},
};

/// A device whose memory this process reads and writes by its addresses.
pub trait HostMemory: Mover {}

impl HostMemory for HostBacking {}

impl<T: HostMemory> Carrier for T {
    fn is_host(&self) -> bool {
        true
    }

    unsafe fn upload(&self, from: HostArray<'_>, to: Address) -> Result<()> {
        let to = ptr::with_exposed_provenance_mut(to.get() as usize);
        // SAFETY: by the contract the dense array at `to` lies in one region, which is memory of this process, apart
        // from the source, and is this copy's alone.
        unsafe { strided::copy_to_dense(from, to) };
        Ok(())
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        let from = ptr::with_exposed_provenance(from.get() as usize);
        let to = ptr::with_exposed_provenance_mut(to.get() as usize);
        // SAFETY: by the contract both ranges lie in live regions, which are memory of this process, do not overlap,
        // and are neither written nor, the destination, read by others.
        unsafe { strided::copy(from, to, bytes.get() as usize) };
        Ok(())
    }

    unsafe fn order(&self, _: isize) -> Result<()> {
        Ok(())
    }

    fn finish(&self) {}
}
