//! Functions that came after PJRT 0.81: an engine that has one does what it is for. An engine without one has no slot
//! for it, which `t24_newer_functions_are_absent_or_work` holds against its version.

use std::ptr;

use plugin_tests::{
    Buffer, Client, Code, ElementType, Event, Failure, HostLayout, Program, Result, Transfer, call, plugin,
    plugin::is_arena, sized, sys,
};

use crate::{DIMS, N, plus, ramp, settles_at, shared};

/// Ends the test, and says so, where the engine's version lacks the function.
macro_rules! needs {
    ($function:ident) => {
        if plugin().table().$function.is_none() {
            eprintln!("not run: PJRT 0.{} has no {}", plugin().version().1, stringify!($function));
            return;
        }
    };
}

/// `PJRT_Client_CreateErrorBuffer` in the first device's default memory.
pub fn error_buffer(client: &Client, code: Code, message: &str) -> Result<Buffer> {
    let args = call!(
        plugin(),
        PJRT_Client_CreateErrorBuffer {
            client: client.raw(),
            error_code: sys::PJRT_Error_Code(code.0),
            error_message: message.as_ptr().cast(),
            error_message_size: message.len(),
            shape_dims: DIMS.as_ptr(),
            shape_num_dims: DIMS.len(),
            shape_element_type: ElementType::F32.raw(),
            memory: client.device().default_memory().raw(),
        }
    )?;
    Ok(Buffer::own(plugin(), args.buffer))
}

#[test]
fn c26_an_error_buffer_hands_its_error_on() {
    needs!(PJRT_Client_CreateErrorBuffer);
    let error = error_buffer(shared(), Code::NOT_FOUND, "nobody sent it").unwrap();
    assert_eq!((error.dims(), error.element_type()), (DIMS.to_vec(), ElementType::F32));
    assert_eq!(error.device(), shared().device());
    error.ready().wait().unwrap_err().expect(Code::NOT_FOUND, &["nobody sent it"]);
    if !is_arena() && plugin().version().1 < 115 {
        eprintln!("not read: the engine ends the process over a shape without a layout");
        return;
    }
    assert!(error.read::<f32>().unwrap_err().message.contains("nobody sent it"));
    let add_one = shared().compile(&Program::add_one()).unwrap();
    let said = match add_one.run1(&[&error]) {
        Ok(result) => result.ready().wait().unwrap_err(),
        Err(failure) => failure,
    };
    assert!(said.message.contains("nobody sent it"), "{said}");
    let copy = error.copy_to_memory(shared().device().default_memory()).unwrap();
    assert!(copy.ready().wait().unwrap_err().message.contains("nobody sent it"));
    error.delete().unwrap();
    assert!(error.is_deleted());
    let x = shared().put(&ramp(0.0), &DIMS).unwrap();
    assert_eq!(add_one.run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0), "the client works on");
}

/// `PJRT_Buffer_Bitcast` to the default layout.
pub fn bitcast(buffer: &Buffer, element_type: ElementType, dims: &[i64]) -> Result<Buffer> {
    let args = call!(
        plugin(),
        PJRT_Buffer_Bitcast {
            buffer: buffer.raw(),
            element_type: element_type.raw(),
            dims: dims.as_ptr(),
            num_dims: dims.len(),
        }
    )?;
    Ok(Buffer::own(plugin(), args.out_buffer))
}

#[test]
fn c26_a_bitcast_shows_the_same_memory_as_another_type() {
    needs!(PJRT_Buffer_Bitcast);
    let floats = shared().put(&ramp(1.0), &DIMS).unwrap();
    let address = floats.address().unwrap();
    let dims = [2, N as i64 / 2];
    let words = bitcast(&floats, ElementType::S32, &dims).unwrap();
    assert!(floats.is_deleted(), "its memory has another owner");
    drop(floats);
    assert_eq!((words.dims(), words.element_type()), (dims.to_vec(), ElementType::S32));
    assert_eq!(words.address().unwrap(), address);
    let bits: Vec<i32> = ramp(1.0).iter().map(|value| value.to_bits() as i32).collect();
    assert_eq!(words.read::<i32>().unwrap(), bits);
    let back = bitcast(&words, ElementType::F32, &DIMS).unwrap();
    let donate = shared().compile(&Program::donate()).unwrap();
    let result = donate.run1(&[&back]).unwrap();
    assert_eq!(result.read::<f32>().unwrap(), ramp(2.0));
    assert!(back.is_deleted());
    assert_eq!(result.address().unwrap(), address, "a program writes into it that is donated it");
}

