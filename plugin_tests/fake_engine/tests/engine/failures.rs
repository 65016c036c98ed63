//! What goes wrong, when, and for whom.

use plugin_tests::{Buffer, Client, Code, ElementType, Gate, Program, RunOptions, Value, plugin};

use crate::{
    common::{DIMS, Driver, Mapped, Own, client, ramp, ticket},
    on_fake_gpu,
};

#[test]
fn options_are_checked_as_xla_does() {
    on_fake_gpu!([("FAKE_CUDA_GPUS", "2")], || {
        let refused = |name: &str, value: Value, code: Code, words: &[&str]| {
            Client::create_with(plugin(), &[(name, value)]).map(drop).unwrap_err().expect(code, words);
        };
        let invalid = Code::INVALID_ARGUMENT;
        let words = ["Unexpected option name passed to PJRT_Client_Create: cpu_device_count"];
        refused("cpu_device_count", Value::Integer(1), invalid, &words);
        let words = ["with name preallocate has type index 1 but expected type index is 4"];
        refused("preallocate", Value::Integer(1), invalid, &words);
        refused("allocator", Value::from("tpu"), Code::UNIMPLEMENTED, &["Allocator tpu not supported", "cuda_async"]);
        refused("visible_devices", Value::Integers(vec![2]), invalid, &["visible_devices names GPU 2"]);
        let options = [
            ("allocator", Value::from("cuda_async")),
            ("memory_fraction", Value::Float(0.5)),
            ("preallocate", Value::Bool(false)),
            ("visible_devices", Value::Integers(vec![1])),
        ];
        let client = Client::create_with(plugin(), &options).unwrap();
        let devices = client.addressable_devices();
        assert_eq!(devices.iter().map(|device| device.local_hardware_id()).collect::<Vec<_>>(), [1]);
        assert_eq!(client.stats().unwrap().bytes_limit, Some(0));
    });
}

/// Takes all of the pool that whole mebibytes can take.
fn fill_pool(client: &Client) -> Vec<Buffer> {
    let take = || Buffer::uninitialized(client, ElementType::U8, &[1 << 20]).ok();
    std::iter::from_fn(take).collect()
}

#[test]
fn out_of_memory_is_the_results_and_comes_after_the_donation() {
    on_fake_gpu!([("FAKE_CUDA_MEMORY", "32MiB")], || {
        let client = client();
        let program = client.compile(&Program::buffer_donor()).unwrap();
        // Twice 4 KiB: one result takes over the argument, the other finds no room.
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let whole = fill_pool(&client);
        let mut small = Vec::new();
        while let Ok(buffer) = Buffer::uninitialized(&client, ElementType::U8, &[1024]) {
            small.push(buffer);
        }
        let run = program.execute(&[&[&x]], RunOptions { complete: true, ..Default::default() }).unwrap();
        assert!(run.complete[0].is_ready(), "it is known at once");
        run.complete[0].wait().unwrap_err().expect(Code::RESOURCE_EXHAUSTED, &["4096 bytes"]);
        assert!(x.is_deleted());
        for output in &run.outputs[0] {
            output.ready().wait().unwrap_err().expect(Code::RESOURCE_EXHAUSTED, &["4096 bytes"]);
            output.read::<f32>().unwrap_err().expect(Code::RESOURCE_EXHAUSTED, &[]);
            assert!(!output.is_deleted());
        }
        // Nothing is lost.
        drop((whole, small, run));
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let results = program.run(&[&x]).unwrap();
        assert_eq!(results[0].read::<f32>().unwrap(), ramp(1.0));
    });
}

