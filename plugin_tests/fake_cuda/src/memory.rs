//! What lies at which address, and who may use it.
//!
//! ```text
//!  span        cuMemAlloc'ed   cuMemHostAlloc'ed   a reservation: mapped pieces and gaps   a segment of a pool: blocks
//!  place()     the pieces of physical memory behind a range of addresses, or why an operation may not use it
//! ```

use std::{collections::BTreeMap, ops::Range};

use crate::{
    pages,
    pool::Block,
    state::{Driver, State},
    status::{self, Answer, misuse},
    stream::Waits,
    vmm::Mapping,
};

/// What `cuMemAlloc` rounds to.
pub const ALIGNMENT: u64 = 512;

/// A range of addresses that the driver gave out.
#[derive(Debug)]
pub struct Span {
    /// Its size as asked for.
    pub bytes: u64,
    /// The number of the memory behind it, where that is one.
    pub space: u64,
    /// What it is.
    pub kind: Kind,
}

/// What a span is.
#[derive(Debug)]
pub enum Kind {
    /// `cuMemAlloc`'s.
    Plain {
        /// The GPU.
        gpu: usize,
    },
    /// `cuMemHostAlloc`'s.
    Pinned,
    /// `cuMemAddressReserve`'s, with what is mapped, by address.
    Reserved(BTreeMap<u64, Mapping>),
    /// Memory of a pool, with its blocks, by address.
    Segment {
        /// The GPU.
        gpu: usize,
        /// All of the segment, without gaps.
        blocks: BTreeMap<u64, Block>,
    },
}

/// Part of a range: physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The number of the memory.
    pub space: u64,
    /// Where in it.
    pub offset: u64,
    /// The address by which it is used.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
}

/// Whose memory a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// The program's: the driver does not know it.
    Pageable,
    /// The host's, pinned by the driver.
    Pinned,
    /// A GPU's.
    Gpu(usize),
}

/// A range that may be used.
#[derive(Clone, Debug)]
pub struct Place {
    /// Whose it is.
    pub home: Home,
    /// The memory behind it; nothing for pageable memory.
    pub pieces: Vec<Piece>,
}

/// Who uses a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// A kernel on a GPU.
    Kernel(usize),
    /// A copy or a fill that the driver does in a context of this GPU; it reaches every GPU's own memory.
    Copy(usize),
    /// Whoever may do most: it was asked before.
    Anyone,
    /// The host.
    Host,
}

/// Addresses whose pages go when what runs now does not use them any more.
#[derive(Clone, Debug)]
pub struct Stale {
    /// The addresses.
    pub range: Range<u64>,
}

