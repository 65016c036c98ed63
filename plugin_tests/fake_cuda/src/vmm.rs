//! Virtual memory management: physical handles, reserved addresses, and the one mapped at the other.

use std::{collections::BTreeMap, ops::Range};

use crate::{
    memory::{Kind, Span},
    pages::{self, Protection},
    state::Driver,
    status::{self, Answer, Failure, misuse},
};

/// What sizes and addresses are multiples of, at least and as recommended: as on today's GPUs.
pub const GRANULARITY: u64 = 2 << 20;

/// What `cuMemCreate` gave.
#[derive(Debug)]
pub struct Physical {
    /// The GPU.
    pub gpu: usize,
    /// Its size.
    pub bytes: u64,
    offset: u64,
    /// Whether `cuMemRelease` was not called yet.
    held: bool,
    mappings: usize,
}

/// The properties of a physical allocation, as numbers: any may come from C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED` is 1.
    pub kind: u32,
    /// A set of handle types: 1 is a POSIX file descriptor, 8 a fabric handle.
    pub handles: u32,
    /// `CU_MEM_LOCATION_TYPE_DEVICE` is 1.
    pub location: u32,
    /// The device.
    pub device: i32,
    /// Whether it may be compressed.
    pub compression: u8,
    /// Whether network cards may use it.
    pub rdma: u8,
}

/// A handle's memory at an address.
#[derive(Debug)]
pub struct Mapping {
    /// Its size.
    pub bytes: u64,
    /// The handle.
    pub handle: u64,
    /// The GPU whose memory it is.
    pub gpu: usize,
    /// What each GPU may do, where `cuMemSetAccess` said so.
    pub access: BTreeMap<usize, Protection>,
}

impl Mapping {
    /// The most that any GPU may do.
    pub fn most(&self) -> Protection {
        self.access.values().copied().max().unwrap_or(Protection::Nothing)
    }
}

fn whole(what: &str, bytes: u64) -> Answer {
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
        return Err(misuse(status::INVALID_VALUE, format!("the {what} is {bytes}, no multiple of {GRANULARITY}")));
    }
    Ok(())
}

fn no_flags(flags: u64) -> Answer {
    if flags == 0 { Ok(()) } else { Err(misuse(status::INVALID_VALUE, format!("flags are {flags:#x}, not 0"))) }
}

/// The GPU on which an allocation of these properties lies. Handles for a fabric are refused, as on machines without
/// one.
///
/// # Errors
/// INVALID_VALUE, INVALID_DEVICE or NOT_SUPPORTED.
pub fn location(driver: &Driver, properties: &Properties) -> Answer<usize> {
    if (properties.kind, properties.location) != (1, 1) {
        return Err(misuse(status::INVALID_VALUE, format!("{properties:?}: only pinned memory of a device is known")));
    }
    let no_rdma = properties.rdma != 0 && !driver.settings.rdma;
    if properties.handles & !1 != 0 || no_rdma || properties.compression != 0 {
        // What a GPU lacks a correct caller may try.
        return Err(status::NOT_SUPPORTED.into());
    }
    driver.gpu(properties.device)
}

/// `cuMemCreate`.
pub fn create(driver: &mut Driver, bytes: u64, properties: Properties, flags: u64) -> Answer<u64> {
    no_flags(flags)?;
    whole("size", bytes)?;
    let gpu = location(driver, &properties)?;
    driver.take(gpu, bytes)?;
    let Ok(offset) = driver.gpus[gpu].file.grow(bytes) else {
        driver.gpus[gpu].used -= bytes;
        return Err(status::OUT_OF_MEMORY.into());
    };
    let handle = driver.number();
    driver.physical.insert(handle, Physical { gpu, bytes, offset, held: true, mappings: 0 });
    Ok(handle)
}

