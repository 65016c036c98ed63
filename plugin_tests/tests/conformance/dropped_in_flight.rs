//! Results that their owner drops while the program still writes them, as eager code does: their memory comes back, and
//! what the next runs write into it is right.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use plugin_tests::{
    Buffer, Client, Code, ElementType, Event, Gate, Loaded, Program, RunOptions,
    event::{Signal, elsewhere},
    gate, in_child,
};

use crate::{DIMS, MIB, eventually, limited, plus, ramp, settles_at, ticket};

/// One array of the programs.
const ARRAY: i64 = 4 << 10;
/// A scalar, as the arena counts it.
const SCALAR: i64 = 4;

fn gated(client: &Client) -> Loaded {
    gate::prepare();
    client.compile(&Program::gate()).unwrap()
}

/// Runs the program up to its gate, and drops what it gives: the event of its end.
fn run_and_drop(program: &Loaded, client: &Client, gate: &Gate, x: &Buffer) -> Event {
    let options = RunOptions { complete: true, ..RunOptions::default() };
    let mut run = program.execute(&[&[x, &ticket(client, gate)]], options).unwrap();
    gate.wait_reached();
    run.complete.remove(0)
}

/// A gate whose program fails, once the signal is given.
fn fails_once_told() -> (Signal<()>, Gate) {
    let told = Signal::<()>::default();
    let waiting = told.clone();
    let gate = Gate::running(move |_| {
        waiting.wait();
        Err("broken on purpose".into())
    });
    (told, gate)
}

#[test]
fn c30_arena_dropped_results_count_as_if_each_run_had_a_block_of_its_own() {
    for strategy in ["preallocate", "growing", "platform", "tpu"] {
        let client = limited(strategy, 64 * MIB);
        let program = gated(&client);
        let results = program.executable().num_outputs() as i64;
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let before = client.stats().unwrap();
        let rounds = 5;
        for _ in 0..rounds {
            let gate = Gate::closed();
            let over = run_and_drop(&program, &client, &gate, &x);
            gate.open();
            over.wait().unwrap();
        }
        settles_at(&client, ARRAY);
        let after = client.stats().unwrap();
        // With the ticket of each.
        let came = after.num_allocs.unwrap() - before.num_allocs.unwrap();
        assert_eq!(came, rounds * (results + 1), "{strategy}");
        let sizes = program.executable().sizes().unwrap();
        // Under `tpu` a peak has the program's scratch, too.
        let most = ARRAY + SCALAR + sizes.output.max(ARRAY) + after.bytes_reserved.unwrap_or(0);
        assert!(after.peak_bytes_in_use.unwrap() <= most, "{strategy}: {after:?}, {most} expected");
    }
}

#[test]
fn c30_arena_a_dropped_result_is_not_in_use_from_then_on() {
    let client = limited("preallocate", 64 * MIB);
    let program = gated(&client);
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    for round in 0..3 {
        let gate = Gate::closed();
        let ticket = ticket(&client, &gate);
        let outputs = program.run(&[&x, &ticket]).unwrap();
        gate.wait_reached();
        assert!(client.stats().unwrap().bytes_in_use > ARRAY + SCALAR, "round {round}");
        drop(outputs);
        assert_eq!(client.stats().unwrap().bytes_in_use, ARRAY + SCALAR, "round {round}");
        gate.open();
        drop(ticket);
        settles_at(&client, ARRAY);
    }
}

#[test]
fn c23_a_chain_that_drops_its_links_computes_the_same() {
    let client = limited("preallocate", 64 * MIB);
    let add_one = client.compile(&Program::add_one()).unwrap();
    let start = client.put(&ramp(0.0), &DIMS).unwrap();
    for _ in 0..20 {
        let mut last = add_one.run1(&[&start]).unwrap();
        let mut kept = Vec::new();
        for link in 2..200 {
            let next = add_one.run1(&[&last]).unwrap();
            let done = std::mem::replace(&mut last, next);
            if link % 40 == 0 {
                kept.push((link - 1, done));
            }
        }
        kept.push((199, last));
        for (link, array) in kept {
            assert_eq!(array.read::<f32>().unwrap(), ramp(link as f32));
        }
    }
    settles_at(&client, ARRAY);
}

