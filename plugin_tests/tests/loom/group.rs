//! The words on which the members of a group sleep. Threads stand for processes: what they share is words as well.

use std::{sync::Arc, time::Duration};

use loom::thread;

use crate::{
    every_interleaving,
    signal::Signal,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// A group's file: what is free, what is asked for, and the two words.
#[derive(Default)]
struct Books {
    free: AtomicUsize,
    asks: AtomicUsize,
    asked: Signal,
    given: Signal,
}

impl Books {
    /// As `Ask::is_served` and `Ask::wait`, for as long as it takes.
    fn ask(&self, bytes: usize) {
        self.asks.fetch_add(1, Relaxed);
        self.asked.tell();
        loop {
            let seen = self.given.seen();
            if self.free.load(Relaxed) >= bytes {
                return;
            }
            self.given.wait(seen, Duration::MAX);
        }
    }

    /// As dropping what was taken.
    fn give(&self, bytes: usize) {
        self.free.fetch_add(bytes, Relaxed);
        self.given.tell();
    }

    /// As `Group::wait_for_asks`, until there are so many.
    fn wait_for_asks(&self, count: usize) {
        loop {
            let seen = self.asked.seen();
            if self.asks.load(Relaxed) >= count {
                return;
            }
            self.asked.wait(seen, Duration::MAX);
        }
    }
}

/// Who waits for memory sees each gift, or is woken by it: the word is read before the look, and changed after the
/// gift.
#[test]
fn no_gift_is_missed() {
    every_interleaving(3, || {
        let books = Arc::new(Books::default());
        let giver = {
            let books = Arc::clone(&books);
            thread::spawn(move || {
                books.give(1);
                books.give(1);
            })
        };
        books.ask(2);
        giver.join().expect("no panic");
    });
}

/// An ask reaches whoever waits for one, and the answer reaches the asker: neither sleeps on.
#[test]
fn an_ask_and_its_answer_meet() {
    every_interleaving(None, || {
        let books = Arc::new(Books::default());
        let holder = {
            let books = Arc::clone(&books);
            thread::spawn(move || {
                books.wait_for_asks(1);
                books.give(1);
            })
        };
        books.ask(1);
        holder.join().expect("no panic");
    });
}

/// A gift is told to all who wait, so the one whom it serves learns of it.
#[test]
fn a_gift_is_told_to_all() {
    every_interleaving(2, || {
        let books = Arc::new(Books::default());
        let askers = [(); 2].map(|()| {
            let books = Arc::clone(&books);
            thread::spawn(move || books.ask(1))
        });
        books.wait_for_asks(2);
        books.give(1);
        askers.into_iter().for_each(|asker| asker.join().expect("no panic"));
    });
}
