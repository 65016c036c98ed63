//! Traps that have no theme of their own.

use plugin_tests::{Buffer, Client, Code, Gate, Program, RunOptions, args, call, event::elsewhere, gate, plugin, sys};

use crate::{DIMS, MIB, eventually, limited, ramp, settles_at, shared, ticket};

const WITH_EVENTS: RunOptions<'static> =
    RunOptions { complete: true, keep: &[], context: std::ptr::null_mut(), device: None };

#[test]
fn t20_arena_a_poisoned_result_gives_its_block_back() {
    let client = limited("preallocate", 64 * MIB);
    let gate = Gate::running(|_| Err("poison".into()));
    let gated = client.compile(&Program::gate()).unwrap();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
    for output in &outputs {
        assert!(output.ready().wait().unwrap_err().message.contains("poison"));
        assert!(output.read_raw(0, 16).unwrap_err().message.contains("poison"));
    }
    drop((outputs, x));
    settles_at(&client, 0);
}

#[test]
fn t23_callbacks_may_drop_the_last_handle() {
    // An event's callback runs on a thread of the engine's, or inline; freeing memory from there must not deadlock.
    let client = Client::one();
    gate::prepare();
    let gated = client.compile(&Program::gate_donate()).unwrap();
    let gate = Gate::closed();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let run = gated.execute(&[&[&x, &ticket(&client, &gate)]], WITH_EVENTS).unwrap();
    let event = run.complete.into_iter().next().unwrap();
    let outputs: Vec<Buffer> = run.outputs.into_iter().flatten().collect();
    extern "C" fn drop_outputs(error: *mut sys::PJRT_Error, user: *mut std::ffi::c_void) {
        // SAFETY: `user` is the box made below, given to exactly one callback.
        let (outputs, done) = *unsafe { Box::from_raw(user.cast::<(Vec<Buffer>, plugin_tests::Signal<bool>)>()) };
        let fine = plugin().check(error).is_ok();
        drop(outputs);
        done.set(fine);
    }
    let done = plugin_tests::Signal::<bool>::default();
    let user = Box::into_raw(Box::new((outputs, done.clone())));
    call!(plugin(), PJRT_Event_OnReady { event: event.raw(), callback: Some(drop_outputs), user_arg: user.cast() })
        .unwrap();
    gate.wait_reached();
    gate.open();
    assert!(done.wait());
}

#[test]
fn t23_errors_may_be_destroyed_inside_a_callback() {
    let client = Client::one();
    let gate = Gate::running(|_| Err("no".into()));
    let gated = client.compile(&Program::gate()).unwrap();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
    // `on_ready` reads and destroys the error where the callback runs.
    assert!(outputs[0].ready().on_ready().wait().unwrap_err().message.contains("no"));
}

#[test]
fn t24_a_done_event_may_be_destroyed_right_after_its_callback_is_set() {
    let values = ramp(0.0);
    let array = plugin_tests::HostArray::of(&values, &DIMS).on_device(shared().device());
    let (buffer, done) = shared().from_host(&array, plugin_tests::Semantics::ZeroCopy).unwrap();
    let signal = done.on_ready();
    drop(done);
    assert_eq!(buffer.read::<f32>().unwrap(), values);
    drop(buffer);
    assert_eq!(signal.wait(), Ok(()));
}

#[test]
fn t25_callers_of_a_newer_version_pass_longer_structs() {
    // A caller compiled against a later header has fields that nobody here knows; they must be carried or ignored.
    #[repr(C)]
    struct Newer<T> {
        known: T,
        later: [usize; 8],
    }
    let mut args = Newer { known: args!(PJRT_Client_PlatformName { client: shared().raw() }), later: [0; 8] };
    args.known.struct_size = size_of_val(&args);
    // SAFETY: the struct is as long as it says.
    let error = unsafe { plugin().table().PJRT_Client_PlatformName.unwrap()((&raw mut args).cast()) };
    plugin().check(error).unwrap();
    assert_eq!(args.known.platform_name_size, 3);
    assert_eq!(args.later, [0; 8]);
}

