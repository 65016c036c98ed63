//! Blocks that move, by copies and by chunks that change places.

use fake_cuda::control;

use crate::device::cuda::{costs, tests::*};

const MIB: u64 = 1 << 20;

/// Whether the destination of a move has memory, where the block itself is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hole {
    Filled,
    Lacking,
}

/// Moves a block in a region of `chunks` chunks, and looks at all of the region.
#[track_caller]
fn moves(backing: &CudaBacking, hole: Hole, chunks: u64, from: u64, to: u64, bytes: u64) {
    let size = chunks * CHUNK.get();
    let (region, content) = filled(backing, size, from ^ to);
    if hole == Hole::Lacking {
        let (start, end) = if to < from { (to, from.min(to + bytes)) } else { (to.max(from + bytes), to + bytes) };
        discard(backing, at(region.address, start), end.saturating_sub(start)).expect("chunks");
    }
    relocate(backing, at(region.address, from), at(region.address, to), bytes).expect("a move");
    backing.populate(region.address, region.bytes).expect("memory for what the move left without");
    let held = read(backing.device(), region.address, size);
    let place = |start: u64| start as usize..(start + bytes) as usize;
    assert!(held[place(to)] == content[place(from)], "{from} -> {to}, {bytes}");
    let (low, high) = (from.min(to) as usize, (from.max(to) + bytes) as usize);
    assert!(held[..low] == content[..low] && held[high..] == content[high..], "beside {from} -> {to}, {bytes}");
    backing.release(region).expect("a release");
}

#[test]
fn blocks_arrive_whole_and_their_neighbours_stay() {
    let rig = Rig::new(&[("latency_us", "20")]);
    let free = rig.free();
    let [chunked, allocations] = rig.kinds();
    for (backing, hole) in [(&chunked, Hole::Filled), (&chunked, Hole::Lacking), (&allocations, Hole::Filled)] {
        let chunk = CHUNK.get();
        for (from, to, bytes) in [
            (6 * chunk, chunk, 3 * chunk),                  // apart, whole chunks
            (chunk, 6 * chunk, 3 * chunk),                  // the other way
            (3 * chunk, chunk, 5 * chunk),                  // over itself, downwards
            (chunk, 3 * chunk, 5 * chunk),                  // and upwards
            (3 * chunk + 512, chunk + 512, 4 * chunk),      // alike, with edges that are copied
            (chunk + 512, 2 * chunk + 512, 4 * chunk + 77), // the same upwards, by a chunk
            (3 * chunk + 512, 2 * chunk + 256, 4 * chunk),  // not alike
            (chunk + 256, 2 * chunk + 512, 4 * chunk),
            (256, 0, 9 * chunk), // by little
            (0, 256, 9 * chunk),
            (5 * chunk, 512, 100), // small
            (chunk, 0, 0),
            (chunk, chunk, chunk),
        ] {
            moves(backing, hole, 10, from, to, bytes);
        }
    }
    // The bounce buffer stays.
    assert!(free - rig.free() <= Bytes::mib(16), "{} of {free}", rig.free());
}

#[test]
fn a_long_way_is_copied_in_pieces_of_the_way_and_a_short_one_through_the_buffer() {
    let rig = Rig::new(&[]);
    let backing = rig.chunked();
    let copies = |from: u64, to: u64, bytes: u64| {
        let before = control::count("cuMemcpyDtoDAsync_v2");
        moves(&backing, Hole::Filled, 24, from, to, bytes);
        control::count("cuMemcpyDtoDAsync_v2") - before
    };
    assert_eq!(copies(4 * MIB, 0, 40 * MIB), 10);
    assert_eq!(copies(0, 4 * MIB, 38 * MIB), 10);
    // 16 MiB there and back each time.
    assert_eq!(copies(2 * MIB, 0, 40 * MIB), 6);
    assert_eq!(copies(0, 256, 40 * MIB), 6);
}

#[test]
fn without_memory_for_the_buffer_a_short_way_still_works() {
    let rig = Rig::new(&[("memory", "20MiB")]);
    let backing = rig.chunked();
    let (region, content) = filled(&backing, 20 * MIB, 3);
    relocate(&backing, at(region.address, MIB), region.address, 8 * MIB).expect("a move");
    assert!(read(&rig.gpu, region.address, 8 * MIB) == content[MIB as usize..9 * MIB as usize]);
    relocate(&backing, region.address, at(region.address, MIB), 8 * MIB).expect("a move");
    assert!(read(&rig.gpu, at(region.address, MIB), 8 * MIB) == content[MIB as usize..9 * MIB as usize]);
    backing.release(region).expect("a release");
}

#[test]
fn chunks_move_between_regions_and_the_gap_keeps_its_memory() {
    let rig = Rig::new(&[]);
    let backing = rig.chunked();
    let (one, content) = filled(&backing, 6 * CHUNK.get(), 1);
    let (two, _) = filled(&backing, 8 * CHUNK.get(), 2);
    let chunk = CHUNK.get();
    // Of three chunks of the destination one has no memory; the other two change places with the block's.
    assert_eq!(discard(&backing, at(two.address, 5 * chunk), chunk), Ok(CHUNK));
    let copies = control::count("cuMemcpyDtoDAsync_v2");
    relocate(&backing, at(one.address, chunk), at(two.address, 4 * chunk), 3 * chunk).expect("a move");
    assert_eq!(control::count("cuMemcpyDtoDAsync_v2"), copies, "not a byte is copied");
    assert!(read(&rig.gpu, at(two.address, 4 * chunk), 3 * chunk) == content[chunk as usize..4 * chunk as usize]);
    // The gap can be written but for one chunk.
    let (again, free) = (pattern(chunk, 9), rig.free());
    for gap in [chunk, 3 * chunk] {
        write(&rig.gpu, at(one.address, gap), &again);
        assert!(read(&rig.gpu, at(one.address, gap), chunk) == again);
    }
    assert_eq!(rig.free(), free);
    backing.populate(one.address, one.bytes).expect("room");
    assert_eq!(free - rig.free(), CHUNK);
    backing.release(one).expect("a release");
    backing.release(two).expect("a release");
}

