//! The handler itself: one call of a Python callable.

use std::{
    ffi::CString,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::atomic::Ordering,
};

use smallvec::SmallVec;

use crate::{
    engine::{failure::panicked, ffi::metadata_of},
    handlers::{
        depth::InHandler,
        python::{
            arrays::{self, Misfit},
            gil::{Gil, Raised},
            table::{Object, PYTHON, TAKEN},
        },
    },
    sys::{self, CStruct, slice},
};

/// The id of the user data that holds an execution's Python callables (XLA `pjrt/host_callback.cc`: the first 64 bits
/// of the SHA-512 of `xla::FfiLoadedHostCallbacks`).
const CALLABLES: i64 = 7_357_244_197_867_843_242;

/// `xla::FfiLoadedHostCallbacks`: the callables of a program.
#[repr(C)]
struct Callables {
    items: *const Object,
    count: u32,
}

/// How a call of the handler failed.
enum Failure {
    /// An error of the engine's own, which is returned as it is.
    Engine(*mut sys::XLA_FFI_Error),
    Own(sys::XLA_FFI_Error_Code, String),
}

impl Failure {
    fn internal(message: impl Into<String>) -> Self {
        Self::Own(sys::XLA_FFI_Error_Code_INTERNAL, message.into())
    }

    /// An exception of the callable's, in jaxlib's words.
    fn raised(Raised(text): Raised) -> Self {
        Self::internal(format!("CpuCallback error calling callback: {text}"))
    }

    fn misfit(what: &str, index: usize, misfit: Misfit) -> Self {
        match misfit {
            Misfit::Raised(Raised(text)) => Self::internal(format!("CpuCallback error: {what} {index}: {text}")),
            Misfit::Unsupported(data_type) => Self::Own(
                sys::XLA_FFI_Error_Code_UNIMPLEMENTED,
                format!("CpuCallback error: {what} {index} is of element type {}, which NumPy lacks", data_type.0),
            ),
            Misfit::Shape(expected, got) => Self::internal(format!(
                "CpuCallback error: {what} {index} should have the shape {expected:?}, and has {got:?}"
            )),
        }
    }
}

/// Called by the engine: once for its version, then for each execution of a custom call.
///
/// # Safety
/// `frame` must be what the engine passes to handlers.
pub(super) unsafe extern "C-unwind" fn handler(frame: *mut sys::XLA_FFI_CallFrame) -> *mut sys::XLA_FFI_Error {
    // SAFETY: the frame is the engine's, as this function asks: it and what it points to live during the call, and
    // the metadata may be written.
    let frame = unsafe {
        if let Some(metadata) = metadata_of(frame) {
            // What the handler uses has been the same since version 0.1 of the FFI, so it speaks the engine's own.
            (*metadata).api_version.major_version = (*(*frame).api).api_version.major_version;
            (*metadata).api_version.minor_version = (*(*frame).api).api_version.minor_version;
            (*metadata).traits = 0;
            TAKEN.store(true, Ordering::Release);
            return ptr::null_mut();
        }
        &*frame
    };
    // SAFETY: the frame is the engine's, and lives during the call.
    let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { call(frame) }));
    let (code, message) = match outcome {
        Ok(Ok(())) => return ptr::null_mut(),
        Ok(Err(Failure::Engine(error))) => return error,
        Ok(Err(Failure::Own(code, message))) => (code, message),
        Err(panic) => {
            let message = format!("the handler of Python callbacks panicked: {}; this is a bug", panicked(&*panic));
            (sys::XLA_FFI_Error_Code_INTERNAL, message)
        }
    };
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    let mut args = sys::XLA_FFI_Error_Create_Args {
        struct_size: sys::XLA_FFI_Error_Create_Args::STRUCT_SIZE,
        message: message.as_ptr(),
        errc: code,
        ..Default::default()
    };
    // SAFETY: the engine's table lives as long as the engine; the message lives during the call, which copies it.
    unsafe { (*frame.api).XLA_FFI_Error_Create.map_or(ptr::null_mut(), |create| create(&raw mut args)) }
}

