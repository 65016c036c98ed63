//! What programs for AMD's GPUs are made of: graphs of copies and fills, and code objects, whose machine code is not
//! run.

#[macro_use]
#[path = "../../../fake_cuda/tests/driver/common.rs"]
mod common;

use std::ffi::{CString, c_char, c_int, c_uint};

use common::*;
use simulated_gpu as _;

/// `hipErrorNoBinaryForGpu`, `hipErrorInvalidImage`.
const NO_BINARY: u32 = 209;
const INVALID_IMAGE: u32 = 200;

/// `hipMemcpyDeviceToDevice`.
const BETWEEN: c_uint = 3;

/// A code object with a kernel, "add", and a variable, "numbers", that holds 1 to 8.
fn code_object() -> Vec<u8> {
    const NAMES: &[u8] = b"\0add.kd\0numbers\0";
    let mut file = vec![0_u8; 64];
    let mut put = |bytes: &[u8]| {
        let at = file.len();
        file.extend_from_slice(bytes);
        at as u64
    };
    let data = put(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let names = put(NAMES);
    // The name, binding and type, the section, the address, the size: `Elf64_Sym`.
    let symbol = |name: u32, address: u64, bytes: u64| {
        let mut all = name.to_le_bytes().to_vec();
        all.extend([0x11, 0]);
        all.extend(1_u16.to_le_bytes());
        all.extend(address.to_le_bytes());
        all.extend(bytes.to_le_bytes());
        all
    };
    let symbols = put(&[vec![0; 24], symbol(1, 0x2000, 0), symbol(8, 0x2000, 8)].concat());
    // Type, flags, address, offset, size, link: `Elf64_Shdr`.
    let section = |kind: u32, address: u64, offset: u64, bytes: u64, link: u32| {
        let mut all = [0_u32, kind].map(u32::to_le_bytes).concat();
        all.extend([0, address, offset, bytes].map(u64::to_le_bytes).concat());
        all.extend([link, 0].map(u32::to_le_bytes).concat());
        all.extend([0; 16]);
        all
    };
    let sections = [
        section(0, 0, 0, 0, 0),
        section(1, 0x2000, data, 8, 0),
        section(11, 0, symbols, 72, 3),
        section(3, 0, names, NAMES.len() as u64, 0),
    ];
    let table = put(&sections.concat());
    file[..5].copy_from_slice(b"\x7fELF\x02");
    file[18..20].copy_from_slice(&224_u16.to_le_bytes());
    file[40..48].copy_from_slice(&table.to_le_bytes());
    file[58..62].copy_from_slice(&[64, 0, 4, 0]);
    file
}

fn load(image: &[u8]) -> Result<u64, u32> {
    let mut module = 0;
    match cu!(hipModuleLoadData(&raw mut module => *mut u64, image.as_ptr() => *const u8)) {
        0 => Ok(module),
        code => Err(code),
    }
}

fn function(module: u64, name: &str) -> Result<u64, u32> {
    let (mut function, name) = (0, CString::new(name).expect("a name"));
    match cu!(hipModuleGetFunction(&raw mut function => *mut u64, module => u64, name.as_ptr() => *const c_char)) {
        0 => Ok(function),
        code => Err(code),
    }
}

fn launch(function: u64) -> u32 {
    cu!(hipModuleLaunchKernel(
        function => u64, 1 => c_uint, 1 => c_uint, 1 => c_uint, 64 => c_uint, 1 => c_uint, 1 => c_uint, 0 => c_uint,
        0 => usize, 0 => usize, 0 => usize
    ))
}

#[test]
fn machine_code_is_loaded_and_not_run() {
    let _session = start(&[]);
    let module = load(&code_object()).expect("a code object");
    let add = function(module, "add").expect("a kernel");
    let mut threads: c_int = 0;
    ok(cu!(hipFuncGetAttribute(&raw mut threads => *mut c_int, 0 => c_uint, add => u64)));
    assert_eq!(threads, 1024);
    assert_eq!(launch(add), NO_BINARY);
    assert_eq!(cu!(hipGetLastError()), NO_BINARY);
    // Neither the variable nor what is not there is a kernel.
    assert_eq!([function(module, "numbers"), function(module, "sub")], [Err(status::NOT_FOUND); 2]);
    no_violations();
    ok(cu!(hipModuleUnload(module => u64)));
    assert_eq!(launch(add), status::INVALID_HANDLE);
    found(&["is no kernel, or its module was unloaded"]);
}

#[test]
fn variables_of_a_module_have_memory_with_what_the_file_says() {
    let _session = start(&[("memory", "16MiB")]);
    let free = || {
        let (mut free, mut total) = (0_usize, 0_usize);
        ok(cu!(hipMemGetInfo(&raw mut free => *mut usize, &raw mut total => *mut usize)));
        free
    };
    let before = free();
    let module = load(&code_object()).expect("a code object");
    let (mut address, mut bytes) = (0_u64, 0_usize);
    ok(cu!(hipModuleGetGlobal(
        &raw mut address => *mut u64, &raw mut bytes => *mut usize, module => u64, c"numbers".as_ptr() => *const c_char
    )));
    assert_eq!((bytes, read(address, 8, stream())), (8, vec![1, 2, 3, 4, 5, 6, 7, 8]));
    assert!(free() < before);
    let missing = cu!(hipModuleGetGlobal(
        &raw mut address => *mut u64, &raw mut bytes => *mut usize, module => u64, c"letters".as_ptr() => *const c_char
    ));
    assert_eq!(missing, status::NOT_FOUND);
    ok(cu!(hipModuleUnload(module => u64)));
    assert_eq!(free(), before);
    no_violations();
}

#[test]
fn what_is_no_code_object_is_refused() {
    let _session = start(&[]);
    let damaged: [fn(&mut Vec<u8>); 4] = [
        |image| image[0] = 0,
        // x86-64's machine code.
        |image| image[18..20].copy_from_slice(&62_u16.to_le_bytes()),
        // The symbols' table, and the data, are said to be where nothing is.
        |image| put_offset(image, 2, 1 << 40),
        |image| put_offset(image, 1, u64::MAX - 3),
    ];
    for (number, damage) in damaged.into_iter().enumerate() {
        let mut image = code_object();
        damage(&mut image);
        assert_eq!(load(&image), Err(INVALID_IMAGE), "{number}");
        found(&["the image is no code object"]);
    }
}

/// Changes where a section is said to begin.
fn put_offset(image: &mut [u8], section: usize, offset: u64) {
    let table = image.len() - 4 * 64;
    image[table + section * 64 + 24..][..8].copy_from_slice(&offset.to_le_bytes());
}

/// `hipMemsetParams`.
#[repr(C)]
struct Fill {
    to: u64,
    element: c_uint,
    height: usize,
    pitch: usize,
    value: c_uint,
    width: usize,
}

#[test]
fn graphs_fill_and_copy_and_are_updated() {
    let _session = start(&[]);
    let (from, to, other, stream) = (allocate(64), allocate(64), allocate(64), stream());
    fill(other, 0, 64, stream);
    let mut graph = 0_u64;
    ok(cu!(hipGraphCreate(&raw mut graph => *mut u64, 0 => c_uint)));
    let (mut filled, mut copied) = (0_u64, 0_u64);
    let words = Fill { to: from, element: 4, height: 1, pitch: 0, value: 0x0403_0201, width: 16 };
    ok(cu!(hipGraphAddMemsetNode(
        &raw mut filled => *mut u64, graph => u64, 0 => usize, 0 => usize, &raw const words => *const Fill
    )));
    ok(cu!(hipGraphAddMemcpyNode1D(
        &raw mut copied => *mut u64, graph => u64, &raw const filled => *const u64, 1 => usize, to => u64, from => u64,
        64 => usize, BETWEEN => c_uint
    )));
    let mut executable = 0_u64;
    ok(cu!(hipGraphInstantiate(
        &raw mut executable => *mut u64, graph => u64, 0 => usize, 0 => usize, 0 => usize
    )));
    ok(cu!(hipGraphLaunch(executable => u64, stream => usize)));
    assert_eq!(read(to, 5, stream), [1, 2, 3, 4, 1]);
    // Elsewhere, and other bytes: the graph that was recorded stays.
    let bytes = Fill { to: from, element: 1, height: 1, pitch: 0, value: 9, width: 64 };
    ok(cu!(hipGraphExecMemsetNodeSetParams(executable => u64, filled => u64, &raw const bytes => *const Fill)));
    ok(cu!(hipGraphExecMemcpyNodeSetParams1D(
        executable => u64, copied => u64, other => u64, from => u64, 64 => usize, BETWEEN => c_uint
    )));
    ok(cu!(hipGraphLaunch(executable => u64, stream => usize)));
    assert_eq!((read(other, 2, stream), read(to, 2, stream)), (vec![9, 9], vec![1, 2]));
    no_violations();
    let wrong = cu!(hipGraphExecMemcpyNodeSetParams1D(
        executable => u64, copied => u64, other => u64, from => u64, 64 => usize, 9 => c_uint
    ));
    assert_eq!(wrong, 21);
    found(&["9 is no kind of a copy"]);
    ok(cu!(hipGraphExecDestroy(executable => u64)));
    ok(cu!(hipGraphDestroy(graph => u64)));
}

/// `hipKernelNodeParams`.
#[repr(C)]
struct Kernel {
    block: [c_uint; 3],
    extra: usize,
    function: u64,
    grid: [c_uint; 3],
    values: usize,
    shared: c_uint,
}

#[test]
fn a_graph_takes_no_kernel() {
    let _session = start(&[]);
    let add = function(load(&code_object()).expect("a code object"), "add").expect("a kernel");
    let (mut graph, mut node) = (0_u64, 0_u64);
    ok(cu!(hipGraphCreate(&raw mut graph => *mut u64, 0 => c_uint)));
    let kernel = Kernel { block: [64, 1, 1], extra: 0, function: add, grid: [1; 3], values: 0, shared: 0 };
    let added = cu!(hipGraphAddKernelNode(
        &raw mut node => *mut u64, graph => u64, 0 => usize, 0 => usize, &raw const kernel => *const Kernel
    ));
    assert_eq!(added, NO_BINARY);
    let (mut count, list) = (9_usize, 0_usize);
    ok(cu!(hipGraphGetNodes(graph => u64, list => usize, &raw mut count => *mut usize)));
    assert_eq!(count, 0);
    no_violations();
}

#[test]
fn a_capture_holds_the_copies_of_its_stream() {
    let _session = start(&[]);
    let (from, to, stream) = (allocate(64), allocate(64), stream());
    fill(from, 5, 64, stream);
    fill(to, 0, 64, stream);
    ok(cu!(hipStreamBeginCapture(stream => usize, 0 => c_uint)));
    ok(cu!(hipMemcpyDtoDAsync(to => u64, from => u64, 64 => usize, stream => usize)));
    let (mut graph, mut executable) = (0_u64, 0_u64);
    ok(cu!(hipStreamEndCapture(stream => usize, &raw mut graph => *mut u64)));
    assert_eq!(read(to, 1, stream), [0]);
    ok(cu!(hipGraphInstantiate(
        &raw mut executable => *mut u64, graph => u64, 0 => usize, 0 => usize, 0 => usize
    )));
    ok(cu!(hipGraphLaunch(executable => u64, stream => usize)));
    assert_eq!(read(to, 1, stream), [5]);
    no_violations();
}
