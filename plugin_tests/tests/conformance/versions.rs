//! Callers and engines of other versions: structs that are shorter or longer than ours.
//!
//! ```text
//!  caller's memory   |size|...known fields...|...fields of later versions...|guard guard guard|
//!                    '------------------ struct_size -----------------------'
//! ```
//! An answer may change bytes of the known fields alone: neither the guard nor a field that the library does not know.

use std::{mem::offset_of, path::Path, process::Command, ptr, sync::LazyLock};

use plugin_tests::{
    Buffer, Client, Code, Event, Loaded, Program, Result, Value, args, call, in_child, plugin,
    plugin::engine_path,
    sized,
    sys::{self, CStruct},
};

use crate::{
    DIMS, engine,
    executable::{ANSWER, install_analysis},
    limited, plus, ramp, shared,
};

const GUARD: u8 = 0xA5;
/// Bytes of the fields that a later version may have added.
const LATER: usize = 64;

type Function<A> = Option<unsafe extern "C" fn(*mut A) -> *mut sys::PJRT_Error>;

/// Memory of a caller whose struct has `size` bytes: as much of the struct as fits, the rest guard.
struct Sized<A> {
    words: Vec<u64>,
    size: usize,
    known: std::marker::PhantomData<A>,
}

impl<A: CStruct> Sized<A> {
    fn new(args: &A, size: usize) -> Self {
        let mut words = vec![u64::from_ne_bytes([GUARD; 8]); (size.max(size_of::<A>()) + LATER).div_ceil(8)];
        let bytes = words.as_mut_ptr().cast::<u8>();
        // SAFETY: the memory is longer than both the struct and `size`.
        unsafe {
            bytes.copy_from_nonoverlapping(ptr::from_ref(args).cast(), size.min(A::STRUCT_SIZE));
            bytes.cast::<usize>().write(size);
        }
        Self { words, size, known: std::marker::PhantomData }
    }

    fn raw(&mut self) -> *mut A {
        self.words.as_mut_ptr().cast()
    }

    /// The struct, zero where the caller has nothing, once nobody wrote where nothing may be written.
    #[track_caller]
    fn check(self) -> A {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = A::NAME;
        assert_eq!(self.words[0], self.size as u64, "{name}: struct_size is the caller's");
        let known = self.size.min(A::STRUCT_SIZE);
        let written = bytes[known..].iter().position(|&byte| byte != GUARD);
        assert_eq!(
            written.map(|at| known + at),
            None,
            "{name} of {} bytes: a byte behind {known} was written",
            self.size
        );
        let mut args = A::default();
        // SAFETY: `known` bytes are no more than the struct has.
        unsafe { ptr::from_mut(&mut args).cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), known) };
        args
    }
}

/// Calls `function` as a caller does whose struct has `size` bytes.
#[track_caller]
fn call_sized<A: CStruct>(function: Function<A>, args: &A, size: usize) -> Result<A> {
    let mut caller = Sized::new(args, size);
    // SAFETY: the struct is as long as it says and belongs to the function.
    let error = unsafe { function.expect("the table has it")(caller.raw()) };
    plugin().check(error)?;
    Ok(caller.check())
}

/// `data/abi_growth.txt`: which sizes each struct had, from the oldest on.
static GROWTH: LazyLock<Vec<(&str, usize)>> = LazyLock::new(|| {
    let lines = include_str!("../../data/abi_growth.txt").lines().filter(|line| !line.starts_with('#'));
    let step = |line: &'static str| {
        let [name, _, size] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("`{line}` has not three words") };
        (name, size.parse().expect("a number of bytes"))
    };
    lines.map(step).collect()
});

/// Every size with which a caller may send the struct: all that it had, and one of a version to come.
fn sizes<A: CStruct>() -> Vec<usize> {
    let older = GROWTH.iter().filter(|(name, size)| *name == A::NAME && *size < A::STRUCT_SIZE);
    older.map(|(_, size)| *size).chain([A::STRUCT_SIZE, A::STRUCT_SIZE + LATER]).collect()
}

/// The bytes behind the size that every version of the struct has.
fn common<A: CStruct>(args: &A) -> &[u8] {
    // A memory layout ends with its kind, which is half a word; what lies behind it is anything.
    let padding = if A::NAME == "PJRT_Buffer_GetMemoryLayout_Args" { size_of::<u32>() } else { 0 };
    let bytes = size_of::<usize>()..A::MIN_SIZE - padding;
    // SAFETY: the bytes are the struct's, and fields have all of them.
    unsafe { std::slice::from_raw_parts(ptr::from_ref(args).cast::<u8>().add(bytes.start), bytes.len()) }
}

