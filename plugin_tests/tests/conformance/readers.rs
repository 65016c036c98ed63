//! Copies that the library makes itself, while others donate the array: the engine does not know of them.
//!
//! A copy stands still where a test wants it: at a page of the source that no thread may read until the test says so.

use std::{
    ffi::{c_int, c_void},
    ptr, slice,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use plugin_tests::{Buffer, Client, Code, HostArray, Program, RunOptions, Semantics, event::elsewhere, in_child};

use crate::{DIMS, MIB, N, eventually, limited, plus, ramp};

/// How long a copy stands still while another thread is to wait for it.
const MOMENT: Duration = Duration::from_millis(200);

/// Longer than any call takes that does not wait.
const LONG: Duration = Duration::from_secs(60);

const PAGE: usize = N * size_of::<f32>();

static CLOSED: AtomicUsize = AtomicUsize::new(0);
static STOPPED: AtomicI32 = AtomicI32::new(0);
static REACHED: AtomicBool = AtomicBool::new(false);
static OPEN: AtomicBool = AtomicBool::new(false);

/// One page of floats. The thread that was named stands still at the first read of it until the page is opened; all
/// others go on.
struct StandStill;

impl StandStill {
    /// Only in a process of the test's own.
    fn page(values: &[f32]) -> &'static mut [f32] {
        // SAFETY: a new page, which stays.
        unsafe {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let page = libc::mmap(ptr::null_mut(), PAGE, access, kind, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            let page = slice::from_raw_parts_mut(page.cast::<f32>(), N);
            page.copy_from_slice(values);
            page
        }
    }

    fn close(page: usize) {
        // SAFETY: the handler touches nothing but atomics and the page; all other faults end the process, as they would
        // have.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = (Self::fault as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()), 0);
            CLOSED.store(page, Ordering::SeqCst);
            assert_eq!(libc::mprotect(page as *mut c_void, PAGE, libc::PROT_NONE), 0);
        }
    }

    /// The calling thread will stand still.
    fn stop_me() {
        // SAFETY: it has no requirements.
        STOPPED.store(unsafe { libc::gettid() }, Ordering::SeqCst);
    }

    extern "C" fn fault(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel passes what happened; the calls may be made in handlers.
        unsafe {
            let page = CLOSED.load(Ordering::SeqCst);
            if page == 0 || (*info).si_addr() as usize / PAGE != page / PAGE {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                return;
            }
            if libc::gettid() == STOPPED.load(Ordering::SeqCst) {
                REACHED.store(true, Ordering::SeqCst);
                while !OPEN.load(Ordering::SeqCst) {
                    libc::usleep(100);
                }
            }
            libc::mprotect(page as *mut c_void, PAGE, libc::PROT_READ | libc::PROT_WRITE);
        }
    }
}

/// A copy that the library makes stands still, and another thread does `what` with the array. The copy goes on after so
/// long, or as soon as that thread [says so](go_on). Gives the copy, and what the other thread got.
fn while_copied<T: Clone + Send + 'static>(
    client: &Client,
    stands_still: Duration,
    what: impl FnOnce(&Buffer) -> T + Send + 'static,
) -> (Vec<f32>, T) {
    let page = StandStill::page(&ramp(0.0));
    let host = HostArray::of(page, &DIMS).on_device(client.device());
    // Memory that programs may write to, in place.
    let (x, _done) = client.from_host(&host, Semantics::MutableZeroCopy).unwrap();
    let x = Arc::new(x);
    assert_eq!(x.address().unwrap(), page.as_ptr().addr());
    StandStill::close(page.as_ptr().addr());
    let copy = {
        let x = Arc::clone(&x);
        elsewhere(move || {
            StandStill::stop_me();
            let copy = x.copy_to_memory(x.memory()).unwrap();
            copy.read::<f32>().unwrap()
        })
    };
    eventually("the copy stands still", || REACHED.load(Ordering::SeqCst));
    let other = elsewhere(move || what(&x));
    let end = Instant::now() + stands_still;
    while !OPEN.load(Ordering::SeqCst) && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    OPEN.store(true, Ordering::SeqCst);
    (copy.wait(), other.wait())
}

/// Has the copy go on, which must have stood still until now.
fn go_on() {
    assert!(!OPEN.swap(true, Ordering::SeqCst), "it was waited for");
}

