//! What a rewrite is asked for, and what comes of it.

use std::borrow::Cow;

use crate::program::{
    bytecode::ids::TypeId,
    signature::{Known, ParameterIndex, ResultIndex, Signature},
};

/// What the engine is able to do with destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Leaves results of 2 and 4 bit elements alone: XLA:CPU packs them while copying, so a view of our memory never
    /// becomes the result.
    pub skip_sub_byte: bool,
    /// Ties destinations to results whose sharding the Shardy partitioner chooses. Only for programs that are compiled
    /// with `use_shardy_partitioner`: XLA's older partitioner aborts on such groups.
    pub tie_unspecified_shardings: bool,
    /// Gives destinations to results that are bound to `pinned_host` too, which must then lie in such memory.
    pub place_pinned_host: bool,
    /// To the engine all memory is one: it would put a result that is bound to the host's into a donated array of the
    /// device, and the other way round. Such a donation is taken out, and the array is the caller's to delete when the
    /// program has been started.
    pub one_memory: bool,
    /// Copies an argument to the destination of the result that is made of it, where the compiler would copy it twice.
    pub update_in_place: bool,
}

/// Why a result has no destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Skip {
    /// A token, a tuple, an unranked tensor or one with an encoding.
    NotATensor,
    /// A dimension is known at run time only.
    DynamicDimension,
    /// It has no elements, and so no bytes.
    NoElements,
    /// `index`, `tf32`, a quantized or an unknown type.
    ElementType,
    /// Elements of 2 or 4 bits, where the policy leaves them alone.
    SubByte,
    /// It has an explicit layout, or one for the compiler to choose (`mhlo.layout_mode`).
    Layout,
    /// It is bound to a kind of memory (`mhlo.memory_kind`).
    MemoryKind,
    /// The partitioner chooses its sharding, and no tie is possible.
    UnspecifiedSharding,
}

impl Skip {
    /// The reason in words, for counting and for the user.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotATensor => "not a plain tensor",
            Self::DynamicDimension => "a dimension known at run time only",
            Self::NoElements => "no elements",
            Self::ElementType => "an element type without destinations",
            Self::SubByte => "elements of less than a byte, which the engine packs",
            Self::Layout => "a layout of its own",
            Self::MemoryKind => "bound to a kind of memory",
            Self::UnspecifiedSharding => "a sharding that the partitioner chooses",
        }
    }
}

/// Where a result is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// In the argument for this added parameter.
    Destination(ParameterIndex),
    /// In the user's argument that aliases it.
    AliasedBy(ParameterIndex),
    /// In a donated argument of the same type, if XLA finds it to fit: a destination would make that donation useless.
    LeftToDonor,
    /// Wherever the engine puts it.
    Skipped(Skip),
}

/// A program with destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewritten<'a> {
    /// The artifact to compile: borrowed, and the one that was given, where no result takes a destination.
    pub bytes: Cow<'a, [u8]>,
    /// What the user's program takes and gives.
    pub signature: Signature,
    /// Where each result is put.
    pub placements: Vec<Placement>,
    /// Parameters added behind the user's: as many as there are [`Placement::Destination`]s.
    pub destinations: usize,
    /// Donated parameters that the program only reads now, in ascending order: they lie in another memory than the
    /// result that they would alias.
    pub released: Vec<ParameterIndex>,
}

impl Rewritten<'_> {
    /// The number of parameters of the user's program.
    pub fn parameters(&self) -> usize {
        self.signature.parameters.len()
    }
}

/// A result that takes a destination.
#[derive(Clone, Copy, Debug)]
pub(in crate::program) struct Destination {
    pub(in crate::program) result: ResultIndex,
    pub(in crate::program) value_type: TypeId,
    pub(super) known: Known,
    pub(in crate::program) sharding: Sharding,
}

/// How a destination comes by the sharding of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::program) enum Sharding {
    /// By the same attributes, if any.
    Same,
    /// By a sharding group of the two values.
    Tied,
}
