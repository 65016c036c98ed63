//! The extension for partitioners of custom calls.

use crate::{
    api::{
        call::Call,
        entry::{Entry, entry, padded},
    },
    engine::{Outcome, Raw},
    error::Error,
    handlers::partitioners::{Partitioner, register},
    sys,
};

/// The extension, with `next` behind it in the chain. It lives until the process ends.
pub fn extension(next: *mut sys::PJRT_Extension_Base) -> *mut sys::PJRT_Extension_Base {
    padded(sys::PJRT_Custom_Partitioner_Extension {
        base: sys::PJRT_Extension_Base {
            struct_size: size_of::<sys::PJRT_Custom_Partitioner_Extension>(),
            type_: sys::PJRT_Extension_Type_Custom_Partitioner,
            next,
        },
        register_custom_partitioner: Some(entry::<sys::PJRT_Register_Custom_Partitioner_Args>),
        register_batch_partitionable: Some(entry::<sys::PJRT_Register_Batch_Partitionable_Args>),
    })
    .cast()
}

impl Entry for sys::PJRT_Register_Custom_Partitioner_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        if call.callbacks.is_null() {
            let name = String::from_utf8_lossy(call.name());
            return Err(
                Error::invalid_argument(format!("the partitioner of custom call {name}: callbacks is NULL")).into()
            );
        }
        register(call.name(), Partitioner::Callbacks(Raw(call.callbacks)))
    }
}

impl Entry for sys::PJRT_Register_Batch_Partitionable_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        register(call.name(), Partitioner::Batch)
    }
}