/// Whether two ranges share an address.
pub fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl State {
    /// The span in which an address lies.
    pub fn span(&self, address: u64) -> Option<(u64, &Span)> {
        let (&start, span) = self.spans.range(..=address).next_back()?;
        (address - start < span.bytes).then_some((start, span))
    }

    /// The memory behind `bytes` from `address` on, which is more than none.
    ///
    /// # Errors
    /// A sentence that says why `user` may not use it.
    pub fn place(&self, user: User, address: u64, bytes: u64, write: bool) -> Result<Place, String> {
        let end = address.checked_add(bytes).ok_or_else(|| format!("{bytes} bytes at {address:#x} wrap around"))?;
        let Some((start, span)) = self.span(address) else {
            return match self.spans.range(address..end).next() {
                Some((next, _)) => Err(format!("{bytes} bytes at {address:#x} run into other memory at {next:#x}")),
                None => Ok(Place { home: Home::Pageable, pieces: Vec::new() }),
            };
        };
        if end - start > span.bytes {
            return Err(format!("{bytes} bytes at {address:#x} go over the end of the {} at {start:#x}", span.bytes));
        }
        let whole = || vec![Piece { space: span.space, offset: address - start, address, bytes }];
        match &span.kind {
            Kind::Plain { gpu } => {
                Self::reach(user, *gpu, address)?;
                Ok(Place { home: Home::Gpu(*gpu), pieces: whole() })
            }
            Kind::Pinned => Ok(Place { home: Home::Pinned, pieces: whole() }),
            Kind::Segment { gpu, blocks } => {
                Self::reach(user, *gpu, address)?;
                match blocks.range(..=address).next_back() {
                    Some((&block, held)) if end - block <= held.used => {
                        Ok(Place { home: Home::Gpu(*gpu), pieces: whole() })
                    }
                    _ => Err(format!("{bytes} bytes at {address:#x} lie in no allocation of the pool of GPU {gpu}")),
                }
            }
            Kind::Reserved(maps) => self.mapped(user, maps, address..end, write),
        }
    }

    /// Refuses a kernel that uses memory of another GPU which was not mapped by hand.
    fn reach(user: User, owner: usize, address: u64) -> Result<(), String> {
        match user {
            User::Kernel(gpu) if gpu != owner => {
                Err(format!("GPU {gpu} has no access to {address:#x} on GPU {owner}: nothing has allowed it"))
            }
            _ => Ok(()),
        }
    }

    fn mapped(
        &self,
        user: User,
        maps: &BTreeMap<u64, Mapping>,
        range: Range<u64>,
        write: bool,
    ) -> Result<Place, String> {
        let (mut pieces, mut home) = (Vec::new(), Home::Pageable);
        let mut at = range.start;
        while at < range.end {
            let Some((&start, map)) = maps.range(..=at).next_back().filter(|(start, map)| at - **start < map.bytes)
            else {
                return Err(format!("nothing is mapped at {at:#x}, which is reserved"));
            };
            let owner = map.gpu;
            home = Home::Gpu(owner);
            let needed = if write { pages::Protection::Write } else { pages::Protection::Read };
            let of = |gpu: usize| map.access.get(&gpu).is_some_and(|&allowed| allowed >= needed);
            let (allowed, who) = match user {
                User::Host => (true, owner),
                User::Anyone => (map.most() >= needed, owner),
                User::Kernel(gpu) => (of(gpu), gpu),
                // Between GPUs that are no peers the driver copies by way of the host.
                User::Copy(gpu) => (of(gpu) || gpu != owner && !self.are_peers(gpu, owner) && of(owner), gpu),
            };
            if !allowed {
                let verb = if write { "write" } else { "read" };
                return Err(format!(
                    "GPU {who} may not {verb} what is mapped at {start:#x}: cuMemSetAccess has not allowed it"
                ));
            }
            let bytes = (start + map.bytes).min(range.end) - at;
            pieces.push(Piece { space: map.handle, offset: at - start, address: at, bytes });
            at += bytes;
        }
        Ok(Place { home, pieces })
    }

    /// Whether the pages of a range are there, whoever they belong to by now, for an operation that is about to run.
    pub fn is_there(&self, range: &Range<u64>, write: bool) -> bool {
        match self.span(range.start) {
            Some((_, Span { kind: Kind::Reserved(maps), .. })) => {
                self.mapped(User::Anyone, maps, range.clone(), write).is_ok()
            }
            Some((start, span)) => range.end - start <= span.bytes,
            None => false,
        }
    }

    /// Whether what runs now uses addresses of a range. Their pages must stay: what a GPU would survive, a host does
    /// not.
    pub fn is_in_use(&self, range: &Range<u64>) -> bool {
        self.streams.values().any(|stream| stream.running.iter().any(|other| overlap(other, range)))
    }

    /// Takes the pages of a range away, once nothing that runs uses them. `keep` keeps the addresses.
    pub fn vacate(&mut self, range: Range<u64>, keep: bool) {
        if self.is_in_use(&range) {
            // The addresses stay: it is not worth the books to give them back later.
            self.stale.push(Stale { range });
        } else if keep {
            pages::detach(range.start, range.end - range.start);
        } else {
            pages::give_back(range.start, range.end - range.start);
        }
    }

    /// Takes away what [`Self::vacate`] had to leave and nothing uses now.
    pub fn sweep(&mut self) {
        let stale = std::mem::take(&mut self.stale);
        let (later, now) = stale.into_iter().partition(|stale| self.is_in_use(&stale.range));
        self.stale = later;
        for Stale { range } in now {
            // What was mapped there again stays.
            let mut at = range.start;
            for (start, end) in self.maps_in(&range) {
                if at < start {
                    pages::detach(at, start - at);
                }
                at = at.max(end);
            }
            if at < range.end {
                pages::detach(at, range.end - at);
            }
        }
    }

    fn maps_in(&self, range: &Range<u64>) -> Vec<(u64, u64)> {
        let Some((_, Span { kind: Kind::Reserved(maps), .. })) = self.span(range.start) else { return Vec::new() };
        let ends = maps.iter().map(|(&start, map)| (start, start + map.bytes));
        ends.filter(|&(start, end)| overlap(&(start..end), range)).collect()
    }

    /// An operation begins, which uses the GPUs' memory.
    pub fn begin_work(&mut self) {
        if self.settings.guard {
            self.at_work += 1;
            self.open_to_host(self.at_work == 1, true);
        }
    }

    /// An operation has ended.
    pub fn end_work(&mut self) {
        if self.settings.guard {
            self.at_work = self.at_work.saturating_sub(1);
            self.open_to_host(self.at_work == 0, false);
        }
    }

    /// Lets the host touch the GPUs' memory, as operations here do, or not.
    fn open_to_host(&self, changes: bool, open: bool) {
        let set = |start: u64, bytes: u64, most: pages::Protection| {
            let protection = if open { most } else { pages::Protection::Nothing };
            if let Err(error) = pages::protect(start, bytes, protection) {
                eprintln!("fake_cuda: {bytes} bytes at {start:#x} are not guarded: {error}");
            }
        };
        for (&start, span) in self.spans.iter().filter(|_| changes) {
            match &span.kind {
                Kind::Plain { .. } | Kind::Segment { .. } => set(start, span.bytes, pages::Protection::Write),
                Kind::Reserved(maps) => maps.iter().for_each(|(&start, map)| set(start, map.bytes, map.most())),
                Kind::Pinned => {}
            }
        }
    }

    /// Drops an allocation that [`Self::span`] found.
    fn drop_plain(&mut self, start: u64) {
        let Some(span) = self.spans.remove(&start) else { return };
        if let Kind::Plain { gpu } = span.kind {
            self.gpus[gpu].used -= span.bytes.next_multiple_of(ALIGNMENT);
        }
        self.races.forget(span.space);
        self.vacate(start..start + span.bytes, false);
    }

    /// Frees all that `cuMemAlloc` gave on a GPU: its context is destroyed.
    pub fn free_all_of(&mut self, gpu: usize) {
        let of =
            |(&start, span): (&u64, &Span)| matches!(span.kind, Kind::Plain { gpu: on } if on == gpu).then_some(start);
        for start in self.spans.iter().filter_map(of).collect::<Vec<_>>() {
            self.drop_plain(start);
        }
    }
}

