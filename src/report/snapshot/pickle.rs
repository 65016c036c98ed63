//! A snapshot as PyTorch's memory viewer (pytorch.org/memory_viz) opens it: a pickle of plain dicts, lists, texts and
//! numbers, without any class.
//!
//! ```text
//!  segments        one for each region; its blocks, holes among them, follow each other without a gap
//!  device_traces   for each device what happened, oldest first
//!                    allocate -> alloc                      free   -> free_requested, free_completed
//!                    retire   -> free_requested             free of a retired block -> free_completed
//!                    move     -> free_requested and free_completed at the old place, alloc at the new one
//! ```
//!
//! Where a block came from stands where PyTorch has a stack: a frame, whose name is the origin and whose line is the
//! step, and behind it the Python code that made it, where that was recorded. Protocol 2. The viewer spreads each batch
//! of a list over a call's arguments, so batches are small; equal texts and stacks are written once.

use std::collections::HashMap;

use crate::{
    memory::{
        AddressRange, BlockState, OriginId,
        history::{Event, EventKind},
    },
    report::{
        snapshot::model::{Device, Origin, OriginKind, Snapshot, unix_nanos},
        stacks::StackId,
    },
    units::Bytes,
};

/// Elements between two marks, as Python's own pickler has it.
const BATCH: usize = 1000;

const PROTO: [u8; 2] = [0x80, 2];
const MARK: u8 = b'(';
const EMPTY_DICT: u8 = b'}';
const EMPTY_LIST: u8 = b']';
const SETITEMS: u8 = b'u';
const APPENDS: u8 = b'e';
const BINUNICODE: u8 = b'X';
const BININT: u8 = b'J';
const LONG1: u8 = 0x8a;
const TUPLE2: u8 = 0x86;
const NEWFALSE: u8 = 0x89;
const BINPUT: u8 = b'q';
const LONG_BINPUT: u8 = b'r';
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';
const STOP: u8 = b'.';

/// The snapshot as a pickle. O(blocks and events).
pub(super) fn encode(snapshot: &Snapshot) -> Vec<u8> {
    let mut pickle = Pickle::new(snapshot);
    pickle.dict(|pickle| {
        pickle.key("segments");
        let segments = snapshot.devices.iter().enumerate();
        let segments = segments.flat_map(|(number, device)| device.regions.iter().map(move |r| (number, device, *r)));
        pickle.list(segments, |pickle, (number, device, region)| pickle.segment(number, device, region));
        pickle.key("device_traces");
        pickle.list(snapshot.devices.iter(), Pickle::trace);
        pickle.key("allocator_settings");
        pickle.dict(|pickle| {
            pickle.key("allocator");
            pickle.text("pjrt-arena");
        });
        pickle.key("external_annotations");
        pickle.list(std::iter::empty::<()>(), |_, ()| {});
    });
    pickle.bytes.push(STOP);
    pickle.bytes
}

struct Pickle<'a> {
    bytes: Vec<u8>,
    snapshot: &'a Snapshot,
    memo: u32,
    texts: HashMap<String, u32>,
    stacks: HashMap<(OriginId, u32), u32>,
    /// Microseconds since 1970 when the history began.
    began: u64,
}

/// What a trace says of one thing that happened.
struct Action<'a> {
    name: &'a str,
    address: u64,
    size: u64,
    time: u64,
    stack: (OriginId, u32),
}

