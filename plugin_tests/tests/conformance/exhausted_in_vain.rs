//! Calls that can never have what they need: the error comes before anything has moved, been spilled or come back.

use std::{
    ffi::c_char,
    fs,
    path::{Path, PathBuf},
    ptr,
};

use plugin_tests::{Buffer, Client, ElementType, Program, View, counters, in_child, plugin};

use crate::{
    DIMS, MIB, eventually,
    exhausted::{STRATEGIES, Told, books, client, filled, size},
    ramp, settles_at,
    views::{foreign, view_of},
};

/// Elements of 4 MiB.
const LARGE: usize = 1 << 20;

/// A folder for spilled arrays, which goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pjrt-arena-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Spills all that may go.
fn sleep() {
    type Sleep = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> usize;
    // SAFETY: the library under test exports it with this type; NULL are all devices.
    let sleep: Sleep = unsafe { plugin().symbol("pjrt_arena_sleep") };
    let mut text = vec![0u8; 4096];
    // SAFETY: the buffer is as long as it is told.
    let length = unsafe { sleep(ptr::null(), text.as_mut_ptr().cast(), text.len()) };
    let told = String::from_utf8_lossy(&text[..length]).into_owned();
    assert!(!told.contains("error"), "{told}");
}

/// A client that spills to memory of the host, or to a folder.
fn spilling(strategy: &str, limit: i64, folder: Option<&Path>) -> Client {
    let path = folder.map(|path| format!("{}/", path.display()));
    client(strategy, 1, limit, &[("spill", path.as_deref().unwrap_or("host")), ("spill_limit", "8MiB")])
}

#[test]
fn c31_arena_what_can_never_run_spills_nothing_and_brings_nothing_back() {
    in_child!(&[], || {
        let folder = Folder::new("in-vain");
        let tiers = [None, Some(&*folder.0)];
        for (strategy, folder) in STRATEGIES.iter().flat_map(|strategy| tiers.map(|tier| (*strategy, tier))) {
            // The argument fits beside another array, and never beside the result.
            let client = spilling(strategy, 6 * MIB, folder);
            let program = client.compile(&Program::add_one_4m()).unwrap();
            let idle = filled(&client, MIB);
            let x = client.put(&vec![1f32; LARGE], &[LARGE as i64]).unwrap();
            let before = books();
            let told = Told::of(program.run(&[&x]));
            told.has(&[
                &format!("allocate 4.00MiB (4194304 bytes) on cpu:0 [arena, {strategy}].\n  limit 6.00MiB"),
                "in use 5.00MiB",
                "\n  wanted for add_one_4m output 0 f32[1048576]\n",
                "\n  held by 4.00MiB in 1 block(s): from host f32[1048576]\n",
                "\nspilled: 0B of the 8.00MiB that PJRT_ARENA_SPILL_LIMIT allows on cpu:0",
            ]);
            assert!(!told.text.contains("hint"), "{}", told.text);
            eventually("nothing has changed", || books() == before);
            // The same where the argument would have to come back first.
            sleep();
            let before = books();
            let told = Told::of(program.run(&[&x]));
            told.has(&[
                "allocate 4.00MiB (4194304 bytes)",
                "in use 0B",
                "\n  wanted for from host f32[1048576]\n  of a call that had 0B and wanted 4.00MiB more",
                "\nspilled: 5.00MiB of the 8.00MiB that PJRT_ARENA_SPILL_LIMIT allows on cpu:0",
                "\n  spilled 4.00MiB in 1 block(s): from host f32[1048576]",
                "\n  spilled 1.00MiB in 1 block(s): uninitialized u8[1048576]",
            ]);
            assert!(!told.text.contains("hint"), "{}", told.text);
            eventually("nothing has changed", || books() == before);
            assert!(x.read::<f32>().unwrap() == vec![1f32; LARGE]);
            drop((idle, x));
            settles_at(&client, 0);
        }
    });
}

