//! Products of matrices: numbers, and where they may lie.

#[macro_use]
#[path = "../../../fake_cuda/tests/driver/common.rs"]
mod common;

use std::ffi::{c_int, c_uint, c_void};

use common::*;
use simulated_gpu as _;

/// `cudaDataType`.
const SINGLE: u32 = 0;
const DOUBLE: u32 = 1;
const COMPLEX: u32 = 4;
const BFLOAT: u32 = 14;

/// `CUBLASLT_MATMUL_DESC_...`.
const TRANSPOSE: [u32; 2] = [3, 4];
const EPILOGUE: u32 = 7;
const BIAS: u32 = 8;

fn handle() -> u64 {
    let mut handle = 0;
    ok(cu!(cublasLtCreate(&raw mut handle => *mut u64)));
    handle
}

fn operation(scale: u32) -> u64 {
    let (mut operation, compute) = (0, if scale == DOUBLE { 70 } else { 68 });
    ok(cu!(cublasLtMatmulDescCreate(&raw mut operation => *mut u64, compute => c_uint, scale => c_uint)));
    operation
}

fn set<T>(operation: u64, which: u32, value: T) {
    ok(cu!(cublasLtMatmulDescSetAttribute(
        operation => u64, which => c_uint, &raw const value => *const T, size_of::<T>() => usize
    )));
}

fn layout(kind: u32, rows: u64, columns: u64, lead: i64) -> u64 {
    let mut layout = 0;
    ok(cu!(cublasLtMatrixLayoutCreate(
        &raw mut layout => *mut u64, kind => c_uint, rows => u64, columns => u64, lead => i64
    )));
    layout
}

fn set_layout<T>(layout: u64, which: u32, value: T) {
    ok(cu!(cublasLtMatrixLayoutSetAttribute(
        layout => u64, which => c_uint, &raw const value => *const T, size_of::<T>() => usize
    )));
}

/// A matrix: where, and how it lies there.
type Matrix = (u64, u64);

struct Product<F> {
    operation: u64,
    alpha: F,
    beta: F,
    matrices: [Matrix; 4],
    workspace: (u64, usize),
}

impl<F> Product<F> {
    fn run(&self, handle: u64, stream: usize) -> u32 {
        let [(a, a_layout), (b, b_layout), (c, c_layout), (d, d_layout)] = self.matrices;
        cu!(cublasLtMatmul(
            handle => u64, self.operation => u64, &raw const self.alpha => *const F, a => u64, a_layout => u64, b => u64,
            b_layout => u64, &raw const self.beta => *const F, c => u64, c_layout => u64, d => u64, d_layout => u64,
            0 => usize, self.workspace.0 => u64, self.workspace.1 => usize, stream => usize
        ))
    }
}

/// Memory with these bytes.
fn put<T>(values: &[T], stream: usize) -> u64 {
    let bytes = size_of_val(values);
    let address = allocate(bytes as u64);
    ok(cu!(cuMemcpyHtoDAsync_v2(
        address => u64, values.as_ptr() => *const T, bytes => usize, stream => usize
    )));
    address
}

