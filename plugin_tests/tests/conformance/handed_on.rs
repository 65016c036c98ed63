//! Memory that goes from one buffer to another without a program in between, and what still uses it by the first one;
//! addresses that outsiders have of an array that is donated.

use std::{sync::Barrier, thread};

use plugin_tests::{Buffer, Client, Code, ElementType, Gate, Program, alias, gate, in_child, plugin};

use crate::{DIMS, MIB, limited, newer, plus, ramp, settles_at, ticket};

/// One array of the programs.
const ARRAY: i64 = 4 << 10;
/// What is written where memory is free.
const RUBBISH: [f32; 1024] = [7.0; 1024];

/// A way that memory goes from `buffer` to the one that is returned; `None` where the engine has none such.
type Hand = fn(&Client, Buffer) -> Option<Buffer>;

fn by_bitcast(_: &Client, buffer: Buffer) -> Option<Buffer> {
    plugin().table().PJRT_Buffer_Bitcast?;
    Some(newer::bitcast(&buffer, ElementType::S32, &DIMS).unwrap())
}

fn by_alias(client: &Client, buffer: Buffer) -> Option<Buffer> {
    let (alias, promise) = alias::create(client, ElementType::F32, &DIMS).unwrap();
    promise.keep(Ok(&buffer)).unwrap();
    Some(alias)
}

fn by_alias_that_is_gone(client: &Client, buffer: Buffer) -> Option<Buffer> {
    let (alias, promise) = alias::create(client, ElementType::F32, &DIMS).unwrap();
    drop(alias);
    promise.keep(Ok(&buffer)).unwrap();
    Some(buffer)
}

fn behind_a_dependency(_: &Client, buffer: Buffer) -> Option<Buffer> {
    plugin().table().PJRT_Buffer_DonateWithControlDependency?;
    let (after, dependency) = newer::donate(&buffer)?;
    dependency.happens(Ok(()));
    Some(after)
}

const HANDS: [(&str, Hand); 4] = [
    ("bitcast", by_bitcast),
    ("alias", by_alias),
    ("alias that is gone", by_alias_that_is_gone),
    ("dependency", behind_a_dependency),
];

/// For each way: a client, a program that stands at the gate, its argument and its results.
fn at_the_gate(check: impl Fn(&str, Hand, &Client, Gate, Buffer, Vec<Buffer>)) {
    gate::prepare();
    for (name, hand) in HANDS {
        let client = limited("preallocate", MIB);
        let program = client.compile(&Program::gate()).unwrap();
        let gate = Gate::closed();
        let x = client.put(&ramp(5.0), &DIMS).unwrap();
        let results = program.run(&[&x, &ticket(&client, &gate)]).unwrap();
        gate.wait_reached();
        check(name, hand, &client, gate, x, results);
    }
}

/// Fills memory that is free.
fn fill(client: &Client) -> Vec<Buffer> {
    (0..8).map(|_| client.put(&RUBBISH, &DIMS).unwrap()).collect()
}

#[test]
fn c12_arena_what_a_program_reads_stays_when_its_buffer_has_handed_it_on() {
    at_the_gate(|name, hand, client, gate, x, results| {
        let handed = hand(client, x);
        let there = handed.is_some();
        drop(handed);
        let others = fill(client);
        gate.open();
        assert_eq!(results[0].read::<f32>().unwrap(), plus(&ramp(5.0), 1.0), "{name}");
        drop((results, others));
        if there {
            settles_at(client, 0);
        }
    });
}

#[test]
fn c12_arena_what_a_program_writes_stays_when_its_buffer_has_handed_it_on() {
    at_the_gate(|name, hand, client, gate, _x, mut results| {
        drop(hand(client, results.remove(0)));
        let others = fill(client);
        gate.open();
        drop(results);
        settles_at(client, 9 * ARRAY);
        for other in &others {
            assert_eq!(other.read::<f32>().unwrap(), RUBBISH, "{name}");
        }
    });
}

/// One of the first device's counters.
fn counter(name: &str) -> i64 {
    let counters: serde_json::Value = serde_json::from_str(&plugin().text("pjrt_arena_counters").unwrap()).unwrap();
    counters["devices"][0][name].as_i64().unwrap()
}

#[test]
fn c26_arena_what_has_no_memory_counts_as_nothing() {
    in_child!(&[], || {
        let client = Client::one();
        let (alias, promise) = alias::create(&client, ElementType::F32, &DIMS).unwrap();
        assert_eq!(counter("engine_bytes"), 0);
        let real = client.put(&ramp(4.0), &DIMS).unwrap();
        promise.keep(Ok(&real)).unwrap();
        drop(real);
        assert_eq!((counter("engine_bytes"), client.stats().unwrap().bytes_in_use), (0, ARRAY));
        drop(alias);
        let taken = || client.stats().map(|stats| (stats.bytes_in_use, stats.num_allocs)).unwrap();
        let before = taken();
        let empty = client.put::<f32>(&[], &[2, 0]).unwrap();
        assert!(empty.read::<f32>().unwrap().is_empty());
        assert_eq!((counter("engine_bytes"), taken()), (0, before));
        if plugin().table().PJRT_Client_CreateErrorBuffer.is_some() {
            let _error = newer::error_buffer(&client, Code::NOT_FOUND, "nobody sent it").unwrap();
            assert_eq!(counter("engine_bytes"), 0);
        }
    });
}

#[test]
fn c17_t41_arena_outsiders_come_and_go_on_many_threads() {
    let client = limited("tpu", MIB);
    for _ in 0..200 {
        let array = client.put(&ramp(3.0), &DIMS).unwrap();
        let together = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    together.wait();
                    for _ in 0..20 {
                        array.increase().unwrap();
                        array.decrease().unwrap();
                    }
                });
            }
        });
        // An engine that has lost a reference ends the process here.
        drop(array);
    }
    settles_at(&client, 0);
}

#[test]
fn c17_arena_an_address_of_a_donated_array_keeps_nothing_in_place() {
    in_child!(&[], || {
        let client = limited("tpu", 8 * MIB);
        let donate = client.compile(&Program::donate()).unwrap();
        let x = client.put(&ramp(1.0), &DIMS).unwrap();
        let address = x.address().unwrap();
        assert_eq!(counter("pinned_blocks"), 1);
        let y = donate.run1(&[&x]).unwrap();
        assert_eq!(y.read::<f32>().unwrap(), ramp(2.0));
        assert_eq!(y.opaque_pointer().unwrap().addr(), address, "the result has the array's memory");
        assert_eq!(counter("pinned_blocks"), 0);
        drop((x, y));
        settles_at(&client, 0);
    });
}

#[test]
fn c20_arena_a_copy_to_another_client_is_refused() {
    let (client, other) = (limited("preallocate", MIB), limited("preallocate", MIB));
    let x = client.put(&ramp(1.0), &DIMS).unwrap();
    let refused = [x.copy_to_device(other.device()), x.copy_to_memory(other.device().default_memory())];
    for refused in refused {
        refused.map(drop).unwrap_err().expect(Code::INVALID_ARGUMENT, &["belongs to another client"]);
    }
    assert_eq!(x.copy_to_device(client.device()).unwrap().read::<f32>().unwrap(), ramp(1.0));
}