fn held(driver: &mut Driver, handle: u64) -> Answer<&mut Physical> {
    let unknown = || misuse(status::INVALID_VALUE, format!("{handle:#x} is no handle, or was released before"));
    driver.physical.get_mut(&handle).filter(|physical| physical.held).ok_or_else(unknown)
}

/// `cuMemRelease`: the memory goes when no mapping is left.
pub fn release(driver: &mut Driver, handle: u64) -> Answer {
    held(driver, handle)?.held = false;
    drop_unused(driver, handle);
    Ok(())
}

fn drop_unused(driver: &mut Driver, handle: u64) {
    let Some(physical) = driver.physical.get(&handle) else { return };
    if physical.held || physical.mappings > 0 {
        return;
    }
    let (gpu, bytes, offset) = (physical.gpu, physical.bytes, physical.offset);
    driver.physical.remove(&handle);
    driver.races.forget(handle);
    driver.gpus[gpu].used -= bytes;
    driver.gpus[gpu].file.discard(offset, bytes);
}

/// `cuMemAddressReserve`. CUDA documents sizes in pages of the host; what can be mapped there is a multiple of more.
pub fn reserve(driver: &mut Driver, bytes: u64, alignment: u64, hint: u64, flags: u64) -> Answer<u64> {
    no_flags(flags)?;
    whole("size", bytes)?;
    if alignment != 0 && !alignment.is_power_of_two() {
        return Err(misuse(status::INVALID_VALUE, format!("the alignment {alignment} is no power of two")));
    }
    let start = pages::reserve(bytes, alignment.max(GRANULARITY), hint).map_err(|_| status::OUT_OF_MEMORY)?;
    let space = driver.number();
    driver.spans.insert(start, Span { bytes, space, kind: Kind::Reserved(BTreeMap::new()) });
    Ok(start)
}

/// `cuMemAddressFree`: all of a reservation in which nothing is mapped.
pub fn free(driver: &mut Driver, address: u64, bytes: u64) -> Answer {
    let wrong = |why: String| Err(misuse(status::INVALID_VALUE, why));
    match driver.spans.get(&address) {
        Some(Span { bytes: reserved, kind: Kind::Reserved(maps), .. }) => {
            if *reserved != bytes {
                return wrong(format!("{bytes} bytes at {address:#x} are not the {reserved} that were reserved"));
            }
            if let Some(start) = maps.keys().next() {
                return wrong(format!("memory is still mapped at {start:#x} in the {bytes} bytes at {address:#x}"));
            }
        }
        _ => return wrong(format!("{address:#x} begins no reservation, or it was freed before")),
    }
    driver.spans.remove(&address);
    driver.vacate(address..address + bytes, false);
    Ok(())
}

/// The reservation that holds a range, and what is mapped in it.
fn reservation<'a>(driver: &'a mut Driver, range: &Range<u64>) -> Answer<&'a mut BTreeMap<u64, Mapping>> {
    let why = || format!("{:#x}..{:#x} lies in no reservation", range.start, range.end);
    let missing = || misuse(status::INVALID_VALUE, why());
    let (&start, span) = driver.spans.range_mut(..=range.start).next_back().ok_or_else(missing)?;
    match &mut span.kind {
        Kind::Reserved(maps) if range.end - start <= span.bytes => Ok(maps),
        _ => Err(missing()),
    }
}

fn range(address: u64, bytes: u64) -> Answer<Range<u64>> {
    whole("size", bytes)?;
    if !address.is_multiple_of(GRANULARITY) {
        return Err(misuse(status::INVALID_VALUE, format!("the address {address:#x} is no multiple of {GRANULARITY}")));
    }
    let end = address.checked_add(bytes).ok_or_else(|| misuse(status::INVALID_VALUE, "the range wraps around"))?;
    Ok(address..end)
}

