//! pjrt-arena on the fake engine: the order of its own copies, and what the engine makes in `pinned_host`.

use std::{sync::Barrier, thread, time::Instant};

use plugin_tests::{
    Buffer, Client, Code, ElementType, Failure, HostArray, Memory, Program, Semantics, Transfer, alias, event::HANG,
    plugin,
};

use crate::common::{DIMS, client, ramp};

const SLOW: (&str, &str) = ("FAKE_CUDA_LATENCY_US", "2000");
const MIB: i64 = 1 << 20;
/// Room for two arrays of [`THREE`] and one of [`ONE`].
const LIMIT: (&str, &str) = ("PJRT_ARENA_PINNED_LIMIT", "7MiB");
const THREE: [i64; 1] = [3 * MIB];
const ONE: [i64; 1] = [MIB];
const DATA_LOSS: Code = Code(15);

/// Runs the rest of the test in a process of its own with the arena on the fake engine, with these variables, and
/// asserts that nothing in it raced.
macro_rules! on_the_arena {
    ([$($variable:expr),* $(,)?], $body:expr) => {{
        let [arena, engine, driver] =
            ["libpjrt_arena.so", "libfake_cuda_engine.so", "libfake_cuda.so"].map($crate::common::library);
        crate::on_fake_gpu!([
            ("PJRT_ARENA_TEST_LIBRARY", &arena),
            ("PJRT_ARENA_ENGINE", &engine),
            ("PJRT_ARENA_CUDA_DRIVER", &driver),
            ("PJRT_ARENA_HEADROOM", "0"),
            $($variable),*
        ], $body)
    }};
}

/// The GPU's own memory and its `pinned_host`.
fn memories(client: &Client) -> [Memory; 2] {
    ["device", "pinned_host"].map(|kind| {
        let memories = client.device().memories();
        memories.into_iter().find(|memory| memory.kind() == kind).unwrap_or_else(|| panic!("no memory {kind}"))
    })
}

fn put(client: &Client, memory: Memory, values: &[f32]) -> Buffer {
    let array = HostArray::of(values, &[values.len() as i64]).in_memory(memory);
    client.from_host(&array, Semantics::OnlyDuringCall).unwrap().0
}

/// What the arena tells of the first device's `pinned_host`.
fn told(name: &str) -> i64 {
    let counters = plugin().json("pjrt_arena_counters");
    counters["devices"][0]["pinned_host"][name].as_i64().unwrap_or_else(|| panic!("{name} in {counters}"))
}

fn engine_mib() -> i64 {
    told("engine_bytes") / MIB
}

/// Waits until the engine has no more than so many MiB there: what was read lands a little later.
fn comes_down_to(client: &Client, mib: i64) {
    let start = Instant::now();
    while engine_mib() != mib {
        assert!(start.elapsed() < HANG, "{} MiB, not {mib}", engine_mib());
        client.stats().unwrap();
        thread::yield_now();
    }
}

/// Copies an array again and again and lets a program write where it lies at once.
fn copy_and_overwrite(from: usize, to: usize) {
    let client = client();
    let memories = memories(&client);
    let donate = client.compile(&Program::donate()).unwrap();
    let mut x = put(&client, memories[from], &ramp(0.0));
    for round in 0..4 {
        let copy = x.copy_to_memory(memories[to]).unwrap();
        let y = donate.run1(&[&x]).unwrap();
        assert!(x.is_deleted());
        assert_eq!(copy.read::<f32>().unwrap(), ramp(round as f32), "round {round}");
        // What a program still writes would be the engine's to copy.
        y.ready().wait().unwrap();
        x = y;
    }
    assert_eq!(x.read::<f32>().unwrap(), ramp(4.0));
    assert_eq!(plugin().json("pjrt_arena_counters")["devices"][0]["engine_bytes"], 0, "the copies are ours");
    assert_eq!(told("engine_bytes"), 0, "the copies are ours");
}

#[test]
fn a_program_overwrites_an_array_on_the_gpu_after_a_copy_of_it_is_made_there() {
    on_the_arena!([SLOW], || copy_and_overwrite(0, 0));
}

#[test]
fn a_program_overwrites_an_array_on_the_gpu_after_a_copy_of_it_is_made_in_pinned_host() {
    on_the_arena!([SLOW], || copy_and_overwrite(0, 1));
}

#[test]
fn a_program_overwrites_an_array_in_pinned_host_after_a_copy_of_it_is_made_on_the_gpu() {
    on_the_arena!([SLOW, ("FAKE_ENGINE_PINNED_RESULTS", "donate:0")], || copy_and_overwrite(1, 0));
}

/// Which CUDA has made when it returns.
#[test]
fn a_program_overwrites_an_array_in_pinned_host_after_a_copy_of_it_is_made_there() {
    on_the_arena!([SLOW, ("FAKE_ENGINE_PINNED_RESULTS", "donate:0")], || copy_and_overwrite(1, 1));
}

