use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    error::Code,
    group::{core::now, layout::Entry},
    memory::group::{Asked, FROM_ALL_AFTER},
    units::Bytes,
};

fn terms(limit: u64) -> Terms {
    Terms { limits: vec![Bytes::new(limit)], platform: "cpu", explicit_limit: false, min: Bytes::ZERO, weight: 100 }
}

#[test]
fn names_are_short_and_plain() {
    for name in ["a", "A.b_c-9", &"x".repeat(64)] {
        assert_eq!(check_name(name), Ok(()), "{name}");
    }
    for name in ["", ".", "..", ".a", "a/b", "a b", "ä", "a\n", &"x".repeat(65)] {
        let error = check_name(name).expect_err(name);
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.contains("is no name of a group: allowed are 1 to 64"), "{error}");
    }
}

#[test]
fn a_process_is_a_member_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let join = |terms: &Terms| Group::join_in(&folder.path().join("groups"), "team", terms).expect("joined");
    let (first, second) = (join(&terms(100)), join(&terms(100)));
    assert!(Arc::ptr_eq(&first.group, &second.group));
    assert_eq!(first.group.members(0).expect("sound").len(), 1);
    // Two clients of it publish, and hold, together.
    let [one, two] = [&first, &second].map(|joined| joined.group.share(0).expect("a device"));
    let _taken = (one.take(Bytes::new(30)).expect("room"), two.take(Bytes::new(40)).expect("room"));
    one.publish(Bytes::new(25), Bytes::new(5));
    two.publish(Bytes::new(10), Bytes::new(20));
    one.publish(Bytes::new(20), Bytes::new(10));
    let numbers = |group: &Group| {
        let members = group.members(0).expect("sound");
        (members[0].held.get(), members[0].used.get(), members[0].idle.get())
    };
    assert_eq!(numbers(&first.group), (70, 30, 30));
    drop(two);
    assert_eq!(numbers(&first.group), (70, 20, 10));
    assert_eq!(first.group.share(1).expect_err("one device").code, Code::OutOfRange);
    // More devices than the group has.
    let more = Terms { limits: vec![Bytes::new(1); 2], ..terms(1) };
    let error = Group::join_in(&folder.path().join("groups"), "team", &more).expect_err("one device");
    assert!(error.message.contains("has 2 devices, and the group has limits for 1"), "{error}");
}

#[test]
fn another_name_of_the_file_does_not_end_a_membership() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("groups");
    let joined = Group::join_in(&path, "team", &terms(100)).expect("joined");
    fs::hard_link(path.join("team"), path.join("other")).expect("a second name");
    let error = Group::join_in(&path, "other", &terms(100)).expect_err("the same file");
    assert!(error.message.contains("it has 2 names (hard links)"), "{error}");
    let folder = Folder::at(&path).expect("the folder");
    assert!(look_in(&folder, "other").is_err());
    fs::remove_file(path.join("other")).expect("its owner");
    // Another process would say whether the lock is there; the tests of processes ask one.
    assert_eq!(look_in(&folder, "team").expect("a group").devices[0].1.len(), 1);
    assert_eq!(names_in(&folder), Ok(vec!["team".to_owned()]));
    drop(joined);
    assert_eq!(look_in(&folder, "team").expect_err("it is gone").code, Code::NotFound);
}

#[test]
fn threads_join_and_leave_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("groups");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let joined = Group::join_in(&path, "team", &terms(100)).expect("joined");
                    let share = joined.group.share(0).expect("a device");
                    let taken = share.take(Bytes::new(25)).expect("a quarter for each");
                    assert!(taken.bytes() <= share.held());
                }
            });
        }
    });
    assert!(!path.join("team").exists());
}

