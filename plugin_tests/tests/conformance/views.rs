//! Views of memory that somebody else owns (dlpack imports).

use plugin_tests::{Buffer, Client, Code, ElementType, Failure, Gate, Program, RunOptions, View, alias, gate};

use crate::{DIMS, MIB, N, limited, plus, ramp, settles_at, shared, ticket};

/// 64-byte aligned floats.
#[repr(align(64))]
pub(crate) struct Aligned([f32; N + 16]);

pub(crate) fn foreign(start: f32) -> Box<Aligned> {
    let mut memory = Box::new(Aligned([0.0; N + 16]));
    memory.0[..N].copy_from_slice(&ramp(start));
    memory
}

pub(crate) fn view_of(memory: &mut Aligned) -> View<'static> {
    View {
        address: memory.0.as_mut_ptr().cast(),
        element_type: ElementType::F32,
        dims: &DIMS,
        device: None,
        memory: Some(shared().device().default_memory()),
        stream: 0,
    }
}

fn refused(view: &View<'_>) -> Failure {
    // SAFETY: no view comes about.
    unsafe { Buffer::view(shared(), view) }.map(drop).unwrap_err()
}

#[test]
fn c25_a_view_shows_the_memory_and_lets_go_once() {
    let mut memory = foreign(5.0);
    let view = view_of(&mut memory);
    // SAFETY: `memory` outlives the signal below.
    let (buffer, released) = unsafe { Buffer::view(shared(), &view) }.unwrap();
    buffer.ready().wait().unwrap();
    assert_eq!(buffer.read::<f32>().unwrap(), ramp(5.0));
    assert_eq!(buffer.address().unwrap(), view.address as usize);
    assert_eq!(released.get(), None);
    drop(buffer);
    released.wait();
}

#[test]
fn c25_a_view_is_an_argument_like_any_other() {
    let add_one = shared().compile(&Program::add_one()).unwrap();
    let mut memory = foreign(5.0);
    // SAFETY: `memory` outlives the signal below.
    let (buffer, released) = unsafe { Buffer::view(shared(), &view_of(&mut memory)) }.unwrap();
    let result = add_one.run1(&[&buffer]).unwrap();
    drop(buffer);
    assert_eq!(result.read::<f32>().unwrap(), plus(&ramp(5.0), 1.0));
    released.wait();
}

#[test]
fn c25_a_view_can_be_copied() {
    let mut memory = foreign(5.0);
    // SAFETY: `memory` outlives the signal below.
    let (buffer, released) = unsafe { Buffer::view(shared(), &view_of(&mut memory)) }.unwrap();
    let copy = buffer.copy_to_memory(buffer.memory()).unwrap();
    drop(buffer);
    released.wait();
    memory.0.fill(0.0);
    assert_eq!(copy.read::<f32>().unwrap(), ramp(5.0));
}

#[test]
fn t27_donating_a_view_gives_the_right_values_and_lets_go() {
    let donate = shared().compile(&Program::donate()).unwrap();
    let mut memory = foreign(5.0);
    // SAFETY: `memory` outlives the signal below.
    let (buffer, released) = unsafe { Buffer::view(shared(), &view_of(&mut memory)) }.unwrap();
    let result = donate.run1(&[&buffer]).unwrap();
    assert_eq!(result.read::<f32>().unwrap(), plus(&ramp(5.0), 1.0));
    drop((buffer, result));
    released.wait();
}

#[test]
fn t27_arena_the_result_of_a_donated_view_lies_in_the_arena() {
    let client = Client::one();
    let donate = client.compile(&Program::donate()).unwrap();
    let mut memory = foreign(5.0);
    let view = View { memory: Some(client.device().default_memory()), ..view_of(&mut memory) };
    // The first run teaches where results lie, the second one knows.
    for _ in 0..2 {
        // SAFETY: `memory` outlives the signal below.
        let (buffer, released) = unsafe { Buffer::view(&client, &view) }.unwrap();
        assert_eq!(client.stats().unwrap().bytes_in_use, 0);
        let result = donate.run1(&[&buffer]).unwrap();
        assert!(buffer.is_deleted());
        assert_eq!(result.read::<f32>().unwrap(), plus(&ramp(5.0), 1.0));
        assert_eq!(client.stats().unwrap().bytes_in_use, 4 * N as i64);
        // The memory is the outsider's again although the buffer and the result live.
        released.wait();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let address = x.address().unwrap();
        assert_eq!(donate.run1(&[&x]).unwrap().address().unwrap(), address, "others are donated as they are");
        drop((buffer, result, x));
        settles_at(&client, 0);
    }
    assert_eq!(memory.0[..N], ramp(5.0));
}

