//! States that handlers leave for later stages, in boxes: on any engine, for handlers of any version.
//!
//! ```text
//!  State_Set: the old struct or the new --> a box --> the engine's State_Set, with the struct that this engine takes
//!  State_Get: the old struct or the new <-- out of the box <-- the engine's State_Get
//! ```
//!
//! The engine may not know the handler's type, or know another type of that number: each copy of XLA counts type ids
//! for itself. So the engine sees one type, with an id that no copy counts up to, and the handler's own id stays in
//! the box. A deleter that came with an old struct stays there too, because today's engines have only a type's
//! deleter.

use std::{ffi::c_void, mem, ptr};

use once_cell::sync::OnceCell;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::{
    engine::ffi::{Deleter, Table},
    error::{Error, Result},
    sys::{self, CStruct},
};

/// The minor version that changed the structs for states.
pub const STATES_CHANGED: i32 = 3;

/// The type of a boxed state: `pjrtbox` in ASCII.
pub const BOX_TYPE: i64 = 0x0070_6a72_7462_6f78;

type Function<A> = unsafe extern "C" fn(*mut A) -> *mut sys::XLA_FFI_Error;

/// The engine's functions for states, for the structs that it takes.
enum Engines {
    Old { set: Function<sys::XLA_FFI_State_Set_Args_V02>, get: Function<sys::XLA_FFI_State_Get_Args_V02> },
    New { set: Function<sys::XLA_FFI_State_Set_Args>, get: Function<sys::XLA_FFI_State_Get_Args> },
}

struct States {
    engine: &'static Table,
    engines: Engines,
    /// Whether the engine keeps states of later stages than instantiate.
    later_stages: bool,
}

/// There is one engine in the process, and so one of these.
static STATES: OnceCell<States> = OnceCell::new();

/// The deleter of each type of states that was registered through this library.
static DELETERS: RwLock<Option<FxHashMap<i64, Deleter>>> = RwLock::new(None);

/// Notes the deleter of a type of states.
pub fn note_deleter(type_id: i64, deleter: Deleter) {
    DELETERS.write().get_or_insert_default().insert(type_id, deleter);
}

/// A handler's state, as the engine holds it.
struct Boxed {
    type_id: i64,
    state: *mut c_void,
    deleter: Deleter,
}

/// Where handlers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// "cpu" or "Host".
    Cpu,
    /// Any other.
    Gpu,
}

impl Platform {
    /// The one of that name, in any case.
    pub fn named(name: &str) -> Self {
        let cpu = ["cpu", "host"].iter().any(|cpu| name.eq_ignore_ascii_case(cpu));
        if cpu { Self::Cpu } else { Self::Gpu }
    }
}

/// What a handler asks of a state.
#[derive(Clone, Copy)]
struct Asked {
    ctx: *mut sys::XLA_FFI_ExecutionContext,
    stage: sys::XLA_FFI_ExecutionStage,
    type_id: *const sys::XLA_FFI_TypeId,
}

/// Makes this engine, which computes on `platform`, the one that keeps states.
///
/// # Errors
/// The engine's, when it refuses the type of the boxes; UNIMPLEMENTED when it has no functions for states.
pub fn over(engine: &'static Table, platform: Platform) -> Result<()> {
    STATES.get_or_try_init(|| -> Result<States> {
        // SAFETY: this deleter frees boxes, which are all objects of the type.
        unsafe { engine.register_type("pjrt_arena_boxed_state", BOX_TYPE, Some(free_box))? };
        let api = &engine.functions().base;
        let (Some(set), Some(get)) = (api.XLA_FFI_State_Set, api.XLA_FFI_State_Get) else {
            return Err(Error::unimplemented("the engine's XLA FFI has no functions for handlers' states"));
        };
        let engines = if engine.version().1 >= STATES_CHANGED {
            Engines::New { set, get }
        } else {
            // SAFETY: the functions differ in the struct behind their one pointer; an engine of this version reads
            // the old form.
            unsafe {
                Engines::Old {
                    set: mem::transmute::<Function<sys::XLA_FFI_State_Set_Args>, Function<_>>(set),
                    get: mem::transmute::<Function<sys::XLA_FFI_State_Get_Args>, Function<_>>(get),
                }
            }
        };
        // XLA:CPU keeps none of them in any version, and accepts them all the same.
        let later_stages = matches!(engines, Engines::New { .. }) && platform != Platform::Cpu;
        Ok(States { engine, engines, later_stages })
    })?;
    Ok(())
}

