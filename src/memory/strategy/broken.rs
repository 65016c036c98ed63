//! An arena whose books cannot be trusted: a panic has left them half changed. It gives no room and takes none back.

use crate::{
    error::Error,
    memory::{
        backing::Backing,
        imagined::Imagined,
        space::node::SpanState,
        strategy::placement::{BlockPlace, Placed, Placement, Shortage, Vacated},
    },
    region::{AddressRange, Region},
    units::Bytes,
};

/// See the module's documentation. What the arena has from the device stays as it is, because blocks lie in it.
#[derive(Debug)]
pub(in crate::memory) struct Broken;

impl Placement for Broken {
    fn place(&mut self, _: Bytes, _: &dyn Backing) -> Result<Placed, Shortage> {
        let why = "a panic has interrupted this arena, so it gives no memory any more; what it gave before stays";
        Err(Shortage { refusal: Some(Error::failed_precondition(why)) })
    }

    fn retire(&mut self, _: BlockPlace) -> Bytes {
        Bytes::ZERO
    }

    fn reuse(&mut self, _: BlockPlace) -> Bytes {
        Bytes::ZERO
    }

    fn vacate(&mut self, _: BlockPlace, _: SpanState) -> Vacated {
        Vacated { held: Bytes::ZERO, surplus: None }
    }

    fn held(&self, _: BlockPlace) -> Bytes {
        Bytes::ZERO
    }

    fn released(&mut self, _: Bytes) {}

    fn copy(&self, _: &Imagined) -> Box<dyn Placement> {
        Box::new(Self)
    }

    fn growth(&self) -> Bytes {
        Bytes::ZERO
    }

    fn pool(&self) -> Bytes {
        Bytes::ZERO
    }

    fn free(&self) -> Bytes {
        Bytes::ZERO
    }

    fn largest_hole(&self) -> Bytes {
        Bytes::ZERO
    }

    fn largest_request(&self) -> Bytes {
        Bytes::ZERO
    }

    fn regions(&self) -> Vec<AddressRange> {
        Vec::new()
    }

    fn trim(&mut self) -> Vec<Region> {
        Vec::new()
    }

    fn take_all(&mut self) -> Vec<Region> {
        Vec::new()
    }
}