/// `cuMemAlloc`.
pub fn allocate(driver: &mut Driver, bytes: u64) -> Answer<u64> {
    let gpu = driver.working()?;
    if bytes == 0 {
        return Err(misuse(status::INVALID_VALUE, "0 bytes asked for"));
    }
    let rounded = bytes.checked_next_multiple_of(ALIGNMENT).ok_or(status::OUT_OF_MEMORY)?;
    driver.take(gpu, rounded)?;
    let Ok(start) = pages::allocate(bytes) else {
        driver.gpus[gpu].used -= rounded;
        return Err(status::OUT_OF_MEMORY.into());
    };
    let space = driver.number();
    driver.spans.insert(start, Span { bytes, space, kind: Kind::Plain { gpu } });
    Ok(start)
}

/// `cuMemFree`: waits for all work of the GPU first, as the driver is known to. A pool's memory it frees without
/// waiting, as CUDA documents.
pub fn free(driver: &mut Driver, address: u64) -> Answer {
    driver.working()?;
    let unknown = || misuse(status::INVALID_VALUE, format!("{address:#x} is no allocation, or was freed before"));
    if address == 0 {
        return Ok(());
    }
    match driver.spans.get(&address).map(|span| &span.kind) {
        Some(&Kind::Plain { gpu }) => {
            driver.wait_for_gpu(gpu);
            // While this thread waited, another one may have freed it.
            let span = driver.spans.get(&address).ok_or_else(unknown)?;
            let (space, range) = (span.space, address..address + span.bytes);
            driver.retire(space, &range, "freed");
            driver.drop_plain(address);
            driver.healthy(gpu)
        }
        _ => crate::pool::free_now(driver, address)?.ok_or_else(unknown),
    }
}

/// `cuMemHostAlloc`.
pub fn allocate_pinned(driver: &mut Driver, bytes: u64, flags: u32) -> Answer<u64> {
    driver.working()?;
    if bytes == 0 || flags & !0b111 != 0 {
        return Err(misuse(status::INVALID_VALUE, format!("{bytes} bytes with flags {flags:#x} asked for")));
    }
    let start = pages::allocate(bytes).map_err(|_| status::OUT_OF_MEMORY)?;
    let space = driver.number();
    driver.spans.insert(start, Span { bytes, space, kind: Kind::Pinned });
    Ok(start)
}

/// `cuMemFreeHost`: waits for all work of the GPU, as an H100's driver was seen to do. NVIDIA does not promise that, so
/// what is in use is a violation, and the host has not seen the end of anything.
pub fn free_pinned(driver: &mut Driver, address: u64) -> Answer {
    let gpu = driver.working()?;
    let find = |driver: &Driver| match driver.spans.get(&address) {
        Some(Span { bytes, space, kind: Kind::Pinned }) => Ok((address..address + bytes, *space)),
        _ => Err(misuse(status::INVALID_VALUE, format!("{address:#x} is no pinned memory, or was freed before"))),
    };
    let (range, space) = find(driver)?;
    driver.retire(space, &range, "freed");
    driver.wait_for(&driver.tails(gpu));
    // While this thread waited, another one may have freed it.
    find(driver)?;
    driver.spans.remove(&address);
    driver.races.forget(space);
    driver.vacate(range, false);
    driver.healthy(gpu)
}

/// `cuMemGetInfo`: what is left of the current GPU's memory, and all of it.
pub fn info(driver: &Driver) -> Answer<(usize, usize)> {
    let gpu = driver.working()?;
    Ok((driver.left(gpu) as usize, driver.settings.memory as usize))
}
