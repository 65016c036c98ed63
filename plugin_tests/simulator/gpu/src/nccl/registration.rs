//! Buffers that are registered with a communicator: NCCL keeps what it finds behind them then, so they must stay
//! mapped.

use std::ops::Range;

use super::communicator::Communicators;
use super::{wrong_argument, wrong_usage};
use crate::{
    KnownParts,
    memory::{Home, User, overlap},
    state::{Driver, State},
    status::Answer,
};

/// A registered buffer.
#[derive(Debug)]
pub struct Registration {
    /// The rank's communicator.
    pub communicator: u64,
    /// What asked for it.
    what: &'static str,
    range: Range<u64>,
}

/// `ncclCommRegister`, or `ncclCommWindowRegister`, by its name.
pub fn register(driver: &mut Driver, what: &'static str, handle: u64, address: u64, bytes: usize) -> Answer<u64> {
    driver.membership_to_use(handle)?;
    let gpu = driver.communicator(handle)?.gpu;
    if bytes == 0 {
        return Err(wrong_argument(format!("0 bytes at {address:#x} to be registered")));
    }
    let place = driver.place(User::Kernel(gpu), address, bytes as u64, true).map_err(wrong_argument)?;
    if place.home != Home::Gpu(gpu) {
        return Err(wrong_argument(format!("{bytes} bytes at {address:#x} are not in the memory of GPU {gpu}")));
    }
    let number = driver.number() << 8;
    let range = address..address + bytes as u64;
    driver.parts.known_mut().nccl.registrations.insert(number, Registration { communicator: handle, what, range });
    Ok(number)
}

/// `ncclCommDeregister` or `ncclCommWindowDeregister`.
pub fn deregister(driver: &mut Driver, handle: u64, number: u64) -> Answer {
    driver.communicator(handle)?;
    match driver.parts.known().nccl.registrations.get(&number) {
        Some(known) if known.communicator == handle => {}
        _ => return Err(wrong_usage(format!("{number:#x} is not registered with the communicator {handle:#x}"))),
    }
    driver.parts.known_mut().nccl.registrations.remove(&number);
    Ok(())
}

/// What the driver asks of registered buffers.
pub trait Registrations {
    /// Memory goes away now: none of it may be registered.
    fn check_registered(&mut self, gone: &Range<u64>, how: &str);
}

impl Registrations for State {
    fn check_registered(&mut self, gone: &Range<u64>, how: &str) {
        let hit = self.parts.known().nccl.registrations.values().filter(|known| overlap(&known.range, gone));
        let sentence = |Registration { communicator, what, range }: &Registration| {
            format!(
                "{} bytes at {:#x} are {how}, in a buffer of {} bytes at {:#x} that {what} registered with the \
                 communicator {communicator:#x}",
                gone.end - gone.start,
                gone.start,
                range.end - range.start,
                range.start
            )
        };
        let found: Vec<_> = hit.map(sentence).collect();
        found.into_iter().for_each(|sentence| self.violation(sentence));
    }
}
