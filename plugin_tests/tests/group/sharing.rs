//! Taking, giving and asking.

use crate::member::{Member, Place};

#[test]
fn what_one_holds_the_other_lacks() {
    let place = Place::new();
    let (mut first, mut second) = (Member::joined(&place), Member::joined(&place));
    assert_eq!(first.tell("take 70"), "taken");
    assert_eq!(second.tell("available"), "30");
    assert_eq!(
        second.tell("take 31"),
        "31B more are not free in the shared budget of device 0: of 100B this process holds 0B, others hold 70B, 0B \
         more are guaranteed to them, 0B are kept for older asks, and 30B could be taken; this process could \
         hold 100B at most"
    );
    assert_eq!(second.tell("take 30"), "taken");
    assert_eq!(place.held(), 100);
    assert_eq!(first.tell("trim 50"), "trimmed");
    assert_eq!(second.tell("take 20"), "taken");
    assert_eq!((first.tell("give"), first.tell("held")), ("gave 50".into(), "0".into()));
    // Leaving gives all back.
    second.end();
    assert_eq!((first.tell("available"), place.held()), ("100".into(), 0));
}

#[test]
fn a_minimum_is_kept_for_its_owner() {
    let place = Place::new();
    let mut first = Member::joined(&place);
    let mut second = Member::new(&place);
    assert_eq!(second.tell("join 100 40"), "joined");
    assert!(first.tell("take 61").contains("40B more are guaranteed to them"));
    assert_eq!(first.tell("take 60"), "taken");
    assert_eq!(second.tell("take 40"), "taken");
}

#[test]
fn whoever_asks_is_given_what_lies_idle() {
    let place = Place::new();
    let (mut holder, mut asker) = (Member::joined(&place), Member::joined(&place));
    assert_eq!(holder.tell("take 60"), "taken");
    assert_eq!(holder.tell("take 40"), "taken");
    assert_eq!(holder.tell("publish 60 40"), "published");
    assert_eq!(holder.tell("wanted"), "0 0");
    let asks = holder.tell("asks");
    holder.begin(&format!("listen {asks}"));
    assert_eq!(asker.tell("ask it 30 60000"), "asked");
    assert_ne!(holder.answer(), asks);
    assert_eq!(holder.tell("wanted"), "30 0");
    asker.begin("await it");
    assert_eq!(holder.tell("give"), "gave 40");
    assert_eq!(asker.answer(), "served");
    // It is kept for the one that asked, but for what is more.
    assert_eq!(holder.tell("available"), "10");
    assert_eq!(asker.tell("take 30"), "taken");
    assert_eq!(asker.tell("withdraw it"), "withdrawn");
    assert_eq!((holder.tell("available"), holder.tell("wanted")), ("10".into(), "0 0".into()));
}

#[test]
fn asks_of_one_process_are_shown_one_after_the_other() {
    let place = Place::new();
    let (mut holder, mut asker) = (Member::joined(&place), Member::joined(&place));
    assert_eq!(holder.tell("take 100"), "taken");
    assert_eq!(holder.tell("publish 0 100"), "published");
    assert_eq!(asker.tell("ask first 10 60000"), "asked");
    assert_eq!(asker.tell("ask second 25 60000"), "asked");
    assert_eq!(holder.tell("wanted"), "10 0");
    assert_eq!(asker.tell("withdraw first"), "withdrawn");
    assert_eq!(holder.tell("wanted"), "25 0");
    assert_eq!(asker.tell("withdraw second"), "withdrawn");
    assert_eq!(holder.tell("wanted"), "0 0");
}
