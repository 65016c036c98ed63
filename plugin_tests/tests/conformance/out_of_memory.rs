//! Out of memory: an error with numbers, after which everything still works and nothing has leaked.

use std::{
    ffi::{CStr, c_char, c_void},
    hint, ptr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use plugin_tests::{
    Buffer, Client, Code, ElementType, Failure, Gate, Program, event::elsewhere, gate, in_child, plugin,
};

use crate::{DIMS, MIB, N, limited, ramp, settles_at, ticket};

fn megabytes(client: &Client, count: i64) -> plugin_tests::Result<Buffer> {
    Buffer::uninitialized(client, ElementType::U8, &[count * MIB])
}

#[track_caller]
fn exhausted<T>(outcome: plugin_tests::Result<T>) -> Failure {
    let failure = outcome.map(drop).unwrap_err();
    failure.expect(Code::RESOURCE_EXHAUSTED, &["Out of memory while trying to allocate"]);
    failure
}

#[test]
fn c31_arena_requests_beyond_the_limit_fail_with_numbers() {
    for strategy in ["preallocate", "growing", "platform"] {
        let client = limited(strategy, 64 * MIB);
        let _held = megabytes(&client, 10).unwrap();
        let failure = exhausted(megabytes(&client, 60));
        for number in ["62914560", "64.00MiB", "10.00MiB"] {
            assert!(failure.message.contains(number), "{strategy}: {number} in {}", failure.message);
        }
        let buffer = client.put(&ramp(0.0), &DIMS).unwrap();
        assert_eq!(buffer.read::<f32>().unwrap(), ramp(0.0));
        drop(buffer);
        settles_at(&client, 10 * MIB);
    }
}

#[test]
fn c31_arena_every_way_to_allocate_reports_it() {
    let client = limited("preallocate", 8 * MIB);
    let x = client.put(&vec![1f32; 262_144], &[262_144]).unwrap();
    let add_one = client.compile(&Program::add_one_1m()).unwrap();
    let held: Vec<_> = (0..6).map(|_| megabytes(&client, 1).unwrap()).collect();
    let last =
        Buffer::uninitialized(&client, ElementType::U8, &[client.stats().unwrap().largest_free_block_bytes.unwrap()])
            .unwrap();
    let before = client.stats().unwrap().bytes_in_use;
    exhausted(add_one.run1(&[&x]));
    exhausted(client.put(&vec![1f32; 262_144], &[262_144]));
    exhausted(x.copy_to_memory(x.memory()));
    assert!(!x.is_deleted());
    assert_eq!(client.stats().unwrap().bytes_in_use, before);
    drop((held, last));
    settles_at(&client, MIB);
    assert_eq!(add_one.run1(&[&x]).unwrap().read::<f32>().unwrap(), vec![2f32; 262_144]);
}

#[test]
fn c31_arena_a_refused_donation_consumes_nothing() {
    let client = limited("preallocate", 8 * MIB);
    let both = client.compile(&Program::buffer_donor()).unwrap();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let fill = |client: &Client| {
        let mut held = Vec::new();
        while let Ok(buffer) = Buffer::uninitialized(
            client,
            ElementType::U8,
            &[client.stats().unwrap().largest_free_block_bytes.unwrap().max(1)],
        ) {
            held.push(buffer);
        }
        held
    };
    let held = fill(&client);
    exhausted(both.run(&[&x]));
    assert!(!x.is_deleted());
    drop(held);
    assert_eq!(both.run(&[&x]).unwrap()[1].read::<f32>().unwrap(), ramp(2.0));
}

#[test]
fn c31_arena_it_is_reported_while_a_program_runs() {
    let client = limited("preallocate", 64 * MIB);
    gate::prepare();
    let gated = client.compile(&Program::gate()).unwrap();
    let gate = Gate::closed();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
    gate.wait_reached();
    exhausted(megabytes(&client, 100));
    gate.open();
    assert_eq!(outputs[0].read::<f32>().unwrap(), ramp(1.0));
}

#[test]
fn c31_t09_arena_it_is_reported_inside_a_host_callback() {
    // The program that would free memory is the one that the callback belongs to: waiting for it would never end.
    let client = Arc::new(limited("preallocate", 64 * MIB));
    for program in [Program::gate(), Program::gate_inline()] {
        let inside = Arc::clone(&client);
        let gate = Gate::running(move |_| match megabytes(&inside, 100) {
            Err(failure) if failure.code == Code::RESOURCE_EXHAUSTED => Ok(()),
            Err(failure) => Err(failure.to_string()),
            Ok(_) => Err("100 MiB out of 64".into()),
        });
        let gated = client.compile(&program).unwrap();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
        outputs[0].ready().wait().unwrap();
    }
}

#[test]
fn c31_arena_an_allocation_waits_for_memory_that_a_program_still_holds() {
    let client = Arc::new(limited("preallocate", 16 * MIB));
    gate::prepare();
    let gated = client.compile(&Program::gate_large()).unwrap();
    let gate = Gate::closed();
    let x = client.put(&vec![0f32; 1 << 20], &[1 << 20]).unwrap();
    let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
    gate.wait_reached();
    // 4 MiB read and 4 MiB written by the program: nobody owns them any more, but they are not free before it ends.
    drop((x, outputs));
    let waiting = {
        let client = Arc::clone(&client);
        elsewhere(move || megabytes(&client, 12).map(drop))
    };
    gate.open();
    assert_eq!(waiting.wait(), Ok(()));
    settles_at(&client, 0);
}

#[test]
fn c31_arena_asynchronous_transfers_count_and_report_it() {
    let client = limited("preallocate", 8 * MIB);
    let manager = client.transfer(ElementType::U8, &[&[4 * MIB]]).unwrap();
    let buffer = manager.retrieve(0).unwrap();
    assert_eq!(client.stats().unwrap().bytes_in_use, 4 * MIB);
    exhausted(client.transfer(ElementType::U8, &[&[5 * MIB]]));
    drop((manager, buffer));
    settles_at(&client, 0);
}

#[test]
fn c31_arena_launches_that_each_hold_a_part_do_not_refuse_each_other() {
    const ROUNDS: usize = 300;
    const THREADS: usize = 2;
    for strategy in ["preallocate", "growing", "platform", "tpu"] {
        let client = limited(strategy, MIB);
        let program = client.compile(&Program::two_results()).unwrap();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        // Room for the results of one program, and one more array.
        let filler = Buffer::uninitialized(&client, ElementType::U8, &[MIB - 4 * 4 * N as i64]).unwrap();
        let (arrived, served) = (AtomicUsize::new(0), [const { AtomicUsize::new(0) }; ROUNDS]);
        // Threads that spin leave it at the same moment.
        let meet = |number: usize| {
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < number * THREADS {
                hint::spin_loop();
                thread::yield_now();
            }
        };
        let failures: Mutex<Vec<Failure>> = Mutex::default();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for (round, served) in served.iter().enumerate() {
                        meet(3 * round + 1);
                        let outcome = program.run(&[&x, &x]);
                        let waited = outcome
                            .as_ref()
                            .map_err(Clone::clone)
                            .and_then(|results| results.iter().try_for_each(|result| result.ready().wait()));
                        match waited {
                            Ok(()) => drop(served.fetch_add(1, Ordering::SeqCst)),
                            Err(failure) => failures.lock().unwrap().push(failure),
                        }
                        // The results of the one that was served live until the other was refused.
                        meet(3 * round + 2);
                        drop(outcome);
                        meet(3 * round + 3);
                    }
                });
            }
        });
        failures.into_inner().unwrap().into_iter().for_each(|failure| drop(exhausted::<()>(Err(failure))));
        let unserved = served.iter().filter(|served| served.load(Ordering::SeqCst) != 1).count();
        assert_eq!(unserved, 0, "{strategy}: rounds of {ROUNDS} in which no program was served");
        drop((x, filler));
        settles_at(&client, 0);
    }
}

