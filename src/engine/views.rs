//! Views: buffers of the engine that look at memory of ours.
//!
//! On CPU a view is a host buffer taken with `kMutableZeroCopy`, the only kind that the engine both aliases and lets a
//! program write its result into when it is donated (XLA `common_pjrt_client.cc`, PJRT C API 0.81). The engine copies
//! silently where it cannot alias: an address not aligned to 64 bytes, a sub-byte element type. So what can be viewed
//! is found by asking the engine once per client ([`probe`]), not by a list of ours.

use std::ptr;

use super::{Engine, EngineError, handles::Raw};
use crate::sys;

/// Alignment in bytes that every address given to [`view`] must have (XLA: `EIGEN_MAX_ALIGN_BYTES`).
pub const ALIGNMENT: usize = 64;

/// The newest element type that every supported version knows (0.63). An engine aborts on a number that it does not
/// know; the types that came later are narrower than a byte and never lie in an arena.
const NEWEST: u32 = sys::PJRT_Buffer_Type_F4E2M1FN.0;

/// Element types whose arrays the engine can view in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Viewable(u32);

impl Viewable {
    /// None: this engine views nothing of ours.
    pub const NONE: Self = Self(0);

    /// Whether arrays of the element type can be viewed.
    pub fn contains(self, element_type: sys::PJRT_Buffer_Type) -> bool {
        element_type.0 <= NEWEST && self.0 >> element_type.0 & 1 == 1
    }
}

/// Creates a buffer of the engine over `address`, ready at once: the caller vouches for the contents.
///
/// # Errors
/// The engine's, for instance for a shape it refuses.
///
/// # Safety
/// `address` must be aligned to [`ALIGNMENT`] and hold the array until the buffer, and every output that a program
/// wrote into it, is destroyed and the programs that use them are done. The handles must be alive.
pub unsafe fn view(
    engine: &'static Engine,
    client: *mut sys::PJRT_Client,
    memory: *mut sys::PJRT_Memory,
    address: usize,
    element_type: sys::PJRT_Buffer_Type,
    dims: &[i64],
) -> Result<*mut sys::PJRT_Buffer, EngineError> {
    // SAFETY: `dims` outlives the call; the rest is the caller's promise.
    let args = unsafe {
        engine.call(sys::PJRT_Client_BufferFromHostBuffer_Args {
            client,
            data: ptr::with_exposed_provenance(address),
            type_: element_type,
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            host_buffer_semantics: sys::PJRT_HostBufferSemantics_kMutableZeroCopy,
            memory,
            ..Default::default()
        })?
    };
    // SAFETY: the event is ours. Nobody waits for it: completion of the programs says when memory is free again.
    drop(unsafe { engine.own_event(args.done_with_host_buffer) });
    Ok(args.buffer)
}

/// Destroys a buffer of the engine. Blocks while a program that was donated the buffer still runs (trap T3).
///
/// # Safety
/// `buffer` must be a live buffer of `engine`, and not be used again.
pub unsafe fn destroy(engine: &'static Engine, buffer: *mut sys::PJRT_Buffer) {
    // SAFETY: the caller's promise.
    if let Err(error) = unsafe { engine.call(sys::PJRT_Buffer_Destroy_Args { buffer, ..Default::default() }) } {
        log::warn!("the engine could not destroy a buffer: {}", error.message());
    }
}

/// The address of a live buffer's memory; NULL for one without memory.
///
/// # Errors
/// The engine's: a deleted buffer, a device without addresses.
///
/// # Safety
/// `buffer` must be a live buffer of `engine`.
pub unsafe fn address(engine: &'static Engine, buffer: *mut sys::PJRT_Buffer) -> Result<usize, EngineError> {
    // SAFETY: the caller's promise.
    let args =
        unsafe { engine.call(sys::PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args { buffer, ..Default::default() })? };
    Ok(args.device_memory_ptr.expose_provenance())
}

/// Asks the engine, type by type, whether a view aliases memory or copies it.
///
/// # Safety
/// `client` and `memory` must be alive.
pub unsafe fn probe(engine: &'static Engine, client: Raw<sys::PJRT_Client>, memory: *mut sys::PJRT_Memory) -> Viewable {
    #[repr(align(64))]
    struct Scratch([u8; 64]);
    let mut scratch = Scratch([0; 64]);
    let here = scratch.0.as_mut_ptr().expose_provenance();
    let mut viewable = 0;
    for number in 1..=NEWEST {
        let element_type = sys::PJRT_Buffer_Type(number);
        if element_type == sys::PJRT_Buffer_Type_TOKEN {
            continue;
        }
        // SAFETY: the scratch is aligned, larger than any element, and outlives the view.
        let Ok(buffer) = (unsafe { view(engine, client.0, memory, here, element_type, &[1]) }) else { continue };
        // SAFETY: the buffer was just made, nothing uses it, and this is its end.
        let aliased = unsafe { address(engine, buffer) }.is_ok_and(|there| there == here);
        // SAFETY: as above.
        unsafe { destroy(engine, buffer) };
        viewable |= u32::from(aliased) << number;
    }
    Viewable(viewable)
}
