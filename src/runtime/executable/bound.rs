//! Results that a program binds to a memory of the host, on a processor: `pinned_host` and `unpinned_host`.
//!
//! ```text
//! jit(f, out_shardings=.. "pinned_host")
//!   the engine says   device, wherever it puts it: all its memory is the processor's
//!   pjrt-arena says   the memory that the program names, for the executable and the buffer
//! ```
//!
//! Such a result has no destination: like an array that `device_put` brings to such a memory, it lies in memory of
//! the engine, and leaves the arena to arrays in `device`.

use std::{borrow::Cow, ffi::c_char};

use crate::{
    config::EngineKind,
    engine::{Raw, process},
    program::{self, HostMemory, Unbound},
    runtime::client::Client,
};

/// The kind of memory of a result that is not bound, for an engine that does not say: the only one that XLA:CPU knew
/// before it learned to bind results. Such an engine answers UNIMPLEMENTED, and JAX then takes each result's memory
/// for the device's own.
pub const OWN_KIND: &str = "device";

/// The program without its memory annotations, where all memory is one, and what its results are bound to.
pub fn unbind<'a>(client: Option<&Client>, format: &[u8], code: &'a [u8]) -> Unbound<'a> {
    let unchanged = Unbound { bytes: Cow::Borrowed(code), results: Vec::new() };
    if process::kind() != Some(EngineKind::Cpu) || format != b"mlir" {
        return unchanged;
    }
    let Ok(unbound) = program::without_annotations(code) else { return unchanged };
    // A memory that the engine lacks is left for the engine to refuse.
    let has = |bound: &HostMemory| {
        client.is_none_or(|client| client.devices.iter().all(|device| device.host.of(*bound).is_some()))
    };
    if unbound.results.iter().flatten().all(has) { unbound } else { unchanged }
}

/// The memory kind of each result of a program, in the form of the C API.
pub struct OutputKinds {
    /// What the pointers point to.
    _names: Vec<Box<str>>,
    /// One for each result.
    pub pointers: Vec<Raw<c_char>>,
    /// Their lengths in bytes.
    pub sizes: Vec<usize>,
}

impl OutputKinds {
    /// The engine's names, except those of results that are bound.
    pub fn new(by_engine: Vec<Cow<'_, str>>, bound: &[Option<HostMemory>]) -> Self {
        let bound = bound.iter().copied().chain(std::iter::repeat(None));
        let names: Vec<Box<str>> = by_engine
            .into_iter()
            .zip(bound)
            .map(|(name, bound)| bound.map_or_else(|| name.into(), |memory| memory.name().into()))
            .collect();
        Self {
            pointers: names.iter().map(|name| Raw(name.as_ptr().cast_mut().cast())).collect(),
            sizes: names.iter().map(|name| name.len()).collect(),
            _names: names,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::text;

    #[test]
    fn what_is_bound_goes_before_what_the_engine_says() {
        let device = || vec![Cow::Borrowed("device"); 3];
        let names = |kinds: &OutputKinds| -> Vec<String> {
            let pointers = kinds.pointers.iter().zip(&kinds.sizes);
            // SAFETY: the names live as long as the kinds.
            pointers.map(|(name, &size)| unsafe { text(name.0, size).into_owned() }).collect()
        };
        let bound = [Some(HostMemory::Pinned), None, Some(HostMemory::Unpinned)];
        assert_eq!(names(&OutputKinds::new(device(), &bound)), ["pinned_host", "device", "unpinned_host"]);
        assert_eq!(names(&OutputKinds::new(device(), &bound[..1])), ["pinned_host", "device", "device"]);
        assert_eq!(names(&OutputKinds::new(Vec::new(), &bound)), [""; 0]);
    }
}
