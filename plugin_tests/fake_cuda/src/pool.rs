//! The default memory pool of each GPU: allocations and frees in the order of streams.
//!
//! ```text
//!  segment, 2 MiB or more         | block: used | freed on stream 1 | block: used |  freed on stream 2  |
//!                                                  `- for stream 1 at once; for others once they come after the free
//! ```
//!
//! What is wholly free goes back to the GPU when the host waits for something and more than the release threshold is
//! reserved, and by a trim: but only what was freed in a stream that the host has synchronised since. A function of the
//! host in the stream, or a stream that came after it, says nothing to a pool: NVIDIA promises no more for
//! `cuMemPoolTrimTo` ("completion ... observed on the host, e.g. by a synchronize", and it was measured for
//! pytorch/executorch pull request 22312). The driver may know earlier, by luck; this one depends on the order of calls
//! alone. An H100's segments are larger, which `FAKE_CUDA_SEGMENT` sets.

use std::collections::BTreeMap;

use crate::{
    clock::Point,
    memory::{Home, Kind, Piece, Place, Span},
    operation::{Order, Work},
    pages,
    state::{Driver, State},
    status::{self, Answer, misuse},
};

/// What blocks are multiples of.
const BLOCK: u64 = 512;

/// The pool of one GPU.
#[derive(Debug, Default)]
pub struct Pool {
    threshold: u64,
    reserved: Usage,
    used: Usage,
}

#[derive(Debug, Default)]
struct Usage {
    now: u64,
    high: u64,
}

impl Usage {
    fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.high = self.high.max(self.now);
    }
}

/// Part of a segment.
#[derive(Clone, Debug)]
pub struct Block {
    /// Its size.
    pub bytes: u64,
    /// What was asked for; 0 when it is free.
    pub used: u64,
    /// The frees that it comes from: a user of it must come after them.
    freed: Vec<Point>,
}

/// A run of free blocks: where, how much.
#[derive(Clone, Copy, Debug)]
struct Hole {
    segment: u64,
    address: u64,
    bytes: u64,
}

impl State {
    fn segments(&self, of: usize) -> impl Iterator<Item = (u64, &Span, &BTreeMap<u64, Block>)> {
        self.spans.iter().filter_map(move |(&start, span)| match &span.kind {
            Kind::Segment { gpu, blocks } if *gpu == of => Some((start, span, blocks)),
            _ => None,
        })
    }

    /// The smallest run of free blocks of `bytes` whose frees `seen` knows; of equal ones the lowest.
    fn hole(&self, gpu: usize, bytes: u64, seen: impl Fn(Point) -> bool) -> Option<Hole> {
        let mut holes = Vec::new();
        for (segment, _, blocks) in self.segments(gpu) {
            let mut open: Option<Hole> = None;
            for (&address, block) in blocks {
                let free = block.used == 0 && block.freed.iter().all(|&point| seen(point));
                if free {
                    open.get_or_insert(Hole { segment, address, bytes: 0 }).bytes += block.bytes;
                } else {
                    holes.extend(open.take());
                }
            }
            holes.extend(open);
        }
        holes.into_iter().filter(|hole| hole.bytes >= bytes).min_by_key(|hole| (hole.bytes, hole.address))
    }

    /// Gives segments back that are free by what the host has waited for, until at most `keep` bytes are reserved.
    fn release_down_to(&mut self, gpu: usize, keep: u64) {
        let idle = |blocks: &BTreeMap<u64, Block>| {
            blocks
                .values()
                .all(|block| block.used == 0 && block.freed.iter().all(|&point| self.waited_for.has_seen(point)))
        };
        let idle: Vec<_> = self
            .segments(gpu)
            .filter(|(_, _, blocks)| idle(blocks))
            .map(|(start, span, _)| (start, span.bytes))
            .collect();
        for (start, bytes) in idle {
            let pool = &mut self.gpus[gpu].pool;
            if pool.reserved.now <= keep {
                return;
            }
            pool.reserved.now -= bytes;
            self.gpus[gpu].used -= bytes;
            if let Some(span) = self.spans.remove(&start) {
                self.races.forget(span.space);
            }
            self.vacate(start..start + bytes, false);
        }
    }

    /// What happens when the host has waited: pools give back what is above their thresholds.
    pub fn release_idle_pools(&mut self) {
        for gpu in 0..self.gpus.len() {
            self.release_down_to(gpu, self.gpus[gpu].pool.threshold);
        }
    }

    fn add_segment(&mut self, gpu: usize, bytes: u64) -> Answer<Hole> {
        let size = bytes.checked_next_multiple_of(self.settings.segment).ok_or(status::OUT_OF_MEMORY)?;
        if size > self.left(gpu) {
            self.release_down_to(gpu, 0);
        }
        self.take(gpu, size)?;
        let Ok(start) = pages::allocate(size) else {
            self.gpus[gpu].used -= size;
            return Err(status::OUT_OF_MEMORY.into());
        };
        self.gpus[gpu].pool.reserved.add(size);
        let space = self.number();
        let blocks = BTreeMap::from([(start, Block { bytes: size, used: 0, freed: Vec::new() })]);
        self.spans.insert(start, Span { bytes: size, space, kind: Kind::Segment { gpu, blocks } });
        Ok(Hole { segment: start, address: start, bytes: size })
    }