#[test]
fn c23_a_result_that_later_programs_read_may_go_before_any_of_them_runs() {
    let client = limited("preallocate", 64 * MIB);
    let (first, add) = (gated(&client), client.compile(&Program::add()).unwrap());
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    for _ in 0..5 {
        let gate = Gate::closed();
        let y = first.run(&[&x, &ticket(&client, &gate)]).unwrap().remove(0);
        let doubled = add.run1(&[&y, &y]).unwrap();
        drop(y);
        let sums = [add.run1(&[&doubled, &doubled]).unwrap(), add.run1(&[&doubled, &x]).unwrap()];
        drop(doubled);
        gate.wait_reached();
        gate.open();
        let expected = [4.0, 3.0].map(|times| {
            let offset = if times == 4.0 { 4.0 } else { 2.0 };
            ramp(0.0).iter().map(|value| times * value + offset).collect::<Vec<f32>>()
        });
        for (sum, expected) in sums.iter().zip(expected) {
            assert_eq!(sum.read::<f32>().unwrap(), expected);
        }
    }
    settles_at(&client, ARRAY);
}

#[test]
fn c14_a_result_that_failed_after_it_was_dropped_spoils_no_later_run() {
    let client = limited("preallocate", 64 * MIB);
    let program = gated(&client);
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    for _ in 0..3 {
        let (dropped, gate) = fails_once_told();
        let over = run_and_drop(&program, &client, &gate, &x);
        dropped.set(());
        over.wait().unwrap_err().expect(Code::INTERNAL, &["broken on purpose"]);
        for _ in 0..3 {
            let open = Gate::running(|_| Ok(()));
            let outputs = program.run(&[&x, &ticket(&client, &open)]).unwrap();
            assert_eq!(outputs[0].read::<f32>().unwrap(), ramp(1.0));
        }
    }
    settles_at(&client, ARRAY);
}

/// A device that does nothing until the gate is opened, where the engine does one program after another.
fn hold_up(client: &Client) -> (Gate, Event) {
    let (program, gate) = (gated(client), Gate::closed());
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let over = run_and_drop(&program, client, &gate, &x);
    (gate, over)
}

#[test]
fn c30_arena_a_loop_that_runs_ahead_takes_the_memory_of_two_steps() {
    for strategy in ["preallocate", "growing", "platform", "tpu"] {
        // A MiB for all that is small.
        let client = limited(strategy, 4 * MIB);
        let add_one = client.compile(&Program::add_one_1m()).unwrap();
        let start: Vec<f32> = (0..1 << 18).map(|value| value as f32).collect();
        let (gate, over) = hold_up(&client);
        let mut state = client.put(&start, &[1 << 18]).unwrap();
        // XLA's CPU client waits from the 32nd launch on.
        for _ in 0..25 {
            state = add_one.run1(&[&state]).unwrap();
        }
        gate.open();
        over.wait().unwrap();
        assert_eq!(state.read::<f32>().unwrap(), plus(&start, 25.0), "{strategy}");
        drop(state);
        settles_at(&client, 0);
    }
}

#[test]
fn c30_arena_the_place_of_a_dropped_array_has_another_type() {
    // There is room for three of 4 MiB: bytes, the sum of bytes, and floats. The engine compares sizes.
    let client = limited("preallocate", 14 * MIB);
    let add_one = client.compile(&Program::add_one_4m()).unwrap();
    let add_one_to_bytes = client.compile(&Program::add_one_u8_4m()).unwrap();
    let start: Vec<f32> = (0..1 << 20).map(|value| value as f32).collect();
    let bytes = client.put(&vec![7u8; 4 << 20], &[4 << 20]).unwrap();
    let (gate, over) = hold_up(&client);
    let eights = add_one_to_bytes.run1(&[&bytes]).unwrap();
    drop(bytes);
    let mut state = client.put(&start, &[1 << 20]).unwrap();
    for _ in 0..10 {
        state = add_one.run1(&[&state]).unwrap();
    }
    gate.open();
    over.wait().unwrap();
    assert_eq!(state.read::<f32>().unwrap(), plus(&start, 10.0));
    assert!(eights.read::<u8>().unwrap().iter().all(|&byte| byte == 8));
}

