//! Arrays that a program from a callback reads, while others donate or delete them: it runs on a client of the engine
//! of its own, so that the user's does not know.

use std::{sync::Arc, thread, time::Duration};

use plugin_tests::{
    Buffer, Client, Code, ElementType, Failure, Gate, Loaded, Program, Signal, View, event::elsewhere, gate,
};

use crate::{DIMS, MIB, N, limited, ramp, settles_at, ticket};

/// A program that a callback runs, and that stands at a gate of its own while it reads `x`.
struct Nested {
    client: Arc<Client>,
    x: Arc<Buffer>,
    inside: Arc<Gate>,
    /// What the nested program made of `x`.
    result: Signal<Result<Vec<f32>, Failure>>,
}

impl Nested {
    fn begin(client: Arc<Client>, x: Buffer, inside: Gate) -> Self {
        let (x, inside, result) = (Arc::new(x), Arc::new(inside), Signal::default());
        let gated = Arc::new(client.compile(&gate::calling_back()).unwrap());
        let inner = {
            let (client, gated) = (Arc::clone(&client), Arc::clone(&gated));
            let (x, inside, result) = (Arc::clone(&x), Arc::clone(&inside), result.clone());
            move || {
                let outputs = gated.run(&[&x, &ticket(&client, &inside)]);
                result.set(outputs.and_then(|outputs| outputs[0].read::<f32>()));
            }
        };
        let outer = {
            let client = Arc::clone(&client);
            move || {
                let gate = Gate::running(move |_| {
                    inner();
                    Ok(())
                });
                let y = client.put(&ramp(0.0), &DIMS).unwrap();
                gated.run(&[&y, &ticket(&client, &gate)]).unwrap()[0].ready().wait()
            }
        };
        elsewhere(outer);
        inside.wait_reached();
        Self { client, x, inside, result }
    }

    fn compile(&self, program: &Program) -> Loaded {
        self.client.compile(program).unwrap()
    }

    /// Lets it go on; what it read.
    fn end(&self) -> Vec<f32> {
        self.inside.open();
        self.result.wait().unwrap()
    }
}

#[test]
fn t08_arena_an_array_that_is_deleted_while_a_callbacks_program_reads_it_goes_afterwards() {
    let client = Arc::new(Client::one());
    #[repr(align(64))]
    struct Aligned([f32; N]);
    let mut memory = Box::new(Aligned([0.0; N]));
    memory.0.copy_from_slice(&ramp(0.0));
    let view = View {
        address: memory.0.as_mut_ptr().cast(),
        element_type: ElementType::F32,
        dims: &DIMS,
        device: None,
        memory: Some(client.device().default_memory()),
        stream: 0,
    };
    // SAFETY: `memory` outlives the signal below.
    let (x, released) = unsafe { Buffer::view(&client, &view) }.unwrap();
    let nested = Nested::begin(client, x, Gate::closed());
    nested.x.delete().unwrap();
    assert!(nested.x.is_deleted());
    thread::sleep(Duration::from_millis(100));
    assert_eq!(released.get(), None, "the program still reads it");
    assert_eq!(nested.end(), ramp(0.0));
    released.wait();
}

#[test]
fn t08_arena_an_array_may_be_donated_while_a_callbacks_program_reads_it() {
    for strategy in ["preallocate", "growing", "platform", "tpu"] {
        let client = Arc::new(limited(strategy, 8 * MIB));
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let nested = Nested::begin(Arc::clone(&client), x, Gate::closed());
        let (donate, x) = (nested.compile(&Program::donate()), Arc::clone(&nested.x));
        // Nobody waits for the other program, which might wait for who does.
        let written = elsewhere(move || donate.run1(&[&x]).and_then(|y| y.read::<f32>()));
        assert_eq!(written.wait(), Ok(ramp(1.0)), "{strategy}");
        assert!(nested.x.is_deleted());
        let others: Vec<_> = (0..64).map(|_| client.put(&ramp(500.0), &DIMS).unwrap()).collect();
        assert_eq!(nested.end(), ramp(0.0), "{strategy}: it read what was there when it began");
        drop((nested, others));
        settles_at(&client, 0);
    }
}

#[test]
fn t08_arena_an_array_of_the_engines_may_be_donated_while_a_callbacks_program_reads_it() {
    let client = Arc::new(Client::one());
    // A program that cannot be read puts its results there.
    let text = "module { func.func public @main(%x: tensor<1024xf32>) -> tensor<1024xf32> {
        return %x : tensor<1024xf32>
    } }";
    let copy = client.compile(&Program::text(text)).unwrap();
    let x = copy.run1(&[&client.put(&ramp(0.0), &DIMS).unwrap()]).unwrap();
    let nested = Nested::begin(client, x, Gate::closed());
    let donate = nested.compile(&Program::donate());
    let y = donate.run1(&[&nested.x]).unwrap();
    assert_eq!(nested.end(), ramp(0.0));
    assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
}

#[test]
fn t08_arena_a_callback_may_wait_for_a_donation_of_what_its_program_reads() {
    let client = Arc::new(Client::one());
    let donate = Arc::new(client.compile(&Program::donate()).unwrap());
    type Run = fn(Arc<Loaded>, Arc<Buffer>) -> Result<Arc<Buffer>, Failure>;
    let here: Run = |donate, x| donate.run1(&[&x]).map(Arc::new);
    // Nobody knows of that thread that a callback waits for it.
    let there: Run = |donate, x| elsewhere(move || donate.run1(&[&x]).map(Arc::new)).wait();
    for run in [here, there] {
        let x: Signal<Arc<Buffer>> = Signal::default();
        let (given, program) = (x.clone(), Arc::clone(&donate));
        let written: Signal<Result<Arc<Buffer>, Failure>> = Signal::default();
        let gate = {
            let written = written.clone();
            Gate::running(move |_| {
                written.set(run(Arc::clone(&program), given.wait()));
                Ok(())
            })
        };
        let nested = Nested::begin(Arc::clone(&client), client.put(&ramp(0.0), &DIMS).unwrap(), gate);
        x.set(Arc::clone(&nested.x));
        let y = written.wait().unwrap();
        assert_eq!(nested.end(), ramp(0.0));
        assert!(nested.x.is_deleted());
        assert_eq!(y.read::<f32>().unwrap(), ramp(1.0));
    }
}

#[test]
fn t08_arena_no_room_for_a_copy_is_an_error_and_nothing_is_donated() {
    let client = Arc::new(limited("preallocate", MIB));
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let nested = Nested::begin(Arc::clone(&client), x, Gate::closed());
    let donate = nested.compile(&Program::donate());
    let full: Vec<_> = std::iter::from_fn(|| client.put(&ramp(0.0), &DIMS).ok()).collect();
    donate.run1(&[&nested.x]).map(drop).unwrap_err().expect(Code::RESOURCE_EXHAUSTED, &["Out of memory"]);
    assert!(!nested.x.is_deleted());
    drop(full);
    assert_eq!(nested.end(), ramp(0.0));
    assert_eq!(donate.run1(&[&nested.x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
}
