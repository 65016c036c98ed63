//! Our declaration of XLA FFI against the header that jaxlib ships (0.3), and against 0.2, which the engine speaks.

use std::{
    env,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use pjrt_arena::sys;

use crate::header::{Abi, Struct, XLA_FFI};

static OURS: LazyLock<Abi> = LazyLock::new(|| {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pjrt_c_api/xla_ffi.h");
    Abi::of_header(&header, &XLA_FFI, "our_ffi")
});

/// Structs that changed in place after 0.2, and our name for their old form.
const CHANGED: [(&str, &str); 2] = [
    ("XLA_FFI_State_Set_Args", "XLA_FFI_State_Set_Args_V02"),
    ("XLA_FFI_State_Get_Args", "XLA_FFI_State_Get_Args_V02"),
];

/// Structs that came after 0.3.
const NEWER: [&str; 4] = [
    "XLA_FFI_Api_V05",
    "XLA_FFI_Error_GetDetails_Args",
    "XLA_FFI_InvokeContext_FindExtension_Args",
    "XLA_FFI_CustomOptions_Get_Args",
];

/// What has no place in 0.3.
fn is_of_another_version(name: &str) -> bool {
    NEWER.iter().any(|newer| name.starts_with(newer)) || CHANGED.iter().any(|(_, old)| name.starts_with(old))
}

/// jaxlib's header, in the Python environment of the engine that `PJRT_ARENA_TEST_ENGINE` names, or else in `.venv`.
fn jaxlib_header() -> PathBuf {
    let file = "jaxlib/include/xla/ffi/api/c_api.h";
    let engine = env::var_os("PJRT_ARENA_TEST_ENGINE").map(PathBuf::from);
    let beside =
        engine.and_then(|engine| engine.ancestors().map(|folder| folder.join(file)).find(|file| file.is_file()));
    beside.or_else(|| crate::in_venv(file)).unwrap_or_else(|| {
        panic!("no jaxlib with its header was found: run `make`, or set PJRT_ARENA_TEST_ENGINE to an engine beside one")
    })
}

/// The structs that we declare, apart from those of another version.
fn of_version<'a>(abi: &'a Abi, minor: u64, name: &str) -> Option<&'a Struct> {
    let old = CHANGED.iter().find(|(new, _)| *new == name).map(|(_, old)| *old);
    abi.structs.get(old.filter(|_| minor < 3).unwrap_or(name))
}

/// All that we declare is in `theirs` with the same numbers, but for functions that we do not type and so do not list.
fn assert_ours_is_part_of(theirs: &Abi, minor: u64) {
    assert_eq!(theirs.values.get("XLA_FFI_API_MINOR"), Some(&minor), "the header is of another version");
    for name in OURS.structs.keys().filter(|name| !is_of_another_version(name)) {
        assert_eq!(of_version(&OURS, minor, name), theirs.structs.get(name), "{name} at 0.{minor}");
    }
    let sizes = OURS.values.iter().filter(|(name, _)| name.ends_with("_STRUCT_SIZE") && !is_of_another_version(name));
    for (name, size) in sizes {
        let plain = name.trim_end_matches("_STRUCT_SIZE");
        let old = CHANGED.iter().find(|(new, _)| *new == plain && minor < 3);
        let size = old.map_or(*size, |(_, old)| OURS.struct_size(old));
        assert_eq!(theirs.values.get(name), Some(&size), "{name} at 0.{minor}");
    }
    for (name, value) in OURS.enumerators().filter(|(name, _)| *name != "XLA_FFI_API_MINOR") {
        assert_eq!(theirs.values.get(name), Some(value), "{name} at 0.{minor}");
    }
}

#[test]
fn jaxlibs_ffi_header_is_ours_in_every_number() {
    let jaxlib = Abi::of_header(&jaxlib_header(), &XLA_FFI, "jaxlib_ffi");
    assert_eq!(jaxlib.structs["XLA_FFI_Api"].fields.len(), 4 + 18, "0.3 has 18 functions behind the table's head");
    assert_ours_is_part_of(&jaxlib, 3);
    let theirs = jaxlib.enumerators().filter(|(name, _)| *name != "XLA_FFI_API_MINOR");
    for (name, value) in theirs {
        assert_eq!(OURS.values.get(name), Some(value), "{name}");
    }
}

#[test]
fn the_ffi_header_of_the_engines_version_is_ours_with_the_old_state_structs() {
    let old = Abi::parse(include_str!("../../data/abi_ffi_0.2.txt"));
    assert_ours_is_part_of(&old, 2);
    for (new, ours) in CHANGED {
        assert_ne!(OURS.structs[new], old.structs[new], "{new} is another one since");
        assert_eq!(OURS.structs[ours], old.structs[new], "{new} as it was");
    }
}

/// The table of 0.5 begins as ours does, slot for slot, and so do the structs that handlers of 0.5 send or are sent.
#[test]
fn handlers_of_0_5_find_what_they_expect() {
    let newer = Abi::parse(include_str!("../../data/abi_ffi_0.5.txt"));
    assert_eq!(newer.values.get("XLA_FFI_API_MINOR"), Some(&5));
    let (ours, theirs) = (&OURS.structs["XLA_FFI_Api"].fields, &newer.structs["XLA_FFI_Api"].fields);
    let renamed = ["XLA_FFI_Error_GetMessage", "XLA_FFI_ExecutionContext_Get"];
    for (our, their) in ours.iter().zip(theirs).filter(|(our, _)| !renamed.contains(&our.name.as_str())) {
        assert_eq!(our, their);
    }
    let added = &OURS.structs["XLA_FFI_Api_V05"];
    assert_eq!(added.size, newer.structs["XLA_FFI_Api"].size);
    assert_eq!(added.fields[1..], theirs[ours.len()..]);
    let same = ["State_Set_Args", "State_Get_Args", "Stream_Get_Args", "CallFrame", "Metadata", "Buffer", "Attrs"];
    let same = same.map(|name| format!("XLA_FFI_{name}"));
    for name in same.into_iter().chain(NEWER[1..].iter().map(|&name| name.to_owned())) {
        assert_eq!(OURS.structs[&name], newer.structs[&name], "{name}");
        assert_eq!(OURS.struct_size(&name), newer.struct_size(&name), "{name}");
    }
    let (message, details) =
        (&OURS.structs["XLA_FFI_Error_GetMessage_Args"].fields, &newer.structs["XLA_FFI_Error_GetDetails_Args"].fields);
    assert_eq!(message[..], details[..message.len()]);
}

#[test]
fn rust_sees_the_ffi_sizes_that_c_sees() {
    let structs: Vec<_> = sys::C_STRUCTS.iter().filter(|sizes| sizes.name.starts_with(XLA_FFI.prefix)).collect();
    assert_eq!(structs.len(), OURS.values.keys().filter(|name| name.ends_with("_STRUCT_SIZE")).count());
    for sizes in structs {
        let name = sizes.name;
        assert_eq!(sizes.size_of as u64, OURS.structs[name].size, "{name}");
        assert_eq!(sizes.struct_size as u64, OURS.struct_size(name), "{name}");
        assert_eq!(sizes.min_size as u64, OURS.values[&format!("{name}_MIN_SIZE")], "{name}");
    }
    assert_eq!(sys::XLA_FFI_API_MINOR, 3);
}
