//! How many clients of the engine programs with host callbacks use beside their own: as many as run at the same time.

use std::sync::Arc;

use plugin_tests::{Client, Gate, Loaded, Program, event::elsewhere, gate};

use crate::{
    engine::{self, Faulty, on_faulty_engine},
    held::{DIMS, ramp},
};

/// `f32[1024]`: `x` behind a gate that the library takes for a callback into Python, by the name of the module.
fn calling_back() -> Program {
    gate::prepare();
    Program::text(
        "module @xla_ffi_python_cpu_callback {
          func.func public @main(%x: tensor<1024xf32>, %t: tensor<i32>) -> tensor<1024xf32> {
            %y = stablehlo.custom_call @pjrt_arena_test_gate(%x, %t)
              {api_version = 4 : i32, has_side_effect = true, backend_config = {}}
              : (tensor<1024xf32>, tensor<i32>) -> tensor<1024xf32>
            return %y : tensor<1024xf32>
          }
        }",
    )
}

fn run(client: &Client, program: &Loaded, gate: &Gate) {
    let x = client.put(&ramp(1.0), &DIMS).unwrap();
    let ticket = client.put(&[gate.ticket()], &[]).unwrap();
    assert_eq!(program.run1(&[&x, &ticket]).unwrap().read::<f32>().unwrap(), ramp(1.0));
}

/// `count` programs that all stand at their gates before the first one goes on.
fn at_once(client: &Arc<Client>, program: &Arc<Loaded>, count: usize) {
    let gates: Vec<_> = (0..count).map(|_| Arc::new(Gate::closed())).collect();
    let begin = |gate: &Arc<Gate>| {
        let (client, program, gate) = (Arc::clone(client), Arc::clone(program), Arc::clone(gate));
        elsewhere(move || run(&client, &program, &gate))
    };
    let ends: Vec<_> = gates.iter().map(begin).collect();
    gates.iter().for_each(|gate| gate.wait_reached());
    gates.iter().for_each(|gate| gate.open());
    ends.iter().for_each(|end| end.wait());
}

#[test]
fn programs_with_callbacks_use_as_many_clients_as_run_at_once() {
    on_faulty_engine!({
        let created = || Faulty::get().calls(engine::slot("PJRT_Client_Create"));
        let client = Arc::new(Client::create(1, &[]).unwrap());
        let before = created();
        let nested = || created() - before;
        let calling_back = Arc::new(client.compile(&calling_back()).unwrap());
        let open = Gate::running(|_| Ok(()));
        (0..5).for_each(|_| run(&client, &calling_back, &open));
        assert_eq!(nested(), 1, "one after another");
        // Another program runs there, too.
        let other = Arc::new(client.compile(&self::calling_back()).unwrap());
        (0..3).for_each(|_| run(&client, &other, &open));
        assert_eq!(nested(), 1, "two programs, one after another");
        at_once(&client, &calling_back, 3);
        assert_eq!(nested(), 3, "three at once");
        at_once(&client, &other, 3);
        (0..5).for_each(|_| run(&client, &calling_back, &open));
        assert_eq!(nested(), 3, "again, and one after another");
        // What the thread of a handler runs, plain programs too, has a client to itself: one for all of them.
        let handled = client.compile(&gate::calling_back()).unwrap();
        let inside = {
            let (client, open) = (Arc::clone(&client), Arc::new(open));
            let plain = client.compile(&Program::add_one()).unwrap();
            Gate::running(move |_| {
                for _ in 0..4 {
                    let x = client.put(&ramp(1.0), &DIMS).map_err(|failure| failure.to_string())?;
                    plain.run1(&[&x]).map_err(|failure| failure.to_string())?;
                    run(&client, &calling_back, &open);
                }
                Ok(())
            })
        };
        (0..3).for_each(|_| run(&client, &handled, &inside));
        at_once(&client, &other, 3);
        assert_eq!(nested(), 3, "inside of a handler");
    });
}
