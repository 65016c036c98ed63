//! What runs while a fault is injected: each workload does the same calls every time, goes on after an error, and
//! leaves nothing behind.

use std::sync::LazyLock;

use plugin_tests::{Gate, Program, Result, Value, call, gate, plugin, sys};

use crate::held::{Array, Client, DIMS, Device, Event, Loaded, Manager, N, ramp, same, step, wrong};

const MIB: i64 = 1 << 20;

/// A client and its programs, which a workload uses.
pub struct World {
    pub client: Client,
    pub devices: Vec<Device>,
    add_one: Loaded,
    donate: Loaded,
    passthrough: Loaded,
    constant: Loaded,
    replicated: Loaded,
    /// Programs of a client that spills, for its device, which is the last one of all.
    spilled: [Loaded; 2],
    /// That client; after its programs.
    spilling: Client,
}

impl World {
    /// One with two devices of 8 MiB.
    pub fn new(strategy: &str) -> Result<Self> {
        let spilling = client(strategy, 1, "1MiB", "host")?;
        let client = client(strategy, 2, "8388608", "off")?;
        Ok(Self {
            devices: [client.devices()?, spilling.devices()?].concat(),
            spilled: [
                spilling.compile(&Program::text(&add_two("")))?,
                spilling.compile(&Program::text(&add_two("{tf.aliasing_output = 0 : i32}")))?,
            ],
            spilling,
            add_one: client.compile(&Program::add_one())?,
            donate: client.compile(&Program::donate())?,
            passthrough: client.compile(&Program::passthrough())?,
            constant: client.compile(&Program::constant())?,
            replicated: client.compile(&Program::add_one().replicated(2))?,
            client,
        })
    }
}

fn client(strategy: &str, devices: i64, limit: &str, spill: &str) -> Result<Client> {
    Client::create(&[
        ("cpu_device_count", Value::Integer(devices)),
        ("strategy", Value::from(strategy)),
        ("limit", Value::from(limit)),
        ("spill", Value::from(spill)),
        ("spill_limit", Value::from("2MiB")),
    ])
}

/// The sum of two arrays, the first of which has this attribute.
fn add_two(attribute: &str) -> String {
    format!(
        "module {{ func.func public @main(%a: tensor<32768xf32> {attribute}, %b: tensor<32768xf32>)
             -> tensor<32768xf32> {{
           %sum = stablehlo.add %a, %b : tensor<32768xf32>
           return %sum : tensor<32768xf32>
         }} }}"
    )
}

