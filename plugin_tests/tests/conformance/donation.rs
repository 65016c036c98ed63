//! Donation: in place, refused, clashing, with readers and with holders of the address.

use std::sync::Arc;

use plugin_tests::{Buffer, Client, Code, Gate, HostArray, Program, RunOptions, Semantics, event::elsewhere, gate};

use crate::{DIMS, MIB, limited, plus, ramp, settles_at, shared, ticket};

fn keep(indices: &[i64]) -> RunOptions<'_> {
    RunOptions { keep: indices, ..RunOptions::default() }
}

#[test]
fn c17_a_donated_argument_becomes_the_result() {
    let donate = shared().compile(&Program::donate()).unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    let address = x.address().unwrap();
    let y = donate.run1(&[&x]).unwrap();
    assert!(x.is_deleted(), "JAX asks right after the call");
    assert_eq!(y.address().unwrap(), address);
    assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
    donate.run1(&[&x]).map(drop).unwrap_err().expect(Code::INVALID_ARGUMENT, &["deleted or donated"]);
    x.read::<f32>().unwrap_err().expect(Code::INVALID_ARGUMENT, &["deleted or donated"]);
}

#[test]
fn c17_a_chain_of_donations_stays_in_place() {
    let donate = shared().compile(&Program::donate()).unwrap();
    let mut state = shared().put(&ramp(0.0), &DIMS).unwrap();
    let address = state.address().unwrap();
    for _ in 0..50 {
        state = donate.run1(&[&state]).unwrap();
    }
    assert_eq!(state.address().unwrap(), address);
    assert_eq!(state.read::<f32>().unwrap(), ramp(50.0));
}

#[test]
fn c17_an_offered_donor_gives_right_results() {
    let program = shared().compile(&Program::buffer_donor()).unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    let results = program.run(&[&x]).unwrap();
    assert_eq!(results[0].read::<f32>().unwrap(), ramp(1.0));
    assert_eq!(results[1].read::<f32>().unwrap(), ramp(2.0));
}

#[test]
fn c17_readers_get_data_or_an_error_while_the_buffer_is_donated() {
    let donate = Arc::new(shared().compile(&Program::donate()).unwrap());
    for round in 0..20 {
        let start = round as f32;
        let x = Arc::new(shared().put(&ramp(start), &DIMS).unwrap());
        let readers: Vec<_> = (0..16)
            .map(|_| {
                let x = Arc::clone(&x);
                elsewhere(move || x.read::<f32>())
            })
            .collect();
        let y = donate.run1(&[&x]).unwrap();
        for reader in readers {
            match reader.wait() {
                Ok(values) => assert_eq!(values, ramp(start), "a reader sees the old contents or none"),
                Err(failure) => failure.expect(Code::INVALID_ARGUMENT, &["deleted or donated"]),
            }
        }
        assert_eq!(y.read::<f32>().unwrap(), ramp(start + 1.0));
    }
}

#[test]
fn c18_t11_a_referenced_argument_is_copied_and_stays() {
    // numpy views on the CPU hold references; donating such an array must neither fail nor change what the view shows.
    let donate = shared().compile(&Program::donate()).unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    x.increase().unwrap();
    let y = donate.run1(&[&x]).unwrap();
    assert!(!x.is_deleted());
    assert_ne!(y.address().unwrap(), x.address().unwrap());
    assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
    assert_eq!(x.read::<f32>().unwrap(), ramp(0.0));
    x.decrease().unwrap();
}

fn pair() -> (Buffer, Buffer) {
    (shared().put(&ramp(0.0), &DIMS).unwrap(), shared().put(&ramp(10.0), &DIMS).unwrap())
}

#[test]
fn c19_t13_donating_twice_is_refused() {
    let (a, b) = pair();
    let both = shared().compile(&Program::donate_both()).unwrap();
    let failure = both.run(&[&a, &a]).map(drop).unwrap_err();
    failure.expect(
        Code::INVALID_ARGUMENT,
        &["Attempt to donate the same buffer twice in Execute()", "f(donate(a), donate(a))"],
    );
    assert!(!a.is_deleted(), "nothing is consumed");
    let results = both.run(&[&a, &b]).unwrap();
    assert!(a.is_deleted() && b.is_deleted());
    assert_eq!(results[1].read::<f32>().unwrap(), vec![-10.0; crate::N]);
}

#[test]
fn c19_t13_donating_what_is_also_used_is_refused() {
    let (a, _) = pair();
    let second = shared().compile(&Program::donate_second()).unwrap();
    let failure = second.run(&[&a, &a]).map(drop).unwrap_err();
    failure.expect(
        Code::INVALID_ARGUMENT,
        &["Attempt to donate a buffer which is also used by the same call", "f(a, donate(a))"],
    );
    assert!(!a.is_deleted());
    let first = shared().compile(&Program::donate_first()).unwrap();
    let failure = first.run(&[&a, &a]).map(drop).unwrap_err();
    failure.expect(Code::INVALID_ARGUMENT, &["Attempt to use a buffer that was previously donated", "f(donate(a), a)"]);
    assert!(!a.is_deleted());
    assert_eq!(a.read::<f32>().unwrap(), ramp(0.0));
}

#[test]
fn c20_t12_a_kept_argument_survives() {
    let donate = shared().compile(&Program::donate()).unwrap();
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    let y = donate.execute(&[&[&x]], keep(&[0])).unwrap().only();
    assert!(!x.is_deleted());
    assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
    assert_eq!(x.read::<f32>().unwrap(), ramp(0.0));
    donate.run1(&[&x]).unwrap();
    assert!(x.is_deleted());
}

