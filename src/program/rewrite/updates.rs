//! Updates in place: an argument that a result is made of goes on in that result's destination.
//!
//! XLA:CPU updates a copy of an argument that it may not write to, such as a cache of which a row is set, or what a
//! loop begins with. Where the result has a destination, XLA makes that copy in scratch, and copies it to the
//! destination behind the update: it does not see that nothing reads the destination. So the program itself copies, and
//! goes on with the copy:
//!
//! ```text
//!   %low  = slice %c [0, h)                         %c an argument, %C the destination of the result
//!   %half = dynamic_update_slice %C, %low, 0, ...
//!   %high = slice %c [h, n)
//!   %copy = dynamic_update_slice %half, %high, h, ...
//!   ...                                             %copy is updated; %c is read wherever it was only read
//! ```
//!
//! In halves, because XLA takes an update of all of an array for its source.

use std::collections::{HashMap, HashSet};

use crate::program::{
    bytecode::{
        container::Artifact,
        ids::{AttrId, DialectId, TypeId, ValueId},
        ops::{self, mask},
        reader::Cursor,
        tables::{Additions, Tables},
        writer::{put_signed, put_varint, sum, varints},
    },
    reject::Reject,
    rewrite::{outcome::Destination, plan::fits},
    signature::{Donation, MemoryKind, ParameterIndex, Program},
    tie::{Operands, returned},
    vhlo::{VHLO, ValueType, attribute_code, type_code},
};

/// Bytes of the smallest array that is copied so. One copy or two of less take no time beside the program's launch.
const LEAST: u64 = 16 << 10;

/// Two constants, two slices, two updates.
const OPS: u64 = 6;

/// What they take of a program beside their dimensions, in units of one dimension.
const BESIDE_DIMENSIONS: usize = 8;

/// An operand of one of `main`'s operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Use {
    /// Which of the operations.
    operation: usize,
    /// Which of its operands.
    operand: usize,
}

/// Where a value has its memory from: the value that was updated first, and where.
#[derive(Clone, Copy)]
struct Origin {
    value: ValueId,
    at: Use,
}

/// An argument that goes on in a destination.
struct Update {
    argument: ParameterIndex,
    /// Where the copy stands for it.
    at: Use,
    /// Which of the destinations.
    destination: usize,
    /// Along which dimension it is cut, and where.
    cut: (usize, i32),
}

/// The arguments that go on in destinations.
pub(super) struct Updates(Vec<Update>);

