//! Handlers of XLA FFI on an engine of another version: what they say, and what they are given.
//!
//! ```text
//!  engine --metadata--> the handler's answer, its version lowered to the engine's
//!  engine --a call----> frame.api = a table of the handler's version --> handler --State_Set--> box it, engine's State_Set
//!                                                                                --State_Get--> engine's, out of the box
//!                                                                                --anything else--> the engine
//! ```
//!
//! What changed over the versions is said in `pjrt_c_api/xla_ffi.h`; for a handler it is the two functions for states, and
//! at 0.5 one that looks for extensions, of which an older engine has none. Hence two tables:
//!
//! | the handler's version | State_Set, State_Get take | table |
//! |---|---|---|
//! | 0.1, 0.2 | the old structs, with a deleter or without | `old` |
//! | 0.3 to 0.5 | the new ones, which name a stage; the engine keeps a state of the first stage alone | `new` |
//!
//! States are boxed. The handler's type may be one that the engine does not know, and where it knows one of that number
//! it may be another's: type ids are counted by each copy of XLA for itself. So the engine sees one type, of ours, with
//! an id that nobody counts up to, and the handler's own id stays in the box.

use std::{ffi::c_void, mem, ptr};

use once_cell::sync::OnceCell;
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::{
    engine::ffi::{Deleter, Handler, Table},
    error::{Error, Result},
    sys::{self, CStruct},
};

/// The newest minor version whose handlers are lowered: that of jaxlib 0.12.
pub const NEWEST: i32 = 5;

/// The minor version that changed the state's functions: engines of earlier ones are lowered to.
const CHANGED: i32 = 3;

/// The type of a boxed state: `pjrtbox` in ASCII.
const BOX_TYPE: i64 = 0x0070_6a72_7462_6f78;

/// What handlers call back through: the engine's functions, but for those that changed.
pub struct Lowering {
    table: &'static Table,
    /// For handlers older than [`CHANGED`].
    old: sys::XLA_FFI_Api,
    /// For the others.
    new: sys::XLA_FFI_Api_V05,
    /// The engine's State_Set and State_Get, for the structs that they take in fact.
    set: Function<sys::XLA_FFI_State_Set_Args_V02>,
    get: Function<sys::XLA_FFI_State_Get_Args_V02>,
}

type Function<A> = unsafe extern "C" fn(*mut A) -> *mut sys::XLA_FFI_Error;

// SAFETY: written once, before the value is shared; the functions may be called from any thread.
unsafe impl Send for Lowering {}
// SAFETY: as above.
unsafe impl Sync for Lowering {}

/// There is one engine in the process, and so one of these.
static LOWERING: OnceCell<Lowering> = OnceCell::new();

/// Who frees states of which type, as registered through us.
static DELETERS: RwLock<Option<FxHashMap<i64, Deleter>>> = RwLock::new(None);

/// Notes who frees the states of a type.
pub fn note_deleter(type_id: i64, deleter: Deleter) {
    DELETERS.write().get_or_insert_default().insert(type_id, deleter);
}

/// A handler's state, as the engine holds it.
struct Boxed {
    type_id: i64,
    state: *mut c_void,
    deleter: Deleter,
}

