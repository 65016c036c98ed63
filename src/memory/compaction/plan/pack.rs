//! Packing: one hole for each run, as large as may be.
//!
//! ```text
//!  before    | a . b . . . c . | # | d . . e . |      # stays
//!  slides    | a b c . . . . . | # | d e . . . |
//!  or        | a b c d e . . . | # | . . . . . |      if that empties a region or makes the largest hole larger
//! ```
//!
//! Blocks only go from later runs to earlier ones. So runs are dealt with in order: first a run's own blocks slide
//! down, then the blocks from later runs arrive behind them, straight from where they lie. No block moves twice.

use std::ops::Range;

use crate::memory::compaction::{
    layout::Spot,
    plan::{
        evacuate::split_by_size,
        fit::{BestFit, FreeRange},
        snapshot::{Draft, LayoutSnapshot},
        step::Plan,
    },
};

/// Regions that are tried for emptying, and runs for the largest hole: both from the last on.
const TRIES: usize = 16;

/// Which run each block goes to, as far as that is decided.
#[derive(Debug)]
struct Packing<'a> {
    snapshot: &'a LayoutSnapshot<'a>,
    /// What is free in each run, and what will be.
    free: Vec<u32>,
    /// Blocks that change runs: (to, block).
    arrivals: Vec<(usize, usize)>,
    /// Whether a run gives or takes such blocks: one that does both would move some of them twice.
    roles: Vec<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Undecided,
    Gives,
    Takes,
}

/// The plan behind [`crate::memory::compaction::plan::pack()`]. O(n log n).
pub(super) fn pack(snapshot: &LayoutSnapshot) -> Plan {
    let mut packing = Packing::new(snapshot);
    packing.empty_regions();
    packing.widen_largest();
    packing.draft().plan
}

impl<'a> Packing<'a> {
    fn new(snapshot: &'a LayoutSnapshot<'a>) -> Self {
        let free = snapshot
            .runs
            .iter()
            .map(|run| snapshot.free_within(run.spans.clone(), snapshot.extent(&run.spans)))
            .collect();
        let roles = vec![Role::Undecided; snapshot.runs.len()];
        Self { snapshot, free, arrivals: Vec::new(), roles }
    }

    /// Empties regions, the last first, as long as all their blocks fit into earlier regions.
    fn empty_regions(&mut self) {
        let snapshot = self.snapshot;
        // Only a region of one run can be emptied: a barrier is a block that stays.
        let is_whole = |run: &Range<usize>| {
            let region = snapshot.spans[run.start].region;
            let beyond = |span: Option<usize>| span.and_then(|span| snapshot.spans.get(span)).map(|span| span.region);
            beyond(run.start.checked_sub(1)) != Some(region) && beyond(Some(run.end)) != Some(region)
        };
        let regions: Vec<usize> =
            (1..snapshot.runs.len()).rev().filter(|&run| is_whole(&snapshot.runs[run].spans)).collect();
        for run in regions.into_iter().take(TRIES) {
            if self.roles[run] == Role::Takes || snapshot.blocks_of(snapshot.runs[run].spans.clone()).next().is_none() {
                continue;
            }
            let found = self.places(run);
            if found.len() == snapshot.blocks_of(snapshot.runs[run].spans.clone()).count() {
                self.assign(run, found);
            }
        }
    }

    /// Moves blocks out of the one run where that makes the largest hole of all larger by the most.
    fn widen_largest(&mut self) {
        let Some(&largest) = self.free.iter().max() else { return };
        let mut runs: Vec<usize> = (1..self.free.len()).filter(|&run| self.roles[run] == Role::Undecided).collect();
        runs.sort_unstable_by_key(|&run| std::cmp::Reverse((self.free[run], run)));
        runs.truncate(TRIES);
        let size = |block: usize| u64::from(self.snapshot.spans[block].size);
        let widened = |run: usize| {
            let found = self.places(run);
            let gain: u64 = found.iter().map(|&(_, block)| size(block)).sum();
            (u64::from(self.free[run]) + gain, run, found)
        };
        let best = runs.into_iter().map(widened).max_by_key(|&(free, run, _)| (free, run));
        if let Some((free, run, found)) = best
            && free > largest.into()
        {
            self.assign(run, found);
        }
    }

    /// Places in earlier runs for the blocks of `run`, as far as there are any: (to, block).
    fn places(&self, run: usize) -> Vec<(usize, usize)> {
        let takes = |&(to, _): &(usize, &u32)| self.roles[to] != Role::Gives;
        let places = self.free[..run]
            .iter()
            .enumerate()
            .filter(takes)
            .filter_map(|(to, &size)| Some(FreeRange { size, owner: u32::try_from(to).ok()?, offset: 0 }));
        let mut fit = BestFit::new(places.collect());
        let (mut leaving, mut staying) = (Vec::new(), Vec::new());
        split_by_size(self.snapshot, &self.snapshot.runs[run].spans, u32::MAX, &mut leaving, &mut staying);
        let mut found = Vec::new();
        for block in leaving {
            let size = self.snapshot.spans[block].size;
            if let Some(place) = fit.take(size) {
                fit.add(FreeRange { size: place.size - size, ..place });
                found.push((place.owner as usize, block));
            }
        }
        found
    }

    fn assign(&mut self, run: usize, found: Vec<(usize, usize)>) {
        for &(to, block) in &found {
            let size = self.snapshot.spans[block].size;
            self.free[to] = self.free[to].saturating_sub(size);
            self.free[run] = self.free[run].saturating_add(size);
            self.roles[to] = Role::Takes;
        }
        if !found.is_empty() {
            self.roles[run] = Role::Gives;
        }
        self.arrivals.extend(found);
    }

    fn draft(&mut self) -> Draft {
        let snapshot = self.snapshot;
        let mut draft = Draft::default();
        let mut gone = vec![false; snapshot.spans.len()];
        for &(_, block) in &self.arrivals {
            gone[block] = true;
        }
        // Stable: those for one run stay largest first.
        self.arrivals.sort_by_key(|&(to, _)| to);
        let mut arrivals = self.arrivals.iter().peekable();
        for (run, between) in snapshot.runs.iter().enumerate() {
            let range = &between.spans;
            let Some(first) = snapshot.spans.get(range.start) else { continue };
            let mut spot = Spot { region: first.region, offset: first.offset };
            let mut put = |block: usize| {
                draft.push(snapshot, block, spot);
                spot.offset = spot.offset.saturating_add(snapshot.spans[block].size);
            };
            snapshot.blocks_of(range.clone()).filter(|&block| !gone[block]).for_each(&mut put);
            while let Some(&(_, block)) = arrivals.next_if(|&&(to, _)| to == run) {
                put(block);
            }
        }
        draft
    }
}