#[test]
fn whoever_waits_for_asks_can_be_woken() {
    let folder = tempfile::tempdir().expect("a folder");
    let joined = Group::join_in(&folder.path().join("groups"), "team", &terms(100)).expect("joined");
    let seen = joined.group.asks();
    thread::scope(|scope| {
        let waits = scope.spawn(|| joined.group.wait_for_asks(seen, Duration::from_secs(3600)));
        joined.group.end_waits();
        assert_ne!(waits.join().expect("no panic"), seen);
    });
    assert_eq!(joined.group.wait_for_asks(joined.group.asks(), Duration::ZERO), joined.group.asks());
}

/// A slot of another member's, as another process would write it: there is none.
const OTHER: usize = 5;

fn entry(number: u64) -> Entry {
    Entry { number, process: Process::current(), weight: 100, min: Bytes::ZERO, devices: 1 }
}

#[test]
fn who_looks_without_the_lock_sees_a_member_or_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let joined = Group::join_in(&folder.path().join("groups"), "team", &terms(100)).expect("joined");
    let layout = joined.group.layout().expect("a member");
    let (other, over) = (entry(77), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 77..50_000 {
                layout.slot(OTHER).take(&Entry { number, ..other.clone() });
                layout.slot(OTHER).clear();
            }
            over.store(true, Relaxed);
        });
        while !over.load(Relaxed) {
            let seen = layout.members(0);
            assert!(seen.as_ref().is_ok_and(|seen| (1..=2).contains(&seen.len())), "{seen:?}");
        }
    });
}

#[test]
fn an_ask_keeps_its_place_when_it_is_prolonged_or_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let joined = Group::join_in(&folder.path().join("groups"), "team", &terms(100)).expect("joined");
    let share = joined.group.share(0).expect("a device");
    let line = joined.group.layout().expect("a member").slot(joined.group.slot).line(0);
    let mut ask = share.ask(Bytes::new(10), Instant::now()).expect("a member");
    let first = share.ask(Bytes::new(20), Instant::now() + Duration::from_secs(60)).expect("a member");
    let before = line.asked().expect("the second one: the first is over");
    assert_eq!(before.bytes, Bytes::new(20));
    drop(first);
    ask.change(Bytes::new(30), Instant::now() + Duration::from_secs(60));
    let after = line.asked().expect("it counts again");
    assert!(after.bytes == Bytes::new(30) && after.ticket < before.ticket && after.since <= before.since, "{after:?}");
    assert!(after.until > now() + Duration::from_secs(50));
}

#[test]
fn an_ask_that_is_over_wakes_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let joined = Group::join_in(&folder.path().join("groups"), "team", &terms(100)).expect("joined");
    let share = joined.group.share(0).expect("a device");
    let other = joined.group.layout().expect("a member").slot(OTHER);
    other.take(&entry(77));
    let since = now();
    let asked = |until| Some(Asked { bytes: Bytes::new(5), ticket: 1, since, until });
    other.line(0).ask(asked(since + Duration::from_secs(60)));
    assert!(share.is_asked());
    other.line(0).ask(asked(since));
    assert!(!share.is_asked());
    other.clear();
}

#[test]
fn an_ask_to_which_nobody_owes_anything_hides_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let joined = Group::join_in(&folder.path().join("groups"), "team", &terms(100)).expect("joined");
    let share = joined.group.share(0).expect("a device");
    let layout = joined.group.layout().expect("a member");
    layout.slot(OTHER).take(&entry(77));
    layout.slot(OTHER).line(0).held.store(80, Relaxed);
    let until = Instant::now() + Duration::from_secs(60);
    let asks = [90, 50].map(|bytes| share.ask(Bytes::new(bytes), until).expect("a member"));
    let shown = || layout.slot(joined.group.slot).line(0).asked().expect("one of them").bytes;
    assert_eq!(shown(), Bytes::new(90));
    thread::sleep(FROM_ALL_AFTER + Duration::from_millis(5));
    assert!(!asks[1].is_served());
    assert_eq!(shown(), Bytes::new(50));
    // What the others no longer use is enough for it.
    layout.slot(OTHER).line(0).idle.store(80, Relaxed);
    assert!(!asks[1].is_served());
    assert_eq!(shown(), Bytes::new(90));
    layout.slot(OTHER).clear();
}
