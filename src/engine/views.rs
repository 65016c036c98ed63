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

use std::{ffi::c_void, mem, ptr};

use smallvec::SmallVec;

use crate::{
    engine::{Args, EngineError, EngineEvent, Live, failure::discard, order},
    error::Error,
    sys,
};

/// Alignment in bytes that every address given to [`from_host`] must have (XLA: `EIGEN_MAX_ALIGN_BYTES`).
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

/// A memory of the engine, and its client.
#[derive(Clone, Copy)]
pub struct ClientMemory<'a> {
    /// The client.
    pub client: Live<'a, sys::PJRT_Client>,
    /// The memory.
    pub memory: Live<'a, sys::PJRT_Memory>,
}

/// A buffer of a client that is alive for `'a`, with one owner. Dropped, it is destroyed; that blocks while a program
/// that was donated the buffer still runs (engine behaviour T3).
pub struct OwnedBuffer<'a>(Live<'a, sys::PJRT_Buffer>);

impl<'a> OwnedBuffer<'a> {
    /// Owns a buffer.
    ///
    /// # Safety
    /// `buffer` must be a live one of the client's, and nobody else may destroy it.
    pub unsafe fn own(client: Live<'a, sys::PJRT_Client>, buffer: *mut sys::PJRT_Buffer) -> Self {
        // SAFETY: the buffer is alive, as this function asks, until its owner destroys it, or the client ends.
        Self(unsafe { Live::new(client.engine(), buffer) })
    }

    /// The buffer.
    pub fn live(&self) -> Live<'_, sys::PJRT_Buffer> {
        self.0
    }

    /// Hands the buffer over to the caller, who destroys it.
    pub fn into_raw(self) -> *mut sys::PJRT_Buffer {
        mem::ManuallyDrop::new(self).0.raw()
    }
}

impl Drop for OwnedBuffer<'_> {
    #[inline]
    fn drop(&mut self) {
        let args = sys::PJRT_Buffer_Destroy_Args { buffer: self.0.raw(), ..Default::default() };
        // SAFETY: the buffer is owned here, and this is its end.
        discard(unsafe { self.0.engine().call(args) }, "destroy a buffer");
    }
}

/// A view of memory of a device. It is ready once all is done that was put on `stream`, one of the engine's for this
/// purpose, before this call; with none (zero) at once, or, before PJRT C API 0.114, after the programs that were
/// started before.
///
/// # Errors
/// The engine's: NOT_FOUND for a stream that is not one of its own.
///
/// # Safety
/// `address` must be one of the device's that the memory belongs to, aligned to [`ALIGNMENT`], and hold the array until
/// the buffer, and every output that a program wrote into it, is destroyed and the programs that use them are done.
pub unsafe fn on_device<'a>(
    place: ClientMemory<'a>,
    address: usize,
    array: Array<'_>,
    stream: isize,
) -> Result<OwnedBuffer<'a>, EngineError> {
    // Without a layout an engine before 0.114 makes a shape that has none, and fails later.
    let default = default_order(array.dims.len());
    let mut layout = untiled(array.minor_to_major.unwrap_or(&default));
    // SAFETY: client and memory are alive, and dimensions and layout outlive the call; the address is as this function
    // asks. The buffer is new.
    unsafe {
        let args = place.client.engine().call(sys::PJRT_Client_CreateViewOfDeviceBuffer_Args {
            client: place.client.raw(),
            device_buffer_ptr: ptr::with_exposed_provenance_mut(address),
            dims: array.dims.as_ptr(),
            num_dims: array.dims.len(),
            element_type: array.element_type,
            layout: &raw mut layout,
            on_delete_callback: Some(nobody_listens),
            stream,
            memory: place.memory.raw(),
            ..Default::default()
        })?;
        Ok(OwnedBuffer::own(place.client, args.buffer))
    }
}

/// How a buffer uses bytes of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostBytes {
    /// In place: programs read them, and one that is donated the buffer writes its result there.
    Writable,
    /// In place, but a program that is donated the buffer copies them.
    Constant,
    /// They are copied into memory of the engine, before the call returns.
    Copied,
}

