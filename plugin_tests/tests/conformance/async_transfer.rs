//! Asynchronous transfers: buffers first, data later, in pieces.

use std::{
    ffi::c_void,
    sync::{Arc, Barrier},
    thread,
};

use plugin_tests::{
    Client, Code, ElementType, Event, HostLayout, Program, Result, Signal, Transfer, Value, args, call,
    event::elsewhere, in_child, plugin, sys,
};

use crate::{DIMS, MIB, limited, ramp, settles_at, shared};

const INVALID: Code = Code::INVALID_ARGUMENT;

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn c26_a_manager_describes_its_buffers() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS, &[3, 5], &[]]).unwrap();
    assert_eq!(manager.count(), 3);
    assert_eq!([0, 1, 2].map(|index| manager.size(index).unwrap()), [4096, 60, 4]);
    assert_eq!(manager.device(), shared().device());
    manager.add_metadata("origin", &Value::from("a test")).unwrap();
}

#[test]
fn c26_data_arrives_whole() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
    let buffer = manager.retrieve(0).unwrap();
    assert_eq!(buffer.dims(), DIMS);
    assert!(!buffer.ready().is_ready());
    let data = bytes(&ramp(2.0));
    manager.send(0, 0, &data, true).unwrap().wait().unwrap();
    buffer.ready().wait().unwrap();
    assert_eq!(buffer.read::<f32>().unwrap(), ramp(2.0));
}

#[test]
fn c26_data_arrives_in_pieces_and_any_order() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS, &DIMS]).unwrap();
    let (first, second) = (manager.retrieve(0).unwrap(), manager.retrieve(1).unwrap());
    let data = bytes(&ramp(2.0));
    let other = bytes(&ramp(9.0));
    let events = [
        manager.send(0, 1024, &data[1024..], false).unwrap(),
        manager.send(1, 0, &other, true).unwrap(),
        manager.send(0, 0, &data[..1024], true).unwrap(),
    ];
    for event in events {
        assert_eq!(event.on_ready().wait(), Ok(()));
    }
    drop(manager);
    assert_eq!(first.read::<f32>().unwrap(), ramp(2.0));
    assert_eq!(second.read::<f32>().unwrap(), ramp(9.0));
}

#[test]
fn c26_a_waiting_buffer_is_an_argument() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
    let buffer = manager.retrieve(0).unwrap();
    let add_one = shared().compile(&Program::add_one()).unwrap();
    let result = plugin_tests::event::elsewhere(move || add_one.run1(&[&buffer]).unwrap().read::<f32>().unwrap());
    manager.send(0, 0, &bytes(&ramp(0.0)), true).unwrap().wait().unwrap();
    assert_eq!(result.wait(), ramp(1.0));
}

#[test]
fn c26_an_error_poisons_the_buffer() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
    let buffer = manager.retrieve(0).unwrap();
    manager.fail(0, Code::INTERNAL, "the network is gone").unwrap();
    let failure = buffer.ready().wait().unwrap_err();
    failure.expect(Code::INTERNAL, &["the network is gone"]);
    assert!(buffer.read::<f32>().unwrap_err().message.contains("the network is gone"));
}

#[test]
fn c26_arena_indices_and_ranges_are_checked() {
    // In a child: the CPU engine of 0.81 reads past its lists here.
    in_child!(&[], || {
        let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
        let data = bytes(&ramp(0.0));
        let refused = |outcome: Result<()>| {
            let failure = outcome.unwrap_err();
            assert!([Code::INVALID_ARGUMENT, Code::OUT_OF_RANGE].contains(&failure.code), "{failure}");
            failure
        };
        for (offset, len) in [(-4, 4), (4096, 4), (4000, 100), (i64::MAX, 4)] {
            refused(manager.send(0, offset, &data[..len], false).map(drop));
        }
        for index in [-1, 1, i32::MAX] {
            let outcomes = [
                manager.size(index).map(drop),
                manager.retrieve(index).map(drop),
                manager.send(index, 0, &data, true).map(drop),
                manager.fail(index, Code::INTERNAL, "no"),
            ];
            for outcome in outcomes {
                let failure = refused(outcome);
                assert!(failure.message.contains(&index.to_string()), "{failure}");
            }
        }
        let buffer = manager.retrieve(0).unwrap();
        manager.send(0, 0, &data, true).unwrap().wait().unwrap();
        assert_eq!(buffer.read::<f32>().unwrap(), ramp(0.0));
    });
}

