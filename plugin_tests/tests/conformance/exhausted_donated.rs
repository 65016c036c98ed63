//! Exhausted memory, and arguments that are donated: what they make room for, and what their copies take.

use plugin_tests::{Buffer, Program, View, in_child};

use crate::{
    DIMS, MIB, eventually,
    exhausted::{ARRAY, STRATEGIES, Told, books, client, filled, first_values, size},
    ramp, settles_at,
    views::{foreign, view_of},
};

#[test]
fn c31_arena_what_is_donated_is_not_wanted() {
    in_child!(&[], || {
        for strategy in STRATEGIES {
            let client = client(strategy, 1, MIB, &[]);
            let [kept, one, both] = [Program::two_results(), Program::buffer_donor(), Program::donate_both()]
                .map(|program| client.compile(&program).unwrap());
            let [a, b] = [1.0, 2.0].map(|start| client.put(&ramp(start), &DIMS).unwrap());
            let _filler = filled(&client, MIB - 2 * ARRAY);
            let before = books();
            let told = Told::of(kept.run(&[&a, &b]));
            told.has(&["output 0 f32[1024]\n  of a call that had 0B and wanted 4.0KiB more\n"]);
            // One of the two results takes the argument's place, and the other is all that is wanted.
            let told = Told::of(one.run(&[&a]));
            told.has(&["f32[1024]\n  held by"]);
            assert!(!a.is_deleted() && !b.is_deleted());
            eventually("all is given back", || books() == before);
            if strategy == "tpu" && both.executable().sizes().unwrap().temp > 0 {
                let told = Told::of(both.run(&[&a, &b]));
                told.has(&["\n  wanted for programs' scratch\n  held by"]);
                continue;
            }
            assert_eq!(first_values(&both.run(&[&a, &b]).unwrap()), [3.0, -1.0], "{strategy}: it wants nothing");
            assert!(a.is_deleted() && b.is_deleted());
        }
    });
}

#[test]
fn c31_arena_copies_of_what_is_donated_are_told_with_the_results() {
    in_child!(&[], || {
        for strategy in STRATEGIES {
            // The first has a result of its own, the second two copies.
            for (program, count, had) in
                [(Program::buffer_donor(), 1, "buffer_donor output"), (Program::donate_both(), 2, "copy of f32[1024]")]
            {
                let client = client(strategy, 1, MIB, &[]);
                let program = client.compile(&program).unwrap();
                let scratch = if strategy == "tpu" { program.executable().sizes().unwrap().temp } else { 0 };
                // An outsider's memory, which no program may write to: its copy is donated.
                let mut outside = [foreign(1.0), foreign(2.0)];
                let memory = Some(client.device().default_memory());
                // SAFETY: the memory outlives the signals below.
                let views = outside
                    .each_mut()
                    .map(|outside| unsafe { Buffer::view(&client, &View { memory, ..view_of(outside) }).unwrap() });
                let arguments: Vec<&Buffer> = views[..count].iter().map(|(view, _)| view).collect();
                let _filler = filled(&client, MIB - ARRAY - scratch);
                let before = books();
                let told = Told::of(program.run(&arguments));
                assert!(told.holders.len() == 2 && told.holders[1].2.starts_with(had), "{}", told.text);
                let took = size(ARRAY + scratch);
                told.has(&[&format!(
                    "\n  wanted for copy of f32[1024]\n  of a call that had {took} and wanted 0B more\n"
                )]);
                // What is kept for scratch stays.
                eventually("all is given back", || scratch > 0 || books() == before);
                settles_at(&client, MIB - ARRAY - scratch);
                assert!(arguments.iter().all(|argument| !argument.is_deleted()));
                for (view, released) in views {
                    drop(view);
                    released.wait();
                }
            }
        }
    });
}

/// [`Program::add_one_1m`] with its argument donated.
const DONATING: &str = "module @donating {
  func.func public @main(%x: tensor<262144xf32> {tf.aliasing_output = 0 : i32}) -> tensor<262144xf32> {
    %one = stablehlo.constant dense<1.0> : tensor<262144xf32>
    %y = stablehlo.add %x, %one : tensor<262144xf32>
    return %y : tensor<262144xf32>
  }
}";

#[test]
fn c31_arena_the_hint_to_donate_makes_room() {
    in_child!(&[], || {
        for strategy in STRATEGIES {
            let calls = |program: &Program, limit: i64| {
                let client = client(strategy, 1, limit, &[]);
                let program = client.compile(program).unwrap();
                let _first = filled(&client, 3 * MIB / 2);
                let mut x = client.put(&vec![0f32; 1 << 18], &[1 << 18]).unwrap();
                // So often an argument has gone after its launch.
                for _ in 0..8 {
                    x = program.run1(&[&x]).unwrap();
                    x.ready().wait().unwrap();
                }
                let _second = filled(&client, 3 * MIB / 4);
                assert_eq!(first_values(&[program.run1(&[&x])?]), [9.0]);
                Ok(())
            };
            let told = Told::of(calls(&Program::add_one_1m(), 4 * MIB));
            if strategy == "tpu" {
                // A program that donates may need more scratch there.
                told.is_the_least(|limit| calls(&Program::add_one_1m(), limit));
                continue;
            }
            assert_eq!(
                told.line("  hint: "),
                "donating argument 0 of add_one_1m (donate_argnums) would have saved 1.00MiB at this point; it was not \
                 used again in 8 of 8 launches"
            );
            assert_eq!(calls(&Program::text(DONATING), 4 * MIB), Ok(()), "{strategy}");
        }
    });
}
