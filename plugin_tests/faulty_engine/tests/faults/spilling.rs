//! What others do while one call of the engine is held: the moments in which a spilled array could be lost.

use std::{sync::Arc, thread, time::Duration};

use plugin_tests::{
    Buffer, Client, Plugin, Program, Value,
    event::HANG,
    plugin::{library_path, plugin},
};
use serde_json::Value as Json;

use crate::engine::{self, Faulty, Kind, on_faulty_engine};

/// Elements of an array, of which the device holds eight.
const N: usize = 1 << 15;
const DIMS: [i64; 1] = [N as i64];

fn values(number: usize) -> Vec<f32> {
    (0..N).map(|at| (at % 1024 * 16 + number) as f32).collect()
}

fn spilling() -> Arc<Client> {
    let options = [("strategy", Value::from("tpu")), ("limit", Value::from("1MiB")), ("spill", Value::from("host"))];
    Arc::new(Client::create(1, &options).unwrap())
}

fn put(client: &Client, number: usize) -> Buffer {
    client.put(&values(number), &DIMS).unwrap()
}

/// What the device's statistics say of spilling.
fn spilled(what: &str) -> u64 {
    let counters: Json = serde_json::from_str(&plugin().text("pjrt_arena_counters").unwrap()).unwrap();
    counters["devices"][0]["spill"][what].as_u64().unwrap_or_else(|| panic!("no {what} in {counters}"))
}

/// `a + b`, in the place of `a`, which is donated.
fn sum_in_place() -> Program {
    Program::text(
        "module { func.func public @main(%a: tensor<32768xf32> {tf.aliasing_output = 0 : i32},
             %b: tensor<32768xf32>) -> tensor<32768xf32> {
           %sum = stablehlo.add %a, %b : tensor<32768xf32>
           return %sum : tensor<32768xf32>
         } }",
    )
}

/// A launch takes an array into use that an outsider keeps in the tier, and the outsider lets go before the engine
/// looks: it consumes the array, and the result lies in the tier.
#[test]
fn a_result_in_the_tier_keeps_its_memory() {
    on_faulty_engine!({
        let client = spilling();
        let sum = Arc::new(client.compile(&sum_in_place()).unwrap());
        let arrays: Vec<_> = (0..10).map(|number| Arc::new(put(&client, number))).collect();
        let last = Arc::new(put(&client, 15));
        assert!(spilled("in_use_bytes") >= 3 << 17);
        arrays.iter().for_each(|array| array.increase().unwrap());
        let mut sums = Vec::new();
        for array in &arrays {
            Faulty::get().arm(engine::slot("PJRT_LoadedExecutable_Execute"), 1, Kind::Hold);
            let launched = {
                let (sum, array, last) = (Arc::clone(&sum), Arc::clone(array), Arc::clone(&last));
                thread::spawn(move || sum.run1(&[&array, &last]))
            };
            Faulty::get().wait_held();
            array.decrease().unwrap();
            Faulty::get().let_go();
            let result = launched.join().expect("no panic there").unwrap();
            result.ready().wait().unwrap();
            assert!(array.is_deleted(), "the engine knows of no outsider any more, and has consumed it");
            sums.push(result);
        }
        drop(arrays);
        // What is free is taken by others.
        let others: Vec<_> = (0..6).map(|number| put(&client, 20 + number)).collect();
        let add = |number: usize| values(number).iter().zip(values(15)).map(|(a, b)| a + b).collect::<Vec<f32>>();
        for (number, result) in sums.iter().enumerate() {
            assert_eq!(result.read::<f32>().unwrap(), add(number), "the result {number}");
        }
        let stats = client.device().stats().unwrap();
        let all = (10 + 1 + 6) << 17;
        assert_eq!(stats.bytes_in_use as u64 + spilled("in_use_bytes"), all, "each array is in one of the two");
        // A result in the tier comes back like any array.
        let copies: Vec<_> = sums.iter().map(|result| sum.run1(&[result, &last]).unwrap()).collect();
        assert!(sums.iter().all(Buffer::is_deleted));
        for (number, copy) in copies.iter().enumerate() {
            let twice: Vec<f32> = add(number).iter().zip(values(15)).map(|(a, b)| a + b).collect();
            assert_eq!(copy.read::<f32>().unwrap(), twice, "the second result {number}");
        }
        drop((sums, copies, others, last));
        let begun = std::time::Instant::now();
        while client.device().stats().unwrap().bytes_in_use != 0 || spilled("in_use_bytes") != 0 {
            assert!(begun.elapsed() < HANG / 10, "bytes stay in use");
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// The status that `work` gives in a child after a fork, which has this thread alone; `None` where the child hangs.
fn in_fork(work: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the child takes no lock that another thread has, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = work();
        // SAFETY: it ends the process, and nothing of it is used again.
        unsafe { libc::_exit(status) }
    }
    let (begun, mut status, mut hangs) = (std::time::Instant::now(), 0, false);
    // SAFETY: the child is this process's, and the status this call's.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begun.elapsed() > HANG / 10 && !hangs {
            hangs = true;
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        thread::sleep(Duration::from_millis(1));
    }
    (!hangs && libc::WIFEXITED(status)).then(|| libc::WEXITSTATUS(status))
}

/// In a child after a fork the engine may wait for a lock that a thread of the parent's had: it is not asked whether an
/// array is there of which that is known.
#[test]
fn a_child_reads_an_array_that_is_there_without_the_engine() {
    on_faulty_engine!({
        let client = Client::one();
        let array = put(&client, 1);
        array.ready().wait().unwrap();
        Faulty::get().arm(engine::slot("PJRT_Buffer_ReadyEvent"), 1, Kind::Hold);
        let status = in_fork(|| {
            // A copy of the table that a child has.
            let table = Box::leak(Box::new(Plugin::load(&library_path()).unwrap()));
            let array = Buffer::own(table, array.raw());
            i32::from(array.increase().is_ok()) + i32::from(array.ready().wait().is_ok())
        });
        assert_eq!(status, Some(2));
        Faulty::get().let_go();
    });
}

/// A child after a fork asks for an array that a thread of its parent's was spilling: an error, and no wait.
#[test]
fn a_child_does_not_wait_for_an_array_that_its_parent_was_moving() {
    on_faulty_engine!({
        let client = spilling();
        let arrays: Vec<_> = (0..8).map(|number| put(&client, number)).collect();
        Faulty::get().arm(engine::slot("PJRT_Client_BufferFromHostBuffer"), 1, Kind::Hold);
        let upload = {
            let client = Arc::clone(&client);
            thread::spawn(move || client.put(&values(9), &DIMS))
        };
        // The view of an array in the tier.
        Faulty::get().wait_held();
        let status = in_fork(|| {
            let refused = arrays.iter().filter(|array| {
                let is_live = !array.is_deleted();
                is_live && array.increase().is_err_and(|failure| failure.message.contains("was moving the array"))
            });
            refused.count() as i32
        });
        Faulty::get().let_go();
        assert_eq!(status, Some(1), "one array was refused");
        let last = upload.join().expect("no panic there").unwrap();
        assert_eq!(last.read::<f32>().unwrap(), values(9));
        for (number, array) in arrays.iter().enumerate() {
            assert_eq!(array.read::<f32>().unwrap(), values(number));
        }
    });
}
