//! Programs on several devices at once: one of them alone, one that fails, one that takes long.

use std::{collections::BTreeSet, thread, time::Duration};

use plugin_tests::{Buffer, Client, Code, Device, Gate, Program, RunOptions, event::elsewhere, gate};

use crate::{DIMS, N, engine, plus, ramp};

const LARGE: usize = 1 << 20;

/// `f32[1048576]`s on two devices: `a` behind a gate, plus 1, in place; and twice `b`, in place.
fn gated() -> Program {
    gate::prepare();
    let text = "module @gated {
      func.func public @main(%a: tensor<1048576xf32> {tf.aliasing_output = 0 : i32},
                             %b: tensor<1048576xf32> {tf.aliasing_output = 1 : i32}, %t: tensor<i32>)
          -> (tensor<1048576xf32>, tensor<1048576xf32>) {
        %g = stablehlo.custom_call @pjrt_arena_test_gate(%a, %t)
          {api_version = 4 : i32, has_side_effect = true, backend_config = {}}
          : (tensor<1048576xf32>, tensor<i32>) -> tensor<1048576xf32>
        %c = stablehlo.constant dense<1.0> : tensor<1048576xf32>
        %y = stablehlo.add %g, %c : tensor<1048576xf32>
        %z = stablehlo.add %b, %b : tensor<1048576xf32>
        return %y, %z : tensor<1048576xf32>, tensor<1048576xf32>
      }
    }";
    Program::text(text).replicated(2)
}

fn two() -> (Client, [Device; 2]) {
    let client = Client::create(2, &[]).expect("two devices");
    let devices = client.addressable_devices().try_into().expect("two devices");
    (client, devices)
}

/// Whether the engine takes a run on one of a program's devices for one on all of them, and waits for the others for
/// ever: by itself as well (PJRT 0.115, `docs/engines.md`).
pub fn waits_for_all_devices() -> bool {
    engine().version().1 >= 115
}

#[test]
fn t13_arena_what_does_not_fit_one_device_is_refused_before_any_has_begun() {
    let (client, [first, second]) = two();
    let program = client.compile(&gated()).unwrap();
    let put = |device, value: f32| client.put_on(device, &vec![value; LARGE], &[LARGE as i64]).unwrap();
    let gate = Gate::closed();
    let ticket = |device| client.put_on(device, &[gate.ticket()], &[]).unwrap();
    let (a, b, t) = (put(first, 1f32), put(first, 2.0), ticket(first));
    let short = client.put_on(second, &[3f32; LARGE / 2], &[LARGE as i64 / 2]).unwrap();
    let (c, d, u) = (put(second, 4.0), put(first, 5.0), ticket(second));
    for (wrong, words) in [
        (&short, format!("expected parameter 1 of {} bytes", 4 * LARGE)),
        (&d, "argument 1 of device 1 of 2 is on another device".to_owned()),
    ] {
        // Nothing of it runs: it would wait for the gate.
        let refused = program.execute(&[&[&a, &b, &t], &[&c, wrong, &u]], RunOptions::default()).map(drop);
        refused.unwrap_err().expect(Code::INVALID_ARGUMENT, &[&words]);
        assert!(![&a, &b, &c, wrong].iter().any(|array| array.is_deleted()), "nothing is consumed");
    }
}

#[test]
fn t13_arena_what_one_device_is_given_twice_is_refused_before_any_has_begun() {
    let (client, devices) = two();
    let put = |device| client.put_on(device, &ramp(1.0), &DIMS).unwrap();
    let [a, b, c] = [devices[0], devices[0], devices[1]].map(put);
    for (program, donated) in [(Program::donate_both(), 1), (Program::donate_first(), 0), (Program::donate_second(), 1)]
    {
        let program = client.compile(&program.replicated(2)).unwrap();
        let refused = program.execute(&[&[&a, &b], &[&c, &c]], RunOptions::default()).map(drop).unwrap_err();
        let words = format!(
            "argument {donated} of device 1 is donated, but it is argument {} of the same call too",
            1 - donated
        );
        refused.expect(Code::INVALID_ARGUMENT, &[&words]);
        assert!(![&a, &b, &c].iter().any(|array| array.is_deleted()), "nothing is consumed");
        // What is not to be consumed may be passed twice.
        let kept = RunOptions { keep: &[0, 1], ..RunOptions::default() };
        let run = program.execute(&[&[&a, &b], &[&c, &c]], kept).unwrap();
        let twice: Vec<f32> = ramp(1.0).iter().map(|value| 2.0 * value).collect();
        assert!(run.outputs.iter().all(|results| results[0].read::<f32>().unwrap() == twice));
    }
}

