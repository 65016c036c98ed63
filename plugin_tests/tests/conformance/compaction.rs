//! Live arrays move to make room, and nobody who uses one can tell, except that its address changed.

use std::sync::Arc;

use crate::{DIMS, MIB, N, eventually, limited, ramp, settles_at, ticket};
use plugin_tests::{
    Buffer, Client, Code, ElementType, Failure, Gate, Loaded, Program, Value, call, event::elsewhere, gate, plugin,
};

/// Elements of 1 MiB.
const MEGA: usize = 262_144;

/// Every client that compacts: the strategy `tpu`, and the others that can when they are told to.
fn clients(limit: i64) -> Vec<Client> {
    let told = |strategy: &str| {
        let limit = limit.to_string();
        let options = [("strategy", strategy), ("limit", &limit), ("compact", "on")];
        Client::create(1, &options.map(|(name, value)| (name, Value::from(value)))).unwrap()
    };
    vec![limited("tpu", limit), told("preallocate")]
}

fn values(number: usize) -> Vec<f32> {
    (0..MEGA).map(|i| (i * 8 + number) as f32 % 1_000_003.0).collect()
}

fn mega(client: &Client, number: usize) -> Buffer {
    client.put(&values(number), &[512, 512]).unwrap()
}

/// Whether an array of [`mega`] is as it was made. Not to be asked right before a move is to happen: a read is over for
/// the reader a little before it is for the memory.
#[track_caller]
pub(crate) fn is_whole(buffer: &Buffer) {
    let found = buffer.read::<f32>().unwrap();
    assert!(found == values(found[0] as usize), "{} ...", found[0]);
}

fn room(client: &Client, megabytes: i64) -> plugin_tests::Result<Buffer> {
    Buffer::uninitialized(client, ElementType::U8, &[megabytes * MIB])
}

/// Where the bytes are at this moment; asking does not keep them there.
fn place(buffer: &Buffer) -> usize {
    buffer.opaque_pointer().unwrap().addr()
}

/// A device with eight megabytes, of which the arrays in `keep` (0 to 7, in the order of their addresses) are left.
pub(crate) fn fragmented(client: &Client, keep: &[usize]) -> Vec<Buffer> {
    let mut all: Vec<Buffer> = (0..8).map(|number| mega(client, number)).collect();
    all.sort_by_key(place);
    let kept = all.into_iter().enumerate().filter(|(at, _)| keep.contains(at));
    let kept = kept.map(|(_, buffer)| buffer).collect();
    settles_at(client, keep.len() as i64 * MIB);
    kept
}

#[track_caller]
fn exhausted<T>(outcome: plugin_tests::Result<T>, parts: &[&str]) -> Failure {
    let failure = outcome.map(drop).unwrap_err();
    failure.expect(Code::RESOURCE_EXHAUSTED, parts);
    failure
}

/// All that a buffer says about itself, and all ways to read it.
fn everything(buffer: &Buffer) -> impl PartialEq + std::fmt::Debug + use<> {
    let elsewhere = buffer.copy_to_memory(buffer.device().memories()[1]).unwrap();
    (
        (buffer.element_type(), buffer.dims(), buffer.unpadded_dims(), buffer.dynamic_dims(), buffer.minor_to_major()),
        (buffer.on_device_size(), buffer.host_size(), buffer.device(), buffer.memory()),
        (buffer.is_deleted(), buffer.is_on_cpu(), buffer.ready().wait(), buffer.ready().is_ready()),
        (buffer.read::<f32>().unwrap(), buffer.read_raw(4096, 1 << 16), elsewhere.read::<f32>().unwrap()),
    )
}

