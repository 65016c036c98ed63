//! Programs: in order, in place, on several devices.

use std::{ffi::c_void, thread, time::Duration};

use plugin_tests::{Buffer, Client, Code, Gate, Program, RunOptions, call, event::elsewhere, plugin, sys};

use crate::{
    common::{DIMS, N, client, ramp, ticket},
    on_fake_gpu,
};

const SLOW: (&str, &str) = ("FAKE_CUDA_LATENCY_US", "2000");

#[test]
fn a_chain_of_programs_runs_in_order_however_slow_the_device_is() {
    on_fake_gpu!([SLOW], || {
        let client = client();
        let add_one = client.compile(&Program::add_one()).unwrap();
        let add = client.compile(&Program::add()).unwrap();
        let mut x = client.put(&ramp(0.0), &DIMS).unwrap();
        for _ in 0..20 {
            // The one before is destroyed while programs read it.
            let y = add_one.run1(&[&x]).unwrap();
            x = add.run1(&[&x, &y]).unwrap();
        }
        let expected = |at: usize| (0..20).fold(at as f32, |x, _| 2.0 * x + 1.0);
        assert_eq!(x.read::<f32>().unwrap(), (0..N).map(expected).collect::<Vec<_>>());
    });
}

#[test]
fn execute_returns_before_the_program_runs() {
    on_fake_gpu!([], || {
        let client = client();
        let gate = Gate::closed();
        let program = client.compile(&Program::gate_inline()).unwrap();
        let arguments = [&client.put(&ramp(0.0), &DIMS).unwrap(), &ticket(&client, &gate)];
        let run = program.execute(&[&arguments], RunOptions { complete: true, ..Default::default() }).unwrap();
        gate.wait_reached();
        assert!(!run.complete[0].is_ready() && !run.outputs[0][0].ready().is_ready());
        let told = run.complete[0].on_ready();
        assert!(told.get().is_none());
        gate.open();
        assert_eq!(told.wait(), Ok(()));
        assert_eq!(run.outputs[0][0].read::<f32>().unwrap(), ramp(0.0));
    });
}

#[test]
fn at_most_32_executions_are_under_way() {
    on_fake_gpu!([], || {
        let client = client();
        let gate = Gate::closed();
        let gated = client.compile(&Program::gate_inline()).unwrap();
        let add_one = client.compile(&Program::add_one()).unwrap();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let mut results = vec![gated.run1(&[&x, &ticket(&client, &gate)]).unwrap()];
        gate.wait_reached();
        results.extend((1..32).map(|_| add_one.run1(&[&x]).unwrap()));
        let waiting = elsewhere(move || add_one.run1(&[&x]).and_then(|result| result.read::<f32>()));
        thread::sleep(Duration::from_millis(50));
        assert!(waiting.get().is_none() && results.iter().all(|result| !result.ready().is_ready()));
        gate.open();
        assert_eq!(waiting.wait(), Ok(ramp(1.0)));
    });
}

#[test]
fn donated_memory_becomes_the_result() {
    on_fake_gpu!([SLOW], || {
        let client = client();
        let donate = client.compile(&Program::donate()).unwrap();
        let mut x = client.put(&ramp(0.0), &DIMS).unwrap();
        let address = x.address().unwrap();
        for _ in 0..10 {
            let y = donate.run1(&[&x]).unwrap();
            assert!(x.is_deleted());
            assert_eq!(y.address().unwrap(), address);
            x = y;
        }
        assert_eq!(x.read::<f32>().unwrap(), ramp(10.0));
        // Kept, so the result lies elsewhere.
        let run = donate.execute(&[&[&x]], RunOptions { keep: &[0], ..Default::default() }).unwrap();
        let y = run.only();
        assert!(!x.is_deleted());
        assert_ne!(y.address().unwrap(), address);
        assert_eq!((x.read::<f32>().unwrap(), y.read::<f32>().unwrap()), (ramp(10.0), ramp(11.0)));
    });
}

#[test]
fn a_read_that_is_under_way_sees_what_was_there_before_the_donation() {
    on_fake_gpu!([SLOW], || {
        let client = client();
        let donate = client.compile(&Program::donate()).unwrap();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let mut bytes = vec![0; N * size_of::<f32>()];
        let read = x.to_host(&mut bytes).unwrap();
        let y = donate.run1(&[&x]).unwrap();
        read.wait().unwrap();
        assert_eq!(bytes, ramp(0.0).iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>());
        assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
    });
}

#[test]
fn donations_are_refused_in_xlas_words() {
    on_fake_gpu!([], || {
        let client = client();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let refused = |program: Program, arguments: &[&Buffer], words: &[&str]| {
            let program = client.compile(&program).unwrap();
            program.run(arguments).map(drop).unwrap_err().expect(Code::INVALID_ARGUMENT, words);
            assert!(arguments.iter().all(|argument| !argument.is_deleted()));
        };
        refused(Program::donate_both(), &[&x, &x], &["donate the same buffer twice", "f(donate(a), donate(a))"]);
        refused(Program::donate_second(), &[&x, &x], &["also used by the same call", "f(a, donate(a))"]);
        refused(Program::donate_first(), &[&x, &x], &["previously donated in the same call", "f(donate(a), a)"]);
        refused(
            Program::donate(),
            &[&x, &x],
            &["Execution supplied 2 buffers but compiled program expected 1 buffers"],
        );
        let small = client.put(&[1.0_f32], &[1]).unwrap();
        refused(Program::add(), &[&x, &small], &["parameter 1 of size 4096", "incompatible size 4"]);
        x.increase().unwrap();
        refused(Program::donate(), &[&x], &["Donation requested for buffer with external reference"]);
        x.decrease().unwrap();
        assert_eq!(x.read::<f32>().unwrap(), ramp(0.0));
        x.delete().unwrap();
        let add_one = client.compile(&Program::add_one()).unwrap();
        let words = ["argument 0 to replica 0", "deleted or donated"];
        add_one.run(&[&x]).map(drop).unwrap_err().expect(Code::INVALID_ARGUMENT, &words);
    });
}

