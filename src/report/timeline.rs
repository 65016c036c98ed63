//! What memory did while a profiler recorded, as a part of its trace.
//!
//! ```text
//!  XSpace                                        XLA's format (tsl/profiler/protobuf/xplane.proto)
//!    XPlane /device:CUSTOM:pjrt-arena cpu:0      one for each device that something happened on
//!      XLine  allocations     allocate, free     each with the bytes, and the bytes in use after it
//!      XLine  moves           compaction         each with the number of buffers and the bytes that moved
//! ```
//!
//! XLA's converters show planes of this name like those of devices, beside the threads of the host. While nothing
//! records, an event costs one load.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;

use crate::{
    error::{Error, Result},
    units::Bytes,
};

/// Events kept of one recording: about 64 MiB. A trace viewer is slow from a tenth of it on.
const MOST_EVENTS: usize = 1 << 20;

/// The process's timeline: one recording at a time.
pub static TIMELINE: Timeline = Timeline::new();

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A block was allocated.
    Allocated {
        /// Its size.
        bytes: Bytes,
        /// The device's bytes in use after it.
        in_use: Bytes,
    },
    /// A block came back.
    Freed {
        /// Its size.
        bytes: Bytes,
        /// The device's bytes in use after it.
        in_use: Bytes,
    },
    /// Arrays were moved.
    Moved {
        /// How many.
        buffers: u64,
        /// Their sizes, summed.
        bytes: Bytes,
    },
    /// An array went to the tier.
    Spilled {
        /// Its size.
        bytes: Bytes,
        /// How much of it was copied: nothing, where its copy was there.
        copied: Bytes,
    },
    /// An array came back.
    Returned {
        /// Its size.
        bytes: Bytes,
    },
}

/// Takes events while a recording is on.
#[derive(Debug)]
pub struct Timeline {
    on: AtomicBool,
    recording: Mutex<Option<Recording>>,
}

/// What was taken.
#[derive(Debug)]
pub struct Recording {
    began: SystemTime,
    clock: Instant,
    events: Vec<Event>,
    left_out: u64,
}

#[derive(Debug)]
struct Event {
    device: Box<str>,
    start: Duration,
    lasted: Duration,
    what: What,
}

impl Timeline {
    const fn new() -> Self {
        Self { on: AtomicBool::new(false), recording: Mutex::new(None) }
    }

    /// Begins a recording.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` while another one is on.
    pub fn begin(&self) -> Result<()> {
        let mut recording = self.recording.lock();
        if recording.is_some() {
            return Err(Error::failed_precondition(
                "the arena's events are being recorded already, by another profiler",
            ));
        }
        let (began, clock) = (SystemTime::now(), Instant::now());
        *recording = Some(Recording { began, clock, events: Vec::new(), left_out: 0 });
        self.on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the recording, if one is on.
    pub fn end(&self) -> Option<Recording> {
        self.on.store(false, Ordering::Relaxed);
        self.recording.lock().take()
    }

    /// The time, while a recording is on: to be asked before what is then noted.
    #[inline]
    pub fn clock(&self) -> Option<Instant> {
        self.on.load(Ordering::Relaxed).then(Instant::now)
    }

    /// Takes what happened on `device` from `since` until now; `what` is asked after the time is taken.
    #[inline]
    pub fn note(&self, device: &str, since: Instant, what: impl FnOnce() -> What) {
        // Read here: on the way to what follows, which is in no cache, the processor waits as long as an allocation
        // takes.
        let until = Instant::now();
        self.put(device, since, until, what);
    }

    #[cold]
    fn put(&self, device: &str, since: Instant, until: Instant, what: impl FnOnce() -> What) {
        let lasted = until.saturating_duration_since(since);
        let what = what();
        let mut recording = self.recording.lock();
        // Otherwise it has ended meanwhile.
        let Some(recording) = recording.as_mut() else { return };
        if recording.events.len() >= MOST_EVENTS {
            recording.left_out += 1;
            return;
        }
        let start = since.saturating_duration_since(recording.clock);
        recording.events.push(Event { device: device.into(), start, lasted, what });
    }
}

/// The names of events and of their numbers; an index is an id in the plane, less one.
const EVENTS: [&str; 5] = ["allocate", "free", "compaction", "spill", "return"];
const STATS: [&str; 4] = ["bytes", "bytes_in_use", "buffers", "bytes_copied"];

impl What {
    /// Its line, its event's id, and its numbers by their ids.
    fn row(self) -> (usize, u64, [(u64, u64); 2]) {
        match self {
            Self::Allocated { bytes, in_use } => (0, 1, [(1, bytes.get()), (2, in_use.get())]),
            Self::Freed { bytes, in_use } => (0, 2, [(1, bytes.get()), (2, in_use.get())]),
            Self::Moved { buffers, bytes } => (1, 3, [(1, bytes.get()), (3, buffers)]),
            Self::Spilled { bytes, copied } => (1, 4, [(1, bytes.get()), (4, copied.get())]),
            Self::Returned { bytes } => (1, 5, [(1, bytes.get()), (4, bytes.get())]),
        }
    }
}

impl Recording {
    /// The recording as an `XSpace`. O(events).
    pub fn encode(&self) -> Vec<u8> {
        if self.left_out > 0 {
            log::warn!("a trace leaves out {} events of the arena after the first {MOST_EVENTS}", self.left_out);
        }
        let mut devices: BTreeMap<&str, [Message; 2]> = BTreeMap::new();
        for event in &self.events {
            let (line, id, numbers) = event.what.row();
            let mut message = Message::default();
            message.number(1, id);
            message.number(2, picoseconds(event.start));
            message.number(3, picoseconds(event.lasted));
            for (id, number) in numbers {
                let mut stat = Message::default();
                stat.number(1, id);
                stat.number(3, number);
                message.message(4, &stat);
            }
            devices.entry(&event.device).or_default()[line].message(4, &message);
        }
        let mut space = Message::default();
        for (number, (device, lines)) in devices.iter().enumerate() {
            space.message(1, &self.plane(number as u64, device, lines));
        }
        space.0
    }

