//! Views: buffers of the engine that look at memory of ours.
//!
//! ```text
//!  ViewKind::Host    a host buffer over the address: ready at once                       CPU
//!  ViewKind::Device  a view of a device's buffer: ready at once, or after what was put
//!                 on a stream of the engine before                                    CUDA, ROCm
//! ```
//!
//! On CPU a view is a host buffer taken with `kMutableZeroCopy`, the only kind that the engine both aliases and lets a
//! program write its result into when it is donated (XLA `common_pjrt_client.cc`, PJRT C API 0.81). The engine copies
//! silently where it cannot alias: an address not aligned to 64 bytes, a sub-byte element type. So what can be viewed
//! is found by asking the engine once per client ([`probe`]), not by a list of ours.
//!
//! On a GPU, XLA takes an address as it is. It writes a donated view's result in place as well, by its implementation
//! and not by its contract (XLA `se_gpu_pjrt_client.cc`, PJRT C API 0.112 and 0.114), which is why Execute compares
//! addresses.

use std::{ffi::c_void, ptr};

use smallvec::SmallVec;

use crate::{
    engine::{Args, Engine, EngineError, EngineEvent, handles::Raw},
    sys,
};

/// Alignment in bytes that every address given to [`view`] must have (XLA: `EIGEN_MAX_ALIGN_BYTES`).
pub const ALIGNMENT: usize = 64;

/// The newest element type that every supported version knows (0.63). An engine aborts on a number that it does not
/// know; the types that came later are narrower than a byte and never lie in an arena.
const NEWEST: u32 = sys::PJRT_Buffer_Type_F4E2M1FN.0;

/// Element types whose arrays the engine can view in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AliasableTypes(u32);

impl AliasableTypes {
    /// None: this engine views nothing of ours.
    pub const NONE: Self = Self(0);

    /// Those that `can` says yes to, of the types that every supported version knows.
    pub fn those(can: impl Fn(sys::PJRT_Buffer_Type) -> bool) -> Self {
        let types = (1..=NEWEST).map(sys::PJRT_Buffer_Type).filter(|&kind| kind != sys::PJRT_Buffer_Type_TOKEN);
        Self(types.filter(|&kind| can(kind)).fold(0, |set, kind| set | 1 << kind.0))
    }

    /// Whether arrays of the element type can be viewed.
    pub fn contains(self, element_type: sys::PJRT_Buffer_Type) -> bool {
        element_type.0 <= NEWEST && self.0 >> element_type.0 & 1 == 1
    }
}

/// How an engine is shown memory of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewKind {
    /// As memory of the host, whose owner lends it.
    Host,
    /// As memory of a device, by its address there.
    Device,
}

/// Told of the end of a view. It says nothing about the programs that use the memory (engine behaviour T4), so nobody
/// listens; but an engine calls the callback without looking whether there is one.
unsafe extern "C" fn nobody_listens(_: *mut c_void, _: *mut c_void) {}

/// What an array that is viewed is.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    /// Its element type.
    pub element_type: sys::PJRT_Buffer_Type,
    /// Sizes of the dimensions, the slowest-varying first.
    pub dims: &'a [i64],
    /// Dimension numbers, the fastest-varying first, where that is not the last one, then the one before it, and so on.
    pub minor_to_major: Option<&'a [i64]>,
}

impl<'a> Array<'a> {
    /// One in the default layout.
    pub fn new(element_type: sys::PJRT_Buffer_Type, dims: &'a [i64]) -> Self {
        Self { element_type, dims, minor_to_major: None }
    }
}

/// The dimensions of an array in the default layout, the fastest-varying first.
fn default_order(rank: usize) -> SmallVec<[i64; 6]> {
    (0..rank as i64).rev().collect()
}

/// The layout without tiles in this order of dimensions, which has to outlive it.
fn untiled(minor_to_major: &[i64]) -> sys::PJRT_Buffer_MemoryLayout {
    let mut layout = sys::PJRT_Buffer_MemoryLayout {
        struct_size: size_of::<sys::PJRT_Buffer_MemoryLayout>(),
        type_: sys::PJRT_Buffer_MemoryLayout_Type_Tiled,
        ..Default::default()
    };
    layout.__bindgen_anon_1.tiled = sys::PJRT_Buffer_MemoryLayout_Tiled {
        struct_size: size_of::<sys::PJRT_Buffer_MemoryLayout_Tiled>(),
        minor_to_major: minor_to_major.as_ptr(),
        minor_to_major_size: minor_to_major.len(),
        ..Default::default()
    };
    layout
}