impl<'a> Pickle<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let began = (unix_nanos(snapshot.began) / 1000) as u64;
        Self { bytes: PROTO.to_vec(), snapshot, memo: 0, texts: HashMap::new(), stacks: HashMap::new(), began }
    }

    fn number(&mut self, number: u64) {
        match i32::try_from(number) {
            Ok(small) => {
                self.bytes.push(BININT);
                self.bytes.extend(small.to_le_bytes());
            }
            Err(_) => {
                // Two's complement: nine bytes keep the highest bit from being a sign.
                let bytes = u128::from(number).to_le_bytes();
                let length = 1 + (64 - number.leading_zeros() as usize) / 8;
                self.bytes.extend([LONG1, length as u8]);
                self.bytes.extend(&bytes[..length]);
            }
        }
    }

    /// Remembers what was just written.
    fn put(&mut self) -> u32 {
        let id = self.memo;
        self.memo += 1;
        match u8::try_from(id) {
            Ok(id) => self.bytes.extend([BINPUT, id]),
            Err(_) => {
                self.bytes.push(LONG_BINPUT);
                self.bytes.extend(id.to_le_bytes());
            }
        }
        id
    }

    fn get(&mut self, id: u32) {
        match u8::try_from(id) {
            Ok(id) => self.bytes.extend([BINGET, id]),
            Err(_) => {
                self.bytes.push(LONG_BINGET);
                self.bytes.extend(id.to_le_bytes());
            }
        }
    }

    fn text(&mut self, text: &str) {
        if let Some(&id) = self.texts.get(text) {
            return self.get(id);
        }
        self.bytes.push(BINUNICODE);
        self.bytes.extend((text.len() as u32).to_le_bytes());
        self.bytes.extend(text.as_bytes());
        let id = self.put();
        self.texts.insert(text.to_owned(), id);
    }

    fn key(&mut self, key: &str) {
        self.text(key);
    }

    fn dict(&mut self, items: impl FnOnce(&mut Self)) {
        self.bytes.extend([EMPTY_DICT, MARK]);
        items(self);
        self.bytes.push(SETITEMS);
    }

    fn list<T>(&mut self, items: impl Iterator<Item = T>, mut each: impl FnMut(&mut Self, T)) {
        self.bytes.push(EMPTY_LIST);
        let mut open = 0;
        for item in items {
            if open == BATCH {
                self.bytes.push(APPENDS);
                open = 0;
            }
            if open == 0 {
                self.bytes.push(MARK);
            }
            each(self, item);
            open += 1;
        }
        if open > 0 {
            self.bytes.push(APPENDS);
        }
    }

    /// The frame that says where a block came from, and those of the Python code that made it.
    fn stack(&mut self, (origin, step): (OriginId, u32)) {
        if let Some(&id) = self.stacks.get(&(origin, step)) {
            return self.get(id);
        }
        let label = self.snapshot.label(origin);
        let program = self.snapshot.origins.get(origin.row() as usize).map(|row| row.program.to_string());
        let file = program.filter(|program| !program.is_empty()).unwrap_or_else(|| "pjrt-arena".to_owned());
        let first = (label, file, u64::from(step));
        let made_by = self.snapshot.origins.get(origin.row() as usize).map_or(StackId::NONE, Origin::stack);
        let python = self.snapshot.stacks.frames_of(made_by);
        let python = python.map(|frame| (frame.name.to_string(), frame.file.to_string(), u64::from(frame.line)));
        self.list(std::iter::once(first).chain(python), |pickle, (name, file, line)| {
            pickle.dict(|pickle| {
                pickle.key("name");
                pickle.text(&name);
                pickle.key("filename");
                pickle.text(&file);
                pickle.key("line");
                pickle.number(line);
            });
        });
        let id = self.put();
        self.stacks.insert((origin, step), id);
    }

    fn pair(&mut self, key: &str, number: u64) {
        self.key(key);
        self.number(number);
    }

    fn segment(&mut self, number: usize, device: &Device, region: AddressRange) {
        let parts = parts(device, region);
        let sum = |states: &[&str], of: fn(&Part) -> Bytes| {
            parts.iter().filter(|part| states.contains(&part.state)).map(of).sum::<Bytes>().get()
        };
        let (live, pending) = ("active_allocated", "active_pending_free");
        self.dict(|pickle| {
            pickle.pair("device", number as u64);
            pickle.pair("address", region.address.get());
            pickle.pair("total_size", region.bytes.get());
            pickle.pair("allocated_size", sum(&[live], |part| part.size));
            pickle.pair("active_size", sum(&[live, pending], |part| part.size));
            pickle.pair("requested_size", sum(&[live, pending], |part| part.requested));
            pickle.pair("stream", 0);
            pickle.key("segment_type");
            pickle.text("large");
            pickle.key("segment_pool_id");
            pickle.number(0);
            pickle.number(0);
            pickle.bytes.push(TUPLE2);
            pickle.key("is_expandable");
            pickle.bytes.push(NEWFALSE);
            pickle.key("frames");
            pickle.list(std::iter::empty::<()>(), |_, ()| {});
            pickle.key("blocks");
            pickle.list(parts.iter(), Self::part);
        });
    }

    fn part(&mut self, part: &Part) {
        self.dict(|pickle| {
            pickle.pair("address", part.address);
            pickle.pair("size", part.size.get());
            pickle.pair("requested_size", part.requested.get());
            pickle.key("state");
            pickle.text(part.state);
            pickle.key("frames");
            match part.stack {
                Some(stack) => pickle.stack(stack),
                None => pickle.list(std::iter::empty::<()>(), |_, ()| {}),
            }
        });
    }

    fn trace(&mut self, device: &Device) {
        let events = device.events.list.iter().flat_map(actions);
        let free = device.stats.free_bytes.get();
        self.list(events, |pickle, action| pickle.action(&action, free));
    }

    fn action(&mut self, action: &Action<'_>, free: u64) {
        self.dict(|pickle| {
            pickle.key("action");
            pickle.text(action.name);
            pickle.pair("addr", action.address);
            pickle.pair("size", action.size);
            pickle.pair("stream", 0);
            pickle.pair("time_us", pickle.began + action.time / 1000);
            if action.name == "oom" {
                // What is free now stands in for what was free then only where no numbers were kept.
                pickle.pair("device_free", free);
            }
            pickle.key("frames");
            pickle.stack(action.stack);
        });
    }
}