/// Arrays: upload, metadata, reading, copies, references, deletion, transfers in pieces.
pub fn arrays(world: &World) {
    let (client, &[first, second, ..]) = (&world.client, &world.devices[..]) else { return };
    step("upload", || {
        let array = client.put(first, &ramp(1.0), &DIMS)?;
        array.ready()?.wait()?;
        array.holds(&ramp(1.0), "an upload")?;
        same(&array.read_raw()?, &ramp(1.0), "an upload, raw");
        array.delete()
    });
    for semantics in 1..=3 {
        step("upload by other semantics", || {
            let values = Aligned::new(2.0);
            let (array, done) = client.upload(first, &values.0, &DIMS, semantics)?;
            let outcome = array.holds(&values.0, "an upload by other semantics");
            // The memory is lent until the array is gone, or until the event.
            drop(array);
            done.wait()?;
            outcome
        });
    }
    step("upload of what is large enough to be aliased", || {
        let values = Box::new(Large(std::array::from_fn(|at| at as f32)));
        let (array, done) = client.upload(first, &values.0, &[values.0.len() as i64], 2)?;
        let outcome = array.holds(&values.0, "an aliased upload");
        drop(array);
        done.wait()?;
        outcome
    });
    step("metadata", || {
        let array = client.put(first, &ramp(0.0)[..6], &[2, 3])?;
        let buffer = array.0;
        let dims = call!(plugin(), PJRT_Buffer_Dimensions { buffer: buffer })?;
        // SAFETY: the dimensions live as long as the buffer.
        if unsafe { sys::slice(dims.dims, dims.num_dims) } != [2, 3] {
            wrong("the dimensions".into());
        }
        call!(plugin(), PJRT_Buffer_ElementType { buffer: buffer })?;
        call!(plugin(), PJRT_Buffer_UnpaddedDimensions { buffer: buffer })?;
        call!(plugin(), PJRT_Buffer_DynamicDimensionIndices { buffer: buffer })?;
        call!(plugin(), PJRT_Buffer_GetMemoryLayout { buffer: buffer })?;
        call!(plugin(), PJRT_Buffer_OnDeviceSizeInBytes { buffer: buffer })?;
        call!(plugin(), PJRT_Buffer_Device { buffer: buffer })?;
        call!(plugin(), PJRT_Buffer_Memory { buffer: buffer })?;
        call!(plugin(), PJRT_Buffer_IsOnCpu { buffer: buffer })?;
        call!(plugin(), PJRT_Buffer_IsDeleted { buffer: buffer })
    });
    step("references", || {
        let array = client.put(first, &ramp(3.0), &DIMS)?;
        call!(plugin(), PJRT_Buffer_IncreaseExternalReferenceCount { buffer: array.0 })?;
        let outcome = array.holds(&ramp(3.0), "an array with a reference");
        call!(plugin(), PJRT_Buffer_DecreaseExternalReferenceCount { buffer: array.0 })?;
        outcome?;
        call!(plugin(), PJRT_Buffer_UnsafePointer { buffer: array.0 })
    });
    step("copies", || {
        let array = client.put(first, &ramp(4.0), &DIMS)?;
        array.copy_to_device(second)?.holds(&ramp(4.0), "a copy on another device")?;
        array.copy_to_memory(second.memory)?.holds(&ramp(4.0), "a copy in another memory")?;
        let other = array.copy_to_memory(first.other)?;
        other.holds(&ramp(4.0), "a copy in another memory of the device")?;
        other.copy_to_memory(first.memory)?.holds(&ramp(4.0), "a copy of that")
    });
    step("transfer", || transfer(&client.transfer(first)?));
    step("transfer that nobody ends", || {
        let manager = client.transfer(first)?;
        let array = retrieve(&manager, 0)?;
        drop(manager);
        drop(array);
        Ok(())
    });
    step("alias", || {
        let array = client.put(first, &ramp(5.0), &DIMS)?;
        client.alias(first, &array)?.holds(&ramp(5.0), "an alias")
    });
    step("view", || {
        let values = Aligned::new(6.0);
        let args = call!(
            plugin(),
            PJRT_Client_CreateViewOfDeviceBuffer {
                client: client.0,
                device_buffer_ptr: values.0.as_ptr().cast_mut().cast(),
                dims: DIMS.as_ptr(),
                num_dims: 1,
                element_type: plugin_tests::ElementType::F32.raw(),
                memory: first.memory,
            }
        )?;
        Array(args.buffer).holds(&values.0, "a view")
    });
    step("statistics", || {
        first.bytes_in_use()?;
        second.bytes_in_use()
    });
}

fn retrieve(manager: &Manager, index: i32) -> Result<Array> {
    let args = call!(
        plugin(),
        PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer { transfer_manager: manager.0, buffer_index: index }
    )?;
    Ok(Array(args.buffer_out))
}

fn transfer(manager: &Manager) -> Result<()> {
    // For ever, because after an error nobody waits until they are sent.
    static VALUES: LazyLock<[Vec<f32>; 2]> = LazyLock::new(|| [ramp(7.0), ramp(8.0)]);
    let values = &*VALUES;
    let arrays = [retrieve(manager, 0)?, retrieve(manager, 1)?];
    let mut sent: Vec<Event> = Vec::new();
    for (index, values) in values.iter().enumerate() {
        for (half, values) in values.chunks(N / 2).enumerate() {
            let args = call!(
                plugin(),
                PJRT_AsyncHostToDeviceTransferManager_TransferData {
                    transfer_manager: manager.0,
                    buffer_index: index as i32,
                    data: values.as_ptr().cast(),
                    offset: (half * size_of_val(values)) as i64,
                    transfer_size: size_of_val(values) as i64,
                    is_last_transfer: half == 1,
                }
            )?;
            sent.push(Event(args.done_with_h2d_transfer));
        }
    }
    sent.iter().try_for_each(Event::wait)?;
    for (array, values) in arrays.iter().zip(values) {
        array.ready()?.wait()?;
        array.holds(values, "a transfer")?;
    }
    Ok(())
}

