//! Bringing arrays into the host's memory: copies, done when they return.

use std::ptr;

use crate::{
    device::{Carrier, HostArray, host::HostBacking, strided},
    error::Result,
    units::{Address, Bytes},
};

impl Carrier for HostBacking {
    fn is_host(&self) -> bool {
        true
    }

    unsafe fn upload(&self, from: HostArray<'_>, to: Address) -> Result<()> {
        let to = ptr::with_exposed_provenance_mut(to.get() as usize);
        // SAFETY: the caller's promise: every element is readable, the destination as large as the dense array, and nobody
        // else's; so the two do not overlap.
        unsafe { strided::copy_to_dense(from.data, to, from.dims, from.strides, from.element) };
        Ok(())
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        let from = ptr::with_exposed_provenance(from.get() as usize);
        let to = ptr::with_exposed_provenance_mut(to.get() as usize);
        // SAFETY: the caller's promise: both lie in live regions, and do not overlap.
        unsafe { strided::copy(from, to, bytes.get() as usize) };
        Ok(())
    }

    unsafe fn order(&self, _: isize) -> Result<()> {
        Ok(())
    }

    fn finish(&self) {}
}
