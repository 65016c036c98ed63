//! A launch that fails when all devices have begun the program, and a program that fails on one of them later.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use plugin_tests::{Gate, Program, RunOptions, Signal, Value, gate};

use crate::{
    engine::{self, Faulty, Kind, TEXT, on_faulty_engine},
    held::{self, Client, DIMS, ramp},
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

/// `f32[1048576]`: `a`, an argument with this attribute, behind a gate that the library takes for a callback into
/// Python by the module's name, plus 1.
fn calling_back(attribute: &str) -> Program {
    Program::text(&format!(
        "module @xla_ffi_python_cpu_callback {{
          func.func public @main(%a: tensor<1048576xf32> {attribute}, %t: tensor<i32>) -> tensor<1048576xf32> {{
            %g = stablehlo.custom_call @pjrt_arena_test_gate(%a, %t)
              {{api_version = 4 : i32, has_side_effect = true, backend_config = {{}}}}
              : (tensor<1048576xf32>, tensor<i32>) -> tensor<1048576xf32>
            %c = stablehlo.constant dense<1.0> : tensor<1048576xf32>
            %y = stablehlo.add %g, %c : tensor<1048576xf32>
            return %y : tensor<1048576xf32>
          }}
        }}"
    ))
}

/// A launch on one device throws while its program is under way, which reads its argument and writes to what it was
/// donated: the array or a destination. Neither is anybody else's before the program ends.
fn memory_outlives_the_program(strategy: &str, program: Program, dims: &[i64]) {
    let client =
        plugin_tests::Client::create(1, &[("strategy", strategy.into()), ("limit", "67108864".into())]).unwrap();
    gate::prepare();
    let program = client.compile(&program).unwrap();
    let count = dims[0] as usize;
    let put = |value: f32| client.put(&vec![value; count], dims).unwrap();
    let is_back = Signal::<()>::default();
    let (gate, ended) = {
        let (is_back, ended) = (is_back.clone(), Signal::<f32>::default());
        let over = ended.clone();
        let gate = Gate::running(move |frame| {
            // The call may wait for the program, so that it is not back for as long as this goes on.
            let begun = Instant::now();
            while is_back.get().is_none() && begun.elapsed() < Duration::from_millis(300) {
                std::thread::yield_now();
            }
            over.set(frame.argument::<f32>(0).iter().sum());
            Ok(())
        });
        (gate, ended)
    };
    let (x, ticket) = (put(1.0), client.put(&[gate.ticket()], &[]).unwrap());
    Faulty::get().arm(engine::slot("PJRT_LoadedExecutable_Execute"), 1, Kind::ThrowAfter);
    let failure = program.run(&[&x, &ticket]).err().expect("an error by order");
    assert!(failure.message.contains(TEXT), "{failure}");
    drop((x, ticket));
    // What is free is taken by others.
    let others: Vec<_> = (0..4).map(|at| put(at as f32)).collect();
    is_back.set(());
    assert_eq!(ended.wait(), count as f32, "{strategy}: it read what it was passed");
    // A program that nobody waits for ends before this one.
    let open = Gate::running(|_| Ok(()));
    let (y, ticket) = (put(5.0), client.put(&[open.ticket()], &[]).unwrap());
    program.run(&[&y, &ticket]).unwrap()[0].ready().wait().unwrap();
    for (at, other) in others.iter().enumerate() {
        assert_eq!(other.read::<f32>().unwrap(), vec![at as f32; count], "{strategy}: another array");
    }
}

#[test]
fn memory_of_a_launch_that_threw_stays_with_its_program() {
    on_faulty_engine!({
        for strategy in ["preallocate", "growing", "tpu", "platform"] {
            memory_outlives_the_program(strategy, Program::gate_large(), &[LARGE as i64]);
            memory_outlives_the_program(strategy, Program::gate_donate(), &DIMS);
            for attribute in ["", "{tf.aliasing_output = 0 : i32}"] {
                memory_outlives_the_program(strategy, calling_back(attribute), &[LARGE as i64]);
            }
        }
    });
}