/// Values where the engine aliases them.
#[repr(align(64))]
struct Aligned([f32; N]);

/// As many that the library aliases them.
#[repr(align(64))]
struct Large([f32; 20_000]);

impl Aligned {
    fn new(start: f32) -> Box<Self> {
        Box::new(Self(std::array::from_fn(|at| start + at as f32)))
    }
}

/// Programs that are loaded already: with destinations, with donation, on two devices, one after another.
pub fn programs(world: &World) {
    let (client, &[first, second, ..]) = (&world.client, &world.devices[..]) else { return };
    step("a program", || {
        let x = client.put(first, &ramp(1.0), &DIMS)?;
        let y = world.add_one.run(&[&x], 1)?;
        y[0].holds(&ramp(2.0), "a result")?;
        x.holds(&ramp(1.0), "an argument")
    });
    step("a chain", || {
        let mut x = client.put(first, &ramp(0.0), &DIMS)?;
        for _ in 0..3 {
            x = world.add_one.execute(&[&[&x]], 1)?.0.remove(0).remove(0);
        }
        x.holds(&ramp(3.0), "the end of a chain")
    });
    step("donation", || {
        let x = client.put(first, &ramp(1.0), &DIMS)?;
        let outcome = world.donate.run(&[&x], 1);
        let y = outcome?;
        y[0].holds(&ramp(2.0), "a result in donated memory")?;
        if !call!(plugin(), PJRT_Buffer_IsDeleted { buffer: x.0 })?.is_deleted {
            wrong("a donated array is not deleted".into());
        }
        Ok(())
    });
    step("a donation that is kept", || {
        let x = client.put(first, &ramp(1.0), &DIMS)?;
        call!(plugin(), PJRT_Buffer_IncreaseExternalReferenceCount { buffer: x.0 })?;
        let outcome = world.donate.run(&[&x], 1);
        let decreased = call!(plugin(), PJRT_Buffer_DecreaseExternalReferenceCount { buffer: x.0 });
        outcome?[0].holds(&ramp(2.0), "a result of a donation with a reference")?;
        decreased
    });
    step("results that are arguments", || {
        let (a, b) = (client.put(first, &ramp(1.0), &DIMS)?, client.put(first, &ramp(2.0), &DIMS)?);
        let results = world.passthrough.run(&[&a, &b], 3)?;
        drop((a, b));
        results[0].holds(&ramp(2.0), "b of (b, a, a)")?;
        results[1].holds(&ramp(1.0), "a of (b, a, a)")?;
        results[2].holds(&ramp(1.0), "the second a of (b, a, a)")
    });
    step("a program without arguments", || world.constant.run(&[], 1).map(drop));
    step("two devices", || {
        let (x, y) = (client.put(first, &ramp(1.0), &DIMS)?, client.put(second, &ramp(2.0), &DIMS)?);
        let (results, complete) = world.replicated.execute(&[&[&x], &[&y]], 1)?;
        drop((x, y));
        complete.iter().try_for_each(Event::wait)?;
        results[0][0].holds(&ramp(2.0), "the first device's result")?;
        results[1][0].holds(&ramp(3.0), "the second device's result")
    });
}

