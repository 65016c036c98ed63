//! Handlers for custom calls: those that a framework, or its user, registers through this library with the engine.
//!
//! ```text
//!  PJRT FFI extension: register_handler, type_register --+
//!  pjrt_arena_ffi_register_handler, ..._type ------------+--> here --> engine/ffi.rs: the engine's own table
//!                                                              |
//!      for a CPU; newer, or a state, or jaxlib's own           +-- its trampoline (trampolines.rs), with another table
//!                                                              |   (tables.rs; states.rs, errors.rs)
//!      else, if the engine takes its version                   +-- as it is
//!      newer than the engine and this library                  +-- refused
//! ```
//!
//! Everything here works before a client exists: registries belong to the engine's library, not to a client.
//! Registering is rare; only the trampoline is part of an execution.

mod errors;
mod states;
mod tables;
mod trampolines;

use once_cell::sync::OnceCell;
pub use states::note_deleter;
use states::{Platform, STATES_CHANGED};
use tables::{Kind, NEWEST, Tables};

use crate::{
    engine::{
        Engine, Outcome,
        abi::Handler,
        ffi::{self, Deleter, FfiHandler, Stages, Table},
        process,
    },
    error::Error,
    sys::{self},
};

/// The handlers of a custom call's stages, as functions that may throw.
pub type Bundle = sys::XLA_FFI_Handler_Bundle;

static TABLE: OnceCell<Table> = OnceCell::new();

/// The engine's table; `None` if it has the extension, but does not show the table.
fn table(engine: &'static Engine, platform: &str) -> Outcome<Option<&'static Table>> {
    if let Some(table) = TABLE.get() {
        return Ok(Some(table));
    }
    let Some(table) = Table::learn(engine, platform)? else { return Ok(None) };
    Ok(Some(TABLE.get_or_init(|| table)))
}

/// Registers the handlers of the custom call `name` on `platform` with the engine: "cpu" or "Host", "CUDA", in any
/// case.
///
/// # Errors
/// Each names the custom call and the platform. INVALID_ARGUMENT: no execute handler, or the engine refuses the
/// bundle with a reason of its own (another one has the name). UNIMPLEMENTED: neither the engine nor this library
/// knows a handler's version, or the engine has no XLA FFI. RESOURCE_EXHAUSTED: there are no trampolines left.
///
/// # Safety
/// The functions must be handlers of XLA FFI, for as long as the process lives.
pub unsafe fn register_handler(name: &str, platform: &str, bundle: Bundle, traits: u32) -> Outcome {
    let Bundle { instantiate, prepare, initialize, execute } = bundle;
    // SAFETY: the functions are handlers for as long as the process lives, as this function asks.
    let stays = |handler: Option<Handler>| handler.map(|handler| unsafe { FfiHandler::new(handler) });
    let [instantiate, prepare, initialize, execute] = [instantiate, prepare, initialize, execute].map(stays);
    register(name, platform, Stages { instantiate, prepare, initialize, execute }, traits)
}

fn register(name: &str, platform: &str, stages: Stages, traits: u32) -> Outcome {
    let engine = process::engine()?;
    let said = |error: Error| error.context(&format!("FFI handler {name} on platform {platform}"));
    let Some(execute) = stages.execute else {
        return Err(said(Error::invalid_argument("there is no handler for the stage execute")).into());
    };
    let Some(table) = table(engine, platform)? else {
        if stages.is_stateful() {
            let why = format!("the engine {} takes handlers of the stage execute alone", engine.path().display());
            return Err(said(Error::unimplemented(why)).into());
        }
        return Ok(ffi::register_plainly(engine, name, platform, execute, traits)?);
    };
    let fitted = fit(table, engine, Platform::named(platform), stages);
    let registered = fitted.and_then(|stages| table.register_handlers(name, platform, stages, traits));
    Ok(registered.map_err(said)?)
}

/// The functions by which the engine calls the handlers of a custom call: their trampolines on a CPU, elsewhere where
/// they are needed. All of them or none, because one stage's state is for another.
fn fit(table: &'static Table, engine: &Engine, platform: Platform, stages: Stages) -> Result<Stages, Error> {
    let (major, minor) = table.version();
    let (mut known, mut newest, mut differs) = (true, (major, minor), false);
    for handler in stages.iter() {
        let metadata = table.describe(handler)?.api_version;
        let version = (metadata.major_version, metadata.minor_version);
        // A new engine reads an old struct for a state differently, and not all engines that call themselves 0.2
        // agree on it either. On a CPU, a state of a later stage would be lost.
        let states = stages.is_stateful() && (platform == Platform::Cpu || version.1.min(minor) < STATES_CHANGED);
        differs |= states || in_jaxlib(handler);
        known &= version.0 == major && version.1 <= NEWEST;
        newest = newest.max(version);
    }
    let newer = newest > (major, minor);
    let needed = newer || differs;
    if !needed && platform != Platform::Cpu {
        return Ok(stages);
    }
    // A bundle that the engine can call by itself need not fail where there is no table or no trampoline for it.
    let tables = Tables::get(table).or_else(|none| if needed { Err(none) } else { Ok(None) })?;
    if let Some(tables) = tables.filter(|_| known) {
        let fitted = stages.try_map(|handler| assign(table, handler, tables));
        return fitted.or_else(|none| if needed { Err(none) } else { Ok(stages) });
    }
    if !newer {
        return Ok(stages);
    }
    Err(Error::unimplemented(format!(
        "it speaks XLA FFI {}.{}, and the engine {} {major}.{minor}; handlers of up to {major}.{} can be registered",
        newest.0,
        newest.1,
        engine.path().display(),
        if tables.is_some() { NEWEST.max(minor) } else { minor },
    )))
}

/// The trampoline of `handler`, over the table for its kind.
fn assign(table: &Table, handler: FfiHandler, tables: &'static Tables) -> Result<FfiHandler, Error> {
    let minor = table.describe(handler)?.api_version.minor_version;
    trampolines::assign(handler, Kind { minor, in_jaxlib: in_jaxlib(handler) }, tables)
}

/// Whether the handler is of jaxlib's own libraries, which are built with XLA's source, and not only its headers.
fn in_jaxlib(handler: FfiHandler) -> bool {
    process::library_of(handler.address()).is_some_and(|library| {
        let folders = library.parent().into_iter().flat_map(std::path::Path::components);
        folders.into_iter().any(|folder| folder.as_os_str() == "jaxlib")
    })
}

/// Registers a type of handlers' states or user data under `id`, or under one that the engine chooses when it is 0;
/// returns the id.
///
/// # Errors
/// INVALID_ARGUMENT: the engine knows the name under another id. UNIMPLEMENTED: it has no XLA FFI, or does not show it.
///
/// # Safety
/// `deleter` must be fit for the type's objects, for as long as the process lives.
pub unsafe fn register_type(name: &str, platform: &str, id: i64, deleter: Deleter) -> Outcome<i64> {
    let engine = process::engine()?;
    let said = |error: Error| error.context(&format!("FFI type {name}"));
    let Some(table) = table(engine, platform)? else {
        let why = format!("the engine {} shows no table of XLA FFI", engine.path().display());
        return Err(said(Error::unimplemented(why)).into());
    };
    // SAFETY: the deleter fits the type's objects for as long as the process lives, as this function asks.
    let id = unsafe { table.register_type(name, id, deleter) }.map_err(said)?;
    states::note_deleter(id, deleter);
    Ok(id)
}
