//! Bringing bytes to a GPU, and moving them on it.
//!
//! ```text
//!  the engine's stream   --kernel--.                     .--kernel-->
//!                                   \ the engine waits  / order
//!  our stream            ------------`--upload--copy---'------------>
//! ```
//!
//! A move of a block waits for its end, because the block's views come and go with it; all else returns when it is on
//! the stream.
//!
//! A block that moves by less than its size goes in pieces, the foremost first: as long as the way where that is long
//! enough for a copy to be worth its start, and else through a buffer on the device, which costs a second copy.

use std::sync::Arc;

use crate::{
    device::{
        Carrier, HostArray, Mover,
        cuda::{
            backing::CudaBacking,
            chunks::Chunks,
            context::Route,
            costs::costs,
            device::CudaDevice,
            driver::DriverError,
            exchange::{Exchange, Parts},
            regions::Held,
        },
        shift::{Extent, Shift},
    },
    error::Result,
    memory::compaction::Costs,
    units::{Address, Bytes},
};

/// Pieces of this size are copied where they go; a shorter way goes through the buffer.
const DIRECT: Bytes = Bytes::mib(4);

impl CudaBacking {
    /// The region that all of a range lies in.
    fn region_of(&self, address: Address, bytes: Bytes) -> Result<Arc<Held>> {
        self.device.regions.holding(address, bytes)
    }

    /// Notes that what was just put on the stream touches `regions`; a failure lets nothing of it run on.
    fn sent(&self, sent: Result<(), DriverError>, regions: &[&Held]) -> Result<()> {
        let ticket = self.device.stream.submit();
        regions.iter().for_each(|held| held.used_by(ticket));
        let Err(failure) = sent else { return Ok(()) };
        if let Err(worse) = self.device.stream.drain() {
            log::error!("GPU {}: its stream cannot be waited for: {worse}", self.device.ordinal());
        }
        Err(failure.into())
    }

    /// Puts a copy on the stream, between ranges that do not overlap.
    fn put(&self, route: Route<'_>, from: Extent, to: Address) -> Result<(), DriverError> {
        let (context, stream) = (self.device.context(), self.device.stream.handle());
        // SAFETY: the stream is alive and its context current (every caller has entered it). Both ranges lie in regions
        // of the devices that the route names, in this one's bounce buffer, or in the engine's memory; the callers have
        // looked up the regions and keep them alive. That nothing else reads or writes the ranges meanwhile is the
        // contract of `Mover::relocate` and `Carrier::copy`, the only ways to get here.
        unsafe { context.copy(route, (from.start, to), from.bytes, stream) }
    }

    /// As [`Self::put`], within the memory of this device.
    fn copy_across(&self, from: Extent, to: Address) -> Result<(), DriverError> {
        self.put(Route::Device, from, to)
    }

    /// Puts a move on the stream, in pieces where its ranges overlap.
    fn slide(&self, shift: Shift) -> Result<(), DriverError> {
        let way = shift.hole.bytes;
        if way >= shift.source.bytes {
            return self.copy_across(shift.source, shift.destination.start);
        }
        if way >= DIRECT {
            return self.in_pieces(shift, way, |piece| self.copy_across(piece.source, piece.destination.start));
        }
        // Locked while the copies are put on the stream, which waits for none of them: those of two threads would mix.
        let mut bounce = self.device.bounce.lock();
        if bounce.is_none() {
            *bounce = self.device.make_bounce();
        }
        match &*bounce {
            Some(bounce) => self.in_pieces(shift, bounce.bytes, |piece| {
                let there = Extent { start: bounce.address(), ..piece.source };
                self.copy_across(piece.source, there.start)?;
                self.copy_across(there, piece.destination.start)
            }),
            // Slow, but it needs no memory.
            None => self.in_pieces(shift, way, |piece| self.copy_across(piece.source, piece.destination.start)),
        }
    }

    fn in_pieces(
        &self,
        shift: Shift,
        most: Bytes,
        mut each: impl FnMut(Shift) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let mut left = Some(shift);
        while let Some(shift) = left {
            let (piece, rest) = shift.split(most.min(shift.source.bytes));
            piece.map_or(Ok(()), &mut each)?;
            left = rest;
        }
        Ok(())
    }

    /// Copies and waits for the end.
    fn slide_now(&self, shift: Shift, regions: &[&Held]) -> Result<()> {
        self.sent(self.slide(shift), regions)?;
        Ok(self.finish(regions)?)
    }

    /// Waits for all work of our stream on regions.
    fn finish(&self, regions: &[&Held]) -> Result<(), DriverError> {
        let last = regions.iter().map(|held| held.last_use()).max().unwrap_or(0);
        self.device.stream.finish(last)
    }

    /// Moves by exchanging chunks, and copies the edges; all of it if the driver refuses.
    fn exchange(&self, exchange: Exchange<'_>, parts: Parts, target: &Chunks, regions: &[&Held]) -> Result<()> {
        if let Some(first) = parts.first {
            self.back(first.destination, target)?;
            self.slide_now(first, regions)?;
        }
        // Chunks are unmapped under whatever still runs.
        self.finish(regions)?;
        let left = exchange.run(parts.whole).err().map(|refused| {
            let (left, failure) = *refused;
            log::info!("GPU {}: {} of a block are copied: {failure}", self.device.ordinal(), left.source.bytes);
            left
        });
        let copied = || [left, parts.last].into_iter().flatten();
        // As long as nothing is copied the chunks can be taken back, and with them the source is whole: its edges hold
        // what they held.
        if let Err(error) = copied().try_for_each(|part| self.back(part.destination, target)) {
            let left = left.map_or(Bytes::ZERO, |left| left.source.bytes);
            if let Err(failure) = exchange.take_back(parts.whole, left) {
                log::error!("GPU {}: a block was torn apart by a move that failed: {failure}", self.device.ordinal());
            }
            return Err(error);
        }
        copied().try_for_each(|part| self.slide_now(part, regions))
    }

