//! Modules of PTX and their kernels: what they are given, what memory they reach, and what the detector knows of them.

#[macro_use]
#[path = "../../../fake_cuda/tests/driver/common.rs"]
mod common;

use std::ffi::{c_char, c_int, c_uint};

use common::*;
use simulated_gpu as _;

const PTX: &[u8] = b".version 8.0
.target sm_90
.address_size 64
.visible .global .align 4 .u32 total = 7;
.visible .const .align 4 .b8 table[8] = {1, 2, 3, 4};

// A word for each thread: to = from + value.
.visible .entry add(
    .param .u64 .ptr .global .align 4 to, .param .u64 .ptr .global .align 4 from, .param .u32 value
)
{
    .reg .b32 %r<8>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [to];
    ld.param.u64 %d2, [from];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    mul.wide.u32 %d3, %r5, 4;
    add.s64 %d1, %d1, %d3;
    add.s64 %d2, %d2, %d3;
    ld.global.u32 %r6, [%d2];
    add.s32 %r6, %r6, %r1;
    st.global.u32 [%d1], %r6;
    ret;
}

// A word for each thread: to = value.
.visible .entry put(.param .u64 .ptr .global .align 4 to, .param .u32 value)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [to];
    ld.param.u32 %r1, [value];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %d2, %r2, 4;
    add.s64 %d1, %d1, %d2;
    st.global.u32 [%d1], %r1;
    ret;
}

// Counts its launches in the module's variable: to = total, total += 1, and a word of the table.
.visible .entry tally(.param .u64 .ptr .global .align 8 to)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [to];
    ld.global.u32 %r1, [total];
    ld.const.u32 %r3, [table];
    st.global.v2.u32 [%d1], {%r1, %r3};
    add.s32 %r2, %r1, 1;
    st.global.u32 [total], %r2;
    ret;
}

// Writes 8 bytes to an address that is not declared to be one.
.visible .entry stray(.param .u64 place)
{
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [place];
    st.global.u64 [%d1], %d1;
    ret;
}

// Writes a word, sets the first flag, lasts until the second one is set, and writes again.
.visible .entry last(.param .u64 .ptr .global .align 4 to, .param .u64 .ptr .global .align 4 flags)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [to];
    ld.param.u64 %d2, [flags];
    st.global.u32 [%d1], 5;
    st.volatile.global.u32 [%d2], 1;
AGAIN:
    ld.volatile.global.u32 %r1, [%d2+4];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    st.global.u32 [%d1], 6;
    ret;
}
\0";

fn load(text: &[u8]) -> Result<usize, u32> {
    let mut module = 0;
    let code = cu!(cuModuleLoadData(&raw mut module => *mut usize, text.as_ptr() => *const u8));
    if code == status::SUCCESS { Ok(module) } else { Err(code) }
}

fn function(module: usize, name: &std::ffi::CStr) -> Result<usize, u32> {
    let mut function = 0;
    let code = cu!(cuModuleGetFunction(
        &raw mut function => *mut usize, module => usize, name.as_ptr() => *const c_char
    ));
    if code == status::SUCCESS { Ok(function) } else { Err(code) }
}

/// A kernel of a module that is loaded for it.
fn kernel_of(name: &std::ffi::CStr) -> usize {
    function(load(PTX).expect("PTX"), name).expect("a kernel")
}

fn unload(module: usize) -> u32 {
    cu!(cuModuleUnload(module => usize))
}

/// Launches blocks of threads. Of an argument that has 4 bytes the lower half counts.
fn launch_shape(function: usize, [grid, block]: [[u32; 3]; 2], arguments: &[u64], stream: usize) -> u32 {
    let values: Vec<*const u64> = arguments.iter().map(|argument| &raw const *argument).collect();
    cu!(cuLaunchKernel(
        function => usize, grid[0] => c_uint, grid[1] => c_uint, grid[2] => c_uint, block[0] => c_uint,
        block[1] => c_uint, block[2] => c_uint, 0 => c_uint, stream => usize,
        values.as_ptr() => *const *const u64, 0 => usize
    ))
}

