//! Allocation traces: reading them, and what can be said of them without an allocator.
//!
//! ```text
//!  # a comment           blank lines and lines that begin with # are passed over
//!  a 17 4096             block 17 of 4096 bytes is taken; an id is any word
//!  f 17                  block 17 is freed, and its id may be used again
//! ```

use std::collections::hash_map::Entry;

use pjrt_arena::units::Bytes;
use rustc_hash::FxHashMap;

/// The unit of every policy: XLA's smallest chunk, and the arena's granule.
pub(crate) const UNIT: Bytes = Bytes::new(256);

/// The most that a trace may hold at once. Capacities are small multiples of it, and addresses have to hold them.
const MOST: Bytes = Bytes::gib(1 << 20);

/// A block's number: blocks count from zero in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockNumber(u32);

impl BlockNumber {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// One line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The next block is taken; it has so many bytes.
    Take(Bytes),
    /// The block is freed.
    Free(BlockNumber),
}

/// A trace, ids exchanged for numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) events: Vec<Event>,
    /// Blocks taken.
    pub(crate) blocks: usize,
    /// The most bytes held at once, each block as [`rounded`].
    pub(crate) peak: Bytes,
}

/// What a request of `size` takes at least: whole units, and one for nothing. `None` past 64 bits.
pub(crate) fn rounded(size: Bytes) -> Option<Bytes> {
    size.max(Bytes::new(1)).checked_round_up(UNIT)
}

impl Trace {
    /// Reads `text`, which came from `source`. O(lines).
    ///
    /// # Errors
    /// Names the source, the line's number and the line, and says what is allowed.
    pub(crate) fn parse(name: &str, source: &str, text: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|error| {
            let line = text[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count() + 1;
            format!("{source}:{line}: not UTF-8; allowed is a text of lines `a ID BYTES` and `f ID`")
        })?;
        let mut reader = Reader { trace: Self { name: name.to_owned(), ..Self::default() }, ..Reader::default() };
        for (index, line) in text.lines().enumerate() {
            reader
                .line(index + 1, line)
                .map_err(|why| format!("{source}:{}: `{}`: {why}", index + 1, shortened(line)))?;
        }
        Ok(reader.trace)
    }
}

/// A block that the lines so far hold.
struct Held {
    number: BlockNumber,
    rounded: Bytes,
    line: usize,
}

#[derive(Default)]
struct Reader<'a> {
    trace: Trace,
    held: FxHashMap<&'a str, Held>,
    live: Bytes,
}

impl<'a> Reader<'a> {
    fn line(&mut self, number: usize, line: &'a str) -> Result<(), String> {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next(), words.next(), words.next()) {
            (None, ..) => Ok(()),
            (Some(first), ..) if first.starts_with('#') => Ok(()),
            (Some("a"), Some(id), Some(size), None) => self.take(number, id, size),
            (Some("f"), Some(id), None, None) => self.free(id),
            _ => Err("allowed are `a ID BYTES` (take), `f ID` (free), a comment after `#`, and nothing".into()),
        }
    }

    fn take(&mut self, line: usize, id: &'a str, size: &str) -> Result<(), String> {
        let size = size.parse().map(Bytes::new).map_err(|_| {
            format!("`{size}` is not a size; allowed are whole numbers of bytes from 0 to {}", MOST.get())
        })?;
        let rounded = rounded(size);
        let live = rounded.and_then(|rounded| self.live.checked_add(rounded)).filter(|&live| live <= MOST);
        let (Some(rounded), Some(live)) = (rounded, live) else {
            return Err(format!("the blocks held here exceed {MOST}, the most that a trace may hold at once"));
        };
        let number = u32::try_from(self.trace.blocks).map(BlockNumber);
        let number = number.map_err(|_| format!("more than {} blocks in one trace", u32::MAX))?;
        match self.held.entry(id) {
            Entry::Occupied(entry) => {
                return Err(format!(
                    "`{id}` is held since line {}; free it before it is taken again",
                    entry.get().line
                ));
            }
            Entry::Vacant(entry) => entry.insert(Held { number, rounded, line }),
        };
        self.live = live;
        self.trace.peak = self.trace.peak.max(live);
        self.trace.blocks += 1;
        self.trace.events.push(Event::Take(size));
        Ok(())
    }

    fn free(&mut self, id: &str) -> Result<(), String> {
        let held =
            self.held.remove(id).ok_or_else(|| format!("no block `{id}` is held here; only those can be freed"))?;
        self.live -= held.rounded;
        self.trace.events.push(Event::Free(held.number));
        Ok(())
    }
}

/// The first characters of a line, for a message.
fn shortened(line: &str) -> String {
    const MOST: usize = 60;
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Trace, String> {
        Trace::parse("t", "t.ev", text.as_bytes())
    }

    #[test]
    fn lines_comments_and_blank_lines_are_read() {
        let trace = parse("# two blocks\na x 1\r\n\n  a 7 257\nf x\na x 0\nf 7\n").expect("a good trace");
        let (free, take) = (|number| Event::Free(BlockNumber(number)), |size| Event::Take(Bytes::new(size)));
        assert_eq!(trace.events, [take(1), take(257), free(0), take(0), free(1)]);
        assert_eq!((trace.blocks, trace.peak), (3, Bytes::new(768)));
        let empty = parse("").expect("a good trace");
        assert_eq!((empty.blocks, empty.peak), (0, Bytes::ZERO));
    }

    #[test]
    fn what_is_wrong_is_told_with_file_line_and_what_is_allowed() {
        for (text, message) in [
            ("a 1 2\na 1 3", "t.ev:2: `a 1 3`: `1` is held since line 1; free it before it is taken again"),
            ("f 9", "t.ev:1: `f 9`: no block `9` is held here; only those can be freed"),
            ("a 1 2\n\nf 1\nf 1", "t.ev:4: `f 1`: no block `1` is held here; only those can be freed"),
            ("a 1 -2", "`-2` is not a size; allowed are whole numbers of bytes from 0 to 1125899906842624"),
            ("a 1 18446744073709551615", "the blocks held here exceed 1024.00TiB"),
            ("a 1 1125899906842624\na 2 0", "t.ev:2: `a 2 0`: the blocks held here exceed 1024.00TiB"),
            ("a 1", "allowed are `a ID BYTES` (take), `f ID` (free), a comment after `#`, and nothing"),
            ("a 1 2 3", "allowed are `a ID BYTES`"),
            ("f 1 2", "allowed are `a ID BYTES`"),
            ("b 1", "allowed are `a ID BYTES`"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(message), "{error}");
        }
        let long = parse(&"é".repeat(1000)).expect_err("no trace");
        assert!(long.len() < 300 && long.contains("é..."), "{long}");
        let binary = Trace::parse("t", "t.ev", b"a 1 2\n\xff\n").expect_err("no text");
        assert!(binary.starts_with("t.ev:2: not UTF-8"), "{binary}");
    }
}
