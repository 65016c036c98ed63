//! What was pickled is read back by a small reader.

use super::{super::testing, *};

/// What a pickle of plain values can hold.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Number(i128),
    Text(String),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Pair(Box<(Value, Value)>),
    False,
}

impl Value {
    fn get(&self, key: &str) -> &Value {
        let Value::Dict(items) = self else { panic!("no dict: {self:?}") };
        let found = items.iter().find(|(name, _)| *name == Value::Text(key.to_owned()));
        &found.unwrap_or_else(|| panic!("no {key} in {self:?}")).1
    }

    fn list(&self) -> &[Value] {
        let Value::List(list) = self else { panic!("no list: {self:?}") };
        list
    }

    fn number(&self) -> u64 {
        let Value::Number(number) = self else { panic!("no number: {self:?}") };
        u64::try_from(*number).expect("not negative")
    }

    fn text(&self) -> &str {
        let Value::Text(text) = self else { panic!("no text: {self:?}") };
        text
    }
}

/// Reads the opcodes that the module names, and no other.
fn decode(mut bytes: &[u8]) -> Value {
    let (mut stack, mut marks, mut memo) = (Vec::new(), Vec::new(), HashMap::new());
    let mut take = |count: usize| {
        let (taken, rest) = bytes.split_at(count);
        bytes = rest;
        taken.to_vec()
    };
    let small = |bytes: Vec<u8>| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    assert_eq!(take(2), PROTO);
    loop {
        match take(1)[0] {
            MARK => marks.push(stack.len()),
            EMPTY_DICT => stack.push(Value::Dict(Vec::new())),
            EMPTY_LIST => stack.push(Value::List(Vec::new())),
            NEWFALSE => stack.push(Value::False),
            SETITEMS => {
                let items = stack.split_off(marks.pop().expect("a mark"));
                let Some(Value::Dict(dict)) = stack.last_mut() else { panic!("no dict") };
                dict.extend(items.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())));
            }
            APPENDS => {
                let items = stack.split_off(marks.pop().expect("a mark"));
                assert!(items.len() <= BATCH);
                let Some(Value::List(list)) = stack.last_mut() else { panic!("no list") };
                list.extend(items);
            }
            TUPLE2 => {
                let two = stack.split_off(stack.len() - 2);
                stack.push(Value::Pair(Box::new((two[0].clone(), two[1].clone()))));
            }
            BINUNICODE => {
                let length = small(take(4)) as usize;
                stack.push(Value::Text(String::from_utf8(take(length)).expect("UTF-8")));
            }
            BININT => stack.push(Value::Number(i32::from_le_bytes(take(4).try_into().expect("four")).into())),
            LONG1 => {
                let length = take(1)[0] as usize;
                let bytes = take(length);
                let sign = if bytes[length - 1] >= 0x80 { 0xff } else { 0 };
                let mut wide = [sign; 16];
                wide[..length].copy_from_slice(&bytes);
                stack.push(Value::Number(i128::from_le_bytes(wide)));
            }
            BINPUT => drop(memo.insert(u32::from(take(1)[0]), stack.last().expect("a value").clone())),
            LONG_BINPUT => drop(memo.insert(small(take(4)), stack.last().expect("a value").clone())),
            BINGET => stack.push(memo[&u32::from(take(1)[0])].clone()),
            LONG_BINGET => stack.push(memo[&small(take(4))].clone()),
            STOP => break,
            other => panic!("opcode {other:#x}"),
        }
    }
    assert_eq!((stack.len(), marks.len(), bytes.len()), (1, 0, 0));
    stack.remove(0)
}

#[test]
fn numbers_of_every_size_read_back() {
    let snapshot = testing::snapshot();
    let numbers = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]).chain([u64::MAX]);
    for number in numbers {
        let mut pickle = Pickle::new(&snapshot);
        pickle.number(number);
        pickle.bytes.push(STOP);
        assert_eq!(decode(&pickle.bytes), Value::Number(number.into()), "{number}");
    }
}

#[test]
fn long_lists_come_in_batches_and_many_texts_are_remembered() {
    let snapshot = testing::snapshot();
    for count in [0, 1, BATCH, BATCH + 1, 3 * BATCH] {
        let mut pickle = Pickle::new(&snapshot);
        pickle.list(0..count, |pickle, number| pickle.text(&format!("{}", number % 700)));
        pickle.bytes.push(STOP);
        let expected: Vec<_> = (0..count).map(|number| Value::Text((number % 700).to_string())).collect();
        assert_eq!(decode(&pickle.bytes), Value::List(expected));
    }
}

#[test]
fn it_has_the_structure_that_the_viewer_reads() {
    let snapshot = testing::snapshot();
    let value = decode(&encode(&snapshot));
    let device = &snapshot.devices[0];
    let segments = value.get("segments").list();
    assert_eq!(segments.len(), device.regions.len());
    let mut active = 0;
    for (segment, region) in segments.iter().zip(&device.regions) {
        assert_eq!(segment.get("address").number(), region.address.get());
        let mut at = region.address.get();
        for block in segment.get("blocks").list() {
            assert_eq!(block.get("address").number(), at, "blocks follow each other");
            at += block.get("size").number();
            let frames = block.get("frames").list();
            match block.get("state").text() {
                "inactive" => assert!(frames.is_empty()),
                "active_allocated" | "active_pending_free" => {
                    active += 1;
                    assert!(frames[0].get("filename").text().len() > 1 && frames[0].get("line").number() < 100);
                }
                other => panic!("state {other}"),
            }
        }
        assert_eq!(at, region.address.get() + segment.get("total_size").number());
    }
    assert_eq!(active, device.blocks.len());
    let trace = value.get("device_traces").list()[0].list();
    // As the viewer does it: what was allocated and not freed is what is there.
    let mut live = HashMap::new();
    let mut names = std::collections::BTreeSet::new();
    for event in trace {
        let (action, address) = (event.get("action").text(), event.get("addr").number());
        names.insert(action);
        match action {
            "alloc" => assert!(live.insert(address, event.get("size").number()).is_none()),
            "free_completed" => assert_eq!(live.remove(&address), Some(event.get("size").number())),
            "oom" => assert_eq!(event.get("frames").list()[0].get("name").text(), "jit_step output 1 f32[1024]"),
            _ => {}
        }
    }
    let mut there: Vec<_> = device.blocks.iter().map(|info| (info.block.address.get(), info.held.get())).collect();
    there.sort();
    let mut seen: Vec<_> = live.into_iter().collect();
    seen.sort();
    assert_eq!(seen, there);
    let expected = ["alloc", "free_completed", "free_requested", "oom", "segment_alloc"];
    assert_eq!(names.into_iter().collect::<Vec<_>>(), expected);
}
