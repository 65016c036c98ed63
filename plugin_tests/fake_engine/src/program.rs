//! Executables: the CPU engine's handles, and what a launch has to know of the program.
//!
//! Which argument's memory becomes which result's is read from the optimised program, as XLA does.

use std::{
    collections::HashMap,
    env,
    ffi::c_char,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};
use prost::Message;

use crate::{
    autotune,
    client::{self, Client, PINNED_HOST},
    cpu::{self, Raw},
    entry::{Entry, list, required, text},
    error::{Error, Result},
    shape::Shape,
    sys::{self, CStruct},
};

/// The parts of XLA's protocol buffers that are read here (`xla/service/hlo.proto`, `xla/xla_data.proto`).
mod proto {
    /// `xla.HloModuleProtoWithConfig`
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Program {
        #[prost(message, optional, tag = "1")]
        pub module: Option<Module>,
        #[prost(message, optional, tag = "2")]
        pub config: Option<Config>,
    }

    impl Program {
        /// The layout of a result.
        pub fn result_layout(&self, result: usize) -> Option<&Layout> {
            let root = self.config.as_ref()?.entry_computation_layout.as_ref()?.result.as_ref()?;
            root.tuple_shapes.get(result).unwrap_or(root).layout.as_ref()
        }
    }

    /// `xla.HloModuleConfigProto`
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Config {
        #[prost(message, optional, tag = "1")]
        pub entry_computation_layout: Option<ProgramShape>,
    }

    /// `xla.HloModuleProto`
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Module {
        #[prost(message, optional, tag = "4")]
        pub host_program_shape: Option<ProgramShape>,
        #[prost(message, optional, tag = "8")]
        pub input_output_alias: Option<Aliases>,
    }

    /// `xla.ProgramShapeProto`
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ProgramShape {
        #[prost(message, repeated, tag = "1")]
        pub parameters: Vec<Shape>,
        #[prost(message, optional, tag = "2")]
        pub result: Option<Shape>,
    }

    /// `xla.ShapeProto`
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Shape {
        #[prost(int32, tag = "2")]
        pub element_type: i32,
        #[prost(int64, repeated, tag = "3")]
        pub dimensions: Vec<i64>,
        #[prost(message, repeated, tag = "4")]
        pub tuple_shapes: Vec<Shape>,
        #[prost(message, optional, tag = "5")]
        pub layout: Option<Layout>,
    }

    /// `xla.LayoutProto`
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Layout {
        #[prost(int64, tag = "8")]
        pub memory_space: i64,
        #[prost(int64, repeated, tag = "1")]
        pub minor_to_major: Vec<i64>,
    }

    impl Shape {
        /// Bytes of a dense array of this shape, if the type is a plain one (`xla.PrimitiveType`).
        pub fn bytes(&self) -> Option<u64> {
            let bits = match self.element_type {
                26 | 27 => 2,
                21 | 22 | 32 => 4,
                1 | 2 | 6 | 19 | 20 | 23..=25 | 28 | 29 | 33 => 8,
                3 | 7 | 10 | 16 => 16,
                4 | 8 | 11 => 32,
                5 | 9 | 12 | 15 => 64,
                18 => 128,
                _ => return None,
            };
            let all = self.dimensions.iter().try_fold(bits, |all: u64, &dim| all.checked_mul(u64::try_from(dim).ok()?));
            all.map(|bits| bits.div_ceil(8))
        }
    }

    /// `xla.HloInputOutputAliasProto`
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Aliases {
        #[prost(message, repeated, tag = "1")]
        pub entries: Vec<Alias>,
    }

    /// `xla.HloInputOutputAliasProto.AliasEntryProto`
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Alias {
        #[prost(int64, repeated, tag = "1")]
        pub output_shape_index: Vec<i64>,
        #[prost(int64, tag = "2")]
        pub parameter_number: i64,
    }
}

