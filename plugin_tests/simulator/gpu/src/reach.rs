//! The memory that a running kernel comes to use: looked up once for each extent, then read and written without asking.
//!
//! ```text
//!                     extent: an allocation, a mapping, a segment of a pool
//!  first use there    with the driver's lock: may this GPU use it? From now on the stream keeps its pages (`running`)
//!  each use           a copy, and a mark for each line of 64 bytes:   read    |..xxxx....xx|
//!                                                                     written |......xx....|
//!  the end            runs of marks are the ranges that the race detector hears of; what was taken away meanwhile is told
//! ```
//!
//! Marks are coarser than bytes: two operations that nothing orders and that use different bytes of one line, one of
//! them a kernel, count as a race. XLA and the arena place arrays at multiples of 64 bytes and more, so no two of them
//! share a line.

use std::{ops::Range, ptr};

use crate::{
    clock::Line,
    memory::{Kind, Piece, User},
    pages::Protection,
    state::{self, State},
};

/// Bytes that have one mark.
const LINE: u64 = 64;

/// Memory of one kind behind neighbouring addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    range: Range<u64>,
    write: bool,
    /// The number of the memory, as in [`Piece`]. It begins where that does: `cuMemMap` maps no other part.
    space: u64,
}

/// What the driver knows of memory that a kernel may use.
pub trait Extents {
    /// The extent around an address, as far as a kernel of a GPU may use it.
    ///
    /// # Errors
    /// A sentence that says why it may not.
    fn extent(&self, gpu: usize, address: u64) -> Result<Extent, String>;
}

impl Extents for State {
    fn extent(&self, gpu: usize, address: u64) -> Result<Extent, String> {
        let none = || format!("nothing is at {address:#x}");
        let (start, span) = self.span(address).ok_or_else(none)?;
        let whole = || Extent { range: start..start + span.bytes, write: true, space: span.space };
        match &span.kind {
            Kind::Pinned => Ok(whole()),
            // The whole segment: a block may be freed by now in the order of calls, but not in the order of the stream.
            Kind::Segment { gpu: owner, .. } => {
                self.pooled(User::Kernel(gpu), *owner, address)?;
                Ok(whole())
            }
            Kind::Plain { gpu: owner } => {
                self.reach(User::Kernel(gpu), *owner, address)?;
                Ok(whole())
            }
            Kind::Reserved(maps) => {
                let found = maps.range(..=address).next_back().filter(|(start, map)| address - **start < map.bytes);
                let (&start, map) =
                    found.ok_or_else(|| format!("nothing is mapped at {address:#x}, which is reserved"))?;
                match map.access.get(&gpu) {
                    Some(&allowed) if allowed > Protection::Nothing => Ok(Extent {
                        range: start..start + map.bytes,
                        write: allowed == Protection::Write,
                        space: map.handle,
                    }),
                    _ => Err(format!(
                        "GPU {gpu} may not use what is mapped at {start:#x}: cuMemSetAccess has not allowed it"
                    )),
                }
            }
        }
    }
}

/// An extent in use.
#[derive(Debug)]
struct Used {
    extent: Extent,
    read: Marks,
    written: Marks,
}

/// Lines that were used, a bit each.
#[derive(Debug, Default)]
struct Marks(Vec<u64>);

impl Marks {
    /// Marks the lines of a range within an extent of `bytes`.
    fn set(&mut self, range: Range<u64>, bytes: u64) {
        if self.0.is_empty() {
            self.0 = vec![0; usize::try_from(bytes.div_ceil(LINE * 64)).unwrap_or(0)];
        }
        for line in range.start / LINE..=(range.end - 1) / LINE {
            if let Some(word) = self.0.get_mut((line / 64) as usize) {
                *word |= 1 << (line % 64);
            }
        }
    }

    /// The runs of marked lines, as offsets, cut at `bytes`.
    fn runs(&self, bytes: u64) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (index, &word) in self.0.iter().enumerate().filter(|&(_, &word)| word != 0) {
            for bit in (0..64).filter(|bit| word >> bit & 1 == 1) {
                let start = (index as u64 * 64 + bit) * LINE;
                let end = (start + LINE).min(bytes);
                match runs.last_mut().filter(|last| last.end == start) {
                    Some(last) => last.end = end,
                    None => runs.push(start..end),
                }
            }
        }
        runs
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Reach {
    gpu: usize,
    line: Line,
    used: Vec<Used>,
    /// The one that was used last.
    last: usize,
}

impl Reach {
    /// That of a kernel on a GPU, in a stream.
    pub fn new(gpu: usize, line: Line) -> Self {
        Self { gpu, line, used: Vec::new(), last: 0 }
    }

