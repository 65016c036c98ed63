//! What a `PJRT_AsyncHostToDeviceTransferManager` is: see `async_transfer.rs`.

use std::sync::Arc;

use crate::{
    engine::{EngineBuffer, EngineEvent, Outcome, Raw},
    error::{Error, Result},
    runtime::{client::Client, transfer::async_slot::Slot},
    sys,
};

/// What a caller's `PJRT_AsyncHostToDeviceTransferManager` is.
pub struct Manager {
    /// Whose arrays they are.
    pub client: Arc<Client>,
    /// Where they go.
    pub device: Raw<sys::PJRT_Device>,
    /// The arrays.
    pub slots: Vec<Slot>,
    /// A buffer of the engine that is ready, and so are its events: before 0.89 there is no other way to make one.
    /// `None` if no array lies in an arena.
    pub ready: Option<EngineBuffer>,
}

impl Manager {
    /// The array with this index.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if there is none.
    pub fn slot(&self, index: i32, function: &str) -> Result<&Slot> {
        usize::try_from(index).ok().and_then(|index| self.slots.get(index)).ok_or_else(|| {
            Error::invalid_argument(format!(
                "{function}: buffer_index is {index}, the transfer manager has {} buffers",
                self.slots.len()
            ))
        })
    }

    /// An event that has happened.
    ///
    /// # Errors
    /// The engine's.
    pub fn ready_event(&self) -> Outcome<EngineEvent> {
        let ready = self.ready.as_ref().ok_or_else(|| Error::internal("a manager without a ready buffer"))?;
        Ok(ready.ready_event()?)
    }
}
