//! pjrt-arena on the fake engine, where the caller runs ahead of the GPU: what runs still use, the next run of the
//! program may write, and nobody else.

use std::{thread, time::Duration};

use plugin_tests::{Buffer, Client, Code, Gate, Loaded, Program, Signal, event::elsewhere, gate};

use crate::common::{Driver, client, ticket};

const SLOW: (&str, &str) = ("FAKE_CUDA_LATENCY_US", "2000");
/// So slow that the host has looked before an operation ends, however busy the machine.
const SLOWER: (&str, &str) = ("FAKE_CUDA_LATENCY_US", "20000");
const N: usize = 1 << 18;
const DIMS: [i64; 1] = [N as i64];
const BYTES: i64 = (N * size_of::<f32>()) as i64;

fn filled(value: f32) -> Vec<f32> {
    vec![value; N]
}

fn put(client: &Client, value: f32) -> Buffer {
    client.put(&filled(value), &DIMS).unwrap()
}

/// A program whose results are too large to be kept, and a GPU that is busy with it.
fn busy() -> (Client, Loaded, Buffer) {
    let client = client();
    let add = client.compile(&Program::add_one_1m()).unwrap();
    let x = put(&client, 1.0);
    add.run1(&[&x]).unwrap().ready().wait().unwrap();
    (client, add, x)
}

/// What comes from the host now lies neither where `result` is yet to hold `value`, nor where what came before it still
/// writes.
fn others_are_elsewhere(client: &Client, result: &Buffer, value: f32, round: usize) {
    let others = [put(client, 7.0), put(client, 8.0)];
    assert_eq!(result.read::<f32>().unwrap(), filled(value), "round {round}");
    for (other, value) in others.iter().zip([7.0, 8.0]) {
        assert_eq!(other.read::<f32>().unwrap(), filled(value), "round {round}");
    }
}

/// A gate that is closed until the signal is set, and what comes of it then.
fn gate(outcome: Result<(), &'static str>) -> (Gate, Signal<()>) {
    let open = Signal::<()>::default();
    let opened = open.clone();
    let gate = Gate::running(move |_| {
        opened.wait();
        outcome.map_err(str::to_owned)
    });
    (gate, open)
}

/// Sets it while the caller waits for what comes of it.
fn soon(signal: Signal<()>) -> Signal<()> {
    elsewhere(move || {
        thread::sleep(Duration::from_millis(20));
        signal.set(());
    })
}

#[test]
fn a_result_that_was_dropped_is_where_the_next_one_goes() {
    on_the_arena!([SLOW, ("PJRT_ARENA_STRATEGY", "growing")], || {
        let (client, add, x) = busy();
        // The second result is dropped when the third is there: two places take turns, however far the caller is ahead.
        let mut last = add.run1(&[&x]).unwrap();
        for _ in 0..20 {
            last = add.run1(&[&last]).unwrap();
        }
        assert!(!last.ready().is_ready(), "the caller is not ahead");
        assert_eq!(last.read::<f32>().unwrap(), filled(22.0));
        drop(last);
        let peak = client.stats().unwrap().peak_pool_bytes.unwrap();
        assert!(peak <= 4 * BYTES, "the device had to give {peak} bytes");
    });
}

#[test]
fn a_result_that_is_read_is_left_alone() {
    on_the_arena!([SLOW], || {
        let (client, add, x) = busy();
        for round in 0..5 {
            let y = add.run1(&[&x]).unwrap();
            let mut bytes = vec![0; BYTES as usize];
            let read = y.to_host(&mut bytes).unwrap();
            drop(y);
            let other = put(&client, round as f32);
            let z = add.run1(&[&other]).unwrap();
            read.wait().unwrap();
            assert!(bytes.chunks(4).all(|value| value == 2f32.to_ne_bytes()), "round {round}");
            assert_eq!(z.read::<f32>().unwrap(), filled(round as f32 + 1.0));
        }
    });
}