#[test]
fn c14_arena_what_fails_after_it_was_dropped_is_no_place_of_a_later_result() {
    let client = limited("preallocate", 64 * MIB);
    gate::prepare();
    let (fails, add_one) =
        (client.compile(&Program::gate_large()).unwrap(), client.compile(&Program::add_one_4m()).unwrap());
    let start: Vec<f32> = (0..1 << 20).map(|value| value as f32).collect();
    let x = client.put(&start, &[1 << 20]).unwrap();
    for _ in 0..3 {
        let (dropped, gate) = fails_once_told();
        // Its result, and what it reads, are dropped while it is under way.
        let read = add_one.run1(&[&x]).unwrap();
        let over = run_and_drop(&fails, &client, &gate, &read);
        drop(read);
        // The next launch waits for those before it.
        let mut later = vec![add_one.run1(&[&x]).unwrap()];
        dropped.set(());
        for _ in 0..3 {
            later.push(add_one.run1(&[&later[later.len() - 1]]).unwrap());
        }
        over.wait().unwrap_err().expect(Code::INTERNAL, &["broken on purpose"]);
        for (steps, array) in later.iter().enumerate() {
            assert_eq!(array.read::<f32>().unwrap(), plus(&start, 1.0 + steps as f32));
        }
    }
    drop(x);
    settles_at(&client, 0);
}

/// `x = step(x)`, whose step may fail, 20 times; the first one is at `gate`. There is room for two arrays.
fn run_ahead_of(gate: &Gate, client: &Client) -> Buffer {
    let step = client.compile(&Program::gate_large()).unwrap();
    let start: Vec<f32> = (0..1 << 20).map(|value| value as f32).collect();
    let mut state = client.put(&start, &[1 << 20]).unwrap();
    let open = Gate::running(|_| Ok(()));
    let passes = ticket(client, &open);
    state = step.run(&[&state, &ticket(client, gate)]).unwrap().remove(0);
    gate.wait_reached();
    for _ in 1..20 {
        state = step.run(&[&state, &passes]).unwrap().remove(0);
    }
    state
}

#[test]
fn c30_arena_a_loop_whose_steps_may_fail_takes_the_memory_of_two_steps() {
    gate::prepare();
    for strategy in ["preallocate", "platform"] {
        let client = limited(strategy, 9 * MIB);
        let gate = Gate::closed();
        let state = run_ahead_of(&gate, &client);
        gate.open();
        let start: Vec<f32> = (0..1 << 20).map(|value| value as f32).collect();
        assert_eq!(state.read::<f32>().unwrap(), plus(&start, 20.0), "{strategy}");
        drop(state);
        settles_at(&client, 0);
    }
}

#[test]
fn c14_arena_a_loop_that_fails_in_a_place_of_its_own_tells_its_error() {
    gate::prepare();
    let client = limited("preallocate", 9 * MIB);
    let add_one = client.compile(&Program::add_one_4m()).unwrap();
    for _ in 0..3 {
        let (told, gate) = fails_once_told();
        let state = run_ahead_of(&gate, &client);
        told.set(());
        state.read::<f32>().unwrap_err().expect(Code::INTERNAL, &["broken on purpose"]);
        drop(state);
        settles_at(&client, 0);
        // Nothing of it is left in the memory.
        let ones = client.put(&vec![1f32; 1 << 20], &[1 << 20]).unwrap();
        assert!(add_one.run1(&[&ones]).unwrap().read::<f32>().unwrap().iter().all(|&two| two == 2.0));
    }
}

/// Takes every hole, the largest first.
fn fill(client: &Client) -> Vec<Buffer> {
    let mut held = Vec::new();
    loop {
        let largest = client.stats().unwrap().largest_free_block_bytes.unwrap();
        if largest == 0 {
            return held;
        }
        held.push(Buffer::uninitialized(client, ElementType::U8, &[largest]).unwrap());
    }
}

/// So small that it has no slabs: each block lies in a hole of its own.
const TINY: i64 = MIB;

fn page(client: &Client) -> plugin_tests::Result<Buffer> {
    Buffer::uninitialized(client, ElementType::U8, &[ARRAY])
}