#[test]
fn c26_arena_an_abandoned_transfer_is_an_error_not_a_hang() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
    let buffer = manager.retrieve(0).unwrap();
    let outcome = buffer.ready().on_ready();
    drop(manager);
    assert!(outcome.wait().is_err());
    assert!(buffer.read::<f32>().is_err());
}

#[test]
fn c26_empty_buffers_transfer() {
    let manager = shared().transfer(ElementType::F32, &[&[0]]).unwrap();
    let buffer = manager.retrieve(0).unwrap();
    manager.send(0, 0, &[], true).unwrap().wait().unwrap();
    assert_eq!(buffer.read::<f32>().unwrap(), [0f32; 0]);
}

#[test]
fn c26_arena_bytes_lie_in_the_arena_whenever_the_buffer_is_retrieved() {
    let client = limited("preallocate", MIB);
    let donate = client.compile(&Program::donate()).unwrap();
    let data = bytes(&ramp(3.0));
    for early in [true, false] {
        let manager = client.transfer(ElementType::F32, &[&DIMS]).unwrap();
        assert_eq!(client.stats().unwrap().bytes_in_use, 4096);
        let pending = early.then(|| manager.retrieve(0).unwrap());
        manager.send(0, 0, &data, true).unwrap().wait().unwrap();
        let buffer = pending.unwrap_or_else(|| manager.retrieve(0).unwrap());
        drop(manager);
        assert_eq!(client.stats().unwrap().bytes_in_use, 4096);
        // A program that is donated the buffer writes its result into the same block.
        let address = buffer.opaque_pointer().unwrap();
        let result = donate.run1(&[&buffer]).unwrap();
        assert_eq!(result.read::<f32>().unwrap(), ramp(4.0));
        assert_eq!(result.opaque_pointer().unwrap(), address);
        assert!(buffer.is_deleted());
        drop(buffer);
        assert_eq!(client.stats().unwrap().bytes_in_use, 4096);
        drop(result);
        settles_at(&client, 0);
    }
}

#[test]
fn c26_arena_nothing_leaks_whatever_state_a_manager_is_destroyed_in() {
    let client = limited("preallocate", MIB);
    let data = bytes(&ramp(0.0));
    for buffer_first in [false, true] {
        for retrieve in ["never", "early", "late"] {
            for progress in ["none", "part", "all", "error", "part, then error"] {
                let manager = client.transfer(ElementType::F32, &[&DIMS, &[0], &[]]).unwrap();
                let early = (retrieve == "early").then(|| manager.retrieve(0).unwrap());
                if progress.starts_with("part") {
                    manager.send(0, 0, &data[..100], false).unwrap().wait().unwrap();
                }
                if progress == "all" {
                    manager.send(0, 0, &data, true).unwrap().wait().unwrap();
                }
                if progress.ends_with("error") {
                    manager.fail(0, Code::NOT_FOUND, "gone").unwrap();
                }
                let late = (retrieve == "late").then(|| manager.retrieve(0).unwrap());
                let buffer = early.or(late);
                if buffer_first {
                    drop(buffer);
                    drop(manager);
                } else {
                    drop(manager);
                    if let Some(buffer) = buffer {
                        let outcome = buffer.ready().wait().map_err(|failure| failure.code);
                        let expected = match progress {
                            "all" => Ok(()),
                            "none" | "part" => Err(Code::INTERNAL),
                            _ => Err(Code::NOT_FOUND),
                        };
                        assert_eq!(outcome, expected, "retrieved {retrieve}, transferred {progress}");
                    }
                }
                settles_at(&client, 0);
            }
        }
    }
}

