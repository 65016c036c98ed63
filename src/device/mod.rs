//! Where bytes live: the devices that give regions to an arena.

pub mod cuda;
pub mod fake;
pub mod host;
pub mod strided;