#[test]
fn c31_arena_fragmented_memory_is_compacted_and_nobody_can_tell() {
    for client in clients(8 * MIB) {
        let kept = fragmented(&client, &[1, 3, 5, 7]);
        let places: Vec<usize> = kept.iter().map(place).collect();
        let ready: Vec<_> = kept.iter().map(Buffer::ready).collect();
        let before: Vec<_> = kept.iter().map(everything).collect();
        let layout = {
            let args = call!(plugin(), PJRT_Buffer_Dimensions { buffer: kept[0].raw() }).unwrap();
            (args.dims, args.num_dims)
        };
        let large = room(&client, 4).unwrap();
        assert_eq!(client.stats().unwrap().bytes_in_use, 8 * MIB);
        assert_ne!(kept.iter().map(place).collect::<Vec<_>>(), places, "something moved");
        drop(large);
        assert!(kept.iter().map(everything).eq(before), "every answer is as before");
        // What was handed out before the move is still good: events, and arrays that live as long as the buffer.
        ready
            .iter()
            .for_each(|event| assert_eq!((event.is_ready(), event.error(), event.wait()), (true, Ok(()), Ok(()))));
        // SAFETY: the dimensions are valid as long as the buffer.
        assert_eq!(unsafe { std::slice::from_raw_parts(layout.0, layout.1) }, [512, 512]);
        // A moved array is an argument, a donation and a source like any other.
        let copy = kept[0].copy_to_device(client.device()).unwrap();
        assert_eq!(copy.read::<f32>(), kept[0].read::<f32>());
        drop((copy, kept));
        settles_at(&client, 0);
    }
}

#[test]
fn c31_arena_moved_arrays_run_and_are_donated() {
    let client = limited("tpu", MIB);
    let (add_one, donate) = (client.compile(&Program::add_one()).unwrap(), client.compile(&Program::donate()).unwrap());
    // Small results lie close together at one end; a large hole is forced until they have gone to the other.
    let mut x = add_one.run1(&[&client.put(&ramp(0.0), &DIMS).unwrap()]).unwrap();
    let mut moved = 0;
    for round in 0..64 {
        let whole = client.stats().unwrap().largest_free_block_bytes.unwrap();
        let wedge = Buffer::uninitialized(&client, ElementType::U8, &[whole / 2]).unwrap();
        let other = Buffer::uninitialized(&client, ElementType::U8, &[whole / 4]).unwrap();
        let y = donate.run1(&[&x]).unwrap();
        drop(wedge);
        let before = place(&y);
        drop(Buffer::uninitialized(&client, ElementType::U8, &[whole * 5 / 8]).unwrap());
        moved += usize::from(place(&y) != before);
        drop(other);
        assert!(x.is_deleted());
        assert_eq!(y.read::<f32>().unwrap(), ramp(2.0 + round as f32));
        assert_eq!(add_one.run1(&[&y]).unwrap().read::<f32>().unwrap(), ramp(3.0 + round as f32));
        x = y;
    }
    drop(x);
    settles_at(&client, 0);
    assert!(moved <= 64);
}

#[test]
fn c31_t10_arena_references_keep_an_array_in_place_until_the_last_one_goes() {
    for client in clients(8 * MIB) {
        let middle = {
            let mut all: Vec<Buffer> = (0..8).map(|number| mega(&client, number)).collect();
            all.sort_by_key(place);
            // With no hole anywhere it cannot get out of the way first.
            all[3].increase().unwrap();
            all[3].increase().unwrap();
            all.swap_remove(3)
        };
        settles_at(&client, MIB);
        let (address, contents) = (place(&middle), middle.read::<f32>().unwrap());
        for _ in 0..2 {
            exhausted(room(&client, 6), &["could not move 1.00MiB in 1 block(s): external references"]);
            assert_eq!(place(&middle), address);
            // SAFETY: the address is an outsider's as long as there is a reference.
            let there = unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<f32>(address), MEGA) };
            assert_eq!(there, contents);
            middle.decrease().unwrap();
        }
        let large = room(&client, 6).unwrap();
        assert_ne!(place(&middle), address);
        assert_eq!(middle.read::<f32>().unwrap(), contents);
        drop((large, middle));
        settles_at(&client, 0);
    }
}

#[test]
fn c31_t10_arena_an_address_given_for_good_pins_for_good() {
    for client in clients(8 * MIB) {
        let middle = {
            let mut all: Vec<Buffer> = (0..8).map(|number| mega(&client, number)).collect();
            all.sort_by_key(place);
            all[3].address().unwrap();
            all.swap_remove(3)
        };
        let address = place(&middle);
        settles_at(&client, MIB);
        exhausted(room(&client, 6), &["address given out for good (unsafe pointer)"]);
        // References that come and go change nothing.
        middle.increase().unwrap();
        middle.decrease().unwrap();
        exhausted(room(&client, 6), &["address given out for good (unsafe pointer)"]);
        assert_eq!(middle.address(), Ok(address));
        drop(middle);
        room(&client, 6).unwrap();
    }
}

