//! Programs that call back into Python are done when Execute returns, and their error is Execute's.
//!
//! The gate stands in for Python. What makes a program one of these is the name of a custom call, which here is the
//! name of the module; a large argument has the engine run it on a thread of its own.

use std::{sync::Arc, thread, time::Duration};

use plugin_tests::{Buffer, Client, Code, Gate, Loaded, Program, RunOptions, event::elsewhere, gate};

use crate::{engine, limited, settles_at, ticket};

const LARGE: usize = 1 << 20;

/// `f32[1048576]`: `a` behind a gate, plus 1; `a` is donated to it.
fn program() -> Program {
    gate::prepare();
    Program::text(
        "module @xla_ffi_python_cpu_callback {
          func.func public @main(%a: tensor<1048576xf32> {tf.aliasing_output = 0 : i32}, %t: tensor<i32>)
              -> tensor<1048576xf32> {
            %g = stablehlo.custom_call @pjrt_arena_test_gate(%a, %t)
              {api_version = 4 : i32, has_side_effect = true, backend_config = {}}
              : (tensor<1048576xf32>, tensor<i32>) -> tensor<1048576xf32>
            %c = stablehlo.constant dense<1.0> : tensor<1048576xf32>
            %y = stablehlo.add %g, %c : tensor<1048576xf32>
            return %y : tensor<1048576xf32>
          }
        }",
    )
}

fn argument(client: &Client) -> Buffer {
    client.put(&vec![1f32; LARGE], &[LARGE as i64]).unwrap()
}

/// Execute returns the error itself.
fn fails_at_once(client: &Client, gated: &Loaded) {
    let gate = Gate::running(|_| Err("the callback says no".into()));
    let x = argument(client);
    let failure = gated.run(&[&x, &ticket(client, &gate)]).err().expect("an error");
    failure.expect(Code::INTERNAL, &["the callback says no"]);
    assert!(x.is_deleted(), "the engine consumed what was donated");
}

#[test]
fn t08_arena_execute_waits_for_callbacks() {
    let client = Client::one();
    let gated = client.compile(&program()).unwrap();
    for complete in [true, false] {
        // Long enough that a call which does not wait is back before.
        let gate = Gate::running(|_| {
            thread::sleep(Duration::from_millis(30));
            Ok(())
        });
        let x = argument(&client);
        let how = RunOptions { complete, ..RunOptions::default() };
        let run = gated.execute(&[&[&x, &ticket(&client, &gate)]], how).unwrap();
        assert!(gate.is_reached());
        assert_eq!(run.complete.len(), usize::from(complete));
        assert!(run.complete.iter().all(|event| event.is_ready()));
        let y = run.only();
        assert!(y.ready().is_ready() && x.is_deleted());
        assert_eq!(y.read::<f32>().unwrap(), vec![2.0; LARGE]);
    }
}

#[test]
fn c21_arena_a_callbacks_error_is_executes_and_leaves_nothing() {
    for strategy in ["preallocate", "growing", "tpu"] {
        let client = limited(strategy, 64 << 20);
        let gated = client.compile(&program()).unwrap();
        for _ in 0..20 {
            fails_at_once(&client, &gated);
        }
        settles_at(&client, 0);
    }
}

#[test]
fn t08_arena_others_work_while_execute_waits() {
    let client = Arc::new(Client::one());
    let gated = client.compile(&program()).unwrap();
    let gate = Gate::closed();
    let (x, ticket) = (argument(&client), ticket(&client, &gate));
    let waiting = elsewhere(move || gated.run1(&[&x, &ticket]).and_then(|y| y.read::<f32>()));
    gate.wait_reached();
    let other = {
        let client = Arc::clone(&client);
        elsewhere(move || argument(&client).read::<f32>().unwrap()[0])
    };
    assert_eq!(other.wait(), 1.0);
    assert!(waiting.get().is_none());
    gate.open();
    assert_eq!(waiting.wait(), Ok(vec![2.0; LARGE]));
}

#[test]
fn c28_arena_programs_with_callbacks_are_recognised_when_they_come_back() {
    let client = Client::one();
    let blob = client.compile(&program()).unwrap().executable().serialize().unwrap();
    fails_at_once(&client, &client.deserialize(&blob).unwrap());
    // What the bare engine wrote says it as well.
    let bare = Client::create_on(engine(), 1, &[]).unwrap();
    let blob = bare.compile(&program()).unwrap().executable().serialize().unwrap();
    fails_at_once(&client, &client.deserialize(&blob).unwrap());
}
