//! Gives the pages of holes back to the system, a piece at a time.

use crate::{
    fork,
    memory::{AddressRange, Arena, Surplus},
    units::Bytes,
};

/// Less than this is not worth a call of the system. glibc's malloc unmaps what it frees from so much on.
pub const LEAST: Bytes = Bytes::mib(32);

/// Carries `surplus` out until `part` has gone back, or `enough`, and returns how much has. What is not found is not
/// there.
pub fn discard_surplus(
    arena: &Arena,
    mut surplus: Surplus,
    part: Bytes,
    discard: &dyn Fn(AddressRange) -> Bytes,
    enough: &dyn Fn() -> bool,
) -> Bytes {
    let mut given = Bytes::ZERO;
    while given < part
        && !enough()
        && let Some(bytes) = fork::passing(|| arena.discard_next(&mut surplus, discard))
    {
        given += bytes;
    }
    arena.cooled(part.saturating_sub(given));
    given
}
