//! Bytes that are read without the engine's knowledge: by pjrt-arena, which copies them, or by a program on another
//! of the engine's clients.
//!
//! If the buffer is deleted meanwhile, the engine is told only when the reading ends: it would release an outsider's
//! memory at once. A program that is donated the buffer would write to it at once, so a launch waits for readings
//! first ([`crate::runtime::execute::donation_copy`]).

use crate::{
    engine::{EngineBuffer, Live, Outcome, failure::discard, views},
    error::{Error, Result},
    runtime::buffer::{
        Buffer, GONE,
        storage::Storage,
        usage::{Life, Reader},
    },
    sys,
};

/// Keeps a buffer's bytes unchanged while they are read.
pub struct Reading<'a> {
    buffer: &'a Buffer,
    reader: Reader,
    address: usize,
}

impl Reading<'_> {
    /// The array's address.
    pub fn address(&self) -> usize {
        self.address
    }

    /// The same reading, at the address that the engine gives; that of an array without bytes means nothing.
    ///
    /// # Errors
    /// The engine's.
    fn located(mut self, handle: *mut sys::PJRT_Buffer) -> Outcome<Self> {
        if self.buffer.shape.size > 0 {
            // SAFETY: the client was open when the reading began, in this call of the C API; the handle is the
            // buffer's, which keeps it while the bytes are read.
            let handle = unsafe { Live::new(self.buffer.session.engine, handle) };
            self.address = views::address(handle)?;
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
    /// Begins to read the bytes in place, dense in memory of this process. The caller must know that they are
    /// defined. `None` if they are in other memory, or if a program is about to be donated them.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`].
    pub fn read(&self) -> Result<Option<Reading<'_>>> {
        self.read_at(Storage::dense_address)
    }

    /// As [`Self::read`], of bytes in a block of an arena, a GPU's included.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`].
    pub fn read_block(&self) -> Result<Option<Reading<'_>>> {
        self.read_at(Storage::address)
    }

    /// As [`Self::read`], of bytes in the engine's own memory in this process, of an array that is dense in the
    /// default layout.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`], or the engine's.
    pub fn read_engine(&self) -> Outcome<Option<Reading<'_>>> {
        let (handle, reading) = {
            let mut state = self.state();
            let handle = self.live_handle(&state)?;
            if !matches!(state.storage, Storage::Engine(_)) || !state.begin_copy(Reader::Copy) {
                return Ok(None);
            }
            (handle, Reading { buffer: self, reader: Reader::Copy, address: views::ALIGNMENT })
        };
        reading.located(handle).map(Some)
    }

    fn read_at(&self, address: impl FnOnce(&Storage) -> Option<usize>) -> Result<Option<Reading<'_>>> {
        let mut state = self.state();
        self.live_handle(&state)?;
        let Some(address) = address(&state.storage) else { return Ok(None) };
        if !state.begin_copy(Reader::Copy) {
            return Ok(None);
        }
        let spilled = state.storage.is_spilled();
        // Dropping a reading takes the lock.
        drop(state);
        let reading = Reading { buffer: self, reader: Reader::Copy, address };
        if spilled {
            self.check_readable()?;
        }
        Ok(Some(reading))
    }

    /// Begins to lend the bytes, which are defined, to a program on another client of the engine.
    ///
    /// # Errors
    /// As [`Buffer::begin_use`]; INVALID_ARGUMENT if a program is about to be donated them, because no copy would
    /// wait for that program; or the engine's.
    pub fn lend(&self) -> Outcome<Reading<'_>> {
        let (handle, reading, spilled) = {
            let mut state = self.state();
            let handle = self.live_handle(&state)?;
            if !state.begin_copy(Reader::Program) {
                return Err(Error::invalid_argument(GONE).into());
            }
            let reading = Reading { buffer: self, reader: Reader::Program, address: views::ALIGNMENT };
            (handle, reading, state.storage.is_spilled())
        };
        if spilled {
            self.check_readable()?;
        }
        reading.located(handle)
    }

    fn end_reading(&self, reader: Reader) {
        let (deleted, freed) = {
            let mut state = self.usage().end_copy(reader);
            let deleted = state.life() == Life::Deleted && !state.is_copied();
            (deleted.then(|| state.view().map(EngineBuffer::raw)), state.take_unneeded())
        };
        if let Some(handle) = deleted {
            discard(self.delete_handle(handle), "delete a buffer");
        }
        drop(freed);
    }
}
