//! Ties destinations to results whose sharding the Shardy partitioner chooses.
//!
//! A result of `jit` without `out_shardings` has none in the program. Its destination is then put into a *sharding
//! group* with it, just before `main` returns, and Shardy gives both the same:
//!
//! ```text
//!   %r = builtin.unrealized_conversion_cast %result        sdy's operations take builtin tensors, not VHLO's
//!   sdy.sharding_group %r group_id=g
//!   %d = builtin.unrealized_conversion_cast %destination
//!   sdy.sharding_group %d group_id=g
//!   vhlo.return_v1 ...
//! ```
//!
//! The groups do not disturb the propagation: over the whole test corpus outputs have the shardings that they have
//! without ties.

use crate::program::{
    bytecode::{
        container::Artifact,
        ids::{DialectId, TypeId, ValueId},
        ops::{self, mask},
        reader::Cursor,
        tables::Additions,
        writer::{put_signed, put_varint, varints},
    },
    reject::Reject,
    rewrite::{
        outcome::{Destination, Sharding},
        renumber::Renumber,
    },
    sharding::SDY,
    signature::Program,
    vhlo::{BUILTIN, ElementType, VHLO, ValueType, builtin_code},
};

/// Group ids of ours start here, far from those that a program would choose.
const FIRST_GROUP: i64 = 0x7A00_0000;

/// Two casts and two groups.
const OPS_PER_TIE: u64 = 4;
const VALUES_PER_TIE: u64 = 2;

/// The destinations to tie.
pub(super) struct Ties<'p> {
    ties: Vec<(&'p Destination, ValueId)>,
}

impl<'p> Ties<'p> {
    /// The tied ones among `destinations`, which are the arguments from `first` on.
    pub(super) fn new(destinations: &'p [Destination], first: usize) -> Self {
        let numbered = destinations.iter().zip(first as u64..).map(|(d, number)| (d, ValueId(number)));
        Self { ties: numbered.filter(|(d, _)| d.sharding == Sharding::Tied).collect() }
    }

    /// Whether a value can be cast to the builtin tensor that a sharding group takes.
    pub(super) fn can_tie(value_type: &ValueType) -> bool {
        match value_type {
            ValueType::Tensor { element: Some(element), .. } => {
                matches!(element, ElementType::C64 | ElementType::C128) || element.builtin_words().is_some()
            }
            _ => false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ties.is_empty()
    }

    pub(super) fn new_ops(&self) -> u64 {
        self.ties.len() as u64 * OPS_PER_TIE
    }

    pub(super) fn new_results(&self) -> u64 {
        self.ties.len() as u64 * VALUES_PER_TIE
    }

    /// Writes the operations of all ties. `terminator` stands before `main`'s return; the new values are numbered from
    /// `next` on.
    pub(super) fn emit(
        &self,
        file: &Artifact<'_>,
        program: &Program<'_>,
        added: &mut Additions<'_, '_>,
        terminator: Cursor<'_>,
        next: u64,
        sink: &mut Renumber,
    ) -> Result<(), Reject> {
        if self.ties.is_empty() {
            return Ok(());
        }
        let returned = returned(file, terminator)?;
        if returned.len() != program.results.len() {
            return Err(Reject::found("main returns another number of values than it says", returned.len() as u64));
        }
        let builtin = file.tables.dialect(BUILTIN).ok_or(Reject::new("no builtin dialect"))?;
        let i64_type = added.r#type(builtin, varints([builtin_code::INTEGER_TYPE, 64 << 2]));
        let cast = added.op_name(BUILTIN, b"unrealized_conversion_cast")?;
        let group = added.op_name(SDY, b"sharding_group")?;
        let location = program.head.location;
        let mut next = next;
        for &(destination, argument) in &self.ties {
            let (value_type, _) = &program.results[destination.result.0];
            let rank = if let ValueType::Tensor { dimensions, .. } = value_type { dimensions.len() } else { 0 };
            let reason = "tied results have more dimensions than a program of this size may, bytes for one more";
            file.tables.budget.spend(rank, size_of::<i64>(), reason)?;
            let tensor = builtin_tensor(added, builtin, value_type)?;
            let mut id = varints([builtin_code::INTEGER, i64_type.0]);
            put_signed(&mut id, FIRST_GROUP + destination.result.0 as i64);
            let id = added.attribute(builtin, id);
            let properties = added.property(varints([id.0]));
            for value in [sink.renumber(returned[destination.result.0])?, argument] {
                put_varint(&mut sink.out, cast.0);
                sink.out.push(mask::RESULTS | mask::OPERANDS);
                sink.out.extend(varints([location.0, 1, tensor.0, 1, value.0]));
                put_varint(&mut sink.out, group.0);
                sink.out.push(mask::PROPERTIES | mask::OPERANDS);
                sink.out.extend(varints([location.0, properties.0, 1, next]));
                next += 1;
            }
        }
        Ok(())
    }
}

/// Keeps operands.
#[derive(Default)]
pub(super) struct Operands(pub(super) Vec<ValueId>);

impl ops::Sink for Operands {
    fn copy(&mut self, _: &[u8]) {}

    fn operand(&mut self, value: ValueId) -> Result<(), Reject> {
        self.0.push(value);
        Ok(())
    }

    fn use_lists(&self) -> ops::UseLists {
        ops::UseLists::Keep
    }
}

/// What `main` returns.
pub(super) fn returned(file: &Artifact<'_>, mut cursor: Cursor<'_>) -> Result<Vec<ValueId>, Reject> {
    let mut operands = Operands::default();
    let head = ops::head(&file.tables, &mut cursor, &mut operands)?;
    let name = file.tables.op_name(head.name)?;
    if (name.dialect, name.name) != (VHLO, b"return_v1") || head.mask != mask::OPERANDS {
        return Err(Reject::new("main does not end in a plain return"));
    }
    Ok(operands.0)
}

/// The builtin type of a static tensor.
fn builtin_tensor(added: &mut Additions<'_, '_>, builtin: DialectId, value_type: &ValueType) -> Result<TypeId, Reject> {
    let ValueType::Tensor { dimensions, element: Some(element) } = value_type else {
        return Err(Reject::new("a tied result is not a tensor"));
    };
    let element = match element {
        ElementType::C64 | ElementType::C128 => {
            let part = if *element == ElementType::C64 { ElementType::F32 } else { ElementType::F64 };
            let part = builtin_scalar(added, builtin, part)?;
            added.r#type(builtin, varints([builtin_code::COMPLEX_TYPE, part.0]))
        }
        _ => builtin_scalar(added, builtin, *element)?,
    };
    let mut bytes = varints([builtin_code::RANKED_TENSOR_TYPE, dimensions.len() as u64]);
    for &dimension in dimensions.iter() {
        put_signed(&mut bytes, dimension);
    }
    put_varint(&mut bytes, element.0);
    Ok(added.r#type(builtin, bytes))
}

fn builtin_scalar(added: &mut Additions<'_, '_>, builtin: DialectId, element: ElementType) -> Result<TypeId, Reject> {
    let words = element.builtin_words().ok_or(Reject::new("an element type without a builtin encoding"))?;
    let mut bytes = varints([words.0]);
    bytes.extend(words.1.map(|word| varints([word])).unwrap_or_default());
    Ok(added.r#type(builtin, bytes))
}
