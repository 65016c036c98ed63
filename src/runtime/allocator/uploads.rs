//! Small arrays that come from the host again and again: the numbers of a Python program.
//!
//! An operation with a Python number uploads it each time, and destroys it right after. Making the engine's view of a
//! block costs more than the upload, so block and view are kept for the next array of the same shape.

use std::sync::Arc;

use once_cell::sync::OnceCell;

use crate::{
    memory::{OriginId, Provenance},
    report::snapshot::OriginKind,
    runtime::{
        allocator::array_cache::ArrayCache,
        buffer::{CacheSlot, CachedArray},
        device_memory::origins::ORIGINS,
        in_flight::InFlight,
        shape::Shape,
    },
    sys,
};

/// The largest array in bytes that is kept: numbers, and keys of random numbers.
const LARGEST: usize = 64;

/// The first so many small shapes that a program uploads are kept. Its numbers have few types.
const SHAPES: usize = 16;

/// The small arrays of one memory.
pub struct Uploads {
    shapes: [OnceCell<(Arc<Shape>, OriginId)>; SHAPES],
    cache: Arc<ArrayCache>,
}

/// A shape whose arrays are kept.
pub struct Small<'a> {
    /// The shape.
    pub shape: &'a Arc<Shape>,
    /// What an array of it is, in reports.
    pub origin: OriginId,
    place: usize,
    cache: &'a Arc<ArrayCache>,
}

impl Uploads {
    /// An empty cache; one that keeps nothing unless it is `on`.
    pub fn new(on: bool, in_flight: Arc<InFlight>) -> Self {
        let places = if on { SHAPES } else { 0 };
        Self { shapes: Default::default(), cache: ArrayCache::new(places, in_flight) }
    }

    /// The cache itself, to be cleared.
    pub fn cache(&self) -> &Arc<ArrayCache> {
        &self.cache
    }

    /// The shape of `size` bytes, if its arrays are kept. O(1): a look at each of the 16 that are known.
    pub fn small(&self, element_type: sys::PJRT_Buffer_Type, dims: &[i64], size: usize) -> Option<Small<'_>> {
        if size > LARGEST || !self.cache.takes(0, size) {
            return None;
        }
        let new = || {
            let shape = Arc::new(Shape::new(element_type, dims, size));
            let origin = ORIGINS.of_shape(OriginKind::Host, &shape);
            (shape, origin)
        };
        let is_this = |shape: &Shape| shape.element_type == element_type && *shape.dims == *dims;
        self.shapes.iter().enumerate().find_map(|(place, known)| {
            // Another thread may have been first.
            let (shape, origin) = known.get_or_init(new);
            is_this(shape).then_some(Small { shape, origin: *origin, place, cache: &self.cache })
        })
    }
}

impl Small<'_> {
    /// An array that is ready to be written again, if there is one.
    pub fn take(&self, provenance: Provenance) -> Option<CachedArray> {
        self.cache.take(self.place, provenance)
    }

    /// Where an array goes when its owner destroys it.
    pub fn slot(&self) -> CacheSlot {
        CacheSlot { cache: Arc::clone(self.cache) as _, destination: self.place }
    }
}
