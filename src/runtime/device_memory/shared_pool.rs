//! The part of a device's memory that the engine takes: the scratch of programs, and arrays of its own.

use std::{fmt, sync::Arc};

use crate::{
    device::ScratchPool,
    error::Result,
    memory::budget::{Budget, Over},
    units::Bytes,
};

/// A device's memory as the arena and the engine share it.
#[derive(Debug)]
pub struct SharedPool {
    /// How much the arena and the engine may have.
    pub budget: Arc<Budget>,
    /// The engine's part.
    pub pool: Box<dyn ScratchPool>,
    /// The largest limit that the device and the headroom allow.
    pub most: Bytes,
}

impl SharedPool {
    /// Gives memory of the pool that no program needs back to the device, with the right to it. Returns how much.
    pub fn trim_unused(&self) -> Bytes {
        self.budget.trim(|| self.trim_to(Bytes::ZERO).unwrap_or(Bytes::MAX))
    }

    /// Gives what the pool holds beyond all grants back to the device: memory that other users of the pool freed
    /// (CuPy, RMM; XLA's own autotuner), which no program may use. Returns how much.
    pub fn trim_excess(&self) -> Bytes {
        let before = self.pool.reserved().unwrap_or_default();
        let granted = self.budget.open();
        if before <= granted {
            return Bytes::ZERO;
        }
        self.trim_to(granted).map_or(Bytes::ZERO, |after| before.saturating_sub(after))
    }

    /// Lets the pool see what its users have freed: it gives back only memory that a call of the host has waited for.
    /// Whether there was anything that it may have missed.
    ///
    /// Only for a caller that knows that no program is under way: this would wait for it, and a program's first
    /// execution may be capturing a stream.
    pub fn observe(&self) -> bool {
        let missed = self.budget.is_quiet() && self.pool.unused().is_ok_and(|unused| !unused.is_zero());
        missed
            && self
                .pool
                .synchronize()
                .inspect_err(|error| log::debug!("the device was not waited for: {error}"))
                .is_ok()
    }

    /// Trims the pool to `keep`; what it has after that.
    pub fn trim_to(&self, keep: Bytes) -> Option<Bytes> {
        self.pool.trim(keep).inspect_err(|error| log::warn!("the engine's pool could not be trimmed: {error}")).ok()
    }

    /// Grants the pool `bytes`, if the limit and the device have so much more; otherwise says what is missing.
    ///
    /// # Errors
    /// The device's, if it cannot say what it has.
    pub fn grant(&self, bytes: Bytes) -> Result<Option<Shortfall>> {
        let offer = match self.budget.offer(bytes) {
            Ok(offer) => offer,
            Err(over) => return Ok(Some(Shortfall::Limit(over))),
        };
        let more = bytes.saturating_sub(self.pool.reserved()?);
        let free = self.pool.free_on_device()?;
        if free < more {
            return Ok(Some(Shortfall::Device { more, free }));
        }
        offer.take();
        Ok(None)
    }
}

/// Why the engine's pool cannot have more memory.
#[derive(Clone, Debug)]
pub enum Shortfall {
    /// The limit that it shares with the arena.
    Limit(Over),
    /// The device has less free than is wanted, though the limit allows it.
    Device {
        /// The bytes wanted beyond what the pool has.
        more: Bytes,
        /// The bytes that the device has free.
        free: Bytes,
    },
}

impl Shortfall {
    /// How many bytes are missing.
    pub fn missing(&self) -> Bytes {
        match self {
            Self::Limit(over) => over.missing,
            Self::Device { more, free } => more.saturating_sub(*free),
        }
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(over) => over.fmt(f),
            Self::Device { more, free } => write!(
                f,
                "it takes {more} more, and the device has {free} free, though the limit allows it: others use the device too"
            ),
        }
    }
}
