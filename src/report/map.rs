//! A text map of one arena: a character for each stretch of its memory.
//!
//! ```text
//!   cpu:0: 92.5KiB of 256.0KiB in use, 12.5KiB of it pinned, 25.0KiB of it pending,
//!   17.0KiB of it scratch, 163.5KiB free, largest hole 80.0KiB, fragmentation 51%;
//!   a cell is 4.0KiB
//!     256.0KiB |SSSS########..~~~~~~............|
//!              |........PPP.......p.+.s.-...p.#.|
//!   # live P pinned ~ pending S scratch . hole
//!   + p - s: less than half of the cell
//! ```
//!
//! A cell shows a hole only where there is nothing else: pinned before scratch before the larger of live and pending.
//! So the smallest block is seen, and a run of dots is one hole of at least that size, by less than a cell longer at
//! either end.

use std::{fmt::Write as _, ops::Range};

use crate::{
    memory::AddressRange,
    units::{Address, Bytes},
};

/// What holds a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// An owner, and it may be moved.
    Live,
    /// An owner, and an outsider knows its address.
    Pinned,
    /// Freed by its owner, but the device may still use it.
    Pending,
    /// A program that runs, for its temporaries.
    Scratch,
}

/// A block as the map sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapBlock {
    /// The first address.
    pub address: Address,
    /// Bytes that it holds, rounding included.
    pub held: Bytes,
    /// What holds it.
    pub kind: MapKind,
}

/// The room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// The longest line, in characters; fewer than [`Screen::LEAST_COLUMNS`] count as so many.
    pub columns: usize,
    /// The most rows of cells; none counts as one. A few lines of numbers and explanation are added.
    pub rows: usize,
}

impl Screen {
    /// Below this, no line of numbers is readable.
    pub const LEAST_COLUMNS: usize = 32;
}

/// The size of a region, a space and the bars around the cells.
const MARGIN: usize = TITLE + 3;
/// `1023.99MiB`.
const TITLE: usize = 10;
/// Blocks lie at multiples of this; no cell is smaller.
const SMALLEST_CELL: u64 = 256;

/// Bytes of a cell, or of the whole arena, by what holds them.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    live: u64,
    pinned: u64,
    pending: u64,
    scratch: u64,
}

impl Tally {
    fn add(&mut self, kind: MapKind, bytes: u64) {
        let sum = match kind {
            MapKind::Live => &mut self.live,
            MapKind::Pinned => &mut self.pinned,
            MapKind::Pending => &mut self.pending,
            MapKind::Scratch => &mut self.scratch,
        };
        *sum = sum.saturating_add(bytes);
    }

    fn used(self) -> u64 {
        [self.live, self.pinned, self.pending, self.scratch].into_iter().fold(0, u64::saturating_add)
    }

    /// The character for a cell of `bytes`.
    fn shown(self, bytes: u64) -> char {
        let (held, most, part) = match self {
            Self { pinned, .. } if pinned > 0 => (pinned, 'P', 'p'),
            Self { scratch, .. } if scratch > 0 => (scratch, 'S', 's'),
            Self { live: 0, pending: 0, .. } => return '.',
            Self { live, pending, .. } if live >= pending => (live, '#', '+'),
            Self { pending, .. } => (pending, '~', '-'),
        };
        if held >= bytes - bytes / 2 { most } else { part }
    }
}

/// The arena called `name` as text: its numbers, its regions in cells, a legend. Every line ends with a line feed and
/// has at most `screen.columns` characters.
///
/// Each region starts on a line of its own, under its size; all cells are equal, and a power of two of bytes, as small
/// as the rows allow. Where there are more regions than rows, the largest are drawn and the others are counted in one
/// line. What of a block lies in no region is left out.
///
/// O(n log n) in regions and blocks, plus the cells.
pub fn map(name: &str, regions: &[AddressRange], blocks: &[MapBlock], screen: Screen) -> String {
    let columns = screen.columns.max(Screen::LEAST_COLUMNS);
    let mut spans: Vec<Span> = regions.iter().filter_map(|&region| Span::of(region.address, region.bytes)).collect();
    spans.sort_unstable_by_key(|span| span.start);
    let mut held: Vec<(Span, MapKind)> =
        blocks.iter().filter_map(|block| Some((Span::of(block.address, block.held)?, block.kind))).collect();
    held.sort_unstable_by_key(|(span, _)| span.start);

    let drawn = Drawn::choose(&spans, columns - MARGIN, screen.rows.max(1));
    let mut text = String::new();
    push_wrapped(&mut text, columns, &summary(name, &spans, &held, drawn.cell));
    for span in &drawn.spans {
        push_region(&mut text, *span, &held, drawn.cell, columns - MARGIN);
    }
    if let Some(rest) = drawn.rest(&spans) {
        push_wrapped(&mut text, columns, &rest);
    }
    if !spans.is_empty() {
        push_wrapped(&mut text, columns, "# live P pinned ~ pending S scratch . hole");
        push_wrapped(&mut text, columns, "+ p - s: less than half of the cell");
    }
    text
}

