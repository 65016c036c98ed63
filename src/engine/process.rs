//! The one engine of the process.

use std::{
    ffi::{CStr, OsString},
    os::unix::ffi::OsStringExt,
    path::PathBuf,
};

use once_cell::sync::OnceCell;
use parking_lot::Mutex;

use crate::{
    config::{self, EngineKind, EngineRequest, Environment, Setting},
    device::{
        Mover,
        host::{self, HostBacking},
    },
    engine::{
        Engine, atexit,
        choice::{self, Choice},
        discover::{Surroundings, discover},
        scratch, trial,
    },
    error::{Error, Result},
    logging,
    memory::AddressRange,
    units::Bytes,
};

/// The engine, and what discovery knows about it.
struct Chosen {
    engine: Engine,
    kind: Option<EngineKind>,
}

static CHOSEN: OnceCell<Chosen> = OnceCell::new();
static SEARCH: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The engine; found and loaded by the first call that succeeds, so that a failure can be mended and tried again.
///
/// # Errors
/// A setting is invalid, no engine is installed where we look, or the one that was named cannot be used.
pub fn engine() -> Result<&'static Engine> {
    let chosen = CHOSEN.get_or_try_init(|| -> Result<Chosen> {
        let environment = Environment::of_process();
        let (request, log) = config::before_client(&environment)?;
        logging::init(&log);
        let choice = choose(&request, &environment)?;
        for line in choice.lines() {
            log::info!("engine {line}");
        }
        let choice = choice.taken();
        let engine = Engine::load(&choice.path).map_err(|error| {
            let allowed = "allowed: the path of a PJRT plugin library, or one of cpu, cuda, rocm";
            let error = Error::new(error.code, format!("{} ({}; {allowed})", error.message, choice.why));
            error.with(host::Mappable::now())
        })?;
        if choice.kind == Some(EngineKind::Cpu) {
            warm(&engine);
            // SAFETY: the engine is never unloaded, and was loaded just now: nothing of it runs.
            if let Err(error) = unsafe { atexit::keep(engine.inside()) } {
                log::debug!("the engine takes its statics down at the end: {error}");
            }
        }
        Ok(Chosen { engine, kind: choice.kind })
    })?;
    Ok(&chosen.engine)
}

/// Prepares warm memory for what the engine allocates itself. Without it everything works, with malloc's memory.
fn warm(engine: &Engine) {
    let host = HostBacking::new();
    let mover = host.clone();
    let discard = move |region: AddressRange| {
        // SAFETY: a hole of the pool's region, which its arena keeps everybody out of meanwhile.
        unsafe { mover.discard(region.address, region.bytes) }.unwrap_or_else(|error| {
            log::warn!("{} of scratch could not be given back: {error}", region.bytes);
            Bytes::ZERO
        })
    };
    // Where addresses are scarce they are not to be all the pool's: most are for arrays.
    let most = host::Mappable::now().map_or(Bytes::MAX, |mappable| Bytes::new(mappable.free().get() / 4));
    let installed = host::capacity().map(|capacity| capacity.min(most)).and_then(|capacity| {
        // SAFETY: the engine is never unloaded, and was loaded just now: it has no client, so nothing of it runs.
        unsafe { scratch::install(engine.inside(), Box::new(host), capacity, Box::new(discard)) }
    });
    if let Err(error) = installed {
        log::info!("programs' scratch comes from malloc: {error}");
    }
}

/// What kind of engine is loaded; `None` if its path does not tell.
pub fn kind() -> Option<EngineKind> {
    CHOSEN.get().and_then(|chosen| chosen.kind)
}

/// The engine that was loaded, and its kind; `None` before that.
pub fn loaded() -> Option<(&'static Engine, Option<EngineKind>)> {
    CHOSEN.get().map(|chosen| (&chosen.engine, chosen.kind))
}

/// Where addresses are limited, keeps malloc from taking 64 MiB of them for each of XLA's threads, until none are left
/// for a thread's stack. Who has set the number of malloc's arenas has decided.
fn spare_addresses(environment: &Environment) {
    let is_set = environment.get("MALLOC_ARENA_MAX").is_some()
        || environment
            .get("GLIBC_TUNABLES")
            .is_some_and(|all| all.to_string_lossy().contains("glibc.malloc.arena_max"));
    if !is_set && host::Mappable::now().is_some() {
        host::share_malloc_arenas();
    }
}

/// Finds the engines that `request` can mean and takes one, without loading it here: engines for CPUs are tried in a
/// process of their own.
///
/// # Errors
/// There is none, or none that can serve.
pub fn choose(request: &Setting<EngineRequest>, environment: &Environment) -> Result<Choice> {
    let search_path = SEARCH.lock().clone();
    let own_library = own_path();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let arguments: Vec<_> = std::env::args_os().collect();
    let found = discover(
        request,
        &Surroundings {
            search_path: &search_path,
            environment,
            arguments: &arguments,
            own_library: own_library.as_deref(),
            maps: &maps,
        },
    )?;
    spare_addresses(environment);
    choice::choose(found, |choice| trial::of(&choice.path))
}

/// Where this library was loaded from.
pub fn own_path() -> Option<PathBuf> {
    library_of(own_path as *const () as usize)
}

/// Where the library was loaded from that the function at that address lies in.
pub fn library_of(function: usize) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked for, and `info` is a place to write to. The name that dladdr gives is a C string
    // that lives as long as the library, which this one or the engine is, or one that a handler keeps.
    let name = unsafe {
        let found = libc::dladdr(std::ptr::without_provenance(function), &raw mut info);
        (found != 0 && !info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname).to_bytes().to_vec())
    };
    name.map(|name| PathBuf::from(OsString::from_vec(name)))
}

/// Names the folders in which engines are looked for. Has no effect once an engine is loaded.
pub fn set_search_path(folders: Vec<PathBuf>) {
    *SEARCH.lock() = folders;
}
