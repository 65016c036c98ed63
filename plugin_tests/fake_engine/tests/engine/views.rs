//! Views of memory that the test owns: their order, and when they are let go.

use std::{env, process::Command};

use plugin_tests::{Code, Gate, HostArray, Program, call, plugin};

use crate::{
    common::{self, DIMS, Driver, N, Own, client, external_stream, ramp, ticket},
    on_fake_gpu,
};

const SLOW: (&str, &str) = ("FAKE_CUDA_LATENCY_US", "2000");
const OLD: (&str, &str) = ("FAKE_ENGINE_ERA", "112");

/// What memory full of a byte is as an array.
fn filled(byte: u8) -> Vec<f32> {
    vec![f32::from_ne_bytes([byte; 4]); N]
}

#[test]
fn a_view_behind_a_stream_shows_what_was_written_there() {
    on_fake_gpu!([SLOW], || {
        let (client, own) = (client(), Own::new());
        let passthrough = client.compile(&Program::passthrough()).unwrap();
        for round in 1..5 {
            own.fill(round);
            let stream = external_stream(plugin(), &client);
            own.order(stream);
            let (view, _) = own.view(&client, stream).unwrap();
            assert_eq!(view.address().unwrap(), own.address as usize);
            let results = passthrough.run(&[&view, &view]).unwrap();
            assert_eq!(results[0].read::<f32>().unwrap(), filled(round));
            assert_eq!(view.read::<f32>().unwrap(), filled(round));
            // And the other way round: what the program reads is written only after it.
            results.iter().for_each(|result| own.follow(result));
            own.synchronize();
        }
    });
}

#[test]
fn a_view_that_waits_for_nothing_is_a_race() {
    on_fake_gpu!(
        [SLOW],
        || {
            let (client, own) = (client(), Own::new());
            let add_one = client.compile(&Program::add_one()).unwrap();
            own.fill(1);
            let (view, _) = own.view(&client, 0).unwrap();
            add_one.run1(&[&view]).unwrap().ready().wait().unwrap();
            own.synchronize();
            let violations = Driver::get().violations();
            assert!(violations[0].contains("fake_cuda_kernel"), "{violations:?}");
        },
        1
    );
}

#[test]
fn memory_written_before_its_readers_are_done_is_a_race() {
    on_fake_gpu!(
        [SLOW],
        || {
            let (client, own) = (client(), Own::new());
            let add_one = client.compile(&Program::add_one()).unwrap();
            own.fill(1);
            own.synchronize();
            let (view, _) = own.view(&client, 0).unwrap();
            let result = add_one.run1(&[&view]).unwrap();
            // Should have followed the result.
            own.fill(2);
            own.synchronize();
            result.ready().wait().unwrap();
        },
        1
    );
}

#[test]
fn only_the_streams_for_outsiders_are_taken() {
    on_fake_gpu!([], || {
        let (client, own) = (client(), Own::new());
        let streams: Vec<isize> = (0..8).map(|_| external_stream(plugin(), &client)).collect();
        assert_eq!(streams[..4], streams[4..]);
        for (at, stream) in streams[..4].iter().enumerate() {
            assert!(!streams[..at].contains(stream));
            own.view(&client, *stream).map(drop).unwrap();
        }
        own.view(&client, 0x1234).map(drop).unwrap_err().expect(Code::NOT_FOUND, &["0x1234"]);
    });
}

#[test]
fn a_donated_view_becomes_the_result_and_is_let_go_with_it() {
    on_fake_gpu!([SLOW], || {
        let (client, own) = (client(), Own::new());
        let donate = client.compile(&Program::donate()).unwrap();
        own.fill(0);
        own.synchronize();
        let (view, gone) = own.view(&client, 0).unwrap();
        let result = donate.run1(&[&view]).unwrap();
        assert_eq!(result.address().unwrap(), own.address as usize);
        drop(view);
        assert_eq!(result.read::<f32>().unwrap(), vec![1.0; N]);
        assert!(gone.get().is_none());
        drop(result);
        gone.wait();
    });
}

#[test]
fn a_view_that_is_not_aligned_fails_its_program() {
    on_fake_gpu!([], || {
        let (client, own) = (client(), Own::new());
        let program = client.compile(&Program::add_one_scalar()).unwrap();
        own.fill(0);
        own.synchronize();
        let (view, _) = Own::view_at(&client, own.address + 8, &[], 0).unwrap();
        let failure = program.run1(&[&view]).unwrap().ready().wait().unwrap_err();
        failure.expect(Code::INTERNAL, &["Address of buffer 0 must be a multiple of 10"]);
        let (view, _) = Own::view_at(&client, own.address + 16, &[], 0).unwrap();
        assert_eq!(program.run1(&[&view]).unwrap().read::<f32>().unwrap(), [1.0]);
    });
}

