//! The driver as the tests use it: its control, and a stream and memory of their own.

use std::{
    env,
    ffi::{CString, c_char, c_void},
    path::PathBuf,
    ptr,
    sync::OnceLock,
};

use plugin_tests::{Buffer, Client, ElementType, Gate, Plugin, Result, Signal, View, plugin, sys};

/// Elements of most programs' arrays.
pub const N: usize = 1024;
/// Their dimensions.
pub const DIMS: [i64; 1] = [N as i64];
/// Their bytes.
pub const BYTES: usize = N * size_of::<f32>();

/// The library beside the test binary.
pub fn library(name: &str) -> String {
    let binary = env::current_exe().expect("the test binary has a path");
    let path: PathBuf = binary.with_file_name(name);
    assert!(path.is_file(), "no {}: cargo builds it with this test", path.display());
    path.to_str().expect("a path of letters").into()
}

/// Runs the rest of the test in a process of its own on the fake engine, with these variables, and asserts that nothing
/// in it raced; an expression after the body says how many violations there are instead.
#[macro_export]
macro_rules! on_fake_gpu {
    ([$($variable:expr),* $(,)?], $body:expr) => { $crate::on_fake_gpu!([$($variable),*], $body, 0) };
    ([$($variable:expr),* $(,)?], $body:expr, $violations:expr) => {{
        let engine = $crate::common::library("libfake_cuda_engine.so");
        let cpu = plugin_tests::plugin::engine_path();
        let cpu = cpu.to_str().expect("a path of letters");
        plugin_tests::in_child!(
            &[("PJRT_ARENA_TEST_LIBRARY", &engine), ("FAKE_ENGINE_CPU", cpu), $($variable),*],
            || {
                $body();
                let violations = $crate::common::Driver::get().violations();
                assert_eq!(violations.len(), $violations, "{violations:#?}");
            }
        )
    }};
}

/// A client with all GPUs.
pub fn client() -> Client {
    Client::create_with(plugin(), &[]).expect("PJRT_Client_Create")
}

/// `start, start + 1, ...`
pub fn ramp(start: f32) -> Vec<f32> {
    (0..N).map(|at| start + at as f32).collect()
}

/// The gate's ticket as a device scalar.
pub fn ticket(client: &Client, gate: &Gate) -> Buffer {
    client.put(&[gate.ticket()], &[]).expect("a scalar")
}

/// The driver's library, the same as the engine's.
pub struct Driver(libloading::Library);

impl Driver {
    /// Opens it.
    pub fn get() -> &'static Self {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        DRIVER.get_or_init(|| {
            // SAFETY: the driver is made to be opened.
            Self(unsafe { libloading::Library::new(library("libfake_cuda.so")) }.expect("the driver opens"))
        })
    }

    /// # Safety
    /// `F` must be the function's type.
    unsafe fn symbol<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller's promise; the library is never closed.
        *unsafe { self.0.get::<F>(name.as_bytes()) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// What was done wrong so far.
    pub fn violations(&self) -> Vec<String> {
        // SAFETY: the type is the driver's, and it writes no more than there is room for.
        let text = unsafe {
            let tell: unsafe extern "C" fn(*mut c_char, usize) -> usize = self.symbol("fake_cuda_violations");
            let mut text = vec![0_u8; 1 << 16];
            tell(text.as_mut_ptr().cast(), text.len());
            text
        };
        let text = String::from_utf8(text.split(|&byte| byte == 0).next().unwrap_or_default().to_vec());
        text.expect("sentences").lines().map(str::to_owned).collect()
    }

    /// Sets something.
    pub fn configure(&self, name: &str, value: &str) {
        let (name, value) = (CString::new(name).expect("no NUL"), CString::new(value).expect("no NUL"));
        // SAFETY: the type is the driver's; both are C strings.
        let status = unsafe {
            let set: unsafe extern "C" fn(*const c_char, *const c_char) -> u32 = self.symbol("fake_cuda_configure");
            set(name.as_ptr(), value.as_ptr())
        };
        assert_eq!(status, 0, "{name:?} {value:?}");
    }
}

/// Memory of GPU 0 that the test owns, and a stream that writes it.
pub struct Own {
    /// Its first byte.
    pub address: u64,
    stream: *mut c_void,
}

macro_rules! cuda {
    ($name:ident($($argument:expr => $type:ty),*)) => {{
        // SAFETY: the prototype is CUDA's, and handles and places are valid.
        let status = unsafe {
            let function: unsafe extern "C" fn($($type),*) -> u32 = Driver::get().symbol(stringify!($name));
            function($($argument),*)
        };
        assert_eq!(status, 0, stringify!($name));
    }};
}

/// Memory of GPU 0 behind an address that can be taken away while it is used.
pub struct Mapped {
    /// Its first byte.
    pub address: u64,
}

impl Mapped {
    const SIZE: usize = 2 << 20;

