//! Arrays to the device and back.

use plugin_tests::{
    Buffer, Client, Code, Element, ElementType, Event, Failure, HostArray, HostLayout, Program, Value, alias,
    buffer::{ALL_SEMANTICS, Bf16, Complex, Int4},
    call, plugin,
};

use crate::{
    common::{DIMS, client, ramp},
    on_fake_gpu,
};

/// Slow enough that what is not ordered comes too early.
const SLOW: (&str, &str) = ("FAKE_CUDA_LATENCY_US", "2000");

fn round_trip<T: Element>(client: &plugin_tests::Client, values: &[T]) {
    for semantics in ALL_SEMANTICS {
        let array = HostArray::of(values, &[values.len() as i64]).on_device(client.device());
        let (buffer, done) = client.from_host(&array, semantics).unwrap();
        assert_eq!(buffer.read::<T>().unwrap(), values, "{semantics:?}");
        done.wait().unwrap();
    }
}

#[test]
fn arrays_come_back_as_they_went() {
    on_fake_gpu!([SLOW], || {
        let client = client();
        assert_eq!(client.platform_name(), "cuda");
        round_trip(&client, &ramp(0.5));
        round_trip(&client, &[true, false, true]);
        round_trip(&client, &[1.0_f64, -2.0]);
        round_trip(&client, &[Bf16(3), Bf16(0x7FFF)]);
        round_trip(&client, &[Complex(1.0, 2.0)]);
        round_trip(&client, &[Int4(1), Int4(-3), Int4(7)]);
        round_trip::<f32>(&client, &[]);
        // Backwards, and every other column.
        let values: Vec<i32> = (0..12).collect();
        let array = HostArray::of(&values, &[12]).on_device(client.device());
        let array = array.strided((&raw const values[11]).cast(), &[3, 2], &[-16, -8]);
        let (buffer, _) = client.from_host(&array, ALL_SEMANTICS[2]).unwrap();
        assert_eq!(buffer.read::<i32>().unwrap(), [11, 9, 7, 5, 3, 1]);
        assert!(!buffer.is_on_cpu());
        assert_eq!(buffer.read_raw(4, 8).unwrap(), [9_i32.to_ne_bytes(), 7_i32.to_ne_bytes()].concat());
        buffer.read_raw(20, 8).unwrap_err().expect(Code::INVALID_ARGUMENT, &["buffer size 24", "offset 20", "size 8"]);
    });
}

#[test]
fn narrow_types_are_packed_on_the_device() {
    on_fake_gpu!([], || {
        let client = client();
        let buffer = client.put(&[Int4(1), Int4(2), Int4(3)], &[3]).unwrap();
        assert_eq!(buffer.on_device_size().unwrap(), 2);
        assert_eq!(buffer.read_raw(0, 2).unwrap(), [0x21, 0x03]);
    });
}

#[test]
fn arrays_may_lie_in_another_order_on_the_device() {
    on_fake_gpu!([], || {
        let client = client();
        let host = [1_u8, 2, 3, 4, 5, 6];
        let columns_first = HostLayout::MinorToMajor(&[0, 1]);
        let mut layout = columns_first.raw();
        let args = call!(
            plugin(),
            PJRT_Client_BufferFromHostBuffer {
                client: client.raw(),
                data: host.as_ptr().cast(),
                type_: ElementType::U8.raw(),
                dims: [2_i64, 3].as_ptr(),
                num_dims: 2,
                device: client.device().raw(),
                device_layout: &raw mut layout,
            }
        )
        .unwrap();
        drop(Event::own(plugin(), args.done_with_host_buffer));
        let buffer = Buffer::own(plugin(), args.buffer);
        assert_eq!(buffer.minor_to_major(), [0, 1]);
        let there = [1, 4, 2, 5, 3, 6];
        assert_eq!(buffer.read_raw(0, 6).unwrap(), there);
        assert_eq!(buffer.read::<u8>().unwrap(), there, "without another wish as it lies");
        assert_eq!(buffer.read_as::<u8>(&columns_first).unwrap(), there);
        assert_eq!(buffer.read_as::<u8>(&HostLayout::MinorToMajor(&[1, 0])).unwrap(), host);
        let refused = |layout| buffer.read_as::<u8>(&layout).unwrap_err().expect(Code::INVALID_ARGUMENT, &[]);
        refused(HostLayout::Strides(&[3, 1]));
        refused(HostLayout::MinorToMajor(&[0, 0]));
    });
}

#[test]
fn copies_go_to_every_device_and_memory() {
    on_fake_gpu!([SLOW, ("FAKE_CUDA_GPUS", "2")], || {
        let client = client();
        let devices = client.addressable_devices();
        assert_eq!(devices.len(), 2);
        assert_eq!(devices.iter().map(|device| device.local_hardware_id()).collect::<Vec<_>>(), [0, 1]);
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let there = x.copy_to_device(devices[1]).unwrap();
        assert_eq!(there.device(), devices[1]);
        for memory in devices.iter().flat_map(|device| device.memories()) {
            let copy = there.copy_to_memory(memory).unwrap();
            assert_eq!(copy.memory(), memory);
            assert_ne!(copy.address().unwrap(), there.address().unwrap());
            assert_eq!(copy.read::<f32>().unwrap(), ramp(0.0));
        }
        // The source may go while it is copied.
        let again = there.copy_to_device(devices[0]).unwrap();
        drop((x, there));
        assert_eq!(again.read::<f32>().unwrap(), ramp(0.0));
    });
}