#[test]
fn a_program_overwrites_an_array_after_a_copy_of_it_is_made_on_another_gpu_and_nobody_waits() {
    on_the_arena!([SLOW, ("FAKE_CUDA_GPUS", "2")], || {
        let client = client();
        let devices = client.addressable_devices();
        let donate = client.compile(&Program::donate()).unwrap();
        let mut x = client.put(&ramp(0.0), &DIMS).unwrap();
        let mut waited = 0;
        for round in 0..4 {
            let copy = x.copy_to_device(devices[1]).unwrap();
            waited += u32::from(copy.ready().is_ready());
            let y = donate.run1(&[&x]).unwrap();
            assert_eq!(copy.read::<f32>().unwrap(), ramp(round as f32), "round {round}");
            y.ready().wait().unwrap();
            x = y;
        }
        assert!(waited < 4, "every call has waited for its copy");
        let counters = plugin().json("pjrt_arena_counters");
        assert_eq!(counters["devices"][1]["engine_bytes"], 0, "the copies are ours");
    });
}

/// Whichever comes first: the copy shows what was there before the program, or there is none.
#[test]
fn a_program_overwrites_an_array_that_another_thread_copies_at_this_moment() {
    on_the_arena!([("FAKE_CUDA_LATENCY_US", "100")], || {
        let client = client();
        let [gpu, _] = memories(&client);
        let donate = client.compile(&Program::donate()).unwrap();
        let together = Barrier::new(2);
        let mut copies = 0;
        for round in 0..300 {
            let x = client.put(&ramp(0.0), &DIMS).unwrap();
            x.ready().wait().unwrap();
            let (y, copy) = thread::scope(|scope| {
                let copy = scope.spawn(|| {
                    together.wait();
                    // Sooner and later than the other.
                    (0..round % 50 * 20).for_each(|_| std::hint::spin_loop());
                    x.copy_to_memory(gpu)
                });
                together.wait();
                (donate.run1(&[&x]).unwrap(), copy.join().unwrap())
            });
            match copy.and_then(|copy| copy.read::<f32>()) {
                Ok(values) => {
                    assert_eq!(values, ramp(0.0), "round {round}");
                    copies += 1;
                }
                Err(failure) => failure.expect(Code::INVALID_ARGUMENT, &["deleted or donated"]),
            }
            assert_eq!(y.read::<f32>().unwrap(), ramp(1.0), "round {round}");
        }
        assert!(copies > 0, "every copy came too late");
    });
}

/// The refusal of an array of so many MiB that the engine was to make, `engine` MiB of whose arrays are there already.
fn is_full(failure: Failure, mib: i64, engine: i64) {
    let wanted =
        format!("trying to allocate {mib}.00MiB ({} bytes) on cuda:0 pinned_host [the engine's own]", mib * MIB);
    let there = format!("{engine}.00MiB of them in the engine's memory");
    failure.expect(Code::RESOURCE_EXHAUSTED, &[&wanted, "the limit of 7.00MiB", &there, "PJRT_ARENA_PINNED_LIMIT"]);
}

#[test]
fn asynchronous_transfers_to_pinned_host_keep_to_its_limit() {
    on_the_arena!([SLOW, LIMIT], || {
        let client = client();
        let [_, pinned] = memories(&client);
        let transfer = |shapes: &[&[i64]]| Transfer::create_in(&client, pinned, ElementType::U8, shapes, &[]);
        let both = transfer(&[&THREE, &THREE]).unwrap();
        assert_eq!(engine_mib(), 6, "from the beginning, as their memory is there");
        // The first of them fits.
        is_full(transfer(&[&ONE, &THREE]).map(drop).unwrap_err(), 3, 7);
        assert_eq!(engine_mib(), 6);
        let buffer = both.retrieve(0).unwrap();
        assert_eq!(engine_mib(), 6);
        let bytes = vec![7; THREE[0] as usize];
        both.send(0, 0, &bytes, true).unwrap().wait().unwrap();
        assert_eq!(buffer.read::<u8>().unwrap(), bytes);
        // What nobody came for goes with the manager.
        drop(both);
        comes_down_to(&client, 3);
        let other = transfer(&[&THREE]).unwrap();
        is_full(transfer(&[&THREE]).map(drop).unwrap_err(), 3, 6);
        let lost = other.retrieve(0).unwrap();
        other.fail(0, DATA_LOSS, "no bytes").unwrap();
        lost.read::<u8>().unwrap_err().expect(DATA_LOSS, &["no bytes"]);
        drop((other, lost, buffer));
        comes_down_to(&client, 0);
        let all = transfer(&[&THREE, &THREE, &ONE]).unwrap();
        assert_eq!(engine_mib(), 7);
        drop(all);
        // The arena has all of it again.
        let arrays: Vec<Buffer> = (0..6).map(|_| put(&client, pinned, &vec![1.0; (MIB / 4) as usize])).collect();
        assert_eq!((told("in_use_bytes"), engine_mib()), (6 * MIB, 0));
        drop(arrays);
    });
}