    /// Maps it.
    pub fn new() -> Self {
        // CUmemAllocationProp: pinned memory of device 0, without handles for others. CUmemAccessDesc: it reads and
        // writes.
        let properties: [u32; 8] = [1, 0, 1, 0, 0, 0, 0, 0];
        let access: [u32; 3] = [1, 0, 3];
        let (mut handle, mut address) = (0, 0);
        let size = Self::SIZE;
        cuda!(cuMemAddressReserve(&raw mut address => *mut u64, size => usize, 0 => usize, 0 => u64, 0 => u64));
        cuda!(cuMemCreate(&raw mut handle => *mut u64, size => usize, properties.as_ptr() => *const u32, 0 => u64));
        cuda!(cuMemMap(address => u64, size => usize, 0 => usize, handle => u64, 0 => u64));
        cuda!(cuMemSetAccess(address => u64, size => usize, access.as_ptr() => *const u32, 1 => usize));
        Self { address }
    }

    /// Takes it away.
    pub fn unmap(&self) {
        cuda!(cuMemUnmap(self.address => u64, Self::SIZE => usize));
    }
}

impl Own {
    /// Room for an array of most programs, and a stream.
    pub fn new() -> Self {
        let (mut context, mut address, mut stream) = (ptr::null_mut(), 0, ptr::null_mut());
        cuda!(cuInit(0 => u32));
        cuda!(cuDevicePrimaryCtxRetain(&raw mut context => *mut *mut c_void, 0 => i32));
        cuda!(cuCtxSetCurrent(context => *mut c_void));
        cuda!(cuMemAlloc_v2(&raw mut address => *mut u64, BYTES => usize));
        cuda!(cuStreamCreate(&raw mut stream => *mut *mut c_void, 1 => u32));
        Self { address, stream }
    }

    /// Fills the memory with a byte, when the stream comes to it.
    pub fn fill(&self, byte: u8) {
        cuda!(cuMemsetD8Async(self.address => u64, byte => u8, BYTES => usize, self.stream => *mut c_void));
    }

    /// Waits until the stream has done what it was given.
    pub fn synchronize(&self) {
        cuda!(cuStreamSynchronize(self.stream => *mut c_void));
    }

    /// Lets another stream wait for what this one was given.
    pub fn order(&self, stream: isize) {
        let mut event = ptr::null_mut();
        cuda!(cuEventCreate(&raw mut event => *mut *mut c_void, 2 => u32));
        cuda!(cuEventRecord(event => *mut c_void, self.stream => *mut c_void));
        let stream = ptr::with_exposed_provenance_mut::<c_void>(stream as usize);
        cuda!(cuStreamWaitEvent(stream => *mut c_void, event => *mut c_void, 0 => u32));
    }

    /// Lets this stream wait for a buffer, through the engine.
    pub fn follow(&self, buffer: &Buffer) {
        let mut args = sys::PJRT_Wait_Until_Buffer_Ready_On_Stream_Args {
            struct_size: size_of::<sys::PJRT_Wait_Until_Buffer_Ready_On_Stream_Args>(),
            stream: self.stream.expose_provenance() as isize,
            buffer: buffer.raw(),
        };
        let wait = stream_extension().wait_stream.expect("the extension has it");
        // SAFETY: stream and buffer are alive.
        plugin().check(unsafe { wait(&raw mut args) }).expect("wait_stream");
    }

    /// A view of the memory, and when it is let go.
    pub fn view(&self, client: &Client, stream: isize) -> Result<(Buffer, Signal<()>)> {
        Self::view_at(client, self.address, &DIMS, stream)
    }

    /// The same of another part of the memory.
    pub fn view_at(client: &Client, address: u64, dims: &[i64], stream: isize) -> Result<(Buffer, Signal<()>)> {
        let view = View {
            address: ptr::with_exposed_provenance_mut(address as usize),
            element_type: ElementType::F32,
            dims,
            device: None,
            memory: Some(client.device().default_memory()),
            stream,
        };
        // SAFETY: the memory is never freed.
        unsafe { Buffer::view(client, &view) }
    }
}

fn stream_extension() -> sys::PJRT_Stream_Extension {
    let base = plugin().extension(sys::PJRT_Extension_Type_Stream.0);
    assert!(!base.is_null(), "the engine has the Stream extension");
    // SAFETY: an extension of this type is this struct.
    unsafe { base.cast::<sys::PJRT_Stream_Extension>().read() }
}

/// A stream for arrays of outsiders on the first device.
pub fn external_stream(plugin: &'static Plugin, client: &Client) -> isize {
    let mut args = sys::PJRT_Get_Stream_For_External_Ready_Events_Args {
        struct_size: size_of::<sys::PJRT_Get_Stream_For_External_Ready_Events_Args>(),
        device: client.device().raw(),
        stream: 0,
    };
    let get = stream_extension().get_stream.expect("the extension has it");
    // SAFETY: the device is alive.
    plugin.check(unsafe { get(&raw mut args) }).expect("get_stream");
    args.stream
}
