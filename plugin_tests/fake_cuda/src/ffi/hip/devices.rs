//! Devices, their attributes and properties, peers, versions.

use std::ffi::{c_int, c_uint};

use super::{Out, call, context, framed, functions, set_device};
use crate::{
    device,
    state::Driver,
    status::{self, Answer, Status, misuse},
    stream,
};

/// The name of every GPU.
const NAME: &str = "Fake MI300X";

/// What a compiler makes code for, with the features that the GPU has on.
const ARCHITECTURE: &str = "gfx942:sramecc+:xnack-";

/// `HIP_VERSION` of 7.0.1 (`major * 10000000 + minor * 100000 + patch`).
const VERSION: c_int = 70_051_831;

/// `hipDeviceAttribute_t`: those that a program may ask for, as a GPU of the architecture gfx942 answers.
const ATTRIBUTES: [(c_uint, c_int); 24] = [
    (0, 1),         // memory with error correction
    (3, 1),         // host memory can be mapped
    (5, 2_100_000), // clock, in kHz
    (8, 1),         // concurrent kernels
    (19, 4 << 20),  // level 2 cache, in bytes
    (23, 9),        // compute capability, major
    (26, 1024),     // sides of a block
    (27, 1024),
    (28, 1024),
    (29, i32::MAX), // sides of a grid
    (30, 65_536),
    (31, 65_536),
    (56, 1024),       // threads of a block
    (57, 2048),       // threads of a multiprocessor
    (59, 8192),       // width of the memory's bus, in bits
    (60, 1_300_000),  // the memory's clock, in kHz
    (61, 4),          // compute capability, minor
    (63, 304),        // multiprocessors
    (71, 65_536),     // registers of a block
    (72, 131_072),    // registers of a multiprocessor
    (74, SHARED),     // shared memory of a block
    (87, 64),         // size of a warp
    (89, 1),          // virtual memory management
    (10_002, SHARED), // shared memory of a multiprocessor
];

/// Bytes of memory that the threads of a block share.
const SHARED: c_int = 65_536;

/// The first number that is no attribute with CUDA's meaning, and the numbers that have a meaning of AMD's own in ROCm
/// 6.3.
const NO_ATTRIBUTE: c_uint = 92;
const AMDS_OWN: std::ops::RangeInclusive<c_uint> = 10_000..=10_017;

/// The value of an attribute.
fn attribute(which: c_uint) -> Answer<c_int> {
    if which >= NO_ATTRIBUTE && !AMDS_OWN.contains(&which) {
        return Err(misuse(status::INVALID_VALUE, format!("{which} is no attribute of a device to HIP")));
    }
    Ok(ATTRIBUTES.iter().find(|(known, _)| *known == which).map_or(0, |&(_, value)| value))
}

/// `hipDeviceProp_tR0600` in bytes, with the offsets that its fields have in `hip_runtime_api.h` of ROCm 6.3, compiled.
/// Its name says that it is frozen since ROCm 6.0.
const PROPERTIES: usize = 1472;

/// The fields that are numbers of 4 bytes, and the attribute that says the same.
const NUMBERS: [(usize, c_uint); 20] = [
    (304, 71), // regsPerBlock
    (308, 87), // warpSize
    (320, 56), // maxThreadsPerBlock
    (324, 26), // maxThreadsDim
    (328, 27),
    (332, 28),
    (336, 29), // maxGridSize
    (340, 30),
    (344, 31),
    (348, 5),  // clockRate
    (360, 23), // major
    (364, 61), // minor
    (388, 63), // multiProcessorCount
    (400, 3),  // canMapHostMemory
    (576, 8),  // concurrentKernels
    (580, 0),  // ECCEnabled
    (608, 60), // memoryClockRate
    (612, 59), // memoryBusWidth
    (616, 19), // l2CacheSize
    (624, 57), // maxThreadsPerMultiProcessor
];

/// What `hipGetDeviceProperties` gives.
fn properties(driver: &Driver, ordinal: c_int) -> Answer<Vec<u8>> {
    let gpu = driver.gpu(ordinal)?;
    let mut all = vec![0; PROPERTIES];
    let mut put = |offset: usize, bytes: &[u8]| all[offset..offset + bytes.len()].copy_from_slice(bytes);
    for (offset, which) in NUMBERS {
        put(offset, &attribute(which)?.to_ne_bytes());
    }
    put(0, NAME.as_bytes());
    put(288, &driver.settings.memory.to_ne_bytes()); // totalGlobalMem
    for offset in [296, 640, 1416] {
        // sharedMemPerBlock, sharedMemPerMultiprocessor, maxSharedMemoryPerMultiProcessor
        put(offset, &i64::from(SHARED).to_ne_bytes());
    }
    put(584, &bus(gpu).to_ne_bytes()); // pciBusID
    put(1160, ARCHITECTURE.as_bytes()); // gcnArchName
    Ok(all)
}

/// The number of a GPU's bus.
fn bus(gpu: usize) -> u32 {
    0x1b + gpu as u32
}

functions! {
    framed hipDriverGetVersion(version: Out<c_int>) |_driver| version.put(VERSION);
    framed hipRuntimeGetVersion(version: Out<c_int>) |_driver| version.put(VERSION);
    call hipGetDeviceCount(count: Out<c_int>) |driver| count.put(driver.gpus.len() as c_int);
    call hipDeviceGet(device: Out<c_int>, ordinal: c_int) |driver| device.put(driver.gpu(ordinal)? as c_int);
    call hipDeviceGetName(name: Out<u8>, length: c_int, device: c_int) |driver| {
        driver.gpu(device)?;
        let room = usize::try_from(length).ok().filter(|&room| room > 0);
        let room = room.ok_or_else(|| misuse(status::INVALID_VALUE, format!("the name's length is {length}")))?;
        name.put_all(NAME.as_bytes()[..NAME.len().min(room - 1)].iter().copied().chain([0]))
    };
    call hipDeviceTotalMem(bytes: Out<usize>, device: c_int) |driver| {
        driver.gpu(device)?;
        bytes.put(driver.settings.memory as usize)
    };
    call hipDeviceGetAttribute(value: Out<c_int>, which: c_uint, device: c_int) |driver| {
        driver.gpu(device)?;
        value.put(attribute(which)?)
    };
    call hipDeviceCanAccessPeer(answer: Out<c_int>, device: c_int, peer: c_int) |driver| {
        let (one, other) = (driver.gpu(device)?, driver.gpu(peer)?);
        answer.put(driver.are_peers(one, other).into())
    };
    call hipGetDevice(device: Out<c_int>) |driver| device.put(driver.context(device::get())? as c_int);
    call hipSetDevice(device: c_int) |driver| set_device(driver, device);
    call hipGetDevicePropertiesR0600(all: Out<u8>, device: c_int) |driver| {
        all.put_all(properties(driver, device)?.into_iter())
    };
    call hipDeviceGetPCIBusId(text: Out<u8>, length: c_int, device: c_int) |driver| {
        let id = format!("0000:{:02x}:00.0", bus(driver.gpu(device)?));
        let room = usize::try_from(length).ok().filter(|&room| room > id.len());
        room.ok_or_else(|| misuse(status::INVALID_VALUE, format!("the id's length is {length}")))?;
        text.put_all(id.bytes().chain([0]))
    };
    call hipDeviceGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) |_driver| {
        least.put_if_wanted(1);
        greatest.put_if_wanted(-1);
        Ok(())
    };
    call hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) |driver| {
        let peer = context(driver, peer)?;
        device::enable_peer(driver, peer, flags)
    };
    call hipDeviceSynchronize() |driver| stream::synchronize_context(driver);
}