/// Reports that a test's function was told, and what the library said meanwhile.
static TOLD: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

unsafe extern "C" fn tell(report: *const c_char, length: usize, data: *mut c_void) {
    // SAFETY: the library gives a C string of that length.
    let report = unsafe { CStr::from_ptr(report) };
    assert_eq!((report.to_bytes().len(), data.is_null()), (length, true));
    // Whatever takes the locks of clients and arenas: none is held now.
    let meanwhile = plugin().text("pjrt_arena_compact").unwrap() + &plugin().text("pjrt_arena_summary").unwrap();
    // What this asks for in vain itself is not told: there would be no end.
    let client = limited("preallocate", 4 * MIB);
    exhausted(megabytes(&client, 5));
    TOLD.lock().unwrap().push((report.to_str().unwrap().to_owned(), meanwhile));
}

#[test]
fn c31_arena_a_function_is_told_of_exhausted_memory_before_the_caller() {
    type OnOom = unsafe extern "C" fn(*const c_char, usize, *mut c_void);
    in_child!(&[], || {
        // SAFETY: the library under test exports it with this type.
        let on_oom: unsafe extern "C" fn(Option<OnOom>, *mut c_void) = unsafe { plugin().symbol("pjrt_arena_on_oom") };
        let client = limited("preallocate", 8 * MIB);
        exhausted(megabytes(&client, 9));
        // SAFETY: the function may be called on any thread, with NULL, and lets no exception out.
        unsafe { on_oom(Some(tell), ptr::null_mut()) };
        let x = client.put(&vec![1f32; 262_144], &[262_144]).unwrap();
        let gone = client.put(&[1f32; 4], &[4]).unwrap();
        gone.delete().unwrap();
        assert!(TOLD.lock().unwrap().is_empty(), "there was room");
        let failure = exhausted(megabytes(&client, 9));
        let add_one = client.compile(&Program::add_one_1m()).unwrap();
        // Errors of another kind are none of its business.
        add_one.run1(&[&gone]).map(drop).unwrap_err();
        let held = megabytes(&client, 7).unwrap();
        exhausted(add_one.run1(&[&x]));
        let told = std::mem::take(&mut *TOLD.lock().unwrap());
        assert_eq!(told.len(), 2, "{told:?}");
        let report: serde_json::Value = serde_json::from_str(&told[0].0).unwrap();
        assert_eq!((&report["device"], &report["requested_bytes"]), (&"cpu:0".into(), &(9 * MIB).into()));
        assert!(failure.message.contains(report["text"].as_str().unwrap()), "{report}");
        let report: serde_json::Value = serde_json::from_str(&told[1].0).unwrap();
        assert!(report["origin"].as_str().unwrap().contains("output 0 f32[262144]"), "{report}");
        assert!(told.iter().all(|(_, meanwhile)| meanwhile.matches("cpu:0").count() >= 2), "{told:?}");
        // SAFETY: as above.
        unsafe { on_oom(None, ptr::null_mut()) };
        exhausted(add_one.run1(&[&x]));
        assert!(TOLD.lock().unwrap().is_empty());
        drop(held);
    });
}
