//! NCCL's collectives: right numbers, one order for all ranks, and what goes against either is told.

#[macro_use]
#[path = "../../../fake_cuda/tests/driver/common.rs"]
mod common;
#[path = "common/nccl.rs"]
mod ranks;

use std::{
    ffi::{CStr, c_char, c_int},
    net::TcpListener,
    sync::mpsc,
    thread,
    time::Duration,
};

use common::*;
use ranks::*;
use simulated_gpu as _;

const I32: c_int = 2;
const INVALID_ARGUMENT: u32 = 4;
const INVALID_USAGE: u32 = 5;

/// As many GPUs, of one communicator.
fn ranks(count: usize) -> (Session, Vec<Rank>) {
    let session = start(&[("gpus", &count.to_string())]);
    let mut sides = vec![0u64; count];
    ok(cu!(ncclCommInitAll(sides.as_mut_ptr() => *mut u64, count as c_int => c_int, std::ptr::null() => *const c_int)));
    (session, (0..).zip(sides).map(|(gpu, side)| Rank::new(gpu as usize, gpu, side)).collect())
}

#[test]
fn each_collective_gives_what_nccl_says() {
    let (_session, all) = ranks(3);
    fill_ranks(&all, 6);
    let each = |call: &dyn Fn(&Rank) -> u32| all.iter().for_each(|rank| ok(call(rank)));
    let expect = |wanted: [&[f32]; 3]| {
        for (rank, wanted) in all.iter().zip(wanted) {
            assert_eq!(got(rank, wanted.len()), wanted, "rank {}", rank.gpu);
        }
    };
    each(&|rank| all_reduce(rank, 2));
    expect([&[30.0, 33.0]; 3]);
    for (reduction, wanted) in [(1, [0.0, 231.0]), (2, [20.0, 21.0]), (3, [0.0, 1.0]), (4, [10.0, 11.0])] {
        each(&|rank| all_reduce_of(rank, 2, F32, reduction));
        expect([&wanted; 3]);
    }
    each(&|rank| {
        cu!(ncclAllGather(
            rank.send => u64, rank.receive => u64, 2 => usize, F32 => c_int, rank.side => u64, rank.stream => usize
        ))
    });
    expect([&[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]; 3]);
    each(&|rank| {
        cu!(ncclReduceScatter(
            rank.send => u64, rank.receive => u64, 2 => usize, F32 => c_int, SUM => c_int, rank.side => u64,
            rank.stream => usize
        ))
    });
    expect([&[30.0, 33.0], &[36.0, 39.0], &[42.0, 45.0]]);
    each(&|rank| {
        cu!(ncclBroadcast(
            rank.send => u64, rank.receive => u64, 2 => usize, F32 => c_int, 1 => c_int, rank.side => u64,
            rank.stream => usize
        ))
    });
    expect([&[10.0, 11.0]; 3]);
    each(&|rank| {
        cu!(ncclReduce(
            rank.send => u64, rank.receive => u64, 2 => usize, F32 => c_int, SUM => c_int, 2 => c_int,
            rank.side => u64, rank.stream => usize
        ))
    });
    expect([&[10.0, 11.0], &[10.0, 11.0], &[30.0, 33.0]]);
    each(&|rank| {
        cu!(ncclAlltoAll(
            rank.send => u64, rank.receive => u64, 2 => usize, F32 => c_int, rank.side => u64, rank.stream => usize
        ))
    });
    expect([
        &[0.0, 1.0, 10.0, 11.0, 20.0, 21.0],
        &[2.0, 3.0, 12.0, 13.0, 22.0, 23.0],
        &[4.0, 5.0, 14.0, 15.0, 24.0, 25.0],
    ]);
    // Each sends to the next one.
    ok(group(|| {
        for rank in &all {
            ok(send(rank, 2, (rank.gpu + 1) % 3));
            ok(receive(rank, 2, (rank.gpu + 2) % 3));
        }
    }));
    expect([&[20.0, 21.0], &[0.0, 1.0], &[10.0, 11.0]]);
    no_violations();
}