    /// Takes `bytes` at the beginning of a hole; gives what is then used.
    fn carve(&mut self, hole: Hole, bytes: u64, asked: u64) -> Place {
        let mut pieces = Vec::new();
        let mut home = Home::Pageable;
        if let Some(Span { space, kind: Kind::Segment { gpu, blocks }, .. }) = self.spans.get_mut(&hole.segment) {
            let end = hole.address + hole.bytes;
            let gone: Vec<_> = blocks.range(hole.address..end).map(|(&address, _)| address).collect();
            let freed =
                gone.iter().filter_map(|address| blocks.remove(address)).flat_map(|block| block.freed).collect();
            blocks.insert(hole.address, Block { bytes, used: asked, freed: Vec::new() });
            if hole.bytes > bytes {
                blocks.insert(hole.address + bytes, Block { bytes: hole.bytes - bytes, used: 0, freed });
            }
            home = Home::Gpu(*gpu);
            pieces.push(Piece { space: *space, offset: hole.address - hole.segment, address: hole.address, bytes });
        }
        Place { home, pieces }
    }

    /// The block of an allocation, with its segment.
    fn block(&mut self, address: u64) -> Option<(u64, usize, u64, &mut Block)> {
        let (&segment, span) = self.spans.range_mut(..=address).next_back()?;
        let space = span.space;
        let Kind::Segment { gpu, blocks } = &mut span.kind else { return None };
        let block = blocks.get_mut(&address).filter(|block| block.used > 0)?;
        Some((segment, *gpu, space, block))
    }
}

/// `cuMemAllocAsync`, in the pool of the stream's GPU.
pub fn allocate(driver: &mut Driver, bytes: usize, stream: usize) -> Answer<u64> {
    let (line, gpu) = driver.line_of_pool(stream)?;
    if bytes == 0 {
        return Err(misuse(status::INVALID_VALUE, "0 bytes asked for"));
    }
    let asked = bytes as u64;
    let bytes = asked.checked_next_multiple_of(BLOCK).ok_or(status::OUT_OF_MEMORY)?;
    let mut seen = driver.streams[&line].clock.clone();
    seen.join(&driver.host);
    let hole = match driver.hole(gpu, bytes, |point| seen.has_seen(point)) {
        Some(hole) => hole,
        None => driver.add_segment(gpu, bytes)?,
    };
    let place = driver.carve(hole, bytes, asked);
    driver.gpus[gpu].pool.used.add(bytes);
    let order = Order { uses: vec![(place, true)], ..Order::new("cuMemAllocAsync", Work::Nothing) };
    driver.issue(line, order)?;
    Ok(hole.address)
}

/// `cuMemFreeAsync`. CUDA frees memory of `cuMemAlloc` by it as well; this driver does not.
pub fn free(driver: &mut Driver, address: u64, stream: usize) -> Answer {
    let (line, _) = driver.line_of_pool(stream)?;
    if address == 0 {
        return Ok(());
    }
    let unknown =
        || misuse(status::INVALID_VALUE, format!("{address:#x} is no allocation of a pool, or was freed before"));
    let (segment, gpu, space, block) = driver.block(address).ok_or_else(unknown)?;
    let bytes = block.bytes;
    let piece = Piece { space, offset: address - segment, address, bytes };
    let place = Place { home: Home::Gpu(gpu), pieces: vec![piece] };
    let order = Order { uses: vec![(place, true)], ..Order::new("cuMemFreeAsync", Work::Nothing) };
    let point = driver.issue(line, order)?;
    if let Some((_, _, _, block)) = driver.block(address) {
        (block.used, block.freed) = (0, vec![point]);
    }
    driver.gpus[gpu].pool.used.now -= bytes;
    Ok(())
}

/// `cuMemFree` of a pool's allocation; `None` if it is none. Nothing is waited for: the program must have done that.
pub fn free_now(driver: &mut Driver, address: u64) -> Answer<Option<()>> {
    let Some((_, gpu, space, block)) = driver.block(address) else { return Ok(None) };
    let bytes = block.bytes;
    (block.used, block.freed) = (0, Vec::new());
    driver.retire(space, &(address..address + bytes), "freed");
    driver.gpus[gpu].pool.used.now -= bytes;
    Ok(Some(()))
}

/// `cuMemPoolTrimTo`.
pub fn trim(driver: &mut Driver, pool: usize, keep: usize) -> Answer {
    let gpu = driver.pool(pool)?;
    driver.release_down_to(gpu, keep as u64);
    Ok(())
}

fn unknown(which: u32) -> status::Failure {
    misuse(status::INVALID_VALUE, format!("{which} is no attribute of a pool here, or none that can be set so"))
}

/// `cuMemPoolGetAttribute`.
pub fn attribute(driver: &Driver, pool: usize, which: u32) -> Answer<u64> {
    let Pool { threshold, reserved, used } = &driver.gpus[driver.pool(pool)?].pool;
    match which {
        4 => Ok(*threshold),
        5 => Ok(reserved.now),
        6 => Ok(reserved.high),
        7 => Ok(used.now),
        8 => Ok(used.high),
        _ => Err(unknown(which)),
    }
}

/// `cuMemPoolSetAttribute` to what `value` reads. A high-water mark can be set to 0 alone, and then is what is now.
pub fn set_attribute(driver: &mut Driver, pool: usize, which: u32, value: impl FnOnce() -> Answer<u64>) -> Answer {
    let gpu = driver.pool(pool)?;
    let Pool { threshold, reserved, used } = &mut driver.gpus[gpu].pool;
    let usage = match which {
        4 => {
            *threshold = value()?;
            return Ok(());
        }
        6 => reserved,
        8 => used,
        _ => return Err(unknown(which)),
    };
    if value()? != 0 {
        return Err(unknown(which));
    }
    usage.high = usage.now;
    Ok(())
}
