//! Arrays of the host on their way to a device.
//!
//! ```text
//!  an array   --the caller copies, which makes it dense-->   | pinned | pinned | pinned | pinned |
//!                                                                |  our stream
//!                                                                v
//!                                                        the block on the device
//! ```
//!
//! The device reads pinned memory by itself. While it reads one buffer the caller fills the next; a buffer is filled
//! again when the event behind its last copy has come. So the source may change as soon as the last piece is in a
//! buffer.
//!
//! Small arrays share a buffer, one behind the other, so that thousands of them do not wait for each other.

use std::{ffi::c_void, sync::Arc};

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use crate::{
    device::{
        HostArray,
        cuda::{
            context::Context,
            driver::DriverError,
            owned::PinnedMemory,
            stream::{Event, Stream},
        },
        strided,
    },
    units::{Address, Bytes},
};

/// A buffer's size. The bus takes 0.2 to 0.4 ms for it, which is long against the 10 us that a copy takes to start, and
/// a copy on the host is worth a second thread.
const BUFFER: usize = 8 << 20;

/// Buffers at most: two keep the bus busy for one thread, and a second thread gets as many.
const BUFFERS: usize = 4;

/// Where arrays in a buffer start, at least: what the bus transfers at once, and more than any element has.
const ALIGNMENT: usize = 256;

/// The buffers of a device.
#[derive(Debug)]
pub(super) struct Staging {
    context: Arc<Context>,
    ring: Mutex<Ring>,
    returned: Condvar,
}

#[derive(Debug)]
struct Ring {
    /// Those that no thread fills, in the order of their last copies, the oldest first.
    idle: Vec<Buffer>,
    /// How many there are in all.
    made: usize,
}

#[derive(Debug)]
struct Buffer {
    memory: PinnedMemory,
    /// Behind the last copy out of it.
    copied: Event,
    used: usize,
}

impl Staging {
    /// Without buffers: the first array makes the first one.
    pub(super) fn new(context: &Arc<Context>) -> Self {
        let ring = Ring { idle: Vec::new(), made: 0 };
        Self { context: Arc::clone(context), ring: Mutex::new(ring), returned: Condvar::new() }
    }

    /// Puts the copy of an array to `to` on the stream, piece by piece; on return the source may change. On a failure
    /// some pieces may be on the stream.
    ///
    /// # Safety
    /// As for `Carrier::upload`; the context is current.
    pub(super) unsafe fn upload(&self, stream: &Stream, from: HostArray<'_>, to: Address) -> Result<(), DriverError> {
        let mut to = to;
        in_pieces(from.flat(&mut [0]), &mut |piece| {
            let bytes = piece.bytes();
            // SAFETY: the context is current by the contract. The pieces follow one another in the block, so this one's
            // room is a part of what the contract leaves to this copy alone.
            unsafe { self.send(stream, piece, bytes, to) }?;
            to = to + Bytes::new(bytes as u64);
            Ok(())
        })
    }

    /// Stages a piece that fits into a buffer.
    ///
    /// # Safety
    /// As for [`Self::upload`].
    unsafe fn send(&self, stream: &Stream, piece: HostArray<'_>, bytes: usize, to: Address) -> Result<(), DriverError> {
        let mut taken = Taken { staging: self, buffer: Some(self.take(bytes)?) };
        let Some(buffer) = &mut taken.buffer else { return Ok(()) };
        let place: *mut c_void = buffer.memory.start().wrapping_byte_add(buffer.used);
        // SAFETY: `take` gave a buffer with room for `bytes` from `used` on, which is as long as the dense piece. No
        // copy reads it (`take`) and no other thread has the buffer, so it is no part of the source either.
        unsafe { strided::copy_to_dense(piece, place.cast()) };
        buffer.used = (buffer.used + bytes).next_multiple_of(ALIGNMENT).min(BUFFER);
        // SAFETY: the context is current by the contract, and the stream alive, because it is borrowed. The destination
        // is this copy's alone by the contract; the buffer is pinned and not written again until its event has come.
        unsafe { self.context.driver().copy_to_device(to.get(), place, bytes, stream.handle()) }?;
        let recorded = stream.record(&buffer.copied);
        if recorded.is_err() {
            // Without the event there is no way to wait for this copy alone.
            stream.drain()?;
        }
        recorded
    }

    /// A buffer with room for `bytes` that is neither read nor filled: one that has as much left, or a new one, or the
    /// one that was sent first, once its copies are done.
    fn take(&self, bytes: usize) -> Result<Buffer, DriverError> {
        let mut ring = self.ring.lock();
        loop {
            if let Some(at) = ring.idle.iter().position(|buffer| BUFFER - buffer.used >= bytes) {
                return Ok(ring.idle.remove(at));
            }
            if ring.made < BUFFERS {
                ring.made += 1;
                drop(ring);
                let made = Buffer::new(&self.context);
                if made.is_ok() {
                    return made;
                }
                ring = self.ring.lock();
                ring.made -= 1;
                // With fewer it goes on, if slower; without any it does not.
                if ring.made == 0 {
                    return made;
                }
                self.returned.notify_one();
            }
            if !ring.idle.is_empty() {
                let buffer = ring.idle.remove(0);
                drop(ring);
                let mut taken = Taken { staging: self, buffer: Some(buffer) };
                if let Some(buffer) = &mut taken.buffer {
                    buffer.copied.wait()?;
                    buffer.used = 0;
                }
                if let Some(buffer) = taken.buffer.take() {
                    return Ok(buffer);
                }
                ring = self.ring.lock();
            } else {
                self.returned.wait(&mut ring);
            }
        }
    }
}

impl Buffer {
    fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        let memory = PinnedMemory::new(context, Bytes::new(BUFFER as u64))?;
        Ok(Self { memory, copied: Event::new(context)?, used: 0 })
    }
}

/// A buffer that a thread has; its drop returns it to the others.
struct Taken<'a> {
    staging: &'a Staging,
    buffer: Option<Buffer>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.staging.ring.lock().idle.push(buffer);
            self.staging.returned.notify_one();
        }
    }
}

/// Gives an array to `each` in pieces of a buffer at most, in the order in which the dense array has them.
fn in_pieces(
    array: HostArray<'_>,
    each: &mut impl FnMut(HostArray<'_>) -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    let bytes = array.bytes();
    if bytes == 0 {
        return Ok(());
    }
    let (Some(count), true) = (array.rows(), bytes > BUFFER) else { return each(array) };
    let row = bytes / count as usize;
    if row > BUFFER {
        return (0..count).try_for_each(|at| in_pieces(array.row(at), each));
    }
    let height = (BUFFER / row) as i64;
    let mut dims = SmallVec::new();
    (0..count).step_by(height as usize).try_for_each(|at| each(array.part(at, height.min(count - at), &mut dims)))
}