#[test]
fn in_place_and_more_than_one_piece() {
    let (_session, mut all) = ranks(2);
    let count = 50_000;
    for rank in &mut all {
        enter(rank.gpu);
        rank.send = allocate(count * 4);
        rank.receive = rank.send;
        put(rank, &(0..count as i32).map(|value| value * (rank.gpu + 1)).collect::<Vec<_>>());
        ok(all_reduce_of(rank, count as usize, I32, SUM));
    }
    for rank in &all {
        enter(rank.gpu);
        let bytes = read(rank.receive, count * 4, rank.stream);
        let right = |(index, bytes): (i32, &[u8; 4])| i32::from_le_bytes(*bytes) == index * 3;
        assert!((0..).zip(bytes.as_chunks().0).all(right));
    }
    no_violations();
    // Halves that overlap otherwise are refused.
    let mut wrong = all[0];
    wrong.receive += 4;
    assert_eq!(all_reduce_of(&wrong, 100, I32, SUM), INVALID_ARGUMENT);
    found(&["ncclAllReduce", "overlap"]);
}

#[test]
fn a_collective_waits_for_the_slowest_and_nothing_after_it_is_early() {
    let (_session, all) = ranks(3);
    fill_ranks(&all, 2);
    enter(2);
    let open = gate(all[2].stream, &[], &[range(all[2].send, 4)]);
    for rank in &all {
        enter(rank.gpu);
        // None of the calls waits.
        ok(all_reduce(rank, 2));
        fill(rank.send, 9, 8, rank.stream);
    }
    thread::sleep(Duration::from_millis(20));
    for rank in &all {
        enter(rank.gpu);
        assert!(!is_done(rank.stream), "rank {} did not wait", rank.gpu);
        assert_ne!(peek(rank.send), 9, "rank {} went on", rank.gpu);
    }
    drop(open);
    for rank in &all {
        assert_eq!(got(rank, 2), [30.0, 33.0]);
        assert_eq!(peek(rank.send), 9);
    }
    no_violations();
}

#[test]
fn a_rank_that_has_not_called_is_waited_for() {
    let (_session, all) = ranks(2);
    fill_ranks(&all, 2);
    ok(all_reduce(&all[0], 2));
    thread::sleep(Duration::from_millis(20));
    enter(0);
    assert!(!is_done(all[0].stream));
    ok(all_reduce(&all[1], 2));
    assert_eq!(got(&all[0], 2), [10.0, 12.0]);
    no_violations();
}

#[test]
fn a_receive_buffer_that_is_used_without_waiting_is_found() {
    let (_session, all) = ranks(2);
    enter(1);
    let other = stream();
    all.iter().for_each(|rank| ok(all_reduce(rank, 64)));
    fill(all[1].receive, 1, 16, other);
    found(&["cuMemsetD8Async", "writes 16 bytes", "not ordered after ncclAllReduce", "which writes them"]);
    all.iter().for_each(|rank| ok(all_reduce(rank, 64)));
    // Not ordered after the fill, which nothing waits for either.
    found(&["ncclAllReduce", "not ordered after cuMemsetD8Async"]);
    wait(other, record(all[1].stream));
    fill(all[1].receive, 1, 16, other);
    no_violations();
    // The send buffer is read, no more.
    let third = stream();
    ok(kernel(third, &[range(all[1].send, 64)], &[], || {}));
    no_violations();
    fill(all[1].send, 1, 16, third);
    found(&["cuMemsetD8Async", "not ordered after ncclAllReduce", "which reads them"]);
}

#[test]
fn a_collective_orders_what_was_on_one_gpu_before_what_is_on_another_after() {
    for ordered in [true, false] {
        let (_session, all) = ranks(2);
        enter(1);
        let block = allocate(4096);
        ok(kernel(all[1].stream, &[], &[range(block, 64)], || {}));
        // Rank 0 calls and goes on before rank 1 has called.
        ok(all_reduce(&all[0], 2));
        enter(0);
        let event = record(all[0].stream);
        let other = stream();
        wait(other, event);
        ok(all_reduce(&all[1], 2));
        if !ordered {
            enter(1);
            ok(kernel(all[1].stream, &[], &[range(block, 64)], || {}));
            enter(0);
        }
        ok(cu!(cuMemcpyDtoDAsync_v2(all[0].send + 64 => u64, block => u64, 64 => usize, other => usize)));
        if ordered { no_violations() } else { found(&["cuMemcpyDtoDAsync", "not ordered after fake_cuda_kernel"]) }
    }
}