#[test]
fn c31_arena_what_can_run_is_spilled_for() {
    in_child!(&[], || {
        for strategy in STRATEGIES {
            // As above, with room for the argument and the result.
            let client = spilling(strategy, 9 * MIB, None);
            let program = client.compile(&Program::add_one_4m()).unwrap();
            let _idle = [filled(&client, MIB), filled(&client, MIB)];
            let x = client.put(&vec![1f32; LARGE], &[LARGE as i64]).unwrap();
            let went = || ["spill/spilled", "spill/brought_back"].map(counters::sum);
            assert_eq!(went(), [0, 0], "{strategy}");
            assert_eq!(program.run1(&[&x]).unwrap().read::<f32>().unwrap()[0], 2.0);
            assert!(went()[0] > 0, "{strategy}");
            sleep();
            assert_eq!(program.run1(&[&x]).unwrap().read::<f32>().unwrap()[0], 2.0);
            assert!(went()[1] > 0, "{strategy}");
        }
    });
}

#[test]
fn c31_arena_what_a_tier_cannot_hold_stays_in_the_way_and_nothing_is_spilled_for_what_lies_beyond() {
    in_child!(&[], || {
        for (strategy, compact) in [("preallocate", "off"), ("preallocate", "on"), ("tpu", "off"), ("tpu", "on")] {
            // 4 MiB go, which leave two holes of 4 and 5 MiB: the other arrays are too large for the tier, or for what
            // is left of it.
            let settings = [("spill", "host"), ("spill_limit", "4MiB"), ("compact", compact)];
            let client = client(strategy, 1, 16 * MIB, &settings);
            let _idle = [4, 5, 2].map(|mib| filled(&client, mib * MIB));
            let before = books();
            let memory = client.device().default_memory();
            let call = Buffer::uninitialized_in(&client, memory, ElementType::U8, &[8 * MIB]);
            if compact == "on" {
                assert!(call.is_ok(), "moves make one hole of both");
                assert_eq!(counters::sum("spill/spilled"), 1, "{strategy}");
                continue;
            }
            let told = Told::of(call);
            told.has(&["allocate 8.00MiB", "free 5.00MiB", "\nspilled: 0B of the 4.00MiB"]);
            eventually("nothing has changed", || books() == before);
        }
    });
}

#[test]
fn c31_arena_scratch_counts_before_anything_is_spilled_for_it() {
    in_child!(&[], || {
        let client = spilling("tpu", MIB, None);
        let program = client.compile(&Program::temp_heavy()).unwrap();
        let (scratch, array) = (program.executable().sizes().unwrap().temp, 256 << 10);
        // What an outsider keeps leaves too little for argument, result and scratch, and room for any two of them.
        let kept = filled(&client, MIB - 2 * array - scratch + (44 << 10));
        kept.increase().unwrap();
        let idle = 250 << 10;
        let _idle = filled(&client, idle);
        let x = client.put(&vec![1f32; 1 << 16], &[256, 256]).unwrap();
        let before = books();
        let told = Told::of(program.run(&[&x]));
        let wanted = format!("\n  of a call that had 0B and wanted {} more", size(array));
        told.has(&["Attempting to reserve", "\n  wanted for programs' scratch\n", &wanted, "\nspilled: 0B"]);
        eventually("nothing has changed", || books() == before);
        sleep();
        let before = books();
        let told = Told::of(program.run(&[&x]));
        let wanted = format!("\n  of a call that had 0B and wanted {} more", size(array + scratch));
        told.has(&["f32[256,256]\n", &wanted, &format!("\nspilled: {}", size(array + idle))]);
        eventually("nothing has changed", || books() == before);
        kept.decrease().unwrap();
        assert_eq!(program.run1(&[&x]).unwrap().dims(), [256, 256], "there is room when it is let go");
    });
}

#[test]
fn c31_arena_no_array_is_spilled_for_the_first_copy_of_a_call_that_can_never_have_the_last() {
    in_child!(&[], || {
        for strategy in STRATEGIES {
            let client = spilling(strategy, MIB, None);
            let program = client.compile(&Program::donate_both()).unwrap();
            // Arrays that programs may only read are copied before they are donated.
            let mut outside = [foreign(1.0), foreign(2.0)];
            let memory = Some(client.device().default_memory());
            // SAFETY: the memory outlives the signals below.
            let views = outside
                .each_mut()
                .map(|outside| unsafe { Buffer::view(&client, &View { memory, ..view_of(outside) }).unwrap() });
            // Without the idle array there is room for one of two copies.
            let kept = filled(&client, MIB - 4096);
            kept.increase().unwrap();
            let _idle = filled(&client, 4096);
            let before = books();
            let told = Told::of(program.run(&[&views[0].0, &views[1].0]));
            told.has(&["\nspilled: 0B"]);
            eventually("nothing has changed", || books() == before);
            kept.decrease().unwrap();
            for (view, released) in views {
                drop(view);
                released.wait();
            }
        }
    });
}

