//! Events: places in streams, for other streams and for the host to wait for.

use crate::{
    clock::{Clock, Point},
    operation::{Order, Work},
    state::Driver,
    status::{self, Answer, misuse},
    stream::Waits,
};

/// One event.
#[derive(Debug)]
pub struct Event {
    /// The GPU of its context.
    pub gpu: usize,
    record: Option<Record>,
}

/// The last time that an event was recorded.
#[derive(Clone, Debug)]
struct Record {
    point: Point,
    clock: Clock,
}

fn find(driver: &Driver, handle: usize) -> Answer<&Event> {
    let unknown = || misuse(status::INVALID_HANDLE, format!("{handle:#x} is no event, or was destroyed before"));
    driver.events.get(&(handle as u64)).ok_or_else(unknown)
}

/// `cuEventCreate`.
pub fn create(driver: &mut Driver, flags: u32) -> Answer<usize> {
    let gpu = driver.working()?;
    // CU_EVENT_BLOCKING_SYNC and CU_EVENT_DISABLE_TIMING, which change nothing here; the third flag is for events of
    // several processes.
    if flags & !0b11 != 0 {
        return Err(misuse(status::INVALID_VALUE, format!("flags are {flags:#x}; 1 and 2 are known")));
    }
    let handle = driver.number() << 8;
    driver.events.insert(handle, Event { gpu, record: None });
    Ok(handle as usize)
}

/// `cuEventDestroy`: whoever waits for it waits on.
pub fn destroy(driver: &mut Driver, handle: usize) -> Answer {
    driver.current()?;
    find(driver, handle)?;
    driver.events.remove(&(handle as u64));
    Ok(())
}

/// `cuEventRecord`.
pub fn record(driver: &mut Driver, handle: usize, stream: usize) -> Answer {
    let (line, gpu) = driver.line_to_use(stream)?;
    let event = find(driver, handle)?;
    if event.gpu != gpu {
        let why = format!("the event {handle:#x} is of GPU {}, the stream {stream:#x} of GPU {gpu}", event.gpu);
        return Err(misuse(status::INVALID_HANDLE, why));
    }
    let point = driver.issue(line, Order::new("cuEventRecord", Work::Nothing))?;
    let clock = driver.streams[&line].clock.clone();
    if let Some(event) = driver.events.get_mut(&(handle as u64)) {
        event.record = Some(Record { point, clock });
    }
    Ok(())
}

/// `cuStreamWaitEvent`: for what is recorded now; the event and the stream may be of two GPUs.
pub fn wait(driver: &mut Driver, stream: usize, handle: usize, flags: u32) -> Answer {
    driver.working()?;
    let line = driver.line(stream)?;
    if flags != 0 {
        return Err(misuse(status::INVALID_VALUE, format!("flags are {flags:#x}, not 0")));
    }
    let Some(record) = find(driver, handle)?.record.clone() else { return Ok(()) };
    let order =
        Order { after: vec![record.point], seen: record.clock, ..Order::new("cuStreamWaitEvent", Work::Nothing) };
    driver.issue(line, order).map(|_| ())
}

/// `cuEventQuery`. Alone of the functions of events it needs no context.
pub fn query(driver: &mut Driver, handle: usize) -> Answer {
    let gpu = find(driver, handle)?.gpu;
    driver.healthy(gpu)?;
    let Some(record) = find(driver, handle)?.record.clone() else { return Ok(()) };
    if !driver.is_done(record.point) {
        return Err(status::NOT_READY.into());
    }
    driver.observe(&record.clock);
    Ok(())
}

/// `cuEventSynchronize`.
pub fn synchronize(driver: &mut Driver, handle: usize) -> Answer {
    let current = driver.working()?;
    let Some(record) = find(driver, handle)?.record.clone() else { return Ok(()) };
    driver.wait_for(&[record.point]);
    driver.observe(&record.clock);
    driver.has_waited_for(&[record.point]);
    driver.healthy(current)
}