/// A block or a hole of a region.
struct Part {
    address: u64,
    size: Bytes,
    requested: Bytes,
    state: &'static str,
    stack: Option<(OriginId, u32)>,
}

/// What a region consists of, by address, without gaps.
fn parts(device: &Device, region: AddressRange) -> Vec<Part> {
    let end = region.address + region.bytes;
    let scratch = device.scratch.map(|scratch| Part {
        address: scratch.address.get(),
        size: scratch.bytes,
        requested: scratch.bytes,
        state: "active_allocated",
        stack: Some((OriginKind::Scratch.origin(), 0)),
    });
    let blocks = device.blocks.iter().map(|info| Part {
        address: info.block.address.get(),
        size: info.held,
        requested: info.block.size,
        state: if info.state == BlockState::Retired { "active_pending_free" } else { "active_allocated" },
        stack: Some((info.provenance.origin, info.provenance.run.step)),
    });
    let inside = |part: &Part| (region.address.get()..end.get()).contains(&part.address);
    let mut taken: Vec<Part> = blocks.chain(scratch).filter(inside).collect();
    taken.sort_by_key(|part| part.address);
    let mut parts = Vec::with_capacity(2 * taken.len() + 1);
    let mut at = region.address.get();
    let hole = |from: u64, to: u64| {
        let size = Bytes::new(to - from);
        Part { address: from, size, requested: Bytes::ZERO, state: "inactive", stack: None }
    };
    for part in taken {
        if part.address > at {
            parts.push(hole(at, part.address));
        }
        at = part.address + part.size.get();
        parts.push(part);
    }
    if end.get() > at {
        parts.push(hole(at, end.get()));
    }
    parts
}

/// What the viewer is told of an event.
fn actions(event: &Event) -> impl Iterator<Item = Action<'static>> {
    let (here, size) = (event.address.get(), event.bytes.get());
    let names: &[(&str, u64)] = match event.kind() {
        EventKind::Allocate => &[("alloc", here)],
        EventKind::Free if event.before() == BlockState::Retired => &[("free_completed", here)],
        EventKind::Free => &[("free_requested", here), ("free_completed", here)],
        EventKind::Retire => &[("free_requested", here)],
        EventKind::Move => &[("free_requested", event.other), ("free_completed", event.other), ("alloc", here)],
        EventKind::Region => &[("segment_alloc", here)],
        EventKind::RegionGone => &[("segment_free", here)],
        EventKind::OutOfMemory => &[("oom", 0)],
        EventKind::Pin
        | EventKind::Unpin
        | EventKind::Compaction
        | EventKind::Scratch
        | EventKind::Spill
        | EventKind::Return
        | EventKind::Asked
        | EventKind::Given => &[],
    };
    let time = event.time().nanos().unwrap_or(0);
    let stack = (event.origin, event.step);
    let actions: smallvec::SmallVec<[_; 3]> =
        names.iter().map(|&(name, address)| Action { name, address, size, time, stack }).collect();
    actions.into_iter()
}

#[cfg(test)]
mod tests;