/// Asks each function once for each size of its struct and compares the answers, byte for byte.
macro_rules! same_answers {
    ($asked:ident; $($name:ident { $($field:ident : $value:expr),* })*) => { $({
        let asked = args!($name { $($field: $value),* });
        let function = plugin().table().$name;
        let plain = call_sized(function, &asked, asked.struct_size).expect(stringify!($name));
        assert_ne!(common(&plain), common(&asked), "{}: the answer is all zero", stringify!($name));
        for size in sizes_of(&asked) {
            let answer = call_sized(function, &asked, size).expect(stringify!($name));
            assert_eq!(common(&answer), common(&plain), "{} with {size} bytes", stringify!($name));
            $asked += 1;
        }
    })* };
}

fn sizes_of<A: CStruct>(_: &A) -> Vec<usize> {
    sizes::<A>()
}

#[test]
fn t25_arena_answers_do_not_depend_on_the_callers_version() {
    let client = limited("preallocate", 1 << 26);
    let loaded = client.compile(&Program::two_results()).unwrap();
    let described = loaded.executable();
    let held = client.put(&ramp(0.0), &DIMS).unwrap();
    let done = held.ready();
    done.wait().unwrap();
    let (c, device, memory) = (client.raw(), client.device().raw(), client.device().default_memory().raw());
    let description = client.device().description();
    let (executable, buffer, event) = (described.raw(), held.raw(), done.raw());
    let topology = call!(plugin(), PJRT_Client_TopologyDescription { client: c }).unwrap().topology;
    let mut asked = 0;
    same_answers! { asked;
        PJRT_Client_PlatformName { client: c }
        PJRT_Client_PlatformVersion { client: c }
        PJRT_Client_Devices { client: c }
        PJRT_Client_AddressableDevices { client: c }
        PJRT_Client_LookupDevice { client: c, id: 0 }
        PJRT_Client_LookupAddressableDevice { client: c, local_hardware_id: 0 }
        PJRT_Client_AddressableMemories { client: c }
        PJRT_Client_TopologyDescription { client: c }
        PJRT_Device_GetDescription { device: device }
        PJRT_Device_IsAddressable { device: device }
        PJRT_Device_AddressableMemories { device: device }
        PJRT_Device_DefaultMemory { device: device }
        PJRT_Device_MemoryStats { device: device }
        PJRT_DeviceDescription_Kind { device_description: description }
        PJRT_DeviceDescription_DebugString { device_description: description }
        PJRT_DeviceDescription_ToString { device_description: description }
        PJRT_Memory_Kind { memory: memory }
        PJRT_Memory_Kind_Id { memory: memory }
        PJRT_Memory_DebugString { memory: memory }
        PJRT_Memory_ToString { memory: memory }
        PJRT_Memory_AddressableByDevices { memory: memory }
        PJRT_Executable_Name { executable: executable }
        PJRT_Executable_NumReplicas { executable: executable }
        PJRT_Executable_NumPartitions { executable: executable }
        PJRT_Executable_NumOutputs { executable: executable }
        PJRT_Executable_OutputElementTypes { executable: executable }
        PJRT_Executable_OutputDimensions { executable: executable }
        PJRT_Executable_Fingerprint { executable: executable }
        PJRT_Executable_GetCompiledMemoryStats { executable: executable }
        PJRT_LoadedExecutable_AddressableDevices { executable: loaded.raw() }
        PJRT_Buffer_ElementType { buffer: buffer }
        PJRT_Buffer_Dimensions { buffer: buffer }
        PJRT_Buffer_UnpaddedDimensions { buffer: buffer }
        PJRT_Buffer_GetMemoryLayout { buffer: buffer }
        PJRT_Buffer_OnDeviceSizeInBytes { buffer: buffer }
        PJRT_Buffer_Device { buffer: buffer }
        PJRT_Buffer_Memory { buffer: buffer }
        PJRT_Buffer_IsOnCpu { buffer: buffer }
        PJRT_Buffer_UnsafePointer { buffer: buffer }
        PJRT_Buffer_OpaqueDeviceMemoryDataPointer { buffer: buffer }
        PJRT_Event_IsReady { event: event }
        PJRT_TopologyDescription_PlatformName { topology: topology }
        PJRT_TopologyDescription_PlatformVersion { topology: topology }
        PJRT_TopologyDescription_GetDeviceDescriptions { topology: topology }
    }
    // Two sizes each; MemoryStats had one more, GetCompiledMemoryStats three.
    assert_eq!(asked, 2 * 44 + 1 + 3);
}

