//! Memory statistics: exact, complete, cheap to ask, and honest to callers of another size.

use plugin_tests::{Buffer, Client, Code, ElementType, Gate, Program, RunOptions, call, plugin};

use crate::{DIMS, MIB, four, limited, ramp, settles_at, ticket};

/// One MiB of floats.
const MEGA: [i64; 1] = [262_144];

fn mega(client: &Client) -> Buffer {
    client.put(&vec![1f32; 262_144], &MEGA).unwrap()
}

#[test]
fn c30_arena_bytes_in_use_follow_every_buffer() {
    let client = limited("preallocate", 64 * MIB);
    assert_eq!(client.stats().unwrap().bytes_in_use, 0);
    let first = mega(&client);
    assert_eq!(client.stats().unwrap().bytes_in_use, MIB);
    let second = first.copy_to_memory(first.memory()).unwrap();
    assert_eq!(client.stats().unwrap().bytes_in_use, 2 * MIB);
    first.delete().unwrap();
    settles_at(&client, MIB);
    drop(first);
    drop(second);
    settles_at(&client, 0);
}

#[test]
fn c30_arena_results_count_and_donations_do_not() {
    let client = limited("preallocate", 64 * MIB);
    let add_one = client.compile(&Program::add_one_1m()).unwrap();
    let x = mega(&client);
    let y = add_one.run1(&[&x]).unwrap();
    y.ready().wait().unwrap();
    settles_at(&client, 2 * MIB);
    drop((x, y));
    settles_at(&client, 0);
    let donate = client.compile(&Program::donate()).unwrap();
    let mut state = client.put(&ramp(0.0), &DIMS).unwrap();
    for _ in 0..10 {
        state = donate.run1(&[&state]).unwrap();
    }
    state.ready().wait().unwrap();
    settles_at(&client, 4096);
}

#[test]
fn c30_arena_peaks_and_counts() {
    let client = limited("preallocate", 64 * MIB);
    let buffers: Vec<_> = (0..3).map(|_| mega(&client)).collect();
    drop(buffers);
    settles_at(&client, 0);
    let _small = client.put(&ramp(0.0), &DIMS).unwrap();
    let stats = client.stats().unwrap();
    assert_eq!(stats.peak_bytes_in_use, Some(3 * MIB));
    assert_eq!(stats.num_allocs, Some(4));
    assert_eq!(stats.largest_alloc_size, Some(MIB));
}

#[test]
fn c30_arena_every_field_is_set_and_adds_up() {
    let client = limited("preallocate", 64 * MIB);
    let _buffer = mega(&client);
    let stats = client.stats().unwrap();
    assert_eq!(stats.bytes_limit, Some(64 * MIB));
    assert_eq!(stats.pool_bytes, Some(64 * MIB));
    assert_eq!(stats.peak_pool_bytes, Some(64 * MIB));
    assert!(stats.bytes_reserved.is_some());
    let free = stats.largest_free_block_bytes.unwrap();
    assert!(free > 0 && free + stats.bytes_in_use <= stats.pool_bytes.unwrap(), "{stats:?}");
}

#[test]
fn c30_arena_largest_free_block_is_what_an_allocation_gets() {
    let client = limited("preallocate", 64 * MIB);
    let _first = mega(&client);
    let free = client.stats().unwrap().largest_free_block_bytes.unwrap();
    let exact = Buffer::uninitialized(&client, ElementType::U8, &[free]).unwrap();
    assert_eq!(client.stats().unwrap().bytes_in_use, MIB + free);
    drop(exact);
    settles_at(&client, MIB);
    Buffer::uninitialized(&client, ElementType::U8, &[free + 1])
        .map(drop)
        .unwrap_err()
        .expect(Code::RESOURCE_EXHAUSTED, &[]);
}

#[test]
fn c30_arena_devices_count_apart() {
    let client = Client::create(2, &[("limit", "64MiB".into())]).unwrap();
    let [first, second] = client.devices()[..] else { panic!("two devices") };
    let _buffer = client.put_on(second, &ramp(0.0), &DIMS).unwrap();
    assert_eq!((first.stats().unwrap().bytes_in_use, second.stats().unwrap().bytes_in_use), (0, 4096));
}

#[test]
fn t17_arena_the_limit_is_constant_and_not_zero() {
    // JAX compiles programs for this much memory.
    let client = limited("growing", 64 * MIB);
    let limit = || client.stats().unwrap().bytes_limit;
    assert_eq!(limit(), Some(64 * MIB));
    let buffer = mega(&client);
    assert_eq!(limit(), Some(64 * MIB));
    drop(buffer);
    assert_eq!(limit(), Some(64 * MIB));
    for device in four().devices() {
        assert!(device.stats().unwrap().bytes_limit.unwrap() > 0);
    }
}

#[test]
fn c30_arena_failed_runs_leave_nothing_behind() {
    let client = limited("preallocate", 64 * MIB);
    let gate = Gate::running(|_| Err("no".into()));
    let gated = client.compile(&Program::gate_donate()).unwrap();
    for _ in 0..5 {
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let how = RunOptions { complete: true, ..RunOptions::default() };
        let run = gated.execute(&[&[&x, &ticket(&client, &gate)]], how).unwrap();
        run.complete[0].wait().unwrap_err();
    }
    let add_one = client.compile(&Program::add_one()).unwrap();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    add_one.run(&[&x, &x]).map(drop).unwrap_err();
    drop(x);
    settles_at(&client, 0);
}

#[test]
fn c30_arena_clearing_resets_the_peaks() {
    let client = limited("preallocate", 64 * MIB);
    drop(mega(&client));
    settles_at(&client, 0);
    let cleared = call!(plugin(), PJRT_Device_ClearMemoryStats { device: client.device().raw() }).map(drop);
    if plugin().version().1 < 106 {
        assert_eq!(cleared.unwrap_err().code, Code::UNIMPLEMENTED, "0.106 brought the function");
        return;
    }
    cleared.unwrap();
    assert_eq!(client.stats().unwrap().peak_bytes_in_use, Some(0));
}