    fn plane(&self, id: u64, device: &str, lines: &[Message; 2]) -> Message {
        let since_epoch = self.began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut plane = Message::default();
        plane.number(1, id);
        plane.text(2, &format!("/device:CUSTOM:pjrt-arena {device}"));
        for ((id, name), events) in (1..).zip(["allocations", "moves"]).zip(lines) {
            let mut line = Message::default();
            line.number(1, id);
            line.text(2, name);
            line.number(3, since_epoch.as_nanos() as u64);
            line.0.extend_from_slice(&events.0);
            plane.message(3, &line);
        }
        for (field, names) in [(4, &EVENTS[..]), (5, &STATS[..])] {
            for (id, name) in (1..).zip(names) {
                let mut metadata = Message::default();
                metadata.number(1, id);
                metadata.text(2, name);
                let mut entry = Message::default();
                entry.number(1, id);
                entry.message(2, &metadata);
                plane.message(field, &entry);
            }
        }
        plane
    }
}

fn picoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1000)
}

/// A protocol buffer that is being written.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &Self) {
        self.bytes(field, &message.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_taken_but_while_recording() {
        let timeline = Timeline::new();
        assert!(timeline.clock().is_none() && timeline.end().is_none());
        let early = Instant::now();
        timeline.note("cpu:0", early, || What::Moved { buffers: 1, bytes: Bytes::kib(1) });
        timeline.begin().unwrap();
        assert!(timeline.begin().unwrap_err().message.contains("already"));
        let since = timeline.clock().unwrap();
        timeline.note("cpu:0", since, || What::Moved { buffers: 2, bytes: Bytes::kib(3) });
        let recording = timeline.end().unwrap();
        assert_eq!(recording.events.len(), 1);
        assert!(timeline.clock().is_none());
        timeline.begin().unwrap();
        assert_eq!(timeline.end().unwrap().encode(), b"", "a new recording knows nothing of the last");
    }

    #[test]
    fn a_plane_has_what_happened_on_its_device() {
        let clock = Instant::now();
        let event = |device: &str, nanos, what| Event {
            device: device.into(),
            start: Duration::from_nanos(nanos),
            lasted: Duration::from_nanos(1),
            what,
        };
        let size = Bytes::new(300);
        let events = vec![
            event("cpu:1", 2, What::Allocated { bytes: size, in_use: size }),
            event("cpu:1", 9, What::Freed { bytes: size, in_use: Bytes::ZERO }),
            event("cpu:0", 5, What::Moved { buffers: 7, bytes: size }),
        ];
        let began = SystemTime::UNIX_EPOCH + Duration::from_nanos(5);
        let space = Recording { began, clock, events, left_out: 0 }.encode();
        // By hand from the schema: metadata_id, offset_ps, duration_ps, stats of (metadata_id, uint64_value).
        let allocate = [8, 1, 16, 0xD0, 0xF, 24, 0xE8, 7, 34, 5, 8, 1, 24, 0xAC, 2, 34, 5, 8, 2, 24, 0xAC, 2];
        let compaction = [8, 3, 16, 0x88, 0x27, 24, 0xE8, 7, 34, 5, 8, 1, 24, 0xAC, 2, 34, 4, 8, 3, 24, 7];
        let find = |part: &[u8]| space.windows(part.len()).position(|window| window == part);
        let (first, second) = (find(b"/device:CUSTOM:pjrt-arena cpu:0"), find(b"/device:CUSTOM:pjrt-arena cpu:1"));
        assert!(first < find(&compaction) && find(&compaction) < second && second < find(&allocate), "{space:?}");
        for name in EVENTS.iter().chain(&STATS) {
            assert!(find(name.as_bytes()).is_some(), "{name}");
        }
        assert!(find(&[18, 5, b'm', b'o', b'v', b'e', b's', 24, 5]).is_some(), "the line's name and its time");
    }
}