/// What a launch has to know.
#[derive(Debug, Default)]
pub struct Program {
    /// Bytes of each argument, if they are known.
    pub arguments: Vec<Option<u64>>,
    /// For each result, the argument whose memory it takes over.
    pub aliases: Vec<Option<usize>>,
    /// What the results are.
    pub results: Vec<Shape>,
    /// In which kind of memory each of them lies.
    pub kinds: Vec<&'static str>,
    /// Bytes of scratch.
    pub temp: u64,
}

type Bytes = Arc<[u8]>;

/// An executable, alive while a launch of it is.
pub struct Loaded {
    /// The CPU engine's.
    pub handle: Raw<sys::PJRT_LoadedExecutable>,
    /// Its client.
    pub client: Arc<Client>,
    /// The numbers of its devices.
    pub devices: Vec<usize>,
    /// What it does.
    pub program: Program,
    /// The options that it was compiled with.
    options: Option<Bytes>,
    /// For each device, the addresses of the last launch.
    addresses: Mutex<HashMap<usize, Vec<u64>>>,
    /// How often a launch had other addresses than the one before: a CUDA graph would have been recorded anew.
    pub rerecordings: AtomicU64,
}

static LOADED: LazyLock<RwLock<HashMap<usize, Arc<Loaded>>>> = LazyLock::new(RwLock::default);
/// The compile options of executables that are not loaded, as far as they are known.
static OPTIONS: LazyLock<RwLock<HashMap<usize, Option<Bytes>>>> = LazyLock::new(RwLock::default);

/// The executable behind a handle.
///
/// # Errors
/// INVALID_ARGUMENT for a handle that is none.
pub fn loaded(handle: *mut sys::PJRT_LoadedExecutable) -> Result<Arc<Loaded>> {
    LOADED
        .read()
        .get(&handle.addr())
        .cloned()
        .ok_or_else(|| Error::invalid(format!("{handle:p} is no executable of this engine")))
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Ok(cpu) = cpu::engine() {
            let args = sys::PJRT_LoadedExecutable_Destroy_Args { executable: self.handle.0, ..Default::default() };
            // SAFETY: the executable is ours, and nothing names it any more.
            drop(unsafe { cpu.call(args) });
        }
    }
}

