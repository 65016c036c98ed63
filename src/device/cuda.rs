//! What the NVIDIA driver of this machine offers: its version, and each GPU's name, memory and compute capability.
//!
//! ```text
//!  probe() ---> dlopen libcuda.so.1 ---> every symbol ---> cuInit ---> the version, the GPUs
//!                      |                      |                  |
//!                      v                      v                  v
//!               Unavailable::Library   Unavailable::Symbol   Unavailable::Call
//! ```
//!
//! The driver is opened at run time, because most machines have none; that is an answer here, not a failure. No context
//! is created: none of the calls needs one, and one would take some hundred megabytes of each GPU.
//!
//! The types and the constants are cudarc's. Its calls (`driver::result`, `driver::safe`) are not used, for they go to a
//! library that cudarc opens itself: it panics where there is none or where a symbol is missing, it prefers another file
//! name (`libcuda.so`), and tests could not put a library of their own in its place. They also return the driver's
//! status as a Rust enum, in which the codes that newer drivers added do not exist. Here a status is a number, and
//! the macro `functions!` holds our prototypes against cudarc's when it compiles.

use std::{
    ffi::{CStr, OsStr, c_char, c_int, c_uint},
    fmt, mem, ptr,
};

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute, CUresult};

use crate::units::Bytes;

#[cfg(test)]
mod tests;

/// The file name that NVIDIA's driver installs for programs; `libcuda.so` comes with development packages only.
const LIBRARY: &str = "libcuda.so.1";

/// A status of the driver, `CUresult` in C.
type Status = u32;

/// What the driver offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The newest CUDA that the driver runs (`cuDriverGetVersion`); not the number of the driver's own release.
    pub cuda: Version,
    /// The GPUs that this process may use, in the driver's order. `CUDA_VISIBLE_DEVICES` hides and orders them.
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
}

/// A major and a minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// What it counts first.
    pub major: c_int,
    /// What it counts second.
    pub minor: c_int,
}

/// Why nothing can be said about GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The driver's library cannot be opened: as a rule, there is no driver.
    Library {
        /// The library that was looked for.
        name: String,
        /// What the dynamic loader said.
        why: String,
    },
    /// The library is not the driver, or one older than all that CUDA 11.4 knows.
    Symbol {
        /// The library.
        library: String,
        /// The function that it lacks.
        symbol: &'static str,
    },
    /// The driver answered a call with an error; without a GPU, already the first.
    Call {
        /// The function.
        function: &'static str,
        /// The driver's code.
        code: u32,
        /// The code's name and meaning in the driver's words; empty if the driver does not know it.
        name: String,
    },
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// One line: `NVIDIA driver for CUDA 13.0: 2 GPUs: 2 x NVIDIA H200, 139.80GiB, compute capability 9.0`.
impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.gpus.len();
        write!(f, "NVIDIA driver for CUDA {}: {count} GPU{}", self.cuda, if count == 1 { "" } else { "s" })?;
        let alike =
            |a: &Gpu, b: &Gpu| (&a.name, a.memory, a.compute_capability) == (&b.name, b.memory, b.compute_capability);
        for (index, group) in self.gpus.chunk_by(alike).enumerate() {
            write!(f, "{} ", if index == 0 { ":" } else { ";" })?;
            if group.len() > 1 {
                write!(f, "{} x ", group.len())?;
            }
            let Gpu { name, memory, compute_capability, .. } = &group[0];
            write!(f, "{name}, {memory}, compute capability {compute_capability}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // What nearly every machine without a GPU says. The loader names the file that is missing first, which may
            // be another one that the library needs.
            Self::Library { name, why }
                if why.starts_with(name.as_str()) && why.ends_with("No such file or directory") =>
            {
                write!(f, "no NVIDIA driver ({name} not found)")
            }
            Self::Library { name, why } => write!(f, "no NVIDIA driver: {name} cannot be loaded: {why}"),
            Self::Symbol { library, symbol } => {
                write!(f, "no NVIDIA driver that can be asked: {library} has no symbol {symbol}")
            }
            Self::Call { function, code, name } => {
                let name = if name.is_empty() { "an error without a name" } else { name };
                write!(f, "the NVIDIA driver shows no GPU: {function} gave {code}, {name}")
            }
        }
    }
}

impl std::error::Error for Unavailable {}

/// Declares [`Functions`]: one field for each function, with the symbol that it is found by and its parameters; `as` says
/// what cudarc calls a parameter that we pass otherwise. Does not compile where the rest differs from cudarc's.
macro_rules! functions {
    (@theirs $ours:ty) => { $ours };
    (@theirs $ours:ty as $theirs:ty) => { $theirs };
    ($($field:ident: $symbol:ident($($parameter:ty $(as $theirs:ty)?),*);)*) => {
        /// The functions of the driver that a probe calls.
        struct Functions {
            $($field: unsafe extern "C" fn($($parameter),*) -> Status,)*
        }

        impl Functions {
            /// Finds every function, or gives the symbol that is not there.
            fn find(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the symbol has the type that cudarc's declaration of it has, see below; only the status
                    // is a number here, which is what the C enum is to the caller.
                    $($field: *unsafe { library.get(concat!(stringify!($symbol), "\0").as_bytes()) }
                        .map_err(|_| stringify!($symbol))?,)*
                })
            }
        }

        const _: () = {
            assert!(size_of::<Status>() == size_of::<CUresult>());
            $(let _: unsafe fn($(functions!(@theirs $parameter $(as $theirs)?)),*) -> CUresult = sys::$symbol;)*
        };
    };
}

