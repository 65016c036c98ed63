//! What is trimmed where use is expected to stay low.

use crate::memory::tests::*;

#[test]
fn growing_gives_what_it_retained_back_largest_first() {
    let (arena, device) = arena(Strategy::Growing, Bytes::gib(1));
    let round = || {
        let blocks = [100, 300, 40].map(|mib| take(&arena, Bytes::mib(mib)));
        blocks.iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
    };
    (0..10).for_each(|_| round());
    let retained = assert_sums(&arena).pool_bytes;
    assert!(retained >= Bytes::mib(440), "{retained}");
    let sizes = |device: &FakeBacking| device.regions().iter().map(|region| region.bytes).collect::<Vec<_>>();
    let largest = sizes(&device).into_iter().max().unwrap();
    assert_eq!(arena.trim_to(Bytes::ZERO), Bytes::ZERO, "all of it was used in this window");
    assert_eq!((arena.end_window() >= Bytes::mib(440), arena.end_window()), (true, Bytes::ZERO));
    // One byte less than there is: the largest region is what has to go.
    assert_eq!(arena.trim_to(retained - Bytes::new(1)), largest);
    assert!(assert_sums(&arena).pool_bytes == retained - largest && !sizes(&device).contains(&largest));
    assert_eq!(arena.trim_to(Bytes::ZERO), retained - largest - assert_sums(&arena).pool_bytes);
    assert!(assert_sums(&arena).pool_bytes <= Bytes::mib(2), "as at the start");
    // That was a mistake, as the next rounds show: they run warm from the second on.
    (0..2).for_each(|_| round());
    let reserves = device.reserves();
    (0..10).for_each(|_| round());
    assert!(device.reserves() <= reserves + 3, "{} more", device.reserves() - reserves);
}

#[test]
fn a_surplus_is_the_largest_holes_and_the_high_end_of_one() {
    let (arena, _) = arena(Strategy::Preallocate, Bytes::mib(100));
    let blocks: Vec<Block> = (0..10).map(|_| take(&arena, Bytes::mib(10))).collect();
    // Holes of 10, 20 and 30 MiB.
    [1, 3, 4, 6, 7, 8].iter().for_each(|&number: &usize| assert_eq!(arena.free(blocks[number].id), Ok(())));
    assert_eq!((arena.end_window(), arena.end_window()), (Bytes::mib(100), Bytes::mib(40)));
    let of =
        |number: usize, mib| AddressRange { address: blocks[number].address + Bytes::mib(mib), bytes: Bytes::ZERO };
    let given = |keep| {
        let (mut surplus, mut given) = (arena.surplus(keep), Vec::<AddressRange>::new());
        let mut note = |piece: AddressRange| {
            assert!(piece.bytes <= Bytes::mib(16));
            match given.last_mut().filter(|last| last.address + last.bytes == piece.address) {
                Some(last) => last.bytes += piece.bytes,
                None => given.push(piece),
            }
            piece.bytes
        };
        while arena.discard_next(&mut surplus, &mut note).is_some() {}
        given
    };
    // 25 MiB above what is in use: the hole of 10 stays, and 15 of that of 20.
    let expected = [(of(6, 0), 30), (of(3, 15), 5)].map(|(at, mib)| AddressRange { bytes: Bytes::mib(mib), ..at });
    assert_eq!(given(Bytes::mib(65)), expected);
    assert_eq!(given(Bytes::mib(100)), []);
    // What is pending counts as used.
    assert_eq!(arena.retire(blocks[0].id), Ok(()));
    assert_eq!((arena.used(), given(Bytes::mib(65))), (Bytes::mib(40), expected.to_vec()));
    // Nothing at all is to stay beyond what is in use, and more is used: no piece goes.
    assert_eq!(given(Bytes::mib(39)), []);
}