/// Launches one block.
fn launch(function: usize, threads: u32, arguments: &[u64], stream: usize) -> u32 {
    launch_shape(function, [[1; 3], [threads, 1, 1]], arguments, stream)
}

fn words(address: u64, count: u64, stream: usize) -> Vec<u32> {
    let bytes = read(address, count * 4, stream);
    bytes.as_chunks().0.iter().map(|bytes| u32::from_ne_bytes(*bytes)).collect()
}

/// Waits until a byte has a value, without asking the driver.
fn until(address: u64, value: u8) {
    while peek(address) != value {
        std::thread::yield_now();
    }
}

#[test]
fn modules_are_refused_with_what_is_wrong_in_them() {
    let _session = start(&[]);
    assert_eq!(load(b"no PTX\0"), Err(status::INVALID_PTX));
    found(&["cuModuleLoadData", "line 1"]);
    assert_eq!(load(b"\xff\xfe\0"), Err(status::INVALID_VALUE));
    found(&["is not UTF-8"]);
    let mut module = 0usize;
    assert_eq!(
        cu!(cuModuleLoadData(&raw mut module => *mut usize, std::ptr::null() => *const u8)),
        status::INVALID_VALUE
    );
    found(&["null"]);
    let module = load(PTX).expect("PTX");
    // A question that a correct program may ask.
    assert_eq!(function(module, c"nobody"), Err(status::NOT_FOUND));
    no_violations();
    let put = function(module, c"put").expect("a kernel");
    ok(unload(module));
    assert_eq!(unload(module), status::INVALID_HANDLE);
    found(&["is no module, or was unloaded before"]);
    assert_eq!(launch(put, 1, &[0, 0], 0), status::INVALID_HANDLE);
    found(&["is no kernel, or its module was unloaded"]);
}

#[test]
fn variables_begin_as_the_module_says_and_go_with_it() {
    let _session = start(&[]);
    let (stream, block, free) = (stream(), allocate(8), memory().0);
    let module = load(PTX).expect("PTX");
    let tally = function(module, c"tally").expect("a kernel");
    assert_eq!(function(module, c"tally"), Ok(tally));
    for expected in [7, 8] {
        ok(launch(tally, 1, &[block], stream));
        assert_eq!(words(block, 2, stream), [expected, 0x0403_0201]);
    }
    let (mut at, mut bytes) = (0u64, 0usize);
    let mut global = |name: &std::ffi::CStr| {
        cu!(cuModuleGetGlobal_v2(
            &raw mut at => *mut u64, &raw mut bytes => *mut usize, module => usize, name.as_ptr() => *const c_char
        ))
    };
    assert_eq!(global(c"nothing"), status::NOT_FOUND);
    ok(global(c"total"));
    assert_eq!((words(at, 1, stream), bytes), (vec![9], 4));
    assert!(memory().0 < free);
    // Another module of the same text has variables of its own.
    ok(launch(kernel_of(c"tally"), 1, &[block], stream));
    assert_eq!(words(block, 1, stream), [7]);
    let before = memory().0;
    ok(launch(tally, 1, &[block], stream));
    ok(unload(module));
    assert!(memory().0 > before);
    no_violations();
}

#[test]
fn arguments_are_taken_at_the_call() {
    let _session = start(&[]);
    let (stream, from, to) = (stream(), allocate(1024), allocate(1024));
    let add = kernel_of(c"add");
    ok(cu!(cuMemsetD32Async(from => u64, 40 => c_uint, 256 => usize, stream => usize)));
    let open = gate(stream, &[], &[]);
    let mut arguments = [to, from, 2];
    ok(launch_shape(add, [[4, 1, 1], [64, 1, 1]], &arguments, stream));
    arguments = [0; 3];
    drop(open);
    assert_eq!(words(to, 256, stream), [42; 256]);
    assert_eq!(arguments, [0; 3]);
    let (mut threads, mut shared): (c_int, c_int) = (0, 1);
    ok(cu!(cuFuncGetAttribute(&raw mut threads => *mut c_int, 0 => c_uint, add => usize)));
    ok(cu!(cuFuncGetAttribute(&raw mut shared => *mut c_int, 1 => c_uint, add => usize)));
    assert_eq!((threads, shared), (1024, 0));
    no_violations();
}