fn singles(address: u64, count: u64, stream: usize) -> Vec<f32> {
    let bytes = read(address, count * 4, stream);
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

/// (1 2 3; 4 5 6) times (1 2; 3 4; 5 6) is (22 28; 49 64), all by columns, to `d`.
fn small(stream: usize, d: u64) -> Product<f32> {
    let a = (put(&[1f32, 4.0, 2.0, 5.0, 3.0, 6.0], stream), layout(SINGLE, 2, 3, 2));
    let b = (put(&[1f32, 3.0, 5.0, 2.0, 4.0, 6.0], stream), layout(SINGLE, 3, 2, 3));
    let d = (d, layout(SINGLE, 2, 2, 2));
    let matrices = [a, b, (0, d.1), d];
    Product { operation: operation(SINGLE), alpha: 1.0, beta: 0.0, matrices, workspace: (0, 0) }
}

const RESULT: [f32; 4] = [22.0, 49.0, 28.0, 64.0];

#[test]
fn a_product_is_what_it_is_by_hand_in_any_layout() {
    let _session = start(&[]);
    let (stream, handle, d) = (stream(), handle(), allocate(16));
    let product = small(stream, d);
    ok(product.run(handle, stream));
    assert_eq!(singles(d, 4, stream), RESULT);

    // The same numbers by rows, transposed; and by rows, as they are said to lie; with gaps that are no numbers.
    let gap = f32::NAN;
    let a = put(&[1f32, 2.0, 3.0, gap, 4.0, 5.0, 6.0], stream);
    let b = put(&[1f32, 2.0, gap, 3.0, 4.0, gap, 5.0, 6.0], stream);
    let [.., c, d] = product.matrices;
    let transposed = Product { operation: operation(SINGLE), ..small(stream, d.0) };
    TRANSPOSE.iter().for_each(|&which| set(transposed.operation, which, 1u32));
    let transposed =
        Product { matrices: [(a, layout(SINGLE, 3, 2, 4)), (b, layout(SINGLE, 2, 3, 3)), c, d], ..transposed };
    fill(d.0, 0, 16, stream);
    ok(transposed.run(handle, stream));
    assert_eq!(singles(d.0, 4, stream), RESULT);
    let (by_rows, other) = (layout(SINGLE, 2, 3, 4), layout(SINGLE, 3, 2, 3));
    [by_rows, other].iter().for_each(|&layout| set_layout(layout, 1, 1i32));
    fill(d.0, 0, 16, stream);
    ok(Product { matrices: [(a, by_rows), (b, other), c, d], ..product }.run(handle, stream));
    assert_eq!(singles(d.0, 4, stream), RESULT);
    no_violations();
}

#[test]
fn factors_bias_and_activation_are_applied_in_this_order() {
    let _session = start(&[]);
    let (stream, handle, d) = (stream(), handle(), allocate(16));
    let c = put(&[100f32, -200.0, f32::NAN, 1.0], stream);
    let bias = put(&[-50f32, 1.0], stream);
    let product = small(stream, d);
    let [a, b, (_, c_layout), d] = product.matrices;
    let product = Product { alpha: 2.0, beta: 0.5, matrices: [a, b, (c, c_layout), d], ..product };
    ok(product.run(handle, stream));
    let sums = singles(d.0, 4, stream);
    assert_eq!((sums[0], sums[1], sums[3]), (94.0, -2.0, 128.5));
    assert!(sums[2].is_nan());
    // Where the factor of C is 0, what is no number there does not matter.
    ok(Product { beta: 0.0, ..product }.run(handle, stream));
    assert_eq!(singles(d.0, 4, stream), RESULT.map(|number| 2.0 * number));
    set(product.operation, EPILOGUE, 6u32);
    set(product.operation, BIAS, bias);
    ok(Product { beta: 0.0, ..product }.run(handle, stream));
    assert_eq!(singles(d.0, 4, stream), [0.0, 99.0, 6.0, 129.0]);
    no_violations();
}

#[test]
fn batches_may_share_a_matrix_and_short_numbers_give_long_ones() {
    let _session = start(&[]);
    let (stream, handle) = (stream(), handle());
    // Two matrices of one number each, as the upper halves of singles: 2 and 3, times 1.5.
    let a = put(&[0x4000u16, 0x4040], stream);
    let b = put(&[0x3fc0u16], stream);
    let (d, one) = (allocate(8), |kind| layout(kind, 1, 1, 1));
    let (a, b, c, d) = ((a, one(BFLOAT)), (b, one(BFLOAT)), (0, one(SINGLE)), (d, one(SINGLE)));
    for (matrix, stride) in [(a, 1i64), (b, 0), (c, 0), (d, 1)] {
        set_layout(matrix.1, 5, 2i32);
        set_layout(matrix.1, 6, stride);
    }
    let product =
        Product { operation: operation(SINGLE), alpha: 1f32, beta: 0.0, matrices: [a, b, c, d], workspace: (0, 0) };
    ok(product.run(handle, stream));
    assert_eq!(singles(d.0, 2, stream), [3.0, 4.5]);
    no_violations();
}

#[test]
fn complex_numbers_are_multiplied_and_conjugated() {
    let _session = start(&[]);
    let (stream, handle, d) = (stream(), handle(), allocate(8));
    let (a, b) = (put(&[1f32, 2.0], stream), put(&[3f32, 4.0], stream));
    let one = || layout(COMPLEX, 1, 1, 1);
    let matrices = [(a, one()), (b, one()), (0, one()), (d, one())];
    let operation = operation(COMPLEX);
    let product = Product { operation, alpha: [1f32, 0.0], beta: [0.0, 0.0], matrices, workspace: (0, 0) };
    ok(product.run(handle, stream));
    assert_eq!(singles(d, 2, stream), [-5.0, 10.0]);
    set(operation, TRANSPOSE[0], 2u32);
    ok(product.run(handle, stream));
    assert_eq!(singles(d, 2, stream), [11.0, -2.0]);
    no_violations();
}

#[test]
fn matrices_lie_where_the_gpu_may_go_or_are_refused() {
    let _session = start(&[]);
    let (stream, handle, d) = (stream(), handle(), allocate(16));
    let product = small(stream, d);
    let [a, b, c, d] = product.matrices;
    let with = |matrices, workspace| Product { matrices, workspace, ..small(stream, d.0) }.run(handle, stream);
    let outside = [0f32; 6];
    let address = (&raw const outside).expose_provenance() as u64;
    /// `CUBLAS_STATUS_INVALID_VALUE`.
    const INVALID: u32 = 7;
    assert_eq!(with([(address, a.1), b, c, d], (0, 0)), INVALID);
    found(&["cublasLtMatmul", "A: 24 bytes", "no memory that a GPU reaches"]);
    assert_eq!(with([a, b, c, (d.0 + 4, d.1)], (0, 0)), INVALID);
    found(&["D: 16 bytes", "go over the end"]);
    assert_eq!(with([a, b, c, d], (reserve(CHUNK), 64)), INVALID);
    found(&["the workspace", "nothing is mapped"]);
    let narrow = layout(SINGLE, 3, 2, 2);
    assert_eq!(with([a, (b.0, narrow), c, d], (0, 0)), INVALID);
    found(&["the leading dimension of B is 2, less than 3"]);
    assert_eq!(with([b, b, c, d], (0, 0)), INVALID);
    found(&["3 x 2 times 3 x 2"]);
    /// `CUBLAS_STATUS_NOT_SUPPORTED`, and `..._NOT_INITIALIZED`.
    const UNKNOWN: [u32; 2] = [15, 1];
    assert_eq!(with([(a.0, layout(3, 2, 3, 2)), b, c, d], (0, 0)), UNKNOWN[0]);
    found(&["A is of the type 3"]);
    assert_eq!(product.run(handle + 1, stream), UNKNOWN[1]);
    found(&["is no LightHandle of cuBLAS"]);
    ok(cu!(cublasLtMatmulDescDestroy(product.operation => u64)));
    assert_eq!(product.run(handle, stream), UNKNOWN[1]);
    found(&["is no Operation of cuBLAS, or was destroyed before"]);
    assert_eq!(singles(d.0, 4, stream), [0.0; 4]);
    no_violations();
}

#[test]
fn products_race_and_write_their_workspace() {
    let _session = start(&[]);
    let (one, other, handle, d) = (stream(), stream(), handle(), allocate(16));
    let product = small(one, d);
    let workspace = allocate(64);
    ok(Product { workspace: (workspace, 64), ..small(one, d) }.run(handle, one));
    copy(allocate(16), product.matrices[0].0, 16, other);
    found(&["cuMemcpyDtoDAsync_v2", "not ordered after cuMemcpyHtoDAsync_v2"]);
    wait(other, record(one));
    copy(allocate(16), d, 16, other);
    no_violations();
    ok(product.run(handle, one));
    found(&["cublasLtMatmul", "writes 16 bytes", "not ordered after cuMemcpyDtoDAsync_v2"]);
    fill(workspace, 1, 64, other);
    no_violations();
    ok(Product { workspace: (workspace, 64), ..small(one, allocate(16)) }.run(handle, one));
    found(&["cublasLtMatmul", "writes 64 bytes"]);
}

#[test]
fn a_captured_product_is_a_kernel_node_that_computes_at_each_launch() {
    let _session = start(&[]);
    let (stream, handle, d) = (stream(), handle(), allocate(16));
    let product = small(stream, d);
    let (mut graph, mut executable, mut node, mut kind, mut count) = (0u64, 0u64, 0u64, 9u32, 1usize);
    ok(cu!(cuStreamBeginCapture_v2(stream => usize, 1 => c_uint)));
    ok(product.run(handle, stream));
    ok(cu!(cuStreamEndCapture(stream => usize, &raw mut graph => *mut u64)));
    assert_eq!(singles(d, 4, stream), [0.0; 4]);
    ok(cu!(cuGraphGetNodes(graph => u64, &raw mut node => *mut u64, &raw mut count => *mut usize)));
    ok(cu!(cuGraphNodeGetType(node => u64, &raw mut kind => *mut u32)));
    assert_eq!((count, kind), (1, 0));
    ok(cu!(cuGraphInstantiateWithFlags(&raw mut executable => *mut u64, graph => u64, 0 => u64)));
    ok(cu!(cuGraphLaunch(executable => u64, stream => usize)));
    assert_eq!(singles(d, 4, stream), RESULT);
    fill(product.matrices[1].0, 0, 24, stream);
    ok(cu!(cuGraphLaunch(executable => u64, stream => usize)));
    assert_eq!(singles(d, 4, stream), [0.0; 4]);
    no_violations();
}

#[test]
fn the_heuristic_has_one_algorithm_within_the_workspace_that_is_allowed() {
    let _session = start(&[]);
    let (stream, handle) = (stream(), handle());
    let product = small(stream, allocate(16));
    let mut preference = 0u64;
    ok(cu!(cublasLtMatmulPreferenceCreate(&raw mut preference => *mut u64)));
    let most = 4096u64;
    ok(cu!(cublasLtMatmulPreferenceSetAttribute(
        preference => u64, 1 => c_uint, &raw const most => *const u64, 8 => usize
    )));
    // `cublasLtMatmulHeuristicResult_t`: the algorithm, the workspace's size, and more.
    let (mut results, mut count) = ([[7u64; 12]; 2], 0);
    let [a, b, c, d] = product.matrices.map(|(_, layout)| layout);
    let ask = |results: &mut [[u64; 12]; 2], count: &mut c_int, a: u64| {
        cu!(cublasLtMatmulAlgoGetHeuristic(
            handle => u64, product.operation => u64, a => u64, b => u64, c => u64, d => u64, preference => u64,
            2 => c_int, results.as_mut_ptr().cast() => *mut c_void, count => *mut c_int
        ))
    };
    ok(ask(&mut results, &mut count, a));
    assert_eq!((count, results[0][8], results[1]), (1, 4096, [7; 12]));
    no_violations();
    assert_eq!(ask(&mut results, &mut count, layout(3, 2, 3, 2)), 15);
    found(&["cublasLtMatmulAlgoGetHeuristic", "A is of the type 3"]);
}
