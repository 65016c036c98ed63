//! Bytes between host and device, and between arrays.
//!
//! What the host lends is read by a kernel of the inward stream, what it asks for is written by one of the outward
//! stream; both count as accesses to the array. Copies out start once the contents are there, as in XLA, not when they
//! are asked for.

use std::{ffi::c_void, slice, sync::Arc};

use crate::{
    buffer::{Buffer, Contents},
    client::{self, Client},
    cpu::Raw,
    driver::Range,
    entry::{Entry, list, required},
    error::{Error, Result},
    gpu::Gpu,
    memory::{Memory, at},
    milestone::{Mark, Milestone},
    shape::{self, Shape},
    sys,
};

/// Memory for an array in a memory space of a device.
///
/// # Errors
/// RESOURCE_EXHAUSTED.
pub fn allocate(client: &Client, device: usize, place: usize, shape: &Shape) -> Result<Arc<Memory>> {
    let home = &client.devices[device];
    if home.memories[place].on_device {
        Memory::on_device(&home.gpu, shape.bytes())
    } else {
        Memory::on_host(shape.bytes())
    }
}

/// Bytes of the host that a copy reads.
pub enum Source {
    /// A copy of them.
    Staged(Vec<u8>),
    /// The caller's, who keeps them until the copy is done.
    Lent(Raw<c_void>, usize),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Staged(bytes) => bytes,
            Self::Lent(_, 0) => &[],
            // SAFETY: the caller keeps them, see above.
            Self::Lent(data, len) => unsafe { slice::from_raw_parts(data.0.cast(), *len) },
        }
    }
}

/// Copies bytes of the host to memory, `offset` bytes into it; `done` is when they are there. The memory must be ready
/// for the compute stream.
///
/// # Errors
/// The driver's; `done` has failed then.
pub fn inward(gpu: &Gpu, memory: &Arc<Memory>, offset: u64, source: Source, done: &Arc<Milestone>) -> Result {
    let bytes = source.bytes().len();
    let to = memory.address() + offset;
    let written = memory.range().filter(|_| bytes > 0).map(|_| Range { address: to, bytes: bytes as u64 });
    let ran = Arc::clone(done);
    let enqueued = gpu.follow_stream(gpu.inward, gpu.compute).and_then(|()| {
        gpu.kernel(gpu.inward, &[], written.as_slice(), move || {
            // SAFETY: the memory is kept until the milestone, has room for the bytes, and nobody else touches it.
            unsafe { at(to).copy_from_nonoverlapping(source.bytes().as_ptr(), source.bytes().len()) };
            ran.ran(Ok(()));
        })
    });
    match enqueued {
        Ok(()) => {
            memory.used_until(gpu.complete(gpu.inward, done, Arc::clone(memory))?);
            Ok(())
        }
        Err(error) => {
            done.finish_with(Err(error.clone()));
            Err(error)
        }
    }
}

/// Copies part of an array to the host, through `convert`.
fn outward(
    buffer: &Buffer,
    offset: u64,
    bytes: u64,
    to: *mut c_void,
    convert: impl FnOnce(&[u8]) -> Option<Vec<u8>> + Send + 'static,
) -> Result<Arc<Milestone>> {
    let done = Milestone::of_work();
    let Contents { memory, defined } = buffer.contents_for_use(&done)?;
    let (gpu, to, told) = (Arc::clone(buffer.gpu()), Raw(to), Arc::clone(&done));
    defined.when_finished(move |defined| {
        if let Some(error) = defined.failure() {
            return told.finish_with(Err(error));
        }
        let from = memory.address() + offset;
        let read = memory.range().filter(|_| bytes > 0).map(|_| Range { address: from, bytes });
        let ran = Arc::clone(&told);
        let followed = defined.recorded().map_or(Ok(()), |mark| gpu.follow(gpu.outward, &mark));
        let enqueued = followed.and_then(|()| {
            gpu.kernel(gpu.outward, read.as_slice(), &[], move || {
                let to = to;
                if bytes > 0 {
                    // SAFETY: the memory is kept until the milestone, and holds the array.
                    let array = unsafe { slice::from_raw_parts(at(from), bytes as usize) };
                    let converted = convert(array);
                    let host = converted.as_deref().unwrap_or(array);
                    // SAFETY: the caller's room is as long as was asked for, and theirs until the event.
                    unsafe { to.0.cast::<u8>().copy_from_nonoverlapping(host.as_ptr(), host.len()) };
                }
                ran.ran(Ok(()));
            })
        });
        match enqueued {
            // A failure is the milestone's already.
            Ok(()) => drop(gpu.complete(gpu.outward, &told, Arc::clone(&memory)).map(|mark| memory.used_until(mark))),
            Err(error) => told.finish_with(Err(error)),
        }
    });
    Ok(done)
}