#[test]
fn launches_are_refused_with_what_is_wrong_in_them() {
    let _session = start(&[("gpus", "2")]);
    let (stream, block, put) = (stream(), allocate(4096), kernel_of(c"put"));
    assert_eq!(launch(0, 1, &[block, 1], stream), status::INVALID_HANDLE);
    found(&["cuLaunchKernel", "0x0 is no kernel"]);
    for shape in [[[1, 0, 1], [1; 3]], [[1; 3], [1, 1, 0]]] {
        assert_eq!(launch_shape(put, shape, &[block, 1], stream), status::INVALID_VALUE);
        found(&["put", "a side of 0"]);
    }
    assert_eq!(launch_shape(put, [[1; 3], [32, 32, 2]], &[block, 1], stream), status::INVALID_VALUE);
    found(&["put", "1024 threads at most"]);
    let here = Box::new(0u32);
    for nothing in [0x10, (&raw const *here).expose_provenance() as u64, reserve(CHUNK)] {
        assert_eq!(launch(put, 1, &[nothing, 1], stream), status::INVALID_VALUE);
        found(&["an argument of put", &format!("{nothing:#x}")]);
    }
    enter(1);
    assert_eq!(launch(put, 1, &[block, 1], common::stream()), status::INVALID_HANDLE);
    found(&["put was loaded for GPU 0", "of GPU 1"]);
    // The right ones are still done.
    enter(0);
    ok(launch(put, 1024, &[block, 3], stream));
    assert_eq!(words(block, 1024, stream), [3; 1024]);
    no_violations();
}

#[test]
fn a_kernel_that_uses_what_is_not_there_ends_all_work_of_its_context() {
    let _session = start(&[]);
    let region = reserve(2 * CHUNK);
    mapped(region, CHUNK);
    let (block, stray) = (allocate(4100), kernel_of(c"stray"));
    for (place, why) in
        [(block + 4096, "over the end"), (0x10, "nothing is at 0x10"), (region + CHUNK, "nothing is mapped at")]
    {
        let one = stream();
        ok(launch(stray, 1, &[place], one));
        assert_eq!(cu!(cuStreamSynchronize(one => usize)), status::LAUNCH_FAILED);
        assert_eq!(cu!(cuCtxSynchronize()), status::LAUNCH_FAILED);
        assert_eq!(launch(stray, 1, &[block], one), status::LAUNCH_FAILED);
        found(&["the kernel stray", "writes 8 bytes", why]);
        // That has put the context right again.
        ok(launch(stray, 1, &[block], one));
        synchronize(one);
    }
    ok(allow(region, CHUNK, 0, 1));
    let one = stream();
    ok(launch(stray, 1, &[region], one));
    assert_eq!(cu!(cuStreamSynchronize(one => usize)), status::LAUNCH_FAILED);
    found(&["the kernel stray", "GPU 0 may only read"]);
}

#[test]
fn what_is_mapped_side_by_side_is_used_as_one() {
    let _session = start(&[]);
    let (stream, region, put) = (stream(), reserve(2 * CHUNK), kernel_of(c"put"));
    for at in [region, region + CHUNK] {
        mapped(at, CHUNK);
    }
    // A warp's 128 bytes, half of them in each.
    let border = region + CHUNK - 64;
    ok(launch(put, 32, &[border, 6], stream));
    assert_eq!(words(border, 32, stream), [6; 32]);
    // Two memories, one race.
    ok(launch(put, 32, &[border, 7], stream));
    ok(launch(put, 32, &[border, 8], common::stream()));
    ok(cu!(cuCtxSynchronize()));
    found(&["writes 128 bytes", &format!("at {border:#x}"), "not ordered after put"]);
}

