//! The arguments of a run, in use from its start to its end.

use smallvec::SmallVec;

use super::{
    call::{Call, NAME},
    gifts::{Gifts, Taken},
    lane::Lane,
};
use crate::{
    api::{
        buffer::{Buffer, custody::User},
        entry::Outcome,
    },
    sys,
};

/// Handles of the engine, device by device.
pub type Handles = SmallVec<[*mut sys::PJRT_Buffer; 16]>;

/// Arguments in use. Who still sits here when the call ends, because the program is done or never ran, lands then.
#[derive(Default)]
pub struct Passengers<'a> {
    /// The arguments of all devices, one device after the other.
    pub seats: SmallVec<[Option<&'a Buffer>; 16]>,
    /// Those that the program may consume.
    pub gifts: Gifts<'a>,
}

impl<'a> Passengers<'a> {
    /// Takes up the arguments of the device with this number and adds their handles.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for one that was deleted or donated, or as [`Gifts::take_up`].
    ///
    /// # Safety
    /// The arguments must be buffers of ours that live as long as the passengers.
    pub unsafe fn board(
        &mut self,
        call: &Call<'a>,
        index: usize,
        lane: &mut Lane<'_>,
        handles: &mut Handles,
    ) -> Outcome {
        let arguments = call.arguments(index);
        let mut taken = Taken::new(&call.loaded.program.plan.donations);
        for (number, &argument) in arguments.iter().enumerate() {
            // SAFETY: the caller's promise.
            let buffer = unsafe { Buffer::borrow(argument, NAME)? };
            let gives = taken.has(number) && !call.keeps(number) && !lane.has_stand_in(number);
            handles.push(if gives {
                // SAFETY: as above; the client is alive while its executable is.
                unsafe { self.gifts.take_up(buffer, (index, number), arguments, lane, call.loaded)? }
            } else {
                buffer.take_up_for(User::Run)?
            });
            self.seats.push(Some(buffer));
        }
        Ok(())
    }
}

impl Drop for Passengers<'_> {
    fn drop(&mut self) {
        for buffer in self.seats.iter().flatten() {
            buffer.land_for(User::Run);
        }
    }
}