#[test]
fn one_of_a_programs_devices_runs_alone() {
    if waits_for_all_devices() {
        return;
    }
    let (client, devices) = two();
    let program = client.compile(&Program::add_one().replicated(2)).unwrap();
    let mut start = 0.0;
    // Again and again: results that are dropped come back as destinations, each on its device.
    for index in [0, 1, 1, 0, 1, 0, 0, 1] {
        start += 1.0;
        let x = client.put_on(devices[index], &ramp(start), &DIMS).unwrap();
        let how = RunOptions { device: Some(devices[index]), ..RunOptions::default() };
        let y = program.execute(&[&[&x]], how).unwrap().only();
        assert_eq!(y.device(), devices[index]);
        assert_eq!(y.read::<f32>().unwrap(), plus(&ramp(start), 1.0));
    }
    let both: Vec<Buffer> = devices.iter().map(|device| client.put_on(*device, &ramp(5.0), &DIMS).unwrap()).collect();
    let run = program.execute(&[&[&both[0]], &[&both[1]]], RunOptions::default()).unwrap();
    assert!(run.outputs.iter().flatten().all(|y| y.read::<f32>().unwrap() == ramp(6.0)));
}

#[test]
fn arena_a_long_program_on_one_device_does_not_keep_the_memory_of_another() {
    if waits_for_all_devices() {
        return;
    }
    let (client, devices) = two();
    let gate = Gate::closed();
    let long = client.compile(&gated()).unwrap();
    let put = |value: f32| client.put_on(devices[0], &vec![value; LARGE], &[LARGE as i64]).unwrap();
    let ticket = client.put_on(devices[0], &[gate.ticket()], &[]).unwrap();
    let alone = |index: usize| RunOptions { device: Some(devices[index]), ..RunOptions::default() };
    let (a, b) = (put(1.0), put(2.0));
    let waiting = long.execute(&[&[&a, &b, &ticket]], alone(0)).unwrap();
    gate.wait_reached();
    let program = client.compile(&Program::add_one().replicated(2)).unwrap();
    let mut x = client.put_on(devices[1], &vec![0f32; N], &DIMS).unwrap();
    let mut places = BTreeSet::new();
    for _ in 0..200 {
        x = program.execute(&[&[&x]], alone(1)).unwrap().only();
        x.ready().wait().unwrap();
        places.insert(x.address().unwrap());
    }
    assert_eq!(x.read::<f32>().unwrap(), vec![200.0; N]);
    // Two would do; the engine may say a little late that a run has ended.
    assert!(places.len() < 50, "{} places", places.len());
    gate.open();
    assert_eq!(waiting.single()[0].read::<f32>().unwrap()[0], 2.0);
}

#[test]
fn a_client_ends_while_what_it_has_under_way_fails() {
    for _ in 0..5 {
        let (client, [device, _]) = two();
        let (gate, stop) = (Gate::closed(), plugin_tests::event::Signal::<()>::default());
        let waiting = stop.clone();
        let fails = Gate::running(move |_| {
            waiting.wait();
            Err("the program fails".into())
        });
        let program = client.compile(&gated()).unwrap();
        let put = |value: f32| client.put_on(device, &vec![value; LARGE], &[LARGE as i64]).unwrap();
        let ticket = client.put_on(device, &[fails.ticket()], &[]).unwrap();
        let how = RunOptions { device: Some(device), ..RunOptions::default() };
        let mut last = program.execute(&[&[&put(1.0), &put(2.0), &ticket]], how).unwrap().single();
        fails.wait_reached();
        // What follows is donated what has yet to fail, and fails with it.
        let open = client.put_on(device, &[gate.ticket()], &[]).unwrap();
        gate.open();
        for _ in 0..20 {
            last = program.execute(&[&[&last[0], &last[1], &open]], how).unwrap().single();
        }
        drop((last, open, ticket, program));
        let ended = elsewhere(move || client.destroy());
        thread::sleep(Duration::from_millis(20));
        stop.set(());
        ended.wait().unwrap();
    }
}