#[test]
fn t27_arena_a_donated_view_that_is_referenced_stays() {
    let donate = shared().compile(&Program::donate()).unwrap();
    let mut memory = foreign(5.0);
    // SAFETY: `memory` outlives the signal below.
    let (buffer, released) = unsafe { Buffer::view(shared(), &view_of(&mut memory)) }.unwrap();
    buffer.increase().unwrap();
    let result = donate.run1(&[&buffer]).unwrap();
    assert!(!buffer.is_deleted());
    assert_eq!(result.read::<f32>().unwrap(), plus(&ramp(5.0), 1.0));
    assert_eq!(buffer.read::<f32>().unwrap(), ramp(5.0));
    buffer.decrease().unwrap();
    drop(buffer);
    released.wait();
}

#[test]
fn t13_views_donated_twice_are_refused() {
    let both = shared().compile(&Program::donate_both()).unwrap();
    let second = shared().compile(&Program::donate_second()).unwrap();
    let mut memory = foreign(5.0);
    // SAFETY: `memory` outlives the signal below.
    let (buffer, released) = unsafe { Buffer::view(shared(), &view_of(&mut memory)) }.unwrap();
    for (program, words) in [(&both, "f(donate(a), donate(a))"), (&second, "f(a, donate(a))")] {
        let failure = program.run(&[&buffer, &buffer]).map(drop).unwrap_err();
        failure.expect(Code::INVALID_ARGUMENT, &["Attempt to donate", words]);
        assert!(!buffer.is_deleted());
    }
    drop(buffer);
    released.wait();
}

#[test]
fn c20_a_view_that_is_kept_survives_its_donation() {
    let donate = shared().compile(&Program::donate()).unwrap();
    let mut memory = foreign(5.0);
    // SAFETY: `memory` outlives the signal below.
    let (buffer, released) = unsafe { Buffer::view(shared(), &view_of(&mut memory)) }.unwrap();
    let options = RunOptions { keep: &[0], ..RunOptions::default() };
    let result = donate.execute(&[&[&buffer]], options).unwrap().only();
    assert!(!buffer.is_deleted());
    assert_eq!(result.read::<f32>().unwrap(), plus(&ramp(5.0), 1.0));
    drop(buffer);
    released.wait();
}

#[test]
fn t27_arena_no_room_for_a_donated_view_leaves_it_alone() {
    let client = limited("preallocate", MIB);
    let donate = client.compile(&Program::donate()).unwrap();
    let full = client.put(&vec![0u8; MIB as usize], &[MIB]).unwrap();
    let mut memory = foreign(5.0);
    let view = View { memory: Some(client.device().default_memory()), ..view_of(&mut memory) };
    // SAFETY: `memory` outlives the signal below.
    let (buffer, released) = unsafe { Buffer::view(&client, &view) }.unwrap();
    donate.run1(&[&buffer]).map(drop).unwrap_err().expect(Code::RESOURCE_EXHAUSTED, &["4096"]);
    assert!(!buffer.is_deleted());
    assert_eq!(buffer.read::<f32>().unwrap(), ramp(5.0));
    drop(full);
    assert_eq!(donate.run1(&[&buffer]).unwrap().read::<f32>().unwrap(), plus(&ramp(5.0), 1.0));
    released.wait();
}

#[test]
fn c16_a_view_that_a_program_reads_is_let_go_after_it() {
    gate::prepare();
    let client = Client::one();
    let gated = client.compile(&Program::gate()).unwrap();
    let gate = Gate::closed();
    let mut memory = foreign(5.0);
    let view = View { memory: Some(client.device().default_memory()), ..view_of(&mut memory) };
    // SAFETY: `memory` outlives the signal below.
    let (buffer, released) = unsafe { Buffer::view(&client, &view) }.unwrap();
    let results = gated.run(&[&buffer, &ticket(&client, &gate)]).unwrap();
    gate.wait_reached();
    buffer.delete().unwrap();
    drop(buffer);
    assert_eq!(released.get(), None, "the program still reads it");
    gate.open();
    assert_eq!(results[0].read::<f32>().unwrap(), plus(&ramp(5.0), 1.0));
    released.wait();
}

