//! Bytes that are read without the engine's knowledge: by us, who copy them, or by a program on another of its clients.
//!
//! Told to delete the buffer, the engine would let an outsider's memory go, so it is told only when the reading ends. Given
//! the buffer for good, a program would write to it at once, so launches see to that themselves ([`crate::runtime::execute::donations`]).

use crate::{
    engine::{Outcome, views},
    error::{Error, Result},
    runtime::buffer::{
        Buffer, GONE,
        storage::Storage,
        usage::{Life, Reader},
    },
    sys,
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

    /// The same, at the address that the engine says; an array without bytes lies anywhere.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// The client must be alive, and `handle` the buffer's.
    unsafe fn located(mut self, handle: *mut sys::PJRT_Buffer) -> Outcome<Self> {
        if self.buffer.shape.size > 0 {
            // SAFETY: the caller's promise.
            self.address = unsafe { views::address(self.buffer.session.engine, handle)? };
        }
        Ok(self)
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
    /// As [`Buffer::begin_use`].
    pub fn read(&self) -> Result<Option<Reading<'_>>> {
        self.read_at(Storage::dense_address)
    }

    /// As [`Self::read`], of bytes in a block of ours, be it a device's.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`].
    pub fn read_block(&self) -> Result<Option<Reading<'_>>> {
        self.read_at(Storage::address)
    }

    /// As [`Self::read`], of bytes that the engine holds in memory of this process, of an array that lies dense in the default layout
    /// there.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`], or the engine's.
    ///
    /// # Safety
    /// The client must be alive.
    pub unsafe fn read_engine(&self) -> Outcome<Option<Reading<'_>>> {
        let (handle, reading) = {
            let mut state = self.state();
            let handle = self.live_handle(&state)?;
            if !matches!(state.storage, Storage::Engine(_)) || !state.begin_copy(Reader::Copy) {
                return Ok(None);
            }
            (handle, Reading { buffer: self, reader: Reader::Copy, address: views::ALIGNMENT })
        };
        // SAFETY: the handle is alive while the bytes are read; the rest is the caller's promise.
        unsafe { reading.located(handle) }.map(Some)
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
    /// As [`Buffer::begin_use`], likewise if a program is about to be given them: there is nobody to wait for it. Or the
    /// engine's.
    ///
    /// # Safety
    /// The client must be alive.
    pub unsafe fn lend(&self) -> Outcome<Reading<'_>> {
        let (handle, loan) = {
            let mut state = self.state();
            let handle = self.live_handle(&state)?;
            if !state.begin_copy(Reader::Program) {
                return Err(Error::invalid_argument(GONE).into());
            }
            (handle, Reading { buffer: self, reader: Reader::Program, address: views::ALIGNMENT })
        };
        // SAFETY: the handle is alive while the bytes are read; the rest is the caller's promise.
        unsafe { loan.located(handle) }
    }

    fn end_reading(&self, reader: Reader) {
        let (deleted, freed) = {
            let mut state = self.usage().end_copy(reader);
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