functions! {
    init: cuInit(c_uint);
    driver_version: cuDriverGetVersion(*mut c_int);
    device_count: cuDeviceGetCount(*mut c_int);
    device: cuDeviceGet(*mut CUdevice, c_int);
    device_name: cuDeviceGetName(*mut c_char, c_int, CUdevice);
    device_memory: cuDeviceTotalMem_v2(*mut usize, CUdevice);
    device_attribute: cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    error_name: cuGetErrorName(Status as CUresult, *mut *const c_char);
    error_string: cuGetErrorString(Status as CUresult, *mut *const c_char);
}

/// Asks the driver of this machine. Takes as long as the driver needs to start: up to seconds with many GPUs.
///
/// # Errors
/// There is no driver, it is not one that we know, or it answers with an error.
pub fn probe() -> Result<Driver, Unavailable> {
    probe_library(LIBRARY)
}

/// Asks the driver whose library has the name or the path `library`; tests have one of their own.
///
/// # Errors
/// As [`probe`].
pub fn probe_library(library: impl AsRef<OsStr>) -> Result<Driver, Unavailable> {
    let name = || library.as_ref().to_string_lossy().into_owned();
    // SAFETY: loading a library runs its initialisers; the driver is made for that.
    let opened = unsafe { libloading::Library::new(library.as_ref()) }.map_err(|error| Unavailable::Library {
        name: name(),
        why: std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string),
    })?;
    let functions = Functions::find(&opened).map_err(|symbol| Unavailable::Symbol { library: name(), symbol })?;
    // A driver that has started has threads and exit handlers, and an engine in this process may use it too.
    mem::forget(opened);
    functions.ask()
}

impl Functions {
    fn ask(&self) -> Result<Driver, Unavailable> {
        // SAFETY: zero is the only value that the parameter may have.
        self.check("cuInit", unsafe { (self.init)(0) })?;
        // SAFETY: the driver is initialised.
        let cuda = self.out("cuDriverGetVersion", |version| unsafe { (self.driver_version)(version) })?;
        // SAFETY: as above.
        let count = self.out("cuDeviceGetCount", |count| unsafe { (self.device_count)(count) })?;
        Ok(Driver {
            // 13020 is 13.2: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VERSION.html
            cuda: Version { major: cuda / 1000, minor: cuda % 1000 / 10 },
            gpus: (0..count).map(|ordinal| self.gpu(ordinal)).collect::<Result<_, _>>()?,
        })
    }

    fn gpu(&self, ordinal: c_int) -> Result<Gpu, Unavailable> {
        // SAFETY: the ordinal is below the count of devices.
        let device = self.out("cuDeviceGet", |device| unsafe { (self.device)(device, ordinal) })?;
        let mut name = [0u8; 256];
        // One byte less than there are: the last one stays NUL whatever the driver writes.
        let room = name.len() as c_int - 1;
        // SAFETY: the device is one of the driver's; at most `room` bytes are written.
        self.check("cuDeviceGetName", unsafe { (self.device_name)(name.as_mut_ptr().cast(), room, device) })?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
        // SAFETY: the device is one of the driver's.
        let memory: usize = self.out("cuDeviceTotalMem_v2", |bytes| unsafe { (self.device_memory)(bytes, device) })?;
        let attribute = |which| {
            // SAFETY: the device is one of the driver's, and `which` one of the attributes of CUDA 11.4.
            self.out("cuDeviceGetAttribute", |value| unsafe { (self.device_attribute)(value, which, device) })
        };
        let compute_capability = Version {
            major: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        };
        Ok(Gpu { ordinal, name, memory: Bytes::new(memory as u64), compute_capability })
    }

    /// Calls a function that writes one value.
    fn out<T: Default>(&self, function: &'static str, call: impl FnOnce(*mut T) -> Status) -> Result<T, Unavailable> {
        let mut value = T::default();
        let status = call(&raw mut value);
        self.check(function, status).map(|()| value)
    }

    /// What the driver says about `code`; nothing if it does not know it.
    fn error_text(
        &self,
        say: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
        code: Status,
    ) -> Option<String> {
        let mut text: *const c_char = ptr::null();
        // SAFETY: `say` is one of the two functions of this type, which take any code and may be called at any time.
        let status = unsafe { say(code, &raw mut text) };
        if status != CUresult::CUDA_SUCCESS as Status || text.is_null() {
            return None;
        }
        // SAFETY: the driver gave a constant C string.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    fn check(&self, function: &'static str, status: Status) -> Result<(), Unavailable> {
        if status == CUresult::CUDA_SUCCESS as Status {
            return Ok(());
        }
        let words = [self.error_text(self.error_name, status), self.error_text(self.error_string, status)];
        let name = words.into_iter().flatten().collect::<Vec<_>>().join(": ");
        Err(Unavailable::Call { function, code: status, name })
    }
}
