//! pjrt-arena on the fake engine, where the caller runs ahead of the GPU: what runs still use, the next run of the program may
//! write, and nobody else.

use plugin_tests::{Buffer, Client, Code, Loaded, Program};

use crate::common::client;

const SLOW: (&str, &str) = ("FAKE_CUDA_LATENCY_US", "2000");
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
            let others = [put(&client, 7.0), put(&client, 8.0)];
            assert_eq!(z.read::<f32>().unwrap(), filled(3.0), "round {round}");
            for (other, value) in others.iter().zip([7.0, 8.0]) {
                assert_eq!(other.read::<f32>().unwrap(), filled(value));
            }
        }
    });
}