/// A program that stands at a gate, and reads a view which is gone; whether the outsider was told.
fn told_while_running() -> bool {
    let (client, own) = (client(), Own::new());
    let gate = Gate::closed();
    let program = client.compile(&Program::gate_inline()).unwrap();
    own.fill(0);
    own.synchronize();
    let ticket = ticket(&client, &gate);
    let (view, gone) = own.view(&client, 0).unwrap();
    let result = program.run1(&[&view, &ticket]).unwrap();
    gate.wait_reached();
    drop(view);
    let told = gone.get().is_some();
    gate.open();
    assert_eq!(result.read::<f32>().unwrap(), filled(0));
    gone.wait();
    told
}

#[test]
fn outsiders_are_told_early_by_the_old_version_and_late_by_the_new_one() {
    on_fake_gpu!([OLD], || assert!(told_while_running()));
}

#[test]
fn outsiders_are_told_late_by_the_new_version() {
    on_fake_gpu!([], || assert!(!told_while_running()));
}

/// Whether a view without a stream is ready while the compute stream has work.
fn ready_while_running() -> bool {
    let (client, own) = (client(), Own::new());
    let gate = Gate::closed();
    let program = client.compile(&Program::gate_inline()).unwrap();
    let (x, ticket) = (client.put(&ramp(0.0), &DIMS).unwrap(), ticket(&client, &gate));
    let result = program.run1(&[&x, &ticket]).unwrap();
    gate.wait_reached();
    let (view, _) = own.view(&client, 0).unwrap();
    let ready = view.ready();
    let before = ready.is_ready();
    gate.open();
    ready.wait().unwrap();
    result.ready().wait().unwrap();
    before
}

#[test]
fn a_view_without_a_stream_is_behind_all_work_in_the_old_version() {
    on_fake_gpu!([OLD], || assert!(!ready_while_running()));
}

#[test]
fn a_view_without_a_stream_is_ready_in_the_new_version() {
    on_fake_gpu!([], || assert!(ready_while_running()));
}

/// Makes a view without what the variable `MISSING` names.
#[test]
fn incomplete_views() {
    let Ok(missing) = env::var("MISSING") else { return };
    on_fake_gpu!([], || {
        extern "C" fn nothing(_: *mut std::ffi::c_void, _: *mut std::ffi::c_void) {}
        let (client, own) = (client(), Own::new());
        let mut layout = plugin_tests::HostLayout::MinorToMajor(&[0]).raw();
        let array = HostArray::of(&ramp(0.0), &DIMS);
        let args = call!(
            plugin(),
            PJRT_Client_CreateViewOfDeviceBuffer {
                client: client.raw(),
                device_buffer_ptr: std::ptr::with_exposed_provenance_mut(own.address as usize),
                dims: DIMS.as_ptr(),
                num_dims: 1,
                element_type: array.element_type.raw(),
                layout: if missing == "layout" { std::ptr::null_mut() } else { &raw mut layout },
                on_delete_callback: if missing == "on_delete" { None } else { Some(nothing) },
                memory: client.device().default_memory().raw(),
            }
        );
        drop(plugin_tests::Buffer::own(plugin(), args.unwrap().buffer));
    });
}

#[test]
fn incomplete_views_end_the_process_in_the_old_version_only() {
    for missing in ["layout", "on_delete"] {
        for (era, survives) in [("112", false), ("114", true)] {
            let test = Command::new(env::current_exe().unwrap())
                .args(["--exact", "views::incomplete_views", "--nocapture"])
                .envs([("MISSING", missing), ("FAKE_ENGINE_ERA", era)])
                .env_remove("PJRT_ARENA_TEST_CHILD")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&test.stderr).into_owned();
            assert_eq!(test.status.success(), survives, "{missing} {era}: {said}");
            assert_eq!(said.contains(missing) && said.contains("aborting"), !survives, "{missing} {era}: {said}");
        }
    }
}

#[test]
fn an_unknown_version_is_refused() {
    on_fake_gpu!([("FAKE_ENGINE_ERA", "113")], || {
        let failure = plugin_tests::Client::create_with(plugin(), &[]).map(drop).unwrap_err();
        failure.expect(Code::INVALID_ARGUMENT, &["FAKE_ENGINE_ERA", "113", "112 and 114"]);
        // The driver was not asked for anything, and the test opens it itself.
        common::Driver::get();
    });
}