/// Calls `body` with the caller's layout, or, where that is NULL, with the default one for so many dimensions: engines
/// make an alias (PJRT 0.115) or an error buffer (0.106) without a layout, and fail, or end the process, when it is
/// used.
pub fn with_layout<T>(
    given: *mut sys::PJRT_Buffer_MemoryLayout,
    rank: usize,
    body: impl FnOnce(*mut sys::PJRT_Buffer_MemoryLayout) -> T,
) -> T {
    let order = default_order(rank);
    let mut default = untiled(&order);
    body(if given.is_null() { &raw mut default } else { given })
}

/// As [`view`], of memory of a device. It is ready once all is done that was put on `stream`, one of the engine's for
/// this purpose, before this call; with none (zero) at once, or, before PJRT C API 0.114, after the programs that were
/// started before.
///
/// # Errors
/// The engine's: NOT_FOUND for a stream that is not one of its own.
///
/// # Safety
/// As for [`view`]; `address` must be one of the device's that `memory` belongs to.
pub unsafe fn view_on_device(
    engine: &'static Engine,
    (client, memory): (*mut sys::PJRT_Client, *mut sys::PJRT_Memory),
    address: usize,
    array: Array<'_>,
    stream: isize,
) -> Result<*mut sys::PJRT_Buffer, EngineError> {
    // Without a layout an engine before 0.114 makes a shape that has none, and fails later.
    let default = default_order(array.dims.len());
    let mut layout = untiled(array.minor_to_major.unwrap_or(&default));
    // SAFETY: dimensions and layout outlive the call; the rest is the caller's promise.
    let args = unsafe {
        engine.call(sys::PJRT_Client_CreateViewOfDeviceBuffer_Args {
            client,
            device_buffer_ptr: ptr::with_exposed_provenance_mut(address),
            dims: array.dims.as_ptr(),
            num_dims: array.dims.len(),
            element_type: array.element_type,
            layout: &raw mut layout,
            on_delete_callback: Some(nobody_listens),
            stream,
            memory,
            ..Default::default()
        })?
    };
    Ok(args.buffer)
}

/// Whether the engine looks at memory of the kind of `memory` where it lies, by its address: asked with a view that
/// nothing uses.
///
/// # Safety
/// `client` and `memory` must be alive, and `memory` of the host.
pub unsafe fn takes_views_as_they_are(
    engine: &'static Engine,
    client: *mut sys::PJRT_Client,
    memory: *mut sys::PJRT_Memory,
) -> bool {
    /// For ever, because an engine before 0.114 has something to do on a stream before it lets go.
    static SOMETHING: [u64; 32] = [0; 32];
    let here = SOMETHING.as_ptr().expose_provenance();
    // SAFETY: the memory is there for ever, the view holds one element of it, and nobody is shown the view.
    let view = unsafe { view_on_device(engine, (client, memory), here, Array::new(sys::PJRT_Buffer_Type_U8, &[1]), 0) };
    let view = match view {
        Ok(view) => view,
        Err(error) => {
            log::info!("memory of the host stays with the engine, which takes no view of it: {}", error.message());
            return false;
        }
    };
    // SAFETY: the view was just made.
    let there = unsafe { address(engine, view) };
    // SAFETY: nothing uses it, and this is its end.
    unsafe { destroy(engine, view) };
    there.is_ok_and(|there| there == here)
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
    place: (*mut sys::PJRT_Client, *mut sys::PJRT_Memory),
    address: usize,
    array: Array<'_>,
) -> Result<*mut sys::PJRT_Buffer, EngineError> {
    // SAFETY: the caller's promise.
    unsafe { from_host(engine, place, address, array, sys::PJRT_HostBufferSemantics_kMutableZeroCopy) }
}

/// As [`view`], for programs that only read: one that is donated the buffer copies it.
///
/// # Errors
/// As [`view`].
///
/// # Safety
/// As [`view`].
pub unsafe fn constant(
    engine: &'static Engine,
    place: (*mut sys::PJRT_Client, *mut sys::PJRT_Memory),
    address: usize,
    array: Array<'_>,
) -> Result<*mut sys::PJRT_Buffer, EngineError> {
    // SAFETY: the caller's promise.
    unsafe { from_host(engine, place, address, array, sys::PJRT_HostBufferSemantics_kImmutableZeroCopy) }
}

/// Creates a buffer of the engine, in memory of its own, with the bytes of the array at `address`, which is free when
/// this returns.
///
/// # Errors
/// The engine's, for instance for a shape it refuses.
///
/// # Safety
/// `address` must hold the array, and the handles be alive.
pub unsafe fn copy(
    engine: &'static Engine,
    place: (*mut sys::PJRT_Client, *mut sys::PJRT_Memory),
    address: usize,
    array: Array<'_>,
) -> Result<*mut sys::PJRT_Buffer, EngineError> {
    // SAFETY: the caller's promise.
    unsafe { from_host(engine, place, address, array, sys::PJRT_HostBufferSemantics_kImmutableOnlyDuringCall) }
}

