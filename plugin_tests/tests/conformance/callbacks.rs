//! Programs that call back into Python are done when Execute returns, and their error is Execute's.
//!
//! The gate stands in for Python. What makes a program one of these is the name of a custom call, which here is the
//! name of the module; a large argument has the engine run it on a thread of its own.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use plugin_tests::{Buffer, Client, Code, Gate, Loaded, Program, RunOptions, event::elsewhere, gate};

use crate::{DIMS, engine, limited, plus, ramp, replicas, settles_at, ticket};

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

#[test]
fn t08_arena_a_callback_runs_a_program_of_several_devices_on_one_of_them() {
    if replicas::waits_for_all_devices() {
        return;
    }
    let client = Arc::new(Client::create(2, &[]).unwrap());
    let devices = client.addressable_devices();
    let program = Arc::new(client.compile(&Program::add_one().replicated(2)).unwrap());
    // Where the results of each device lie. They are waited for and destroyed, so a run writes over a result or an
    // argument of those before: of the last, or of the last but one, which the engine may let go of only now.
    let few = 3;
    let places: Arc<[Mutex<BTreeSet<usize>>; 2]> = Arc::default();
    let run_alone = {
        let (client, places) = (Arc::clone(&client), Arc::clone(&places));
        move |index: usize, start: f32| {
            let device = devices[index];
            let x = client.put_on(device, &ramp(start), &DIMS).unwrap();
            let how = RunOptions { device: Some(device), ..RunOptions::default() };
            let y = program.execute(&[&[&x]], how).unwrap().only();
            assert_eq!((y.device(), y.memory()), (device, device.default_memory()));
            assert_eq!(y.read::<f32>().unwrap(), plus(&ramp(start), 1.0));
            places[index].lock().unwrap().insert(y.address().unwrap());
        }
    };
    let calling_back = client.compile(&gate::calling_back()).unwrap();
    let gate = {
        let run_alone = run_alone.clone();
        Gate::running(move |_| {
            [0usize, 1, 1, 0, 1, 0, 0, 1]
                .repeat(4)
                .iter()
                .zip(1i16..)
                .for_each(|(&index, start)| run_alone(index, start.into()));
            Ok(())
        })
    };
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let outer = calling_back.run(&[&x, &ticket(&client, &gate)]).unwrap();
    assert_eq!(outer[0].read::<f32>().unwrap(), ramp(0.0));
    // Outside of a callback each device's results come back as destinations just so.
    [1, 0].iter().for_each(|&index| run_alone(index, 9.0));
    let seen = places.each_ref().map(|places| places.lock().unwrap().clone());
    assert!(seen.iter().all(|places| places.len() <= few), "{seen:?}");
    assert!(seen[0].is_disjoint(&seen[1]), "{seen:?}");
}