    /// The extent around an address, with how many of `bytes` it holds from there on.
    fn find(&mut self, address: u64, bytes: usize, write: bool) -> Result<(&mut Used, usize), String> {
        let holds = |used: &Used| used.extent.range.contains(&address);
        if !self.used.get(self.last).is_some_and(holds) {
            self.last = match self.used.iter().position(holds) {
                Some(index) => index,
                None => self.open(address)?,
            };
        }
        let gpu = self.gpu;
        let used = self.used.get_mut(self.last).ok_or_else(|| format!("nothing is at {address:#x}"))?;
        if write && !used.extent.write {
            return Err(format!("GPU {gpu} may only read at {address:#x}"));
        }
        let left = usize::try_from(used.extent.range.end - address).unwrap_or(usize::MAX);
        Ok((used, left.min(bytes)))
    }

    /// Marks a use and hands each part of it on: what is mapped side by side is used as one.
    fn each(
        &mut self,
        address: u64,
        bytes: usize,
        write: bool,
        mut part: impl FnMut(*mut u8, Range<usize>),
    ) -> Result<(), String> {
        let mut done = 0;
        while done < bytes {
            let at = address + done as u64;
            let (used, held) = self.find(at, bytes - done, write).map_err(|why| {
                let verb = if write { "writes" } else { "reads" };
                let end = if done > 0 { format!(", over the end at {at:#x}") } else { String::new() };
                format!("it {verb} {bytes} bytes at {address:#x}{end}: {why}")
            })?;
            let marks = if write { &mut used.written } else { &mut used.read };
            let Range { start, end } = used.extent.range;
            marks.set(at - start..at - start + held as u64, end - start);
            part(ptr::with_exposed_provenance_mut(at as usize), done..done + held);
            done += held;
        }
        Ok(())
    }

    fn open(&mut self, address: u64) -> Result<usize, String> {
        let mut driver = state::lock();
        let extent = driver.extent(self.gpu, address)?;
        if let Some(stream) = driver.streams.get_mut(&self.line) {
            stream.running.push(extent.range.clone());
        }
        self.used.push(Used { extent, read: Marks::default(), written: Marks::default() });
        Ok(self.used.len() - 1)
    }

    /// A sentence for each extent that was taken away while the kernel used it, or made another's. Who did that could
    /// not be told: until now nobody knew of the use.
    pub fn lost(&self, driver: &State) -> Vec<String> {
        let is_lost = |used: &&Used| {
            let Extent { range, write, space, .. } = &used.extent;
            let same = |now: Extent| (&now.range, now.space) == (range, *space) && now.write >= *write;
            !driver.extent(self.gpu, range.start).is_ok_and(same)
        };
        let sentence = |used: &Used| {
            let Range { start, end } = used.extent.range;
            format!("the {} bytes at {start:#x} were taken away while it used them", end - start)
        };
        self.used.iter().filter(is_lost).map(sentence).collect()
    }

    /// What was read, and what was written.
    pub fn pieces(&self) -> [Vec<Piece>; 2] {
        let of = |marks: fn(&Used) -> &Marks| {
            let pieces = self.used.iter().flat_map(|used| {
                let Extent { range, space, .. } = &used.extent;
                marks(used).runs(range.end - range.start).into_iter().map(move |run| Piece {
                    space: *space,
                    offset: run.start,
                    address: range.start + run.start,
                    bytes: run.end - run.start,
                })
            });
            pieces.collect()
        };
        [of(|used| &used.read), of(|used| &used.written)]
    }
}

impl ptx::Memory for Reach {
    fn load(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        self.each(address, into.len(), false, |from, part| {
            let to = &mut into[part];
            // SAFETY: the extent holds so many bytes from there on, and its pages stay, readable, while the stream's
            // `running` names them. `to` is no memory of a GPU, so they do not overlap. What else uses the bytes now
            // is not ordered with the kernel: the detector says so.
            unsafe { ptr::copy_nonoverlapping(from.cast_const(), to.as_mut_ptr(), to.len()) };
        })
    }

    fn store(&mut self, address: u64, from: &[u8]) -> Result<(), String> {
        self.each(address, from.len(), true, |to, part| {
            let from = &from[part];
            // SAFETY: as in `load`; and the extent may be written.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        })
    }
}

/// Writes to memory that was just allocated.
pub fn write(address: u64, bytes: &[u8]) {
    // SAFETY: the caller has it from `memory::allocate`, with as many bytes at least, and nobody else knows it yet.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), ptr::with_exposed_provenance_mut(address as usize), bytes.len())
    };
}