#[test]
fn a_result_that_is_copied_is_left_alone() {
    on_the_arena!([SLOW, ("FAKE_CUDA_GPUS", "2")], || {
        let (client, add, x) = busy();
        let devices = client.addressable_devices();
        for round in 0..5 {
            let y = add.run1(&[&x]).unwrap();
            let here = client.device().default_memory();
            let copies = [y.copy_to_device(devices[1]).unwrap(), y.copy_to_memory(here).unwrap()];
            drop(y);
            let other = put(&client, round as f32);
            let z = add.run1(&[&other]).unwrap();
            for copy in copies {
                assert_eq!(copy.read::<f32>().unwrap(), filled(2.0), "round {round}");
            }
            assert_eq!(z.read::<f32>().unwrap(), filled(round as f32 + 1.0));
        }
    });
}

/// Its launch fails, of which the engine tells at once: not in the order of the stream.
#[test]
fn a_result_that_never_came_leaves_the_place_to_the_runs_before_it() {
    on_the_arena!([SLOW], || {
        let (client, add, x) = busy();
        for round in 0..5 {
            let y = add.run1(&[&x]).unwrap();
            let z = add.run1(&[&y]).unwrap();
            drop(y);
            // Two in a row, the second in the place that the first one had from y.
            for _ in 0..2 {
                Driver::get().configure("fail", "fake_cuda_kernel:1:999");
                let nothing = add.run1(&[&x]).unwrap();
                nothing.ready().wait().unwrap_err().expect(Code::INTERNAL, &["fake_cuda_kernel gave 999"]);
            }
            others_are_elsewhere(&client, &z, 3.0, round);
        }
    });
}

/// Its kernel was launched; what the engine does after that is refused, and it tells at once.
#[test]
fn what_was_launched_of_a_run_that_fails_writes_to_nobody_elses_place() {
    on_the_arena!([SLOWER], || {
        let (client, add, x) = busy();
        for round in 0..5 {
            let before = add.run1(&[&x]).unwrap();
            Driver::get().configure("fail", "cuEventRecord:1:999");
            let nothing = add.run1(&[&x]).unwrap();
            nothing.ready().wait().unwrap_err().expect(Code::INTERNAL, &["cuEventRecord gave 999"]);
            assert!(!before.ready().is_ready(), "the run that failed is over already");
            drop(nothing);
            others_are_elsewhere(&client, &before, 2.0, round);
        }
    });
}

#[test]
fn what_was_donated_to_a_run_that_fails_stays_for_those_before_it() {
    on_the_arena!([SLOWER], || {
        let (client, add, x) = busy();
        let donate = client.compile(&Program::donate()).unwrap();
        let add_one = client.compile(&Program::add_one()).unwrap();
        for round in 0..5 {
            let y = client.put(&[1.0_f32; 1024], &[1024]).unwrap();
            // Keeps the GPU busy before the run that reads.
            let before = add.run1(&[&x]).unwrap();
            let z = add_one.run1(&[&y]).unwrap();
            Driver::get().configure("fail", "fake_cuda_kernel:1:999");
            let nothing = donate.run1(&[&y]).unwrap();
            nothing.ready().wait().unwrap_err().expect(Code::INTERNAL, &["fake_cuda_kernel gave 999"]);
            assert!(!before.ready().is_ready(), "the runs before it are over already");
            drop((nothing, y));
            let others: Vec<Buffer> = (0..4).map(|_| client.put(&[7.0_f32; 1024], &[1024]).unwrap()).collect();
            assert_eq!(z.read::<f32>().unwrap(), [2.0; 1024], "round {round}");
            for other in others {
                assert_eq!(other.read::<f32>().unwrap(), [7.0; 1024]);
            }
        }
    });
}