#[test]
fn c26_a_failed_transfer_keeps_code_and_message_and_sends_nothing_more() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
    manager.fail(0, Code::NOT_FOUND, "no such host").unwrap();
    let buffer = manager.retrieve(0).unwrap();
    assert_eq!(buffer.dims(), DIMS);
    buffer.ready().wait().unwrap_err().expect(Code::NOT_FOUND, &["no such host"]);
    let add_one = shared().compile(&Program::add_one()).unwrap();
    let result = add_one.run1(&[&buffer]).and_then(|result| result.read::<f32>());
    assert!(result.unwrap_err().message.contains("no such host"));
}

#[test]
fn c26_arena_calls_after_the_end_are_refused() {
    // In a child: the CPU engine of 0.81 aborts, or hands out a buffer that is none.
    in_child!(&[], || {
        let data = bytes(&ramp(0.0));
        let manager = shared().transfer(ElementType::F32, &[&DIMS, &DIMS, &DIMS]).unwrap();
        let _retrieved = manager.retrieve(0).unwrap();
        manager.retrieve(0).map(drop).unwrap_err().expect(INVALID, &["index 0", "before"]);
        manager.send(1, 0, &data, true).unwrap().wait().unwrap();
        manager.send(1, 0, &data, false).map(drop).unwrap_err().expect(INVALID, &["index 1", "fully transferred"]);
        manager.fail(1, Code::INTERNAL, "too late").unwrap_err().expect(INVALID, &["index 1", "fully transferred"]);
        let _complete = manager.retrieve(1).unwrap();
        manager.retrieve(1).map(drop).unwrap_err().expect(INVALID, &["index 1", "before"]);
        for code in [0, 17, 999] {
            manager.fail(2, Code(code), "no error").unwrap_err().expect(INVALID, &[&code.to_string()]);
        }
        manager.fail(2, Code::INTERNAL, "first").unwrap();
        manager.fail(2, Code::INTERNAL, "second").unwrap_err().expect(INVALID, &["index 2", "first"]);
        manager.send(2, 0, &data, true).map(drop).unwrap_err().expect(INVALID, &["index 2", "first"]);
    });
}

#[test]
fn c26_arena_impossible_arrays_are_refused_before_anything_is_allocated() {
    in_child!(&[], || {
        let client = limited("preallocate", MIB);
        let refused = |element_type, shapes: &[&[i64]], parts: &[&str]| {
            client.transfer(element_type, shapes).map(drop).unwrap_err().expect(INVALID, parts);
        };
        refused(ElementType::F32, &[&DIMS, &[2, -3]], &["shape 1", "-3"]);
        refused(ElementType::F32, &[&[i64::MAX, 2]], &["shape 0"]);
        for unknown in [0, 23, 99] {
            refused(ElementType(unknown), &[&DIMS], &["shape 0", &unknown.to_string()]);
        }
        let memory = client.device().default_memory();
        let create = |shapes: &[&[i64]], layouts: &[HostLayout<'_>]| {
            Transfer::create_in(&client, memory, ElementType::F32, shapes, layouts).map(drop)
        };
        let order = HostLayout::MinorToMajor;
        create(&[&DIMS, &DIMS], &[order(&[0])]).unwrap_err().expect(INVALID, &["1 layouts for 2 shapes"]);
        create(&[&[2, 3]], &[order(&[0])]).unwrap_err().expect(INVALID, &["shape 0", "[0]"]);
        create(&[&[2, 3]], &[order(&[0, 2])]).unwrap_err().expect(INVALID, &["shape 0", "[0, 2]"]);
        create(&[&[2, 3]], &[HostLayout::Strides(&[12, 4])]).unwrap_err().expect(INVALID, &[]);
        // Handles: no memory, and one of another client.
        let other = Client::one();
        for memory in [std::ptr::null_mut(), other.device().default_memory().raw()] {
            let mut args =
                args!(PJRT_Client_CreateBuffersForAsyncHostToDevice { client: client.raw(), memory: memory });
            // SAFETY: the memory is the value under test.
            let error = unsafe { plugin().table().PJRT_Client_CreateBuffersForAsyncHostToDevice.unwrap()(&mut args) };
            plugin().check(error).unwrap_err().expect(INVALID, &["memory"]);
        }
        assert_eq!(client.stats().unwrap().num_allocs, Some(0));
    });
}

