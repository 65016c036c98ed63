//! Bytes that are read without the engine's knowledge: by us, who copy them, or by a program on another of its clients.
//!
//! Told to delete the buffer, the engine would let an outsider's memory go, so it is told only when the reading ends. Given
//! the buffer for good, a program would write to it at once, so launches see to that themselves ([`super::gifts`]).

use super::{
    buffer::{Buffer, GONE},
    custody::{Life, Reader},
    entry::Outcome,
    storage::Storage,
};
use crate::{
    engine::views,
    error::{Error, Result},
};

/// Keeps a buffer's bytes as they are while they are read.
pub struct Reading<'a> {
    buffer: &'a Buffer,
    reader: Reader,
    address: usize,
}

impl Reading<'_> {
    /// Where the array lies.
    pub fn address(&self) -> usize {
        self.address
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.buffer.end_reading(self.reader);
    }
}

impl Buffer {
    /// Begins to read the bytes where they lie, dense in memory of this process. Whether they are there yet is for the
    /// caller to know. `None` if they lie elsewhere, or if a program is about to be given them.
    ///
    /// # Errors
    /// As [`Buffer::take_up`].
    pub fn read(&self) -> Result<Option<Reading<'_>>> {
        self.read_at(Storage::dense_address)
    }

    /// As [`Self::read`], of bytes in a block of ours, be it a device's.
    ///
    /// # Errors
    /// As [`Buffer::take_up`].
    pub fn read_block(&self) -> Result<Option<Reading<'_>>> {
        self.read_at(Storage::address)
    }

    /// As [`Self::read`], of bytes that the engine holds in memory of this process, of an array that lies dense in the default layout there.
    ///
    /// # Errors
    /// As [`Buffer::take_up`], or the engine's.
    pub fn read_engine(&self) -> Outcome<Option<Reading<'_>>> {
        let nowhere_yet = |storage: &Storage| matches!(storage, Storage::Engine(_)).then_some(views::ALIGNMENT);
        let Some(mut reading) = self.read_at(nowhere_yet)? else { return Ok(None) };
        if self.shape.size > 0 {
            let handle = self.state().handle();
            // SAFETY: the handle is alive while the bytes are read.
            reading.address = unsafe { views::address(self.client.engine, handle.0)? };
        }
        Ok(Some(reading))
    }

    fn read_at(&self, address: impl FnOnce(&Storage) -> Option<usize>) -> Result<Option<Reading<'_>>> {
        let mut state = self.state();
        self.live_handle(&state)?;
        let Some(address) = address(&state.storage) else { return Ok(None) };
        // Only then: what ends a reading takes the lock that is held here.
        Ok(state.begin_copy(Reader::Copy).then(|| Reading { buffer: self, reader: Reader::Copy, address }))
    }

    /// Begins to lend the bytes, which are there, to a program on another client of the engine.
    ///
    /// # Errors
    /// As [`Buffer::take_up`], likewise if a program is about to be given them: there is nobody to wait for it. Or the
    /// engine's.
    ///
    /// # Safety
    /// The client must be alive.
    pub unsafe fn lend(&self) -> Outcome<Reading<'_>> {
        let (handle, mut loan) = {
            let mut state = self.state();
            let handle = self.live_handle(&state)?;
            if !state.begin_copy(Reader::Program) {
                return Err(Error::invalid_argument(GONE).into());
            }
            (handle, Reading { buffer: self, reader: Reader::Program, address: views::ALIGNMENT })
        };
        if self.shape.size > 0 {
            // SAFETY: the handle is alive while the bytes are read.
            loan.address = unsafe { views::address(self.client.engine, handle)? };
        }
        Ok(loan)
    }

    fn end_reading(&self, reader: Reader) {
        let (deleted, freed) = {
            let mut state = self.custody().end_copy(reader);
            let deleted = state.life() == Life::Deleted && !state.is_copied();
            (deleted.then(|| state.handle()), state.settle())
        };
        if let Some(handle) = deleted
            && let Err(error) = self.delete_handle(handle)
        {
            log::warn!("the engine could not delete a buffer: {}", error.message());
        }
        drop(freed);
    }
}