#[test]
fn t38_completion_is_asked_for_and_given_apart_from_readiness() {
    let client = Client::one();
    gate::prepare();
    let gated = client.compile(&Program::gate()).unwrap();
    let gate = Gate::closed();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let run = gated.execute(&[&[&x, &ticket(&client, &gate)]], WITH_EVENTS).unwrap();
    gate.wait_reached();
    assert!(!run.complete[0].is_ready());
    gate.open();
    run.complete[0].wait().unwrap();
    assert!(run.outputs[0].iter().all(|output| output.ready().wait().is_ok()));
}

#[test]
fn t39_arena_results_land_in_the_arena() {
    // Destination passing: every result of these programs is a block of ours, as the statistics show.
    let client = limited("preallocate", 64 * MIB);
    for (program, arguments, results) in
        [(Program::add_one(), 1, 1), (Program::two_results(), 2, 2), (Program::passthrough(), 2, 3)]
    {
        let loaded = client.compile(&program).unwrap();
        let inputs: Vec<Buffer> = (0..arguments).map(|_| client.put(&ramp(0.0), &DIMS).unwrap()).collect();
        let outputs = loaded.run(&inputs.iter().collect::<Vec<_>>()).unwrap();
        outputs.iter().for_each(|output| output.ready().wait().unwrap());
        let addresses: std::collections::BTreeSet<usize> =
            outputs.iter().map(|output| output.address().unwrap()).collect();
        assert_eq!(addresses.len(), results);
        settles_at(&client, 4096 * (arguments + results) as i64);
        drop((inputs, outputs));
        settles_at(&client, 0);
    }
}

#[test]
fn t39_arena_a_result_that_was_donated_away_frees_nothing_twice() {
    let client = limited("preallocate", 64 * MIB);
    let (add_one, donate) = (client.compile(&Program::add_one()).unwrap(), client.compile(&Program::donate()).unwrap());
    for _ in 0..20 {
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let y = add_one.run1(&[&x]).unwrap();
        let z = donate.run1(&[&y]).unwrap();
        drop(y);
        assert_eq!(z.read::<f32>().unwrap(), ramp(2.0));
    }
    settles_at(&client, 0);
    eventually("allocations are counted", || client.stats().unwrap().num_allocs.is_some_and(|count| count >= 40));
}

#[test]
fn t36_compiling_ahead_of_time_answers() {
    // PJRT_Compile without a client is the engine's business; through us it must give an executable or the engine's
    // error.
    let topology = call!(plugin(), PJRT_Client_TopologyDescription { client: shared().raw() }).unwrap().topology;
    let add_one = Program::add_one();
    let c = add_one.raw();
    let outcome = call!(
        plugin(),
        PJRT_Compile {
            topology: topology,
            program: &raw const c,
            compile_options: add_one.options().as_ptr().cast(),
            compile_options_size: add_one.options().len(),
            client: shared().raw(),
        }
    );
    match outcome {
        Ok(args) => drop(call!(plugin(), PJRT_Executable_Destroy { executable: args.executable }).unwrap()),
        Err(failure) => assert_ne!(failure.code, Code::INTERNAL, "{failure}"),
    }
}

#[test]
fn t08_events_are_awaited_without_a_lock() {
    let client = Client::one();
    gate::prepare();
    let gated = client.compile(&Program::gate()).unwrap();
    let gate = Gate::closed();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let mut outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
    let awaited = outputs.remove(0);
    let waiting = elsewhere(move || awaited.read::<f32>());
    gate.wait_reached();
    let y = client.put(&ramp(1.0), &DIMS).unwrap();
    assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
    assert!(waiting.get().is_none());
    gate.open();
    assert_eq!(waiting.wait(), Ok(ramp(1.0)));
}