#[test]
fn a_receive_comes_after_what_the_sender_did_and_not_the_other_way_round() {
    let (_session, all) = ranks(2);
    let block = allocate(4096);
    fill_ranks(&all, 2);
    enter(0);
    fill(block, 1, 64, all[0].stream);
    enter(1);
    fill(all[1].receive + 64, 1, 64, all[1].stream);
    ok(send(&all[0], 2, 1));
    ok(receive(&all[1], 2, 0));
    enter(1);
    ok(cu!(cuMemcpyDtoDAsync_v2(all[1].send + 64 => u64, block => u64, 64 => usize, all[1].stream => usize)));
    no_violations();
    enter(0);
    let from = all[1].receive + 64;
    ok(cu!(cuMemcpyDtoDAsync_v2(all[0].send + 64 => u64, from => u64, 64 => usize, all[0].stream => usize)));
    found(&["cuMemcpyDtoDAsync", "not ordered after cuMemsetD8Async"]);
}

#[test]
fn ranks_that_ask_for_other_things_are_told_and_do_not_hang() {
    let (_session, all) = ranks(2);
    ok(all_reduce(&all[0], 8));
    assert_eq!(all_reduce(&all[1], 9), INVALID_USAGE);
    found(&[
        "collective 1",
        "ncclAllReduce of 9 Float32 by Sum for rank 1",
        "ncclAllReduce of 8 Float32 by Sum for rank 0",
    ]);
    let mut error = 0;
    ok(cu!(ncclCommGetAsyncError(all[0].side => u64, &raw mut error => *mut u32)));
    assert_eq!(error, INVALID_USAGE);
    for rank in &all {
        enter(rank.gpu);
        synchronize(rank.stream);
    }
    ok(all_reduce_of(&all[0], 8, F32, SUM));
    assert_eq!(all_reduce_of(&all[1], 8, I32, SUM), INVALID_USAGE);
    found(&["collective 2", "8 Int32", "8 Float32"]);
    ok(all_reduce(&all[1], 8));
    let code = cu!(ncclAllGather(
        all[0].send => u64, all[0].receive => u64, 8 => usize, F32 => c_int, all[0].side => u64,
        all[0].stream => usize
    ));
    assert_eq!(code, INVALID_USAGE);
    found(&["collective 3", "ncclAllGather of 8 Float32 for rank 0", "for rank 1"]);
    ok(send(&all[0], 2, 1));
    assert_eq!(receive(&all[1], 3, 0), INVALID_USAGE);
    found(&["message 1 from rank 0 to rank 1", "3 Float32 for rank 1", "2 Float32 for rank 0"]);
    // What comes next is in order again.
    fill_ranks(&all, 2);
    all.iter().for_each(|rank| ok(all_reduce(rank, 2)));
    assert_eq!(got(&all[1], 2), [10.0, 12.0]);
    no_violations();
}

