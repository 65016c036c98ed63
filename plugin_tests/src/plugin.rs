//! Loading a plugin: the library, its table, its errors, its extensions.

use std::{
    collections::BTreeMap,
    env,
    ffi::{c_char, c_void},
    path::{Path, PathBuf},
    ptr,
    sync::OnceLock,
};

use crate::{
    args, call,
    client::Value,
    raw::{Code, Failure, Result, text},
    sys,
};

/// Names the library under test; without it `libpjrt_arena.so` beside the test binary is taken.
pub const LIBRARY_VARIABLE: &str = "PJRT_ARENA_TEST_LIBRARY";
/// Names the engine behind the library under test; the Makefile sets it.
pub const ENGINE_VARIABLE: &str = "PJRT_ARENA_TEST_ENGINE";
/// What the library itself reads to find its engine.
const ENGINE_SETTING: &str = "PJRT_ARENA_ENGINE";

/// A loaded plugin. Never unloaded: engines do not survive `dlclose`.
pub struct Plugin {
    library: &'static libloading::Library,
    path: PathBuf,
    original: *const sys::PJRT_Api,
    /// A copy as long as the newest table: functions that the plugin does not have read as `None`.
    table: sys::PJRT_Api,
}

// SAFETY: the table is constant after load, and the C API is thread-safe by contract.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

/// The library under test, loaded once for the process, with its engine named in the environment.
///
/// # Panics
/// With one sentence when the library or the engine is missing.
pub fn plugin() -> &'static Plugin {
    static PLUGIN: OnceLock<&'static Plugin> = OnceLock::new();
    PLUGIN.get_or_init(|| {
        if env::var_os(ENGINE_SETTING).is_none() {
            // SAFETY: every test comes through this lock first, before any C library is loaded; until then only Rust
            // reads the environment, and Rust's readers are synchronised with this write.
            unsafe { env::set_var(ENGINE_SETTING, engine_path()) };
        }
        let plugin = Box::leak(Box::new(Plugin::load(&library_path()).unwrap_or_else(|error| panic!("{error}"))));
        call!(plugin, PJRT_Plugin_Initialize {}).unwrap_or_else(|error| panic!("PJRT_Plugin_Initialize: {error}"));
        plugin
    })
}

/// The path of the library under test.
pub fn library_path() -> PathBuf {
    if let Some(path) = env::var_os(LIBRARY_VARIABLE) {
        return path.into();
    }
    let binary = env::current_exe().expect("the test binary has a path");
    let deps = binary.parent().expect("the test binary lies in a folder");
    // Cargo writes the library into deps/ when it builds it for this crate; the copy one folder up may be older.
    let candidates = [Some(deps), deps.parent()].into_iter().flatten().map(|folder| folder.join("libpjrt_arena.so"));
    let found: Vec<PathBuf> = candidates.filter(|path| path.is_file()).collect();
    found.into_iter().next().unwrap_or_else(|| {
        panic!(
            "no libpjrt_arena.so beside {}: build it with `cargo build`, or name it in {LIBRARY_VARIABLE}",
            binary.display()
        )
    })
}

