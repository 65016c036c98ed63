//! Best fit for blocks that come largest first.
//!
//! ```text
//!  shelf    2  3  3  7 | 12  15  40      places sorted by size, then address; never changed
//!                   seen ^
//!  stack               [12  15  40]      top left: the smallest place that is large enough
//!  rests    5  1                         what is left of places that were used
//! ```
//!
//! As sizes only fall, every place on the stack is large enough, and what a smaller block admits is smaller than all
//! of them: the best fit is always the top. So a trial keeps no set of holes and needs no undo: it starts from an
//! empty stack and refers to the shelf by ranges. A trial of k blocks among n places takes O(k log n), and one step
//! for each barred place that it meets.

use std::{collections::BinaryHeap, ops::Range};

/// Places looked at for one where pages can be exchanged, before the search jumps to those that surely allow it.
const PROBES: usize = 16;

/// Room for blocks. The order is by size, then the lower owner: the lower address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) size: u32,
    /// The hole's span, or whatever number the shelf's maker chose.
    pub(super) owner: u32,
    pub(super) offset: u32,
}

#[derive(Clone, Debug)]
enum Tier {
    Shelf(Range<usize>),
    Rest(Place),
}

/// One trial after another on the same shelf; the vectors are kept between trials.
#[derive(Debug)]
pub(super) struct BestFit {
    shelf: Vec<Place>,
    /// Owners whose places on the shelf are not to be used.
    barred: Range<u32>,
    /// Sizes fall towards the top (the end).
    stack: Vec<Tier>,
    rests: BinaryHeap<Place>,
    /// `shelf[seen..]` was pushed.
    seen: usize,
}

impl BestFit {
    /// A shelf of `places`, which come in order of their owners.
    pub(super) fn new(places: Vec<Place>) -> Self {
        // Integers are sorted far faster than places; the number says which place it was.
        let keys = places.iter().zip(0u64..).map(|(place, number)| (u64::from(place.size) << u32::BITS) | number);
        let mut keys: Vec<u64> = keys.collect();
        keys.sort_unstable();
        let shelf: Vec<Place> = keys.into_iter().map(|key| places[key as u32 as usize]).collect();
        let seen = shelf.len();
        Self { shelf, barred: 0..0, stack: Vec::new(), rests: BinaryHeap::new(), seen }
    }

    /// The places as they were given, by size.
    pub(super) fn shelf(&self) -> &[Place] {
        &self.shelf
    }

    /// Begins a trial that does not use what `barred` owns.
    pub(super) fn begin(&mut self, barred: Range<u32>) {
        self.barred = barred;
        self.stack.clear();
        self.rests.clear();
        self.seen = self.shelf.len();
    }

    /// Adds a place for this trial: of any owner, even a barred one.
    pub(super) fn add(&mut self, place: Place) {
        if place.size != 0 {
            self.rests.push(place);
        }
    }

    /// Takes the smallest place of `size` or more. Sizes must not grow within a trial.
    pub(super) fn take(&mut self, size: u32) -> Option<Place> {
        self.admit(size);
        loop {
            match self.stack.last_mut()? {
                Tier::Rest(place) => {
                    let place = *place;
                    self.stack.pop();
                    return Some(place);
                }
                Tier::Shelf(range) => match range.next() {
                    None => {
                        self.stack.pop();
                    }
                    Some(index) => {
                        let place = self.shelf[index];
                        if !self.barred.contains(&place.owner) {
                            return Some(place);
                        }
                    }
                },
            }
        }
    }

    /// As [`Self::take`], but only a place that `accept` takes: among the 16 smallest, then among the 16 smallest of
    /// `ample` or more.
    pub(super) fn take_accepted(&mut self, size: u32, ample: u32, accept: impl Fn(Place) -> bool) -> Option<Place> {
        self.admit(size);
        self.search(size, &accept).or_else(|| self.search(ample, &accept))
    }

    fn search(&mut self, least: u32, accept: &impl Fn(Place) -> bool) -> Option<Place> {
        let mut probes = 0..PROBES;
        for depth in (0..self.stack.len()).rev() {
            match self.stack[depth].clone() {
                Tier::Rest(place) => {
                    if place.size < least {
                        continue;
                    }
                    probes.next()?;
                    if accept(place) {
                        self.stack.remove(depth);
                        return Some(place);
                    }
                }
                Tier::Shelf(range) => {
                    let skip = self.shelf[range.clone()].partition_point(|place| place.size < least);
                    for index in range.start + skip..range.end {
                        probes.next()?;
                        let place = self.shelf[index];
                        if !self.barred.contains(&place.owner) && accept(place) {
                            self.stack[depth] = Tier::Shelf(index + 1..range.end);
                            self.stack.insert(depth + 1, Tier::Shelf(range.start..index));
                            return Some(place);
                        }
                    }
                }
            }
        }
        None
    }

    /// Pushes what is now large enough, larger places first.
    fn admit(&mut self, size: u32) {
        let low = self.shelf[..self.seen].partition_point(|place| place.size < size);
        let mut high = self.seen;
        while let Some(rest) = self.rests.peek().copied().filter(|rest| rest.size >= size) {
            self.rests.pop();
            let cut = low + self.shelf[low..high].partition_point(|place| *place <= rest);
            if cut < high {
                self.stack.push(Tier::Shelf(cut..high));
            }
            self.stack.push(Tier::Rest(rest));
            high = cut;
        }
        if low < high {
            self.stack.push(Tier::Shelf(low..high));
        }
        self.seen = low;
    }
}
