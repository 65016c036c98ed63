//! Callers that get the C API wrong: an error, never a crash. Each loop runs in a child, so that a crash is one
//! failure.

use std::ffi::c_void;

use plugin_tests::{Code, in_child, plugin, sys};

use crate::shared;

type Slot = unsafe extern "C" fn(*mut c_void) -> *mut sys::PJRT_Error;

/// `PJRT_Error_Destroy` and `PJRT_Error_Message` return nothing.
const VOID_SLOTS: usize = 2;

fn slots() -> impl Iterator<Item = (usize, Slot)> {
    // SAFETY: every function of the table takes one pointer and returns one, but for the first two, whose result is
    // not looked at.
    plugin().slots().into_iter().map(|slot| unsafe { std::mem::transmute::<*const c_void, Slot>(slot) }).enumerate()
}

#[test]
fn bad_arena_null_arguments_are_refused_by_every_function() {
    in_child!(&[], || {
        for (index, slot) in slots() {
            // Left behind by a crash, this says where.
            eprintln!("slot {index}");
            // SAFETY: null is the value under test.
            let error = unsafe { slot(std::ptr::null_mut()) };
            if index >= VOID_SLOTS {
                let failure = plugin().check(error).expect_err("an error");
                assert_eq!(failure.code, Code::INVALID_ARGUMENT, "slot {index}: {failure}");
            }
        }
        assert_eq!(shared().platform_name(), "cpu");
    });
}

#[test]
fn bad_arena_short_arguments_are_refused_by_every_function() {
    in_child!(&[], || {
        for size in [0usize, 8] {
            for (index, slot) in slots() {
                eprintln!("slot {index}");
                let mut args = [0usize; 64];
                args[0] = size;
                // SAFETY: the struct is large enough for every function, it only says that it is not.
                let error = unsafe { slot(args.as_mut_ptr().cast()) };
                if index >= VOID_SLOTS {
                    let failure = plugin().check(error).expect_err("an error");
                    failure.expect(Code::INVALID_ARGUMENT, &[&size.to_string()]);
                }
                assert_eq!(args[1..], [0; 63], "slot {index} wrote into a struct that it refused");
            }
        }
        assert_eq!(shared().platform_name(), "cpu");
    });
}

#[test]
fn bad_arena_null_handles_are_refused_where_buffers_are_ours() {
    in_child!(&[], || {
        // All-zero structs of full size: the functions that we own look at their handles.
        let table = plugin().table();
        macro_rules! refuses {
            ($($name:ident),* $(,)?) => { $({
                let mut args = plugin_tests::args!($name {});
                // SAFETY: null handles are the value under test.
                let error = unsafe { table.$name.expect("every table has it")(&mut args) };
                let failure = plugin().check(error).expect_err(stringify!($name));
                assert_eq!(failure.code, Code::INVALID_ARGUMENT, "{}: {failure}", stringify!($name));
            })* };
        }
        refuses!(
            PJRT_Buffer_ElementType,
            PJRT_Buffer_Dimensions,
            PJRT_Buffer_UnpaddedDimensions,
            PJRT_Buffer_DynamicDimensionIndices,
            PJRT_Buffer_GetMemoryLayout,
            PJRT_Buffer_OnDeviceSizeInBytes,
            PJRT_Buffer_Device,
            PJRT_Buffer_Memory,
            PJRT_Buffer_Delete,
            PJRT_Buffer_IsDeleted,
            PJRT_Buffer_CopyToDevice,
            PJRT_Buffer_CopyToMemory,
            PJRT_Buffer_ToHostBuffer,
            PJRT_Buffer_IsOnCpu,
            PJRT_Buffer_ReadyEvent,
            PJRT_Buffer_UnsafePointer,
            PJRT_Buffer_IncreaseExternalReferenceCount,
            PJRT_Buffer_DecreaseExternalReferenceCount,
            PJRT_Buffer_OpaqueDeviceMemoryDataPointer,
            PJRT_Buffer_CopyRawToHost,
            PJRT_Client_BufferFromHostBuffer,
            PJRT_Client_Compile,
            PJRT_Client_CreateUninitializedBuffer,
            PJRT_Client_CreateViewOfDeviceBuffer,
            PJRT_LoadedExecutable_Execute,
            PJRT_Device_MemoryStats,
        );
        assert_eq!(shared().platform_name(), "cpu");
    });
}

#[test]
fn bad_absent_lists_of_length_zero_are_fine() {
    // Callers pass null for empty lists.
    let constant = shared().compile(&plugin_tests::Program::constant()).unwrap();
    let run = constant.execute_raw(&[Vec::new()], plugin_tests::RunOptions::default()).unwrap();
    assert_eq!(run.only().read::<i32>().unwrap().len(), 256);
}