#[test]
fn t25_arena_costs_do_not_depend_on_the_callers_version() {
    in_child!(&[], || {
        // Some engines do not count.
        *ANSWER.lock().unwrap() = Some((-1, "7.5 flops\n"));
        install_analysis();
        let loaded = shared().compile(&Program::two_results()).unwrap();
        let described = loaded.executable();
        let mut asked = 0;
        same_answers! { asked; PJRT_Executable_GetCostAnalysis { executable: described.raw() } }
        assert_eq!(asked, 2);
    });
}

#[test]
fn t25_arena_fields_behind_an_old_answer_stay_zero() {
    // The newest fields are filled in only for a caller that has them.
    let program = shared().compile(&Program::add_one()).unwrap();
    let executable = program.executable();
    let asked = args!(PJRT_Executable_GetCompiledMemoryStats { executable: executable.raw() });
    for size in sizes_of(&asked) {
        let stats = call_sized(plugin().table().PJRT_Executable_GetCompiledMemoryStats, &asked, size).unwrap();
        assert_eq!((stats.argument_size_in_bytes, stats.output_size_in_bytes), (4096, 4096), "{size} bytes");
        let peak = offset_of!(sys::PJRT_Executable_GetCompiledMemoryStats_Args, peak_memory_in_bytes);
        assert_eq!(stats.peak_memory_in_bytes > 0, size > peak, "{size} bytes");
    }
}

#[test]
fn t25_arena_the_oldest_callers_read_the_number_of_attributes() {
    // jaxlib 0.6 says a size that leaves out num_attributes, and reads it; what follows it is not ours.
    let mut caller = Sized::new(&args!(PJRT_Plugin_Attributes {}), sys::PJRT_Plugin_Attributes_Args::MIN_SIZE);
    let end = sys::PJRT_Plugin_Attributes_Args::STRUCT_SIZE / 8;
    // SAFETY: the memory is longer than the struct.
    let answer = unsafe {
        let error = plugin().table().PJRT_Plugin_Attributes.unwrap()(caller.raw());
        plugin().check(error).unwrap();
        *caller.raw()
    };
    assert_eq!(answer.struct_size, sys::PJRT_Plugin_Attributes_Args::MIN_SIZE);
    assert_eq!(Value::read_list(answer.attributes, answer.num_attributes), plugin().attributes());
    assert!(caller.words[end..].iter().all(|&word| word == u64::from_ne_bytes([GUARD; 8])));
    for size in [32, 32 + LATER] {
        let answer = call_sized(plugin().table().PJRT_Plugin_Attributes, &args!(PJRT_Plugin_Attributes {}), size);
        let answer = answer.unwrap();
        assert_eq!(Value::read_list(answer.attributes, answer.num_attributes), plugin().attributes(), "{size}");
    }
}

#[test]
fn t25_arena_clients_of_every_version_are_created() {
    let count = Value::Integer(2);
    let options = [count.named("cpu_device_count")];
    let asked = args!(PJRT_Client_Create { create_options: options.as_ptr(), num_options: 1 });
    assert_eq!(sizes_of(&asked), [72, 88, 88 + LATER]);
    for size in sizes_of(&asked) {
        let client = call_sized(plugin().table().PJRT_Client_Create, &asked, size).unwrap().client;
        let devices = call!(plugin(), PJRT_Client_Devices { client: client }).unwrap().num_devices;
        assert_eq!(devices, 2, "{size} bytes");
        let destroy = args!(PJRT_Client_Destroy { client: client });
        call_sized(plugin().table().PJRT_Client_Destroy, &destroy, destroy.struct_size + LATER).unwrap();
    }
}

