//! Data in and out: every semantics, stride and type; raw and strided reads; copies between memories and devices.

use std::{ffi::c_void, ptr};

use plugin_tests::{
    Buffer, Client, Code, Element, HostArray, HostLayout, Semantics,
    buffer::{ALL_SEMANTICS, Bf16, Complex, Int4},
};

use crate::{DIMS, N, four, ramp, shared};

/// Sends `array` with each semantics and reads it back; the host memory stays untouched all the while.
#[track_caller]
fn round_trip<T: Element>(array: &HostArray, expected: &[T]) {
    for semantics in ALL_SEMANTICS {
        let (buffer, done) = shared().from_host(array, semantics).unwrap();
        assert_eq!(buffer.dims(), array.dims, "{semantics:?}");
        assert_eq!(buffer.element_type(), T::TYPE, "{semantics:?}");
        assert_eq!(buffer.read::<T>().unwrap(), expected, "{semantics:?}");
        drop(buffer);
        // A zero-copy buffer may hold the memory until it dies; it has now.
        done.wait().unwrap();
    }
}

fn array<T: Element>(values: &[T], dims: &[i64]) -> HostArray {
    HostArray::of(values, dims).in_memory(shared().device().default_memory())
}

#[test]
fn c07_from_host_all_semantics_dense() {
    round_trip(&array(&ramp(0.0), &DIMS), &ramp(0.0));
    round_trip(&array(&ramp(0.0), &[4, 16, 16]), &ramp(0.0));
}

#[test]
fn c07_from_host_all_semantics_by_device() {
    let values = ramp(7.0);
    round_trip(&HostArray::of(&values, &DIMS).on_device(shared().device()), &values);
}

#[test]
fn c07_from_host_all_semantics_transposed() {
    // A 3 x 4 matrix in row-major memory, presented as its 4 x 3 transpose.
    let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let transposed = array(&values, &[12]).strided(values.as_ptr().cast(), &[4, 3], &[4, 16]);
    let expected: Vec<f32> = (0..12).map(|i| (i % 3 * 4 + i / 3) as f32).collect();
    round_trip(&transposed, &expected);
}

#[test]
fn c07_from_host_all_semantics_every_other_element() {
    let values: Vec<i32> = (0..20).collect();
    let sliced = array(&values, &[20]).strided(values.as_ptr().cast(), &[10], &[8]);
    round_trip(&sliced, &(0..20).step_by(2).collect::<Vec<i32>>());
}

#[test]
fn c07_from_host_all_semantics_negative_stride() {
    let values: Vec<i32> = (0..16).collect();
    let last: *const c_void = values[15..].as_ptr().cast();
    let reversed = array(&values, &[16]).strided(last, &[16], &[-4]);
    round_trip(&reversed, &(0..16).rev().collect::<Vec<i32>>());
}

#[test]
fn c07_from_host_all_semantics_repeated_by_stride_zero() {
    let values = [5i32, 6, 7];
    let repeated = array(&values, &[3]).strided(values.as_ptr().cast(), &[2, 3], &[0, 4]);
    round_trip(&repeated, &[5, 6, 7, 5, 6, 7]);
}

#[test]
fn c07_from_host_all_semantics_empty() {
    round_trip::<f32>(&array::<f32>(&[], &[0]), &[]);
    round_trip::<f32>(&array::<f32>(&[], &[3, 0, 2]), &[]);
}

#[test]
fn c07_from_host_all_semantics_scalar() {
    round_trip(&array(&[42i64], &[]), &[42i64]);
}

#[test]
fn c07_from_host_all_semantics_other_types() {
    let truth: Vec<bool> = (0..65).map(|i| i % 3 == 0).collect();
    round_trip(&array(&truth, &[65]), &truth);
    let brain: Vec<Bf16> = (0..100).map(|i| Bf16(0x3F80 + i)).collect();
    round_trip(&array(&brain, &[100]), &brain);
    let complex: Vec<Complex> = (0..33).map(|i| Complex(i as f32, -(i as f32))).collect();
    round_trip(&array(&complex, &[33]), &complex);
    let bytes: Vec<u8> = (0..=255).collect();
    round_trip(&array(&bytes, &[256]), &bytes);
    let doubles: Vec<f64> = (0..10).map(|i| f64::from(i) / 3.0).collect();
    round_trip(&array(&doubles, &[10]), &doubles);
}