impl States {
    /// Passes a state to the engine, in a box. Without a deleter of its own it has its type's.
    ///
    /// # Safety
    /// The arguments must satisfy the contract of State_Set.
    unsafe fn set(&self, asked: Asked, state: *mut c_void, deleter: Deleter) -> *mut sys::XLA_FFI_Error {
        // SAFETY: the handler's type id is alive during the call.
        let type_id = unsafe { (*asked.type_id).type_id };
        let of_type = || DELETERS.read().as_ref().and_then(|deleters| deleters.get(&type_id).copied()).flatten();
        let deleter = deleter.or_else(of_type);
        if deleter.is_none() {
            log::warn!("an FFI handler leaves a state of type {type_id}, which was not registered: it is never freed");
        }
        let boxed = Box::into_raw(Box::new(Boxed { type_id, state, deleter }));
        let mut box_type = sys::XLA_FFI_TypeId { type_id: BOX_TYPE };
        let (ctx, stage, type_id) = (asked.ctx, asked.stage, &raw mut box_type);
        let error = match self.engines {
            // SAFETY: the function is the engine's, and the struct the one that it takes, alive during the call.
            Engines::Old { set, .. } => unsafe {
                set(&mut sys::XLA_FFI_State_Set_Args_V02 {
                    struct_size: sys::XLA_FFI_State_Set_Args_V02::STRUCT_SIZE,
                    ctx,
                    type_id,
                    state: boxed.cast(),
                    // The same as the type's; engines whose struct has no such field do not look at it.
                    deleter: Some(free_box),
                    ..Default::default()
                })
            },
            // SAFETY: the function is the engine's, and the struct the one that it takes, alive during the call.
            Engines::New { set, .. } => unsafe {
                let struct_size = sys::XLA_FFI_State_Set_Args::STRUCT_SIZE;
                let state = boxed.cast();
                set(&mut sys::XLA_FFI_State_Set_Args { struct_size, ctx, stage, type_id, state, ..Default::default() })
            },
        };
        if !error.is_null() {
            // SAFETY: the box was made above, and the engine did not take it; the state stays the handler's.
            drop(unsafe { Box::from_raw(boxed) });
        }
        error
    }

    /// Takes a state from the engine, out of its box.
    ///
    /// # Safety
    /// The arguments must satisfy the contract of State_Get.
    unsafe fn get(&self, asked: Asked, state: &mut *mut c_void) -> *mut sys::XLA_FFI_Error {
        let mut box_type = sys::XLA_FFI_TypeId { type_id: BOX_TYPE };
        let (ctx, stage, type_id) = (asked.ctx, asked.stage, &raw mut box_type);
        let (error, found) = match self.engines {
            // SAFETY: the function is the engine's, and the struct the one that it takes, alive during the call.
            Engines::Old { get, .. } => unsafe {
                let struct_size = sys::XLA_FFI_State_Get_Args_V02::STRUCT_SIZE;
                let mut args = sys::XLA_FFI_State_Get_Args_V02 { struct_size, ctx, type_id, ..Default::default() };
                (get(&raw mut args), args.state)
            },
            // SAFETY: the function is the engine's, and the struct the one that it takes, alive during the call.
            Engines::New { get, .. } => unsafe {
                let struct_size = sys::XLA_FFI_State_Get_Args::STRUCT_SIZE;
                let mut args = sys::XLA_FFI_State_Get_Args { struct_size, ctx, stage, type_id, ..Default::default() };
                (get(&raw mut args), args.state)
            },
        };
        if !error.is_null() {
            return error;
        }
        // SAFETY: the engine returns a state of the boxes' type, so it is a box, alive; the type id is the handler's,
        // alive during the call.
        let (boxed, wanted) = unsafe { (&*found.cast::<Boxed>(), (*asked.type_id).type_id) };
        if boxed.type_id != wanted {
            return self.engine.error(
                sys::XLA_FFI_Error_Code_INVALID_ARGUMENT,
                &format!("the state has type id {}, and type id {wanted} is asked for", boxed.type_id),
            );
        }
        *state = boxed.state;
        ptr::null_mut()
    }

