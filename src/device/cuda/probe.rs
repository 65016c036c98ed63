//! What a vendor's driver of this machine offers: its version, and each GPU's name, memory and compute capability.
//!
//! ```text
//!  probe() ---> Driver::load ---> cuInit, hipInit ---> the version, the GPUs
//!                   |                |
//!                   v                v
//!       Unavailable::Library     Unavailable::Call
//!                   ::Symbol
//! ```
//!
//! The driver is opened at run time, because most machines have none; that is an answer here, not a failure. No context
//! is created: none of the calls needs one, and one would take some hundred megabytes of each GPU.

use std::{
    ffi::{CStr, OsStr, c_int},
    fmt,
};

use cudarc::driver::sys::CUdevice_attribute;

use crate::{
    device::cuda::{
        driver::{Driver, DriverError, Unavailable, out},
        vendor::Vendor,
        version::Version,
    },
    units::Bytes,
};

/// What the driver offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Whose driver it is.
    pub vendor: Vendor,
    /// The newest CUDA that NVIDIA's driver runs (`cuDriverGetVersion`), not the number of the driver's own release;
    /// HIP's version on AMD's.
    pub version: Version,
    /// The GPUs that this process may use, in the driver's order. `CUDA_VISIBLE_DEVICES` or `HIP_VISIBLE_DEVICES` hides
    /// and orders them.
    pub gpus: Vec<Gpu>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its place in the driver's order, from 0.
    pub ordinal: c_int,
    /// Its product name.
    pub name: String,
    /// All of its memory, in use or not.
    pub memory: Bytes,
    /// Which instructions it runs: what an engine must have been built for.
    pub compute_capability: Version,
    /// Whether programs' scratch can come from a pool of the driver's (`cuMemAllocAsync`). Some virtual and some
    /// embedded GPUs of NVIDIA's have none, and XLA's engine for AMD's uses none.
    pub pools: bool,
}

/// One line: `NVIDIA driver for CUDA 13.0: 2 GPUs: 2 x NVIDIA H200, 139.80GiB, compute capability 9.0`, or `AMD driver
/// for HIP 7.0: ...`.
impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.gpus.len();
        let (vendor, interface, plural) = (self.vendor, self.vendor.interface(), if count == 1 { "" } else { "s" });
        write!(f, "{vendor} driver for {interface} {}: {count} GPU{plural}", self.version)?;
        let alike = |a: &Gpu, b: &Gpu| {
            (&a.name, a.memory, a.compute_capability, a.pools) == (&b.name, b.memory, b.compute_capability, b.pools)
        };
        for (index, group) in self.gpus.chunk_by(alike).enumerate() {
            write!(f, "{} ", if index == 0 { ":" } else { ";" })?;
            if group.len() > 1 {
                write!(f, "{} x ", group.len())?;
            }
            let Gpu { name, memory, compute_capability, pools, .. } = &group[0];
            write!(f, "{name}, {memory}, compute capability {compute_capability}")?;
            if !pools && vendor == Vendor::Nvidia {
                write!(f, ", no memory pools")?;
            }
        }
        Ok(())
    }
}

/// Asks the vendor's driver of this machine. Takes as long as the driver needs to start: up to seconds with many GPUs.
///
/// # Errors
/// There is no driver, it is not one that we know, or it answers with an error.
pub fn probe(vendor: Vendor) -> Result<Offer, Unavailable> {
    probe_library(vendor, vendor.library())
}

/// Asks the vendor's driver whose library has the name or the path `library`; tests have one of their own.
///
/// # Errors
/// As [`probe`].
pub fn probe_library(vendor: Vendor, library: impl AsRef<OsStr>) -> Result<Offer, Unavailable> {
    probe_driver(Driver::load(vendor, library.as_ref())?)
}

pub(super) fn probe_driver(driver: &Driver) -> Result<Offer, Unavailable> {
    ask(driver).map_err(|failure| Unavailable::call(driver.vendor(), &failure))
}

fn ask(driver: &Driver) -> Result<Offer, DriverError> {
    driver.start()?;
    let number: c_int = out(|version| driver.driver_version(version))?;
    Ok(Offer {
        vendor: driver.vendor(),
        version: driver.vendor().version(number),
        gpus: (0..driver.devices()?).map(|ordinal| gpu(driver, ordinal)).collect::<Result<_, _>>()?,
    })
}

fn gpu(driver: &Driver, ordinal: c_int) -> Result<Gpu, DriverError> {
    let device = driver.device_at(ordinal)?;
    let mut name = [0u8; 256];
    // One byte less than there are: the last one stays NUL whatever the driver writes.
    let room = name.len() as c_int - 1;
    // SAFETY: the driver gave the handle of the device; it writes at most `room` bytes, and the array has one more.
    unsafe { driver.device_name(name.as_mut_ptr().cast(), room, device) }?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
    let memory: usize = out(|bytes| driver.device_memory(bytes, device))?;
    let compute_capability = Version {
        major: driver.attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        minor: driver.attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    };
    // An attribute that the driver does not know is one that the device has not. XLA ends the process where the pool is
    // promised and cannot be had.
    let promised = driver.attribute(device, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
    let pools = promised.is_ok_and(|value| value != 0) && driver.pool_of(device).is_ok();
    Ok(Gpu { ordinal, name, memory: Bytes::new(memory as u64), compute_capability, pools })
}