#[test]
fn every_hole_is_discarded_once_in_pieces_of_64_mib_that_end_where_pages_do() {
    const PIECE: Bytes = Bytes::mib(64);
    let (arena, _) = arena(Strategy::Preallocate, Bytes::mib(500));
    let blocks: Vec<Block> = [150, 10, 40, 100].map(|mib| take(&arena, Bytes::mib(mib))).into();
    // Holes of 150 and 40 MiB, and one of 200 behind the last block.
    [0, 2].iter().for_each(|&number: &usize| assert_eq!(arena.free(blocks[number].id), Ok(())));
    let mut seen: Vec<AddressRange> = Vec::new();
    // The device gives back less than it is offered: what it says is what is summed.
    let discarded = arena.discard_holes(|piece| {
        seen.push(piece);
        Bytes::new(piece.bytes.get() / 2)
    });
    assert_eq!(discarded, Bytes::mib((150 + 40 + 200) / 2));
    let mut holes: Vec<AddressRange> = Vec::new();
    for piece in &seen {
        assert!(!piece.bytes.is_zero() && piece.bytes <= PIECE, "{piece:?}");
        match holes.last_mut().filter(|hole| hole.address + hole.bytes == piece.address) {
            Some(hole) => {
                assert!(piece.address.is_aligned_to(PIECE), "a hole is cut where pages end: {piece:?}");
                hole.bytes += piece.bytes;
            }
            None => holes.push(*piece),
        }
    }
    let behind = |block: &Block| block.address + block.size;
    let expected = [
        AddressRange { address: blocks[0].address, bytes: Bytes::mib(150) },
        AddressRange { address: blocks[2].address, bytes: Bytes::mib(40) },
        AddressRange { address: behind(&blocks[3]), bytes: Bytes::mib(200) },
    ];
    assert_eq!(holes, expected);
    let without = self::arena(Strategy::Platform, Bytes::mib(8)).0;
    take(&without, Bytes::mib(1));
    assert_eq!(without.discard_holes(|piece| piece.bytes), Bytes::ZERO, "its blocks' regions have no holes");
}

#[test]
fn a_surplus_takes_the_largest_holes_wherever_they_lie() {
    let (arena, _) = arena(Strategy::Preallocate, Bytes::mib(100));
    let blocks: Vec<Block> = [30, 10, 10, 10, 20, 20].map(|mib| take(&arena, Bytes::mib(mib))).into();
    // Holes of 30, 10 and 20 MiB, the largest at the lowest address.
    [0, 2, 4].iter().for_each(|&number: &usize| assert_eq!(arena.free(blocks[number].id), Ok(())));
    assert_eq!(arena.retire(blocks[1].id), Ok(()));
    assert!(arena.end_window() >= arena.end_window());
    let given = |keep| {
        let (mut surplus, mut given) = (arena.surplus(keep), Bytes::ZERO);
        let mut lowest = None;
        let mut note = |piece: AddressRange| {
            lowest = Some(lowest.map_or(piece.address, |lowest: Address| lowest.min(piece.address)));
            given += piece.bytes;
            piece.bytes
        };
        while arena.discard_next(&mut surplus, &mut note).is_some() {}
        (given, lowest)
    };
    // 30 MiB live and 10 are retired. Of 60 MiB free, 30 stay: the holes of 10 and 20.
    assert_eq!(arena.used(), Bytes::mib(40));
    assert_eq!(given(Bytes::mib(70)), (Bytes::mib(30), Some(blocks[0].address)));
    assert_eq!(given(Bytes::mib(80)), (Bytes::mib(20), Some(blocks[0].address + Bytes::mib(10))));
    // What is left of a hole is given from 64 KiB on: less is not worth a call.
    let all_but = |bytes: Bytes| given(Bytes::mib(100) - bytes).0;
    assert_eq!((all_but(Bytes::kib(64)), all_but(Bytes::kib(64) - Bytes::new(256))), (Bytes::kib(64), Bytes::ZERO));
}

#[test]
fn what_is_pending_is_in_use_where_memory_is_to_be_given_back() {
    let (arena, _device) = arena(Strategy::Growing, Bytes::gib(1));
    let round = || {
        let blocks = [100, 300].map(|mib| take(&arena, Bytes::mib(mib)));
        blocks.iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
    };
    (0..3).for_each(|_| round());
    let retained = arena.stats().free_bytes;
    assert!(retained >= Bytes::mib(300), "{retained}");
    let live = take(&arena, Bytes::new(4));
    let pending = take(&arena, Bytes::mib(20));
    assert_eq!(arena.retire(pending.id), Ok(()));
    assert!(arena.end_window() >= Bytes::mib(20));
    assert_eq!(arena.end_window(), Bytes::mib(20) + Bytes::new(4));
    // As much as is empty may stay beside what is used: the retired block is part of that.
    let empty = arena.stats().free_bytes;
    assert_eq!(arena.trim_to(empty + Bytes::mib(20) + Bytes::new(4)), Bytes::ZERO);
    assert!(arena.trim_to(Bytes::mib(20) + Bytes::new(4)) >= Bytes::mib(90));
    [live, pending].iter().for_each(|block| assert_eq!(arena.free(block.id), Ok(())));
}
