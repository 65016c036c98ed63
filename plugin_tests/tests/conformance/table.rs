//! The table itself, the plugin's attributes, its errors and its extensions.

use std::{collections::BTreeSet, mem::offset_of};

use plugin_tests::{Buffer, Code, Plugin, Value, args, call, ffi::FFI_EXTENSION, plugin, sys};

use crate::{engine, shared};

/// The newest minor version that the library was written against.
const NEWEST_MINOR: i32 = 115;
/// Type id of the Layouts extension.
const LAYOUTS_EXTENSION: u32 = 4;
/// Type id of the Profiler extension, which is ours where the engine has none.
pub const PROFILER_EXTENSION: u32 = 1;
/// Type id of the Custom_Partitioner extension, likewise.
pub const CUSTOM_PARTITIONER_EXTENSION: u32 = 2;
/// What is ours where the engine has none.
const OURS: [u32; 2] = [PROFILER_EXTENSION, CUSTOM_PARTITIONER_EXTENSION];

#[test]
fn c01_version_is_one_that_jax_accepts() {
    let (major, minor) = plugin().version();
    assert_eq!(major, 0);
    assert!((29..=NEWEST_MINOR).contains(&minor), "minor {minor}");
}

#[test]
fn c01_every_function_inside_the_table_is_there() {
    every_function_is_there(plugin());
}

/// The table of `plugin` has at least the functions of 0.81, and no hole.
pub fn every_function_is_there(plugin: &Plugin) {
    let slots = plugin.slots();
    assert!(slots.len() >= 118, "0.81 has 118 functions, the table has {}", slots.len());
    for (index, slot) in slots.iter().enumerate() {
        assert!(!slot.is_null(), "function {index} is null");
    }
}

#[test]
fn c01_arena_reports_the_engines_minor_and_table_size() {
    version_and_size_are_the_engines(plugin(), engine());
}

/// `ours` is as new as the engine, but no newer than the library knows.
pub fn version_and_size_are_the_engines(ours: &Plugin, engine: &Plugin) {
    assert_eq!(ours.version(), (0, engine.version().1.min(NEWEST_MINOR)));
    assert_eq!(ours.slots().len(), engine.slots().len().min(newest_slots()));
}

fn newest_slots() -> usize {
    (size_of::<sys::PJRT_Api>() - offset_of!(sys::PJRT_Api, PJRT_Error_Destroy)) / size_of::<usize>()
}

#[test]
fn t01_arena_newer_clients_read_null_past_the_table() {
    // A newer jaxlib asks some functions for null without looking at struct_size (PJRT_Client_Load, Event_Create ...).
    nothing_follows_the_table(plugin());
}

/// Functions past the end of the table read as null.
pub fn nothing_follows_the_table(plugin: &Plugin) {
    let table = plugin.original();
    // SAFETY: the promise under test is that 64 words after the reported size belong to the library.
    let words = unsafe { std::slice::from_raw_parts(table.byte_add((*table).struct_size).cast::<usize>(), 64) };
    assert_eq!(words, [0; 64]);
}

#[test]
fn t01_arena_newer_clients_read_null_past_an_extension() {
    // pypjrt 0.1 asks for functions of Layouts that the engine's version of it does not have.
    for (kind, node) in plugin().extensions() {
        // SAFETY: the promise under test is that 64 words after the reported size belong to the library.
        let words = unsafe {
            let size = (*node).struct_size.next_multiple_of(size_of::<usize>());
            std::slice::from_raw_parts(node.byte_add(size).cast::<usize>(), 64)
        };
        assert_eq!(words, [0; 64], "type {kind}");
    }
}

#[test]
fn c05_attributes_name_xla_and_stablehlo_versions() {
    let attributes = plugin().attributes();
    assert!(matches!(attributes["xla_version"], Value::Integer(version) if version >= 1));
    let Value::Integers(current) = &attributes["stablehlo_current_version"] else { panic!("a list of integers") };
    assert_eq!(current.len(), 3);
    assert!(attributes.contains_key("stablehlo_minimum_version"));
}

