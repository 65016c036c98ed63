//! Processes that are killed, stopped and forked.

use pjrt_arena::group::{Folder, Group, State as Now, Terms};
use pjrt_arena::units::Bytes;

use crate::member::{Member, Place, State, until};

#[test]
fn what_a_killed_one_held_is_the_others() {
    let place = Place::new();
    let (mut first, mut second) = (Member::joined(&place), Member::joined(&place));
    assert_eq!(first.tell("take 80"), "taken");
    assert_eq!(second.tell("ask it 50 60000"), "asked");
    second.begin("await it");
    // The one that waits finds out by itself.
    first.kill();
    assert_eq!(second.answer(), "served");
    assert_eq!(second.tell("take 100"), "taken");
    // And so does one that takes.
    let mut third = Member::joined(&place);
    second.kill();
    assert_eq!(third.tell("take 100"), "taken");
    assert_eq!(third.tell("members").split(' ').count(), 1);
    // A group of which nobody is left begins anew.
    third.kill();
    assert!(place.file().exists());
    assert!(place.look().devices[0].1.iter().all(|member| !member.is_alive));
    let mut fourth = Member::new(&place);
    assert_eq!(fourth.tell("join 70"), "joined");
    assert_eq!(fourth.tell("available"), "70");
}

#[test]
fn an_ask_of_a_killed_one_keeps_nothing() {
    let place = Place::new();
    let (mut first, mut second) = (Member::joined(&place), Member::joined(&place));
    assert_eq!(second.tell("take 50"), "taken");
    assert_eq!(first.tell("ask it 90 60000"), "asked");
    assert_eq!(second.tell("available"), "0");
    first.kill();
    assert_eq!(second.tell("take 50"), "taken");
}

/// Processes that take and give without a rest are killed at random instants. At none do they hold more than the limit
/// together, as this process sees them, and in the end the books are empty.
#[test]
fn the_sum_is_never_above_the_limit_whenever_processes_are_killed() {
    let place = Place::new();
    let mut random = fastrand::Rng::with_seed(7);
    let mut churning = || {
        let mut member = Member::joined(&place);
        assert_eq!(member.tell(&format!("churn {}", random.u32(..))), "churning");
        member
    };
    let mut members: Vec<Member> = (0..4).map(|_| churning()).collect();
    let mut highest = 0;
    for round in 0..60 {
        for _ in 0..20 {
            let held = place.held();
            assert!(held <= 100, "{held} of 100 are held");
            highest = highest.max(held);
        }
        let victim = round % members.len();
        assert!(members.iter_mut().all(|member| member.child.try_wait().is_ok_and(|end| end.is_none())), "an error");
        std::mem::replace(&mut members[victim], churning()).kill();
    }
    assert!(highest > 50, "they take memory: {highest}");
    let mut last = Member::joined(&place);
    members.into_iter().for_each(Member::kill);
    // Those that lived a little longer may have looked after the others.
    last.tell("sweep");
    assert_eq!((place.look().devices[0].1.len(), place.held()), (1, 0));
    assert_eq!(last.tell("take 100"), "taken");
    last.end();
    assert!(!place.file().exists());
}

#[test]
fn a_stopped_one_is_seen_and_keeps_what_it_holds() {
    let place = Place::new();
    let (mut first, mut second) = (Member::joined(&place), Member::joined(&place));
    assert_eq!(first.tell("take 80"), "taken");
    first.signal(libc::SIGSTOP);
    until("it is stopped", || place.look().devices[0].1.iter().any(|member| member.state == Now::Stopped));
    assert!(second.tell("take 30").contains("others hold 80B"));
    let pid = first.child.id();
    assert!(second.tell("members").contains(&format!("{pid}:Stopped:80")));
    // It can be killed as it is.
    first.kill();
    assert_eq!(second.tell("take 100"), "taken");
}

#[test]
fn one_that_is_stopped_with_the_lock_is_named() {
    let place = Place::new();
    let mut second = Member::joined(&place);
    let mut holder = Member::new(&place);
    assert_eq!(holder.tell(&format!("seize {}", place.file().display())), "seized");
    holder.signal(libc::SIGSTOP);
    let refused = second.tell("take 10");
    let pid = holder.child.id();
    assert!(refused.contains(&format!("process {pid} has held the lock of its books for 2 s")), "{refused}");
    // Whoever looks still sees something.
    assert_eq!(place.look().devices[0].1.len(), 1);
    holder.kill();
    assert_eq!(second.tell("take 10"), "taken");
}

#[test]
fn looking_does_not_end_a_membership() {
    let place = Place::new();
    let (mut first, mut second) = (Member::joined(&place), Member::joined(&place));
    assert_eq!(first.tell("take 80"), "taken");
    assert_eq!(first.tell("look"), "2");
    assert_eq!(second.tell("sweep"), "0");
    assert!(second.tell("take 30").contains("others hold 80B"));
}

/// The others take it for dead, as its locks have gone; it does not touch what is theirs now.
#[test]
fn one_whose_descriptor_was_closed_is_told() {
    let place = Place::new();
    let (mut first, mut second) = (Member::joined(&place), Member::joined(&place));
    assert_eq!(first.tell("take 30"), "taken");
    assert_eq!(first.tell("close"), "closed");
    assert_eq!(second.tell("take 100"), "taken");
    let mut third = Member::joined(&place);
    let refused = first.tell("take 10");
    assert!(refused.contains("this process's slot was taken away while it lives"), "{refused}");
    assert_eq!((second.tell("trim 50"), third.tell("take 50")), ("trimmed".into(), "taken".into()));
    assert_eq!(first.tell("give"), "gave 30");
    assert_eq!((first.tell("publish 5 5"), third.tell("held")), ("published".into(), "50".into()));
    assert_eq!(place.held(), 100);
    first.kill();
}

