//! Memory: allocations, what is known of an address, copies, fills.

use std::ffi::{c_int, c_uint, c_void};

use super::{INVALID_DIRECTION, In, Out, call, functions};
use crate::{
    copy::{self, Copy, Side},
    ffi::memory::put_value,
    memory::{self, Home, User},
    pointer,
    pool::Value,
    state::Driver,
    status::{self, Answer, Status, misuse},
};

/// `hipMemcpyKind`: what a copy is from, and what to.
const KINDS: [(Side, Side); 5] = [
    (Side::Host, Side::Host),
    (Side::Host, Side::Device),
    (Side::Device, Side::Host),
    (Side::Device, Side::Device),
    (Side::Any, Side::Any),
];

/// What a copy of a kind is from, and what to.
///
/// # Errors
/// There is no such kind.
pub fn sides(kind: c_uint) -> Answer<(Side, Side)> {
    let wrong = || misuse(INVALID_DIRECTION, format!("{kind} is no kind of a copy"));
    KINDS.get(kind as usize).copied().ok_or_else(wrong)
}

/// Numbers that begin and size the allocation around an address.
fn range(driver: &Driver, address: u64) -> Answer<(u64, u64)> {
    match (pointer::attribute(driver, 11, address)?, pointer::attribute(driver, 12, address)?) {
        (Value::Long(start), Value::Long(bytes)) => Ok((start, bytes)),
        _ => Err(status::UNKNOWN.into()),
    }
}

functions! {
    call hipMemGetInfo(free: Out<usize>, total: Out<usize>) |driver| {
        let (left, all) = memory::info(driver)?;
        free.put(left)?;
        total.put(all)
    };
    call hipMalloc(address: Out<u64>, bytes: usize) |driver| address.checked()?.put(memory::allocate(driver, bytes as u64)?);
    call hipFree(address: u64) |driver| memory::free(driver, address);
    call hipHostMalloc(address: Out<u64>, bytes: usize, flags: c_uint) |driver| {
        address.checked()?.put(memory::allocate_pinned(driver, bytes as u64, flags)?)
    };
    call hipHostFree(address: usize) |driver| memory::free_pinned(driver, address as u64);

    call hipMemcpyHtoDAsync(to: u64, from: In<u8>, bytes: usize, stream: usize) |driver| {
        let (to, from) = ((Side::Device, to), (Side::Host, from.address()));
        copy::copy(driver, Copy { what: "hipMemcpyHtoDAsync", to, from, bytes, waits: false }, stream)
    };
    call hipMemcpyDtoDAsync(to: u64, from: u64, bytes: usize, stream: usize) |driver| {
        let (to, from) = ((Side::Device, to), (Side::Device, from));
        copy::copy(driver, Copy { what: "hipMemcpyDtoDAsync", to, from, bytes, waits: false }, stream)
    };
    call hipMemcpyAsync(to: u64, from: u64, bytes: usize, kind: c_uint, stream: usize) |driver| {
        let (source, target) = sides(kind)?;
        let (to, from) = ((target, to), (source, from));
        copy::copy(driver, Copy { what: "hipMemcpyAsync", to, from, bytes, waits: false }, stream)
    };
    // In the order of its stream, and ended at its return where the host's memory is a side of it.
    call hipMemcpyWithStream(to: u64, from: u64, bytes: usize, kind: c_uint, stream: usize) |driver| {
        let (source, target) = sides(kind)?;
        let (to, from) = ((target, to), (source, from));
        copy::copy(driver, Copy { what: "hipMemcpyWithStream", to, from, bytes, waits: true }, stream)
    };
    call hipMemcpyPeerAsync(to: u64, device: c_int, from: u64, other: c_int, bytes: usize, stream: usize) |driver| {
        for (named, address) in [(driver.gpu(device)?, to), (driver.gpu(other)?, from)] {
            let place = driver.place(User::Anyone, address, bytes as u64, false);
            let home = place.map_err(|why| misuse(status::INVALID_VALUE, why))?.home;
            if home != Home::Gpu(named) {
                let why = format!("{address:#x} is said to be on GPU {named}, and is {home:?}");
                return Err(misuse(status::INVALID_VALUE, why));
            }
        }
        let (to, from) = ((Side::Device, to), (Side::Device, from));
        copy::copy(driver, Copy { what: "hipMemcpyPeerAsync", to, from, bytes, waits: false }, stream)
    };
    call hipMemcpyDtoHAsync(to: u64, from: u64, bytes: usize, stream: usize) |driver| {
        let (to, from) = ((Side::Host, to), (Side::Device, from));
        copy::copy(driver, Copy { what: "hipMemcpyDtoHAsync", to, from, bytes, waits: false }, stream)
    };
    call hipMemcpyHtoD(to: u64, from: In<u8>, bytes: usize) |driver| {
        let (to, from) = ((Side::Device, to), (Side::Host, from.address()));
        copy::copy(driver, Copy { what: "hipMemcpyHtoD", to, from, bytes, waits: true }, 0)
    };
    call hipMemcpyDtoH(to: u64, from: u64, bytes: usize) |driver| {
        let (to, from) = ((Side::Host, to), (Side::Device, from));
        copy::copy(driver, Copy { what: "hipMemcpyDtoH", to, from, bytes, waits: true }, 0)
    };
    call hipMemcpy(to: u64, from: u64, bytes: usize, kind: c_uint) |driver| {
        let (source, target) = sides(kind)?;
        let (to, from) = ((target, to), (source, from));
        copy::copy(driver, Copy { what: "hipMemcpy", to, from, bytes, waits: true }, 0)
    };
    call hipMemsetAsync(address: u64, value: c_int, bytes: usize, stream: usize) |driver| {
        // The value is converted to one byte, as memset does.
        copy::fill(driver, address, value.to_le_bytes()[0], bytes, stream)
    };
    call hipMemsetD32Async(address: u64, value: c_int, count: usize, stream: usize) |driver| {
        copy::fill_words(driver, address, value.cast_unsigned(), count, stream)
    };

    // The flags choose who sees a kernel's writes while it runs; memory here has no caches.
    call hipExtMallocWithFlags(address: Out<u64>, bytes: usize, _flags: c_uint) |driver| {
        address.checked()?.put(memory::allocate(driver, bytes as u64)?)
    };
    call hipMallocManaged(_address: Out<u64>, _bytes: usize, _flags: c_uint) |_driver| {
        Err(misuse(status::NOT_SUPPORTED, "managed memory is not known to this driver"))
    };
    call hipMemGetAddressRange(start: Out<u64>, bytes: Out<usize>, address: u64) |driver| {
        let (at, size) = range(driver, address)?;
        start.put_if_wanted(at);
        bytes.put_if_wanted(size as usize);
        Ok(())
    };
    // Its attributes have the numbers of CUDA's, and memory of the host and of a device is 1 and 2 for either.
    call hipPointerGetAttribute(value: Out<c_void>, which: c_uint, address: u64) |driver| {
        put_value(value, pointer::attribute(driver, which, address)?)
    };
    call hipDrvPointerGetAttributes(count: c_uint, which: In<c_uint>, values: In<usize>, address: u64) |driver| {
        let count = count as usize;
        for (which, at) in which.list(count)?.into_iter().zip(values.list(count)?) {
            put_value(Out::at(at), pointer::attributes(driver, which, address)?)?;
        }
        Ok(())
    };
}
