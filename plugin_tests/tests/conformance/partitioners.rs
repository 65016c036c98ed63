//! The extension for partitioners of custom calls, and who is asked for programs that name one. Who is asked first
//! stays, so a test that installs somebody has a process of its own.

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::atomic::{AtomicI32, AtomicUsize, Ordering},
};

use plugin_tests::{Client, Code, Program, in_child, plugin, raw::Result, sized, sys};

use crate::{four, table::CUSTOM_PARTITIONER_EXTENSION};

type Give = unsafe extern "C" fn(*mut c_void, c_int, *const u8, usize);
type Resolve = unsafe extern "C" fn(*const u8, usize, *const u8, usize, Give, *mut c_void);

fn extension() -> &'static sys::PJRT_Custom_Partitioner_Extension {
    let extension = plugin().extension(CUSTOM_PARTITIONER_EXTENSION).cast::<sys::PJRT_Custom_Partitioner_Extension>();
    // SAFETY: nodes live as long as the library.
    unsafe { &*extension }
}

fn register(name: &str, callbacks: *mut sys::JAX_CustomCallPartitioner_Callbacks) -> Result<()> {
    let mut args = sized!(PJRT_Register_Custom_Partitioner_Args);
    (args.name, args.name_size, args.callbacks) = (name.as_ptr().cast(), name.len(), callbacks);
    // SAFETY: the struct is the function's own; nobody calls what `callbacks` points to.
    plugin().check(unsafe { extension().register_custom_partitioner.unwrap()(&mut args) })
}

fn register_batch(name: &str) -> Result<()> {
    let mut args = sized!(PJRT_Register_Batch_Partitionable_Args);
    (args.name, args.name_size) = (name.as_ptr().cast(), name.len());
    // SAFETY: the struct is the function's own.
    plugin().check(unsafe { extension().register_batch_partitionable.unwrap()(&mut args) })
}

/// What the library says of a name, and the functions that it has for it.
fn registered(name: &str) -> (c_int, *mut c_void) {
    type Ask = unsafe extern "C" fn(*const u8, usize, *mut *mut c_void) -> c_int;
    let mut callbacks = ptr::null_mut();
    // SAFETY: the function's type, and a place for its answer.
    let kind = unsafe { plugin().symbol::<Ask>("pjrt_arena_partitioner")(name.as_ptr(), name.len(), &mut callbacks) };
    (kind, callbacks)
}

#[test]
fn c34_arena_partitioners_are_kept_by_name() {
    let functions = ptr::without_provenance_mut::<sys::JAX_CustomCallPartitioner_Callbacks>(64);
    register("test_of_functions", functions).unwrap();
    register_batch("test_of_a_batch").unwrap();
    assert_eq!(registered("test_of_functions"), (1, functions.cast()));
    assert_eq!(registered("test_of_a_batch"), (2, ptr::null_mut()));
    assert_eq!(registered("test_of_nothing"), (0, ptr::null_mut()));
    // Who came first stays.
    register_batch("test_of_functions").unwrap();
    assert_eq!(registered("test_of_functions"), (1, functions.cast()));
}

#[test]
fn c34_arena_partitioners_without_a_name_or_functions_are_refused() {
    register("test_of_null", ptr::null_mut()).unwrap_err().expect(Code::INVALID_ARGUMENT, &["test_of_null", "NULL"]);
    assert_eq!(registered("test_of_null").0, 0);
    register_batch("").unwrap_err().expect(Code::INVALID_ARGUMENT, &["without a name"]);
}

static CALLS: AtomicUsize = AtomicUsize::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);
/// Answers nothing at all.
const SILENT: i32 = i32::MIN;
/// Answer -1 and -2, with a program that no engine takes.
const NONSENSE: i32 = -11;
const PREFERRED_NONSENSE: i32 = -12;

unsafe extern "C" fn resolve(
    program: *const u8,
    size: usize,
    options: *const u8,
    options_size: usize,
    give: Give,
    reply: *mut c_void,
) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: what the library promises.
    let (program, options) =
        unsafe { (std::slice::from_raw_parts(program, size), std::slice::from_raw_parts(options, options_size)) };
    assert_eq!((program, options), (Program::sharded().code(), Program::sharded().options()));
    let other = Program::add_one();
    let (code, answer) = match CODE.load(Ordering::Relaxed) {
        SILENT => return,
        -1 => (-1, other.code()),
        code @ (NONSENSE | PREFERRED_NONSENSE) => (code % 10, &b"nonsense"[..]),
        code => (code, &b"cut it yourself"[..]),
    };
    // SAFETY: `reply` came with the function, and the bytes live during the call.
    unsafe { give(reply, code, answer.as_ptr(), answer.len()) };
}

/// Compiles the program of four devices, with this answer; gives its name.
fn compiled(code: i32) -> Result<String> {
    CODE.store(code, Ordering::Relaxed);
    Ok(four().compile(&Program::sharded())?.executable().name())
}

#[test]
fn c20_arena_programs_that_name_a_partitioned_call_are_resolved() {
    in_child!(&[], || {
        // SAFETY: the function's type; `resolve` stays as long as the process.
        unsafe { plugin().symbol::<unsafe extern "C" fn(Resolve)>("pjrt_arena_install_partitioners")(resolve) };
        compiled(0).unwrap();
        assert_eq!(CALLS.load(Ordering::Relaxed), 0, "no partitioner is registered");
        // A string of every program.
        register_batch("main").unwrap();
        Client::one().compile(&Program::add_one()).unwrap();
        assert_eq!(CALLS.load(Ordering::Relaxed), 0, "one device has nothing to split");
        let own = compiled(0).unwrap();
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        let other = compiled(-1).unwrap();
        assert!(other.contains("add_one") && other != own, "{other}");
        compiled(NONSENSE).unwrap_err();
        assert_eq!(compiled(PREFERRED_NONSENSE).unwrap(), own, "the program as it came would do");
        compiled(3).unwrap_err().expect(Code::INVALID_ARGUMENT, &["cut it yourself"]);
        compiled(12).unwrap_err().expect(Code::UNIMPLEMENTED, &["cut it yourself"]);
        compiled(99).unwrap_err().expect(Code::INTERNAL, &["cut it yourself"]);
        compiled(SILENT).unwrap_err().expect(Code::INTERNAL, &["no answer"]);
        assert_eq!(compiled(0).unwrap(), own);
    });
}
