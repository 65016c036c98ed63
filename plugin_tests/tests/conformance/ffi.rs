//! Handlers for custom calls: of other versions of XLA FFI than the engine's, with states, and refused.

use std::sync::{Mutex, MutexGuard, PoisonError, atomic::Ordering};

use plugin_tests::{Client, Code, Program, Result, bundle, ffi, in_child, plugin, sys};

use crate::{DIMS, ramp, shared};

/// A program that is the custom call `name` on its `f32[1024]`.
fn calling(name: &str) -> Program {
    Program::text(&format!(
        "func.func public @main(%x: tensor<1024xf32>) -> tensor<1024xf32> {{
          %y = stablehlo.custom_call @{name}(%x) {{api_version = 4 : i32}} : (tensor<1024xf32>) -> tensor<1024xf32>
          return %y : tensor<1024xf32>
        }}"
    ))
}

/// What the custom call `name` makes of a ramp.
fn result(client: &Client, name: &str) -> Result<Vec<f32>> {
    let program = client.compile(&calling(name))?;
    program.run1(&[&client.put(&ramp(0.0), &DIMS)?])?.read::<f32>()
}

fn scaled(factor: f32) -> Vec<f32> {
    ramp(0.0).iter().map(|x| factor * x).collect()
}

/// Tests that count freed states take turns.
fn counting() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn c34_arena_handlers_of_every_version_run() {
    for (name, bundle) in [
        ("ffi_double_1", bundle::stateless::<1>()),
        ("ffi_double_2", bundle::stateless::<2>()),
        ("ffi_double_3", bundle::stateless::<3>()),
        ("ffi_double_4", bundle::stateless::<4>()),
        ("ffi_double_5", bundle::stateless::<5>()),
    ] {
        bundle::register(plugin(), name, &bundle).unwrap();
        assert_eq!(result(shared(), name).unwrap(), scaled(2.0), "{name}");
    }
}

#[test]
fn c34_arena_a_handler_of_0_3_is_registered_by_pjrts_own_function() {
    // SAFETY: the same frame under another name.
    let handler = unsafe { std::mem::transmute::<bundle::Handler, ffi::Handler>(bundle::double::<3>) };
    ffi::register(plugin(), "ffi_plain", handler).unwrap();
    ffi::register(plugin(), "ffi_plain", handler).expect("the same again");
    assert_eq!(result(shared(), "ffi_plain").unwrap(), scaled(2.0));
}

#[test]
fn c34_arena_states_reach_later_stages_and_are_freed_with_the_executable() {
    let _turn = counting();
    bundle::register_state_type(plugin()).unwrap();
    bundle::register_state_type(plugin()).expect("the same again");
    for (name, bundle) in [
        ("ffi_state_deleter", bundle::stateful::<{ bundle::WITH_DELETER }>()),
        ("ffi_state_no_deleter", bundle::stateful::<{ bundle::WITHOUT_DELETER }>()),
        ("ffi_state_1", bundle::stateful::<1>()),
        ("ffi_state_3", bundle::stateful::<3>()),
        ("ffi_state_4", bundle::stateful::<4>()),
        ("ffi_state_5", bundle::stateful::<5>()),
    ] {
        bundle::register(plugin(), name, &bundle).unwrap();
        let before = bundle::FREED.load(Ordering::SeqCst);
        let program = shared().compile(&calling(name)).unwrap();
        let x = shared().put(&ramp(0.0), &DIMS).unwrap();
        for _ in 0..2 {
            assert_eq!(program.run1(&[&x]).unwrap().read::<f32>().unwrap(), scaled(10.0), "{name}");
        }
        assert_eq!(bundle::FREED.load(Ordering::SeqCst), before, "{name}: the executable has it");
        drop(program);
        assert_eq!(bundle::FREED.load(Ordering::SeqCst), before + 1, "{name}");
    }
}

#[test]
fn c34_arena_a_state_that_the_engine_cannot_keep_is_an_error() {
    bundle::register(plugin(), "ffi_state_prepare", &bundle::stateful_in_prepare()).unwrap();
    let failure = result(shared(), "ffi_state_prepare").unwrap_err();
    failure.expect(Code::UNIMPLEMENTED, &["instantiate stage alone", "stage 1"]);
}

