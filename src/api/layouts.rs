//! The layouts of arrays, as the Layouts extension gives them.
//!
//! An object of the engine is made, turned into text and destroyed for each view that NumPy takes of an array. Nearly
//! all arrays have the default layout, so those of up to eight dimensions are constants here, with their texts. All
//! others are the engine's.

use std::ptr;

use crate::{
    api::{call::Call, entry::Entry},
    engine::Outcome,
    runtime::{buffer::Buffer, shape::element_bytes},
    sys,
};

/// The texts of the default layouts, by the number of dimensions: the last is the fastest (XLA's `Layout::ToString`).
/// The address of a text is the handle of its layout.
static DEFAULTS: [&str; 9] = [
    "{}",
    "{0}",
    "{1,0}",
    "{2,1,0}",
    "{3,2,1,0}",
    "{4,3,2,1,0}",
    "{5,4,3,2,1,0}",
    "{6,5,4,3,2,1,0}",
    "{7,6,5,4,3,2,1,0}",
];

/// The constant for an array in a block of an arena with the default layout; `None` where it is the engine's to say.
fn constant(buffer: &Buffer) -> Option<&'static &'static str> {
    let shape = &buffer.shape;
    // The layout of packed elements says how many bits they have. That of an array in an arena is known, if it is not
    // the default one.
    let is_default = element_bytes(shape.element_type).is_some() && shape.own_layout().is_none();
    let text = DEFAULTS.get(shape.dims.len()).filter(|_| is_default)?;
    buffer.usage().peek(|body| body.storage.block().is_some()).then_some(text)
}

/// The text of a layout of this module; `None` for one of the engine's.
fn text(layout: *const sys::PJRT_Layouts_MemoryLayout) -> Option<&'static str> {
    DEFAULTS.iter().find(|text| ptr::eq(ptr::from_ref(*text).cast(), layout)).copied()
}

/// Ends the text of a constant, which needs nothing.
unsafe extern "C" fn keep(_: *mut sys::PJRT_Layouts_SerializedLayout) {}

impl Entry for sys::PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let buffer = call.buffer()?;
        if let Some(text) = constant(buffer.get()) {
            call.out().layout = ptr::from_ref(text).cast_mut().cast();
            return Ok(());
        }
        let (theirs, out) = call.forward_for(&buffer.hold()?)?;
        out.layout = theirs.layout;
        Ok(())
    }
}

impl Entry for sys::PJRT_Layouts_MemoryLayout_Serialize_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        if let Some(text) = text(call.layout) {
            let out = call.out();
            (out.serialized_bytes, out.serialized_bytes_size) = (text.as_ptr().cast(), text.len());
            out.serialized_layout = ptr::null_mut();
            out.serialized_layout_deleter = Some(keep);
            return Ok(());
        }
        call.required(call.layout, "layout")?;
        let (theirs, out) = call.forward();
        *out = theirs?;
        Ok(())
    }
}

impl Entry for sys::PJRT_Layouts_MemoryLayout_Destroy_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        if text(call.layout).is_some() {
            return Ok(());
        }
        let (theirs, _) = call.forward();
        theirs.map(drop)
    }
}
