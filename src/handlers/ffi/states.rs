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

use std::{ffi::c_void, ptr};

use once_cell::sync::OnceCell;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::{
    config::EngineKind,
    engine::{
        ffi::{Deleter, Table},
        process,
    },
    error::{Error, Result},
    sys::{self, CStruct},
};

/// The minor version that changed the structs for states.
pub const STATES_CHANGED: i32 = 3;

/// The type of a boxed state: `pjrtbox` in ASCII.
pub const BOX_TYPE: i64 = 0x0070_6a72_7462_6f78;

type Function<A> = unsafe extern "C" fn(*mut A) -> *mut sys::XLA_FFI_Error;

struct States {
    engine: &'static Table,
    /// The engine's functions for states, which are declared with the new structs.
    set: Function<sys::XLA_FFI_State_Set_Args>,
    get: Function<sys::XLA_FFI_State_Get_Args>,
    /// Whether the engine takes the old structs.
    old: bool,
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

/// Which state a handler asks for: its struct says so, which lives during the call.
#[derive(Clone, Copy)]
struct Asked {
    ctx: *mut sys::XLA_FFI_ExecutionContext,
    stage: sys::XLA_FFI_ExecutionStage,
    /// The handler's own id.
    type_id: i64,
}

/// Makes this engine the one that keeps states.
///
/// # Errors
/// The engine's, when it refuses the type of the boxes; UNIMPLEMENTED when it has no functions for states.
pub fn over(engine: &'static Table) -> Result<()> {
    STATES.get_or_try_init(|| -> Result<States> {
        // SAFETY: this deleter frees boxes, which are all objects of the type.
        unsafe { engine.register_type("pjrt_arena_boxed_state", BOX_TYPE, Some(free_box))? };
        let api = &engine.functions().base;
        let (Some(set), Some(get)) = (api.XLA_FFI_State_Set, api.XLA_FFI_State_Get) else {
            return Err(Error::unimplemented("the engine's XLA FFI has no functions for handlers' states"));
        };
        let old = engine.version().1 < STATES_CHANGED;
        // XLA:CPU keeps none of them in any version, and accepts them all the same.
        let later_stages = !old && process::kind().is_some_and(|kind| kind != EngineKind::Cpu);
        Ok(States { engine, set, get, old, later_stages })
    })?;
    Ok(())
}

impl States {
    /// Passes a state to the engine, in a box. Without a deleter of its own it has its type's.
    fn set(&self, asked: Asked, state: *mut c_void, deleter: Deleter) -> *mut sys::XLA_FFI_Error {
        if let Some(error) = self.refuses(asked.stage) {
            return error;
        }
        let Asked { ctx, stage, type_id } = asked;
        let of_type = || DELETERS.read().as_ref().and_then(|deleters| deleters.get(&type_id).copied()).flatten();
        let deleter = deleter.or_else(of_type);
        if deleter.is_none() {
            log::warn!("an FFI handler leaves a state of type {type_id}, which was not registered: it is never freed");
        }
        let boxed = Box::into_raw(Box::new(Boxed { type_id, state, deleter }));
        let mut box_type = sys::XLA_FFI_TypeId { type_id: BOX_TYPE };
        let (type_id, state) = (&raw mut box_type, boxed.cast());
        let mut old = sys::XLA_FFI_State_Set_Args_V02 {
            struct_size: sys::XLA_FFI_State_Set_Args_V02::STRUCT_SIZE,
            ctx,
            type_id,
            state,
            // The same as the type's; engines whose struct has no such field do not look at it.
            deleter: Some(free_box),
            ..Default::default()
        };
        let struct_size = sys::XLA_FFI_State_Set_Args::STRUCT_SIZE;
        let mut new = sys::XLA_FFI_State_Set_Args { struct_size, ctx, stage, type_id, state, ..Default::default() };
        let args = if self.old { (&raw mut old).cast() } else { &raw mut new };
        // SAFETY: the function is the engine's, and the struct the one that its version takes; struct and id are alive
        // during the call, and the context is the handler's (`Asked`).
        let error = unsafe { (self.set)(args) };
        if !error.is_null() {
            // SAFETY: the box was made above, and the engine did not take it; the state stays the handler's.
            drop(unsafe { Box::from_raw(boxed) });
        }
        error
    }

    /// Takes a state from the engine, out of its box.
    ///
    /// # Errors
    /// The engine's.
    fn get(&self, asked: Asked) -> Result<*mut c_void, *mut sys::XLA_FFI_Error> {
        if let Some(error) = self.refuses(asked.stage) {
            return Err(error);
        }
        let Asked { ctx, stage, type_id: wanted } = asked;
        let mut box_type = sys::XLA_FFI_TypeId { type_id: BOX_TYPE };
        let type_id = &raw mut box_type;
        let struct_size = sys::XLA_FFI_State_Get_Args_V02::STRUCT_SIZE;
        let mut old = sys::XLA_FFI_State_Get_Args_V02 { struct_size, ctx, type_id, ..Default::default() };
        let struct_size = sys::XLA_FFI_State_Get_Args::STRUCT_SIZE;
        let mut new = sys::XLA_FFI_State_Get_Args { struct_size, ctx, stage, type_id, ..Default::default() };
        let args = if self.old { (&raw mut old).cast() } else { &raw mut new };
        // SAFETY: the function is the engine's, and the struct the one that its version takes; struct and id are alive
        // during the call, and the context is the handler's (`Asked`). Without an error the engine returns a state of
        // the boxes' type, so it is a box, alive.
        let boxed = unsafe {
            let error = (self.get)(args);
            if !error.is_null() {
                return Err(error);
            }
            let found = if self.old { old.state } else { new.state };
            &*found.cast::<Boxed>()
        };
        if boxed.type_id != wanted {
            return Err(self.engine.error(
                sys::XLA_FFI_Error_Code_INVALID_ARGUMENT,
                &format!("the state has type id {}, and type id {wanted} is asked for", boxed.type_id),
            ));
        }
        Ok(boxed.state)
    }

