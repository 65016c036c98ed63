//! Asynchronous transfers: buffers first, data later, in pieces.

use plugin_tests::{Code, ElementType, Program, Result, Value, in_child};

use crate::{DIMS, ramp, shared};

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn c26_a_manager_describes_its_buffers() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS, &[3, 5], &[]]).unwrap();
    assert_eq!(manager.count(), 3);
    assert_eq!([0, 1, 2].map(|index| manager.size(index).unwrap()), [4096, 60, 4]);
    assert_eq!(manager.device(), shared().device());
    manager.add_metadata("origin", &Value::from("a test")).unwrap();
}

#[test]
fn c26_data_arrives_whole() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
    let buffer = manager.retrieve(0).unwrap();
    assert_eq!(buffer.dims(), DIMS);
    assert!(!buffer.ready().is_ready());
    let data = bytes(&ramp(2.0));
    manager.send(0, 0, &data, true).unwrap().wait().unwrap();
    buffer.ready().wait().unwrap();
    assert_eq!(buffer.read::<f32>().unwrap(), ramp(2.0));
}

#[test]
fn c26_data_arrives_in_pieces_and_any_order() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS, &DIMS]).unwrap();
    let (first, second) = (manager.retrieve(0).unwrap(), manager.retrieve(1).unwrap());
    let data = bytes(&ramp(2.0));
    let other = bytes(&ramp(9.0));
    let events = [
        manager.send(0, 1024, &data[1024..], false).unwrap(),
        manager.send(1, 0, &other, true).unwrap(),
        manager.send(0, 0, &data[..1024], true).unwrap(),
    ];
    for event in events {
        assert_eq!(event.on_ready().wait(), Ok(()));
    }
    drop(manager);
    assert_eq!(first.read::<f32>().unwrap(), ramp(2.0));
    assert_eq!(second.read::<f32>().unwrap(), ramp(9.0));
}

#[test]
fn c26_a_waiting_buffer_is_an_argument() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
    let buffer = manager.retrieve(0).unwrap();
    let add_one = shared().compile(&Program::add_one()).unwrap();
    let result = plugin_tests::event::elsewhere(move || add_one.run1(&[&buffer]).unwrap().read::<f32>().unwrap());
    manager.send(0, 0, &bytes(&ramp(0.0)), true).unwrap().wait().unwrap();
    assert_eq!(result.wait(), ramp(1.0));
}

#[test]
fn c26_an_error_poisons_the_buffer() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
    let buffer = manager.retrieve(0).unwrap();
    manager.fail(0, Code::INTERNAL, "the network is gone").unwrap();
    let failure = buffer.ready().wait().unwrap_err();
    failure.expect(Code::INTERNAL, &["the network is gone"]);
    assert!(buffer.read::<f32>().unwrap_err().message.contains("the network is gone"));
}

#[test]
fn c26_arena_indices_and_ranges_are_checked() {
    // In a child: the CPU engine of 0.81 reads past its lists here.
    in_child!(&[], || {
        let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
        let data = bytes(&ramp(0.0));
        let refused = |outcome: Result<()>| {
            let failure = outcome.unwrap_err();
            assert!([Code::INVALID_ARGUMENT, Code::OUT_OF_RANGE].contains(&failure.code), "{failure}");
            failure
        };
        for (offset, len) in [(-4, 4), (4096, 4), (4000, 100), (i64::MAX, 4)] {
            refused(manager.send(0, offset, &data[..len], false).map(drop));
        }
        for index in [-1, 1, i32::MAX] {
            let outcomes = [
                manager.size(index).map(drop),
                manager.retrieve(index).map(drop),
                manager.send(index, 0, &data, true).map(drop),
                manager.fail(index, Code::INTERNAL, "no"),
            ];
            for outcome in outcomes {
                let failure = refused(outcome);
                assert!(failure.message.contains(&index.to_string()), "{failure}");
            }
        }
        let buffer = manager.retrieve(0).unwrap();
        manager.send(0, 0, &data, true).unwrap().wait().unwrap();
        assert_eq!(buffer.read::<f32>().unwrap(), ramp(0.0));
    });
}

#[test]
fn c26_arena_an_abandoned_transfer_is_an_error_not_a_hang() {
    let manager = shared().transfer(ElementType::F32, &[&DIMS]).unwrap();
    let buffer = manager.retrieve(0).unwrap();
    let outcome = buffer.ready().on_ready();
    drop(manager);
    assert!(outcome.wait().is_err());
    assert!(buffer.read::<f32>().is_err());
}

#[test]
fn c26_empty_buffers_transfer() {
    let manager = shared().transfer(ElementType::F32, &[&[0]]).unwrap();
    let buffer = manager.retrieve(0).unwrap();
    manager.send(0, 0, &[], true).unwrap().wait().unwrap();
    assert_eq!(buffer.read::<f32>().unwrap(), [0f32; 0]);
}
