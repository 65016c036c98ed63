//! Arguments that a program could be donated, and is not; and which of them should be.
//!
//! ```text
//!  argument 0  f32[1024,1024]   donated                       --> result 0
//!  argument 1  f32[1024,1024]   never used after a launch     --> result 1: advised
//!  argument 2  f32[1024,1024]   used again                        result 2
//!  argument 3  f32[]            small: not watched
//! ```
//!
//! The first launch shows what the arguments are on one device. Results that no donated argument takes are given to
//! the arguments of their shape one by one, when somebody asks. A program without such a result of 1 MiB has none of
//! this, and its launches pay for one comparison.

use std::sync::Arc;

use once_cell::sync::OnceCell;

use crate::runtime::{
    buffer::{
        BufferRef,
        usage::{Undonated, always_dropped},
    },
    shape::Shape,
};

/// Results smaller than this save too little to be spoken of.
const LEAST: usize = 1 << 20;

/// An argument of at least [`LEAST`] bytes that has the shape of a result.
struct Watched {
    shape: Arc<Shape>,
    /// One for each device of the program.
    devices: Box<[Arc<Undonated>]>,
}

/// See the module's documentation.
pub struct UndonatedArguments {
    devices: usize,
    /// Arguments that are donated, in ascending order.
    donated: Box<[usize]>,
    /// The numbers and shapes of the results that could take the place of an argument.
    results: Box<[(usize, Arc<Shape>)]>,
    /// By the number of the argument; since the first launch.
    watched: OnceCell<Box<[Option<Watched>]>>,
}

/// Arguments that should be donated.
pub struct Advised {
    /// Their numbers and shapes, in ascending order.
    pub arguments: Vec<(usize, Arc<Shape>)>,
    /// After so many launches, on each device, none of them was used again.
    pub launches: u64,
}

impl UndonatedArguments {
    /// Those of a program for so many devices that is donated the arguments `donated`, in ascending order, and whose
    /// `results` have memory of their own; `None` if no result is worth it.
    pub fn new<'a>(
        devices: usize,
        donated: &[usize],
        results: impl Iterator<Item = (usize, &'a Arc<Shape>)>,
    ) -> Option<Self> {
        let large = results.filter(|(_, shape)| shape.size >= LEAST);
        let results: Box<[_]> = large.map(|(result, shape)| (result, Arc::clone(shape))).collect();
        (!results.is_empty()).then(|| Self { devices, donated: donated.into(), results, watched: OnceCell::new() })
    }

    /// Has the first launch show what the `arguments` are; `lies_there` is whether one lies in the memory that the
    /// results have.
    pub fn see(&self, arguments: &[Option<BufferRef<'_>>], lies_there: impl Fn(BufferRef<'_>) -> bool) {
        self.watched.get_or_init(|| {
            let watched = |(number, buffer): (usize, &Option<BufferRef<'_>>)| {
                let buffer = buffer.filter(|&buffer| lies_there(buffer))?;
                let fits = self.results.iter().any(|(_, result)| fits(result, &buffer.shape));
                if !fits || self.donated.binary_search(&number).is_ok() {
                    return None;
                }
                let devices = (0..self.devices).map(|_| Arc::default()).collect();
                Some(Watched { shape: Arc::clone(&buffer.shape), devices })
            };
            arguments.iter().enumerate().map(watched).collect()
        });
    }

    /// The argument with this number on the device with this index, if it is one of these.
    pub fn of(&self, number: usize, device_index: usize) -> Option<&Arc<Undonated>> {
        self.watched.get()?.get(number)?.as_ref()?.devices.get(device_index)
    }

    /// The arguments that should be donated, of those that `is_one`, for results that are `wanted`.
    pub fn advised(&self, is_one: impl Fn(usize) -> bool, wanted: impl Fn(usize) -> bool) -> Option<Advised> {
        let mut results: Vec<_> = self.results.iter().filter(|&&(result, _)| wanted(result)).collect();
        let mut advised = Advised { arguments: Vec::new(), launches: u64::MAX };
        for (number, watched) in self.watched.get()?.iter().enumerate() {
            let Some(watched) = watched.as_ref().filter(|_| is_one(number)) else { continue };
            let Some(launches) = always_dropped(&watched.devices) else { continue };
            let Some(at) = results.iter().position(|(_, result)| fits(result, &watched.shape)) else { continue };
            results.swap_remove(at);
            advised.arguments.push((number, Arc::clone(&watched.shape)));
            advised.launches = advised.launches.min(launches);
        }
        (!advised.arguments.is_empty()).then_some(advised)
    }
}

/// Whether a result can take the place of an argument.
fn fits(result: &Shape, argument: &Shape) -> bool {
    (result.element_type, &result.dims, result.size) == (argument.element_type, &argument.dims, argument.size)
}
