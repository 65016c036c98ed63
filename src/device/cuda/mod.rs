//! GPUs, through their vendor's driver: what there is, memory of it, and copies on a stream of our own. The driver is
//! NVIDIA's, whose names things have here, or AMD's, which `vendor` makes the same of.
//!
//! ```text
//!   probe                      driver       libcuda.so.1 or libamdhip64.so, opened at run time: a table of functions, each found by
//!     which GPUs there are       |          its name; vendor: what differs; error: what is reported when it refuses
//!                              device       what the rest shares: the primary context, our stream, the book of regions
//!                                |
//!         .------------.---------+---+-----------.----------------.
//!       backing      carrier      staging      pinned            pool
//!       regions      moves and    arrays of    regions of the    what the engine's
//!       of memory    copies       the host     host's memory     own pool holds
//!         |            |
//!   chunks, physical    exchange     memory by addresses and handles; chunks that change places
//! ```
//!
//! The engine works in the device's primary context, so ours is the same one: memory, streams and events of both sides
//! may meet. A call of ours makes that context current and puts back what was there (`context`), because the engine
//! ends the process if it finds a thread in a context that it does not know. On AMD's GPUs it is the thread's device
//! that is set and put back.
//!
//! Nothing here knows the engine. What it still does with memory the caller waits for, as seen from the host, before it
//! says a word here: our stream waits for nothing of the engine's. [`Carrier::order`] makes a stream of the engine wait
//! for all copies.
//!
//! [`Carrier::order`]: super::Carrier::order

mod backing;
mod carrier;
mod chunks;
mod context;
mod costs;
mod device;
mod driver;
mod error;
mod exchange;
mod handle;
mod owned;
mod physical;
mod pinned;
mod pool;
mod probe;
mod regions;
mod staging;
mod stream;
#[cfg(test)]
mod tests;
mod vendor;
mod version;

pub use crate::device::cuda::backing::CHUNK;
pub use crate::device::cuda::backing::CudaBacking;
pub use crate::device::cuda::device::CudaDevice;
pub use crate::device::cuda::device::MemoryInfo;
pub use crate::device::cuda::driver::Driver;
pub use crate::device::cuda::driver::Unavailable;
pub use crate::device::cuda::pinned::PinnedBacking;
pub use crate::device::cuda::pool::EnginePool;
pub use crate::device::cuda::pool::FixedShare;
pub use crate::device::cuda::pool::KeptPool;
pub use crate::device::cuda::pool::PoolUsage;
pub use crate::device::cuda::probe::Gpu;
pub use crate::device::cuda::probe::Offer;
pub use crate::device::cuda::probe::probe;
pub use crate::device::cuda::probe::probe_library;
pub use crate::device::cuda::vendor::Vendor;
pub use crate::device::cuda::version::Version;