#[test]
fn c26_arena_null_managers_are_refused_except_by_destroy() {
    in_child!(&[], || {
        let table = plugin().table();
        macro_rules! refuses {
            ($($name:ident),* $(,)?) => { $({
                let mut args = args!($name {});
                // SAFETY: the null handle is the value under test.
                let error = unsafe { table.$name.expect("every table has it")(&mut args) };
                plugin().check(error).expect_err(stringify!($name)).expect(INVALID, &["transfer_manager"]);
            })* };
        }
        refuses!(
            PJRT_AsyncHostToDeviceTransferManager_TransferData,
            PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer,
            PJRT_AsyncHostToDeviceTransferManager_Device,
            PJRT_AsyncHostToDeviceTransferManager_BufferCount,
            PJRT_AsyncHostToDeviceTransferManager_BufferSize,
            PJRT_AsyncHostToDeviceTransferManager_SetBufferError,
            PJRT_AsyncHostToDeviceTransferManager_AddMetadata,
        );
        let mut args = args!(PJRT_AsyncHostToDeviceTransferManager_Destroy {});
        // SAFETY: the header allows NULL here.
        let error = unsafe { table.PJRT_AsyncHostToDeviceTransferManager_Destroy.unwrap()(&mut args) };
        plugin().check(error).unwrap();
        let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
        assert_eq!(manager.count(), 1);
    });
}

#[test]
fn c26_pieces_come_from_many_threads() {
    let pieces = 16;
    let chunk = 4096 / pieces;
    let data = bytes(&ramp(5.0));
    for _ in 0..20 {
        let manager = shared().transfer(ElementType::F32, &[&DIMS, &DIMS]).unwrap();
        let early = manager.retrieve(0).unwrap();
        thread::scope(|scope| {
            for piece in 0..pieces {
                let (manager, data) = (&manager, &data);
                scope.spawn(move || {
                    for index in 0..2 {
                        let at = piece * chunk;
                        manager.send(index, at as i64, &data[at..][..chunk], false).unwrap().wait().unwrap();
                    }
                });
            }
        });
        for index in 0..2 {
            manager.send(index, 0, &[], true).unwrap().wait().unwrap();
        }
        let late = manager.retrieve(1).unwrap();
        drop(manager);
        assert_eq!(early.read::<f32>().unwrap(), ramp(5.0));
        assert_eq!(late.read::<f32>().unwrap(), ramp(5.0));
    }
}

#[test]
fn c26_arena_a_piece_that_was_accepted_is_there_although_the_last_one_overtook_it() {
    const LARGE: usize = 1 << 20;
    let client = limited("preallocate", 16 * MIB);
    let data = vec![7u8; LARGE];
    for round in 0..100 {
        let manager = client.transfer(ElementType::U8, &[&[2 * LARGE as i64]]).unwrap();
        let buffer = (round % 2 == 0).then(|| manager.retrieve(0).unwrap());
        let start = Barrier::new(2);
        let accepted = thread::scope(|scope| {
            let piece = scope.spawn(|| {
                start.wait();
                manager.send(0, 0, &data, false).map(drop)
            });
            start.wait();
            manager.send(0, LARGE as i64, &data, true).unwrap().wait().unwrap();
            piece.join().unwrap()
        });
        let buffer = buffer.unwrap_or_else(|| manager.retrieve(0).unwrap());
        let bytes = buffer.read::<u8>().unwrap();
        assert!(bytes[LARGE..].iter().all(|&byte| byte == 7));
        match accepted {
            Ok(()) => assert!(bytes[..LARGE].iter().all(|&byte| byte == 7), "round {round}"),
            Err(failure) => failure.expect(INVALID, &["fully transferred"]),
        }
    }
    settles_at(&client, 0);
}