#[test]
fn arrays_get_their_bytes_later() {
    on_fake_gpu!([SLOW], || {
        let client = client();
        let transfer = client.transfer(ElementType::F32, &[&DIMS, &DIMS, &DIMS]).unwrap();
        let buffers: Vec<Buffer> = (0..3).map(|index| transfer.retrieve(index).unwrap()).collect();
        transfer.retrieve(0).map(drop).unwrap_err().expect(Code::INVALID_ARGUMENT, &["retrieved already"]);
        let copy = buffers[0].copy_to_memory(client.device().default_memory()).unwrap();
        assert!(!buffers[0].ready().is_ready());
        let bytes: Vec<u8> = ramp(7.0).iter().flat_map(|value| value.to_ne_bytes()).collect();
        let (first, rest) = bytes.split_at(1000);
        let events = [transfer.send(0, 1000, rest, false).unwrap(), transfer.send(0, 0, first, true).unwrap()];
        assert_eq!(buffers[0].read::<f32>().unwrap(), ramp(7.0));
        assert_eq!(copy.read::<f32>().unwrap(), ramp(7.0));
        events.iter().for_each(|event| event.wait().unwrap());
        transfer.fail(1, Code::FAILED_PRECONDITION, "no bytes").unwrap();
        buffers[1].read::<f32>().unwrap_err().expect(Code::FAILED_PRECONDITION, &["no bytes"]);
        drop(transfer);
        assert!(buffers[2].ready().wait().is_err(), "what was not filled is an error");
        let add_one = client.compile(&Program::add_one()).unwrap();
        let result = add_one.run1(&[&buffers[1]]).unwrap();
        result.ready().wait().unwrap_err().expect(Code::FAILED_PRECONDITION, &["no bytes"]);
    });
}

#[test]
fn an_alias_shows_what_it_was_promised() {
    on_fake_gpu!([SLOW], || {
        let client = client();
        let (good, promise) = alias::create(&client, ElementType::F32, &DIMS).unwrap();
        let add_one = client.compile(&Program::add_one()).unwrap();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        let y = add_one.run1(&[&x]).unwrap();
        assert!(!good.ready().is_ready());
        promise.keep(Ok(&y)).unwrap();
        assert!(y.is_deleted());
        drop((x, y));
        assert_eq!(add_one.run1(&[&good]).unwrap().read::<f32>().unwrap(), ramp(2.0));
        assert_eq!(good.read::<f32>().unwrap(), ramp(1.0));
        let (bad, promise) = alias::create(&client, ElementType::F32, &DIMS).unwrap();
        let failure = Failure { code: Code::INTERNAL, message: "never arrived".into() };
        promise.keep(Err(&failure)).unwrap();
        assert_eq!(bad.ready().wait(), Err(failure.clone()));
        assert_eq!(add_one.run1(&[&bad]).unwrap().ready().wait(), Err(failure));
        let (other, promise) = alias::create(&client, ElementType::F32, &[1]).unwrap();
        promise.keep(Ok(&good)).unwrap_err().expect(Code::INVALID_ARGUMENT, &["FulfillAliasBuffer"]);
        assert!(other.ready().wait().is_err());
    });
}

#[test]
fn memory_goes_back_to_the_pool() {
    on_fake_gpu!([("FAKE_CUDA_MEMORY", "8MiB")], || {
        let client = Client::create_with(plugin(), &[("preallocate", Value::Bool(false))]).unwrap();
        let whole = [6 << 20];
        // Each takes most of the memory, so one must be gone before the next.
        for _ in 0..20 {
            let buffer = Buffer::uninitialized(&client, ElementType::U8, &whole).unwrap();
            buffer.ready().wait().unwrap();
            assert_eq!(client.stats().unwrap().bytes_in_use, whole[0]);
        }
        assert_eq!(client.stats().unwrap().bytes_in_use, 0);
        let _kept = Buffer::uninitialized(&client, ElementType::U8, &whole).unwrap();
        Buffer::uninitialized(&client, ElementType::U8, &whole)
            .map(drop)
            .unwrap_err()
            .expect(Code::RESOURCE_EXHAUSTED, &["6291456 bytes", "CUDA_ERROR_OUT_OF_MEMORY"]);
    });
}

#[test]
fn outsiders_references_keep_the_memory() {
    on_fake_gpu!([], || {
        let client = client();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        x.decrease().unwrap_err().expect(Code::INVALID_ARGUMENT, &["zero reference count"]);
        x.ready().wait().unwrap();
        x.increase().unwrap();
        let in_use = client.stats().unwrap().bytes_in_use;
        x.delete().unwrap();
        assert!(x.is_deleted());
        assert_eq!(client.stats().unwrap().bytes_in_use, in_use);
        x.read::<f32>().unwrap_err().expect(Code::INVALID_ARGUMENT, &["deleted or donated"]);
        x.decrease().unwrap();
        assert_eq!(client.stats().unwrap().bytes_in_use, 0);
    });
}

#[test]
fn events_are_made_and_set() {
    on_fake_gpu!([], || {
        let event = || {
            let made = call!(plugin(), PJRT_Event_Create {}).unwrap().event;
            Event::own(plugin(), made).unwrap()
        };
        let (good, bad) = (event(), event());
        let told = bad.on_ready();
        assert!(!good.is_ready() && told.get().is_none());
        call!(plugin(), PJRT_Event_Set { event: good.raw() }).unwrap();
        assert!(good.is_ready());
        assert_eq!(good.wait(), Ok(()));
        let why = "lost";
        call!(
            plugin(),
            PJRT_Event_Set {
                event: bad.raw(),
                error_code: plugin_tests::sys::PJRT_Error_Code_DATA_LOSS,
                error_message: why.as_ptr().cast(),
                error_message_size: why.len(),
            }
        )
        .unwrap();
        told.wait().unwrap_err().expect(Code(15), &[why]);
        bad.wait().unwrap_err().expect(Code(15), &[why]);
    });
}