/// Executes `loaded` on `x` with options of `size` bytes; the field `keep` is one that every version has.
fn execute_sized(loaded: &Loaded, x: &Buffer, size: usize, keep: &[i64]) -> Result<Buffer> {
    let mut options = sized!(PJRT_ExecuteOptions);
    options.non_donatable_input_indices = keep.as_ptr();
    options.num_non_donatable_input_indices = keep.len();
    let mut options = Sized::new(&options, size);
    if size > sys::PJRT_ExecuteOptions::STRUCT_SIZE {
        // Options that nobody here knows are zero, their default: with others the caller would ask for something.
        options.words[sys::PJRT_ExecuteOptions::STRUCT_SIZE / 8..size / 8].fill(0);
    }
    let (arguments, mut outputs) = ([x.raw()], [ptr::null_mut()]);
    let (argument_list, output_list) = (arguments.as_ptr(), (&raw mut outputs).cast::<*mut sys::PJRT_Buffer>());
    let asked = args!(PJRT_LoadedExecutable_Execute {
        executable: loaded.raw(),
        options: options.raw(),
        argument_lists: &raw const argument_list,
        num_devices: 1,
        num_args: 1,
        output_lists: &raw const output_list,
    });
    for larger in [0, LATER] {
        call_sized(plugin().table().PJRT_LoadedExecutable_Execute, &asked, asked.struct_size + larger)?;
        if larger == 0 {
            drop(Buffer::own(plugin(), outputs[0]));
        }
    }
    let end = options.words.len() - LATER / 8;
    assert!(options.words[end..].iter().all(|&word| word == u64::from_ne_bytes([GUARD; 8])), "{size} bytes");
    Ok(Buffer::own(plugin(), outputs[0]))
}

#[test]
fn t25_arena_execute_options_of_every_version_are_taken() {
    let donate = shared().compile(&Program::donate()).unwrap();
    let x = shared().put(&ramp(3.0), &DIMS).unwrap();
    let sizes = sizes::<sys::PJRT_ExecuteOptions>();
    assert_eq!(sizes, [72, 80, 88, 112, 120, 121, 144, 144 + LATER]);
    for size in sizes {
        let y = execute_sized(&donate, &x, size, &[0]).unwrap();
        assert_eq!(y.read::<f32>().unwrap(), ramp(4.0), "{size} bytes");
        assert!(!x.is_deleted(), "{size} bytes: the option to keep the argument got lost");
    }
    for size in [16, 71] {
        execute_sized(&donate, &x, size, &[0])
            .map(drop)
            .unwrap_err()
            .expect(Code::INVALID_ARGUMENT, &["72", &size.to_string()]);
    }
}

#[test]
fn t25_arena_executables_are_loaded_for_callers_of_every_version() {
    let blob = shared().compile(&Program::add_one()).unwrap().executable().serialize().unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    let asked = args!(PJRT_Executable_DeserializeAndLoad {
        client: shared().raw(),
        serialized_executable: blob.as_ptr().cast(),
        serialized_executable_size: blob.len(),
    });
    for size in [48, 64, 72] {
        let loaded = call_sized(plugin().table().PJRT_Executable_DeserializeAndLoad, &asked, size).unwrap();
        let loaded = Loaded::own(plugin(), loaded.loaded_executable);
        assert_eq!(loaded.run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0), "{size} bytes");
    }
}

#[test]
fn t25_arena_views_of_every_version_are_made() {
    #[repr(align(64))]
    struct Aligned([f32; DIMS[0] as usize]);
    let mut memory = Box::new(Aligned(ramp(7.0).try_into().unwrap()));
    let asked = args!(PJRT_Client_CreateViewOfDeviceBuffer {
        client: shared().raw(),
        device_buffer_ptr: memory.0.as_mut_ptr().cast(),
        dims: DIMS.as_ptr(),
        num_dims: 1,
        element_type: sys::PJRT_Buffer_Type_F32,
        device: shared().device().raw(),
    });
    assert_eq!(sizes_of(&asked), [104, 112, 112 + LATER]);
    for size in sizes_of(&asked) {
        // Nobody asks to be told when the view ends, which the engine alone does not survive.
        let view = call_sized(plugin().table().PJRT_Client_CreateViewOfDeviceBuffer, &asked, size).unwrap();
        let view = Buffer::own(plugin(), view.buffer);
        assert_eq!(view.read::<f32>().unwrap(), ramp(7.0), "{size} bytes");
    }
}

