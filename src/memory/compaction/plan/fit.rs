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
pub(super) struct FreeRange {
    pub(super) size: u32,
    /// The hole's span, or whatever number the shelf's provenance chose.
    pub(super) owner: u32,
    pub(super) offset: u32,
}

#[derive(Clone, Debug)]
enum Tier {
    Shelf(Range<usize>),
    Rest(FreeRange),
}

/// One trial after another on the same shelf; the vectors are kept between trials.
#[derive(Debug)]
pub(super) struct BestFit {
    shelf: Vec<FreeRange>,
    /// Owners whose places on the shelf are not to be used.
    barred: Range<u32>,
    /// Sizes fall towards the top (the end).
    stack: Vec<Tier>,
    rests: BinaryHeap<FreeRange>,
    /// `shelf[seen..]` was pushed.
    seen: usize,
}

impl BestFit {
    /// A shelf of `places`, which come in order of their owners.
    pub(super) fn new(places: Vec<FreeRange>) -> Self {
        let shelf = by_size(places);
        let seen = shelf.len();
        Self { shelf, barred: 0..0, stack: Vec::new(), rests: BinaryHeap::new(), seen }
    }

    /// The places as they were given, by size.
    pub(super) fn shelf(&self) -> &[FreeRange] {
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
    pub(super) fn add(&mut self, place: FreeRange) {
        if place.size != 0 {
            self.rests.push(place);
        }
    }

    /// Takes the smallest place of `size` or more. Sizes must not grow within a trial.
    pub(super) fn take(&mut self, size: u32) -> Option<FreeRange> {
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
    pub(super) fn take_accepted(
        &mut self,
        size: u32,
        ample: u32,
        accept: impl Fn(FreeRange) -> bool,
    ) -> Option<FreeRange> {
        self.admit(size);
        self.search(size, &accept).or_else(|| self.search(ample, &accept))
    }

    fn search(&mut self, least: u32, accept: &impl Fn(FreeRange) -> bool) -> Option<FreeRange> {
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

/// Sorts by size, and keeps the order of equal sizes: a counting sort for each byte of the sizes, the lowest first
/// (Knuth, "The Art of Computer Programming", algorithm 5.2.5R). Thousands of holes are sorted for a plan that then
/// uses a few, and comparing them took longer than all trials.
fn by_size(mut places: Vec<FreeRange>) -> Vec<FreeRange> {
    const DIGIT: u32 = 8;
    const FEW: usize = 1 << DIGIT;
    if places.len() < FEW {
        places.sort_by_key(|place| place.size);
        return places;
    }
    let mut sorted = places.clone();
    let bits = places.iter().fold(0, |bits, place| bits | place.size);
    let mut shift = 0;
    while bits.checked_shr(shift).is_some_and(|rest| rest != 0) {
        let digit = |place: &FreeRange| (place.size >> shift) as u8;
        let mut counts = [0; 1 << DIGIT];
        places.iter().for_each(|place| counts[usize::from(digit(place))] += 1);
        // From how many have a digit to where they begin.
        let mut start = 0;
        counts.iter_mut().for_each(|count| start += std::mem::replace(count, start));
        for place in &places {
            let at = &mut counts[usize::from(digit(place))];
            sorted[*at] = *place;
            *at += 1;
        }
        std::mem::swap(&mut places, &mut sorted);
        shift += DIGIT;
    }
    places
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn places_are_sorted_by_size_then_owner(
            sizes in prop::collection::vec(prop_oneof![0..300u32, any::<u32>()], 0..2000), mask in any::<u32>(),
        ) {
            let places: Vec<FreeRange> =
                sizes.iter().zip(0..).map(|(size, owner)| FreeRange { size: size & mask, owner, offset: !owner }).collect();
            let mut expected = places.clone();
            expected.sort();
            prop_assert_eq!(by_size(places), expected);
        }
    }
}
