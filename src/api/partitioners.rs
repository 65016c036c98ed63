//! The extension for partitioners of custom calls.

use std::{mem::size_of, ptr};

use crate::{
    api::entry::{Entry, PADDING, entry},
    engine::{Outcome, Raw},
    error::Error,
    handlers::partitioners::{Partitioner, register},
    sys::{self, slice},
};

/// The extension in memory: words of zero follow it, as they follow the engine's (`extensions.rs`).
#[repr(C)]
struct Padded {
    extension: sys::PJRT_Custom_Partitioner_Extension,
    padding: [usize; PADDING],
}

/// The extension. It lives until the process ends.
pub fn extension() -> *mut sys::PJRT_Extension_Base {
    let extension = sys::PJRT_Custom_Partitioner_Extension {
        base: sys::PJRT_Extension_Base {
            struct_size: size_of::<sys::PJRT_Custom_Partitioner_Extension>(),
            type_: sys::PJRT_Extension_Type_Custom_Partitioner,
            next: ptr::null_mut(),
        },
        register_custom_partitioner: Some(entry::<sys::PJRT_Register_Custom_Partitioner_Args>),
        register_batch_partitionable: Some(entry::<sys::PJRT_Register_Batch_Partitionable_Args>),
    };
    ptr::from_mut(Box::leak(Box::new(Padded { extension, padding: [0; PADDING] }))).cast()
}

impl Entry for sys::PJRT_Register_Custom_Partitioner_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the name is as long as the caller's struct says, as `run` asks.
        let name = unsafe { slice(self.name.cast::<u8>(), self.name_size) };
        if self.callbacks.is_null() {
            let name = String::from_utf8_lossy(name);
            return Err(
                Error::invalid_argument(format!("the partitioner of custom call {name}: callbacks is NULL")).into()
            );
        }
        register(name, Partitioner::Callbacks(Raw(self.callbacks)))
    }
}

impl Entry for sys::PJRT_Register_Batch_Partitionable_Args {
    unsafe fn run(&mut self) -> Outcome {
        // SAFETY: the name is as long as the caller's struct says, as `run` asks.
        register(unsafe { slice(self.name.cast::<u8>(), self.name_size) }, Partitioner::Batch)
    }
}
