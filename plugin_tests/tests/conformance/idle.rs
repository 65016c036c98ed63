//! The thread that gives idle memory back: when there is one. What it does is tested beside it, with a clock of its
//! own.

use std::fs;

use plugin_tests::{Program, in_child};

use crate::{MIB, eventually, limited};

/// Threads of this process that give idle memory back.
fn keepers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("a running kernel");
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == pjrt_arena::runtime::allocator::trimmer::THREAD).count()
}

#[test]
fn c35_arena_a_thread_watches_large_use_and_ends_with_its_client() {
    in_child!(&[], || {
        let small = limited("preallocate", 64 * MIB);
        let add_one = small.compile(&Program::add_one_1m()).unwrap();
        let x = small.put(&vec![0f32; 262_144], &[262_144]).unwrap();
        assert_eq!(add_one.run1(&[&x]).unwrap().read::<f32>().unwrap(), vec![1.0; 262_144]);
        assert_eq!(keepers(), 0, "a small program has no thread");
        for strategy in ["preallocate", "growing", "tpu", "platform"] {
            let client = limited(strategy, 1024 * MIB);
            let part = vec![1f32; 8 << 20];
            let one = client.put(&part, &[8 << 20]).unwrap();
            assert_eq!(keepers(), 0, "{strategy}");
            let other = client.put(&part, &[8 << 20]).unwrap();
            eventually("the thread has a name", || keepers() == 1);
            drop((one, other));
            client.destroy().unwrap();
            assert_eq!(keepers(), 0, "{strategy}: it ended before the client did");
        }
    });
}
