//! One buffer: metadata, deletion, readiness, pointers.

use plugin_tests::{Code, ElementType, plugin};

use crate::{DIMS, N, ramp, shared};

#[test]
fn c09_metadata_is_right() {
    let buffer = shared().put(&[1f32; 24], &[2, 3, 4]).unwrap();
    assert_eq!(buffer.dims(), [2, 3, 4]);
    assert_eq!(buffer.unpadded_dims(), [2, 3, 4]);
    assert!(buffer.dynamic_dims().is_empty());
    assert_eq!(buffer.element_type(), ElementType::F32);
    assert_eq!(buffer.on_device_size().unwrap(), 96);
    assert_eq!(buffer.minor_to_major(), [2, 1, 0]);
    assert!(buffer.is_on_cpu());
}

#[test]
fn c09_metadata_outlives_deletion() {
    let buffer = shared().put(&[1f32; 6], &[2, 3]).unwrap();
    buffer.delete().unwrap();
    assert_eq!(buffer.dims(), [2, 3]);
    assert_eq!(buffer.element_type(), ElementType::F32);
    assert_eq!(buffer.minor_to_major(), [1, 0]);
    assert_eq!(buffer.device(), shared().device());
    assert_eq!(buffer.memory(), shared().device().default_memory());
}

#[test]
fn c09_arena_sizes_outlive_deletion() {
    let buffer = shared().put(&[1f32; 6], &[2, 3]).unwrap();
    buffer.delete().unwrap();
    assert_eq!(buffer.on_device_size().unwrap(), 24);
    assert_eq!(buffer.unpadded_dims(), [2, 3]);
}

#[test]
fn t34_device_and_memory_are_the_clients_own_handles() {
    // jaxlib maps both by address and crashes on one that the client did not list.
    let buffer = shared().put(&[1f32], &[]).unwrap();
    assert_eq!(buffer.device(), shared().devices()[0]);
    assert!(shared().memories().contains(&buffer.memory()));
}

#[test]
fn c10_deletion_is_final_and_repeatable() {
    let buffer = shared().put(&ramp(0.0), &DIMS).unwrap();
    assert!(!buffer.is_deleted());
    buffer.delete().unwrap();
    assert!(buffer.is_deleted());
    buffer.delete().unwrap();
    assert!(buffer.is_deleted());
}

#[test]
fn c10_a_deleted_buffer_refuses_use() {
    let buffer = shared().put(&ramp(0.0), &DIMS).unwrap();
    let memory = buffer.memory();
    buffer.delete().unwrap();
    let refusals = [
        ("read", buffer.read::<f32>().map(drop)),
        ("copy", buffer.copy_to_memory(memory).map(drop)),
        ("address", buffer.address().map(drop)),
        ("increase", buffer.increase()),
        ("opaque", buffer.opaque_pointer().map(drop)),
        ("raw", buffer.read_raw(0, 4).map(drop)),
    ];
    for (what, refusal) in refusals {
        let failure = refusal.expect_err(what);
        assert_eq!(failure.code, Code::INVALID_ARGUMENT, "{what}: {}", failure.message);
        assert!(failure.message.contains("deleted or donated"), "{what}: {}", failure.message);
    }
}

#[test]
fn c10_readiness_of_a_deleted_buffer_fails_in_the_event() {
    let buffer = shared().put(&[1f32], &[]).unwrap();
    buffer.delete().unwrap();
    buffer.ready().wait().unwrap_err().expect(Code::INVALID_ARGUMENT, &["deleted or donated"]);
}

#[test]
fn c11_ready_events_await_and_call_back() {
    let buffer = shared().put(&ramp(0.0), &DIMS).unwrap();
    let event = buffer.ready();
    event.wait().unwrap();
    assert!(event.is_ready());
    event.error().unwrap();
    let signals: Vec<_> = (0..3).map(|_| event.on_ready()).collect();
    for signal in signals {
        assert_eq!(signal.wait(), Ok(()));
    }
}

#[test]
fn c11_events_may_be_destroyed_at_any_time() {
    let buffer = shared().put(&ramp(0.0), &DIMS).unwrap();
    drop(buffer.ready());
    let event = buffer.ready();
    let signal = event.on_ready();
    drop(event);
    assert_eq!(signal.wait(), Ok(()));
    assert_eq!(buffer.read::<f32>().unwrap(), ramp(0.0));
}

#[test]
fn c14_references_are_counted() {
    let buffer = shared().put(&ramp(0.0), &DIMS).unwrap();
    for _ in 0..3 {
        buffer.increase().unwrap();
    }
    for _ in 0..3 {
        buffer.decrease().unwrap();
    }
    let failure = buffer.decrease().unwrap_err();
    assert_eq!(failure.code, Code::INVALID_ARGUMENT);
    assert_eq!(failure.message, "Attempting to decrease reference on a buffer with zero reference count.");
    assert_eq!(buffer.read::<f32>().unwrap(), ramp(0.0));
}

#[test]
fn c14_pointers_agree_and_stay() {
    let buffer = shared().put(&ramp(3.0), &DIMS).unwrap();
    let address = buffer.address().unwrap();
    assert_ne!(address, 0);
    assert_eq!(buffer.opaque_pointer().unwrap() as usize, address);
    buffer.increase().unwrap();
    assert_eq!(buffer.address().unwrap(), address);
    // SAFETY: the buffer is referenced, on the CPU, ready, and N floats long.
    let seen = unsafe { std::slice::from_raw_parts(address as *const f32, N) };
    assert_eq!(seen, ramp(3.0));
    buffer.decrease().unwrap();
}

#[test]
fn t10_memory_outlives_deletion_while_someone_holds_its_address() {
    // np.asarray on the CPU is a view of the buffer; JAX may delete the array while the view lives.
    let client = plugin_tests::Client::one();
    let buffer = client.put(&ramp(3.0), &DIMS).unwrap();
    buffer.increase().unwrap();
    let address = buffer.opaque_pointer().unwrap() as *const f32;
    buffer.delete().unwrap();
    // Whatever is allocated now must not be the memory that the view shows.
    let others: Vec<_> = (0..64).map(|_| client.put(&ramp(-9e5), &DIMS).unwrap()).collect();
    // SAFETY: the reference keeps the memory alive; that is the promise under test.
    let seen = unsafe { std::slice::from_raw_parts(address, N) };
    assert_eq!(seen, ramp(3.0));
    buffer.decrease().unwrap();
    drop(others);
}

#[test]
fn t24_newer_functions_are_absent_or_work() {
    // 0.89 brought PJRT_Event_Create; before it the slot must not look like a function.
    assert_eq!(plugin().table().PJRT_Event_Create.is_some(), plugin().version().1 >= 89);
    assert_eq!(plugin().table().PJRT_Client_CreateErrorBuffer.is_some(), plugin().version().1 >= 82);
}