/// A copy of an array in another place of its client.
fn across(buffer: &Buffer, client: &Arc<Client>, device: usize, place: usize) -> Result<Buffer> {
    let to = allocate(client, device, place, &buffer.shape)?;
    let done = Milestone::of_work();
    copy_to(buffer, &client.devices[device].gpu, &to, &done)?;
    Ok(Buffer::new(client, device, place, buffer.shape.clone(), to, done))
}

/// Copies an array to memory that is ready for the compute stream of `there`; `done` is when it is. It starts when a
/// stream can wait for the contents.
///
/// # Errors
/// INVALID_ARGUMENT for an array that is no more; a failure of the driver is the milestone's.
pub fn copy_to(buffer: &Buffer, there: &Gpu, to: &Arc<Memory>, done: &Arc<Milestone>) -> Result {
    let ready = there.mark(there.compute)?;
    let Contents { memory, defined } = buffer.contents_for_use(done)?;
    let (gpu, told, into, bytes) = (Arc::clone(buffer.gpu()), Arc::clone(done), Arc::clone(to), buffer.shape.bytes());
    let source = Arc::clone(&defined);
    defined.when_recorded(move |defined| {
        let mark = defined.recorded();
        let follow = |mark: &Arc<Mark>| gpu.follow(gpu.across, mark);
        let copied = mark.as_ref().map_or(Ok(()), follow).and_then(|()| follow(&ready)).and_then(|()| {
            let ran = Arc::clone(&told);
            copy(&gpu, &memory, &into, bytes, move || ran.ran(source.failure().map_or(Ok(()), Err)))
        });
        match copied.and_then(|()| gpu.complete(gpu.across, &told, (Arc::clone(&memory), Arc::clone(&into)))) {
            Ok(mark) => {
                memory.used_until(Arc::clone(&mark));
                into.used_until(mark);
            }
            Err(error) => told.finish_with(Err(error)),
        }
    });
    Ok(())
}

/// Copies bytes between memories on the stream for that, and calls `then` there.
fn copy(gpu: &Gpu, from: &Memory, to: &Memory, bytes: u64, then: impl FnOnce() + Send + 'static) -> Result {
    let (source, target) = (from.address(), to.address());
    match (from.range(), to.range()) {
        (Some(_), Some(_)) => {
            // SAFETY: the caller keeps both until the copy is done.
            unsafe { gpu.copy(gpu.across, target, source, bytes)? };
            gpu.kernel(gpu.across, &[], &[], then)
        }
        (reads, writes) => gpu.kernel(gpu.across, reads.as_slice(), writes.as_slice(), move || {
            if bytes > 0 {
                // SAFETY: as above.
                unsafe { at(target).copy_from_nonoverlapping(at(source), bytes as usize) };
            }
            then();
        }),
    }
}

