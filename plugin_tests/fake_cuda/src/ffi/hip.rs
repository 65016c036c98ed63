//! AMD's driver: HIP's functions that pjrt-arena calls in place of NVIDIA's, on the same GPUs. Prototypes and numbers
//! are those of `hip_runtime_api.h` and `driver_types.h` of ROCm 6.3 and 7; what they do otherwise than CUDA's is from
//! the sources of `clr/hipamd`:
//!
//! - A thread has a device, 0 at first, and no stack of contexts.
//! - Devices have other numbers for their attributes, and know none but their own.
//! - A failure is kept for the thread until it asks for its last error.
//! - Memory comes from `hipMalloc`; mapping by hand and pools are not there.

use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_int, c_uint},
};

use super::{In, Out};
use crate::{
    capture,
    copy::{self, Copy, Side},
    device, event,
    memory::{self, Home, User},
    state::{self, Driver, framed},
    status::{self, Answer, Status, misuse},
    stream,
};

/// The name of every GPU.
const NAME: &str = "Fake MI300X";

/// `HIP_VERSION` of 7.0.1 (`major * 10000000 + minor * 100000 + patch`).
const VERSION: c_int = 70_051_831;

/// `hipDeviceAttribute_t`: those that a program here asks for, as a GPU of the architecture gfx942 answers.
const ATTRIBUTES: [(c_uint, c_int); 4] = [
    (23, 9),         // compute capability, major
    (59, 8192),      // width of the memory's bus, in bits
    (60, 1_300_000), // the memory's clock, in kHz
    (61, 4),         // compute capability, minor
];

/// The first number that is no attribute with CUDA's meaning.
const NO_ATTRIBUTE: c_uint = 92;

/// `hipMemcpyKind`: what a copy is from, and what to.
const KINDS: [(Side, Side); 5] = [
    (Side::Host, Side::Host),
    (Side::Host, Side::Device),
    (Side::Device, Side::Host),
    (Side::Device, Side::Device),
    (Side::Any, Side::Any),
];

/// `hipErrorInvalidMemcpyDirection`.
const INVALID_DIRECTION: Status = 21;

thread_local! {
    /// The last failure that nobody has asked for.
    static LAST_ERROR: Cell<Status> = const { Cell::new(status::SUCCESS) };
}

/// HIP's name and meaning of a code: the numbers are CUDA's, the names are not.
fn words(code: Status) -> Option<(&'static CStr, &'static CStr)> {
    Some(match code {
        status::SUCCESS => (c"hipSuccess", c"no error"),
        status::INVALID_VALUE => (c"hipErrorInvalidValue", c"invalid argument"),
        status::OUT_OF_MEMORY => (c"hipErrorOutOfMemory", c"out of memory"),
        status::NO_DEVICE => (c"hipErrorNoDevice", c"no ROCm-capable device is detected"),
        status::INVALID_DEVICE => (c"hipErrorInvalidDevice", c"invalid device ordinal"),
        status::INVALID_HANDLE => (c"hipErrorInvalidHandle", c"invalid resource handle"),
        status::ILLEGAL_ADDRESS => (c"hipErrorIllegalAddress", c"an illegal memory access was encountered"),
        status::NOT_SUPPORTED => (c"hipErrorNotSupported", c"operation not supported"),
        INVALID_DIRECTION => (c"hipErrorInvalidMemcpyDirection", c"invalid copy direction for memcpy"),
        status::UNKNOWN => (c"hipErrorUnknown", c"unknown error"),
        _ => return None,
    })
}

/// Makes a device the thread's. Its context is there as long as the process, without being retained.
fn set_device(driver: &mut Driver, ordinal: c_int) -> Answer {
    let gpu = driver.gpu(ordinal)?;
    if driver.gpus[gpu].retained == 0 {
        device::retain(driver, ordinal)?;
    }
    device::set(driver, device::context_handle(gpu))
}