/// A buffer of bytes of the host, which lie as the array says, ready at once: the caller vouches for the contents.
///
/// By the C API, bytes without strides lie in the order of the dimensions, whatever layout the device is to have.
/// XLA:CPU goes by that since some version between 0.106 and 0.115, and before it took the bytes as they were. What all
/// of them agree on is an array in the default layout: so its dimensions are given in the order in which they lie, and
/// a bitcast, which came in between (0.98), names them as they are. Strides are of no use: where they match the layout,
/// 0.115 copies.
///
/// # Errors
/// The engine's, for instance for a shape it refuses.
///
/// # Safety
/// `address` must hold the array. Unless it is [`HostBytes::Copied`], it must be aligned to [`ALIGNMENT`], and hold the
/// array until the buffer, and every output that a program wrote into it, is destroyed and the programs that use them
/// are done; of [`HostBytes::Constant`] nothing may write to it meanwhile.
pub unsafe fn from_host<'a>(
    ClientMemory { client, memory }: ClientMemory<'a>,
    address: usize,
    array: Array<'_>,
    bytes: HostBytes,
) -> Result<OwnedBuffer<'a>, EngineError> {
    let engine = client.engine();
    let order = array.minor_to_major;
    let has_bitcast = || engine.slot(sys::PJRT_Buffer_Bitcast_Args::SLOT).is_some();
    let as_they_lie: Option<SmallVec<[i64; 6]>> =
        order.filter(|_| has_bitcast()).map(|order| order.iter().rev().map(|&dim| array.dims[dim as usize]).collect());
    let dims = as_they_lie.as_deref().unwrap_or(array.dims);
    let mut layout = order.map(untiled);
    let wanted = layout.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: client and memory are alive, and dimensions and layout outlive the call; the address holds the array for
    // as long as the semantics say, as this function asks. Buffer and event are new. Nobody waits for the event: a copy
    // is made when the call returns, and of a view the completion of the programs says when memory is free again.
    let made = unsafe {
        let args = engine.call(sys::PJRT_Client_BufferFromHostBuffer_Args {
            client: client.raw(),
            data: ptr::with_exposed_provenance(address),
            type_: array.element_type,
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            host_buffer_semantics: match bytes {
                HostBytes::Writable => sys::PJRT_HostBufferSemantics_kMutableZeroCopy,
                HostBytes::Constant => sys::PJRT_HostBufferSemantics_kImmutableZeroCopy,
                HostBytes::Copied => sys::PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
            },
            memory: memory.raw(),
            device_layout: if as_they_lie.is_some() { ptr::null_mut() } else { wanted },
            ..Default::default()
        })?;
        drop(EngineEvent::own(engine, args.done_with_host_buffer));
        OwnedBuffer::own(client, args.buffer)
    };
    if as_they_lie.is_none() {
        return Ok(made);
    }
    // SAFETY: the buffer is alive, and dimensions and layout outlive the call. The other buffer is new.
    unsafe {
        let named = engine.call(sys::PJRT_Buffer_Bitcast_Args {
            buffer: made.live().raw(),
            element_type: array.element_type,
            dims: array.dims.as_ptr(),
            num_dims: array.dims.len(),
            device_layout: wanted,
            ..Default::default()
        })?;
        Ok(OwnedBuffer::own(client, named.out_buffer))
    }
}

/// Deletes a buffer that a program was donated and that others still have the handle of. Blocks as destroying it does:
/// deleting takes the memory from whoever has it, and waits for a donation (XLA, `CommonPjRtBuffer::ReleaseBuffer`).
pub fn end(buffer: Live<'_, sys::PJRT_Buffer>) {
    discard(buffer.ask::<sys::PJRT_Buffer_Delete_Args>(), "delete a buffer");
}

