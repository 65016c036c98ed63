//! Transfers.

pub mod async_slot;
pub mod copy;
pub mod host;
pub mod own_layout;
pub mod specs;
pub mod upload;
