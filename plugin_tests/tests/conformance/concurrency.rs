//! Many threads at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use plugin_tests::{Buffer, Client, Gate, Program, event::elsewhere};

use crate::{DIMS, MIB, N, limited, ramp, settles_at, ticket};

#[test]
fn c23_sixteen_threads_run_one_program_on_one_argument() {
    let client = Client::one();
    let add_one = client.compile(&Program::add_one()).unwrap();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(add_one.run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
                }
            });
        }
    });
    assert_eq!(x.read::<f32>().unwrap(), ramp(0.0));
}

#[test]
fn c23_threads_create_compute_copy_and_destroy() {
    stress(&Client::one());
}

#[test]
fn c23_arena_stress_leaves_nothing() {
    for strategy in ["preallocate", "growing", "platform"] {
        let client = limited(strategy, 64 * MIB);
        stress(&client);
        settles_at(&client, 0);
    }
}

fn stress(client: &Client) {
    let (add_one, donate) = (client.compile(&Program::add_one()).unwrap(), client.compile(&Program::donate()).unwrap());
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..40 {
                    let start = next.fetch_add(1, Ordering::Relaxed) as f32;
                    let x = client.put(&ramp(start), &DIMS).unwrap();
                    let odd = client.put(&vec![7u8; 1 + start as usize * 37], &[1 + start as i64 * 37]).unwrap();
                    let y = add_one.run1(&[&x]).unwrap();
                    let copy = y.copy_to_memory(y.memory()).unwrap();
                    let z = donate.run1(&[&y]).unwrap();
                    drop((x, odd));
                    assert_eq!(copy.read::<f32>().unwrap(), ramp(start + 1.0));
                    assert_eq!(z.read::<f32>().unwrap(), ramp(start + 2.0));
                }
            });
        }
    });
}

#[test]
fn c23_programs_compile_while_others_run() {
    let client = Client::one();
    let add_one = client.compile(&Program::add_one()).unwrap();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..5 {
                let two = client.compile(&Program::two_results()).unwrap();
                assert_eq!(two.run(&[&x, &x]).unwrap().len(), 2);
            }
        });
        for _ in 0..200 {
            assert_eq!(add_one.run1(&[&x]).unwrap().read::<f32>().unwrap()[N - 1], N as f32);
        }
    });
}

#[test]
fn t08_a_handler_may_use_the_client_that_runs_it() {
    // Python callbacks put arrays, read them and run other programs from inside of a run, on the caller's thread or
    // another.
    let client = Arc::new(Client::one());
    let add_one = Arc::new(client.compile(&Program::add_one()).unwrap());
    for program in [Program::gate(), Program::gate_inline()] {
        let (inside, inner) = (Arc::clone(&client), Arc::clone(&add_one));
        let gate = Gate::running(move |_| {
            let x = inside.put(&ramp(0.0), &DIMS).map_err(|e| e.to_string())?;
            let y = inner.run1(&[&x]).map_err(|e| e.to_string())?;
            if inside.device().stats().is_ok() && y.dims() != DIMS {
                return Err("other dimensions".into());
            }
            Ok(())
        });
        let gated = client.compile(&program).unwrap();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let ticket = ticket(&client, &gate);
        let outcome = elsewhere(move || gated.run(&[&x, &ticket]).and_then(|outputs| outputs[0].ready().wait()));
        assert_eq!(outcome.wait(), Ok(()));
    }
}

#[test]
fn t08_other_threads_work_while_a_program_stands_still() {
    let client = Arc::new(Client::one());
    plugin_tests::gate::prepare();
    let inline = client.compile(&Program::gate_inline()).unwrap();
    let gate = Arc::new(Gate::closed());
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let ticket = ticket(&client, &gate);
    // The calling thread stands inside of Execute, so any lock held there would stop everybody else.
    let standing = elsewhere(move || inline.run1(&[&x, &ticket]).and_then(|y| y.read::<f32>()));
    gate.wait_reached();
    let others = {
        let client = Arc::clone(&client);
        elsewhere(move || {
            let y = client.put(&ramp(5.0), &DIMS).unwrap();
            let compiled = client.compile(&Program::add_one()).unwrap();
            let copy: Buffer = y.copy_to_memory(y.memory()).unwrap();
            drop((y, compiled));
            copy.read::<f32>().unwrap()
        })
    };
    assert_eq!(others.wait(), ramp(5.0));
    assert!(standing.get().is_none());
    gate.open();
    assert_eq!(standing.wait(), Ok(ramp(0.0)));
}