/// Every client that compacts.
fn compacting(limit: i64) -> Vec<Client> {
    let strategies = ["preallocate", "growing", "tpu"];
    strategies.map(|strategy| client(strategy, 1, limit, &[("compact", "on")])).into()
}

fn places(arrays: &[Buffer]) -> Vec<usize> {
    arrays.iter().map(|array| array.opaque_pointer().unwrap().addr()).collect()
}

/// So many arrays of this size, of which every second one by its address has gone.
fn every_second(client: &Client, count: usize, bytes: i64) -> Vec<Buffer> {
    let mut all: Vec<Buffer> = (0..count).map(|_| filled(client, bytes)).collect();
    all.sort_by_key(|array| array.opaque_pointer().unwrap().addr());
    all.into_iter().enumerate().filter_map(|(at, array)| (at % 2 == 1).then_some(array)).collect()
}

/// An outcome that must be exhausted memory for which nothing has moved, nor was anything tried.
#[track_caller]
fn in_vain<T>(kept: &[Buffer], call: impl FnOnce() -> plugin_tests::Result<T>) -> Told {
    let (before, there) = (books(), places(kept));
    let told = Told::of(call());
    assert!(!told.text.contains("compaction moved"), "{}", told.text);
    eventually("nothing has changed", || books() == before);
    assert_eq!(places(kept), there, "{}", told.text);
    told
}

#[test]
fn c31_arena_nothing_moves_for_a_request_above_what_can_be_had() {
    in_child!(&[], || {
        for client in compacting(8 * MIB) {
            let kept = every_second(&client, 8, MIB);
            settles_at(&client, 4 * MIB);
            for bytes in [8 * MIB + 1, 1 << 40, 5 * MIB] {
                let told = in_vain(&kept, || Buffer::uninitialized(&client, ElementType::U8, &[bytes]));
                told.has(&[&format!("allocate {} ({bytes} bytes)", size(bytes)), "in use 4.00MiB", "free 4.00MiB"]);
                assert_eq!(told.text.contains("larger than the limit"), bytes > 8 * MIB, "{}", told.text);
            }
            // What an outsider keeps where it is takes from what can be had, and divides it.
            kept[1].increase().unwrap();
            in_vain(&kept, || Buffer::uninitialized(&client, ElementType::U8, &[8 * MIB]));
            kept[1].decrease().unwrap();
            let moved = counters::sum("moved_blocks");
            drop(filled(&client, 4 * MIB));
            assert!(counters::sum("moved_blocks") > moved, "what can be had is moved for");
        }
    });
}

#[test]
fn c31_arena_nothing_moves_for_the_first_results_of_a_call_that_can_never_have_the_last() {
    in_child!(&[], || {
        for client in compacting(MIB) {
            let program = client.compile(&Program::two_results()).unwrap();
            let x = client.put(&ramp(1.0), &DIMS).unwrap();
            let filler = filled(&client, MIB - 4096 - 6 * 2048);
            // Three holes of 2 KiB: room for one result, once arrays have moved.
            let kept = every_second(&client, 6, 2048);
            let told = in_vain(&kept, || program.run(&[&x, &x]));
            told.has(&["output 0 f32[1024]\n  of a call that had 0B and wanted 4.0KiB more\n", "free 6.0KiB"]);
            let moved = counters::sum("moved_blocks");
            let add_one = client.compile(&Program::add_one()).unwrap();
            drop(add_one.run1(&[&x]).unwrap());
            assert!(counters::sum("moved_blocks") > moved, "for one there is room");
            drop((x, filler, kept));
        }
    });
}