/// The program of one device fails, while that of the other one is still to write its results.
fn a_failure_on_one_device(strategy: &str) {
    let client =
        plugin_tests::Client::create(2, &[("strategy", strategy.into()), ("limit", "8388608".into())]).unwrap();
    let devices = client.addressable_devices();
    gate::prepare();
    let program = client.compile(&Program::gate_donate().replicated(2)).unwrap();
    let put = |device: usize, start: f32| client.put_on(devices[device], &ramp(start), &DIMS).unwrap();
    let bystanders = [put(0, 10.0), put(1, 20.0)];
    let in_use = || devices.iter().map(|device| device.stats().unwrap().bytes_in_use).collect::<Vec<_>>();
    let before = in_use();
    for _ in 0..5 {
        let (fails, slow) = (Signal::<()>::default(), Gate::closed());
        let failing = {
            let fails = fails.clone();
            Gate::running(move |_| {
                fails.wait();
                Err("a late failure".into())
            })
        };
        let arguments = [put(0, 1.0), put(1, 2.0)];
        let tickets = [&failing, &slow].map(Gate::ticket);
        let tickets = [0, 1].map(|at| client.put_on(devices[at], &[tickets[at]], &[]).unwrap());
        let lists = [0, 1].map(|at| [&arguments[at], &tickets[at]]);
        let how = RunOptions { complete: true, ..RunOptions::default() };
        let mut run = program.execute(&[&lists[0], &lists[1]], how).unwrap();
        assert!(arguments.iter().all(|argument| argument.is_deleted()), "both are donated");
        drop((arguments, tickets));
        [&failing, &slow].iter().for_each(|gate| gate.wait_reached());
        fails.set(());
        let failed = run.outputs.remove(0);
        let failures = failed.iter().map(|result| result.read::<f32>().map(drop)).chain([run.complete[0].wait()]);
        for failure in failures {
            assert!(failure.unwrap_err().message.contains("a late failure"), "{strategy}");
        }
        drop(failed);
        // What is free is taken by others: not what the slow program reads and writes.
        let others: Vec<_> = (0..40).map(|at| put(at % 2, 100.0 + at as f32)).collect();
        assert!(!run.complete[1].is_ready());
        slow.open();
        assert_eq!(run.outputs[0][0].read::<f32>().unwrap(), ramp(3.0), "{strategy}");
        run.complete[1].wait().unwrap();
        for (at, other) in others.iter().enumerate() {
            assert_eq!(other.read::<f32>().unwrap(), ramp(100.0 + at as f32), "{strategy}: another array");
        }
    }
    for (at, bystander) in bystanders.iter().enumerate() {
        assert_eq!(bystander.read::<f32>().unwrap(), ramp(10.0 * (at + 1) as f32));
    }
    let begun = std::time::Instant::now();
    while in_use() != before {
        assert!(begun.elapsed() < plugin_tests::event::HANG / 10, "{strategy}: bytes stay in use");
        std::thread::yield_now();
    }
}

#[test]
fn a_failure_after_the_launch_is_of_one_device() {
    on_faulty_engine!({
        ["preallocate", "growing", "platform", "tpu"].iter().for_each(|strategy| a_failure_on_one_device(strategy));
    });
}

/// A launch whose program would be over when Execute returns, were it not for one that another thread launches while
/// the engine is called: the engine puts the short program behind the long one, and its result is not there yet.
#[test]
fn a_short_program_behind_a_long_one_of_another_thread_is_not_over() {
    on_faulty_engine!({
        let client = plugin_tests::Client::one();
        gate::prepare();
        let (short, long) = (client.compile(&Program::add_one()).unwrap(), client.compile(&Program::gate()).unwrap());
        let values: Vec<f32> = (0..1024_u16).map(f32::from).collect();
        let x = client.put(&values, &[1024]).unwrap();
        // Some executions tell that it is short.
        (0..20).for_each(|_| short.run1(&[&x]).unwrap().ready().wait().unwrap());
        let again = short.run1(&[&x]).unwrap();
        assert!(again.ready().is_ready(), "it does not run in its caller's thread");
        for _ in 0..3 {
            let gate = Gate::closed();
            let ticket = client.put(&[gate.ticket()], &[]).unwrap();
            Faulty::get().arm(engine::slot("PJRT_LoadedExecutable_Execute"), 1, Kind::Hold);
            thread::scope(|threads| {
                let launched = threads.spawn(|| short.run1(&[&x]).unwrap());
                Faulty::get().wait_held();
                let behind = long.run(&[&x, &ticket]).unwrap();
                gate.wait_reached();
                Faulty::get().let_go();
                let result = launched.join().expect("no panic there");
                let was_ready = result.ready().is_ready();
                gate.open();
                assert!(!was_ready, "the program that it is behind was not over");
                let sums: Vec<f32> = values.iter().map(|value| value + 1.0).collect();
                assert_eq!(result.read::<f32>().unwrap(), sums);
                assert_eq!(behind[0].read::<f32>().unwrap(), sums);
            });
        }
    });
}
