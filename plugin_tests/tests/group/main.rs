//! Processes that share a budget: real ones, which join, take, ask, are stopped and killed, and leave.

mod damage;
mod death;
mod joining;
mod member;
mod namespaces;
mod sharing;

/// The other processes of these tests: this program, told by its parent what to do. Without a parent it does nothing.
#[test]
fn process() {
    member::serve();
}
