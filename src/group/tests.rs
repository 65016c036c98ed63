use std::{fs, sync::Arc, thread, time::Duration};

use super::*;
use crate::{error::Code, units::Bytes};

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