#[test]
fn c31_arena_an_array_that_is_about_to_be_pinned_gets_out_of_the_way() {
    for client in clients(8 * MIB) {
        let kept = fragmented(&client, &[3, 5]);
        let before = place(&kept[0]);
        kept[0].increase().unwrap();
        // Where it was it would divide the memory; above the other array it does not.
        let address = place(&kept[0]);
        assert!(address > place(&kept[1]), "{before:x} -> {address:x}");
        let large = room(&client, 6).unwrap();
        assert_eq!(place(&kept[0]), address);
        kept.iter().for_each(is_whole);
        drop(large);
        kept[0].decrease().unwrap();
    }
}

/// 4 MiB in flight between 4 and 8 of 24 MiB, and its result behind: what is free is at both ends.
fn in_flight(client: &Client) -> (Loaded, Gate, Buffer, Vec<Buffer>) {
    gate::prepare();
    let gated = client.compile(&Program::gate_large()).unwrap();
    let gate = Gate::closed();
    let spacers: Vec<Buffer> = (0..2).map(|_| room(client, 4).unwrap()).collect();
    let x = client.put(&vec![5f32; 1 << 20], &[1 << 20]).unwrap();
    let outputs = gated.run(&[&x, &ticket(client, &gate)]).unwrap();
    gate.wait_reached();
    drop(spacers);
    (gated, gate, x, outputs)
}

#[test]
fn c31_arena_arrays_in_flight_stay_and_who_needs_their_room_waits() {
    for client in clients(24 * MIB).into_iter().map(Arc::new) {
        let (_gated, gate, x, outputs) = in_flight(&client);
        let places = [place(&x), place(&outputs[0])];
        let free = client.stats().unwrap();
        let (hole, in_use) = (free.largest_free_block_bytes.unwrap(), free.bytes_in_use);
        // More than any hole, and so much that only moving what is in flight makes room.
        let wanted = (24 * MIB - in_use) / MIB - free.bytes_reserved.unwrap() / MIB - 1;
        assert!(wanted * MIB > hole, "{free:?}");
        let waiting = {
            let client = Arc::clone(&client);
            elsewhere(move || room(&client, wanted).map(drop))
        };
        assert_eq!([place(&x), place(&outputs[0])], places);
        assert!(waiting.get().is_none(), "nothing can be done while the program stands");
        gate.open();
        assert_eq!(waiting.wait(), Ok(()));
        assert_ne!([place(&x), place(&outputs[0])], places);
        assert_eq!(x.read::<f32>().unwrap(), vec![5f32; 1 << 20]);
        assert_eq!(outputs[0].read::<f32>().unwrap(), vec![6f32; 1 << 20]);
        drop((x, outputs));
        settles_at(&client, 0);
    }
}

#[test]
fn c31_arena_what_is_deleted_in_flight_makes_room_when_it_lands() {
    for client in clients(24 * MIB).into_iter().map(Arc::new) {
        let (gated, gate, x, outputs) = in_flight(&client);
        x.delete().unwrap();
        drop((outputs, gated));
        let waiting = {
            let client = Arc::clone(&client);
            elsewhere(move || room(&client, 20).map(drop))
        };
        gate.open();
        assert_eq!(waiting.wait(), Ok(()));
        drop(x);
        settles_at(&client, 0);
    }
}

