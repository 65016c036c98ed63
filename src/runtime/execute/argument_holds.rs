//! The arguments of a run, in use from its start to its end.

use smallvec::SmallVec;

use crate::{
    engine::Outcome,
    runtime::{
        buffer::{Buffer, usage::User},
        execute::{
            call::{Call, NAME},
            device_launch::DeviceLaunch,
            donations::{DonationCursor, DonationHolds},
            nested::NestedRun,
        },
    },
    sys,
};

/// Handles of the engine, device by device.
pub type Handles = SmallVec<[*mut sys::PJRT_Buffer; 16]>;

/// Arguments in use. Who still sits here when the call ends, because the program is done or never ran, lands then.
#[derive(Default)]
pub struct ArgumentHolds<'a> {
    /// The arguments of all devices, one device after the other; `None` for one that is lent to a run beside.
    pub seats: SmallVec<[Option<&'a Buffer>; 16]>,
    /// Those that the program may consume.
    pub gifts: DonationHolds<'a>,
}

impl<'a> ArgumentHolds<'a> {
    /// Takes up the arguments of the device with this number and adds their handles, or, of a run beside, those that
    /// the other client knows.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for one that was deleted or donated, or as [`DonationHolds::take_up`] and [`NestedRun::admit`].
    ///
    /// # Safety
    /// The arguments must be buffers of ours that live as long as the passengers.
    pub unsafe fn board(
        &mut self,
        call: &Call<'a>,
        index: usize,
        lane: &mut DeviceLaunch<'_>,
        handles: &mut Handles,
        mut beside: Option<&mut NestedRun<'a>>,
    ) -> Outcome {
        let arguments = call.arguments(index);
        let mut taken = DonationCursor::new(&call.loaded.program.plan.donations);
        for (number, &argument) in arguments.iter().enumerate() {
            // SAFETY: the caller's promise.
            let buffer = unsafe { Buffer::borrow(argument, NAME)? };
            let has_stand_in = lane.has_stand_in(number);
            let gives = taken.has(number) && !call.keeps(number) && !has_stand_in;
            let (handle, seat) = match &mut beside {
                // SAFETY: as above; the client is alive while its executable is.
                Some(guests) if !has_stand_in => unsafe {
                    guests.admit(buffer, gives.then_some((index, number)), &mut self.gifts)?
                },
                _ if gives => {
                    // SAFETY: as above.
                    let handle = unsafe { self.gifts.take_up(buffer, (index, number), arguments, lane, call.loaded)? };
                    (handle, Some(buffer))
                }
                _ => (buffer.take_up_for(User::Run)?, Some(buffer)),
            };
            handles.push(handle);
            self.seats.push(seat);
        }
        Ok(())
    }
}

impl Drop for ArgumentHolds<'_> {
    fn drop(&mut self) {
        // First: what was taken and is given back is not free when its use ends.
        drop(std::mem::take(&mut self.gifts));
        for buffer in self.seats.iter().flatten() {
            buffer.land_for(User::Run);
        }
    }
}