#[test]
fn a_lock_that_was_lost_is_taken_again() {
    let place = Place::new();
    let (mut first, mut second) = (Member::joined(&place), Member::joined(&place));
    assert_eq!(first.tell("take 30"), "taken");
    assert_eq!(first.tell(&format!("reopen {}", place.file().display())), "closed");
    assert_eq!(first.tell("tick"), "looked");
    assert_eq!(second.tell("sweep"), "0");
    assert!(second.tell("take 80").contains("others hold 30B"));
}

#[test]
fn nothing_is_taken_from_a_group_whose_file_was_removed() {
    let place = Place::new();
    let mut first = Member::joined(&place);
    assert_eq!((first.tell("take 30"), first.tell("tick")), ("taken".into(), "looked".into()));
    assert_eq!(first.tell("take 10"), "taken");
    std::fs::remove_file(place.file()).expect("its owner");
    assert_eq!(first.tell("tick"), "looked");
    let refused = first.tell("take 10");
    assert!(refused.contains("its file was removed while it has members"), "{refused}");
    assert_eq!((first.tell("give"), first.tell("held")), ("gave 10".into(), "30".into()));
    // Others begin anew, and the first one leaves their file alone.
    let mut second = Member::joined(&place);
    assert_eq!(second.tell("take 100"), "taken");
    first.end();
    assert_eq!(place.held(), 100);
}

/// To look would end that copy's locks, if it closed the file.
#[test]
fn a_second_copy_of_the_library_looks_without_harm() {
    let place = Place::new();
    let mut other = Member::joined(&place);
    let mut both = Member::new(&place);
    let file = place.file();
    assert_eq!(both.tell(&format!("map {}", file.display())), "mapped");
    // The lock of a slot that nobody has stands for the other copy's.
    assert_eq!(both.tell(&format!("seize {}", file.display())), "seized");
    assert_eq!((both.tell("look"), both.tell("look")), ("1".into(), "1".into()));
    assert!(other.tell("take 10").contains("has held the lock of its books for 2 s"));
    both.kill();
    assert_eq!(other.tell("take 10"), "taken");
}

/// Two libraries in one process would take each other's locks for their own.
#[test]
fn a_second_copy_of_the_library_in_a_process_is_refused() {
    let place = Place::new();
    let mut first = Member::joined(&place);
    let mut second = Member::new(&place);
    assert_eq!(second.tell(&format!("map {}", place.file().display())), "mapped");
    let refused = second.tell("join 100");
    assert!(refused.contains("another copy of this library in this process is a member"), "{refused}");
    assert_eq!(first.tell("take 100"), "taken");
}

#[test]
fn a_child_is_no_member_and_can_become_one() {
    let place = Place::new();
    let (mut parent, mut other) = (Member::joined(&place), Member::joined(&place));
    assert_eq!(parent.tell("take 60"), "taken");
    assert_eq!(parent.tell("fork"), "0");
    // What the child dropped, and that it joined, left and ended, did nothing to its parent's membership.
    assert_eq!(other.tell("sweep"), "0");
    assert!(other.tell("take 50").contains("others hold 60B"));
    assert_eq!(parent.tell("take 40"), "taken");
    // Of a parent that is killed all is free, though a child of it may live.
    parent.kill();
    assert_eq!(other.tell("take 100"), "taken");
}

/// Forks, and has the child do what a child may; its exit status.
pub fn in_a_child(state: &mut State) -> String {
    // SAFETY: the child goes on with this thread alone, touches no lock that another thread had, and ends by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid != 0 {
        let mut status = 0;
        // SAFETY: the child is this process's, and the number is this call's.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        return status.to_string();
    }
    let status = child(state);
    // SAFETY: it ends the process, and nothing of it is used again.
    unsafe { libc::_exit(status) }
}

/// 0, or which step was wrong.
fn child(state: &mut State) -> i32 {
    let inherited = state.group.take().expect("the parent has joined");
    let is_refused = |text: &str| text.contains("is a child of a member of the group `team`");
    if !state.share().take(Bytes::new(1)).is_err_and(|refused| is_refused(&refused.to_string())) {
        return 1;
    }
    let share = state.share.take().expect("the parent has joined");
    share.publish(Bytes::new(5), Bytes::new(5));
    if !share.wanted().is_nothing() || !share.available().is_zero() || inherited.members(0).is_ok() {
        return 2;
    }
    let terms =
        Terms { limits: vec![Bytes::new(100)], platform: "cpu", explicit_limit: false, min: Bytes::ZERO, weight: 100 };
    let Ok(joined) = Group::join("team", &terms) else { return 3 };
    let own = joined.group.share(0).expect("a device");
    // What the parent has is dropped here; the child's own membership outlives that.
    state.taken.clear();
    drop((share, inherited));
    if own.available() != Bytes::new(40) || own.take(Bytes::new(41)).is_ok() {
        return 4;
    }
    let Ok(taken) = own.take(Bytes::new(40)) else { return 5 };
    let members = joined.group.members(0).unwrap_or_default();
    if members.len() != 3 || !members.iter().all(|member| member.is_alive) {
        return 6;
    }
    drop((taken, own, joined));
    let left = pjrt_arena::group::look("team").map_or(0, |picture| picture.devices[0].1.len());
    if left != 2 || Folder::of_user().is_err() { 7 } else { 0 }
}
