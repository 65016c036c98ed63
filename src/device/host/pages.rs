//! Pages, as pointers and lengths for the kernel.

use std::{ffi::c_void, ptr};

use crate::{device::shift::Extent, units::Bytes};

/// Regions of this size and more are aligned to it: a huge page of x86-64 and of arm64 with pages of 4 KiB.
pub(super) const HUGE_PAGE: Bytes = Bytes::mib(2);

impl Extent {
    pub(super) fn pointer(self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.start.get() as usize)
    }

    pub(super) fn len(self) -> usize {
        // An extent is a mapping's part, and mappings are no longer than the address space.
        self.bytes.get() as usize
    }
}
