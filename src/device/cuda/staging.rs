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
        let flat;
        let from = if strided::is_dense(from.dims, from.strides, from.element) {
            flat = [dense_bytes(from.dims, from.element) as i64];
            HostArray { data: from.data, dims: &flat, strides: None, element: 1 }
        } else {
            from
        };
        // SAFETY: `in_pieces` asks that the array's elements lie where it says, which is part of this function's
        // contract. Each piece is a part of the array, and the destinations follow one another in the block, so `send`
        // may read and write them.
        unsafe {
            in_pieces(from, &mut |piece| {
                let bytes = dense_bytes(piece.dims, piece.element);
                self.send(stream, piece, bytes, to)?;
                to = to + Bytes::new(bytes as u64);
                Ok(())
            })
        }
    }

    /// Stages a piece that fits into a buffer.
    ///
    /// # Safety
    /// As for [`Self::upload`].
    unsafe fn send(&self, stream: &Stream, piece: HostArray<'_>, bytes: usize, to: Address) -> Result<(), DriverError> {
        let mut taken = Taken { staging: self, buffer: Some(self.take(bytes)?) };
        let Some(buffer) = &mut taken.buffer else { return Ok(()) };
        // SAFETY: `take` gave a buffer with room for `bytes` from `used` on, so the offset lies within its allocation.
        let place: *mut c_void = unsafe { buffer.memory.start().byte_add(buffer.used) };
        // SAFETY: every element of the piece is readable by the contract. The room is as long as the dense piece, and
        // no copy reads it (`take`) and no other thread has the buffer, so the two do not overlap either.
        unsafe { strided::copy_to_dense(piece.data, place.cast(), piece.dims, piece.strides, piece.element) };
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

fn dense_bytes(dims: &[i64], element: usize) -> usize {
    dims.iter().map(|&dim| dim as usize).product::<usize>() * element
}

/// Gives an array to `each` in pieces of a buffer at most, in the order in which the dense array has them.
///
/// # Safety
/// The array's elements lie where it says.
unsafe fn in_pieces(
    array: HostArray<'_>,
    each: &mut impl FnMut(HostArray<'_>) -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    let bytes = dense_bytes(array.dims, array.element);
    if bytes == 0 {
        return Ok(());
    }
    let (Some((&count, rows)), true) = (array.dims.split_first(), bytes > BUFFER) else { return each(array) };
    let row = bytes / count as usize;
    let (first_stride, strides) = match array.strides.and_then(<[i64]>::split_first) {
        Some((&first, rest)) => (first as isize, Some(rest)),
        None => (row as isize, None),
    };
    let height = (BUFFER / row).max(1) as i64;
    let mut at = 0;
    while at < count {
        let part = height.min(count - at);
        // SAFETY: the index is below the count, so by the contract an element of the array lies there, in the same
        // allocation.
        let data = unsafe { array.data.offset(at as isize * first_stride) };
        if row > BUFFER {
            // SAFETY: one of the array's rows: its elements are among the array's, which lie where it says.
            unsafe { in_pieces(HostArray { data, dims: rows, strides, element: array.element }, each) }?;
        } else {
            let mut dims: SmallVec<[i64; 6]> = SmallVec::from_slice(array.dims);
            dims[0] = part;
            each(HostArray { data, dims: &dims, ..array })?;
        }
        at += part;
    }
    Ok(())
}
