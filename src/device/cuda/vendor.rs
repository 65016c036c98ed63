//! Whose driver it is, and where AMD's HIP has other names and numbers than CUDA.
//!
//! ```text
//!                         NVIDIA                      AMD
//!   library               libcuda.so.1                libamdhip64.so.7, or .6
//!   a thread works in     the context that is on      the device that was set
//!                         top of its stack
//!   regions               chunks mapped to chosen     allocations (hipMalloc)
//!                         addresses, or allocations
//!   copies by address     cuMemcpyAsync               hipMemcpyAsync of the kind hipMemcpyDefault
//!   between devices       by their contexts           by their ordinals
//!   programs' scratch     a pool of the driver's      a fixed share: XLA's engine for ROCm uses no pool
//! ```
//!
//! Memory is not mapped by hand on AMD's GPUs, though HIP has the functions, for three reasons.
//! - XLA's own memory there is `hipMalloc`'s (`rocm_executor.cc`), so kernels, copies and collectives find what they
//!   know.
//! - What chunks are for, to lend memory to programs' scratch while arrays do not need it, cannot happen with a fixed
//!   share.
//! - ROCm's releases differ in what they do with it. Up to 6.1 a copy over the end of one mapped piece is refused
//!   (`hip_memory.cpp`, `ihipMemcpy_validate`); in 7.2 `hipMemSetAccess` refuses ranges that are right
//!   (ROCm/rocm-systems, pull request 6977); a later `hipMemCreate` takes the memory of the thread's device, whatever
//!   the properties say.
//!
//! All of that is from sources and headers (ROCm 6.1 to 7, `hip_runtime_api.h`, `clr/hipamd`); it has not run on
//! hardware.

use std::{
    ffi::{OsStr, OsString, c_int, c_uint},
    fmt,
};

use cudarc::driver::sys::{CU_MEMHOSTALLOC_PORTABLE, CUdevice_attribute, CUevent_flags, CUresult, CUstream_flags};

use crate::device::cuda::version::Version;

/// What is passed to either driver, or told apart, under CUDA's name: on the right are HIP's numbers
/// (`hipStreamNonBlocking`, `hipEventDisableTiming`, `hipHostMallocPortable`; `hipSuccess`, `hipErrorInvalidValue`,
/// `OutOfMemory`, `Deinitialized`, `InvalidDevice`, `NotSupported`).
const _: () = {
    assert!(CUstream_flags::CU_STREAM_NON_BLOCKING as u32 == 1);
    assert!(CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 == 2);
    assert!(CU_MEMHOSTALLOC_PORTABLE == 1);
    assert!(CUresult::CUDA_SUCCESS as u32 == 0);
    assert!(CUresult::CUDA_ERROR_INVALID_VALUE as u32 == 1);
    assert!(CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32 == 2);
    assert!(CUresult::CUDA_ERROR_DEINITIALIZED as u32 == 4);
    assert!(CUresult::CUDA_ERROR_INVALID_DEVICE as u32 == 101);
    assert!(CUresult::CUDA_ERROR_NOT_SUPPORTED as u32 == 801);
};

/// `hipMemcpyDefault`: the driver tells by the addresses whose memory it is.
pub(super) const COPY_BY_ADDRESS: c_uint = 4;

/// The file that a development package of ROCm installs, and what users know; programs find the versioned ones.
const HIP: &str = "libamdhip64.so";

/// The versions of it that have all that is called here, newest first: those of ROCm 7 and ROCm 6.
const HIP_VERSIONS: [&str; 2] = [".7", ".6"];

/// Whose driver it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA, whose driver is CUDA's.
    Nvidia,
    /// AMD, whose driver is called by HIP.
    Amd,
}

impl Vendor {
    /// The file that a program looks for where the user names no other. NVIDIA's driver installs `libcuda.so.1`, and
    /// development packages alone `libcuda.so`.
    pub fn library(self) -> &'static str {
        self.either("libcuda.so.1", HIP)
    }

    /// The files to look for, best first, where a user asks for `library`.
    ///
    /// `libamdhip64.so` itself comes last: it may belong to another ROCm than the one that the engine was linked with,
    /// and with two of them in a process each would manage the GPUs for itself.
    pub(super) fn files(self, library: &OsStr) -> Vec<OsString> {
        if self == Self::Amd && library == HIP {
            let versions = HIP_VERSIONS.map(|version| format!("{HIP}{version}").into());
            return versions.into_iter().chain([HIP.into()]).collect();
        }
        vec![library.to_owned()]
    }

    /// What the vendor calls the interface of its driver.
    pub(super) fn interface(self) -> &'static str {
        self.either("CUDA", "HIP")
    }

    /// The version that the driver gives as `number`.
    pub(super) fn version(self, number: c_int) -> Version {
        match self {
            // 13020 is 13.2: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VERSION.html
            Self::Nvidia => Version { major: number / 1000, minor: number % 1000 / 10 },
            // 60342131 is 6.3, with a patch level: `HIP_VERSION` in hip_version.h.
            Self::Amd => Version { major: number / 10_000_000, minor: number % 10_000_000 / 100_000 },
        }
    }

    /// The vendor's number of an attribute of devices: HIP counts them otherwise (`hipDeviceAttribute_t`). `None` for
    /// one that the driver is taken not to have.
    pub(super) fn attribute(self, which: CUdevice_attribute) -> Option<c_uint> {
        use CUdevice_attribute::*;
        if self == Self::Nvidia {
            return Some(which as c_uint);
        }
        match which {
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => Some(23),
            CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH => Some(59),
            CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE => Some(60),
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => Some(61),
            _ => None,
        }
    }

    /// What belongs to this vendor.
    pub(super) fn either<T>(self, nvidia: T, amd: T) -> T {
        match self {
            Self::Nvidia => nvidia,
            Self::Amd => amd,
        }
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.either("NVIDIA", "AMD"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the header of ROCm 6.3, compiled; ROCm 7's has the same order.
    #[test]
    fn attributes_have_hips_numbers_there() {
        use CUdevice_attribute::*;
        for (which, nvidia, amd) in [
            (CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 36, Some(60)),
            (CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 37, Some(59)),
            (CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75, Some(23)),
            (CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76, Some(61)),
            (CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, 102, None),
            (CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 115, None),
        ] {
            assert_eq!(
                (Vendor::Nvidia.attribute(which), Vendor::Amd.attribute(which)),
                (Some(nvidia), amd),
                "{which:?}"
            );
        }
    }

    #[test]
    fn versions_are_read_as_each_vendor_writes_them() {
        let version = |major, minor| Version { major, minor };
        assert_eq!(Vendor::Nvidia.version(13020), version(13, 2));
        // As ROCm 6.3.2 and 7.0.1 give them.
        assert_eq!(Vendor::Amd.version(60_342_134), version(6, 3));
        assert_eq!(Vendor::Amd.version(70_051_831), version(7, 0));
    }

    #[test]
    fn the_versions_of_amds_library_are_looked_for_unless_a_file_is_named() {
        let files = |vendor: Vendor, library: &str| vendor.files(OsStr::new(library));
        assert_eq!(
            files(Vendor::Amd, Vendor::Amd.library()),
            ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"]
        );
        for named in ["libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so"] {
            assert_eq!(files(Vendor::Amd, named), [named]);
        }
        assert_eq!(files(Vendor::Nvidia, Vendor::Nvidia.library()), ["libcuda.so.1"]);
    }
}