#[test]
fn memory_of_another_gpu_is_reached_once_that_is_allowed() {
    let _session = start(&[("gpus", "2")]);
    let peer = enter(1);
    let far = allocate(64);
    enter(0);
    let (one, put, stray) = (stream(), kernel_of(c"put"), kernel_of(c"stray"));
    assert_eq!(launch(put, 1, &[far, 9], one), status::INVALID_VALUE);
    found(&["an argument of put", "cuCtxEnablePeerAccess is missing"]);
    ok(launch(stray, 1, &[far], one));
    assert_eq!(cu!(cuStreamSynchronize(one => usize)), status::LAUNCH_FAILED);
    found(&["the kernel stray", "cuCtxEnablePeerAccess is missing"]);
    ok(cu!(cuCtxEnablePeerAccess(peer => usize, 0 => c_uint)));
    ok(launch(put, 1, &[far, 9], one));
    assert_eq!(words(far, 1, one), [9]);
    no_violations();
}

#[test]
fn modules_go_with_their_context() {
    let _session = start(&[]);
    let module = load(PTX).expect("PTX");
    let put = function(module, c"put").expect("a kernel");
    ok(cu!(cuDevicePrimaryCtxRelease_v2(0 => c_int)));
    enter(0);
    assert_eq!(memory().0, memory().1);
    assert_eq!(unload(module), status::INVALID_HANDLE);
    found(&["is no module"]);
    assert_eq!(launch(put, 1, &[0, 0], 0), status::INVALID_HANDLE);
    found(&["is no kernel"]);
}

#[test]
fn memory_of_a_pool_may_be_freed_before_the_kernel_runs_in_the_order_of_its_stream_alone() {
    let _session = start(&[]);
    let (one, other, put) = (stream(), stream(), kernel_of(c"put"));
    let open = gate(one, &[], &[]);
    let block = allocate_async(256, one).expect("room");
    ok(launch(put, 64, &[block, 1], one));
    ok(free_async(block, one));
    drop(open);
    synchronize(one);
    no_violations();
    let block = allocate_async(256, one).expect("room");
    wait(other, record(one));
    let open = gate(other, &[], &[]);
    ok(launch(put, 64, &[block, 1], other));
    ok(free_async(block, one));
    drop(open);
    synchronize(other);
    found(&["put (operation", "writes 256 bytes", "not ordered after cuMemFreeAsync"]);
}

#[test]
fn what_is_put_into_streams_before_a_queued_kernel_runs_is_compared_with_it() {
    let _session = start(&[]);
    let (one, other, put) = (stream(), stream(), kernel_of(c"put"));
    let (block, result) = (allocate(256), allocate(256));
    for ordered in [true, false] {
        let open = gate(one, &[], &[]);
        ok(launch(put, 64, &[block, 1], one));
        if ordered {
            wait(other, record(one));
        }
        copy(result, block, 256, other);
        no_violations();
        drop(open);
        ok(cu!(cuCtxSynchronize()));
        if !ordered {
            found(&[
                "put (operation",
                "writes 256 bytes",
                "not ordered after cuMemcpyDtoDAsync_v2",
                "which reads them",
            ]);
        }
    }
    no_violations();
}