/// Tells the engine that outsiders hold the address of a buffer's memory (`true`), or that none does any more.
///
/// # Errors
/// The engine's; it knows what it knew before then.
///
/// # Safety
/// No other thread may tell it of the same buffer at once (engine behaviour T41).
pub unsafe fn set_referenced(buffer: Live<'_, sys::PJRT_Buffer>, referenced: bool) -> Result<(), EngineError> {
    let (engine, buffer) = (buffer.engine(), buffer.raw());
    // SAFETY: the buffer is alive, and this thread is the only one that tells of it, as this function asks.
    unsafe {
        if referenced {
            engine.call(sys::PJRT_Buffer_IncreaseExternalReferenceCount_Args { buffer, ..Default::default() }).map(drop)
        } else {
            engine.call(sys::PJRT_Buffer_DecreaseExternalReferenceCount_Args { buffer, ..Default::default() }).map(drop)
        }
    }
}

/// The address of a buffer's memory; 0 for one without memory.
///
/// # Errors
/// The engine's: a deleted buffer, a device without addresses.
pub fn address(buffer: Live<'_, sys::PJRT_Buffer>) -> Result<usize, EngineError> {
    let answer = buffer.ask::<sys::PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args>()?;
    order::taken(answer.device_memory_ptr);
    Ok(answer.device_memory_ptr.expose_provenance())
}

/// The event that happens when the bytes of a buffer are there.
///
/// # Errors
/// The engine's.
pub fn ready_event(buffer: Live<'_, sys::PJRT_Buffer>) -> Result<EngineEvent, EngineError> {
    let args = sys::PJRT_Buffer_ReadyEvent_Args { buffer: buffer.raw(), ..Default::default() };
    // SAFETY: the buffer is alive, and the function asks for nothing else; the event is new.
    let event = unsafe { EngineEvent::own(buffer.engine(), buffer.engine().call(args)?.event) };
    event.ok_or_else(|| EngineError::Own(Error::internal("a buffer without an event")))
}

/// Whether a program has consumed a buffer, or what is to be taken for true `if_unknown`, where the engine does not
/// say. Asking does not block, even while the program runs.
#[inline]
pub fn is_consumed(buffer: Live<'_, sys::PJRT_Buffer>, if_unknown: bool) -> bool {
    buffer.ask::<sys::PJRT_Buffer_IsDeleted_Args>().map_or(if_unknown, |answer| answer.is_deleted)
}

/// Bytes for views that nothing uses: larger than any element.
#[repr(align(64))]
struct Scalars([u8; ALIGNMENT]);

const _: () = assert!(align_of::<Scalars>() == ALIGNMENT);

/// Whether the engine looks at memory of the host, of the kind of `place`, where it lies, by its address: asked with a
/// view that nothing uses.
pub fn takes_views_as_they_are(place: ClientMemory<'_>) -> bool {
    /// For ever, because an engine before 0.114 has something to do on a stream before it lets go.
    static SOMETHING: Scalars = Scalars([0; ALIGNMENT]);
    let here = SOMETHING.0.as_ptr().expose_provenance();
    // SAFETY: the address is there for ever, aligned, and holds the one element of the view. Of a view that no
    // program is passed an engine only notes the address, so it need not be one of the device's.
    match unsafe { on_device(place, here, Array::new(sys::PJRT_Buffer_Type_U8, &[1]), 0) } {
        Ok(view) => address(view.live()).is_ok_and(|there| there == here),
        Err(error) => {
            log::info!("memory of the host stays with the engine, which takes no view of it: {}", error.message());
            false
        }
    }
}

/// Asks the engine, type by type, whether a view aliases memory or copies it.
pub fn probe(place: ClientMemory<'_>) -> AliasableTypes {
    let mut scratch = Scalars([0; ALIGNMENT]);
    let here = scratch.0.as_mut_ptr().expose_provenance();
    AliasableTypes::those(|element_type| {
        // SAFETY: the scratch is aligned, larger than any element, and outlives the view, which no program is passed.
        let view = unsafe { from_host(place, here, Array::new(element_type, &[1]), HostBytes::Writable) };
        view.is_ok_and(|view| address(view.live()).is_ok_and(|there| there == here))
    })
}