/// Sees to it that the thread has a device, as HIP does at a thread's first call.
fn ready(driver: &mut Driver) -> Answer {
    if device::get() == 0 { set_device(driver, 0) } else { Ok(()) }
}

/// The frame of a function of HIP's, which starts with whatever is called first.
fn call(name: &'static str, body: impl FnOnce(&mut Driver) -> Answer) -> Status {
    let status = state::call_to_hip(name, |driver| {
        device::init(driver, 0)?;
        ready(driver)?;
        body(driver)
    });
    if status != status::SUCCESS {
        LAST_ERROR.set(status);
    }
    status
}

/// Declares functions of HIP's in their frame, and makes a table of them by name.
macro_rules! functions {
    ($($frame:ident $name:ident($($parameter:ident: $ours:ty),*) |$driver:ident| $body:expr;)*) => {
        $(
            #[doc = concat!("HIP's `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As HIP documents: each pointer is null or fit for what the function reads or writes there.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            pub unsafe extern "C" fn $name($($parameter: $ours),*) -> Status {
                $frame(stringify!($name), |$driver| $body)
            }
        )*

        /// The functions of this module, by name.
        pub(super) const TABLE: &[(&str, *const ())] =
            &[$((stringify!($name), $name as *const ()),)* (LAST, hipGetLastError as *const ())];
    };
}