#[test]
fn c17_arena_a_copy_under_way_is_made_before_the_array_is_donated() {
    in_child!(&[], || {
        let client = Client::one();
        let donate = client.compile(&Program::donate()).unwrap();
        let (copy, written) = while_copied(&client, MOMENT, move |x| {
            let y = donate.run1(&[x]).unwrap();
            assert!(x.is_deleted());
            y.read::<f32>().unwrap()
        });
        assert_eq!(copy, ramp(0.0), "the copy shows what the program wrote");
        assert_eq!(written, ramp(1.0));
    });
}

#[test]
fn c17_arena_a_copy_under_way_holds_up_programs_that_cannot_be_read() {
    in_child!(&[], || {
        let client = Client::one();
        let text =
            "module { func.func public @main(%x: tensor<1024xf32> {tf.aliasing_output = 0 : i32}) -> tensor<1024xf32> {
            %y = stablehlo.negate %x : tensor<1024xf32>
            return %y : tensor<1024xf32>
        } }";
        let donate = client.compile(&Program::text(text)).unwrap();
        let (copy, written) = while_copied(&client, MOMENT, move |x| {
            let y = donate.run1(&[x]).unwrap();
            assert!(x.is_deleted());
            y.read::<f32>().unwrap()
        });
        assert_eq!(copy, ramp(0.0), "the copy shows what the program wrote");
        assert_eq!(written[1], -1.0);
    });
}

#[test]
fn c17_arena_a_copy_that_comes_while_a_launch_waits_is_made_before_it_and_waits_for_nobody() {
    in_child!(&[], || {
        let client = Client::one();
        let donate = client.compile(&Program::donate()).unwrap();
        let (copy, (second, written)) = while_copied(&client, LONG, move |x| {
            thread::scope(|scope| {
                let launch = scope.spawn(|| donate.run1(&[x]).and_then(|y| y.read::<f32>()));
                thread::sleep(MOMENT / 2);
                let second = x.copy_to_memory(x.memory()).unwrap();
                assert!(!launch.is_finished());
                go_on();
                // The engine's, in memory of its own.
                (second.read::<f32>().unwrap(), launch.join().unwrap().unwrap())
            })
        });
        assert_eq!((copy, second, written), (ramp(0.0), ramp(0.0), ramp(1.0)));
    });
}

#[test]
fn c17_arena_a_program_that_only_reads_does_not_wait_for_a_copy() {
    in_child!(&[], || {
        let client = Client::one();
        let [add_one, donate] =
            [Program::add_one(), Program::donate()].map(|program| client.compile(&program).unwrap());
        let (copy, read) = while_copied(&client, LONG, move |x| {
            let y = add_one.run1(&[x]).unwrap().read::<f32>().unwrap();
            // Neither does one that was told to keep its argument.
            let kept = RunOptions { keep: &[0], ..RunOptions::default() };
            let z = donate.execute(&[&[x]], kept).unwrap().only().read::<f32>().unwrap();
            go_on();
            (y, z)
        });
        assert_eq!(copy, ramp(0.0));
        assert_eq!(read, (ramp(1.0), ramp(1.0)));
    });
}

/// The engine takes the array for one launch and refuses the other, whichever of them comes back first.
#[test]
fn c17_arena_of_two_launches_that_are_given_an_array_one_has_its_memory() {
    let client = limited("preallocate", 8 * MIB);
    let donate = client.compile(&Program::donate()).unwrap();
    for round in 0..1000 {
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let together = Barrier::new(2);
        let run = || {
            together.wait();
            donate.run1(&[&x])
        };
        let (one, other) = thread::scope(|scope| {
            let (one, other) = (scope.spawn(run), scope.spawn(run));
            (one.join().unwrap(), other.join().unwrap())
        });
        let (y, failure) = match (one, other) {
            (Ok(y), Err(failure)) | (Err(failure), Ok(y)) => (y, failure),
            (one, other) => panic!("both, or neither: {:?} {:?}", one.map(drop), other.map(drop)),
        };
        failure.expect(Code::INVALID_ARGUMENT, &["deleted or donated"]);
        assert!(x.is_deleted());
        let others: Vec<_> = (0..4).map(|_| client.put(&ramp(500.0), &DIMS).unwrap()).collect();
        assert!(others.iter().all(|other| other.address().unwrap() != y.address().unwrap()), "round {round}");
        assert_eq!(y.read::<f32>().unwrap(), plus(&ramp(0.0), 1.0), "round {round}");
    }
}