#[test]
fn c31_arena_an_allocation_waits_for_results_that_were_dropped_in_flight() {
    for strategy in ["preallocate", "growing", "tpu"] {
        let client = std::sync::Arc::new(limited(strategy, TINY));
        let program = gated(&client);
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        for round in 0..3 {
            let gate = Gate::closed();
            let over = run_and_drop(&program, &client, &gate, &x);
            let held = fill(&client);
            let waiting = {
                let client = std::sync::Arc::clone(&client);
                elsewhere(move || page(&client).map(drop))
            };
            gate.open();
            assert_eq!(waiting.wait(), Ok(()), "{strategy}, round {round}");
            over.wait().unwrap();
            drop(held);
            settles_at(&client, ARRAY);
        }
    }
}

#[test]
fn c31_arena_what_waits_for_the_next_run_is_free_to_everybody_else() {
    for strategy in ["preallocate", "growing", "tpu"] {
        let client = limited(strategy, TINY);
        let program = gated(&client);
        let nothing = client.compile(&Program::no_results()).unwrap();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let gate = Gate::closed();
        let over = run_and_drop(&program, &client, &gate, &x);
        let held = fill(&client);
        gate.open();
        over.wait().unwrap();
        // Lands what is done, and asks for no memory.
        for _ in 0..100 {
            nothing.run(&[&x]).unwrap();
            thread::yield_now();
        }
        assert_eq!(page(&client).map(drop), Ok(()), "{strategy}");
        drop(held);
        settles_at(&client, ARRAY);
    }
}

#[test]
fn c31_arena_no_room_is_still_an_error_and_the_program_goes_on() {
    let client = limited("preallocate", TINY);
    let program = gated(&client);
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let gate = Gate::closed();
    let over = run_and_drop(&program, &client, &gate, &x);
    let refused = Buffer::uninitialized(&client, ElementType::U8, &[TINY]).map(drop).unwrap_err();
    refused.expect(Code::RESOURCE_EXHAUSTED, &["Out of memory while trying to allocate"]);
    gate.open();
    over.wait().unwrap();
    let gate = Gate::running(|_| Ok(()));
    assert_eq!(program.run(&[&x, &ticket(&client, &gate)]).unwrap()[0].read::<f32>().unwrap(), ramp(1.0));
    settles_at(&client, ARRAY);
}

#[test]
fn t10_a_result_dropped_with_its_address_given_out_is_not_written_again() {
    let client = limited("preallocate", 64 * MIB);
    let (add_one, program) = (client.compile(&Program::add_one()).unwrap(), gated(&client));
    let (x, other) = (client.put(&ramp(0.0), &DIMS).unwrap(), client.put(&ramp(500.0), &DIMS).unwrap());
    for in_flight in [false, true] {
        for give in [Buffer::increase as fn(&Buffer) -> plugin_tests::Result<()>, |buffer| buffer.address().map(drop)] {
            let y = add_one.run1(&[&x]).unwrap();
            assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
            give(&y).unwrap();
            let gate = Gate::closed();
            let ticket = ticket(&client, &gate);
            let options = RunOptions { complete: true, ..RunOptions::default() };
            let mut run = program.execute(&[&[&y, &ticket]], options).unwrap();
            gate.wait_reached();
            if in_flight {
                drop(y);
                gate.open();
                run.complete[0].wait().unwrap();
            } else {
                gate.open();
                run.complete[0].wait().unwrap();
                // Lands what is done.
                client.stats().unwrap();
                drop(y);
            }
            assert_eq!(run.outputs[0][0].read::<f32>().unwrap(), ramp(2.0));
            run.outputs.clear();
            // XLA answers the donation of a buffer that somebody refers to with a copy elsewhere.
            let again: Vec<Buffer> = (0..3).map(|_| add_one.run1(&[&other]).unwrap()).collect();
            for array in &again {
                assert_eq!(array.read::<f32>().unwrap(), ramp(501.0), "in flight: {in_flight}");
                let copy = array.copy_to_memory(array.memory()).unwrap();
                assert_eq!(copy.read::<f32>().unwrap(), ramp(501.0), "copied, in flight: {in_flight}");
            }
        }
    }
    settles_at(&client, 2 * ARRAY);
}