impl Loaded {
    /// Notes the addresses of a launch on a device, and whether they are others than last time.
    pub fn note(&self, device: usize, addresses: Vec<u64>) {
        let before = self.addresses.lock().insert(device, addresses.clone());
        if before.is_some_and(|before| before != addresses) {
            self.rerecordings.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes ownership of an executable of the CPU engine.
    ///
    /// # Safety
    /// The handle must be alive, and nobody else destroy it.
    unsafe fn own(
        handle: *mut sys::PJRT_LoadedExecutable,
        client: Arc<Client>,
        options: Option<Bytes>,
    ) -> Result<*mut sys::PJRT_LoadedExecutable> {
        let cpu = cpu::engine()?;
        // From here on a failure destroys it.
        let mut loaded = Self {
            handle: Raw(handle),
            client,
            devices: Vec::new(),
            program: Program::default(),
            options,
            addresses: Mutex::default(),
            rerecordings: AtomicU64::new(0),
        };
        // SAFETY: the caller's promise; lists live as long as the executable.
        unsafe {
            let args =
                sys::PJRT_LoadedExecutable_GetExecutable_Args { loaded_executable: handle, ..Default::default() };
            let executable = cpu.call(args)?.executable;
            let program = Program::read(executable);
            cpu.call(sys::PJRT_Executable_Destroy_Args { executable, ..Default::default() })?;
            loaded.program = program?;
            let args = sys::PJRT_LoadedExecutable_AddressableDevices_Args { executable: handle, ..Default::default() };
            let args = cpu.call(args)?;
            let devices = list(args.addressable_devices, args.num_addressable_devices).iter();
            let wanted = devices.len();
            loaded.devices = devices.filter_map(|&device| loaded.client.number(device)).collect();
            if loaded.devices.len() != wanted {
                return Err(Error::unimplemented(
                    "the program runs on devices of other processes too, which the fake CUDA engine does not play",
                ));
            }
        }
        LOADED.write().insert(handle.addr(), Arc::new(loaded));
        Ok(handle)
    }
}

/// Names the results that lie in `pinned_host`.
const PINNED_RESULTS: &str = "FAKE_ENGINE_PINNED_RESULTS";

/// The results of a program that the environment says lie in `pinned_host`: `NAME:NUMBER`, with commas between. XLA:GPU
/// has that from `mhlo.memory_kind`, which XLA:CPU leaves out when it compiles.
fn pinned_results(program: &str) -> Vec<usize> {
    let said = env::var(PINNED_RESULTS).unwrap_or_default();
    let those = said.split(',').filter_map(|result| result.split_once(':')).filter(|(name, _)| *name == program);
    those.filter_map(|(_, number)| number.parse().ok()).collect()
}

impl Entry for sys::PJRT_Executable_OutputMemoryKinds_Args {
    unsafe fn run(&mut self) -> Result {
        let executable = required(self.executable, "PJRT_Executable_OutputMemoryKinds", "executable")?;
        // SAFETY: the caller's handle is alive.
        let kinds = unsafe { Program::read(executable)? }.kinds;
        // They live as long as the executable, and nobody here knows when that ends.
        let (names, sizes): (Vec<*const c_char>, Vec<usize>) =
            kinds.iter().map(|kind| (kind.as_ptr().cast::<c_char>(), kind.len())).unzip();
        self.num_outputs = kinds.len();
        (self.memory_kinds, self.memory_kind_sizes) = (names.leak().as_ptr(), sizes.leak().as_ptr());
        Ok(())
    }
}

impl Program {
    /// # Safety
    /// The executable must be alive.
    unsafe fn read(executable: *mut sys::PJRT_Executable) -> Result<Self> {
        /// `xla::Layout::kHostMemorySpace`
        const HOST: i64 = 5;
        let cpu = cpu::engine()?;
        // SAFETY: the caller's promise; lists live as long as the executable.
        unsafe {
            let types = cpu.call(sys::PJRT_Executable_OutputElementTypes_Args { executable, ..Default::default() })?;
            let types = list(types.output_types, types.num_output_types);
            let args = cpu.call(sys::PJRT_Executable_OutputDimensions_Args { executable, ..Default::default() })?;
            let optimized = optimized(executable)?;
            let name = cpu.call(sys::PJRT_Executable_Name_Args { executable, ..Default::default() })?;
            let said = pinned_results(&text(name.executable_name, name.executable_name_size));
            let (mut results, mut kinds) = (Vec::new(), Vec::new());
            let mut dims = args.dims;
            for (&element_type, &rank) in types.iter().zip(list(args.dim_sizes, args.num_outputs)) {
                let shape = Shape::new(element_type, list(dims, rank))?;
                dims = dims.wrapping_add(rank);
                // Without a layout, and for a token, the default one.
                let layout = optimized.result_layout(results.len());
                results.push(match layout.filter(|layout| layout.minor_to_major.len() == rank) {
                    Some(layout) => shape.in_order(&layout.minor_to_major)?,
                    None => shape,
                });
                let pinned = layout.is_some_and(|layout| layout.memory_space == HOST) || said.contains(&kinds.len());
                kinds.push(if pinned { PINNED_HOST } else { "device" });
            }
            let args = sys::PJRT_Executable_GetCompiledMemoryStats_Args { executable, ..Default::default() };
            let temp = u64::try_from(cpu.call(args)?.temp_size_in_bytes).unwrap_or(0);
            let module = optimized.module.unwrap_or_default();
            let mut aliases = vec![None; results.len()];
            for entry in module.input_output_alias.iter().flat_map(|aliases| &aliases.entries) {
                // A single result has no index, the results of a tuple have one number.
                let result = entry.output_shape_index.first().map_or(Some(0), |&at| usize::try_from(at).ok());
                if let Some(place) = result.and_then(|result| aliases.get_mut(result)) {
                    *place = usize::try_from(entry.parameter_number).ok();
                }
            }
            let parameters = module.host_program_shape.map(|shape| shape.parameters).unwrap_or_default();
            let arguments = parameters.iter().map(proto::Shape::bytes).collect();
            Ok(Self { arguments, aliases, results, kinds, temp })
        }
    }
}

/// The optimised program.
///
/// # Safety
/// The executable must be alive.
unsafe fn optimized(executable: *mut sys::PJRT_Executable) -> Result<proto::Program> {
    let cpu = cpu::engine()?;
    let mut program = sys::PJRT_Program { struct_size: sys::PJRT_Program::STRUCT_SIZE, ..Default::default() };
    let args =
        sys::PJRT_Executable_OptimizedProgram_Args { executable, program: &raw mut program, ..Default::default() };
    // SAFETY: the caller's promise; the second call has room for what the first one asked for.
    let code = unsafe {
        cpu.call(args)?;
        let mut code = vec![0_u8; (*args.program).code_size];
        (*args.program).code = code.as_mut_ptr().cast::<c_char>();
        cpu.call(args)?;
        code
    };
    proto::Program::decode(&code[..])
        .map_err(|error| Error::internal(format!("the optimised program cannot be read: {error}")))
}

impl Entry for sys::PJRT_Client_Compile_Args {
    unsafe fn run(&mut self) -> Result {
        let client = client::client(self.client)?;
        autotune::try_out(&client)?;
        // SAFETY: the caller's struct, handed on; the executable is the caller's then, that is ours.
        unsafe {
            let options = list(self.compile_options.cast::<u8>(), self.compile_options_size).into();
            cpu::engine()?.pass(self)?;
            self.executable = Loaded::own(self.executable, client, Some(options))?;
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_Compile_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's struct, handed on.
        unsafe {
            let options: Bytes = list(self.compile_options.cast::<u8>(), self.compile_options_size).into();
            cpu::engine()?.pass(self)?;
            OPTIONS.write().insert(self.executable.addr(), Some(options));
        }
        Ok(())
    }
}

impl Entry for sys::PJRT_LoadedExecutable_Destroy_Args {
    unsafe fn run(&mut self) -> Result {
        if self.executable.is_null() {
            return Ok(());
        }
        let removed = LOADED.write().remove(&self.executable.addr());
        // Launches that still run hold a share of it.
        removed
            .map(drop)
            .ok_or_else(|| Error::invalid(format!("{:p} is no executable of this engine", self.executable)))
    }
}

impl Entry for sys::PJRT_LoadedExecutable_GetExecutable_Args {
    unsafe fn run(&mut self) -> Result {
        let options = loaded(self.loaded_executable)?.options.clone();
        // SAFETY: the caller's struct, handed on.
        unsafe { cpu::engine()?.pass(self)? };
        OPTIONS.write().insert(self.executable.addr(), options);
        Ok(())
    }
}

impl Entry for sys::PJRT_Executable_Destroy_Args {
    unsafe fn run(&mut self) -> Result {
        OPTIONS.write().remove(&self.executable.addr());
        // SAFETY: the caller's struct, handed on.
        unsafe { cpu::engine()?.pass(self) }
    }
}

/// The compile options of an executable.
fn options_of(executable: *const sys::PJRT_Executable) -> Option<Bytes> {
    OPTIONS.read().get(&executable.addr()).cloned().flatten()
}

impl Entry for sys::PJRT_Executable_GetCompileOptions_Args {
    unsafe fn run(&mut self) -> Result {
        unsafe extern "C" fn end(options: *mut sys::PJRT_SerializedCompileOptions) {
            if !options.is_null() {
                // SAFETY: the holder is the box below, and ends once.
                drop(unsafe { Box::from_raw(options.cast::<Bytes>()) });
            }
        }
        let executable = required(self.executable, "PJRT_Executable_GetCompileOptions", "executable")?;
        let options = options_of(executable)
            .ok_or_else(|| Error::unimplemented("the compile options of this executable are not known"))?;
        (self.serialized_bytes, self.serialized_bytes_size) = (options.as_ptr().cast(), options.len());
        self.serialized_compile_options = Box::into_raw(Box::new(options)).cast();
        self.serialized_compile_options_deleter = Some(end);
        Ok(())
    }
}

/// In front of serialised executables: eight letters, the length of the compile options, the options.
const ENVELOPE: &[u8; 8] = b"fakecuda";

impl Entry for sys::PJRT_Executable_Serialize_Args {
    unsafe fn run(&mut self) -> Result {
        unsafe extern "C" fn end(blob: *mut sys::PJRT_SerializedExecutable) {
            if !blob.is_null() {
                // SAFETY: the holder is the box below, and ends once.
                drop(unsafe { Box::from_raw(blob.cast::<Vec<u8>>()) });
            }
        }
        let options = options_of(self.executable).unwrap_or_default();
        // SAFETY: the caller's struct, handed on; the engine's bytes live until its deleter is called.
        let blob = unsafe {
            let args = cpu::engine()?.call(*self)?;
            let bytes = list(args.serialized_bytes.cast::<u8>(), args.serialized_bytes_size);
            let blob = [&ENVELOPE[..], &(options.len() as u64).to_le_bytes(), &options, bytes].concat();
            if let Some(delete) = args.serialized_executable_deleter {
                delete(args.serialized_executable);
            }
            Box::new(blob)
        };
        (self.serialized_bytes, self.serialized_bytes_size) = (blob.as_ptr().cast(), blob.len());
        self.serialized_executable = Box::into_raw(blob).cast();
        self.serialized_executable_deleter = Some(end);
        Ok(())
    }
}

impl Entry for sys::PJRT_Executable_DeserializeAndLoad_Args {
    unsafe fn run(&mut self) -> Result {
        let client = client::client(self.client)?;
        // SAFETY: the caller's bytes.
        let (blob, other) = unsafe {
            let blob = list(self.serialized_executable.cast::<u8>(), self.serialized_executable_size);
            let (data, size) =
                (self.overridden_serialized_compile_options, self.overridden_serialized_compile_options_size);
            (blob, list(data.cast::<u8>(), size))
        };
        let opened = blob.strip_prefix(ENVELOPE).and_then(|rest| {
            let (len, rest) = rest.split_first_chunk::<8>()?;
            rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)
        });
        let (options, inner) = opened
            .ok_or_else(|| Error::invalid("these bytes are no executable that the fake CUDA engine serialised"))?;
        let options = if other.is_empty() { options } else { other };
        let args =
            Self { serialized_executable: inner.as_ptr().cast(), serialized_executable_size: inner.len(), ..*self };
        // SAFETY: the caller's struct with other bytes; the executable is ours then.
        unsafe {
            let handle = cpu::engine()?.call(args)?.loaded_executable;
            self.loaded_executable = Loaded::own(handle, client, Some(options.into()))?;
        }
        Ok(())
    }
}

/// How often the executable was launched with other addresses than the time before, on the same device: what XLA's CUDA
/// graphs record anew. 0 for what is no executable of this engine.
#[unsafe(no_mangle)]
pub extern "C" fn fake_engine_rerecordings(executable: *mut sys::PJRT_LoadedExecutable) -> u64 {
    loaded(executable).map_or(0, |loaded| loaded.rerecordings.load(Ordering::Relaxed))
}