#[test]
fn c26_arena_a_bitcast_counts_as_its_source_did() {
    needs!(PJRT_Buffer_Bitcast);
    let client = Client::one();
    let floats = client.put(&ramp(1.0), &DIMS).unwrap();
    let held = client.stats().unwrap().bytes_in_use;
    let words = bitcast(&floats, ElementType::S32, &DIMS).unwrap();
    drop(floats);
    assert_eq!(client.stats().unwrap().bytes_in_use, held);
    // Of another size: refused, and nothing is lost.
    let refused = bitcast(&words, ElementType::S32, &[3]).map(drop).unwrap_err();
    assert_eq!(refused.code, Code::INVALID_ARGUMENT, "{refused}");
    assert!(!words.is_deleted());
    drop(words);
    settles_at(&client, 0);
}

#[test]
fn c26_a_literal_arrives_in_the_order_of_its_layout() {
    needs!(PJRT_AsyncHostToDeviceTransferManager_TransferLiteral);
    let dims = [2i64, 3];
    let rows = [1i32, 2, 3, 4, 5, 6];
    for (order, values) in [([1i64, 0], rows), ([0, 1], [1, 4, 2, 5, 3, 6])] {
        let manager = Transfer::create(shared(), ElementType::S32, &[&dims]).unwrap();
        let buffer = manager.retrieve(0).unwrap();
        let mut layout = HostLayout::MinorToMajor(&order).raw();
        let sent = call!(
            plugin(),
            PJRT_AsyncHostToDeviceTransferManager_TransferLiteral {
                transfer_manager: manager.raw(),
                buffer_index: 0,
                data: values.as_ptr().cast(),
                shape_dims: dims.as_ptr(),
                shape_num_dims: dims.len(),
                shape_element_type: ElementType::S32.raw(),
                shape_layout: &raw mut layout,
            }
        )
        .unwrap();
        Event::own(plugin(), sent.done_with_h2d_transfer).unwrap().wait().unwrap();
        buffer.ready().wait().unwrap();
        assert_eq!(buffer.read::<i32>().unwrap(), rows, "{order:?}");
    }
}

fn event() -> Event {
    let created = call!(plugin(), PJRT_Event_Create {}).unwrap();
    Event::own(plugin(), created.event).unwrap()
}

/// `PJRT_Event_Set`.
fn set(event: &Event, outcome: std::result::Result<(), &Failure>) -> Result<()> {
    let (code, message) = outcome.err().map_or((0, ""), |failure| (failure.code.0, failure.message.as_str()));
    call!(
        plugin(),
        PJRT_Event_Set {
            event: event.raw(),
            error_code: sys::PJRT_Error_Code(code),
            error_message: message.as_ptr().cast(),
            error_message_size: message.len(),
        }
    )
    .map(drop)
}

#[test]
fn c11_a_created_event_happens_when_it_is_set() {
    needs!(PJRT_Event_Create);
    let good = event();
    let told = good.on_ready();
    assert!(!good.is_ready() && told.get().is_none());
    set(&good, Ok(())).unwrap();
    told.wait().unwrap();
    assert!(good.is_ready());
    good.wait().unwrap();
    let bad = event();
    let told = bad.on_ready();
    let failure = Failure { code: Code::OUT_OF_RANGE, message: "past the end".into() };
    set(&bad, Err(&failure)).unwrap();
    told.wait().unwrap_err().expect(Code::OUT_OF_RANGE, &["past the end"]);
    bad.error().unwrap_err().expect(Code::OUT_OF_RANGE, &["past the end"]);
}

/// What a buffer waits for that was donated by [`donate`].
pub struct Dependency {
    data: *mut std::ffi::c_void,
    ready: unsafe extern "C" fn(*mut sys::PJRT_Buffer_DonateWithControlDependency_Callback_Args),
}