fn sharded(client: &Client, program: &plugin_tests::Loaded, start: f32) {
    let shards: Vec<Buffer> = client
        .addressable_devices()
        .into_iter()
        .enumerate()
        .map(|(at, device)| client.put_on(device, &ramp(start + (at * N) as f32), &DIMS).unwrap())
        .collect();
    let arguments: Vec<Vec<&Buffer>> = shards.iter().map(|shard| vec![shard]).collect();
    let lists: Vec<&[&Buffer]> = arguments.iter().map(Vec::as_slice).collect();
    let run = program.execute(&lists, RunOptions::default()).unwrap();
    let sum: f64 = (0..4 * N).map(|at| f64::from(start) + at as f64).sum();
    for (at, outputs) in run.outputs.iter().enumerate() {
        assert_eq!(outputs[0].read::<f32>().unwrap(), ramp(start + (at * N) as f32 + 1.0));
        let found = f64::from(outputs[1].read::<f32>().unwrap()[0]);
        assert!((found - sum).abs() <= sum * 1e-4, "{found} is not {sum}");
    }
}

#[test]
fn four_devices_compute_together_from_two_threads() {
    on_fake_gpu!([("FAKE_CUDA_GPUS", "4"), ("FAKE_CUDA_LATENCY_US", "200")], || {
        let client = client();
        let program = client.compile(&Program::sharded()).unwrap();
        thread::scope(|scope| {
            for thread in 0..2 {
                let (client, program) = (&client, &program);
                scope.spawn(move || (0..5).for_each(|round| sharded(client, program, (thread * 100 + round) as f32)));
            }
        });
    });
}

#[test]
fn executables_travel_with_their_options() {
    on_fake_gpu!([], || {
        let client = client();
        let program = Program::add_one();
        let options = |loaded: &plugin_tests::Loaded| {
            let executable = loaded.executable();
            let args = call!(plugin(), PJRT_Executable_GetCompileOptions { executable: executable.raw() }).unwrap();
            // SAFETY: the bytes live until the deleter is called on their holder, and then no more.
            unsafe {
                let bytes = std::slice::from_raw_parts(args.serialized_bytes.cast::<u8>(), args.serialized_bytes_size);
                let bytes = bytes.to_vec();
                args.serialized_compile_options_deleter.unwrap()(args.serialized_compile_options);
                bytes
            }
        };
        let compiled = client.compile(&program).unwrap();
        assert_eq!(options(&compiled), program.options());
        let blob = compiled.executable().serialize().unwrap();
        drop(compiled);
        let loaded = client.deserialize(&blob).unwrap();
        assert_eq!(options(&loaded), program.options());
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let y = loaded.run1(&[&x]).unwrap();
        // Neither the executable nor the argument has to outlive the launch.
        drop((loaded, x));
        assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
        client.deserialize(b"nothing").map(drop).unwrap_err().expect(Code::INVALID_ARGUMENT, &["no executable"]);
    });
}

#[test]
fn launches_with_other_addresses_are_counted() {
    on_fake_gpu!([], || {
        type Count = unsafe extern "C" fn(*mut sys::PJRT_LoadedExecutable) -> u64;
        // SAFETY: the engine exports it with this type.
        let count: Count = unsafe { plugin().symbol("fake_engine_rerecordings") };
        // SAFETY: any handle may be asked for.
        let count = |loaded: &plugin_tests::Loaded| unsafe { count(loaded.raw()) };
        let client = client();
        let donate = client.compile(&Program::donate()).unwrap();
        let mut x = client.put(&ramp(0.0), &DIMS).unwrap();
        for _ in 0..5 {
            x = donate.run1(&[&x]).unwrap();
        }
        assert_eq!(count(&donate), 0);
        let other = client.put(&ramp(0.0), &DIMS).unwrap();
        let _results = [donate.run1(&[&other]).unwrap(), donate.run1(&[&x]).unwrap()];
        assert_eq!(count(&donate), 2);
    });
}

#[test]
fn a_context_may_end_before_its_program() {
    on_fake_gpu!([SLOW], || {
        let client = client();
        let kind = plugin_tests::ffi::register_type(plugin(), "fake_engine_test").unwrap();
        let mut value = 42_i32;
        let gate = Gate::running(move |frame| {
            let data = frame.user_data(kind).ok_or("no user data")?;
            // SAFETY: it is the value below.
            let seen = unsafe { *data.cast::<i32>() };
            if seen == 42 { Ok(()) } else { Err(format!("{seen}")) }
        });
        let program = client.compile(&Program::gate_inline()).unwrap();
        let arguments = [&client.put(&ramp(0.0), &DIMS).unwrap(), &ticket(&client, &gate)];
        let context = plugin_tests::executable::Context::create(plugin()).unwrap();
        let data: *mut c_void = (&raw mut value).cast();
        plugin_tests::ffi::add_user_data(plugin(), &context, kind, data).unwrap();
        let run = program.execute(&[&arguments], RunOptions { context: context.raw(), ..Default::default() }).unwrap();
        drop(context);
        assert_eq!(run.only().read::<f32>().unwrap(), ramp(0.0));
    });
}
