//! Where blocks come from, and the reports that say so: through the library's own C functions. They speak of all
//! clients of the process, so each test has one of its own.

use std::{
    ffi::{CString, c_char},
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use plugin_tests::{Buffer, Client, ElementType, Gate, Program, Value, gate, in_child, plugin};
use serde_json::Value as Json;

use crate::{DIMS, MIB, compaction::fragmented, limited, ramp, settles_at, ticket};

fn json(name: &str) -> Json {
    serde_json::from_str(&plugin().text(name).unwrap()).unwrap()
}

/// What `pjrt_arena_snapshot` says of `path`; nothing is good.
fn save(path: &Path) -> String {
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the library exports it with this type; the buffer is as long as said.
    unsafe {
        type Save = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> usize;
        let save: Save = plugin().symbol("pjrt_arena_snapshot");
        let mut text = vec![0u8; 4096];
        let length = save(path.as_ptr(), text.as_mut_ptr().cast(), text.len());
        text.truncate(length);
        String::from_utf8(text).unwrap()
    }
}

fn begin() -> u64 {
    // SAFETY: the library exports it with this type.
    unsafe { plugin().symbol::<extern "C" fn() -> u64>("pjrt_arena_track_begin")() }
}

/// What a track saw: the length is asked for first, as from C.
fn end(track: u64) -> Json {
    type End = unsafe extern "C" fn(u64, *mut c_char, usize) -> usize;
    // SAFETY: the library exports it with this type; a NULL buffer only asks; then the buffer is as long as said.
    unsafe {
        let end: End = plugin().symbol("pjrt_arena_track_end");
        let length = end(track, std::ptr::null_mut(), 0);
        let mut text = vec![0u8; length + 1];
        assert_eq!(end(track, text.as_mut_ptr().cast(), text.len()), length, "ended once, told twice");
        text.truncate(length);
        serde_json::from_slice(&text).unwrap()
    }
}

/// A folder that goes with the test.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pjrt-arena-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn snapshot(&self) -> Json {
        let path = self.0.join("x.json");
        assert_eq!(save(&path), "");
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The blocks of the first device: origin in words, step, and the row.
fn blocks(snapshot: &Json) -> Vec<(String, u64, usize)> {
    let blocks = &snapshot["devices"][0]["blocks"];
    let column = |name: &str| blocks[name].as_array().unwrap();
    let label = |id: &Json| snapshot["origins"]["label"][id.as_u64().unwrap() as usize].as_str().unwrap().to_owned();
    let rows = column("origin").iter().zip(column("step")).enumerate();
    rows.map(|(row, (origin, step))| (label(origin), step.as_u64().unwrap(), row)).collect()
}

/// The step of the one block with this origin.
#[track_caller]
fn step_of(snapshot: &Json, label: &str) -> u64 {
    let all = blocks(snapshot);
    let found: Vec<_> = all.iter().filter(|(origin, ..)| origin == label).collect();
    assert_eq!(found.len(), 1, "{label} in {all:?}");
    found[0].1
}

#[test]
fn arena_every_block_says_where_it_came_from() {
    in_child!(&[], || {
        let folder = Folder::new("origins");
        let client = limited("preallocate", 64 * MIB);
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let snapshot = folder.snapshot();
        assert_eq!(blocks(&snapshot), [("from host f32[1024]".to_owned(), 0, 0)]);
        let copy = x.copy_to_memory(x.memory()).unwrap();
        let blank = Buffer::uninitialized(&client, ElementType::U8, &[7]).unwrap();
        let manager = client.transfer(ElementType::U8, &[&[5]]).unwrap();
        let snapshot = folder.snapshot();
        for label in ["copy of f32[1024]", "uninitialized u8[7]", "transfer of u8[5]"] {
            assert_eq!(step_of(&snapshot, label), 0);
        }
        drop((copy, blank, manager));
        // Small results: a kept destination runs again, and says which run it is of.
        let two = client.compile(&Program::two_results()).unwrap();
        let name = two.executable().name();
        for run in 1..=5 {
            let results = two.run(&[&x, &x]).unwrap();
            results[0].ready().wait().unwrap();
            let snapshot = if run == 5 { folder.snapshot() } else { continue };
            for number in 0..2 {
                let label = format!("{name} output {number} f32[1024]");
                let all = blocks(&snapshot);
                // A program can still use the results of an earlier run when the next one begins (T38).
                let newest = all.iter().filter(|(origin, ..)| *origin == label).map(|&(_, step, _)| step).max();
                assert_eq!(newest, Some(run), "{label} in {all:?}");
            }
        }
        // A donated argument's block holds the program's result from then on.
        let donate = client.compile(&Program::donate()).unwrap();
        let result = donate.run1(&[&x]).unwrap();
        result.ready().wait().unwrap();
        let snapshot = folder.snapshot();
        let label = format!("{} output 0 f32[1024]", donate.executable().name());
        assert_eq!((blocks(&snapshot).len(), step_of(&snapshot, &label)), (1, 6));
        // Pins, and why.
        let pin = |snapshot: &Json| {
            let device = &snapshot["devices"][0]["blocks"];
            let why = &snapshot["pin_reasons"][device["pin"][0].as_u64().unwrap() as usize];
            (device["state"][0].as_u64().unwrap(), why.as_str().unwrap().to_owned())
        };
        assert_eq!(pin(&snapshot), (0, String::new()));
        result.increase().unwrap();
        assert_eq!(pin(&folder.snapshot()), (1, "external references (NumPy views, dlpack)".to_owned()));
        result.decrease().unwrap();
        result.address().unwrap();
        assert_eq!(pin(&folder.snapshot()), (1, "address given out for good (unsafe pointer)".to_owned()));
    });
}

#[test]
fn arena_a_snapshot_is_written_in_each_format_for_the_user_alone() {
    in_child!(&[], || {
        let folder = Folder::new("formats");
        let client = limited("preallocate", 64 * MIB);
        let _x = client.put(&ramp(0.0), &DIMS).unwrap();
        for (name, begins) in [
            ("a.json", &b"{\"schema\":\"pjrt-arena.snapshot\",\"version\":1"[..]),
            ("a.html", b"<!doctype html>"),
            ("a.perfetto.json", b"{\"traceEvents\":["),
            ("a.pickle", b"\x80\x02}("),
        ] {
            let path = folder.0.join(name);
            assert_eq!(save(&path), "");
            assert!(fs::read(&path).unwrap().starts_with(begins), "{name}");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        }
        let sentence = save(&folder.0.join("a.txt"));
        assert!(sentence.contains("a.txt") && sentence.contains(".perfetto.json"), "{sentence}");
        let link = folder.0.join("link.json");
        symlink(folder.0.join("a.txt"), &link).unwrap();
        assert!(save(&link).contains("symbolic link"));
        assert!(!folder.0.join("a.txt").exists());
        assert!(save(Path::new("/nowhere/at/all.json")).contains("/nowhere/at/all.json"));
    });
}

#[test]
fn arena_a_summary_has_totals_and_holders() {
    in_child!(&[], || {
        let client = limited("preallocate", 64 * MIB);
        let gone = Buffer::uninitialized(&client, ElementType::U8, &[8 * MIB]).unwrap();
        drop(gone);
        let small = Buffer::uninitialized(&client, ElementType::U8, &[MIB]).unwrap();
        let large = Buffer::uninitialized(&client, ElementType::U8, &[4 * MIB]).unwrap();
        small.increase().unwrap();
        let summary = &json("pjrt_arena_summary")[0];
        let row =
            |name: &str| ["current", "peak", "allocated", "freed"].map(|key| summary[name][key].as_i64().unwrap());
        assert_eq!(row("in_use"), [5 * MIB, 8 * MIB, 13 * MIB, 8 * MIB]);
        assert_eq!(row("pinned"), [MIB, MIB, MIB, 0]);
        assert_eq!((summary["allocations"].as_i64(), summary["frees"].as_i64()), (Some(3), Some(1)));
        let holders = summary["holders"].as_array().unwrap();
        assert_eq!(holders.len(), 2);
        assert_eq!(
            (&holders[0]["origin"], &holders[0]["bytes"]),
            (&"uninitialized u8[4194304]".into(), &(4 * MIB).into())
        );
        assert!(holders.iter().all(|holder| holder["oldest_seconds"].as_f64().unwrap() >= 0.0));
        let fragmentation = summary["fragmentation"].as_f64().unwrap();
        assert!((0.0..1.0).contains(&fragmentation), "{fragmentation}");
        small.decrease().unwrap();
        drop(large);
    });
}

#[test]
fn arena_a_track_knows_its_peak_and_who_made_it() {
    in_child!(&[], || {
        let client = limited("preallocate", 64 * MIB);
        let base = Buffer::uninitialized(&client, ElementType::U8, &[MIB]).unwrap();
        let outer = begin();
        let inner = begin();
        let peak = Buffer::uninitialized(&client, ElementType::U8, &[16 * MIB]).unwrap();
        drop(peak);
        let inner_saw = end(inner);
        let later = client.put(&ramp(0.0), &DIMS).unwrap();
        let outer_saw = end(outer);
        for saw in [&inner_saw[0], &outer_saw[0]] {
            assert_eq!((saw["start_bytes"].as_i64(), saw["peak_bytes"].as_i64()), (Some(MIB), Some(17 * MIB)), "{saw}");
            let holders = saw["peak_holders"].as_array().unwrap();
            let shown: Vec<_> = holders.iter().map(|h| (h["origin"].as_str().unwrap(), h["bytes"].as_i64())).collect();
            let expected = [("uninitialized u8[16777216]", Some(16 * MIB)), ("uninitialized u8[1048576]", Some(MIB))];
            assert_eq!(shown, expected);
            assert_eq!(saw["peak_holders_unknown"], Json::Null);
        }
        assert_eq!(
            (inner_saw[0]["end_bytes"].as_i64(), outer_saw[0]["end_bytes"].as_i64()),
            (Some(MIB), Some(MIB + 4096))
        );
        let again = end(outer);
        assert!(again["error"].as_str().unwrap().contains("no track has the number"), "{again}");
        drop((base, later));
    });
}

#[test]
fn arena_a_track_without_history_says_that_it_does_not_know() {
    in_child!(&[("PJRT_ARENA_HISTORY", "0")], || {
        let client = limited("preallocate", 64 * MIB);
        let track = begin();
        drop(Buffer::uninitialized(&client, ElementType::U8, &[16 * MIB]).unwrap());
        let saw = &end(track)[0];
        assert_eq!(saw["peak_bytes"].as_i64(), Some(16 * MIB));
        assert!(saw["peak_holders_unknown"].as_str().unwrap().contains("PJRT_ARENA_HISTORY"), "{saw}");
        assert_eq!(saw["peak_holders"], Json::Null);
        let folder = Folder::new("no-history");
        let snapshot = folder.snapshot();
        assert_eq!(snapshot["devices"][0]["events"]["time"], Json::Array(Vec::new()));
    });
}

/// The hint of the error for `megabytes`.
#[track_caller]
fn hint(client: &Client, megabytes: i64) -> String {
    let failure = Buffer::uninitialized(client, ElementType::U8, &[megabytes * MIB]).map(drop).unwrap_err();
    let hint = failure.message.lines().find_map(|line| line.strip_prefix("  hint: "));
    hint.unwrap_or_else(|| panic!("no hint in {}", failure.message)).to_owned()
}

fn told(options: &[(&str, &str)]) -> Client {
    let options: Vec<_> = options.iter().map(|&(name, value)| (name, Value::from(value))).collect();
    Client::create(1, &options).unwrap()
}

#[test]
fn arena_the_hint_to_compact_is_true() {
    in_child!(&[], || {
        let client = limited("preallocate", 8 * MIB);
        let kept = fragmented(&client, &[1, 3, 5, 7]);
        let hint = hint(&client, 3);
        assert_eq!(hint, "PJRT_ARENA_COMPACT=on would have made room, by moving 1.00MiB of arrays");
        kept[0].increase().unwrap();
        kept[1].increase().unwrap();
        kept[2].increase().unwrap();
        // With these where they are it is not true, and not said.
        let failure = Buffer::uninitialized(&client, ElementType::U8, &[3 * MIB]).map(drop).unwrap_err();
        assert!(!failure.message.contains("COMPACT"), "{}", failure.message);
        kept[..3].iter().for_each(|buffer| buffer.decrease().unwrap());
        let client = told(&[("limit", "8MiB"), ("compact", "on")]);
        let _kept = fragmented(&client, &[1, 3, 5, 7]);
        Buffer::uninitialized(&client, ElementType::U8, &[3 * MIB]).unwrap();
    });
}

#[test]
fn arena_the_hint_to_raise_the_limit_is_true() {
    in_child!(&[], || {
        let fill = |client: &Client| -> Vec<_> {
            (0..3).map(|_| Buffer::uninitialized(client, ElementType::U8, &[2 * MIB]).unwrap()).collect()
        };
        for strategy in ["preallocate", "growing", "platform", "tpu"] {
            let client = told(&[("strategy", strategy), ("limit", "8MiB")]);
            let _held = fill(&client);
            let hint = hint(&client, 3);
            let limit = hint.strip_prefix("PJRT_ARENA_LIMIT=").and_then(|rest| rest.split_once(' ')).unwrap().0;
            let client = told(&[("strategy", strategy), ("limit", limit)]);
            let _held = fill(&client);
            Buffer::uninitialized(&client, ElementType::U8, &[3 * MIB]).unwrap();
        }
        // More than the machine has is no hint.
        let client = limited("preallocate", 8 * MIB);
        let failure = Buffer::uninitialized(&client, ElementType::U8, &[1 << 45]).map(drop).unwrap_err();
        assert!(!failure.message.contains("hint"), "{}", failure.message);
    });
}

#[test]
fn arena_the_hint_to_wait_is_true() {
    in_child!(&[], || {
        let client = std::sync::Arc::new(limited("preallocate", 16 * MIB));
        gate::prepare();
        let inside = std::sync::Arc::clone(&client);
        let (let_go, told) = std::sync::mpsc::channel();
        let told = std::sync::Mutex::new(told);
        // Inside of the program that holds the memory nobody waits for it.
        let gate = Gate::running(move |_| {
            told.lock().unwrap().recv().map_err(|error| error.to_string())?;
            let hint = hint(&inside, 11);
            if hint.contains("come back when programs under way end") { Ok(()) } else { Err(hint) }
        });
        let gated = client.compile(&Program::gate_large()).unwrap();
        let x = client.put(&vec![0f32; 1 << 20], &[1 << 20]).unwrap();
        let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
        let ready = outputs[0].ready();
        drop((x, outputs));
        let_go.send(()).unwrap();
        ready.wait().unwrap();
        settles_at(&client, 0);
        Buffer::uninitialized(&client, ElementType::U8, &[11 * MIB]).unwrap();
    });
}

#[test]
fn arena_exhausted_memory_is_explained_and_reported() {
    let folder = Folder::new("oom");
    let (report, path) = (folder.0.join("oom.json"), folder.0.join("oom.json").to_str().unwrap().to_owned());
    let child = in_child!(&[("PJRT_ARENA_OOM_REPORT", &path)], || {
        let client = limited("preallocate", 8 * MIB);
        let x = client.put(&vec![1f32; 262_144], &[262_144]).unwrap();
        let add_one = client.compile(&Program::add_one_1m()).unwrap();
        let _held: Vec<_> = (0..7).map(|_| Buffer::uninitialized(&client, ElementType::U8, &[MIB]).unwrap()).collect();
        let text = add_one.run1(&[&x]).map(drop).unwrap_err().message;
        let name = add_one.executable().name();
        for part in [
            &format!("wanted for {name} output 0 f32[262144]"),
            "held by 7.00MiB in 7 block(s): uninitialized u8[1048576]",
            "1.00MiB in 1 block(s): from host f32[262144]",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let report = Path::new(&std::env::var("PJRT_ARENA_OOM_REPORT").unwrap()).to_owned();
        let snapshot: Json = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        let failure = &snapshot["devices"][0]["failures"][0];
        assert_eq!((failure["text"].as_str(), failure["program"].as_str()), (Some(&*text), Some(&*name)));
        let events = &snapshot["devices"][0]["events"];
        let kinds = events["kind"].as_array().unwrap();
        let at = kinds.iter().position(|kind| *kind == 8).expect("the failure is an event");
        assert_eq!((&events["other"][at], &events["bytes"][at]), (&0.into(), &MIB.into()));
        // A second failure at once writes no second report.
        fs::remove_file(&report).unwrap();
        add_one.run1(&[&x]).map(drop).unwrap_err();
        assert!(!report.exists());
    });
    assert!(child.is_none_or(|errors| errors.contains("memory is exhausted; the report is")));
    drop(report);
}

#[test]
fn arena_a_report_that_cannot_be_written_is_a_warning() {
    let folder = std::env::temp_dir().join(format!("pjrt-arena-gone-{}", std::process::id()));
    let path = folder.join("x.html").to_string_lossy().into_owned();
    std::fs::create_dir_all(&folder).unwrap();
    let errors = in_child!(&[("PJRT_ARENA_OOM_REPORT", &path)], || {
        let client = limited("preallocate", 8 * MIB);
        // It was there when the client began.
        let report = std::env::var("PJRT_ARENA_OOM_REPORT").unwrap();
        std::fs::remove_dir(Path::new(&report).parent().unwrap()).unwrap();
        let text = Buffer::uninitialized(&client, ElementType::U8, &[9 * MIB]).map(drop).unwrap_err().message;
        assert!(text.starts_with("Out of memory while trying to allocate"), "{text}");
        client.put(&ramp(0.0), &DIMS).unwrap();
    });
    assert!(errors.is_none_or(|errors| errors.contains(&format!("no report of exhausted memory: {path}"))));
    let _ = std::fs::remove_dir(folder);
}

/// There is no Python in this process, and so no stack.
#[test]
fn arena_blocks_have_no_stack_where_there_is_no_python() {
    in_child!(&[], || {
        type Record = unsafe extern "C" fn(i32, *const c_char, *mut c_char, usize) -> usize;
        let folder = Folder::new("no-python");
        let client = limited("preallocate", 64 * MIB);
        // SAFETY: the library exports them with these types; the folders are a C string or NULL, the buffer as long as
        // said or NULL.
        unsafe {
            let record: Record = plugin().symbol("pjrt_arena_record_python");
            let records: extern "C" fn() -> i32 = plugin().symbol("pjrt_arena_records_python");
            let mut text = vec![0u8; 4096];
            let length = record(1, c"/lib/jax\n\n/lib/jaxlib/".as_ptr(), text.as_mut_ptr().cast(), text.len());
            text.truncate(length);
            let said = String::from_utf8(text).unwrap();
            assert!(said.starts_with("this process has no Python of version 3.11 or newer"), "{said}");
            assert_eq!(record(0, std::ptr::null(), std::ptr::null_mut(), 0), 0, "off is always possible");
            assert_eq!(records(), 0);
        }
        let kept = client.put(&ramp(0.0), &DIMS).unwrap();
        let snapshot = folder.snapshot();
        assert_eq!(blocks(&snapshot), [("from host f32[1024]".to_owned(), 0, 0)]);
        let stacks = snapshot["origins"]["stack"].as_array().unwrap();
        assert!(!stacks.is_empty() && stacks.iter().all(|stack| *stack == -1), "{stacks:?}");
        assert_eq!(snapshot["frames"]["line"].as_array().map(Vec::len), Some(0));
        assert_eq!(snapshot["stacks"]["frame"].as_array().map(Vec::len), Some(0));
        drop(kept);
    });
}