#[test]
fn t25_arena_buffers_are_written_and_read_by_newer_callers() {
    let values = ramp(1.0);
    let put = args!(PJRT_Client_BufferFromHostBuffer {
        client: shared().raw(),
        data: values.as_ptr().cast(),
        type_: sys::PJRT_Buffer_Type_F32,
        dims: DIMS.as_ptr(),
        num_dims: 1,
        device: shared().device().raw(),
    });
    let put = call_sized(plugin().table().PJRT_Client_BufferFromHostBuffer, &put, put.struct_size + LATER).unwrap();
    let buffer = Buffer::own(plugin(), put.buffer);
    Event::own(plugin(), put.done_with_host_buffer).unwrap().wait().unwrap();
    let mut back = vec![0f32; values.len()];
    let get = args!(PJRT_Buffer_ToHostBuffer {
        src: buffer.raw(),
        dst: back.as_mut_ptr().cast(),
        dst_size: size_of_val(&back[..]),
    });
    let get = call_sized(plugin().table().PJRT_Buffer_ToHostBuffer, &get, get.struct_size + LATER).unwrap();
    Event::own(plugin(), get.event).unwrap().wait().unwrap();
    assert_eq!(back, values);
}

/// An engine of a version that we do not know: the test engine behind functions that each ask for 64 bytes more than
/// the engine does, and for zeros in them.
fn newer_engine() -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (folder.join("newer_engine.c"), folder.join("libnewer_engine.so"));
    let execute =
        offset_of!(sys::PJRT_Api, PJRT_LoadedExecutable_Execute) - offset_of!(sys::PJRT_Api, PJRT_Error_Destroy);
    let code = NEWER_ENGINE
        .replace("EXECUTE_SLOT", &(execute / size_of::<usize>()).to_string())
        .replace("THE_ENGINE", engine_path().to_str().unwrap());
    std::fs::write(&source, code).unwrap();
    let made =
        Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().expect("gcc runs");
    assert!(made.success());
    library.to_str().unwrap().into()
}

/// A struct that is too short, or not zero where the later fields are, ends the process: tests see that best.
const NEWER_ENGINE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { MORE = 64, HEAD = 40, MINOR_AT = 36, SLOTS = 118, EXECUTE = EXECUTE_SLOT };
static char table[HEAD + 8 * SLOTS];
static void* (*slots[SLOTS])(void*);
static void shrink(size_t* args, int slot) {
  if (*args < MORE + 16) { fprintf(stderr, "slot %d: %zu bytes\n", slot, *args); abort(); }
  *args -= MORE;
  for (int i = 0; i < MORE; i++)
    if (((char*)args)[*args + i]) { fprintf(stderr, "slot %d: byte %d of later fields\n", slot, i); abort(); }
}
static void* forward(int slot, size_t* args) {
  size_t size = *args;
  if (slot < 3) return slots[slot](args);  /* errors, of which the caller knows no later version */
  shrink(args, slot);
  size_t* options = slot == EXECUTE ? ((size_t**)args)[3] : NULL;
  if (options) shrink(options, slot);
  void* error = slots[slot](args);
  *args = size;
  if (options) *options += MORE;
  return error;
}
#define F1(n) static void* f##n(void* a) { return forward(n, a); }
#define F10(n) F1(n##0) F1(n##1) F1(n##2) F1(n##3) F1(n##4) F1(n##5) F1(n##6) F1(n##7) F1(n##8) F1(n##9)
F1(0) F1(1) F1(2) F1(3) F1(4) F1(5) F1(6) F1(7) F1(8) F1(9)
F10(1) F10(2) F10(3) F10(4) F10(5) F10(6) F10(7) F10(8) F10(9) F10(10)
F1(110) F1(111) F1(112) F1(113) F1(114) F1(115) F1(116) F1(117)
#define N1(n) f##n,
#define N10(n) N1(n##0) N1(n##1) N1(n##2) N1(n##3) N1(n##4) N1(n##5) N1(n##6) N1(n##7) N1(n##8) N1(n##9)
static void* const ours[SLOTS] = { N1(0) N1(1) N1(2) N1(3) N1(4) N1(5) N1(6) N1(7) N1(8) N1(9)
  N10(1) N10(2) N10(3) N10(4) N10(5) N10(6) N10(7) N10(8) N10(9) N10(10)
  N1(110) N1(111) N1(112) N1(113) N1(114) N1(115) N1(116) N1(117) };
const void* GetPjrtApi(void) {
  void* engine = dlopen("THE_ENGINE", RTLD_NOW | RTLD_LOCAL);
  if (!engine) { fprintf(stderr, "%s\n", dlerror()); abort(); }
  const char* theirs = ((const char* (*)(void))dlsym(engine, "GetPjrtApi"))();
  memcpy(table, theirs, sizeof table);
  memcpy(slots, theirs + HEAD, sizeof slots);
  memcpy(table + HEAD, ours, sizeof ours);
  *(int*)(table + MINOR_AT) = 200;
  return table;
}
"#;