#[test]
fn c31_arena_donated_and_deleted_arrays_neither_move_nor_come_back() {
    for client in clients(8 * MIB) {
        let donate = client.compile(&Program::donate()).unwrap();
        let mut kept = fragmented(&client, &[1, 3, 5]);
        let small = client.put(&ramp(0.0), &DIMS).unwrap();
        let result = donate.run1(&[&small]).unwrap();
        let deleted = kept.remove(1);
        deleted.delete().unwrap();
        let (a, b) = (kept[0].read::<f32>().unwrap(), kept[1].read::<f32>().unwrap());
        let _large = room(&client, 5).unwrap();
        for gone in [&small, &deleted] {
            assert!(gone.is_deleted() && gone.read::<f32>().is_err());
        }
        assert_eq!((deleted.dims(), small.dims()), (vec![512, 512], DIMS.to_vec()));
        assert_eq!((kept[0].read::<f32>().unwrap(), kept[1].read::<f32>().unwrap()), (a, b));
        assert_eq!(result.read::<f32>().unwrap(), ramp(1.0));
    }
}

#[test]
fn c31_t11_arena_an_array_that_was_donated_under_a_reference_stays_for_the_outsider() {
    for client in clients(8 * MIB) {
        let donate = client.compile(&Program::donate()).unwrap();
        // Where results lie is known by now: in the argument.
        let mut state = client.put(&ramp(0.0), &DIMS).unwrap();
        for _ in 0..3 {
            state = donate.run1(&[&state]).unwrap();
        }
        let x = client.put(&ramp(100.0), &DIMS).unwrap();
        x.increase().unwrap();
        let address = place(&x);
        // The engine must not write where somebody looks, so it copies.
        let y = donate.run1(&[&x]).unwrap();
        assert_eq!(y.read::<f32>().unwrap(), ramp(101.0));
        let hole = room(&client, 7).unwrap();
        let kept = fragmented_around(&client);
        drop(hole);
        let hole = room(&client, 7).unwrap();
        // SAFETY: the reference keeps the address.
        let there =
            unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<f32>(address), ramp(0.0).len()) };
        assert_eq!(there, ramp(100.0), "the outsider sees what it saw");
        assert_eq!(y.read::<f32>().unwrap(), ramp(101.0));
        x.decrease().unwrap();
        drop((x, y, state, kept, hole));
        settles_at(&client, 0);
    }
}

#[test]
fn c31_arena_open_transfers_stay_and_completed_ones_move() {
    for client in clients(8 * MIB) {
        let bytes: Vec<u8> = (0..MIB as usize).map(|i| i as u8 ^ (i >> 8) as u8).collect();
        let mut all: Vec<Buffer> = (0..3).map(|number| mega(&client, number)).collect();
        let manager = client.transfer(ElementType::U8, &[&[MIB]]).unwrap();
        let array = manager.retrieve(0).unwrap();
        all.extend((4..8).map(|number| mega(&client, number)));
        manager.send(0, 0, &bytes[..1000], false).unwrap().wait().unwrap();
        drop(all);
        settles_at(&client, MIB);
        exhausted(room(&client, 7), &["free 7.00MiB"]);
        manager.send(0, 1000, &bytes[1000..], true).unwrap().wait().unwrap();
        drop(manager);
        let before = place(&array);
        let large = room(&client, 7).unwrap();
        assert_ne!(place(&array), before);
        assert!(array.read::<u8>().unwrap() == bytes);
        drop(large);
        drop(array);
        settles_at(&client, 0);
    }
}

#[test]
fn c31_arena_with_nothing_under_way_there_is_nothing_to_wait_for() {
    // The number of flights is zero, so nobody could ever ring: an answer at all is the proof.
    for client in clients(8 * MIB).into_iter().map(Arc::new) {
        let kept = fragmented(&client, &[1, 3, 5, 7]);
        let asking = {
            let client = Arc::clone(&client);
            elsewhere(move || room(&client, 5).map(drop))
        };
        let failure = asking.wait().unwrap_err();
        failure.expect(Code::RESOURCE_EXHAUSTED, &["5.00MiB (5242880 bytes)", "free 4.00MiB"]);
        assert!(!failure.message.contains("could not move"), "{failure}");
        drop(kept);
    }
}