impl Entry for sys::PJRT_Client_BufferFromHostBuffer_Args {
    unsafe fn run(&mut self) -> Result {
        let (client, device, place) = client::home(self.memory, self.device, "PJRT_Client_BufferFromHostBuffer")?;
        // SAFETY: the caller's lists.
        let (shape, strides) = unsafe {
            let shape = Shape::read(self.type_, self.dims, self.num_dims, self.device_layout)?;
            (shape, list(self.byte_strides, self.num_byte_strides))
        };
        if !strides.is_empty() && strides.len() != shape.dims.len() {
            return Err(Error::invalid(format!("{} byte strides for {} dimensions", strides.len(), shape.dims.len())));
        }
        if shape.host_bytes() > 0 {
            required(self.data.cast_mut(), "PJRT_Client_BufferFromHostBuffer", "data")?;
        }
        let during_call = self.host_buffer_semantics == sys::PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
        let source = if shape.host_bytes() == 0 {
            Source::Staged(Vec::new())
        } else if strides.is_empty() && !shape.is_packed() && shape.is_row_major() && !during_call {
            Source::Lent(Raw(self.data.cast_mut()), shape.host_bytes())
        } else {
            // SAFETY: the caller's array has that many elements, so far apart.
            let dense = unsafe {
                match strides {
                    [] => slice::from_raw_parts(self.data.cast::<u8>(), shape.host_bytes()).to_vec(),
                    strides => shape.gather(self.data.cast(), strides),
                }
            };
            Source::Staged(shape.to_device(&dense).unwrap_or(dense))
        };
        let lent = matches!(source, Source::Lent(..));
        let memory = allocate(&client, device, place, &shape)?;
        let defined = Milestone::of_work();
        inward(&client.devices[device].gpu, &memory, 0, source, &defined)?;
        let done = if lent { Arc::clone(&defined) } else { Milestone::done(Ok(())) };
        self.done_with_host_buffer = done.into_raw();
        self.buffer = Buffer::new(&client, device, place, shape, memory, defined).into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_ToHostBuffer_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle and layout are alive.
        let (buffer, order) = unsafe {
            let buffer = Buffer::borrow(self.src, "PJRT_Buffer_ToHostBuffer")?;
            let order = self.host_layout.as_ref().map(|layout| shape::order(layout)).transpose()?;
            (buffer, order.map(|order| buffer.shape.clone().in_order(order)).transpose()?)
        };
        let shape = buffer.shape.clone();
        let needed = shape.host_bytes();
        if self.dst.is_null() {
            self.dst_size = needed;
            return Ok(());
        }
        if self.dst_size < needed {
            return Err(Error::invalid(format!("`dst_size` must be >= {needed}, got {}.", self.dst_size)));
        }
        let bytes = shape.bytes();
        let done = outward(buffer, 0, bytes, self.dst, move |array| {
            // Without another wish, in the order that it has on the device.
            shape.to_host(array, Some(&order.as_ref().unwrap_or(&shape).minor_to_major))
        })?;
        self.event = done.into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_CopyRawToHost_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { Buffer::borrow(self.buffer, "PJRT_Buffer_CopyRawToHost")? };
        let size = buffer.shape.bytes();
        let (offset, bytes) = (u64::try_from(self.offset), u64::try_from(self.transfer_size));
        let (Ok(offset), Ok(bytes)) = (offset, bytes) else {
            return Err(outside(size, self.offset, self.transfer_size));
        };
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(outside(size, self.offset, self.transfer_size));
        }
        self.event = outward(buffer, offset, bytes, self.dst, |_| None)?.into_raw();
        Ok(())
    }
}

/// XLA's words.
fn outside(size: u64, offset: i64, bytes: i64) -> Error {
    Error::invalid(format!(
        "Copy raw buffer called on buffer size {size} with invalid offset {offset}, transfer size {bytes}"
    ))
}

impl Entry for sys::PJRT_Buffer_CopyToDevice_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { Buffer::borrow(self.buffer, "PJRT_Buffer_CopyToDevice")? };
        let (client, device) = client::device(self.dst_device)?;
        if Arc::ptr_eq(&client, &buffer.client) && device == buffer.device {
            return Err(Error::invalid("CopyToDevice cannot accept the same source and destination devices"));
        }
        self.dst_buffer = across(buffer, &client, device, 0)?.into_raw();
        Ok(())
    }
}

impl Entry for sys::PJRT_Buffer_CopyToMemory_Args {
    unsafe fn run(&mut self) -> Result {
        // SAFETY: the caller's handle is alive.
        let buffer = unsafe { Buffer::borrow(self.buffer, "PJRT_Buffer_CopyToMemory")? };
        let (client, device, place) = client::memory(self.dst_memory)?;
        self.dst_buffer = across(buffer, &client, device, place)?.into_raw();
        Ok(())
    }
}