#[test]
fn t30_arena_an_engine_newer_than_we_know_is_given_longer_structs() {
    assert_eq!(offset_of!(sys::PJRT_Api, PJRT_Error_Destroy), 40, "HEAD of the engine above");
    let minor = offset_of!(sys::PJRT_Api, pjrt_api_version) + offset_of!(sys::PJRT_Api_Version, minor_version);
    assert_eq!(minor, 36, "its MINOR_AT");
    assert_eq!(offset_of!(sys::PJRT_LoadedExecutable_Execute_Args, options), 3 * 8, "where it finds the options");
    in_child!(&[("PJRT_ARENA_ENGINE", &newer_engine())], || {
        assert_eq!(plugin().version(), (0, sys::PJRT_API_MINOR as i32));
        let client = Client::create(2, &[]).unwrap();
        assert_eq!(client.platform_name(), "cpu");
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let y = client.compile(&Program::add_one()).unwrap().run1(&[&x]).unwrap();
        assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
        let donate = client.compile(&Program::donate()).unwrap();
        let z = donate.run1(&[&y]).unwrap();
        assert_eq!(z.read::<f32>().unwrap(), plus(&ramp(1.0), 1.0));
        let old = client.compile(&Program::add_one()).unwrap();
        let blob = old.executable().serialize().unwrap();
        let again = client.deserialize(&blob).unwrap().run1(&[&x]).unwrap();
        assert_eq!(again.copy_to_device(client.devices()[1]).unwrap().read::<f32>().unwrap(), ramp(1.0));
        assert!(donate.executable().sizes().is_ok());
        assert!(client.stats().unwrap().bytes_in_use > 0);
        call!(plugin(), PJRT_Client_LookupDevice { client: client.raw(), id: -1 })
            .map(drop)
            .unwrap_err()
            .expect(Code::INVALID_ARGUMENT, &[]);
        // Callers as old as they come, too.
        let result = execute_sized(&old, &x, sys::PJRT_ExecuteOptions::MIN_SIZE, &[]).unwrap();
        assert_eq!(result.read::<f32>().unwrap(), ramp(1.0));
    });
}

#[test]
fn t30_the_engine_wants_no_struct_longer_than_ours() {
    // In a child: an engine may not look at the size before it looks at the handles.
    in_child!(&[], || {
        let engine = engine();
        let first = offset_of!(sys::PJRT_Api, PJRT_Error_Destroy);
        // The first two functions return nothing, so they have no error to tell the size by.
        let slots = first + 2 * size_of::<usize>()..engine.table().struct_size.min(sys::PJRT_Api::STRUCT_SIZE);
        let mut told = 0;
        for slot in slots.step_by(size_of::<usize>()) {
            // It looks at the shape before the size, and ends the process over one without a layout.
            if slot == offset_of!(sys::PJRT_Api, PJRT_Client_CreateViewOfDeviceBuffer) {
                continue;
            }
            let mut words = [0u64; 128];
            words[0] = 8;
            // SAFETY: a slot of the table, each a function that takes a pointer to a struct; the struct says that it
            // has its size alone, and has zeros behind.
            let error = unsafe {
                let at = ptr::from_ref(engine.table()).byte_add(slot).cast::<Function<u64>>();
                let Some(function) = *at else { continue };
                function(words.as_mut_ptr())
            };
            let Err(failure) = engine.check(error) else { continue };
            // "Unexpected PJRT_Event_IsReady size: expected 25, got 8. ..."
            let Some((_, rest)) = failure.message.split_once("Unexpected ") else { continue };
            let Some((name, rest)) = rest.split_once(" size: expected ") else { continue };
            let wanted: usize = rest.split(',').next().and_then(|size| size.parse().ok()).expect(rest);
            let plain = name.trim_end_matches("_Args").to_ascii_lowercase();
            let ours =
                sys::C_STRUCTS.iter().find(|one| one.name.trim_end_matches("_Args").to_ascii_lowercase() == plain);
            // XLA's name for one of them is not the struct's.
            let Some(ours) = ours else {
                assert_eq!(name, "PJRT_Client_DefaultAssignment_Args", "a struct that we do not declare");
                continue;
            };
            assert!(
                wanted <= ours.struct_size,
                "{name}: the engine wants {wanted} bytes, ours has {}",
                ours.struct_size
            );
            told += 1;
        }
        assert!(told > 100, "{told} structs were told");
    });
}
