//! The device fails or panics at its n-th call, for each n until nothing fails any more.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;

use crate::{
    device::fake::{Call, Fault},
    memory::tests::*,
};

/// Blocks that come, go and are retired, with what each holds; the same steps each time.
struct Workload<'a> {
    arena: &'a Arena,
    device: &'a FakeBacking,
    live: Vec<(Block, u8)>,
    errors: Vec<Error>,
}

impl Workload<'_> {
    fn run(&mut self) {
        let mut random = Rng::with_seed(7);
        for step in 0..120_u8 {
            match random.u8(..8) {
                0..5 => {
                    let size = Bytes::kib(random.u64(1..64));
                    match self.arena.allocate(size) {
                        Ok(block) => {
                            let contents = vec![step; block.size.get() as usize];
                            self.device.write(block.address, &contents).expect("the block lies in a region");
                            self.live.push((block, step));
                        }
                        Err(oom) => self.errors.push(oom.into()),
                    }
                }
                5 | 6 if !self.live.is_empty() => {
                    let (block, _) = self.live.swap_remove(random.usize(..self.live.len()));
                    if random.bool() {
                        assert_eq!(self.arena.retire(block.id), Ok(()));
                    }
                    assert_eq!(self.arena.free(block.id), Ok(()));
                }
                7 => {
                    let discard = |range: AddressRange| {
                        let discarded = self.device.discard_pages(range.address, range.bytes);
                        discarded.unwrap_or_else(|error| {
                            self.errors.push(error);
                            Bytes::ZERO
                        })
                    };
                    self.arena.discard_holes(discard);
                    self.arena.trim();
                }
                _ => {}
            }
        }
    }

    #[track_caller]
    fn check(&self, what: &str) {
        for (block, tag) in &self.live {
            let held = self.device.read(block.address, block.size).expect("the block lies in a region");
            assert!(held.iter().all(|byte| byte == tag), "{what}: {block:?} lost its bytes");
        }
    }
}

/// An arena whose device keeps bytes. Under `tpu` it has a region already.
fn with_bytes(strategy: Strategy) -> (Arena, FakeBacking) {
    let device = FakeBacking::with_bytes(Bytes::mib(4), PAGE);
    let arena = Arena::new("fake:0".into(), strategy, Bytes::mib(2), Box::new(device.clone())).expect("an arena");
    (arena, device)
}

#[test]
fn every_call_of_the_device_may_fail() {
    for strategy in ALL {
        for call in [Call::Reserve, Call::Release, Call::Discard] {
            for n in 0.. {
                let what = format!("{strategy}: {call:?} {n}");
                let (arena, device) = with_bytes(strategy);
                device.order(call, n, Fault::Error);
                let mut workload = Workload { arena: &arena, device: &device, live: Vec::new(), errors: Vec::new() };
                workload.run();
                let happened = !device.countermand();
                workload.check(&what);
                assert_sums(&arena);
                for error in &workload.errors {
                    let named = error.message.contains("fails by order");
                    assert!(named || error.code == Code::ResourceExhausted, "{what}: {error}");
                }
                // Whether growth that was refused is tried in another size is the strategy's.
                let live = std::mem::take(&mut workload.live);
                live.iter().for_each(|(block, _)| assert_eq!(arena.free(block.id), Ok(())));
                let stats = assert_sums(&arena);
                assert_eq!((stats.bytes_in_use, stats.pending_bytes, stats.live_blocks), (Bytes::ZERO, Bytes::ZERO, 0));
                take(&arena, Bytes::mib(1));
                drop(arena);
                // A region that the device did not take back is lost to it, and the arena knows it no more.
                let lost = usize::from(happened && call == Call::Release);
                assert!(device.regions().len() <= lost, "{what}: {:?}", device.regions());
                assert_eq!(device.violations(), 0, "{what}");
                if !happened {
                    break;
                }
            }
        }
    }
}

/// What an arena does after a panic inside of its lock: it gives no memory any more, and what it gave stays.
#[test]
fn a_panic_inside_of_the_lock_breaks_an_arena_and_nothing_else() {
    for strategy in [Strategy::Preallocate, Strategy::Growing, Strategy::Platform] {
        for n in 0.. {
            let what = format!("{strategy}: reservation {n}");
            let (arena, device) = with_bytes(strategy);
            device.order(Call::Reserve, n, Fault::Panic);
            let mut workload = Workload { arena: &arena, device: &device, live: Vec::new(), errors: Vec::new() };
            let outcome = catch_unwind(AssertUnwindSafe(|| workload.run()));
            assert_eq!(outcome.is_err(), !device.countermand(), "{what}");
            workload.check(&what);
            if outcome.is_ok() {
                take(&arena, PAGE);
                break;
            }
            // No lock is held, and nobody is given memory that the books may have twice.
            let error = Error::from(arena.allocate(PAGE).expect_err("broken"));
            assert_eq!(error.code, Code::Internal, "{what}");
            assert!(error.message.contains("fake:0") && error.message.contains("a panic has interrupted"), "{error}");
            let oom = arena.allocate_waiting(PAGE, Bytes::ZERO, LONG).expect_err("broken, and nothing is waited for");
            assert_eq!(oom.code(), Code::Internal);
            assert_eq!(arena.stats(), Stats { limit: Bytes::mib(2), ..Stats::default() });
            assert!(arena.plan(Goal::Pack, &Costs::COPY, &|_| true).is_err());
            let live = std::mem::take(&mut workload.live);
            for (block, _) in &live {
                assert_eq!(arena.pin(block.id), Ok(()));
                assert_eq!(arena.retire(block.id), Ok(()));
                assert!(arena.reuse_in_place(block.id, Provenance::default()).is_err());
                assert_eq!(arena.free(block.id), Ok(()));
            }
            // Freed or not, what was given is readable as long as the process lives.
            let regions = device.regions();
            drop(arena);
            assert_eq!(device.regions(), regions, "{what}");
            assert_eq!(device.violations(), 0, "{what}");
        }
    }
}

#[test]
fn a_thread_that_waits_learns_that_an_arena_broke() {
    let (arena, device) = with_bytes(Strategy::Platform);
    let retired = take(&arena, Bytes::mib(1));
    assert_eq!(arena.retire(retired.id), Ok(()));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| arena.allocate_waiting(Bytes::mib(2), Bytes::ZERO, LONG).map_err(|oom| oom.code()));
        while arena.waiters() == 0 {
            std::thread::yield_now();
        }
        device.order(Call::Reserve, 0, Fault::Panic);
        assert!(catch_unwind(AssertUnwindSafe(|| arena.allocate(Bytes::kib(512)))).is_err());
        assert_eq!(waiting.join().expect("no panic there"), Err(Code::Internal));
    });
    assert!(begun.elapsed() < LONG);
}

/// A panic of somebody else's, whose unwinding frees blocks, breaks nothing.
#[test]
fn a_free_while_a_thread_unwinds_is_a_free() {
    struct Frees<'a>(&'a Arena, Block);
    impl Drop for Frees<'_> {
        fn drop(&mut self) {
            assert_eq!(self.0.free(self.1.id), Ok(()));
        }
    }
    let (arena, _device) = with_bytes(Strategy::Growing);
    let frees = Frees(&arena, take(&arena, PAGE));
    let outcome = catch_unwind(AssertUnwindSafe(move || {
        let _frees = frees;
        panic!("somebody else's");
    }));
    assert!(outcome.is_err());
    assert_eq!(assert_sums(&arena).live_blocks, 0);
    take(&arena, PAGE);
}
