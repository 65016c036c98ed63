//! What a program may ask about an address: whose memory it is, where that begins, how large it is.

use crate::{
    memory::Kind,
    pool::Value,
    state::Driver,
    status::{self, Answer, misuse},
};

/// What is known of an address.
#[derive(Clone, Copy, Debug)]
struct About {
    /// 1 host, 2 device.
    kind: i32,
    gpu: usize,
    start: u64,
    bytes: u64,
    /// The kinds of handles for other processes that its physical memory was made for.
    handles: u32,
}

fn about(driver: &Driver, address: u64) -> Option<About> {
    let (start, span) = driver.span(address)?;
    let of = |kind, gpu| About { kind, gpu, start, bytes: span.bytes, handles: 0 };
    match &span.kind {
        Kind::Plain { gpu } => Some(of(2, *gpu)),
        Kind::Segment { gpu, blocks } => {
            let (&start, block) = blocks.range(..=address).next_back()?;
            Some(About { start, bytes: block.used, ..of(2, *gpu) })
        }
        // CUDA says where the context was current that pinned it; here that is the first.
        Kind::Pinned => Some(of(1, 0)),
        Kind::Reserved(maps) => {
            let (&start, map) =
                maps.range(..=address).next_back().filter(|(start, map)| address - **start < map.bytes)?;
            let handles = driver.physical.get(&map.handle).map_or(0, |physical| physical.properties.handles);
            Some(About { kind: 2, gpu: map.gpu, start, bytes: map.bytes, handles })
        }
    }
}

/// `cuPointerGetAttribute`.
pub fn attribute(driver: &Driver, which: u32, address: u64) -> Answer<Value> {
    // What CUDA gives for memory that it does not know; a caller asks in order to find that out.
    pointer_value(which, about(driver, address))?.ok_or_else(|| status::INVALID_VALUE.into())
}

/// `cuPointerGetAttributes`: for memory that CUDA does not know, zeros.
pub fn attributes(driver: &Driver, which: u32, address: u64) -> Answer<Value> {
    let none = About { kind: 0, gpu: 0, start: 0, bytes: 0, handles: 0 };
    let value = pointer_value(which, Some(about(driver, address).unwrap_or(none)))?;
    value.ok_or_else(|| status::INVALID_VALUE.into())
}

fn pointer_value(which: u32, about: Option<About>) -> Answer<Option<Value>> {
    let value: fn(About) -> Value = match which {
        2 => |about| Value::Int(about.kind),
        9 => |about| Value::Int(i32::try_from(about.gpu).unwrap_or(i32::MAX)),
        11 => |about| Value::Long(about.start),
        12 => |about| Value::Long(about.bytes),
        14 => |about| Value::Int(about.handles.cast_signed()),
        _ => {
            let why = format!("attribute {which} of a pointer is not known to this driver");
            return Err(misuse(status::INVALID_VALUE, why));
        }
    };
    Ok(about.map(value))
}