/// Addresses from `start` to before `end`; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u64,
    end: u64,
}

impl Span {
    fn of(address: Address, bytes: Bytes) -> Option<Self> {
        let start = address.get();
        Some(Self { start, end: start.saturating_add(bytes.get()) }).filter(|span| span.start < span.end)
    }

    fn bytes(self) -> u64 {
        self.end - self.start
    }

    /// The part that lies in `other` too.
    fn within(self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }
}

/// The regions that are drawn, and the bytes of a cell.
struct Drawn {
    spans: Vec<Span>,
    cell: u64,
}

impl Drawn {
    /// The smallest cell with which `spans` fill at most `rows` rows of `width` cells.
    fn choose(spans: &[Span], width: usize, rows: usize) -> Self {
        let mut spans = spans.to_vec();
        if spans.len() > rows {
            spans.sort_by_key(|span| std::cmp::Reverse(span.bytes()));
            spans.truncate(rows);
            spans.sort_unstable_by_key(|span| span.start);
        }
        let mut cell = SMALLEST_CELL;
        let fits = |cell: u64| {
            let width = (width as u64).saturating_mul(cell);
            spans.iter().map(|span| span.bytes().div_ceil(width)).fold(0, u64::saturating_add) <= rows as u64
        };
        // A region takes one row at last, and there are no more of them than rows.
        while !fits(cell) && cell < 1 << 63 {
            cell *= 2;
        }
        Self { spans, cell }
    }

    /// What is said of the regions that are not drawn.
    fn rest(&self, all: &[Span]) -> Option<String> {
        let count = all.len() - self.spans.len();
        let bytes = total(all).saturating_sub(total(&self.spans));
        (count > 0).then(|| format!("and {count} smaller regions of {} together", Bytes::new(bytes)))
    }
}

fn total(spans: &[Span]) -> u64 {
    spans.iter().fold(0, |sum, span| sum.saturating_add(span.bytes()))
}

/// The parts of `held` that lie in `span`. `held` is sorted by start and does not overlap, so its ends are sorted too.
fn parts(span: Span, held: &[(Span, MapKind)]) -> impl Iterator<Item = (Span, MapKind)> {
    let first = held.partition_point(|(block, _)| block.end <= span.start);
    held[first..]
        .iter()
        .take_while(move |(block, _)| block.start < span.end)
        .filter_map(move |(block, kind)| Some((block.within(span)?, *kind)))
}

/// The numbers of the whole arena.
fn summary(name: &str, spans: &[Span], held: &[(Span, MapKind)], cell: u64) -> String {
    if spans.is_empty() {
        return format!("{name}: no memory taken from the device yet");
    }
    let (mut tally, mut largest) = (Tally::default(), 0);
    for &span in spans {
        let mut reached = span.start;
        for (part, kind) in parts(span, held) {
            tally.add(kind, part.bytes());
            largest = largest.max(part.start.saturating_sub(reached));
            reached = reached.max(part.end);
        }
        largest = largest.max(span.end - reached);
    }
    let pool = total(spans);
    let free = pool.saturating_sub(tally.used());
    let size = |bytes: u64| Bytes::new(bytes).to_string();
    let mut text = format!("{name}: {} of {} in use", size(tally.used()), size(pool));
    for (bytes, what) in [(tally.pinned, "pinned"), (tally.pending, "pending"), (tally.scratch, "scratch")] {
        if bytes > 0 {
            let _ = write!(text, ", {} of it {what}", size(bytes));
        }
    }
    let _ = write!(text, ", {} free, largest hole {}", size(free), size(largest));
    // Of no free memory nothing is scattered.
    if free > 0 {
        let scattered = 1.0 - largest as f64 / free as f64;
        let _ = write!(text, ", fragmentation {:.0}%", 100.0 * scattered);
    }
    let _ = write!(text, "; a cell is {}", size(cell));
    text
}