impl Updates {
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    /// Finds them in the operations of `main`, of which the last is its return. Linear in the program.
    pub(super) fn find(
        file: &Artifact<'_>,
        program: &Program<'_>,
        destinations: &[Destination],
        mut cursor: Cursor<'_>,
        before_return: usize,
    ) -> Result<Self, Reject> {
        let tables = &file.tables;
        if !tables.has_op(|name| name.dialect == VHLO && updates_operands(name.name)) {
            return Ok(Self::none());
        }
        let arguments = program.parameter_types.len() as u64;
        let mut origins: HashMap<u64, Origin> = HashMap::new();
        let mut next = arguments;
        for operation in 0..before_return {
            let mut operands = Operands::default();
            let head = ops::head(tables, &mut cursor, &mut operands)?;
            ops::regions(tables, &mut cursor, &mut ops::Ignore, head.regions)?;
            let name = tables.op_name(head.name)?;
            if name.dialect == VHLO && updates_operands(name.name) {
                let count = head.results.min(operands.0.len());
                let reason = "more values are updated than a program of this size may have, bytes for them";
                tables.budget.spend(count, 2 * size_of::<(u64, Origin)>(), reason)?;
                for (operand, &value) in operands.0[..count].iter().enumerate() {
                    let first = Origin { value, at: Use { operation, operand } };
                    origins.insert(sum(next, operand as u64)?, origins.get(&value.0).copied().unwrap_or(first));
                }
            }
            next = sum(next, head.results as u64)?;
        }
        // One that does not end plainly has nothing to update.
        let Ok(returned) = returned(file, cursor) else { return Ok(Self::none()) };
        let (mut found, mut taken) = (Vec::new(), HashSet::new());
        for (number, destination) in destinations.iter().enumerate() {
            let result = returned.get(destination.result.0);
            if let Some(&Origin { value, at }) = result.and_then(|result| origins.get(&result.0))
                && value.0 < arguments
                && let argument = ParameterIndex(value.0 as usize)
                && program.parameter_types[argument.0] == destination.value_type
                && let Some(cut) = cut(program, argument)
                && taken.insert(at)
            {
                found.push(Update { argument, at, destination: number, cut });
            }
        }
        found.sort_unstable_by_key(|update| update.at);
        Ok(Self(found))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Operations that are added, each of which has one result.
    pub(super) fn new_ops(&self) -> u64 {
        self.0.len() as u64 * OPS
    }

    /// Which values stand for operands of an operation, in the order of their places, where the results of the added
    /// operations are numbered from `first` on. Logarithmic in the number of arguments that go on in destinations.
    pub(super) fn instead(&self, operation: usize, first: u64) -> impl Iterator<Item = (usize, ValueId)> {
        let begin = self.0.partition_point(|update| update.at.operation < operation);
        let those = self.0.iter().enumerate().skip(begin);
        those
            .take_while(move |(_, update)| update.at.operation == operation)
            .map(move |(number, update)| (update.at.operand, ValueId(first + (number as u64 + 1) * OPS - 1)))
    }

    /// Writes the operations. Their results are numbered from `first` on, the destinations from `arguments` on.
    pub(super) fn emit(
        &self,
        file: &Artifact<'_>,
        program: &Program<'_>,
        added: &mut Additions<'_, '_>,
        arguments: u64,
        first: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Reject> {
        if self.is_empty() {
            return Ok(());
        }
        let vhlo = file.tables.dialect(VHLO).ok_or(Reject::new("no VHLO dialect"))?;
        let constant = added.op_name(VHLO, b"constant_v1")?;
        let slice = added.op_name(VHLO, b"slice_v1")?;
        let put = added.op_name(VHLO, b"dynamic_update_slice_v1")?;
        let si32 = added.r#type(vhlo, varints([type_code::SI32]));
        let index = added.r#type(vhlo, varints([type_code::RANKED_TENSOR, 0, si32.0]));
        let location = program.head.location.0;
        let mut next = first;
        for update in &self.0 {
            let argument = update.argument.0;
            let (axis, half) = update.cut;
            let whole = program.parameter_types[argument];
            let dimensions = dimensions(program, update.argument).unwrap_or_default();
            let reason = "more is updated than a program of this size may, bytes for one more";
            file.tables.budget.spend(BESIDE_DIMENSIONS + dimensions.len(), 16 * size_of::<i64>(), reason)?;
            let element = element(&file.tables, whole, dimensions.len())?;
            let [zero, at_half] = [next, next + 1];
            for start in [0, half] {
                let value = tensor(added, vhlo, index, &start.to_le_bytes());
                let property = added.property(varints([value.0]));
                put_varint(out, constant.0);
                out.push(mask::PROPERTIES | mask::RESULTS);
                out.extend(varints([location, property.0, 1, index.0]));
                next += 1;
            }
            let mut into = arguments + update.destination as u64;
            let half = i64::from(half);
            for (start, end, place) in [(0, half, zero), (half, dimensions[axis], at_half)] {
                let with = |along: i64, others: &dyn Fn(i64) -> i64| -> Vec<i64> {
                    let of = |(number, &size): (usize, &i64)| if number == axis { along } else { others(size) };
                    dimensions.iter().enumerate().map(of).collect()
                };
                let mut bytes = varints([type_code::RANKED_TENSOR, dimensions.len() as u64]);
                with(end - start, &|size| size).into_iter().for_each(|size| put_signed(&mut bytes, size));
                put_varint(&mut bytes, element.0);
                let part = added.r#type(vhlo, bytes);
                // In the order of their names: limits, starts, strides.
                let bounds = [with(end, &|size| size), with(start, &|_| 0), with(1, &|_| 1)];
                let bounds = bounds.map(|numbers| numbers_attribute(added, vhlo, &numbers).0);
                let property = added.property(varints(bounds));
                put_varint(out, slice.0);
                out.push(mask::PROPERTIES | mask::RESULTS | mask::OPERANDS);
                out.extend(varints([location, property.0, 1, part.0, 1, argument as u64]));
                put_varint(out, put.0);
                out.push(mask::RESULTS | mask::OPERANDS);
                out.extend(varints([location, 1, whole.0, 2 + dimensions.len() as u64, into, next]));
                (0..dimensions.len()).for_each(|number| put_varint(out, if number == axis { place } else { zero }));
                into = next + 1;
                next += 2;
            }
        }
        Ok(())
    }
}

/// Whether XLA gives each result of such an operation the memory of the operand in its place.
fn updates_operands(name: &[u8]) -> bool {
    name == b"dynamic_update_slice_v1" || name == b"while_v1" || name.starts_with(b"scatter_v")
}

/// The dimensions of an argument.
fn dimensions<'p>(program: &'p Program<'_>, argument: ParameterIndex) -> Option<&'p [i64]> {
    match &program.known_parameters().nth(argument.0)?.0.value_type {
        ValueType::Tensor { dimensions, .. } => Some(dimensions),
        ValueType::Token | ValueType::Other => None,
    }
}

/// Where to cut an argument that a program may only read, if it is worth it.
fn cut(program: &Program<'_>, argument: ParameterIndex) -> Option<(usize, i32)> {
    let (parameter, known) = program.known_parameters().nth(argument.0)?;
    let (bits, _) = fits(&parameter.value_type, known)?;
    let plain = matches!(known.memory_kind, MemoryKind::Device | MemoryKind::Named(..)) && !known.has_own_layout;
    if !plain || parameter.donation != Donation::Kept {
        return None;
    }
    let halves = dimensions(program, argument)?.iter().map(|dimension| i32::try_from(dimension / 2).unwrap_or(0));
    halves.enumerate().find(|&(_, half)| half > 0).filter(|_| bits / 8 >= LEAST)
}

/// The type of the elements of a ranked tensor.
fn element(tables: &Tables<'_>, tensor: TypeId, rank: usize) -> Result<TypeId, Reject> {
    let mut cursor = Cursor::new(tables.r#type(tensor)?.bytes);
    // Its code and its rank.
    cursor.varint()?;
    cursor.varint()?;
    for _ in 0..rank {
        cursor.signed()?;
    }
    Ok(TypeId(cursor.varint()?))
}

/// Constant bytes of a type.
fn tensor(added: &mut Additions<'_, '_>, vhlo: DialectId, of: TypeId, bytes: &[u8]) -> AttrId {
    let mut out = varints([attribute_code::TENSOR, of.0, bytes.len() as u64]);
    out.extend(bytes);
    added.attribute(vhlo, out)
}

/// A list of numbers, as operations have it in their properties.
fn numbers_attribute(added: &mut Additions<'_, '_>, vhlo: DialectId, numbers: &[i64]) -> AttrId {
    let si64 = added.r#type(vhlo, varints([type_code::SI64]));
    let mut bytes = varints([type_code::RANKED_TENSOR, 1]);
    put_signed(&mut bytes, numbers.len() as i64);
    put_varint(&mut bytes, si64.0);
    let of = added.r#type(vhlo, bytes);
    let raw: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    tensor(added, vhlo, of, &raw)
}