#[test]
fn c31_arena_tpu_says_it_in_the_tpus_words() {
    let client = limited("tpu", 8 * MIB);
    let mut all: Vec<Buffer> = (0..8).map(|number| mega(&client, number)).collect();
    all.sort_by_key(place);
    all[3].increase().unwrap();
    let pinned = all.swap_remove(3);
    drop(all);
    settles_at(&client, MIB);
    exhausted(
        room(&client, 6),
        &[
            "Attempting to allocate 6.00M. That was not possible. There are 7.00M free. Due to fragmentation, the largest \
           contiguous region of free memory is 4.00M.; (",
        ],
    );
    exhausted(room(&client, 8), &["Attempting to allocate 8.00M. That was not possible. There are 7.00M free."]);
    pinned.decrease().unwrap();
}

#[test]
fn c31_t09_arena_inside_a_host_callback_the_wait_is_bounded() {
    // The program that would free the memory is the one that the callback belongs to.
    for client in clients(24 * MIB).into_iter().map(Arc::new) {
        let inside = Arc::clone(&client);
        let gate = Gate::running(move |_| match room(&inside, 15) {
            Err(failure) if failure.code == Code::RESOURCE_EXHAUSTED && failure.message.contains("in use") => Ok(()),
            Err(failure) => Err(failure.to_string()),
            Ok(_) => Err("it found room".into()),
        });
        // The name makes it a program that calls Python: what the bound is made for.
        let text = "module @xla_ffi_python_cpu_callback {
            func.func public @main(%a: tensor<1048576xf32>, %t: tensor<i32>) -> tensor<1048576xf32> {
              %g = stablehlo.custom_call @pjrt_arena_test_gate(%a, %t)
                {api_version = 4 : i32, has_side_effect = true, backend_config = {}}
                : (tensor<1048576xf32>, tensor<i32>) -> tensor<1048576xf32>
              return %g : tensor<1048576xf32>
            }
          }";
        let gated = client.compile(&Program::text(text)).unwrap();
        let spacers: Vec<Buffer> = (0..2).map(|_| room(&client, 4).unwrap()).collect();
        let x = client.put(&vec![1f32; 1 << 20], &[1 << 20]).unwrap();
        drop(spacers);
        let ticket = ticket(&client, &gate);
        let outcome = elsewhere(move || gated.run(&[&x, &ticket]).and_then(|outputs| outputs[0].ready().wait()));
        assert_eq!(outcome.wait(), Ok(()));
    }
}

#[test]
fn c31_arena_error_buffers_stay() {
    for client in clients(8 * MIB) {
        gate::prepare();
        let gated = client.compile(&Program::gate_donate()).unwrap();
        let gate = Gate::running(|_| Err("on purpose".into()));
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let broken = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
        broken[0].ready().wait().unwrap_err().expect(Code::INTERNAL, &["on purpose"]);
        let kept = fragmented_around(&client);
        let held: Vec<Buffer> = std::iter::from_fn(|| room(&client, 1).ok()).collect();
        for output in &broken {
            assert!(output.read::<f32>().unwrap_err().message.contains("on purpose"));
            assert_eq!(output.dims(), DIMS);
        }
        drop((held, kept, broken, x));
        settles_at(&client, 0);
    }
}

/// As many megabytes as there are, every other one free again.
fn fragmented_around(client: &Client) -> Vec<Buffer> {
    let all: Vec<Buffer> = std::iter::from_fn(|| room(client, 1).ok()).collect();
    all.into_iter().enumerate().filter_map(|(number, buffer)| (number % 2 == 0).then_some(buffer)).collect()
}