/// The path of the engine that tests run on.
pub fn engine_path() -> PathBuf {
    if let Some(path) = env::var_os(ENGINE_VARIABLE) {
        return path.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace has a root");
    let pythons = std::fs::read_dir(root.join(".venv/lib")).into_iter().flatten().flatten();
    let sites: Vec<PathBuf> = pythons.map(|python| python.path().join("site-packages")).collect();
    // The newest first, as the library has it (`engine/discover.rs`).
    ["lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"]
        .iter()
        .flat_map(|file| sites.iter().map(move |site| site.join(file)))
        .find(|path| path.is_file())
        .unwrap_or_else(|| {
            panic!("no engine in .venv: run `make` once, or name a CPU plugin of XLA's in {ENGINE_VARIABLE}")
        })
}

/// True when the library under test is the arena, not a bare engine.
pub fn is_arena() -> bool {
    plugin().exports("pjrt_arena_version")
}

impl Plugin {
    /// Loads the library at `path` and copies its table.
    ///
    /// # Errors
    /// The loader's sentence, with the path; a library without `GetPjrtApi`; a null table.
    pub fn load(path: &Path) -> Result<Self, String> {
        // SAFETY: loading runs the library's initialisers; that is what a framework does with a plugin.
        let library = unsafe { libloading::Library::new(path) }.map_err(|e| format!("{}: {e}", path.display()))?;
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        // SAFETY: the symbol has this type in every PJRT plugin.
        let get = unsafe { library.get::<unsafe extern "C" fn() -> *const sys::PJRT_Api>(b"GetPjrtApi\0") }
            .map_err(|e| format!("{}: {e}", path.display()))?;
        // SAFETY: as above.
        let original = unsafe { get() };
        if original.is_null() {
            return Err(format!("{}: GetPjrtApi returned null", path.display()));
        }
        let mut table = sys::PJRT_Api::default();
        // SAFETY: a table is valid for its own struct_size, and the copy is cut at ours.
        unsafe {
            let size = (*original).struct_size.min(size_of::<sys::PJRT_Api>());
            ptr::copy_nonoverlapping(original.cast::<u8>(), (&raw mut table).cast::<u8>(), size);
        }
        Ok(Self { library, path: path.into(), original, table })
    }

    /// The plugin's functions; those beyond its own table are `None`.
    pub fn table(&self) -> &sys::PJRT_Api {
        &self.table
    }

    /// The plugin's own table.
    pub fn original(&self) -> *const sys::PJRT_Api {
        self.original
    }

    /// Where the library was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The reported version: major, minor.
    pub fn version(&self) -> (i32, i32) {
        (self.table.pjrt_api_version.major_version, self.table.pjrt_api_version.minor_version)
    }

    /// The addresses of all slots inside the table's `struct_size`, in order.
    pub fn slots(&self) -> Vec<*const c_void> {
        let first = std::mem::offset_of!(sys::PJRT_Api, PJRT_Error_Destroy);
        let count = (self.table.struct_size - first) / size_of::<*const c_void>();
        // SAFETY: the table is valid for struct_size bytes, all function pointers from `first` on.
        unsafe { std::slice::from_raw_parts(self.original.byte_add(first).cast::<*const c_void>(), count) }.to_vec()
    }

    /// The first extension of type `kind`, or null.
    pub fn extension(&self, kind: u32) -> *const sys::PJRT_Extension_Base {
        self.extensions().into_iter().find(|(found, _)| *found == kind).map_or(ptr::null(), |(_, base)| base)
    }

    /// Every extension of the chain: type id and address.
    pub fn extensions(&self) -> Vec<(u32, *const sys::PJRT_Extension_Base)> {
        let mut next: *const sys::PJRT_Extension_Base = self.table.extension_start;
        let mut all = Vec::new();
        // SAFETY: the chain ends with null and its nodes live as long as the library.
        while let Some(base) = unsafe { next.as_ref() } {
            all.push((base.type_.0, next));
            next = base.next;
        }
        all
    }

    /// Whether the library exports `name`.
    pub fn exports(&self, name: &str) -> bool {
        // SAFETY: only the symbol's presence is asked for.
        unsafe { self.library.get::<*const c_void>(name.as_bytes()) }.is_ok()
    }

    /// The library's own function `name`.
    ///
    /// # Safety
    /// `F` must be the function's type.
    ///
    /// # Panics
    /// When the library exports no such function.
    pub unsafe fn symbol<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller's promise; the library is never unloaded.
        *unsafe { self.library.get::<F>(name.as_bytes()) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// What one of the library's own text functions says, such as `pjrt_arena_counters`; `None` when it is not
    /// exported.
    pub fn text(&self, name: &str) -> Option<String> {
        // SAFETY: every exported `pjrt_arena_*` function that gives text has this type.
        let tell = unsafe { self.library.get::<unsafe extern "C" fn(*mut c_char, usize) -> usize>(name.as_bytes()) };
        let tell = tell.ok()?;
        let mut text = vec![0u8; 4096];
        loop {
            // SAFETY: the function writes at most as many bytes as it is told there are.
            let length = unsafe { tell(text.as_mut_ptr().cast(), text.len()) };
            // The text may have grown since the length was asked for; the last byte is for the NUL.
            if length < text.len() {
                text.truncate(length);
                return Some(String::from_utf8(text).expect("the library's texts are UTF-8"));
            }
            text.resize(length + 1, 0);
        }
    }

    /// The same of a text that is JSON.
    ///
    /// # Panics
    /// When the library exports no such function, or it gives something else.
    pub fn json(&self, name: &str) -> serde_json::Value {
        let text = self.text(name).unwrap_or_else(|| panic!("the library under test has no {name}"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
    }

    /// What a text function of the library's writes into `capacity` bytes (NULL for none), and the length that it
    /// gives.
    pub fn text_into(&self, name: &str, capacity: usize) -> Option<(usize, String)> {
        // SAFETY: as for [`Self::text`].
        let tell = unsafe { self.library.get::<unsafe extern "C" fn(*mut c_char, usize) -> usize>(name.as_bytes()) };
        let mut text = vec![0u8; capacity];
        let buffer = if capacity == 0 { ptr::null_mut() } else { text.as_mut_ptr() };
        // SAFETY: as there.
        let length = unsafe { tell.ok()?(buffer.cast(), capacity) };
        Some((length, c_text(&text)))
    }

    /// What `pjrt_arena_map` draws: every device's memory, `columns` wide and `rows` high.
    pub fn map(&self, columns: usize, rows: usize) -> String {
        type Draw = unsafe extern "C" fn(usize, usize, *mut c_char, usize) -> usize;
        // SAFETY: the library under test exports it with this type.
        let draw = unsafe { self.library.get::<Draw>(b"pjrt_arena_map") }.expect("the library under test is the arena");
        // SAFETY: a NULL buffer only asks for the length.
        let length = unsafe { draw(columns, rows, ptr::null_mut(), 0) };
        let mut text = vec![0u8; 2 * length + 1];
        // SAFETY: the function writes at most as many bytes as it is told there are.
        unsafe { draw(columns, rows, text.as_mut_ptr().cast(), text.len()) };
        c_text(&text)
    }

    /// Turns a returned error into a [`Failure`], destroying it.
    ///
    /// # Errors
    /// The error, when there is one.
    pub fn check(&self, error: *mut sys::PJRT_Error) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        Err(self.take(error))
    }

    /// Reads and destroys `error`.
    pub fn take(&self, error: *mut sys::PJRT_Error) -> Failure {
        let mut message = args!(PJRT_Error_Message { error: error });
        let mut code = args!(PJRT_Error_GetCode { error: error });
        let mut destroy = args!(PJRT_Error_Destroy { error: error });
        // SAFETY: the error is alive until the last call; the message is copied before it.
        unsafe {
            self.table.PJRT_Error_Message.expect("every table has it")(&mut message);
            let nested = self.table.PJRT_Error_GetCode.expect("every table has it")(&mut code);
            assert!(nested.is_null(), "PJRT_Error_GetCode failed");
            let failure = Failure { code: Code(code.code.0), message: text(message.message, message.message_size) };
            self.table.PJRT_Error_Destroy.expect("every table has it")(&mut destroy);
            failure
        }
    }

    /// `PJRT_Plugin_Attributes`, by name.
    pub fn attributes(&self) -> BTreeMap<String, Value> {
        let args = call!(self, PJRT_Plugin_Attributes {}).expect("PJRT_Plugin_Attributes");
        Value::read_list(args.attributes, args.num_attributes)
    }
}

/// The text before the first NUL.
fn c_text(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