/// A buffer of bytes of the host, which lie as the array says.
///
/// By the C API, bytes without strides lie in the order of the dimensions, whatever layout the device is to have.
/// XLA:CPU goes by that since some version between 0.106 and 0.115, and before it took the bytes as they were. What all
/// of them agree on is an array in the default layout: so its dimensions are given in the order in which they lie, and
/// a bitcast, which came in between (0.98), names them as they are. Strides are of no use: where they match the layout,
/// 0.115 copies.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// The handles must be alive, and `address` hold the array for as long as the semantics say.
unsafe fn from_host(
    engine: &'static Engine,
    (client, memory): (*mut sys::PJRT_Client, *mut sys::PJRT_Memory),
    address: usize,
    array: Array<'_>,
    semantics: sys::PJRT_HostBufferSemantics,
) -> Result<*mut sys::PJRT_Buffer, EngineError> {
    let order = array.minor_to_major;
    let has_bitcast = || engine.slot(sys::PJRT_Buffer_Bitcast_Args::SLOT).is_some();
    let as_they_lie: Option<SmallVec<[i64; 6]>> =
        order.filter(|_| has_bitcast()).map(|order| order.iter().rev().map(|&dim| array.dims[dim as usize]).collect());
    let dims = as_they_lie.as_deref().unwrap_or(array.dims);
    let mut layout = order.map(untiled);
    let wanted = layout.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: dimensions and layout outlive the call; the rest is the caller's promise.
    let args = unsafe {
        engine.call(sys::PJRT_Client_BufferFromHostBuffer_Args {
            client,
            data: ptr::with_exposed_provenance(address),
            type_: array.element_type,
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            host_buffer_semantics: semantics,
            memory,
            device_layout: if as_they_lie.is_some() { ptr::null_mut() } else { wanted },
            ..Default::default()
        })?
    };
    // SAFETY: the event is ours. Nobody waits for it: a copy is made when the call returns, and of a view the
    // completion of the programs says when memory is free again.
    drop(unsafe { EngineEvent::own(engine, args.done_with_host_buffer) });
    if as_they_lie.is_none() {
        return Ok(args.buffer);
    }
    // SAFETY: the buffer was just made, and this is its end; dimensions and layout outlive the call.
    unsafe {
        let named = engine.call(sys::PJRT_Buffer_Bitcast_Args {
            buffer: args.buffer,
            element_type: array.element_type,
            dims: array.dims.as_ptr(),
            num_dims: array.dims.len(),
            device_layout: wanted,
            ..Default::default()
        });
        destroy(engine, args.buffer);
        Ok(named?.out_buffer)
    }
}

/// Destroys a buffer of the engine. Blocks while a program that was donated the buffer still runs (engine behaviour
/// T3).
///
/// # Safety
/// `buffer` must be a live buffer of `engine`, and not be used again.
pub unsafe fn destroy(engine: &'static Engine, buffer: *mut sys::PJRT_Buffer) {
    // SAFETY: the caller's promise.
    if let Err(error) = unsafe { engine.call(sys::PJRT_Buffer_Destroy_Args { buffer, ..Default::default() }) } {
        log::warn!("the engine could not destroy a buffer: {}", error.message());
    }
}

/// Deletes a buffer that a program was donated and that others still have the handle of. Blocks as [`destroy`] does:
/// deleting takes the memory from whoever has it, and waits for a donation (XLA, `CommonPjRtBuffer::ReleaseBuffer`).
///
/// # Safety
/// `buffer` must be a live buffer of `engine`.
pub unsafe fn end(engine: &'static Engine, buffer: *mut sys::PJRT_Buffer) {
    // SAFETY: the caller's promise.
    if let Err(error) = unsafe { engine.call(sys::PJRT_Buffer_Delete_Args { buffer, ..Default::default() }) } {
        log::warn!("the engine could not delete a buffer: {}", error.message());
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
pub unsafe fn probe(
    engine: &'static Engine,
    client: Raw<sys::PJRT_Client>,
    memory: *mut sys::PJRT_Memory,
) -> AliasableTypes {
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
        let Ok(buffer) = (unsafe { view(engine, (client.0, memory), here, Array::new(element_type, &[1])) }) else {
            continue;
        };
        // SAFETY: the buffer was just made, nothing uses it, and this is its end.
        let aliased = unsafe { address(engine, buffer) }.is_ok_and(|there| there == here);
        // SAFETY: as above.
        unsafe { destroy(engine, buffer) };
        viewable |= u32::from(aliased) << number;
    }
    AliasableTypes(viewable)
}