#[test]
fn c26_a_waiting_buffer_is_copied_read_and_deleted() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS, &DIMS]).unwrap();
    let (buffer, unwanted) = (manager.retrieve(0).unwrap(), manager.retrieve(1).unwrap());
    assert_eq!(buffer.on_device_size().unwrap(), 4096);
    unwanted.delete().unwrap();
    assert!(unwanted.is_deleted());
    let copy = buffer.copy_to_memory(buffer.memory()).unwrap();
    let mut host = vec![0u8; 4096];
    let read = buffer.to_host(&mut host).unwrap();
    assert!(!read.is_ready() && !copy.ready().is_ready());
    let data = bytes(&ramp(8.0));
    for index in 0..2 {
        manager.send(index, 0, &data, true).unwrap().wait().unwrap();
    }
    read.wait().unwrap();
    assert_eq!(host, data);
    assert_eq!(copy.read::<f32>().unwrap(), ramp(8.0));
}

#[test]
fn c26_arena_a_waiting_buffer_is_donated() {
    let client = limited("preallocate", MIB);
    let donate = Arc::new(client.compile(&Program::donate()).unwrap());
    for drop_argument in [false, true] {
        let manager = client.transfer(ElementType::F32, &[&DIMS]).unwrap();
        let buffer = manager.retrieve(0).unwrap();
        let running = {
            let donate = Arc::clone(&donate);
            elsewhere(move || {
                let result = donate.run1(&[&buffer]).unwrap();
                assert!(buffer.is_deleted());
                if drop_argument {
                    drop(buffer);
                }
                result.read::<f32>().unwrap()
            })
        };
        thread::sleep(std::time::Duration::from_millis(20));
        manager.send(0, 0, &bytes(&ramp(0.0)), true).unwrap().wait().unwrap();
        assert_eq!(running.wait(), ramp(1.0));
        drop(manager);
        settles_at(&client, 0);
    }
}

#[test]
fn c26_a_program_is_started_before_the_bytes_are_sent() {
    // On one thread: neither call may wait for the bytes.
    let outcome = elsewhere(|| {
        for program in [Program::add_one(), Program::donate()] {
            let loaded = shared().compile(&program).unwrap();
            let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
            let buffer = manager.retrieve(0).unwrap();
            let result = loaded.run1(&[&buffer]).unwrap();
            assert!(!result.ready().is_ready());
            manager.send(0, 0, &bytes(&ramp(0.0)), true).unwrap().wait().unwrap();
            assert_eq!(result.read::<f32>().unwrap(), ramp(1.0));
        }
    });
    outcome.wait();
}

#[test]
fn c26_arena_a_program_that_is_donated_bytes_to_come_starts_before_they_are_sent() {
    // The other argument and the other result lie in blocks, so results are matched with blocks by their addresses; the
    // address of bytes to come would be waited for.
    let client = Arc::new(limited("preallocate", MIB));
    let outcome = {
        let client = Arc::clone(&client);
        elsewhere(move || {
            let donate_both = client.compile(&Program::donate_both()).unwrap();
            for first in [true, false] {
                let manager = client.transfer(ElementType::F32, &[&DIMS]).unwrap();
                let pending = manager.retrieve(0).unwrap();
                let ready = client.put(&ramp(1.0), &DIMS).unwrap();
                let arguments = if first { [&pending, &ready] } else { [&ready, &pending] };
                let results = donate_both.run(&arguments).unwrap();
                assert!(pending.is_deleted() && ready.is_deleted());
                manager.send(0, 0, &bytes(&ramp(3.0)), true).unwrap().wait().unwrap();
                let sum: Vec<f32> = ramp(1.0).iter().zip(ramp(3.0)).map(|(a, b)| a + b).collect();
                assert_eq!(results[0].read::<f32>().unwrap(), sum);
                let difference = if first { 2.0 } else { -2.0 };
                assert_eq!(results[1].read::<f32>().unwrap(), [difference; 1024]);
            }
        })
    };
    outcome.wait();
    settles_at(&client, 0);
}