impl Lowering {
    /// What stands between handlers and the engine; `None` when its version is not one that we lower to.
    ///
    /// # Errors
    /// The engine's, when it refuses the type of the boxes; UNIMPLEMENTED when it has no functions for states.
    pub fn get(table: &'static Table) -> Result<Option<&'static Self>> {
        let (major, minor) = table.version();
        if major != sys::XLA_FFI_API_MAJOR as i32 || minor >= CHANGED {
            return Ok(None);
        }
        let lowering = LOWERING.get_or_try_init(|| -> Result<Self> {
            // SAFETY: boxes are what this deleter frees.
            unsafe { table.register_type("pjrt_arena_boxed_state", BOX_TYPE, Some(free_box))? };
            let mut api = *table.functions();
            let (Some(set), Some(get)) = (api.XLA_FFI_State_Set, api.XLA_FFI_State_Get) else {
                return Err(Error::unimplemented("the engine's XLA FFI has no functions for handlers' states"));
            };
            // SAFETY: functions of one pointer all the same; an engine of this version reads the old form behind it.
            let (set, get) = unsafe {
                (
                    mem::transmute::<Function<sys::XLA_FFI_State_Set_Args>, Function<_>>(set),
                    mem::transmute::<Function<sys::XLA_FFI_State_Get_Args>, Function<_>>(get),
                )
            };
            api.struct_size = sys::XLA_FFI_Api::STRUCT_SIZE;
            let mut new = sys::XLA_FFI_Api_V05 {
                base: api,
                XLA_FFI_InvokeContext_FindExtension: Some(find_extension),
                XLA_FFI_CustomOptions_Get: None,
            };
            new.base.struct_size = sys::XLA_FFI_Api_V05::STRUCT_SIZE;
            new.base.api_version.minor_version = NEWEST;
            new.base.XLA_FFI_State_Set = Some(state_set);
            new.base.XLA_FFI_State_Get = Some(state_get);
            // SAFETY: handlers that are given this table call with the old structs.
            unsafe {
                type Set = Function<sys::XLA_FFI_State_Set_Args_V02>;
                type Get = Function<sys::XLA_FFI_State_Get_Args_V02>;
                api.XLA_FFI_State_Set = Some(mem::transmute::<Set, Function<_>>(old_state_set));
                api.XLA_FFI_State_Get = Some(mem::transmute::<Get, Function<_>>(old_state_get));
            }
            Ok(Self { table, old: api, new, set, get })
        })?;
        Ok(Some(lowering))
    }

    /// The table that a handler of that minor version is given.
    pub fn api(&self, minor: i32) -> *const sys::XLA_FFI_Api {
        if minor < CHANGED { &raw const self.old } else { &raw const self.new.base }
    }

    /// Answers the engine's question for `handler`: all that it says, but a version that the engine takes.
    ///
    /// # Safety
    /// `asked` must be the engine's struct, `handler` a handler of a version that is lowered.
    #[cold]
    pub unsafe fn answer(&self, handler: Handler, asked: *mut sys::XLA_FFI_Metadata) -> *mut sys::XLA_FFI_Error {
        // SAFETY: the caller's promise.
        let told = match unsafe { self.table.describe(handler) } {
            Ok(told) => told,
            Err(error) => return self.table.error(sys::XLA_FFI_Error_Code_INVALID_ARGUMENT, &error.message),
        };
        // SAFETY: the engine's struct, which waits to be filled.
        unsafe {
            (*asked).api_version.major_version = told.api_version.major_version;
            (*asked).api_version.minor_version = told.api_version.minor_version.min(self.table.version().1);
            (*asked).traits = told.traits;
            if told.state_type_id.type_id != 0 {
                (*asked).state_type_id.type_id = BOX_TYPE;
            }
        }
        ptr::null_mut()
    }

    /// Gives a state to the engine, in a box. Without a deleter of its own it has its type's.
    ///
    /// # Safety
    /// The fields must satisfy the contract of State_Set.
    unsafe fn set_state(
        &self,
        ctx: *mut sys::XLA_FFI_ExecutionContext,
        type_id: *const sys::XLA_FFI_TypeId,
        state: *mut c_void,
        deleter: Deleter,
    ) -> *mut sys::XLA_FFI_Error {
        // SAFETY: the handler's type id is alive during the call.
        let type_id = unsafe { (*type_id).type_id };
        let of_type = || DELETERS.read().as_ref().and_then(|deleters| deleters.get(&type_id).copied()).flatten();
        let deleter = deleter.or_else(of_type);
        if deleter.is_none() {
            log::warn!("an FFI handler leaves a state of type {type_id}, which nobody registered: it is never freed");
        }
        let boxed = Box::into_raw(Box::new(Boxed { type_id, state, deleter }));
        let mut box_type = sys::XLA_FFI_TypeId { type_id: BOX_TYPE };
        let mut args = sys::XLA_FFI_State_Set_Args_V02 {
            struct_size: sys::XLA_FFI_State_Set_Args_V02::STRUCT_SIZE,
            ctx,
            type_id: &raw mut box_type,
            state: boxed.cast(),
            // The same as the type's; engines whose struct has no such field do not look at it.
            deleter: Some(free_box),
            ..Default::default()
        };
        // SAFETY: the struct that this engine takes.
        let error = unsafe { (self.set)(&raw mut args) };
        if !error.is_null() {
            // SAFETY: made above, and not taken by the engine; the state stays the handler's.
            drop(unsafe { Box::from_raw(boxed) });
        }
        error
    }

    /// Takes a state from the engine, out of its box.
    ///
    /// # Safety
    /// The fields must satisfy the contract of State_Get.
    unsafe fn get_state(
        &self,
        ctx: *mut sys::XLA_FFI_ExecutionContext,
        type_id: *const sys::XLA_FFI_TypeId,
        state: &mut *mut c_void,
    ) -> *mut sys::XLA_FFI_Error {
        let mut box_type = sys::XLA_FFI_TypeId { type_id: BOX_TYPE };
        let mut args = sys::XLA_FFI_State_Get_Args_V02 {
            struct_size: sys::XLA_FFI_State_Get_Args_V02::STRUCT_SIZE,
            ctx,
            type_id: &raw mut box_type,
            ..Default::default()
        };
        // SAFETY: the struct that this engine takes.
        let error = unsafe { (self.get)(&raw mut args) };
        if !error.is_null() {
            return error;
        }
        // SAFETY: the engine gives a state of our type, and only boxes have it; the type id is the handler's.
        let (boxed, wanted) = unsafe { (&*args.state.cast::<Boxed>(), (*type_id).type_id) };
        if boxed.type_id != wanted {
            return self.table.error(
                sys::XLA_FFI_Error_Code_INVALID_ARGUMENT,
                &format!("the state has type id {}, and type id {wanted} is asked for", boxed.type_id),
            );
        }
        *state = boxed.state;
        ptr::null_mut()
    }

    /// `Err` if a struct is shorter than `least`, or asks for a state that the engine has no place for.
    fn check(
        &self,
        size: usize,
        least: usize,
        stage: sys::XLA_FFI_ExecutionStage,
    ) -> Result<(), *mut sys::XLA_FFI_Error> {
        if size < least {
            return Err(self.table.error(
                sys::XLA_FFI_Error_Code_INVALID_ARGUMENT,
                &format!("a handler's struct for its state has {size} bytes; its version of XLA FFI has {least}"),
            ));
        }
        if stage != sys::XLA_FFI_ExecutionStage_INSTANTIATE {
            let (major, minor) = self.table.version();
            return Err(self.table.error(
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

/// Runs `body` on the lowering, which is there for whoever has a table of it.
fn lowered(
    body: impl FnOnce(&Lowering) -> Result<*mut sys::XLA_FFI_Error, *mut sys::XLA_FFI_Error>,
) -> *mut sys::XLA_FFI_Error {
    LOWERING.get().map_or(ptr::null_mut(), |lowering| body(lowering).unwrap_or_else(|error| error))
}

unsafe extern "C" fn state_set(args: *mut sys::XLA_FFI_State_Set_Args) -> *mut sys::XLA_FFI_Error {
    lowered(|lowering| {
        // SAFETY: the handler's struct; its first field is its size.
        unsafe {
            lowering.check((*args).struct_size, sys::XLA_FFI_State_Set_Args::STRUCT_SIZE, (*args).stage)?;
            Ok(lowering.set_state((*args).ctx, (*args).type_id, (*args).state, None))
        }
    })
}

unsafe extern "C" fn state_get(args: *mut sys::XLA_FFI_State_Get_Args) -> *mut sys::XLA_FFI_Error {
    lowered(|lowering| {
        // SAFETY: as above.
        unsafe {
            lowering.check((*args).struct_size, sys::XLA_FFI_State_Get_Args::STRUCT_SIZE, (*args).stage)?;
            Ok(lowering.get_state((*args).ctx, (*args).type_id, &mut (*args).state))
        }
    })
}

unsafe extern "C" fn old_state_set(args: *mut sys::XLA_FFI_State_Set_Args_V02) -> *mut sys::XLA_FFI_Error {
    lowered(|lowering| {
        // SAFETY: as above; the deleter is read only where the struct is long enough to have it.
        unsafe {
            let (size, whole) = ((*args).struct_size, sys::XLA_FFI_State_Set_Args_V02::STRUCT_SIZE);
            lowering.check(
                size,
                sys::XLA_FFI_State_Get_Args_V02::STRUCT_SIZE,
                sys::XLA_FFI_ExecutionStage_INSTANTIATE,
            )?;
            let deleter = if size >= whole { (*args).deleter } else { None };
            Ok(lowering.set_state((*args).ctx, (*args).type_id, (*args).state, deleter))
        }
    })
}

unsafe extern "C" fn old_state_get(args: *mut sys::XLA_FFI_State_Get_Args_V02) -> *mut sys::XLA_FFI_Error {
    lowered(|lowering| {
        // SAFETY: as above.
        unsafe {
            let least = sys::XLA_FFI_State_Get_Args_V02::STRUCT_SIZE;
            lowering.check((*args).struct_size, least, sys::XLA_FFI_ExecutionStage_INSTANTIATE)?;
            Ok(lowering.get_state((*args).ctx, (*args).type_id, &mut (*args).state))
        }
    })
}

/// An older engine attaches no extensions.
unsafe extern "C" fn find_extension(
    args: *mut sys::XLA_FFI_InvokeContext_FindExtension_Args,
) -> *mut sys::XLA_FFI_Error {
    // SAFETY: the handler's struct.
    unsafe { (*args).extension = ptr::null() };
    ptr::null_mut()
}

/// Frees a state, as its type's deleter does, and its box. The engine calls this with the executable's end.
unsafe extern "C" fn free_box(boxed: *mut c_void) {
    // SAFETY: the engine frees what `set` gave it, once.
    let boxed = unsafe { Box::from_raw(boxed.cast::<Boxed>()) };
    if let Some(deleter) = boxed.deleter {
        // SAFETY: registered for this type of state.
        unsafe { deleter(boxed.state) };
    }
}
