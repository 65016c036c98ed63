//! Nodes of graphs that run kernels.

#[macro_use]
#[path = "../../../fake_cuda/tests/driver/common.rs"]
mod common;

#[allow(dead_code, missing_docs)]
#[path = "../../../fake_cuda/tests/driver/graphs/calls.rs"]
mod calls;

use std::ffi::{CString, c_char, c_uint, c_void};

use calls::*;
use common::*;
use fake_cuda::control::count;
use simulated_gpu as _;

const PTX: &str = ".version 8.0
.target sm_90
.address_size 64
.visible .entry put(
    .param .u64 .ptr .global .align 4 place,
    .param .u32 value
)
{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [place];
    ld.param.u32 %r1, [value];
    st.global.u32 [%rd1], %r1;
    ret;
}
";

/// `CUDA_KERNEL_NODE_PARAMS`.
#[repr(C)]
struct Kernel {
    function: usize,
    shape: [u32; 7],
    values: *const *const c_void,
    extra: usize,
}

/// The kernel of `PTX`, and its module.
fn kernel_and_module() -> (usize, usize) {
    let (mut module, mut function) = (0, 0);
    let (text, name) = (CString::new(PTX).expect("no NUL"), CString::new("put").expect("no NUL"));
    ok(cu!(cuModuleLoadData(&raw mut module => *mut usize, text.as_ptr() => *const c_char)));
    ok(cu!(cuModuleGetFunction(
        &raw mut function => *mut usize, module => usize, name.as_ptr() => *const c_char
    )));
    (function, module)
}

/// Calls `with` with the parameters of a node that puts `value` to `to`.
fn with_kernel<R>(function: usize, to: u64, value: u32, with: impl FnOnce(*const Kernel) -> R) -> R {
    let values = [(&raw const to).cast(), (&raw const value).cast()];
    with(&Kernel { function, shape: [1, 1, 1, 1, 1, 1, 0], values: values.as_ptr(), extra: 0 })
}

fn add_kernel(graph: u64, after: &[u64], function: usize, to: u64, value: u32) -> Result<u64, u32> {
    let mut node = 0;
    let code = with_kernel(function, to, value, |kernel| {
        cu!(cuGraphAddKernelNode_v2(
            &raw mut node => *mut u64, graph => u64, after.as_ptr() => *const u64, after.len() => usize,
            kernel => *const Kernel
        ))
    });
    if code == status::SUCCESS { Ok(node) } else { Err(code) }
}

#[test]
fn kernels_keep_their_arguments_and_their_module() {
    let _session = start(&[]);
    let (stream, graph, a) = (stream(), graph(), allocate(8));
    let (function, module) = kernel_and_module();
    let first = add_kernel(graph, &[], function, a, 1).expect("a kernel");
    let second = add_kernel(graph, &[first], function, a + 4, 2).expect("a kernel");
    assert_eq!(kind(second), 0);
    let value = [3u8; 64];
    let mut told = [0u8; 64];
    ok(cu!(cuGraphKernelNodeSetAttribute(second => u64, 8 => c_uint, value.as_ptr() => *const u8)));
    ok(cu!(cuGraphKernelNodeGetAttribute(second => u64, 8 => c_uint, told.as_mut_ptr() => *mut u8)));
    assert_eq!(told, value);
    let executable = instantiate(graph).expect("an executable graph");
    ok(launch(executable, stream));
    let updates = count("cuGraphExecKernelNodeSetParams_v2");
    let update = |to| {
        with_kernel(
            function,
            to,
            3,
            |kernel| cu!(cuGraphExecKernelNodeSetParams_v2(executable => u64, first => u64, kernel => *const Kernel)),
        )
    };
    ok(update(a + 4));
    assert_eq!(count("cuGraphExecKernelNodeSetParams_v2"), updates + 1);
    ok(launch(executable, stream));
    synchronize(stream);
    no_violations();

    let gone = allocate(8);
    ok(cu!(cuMemFree_v2(gone => u64)));
    let hole = reserve(CHUNK);
    ok(update(hole));
    assert_eq!(launch(executable, stream), status::INVALID_VALUE);
    found(&["kernel node", &format!("{first:#x}"), "an argument of put", "nothing is mapped"]);
    ok(update(a));
    ok(cu!(cuModuleUnload(module => usize)));
    assert_eq!(launch(executable, stream), status::INVALID_HANDLE);
    found(&["kernel node", "its module was unloaded"]);
    let filled = add_fill(graph, &[], &bytes(a, 1, 8)).expect("a fill");
    assert_eq!(
        cu!(cuGraphKernelNodeSetAttribute(filled => u64, 8 => c_uint, value.as_ptr() => *const u8)),
        status::INVALID_VALUE
    );
    found(&["is a memset node, no kernel node"]);
}
