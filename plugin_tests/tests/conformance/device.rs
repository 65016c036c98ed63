//! Devices and memories.

use plugin_tests::{call, plugin};

use crate::four;

#[test]
fn c06_devices_describe_themselves() {
    for (index, device) in four().devices().into_iter().enumerate() {
        assert!(device.is_addressable());
        assert_eq!(device.id(), index as i32);
        assert_eq!(device.local_hardware_id(), index as i32);
        let description = device.description();
        let args = call!(plugin(), PJRT_DeviceDescription_ProcessIndex { device_description: description }).unwrap();
        assert_eq!(args.process_index, 0);
        let args = call!(plugin(), PJRT_DeviceDescription_Kind { device_description: description }).unwrap();
        assert!(args.device_kind_size > 0);
        let args = call!(plugin(), PJRT_DeviceDescription_DebugString { device_description: description }).unwrap();
        assert!(args.debug_string_size > 0);
        let args = call!(plugin(), PJRT_DeviceDescription_ToString { device_description: description }).unwrap();
        assert!(args.to_string_size > 0);
        call!(plugin(), PJRT_DeviceDescription_Attributes { device_description: description }).unwrap();
    }
}

#[test]
fn c06_default_memory_is_one_of_the_devices_memories() {
    for device in four().devices() {
        let memories = device.memories();
        assert!(memories.contains(&device.default_memory()));
        for memory in memories {
            assert!(four().memories().contains(&memory));
            assert!(memory.devices().contains(&device));
            assert!(!memory.kind().is_empty());
            let args = call!(plugin(), PJRT_Memory_DebugString { memory: memory.raw() }).unwrap();
            assert!(args.debug_string_size > 0);
            let args = call!(plugin(), PJRT_Memory_ToString { memory: memory.raw() }).unwrap();
            assert!(args.to_string_size > 0);
            call!(plugin(), PJRT_Memory_Kind_Id { memory: memory.raw() }).unwrap();
        }
    }
}

#[test]
fn c06_memory_ids_are_distinct() {
    let mut ids: Vec<i32> = four().memories().iter().map(|memory| memory.id()).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all);
}