/// A library for several platforms registers for all of them, and perhaps for a GPU's first.
#[test]
fn c34_arena_what_states_are_kept_is_the_engines_whatever_platform_is_named_first() {
    in_child!(&[], || {
        // The platform is one that the engine has nothing for; what it says to it does not matter.
        let _ = bundle::register_on(plugin(), c"CUDA", "ffi_state_of_gpus", &bundle::stateful::<1>());
        bundle::register(plugin(), "ffi_state_prepare", &bundle::stateful_in_prepare()).unwrap();
        let failure = result(&Client::one(), "ffi_state_prepare").unwrap_err();
        failure.expect(Code::UNIMPLEMENTED, &["instantiate stage alone", "stage 1"]);
    });
}

#[test]
fn c34_arena_a_refused_handler_is_named_with_both_versions() {
    let sentence = bundle::register(plugin(), "ffi_tomorrow", &bundle::stateless::<6>()).unwrap_err();
    for part in ["ffi_tomorrow", "platform cpu", "XLA FFI 0.6", "and the engine", "up to 0.5"] {
        assert!(sentence.contains(part), "{part:?} is missing in: {sentence}");
    }
    // SAFETY: the same frame under another name.
    let handler = unsafe { std::mem::transmute::<bundle::Handler, ffi::Handler>(bundle::double::<6>) };
    let failure = ffi::register(plugin(), "ffi_tomorrow", handler).unwrap_err();
    failure.expect(Code::UNIMPLEMENTED, &["ffi_tomorrow", "platform cpu", "XLA FFI 0.6"]);
    assert!(result(shared(), "ffi_tomorrow").is_err());
}

#[test]
fn c34_arena_the_engines_own_refusals_are_told() {
    // A version below what it takes, a name that is taken, no execute handler, a platform that it does not know.
    let name = "ffi_refused";
    let too_old = bundle::register(plugin(), name, &bundle::stateless::<0>()).unwrap_err();
    assert!(too_old.contains(name) && too_old.contains("0.0"), "{too_old}");
    bundle::register(plugin(), name, &bundle::stateless::<3>()).unwrap();
    bundle::register(plugin(), name, &bundle::stateless::<3>()).expect("the same again");
    let taken = bundle::register(plugin(), name, &bundle::stateless::<5>()).unwrap_err();
    assert!(taken.contains(name) && taken.contains("Duplicate"), "{taken}");
    let empty = bundle::register(plugin(), "ffi_empty", &bundle::Bundle::default()).unwrap_err();
    assert!(empty.contains("ffi_empty") && empty.contains("execute"), "{empty}");
    assert_eq!(result(shared(), name).unwrap(), scaled(2.0), "what was taken first stays");
}

#[test]
fn c34_arena_handlers_may_be_registered_before_there_is_a_client() {
    in_child!(&[], || {
        bundle::register(plugin(), "ffi_early", &bundle::stateless::<3>()).unwrap();
        assert_eq!(result(&Client::one(), "ffi_early").unwrap(), scaled(2.0));
    });
}

/// One of many handlers: all do the same, but each is a function of its own.
unsafe extern "C-unwind" fn one_of_many<const I: usize>(frame: *mut sys::XLA_FFI_CallFrame) -> *mut sys::XLA_FFI_Error {
    std::hint::black_box(I);
    // SAFETY: the frame as it came.
    unsafe { bundle::double::<1>(frame) }
}

/// 41 functions for each of the numbers.
macro_rules! many {
    ($($row:literal)*) => { [$(many!(@ $row: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28
        29 30 31 32 33 34 35 36 37 38 39 40)),*] };
    (@ $row:literal: $($column:literal)*) => { [$(one_of_many::<{ $row * 41 + $column }>),*] };
}

#[test]
fn c34_arena_more_handlers_than_there_are_trampolines_are_refused_and_the_others_stay() {
    // Of 1024 the handler that leaves their state has one.
    const LIMIT: usize = 1023;
    let many: [[bundle::Handler; 41]; 25] = many!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24);
    in_child!(&[], || {
        let many = many.as_flattened();
        for (i, handler) in many[..LIMIT].iter().enumerate() {
            bundle::register(plugin(), &format!("ffi_many_{i}"), &bundle::with_old_state(*handler)).unwrap();
        }
        for _ in 0..2 {
            let full = bundle::register(plugin(), "ffi_too_many", &bundle::with_old_state(many[LIMIT])).unwrap_err();
            assert!(full.contains("ffi_too_many") && full.contains("1024 handlers"), "{full}");
        }
        let again = bundle::with_old_state(many[7]);
        bundle::register(plugin(), "ffi_many_7", &again).expect("the same handler again needs none");
        bundle::register(plugin(), "ffi_native", &bundle::stateless::<2>()).expect("the engine's version needs none");
        assert_eq!(result(&Client::one(), "ffi_many_1022").unwrap(), scaled(2.0));
    });
}
