//! A block: its warps one after the other, from barrier to barrier.

use super::warp::{Group, Wait, Warp};
use crate::{Memory, code::Code};

/// What the warps of a block share.
pub struct Block<'a> {
    /// The kernel.
    pub code: &'a Code,
    /// The GPU's memory.
    pub memory: &'a mut dyn Memory,
    /// The block's own.
    pub shared: Vec<u8>,
    /// The kernel's arguments.
    pub arguments: Vec<u8>,
    /// Which block it is.
    pub place: [u32; 3],
    /// The steps that the launch has run, and how many it may.
    pub steps: u64,
    /// How many it may run.
    pub limit: u64,
}

impl Block<'_> {
    /// Notes a step.
    ///
    /// # Errors
    /// It is one too many.
    pub fn count(&mut self, line: u32) -> Result<(), String> {
        self.steps += 1;
        if self.steps <= self.limit {
            return Ok(());
        }
        Err(format!("line {line}: the launch has run {} instructions of warps and does not end", self.limit))
    }

    /// A sentence with the place where it came to pass.
    pub fn told(&self, line: u32, warp: u32, what: &str) -> String {
        format!("line {line}: {what} (warp {warp} of block {:?})", self.place)
    }

    /// Runs all warps to their end.
    ///
    /// # Errors
    /// What went wrong, with the line.
    pub fn run(&mut self, warps: &mut [Warp]) -> Result<(), String> {
        loop {
            for warp in &mut *warps {
                warp.run(self)?;
            }
            if warps.iter().all(|warp| warp.groups.is_empty()) {
                return Ok(());
            }
            self.release(warps)?;
        }
    }

    /// Lets those go on that wait at a barrier to which all have come.
    fn release(&self, warps: &mut [Warp]) -> Result<(), String> {
        let live = warps.iter().map(|warp| warp.live().count_ones()).sum::<u32>();
        // Threads by barrier: those that count one by one, and those of whole warps, with the number that is needed.
        let mut arrived = [(0u32, 0u32, live); 16];
        for warp in &*warps {
            for group in &warp.groups {
                let Wait::Barrier { id, threads, aligned } = group.wait else { continue };
                if aligned && warp.groups.len() > 1 {
                    return Err(self.stuck(warp, "all lanes of a warp come to this barrier together, and not all have"));
                }
                let Some((ones, whole, needed)) = arrived.get_mut(id as usize) else {
                    let line = self.line(group);
                    return Err(self.told(line, warp.number, &format!("there are barriers 0 to 15, and no {id}")));
                };
                *ones += group.mask.count_ones();
                *whole += 32;
                if let Some(threads) = threads {
                    *needed = threads;
                }
            }
        }
        let is_full = |id: u32, threads: Option<u32>| {
            let (ones, whole, needed) = arrived[id as usize];
            if threads.is_some() { whole >= needed } else { ones >= needed }
        };
        let mut released = false;
        for group in warps.iter_mut().flat_map(|warp| &mut warp.groups) {
            if let Wait::Barrier { id, threads, .. } = group.wait
                && is_full(id, threads)
            {
                group.wait = Wait::Ready;
                group.at += 1;
                released = true;
            }
        }
        let waiting = warps.iter().find(|warp| !warp.groups.is_empty());
        match waiting {
            Some(warp) if !released => Err(self.stuck(warp, "nobody comes for whom the lanes wait")),
            _ => Ok(()),
        }
    }

    fn line(&self, group: &Group) -> u32 {
        self.code.steps.get(group.at as usize).map_or(0, |step| step.line)
    }

    fn stuck(&self, warp: &Warp, what: &str) -> String {
        let groups = warp.groups.iter().map(|group| format!("lanes {:#010x} at line {}", group.mask, self.line(group)));
        let line = warp.groups.first().map_or(0, |group| self.line(group));
        self.told(line, warp.number, &format!("{what}: {}", groups.collect::<Vec<_>>().join(", ")))
    }
}