#[test]
fn a_kernel_that_is_noted_late_hides_nothing_that_came_after_it() {
    let _session = start(&[]);
    let (one, other, third) = (stream(), stream(), stream());
    let (block, copied, result) = (allocate(256), allocate(256), allocate(256));
    let (put, add) = (kernel_of(c"put"), kernel_of(c"add"));
    // Written by the kernel, then filled, both before a third stream that has waited for the kernel alone.
    let open = gate(one, &[], &[]);
    ok(launch(put, 64, &[block, 1], one));
    let event = record(one);
    wait(other, event);
    fill(block, 2, 256, other);
    drop(open);
    until(block + 255, 2);
    wait(third, event);
    copy(result, block, 256, third);
    found(&["cuMemcpyDtoDAsync_v2", "not ordered after cuMemsetD8Async"]);
    ok(cu!(cuCtxSynchronize()));
    // Written by the kernel, then read.
    let open = gate(one, &[], &[]);
    ok(launch(put, 64, &[block, 0x0303_0303], one));
    let event = record(one);
    wait(other, event);
    copy(copied, block, 256, other);
    drop(open);
    until(copied + 255, 3);
    wait(third, event);
    fill(block, 4, 256, third);
    found(&["cuMemsetD8Async", "not ordered after cuMemcpyDtoDAsync_v2", "which reads them"]);
    ok(cu!(cuCtxSynchronize()));
    // Read by the kernel, then by its own stream.
    let open = gate(one, &[], &[]);
    ok(launch(add, 64, &[result, block, 1], one));
    let event = record(one);
    fill(copied, 0, 256, one);
    copy(copied, block, 256, one);
    drop(open);
    until(copied + 255, 4);
    wait(third, event);
    fill(block, 5, 256, third);
    found(&["cuMemsetD8Async", "not ordered after cuMemcpyDtoDAsync_v2", "which reads them"]);
}

#[test]
fn kernels_that_use_neighbouring_arrays_do_not_race() {
    let _session = start(&[]);
    let (one, other, put) = (stream(), stream(), kernel_of(c"put"));
    let block = allocate(1024);
    ok(launch(put, 64, &[block, 1], one));
    ok(launch(put, 64, &[block + 256, 1], other));
    ok(cu!(cuCtxSynchronize()));
    no_violations();
    ok(launch(put, 64, &[block, 1], one));
    ok(launch(put, 64, &[block + 192, 1], other));
    ok(cu!(cuCtxSynchronize()));
    found(&["put (operation", "writes 64 bytes", &format!("at {:#x}", block + 192), "not ordered after put"]);
}

#[test]
fn memory_that_is_unmapped_before_in_or_after_a_kernel_is_found() {
    let _session = start(&[]);
    let (one, put, last) = (stream(), kernel_of(c"put"), kernel_of(c"last"));
    let (region, seen, flags) = (reserve(CHUNK), allocate(64), pinned(8));
    let handle = mapped(region, CHUNK);
    let again = || {
        ok(map(region, CHUNK, handle));
        ok(allow(region, CHUNK, 0, 3));
    };
    // Before it runs.
    let open = gate(one, &[], &[]);
    ok(launch(put, 64, &[region, 1], one));
    ok(unmap(region, CHUNK));
    drop(open);
    assert_eq!(cu!(cuStreamSynchronize(one => usize)), status::LAUNCH_FAILED);
    found(&["the kernel put", "nothing is mapped at"]);
    again();
    // While it runs: it goes on, as on a GPU it may.
    ok(launch(last, 1, &[region, flags], one));
    until(flags, 1);
    ok(unmap(region, CHUNK));
    poke(flags + 4, 1, 1);
    synchronize(one);
    found(&["the kernel last", &format!("the {CHUNK} bytes at {region:#x} were taken away while it used them")]);
    again();
    assert_eq!(words(region, 1, one), [6]);
    // When it has run, but the host has not seen that.
    ok(launch(put, 64, &[region, 1], one));
    fill(seen, 1, 64, one);
    until(seen + 63, 1);
    ok(unmap(region, CHUNK));
    found(&["unmapped while in use: put"]);
    again();
    ok(launch(put, 64, &[region, 1], one));
    synchronize(one);
    ok(unmap(region, CHUNK));
    ok(release(handle));
    no_violations();
}