#[test]
fn c16_arena_an_executable_may_go_before_its_dropped_results_are_written() {
    for strategy in ["preallocate", "platform"] {
        let client = limited(strategy, 64 * MIB);
        let program = gated(&client);
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let gate = Gate::closed();
        let over = run_and_drop(&program, &client, &gate, &x);
        let gone = elsewhere(move || drop(program));
        gate.open();
        gone.wait();
        over.wait().unwrap();
        settles_at(&client, ARRAY);
        let add_one = client.compile(&Program::add_one()).unwrap();
        assert_eq!(add_one.run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
    }
}

#[test]
fn c35_arena_a_client_may_go_before_dropped_results_are_written() {
    in_child!(&[], || {
        let client = Client::one();
        let (first, add) = (gated(&client), client.compile(&Program::add()).unwrap());
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let gate = Gate::closed();
        let y = first.run(&[&x, &ticket(&client, &gate)]).unwrap().remove(0);
        gate.wait_reached();
        // The second program waits for the first; nobody owns what either writes.
        drop(add.run1(&[&y, &y]).unwrap());
        drop((y, x, first, add));
        let gone = elsewhere(move || client.destroy());
        gate.open();
        assert_eq!(gone.wait(), Ok(()));
        // Another client starts with nothing of it.
        let client = limited("preallocate", 64 * MIB);
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let add_one = client.compile(&Program::add_one()).unwrap();
        assert_eq!(add_one.run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
        drop(x);
        settles_at(&client, 0);
    });
}

#[test]
fn c25_arena_every_device_gets_its_memory_back() {
    let client = Client::create(4, &[]).unwrap();
    let program = client.compile(&Program::sharded()).unwrap();
    let devices = client.devices();
    let shards: Vec<Buffer> = devices.iter().map(|&device| client.put_on(device, &ramp(0.0), &DIMS).unwrap()).collect();
    let lists: Vec<[&Buffer; 1]> = shards.iter().map(|shard| [shard]).collect();
    let lists: Vec<&[&Buffer]> = lists.iter().map(|list| &list[..]).collect();
    for _ in 0..20 {
        let options = RunOptions { complete: true, ..RunOptions::default() };
        let run = program.execute(&lists, options).unwrap();
        drop(run.outputs);
        // The engine's collectives may wait for each other where several runs are under way.
        run.complete.iter().for_each(|over| over.wait().unwrap());
    }
    let run = program.execute(&lists, RunOptions::default()).unwrap();
    for outputs in &run.outputs {
        assert_eq!(outputs[0].read::<f32>().unwrap(), ramp(1.0));
    }
    drop(run);
    for device in devices {
        eventually("what the shard takes", || device.stats().unwrap().bytes_in_use == ARRAY);
    }
}

#[test]
fn c23_arena_threads_drop_while_others_count_and_find_no_room() {
    for strategy in ["preallocate", "growing", "tpu"] {
        let client = limited(strategy, 2 * MIB);
        let add_one = client.compile(&Program::add_one()).unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let runners: Vec<_> = (0..4)
                .map(|number| {
                    let (client, add_one) = (&client, &add_one);
                    scope.spawn(move || {
                        for _ in 0..10 {
                            let start = number as f32 * 1000.0;
                            let mut last = client.put(&ramp(start), &DIMS).unwrap();
                            for _ in 0..50 {
                                last = add_one.run1(&[&last]).unwrap();
                            }
                            assert_eq!(last.read::<f32>().unwrap(), plus(&ramp(start), 50.0));
                        }
                    })
                })
                .collect();
            // More than half of what there is: two at once never fit, and one only without what the others hold.
            let greedy = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    match Buffer::uninitialized(&client, ElementType::U8, &[3 * MIB / 2]) {
                        Ok(large) => drop(large),
                        Err(failure) => assert_eq!(failure.code, Code::RESOURCE_EXHAUSTED, "{failure}"),
                    }
                }
            });
            let counting = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(client.stats().unwrap().bytes_in_use <= 2 * MIB);
                    thread::yield_now();
                }
            });
            let outcomes: Vec<_> = runners.into_iter().map(thread::ScopedJoinHandle::join).collect();
            over.store(true, Ordering::Relaxed);
            outcomes.into_iter().for_each(|outcome| outcome.expect("right results"));
            greedy.join().expect("room or an error");
            counting.join().expect("numbers");
        });
        settles_at(&client, 0);
    }
}