#[test]
fn aliases_and_unwritten_arrays_in_pinned_host_keep_to_its_limit() {
    on_the_arena!([LIMIT], || {
        let client = client();
        let [_, pinned] = memories(&client);
        let alias = |dims: &[i64]| alias::create_in(&client, pinned, ElementType::U8, dims);
        let (first, promise) = alias(&THREE).unwrap();
        let (second, broken) = alias(&THREE).unwrap();
        is_full(alias(&THREE).map(drop).unwrap_err(), 3, 6);
        let packed = |elements: i64| Buffer::uninitialized_in(&client, pinned, ElementType::S4, &[elements]);
        // Two elements lie in a byte, which is known only once they are there.
        is_full(packed(2 * MIB).map(drop).unwrap_err(), 2, 6);
        let nibbles = packed(MIB).unwrap();
        assert_eq!(told("engine_bytes"), 6 * MIB + MIB / 2);
        drop(alias(&[MIB / 2]).unwrap());
        drop(nibbles);
        broken.keep(Err(&Failure { code: Code::INTERNAL, message: "never arrived".into() })).unwrap();
        drop(second);
        comes_down_to(&client, 3);
        // An array of the engine's goes on in the alias, and counts there.
        let transfer = Transfer::create_in(&client, pinned, ElementType::U8, &[&THREE], &[]).unwrap();
        let source = transfer.retrieve(0).unwrap();
        let bytes = vec![9; THREE[0] as usize];
        transfer.send(0, 0, &bytes, true).unwrap().wait().unwrap();
        drop(transfer);
        assert_eq!(engine_mib(), 6);
        promise.keep(Ok(&source)).unwrap();
        assert_eq!(first.read::<u8>().unwrap(), bytes);
        comes_down_to(&client, 3);
        drop((first, source));
        comes_down_to(&client, 0);
        assert!(alias(&[7 * MIB]).is_ok());
    });
}

/// Execute does not return: a library inside of the engine throws.
#[test]
fn an_exception_of_the_engine_is_an_error_and_nothing_is_lost() {
    on_the_arena!([SLOW, ("FAKE_ENGINE_THROWS", "cuDNN says no"), ("PJRT_ARENA_LIMIT", "8MiB")], || {
        let client = client();
        let one = vec![1.0_f32; 1 << 18];
        let (add, x) = (client.compile(&Program::add_one_1m()).unwrap(), client.put(&one, &[1 << 18]).unwrap());
        let thrown = add.run1(&[&x]).err().expect("the engine throws");
        thrown.expect(Code::INTERNAL, &["the engine threw a C++ exception", "runtime_error: cuDNN says no"]);
        assert_eq!(add.run1(&[&x]).unwrap().read::<f32>().unwrap(), vec![2.0; 1 << 18]);
        drop(x);
        let others: Vec<Buffer> = (0..8).map(|_| client.put(&one, &[1 << 18]).unwrap()).collect();
        assert_eq!(others[7].read::<f32>().unwrap(), one);
    });
}

/// A GPU's memory comes in pieces of 2 MiB, and what the engine has of it may leave none for a hole that is large
/// enough.
#[test]
fn arrays_are_packed_where_a_hole_has_no_memory() {
    on_the_arena!([("PJRT_ARENA_LIMIT", "12MiB"), ("PJRT_ARENA_STRATEGY", "tpu")], || {
        let client = client();
        let [device, _] = memories(&client);
        let put = |kib: usize, value: f32| put(&client, device, &vec![value; kib * 256]);
        // Five pieces, with a kept array in the middle of each.
        let mut between = vec![put(512, 0.0)];
        let mut kept = Vec::new();
        for number in 1..=5_u8 {
            kept.push(put(1024, number.into()));
            between.push(put(if number == 5 { 512 } else { 1024 }, 0.0));
        }
        drop(between);
        // The engine's own: the sixth piece would pass the limit now.
        let engines = Buffer::uninitialized_in(&client, device, ElementType::S4, &[3 * MIB / 2]).unwrap();
        let wanted = put(1280, 6.0);
        kept.push(wanted);
        for (value, array) in (1_u8..).zip(&kept) {
            assert!(array.read::<f32>().unwrap().iter().all(|&element| element == f32::from(value)), "array {value}");
        }
        let stats = client.device().stats().unwrap();
        assert_eq!(stats.bytes_in_use, 6 * MIB + MIB / 4);
        drop(engines);
    });
}

#[test]
fn a_result_that_the_engine_cannot_describe_is_what_the_program_says() {
    // The program may write it at this moment: nothing of it may be given to others.
    on_the_arena!([SLOW, ("PJRT_ARENA_REWRITE", "off"), ("FAKE_ENGINE_SILENT", "1")], || {
        let client = client();
        let program = client.compile(&Program::add_one()).unwrap();
        for start in [0.0, 5.0] {
            let x = client.put(&ramp(start), &DIMS).unwrap();
            let y = program.run1(&[&x]).unwrap();
            drop(x);
            assert_eq!((y.dims(), y.element_type()), (DIMS.to_vec(), ElementType::F32));
            assert_eq!(y.read::<f32>().unwrap(), ramp(start + 1.0));
        }
        let start = Instant::now();
        while client.stats().unwrap().bytes_in_use != 0 {
            assert!(start.elapsed() < HANG, "arrays of programs that are done are gone");
            thread::yield_now();
        }
    });
}