#[test]
fn wrong_arguments_are_told() {
    let (_session, all) = ranks(2);
    let rank = all[0];
    let other = Rank { receive: all[1].receive, ..rank };
    // SAFETY: the text is there until the next mistake of this thread.
    let last = || unsafe { CStr::from_ptr(last_error(rank.side)) }.to_string_lossy().into_owned();
    assert_eq!(all_reduce_of(&rank, 8, 12, SUM), INVALID_ARGUMENT);
    found(&["12 is no type of elements"]);
    assert!(last().contains("12 is no type"), "{}", last());
    assert_eq!(all_reduce_of(&rank, 8, F32, 5), INVALID_ARGUMENT);
    found(&["5 is no reduction"]);
    assert_eq!(all_reduce(&rank, 1025), INVALID_ARGUMENT);
    found(&["4100 bytes", "go over the end"]);
    assert_eq!(all_reduce(&rank, usize::MAX), INVALID_ARGUMENT);
    found(&["more than there can be"]);
    assert_eq!(all_reduce(&other, 8), INVALID_ARGUMENT);
    found(&["GPU 0 has no access to", "on GPU 1"]);
    assert_eq!(send(&rank, 8, 2), INVALID_ARGUMENT);
    found(&["rank 2 is none of 2"]);
    assert_eq!(all_reduce(&Rank { stream: all[1].stream, ..rank }, 8), 1);
    found(&["the stream", "is of GPU 1, but the communicator of GPU 0"]);
    assert_eq!(all_reduce(&Rank { side: 0x77, ..rank }, 8), INVALID_ARGUMENT);
    found(&["0x77 is no communicator"]);
    assert_eq!(cu!(ncclGroupEnd()), INVALID_USAGE);
    found(&["without ncclGroupStart"]);
    // A group with a call that failed is not done.
    let code = group(|| {
        ok(all_reduce(&rank, 8));
        assert_eq!(all_reduce_of(&rank, 8, 12, SUM), INVALID_ARGUMENT);
    });
    assert_eq!(code, INVALID_ARGUMENT);
    enter(0);
    synchronize(rank.stream);
    found(&["12 is no type"]);
}

fn last_error(side: u64) -> *const c_char {
    simulated_gpu::ffi::ncclGetLastError(side)
}

#[test]
fn ranks_find_each_other_by_an_id_from_threads_or_in_a_group() {
    let session = start(&[("gpus", "2")]);
    let mut id = unique_id();
    let enter_and_join = move |rank: c_int, id: Id| {
        enter(rank);
        let mut side = 0;
        (join(id, rank, 2, &mut side), side)
    };
    let (tell, told) = mpsc::channel();
    let sides = thread::scope(|scope| {
        let waits = scope.spawn(move || {
            let (code, side) = enter_and_join(0, id);
            ok(code);
            tell.send(()).expect("the test waits");
            side
        });
        thread::sleep(Duration::from_millis(20));
        assert!(told.try_recv().is_err(), "rank 0 did not wait for rank 1");
        let (code, side) = enter_and_join(1, id);
        ok(code);
        [waits.join().expect("no panic"), side]
    });
    for (rank, side) in (0..).zip(sides) {
        let (mut count, mut number, mut device) = (0, 0, 0);
        ok(cu!(ncclCommCount(side => u64, &raw mut count => *mut c_int)));
        ok(cu!(ncclCommUserRank(side => u64, &raw mut number => *mut c_int)));
        ok(cu!(ncclCommCuDevice(side => u64, &raw mut device => *mut c_int)));
        assert_eq!((count, number, device), (2, rank, rank));
    }
    id = unique_id();
    ok(group(|| (0..2).for_each(|rank| ok(enter_and_join(rank, id).0))));
    no_violations();
    // Two ranks on one GPU.
    id = unique_id();
    let code = group(|| {
        ok(enter_and_join(0, id).0);
        assert_eq!(enter_and_join(0, id).0, INVALID_USAGE);
    });
    assert_eq!(code, INVALID_USAGE);
    found(&["rank 0 on GPU 0 cannot join rank 0 on GPU 0"]);
    // Of another process that has ended: not met, and not waited for.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|gone| gone.local_addr()).expect("a port").port();
    id[24..26].copy_from_slice(&port.to_le_bytes());
    id[0] ^= 1;
    assert_eq!(enter_and_join(0, id).0, 2);
    no_violations();
    drop(session);
}