#[test]
fn c31_arena_scratch_is_kept_while_a_program_runs() {
    let client = limited("tpu", 24 * MIB);
    gate::prepare();
    // What passes the gate is multiplied twice, so there is an array between.
    let text =
        "module @gated { func.func public @main(%a: tensor<1048576xf32>, %t: tensor<i32>) -> tensor<1024x1024xf32> {
        %g = stablehlo.custom_call @pjrt_arena_test_gate(%a, %t)
          {api_version = 4 : i32, has_side_effect = true, backend_config = {}}
          : (tensor<1048576xf32>, tensor<i32>) -> tensor<1048576xf32>
        %x = stablehlo.reshape %g : (tensor<1048576xf32>) -> tensor<1024x1024xf32>
        %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
          : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
        %z = stablehlo.dot_general %y, %x, contracting_dims = [1] x [0]
          : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
        return %z : tensor<1024x1024xf32> } }";
    let gated = client.compile(&Program::text(text)).unwrap();
    let needed = gated.executable().sizes().unwrap().temp;
    assert!(needed >= 4 * MIB, "{needed}: an array between lies in scratch");
    assert_eq!(client.stats().unwrap().bytes_reserved, Some(0));
    let gate = Gate::closed();
    let x = client.put(&vec![1f32; 1 << 20], &[1 << 20]).unwrap();
    let outputs = gated.run(&[&x, &ticket(&client, &gate)]).unwrap();
    gate.wait_reached();
    let stats = client.stats().unwrap();
    let reserved = stats.bytes_reserved.unwrap();
    assert!((needed..needed + 256).contains(&reserved), "{reserved} for {needed}");
    assert_eq!(stats.bytes_limit, Some(24 * MIB));
    // It is nobody's to allocate, and stays when all that fits in one piece is taken.
    let hole = stats.largest_free_block_bytes.unwrap();
    assert!(hole <= 24 * MIB - stats.bytes_in_use - reserved, "{stats:?}");
    let rest = Buffer::uninitialized(&client, ElementType::U8, &[hole]).unwrap();
    assert_eq!(client.stats().unwrap().bytes_reserved, Some(reserved));
    gate.open();
    assert_eq!(outputs[0].read::<f32>().unwrap(), vec![1048576f32; 1 << 20]);
    drop((outputs, x, rest));
    settles_at(&client, 0);
    // The program is done, and arrays come first: its scratch is room like any other.
    drop(room(&client, 24).unwrap());
    assert_eq!(client.stats().unwrap().bytes_reserved, Some(0));
}

#[test]
fn c31_arena_without_compaction_the_same_request_fails() {
    for strategy in ["preallocate", "growing"] {
        let client = limited(strategy, 8 * MIB);
        let kept = fragmented(&client, &[1, 3, 5, 7]);
        let places: Vec<usize> = kept.iter().map(place).collect();
        exhausted(room(&client, 4), &["enough is free, but not in one piece"]);
        assert_eq!(kept.iter().map(place).collect::<Vec<_>>(), places);
        eventually("one hole fits", || room(&client, 1).is_ok());
    }
}

#[test]
fn c31_arena_always_moves_before_each_allocation() {
    for strategy in ["preallocate", "growing", "tpu"] {
        let options = [("strategy", strategy), ("limit", "256MiB"), ("compact", "always")];
        let client = Client::create(1, &options.map(|(name, value)| (name, Value::from(value)))).unwrap();
        // Far more is free than is needed, and arrays as small as these lie in slots otherwise.
        // None is read before it is to move: a transfer under way would keep it in its place.
        let mut kept: Vec<(Buffer, f32)> =
            (0..8).map(|start| start as f32).map(|start| (client.put(&ramp(start), &DIMS).unwrap(), start)).collect();
        kept.sort_by_key(|(buffer, _)| place(buffer));
        let (mut all, starts): (Vec<Buffer>, Vec<f32>) = kept.into_iter().unzip();
        let places: Vec<usize> = all.iter().map(place).collect();
        drop(all.drain(..4));
        settles_at(&client, 4 * 4 * N as i64);
        assert_eq!(all.iter().map(place).collect::<Vec<_>>(), places[4..], "{strategy}: nothing moves unasked");
        let next = client.put(&ramp(8.0), &DIMS).unwrap();
        assert_eq!(all.iter().map(place).collect::<Vec<_>>(), places[..4], "{strategy}: a transfer to the device");
        drop(all.remove(0));
        settles_at(&client, 4 * 4 * N as i64);
        let result = client.compile(&Program::add_one()).unwrap().run1(&[&next]).unwrap();
        assert_eq!(all.iter().map(place).collect::<Vec<_>>(), places[..3], "{strategy}: a program's result");
        assert_eq!(result.read::<f32>().unwrap(), ramp(9.0));
        let starts = &starts[5..];
        all.iter().zip(starts).for_each(|(buffer, &start)| assert_eq!(buffer.read::<f32>().unwrap(), ramp(start)));
    }
}
