//! Coming and going.

use std::{fs, os::unix::fs::PermissionsExt};

use pjrt_arena::group::{Folder, MAX_MEMBERS, names_in};

use crate::member::{Member, Place};

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).expect("it exists").permissions().mode() & 0o7777
}

#[test]
fn the_first_one_makes_the_file_and_the_last_one_removes_it() {
    let place = Place::new();
    let mut first = Member::joined(&place);
    assert_eq!((mode(&place.folder()), mode(&place.file())), (0o700, 0o600));
    let mut second = Member::joined(&place);
    assert_eq!(second.tell("look"), "2");
    assert_eq!(names_in(&Folder::at(&place.folder()).unwrap()), Ok(vec!["team".to_owned()]));
    assert_eq!(first.tell("leave"), "left");
    assert_eq!(place.look().devices[0].1.len(), 1);
    // It can come back.
    assert_eq!(first.tell("join 100"), "joined");
    first.end();
    assert!(place.file().exists());
    second.end();
    assert!(!place.file().exists());
}

#[test]
fn the_first_one_sets_the_limits_and_the_others_are_told() {
    let place = Place::new();
    let mut first = Member::new(&place);
    assert_eq!(first.tell("join 100 30 100 2"), "joined");
    let mut second = Member::new(&place);
    let note = second.tell("join 200 0 100 1");
    assert!(
        note.contains("the limit of device 0 is 100B (100)") && note.contains("the 200B that were asked"),
        "{note}"
    );
    let mut third = Member::new(&place);
    let refused = third.tell("join 100 0 100 3");
    assert!(refused.contains("has 3 devices, and the group has limits for 2"), "{refused}");
    let refused = third.tell("join 100 71");
    assert!(
        refused.contains("a minimum of 71B (71 bytes)") && refused.contains("70B (70 bytes) is allowed"),
        "{refused}"
    );
    let refused = third.tell("join 100 0 1001");
    assert!(refused.contains("a weight of 1001 is not allowed: allowed are 1 to 1000"), "{refused}");
    let refused = third.tell("join 100 0 100 1 gpu");
    assert!(
        refused.contains("its members share devices of the platform `cpu`") && refused.contains("platform `cuda`"),
        "{refused}"
    );
    assert_eq!(third.tell("join 100 70"), "joined");
    // Another client of the same process is the same member.
    let note = third.tell("join 100 5");
    assert!(note.contains("already, with a minimum of 70B"), "{note}");
    assert_eq!(place.look().devices[0].1.len(), 3);
    assert_eq!(place.look().devices[1].1.len(), 1);
    // One that was refused and alone leaves no file.
    let elsewhere = Place::new();
    assert!(Member::new(&elsewhere).tell("join 100 101").contains("100B (100 bytes) is allowed"));
    assert!(!elsewhere.file().exists());
}

#[test]
fn joining_and_the_last_leave_do_not_miss_each_other() {
    let place = Place::new();
    let mut members = [(); 3].map(|()| Member::new(&place));
    members.iter_mut().for_each(|member| member.begin("cycle 300"));
    for member in &mut members {
        assert_eq!(member.answer(), "cycled");
    }
    assert!(!place.file().exists());
}

#[test]
fn a_group_has_so_many_members_and_no_more() {
    let place = Place::new();
    let mut members: Vec<Member> = (0..MAX_MEMBERS).map(|_| Member::new(&place)).collect();
    members.iter_mut().for_each(|member| member.begin("join 100"));
    members.iter_mut().for_each(|member| assert_eq!(member.answer(), "joined"));
    let mut late = Member::new(&place);
    let refused = late.tell("join 100");
    assert!(refused.contains("has 64 members, and no more are possible"), "{refused}");
    // The place of one that was killed is free.
    members.pop().expect("64").kill();
    assert_eq!(late.tell("join 100"), "joined");
    assert_eq!(place.look().devices[0].1.len(), MAX_MEMBERS);
}
