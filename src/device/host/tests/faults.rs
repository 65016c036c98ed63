//! The kernel refuses the n-th call, for each n until none is refused any more.

use super::*;
use crate::{
    device::host::mapping::faults,
    error::Error,
    memory::{Arena, Block, Strategy},
};

/// Writes a pattern over a block.
fn fill(block: Block, with: u8) {
    // SAFETY: the block is mapped, readable and writable, and this test's alone.
    unsafe { std::ptr::write_bytes(at(block), with, block.size.get() as usize) };
}

fn at(block: Block) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(block.address.get() as usize)
}

fn holds(block: Block, with: u8) -> bool {
    // SAFETY: the block is mapped and this test's alone.
    unsafe { std::slice::from_raw_parts(at(block), block.size.get() as usize) }.iter().all(|&byte| byte == with)
}

#[test]
fn every_call_of_the_kernel_may_fail() {
    for strategy in [Strategy::Preallocate, Strategy::Growing, Strategy::Platform, Strategy::Tpu] {
        for n in 0.. {
            let what = format!("{strategy}: call {n}");
            let device = HostBacking::new();
            faults::fail_nth(n);
            let arena = Arena::new("host".into(), strategy, Bytes::mib(16), Box::new(device.clone()));
            let arena = match arena {
                Ok(arena) => arena,
                Err(error) => {
                    assert!(error.message.contains("failed"), "{what}: {error}");
                    assert!(!faults::countermand() && strategy == Strategy::Tpu, "{what}");
                    continue;
                }
            };
            let (mut live, mut errors) = (Vec::new(), Vec::new());
            for number in 1..=6_u8 {
                match arena.allocate(Bytes::kib(u64::from(number) * 300)) {
                    Ok(block) => {
                        fill(block, number);
                        live.push((block, number));
                    }
                    Err(oom) => errors.push(Error::from(oom)),
                }
                if number % 2 == 0 && !live.is_empty() {
                    assert_eq!(arena.free(live.remove(0).0.id), Ok(()));
                }
            }
            arena.discard_holes(|hole| {
                // SAFETY: the hole lies in a region of the device, and the arena is locked: nothing uses it.
                let discarded = unsafe { device.discard(hole.address, hole.bytes) };
                discarded.inspect_err(|error| errors.push(error.clone())).unwrap_or(Bytes::ZERO)
            });
            arena.trim();
            let happened = !faults::countermand();
            assert!(live.iter().all(|&(block, with)| holds(block, with)), "{what}: an array lost its bytes");
            for error in &errors {
                assert!(error.message.contains("failed"), "{what}: {error}");
            }
            live.iter().for_each(|(block, _)| assert_eq!(arena.free(block.id), Ok(())));
            let stats = arena.stats();
            let parts = [stats.slack_bytes, stats.free_bytes, stats.bytes_in_use, stats.pending_bytes];
            assert_eq!(parts.into_iter().sum::<Bytes>(), stats.pool_bytes, "{what}: {stats:?}");
            assert_eq!((stats.bytes_in_use, stats.live_blocks), (Bytes::ZERO, 0), "{what}");
            let again = arena.allocate(Bytes::mib(2)).unwrap_or_else(|oom| panic!("{what}: {oom}"));
            fill(again, 7);
            assert!(holds(again, 7));
            if !happened {
                assert!(n > 0, "{what}: calls are made");
                break;
            }
        }
    }
}

#[test]
fn a_region_whose_surroundings_stay_mapped_is_given_all_the_same() {
    let device = HostBacking::new();
    // The first call maps, the second one gives back what lies before the region or behind it.
    faults::fail_nth(1);
    let region = device.reserve(Bytes::mib(4));
    assert!(!faults::countermand(), "something is given back");
    let region = region.expect("the kernel had room");
    // SAFETY: the region is mapped, and this test's alone.
    unsafe {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(region.address.get() as usize);
        at.write_bytes(5, region.bytes.get() as usize);
        assert_eq!(at.add(region.bytes.get() as usize - 1).read(), 5);
    }
    device.release(region).expect("the region goes back by itself");
}
