//! The client: what it is called, its devices, its topology.

use plugin_tests::{Client, Code, Result, call, plugin};

use crate::{engine, four, shared};

#[test]
fn c02_platform_is_the_engines() {
    // JAX's lowering rules, FFI handlers and dlpack key on the name.
    assert_eq!(shared().platform_name(), "cpu");
    let args = call!(plugin(), PJRT_Client_ProcessIndex { client: shared().raw() }).unwrap();
    assert_eq!(args.process_index, 0);
    assert!(!shared().platform_version().is_empty());
}

#[test]
fn c02_arena_platform_version_differs_from_the_engines() {
    // The version is part of JAX's compilation-cache key; programs of the bare engine must not be taken for ours (T16).
    let bare = Client::create_on(engine(), 1, &[]).unwrap();
    assert_ne!(shared().platform_version(), bare.platform_version());
    assert!(shared().platform_version().contains("arena"), "{}", shared().platform_version());
}

#[test]
fn c02_device_counts_follow_the_option() {
    assert_eq!(shared().devices().len(), 1);
    assert_eq!(four().devices().len(), 4);
    assert_eq!(four().devices(), four().addressable_devices());
}

#[test]
fn c02_lookups_give_the_listed_handles() {
    for device in four().devices() {
        let by_id = call!(plugin(), PJRT_Client_LookupDevice { client: four().raw(), id: device.id() }).unwrap();
        assert_eq!(by_id.device, device.raw());
        let by_local = call!(
            plugin(),
            PJRT_Client_LookupAddressableDevice { client: four().raw(), local_hardware_id: device.local_hardware_id() }
        )
        .unwrap();
        assert_eq!(by_local.addressable_device, device.raw());
    }
}

#[test]
fn c03_unknown_devices_are_refused() {
    for id in [-1, 99] {
        let failure = call!(plugin(), PJRT_Client_LookupDevice { client: four().raw(), id: id }).map(drop).unwrap_err();
        failure.expect(Code::INVALID_ARGUMENT, &["No matching device found for device_id", &id.to_string()]);
        let failure =
            call!(plugin(), PJRT_Client_LookupAddressableDevice { client: four().raw(), local_hardware_id: id })
                .map(drop)
                .unwrap_err();
        assert_eq!(failure.code, Code::INVALID_ARGUMENT);
    }
}

fn assignment(replicas: i32, partitions: i32, room: usize) -> Result<Vec<i32>> {
    let mut ids = vec![-7; room];
    call!(
        plugin(),
        PJRT_Client_DefaultDeviceAssignment {
            client: four().raw(),
            num_replicas: replicas,
            num_partitions: partitions,
            default_assignment_size: room,
            default_assignment: ids.as_mut_ptr(),
        }
    )
    .map(|_| ids)
}

#[test]
fn c03_default_assignment_names_every_device() {
    let mut ids = assignment(2, 2, 4).unwrap();
    ids.sort_unstable();
    let mut expected: Vec<i32> = four().devices().iter().map(|device| device.id()).collect();
    expected.sort_unstable();
    assert_eq!(ids, expected);
}

#[test]
fn c03_default_assignment_needs_room_and_sense() {
    assert_eq!(assignment(2, 2, 3).unwrap_err().code, Code::FAILED_PRECONDITION);
    // 0.81 compares sizes before signs; later versions look at the sign first.
    let code = assignment(-1, 2, 4).unwrap_err().code;
    assert!([Code::INVALID_ARGUMENT, Code::FAILED_PRECONDITION].contains(&code), "{code:?}");
}

#[test]
fn c02_topology_lists_the_devices() {
    let topology = call!(plugin(), PJRT_Client_TopologyDescription { client: four().raw() }).unwrap().topology;
    let args = call!(plugin(), PJRT_TopologyDescription_PlatformName { topology: topology }).unwrap();
    assert_eq!(args.platform_name_size, "cpu".len());
    let args = call!(plugin(), PJRT_TopologyDescription_GetDeviceDescriptions { topology: topology }).unwrap();
    assert_eq!(args.num_descriptions, 4);
    call!(plugin(), PJRT_TopologyDescription_Attributes { topology: topology }).unwrap();
    call!(plugin(), PJRT_TopologyDescription_PlatformVersion { topology: topology }).unwrap();
}

#[test]
fn c33_mapped_host_memory_is_unmapped_or_unsupported() {
    let mut page = vec![0u8; 4096];
    let data = page.as_mut_ptr().cast();
    match call!(plugin(), PJRT_Client_DmaMap { client: shared().raw(), data: data, size: page.len() }).map(drop) {
        Ok(()) => drop(call!(plugin(), PJRT_Client_DmaUnmap { client: shared().raw(), data: data }).unwrap()),
        Err(failure) => assert_eq!(failure.code, Code::UNIMPLEMENTED, "{failure}"),
    }
}