#[test]
fn scratch_that_finds_no_room_is_a_failure_of_the_results_too() {
    on_fake_gpu!([("FAKE_CUDA_MEMORY", "32MiB")], || {
        let client = client();
        let program = client.compile(&Program::temp_heavy()).unwrap();
        let x = client.put(&vec![1.0_f32; 256 * 256], &[256, 256]).unwrap();
        x.ready().wait().unwrap();
        // The result is allocated first, so the second allocation and its repetition are those of scratch.
        Driver::get().configure("fail", "cuMemAllocAsync:2:2");
        Driver::get().configure("fail", "cuMemAllocAsync:3:2");
        let result = program.run1(&[&x]).unwrap();
        let failure = result.ready().wait().unwrap_err();
        failure.expect(Code::RESOURCE_EXHAUSTED, &["CUDA_ERROR_OUT_OF_MEMORY"]);
        assert_eq!(program.run1(&[&x]).unwrap().read::<f32>().unwrap()[0], 256.0_f32.powi(3));
    });
}

#[test]
fn a_failed_program_poisons_its_results_and_what_uses_them() {
    on_fake_gpu!([("FAKE_CUDA_LATENCY_US", "1000")], || {
        let client = client();
        let gate = Gate::running(|_| Err("the gate says no".into()));
        let gated = client.compile(&Program::gate_inline()).unwrap();
        let add_one = client.compile(&Program::add_one()).unwrap();
        let (x, ticket) = (client.put(&ramp(0.0), &DIMS).unwrap(), ticket(&client, &gate));
        let y = gated.run1(&[&x, &ticket]).unwrap();
        let z = add_one.run1(&[&y]).unwrap();
        let copy = z.copy_to_memory(client.device().default_memory()).unwrap();
        for buffer in [&y, &z, &copy] {
            assert!(buffer.ready().wait().unwrap_err().message.contains("the gate says no"));
            assert!(buffer.read::<f32>().unwrap_err().message.contains("the gate says no"));
        }
        assert_eq!(add_one.run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
    });
}

#[test]
fn a_launch_that_the_driver_refuses_is_a_failure_of_the_results() {
    on_fake_gpu!([("FAKE_CUDA_GPUS", "4")], || {
        let client = client();
        let program = client.compile(&Program::sharded()).unwrap();
        let put = |device| client.put_on(device, &ramp(0.0), &DIMS).unwrap();
        let shards: Vec<Buffer> = client.addressable_devices().into_iter().map(put).collect();
        let arguments: Vec<[&Buffer; 1]> = shards.iter().map(|shard| [shard]).collect();
        let lists: Vec<&[&Buffer]> = arguments.iter().map(<[_; 1]>::as_slice).collect();
        shards.iter().for_each(|shard| shard.ready().wait().unwrap());
        // The third device's: those of the first two wait for it already.
        Driver::get().configure("fail", "fake_cuda_kernel:3:999");
        let run = program.execute(&lists, RunOptions::default()).unwrap();
        for output in run.outputs.iter().flatten() {
            output.ready().wait().unwrap_err().expect(Code::INTERNAL, &["fake_cuda_kernel gave 999"]);
        }
        let again = program.execute(&lists, RunOptions::default()).unwrap();
        assert_eq!(again.outputs[0][0].read::<f32>().unwrap(), ramp(1.0));
    });
}

#[test]
fn work_that_the_driver_gives_up_fails_and_does_not_hang() {
    on_fake_gpu!(
        [],
        || {
            let client = client();
            let (_own, mapped) = (Own::new(), Mapped::new());
            let gate = Gate::closed();
            let gated = client.compile(&Program::gate_inline()).unwrap();
            let add_one = client.compile(&Program::add_one()).unwrap();
            let (x, ticket) = (client.put(&ramp(0.0), &DIMS).unwrap(), ticket(&client, &gate));
            let before = gated.run1(&[&x, &ticket]).unwrap();
            gate.wait_reached();
            let (view, _) = Own::view_at(&client, mapped.address, &DIMS, 0).unwrap();
            let result = add_one.run1(&[&view]).unwrap();
            let told = result.ready().on_ready();
            mapped.unmap();
            gate.open();
            told.wait().unwrap_err().expect(Code::INTERNAL, &["CUDA_ERROR_ILLEGAL_ADDRESS"]);
            assert!(result.read::<f32>().is_err());
            drop(before);
            assert!(add_one.run1(&[&x]).unwrap().ready().wait().is_err(), "the GPU is lost");
        },
        1
    );
}