    /// The error for a struct of `size` bytes, of which a handler's version has `least`.
    #[cold]
    fn too_short(&self, size: usize, least: usize) -> *mut sys::XLA_FFI_Error {
        self.engine.error(
            sys::XLA_FFI_Error_Code_INVALID_ARGUMENT,
            &format!("a handler's struct for its state has {size} bytes; its version of XLA FFI has {least}"),
        )
    }

    /// The error for a state that the engine has no place for.
    fn refuses(&self, stage: sys::XLA_FFI_ExecutionStage) -> Option<*mut sys::XLA_FFI_Error> {
        if self.later_stages || stage == sys::XLA_FFI_ExecutionStage_INSTANTIATE {
            return None;
        }
        let (major, minor) = self.engine.version();
        Some(self.engine.error(
            sys::XLA_FFI_Error_Code_UNIMPLEMENTED,
            &format!(
                "the engine's XLA FFI {major}.{minor} keeps a state of the instantiate stage alone, and a handler \
                 asks for one of stage {} (1 is prepare, 2 initialize)",
                stage.0
            ),
        ))
    }
}

/// Declares functions of a table that handlers get. `$args` is the struct as `$passed`, whose fields are there as far
/// as `$least` reaches; `$stage` and `$body` read no others, or look at its size.
macro_rules! for_handlers {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($args:ident: $declared:ident as $passed:ident, at least $least:ident; $stage:expr) {
            |$states:ident, $asked:ident| $body:expr
        }
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// `$args` must be the struct that handlers of this version pass.
        pub unsafe extern "C" fn $name($args: *mut sys::$declared) -> *mut sys::XLA_FFI_Error {
            // They exist once a handler has a table from here.
            let Some($states) = STATES.get() else { return ptr::null_mut() };
            let $args = $args.cast::<sys::$passed>();
            // SAFETY: a handler passes a valid struct, which begins with its size and lives during the call, as does
            // the id that it points to. It is read and written no further than it is long.
            unsafe {
                let (size, least) = ((*$args).struct_size, sys::$least::STRUCT_SIZE);
                if size < least {
                    return $states.too_short(size, least);
                }
                let $asked = Asked { ctx: (*$args).ctx, stage: $stage, type_id: (*(*$args).type_id).type_id };
                $body
            }
        }
    )*};
}

for_handlers! {
    /// State_Set for handlers of 0.3 and later.
    fn set(args: XLA_FFI_State_Set_Args as XLA_FFI_State_Set_Args, at least XLA_FFI_State_Set_Args; (*args).stage) {
        |states, asked| states.set(asked, (*args).state, None)
    }

    /// State_Get for handlers of 0.3 and later.
    fn get(args: XLA_FFI_State_Get_Args as XLA_FFI_State_Get_Args, at least XLA_FFI_State_Get_Args; (*args).stage) {
        |states, asked| states.get(asked).map_or_else(|error| error, |state| {
            (*args).state = state;
            ptr::null_mut()
        })
    }

    /// State_Set for handlers from before 0.3, whose struct may end before the deleter.
    fn old_set(
        args: XLA_FFI_State_Set_Args as XLA_FFI_State_Set_Args_V02, at least XLA_FFI_State_Get_Args_V02;
        sys::XLA_FFI_ExecutionStage_INSTANTIATE
    ) {
        |states, asked| {
            let whole = (*args).struct_size >= sys::XLA_FFI_State_Set_Args_V02::STRUCT_SIZE;
            states.set(asked, (*args).state, if whole { (*args).deleter } else { None })
        }
    }

    /// State_Get for handlers from before 0.3.
    fn old_get(
        args: XLA_FFI_State_Get_Args as XLA_FFI_State_Get_Args_V02, at least XLA_FFI_State_Get_Args_V02;
        sys::XLA_FFI_ExecutionStage_INSTANTIATE
    ) {
        |states, asked| states.get(asked).map_or_else(|error| error, |state| {
            (*args).state = state;
            ptr::null_mut()
        })
    }
}

/// Frees a state, as its type's deleter does, and its box. The engine calls this when it drops the state.
///
/// # Safety
/// `boxed` must be a box that [`States::set`] gave to the engine, which has it no longer.
unsafe extern "C" fn free_box(boxed: *mut c_void) {
    // SAFETY: the engine passes each box that `set` gave it, once; the deleter was registered for this type of state,
    // which is freed once.
    unsafe {
        let boxed = Box::from_raw(boxed.cast::<Boxed>());
        if let Some(deleter) = boxed.deleter {
            deleter(boxed.state);
        }
    }
}