#[test]
fn c26_a_callback_destroys_the_manager_that_runs_it() {
    extern "C" fn destroy(error: *mut sys::PJRT_Error, user: *mut c_void) {
        assert!(error.is_null());
        // SAFETY: `user` is the box below, and an event calls back exactly once.
        let (manager, destroyed) = *unsafe { Box::from_raw(user.cast::<(Transfer, Signal<()>)>()) };
        drop(manager);
        destroyed.set(());
    }
    let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
    let raw = manager.raw();
    let buffer = manager.retrieve(0).unwrap();
    let ready = buffer.ready();
    let destroyed = Signal::<()>::default();
    call!(
        plugin(),
        PJRT_Event_OnReady {
            event: ready.raw(),
            callback: Some(destroy),
            user_arg: Box::into_raw(Box::new((manager, destroyed.clone()))).cast(),
        }
    )
    .unwrap();
    let data = bytes(&ramp(0.0));
    let sent = call!(
        plugin(),
        PJRT_AsyncHostToDeviceTransferManager_TransferData {
            transfer_manager: raw,
            data: data.as_ptr().cast(),
            transfer_size: data.len() as i64,
            is_last_transfer: true,
        }
    )
    .unwrap();
    Event::own(plugin(), sent.done_with_h2d_transfer).unwrap().wait().unwrap();
    destroyed.wait();
    assert_eq!(buffer.read::<f32>().unwrap(), ramp(0.0));
}

#[test]
fn c26_arrays_that_the_engine_holds_transfer_too() {
    // Four bits an element, and a layout that is not the default one.
    let memory = shared().device().default_memory();
    let narrow = shared().transfer(ElementType::S4, &[&[6]]).unwrap();
    let column_major = HostLayout::MinorToMajor(&[0, 1]);
    let turned = Transfer::create_in(shared(), memory, ElementType::S32, &[&[2, 3]], &[column_major]).unwrap();
    let (first, second) = (narrow.retrieve(0).unwrap(), turned.retrieve(0).unwrap());
    assert_eq!(second.minor_to_major(), [0, 1]);
    let sent: Vec<u8> = (0..narrow.size(0).unwrap() as u8).collect();
    narrow.send(0, 0, &sent, true).unwrap().wait().unwrap();
    // Column by column.
    let values: Vec<u8> = [1i32, 4, 2, 5, 3, 6].iter().flat_map(|value| value.to_le_bytes()).collect();
    turned.send(0, 0, &values[..12], false).unwrap().wait().unwrap();
    turned.send(0, 12, &values[12..], true).unwrap().wait().unwrap();
    first.ready().wait().unwrap();
    second.ready().wait().unwrap();
    assert_eq!(second.read_raw(0, 24).unwrap(), values);
}

#[test]
fn c26_arena_arrays_that_the_engine_holds_are_checked_like_ours() {
    in_child!(&[], || {
        let manager = shared().transfer(ElementType::S4, &[&[6], &[6], &[6]]).unwrap();
        let size = manager.size(0).unwrap();
        let sent = vec![0u8; size + 1];
        manager.send(0, 0, &sent, true).map(drop).unwrap_err().expect(INVALID, &["index 0", &size.to_string()]);
        manager.send(0, 0, &sent[..size], true).unwrap().wait().unwrap();
        manager.send(0, 0, &sent[..size], true).map(drop).unwrap_err().expect(INVALID, &["fully transferred"]);
        let buffer = manager.retrieve(0).unwrap();
        manager.retrieve(0).map(drop).unwrap_err().expect(INVALID, &["before"]);
        buffer.ready().wait().unwrap();
        let failed = manager.retrieve(1).unwrap();
        manager.fail(1, Code::NOT_FOUND, "gone").unwrap();
        manager.fail(1, Code::NOT_FOUND, "gone").unwrap_err().expect(INVALID, &["index 1"]);
        failed.ready().wait().unwrap_err().expect(Code::NOT_FOUND, &["gone"]);
        let abandoned = manager.retrieve(2).unwrap();
        drop(manager);
        abandoned.ready().wait().unwrap_err();
    });
}