functions! {
    call hipInit(flags: c_uint) |driver| device::init(driver, flags);
    framed hipDriverGetVersion(version: Out<c_int>) |_driver| version.put(VERSION);
    framed hipDrvGetErrorName(code: Status, text: Out<*const c_char>) |_driver| {
        text.put(words(code).map_or(c"hipErrorUnknown", |(name, _)| name).as_ptr())?;
        words(code).map(|_| ()).ok_or(status::INVALID_VALUE.into())
    };
    framed hipDrvGetErrorString(code: Status, text: Out<*const c_char>) |_driver| {
        text.put(words(code).map_or(c"unknown error", |(_, text)| text).as_ptr())?;
        words(code).map(|_| ()).ok_or(status::INVALID_VALUE.into())
    };
    call hipGetDeviceCount(count: Out<c_int>) |driver| count.put(driver.gpus.len() as c_int);
    call hipDeviceGet(device: Out<c_int>, ordinal: c_int) |driver| device.put(driver.gpu(ordinal)? as c_int);
    call hipDeviceGetName(name: Out<u8>, length: c_int, device: c_int) |driver| {
        driver.gpu(device)?;
        let room = usize::try_from(length).ok().filter(|&room| room > 0);
        let room = room.ok_or_else(|| misuse(status::INVALID_VALUE, format!("the name's length is {length}")))?;
        name.put_all(NAME.as_bytes()[..NAME.len().min(room - 1)].iter().copied().chain([0]))
    };
    call hipDeviceTotalMem(bytes: Out<usize>, device: c_int) |driver| {
        driver.gpu(device)?;
        bytes.put(driver.settings.memory as usize)
    };
    call hipDeviceGetAttribute(value: Out<c_int>, which: c_uint, device: c_int) |driver| {
        driver.gpu(device)?;
        if which >= NO_ATTRIBUTE {
            return Err(misuse(status::INVALID_VALUE, format!("{which} is no attribute of a device to HIP")));
        }
        value.put(ATTRIBUTES.iter().find(|(known, _)| *known == which).map_or(0, |&(_, value)| value))
    };
    call hipDeviceCanAccessPeer(answer: Out<c_int>, device: c_int, peer: c_int) |driver| {
        let (one, other) = (driver.gpu(device)?, driver.gpu(peer)?);
        answer.put(driver.are_peers(one, other).into())
    };
    call hipGetDevice(device: Out<c_int>) |driver| device.put(driver.context(device::get())? as c_int);
    call hipSetDevice(device: c_int) |driver| set_device(driver, device);

    call hipMemGetInfo(free: Out<usize>, total: Out<usize>) |driver| {
        let (left, all) = memory::info(driver)?;
        free.put(left)?;
        total.put(all)
    };
    call hipMalloc(address: Out<u64>, bytes: usize) |driver| address.checked()?.put(memory::allocate(driver, bytes as u64)?);
    call hipFree(address: u64) |driver| memory::free(driver, address);
    call hipHostMalloc(address: Out<u64>, bytes: usize, flags: c_uint) |driver| {
        address.checked()?.put(memory::allocate_pinned(driver, bytes as u64, flags)?)
    };
    call hipHostFree(address: usize) |driver| memory::free_pinned(driver, address as u64);

    call hipMemcpyHtoDAsync(to: u64, from: In<u8>, bytes: usize, stream: usize) |driver| {
        let (to, from) = ((Side::Device, to), (Side::Host, from.address()));
        copy::copy(driver, Copy { what: "hipMemcpyHtoDAsync", to, from, bytes, waits: false }, stream)
    };
    call hipMemcpyDtoDAsync(to: u64, from: u64, bytes: usize, stream: usize) |driver| {
        let (to, from) = ((Side::Device, to), (Side::Device, from));
        copy::copy(driver, Copy { what: "hipMemcpyDtoDAsync", to, from, bytes, waits: false }, stream)
    };
    call hipMemcpyAsync(to: u64, from: u64, bytes: usize, kind: c_uint, stream: usize) |driver| {
        let wrong = || misuse(INVALID_DIRECTION, format!("{kind} is no kind of a copy"));
        let &(source, target) = KINDS.get(kind as usize).ok_or_else(wrong)?;
        let (to, from) = ((target, to), (source, from));
        copy::copy(driver, Copy { what: "hipMemcpyAsync", to, from, bytes, waits: false }, stream)
    };
    call hipMemcpyPeerAsync(to: u64, device: c_int, from: u64, other: c_int, bytes: usize, stream: usize) |driver| {
        for (named, address) in [(driver.gpu(device)?, to), (driver.gpu(other)?, from)] {
            let place = driver.place(User::Anyone, address, bytes as u64, false);
            let home = place.map_err(|why| misuse(status::INVALID_VALUE, why))?.home;
            if home != Home::Gpu(named) {
                let why = format!("{address:#x} is said to be on GPU {named}, and is {home:?}");
                return Err(misuse(status::INVALID_VALUE, why));
            }
        }
        let (to, from) = ((Side::Device, to), (Side::Device, from));
        copy::copy(driver, Copy { what: "hipMemcpyPeerAsync", to, from, bytes, waits: false }, stream)
    };

    call hipThreadExchangeStreamCaptureMode(mode: Out<c_uint>) |_driver| mode.checked()?.exchange(capture::exchange_mode);
    call hipStreamCreateWithFlags(stream: Out<usize>, flags: c_uint) |driver| {
        stream.checked()?.put(stream::create(driver, flags)?)
    };
    call hipStreamDestroy(stream: usize) |driver| stream::destroy(driver, stream);
    call hipStreamSynchronize(stream: usize) |driver| stream::synchronize(driver, stream);
    call hipStreamWaitEvent(stream: usize, event: usize, flags: c_uint) |driver| {
        event::wait(driver, stream, event, flags)
    };
    call hipEventCreateWithFlags(event: Out<usize>, flags: c_uint) |driver| {
        event.checked()?.put(event::create(driver, flags)?)
    };
    call hipEventDestroy(event: usize) |driver| event::destroy(driver, event);
    call hipEventRecord(event: usize, stream: usize) |driver| event::record(driver, event, stream);
    call hipEventSynchronize(event: usize) |driver| event::synchronize(driver, event);
}

const LAST: &str = "hipGetLastError";

/// HIP's `hipGetLastError`: the last failure of this thread's calls, which is forgotten.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn hipGetLastError() -> Status {
    framed(LAST, |_| Ok(()));
    LAST_ERROR.replace(status::SUCCESS)
}