/// # Safety
/// As [`handler`].
unsafe fn call(frame: &sys::XLA_FFI_CallFrame) -> Result<(), Failure> {
    let python = PYTHON.get().ok_or_else(|| Failure::internal("Python callbacks are not installed"))?;
    // SAFETY: the frame is the engine's, so its lists are as long as they say, as this function asks.
    let (arguments, results, callable) = unsafe {
        let count = |size: i64| usize::try_from(size).unwrap_or(0);
        (
            slice(frame.args.args.cast::<*const sys::XLA_FFI_Buffer>(), count(frame.args.size)),
            slice(frame.rets.rets.cast::<*const sys::XLA_FFI_Buffer>(), count(frame.rets.size)),
            callable(frame)?,
        )
    };
    let gil = Gil::take(python).ok_or_else(|| {
        Failure::Own(sys::XLA_FFI_Error_Code_CANCELLED, "CpuCallback error: the Python interpreter is ending".into())
    })?;
    let mut owned: SmallVec<[_; 8]> = SmallVec::with_capacity(arguments.len());
    for (index, &argument) in arguments.iter().enumerate() {
        // SAFETY: the frame's buffers live until the handler returns.
        let array = unsafe { arrays::argument(&gil, &*argument) };
        owned.push(array.map_err(|misfit| Failure::misfit("argument", index, misfit))?);
    }
    let objects: SmallVec<[Object; 8]> = owned.iter().map(|array| array.object()).collect();
    let _in_handler = InHandler::enter_callback();
    // SAFETY: callable and arguments are alive, as many as said; the GIL is held; the result is a new reference or
    // NULL.
    let returned = unsafe { gil.own((python.vectorcall)(callable, objects.as_ptr(), objects.len(), ptr::null_mut())) };
    drop(owned);
    let returned = returned.map_err(Failure::raised)?;
    for (index, &result) in results.iter().enumerate() {
        // SAFETY: the returned object is alive and the GIL held. If it is no tuple, or too short a one, Python
        // raises.
        let value = unsafe { (python.tuple_item)(returned.object(), index as isize) };
        if value.is_null() {
            return Err(Failure::misfit("result", index, Misfit::Raised(gil.raised())));
        }
        // SAFETY: the tuple keeps the value alive; the frame's buffers live until the handler returns.
        unsafe { arrays::result(&gil, &*result, value) }.map_err(|misfit| Failure::misfit("result", index, misfit))?;
    }
    Ok(())
}

/// The callable that the custom call means: the one with its number among the execution's.
///
/// # Safety
/// As [`handler`].
unsafe fn callable(frame: &sys::XLA_FFI_CallFrame) -> Result<Object, Failure> {
    let mut id = sys::XLA_FFI_TypeId { type_id: CALLABLES };
    let mut args = sys::XLA_FFI_ExecutionContext_Get_Args {
        struct_size: sys::XLA_FFI_ExecutionContext_Get_Args::STRUCT_SIZE,
        ctx: frame.ctx,
        type_id: &raw mut id,
        ..Default::default()
    };
    // SAFETY: the engine's table lives as long as the engine, the context and its user data as long as the call.
    let callables = unsafe {
        let get = (*frame.api).XLA_FFI_ExecutionContext_Get;
        let get = get.ok_or_else(|| Failure::internal("the engine's FFI has no execution contexts"))?;
        let error = get(&raw mut args);
        if !error.is_null() {
            return Err(Failure::Engine(error));
        }
        args.data.cast::<Callables>().as_ref()
    };
    // SAFETY: the frame is the engine's, so its attributes are as many as they say.
    let index = unsafe { index(&frame.attrs) }.ok_or_else(|| Failure::internal("the custom call has no index"))?;
    // SAFETY: the struct is the one that has this id, alive as long as the context, with as many callables as it
    // says.
    let items = callables.map_or(&[][..], |callables| unsafe { slice(callables.items, callables.count as usize) });
    let item = usize::try_from(index).ok().and_then(|index| items.get(index));
    item.copied().filter(|item| !item.is_null()).ok_or_else(|| {
        Failure::internal(format!("the custom call means callable {index}, and the run has {}", items.len()))
    })
}

/// The attribute `index`, a number of 64 bits.
///
/// # Safety
/// The lists must be as long as they say.
unsafe fn index(attributes: &sys::XLA_FFI_Attrs) -> Option<u64> {
    // SAFETY: the lists are as long as they say, as this function asks; a scalar's type says how large its value is.
    unsafe {
        let count = usize::try_from(attributes.size).ok()?;
        let names = slice(attributes.names, count);
        let at = names.iter().position(|&name| slice((*name).ptr.cast::<u8>(), (*name).len) == b"index")?;
        if *slice(attributes.types, count).get(at)? != sys::XLA_FFI_AttrType_SCALAR {
            return None;
        }
        let scalar = slice(attributes.attrs.cast::<*const sys::XLA_FFI_Scalar>(), count).get(at)?.as_ref()?;
        match scalar.dtype {
            sys::XLA_FFI_DataType_U64 | sys::XLA_FFI_DataType_S64 => Some(scalar.value.cast::<u64>().read_unaligned()),
            _ => None,
        }
    }
}