/// `PJRT_Buffer_DonateWithControlDependency`; `None` where the engine has the function and refuses all buffers, as that
/// of 0.106 does. Then nothing has happened.
pub fn donate(buffer: &Buffer) -> Option<(Buffer, Dependency)> {
    match call!(plugin(), PJRT_Buffer_DonateWithControlDependency { buffer: buffer.raw() }) {
        Ok(args) => {
            let ready = args.dependency_ready_callback.expect("there is a callback");
            Some((Buffer::own(plugin(), args.out_buffer), Dependency { data: args.callback_data, ready }))
        }
        Err(failure) => {
            assert!(plugin().version().1 < 115, "0.115 does it: {failure}");
            failure.expect(Code::UNIMPLEMENTED, &["DonateWithControlDependency is not supported"]);
            assert!(!buffer.is_deleted());
            None
        }
    }
}

impl Dependency {
    pub fn happens(self, outcome: std::result::Result<(), &Failure>) {
        let (code, message) = outcome.err().map_or((0, ""), |failure| (failure.code.0, failure.message.as_str()));
        let mut args = sized!(PJRT_Buffer_DonateWithControlDependency_Callback_Args);
        args.callback_data = self.data;
        args.error_code = sys::PJRT_Error_Code(code);
        args.error_message = if message.is_empty() { ptr::null() } else { message.as_ptr().cast() };
        args.error_message_size = message.len();
        // SAFETY: the callback is called once, with the data that came with it.
        unsafe { (self.ready)(&mut args) };
    }
}

#[test]
fn c18_what_is_donated_behind_a_dependency_is_there_after_it() {
    needs!(PJRT_Buffer_DonateWithControlDependency);
    let source = shared().put(&ramp(3.0), &DIMS).unwrap();
    let address = source.address().unwrap();
    let Some((after, dependency)) = donate(&source) else {
        return assert_eq!(source.read::<f32>().unwrap(), ramp(3.0));
    };
    assert!(source.is_deleted());
    drop(source);
    assert_eq!(after.dims(), DIMS);
    let add_one = shared().compile(&Program::add_one()).unwrap();
    let result = add_one.run1(&[&after]).unwrap();
    assert!(!after.ready().is_ready() && !result.ready().is_ready());
    dependency.happens(Ok(()));
    after.ready().wait().unwrap();
    assert_eq!(after.read::<f32>().unwrap(), ramp(3.0));
    assert_eq!(result.read::<f32>().unwrap(), plus(&ramp(3.0), 1.0));
    assert_eq!(after.address().unwrap(), address);
}

#[test]
fn c18_a_dependency_that_fails_is_the_buffers_error() {
    needs!(PJRT_Buffer_DonateWithControlDependency);
    let source = shared().put(&ramp(3.0), &DIMS).unwrap();
    let Some((after, dependency)) = donate(&source) else { return };
    dependency.happens(Err(&Failure { code: Code::INTERNAL, message: "it did not come to it".into() }));
    assert!(after.ready().wait().unwrap_err().message.contains("it did not come to it"));
}

#[test]
fn c26_uninitialized_buffers_lie_in_every_memory() {
    for memory in shared().device().memories() {
        let buffer = Buffer::uninitialized_in(shared(), memory, ElementType::F32, &DIMS).unwrap();
        buffer.ready().wait().unwrap();
        assert_eq!((buffer.dims(), buffer.memory()), (DIMS.to_vec(), memory));
        assert_eq!(buffer.on_device_size().unwrap(), 4 * N, "{}", memory.kind());
    }
}

#[test]
fn c30_peaks_are_cleared_where_the_version_can() {
    needs!(PJRT_Device_ClearMemoryStats);
    let cleared = call!(plugin(), PJRT_Device_ClearMemoryStats { device: shared().device().raw() }).map(drop);
    match cleared {
        Ok(()) => {}
        // The engine counts nothing.
        Err(failure) => assert!(!is_arena() && failure.code == Code::UNIMPLEMENTED, "{failure}"),
    }
}