/// A region's rows.
fn push_region(text: &mut String, span: Span, held: &[(Span, MapKind)], cell: u64, width: usize) {
    let starts: Range<u64> = 0..span.bytes().div_ceil(cell);
    let cells: String = starts
        .map(|index| {
            let start = span.start.saturating_add(index.saturating_mul(cell));
            let cell = Span { start, end: start.saturating_add(cell).min(span.end) };
            let mut tally = Tally::default();
            for (part, kind) in parts(cell, held) {
                tally.add(kind, part.bytes());
            }
            tally.shown(cell.bytes())
        })
        .collect();
    // One byte each, so the rows can be cut out by index.
    for (number, row) in cells.as_bytes().chunks(width).enumerate() {
        let size = Some(Bytes::new(span.bytes()).to_string()).filter(|size| number == 0 && size.len() <= TITLE);
        let _ = writeln!(text, "{:>TITLE$} |{}|", size.unwrap_or_default(), String::from_utf8_lossy(row));
    }
}

fn push_wrapped(text: &mut String, columns: usize, line: &str) {
    text.push_str(&textwrap::fill(line, columns));
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KIB: u64 = 1 << 10;

    fn region(start: u64, bytes: u64) -> AddressRange {
        AddressRange { address: Address::new(start), bytes: Bytes::new(bytes) }
    }

    fn block(start: u64, bytes: u64, kind: MapKind) -> MapBlock {
        MapBlock { address: Address::new(start), held: Bytes::new(bytes), kind }
    }

    /// The cells of the map, row by row.
    fn cells(text: &str) -> Vec<&str> {
        text.lines().filter_map(|line| line.split_once('|')?.1.strip_suffix('|')).collect()
    }

    const WIDE: Screen = Screen { columns: MARGIN + 32, rows: 2 };

    #[test]
    fn a_map_to_be_read() {
        use MapKind::{Live, Pending, Pinned, Scratch};
        // 64 cells of 4 KiB.
        let at = |cell: u64, cells: u64, kind| block(4 * KIB * cell, 4 * KIB * cells, kind);
        let blocks = [
            at(0, 4, Scratch),
            at(4, 8, Live),
            at(14, 6, Pending),
            at(40, 3, Pinned),
            // Small ones amid holes: none may vanish.
            block(4 * KIB * 50 + 1024, 256, Pinned),
            block(4 * KIB * 52, KIB, Live),
            block(4 * KIB * 54, KIB, Scratch),
            block(4 * KIB * 56, KIB, Pending),
            // More than half live, yet the pinned granule wins.
            block(4 * KIB * 60, 3 * KIB, Live),
            block(4 * KIB * 60 + 3 * KIB, 256, Pinned),
            // Exactly half.
            block(4 * KIB * 62, 2 * KIB, Live),
        ];
        let text = map("cpu:0", &[region(0, 256 * KIB)], &blocks, WIDE);
        let expected = [
            "cpu:0: 92.5KiB of 256.0KiB in use, 12.5KiB of",
            "it pinned, 25.0KiB of it pending, 17.0KiB of",
            "it scratch, 163.5KiB free, largest hole",
            "80.0KiB, fragmentation 51%; a cell is 4.0KiB",
            "  256.0KiB |SSSS########..~~~~~~............|",
            "           |........PPP.......p.+.s.-...p.#.|",
            "# live P pinned ~ pending S scratch . hole",
            "+ p - s: less than half of the cell",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn full_empty_and_nothing_at_all() {
        let all = region(512, 64 * KIB);
        let full = map("a", &[all], &[block(512, 64 * KIB, MapKind::Live)], WIDE);
        assert!(
            full.replace('\n', " ").contains("64.0KiB of 64.0KiB in use, 0B free, largest hole 0B; a cell is 1.0KiB")
        );
        assert!(!full.contains("fragmentation"), "{full}");
        assert_eq!(cells(&full), ["#".repeat(32), "#".repeat(32)]);
        let empty = map("a", &[all], &[], WIDE);
        assert!(empty.contains("fragmentation 0%"), "{empty}");
        assert_eq!(cells(&empty), [".".repeat(32), ".".repeat(32)]);
        assert_eq!(map("a", &[], &[], WIDE), "a: no memory taken from the device yet\n");
    }

    #[test]
    fn regions_begin_on_their_own_lines_and_the_smallest_are_only_counted() {
        let two = [region(1 << 20, 16 * KIB), region(0, 8 * KIB)];
        let text = map("a", &two, &[block((1 << 20) + 8 * KIB, 8 * KIB, MapKind::Live)], WIDE);
        assert_eq!(cells(&text), [".".repeat(16), [".".repeat(16), "#".repeat(16)].concat()]);
        assert!(text.contains("   8.0KiB |") && text.contains("  16.0KiB |"), "in the order of addresses: {text}");
        let many: Vec<AddressRange> = (0..100).map(|index| region(index << 20, (index + 1) << 10)).collect();
        let text = map("a", &many, &[], WIDE);
        assert_eq!(cells(&text).len(), 2);
        assert!(text.contains("and 98 smaller regions of 4.74MiB together"), "{text}");
        assert!(text.contains(" 99.0KiB |") && text.contains("100.0KiB |"), "{text}");
    }

    #[test]
    fn no_input_makes_it_panic_and_the_screen_is_a_floor() {
        let whole = region(0, u64::MAX);
        let odd = [block(u64::MAX - 1, u64::MAX, MapKind::Live), block(5, 0, MapKind::Pinned)];
        for (columns, rows) in [(0, 0), (1, usize::MAX), (80, 1)] {
            let text = map("a", &[whole, region(7, 0)], &odd, Screen { columns, rows: rows.min(1 << 10) });
            assert!(text.lines().all(|line| line.chars().count() <= columns.max(Screen::LEAST_COLUMNS)), "{text}");
            // The last bytes are held, and seen.
            assert!(cells(&text).last().unwrap().ends_with('+'), "{text}");
        }
    }

    fn kinds() -> impl Strategy<Value = Option<MapKind>> {
        prop::sample::select(vec![
            None,
            Some(MapKind::Live),
            Some(MapKind::Pinned),
            Some(MapKind::Pending),
            Some(MapKind::Scratch),
        ])
    }

    proptest! {
        /// Regions divided into blocks and holes; the map against what was laid.
        #[test]
        fn cells_do_not_lie(
            laid in prop::collection::vec(prop::collection::vec((1u64..2000, kinds()), 1..40), 1..6),
            columns in 0usize..140,
            rows in 0usize..12,
        ) {
            let (mut regions, mut blocks) = (Vec::new(), Vec::new());
            for (number, pieces) in laid.iter().enumerate() {
                let start = (number as u64) << 32;
                let mut reached = start;
                for &(granules, kind) in pieces {
                    blocks.extend(kind.map(|kind| block(reached, 256 * granules, kind)));
                    reached += 256 * granules;
                }
                regions.push(region(start, reached - start));
            }
            let text = map("arena", &regions, &blocks, Screen { columns, rows });
            let columns = columns.max(Screen::LEAST_COLUMNS);
            prop_assert!(text.lines().all(|line| line.chars().count() <= columns), "{}", text);
            let drawn = cells(&text);
            prop_assert!(drawn.len() <= rows.max(1));
            if regions.len() > rows.max(1) {
                return Ok(());
            }
            // All regions are drawn; cells in the order of addresses, each of the bytes that the header names.
            let header = text.split_once('|').unwrap().0.replace('\n', " ");
            let named = header.split_once("a cell is ").unwrap().1.split_whitespace().next().unwrap();
            let cell = named.parse::<Bytes>().unwrap().get();
            prop_assert!(cell.is_power_of_two());
            let mut shown = drawn.concat().into_bytes().into_iter();
            for region in &regions {
                let (start, end) = (region.address.get(), region.address.get() + region.bytes.get());
                for at in (start..end).step_by(cell as usize) {
                    let until = (at + cell).min(end);
                    let held = |kind: MapKind| -> u64 {
                        let of_kind = blocks.iter().filter(|block| block.kind == kind);
                        of_kind.map(|block| {
                            let first = block.address.get();
                            until.min(first + block.held.get()).saturating_sub(at.max(first))
                        }).sum()
                    };
                    let [pinned, scratch] = [MapKind::Pinned, MapKind::Scratch].map(held);
                    let [live, pending] = [MapKind::Live, MapKind::Pending].map(held);
                    let half = |bytes: u64| 2 * bytes >= until - at;
                    let expected = if pinned > 0 {
                        if half(pinned) { b'P' } else { b'p' }
                    } else if scratch > 0 {
                        if half(scratch) { b'S' } else { b's' }
                    } else if live + pending == 0 {
                        b'.'
                    } else if live >= pending {
                        if half(live) { b'#' } else { b'+' }
                    } else if half(pending) { b'~' } else { b'-' };
                    prop_assert_eq!(shown.next().map(char::from), Some(char::from(expected)));
                }
            }
            prop_assert_eq!(shown.next(), None);
            // The cells are as small as the rows allow.
            let finer: u64 = regions.iter().map(|r| r.bytes.get().div_ceil((columns - MARGIN) as u64 * (cell / 2))).sum();
            prop_assert!(cell == SMALLEST_CELL || finer > rows.max(1) as u64);
        }
    }
}
