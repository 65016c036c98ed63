//! A snapshot's history in the Chrome trace event format, which Perfetto opens, also beside a trace of `jax.profiler`.
//!
//! Each device is a process: counters of what blocks take (`in use`, `pending`), of the pool and of scratch; a slice
//! for each compaction; an instant for each request that found no room. Times are microseconds of the wall clock.

use serde::Serialize;

use crate::{
    memory::{
        BlockState,
        history::{Event, EventKind, Past},
    },
    report::snapshot::model::{Device, Snapshot, unix_nanos},
};

#[derive(Serialize)]
struct Trace {
    #[serde(rename = "traceEvents")]
    events: Vec<Entry>,
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
}

#[derive(Default, Serialize)]
struct Entry {
    name: String,
    ph: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: usize,
    tid: u32,
    /// An instant's reach: the whole process.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    args: serde_json::Map<String, serde_json::Value>,
}

/// What is counted, as it changes.
#[derive(Clone, Copy, PartialEq)]
struct Sums {
    in_use: u64,
    pending: u64,
    pool: u64,
    scratch: u64,
}

impl Sums {
    /// Before the first event.
    fn at_start(device: &Device) -> Self {
        let scratch = device.scratch.map(|region| region.bytes).unwrap_or_default();
        let mut past = Past::now(&device.blocks, &device.regions, scratch);
        device.events.list.iter().rev().for_each(|event| past.undo(event));
        let [in_use, pending, pool] = [past.in_use(), past.pending(), past.pool()].map(|bytes| bytes.get());
        Self { in_use, pending, pool, scratch: past.scratch.get() }
    }

    fn apply(&mut self, event: &Event) {
        let bytes = event.bytes.get();
        match event.kind() {
            EventKind::Allocate => self.in_use += bytes,
            EventKind::Free if event.before() == BlockState::Retired => self.pending -= bytes,
            EventKind::Free => self.in_use -= bytes,
            EventKind::Retire => (self.in_use, self.pending) = (self.in_use - bytes, self.pending + bytes),
            EventKind::Region => self.pool += bytes,
            EventKind::RegionGone => self.pool -= bytes,
            EventKind::Scratch => self.scratch = bytes,
            EventKind::Pin
            | EventKind::Unpin
            | EventKind::Move
            | EventKind::OutOfMemory
            | EventKind::Compaction
            | EventKind::Spill
            | EventKind::Return
            | EventKind::Asked
            | EventKind::Given => {}
        }
    }
}

/// The trace as JSON. O(blocks and events).
pub(super) fn encode(snapshot: &Snapshot) -> Vec<u8> {
    let mut events = Vec::new();
    for (number, device) in snapshot.devices.iter().enumerate() {
        add(snapshot, number + 1, device, &mut events);
    }
    serde_json::to_vec(&Trace { events, unit: "ms" }).unwrap_or_default()
}