    /// `Err` if a struct of `size` bytes is shorter than `least`, or asks for a state that the engine has no place for.
    fn check(
        &self,
        size: usize,
        least: usize,
        stage: sys::XLA_FFI_ExecutionStage,
    ) -> Result<(), *mut sys::XLA_FFI_Error> {
        if size < least {
            return Err(self.engine.error(
                sys::XLA_FFI_Error_Code_INVALID_ARGUMENT,
                &format!("a handler's struct for its state has {size} bytes; its version of XLA FFI has {least}"),
            ));
        }
        if !self.later_stages && stage != sys::XLA_FFI_ExecutionStage_INSTANTIATE {
            let (major, minor) = self.engine.version();
            return Err(self.engine.error(
                sys::XLA_FFI_Error_Code_UNIMPLEMENTED,
                &format!(
                    "the engine's XLA FFI {major}.{minor} keeps a state of the instantiate stage alone, and a handler \
                     asks for one of stage {} (1 is prepare, 2 initialize)",
                    stage.0
                ),
            ));
        }
        Ok(())
    }
}

/// Runs `body` on the states, which exist once a handler has a table from here.
fn with(
    body: impl FnOnce(&States) -> Result<*mut sys::XLA_FFI_Error, *mut sys::XLA_FFI_Error>,
) -> *mut sys::XLA_FFI_Error {
    STATES.get().map_or(ptr::null_mut(), |states| body(states).unwrap_or_else(|error| error))
}

/// State_Set for handlers of 0.3 and later.
pub unsafe extern "C" fn set(args: *mut sys::XLA_FFI_State_Set_Args) -> *mut sys::XLA_FFI_Error {
    with(|states| {
        // SAFETY: a handler passes a valid struct, which begins with its size, and is as long as its version's where
        // it is read.
        unsafe {
            states.check((*args).struct_size, sys::XLA_FFI_State_Set_Args::STRUCT_SIZE, (*args).stage)?;
            let asked = Asked { ctx: (*args).ctx, stage: (*args).stage, type_id: (*args).type_id };
            Ok(states.set(asked, (*args).state, None))
        }
    })
}

/// State_Get for handlers of 0.3 and later.
pub unsafe extern "C" fn get(args: *mut sys::XLA_FFI_State_Get_Args) -> *mut sys::XLA_FFI_Error {
    with(|states| {
        // SAFETY: a handler passes a valid struct, which begins with its size, and is as long as its version's where
        // it is read.
        unsafe {
            states.check((*args).struct_size, sys::XLA_FFI_State_Get_Args::STRUCT_SIZE, (*args).stage)?;
            let asked = Asked { ctx: (*args).ctx, stage: (*args).stage, type_id: (*args).type_id };
            Ok(states.get(asked, &mut (*args).state))
        }
    })
}

/// State_Set for handlers from before 0.3, of either length.
pub unsafe extern "C" fn old_set(args: *mut sys::XLA_FFI_State_Set_Args_V02) -> *mut sys::XLA_FFI_Error {
    with(|states| {
        let stage = sys::XLA_FFI_ExecutionStage_INSTANTIATE;
        // SAFETY: a handler passes a valid struct, which begins with its size; the deleter is read only where the
        // struct is long enough to have it.
        unsafe {
            let (size, whole) = ((*args).struct_size, sys::XLA_FFI_State_Set_Args_V02::STRUCT_SIZE);
            states.check(size, sys::XLA_FFI_State_Get_Args_V02::STRUCT_SIZE, stage)?;
            let deleter = if size >= whole { (*args).deleter } else { None };
            let asked = Asked { ctx: (*args).ctx, stage, type_id: (*args).type_id };
            Ok(states.set(asked, (*args).state, deleter))
        }
    })
}

/// State_Get for handlers from before 0.3.
pub unsafe extern "C" fn old_get(args: *mut sys::XLA_FFI_State_Get_Args_V02) -> *mut sys::XLA_FFI_Error {
    with(|states| {
        let stage = sys::XLA_FFI_ExecutionStage_INSTANTIATE;
        // SAFETY: a handler passes a valid struct, which begins with its size, and is as long as its version's where
        // it is read.
        unsafe {
            states.check((*args).struct_size, sys::XLA_FFI_State_Get_Args_V02::STRUCT_SIZE, stage)?;
            let asked = Asked { ctx: (*args).ctx, stage, type_id: (*args).type_id };
            Ok(states.get(asked, &mut (*args).state))
        }
    })
}

/// Frees a state, as its type's deleter does, and its box. The engine calls this when it drops the state.
unsafe extern "C" fn free_box(boxed: *mut c_void) {
    // SAFETY: the engine passes each box that `set` gave it, once.
    let boxed = unsafe { Box::from_raw(boxed.cast::<Boxed>()) };
    if let Some(deleter) = boxed.deleter {
        // SAFETY: the deleter was registered for this type of state, which is freed once.
        unsafe { deleter(boxed.state) };
    }
}