    /// Makes sure that there is memory to copy to.
    fn back(&self, range: Extent, chunks: &Chunks) -> Result<()> {
        chunks
            .populate(range.start - chunks.region().address, range.bytes)
            .map_err(|failure| self.device.refusal(failure, range.bytes))
    }
}

impl Mover for CudaBacking {
    fn costs(&self) -> Costs {
        costs(self.device.bandwidth())
    }

    unsafe fn relocate(&self, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        let Some(shift) = Shift::new(Extent { start: from, bytes }, to) else { return Ok(()) };
        let (source, target) = (self.region_of(from, bytes)?, self.region_of(to, bytes)?);
        let regions = [&*source, &*target];
        let _current = self.device.context().enter()?;
        if let Some(chunks) = target.chunks() {
            if let Some(from) = source.chunks() {
                let exchange = Exchange::new(from, chunks);
                if let Some(parts) = exchange.parts(shift) {
                    return self.exchange(exchange, parts, chunks, &regions);
                }
            }
            self.back(shift.destination, chunks)?;
        }
        self.slide_now(shift, &regions)
    }

    /// Discards whole chunks; regions that are allocations of the driver's have none.
    unsafe fn discard(&self, from: Address, bytes: Bytes) -> Result<Bytes> {
        let held = self.region_of(from, bytes)?;
        let Some(chunks) = held.chunks() else { return Ok(Bytes::ZERO) };
        let _current = self.device.context().enter()?;
        self.finish(&[&held])?;
        Ok(chunks.discard(from - held.region.address, bytes)?)
    }
}

impl Carrier for CudaBacking {
    fn is_host(&self) -> bool {
        false
    }

    unsafe fn upload(&self, from: HostArray<'_>, to: Address) -> Result<()> {
        let bytes = from.size()?;
        if bytes == 0 {
            return Ok(());
        }
        let held = self.region_of(to, Bytes::new(bytes as u64))?;
        let _current = self.device.context().enter()?;
        // SAFETY: the context is current. The destination, which lies in a region, is this copy's alone by this
        // function's contract, which is that of `Staging::upload`.
        let sent = unsafe { self.device.staging.upload(&self.device.stream, from, to) };
        self.sent(sent, &[&held])
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        if bytes.is_zero() {
            return Ok(());
        }
        let target = self.region_of(to, bytes)?;
        let context = self.device.context();
        match self.device.whose(from, bytes) {
            Some((device, source)) if Arc::ptr_eq(&device, &self.device) => {
                let _current = context.enter()?;
                let pinned = source.is_pinned() || target.is_pinned();
                let route = if pinned { Route::Anywhere } else { Route::Device };
                self.sent(self.put(route, Extent { start: from, bytes }, to), &[&source, &target])
            }
            Some((device, source)) => self.copy_from(&device, &source, Extent { start: from, bytes }, to, &target),
            // Memory of the engine's: the caller has ordered the copy behind its writers.
            None => {
                let _current = context.enter()?;
                let sent = self.put(Route::Anywhere, Extent { start: from, bytes }, to);
                self.sent(sent, &[&target])
            }
        }
    }

    unsafe fn copy_now(&self, from: Address, to: Address, bytes: Bytes) -> Result<()> {
        // SAFETY: by the contract, which is that of `copy`.
        unsafe { self.copy(from, to, bytes)? };
        let _current = self.device.context().enter()?;
        // The copy has one of the tickets.
        Ok(self.device.stream.finish_all()?)
    }

    unsafe fn order(&self, stream: isize) -> Result<()> {
        if self.device.stream.is_idle() {
            return Ok(());
        }
        let _current = self.device.context().enter()?;
        let stream = std::ptr::with_exposed_provenance_mut(stream as usize);
        // SAFETY: the stream is live by this function's contract, which is all that `hold_back` asks.
        Ok(unsafe { self.device.stream.hold_back(stream) }?)
    }

    fn populate(&self, address: Address, bytes: Bytes) -> Result<()> {
        if self.device.regions.are_whole() {
            return Ok(());
        }
        let held = self.device.regions.holding(address, bytes)?;
        match held.chunks() {
            Some(chunks) => {
                let offset = address - held.region.address;
                chunks.populate(offset, bytes).map_err(|failure| self.device.refusal(failure, bytes))
            }
            None => Ok(()),
        }
    }

    fn finish(&self) {
        if let Err(error) = self.device.synchronize() {
            // A context in which that happens runs nothing any more.
            log::error!("GPU {}: {error}", self.device.ordinal());
        }
    }
}

impl CudaBacking {
    /// Copies from another device: after what that one's stream has on the way, and before what it will have.
    fn copy_from(&self, other: &CudaDevice, source: &Held, from: Extent, to: Address, target: &Held) -> Result<()> {
        let stream = &self.device.stream;
        if !other.stream.is_idle() {
            let _current = other.context().enter()?;
            other.stream.precede(stream)?;
        }
        let _current = self.device.context().enter()?;
        let reached = other.peers().contains(&self.device.ordinal()) && source.is_open_to(self.device.ordinal());
        let anywhere = reached || source.is_pinned() || target.is_pinned();
        let route = if anywhere { Route::Anywhere } else { Route::From(other.context()) };
        let sent = self.put(route, from, to).and_then(|()| stream.precede(&other.stream));
        source.used_by(other.stream.submit());
        self.sent(sent, &[target])
    }
}