fn args<const N: usize>(pairs: [(&str, serde_json::Value); N]) -> serde_json::Map<String, serde_json::Value> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn add(snapshot: &Snapshot, pid: usize, device: &Device, to: &mut Vec<Entry>) {
    let began = unix_nanos(snapshot.began);
    // A double keeps a quarter of a microsecond of the wall clock.
    let micros = |nanos: u64| (began + u128::from(nanos)) as f64 / 1000.0;
    let named = |name: &str, text: &str| Entry {
        name: name.to_owned(),
        ph: "M",
        pid,
        args: args([("name", text.into())]),
        ..Entry::default()
    };
    to.push(named("process_name", &format!("pjrt-arena {}", device.name)));
    to.push(named("thread_name", "compactions and failures"));
    let mut sums = Sums::at_start(device);
    let counter = |ts: f64, sums: Sums| Entry {
        name: "memory".to_owned(),
        ph: "C",
        ts: Some(ts),
        pid,
        args: args([
            ("in use", sums.in_use.into()),
            ("pending", sums.pending.into()),
            ("scratch", sums.scratch.into()),
        ]),
        ..Entry::default()
    };
    let pool = |ts: f64, sums: Sums| Entry {
        name: "pool".to_owned(),
        args: args([("pool", sums.pool.into())]),
        ..counter(ts, sums)
    };
    let first = device.events.list.first().and_then(|event| event.time().nanos()).unwrap_or(snapshot.now);
    to.push(counter(micros(first), sums));
    to.push(pool(micros(first), sums));
    for event in &device.events.list {
        let nanos = event.time().nanos().unwrap_or(0);
        let before = sums;
        sums.apply(event);
        if (Sums { pool: before.pool, ..sums }) != before {
            to.push(counter(micros(nanos), sums));
        }
        if sums.pool != before.pool {
            to.push(pool(micros(nanos), sums));
        }
        match event.kind() {
            EventKind::Compaction => to.push(Entry {
                name: "compaction".to_owned(),
                ph: "X",
                ts: Some(micros(nanos.saturating_sub(u64::from(event.step)))),
                dur: Some(f64::from(event.step) / 1000.0),
                pid,
                args: args([
                    ("buffers moved", event.block.into()),
                    ("bytes moved", event.bytes.get().into()),
                    ("largest hole after", event.other.into()),
                ]),
                ..Entry::default()
            }),
            kind @ (EventKind::Spill | EventKind::Return | EventKind::Asked | EventKind::Given) => to.push(Entry {
                name: match kind {
                    EventKind::Spill => "spill",
                    EventKind::Return => "return",
                    EventKind::Asked => "asked the group",
                    _ => "given to the group",
                }
                .to_owned(),
                ph: "X",
                ts: Some(micros(nanos.saturating_sub(u64::from(event.step)))),
                dur: Some(f64::from(event.step) / 1000.0),
                pid,
                args: args([("bytes", event.bytes.get().into()), ("bytes copied", event.other.into())]),
                ..Entry::default()
            }),
            EventKind::OutOfMemory => to.push(Entry {
                name: "out of memory".to_owned(),
                ph: "i",
                ts: Some(micros(nanos)),
                pid,
                s: Some("p"),
                args: args([("bytes", event.bytes.get().into()), ("for", snapshot.label(event.origin).into())]),
                ..Entry::default()
            }),
            _ => {}
        }
    }
    to.push(counter(micros(snapshot.now), sums));
    to.push(pool(micros(snapshot.now), sums));
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{super::testing, *};

    #[test]
    fn counters_end_where_the_arena_is() {
        let snapshot = testing::snapshot();
        let value: Value = serde_json::from_slice(&encode(&snapshot)).expect("JSON");
        let events = value["traceEvents"].as_array().expect("events");
        let of = |name: &str| events.iter().filter(|event| event["name"] == name).collect::<Vec<_>>();
        let (memory, pool) = (of("memory"), of("pool"));
        assert_eq!(memory[0]["args"]["in use"], 0, "the history reaches the beginning");
        let device = &snapshot.devices[0];
        let taken = |retired: bool| -> u64 {
            let blocks = device.blocks.iter().filter(|info| (info.state == BlockState::Retired) == retired);
            blocks.map(|info| info.held.get()).sum()
        };
        let last = memory.last().expect("counters");
        assert_eq!((&last["args"]["in use"], &last["args"]["pending"]), (&taken(false).into(), &taken(true).into()));
        assert_eq!(pool.last().expect("counters")["args"]["pool"], device.stats.pool_bytes.get());
        assert!(memory.iter().all(|event| event["ph"] == "C" && event["ts"].is_f64()));
        let compaction = of("compaction");
        assert_eq!((compaction.len(), &compaction[0]["ph"]), (1, &Value::from("X")));
        let failure = of("out of memory");
        assert_eq!((failure.len(), &failure[0]["args"]["for"]), (1, &Value::from("jit_step output 1 f32[1024]")));
    }
}
