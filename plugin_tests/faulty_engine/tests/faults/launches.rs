//! A launch that fails when all devices have begun the program.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use plugin_tests::{Gate, Program, Signal, Value, gate, in_child, plugin::engine_path};

use crate::{
    engine::{self, Faulty, Kind, TEXT},
    held::{self, Client},
    workloads::scalar,
};

const LARGE: usize = 1 << 20;

/// `f32[1048576]` on two devices: `a` behind a gate, plus 1.
fn program() -> Program {
    gate::prepare();
    let text = "module @gated {
      func.func public @main(%a: tensor<1048576xf32>, %t: tensor<i32>) -> tensor<1048576xf32> {
        %g = stablehlo.custom_call @pjrt_arena_test_gate(%a, %t)
          {api_version = 4 : i32, has_side_effect = true, backend_config = {}}
          : (tensor<1048576xf32>, tensor<i32>) -> tensor<1048576xf32>
        %c = stablehlo.constant dense<1.0> : tensor<1048576xf32>
        %y = stablehlo.add %g, %c : tensor<1048576xf32>
        return %y : tensor<1048576xf32>
      }
    }";
    Program::text(text).replicated(2)
}

/// Under `platform` memory that is freed is unmapped, so a program that reads it ends the process.
fn arguments_outlive_the_programs_that_read_them(strategy: &str, rewrite: &str) {
    let client = Client::create(&[
        ("cpu_device_count", Value::Integer(2)),
        ("strategy", Value::from(strategy)),
        ("limit", Value::from("268435456")),
        ("rewrite", Value::from(rewrite)),
    ])
    .expect("a client");
    let devices = client.devices().expect("devices");
    let program = client.compile(&program()).expect("a program");
    let (open, read) = (Signal::<()>::default(), Arc::new(AtomicUsize::new(0)));
    let gate = {
        let (open, read) = (open.clone(), Arc::clone(&read));
        Gate::running(move |frame| {
            open.wait();
            let values = frame.argument::<f32>(0);
            read.fetch_add(
                usize::from(values.iter().all(|&value| value == values[0] && value > 0.0)),
                Ordering::SeqCst,
            );
            Ok(())
        })
    };
    let put = |device, value: f32| client.put(device, &vec![value; LARGE], &[LARGE as i64]).expect("an array");
    let arrays = [put(devices[0], 1.0), put(devices[1], 2.0)];
    let tickets = [0, 1].map(|at| scalar(&client, devices[at], gate.ticket()).expect("a scalar"));
    Faulty::get().arm(engine::slot("PJRT_LoadedExecutable_Execute"), 1, Kind::Late);
    // The library may wait for the programs in this call.
    let opener = (rewrite == "on").then(|| {
        let open = open.clone();
        let opens = move || {
            gate.wait_reached();
            open.set(());
        };
        std::thread::spawn(opens)
    });
    let lists: Vec<_> = arrays.iter().zip(&tickets).map(|(array, ticket)| [array, ticket]).collect();
    let failure = program.execute(&[&lists[0], &lists[1]], 1).map(drop).expect_err("an error by order");
    assert!(failure.message.contains(TEXT), "{failure}");
    drop((arrays, tickets));
    // What is freed is taken by others.
    let others = [3.0, 4.0].map(|value| [0, 1].map(|at| put(devices[at], value)));
    match opener {
        Some(opener) => opener.join().expect("no panic there"),
        None => open.set(()),
    }
    while read.load(Ordering::SeqCst) < 2 {
        std::thread::yield_now();
    }
    for (at, others) in others.iter().enumerate() {
        for other in others {
            other.holds(&vec![3.0 + at as f32; LARGE], "another array").expect("it is read");
        }
    }
    drop((others, program, client));
    assert!(held::notes().is_empty());
}

macro_rules! on_faulty_engine {
    ($body:expr) => {{
        let (behind, engine) = (engine_path(), engine::library());
        let path = |path: &std::path::Path| path.to_str().expect("a path of letters").to_owned();
        let (behind, engine) = (path(&behind), path(&engine));
        in_child!(&[("FAULTY_ENGINE_BEHIND", &behind), ("PJRT_ARENA_ENGINE", &engine)], || $body);
    }};
}

#[test]
fn arguments_of_a_launch_that_failed_late_stay_while_they_are_read() {
    on_faulty_engine!({
        arguments_outlive_the_programs_that_read_them("platform", "off");
        arguments_outlive_the_programs_that_read_them("growing", "off");
    });
}

#[test]
fn destinations_of_a_launch_that_failed_late_stay_while_they_are_written() {
    on_faulty_engine!(arguments_outlive_the_programs_that_read_them("platform", "on"));
}