/// `cuMemMap`.
pub fn map(driver: &mut Driver, address: u64, bytes: u64, offset: u64, handle: u64, flags: u64) -> Answer {
    no_flags(flags)?;
    let range = range(address, bytes)?;
    let physical = held(driver, handle)?;
    let (gpu, size, place) = (physical.gpu, physical.bytes, physical.offset);
    if offset != 0 || bytes > size {
        let why = format!(
            "{bytes} bytes from {offset} of a handle of {size}: the offset must be 0 and the size at most that"
        );
        return Err(misuse(status::INVALID_VALUE, why));
    }
    let maps = reservation(driver, &range)?;
    if let Some((start, _)) = maps.range(..range.end).next_back().filter(|(start, map)| **start + map.bytes > address) {
        return Err(misuse(status::INVALID_VALUE, format!("{address:#x}: memory is already mapped at {start:#x}")));
    }
    maps.insert(address, Mapping { bytes, handle, gpu, access: BTreeMap::new() });
    let pages = if driver.is_in_use(&range) { Protection::Write } else { Protection::Nothing };
    if driver.gpus[gpu].file.map(address, bytes, place, pages).is_err() {
        reservation(driver, &range)?.remove(&address);
        return Err(status::OUT_OF_MEMORY.into());
    }
    held(driver, handle)?.mappings += 1;
    Ok(())
}

/// The mappings that a range is made of; an error if it cuts one or has a gap.
fn exactly(maps: &BTreeMap<u64, Mapping>, range: &Range<u64>) -> Result<Vec<u64>, Failure> {
    let (mut at, mut found) = (range.start, Vec::new());
    while at < range.end {
        let Some(map) = maps.get(&at).filter(|map| at + map.bytes <= range.end) else {
            let why = format!("{:#x}..{:#x} is not made of whole mappings: see {at:#x}", range.start, range.end);
            return Err(misuse(status::INVALID_VALUE, why));
        };
        found.push(at);
        at += map.bytes;
    }
    Ok(found)
}

/// `cuMemUnmap`. It does not wait for what uses the memory.
pub fn unmap(driver: &mut Driver, address: u64, bytes: u64) -> Answer {
    let range = range(address, bytes)?;
    let maps = reservation(driver, &range)?;
    let starts = exactly(maps, &range)?;
    let gone: Vec<_> = starts.iter().filter_map(|start| Some((*start, maps.remove(start)?))).collect();
    driver.vacate(range, true);
    for (start, map) in gone {
        driver.retire(map.handle, &(start..start + map.bytes), "unmapped");
        if let Some(physical) = driver.physical.get_mut(&map.handle) {
            physical.mappings -= 1;
        }
        drop_unused(driver, map.handle);
    }
    Ok(())
}

/// `cuMemSetAccess`, for one device.
pub fn set_access(driver: &mut Driver, address: u64, bytes: u64, device: i32, allowed: Protection) -> Answer {
    let gpu = driver.gpu(device)?;
    let range = range(address, bytes)?;
    let maps = reservation(driver, &range)?;
    let starts = exactly(maps, &range)?;
    let owners: Vec<_> = starts.iter().map(|start| maps[start].gpu).collect();
    if let Some(owner) = owners.into_iter().find(|&owner| owner != gpu && !driver.are_peers(gpu, owner)) {
        let why = format!("GPU {gpu} cannot reach the memory of GPU {owner} at {address:#x}");
        return Err(misuse(status::INVALID_DEVICE, why));
    }
    let in_use = driver.is_in_use(&range);
    let maps = reservation(driver, &range)?;
    let mut less = Vec::new();
    for start in starts {
        let Some(map) = maps.get_mut(&start) else { continue };
        if map.access.insert(gpu, allowed) > Some(allowed) {
            less.push((map.handle, start..start + map.bytes));
        }
        // The pages allow what any GPU may do; the books know which one.
        let most = if in_use { Protection::Write } else { map.most() };
        pages::protect(start, map.bytes, most).map_err(|_| status::OUT_OF_MEMORY)?;
    }
    less.into_iter().for_each(|(handle, range)| driver.retire(handle, &range, "forbidden"));
    Ok(())
}
