//! Ranks of NCCL's and what they call.
#![allow(missing_docs, dead_code)]

use std::ffi::c_int;

use crate::common::{allocate, enter, ok, read, stream};

pub const F32: c_int = 7;
pub const SUM: c_int = 0;

pub type Id = [u8; 128];

/// By value, as NCCL takes it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId(pub Id);

/// A rank: its side of the communicator, with a stream and two buffers of its GPU.
#[derive(Clone, Copy)]
pub struct Rank {
    pub number: usize,
    pub gpu: c_int,
    pub side: u64,
    pub stream: usize,
    pub send: u64,
    pub receive: u64,
}

impl Rank {
    pub fn new(number: usize, gpu: c_int, side: u64) -> Self {
        enter(gpu);
        Self { number, gpu, side, stream: stream(), send: allocate(4096), receive: allocate(4096) }
    }
}

/// The name of a communicator to be.
pub fn unique_id() -> Id {
    let mut id = [0; 128];
    ok(cu!(ncclGetUniqueId(&raw mut id => *mut Id)));
    id
}

/// Joins as rank `number` of so many.
pub fn join(id: Id, number: c_int, of: c_int, side: &mut u64) -> u32 {
    cu!(ncclCommInitRank(side => *mut u64, of => c_int, UniqueId(id) => UniqueId, number => c_int))
}

/// Between a group's start and its end.
pub fn group(body: impl FnOnce()) -> u32 {
    ok(cu!(ncclGroupStart()));
    body();
    cu!(ncclGroupEnd())
}

pub fn put<T: Copy>(rank: &Rank, values: &[T]) {
    enter(rank.gpu);
    let bytes = size_of_val(values);
    ok(cu!(cuMemcpyHtoDAsync_v2(rank.send => u64, values.as_ptr() => *const T, bytes => usize, rank.stream => usize)));
}

/// Gives rank `r` the values 10r, 10r + 1, and so on.
pub fn fill_ranks(ranks: &[Rank], count: usize) {
    for rank in ranks {
        put(rank, &(0..count).map(|index| (10 * rank.number + index) as f32).collect::<Vec<_>>());
    }
}

pub fn got(rank: &Rank, count: usize) -> Vec<f32> {
    enter(rank.gpu);
    let bytes = read(rank.receive, count as u64 * 4, rank.stream);
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

pub fn all_reduce_of(rank: &Rank, count: usize, element: c_int, reduction: c_int) -> u32 {
    cu!(ncclAllReduce(
        rank.send => u64, rank.receive => u64, count => usize, element => c_int, reduction => c_int, rank.side => u64,
        rank.stream => usize
    ))
}

pub fn all_reduce(rank: &Rank, count: usize) -> u32 {
    all_reduce_of(rank, count, F32, SUM)
}

pub fn send(rank: &Rank, count: usize, peer: c_int) -> u32 {
    cu!(ncclSend(
        rank.send => u64, count => usize, F32 => c_int, peer => c_int, rank.side => u64, rank.stream => usize
    ))
}

pub fn receive(rank: &Rank, count: usize, peer: c_int) -> u32 {
    cu!(ncclRecv(
        rank.receive => u64, count => usize, F32 => c_int, peer => c_int, rank.side => u64, rank.stream => usize
    ))
}