#[test]
fn c07_from_host_all_semantics_four_bits() {
    let small: Vec<Int4> = (0..16).map(|i| Int4(i - 8)).collect();
    round_trip(&array(&small, &[16]), &small);
    // An odd count leaves half a byte.
    round_trip(&array(&small[..7], &[7]), &small[..7]);
}

#[test]
fn c07_memory_of_a_call_is_the_callers_on_return() {
    let mut values = ramp(0.0);
    let (buffer, _done) = shared().from_host(&array(&values, &DIMS), Semantics::OnlyDuringCall).unwrap();
    values.fill(-1.0);
    assert_eq!(buffer.read::<f32>().unwrap(), ramp(0.0));
}

#[test]
fn c08_memory_of_a_transfer_is_the_callers_after_its_event() {
    let mut values = ramp(0.0);
    let (buffer, done) = shared().from_host(&array(&values, &DIMS), Semantics::UntilTransferCompletes).unwrap();
    assert_eq!(done.on_ready().wait(), Ok(()));
    values.fill(-1.0);
    assert_eq!(buffer.read::<f32>().unwrap(), ramp(0.0));
}

#[test]
fn c07_a_zero_copy_transfer_ends_when_its_buffer_dies() {
    let values = ramp(0.0);
    let (buffer, done) = shared().from_host(&array(&values, &DIMS), Semantics::ZeroCopy).unwrap();
    let signal = done.on_ready();
    assert_eq!(buffer.read::<f32>().unwrap(), values);
    drop(buffer);
    assert_eq!(signal.wait(), Ok(()));
}

#[test]
fn c12_reads_tell_their_size_and_check_the_room() {
    let buffer = shared().put(&ramp(0.0), &DIMS).unwrap();
    assert_eq!(buffer.host_size().unwrap(), 4 * N);
    let failure = buffer.to_host(&mut vec![0; 4 * N - 1]).map(drop).unwrap_err();
    failure.expect(Code::INVALID_ARGUMENT, &["`dst_size` must be >= 4096, got 4095"]);
    let mut large = vec![0xAA; 4 * N + 8];
    buffer.to_host(&mut large).unwrap().wait().unwrap();
    assert_eq!(large[4 * N..], [0xAA; 8]);
    assert_eq!(large[4..8], 1f32.to_le_bytes());
}

#[test]
fn c12_empty_reads_still_give_an_event() {
    let buffer = shared().put::<f32>(&[], &[0, 4]).unwrap();
    assert_eq!(buffer.host_size().unwrap(), 0);
    let mut room = [0u8; 8];
    buffer.to_host(&mut room).unwrap().wait().unwrap();
    assert_eq!(room, [0; 8]);
}

#[test]
fn c12_reads_take_a_row_major_layout_and_refuse_strides() {
    // No other order is asked for here: the CPU engine of 0.81 accepts one and ignores it.
    let values = [0f32, 1.0, 2.0, 3.0, 4.0, 5.0];
    let buffer = shared().put(&values, &[2, 3]).unwrap();
    assert_eq!(buffer.read_as::<f32>(&HostLayout::MinorToMajor(&[1, 0])).unwrap(), values);
    let failure = buffer.read_as::<f32>(&HostLayout::Strides(&[12, 4])).unwrap_err();
    failure.expect(Code::INVALID_ARGUMENT, &["strides"]);
}