/// Memory that is too full: arrays move, one is refused.
pub fn pressure(world: &World) {
    let (client, &[first, ..]) = (&world.client, &world.devices[..]) else { return };
    let values = |number: usize| -> Vec<f32> { (0..1 << 18).map(|at| (at * 8 + number) as f32).collect() };
    step("arrays that move", || {
        let mut all = Vec::new();
        for number in 0..7 {
            let array = client.put(first, &values(number), &[1 << 18])?;
            all.push((array.place()?, number, array));
        }
        all.sort_by_key(|&(place, ..)| place);
        let kept: Vec<_> = all.into_iter().skip(1).step_by(2).collect();
        let room = client.uninitialized(first, 4 * MIB);
        for (_, number, array) in &kept {
            array.holds(&values(*number), "an array that may have moved")?;
        }
        let (_, number, moved) = &kept[0];
        world.add_one.run(&[&client.put(first, &ramp(1.0), &DIMS)?], 1)?[0]
            .holds(&ramp(2.0), "a result beside them")?;
        moved.copy_to_device(first)?.holds(&values(*number), "a copy of an array that may have moved")?;
        room.map(drop)
    });
    step("too much", || match client.uninitialized(first, 16 * MIB) {
        Ok(_) => {
            wrong("more was given than there is".into());
            Ok(())
        }
        Err(failure) if failure.code == plugin_tests::Code::RESOURCE_EXHAUSTED => Ok(()),
        Err(failure) => Err(failure),
    });
}

/// More arrays than the device holds: some go to memory of the host, and come back for programs.
pub fn spilling(world: &World) {
    let (client, [.., device]) = (&world.spilling, &world.devices[..]) else { return };
    let values = |number: usize, times: usize| -> Vec<f32> {
        (0..1 << 15).map(|at| (times * (at % 1024 * 8 + number)) as f32).collect()
    };
    let [add, donate] = &world.spilled;
    step("arrays that are spilled", || {
        let mut all = Vec::new();
        for number in 0..10 {
            all.push(client.put(*device, &values(number, 1), &[1 << 15])?);
        }
        for (number, array) in all.iter().enumerate() {
            array.holds(&values(number, 1), "an array that may be spilled")?;
        }
        for (number, array) in all.iter().enumerate() {
            let outcome = add.run(&[array, array], 1);
            array.holds(&values(number, 1), "an argument that came back, or did not")?;
            outcome?[0].holds(&values(number, 2), "a result of arguments that came back")?;
        }
        let last = all.pop();
        for (number, array) in all.iter().enumerate() {
            let outcome = donate.run(&[array, last.as_ref().unwrap_or(array)], 1);
            let sum: Vec<f32> = values(number, 1).iter().zip(values(9, 1)).map(|(a, b)| a + b).collect();
            outcome?[0].holds(&sum, "a result in an array that came back")?;
        }
        drop(all);
        last.map_or(Ok(()), |last| last.holds(&values(9, 1), "an array that was read by all"))
    });
    step("one that does not fit", || match client.uninitialized(*device, 2 * MIB) {
        Ok(_) => {
            wrong("more was given than there is".into());
            Ok(())
        }
        Err(failure) if failure.code == plugin_tests::Code::RESOURCE_EXHAUSTED => Ok(()),
        Err(failure) => Err(failure),
    });
}

