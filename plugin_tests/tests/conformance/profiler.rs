//! The profiler extension: what the arena did while a profiler recorded. One profiler records at a time in a process,
//! so each test has a process of its own.

use std::{mem::zeroed, ptr, slice};

use plugin_tests::{Code, in_child, plugin, sys};

use crate::{MIB, compaction::fragmented, limited, table::PROFILER_EXTENSION};

/// The extension's table.
fn api() -> &'static sys::PLUGIN_Profiler_Api {
    let extension = plugin().extension(PROFILER_EXTENSION).cast::<sys::PJRT_Profiler_Extension>();
    // SAFETY: nodes live as long as the library.
    unsafe { &*(*extension).profiler_api }
}

/// An error's code and message; the error is destroyed.
fn failure(error: *mut sys::PLUGIN_Profiler_Error) -> Option<(Code, String)> {
    if error.is_null() {
        return None;
    }
    // SAFETY: plain calls with a live error; callers leave struct_size unset, and so do we.
    unsafe {
        let mut code = sys::PLUGIN_Profiler_Error_GetCode_Args { error, ..zeroed() };
        assert!(api().error_get_code.unwrap()(&mut code).is_null());
        let mut message = sys::PLUGIN_Profiler_Error_Message_Args { error, ..zeroed() };
        api().error_message.unwrap()(&mut message);
        let text = slice::from_raw_parts(message.message.cast::<u8>(), message.message_size);
        let text = String::from_utf8(text.to_vec()).unwrap();
        api().error_destroy.unwrap()(&mut sys::PLUGIN_Profiler_Error_Destroy_Args { error, ..zeroed() });
        Some((Code(code.code as u32), text))
    }
}

type Call = Option<unsafe extern "C" fn(*mut sys::PLUGIN_Profiler_Args) -> *mut sys::PLUGIN_Profiler_Error>;

fn call(function: Call, profiler: *mut sys::PLUGIN_Profiler) -> Option<(Code, String)> {
    // SAFETY: a live handle, or NULL where that is to be refused.
    failure(unsafe { function.unwrap()(&mut sys::PLUGIN_Profiler_Args { struct_size: 0, profiler }) })
}

fn create() -> *mut sys::PLUGIN_Profiler {
    // SAFETY: a plain call.
    unsafe {
        let mut args: sys::PLUGIN_Profiler_Create_Args = zeroed();
        assert_eq!(failure(api().create.unwrap()(&mut args)), None);
        args.profiler
    }
}

/// What was recorded, as both kinds of caller get it.
fn collect(profiler: *mut sys::PLUGIN_Profiler) -> Vec<u8> {
    // SAFETY: a live handle; the buffer is as long as was asked for.
    unsafe {
        let mut args = sys::PLUGIN_Profiler_CollectData_Args { profiler, ..zeroed() };
        assert_eq!(failure(api().collect_data.unwrap()(&mut args)), None);
        let theirs = match args.buffer_size_in_bytes {
            0 => Vec::new(),
            size => slice::from_raw_parts(args.buffer, size).to_vec(),
        };
        let mut buffer = vec![0xEE; theirs.len()];
        args.buffer = buffer.as_mut_ptr();
        assert_eq!(failure(api().collect_data.unwrap()(&mut args)), None);
        assert_eq!(buffer, theirs);
        buffer
    }
}

/// How often the part is in the data.
fn count(data: &[u8], part: &[u8]) -> usize {
    data.windows(part.len()).filter(|window| *window == part).count()
}

#[test]
fn c34_arena_a_profiler_records_what_memory_does() {
    in_child!(&[], || {
        let client = limited("tpu", 8 * MIB);
        let profiler = create();
        assert_eq!(call(api().start, profiler), None);
        let kept = fragmented(&client, &[1, 3, 5, 7]);
        plugin().text("pjrt_arena_compact").unwrap();
        assert_eq!(call(api().stop, profiler), None);
        let data = collect(profiler);
        assert_eq!(count(&data, b"/device:CUSTOM:pjrt-arena cpu:0"), 1);
        // Field 1 of each event names it: 8 arrays came, 4 went, and of the others some were moved.
        let events = |id: u8| count(&data, &[8, id, 16]);
        assert!(events(1) >= 8 && events(2) >= 4 && events(3) >= 1, "{data:?}");
        // The statistic 1 of 12 of them is 1 MiB.
        let sizes = count(&data, &[0x22, 6, 8, 1, 0x18, 0x80, 0x80, 0x40]);
        assert!(sizes >= 12, "{sizes}: {data:?}");
        // What comes after is not part of it, and a second recording begins empty.
        drop(kept);
        assert_eq!(collect(profiler), data);
        assert_eq!((call(api().start, profiler), call(api().stop, profiler)), (None, None));
        assert_eq!(collect(profiler), b"");
        assert_eq!(call(api().destroy, profiler), None);
    });
}

#[test]
fn c34_arena_one_profiler_records_at_a_time() {
    in_child!(&[], || {
        let (first, second) = (create(), create());
        assert_eq!(call(api().start, first), None);
        let (code, message) = call(api().start, second).unwrap();
        assert_eq!(code, Code::FAILED_PRECONDITION);
        assert!(message.contains("already"), "{message}");
        assert_eq!(call(api().stop, second), None);
        assert_eq!(collect(second), b"", "it has recorded nothing, and stopped nobody");
        assert!(call(api().start, second).is_some());
        // One that is destroyed records no more.
        assert_eq!(call(api().destroy, first), None);
        assert_eq!((call(api().start, second), call(api().destroy, second)), (None, None));
        for function in [api().start, api().stop] {
            assert_eq!(call(function, ptr::null_mut()).unwrap().0, Code::INVALID_ARGUMENT);
        }
        assert_eq!(call(api().destroy, ptr::null_mut()), None);
    });
}