/// Execute itself fails where the program calls Python: nobody has its results.
#[test]
fn what_was_launched_of_a_program_with_callbacks_writes_to_nobody_elses_place() {
    const NAME: &[u8] = b"pjrt_arena_test_gate";
    const CALLBACK: &str = "_python_gpu_callback";
    on_the_arena!([], || {
        let client = client();
        gate::prepare_as(CALLBACK);
        let mut code = Program::gate_large().code().to_vec();
        let at = code.windows(NAME.len()).position(|part| part == NAME).expect("the program calls the gate");
        code[at..][..NAME.len()].copy_from_slice(CALLBACK.as_bytes());
        let gated = client.compile(&Program::gate_large().with_code(&code, "mlir")).unwrap();
        let add = client.compile(&Program::add_one_1m()).unwrap();
        let (x, first) = (client.put(&vec![1.0_f32; 1 << 20], &[1 << 20]).unwrap(), put(&client, 1.0));
        for round in 0..5 {
            let (gate, open) = gate(Ok(()));
            let ticket = ticket(&client, &gate);
            ticket.ready().wait().unwrap();
            Driver::get().configure("fail", "cuEventRecord:1:999");
            let refused = gated.run(&[&x, &ticket]).err().expect("the engine says so");
            refused.expect(Code::INTERNAL, &["cuEventRecord gave 999"]);
            let opener = soon(open);
            // Is there at once, but the engine may say so only when the kernel is over.
            let other = client.put(&vec![7.0_f32; 1 << 20], &[1 << 20]).unwrap();
            opener.wait();
            // Behind the kernel.
            assert_eq!(add.run1(&[&first]).unwrap().read::<f32>().unwrap(), filled(2.0));
            assert_eq!(other.read::<f32>().unwrap(), vec![7.0; 1 << 20], "round {round}");
        }
    });
}

/// Each of them asks the engine for the end of what came before, which has no memory to say it with: the next call asks
/// again.
#[test]
fn what_a_run_that_failed_leaves_comes_back() {
    on_the_arena!([SLOW, ("PJRT_ARENA_LIMIT", "8MiB")], || {
        let (client, add, x) = busy();
        for place in ["fake_cuda_kernel:1:999", "cuEventRecord:1:999"] {
            for round in 0..20 {
                Driver::get().configure("fail", place);
                // As XLA, the engine waits for the GPU and allocates a second time.
                Driver::get().configure("fail", "cuMemAllocAsync:1:2");
                Driver::get().configure("fail", "cuMemAllocAsync:2:2");
                let nothing = add.run1(&[&x]).unwrap();
                nothing.ready().wait().unwrap_err().expect(Code::INTERNAL, &["gave 999"]);
                drop(nothing);
                assert_eq!(add.run1(&[&x]).unwrap().read::<f32>().unwrap(), filled(2.0), "{place}, round {round}");
            }
        }
        drop(x);
        let others: Vec<Buffer> = (0..8).map(|at| put(&client, at as f32)).collect();
        assert_eq!(others[7].read::<f32>().unwrap(), filled(7.0));
    });
}

/// This one fails when the GPU has come to it.
#[test]
fn who_waits_for_memory_gets_that_of_a_run_that_fails() {
    on_the_arena!([("PJRT_ARENA_LIMIT", "12MiB")], || {
        let client = client();
        gate::prepare();
        let gated = client.compile(&Program::gate_large()).unwrap();
        for round in 0..5 {
            let x = client.put(&vec![1.0_f32; 1 << 20], &[1 << 20]).unwrap();
            let (gate, open) = gate(Err("the gate says no"));
            let nothing = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
            gate.wait_reached();
            drop((nothing, x));
            let opener = soon(open);
            // Larger than what is free without them.
            let large = client.put(&vec![round as f32; 5 << 19], &[5 << 19]).unwrap();
            assert_eq!(large.read::<f32>().unwrap(), vec![round as f32; 5 << 19]);
            opener.wait();
        }
    });
}

#[test]
fn a_run_that_fails_leaves_the_place_to_those_before_it() {
    on_the_arena!([SLOW], || {
        let (client, add, x) = busy();
        let deleted = put(&client, 0.0);
        deleted.delete().unwrap();
        for round in 0..5 {
            let y = add.run1(&[&x]).unwrap();
            let z = add.run1(&[&y]).unwrap();
            drop(y);
            // It has taken y's place, which z's run still reads, when it is refused.
            let refused = add.run1(&[&deleted]).err().expect("an argument that is gone");
            refused.expect(Code::INVALID_ARGUMENT, &["deleted or donated"]);
            // What comes from the host is not behind the runs.
            others_are_elsewhere(&client, &z, 3.0, round);
        }
    });
}
