//! Members that do not see each other's numbers, as in containers.

use std::process::Command;

use crate::member::{Member, Place};

/// What starts a process in a pid namespace of its own.
const APART: [&str; 6] = ["unshare", "--map-current-user", "--pid", "--fork", "--kill-child", "--"];

#[test]
fn members_of_other_pid_namespaces_live_and_die_like_any() {
    let works = Command::new(APART[0]).args(&APART[1..]).arg("true").status();
    if !works.is_ok_and(|status| status.success()) {
        eprintln!("not tested: there are no pid namespaces for this user");
        return;
    }
    let place = Place::new();
    let mut outside = Member::joined(&place);
    let mut inside = [(); 2].map(|()| Member::through(&place, &APART));
    for member in &mut inside {
        assert_eq!(member.tell("join 100"), "joined");
        assert_eq!((member.tell("pid"), member.tell("take 40")), ("1".into(), "taken".into()));
    }
    // Both have the number 1, and neither is taken for the other, or for the first process of the system.
    let [mut first, second] = inside;
    assert_eq!((outside.tell("sweep"), first.tell("sweep")), ("0".into(), "0".into()));
    assert!(outside.tell("take 30").contains("others hold 80B"));
    assert_eq!(outside.tell("members").matches("1:Unseen:40").count(), 2);
    second.kill();
    assert_eq!(outside.tell("ask it 60 60000"), "asked");
    assert_eq!(outside.tell("await it"), "served");
    assert_eq!(outside.tell("take 60"), "taken");
    assert!(first.tell("take 1").contains("others hold 60B"));
}
