//! How an arena finds room: one trait, and one file for each strategy.
//!
//! A strategy decides and accounts for space; the arena accounts for blocks, and has the lock and the waiting.
//! Regions leave in two steps: the strategy hands a surplus region over under the lock, the arena releases it to
//! the device without the lock (unmapping a touched GiB takes tens of milliseconds), then reports it as
//! `Placement::released`. In between its bytes are *leaving*: still in the pool, but neither used nor free to allocate.

pub(super) mod broken;
pub(super) mod growing;
pub(super) mod placement;
pub(super) mod platform;
mod pool;
pub(super) mod preallocate;