#[test]
fn c13_raw_reads_take_any_range_inside() {
    let values: Vec<u8> = (0..200).collect();
    let buffer = shared().put(&values, &[200]).unwrap();
    assert_eq!(buffer.read_raw(0, 200).unwrap(), values);
    assert_eq!(buffer.read_raw(50, 25).unwrap(), values[50..75]);
    assert_eq!(buffer.read_raw(200, 0).unwrap(), Vec::<u8>::new());
}

#[test]
fn c13_raw_reads_outside_are_refused() {
    let buffer = shared().put(&[0u8; 200], &[200]).unwrap();
    for (offset, len) in [(-1, 4), (201, 0), (150, 51)] {
        let failure = buffer.read_raw(offset, len).unwrap_err();
        let text =
            format!("Copy raw buffer called on buffer size 200 with invalid offset {offset}, transfer size {len}");
        failure.expect(Code::INVALID_ARGUMENT, &[&text]);
    }
}

#[test]
fn c24_a_copy_in_the_same_memory_is_a_new_buffer() {
    let source = shared().put(&ramp(1.0), &DIMS).unwrap();
    let copy = source.copy_to_memory(source.memory()).unwrap();
    assert_ne!(copy.address().unwrap(), source.address().unwrap());
    assert_eq!(copy.read::<f32>().unwrap(), ramp(1.0));
    source.delete().unwrap();
    assert_eq!(copy.read::<f32>().unwrap(), ramp(1.0));
}

#[test]
fn c24_copies_between_devices_survive_their_source() {
    let [first, second, ..] = four().devices()[..] else { panic!("four devices") };
    let source = four().put_on(first, &ramp(1.0), &DIMS).unwrap();
    let copies: Vec<Buffer> = (0..16).map(|_| source.copy_to_device(second).unwrap()).collect();
    drop(source);
    for copy in copies {
        assert_eq!(copy.device(), second);
        assert_eq!(copy.memory(), second.default_memory());
        assert_eq!(copy.read::<f32>().unwrap(), ramp(1.0));
    }
}

#[test]
fn c24_small_types_copy() {
    let small: Vec<Int4> = (0..16).map(|i| Int4(i - 8)).collect();
    let source = shared().put(&small, &[16]).unwrap();
    let copy = source.copy_to_memory(source.memory()).unwrap();
    drop(source);
    assert_eq!(copy.read::<Int4>().unwrap(), small);
}

#[test]
fn c26_uninitialized_buffers_are_ready_and_sized() {
    let buffer = Buffer::uninitialized(shared(), plugin_tests::ElementType::F32, &[16, 64]).unwrap();
    buffer.ready().wait().unwrap();
    assert_eq!(buffer.dims(), [16, 64]);
    assert_eq!(buffer.on_device_size().unwrap(), 4096);
    assert_eq!(buffer.device(), shared().device());
    let donate = shared().compile(&plugin_tests::Program::donate()).unwrap();
    let shaped = Buffer::uninitialized(shared(), plugin_tests::ElementType::F32, &DIMS).unwrap();
    let address = shaped.address().unwrap();
    assert_eq!(donate.run1(&[&shaped]).unwrap().address().unwrap(), address);
}

#[test]
fn t02_arena_memory_is_aligned_for_the_engine() {
    // Below 64 bytes of alignment the CPU engine copies instead of viewing, without a word.
    let client = Client::one();
    let sizes = [1usize, 3, 64, 65, 4097];
    let buffers: Vec<Buffer> =
        sizes.iter().map(|&size| client.put(&vec![1u8; size], &[size as i64]).unwrap()).collect();
    for buffer in &buffers {
        assert_eq!(buffer.address().unwrap() % 64, 0);
    }
}

#[test]
fn c07_arena_arrays_that_contradict_themselves_are_refused() {
    let values = ramp(0.0);
    let nowhere = HostArray::of(&values, &DIMS).strided(ptr::null(), &DIMS, &[4, 4]);
    let failure = shared().from_host(&nowhere.in_memory(shared().device().default_memory()), Semantics::OnlyDuringCall);
    assert_eq!(failure.map(drop).unwrap_err().code, Code::INVALID_ARGUMENT);
}