#[test]
fn c05_arena_attributes_are_the_engines() {
    // jaxlib writes its StableHLO for the version named here, so it must be the engine's.
    assert_eq!(plugin().attributes(), engine().attributes());
}

#[test]
fn c32_destroying_no_error_is_allowed() {
    let mut args = args!(PJRT_Error_Destroy {});
    // SAFETY: null is the value under test.
    unsafe { plugin().table().PJRT_Error_Destroy.expect("every table has it")(&mut args) };
}

#[test]
fn c32_an_error_has_a_code_and_a_message() {
    let failure = call!(plugin(), PJRT_Client_LookupDevice { client: shared().raw(), id: -1 }).map(drop).unwrap_err();
    assert_eq!(failure.code, Code::INVALID_ARGUMENT);
    assert!(!failure.message.is_empty());
}

#[test]
fn c32_payloads_are_visited_where_the_version_has_them() {
    unsafe extern "C" fn visitor(_: *const i8, _: usize, _: *const i8, _: usize, count: *mut std::ffi::c_void) {
        // SAFETY: the count below outlives the call.
        unsafe { *count.cast::<usize>() += 1 };
    }
    let Some(for_each) = plugin().table().PJRT_Error_ForEachPayload else {
        assert!(plugin().version().1 < 99, "0.99 has PJRT_Error_ForEachPayload");
        return;
    };
    let mut lookup = args!(PJRT_Client_LookupDevice { client: shared().raw(), id: -1 });
    // SAFETY: plain calls with live handles.
    unsafe {
        let error = plugin().table().PJRT_Client_LookupDevice.expect("every table has it")(&mut lookup);
        let mut visits = 0usize;
        let mut args = args!(PJRT_Error_ForEachPayload {
            error: error,
            visitor: Some(visitor),
            user_arg: (&raw mut visits).cast()
        });
        assert!(for_each(&mut args).is_null());
        assert_eq!(visits, 0, "this error has no payload");
        plugin().take(error);
    }
}

#[test]
fn c34_extension_chain_has_layouts_and_ffi_once_each() {
    let kinds: Vec<u32> = plugin().extensions().iter().map(|(kind, _)| *kind).collect();
    for needed in [LAYOUTS_EXTENSION, FFI_EXTENSION] {
        assert_eq!(kinds.iter().filter(|&&kind| kind == needed).count(), 1, "type {needed} in {kinds:?}");
    }
}

#[test]
fn c34_arena_extensions_are_the_engines_or_fewer() {
    extensions_are_known_ones_of_the_engine(plugin(), engine());
}

/// The chain of `ours` has each type once, from the engine's chain, and none that the library does not know; and a
/// profiler and partitioners in any case.
pub fn extensions_are_known_ones_of_the_engine(ours: &Plugin, engine: &Plugin) {
    let kinds = |plugin: &Plugin| plugin.extensions().into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
    let (ours, theirs) = (kinds(ours), kinds(engine));
    let unique: BTreeSet<u32> = ours.iter().copied().collect();
    assert_eq!(unique.len(), ours.len(), "no type twice: {ours:?}");
    assert!(OURS.iter().all(|kind| unique.contains(kind)), "{ours:?}");
    let known = |kind: &u32| theirs.contains(kind) || OURS.contains(kind);
    assert!(unique.iter().all(known), "{ours:?} of {theirs:?}");
    // An extension that nobody knows might take our buffers for the engine's.
    assert!(unique.iter().all(|&kind| kind <= 24 && kind != 11), "only known types: {ours:?}");
}

#[test]
fn t30_arena_extension_nodes_keep_their_size_but_are_ours() {
    extensions_are_copies(plugin(), engine());
}

/// The nodes of the chain of `ours` that the engine has too are as long as the engine's, but lie elsewhere.
pub fn extensions_are_copies(ours: &Plugin, engine: &Plugin) {
    let theirs = engine.extensions();
    for (kind, node) in ours.extensions() {
        let Some((_, original)) = theirs.iter().find(|(found, _)| *found == kind) else {
            assert!(OURS.contains(&kind), "type {kind}");
            continue;
        };
        // SAFETY: chain nodes live as long as their libraries.
        let (our_size, their_size) = unsafe { ((*node).struct_size, (**original).struct_size) };
        assert_eq!(our_size, their_size, "type {kind}");
        assert_ne!(node, *original, "type {kind}: the chain is relinked, so its nodes must be copies");
    }
}

