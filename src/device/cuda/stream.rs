//! Our stream of a device: copies in order, and how far they are.
//!
//! ```text
//!  ticket:         1      2      3      4
//!  the stream:   |copy|--|copy|--|copy|--|copy|-->     a ticket is issued when its work is on the stream
//!                           ^              ^
//!                       completed      submitted       a wait for 2 returns at once, one for 3 waits for the end of 4
//! ```
//!
//! The stream does not wait for the legacy default stream, nor that for it. Events are made without timing, which makes
//! them cheap, and used again: what waits for a record keeps waiting for it when the event is recorded once more.
//!
//! A thread that records or waits has entered the context of the stream.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use cudarc::driver::sys::{CUevent_flags, CUevent_st, CUstream, CUstream_flags, CUstream_st};
use parking_lot::Mutex;

use crate::device::cuda::{
    context::Context,
    driver::{DriverError, out_pointer},
    handle::Handle,
};

/// Events that are kept for the next use: more than threads copy at once, as a rule.
const SPARE_EVENTS: usize = 32;

/// Which work of the stream. Later work has larger numbers, and zero is what was there before all work.
pub(super) type Ticket = u64;

/// An event of a context.
#[derive(Debug)]
pub(super) struct Event {
    handle: Handle<CUevent_st>,
    context: Arc<Context>,
}

impl Event {
    /// One that was not recorded yet: a wait for it returns at once.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        let _current = context.enter()?;
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        let handle = out_pointer(|event| context.driver().event_create(event, flags))?;
        Ok(Self { handle: Handle::new(handle), context: Arc::clone(context) })
    }

    /// Waits until what was recorded last is done.
    pub(super) fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the event is alive: only the drop of this value destroys it.
        unsafe { self.context.driver().event_synchronize(self.handle.get()) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let destroyed = self.context.enter().and_then(|_current| {
            // SAFETY: made by `new` and destroyed here alone, because no other value has the handle; the driver keeps
            // what is behind it until nothing waits for it any more.
            unsafe { self.context.driver().event_destroy(self.handle.get()) }
        });
        if let Err(failure) = destroyed
            && !failure.is_over()
        {
            log::error!("an event of GPU {} could not be destroyed: {failure}", self.context.device());
        }
    }
}

/// A stream of ours.
#[derive(Debug)]
pub(super) struct Stream {
    handle: Handle<CUstream_st>,
    context: Arc<Context>,
    submitted: AtomicU64,
    completed: AtomicU64,
    spare: Mutex<Vec<Event>>,
}

impl Stream {
    /// A stream without work.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        let _current = context.enter()?;
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let handle = out_pointer(|stream| context.driver().stream_create(stream, flags))?;
        Ok(Self {
            handle: Handle::new(handle),
            context: Arc::clone(context),
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            spare: Mutex::new(Vec::new()),
        })
    }

    pub(super) fn handle(&self) -> CUstream {
        self.handle.get()
    }

    /// The ticket of work that the caller has put on the stream.
    pub(super) fn submit(&self) -> Ticket {
        self.submitted.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether all that has a ticket is known to be done.
    pub(super) fn is_idle(&self) -> bool {
        self.is_done(self.submitted.load(Ordering::Acquire))
    }

    /// Whether the work is known to be done.
    pub(super) fn is_done(&self, ticket: Ticket) -> bool {
        self.completed.load(Ordering::Acquire) >= ticket
    }

    /// Waits for the work, and for what was put on the stream since.
    pub(super) fn finish(&self, ticket: Ticket) -> Result<(), DriverError> {
        if self.is_done(ticket) {
            return Ok(());
        }
        // Read first: what has a ticket is on the stream, so the record is behind it.
        let submitted = self.submitted.load(Ordering::Acquire);
        self.with_event(|event| {
            self.record(event)?;
            event.wait()
        })?;
        self.completed.fetch_max(submitted, Ordering::AcqRel);
        Ok(())
    }

    /// Waits for all that has a ticket.
    pub(super) fn finish_all(&self) -> Result<(), DriverError> {
        self.finish(self.submitted.load(Ordering::Acquire))
    }

    /// Waits for all that was put on the stream, with a ticket or without.
    pub(super) fn drain(&self) -> Result<(), DriverError> {
        let submitted = self.submitted.load(Ordering::Acquire);
        // SAFETY: the stream is alive: only the drop of this value destroys it.
        unsafe { self.context.driver().stream_synchronize(self.handle.get()) }?;
        self.completed.fetch_max(submitted, Ordering::AcqRel);
        Ok(())
    }

    /// Records an event of this stream's context behind all that was put on the stream so far.
    pub(super) fn record(&self, event: &Event) -> Result<(), DriverError> {
        // SAFETY: both handles are alive, because their owners are borrowed. They are of one context: every event that
        // is recorded here was made for this stream's context, by `with_event` or by the device's staging buffers.
        unsafe { self.context.driver().event_record(event.handle.get(), self.handle.get()) }
    }

    /// Lets another stream of ours wait for all that was put on this one so far.
    pub(super) fn precede(&self, other: &Self) -> Result<(), DriverError> {
        // SAFETY: the stream is alive, because its owner is borrowed.
        unsafe { self.hold_back(other.handle()) }
    }

    /// Lets `stream`, of this or another device, wait for all that was put on this one so far.
    ///
    /// # Safety
    /// `stream` is a live stream.
    pub(super) unsafe fn hold_back(&self, stream: CUstream) -> Result<(), DriverError> {
        self.with_event(|event| {
            self.record(event)?;
            // SAFETY: the event is alive, because it is borrowed, and the stream by this function's contract; zero is
            // the only flag. The wait is for the record above, whatever becomes of the event.
            unsafe { self.context.driver().stream_wait_event(stream, event.handle.get(), 0) }
        })
    }

    /// Calls `work` with an event that no other thread records meanwhile.
    fn with_event(&self, work: impl FnOnce(&Event) -> Result<(), DriverError>) -> Result<(), DriverError> {
        let spare = self.spare.lock().pop();
        let event = match spare {
            Some(event) => event,
            None => Event::new(&self.context)?,
        };
        let done = work(&event);
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_EVENTS {
            spare.push(event);
        }
        done
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let destroyed = self.context.enter().and_then(|_current| {
            // SAFETY: made by `new` and destroyed here alone, because no other value has the handle; the driver lets
            // its work end first.
            unsafe { self.context.driver().stream_destroy(self.handle.get()) }
        });
        if let Err(failure) = destroyed
            && !failure.is_over()
        {
            log::error!("a stream of GPU {} could not be destroyed: {failure}", self.context.device());
        }
    }
}