#[test]
fn a_split_makes_communicators_by_color_in_the_order_of_keys() {
    let (_session, mut all) = ranks(4);
    fill_ranks(&all, 2);
    let mut sides = [0u64; 4];
    // 0 and 2 in the other order, 1 and 3 not at all.
    ok(group(|| {
        for (rank, side) in all.iter().zip(&mut sides) {
            let color = if rank.gpu % 2 == 0 { 5 } else { -1 };
            ok(cu!(ncclCommSplit(
                rank.side => u64, color => c_int, 4 - rank.gpu => c_int, &raw mut *side => *mut u64, 0 => usize
            )));
        }
    }));
    assert_eq!((sides[1], sides[3]), (0, 0));
    for rank in [0, 2] {
        all[rank].side = sides[rank];
        ok(cu!(ncclAllGather(
            all[rank].send => u64, all[rank].receive => u64, 2 => usize, F32 => c_int, sides[rank] => u64,
            all[rank].stream => usize
        )));
    }
    assert_eq!(got(&all[0], 4), [20.0, 21.0, 0.0, 1.0]);
    no_violations();
}

#[test]
fn destroying_waits_for_the_rank_and_aborting_does_not() {
    let (_session, all) = ranks(2);
    fill_ranks(&all, 2);
    ok(all_reduce(&all[0], 2));
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let side = all[0].side;
        scope.spawn(move || {
            ok(cu!(ncclCommDestroy(side => u64)));
            tell.send(()).expect("the test waits");
        });
        thread::sleep(Duration::from_millis(20));
        assert!(told.try_recv().is_err(), "destroyed with an operation under way");
        ok(all_reduce(&all[1], 2));
    });
    assert_eq!(got(&all[0], 2), [10.0, 12.0]);
    assert_eq!(all_reduce(&all[0], 2), INVALID_ARGUMENT);
    found(&["is no communicator, or was destroyed before"]);
    // Rank 0 is gone; only an abort ends what rank 1 waits for.
    ok(all_reduce(&all[1], 2));
    thread::sleep(Duration::from_millis(20));
    enter(1);
    assert!(!is_done(all[1].stream));
    ok(cu!(ncclCommAbort(all[1].side => u64)));
    synchronize(all[1].stream);
    no_violations();
}

#[test]
fn a_gpu_with_an_error_does_not_let_the_others_hang() {
    let (_session, all) = ranks(2);
    enter(1);
    let block = reserve(CHUNK);
    let handle = create(CHUNK, 1).expect("room");
    ok(map(block, CHUNK, handle));
    ok(allow(block, CHUNK, 1, 3));
    let open = gate(all[1].stream, &[], &[]);
    ok(all_reduce(&all[0], 2));
    ok(all_reduce(&Rank { send: block, ..all[1] }, 2));
    ok(unmap(block, CHUNK));
    drop(open);
    found(&["unmapped while in use: ncclAllReduce"]);
    enter(0);
    synchronize(all[0].stream);
    let mut error = 0;
    ok(cu!(ncclCommGetAsyncError(all[0].side => u64, &raw mut error => *mut u32)));
    assert_eq!(error, 1);
}

#[test]
fn registered_memory_must_stay() {
    let (_session, all) = ranks(1);
    let side = all[0].side;
    let block = reserve(2 * CHUNK);
    let handles = [mapped(block, CHUNK), mapped(block + CHUNK, CHUNK)];
    let register = |address: u64, bytes: u64| {
        let mut handle = 0u64;
        let code = cu!(ncclCommRegister(
            side => u64, address => u64, bytes as usize => usize, &raw mut handle => *mut u64
        ));
        (code, handle)
    };
    let (code, whole) = register(block, 2 * CHUNK);
    ok(code);
    ok(unmap(block + CHUNK, CHUNK));
    found(&["are unmapped, in a buffer of 4194304 bytes", "ncclCommRegister registered"]);
    ok(cu!(ncclCommDeregister(side => u64, whole => u64)));
    ok(unmap(block, CHUNK));
    no_violations();
    assert_eq!(cu!(ncclCommDeregister(side => u64, whole => u64)), INVALID_USAGE);
    found(&["is not registered"]);
    assert_eq!(register(block, CHUNK).0, INVALID_ARGUMENT);
    found(&["nothing is mapped"]);
    handles.into_iter().for_each(|handle| ok(release(handle)));
}
