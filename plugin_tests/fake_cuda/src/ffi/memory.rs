//! Memory: allocations, physical handles and addresses, the pools, copies.

use std::ffi::{c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use cudarc::driver::sys;

use super::{In, Out, functions};
use crate::{
    copy::{self, Copy, Side},
    memory,
    pages::Protection,
    pool,
    status::{self, Answer, misuse},
    vmm::{self, Properties},
};

/// `CUmemAllocationProp` with numbers for enums, because any number may come from C.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AllocationProperties {
    kind: c_uint,
    handles: c_uint,
    location: Location,
    windows: usize,
    compression: c_uchar,
    rdma: c_uchar,
    usage: c_ushort,
    reserved: [c_uchar; 4],
}

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Location {
    kind: c_uint,
    id: c_int,
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AccessDescription {
    location: Location,
    flags: c_uint,
}

const _: () = {
    assert!(size_of::<AllocationProperties>() == size_of::<sys::CUmemAllocationProp>());
    assert!(
        std::mem::offset_of!(AllocationProperties, location)
            == std::mem::offset_of!(sys::CUmemAllocationProp, location)
    );
    assert!(
        std::mem::offset_of!(AllocationProperties, compression)
            == std::mem::offset_of!(sys::CUmemAllocationProp, allocFlags)
    );
    assert!(size_of::<AccessDescription>() == size_of::<sys::CUmemAccessDesc>());
    assert!(std::mem::offset_of!(AccessDescription, flags) == std::mem::offset_of!(sys::CUmemAccessDesc, flags));
};

impl AllocationProperties {
    fn read(self) -> Properties {
        let Self { kind, handles, location, compression, rdma, .. } = self;
        Properties { kind, handles, location: location.kind, device: location.id, compression, rdma }
    }
}

fn protection(flags: c_uint) -> Answer<Protection> {
    match flags {
        0 => Ok(Protection::Nothing),
        1 => Ok(Protection::Read),
        3 => Ok(Protection::Write),
        _ => Err(misuse(status::INVALID_VALUE, format!("the access is {flags}; 0, 1 and 3 are known"))),
    }
}

/// The devices of a list, and what each may do.
fn accesses(access: In<AccessDescription>, count: usize) -> Answer<Vec<(c_int, Protection)>> {
    let one = |AccessDescription { location: Location { kind, id }, flags }| {
        if kind != 1 {
            return Err(misuse(
                status::INVALID_VALUE,
                format!("a location of type {kind}; only devices, 1, are known"),
            ));
        }
        Ok((id, protection(flags)?))
    };
    access.list(count)?.into_iter().map(one).collect()
}

functions! {
    call cuMemGetInfo_v2(free: Out<usize> as *mut usize, total: Out<usize> as *mut usize) |driver| {
        let (left, all) = memory::info(driver)?;
        free.put(left)?;
        total.put(all)
    };
    call cuMemAlloc_v2(address: Out<u64> as *mut sys::CUdeviceptr, bytes: usize) |driver| {
        address.checked()?.put(memory::allocate(driver, bytes as u64)?)
    };
    call cuMemFree_v2(address: u64) |driver| memory::free(driver, address);
    call cuMemHostAlloc(address: Out<u64> as *mut *mut c_void, bytes: usize, flags: c_uint) |driver| {
        address.checked()?.put(memory::allocate_pinned(driver, bytes as u64, flags)?)
    };
    call cuMemFreeHost(address: usize as *mut c_void) |driver| memory::free_pinned(driver, address as u64);

    call cuMemGetAllocationGranularity(
        granularity: Out<usize> as *mut usize,
        properties: In<AllocationProperties> as *const sys::CUmemAllocationProp,
        option: c_uint as sys::CUmemAllocationGranularity_flags
    ) |driver| {
        vmm::location(driver, &properties.get()?.read())?;
        if option > 1 {
            return Err(misuse(status::INVALID_VALUE, format!("the option is {option}, not 0 or 1")));
        }
        granularity.put(vmm::GRANULARITY as usize)
    };
    call cuMemCreate(
        handle: Out<u64> as *mut sys::CUmemGenericAllocationHandle,
        bytes: usize,
        properties: In<AllocationProperties> as *const sys::CUmemAllocationProp,
        flags: c_ulonglong
    ) |driver| {
        let properties = properties.get()?.read();
        handle.checked()?.put(vmm::create(driver, bytes as u64, properties, flags)?)
    };
    call cuMemRelease(handle: u64) |driver| vmm::release(driver, handle);
    call cuMemAddressReserve(
        address: Out<u64> as *mut sys::CUdeviceptr,
        bytes: usize,
        alignment: usize,
        hint: u64,
        flags: c_ulonglong
    ) |driver| address.checked()?.put(vmm::reserve(driver, bytes as u64, alignment as u64, hint, flags)?);
    call cuMemAddressFree(address: u64, bytes: usize) |driver| vmm::free(driver, address, bytes as u64);
    call cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: c_ulonglong) |driver| {
        vmm::map(driver, address, bytes as u64, offset as u64, handle, flags)
    };
    call cuMemUnmap(address: u64, bytes: usize) |driver| vmm::unmap(driver, address, bytes as u64);
    call cuMemSetAccess(
        address: u64,
        bytes: usize,
        access: In<AccessDescription> as *const sys::CUmemAccessDesc,
        count: usize
    ) |driver| {
        for (device, allowed) in accesses(access, count)? {
            vmm::set_access(driver, address, bytes as u64, device, allowed)?;
        }
        Ok(())
    };

    call cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize as sys::CUstream) |driver| {
        let (to, from) = ((Side::Any, to), (Side::Any, from));
        copy::copy(driver, Copy { what: "cuMemcpyAsync", to, from, bytes, waits: false }, stream)
    };
    // By the contexts it finds either memory, whether the GPUs are peers or not; so do the others here.
    call cuMemcpyPeerAsync(
        to: u64, to_context: usize as sys::CUcontext, from: u64, from_context: usize as sys::CUcontext, bytes: usize,
        stream: usize as sys::CUstream
    ) |driver| {
        driver.context(to_context)?;
        driver.context(from_context)?;
        let (to, from) = ((Side::Device, to), (Side::Device, from));
        copy::copy(driver, Copy { what: "cuMemcpyPeerAsync", to, from, bytes, waits: false }, stream)
    };
    call cuMemcpyHtoDAsync_v2(to: u64, from: In<u8> as *const c_void, bytes: usize, stream: usize as sys::CUstream)
        |driver| {
            let (to, from) = ((Side::Device, to), (Side::Host, from.address()));
            copy::copy(driver, Copy { what: "cuMemcpyHtoDAsync_v2", to, from, bytes, waits: false }, stream)
        };
    call cuMemcpyDtoHAsync_v2(to: usize as *mut c_void, from: u64, bytes: usize, stream: usize as sys::CUstream)
        |driver| {
            let (to, from) = ((Side::Host, to as u64), (Side::Device, from));
            copy::copy(driver, Copy { what: "cuMemcpyDtoHAsync_v2", to, from, bytes, waits: false }, stream)
        };
    call cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize as sys::CUstream) |driver| {
        let (to, from) = ((Side::Device, to), (Side::Device, from));
        copy::copy(driver, Copy { what: "cuMemcpyDtoDAsync_v2", to, from, bytes, waits: false }, stream)
    };
    call cuMemcpyHtoD_v2(to: u64, from: In<u8> as *const c_void, bytes: usize) |driver| {
        let (to, from) = ((Side::Device, to), (Side::Host, from.address()));
        copy::copy(driver, Copy { what: "cuMemcpyHtoD_v2", to, from, bytes, waits: true }, 0)
    };
    call cuMemcpyDtoH_v2(to: usize as *mut c_void, from: u64, bytes: usize) |driver| {
        let (to, from) = ((Side::Host, to as u64), (Side::Device, from));
        copy::copy(driver, Copy { what: "cuMemcpyDtoH_v2", to, from, bytes, waits: true }, 0)
    };
    call cuMemsetD32Async(address: u64, value: c_uint, count: usize, stream: usize as sys::CUstream) |driver| {
        copy::fill_words(driver, address, value, count, stream)
    };
    call cuMemsetD8Async(address: u64, value: c_uchar, bytes: usize, stream: usize as sys::CUstream) |driver| {
        copy::fill(driver, address, value, bytes, stream)
    };

    call cuDeviceGetDefaultMemPool(pool: Out<usize> as *mut sys::CUmemoryPool, device: c_int) |driver| {
        pool.put(driver.pool_of(device)?)
    };
    call cuMemPoolGetAttribute(
        pool: usize as sys::CUmemoryPool,
        which: c_uint as sys::CUmemPool_attribute,
        value: Out<u64> as *mut c_void
    ) |driver| value.put(pool::attribute(driver, pool, which)?);
    call cuMemPoolSetAttribute(
        pool: usize as sys::CUmemoryPool,
        which: c_uint as sys::CUmemPool_attribute,
        value: In<u64> as *mut c_void
    ) |driver| pool::set_attribute(driver, pool, which, || value.get());
    call cuMemPoolTrimTo(pool: usize as sys::CUmemoryPool, keep: usize) |driver| pool::trim(driver, pool, keep);
    call cuMemAllocAsync(address: Out<u64> as *mut sys::CUdeviceptr, bytes: usize, stream: usize as sys::CUstream)
        |driver| address.checked()?.put(pool::allocate(driver, bytes, stream)?);
    call cuMemAllocFromPoolAsync(
        address: Out<u64> as *mut sys::CUdeviceptr, bytes: usize, pool: usize as sys::CUmemoryPool,
        stream: usize as sys::CUstream
    ) |driver| {
        let of = driver.pool(pool)?;
        let (_, gpu) = driver.line_of_pool(stream)?;
        if of != gpu {
            let why = format!("the pool {pool:#x} is of GPU {of}, the stream {stream:#x} of GPU {gpu}");
            return Err(misuse(status::INVALID_VALUE, why));
        }
        address.checked()?.put(pool::allocate(driver, bytes, stream)?)
    };
    call cuMemFreeAsync(address: u64, stream: usize as sys::CUstream) |driver| pool::free(driver, address, stream);
}
