//! Our stream of a device: copies in order, and how far they are.
//!
//! ```text
//!  ticket:         1      2      3      4
//!  the stream:   |copy|--|copy|--|copy|--|copy|-->     a ticket is handed out when its work is on the stream
//!                           ^              ^
//!                       completed      submitted       a wait for 2 returns at once, one for 3 waits for the end of 4
//! ```
//!
//! The stream does not wait for the legacy default stream, nor that for it. Events are made without timing, which makes them
//! cheap, and used again: what waits for a record keeps waiting for it when the event is recorded once more.
//!
//! Whoever records and waits is in the context of the stream.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream, CUstream_flags};
use parking_lot::Mutex;

use crate::device::cuda::{
    context::Context,
    driver::{Failure, out_pointer},
};

/// Events that are kept for the next use: more than threads copy at once, as a rule.
const SPARE_EVENTS: usize = 32;

/// Which work of the stream. Later work has larger numbers, and zero is what was there before all work.
pub(super) type Ticket = u64;

/// An event of a context.
#[derive(Debug)]
pub(super) struct Event {
    handle: CUevent,
    context: Arc<Context>,
}

// SAFETY: the handle is a name that the driver's functions take from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// One that nobody has recorded: who waits for it does not wait.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, Failure> {
        let _current = context.enter()?;
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the context is current, and one value is written.
        let handle = out_pointer(|event| unsafe { context.driver().event_create(event, flags) })?;
        Ok(Self { handle, context: Arc::clone(context) })
    }

    /// Waits until what was recorded last is done.
    pub(super) fn wait(&self) -> Result<(), Failure> {
        // SAFETY: the event is alive.
        unsafe { self.context.driver().event_synchronize(self.handle) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let destroyed = self.context.enter().and_then(|_current| {
            // SAFETY: destroyed once; the driver frees it when nothing waits for it any more.
            unsafe { self.context.driver().event_destroy(self.handle) }
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
    handle: CUstream,
    context: Arc<Context>,
    submitted: AtomicU64,
    completed: AtomicU64,
    spare: Mutex<Vec<Event>>,
}

// SAFETY: the handle is a name that the driver's functions take from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver orders what several threads put on it.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream without work.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, Failure> {
        let _current = context.enter()?;
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current, and one value is written.
        let handle = out_pointer(|stream| unsafe { context.driver().stream_create(stream, flags) })?;
        Ok(Self {
            handle,
            context: Arc::clone(context),
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            spare: Mutex::new(Vec::new()),
        })
    }

    pub(super) fn handle(&self) -> CUstream {
        self.handle
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
    pub(super) fn finish(&self, ticket: Ticket) -> Result<(), Failure> {
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

    /// Waits for all that was put on the stream, with a ticket or without.
    pub(super) fn drain(&self) -> Result<(), Failure> {
        let submitted = self.submitted.load(Ordering::Acquire);
        // SAFETY: the stream is alive.
        unsafe { self.context.driver().stream_synchronize(self.handle) }?;
        self.completed.fetch_max(submitted, Ordering::AcqRel);
        Ok(())
    }

    /// Records an event of this stream's context behind all that was put on the stream so far.
    pub(super) fn record(&self, event: &Event) -> Result<(), Failure> {
        // SAFETY: both are alive, and of one context.
        unsafe { self.context.driver().event_record(event.handle, self.handle) }
    }

    /// Lets `stream`, of this or another device, wait for all that was put on this one so far.
    ///
    /// # Safety
    /// `stream` is a live stream.
    pub(super) unsafe fn hold_back(&self, stream: CUstream) -> Result<(), Failure> {
        self.with_event(|event| {
            self.record(event)?;
            // SAFETY: the event is alive, and the stream by the contract. The wait is for the record above, whatever
            // becomes of the event.
            unsafe { self.context.driver().stream_wait_event(stream, event.handle, 0) }
        })
    }

    /// Lends an event out, which nobody else records meanwhile.
    fn with_event(&self, work: impl FnOnce(&Event) -> Result<(), Failure>) -> Result<(), Failure> {
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
            // SAFETY: destroyed once; the driver lets its work end first.
            unsafe { self.context.driver().stream_destroy(self.handle) }
        });
        if let Err(failure) = destroyed
            && !failure.is_over()
        {
            log::error!("a stream of GPU {} could not be destroyed: {failure}", self.context.device());
        }
    }
}