#[test]
fn where_chunks_are_missing_the_blocks_own_take_their_place() {
    let rig = Rig::new(&[]);
    let backing = rig.chunked();
    let chunk = CHUNK.get();
    let (region, content) = filled(&backing, 10 * chunk, 5);
    assert_eq!(discard(&backing, region.address, 3 * chunk), Ok(Bytes::new(3 * chunk)));
    let (free, made) = (rig.free(), control::count("cuMemCreate"));
    relocate(&backing, at(region.address, 3 * chunk + 100), at(region.address, 100), 6 * chunk).expect("a move");
    let from = 3 * chunk as usize + 100;
    assert!(read(&rig.gpu, at(region.address, 100), 6 * chunk) == content[from..from + 6 * chunk as usize]);
    // The edge at the front needed a chunk; the one behind found one.
    assert_eq!(control::count("cuMemCreate"), made + 1);
    assert_eq!(free - rig.free(), CHUNK);
    // What is left of the gap is missing: a block there gets memory first.
    backing.populate(region.address, region.bytes).expect("room");
    assert_eq!(free - rig.free(), Bytes::new(3 * chunk));
    write(&rig.gpu, region.address, &content);
    backing.release(region).expect("a release");
}

#[test]
fn a_block_is_whole_whatever_the_driver_refuses() {
    let chunk = CHUNK.get();
    // With memory for none of the destination and for its edge, each call that the move makes fails once.
    for (first, missing) in [(0, 2), (1, 1)] {
        at_each_call(&[], &["cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemCreate"], |rig, fail| {
            let backing = rig.chunked();
            let (region, content) = filled(&backing, 10 * chunk, 1);
            discard(&backing, at(region.address, first * chunk), missing * chunk).expect("chunks");
            let (from, to) = (at(region.address, 2 * chunk + 100), at(region.address, 100));
            fail();
            let moved = relocate(&backing, from, to, 5 * chunk);
            assert!(control::violations().is_empty(), "{missing} {moved:?}: {:#?}", control::violations());
            let start = 2 * chunk as usize + 100;
            let expected = &content[start..start + 5 * chunk as usize];
            let place = if moved.is_ok() { to } else { from };
            assert!(read(&rig.gpu, place, 5 * chunk) == expected, "{missing}: {moved:?}");
            backing.populate(region.address, region.bytes).expect("memory for what is without");
            // This can be the call that fails.
            if let Err(why) = backing.release(region) {
                assert!(moved.is_ok() && why.message.starts_with("cuMemUnmap gave 2"), "{why}");
            }
        });
    }
}

#[test]
fn a_move_waits_for_uploads_to_the_block() {
    let rig = Rig::new(&[("latency_us", "3000")]);
    for hole in [Hole::Filled, Hole::Lacking] {
        let backing = rig.chunked();
        let region = backing.reserve(Bytes::new(6 * CHUNK.get())).expect("room");
        if hole == Hole::Lacking {
            discard(&backing, region.address, 2 * CHUNK.get()).expect("chunks");
        }
        let content = pattern(2 * CHUNK.get(), 7);
        upload(&backing, &content, at(region.address, 2 * CHUNK.get())).expect("an upload");
        relocate(&backing, at(region.address, 2 * CHUNK.get()), region.address, 2 * CHUNK.get()).expect("a move");
        assert!(read(&rig.gpu, region.address, 2 * CHUNK.get()) == content);
        backing.release(region).expect("a release");
    }
}

#[test]
fn chunks_that_the_engine_uses_are_not_exchanged_unnoticed() {
    let rig = Rig::new(&[("latency_us", "1000")]);
    let backing = rig.chunked();
    let (region, _) = filled(&backing, 4 * CHUNK.get(), 1);
    discard(&backing, at(region.address, 3 * CHUNK.get()), CHUNK.get()).expect("chunks");
    let stream = engine_stream(&rig.gpu);
    kernel(&rig.gpu, stream, &[(region.address, 100)], &[]);
    relocate(&backing, region.address, at(region.address, 2 * CHUNK.get()), 2 * CHUNK.get()).expect("a move");
    rig.found(&["fake_cuda_kernel", "unmapped"]);
    finish(&rig.gpu);
    backing.release(region).expect("a release");
}

#[test]
fn ranges_outside_of_regions_are_refused() {
    let rig = Rig::new(&[]);
    let backing = rig.chunked();
    let (region, _) = filled(&backing, CHUNK.get(), 1);
    for (from, to, bytes) in [(0, 1, CHUNK.get()), (1, 0, CHUNK.get()), (CHUNK.get(), 0, 1)] {
        let why = relocate(&backing, at(region.address, from), at(region.address, to), bytes).expect_err("outside");
        assert!(why.message.contains("lie in no region of this GPU"), "{why}");
    }
    assert!(discard(&backing, at(region.address, 1), CHUNK.get()).is_err());
    backing.release(region).expect("a release");
}

#[test]
fn costs_come_from_the_bandwidth_and_plan_for_copies() {
    let rig = Rig::new(&[]);
    // The driver for tests tells an H200's 4.9 TB/s, of which a copy gets 0.8, and uses it twice.
    for backing in rig.kinds() {
        assert_eq!((backing.costs().per_mib, backing.costs().remap), (533, None));
    }
    // One that does not tell is taken for a small one, of 1 TB/s.
    assert_eq!(costs::costs(None).per_mib, 2621);
}
