//! Things destroyed in a bad order, twice as many of them, and again and again.

use std::fs;

use plugin_tests::{Client, Code, Gate, Program, event::elsewhere, gate, in_child};

use crate::{DIMS, MIB, limited, ramp, ticket};

#[test]
fn c35_two_clients_live_side_by_side() {
    let (first, second) = (Client::one(), Client::create(2, &[]).unwrap());
    let (a, b) = (first.put(&ramp(0.0), &DIMS).unwrap(), second.put(&ramp(1.0), &DIMS).unwrap());
    let programs = [first.compile(&Program::add_one()).unwrap(), second.compile(&Program::add_one()).unwrap()];
    assert_eq!(programs[0].run1(&[&a]).unwrap().read::<f32>().unwrap(), ramp(1.0));
    assert_eq!(programs[1].run1(&[&b]).unwrap().read::<f32>().unwrap(), ramp(2.0));
    drop((a, programs));
    first.destroy().unwrap();
    assert_eq!(b.read::<f32>().unwrap(), ramp(1.0));
}

#[test]
fn c35_t22_arena_buffers_may_outlive_their_client() {
    in_child!(&[], || {
        let client = Client::one();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let add_one = client.compile(&Program::add_one()).unwrap();
        let y = add_one.run1(&[&x]).unwrap();
        y.ready().wait().unwrap();
        drop(add_one);
        client.destroy().unwrap();
        assert_eq!(y.dims(), DIMS);
        // The engine is gone for these buffers; they say so instead of touching it.
        let failure = y
            .copy_to_memory(plugin_tests::Memory::new(plugin_tests::plugin(), std::ptr::null_mut()))
            .map(drop)
            .unwrap_err();
        assert!([Code::INVALID_ARGUMENT, Code::FAILED_PRECONDITION].contains(&failure.code), "{failure}");
        y.delete().unwrap();
        drop((x, y));
        let again = Client::one();
        assert_eq!(again.put(&ramp(2.0), &DIMS).unwrap().read::<f32>().unwrap(), ramp(2.0));
    });
}

#[test]
fn c35_arena_a_client_waits_for_nothing_that_never_comes() {
    // A client destroyed while a program still runs: it may wait for the program, but not for ever.
    in_child!(&[], || {
        let client = Client::one();
        gate::prepare();
        let gated = client.compile(&Program::gate()).unwrap();
        let gate = Gate::closed();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
        gate.wait_reached();
        drop((x, outputs, gated));
        let gone = elsewhere(move || client.destroy());
        gate.open();
        assert_eq!(gone.wait(), Ok(()));
    });
}

/// Address space of this process in KiB.
fn address_space() -> i64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn c35_arena_clients_give_their_memory_back() {
    in_child!(&[], || {
        let cycle = || {
            let client = limited("preallocate", 256 * MIB);
            let x = client.put(&ramp(0.0), &DIMS).unwrap();
            let add_one = client.compile(&Program::add_one()).unwrap();
            add_one.run1(&[&x]).unwrap().ready().wait().unwrap();
        };
        // The engine's thread stacks and malloc arenas settle in the first rounds.
        (0..5).for_each(|_| cycle());
        let before = address_space();
        (0..10).for_each(|_| cycle());
        let grown = address_space() - before;
        assert!(grown < 256 << 10, "address space grew by {grown} KiB: a region of 256 MiB stayed behind");
    });
}

/// Resident memory of this process in KiB.
fn resident() -> i64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn c35_arena_arrays_from_the_host_leave_nothing_behind() {
    // AddressSanitizer, where it runs, must not keep what is freed.
    in_child!(&[("ASAN_OPTIONS", "detect_leaks=0:detect_odr_violation=0:quarantine_size_mb=0")], || {
        let client = limited("preallocate", 64 * MIB);
        let values = ramp(0.0);
        let cycle = || (0..10_000).for_each(|_| drop(client.put(&values, &DIMS).unwrap()));
        cycle();
        let before = resident();
        cycle();
        // The smallest thing that could stay of each is a view of the engine, about 1.5 KiB.
        let grown = resident() - before;
        assert!(grown < 5_000, "10,000 arrays left {grown} KiB");
    });
}

#[test]
fn c35_executables_may_go_before_their_results() {
    let client = Client::one();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let add_one = client.compile(&Program::add_one()).unwrap();
    let y = add_one.run1(&[&x]).unwrap();
    drop(add_one);
    drop(x);
    assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
}

#[test]
fn c16_executables_may_go_while_they_run() {
    let client = Client::one();
    gate::prepare();
    let gated = client.compile(&Program::gate()).unwrap();
    let gate = Gate::closed();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
    gate.wait_reached();
    let dropped = elsewhere(move || drop((gated, x)));
    gate.open();
    assert_eq!(outputs[0].read::<f32>().unwrap(), ramp(1.0));
    dropped.wait();
}
