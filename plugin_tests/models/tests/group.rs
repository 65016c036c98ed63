//! Every state of a few groups of processes that share a budget.

use models::group::Group;
use stateright::{Checker, Model};

/// Checks all states, and says how many there are.
fn check(group: Group) {
    let checker = group.clone().checker().threads(2).spawn_bfs().join();
    println!("{group:?}: {} states, {} of them different", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
    assert!(checker.is_done());
}

#[test]
fn three_processes_with_equal_terms() {
    check(Group { limit: 3, terms: vec![(0, 100); 3], amounts: vec![1, 2], deaths: 2, patient: false });
}

#[test]
fn a_minimum_and_other_weights() {
    check(Group { limit: 4, terms: vec![(1, 100), (0, 300), (0, 100)], amounts: vec![2], deaths: 1, patient: false });
}

#[test]
fn two_processes_that_die_again_and_again() {
    check(Group { limit: 4, terms: vec![(2, 100), (1, 50)], amounts: vec![1, 3], deaths: 3, patient: false });
}

#[test]
fn asks_that_wait_long() {
    check(Group { limit: 3, terms: vec![(0, 100), (1, 100), (0, 100)], amounts: vec![2], deaths: 1, patient: true });
}