#[test]
fn c25_unaligned_memory_is_refused_so_that_callers_copy() {
    let mut memory = foreign(5.0);
    let view = View { address: memory.0[1..].as_mut_ptr().cast(), ..view_of(&mut memory) };
    refused(&view).expect(Code::INVALID_ARGUMENT, &["unaligned data"]);
}

#[test]
fn c25_a_device_alone_is_enough_and_nothing_is_not() {
    let mut memory = foreign(5.0);
    let by_device = View { memory: None, device: Some(shared().device()), ..view_of(&mut memory) };
    // SAFETY: `memory` outlives the signal below.
    let (buffer, released) = unsafe { Buffer::view(shared(), &by_device) }.unwrap();
    assert_eq!(buffer.memory(), shared().device().default_memory());
    drop(buffer);
    released.wait();
    let nowhere = View { memory: None, ..view_of(&mut memory) };
    assert_eq!(refused(&nowhere).code, Code::INVALID_ARGUMENT);
}

#[test]
fn t26_streams_are_refused_on_the_cpu() {
    let mut memory = foreign(5.0);
    let view = View { stream: 1, ..view_of(&mut memory) };
    assert_eq!(refused(&view).code, Code::UNIMPLEMENTED);
}

#[test]
fn c27_an_alias_shows_the_buffer_that_fulfils_it() {
    let (alias, promise) = alias::create(shared(), ElementType::F32, &DIMS).unwrap();
    assert_eq!(alias.dims(), DIMS);
    assert!(!alias.ready().is_ready());
    let real = shared().put(&ramp(4.0), &DIMS).unwrap();
    promise.keep(Ok(&real)).unwrap();
    drop(real);
    alias.ready().wait().unwrap();
    assert_eq!(alias.read::<f32>().unwrap(), ramp(4.0));
    let add_one = shared().compile(&Program::add_one()).unwrap();
    assert_eq!(add_one.run1(&[&alias]).unwrap().read::<f32>().unwrap(), ramp(5.0));
}

#[test]
fn c27_an_alias_shows_the_error_that_fulfils_it() {
    let (alias, promise) = alias::create(shared(), ElementType::F32, &DIMS).unwrap();
    let failure = Failure { code: Code::INTERNAL, message: "never arrived".into() };
    // The CPU engine of 0.81 also returns the error that it was given.
    if let Err(returned) = promise.keep(Err(&failure)) {
        assert_eq!(returned, failure);
    }
    alias.ready().wait().unwrap_err().expect(Code::INTERNAL, &["never arrived"]);
}

#[test]
fn c27_arena_an_alias_frees_the_memory_that_it_was_given() {
    for strategy in ["preallocate", "growing", "platform", "tpu"] {
        let client = limited(strategy, MIB);
        let program = client.compile(&Program::add_one()).unwrap();
        let donate = client.compile(&Program::donate()).unwrap();
        for round in 0..3 {
            let (alias, promise) = alias::create(&client, ElementType::F32, &DIMS).unwrap();
            let real = client.put(&ramp(4.0), &DIMS).unwrap();
            // A program may have it before it has bytes.
            let early = (round == 1).then(|| program.run1(&[&alias]).unwrap());
            promise.keep(Ok(&real)).unwrap();
            drop(real);
            assert_eq!(alias.read::<f32>().unwrap(), ramp(4.0));
            let result = if round == 2 { donate.run1(&[&alias]) } else { program.run1(&[&alias]) };
            for result in early.into_iter().chain(result) {
                assert_eq!(result.read::<f32>().unwrap(), ramp(5.0), "{strategy}, round {round}");
            }
            drop(alias);
            settles_at(&client, 0);
        }
        // One that nobody has when its bytes come.
        let (alias, promise) = alias::create(&client, ElementType::F32, &DIMS).unwrap();
        drop(alias);
        let real = client.put(&ramp(4.0), &DIMS).unwrap();
        promise.keep(Ok(&real)).unwrap();
        drop(real);
        settles_at(&client, 0);
    }
}