/// Programs from their text to their end: compiled, described, serialised, loaded again, run.
pub fn compiling(world: &World) {
    let (client, &[first, ..]) = (&world.client, &world.devices[..]) else { return };
    step("compiling", || {
        let loaded = client.compile(&Program::add_one())?;
        let x = client.put(first, &ramp(1.0), &DIMS)?;
        loaded.run(&[&x], 1)?[0].holds(&ramp(2.0), "a result of a new program")?;
        let description = loaded.description()?;
        let executable = description.0;
        call!(plugin(), PJRT_Executable_Name { executable: executable })?;
        call!(plugin(), PJRT_Executable_NumOutputs { executable: executable })?;
        call!(plugin(), PJRT_Executable_OutputElementTypes { executable: executable })?;
        call!(plugin(), PJRT_Executable_OutputDimensions { executable: executable })?;
        call!(plugin(), PJRT_Executable_GetCompiledMemoryStats { executable: executable })?;
        call!(plugin(), PJRT_Executable_Fingerprint { executable: executable })?;
        call!(plugin(), PJRT_LoadedExecutable_AddressableDevices { executable: loaded.0 })?;
        let blob = call!(plugin(), PJRT_Executable_Serialize { executable: executable })?;
        // SAFETY: the bytes live until the deleter is called, once.
        let bytes = unsafe {
            let bytes = sys::slice(blob.serialized_bytes.cast::<u8>(), blob.serialized_bytes_size).to_vec();
            if let Some(delete) = blob.serialized_executable_deleter {
                delete(blob.serialized_executable);
            }
            bytes
        };
        drop((description, loaded));
        client.deserialize(&bytes)?.run(&[&x], 1)?[0].holds(&ramp(2.0), "a result of a loaded program")
    });
    step("a program's first execution with donation", || {
        let loaded = client.compile(&Program::donate())?;
        let x = client.put(first, &ramp(1.0), &DIMS)?;
        let y = loaded.run(&[&x], 1)?;
        drop(x);
        let other = client.put(first, &ramp(5.0), &DIMS)?;
        y[0].holds(&ramp(2.0), "a first result in donated memory")?;
        other.holds(&ramp(5.0), "an array made after it")
    });
    step("a program that is none", || match client.compile(&Program::text("no program")) {
        Ok(_) => {
            wrong("what is no program was compiled".into());
            Ok(())
        }
        Err(failure) if failure.message.contains(crate::engine::TEXT) => Err(failure),
        Err(_) => Ok(()),
    });
}

/// A client from its creation to its end, with a program that calls back into the host, which has a client of the
/// engine to itself.
pub fn whole_life(_: &World) {
    gate::prepare();
    step("a client", || {
        let client = client("tpu", 1, "8388608", "off")?;
        let devices = client.devices()?;
        let first = devices[0];
        let gated = client.compile(&Program::text(
            "module @xla_ffi_python_cpu_callback {
              func.func public @main(%a: tensor<1024xf32> {tf.aliasing_output = 0 : i32}, %t: tensor<i32>)
                  -> tensor<1024xf32> {
                %g = stablehlo.custom_call @pjrt_arena_test_gate(%a, %t)
                  {api_version = 4 : i32, has_side_effect = true, backend_config = {}}
                  : (tensor<1024xf32>, tensor<i32>) -> tensor<1024xf32>
                %c = stablehlo.constant dense<1.0> : tensor<1024xf32>
                %y = stablehlo.add %g, %c : tensor<1024xf32>
                return %y : tensor<1024xf32>
              }
            }",
        ))?;
        let gate = Gate::running(|_| Ok(()));
        let ticket = scalar(&client, first, gate.ticket())?;
        let x = client.put(first, &ramp(1.0), &DIMS)?;
        gated.run(&[&x, &ticket], 1)?[0].holds(&ramp(2.0), "a result of a program with a callback")?;
        drop((x, ticket));
        settles(first)
    });
}

/// A scalar, once it is there.
pub fn scalar(client: &Client, device: Device, value: i32) -> Result<Array> {
    let args = call!(
        plugin(),
        PJRT_Client_BufferFromHostBuffer {
            client: client.0,
            data: (&raw const value).cast(),
            type_: plugin_tests::ElementType::S32.raw(),
            device: device.device,
        }
    )?;
    let (array, done) = (Array(args.buffer), Event(args.done_with_host_buffer));
    done.wait()?;
    Ok(array)
}

/// Notes it if a device whose arrays are gone goes on having bytes in use.
fn settles(device: Device) -> Result<()> {
    let begun = std::time::Instant::now();
    while device.bytes_in_use()? != 0 {
        if begun.elapsed() > plugin_tests::event::HANG / 10 {
            wrong(format!("{} bytes stay in use", device.bytes_in_use()?));
            break;
        }
        std::thread::yield_now();
    }
    Ok(())
}
