//! Compaction on demand, through the library's own C functions, and under load. All clients of the process take part,
//! so each test has a process of its own.

use std::{
    ffi::{CString, c_char},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use plugin_tests::{
    Buffer, Client, Program, Value,
    event::elsewhere,
    in_child, plugin,
    stress::{self, Load, Pressure},
};
use serde_json::Value as Json;

use crate::{
    DIMS, MIB,
    compaction::{fragmented, is_whole},
    limited, ramp, settles_at,
};

fn json(name: &str) -> Json {
    serde_json::from_str(&plugin().text(name).unwrap()).unwrap()
}

#[test]
fn c31_arena_compact_trim_and_map_through_c() {
    in_child!(&[], || {
        let client = limited("tpu", 8 * MIB);
        let kept = fragmented(&client, &[1, 3, 5, 7]);
        kept[3].increase().unwrap();
        let report = json("pjrt_arena_compact");
        let device = &report[0];
        assert_eq!(report.as_array().unwrap().len(), 1);
        assert!(device["device"].as_str().unwrap().contains("cpu:0"), "{device}");
        let number = |field: &str| device[field].as_u64().unwrap_or_else(|| panic!("{field} in {device}")) as i64;
        assert!((1..=4).contains(&number("buffers_moved")), "{device}");
        assert_eq!(number("bytes_moved"), number("buffers_moved") * MIB);
        assert!(number("largest_free_before") < number("largest_free_after"), "{device}");
        assert_eq!(number("largest_free_after"), 4 * MIB);
        assert_eq!((number("pinned_buffers"), number("pinned_bytes")), (1, MIB));
        assert_eq!(device["pinned_why"], serde_json::json!({ "external references (NumPy views, dlpack)": 1 }));
        assert!(device["seconds"].as_f64().unwrap() >= 0.0);
        assert_eq!(json("pjrt_arena_compact")[0]["buffers_moved"], 0, "there is nothing left to do");
        kept.iter().for_each(is_whole);
        let counted = &json("pjrt_arena_counters")["devices"][0];
        assert_eq!(counted["moved_blocks"].as_i64().unwrap() * MIB, counted["moved_bytes"].as_i64().unwrap());
        assert_eq!((counted["pinned_blocks"].as_i64(), counted["live_blocks"].as_i64()), (Some(1), Some(4)));
        let trimmed = &json("pjrt_arena_trim")[0];
        assert!(trimmed["bytes_returned"].as_i64().unwrap() >= 4 * MIB - 8192, "{trimmed}");
        assert_eq!(trimmed["regions_returned"], 0);
        assert!(plugin().map(40, 4).contains("cpu:0"));
        // A NULL buffer asks for the length; one that is too short gets what fits, and the NUL.
        for name in ["pjrt_arena_compact", "pjrt_arena_trim", "pjrt_arena_counters"] {
            let (length, text) = plugin().text_into(name, 8).unwrap();
            assert!(length > 8 && text.len() == 7, "{name}: {length}, {text}");
            assert!(plugin().text_into(name, 0).unwrap().0 > 8);
        }
        kept[3].decrease().unwrap();
        drop(kept);
        settles_at(&client, 0);
    });
}

#[test]
fn c31_arena_buffers_of_a_dead_client_are_left_alone() {
    in_child!(&[], || {
        let (client, other) = (limited("tpu", 8 * MIB), limited("tpu", 8 * MIB));
        let orphans = fragmented(&client, &[1, 3, 5, 7]);
        client.destroy().unwrap();
        let kept = fragmented(&other, &[1, 3, 5, 7]);
        assert_eq!(json("pjrt_arena_compact").as_array().unwrap().len(), 1);
        assert_eq!(orphans.iter().map(Buffer::dims).collect::<Vec<_>>(), vec![[512, 512]; 4]);
        drop((orphans, kept));
        settles_at(&other, 0);
    });
}

#[test]
fn c35_arena_clients_come_and_go_while_everything_is_compacted() {
    in_child!(&[], || {
        let enough = Arc::new(AtomicBool::new(false));
        let compacting = {
            let enough = Arc::clone(&enough);
            elsewhere(move || {
                while !enough.load(Relaxed) {
                    for name in ["pjrt_arena_compact", "pjrt_arena_counters", "pjrt_arena_trim"] {
                        plugin().text(name).unwrap();
                    }
                }
            })
        };
        for _ in 0..20 {
            let client = limited("tpu", 8 * MIB);
            let add_one = client.compile(&Program::add_one()).unwrap();
            let kept = fragmented(&client, &[1, 3, 5, 7]);
            let y = add_one.run1(&[&client.put(&ramp(0.0), &DIMS).unwrap()]).unwrap();
            assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
            drop((add_one, kept, y));
            client.destroy().unwrap();
        }
        enough.store(true, Relaxed);
        compacting.wait();
    });
}

/// Eight threads on one device and then on four, until each load has done `compactions`.
fn under_load(pressure: Pressure, compactions: u64) -> [stress::Outcome; 2] {
    [(1, 64 << 20), (4, 16 << 20)]
        .map(|(devices, limit)| stress::run(Load { devices, limit, threads: 8, pressure, compactions, seed: 7 }))
}

#[test]
fn c23_c31_arena_five_hundred_compactions_under_load() {
    in_child!(&[], || {
        for outcome in under_load(Pressure::Full, 250) {
            assert!(outcome.compactions >= 250 && outcome.moves >= 250, "{outcome:?}");
        }
    });
}

#[test]
fn c23_c31_arena_five_hundred_compactions_before_allocations_and_launches() {
    in_child!(&[], || {
        for outcome in under_load(Pressure::Always, 250) {
            assert!(outcome.compactions >= 250 && outcome.moves >= 250, "{outcome:?}");
        }
    });
}

#[test]
fn c23_c31_arena_two_thousand_arrays_spilled_under_load() {
    in_child!(&[], || {
        for outcome in under_load(Pressure::Spilled, 1000) {
            assert!(outcome.spilled.0 >= 1000 && outcome.spilled.1 > 0, "{outcome:?}");
        }
    });
}

/// What a function says of the devices of this name.
fn of_device(name: &str, device: &str) -> Json {
    type Tell = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> usize;
    // SAFETY: the library under test exports it with this type.
    let tell: Tell = unsafe { plugin().symbol(name) };
    let (device, mut text) = (CString::new(device).unwrap(), vec![0u8; 4096]);
    // SAFETY: the name is a C string, and the buffer as long as it is told.
    let length = unsafe { tell(device.as_ptr(), text.as_mut_ptr().cast(), text.len()) };
    text.truncate(length);
    serde_json::from_slice(&text).unwrap_or_else(|_| String::from_utf8(text).unwrap().into())
}

#[test]
fn c31_arena_one_device_alone_is_compacted_trimmed_and_reset() {
    in_child!(&[], || {
        let options = [("strategy", Value::from("tpu")), ("limit", Value::from("8MiB"))];
        let client = Client::create(2, &options).unwrap();
        let kept = fragmented(&client, &[1, 3, 5, 7]);
        let nobody = "there is no device \"cpu:7\"; there are: cpu:0, cpu:1";
        for name in ["pjrt_arena_compact_device", "pjrt_arena_trim_device"] {
            assert_eq!(of_device(name, "cpu:7")["error"], nobody);
            assert_eq!(of_device(name, "cpu:1").as_array().unwrap().len(), 1);
        }
        let number = |told: &Json, field: &str| told[0][field].as_i64().unwrap();
        assert_eq!(number(&of_device("pjrt_arena_compact_device", "cpu:1"), "buffers_moved"), 0);
        assert!(number(&of_device("pjrt_arena_compact_device", "cpu:0"), "buffers_moved") > 0);
        assert!(number(&of_device("pjrt_arena_trim_device", "cpu:0"), "bytes_returned") > 0);
        let peak =
            |device: usize| json("pjrt_arena_counters")["devices"][device]["peak_in_use_bytes"].as_i64().unwrap();
        let before = peak(0);
        assert_eq!(of_device("pjrt_arena_reset_peak_device", "cpu:7"), nobody);
        assert_eq!((of_device("pjrt_arena_reset_peak_device", "cpu:1"), peak(0)), ("".into(), before));
        assert_eq!(of_device("pjrt_arena_reset_peak_device", "cpu:0"), "");
        assert!(peak(0) < before && peak(0) == 4 * MIB);
        drop(kept);
        settles_at(&client, 0);
    });
}
