//! An exception in the middle of an execution: the engine has taken up what was donated to it, and unwinds.

use plugin_tests::{Client, Loaded, Plugin, Program, ffi, plugin::engine_path};

use crate::{
    engine::{Faulty, on_faulty_engine},
    held::{DIMS, N, ramp},
};

/// `f32[1024]`: what a custom call that throws makes of `x`, which is donated.
const DONATING: &str = "module {
  func.func public @main(%x: tensor<1024xf32> {tf.aliasing_output = 0 : i32}, %t: tensor<i32>) -> tensor<1024xf32> {
    %y = stablehlo.custom_call @faulty_engine_throws(%x)
      {api_version = 4 : i32, has_side_effect = true, backend_config = {}} : (tensor<1024xf32>) -> tensor<1024xf32>
    return %y : tensor<1024xf32>
  }
}";

/// Runs a program that throws; whether it consumed its argument.
fn throws(client: &Client, program: &Loaded) -> bool {
    let (x, ticket) = (client.put(&ramp(1.0), &DIMS).unwrap(), client.put(&[0_i32], &[]).unwrap());
    let failure = program.run(&[&x, &ticket]).err().expect("an error");
    assert!(failure.message.contains("the engine threw"), "{failure}");
    // What is not consumed is as it was, and what is gone says so: neither waits.
    let consumed = x.is_deleted();
    match x.read::<f32>() {
        Ok(values) => assert!(!consumed && values == ramp(1.0)),
        Err(failure) => assert!(consumed, "{failure}"),
    }
    consumed
}

#[test]
fn an_exception_in_the_middle_of_an_execution_is_its_error() {
    on_faulty_engine!({
        let engine = Plugin::load(&engine_path()).expect("the engine loads");
        let thrower = Faulty::get().thrower();
        ["faulty_engine_throws", "pjrt_arena_test_gate"]
            .iter()
            .for_each(|name| ffi::register(&engine, name, thrower).expect("a handler"));
        for strategy in ["preallocate", "tpu", "platform"] {
            let client = Client::create(1, &[("strategy", strategy.into()), ("limit", "8388608".into())]).unwrap();
            let donate = client.compile(&Program::donate()).unwrap();
            let programs =
                [Program::gate_inline(), Program::text(DONATING)].map(|program| client.compile(&program).unwrap());
            for round in 0..20 {
                let consumed = programs.each_ref().map(|program| throws(&client, program));
                assert_eq!(consumed, [false; 2], "{strategy}: the engine has given the donation up");
                let other = client.put(&ramp(round as f32), &DIMS).unwrap();
                let next = donate.run1(&[&other]).unwrap();
                let more: Vec<_> = (0..8).map(|at| client.put(&[at as f32; N], &DIMS).unwrap()).collect();
                assert_eq!(next.read::<f32>().unwrap(), ramp(round as f32 + 1.0));
                for (at, array) in more.iter().enumerate() {
                    assert_eq!(array.read::<f32>().unwrap(), [at as f32; N]);
                }
            }
            drop((programs, donate));
            assert_eq!(client.stats().unwrap().bytes_in_use, 0, "{strategy}");
        }
    });
}
