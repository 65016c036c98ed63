//! How finely exchanges have cut the address space.
//!
//! ```text
//!  one mapping:       |......................................|
//!  after an exchange: |.......|block.|............|hole..|...|    four cuts, five mappings
//! ```
//!
//! The kernel keeps the address at which a page was first used, and joins neighbouring mappings only where those run
//! on: each end of an exchanged range is a border between mappings from then on. Mappings are bounded for the whole
//! process (`vm.max_map_count`, 65530 as a rule), so the cuts of all devices together are bounded here, and they must
//! be known, because before Linux 6.17 a range across a border cannot be remapped at once.
//!
//! The book errs on the safe side. A range that moves back home heals (measured: all four cuts), and so do neighbours
//! that moved alike; the book learns of it only when it looks into `/proc/self/maps`, which it does when room runs out.

use std::{
    collections::BTreeSet,
    fs,
    ops::Bound,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    device::shift::{Direction, Extent, Shift},
    units::{Address, Bytes},
};

/// The cuts of all devices of the process.
static ALL: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// What an exchange adds at most.
const PER_EXCHANGE: usize = 4;

/// The largest piece that is exchanged at once: parking takes twice as many addresses.
const MOST: Bytes = Bytes::gib(1);

/// How many cuts the process may have: an eighth of the mappings that the kernel allows it.
pub(super) fn limit() -> usize {
    let allowed = fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse().ok());
    allowed.unwrap_or(65_530_usize) / 8
}

/// The cuts of one device: addresses where one mapping may end and another begin.
#[derive(Debug)]
pub(super) struct Cuts {
    at: BTreeSet<Address>,
    /// How many all devices may have, and have.
    limit: usize,
    all: Arc<AtomicUsize>,
    /// How many were left when the kernel was last asked.
    known: usize,
}

impl Cuts {
    pub(super) fn new(limit: usize) -> Self {
        Self::counted_by(Arc::clone(&ALL), limit)
    }

    /// None yet. `all` counts them, beside those of other devices.
    pub(super) fn counted_by(all: Arc<AtomicUsize>, limit: usize) -> Self {
        Self { at: BTreeSet::new(), limit, all, known: 0 }
    }

    /// The foremost piece of `shift` of which neither source nor hole has a cut inside, in bytes. O(log n).
    pub(super) fn piece(&self, shift: Shift) -> Bytes {
        let bytes = shift.source.bytes.min(MOST);
        let in_source = self.uncut(shift.source, shift.direction);
        let bytes = bytes.min(in_source);
        // A shorter piece has the same hole or a shorter one, so this does not have to be repeated.
        let in_hole = self.uncut(shift.hole, shift.direction);
        if in_hole < shift.hole.bytes.min(bytes) { in_hole } else { bytes }
    }

    /// How far `extent` reaches from its foremost end on without a cut.
    fn uncut(&self, extent: Extent, direction: Direction) -> Bytes {
        let mut inside = self.inside(extent);
        match direction {
            Direction::Down => inside.next().map_or(extent.bytes, |&cut| cut - extent.start),
            Direction::Up => inside.next_back().map_or(extent.bytes, |&cut| extent.end() - cut),
        }
    }

    /// The cuts inside of an extent, those at its ends not.
    pub(super) fn inside(&self, extent: Extent) -> impl DoubleEndedIterator<Item = &Address> {
        // A range that excludes both ends panics where they are the same.
        let end = if extent.bytes.is_zero() { Bound::Included(extent.end()) } else { Bound::Excluded(extent.end()) };
        self.at.range((Bound::Excluded(extent.start), end))
    }

    /// Whether one more exchange is within the limit. Asks the kernel where the cuts have grown much since it was last
    /// asked: some milliseconds, at most once in an eighth of the limit.
    pub(super) fn have_room(&mut self) -> bool {
        let (all, limit) = (Arc::clone(&self.all), self.limit);
        let room = || all.load(Ordering::Relaxed) + PER_EXCHANGE <= limit;
        if !room() && self.at.len() > self.known + self.limit / 8 {
            if let Ok(maps) = fs::read_to_string("/proc/self/maps") {
                let borders: BTreeSet<Address> = borders(&maps).collect();
                self.change(|at| at.retain(|cut| borders.contains(cut)));
            }
            self.known = self.at.len();
        }
        room()
    }

    /// Notes that destination and gap are one mapping each, whatever they were.
    pub(super) fn exchanged(&mut self, shift: Shift) {
        self.renewed(shift.destination);
        self.renewed(shift.gap);
    }

    /// Notes that an extent is one mapping now.
    pub(super) fn renewed(&mut self, extent: Extent) {
        self.forget(extent);
        self.change(|at| at.extend([extent.start, extent.end()]));
    }

    /// Drops what lies in an extent or at its ends.
    pub(super) fn forget(&mut self, extent: Extent) {
        let gone: Vec<Address> = self.at.range(extent.start..=extent.end()).copied().collect();
        self.change(|at| gone.iter().for_each(|cut| _ = at.remove(cut)));
    }

    fn change(&mut self, how: impl FnOnce(&mut BTreeSet<Address>)) {
        let before = self.at.len();
        how(&mut self.at);
        self.all.fetch_add(self.at.len().wrapping_sub(before), Ordering::Relaxed);
        self.known = self.known.min(self.at.len());
    }
}

impl Drop for Cuts {
    fn drop(&mut self) {
        self.change(BTreeSet::clear);
    }
}

/// Where mappings begin and end, as `/proc/self/maps` has them.
pub(super) fn borders(maps: &str) -> impl Iterator<Item = Address> {
    maps.lines().filter_map(|line| line.split_once(' ')?.0.split_once('-')).flat_map(|(start, end)| {
        [start, end].into_iter().filter_map(|hex| u64::from_str_radix(hex, 16).ok()).map(Address::new)
    })
}