#[test]
fn c20_keeping_one_of_two_donates_the_other() {
    let (a, b) = pair();
    let both = shared().compile(&Program::donate_both()).unwrap();
    let results = both.execute(&[&[&a, &b]], keep(&[1])).unwrap().single();
    assert!(a.is_deleted());
    assert_eq!(b.read::<f32>().unwrap(), ramp(10.0));
    assert_eq!(
        results[0].read::<f32>().unwrap(),
        ramp(0.0).iter().zip(ramp(10.0)).map(|(a, b)| a + b).collect::<Vec<_>>()
    );
}

#[test]
fn c19_a_kept_argument_may_come_twice() {
    let (a, _) = pair();
    let first = shared().compile(&Program::donate_first()).unwrap();
    let y = first.execute(&[&[&a, &a]], keep(&[0])).unwrap().only();
    assert!(!a.is_deleted());
    assert_eq!(y.read::<f32>().unwrap(), ramp(0.0).iter().map(|v| v * 2.0).collect::<Vec<_>>());
}

#[test]
fn c22_t03_arena_a_donated_handle_never_waits_for_the_program() {
    // The engine's own handle would block in each of these calls until the program is through.
    let client = Client::one();
    gate::prepare();
    let gated = client.compile(&Program::gate_donate()).unwrap();
    let gate = Gate::closed();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
    gate.wait_reached();
    let answers = elsewhere(move || {
        let deleted = x.is_deleted();
        let refused = [x.read::<f32>().map(drop), x.increase(), x.address().map(drop)].iter().all(Result::is_err);
        x.delete().unwrap();
        drop(x);
        (deleted, refused)
    });
    assert_eq!(answers.wait(), (true, true));
    assert!(!outputs[0].ready().is_ready(), "the program still runs");
    gate.open();
    assert_eq!(outputs[0].read::<f32>().unwrap(), ramp(1.0));
}

#[test]
fn c21_arena_a_failed_run_consumes_what_was_donated() {
    // Once Execute has returned OK the donation stands, whatever becomes of the program.
    let client = Client::one();
    let gate = Gate::running(|_| Err("the gate says no".into()));
    let gated = client.compile(&Program::gate_donate()).unwrap();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
    assert!(outputs[0].ready().wait().unwrap_err().message.contains("the gate says no"));
    assert!(x.is_deleted());
}

#[test]
fn c17_a_pending_reader_keeps_the_old_contents() {
    let client = Client::one();
    gate::prepare();
    let gated = client.compile(&Program::gate()).unwrap();
    let donate = client.compile(&Program::donate()).unwrap();
    let gate = Gate::closed();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let reading = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
    gate.wait_reached();
    // The donation overwrites `x` in place, so it has to wait for the program that reads it.
    let written = elsewhere(move || {
        let y = donate.run1(&[&x]).unwrap();
        y.read::<f32>().unwrap()
    });
    gate.open();
    assert_eq!(reading[0].read::<f32>().unwrap(), ramp(1.0));
    assert_eq!(written.wait(), plus(&ramp(0.0), 1.0));
}

#[test]
fn c17_arena_a_first_donation_from_elsewhere_says_nothing_about_the_next() {
    let client = limited("preallocate", 8 * MIB);
    let donate = client.compile(&Program::donate()).unwrap();
    // An outsider's memory, which the library has no block of, is what the program's first run consumes.
    let host = ramp(10.0);
    let foreign = HostArray::of(&host, &DIMS).on_device(client.device());
    let (foreign, _done) = client.from_host(&foreign, Semantics::MutableZeroCopy).unwrap();
    assert_eq!(donate.run1(&[&foreign]).unwrap().read::<f32>().unwrap(), ramp(11.0));
    drop(foreign);
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let y = donate.run1(&[&x]).unwrap();
    y.ready().wait().unwrap();
    settles_at(&client, 4096);
    // The block of `x` is that of `y`, and nobody else's.
    let others: Vec<_> = (0..64).map(|_| client.put(&ramp(500.0), &DIMS).unwrap()).collect();
    assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
    drop((x, y, others));
    settles_at(&client, 0);
}

/// It fails because of another argument, while its own is being read: the engine waits for that before it says so.
#[test]
fn c17_arena_donated_to_a_run_that_fails_stays_for_those_before_it() {
    for strategy in ["preallocate", "platform", "tpu"] {
        let client = limited(strategy, 8 * MIB);
        gate::prepare();
        let gated = client.compile(&Program::gate()).unwrap();
        let donate = client.compile(&Program::donate_first()).unwrap();
        let refusing = Gate::running(|_| Err("on purpose".into()));
        let other = client.put(&ramp(0.0), &DIMS).unwrap();
        let broken = gated.run(&[&other, &ticket(&client, &refusing)]).unwrap();
        broken[0].ready().wait().unwrap_err().expect(Code::INTERNAL, &["on purpose"]);

        let gate = Gate::closed();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let reading = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
        gate.wait_reached();
        drop(donate.run1(&[&x, &broken[0]]));
        drop(x);
        let others: Vec<Buffer> = (0..64).map(|_| client.put(&ramp(7.0), &DIMS).unwrap()).collect();
        gate.open();
        assert_eq!(reading[0].read::<f32>().unwrap(), plus(&ramp(0.0), 1.0), "{strategy}");
        for other in &others {
            assert_eq!(other.read::<f32>().unwrap(), ramp(7.0), "{strategy}");
        }
    }
}