#[test]
fn c34_layouts_extension_describes_a_buffer() {
    // PJRT_Layouts_Extension: base, MemoryLayout_Destroy, MemoryLayout_Serialize, Client_GetDefaultLayout,
    // Buffer_MemoryLayout.
    #[repr(C)]
    struct Destroy {
        size: usize,
        extension: usize,
        layout: *mut u8,
    }
    #[repr(C)]
    struct Serialize {
        size: usize,
        extension: usize,
        layout: *mut u8,
        bytes: *const u8,
        len: usize,
        owner: *mut u8,
        delete: Option<unsafe extern "C" fn(*mut u8)>,
    }
    #[repr(C)]
    struct Default {
        size: usize,
        extension: usize,
        client: *mut sys::PJRT_Client,
        element_type: sys::PJRT_Buffer_Type,
        dims: *const i64,
        num_dims: usize,
        layout: *mut u8,
    }
    #[repr(C)]
    struct OfBuffer {
        size: usize,
        extension: usize,
        buffer: *mut sys::PJRT_Buffer,
        layout: *mut u8,
    }
    #[repr(C)]
    struct Layouts {
        base: [usize; 3],
        destroy: unsafe extern "C" fn(*mut Destroy) -> *mut sys::PJRT_Error,
        serialize: unsafe extern "C" fn(*mut Serialize) -> *mut sys::PJRT_Error,
        default: unsafe extern "C" fn(*mut Default) -> *mut sys::PJRT_Error,
        of_buffer: unsafe extern "C" fn(*mut OfBuffer) -> *mut sys::PJRT_Error,
    }
    let (client, plugin) = (shared(), plugin());
    // SAFETY: the node's type is known; the structs above are its own.
    let layouts = unsafe { &*plugin.extension(LAYOUTS_EXTENSION).cast::<Layouts>() };
    let text_of = |layout: *mut u8| {
        let mut text = Serialize {
            size: size_of::<Serialize>(),
            extension: 0,
            layout,
            bytes: std::ptr::null(),
            len: 0,
            owner: std::ptr::null_mut(),
            delete: None,
        };
        // SAFETY: as above; the layout is alive, and destroyed once, after its text was copied.
        unsafe {
            plugin.check((layouts.serialize)(&mut text)).unwrap();
            let copy = std::slice::from_raw_parts(text.bytes, text.len).to_vec();
            text.delete.expect("a deleter")(text.owner);
            let mut destroy = Destroy { size: size_of::<Destroy>(), extension: 0, layout };
            plugin.check((layouts.destroy)(&mut destroy)).unwrap();
            String::from_utf8(copy).expect("a text")
        }
    };
    let of_buffer = |buffer: &Buffer| {
        let mut of =
            OfBuffer { size: size_of::<OfBuffer>(), extension: 0, buffer: buffer.raw(), layout: std::ptr::null_mut() };
        // SAFETY: as above; the buffer is alive.
        unsafe { plugin.check((layouts.of_buffer)(&mut of)).unwrap() };
        text_of(of.layout)
    };
    // More dimensions than any constant of pjrt-arena has.
    for rank in 0..=10_usize {
        let dims = vec![2_i64; rank];
        let mut default = Default {
            size: size_of::<Default>(),
            extension: 0,
            client: client.raw(),
            element_type: sys::PJRT_Buffer_Type_F32,
            dims: dims.as_ptr(),
            num_dims: rank,
            layout: std::ptr::null_mut(),
        };
        // SAFETY: as above; the client is alive, and the list as long as it says.
        unsafe { plugin.check((layouts.default)(&mut default)).unwrap() };
        let buffer = client.put(&vec![1_f32; 1 << rank], &dims).unwrap();
        assert_eq!(of_buffer(&buffer), text_of(default.layout), "{rank} dimensions");
    }
}
