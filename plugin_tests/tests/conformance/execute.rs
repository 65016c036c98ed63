//! Execution: results, events, argument checks, lifetimes during a run, failures.

use plugin_tests::{
    Client, Code, Gate, Program, RunOptions, Semantics,
    buffer::{Bf16, Complex, Int4},
    call,
    executable::Context,
    ffi, gate, plugin, sized,
};

use crate::{DIMS, N, four, plus, ramp, shared, ticket};

const WITH_EVENTS: RunOptions<'static> =
    RunOptions { complete: true, keep: &[], context: std::ptr::null_mut(), device: None };

#[test]
fn c15_results_are_right() {
    let client = shared();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let y = client.put(&ramp(10.0), &DIMS).unwrap();
    let add_one = client.compile(&Program::add_one()).unwrap();
    assert_eq!(add_one.run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
    let two = client.compile(&Program::two_results()).unwrap().run(&[&x, &y]).unwrap();
    let sum: Vec<f32> = ramp(0.0).iter().zip(ramp(10.0)).map(|(a, b)| a + b).collect();
    let product: Vec<f32> = ramp(0.0).iter().zip(ramp(10.0)).map(|(a, b)| a * b).collect();
    assert_eq!(two[0].read::<f32>().unwrap(), sum);
    assert_eq!(two[1].read::<f32>().unwrap(), product);
}

#[test]
fn c15_the_same_argument_may_come_twice() {
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    let add = shared().compile(&Program::add()).unwrap();
    assert_eq!(
        add.run1(&[&x, &x]).unwrap().read::<f32>().unwrap(),
        ramp(0.0).iter().map(|v| v * 2.0).collect::<Vec<_>>()
    );
}

#[test]
fn c15_matrices_multiply() {
    let a = shared().put(&[1f32; 32 * 48], &[32, 48]).unwrap();
    let b = shared().put(&[2f32; 48 * 64], &[48, 64]).unwrap();
    let product = shared().compile(&Program::matmul()).unwrap().run1(&[&a, &b]).unwrap();
    assert_eq!(product.dims(), [32, 64]);
    assert_eq!(product.read::<f32>().unwrap(), vec![96.0; 32 * 64]);
}

#[test]
fn c15_zero_arguments_and_constants() {
    let constant = shared().compile(&Program::constant()).unwrap();
    for _ in 0..3 {
        assert_eq!(constant.run1(&[]).unwrap().read::<i32>().unwrap(), (0..256).collect::<Vec<i32>>());
    }
}

#[test]
fn c15_zero_results_still_complete() {
    let nothing = shared().compile(&Program::no_results()).unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    let run = nothing.execute(&[&[&x]], WITH_EVENTS).unwrap();
    assert!(run.outputs[0].is_empty());
    run.complete[0].wait().unwrap();
}

#[test]
fn c15_zero_results_need_no_places_for_them() {
    let nothing = shared().compile(&Program::no_results()).unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    let (arguments, mut options) = ([x.raw()], sized!(PJRT_ExecuteOptions));
    let list = arguments.as_ptr();
    call!(
        plugin(),
        PJRT_LoadedExecutable_Execute {
            executable: nothing.raw(),
            options: &raw mut options,
            argument_lists: &raw const list,
            num_devices: 1,
            num_args: 1,
        }
    )
    .unwrap();
}

#[test]
fn c15_arena_a_deleted_argument_on_the_last_device_gives_every_destination_back() {
    let client = Client::create(4, &[]).unwrap();
    let sharded = client.compile(&Program::sharded()).unwrap();
    let devices = client.addressable_devices();
    let shards: Vec<_> = devices.iter().map(|&d| client.put_on(d, &ramp(0.0), &DIMS).unwrap()).collect();
    shards[3].delete().unwrap();
    let before: Vec<_> = devices.iter().map(|device| device.stats().unwrap().bytes_in_use).collect();
    let arguments: Vec<Vec<_>> = shards.iter().map(|shard| vec![shard.raw()]).collect();
    let failure = sharded.execute_raw(&arguments, WITH_EVENTS).expect_err("one argument is gone");
    failure.expect(Code::INVALID_ARGUMENT, &["deleted or donated"]);
    let failure = sharded.execute_raw(&arguments[..2], WITH_EVENTS).expect_err("two lists for four devices");
    failure.expect(Code::INVALID_ARGUMENT, &["num_devices is 2", "4 addressable"]);
    let after: Vec<_> = devices.iter().map(|device| device.stats().unwrap().bytes_in_use).collect();
    assert_eq!(before, after);
}

#[test]
fn c15_arguments_pass_through_into_buffers_of_their_own() {
    let a = shared().put(&ramp(0.0), &DIMS).unwrap();
    let b = shared().put(&ramp(5.0), &DIMS).unwrap();
    let outputs = shared().compile(&Program::passthrough()).unwrap().run(&[&a, &b]).unwrap();
    a.delete().unwrap();
    b.delete().unwrap();
    for (output, expected) in outputs.iter().zip([ramp(5.0), ramp(0.0), ramp(0.0)]) {
        assert_eq!(output.read::<f32>().unwrap(), expected);
    }
    // Deleting one result must not take the other, equal one along.
    outputs[1].delete().unwrap();
    assert_eq!(outputs[2].read::<f32>().unwrap(), ramp(0.0));
}

#[test]
fn c15_three_hundred_results() {
    let x = shared().put(&[1f32; 16], &[16]).unwrap();
    let many = shared().compile(&Program::many_results()).unwrap();
    assert_eq!(many.executable().output_dims(), vec![vec![16]; 300]);
    let outputs = many.run(&[&x]).unwrap();
    assert_eq!(outputs.len(), 300);
    for (index, output) in outputs.iter().enumerate() {
        assert_eq!(output.read::<f32>().unwrap(), [1.0 + index as f32; 16]);
    }
}

#[test]
fn c15_other_types_compute() {
    let client = shared();
    let x = client.put(&[Bf16(0x3F80); N], &DIMS).unwrap();
    let y = client.compile(&Program::add_one_bf16()).unwrap().run1(&[&x]).unwrap();
    assert_eq!(y.read::<Bf16>().unwrap(), [Bf16(0x4000); N]);
    let x = client.put(&[Complex(0.0, 1.0); 64], &[64]).unwrap();
    let y = client.compile(&Program::add_one_c64()).unwrap().run1(&[&x]).unwrap();
    assert_eq!(y.read::<Complex>().unwrap(), [Complex(1.0, 3.0); 64]);
    let x = client.put(&[true; 64], &[64]).unwrap();
    let y = client.compile(&Program::not_pred()).unwrap().run1(&[&x]).unwrap();
    assert_eq!(y.read::<bool>().unwrap(), [false; 64]);
    let x = client.put(&[41f32], &[]).unwrap();
    let y = client.compile(&Program::add_one_scalar()).unwrap().run1(&[&x]).unwrap();
    assert_eq!(y.read::<f32>().unwrap(), [42.0]);
    let x = client.put::<f32>(&[], &[0]).unwrap();
    let y = client.compile(&Program::add_one_empty()).unwrap().run1(&[&x]).unwrap();
    assert_eq!(y.read::<f32>().unwrap(), [0f32; 0]);
}

#[test]
fn t19_four_bit_results_compute() {
    // On the CPU engine no view of four-bit elements exists, so such results stay the engine's.
    let x = shared().put(&[Int4(3); 16], &[16]).unwrap();
    let add_one = shared().compile(&Program::add_one_s4()).unwrap();
    let y = add_one.run1(&[&x]).unwrap();
    assert_eq!(y.read::<Int4>().unwrap(), [Int4(4); 16]);
    assert_eq!(add_one.run1(&[&y]).unwrap().read::<Int4>().unwrap(), [Int4(5); 16]);
}

#[test]
fn c15_loops_compute_and_chain() {
    let iterate = shared().compile(&Program::iterate()).unwrap();
    let x = shared().put(&[0f32; N], &DIMS).unwrap();
    let once = iterate.run1(&[&x]).unwrap();
    let twice = iterate.run1(&[&once]).unwrap();
    // The loop's fixed point: x = sin x + 1.
    let value = twice.read::<f32>().unwrap()[0];
    assert!((value - (value.sin() + 1.0)).abs() < 1e-5, "{value}");
}

#[test]
fn c15_completion_events_only_when_asked() {
    let add_one = shared().compile(&Program::add_one()).unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    let run = add_one.execute(&[&[&x]], WITH_EVENTS).unwrap();
    assert_eq!(run.complete.len(), 1);
    assert_eq!(run.complete[0].on_ready().wait(), Ok(()));
    assert!(add_one.execute(&[&[&x]], RunOptions::default()).unwrap().complete.is_empty());
}

#[test]
fn c15_argument_counts_are_named_as_the_user_counts() {
    let add_one = shared().compile(&Program::add_one()).unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    add_one.run(&[&x, &x]).map(drop).unwrap_err().expect(Code::INVALID_ARGUMENT, &["supplied 2", "expected 1"]);
    add_one.run(&[]).map(drop).unwrap_err().expect(Code::INVALID_ARGUMENT, &["supplied 0", "expected 1"]);
    let constant = shared().compile(&Program::constant()).unwrap();
    constant.run(&[&x]).map(drop).unwrap_err().expect(Code::INVALID_ARGUMENT, &["supplied 1", "expected 0"]);
    assert_eq!(add_one.run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
}

#[test]
fn t14_argument_sizes_are_checked() {
    let add_one = shared().compile(&Program::add_one()).unwrap();
    let short = shared().put(&[0f32; 1000], &[1000]).unwrap();
    add_one.run(&[&short]).map(drop).unwrap_err().expect(Code::INVALID_ARGUMENT, &["parameter 0", "4096", "4000"]);
}

#[test]
fn c15_deleted_arguments_are_refused() {
    let add = shared().compile(&Program::add()).unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    let gone = shared().put(&ramp(0.0), &DIMS).unwrap();
    gone.delete().unwrap();
    add.run(&[&x, &gone]).map(drop).unwrap_err().expect(Code::INVALID_ARGUMENT, &["deleted or donated"]);
    assert_eq!(x.read::<f32>().unwrap(), ramp(0.0));
}

#[test]
fn c15_four_devices_compute_together() {
    let sharded = four().compile(&Program::sharded()).unwrap();
    let parts: Vec<_> = four()
        .devices()
        .iter()
        .zip([0f32, 1.0, 2.0, 3.0])
        .map(|(device, value)| four().put_on(*device, &[value; N], &DIMS).unwrap())
        .collect();
    let arguments: Vec<[&plugin_tests::Buffer; 1]> = parts.iter().map(|part| [part]).collect();
    let arguments: Vec<&[&plugin_tests::Buffer]> = arguments.iter().map(|list| &list[..]).collect();
    for _ in 0..3 {
        let run = sharded.execute(&arguments, WITH_EVENTS).unwrap();
        assert_eq!(run.complete.len(), 4);
        for (index, outputs) in run.outputs.iter().enumerate() {
            assert_eq!(outputs[0].device(), four().devices()[index]);
            assert_eq!(outputs[0].read::<f32>().unwrap(), [index as f32 + 1.0; N]);
            assert_eq!(outputs[1].read::<f32>().unwrap(), [6.0 * N as f32]);
        }
    }
}

#[test]
fn c15_arguments_must_be_on_the_right_device() {
    let add_one = four().compile(&Program::add_one()).unwrap();
    let [first, second, ..] = four().devices()[..] else { panic!("four devices") };
    let there = four().put_on(second, &ramp(0.0), &DIMS).unwrap();
    assert_eq!(add_one.run(&[&there]).map(drop).unwrap_err().code, Code::INVALID_ARGUMENT);
    let here = four().put_on(first, &ramp(0.0), &DIMS).unwrap();
    assert_eq!(add_one.run1(&[&here]).unwrap().read::<f32>().unwrap(), ramp(1.0));
}

#[test]
fn c16_arguments_may_be_destroyed_while_the_program_runs() {
    let client = Client::one();
    let gated = {
        gate::prepare();
        client.compile(&Program::gate()).unwrap()
    };
    let gate = Gate::closed();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
    gate.wait_reached();
    drop(x);
    // Memory that is free again would be handed out now; the running program still reads what was `x`.
    let junk: Vec<_> = (0..64).map(|_| client.put(&[-1f32; N], &DIMS).unwrap()).collect();
    assert!(!outputs[0].ready().is_ready());
    gate.open();
    assert_eq!(outputs[0].read::<f32>().unwrap(), ramp(1.0));
    drop(junk);
}

#[test]
fn c16_results_may_be_destroyed_while_the_program_writes_them() {
    let client = Client::one();
    gate::prepare();
    let gated = client.compile(&Program::gate()).unwrap();
    let gate = Gate::closed();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let run = gated.execute(&[&[&x, &ticket(&client, &gate)]], WITH_EVENTS).unwrap();
    gate.wait_reached();
    drop(run.outputs);
    // If the results' memory were handed out before the program is through, it would write into these.
    let later: Vec<_> = (0..64).map(|_| client.put(&[-1f32; N], &DIMS).unwrap()).collect();
    gate.open();
    run.complete[0].wait().unwrap();
    for buffer in later {
        assert_eq!(buffer.read::<f32>().unwrap(), [-1f32; N]);
    }
}

#[test]
fn c12_reads_of_a_pending_result_wait_for_it() {
    let client = Client::one();
    gate::prepare();
    let gated = client.compile(&Program::gate()).unwrap();
    let gate = Gate::closed();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
    gate.wait_reached();
    let mut bytes = vec![0u8; 4 * N];
    let read = outputs[0].to_host(&mut bytes).unwrap();
    assert!(!read.is_ready());
    gate.open();
    read.wait().unwrap();
    assert_eq!(bytes[..4], 1f32.to_le_bytes());
}

#[test]
fn c24_a_pending_result_can_be_copied_and_used() {
    let client = Client::one();
    gate::prepare();
    let gated = client.compile(&Program::gate()).unwrap();
    let add_one = client.compile(&Program::add_one()).unwrap();
    let gate = Gate::closed();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
    let next = add_one.run1(&[&outputs[0]]).unwrap();
    drop(outputs);
    gate.wait_reached();
    gate.open();
    assert_eq!(next.read::<f32>().unwrap(), plus(&ramp(0.0), 2.0));
}

#[test]
fn c21_a_failed_run_poisons_its_results_and_nothing_else() {
    let client = Client::one();
    let gate = Gate::running(|_| Err("the gate says no".into()));
    let gated = client.compile(&Program::gate()).unwrap();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let run = gated.execute(&[&[&x, &ticket(&client, &gate)]], WITH_EVENTS).unwrap();
    for failure in [run.complete[0].wait(), run.outputs[0][0].ready().wait(), run.outputs[0][0].read::<f32>().map(drop)]
    {
        assert!(failure.as_ref().unwrap_err().message.contains("the gate says no"), "{failure:?}");
    }
    let add_one = client.compile(&Program::add_one()).unwrap();
    let poisoned = add_one.run1(&[&run.outputs[0][0]]).and_then(|result| result.read::<f32>().map(drop));
    assert!(poisoned.unwrap_err().message.contains("the gate says no"));
    assert_eq!(add_one.run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
}

#[test]
fn t21_a_run_that_fails_inside_the_call_leaves_the_client_working() {
    let client = Client::one();
    let gate = Gate::running(|_| Err("the gate says no".into()));
    let inline = client.compile(&Program::gate_inline()).unwrap();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let failure =
        inline.run1(&[&x, &ticket(&client, &gate)]).and_then(|result| result.read::<f32>().map(drop)).unwrap_err();
    assert!(failure.message.contains("the gate says no"), "{failure}");
    let open = Gate::running(|_| Ok(()));
    assert_eq!(inline.run1(&[&x, &ticket(&client, &open)]).unwrap().read::<f32>().unwrap(), ramp(0.0));
}

#[test]
fn c34_user_data_of_a_context_reaches_the_handler() {
    let client = Client::one();
    let kind = ffi::register_type(plugin(), "pjrt_arena_test_data").unwrap();
    let gate = Gate::running(move |frame| {
        let data = frame.user_data(kind).ok_or("no user data")?;
        // SAFETY: the test below puts the address of an integer there.
        if unsafe { *data.cast::<u64>() } == 0xA2E4A { Ok(()) } else { Err("other user data".into()) }
    });
    let inline = client.compile(&Program::gate_inline()).unwrap();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let context = Context::create(plugin()).unwrap();
    let mut data = 0xA2E4A_u64;
    ffi::add_user_data(plugin(), &context, kind, (&raw mut data).cast()).unwrap();
    let how = RunOptions { context: context.raw(), ..WITH_EVENTS };
    let run = inline.execute(&[&[&x, &ticket(&client, &gate)]], how).unwrap();
    run.complete[0].wait().unwrap();
    assert_eq!(run.only().read::<f32>().unwrap(), ramp(0.0));
}

#[test]
fn c34_a_context_serves_programs_with_and_without_custom_calls() {
    let client = Client::one();
    let [early, late] =
        ["pjrt_arena_test_early", "pjrt_arena_test_late"].map(|name| ffi::register_type(plugin(), name).unwrap());
    let gate = |sees_late: bool| {
        Gate::running(move |frame| {
            frame.user_data(early).ok_or("no user data")?;
            if frame.user_data(late).is_some() == sees_late { Ok(()) } else { Err("too early, or never".into()) }
        })
    };
    let plain = client.compile(&Program::add_one()).unwrap();
    let inline = client.compile(&Program::gate_inline()).unwrap();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let context = Context::create(plugin()).unwrap();
    let mut data = 0_u64;
    let mut add = |kind| ffi::add_user_data(plugin(), &context, kind, (&raw mut data).cast());
    add(early).unwrap();
    let refused = add(early).expect_err("one type, one pointer");
    let how = RunOptions { context: context.raw(), ..WITH_EVENTS };
    let run = plain.execute(&[&[&x]], how).unwrap();
    assert_eq!(run.only().read::<f32>().unwrap(), ramp(1.0));
    for sees_late in [false, true] {
        if sees_late {
            add(late).unwrap();
            assert_eq!(add(late).expect_err("likewise").code, refused.code);
        }
        let run = inline.execute(&[&[&x, &ticket(&client, &gate(sees_late))]], how).unwrap();
        run.complete[0].wait().unwrap();
        assert_eq!(run.only().read::<f32>().unwrap(), ramp(0.0));
    }
}

#[test]
fn c15_a_result_is_new_whatever_became_of_the_one_before() {
    let client = Client::one();
    let add_one = client.compile(&Program::add_one()).unwrap();
    let donate = client.compile(&Program::donate()).unwrap();
    for round in 0..12 {
        let start = round as f32;
        let x = client.put(&ramp(start), &DIMS).unwrap();
        let run = add_one.execute(&[&[&x]], WITH_EVENTS).unwrap();
        run.complete[0].wait().unwrap();
        let y = run.only();
        assert!(!y.is_deleted());
        assert_eq!(y.dims(), DIMS);
        assert_eq!(y.read::<f32>().unwrap(), ramp(start + 1.0));
        match round % 4 {
            // Its memory may wait for the next run.
            0 => {}
            1 => {
                y.delete().unwrap();
                assert!(y.is_deleted());
            }
            2 => {
                y.increase().unwrap();
                y.decrease().unwrap();
            }
            _ => {
                let z = donate.run1(&[&y]).unwrap();
                assert!(y.is_deleted());
                assert_eq!(z.read::<f32>().unwrap(), ramp(start + 2.0));
            }
        }
    }
}

#[test]
fn c07_arguments_in_zero_copy_memory_compute() {
    // Where the host memory suits, the engine reads it in place; results must not depend on that.
    #[repr(align(64))]
    struct Aligned([f32; N]);
    let mut host = Box::new(Aligned([0.0; N]));
    host.0.copy_from_slice(&ramp(0.0));
    let array = plugin_tests::HostArray::of(&host.0, &DIMS).on_device(shared().device());
    let (x, done) = shared().from_host(&array, Semantics::ZeroCopy).unwrap();
    let add_one = shared().compile(&Program::add_one()).unwrap();
    let y = add_one.run1(&[&x]).unwrap();
    drop(x);
    assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
    done.wait().unwrap();
    assert_eq!(host.0[..], ramp(0.0));
}
