//! Optimised HLO: `PJRT_Executable_OptimizedProgram` with the parameters hidden that were added for destinations.
//!
//! JAX zips the parameters of the optimised program with its own and raises when the numbers differ, so it has to be
//! shown the program it gave. In `xla.HloModuleProto` the following name parameters:
//!
//! ```text
//!    3  computations, the entry one:   2 parameter instructions, 4 program shape
//!    4  host_program_shape
//!    7  schedule: sequence of the entry computation
//!    8  input_output_alias             entries dropped, so that only the user's donations show
//!   10  cross_program_prefetches      18  buffer_donor
//!   14  spmd_parameters_shardings      one for each parameter
//!
//!   xla.HloModuleConfigProto, beside it in the format `hlo_with_config`
//!    1  entry_computation_layout
//!    6  param_requires_broadcast_via_collectives       33  allow_spmd_sharding_propagation_to_parameters
//!   16  shardable_value_update_pairs
//! ```
//!
//! Field numbers: `xla/service/hlo.proto`, `xla/xla.proto` and `xla/xla_data.proto`, the same in PJRT 0.81, 0.112 and
//! 0.114. An added parameter has no use in the program, as its memory is only written; where the optimiser found one,
//! the program is left as it is.

use std::collections::HashSet;

use crate::program::{
    reject::Reject,
    wire::{Field, fields, put_bytes, put_packed},
};

/// How the program is wrapped, as PJRT names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `hlo`: an `HloModuleProto`.
    Hlo,
    /// `hlo_with_config`: an `HloModuleProtoWithConfig`.
    HloWithConfig,
}

impl Format {
    /// The format that PJRT calls `name`, if it is one of these.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        match name {
            b"hlo" => Some(Self::Hlo),
            b"hlo_with_config" => Some(Self::HloWithConfig),
            _ => None,
        }
    }
}

mod with_config {
    pub(super) const MODULE: u32 = 1;
    pub(super) const CONFIG: u32 = 2;
}

mod module {
    pub(super) const COMPUTATIONS: u32 = 3;
    pub(super) const HOST_PROGRAM_SHAPE: u32 = 4;
    pub(super) const ENTRY_COMPUTATION_ID: u32 = 6;
    pub(super) const SCHEDULE: u32 = 7;
    pub(super) const INPUT_OUTPUT_ALIAS: u32 = 8;
    pub(super) const CROSS_PROGRAM_PREFETCHES: u32 = 10;
    pub(super) const SPMD_PARAMETERS_SHARDINGS: u32 = 14;
    pub(super) const BUFFER_DONOR: u32 = 18;
}

mod computation {
    pub(super) const INSTRUCTIONS: u32 = 2;
    pub(super) const PROGRAM_SHAPE: u32 = 4;
    pub(super) const ID: u32 = 5;
    pub(super) const ROOT_ID: u32 = 6;
}

mod instruction {
    pub(super) const OPCODE: u32 = 2;
    pub(super) const CUSTOM_CALL_TARGET: u32 = 28;
    pub(super) const PARAMETER_NUMBER: u32 = 9;
    pub(super) const ID: u32 = 35;
    pub(super) const OPERAND_IDS: u32 = 36;
    pub(super) const CONTROL_PREDECESSOR_IDS: u32 = 37;
}

mod program_shape {
    pub(super) const PARAMETERS: u32 = 1;
    pub(super) const PARAMETER_NAMES: u32 = 3;
}

mod schedule {
    /// A map: entries with the id of the computation and its sequence.
    pub(super) const SEQUENCES: u32 = 1;
    pub(super) const KEY: u32 = 1;
    pub(super) const SEQUENCE: u32 = 2;
    pub(super) const INSTRUCTION_IDS: u32 = 1;
}

mod config {
    pub(super) const ENTRY_COMPUTATION_LAYOUT: u32 = 1;
    pub(super) const BROADCAST_VIA_COLLECTIVES: u32 = 6;
    pub(super) const SHARDABLE_VALUE_UPDATE_PAIRS: u32 = 16;
    pub(super) const PROPAGATION_TO_PARAMETERS: u32 = 33;
}

/// Entries of `input_output_alias` and `buffer_donor`, and where they and the others hold the number of their
/// parameter.
const ENTRIES: u32 = 1;
const ALIAS_PARAMETER: u32 = 2;
const DONOR_PARAMETER: u32 = 1;
const PREFETCH_PARAMETER: u32 = 1;
const UPDATE_PAIR_PARAMETER: u32 = 1;

/// The program with only its first `visible` parameters. One of the others that it uses is shown as XLA shows memory
/// that a program begins with: as a call of `AllocateBuffer`. Linear in its size.
///
/// # Errors
/// [`Reject`] where the bytes are not such a program, or its result is a parameter that would go.
pub fn hide_parameters(program: &[u8], format: Format, visible: usize) -> Result<Vec<u8>, Reject> {
    match format {
        Format::Hlo => Entry::find(program, visible)?.edit_module(program),
        Format::HloWithConfig => {
            let entry = Entry::find(module_of(program, format)?, visible)?;
            let mut out = Vec::with_capacity(program.len());
            for field in fields(program) {
                let field = field?;
                match field.number {
                    with_config::MODULE => put_bytes(&mut out, field.number, &entry.edit_module(field.bytes()?)?),
                    with_config::CONFIG => put_bytes(&mut out, field.number, &entry.edit_config(field.bytes()?)?),
                    _ => out.extend(field.raw),
                }
            }
            Ok(out)
        }
    }
}

/// The `HloModuleProto` of the program.
///
/// # Errors
/// [`Reject`] where there is not one.
pub fn module_of(program: &[u8], format: Format) -> Result<&[u8], Reject> {
    if format == Format::Hlo {
        return Ok(program);
    }
    let mut found = None;
    for field in fields(program) {
        let field = field?;
        if field.number == with_config::MODULE && found.replace(field.bytes()?).is_some() {
            return Err(Reject::new("two modules in one program"));
        }
    }
    found.ok_or(Reject::new("a program without a module"))
}

/// What has to be known of the entry computation before anything is edited.
struct Entry {
    computation: u64,
    /// Ids of the parameter instructions that go.
    hidden: HashSet<u64>,
    /// Ids of those that become allocations: an instruction updates them, or has to come after them.
    allocated: HashSet<u64>,
    visible: usize,
    /// All parameters, visible and hidden.
    parameters: usize,
}

impl Entry {
    fn find(module: &[u8], visible: usize) -> Result<Self, Reject> {
        let mut id = 0;
        for field in fields(module) {
            let field = field?;
            if field.number == module::ENTRY_COMPUTATION_ID {
                id = field.integer()?;
            }
        }
        let mut found = None;
        for field in fields(module) {
            let field = field?;
            if field.number == module::COMPUTATIONS
                && singular(field.bytes()?, computation::ID)? == id
                && found.replace(field.bytes()?).is_some()
            {
                return Err(Reject::found("two computations of one id", id));
            }
        }
        let entry = found.ok_or(Reject::found("no computation of the entry's id", id))?;

        let (hidden, allocated) = (HashSet::new(), HashSet::new());
        let mut found = Self { computation: id, hidden, allocated, visible, parameters: 0 };
        let (mut used, mut root) = (HashSet::new(), 0);
        for field in fields(entry) {
            let field = field?;
            match field.number {
                computation::INSTRUCTIONS => found.note_instruction(field.bytes()?, &mut used)?,
                computation::ROOT_ID => root = field.integer()?,
                _ => {}
            }
        }
        if found.hidden.len() != found.parameters.saturating_sub(visible) {
            return Err(Reject::found("parameters are not numbered in a row", found.parameters as u64));
        }
        if found.hidden.contains(&root) {
            return Err(Reject::found("the result is a parameter that was added", root));
        }
        found.allocated = found.hidden.intersection(&used).copied().collect();
        found.hidden.retain(|id| !used.contains(id));
        Ok(found)
    }

    fn note_instruction(&mut self, instruction: &[u8], used: &mut HashSet<u64>) -> Result<(), Reject> {
        let (mut id, mut number, mut is_parameter) = (0, 0, false);
        let mut uses = Vec::new();
        for field in fields(instruction) {
            let field = field?;
            match field.number {
                instruction::OPCODE => is_parameter = field.bytes()? == b"parameter",
                instruction::PARAMETER_NUMBER => number = field.integer()?,
                instruction::ID => id = field.integer()?,
                instruction::OPERAND_IDS | instruction::CONTROL_PREDECESSOR_IDS => field.integers(&mut uses)?,
                _ => {}
            }
        }
        used.extend(uses);
        if is_parameter {
            self.parameters += 1;
            if self.is_hidden(number) {
                self.hidden.insert(id);
            }
        }
        Ok(())
    }

    fn is_hidden(&self, parameter: u64) -> bool {
        parameter >= self.visible as u64
    }

    fn edit_module(&self, module: &[u8]) -> Result<Vec<u8>, Reject> {
        let shardings = count(module, module::SPMD_PARAMETERS_SHARDINGS)?;
        let mut shown = 0;
        let mut out = Vec::with_capacity(module.len());
        for field in fields(module) {
            let field = field?;
            let edited = match field.number {
                module::COMPUTATIONS if singular(field.bytes()?, computation::ID)? == self.computation => {
                    self.edit_computation(field.bytes()?)?
                }
                module::HOST_PROGRAM_SHAPE => self.edit_shape(field.bytes()?)?,
                module::SCHEDULE => self.edit_schedule(field.bytes()?)?,
                module::INPUT_OUTPUT_ALIAS => self.drop_entries(field.bytes()?, ALIAS_PARAMETER)?,
                module::BUFFER_DONOR => self.drop_entries(field.bytes()?, DONOR_PARAMETER)?,
                module::CROSS_PROGRAM_PREFETCHES if self.hides(&field, PREFETCH_PARAMETER)? => continue,
                module::SPMD_PARAMETERS_SHARDINGS if shardings == self.parameters => {
                    shown += 1;
                    if shown <= self.visible {
                        out.extend(field.raw);
                    }
                    continue;
                }
                _ => {
                    out.extend(field.raw);
                    continue;
                }
            };
            put_bytes(&mut out, field.number, &edited);
        }
        Ok(out)
    }

    fn edit_computation(&self, entry: &[u8]) -> Result<Vec<u8>, Reject> {
        let mut out = Vec::with_capacity(entry.len());
        for field in fields(entry) {
            let field = field?;
            match field.number {
                computation::INSTRUCTIONS => {
                    let id = singular(field.bytes()?, instruction::ID)?;
                    if self.allocated.contains(&id) {
                        put_bytes(&mut out, field.number, &allocation(field.bytes()?)?);
                    } else if !self.hidden.contains(&id) {
                        out.extend(field.raw);
                    }
                }
                computation::PROGRAM_SHAPE => {
                    put_bytes(&mut out, field.number, &self.edit_shape(field.bytes()?)?);
                }
                _ => out.extend(field.raw),
            }
        }
        Ok(out)
    }

    /// A `ProgramShapeProto` of the entry computation.
    fn edit_shape(&self, shape: &[u8]) -> Result<Vec<u8>, Reject> {
        let (mut types, mut names) = (0, 0);
        let mut out = Vec::with_capacity(shape.len());
        for field in fields(shape) {
            let field = field?;
            let seen = match field.number {
                program_shape::PARAMETERS => &mut types,
                program_shape::PARAMETER_NAMES => &mut names,
                _ => {
                    out.extend(field.raw);
                    continue;
                }
            };
            *seen += 1;
            if *seen <= self.visible {
                out.extend(field.raw);
            }
        }
        Ok(out)
    }

    fn edit_schedule(&self, schedule: &[u8]) -> Result<Vec<u8>, Reject> {
        let mut out = Vec::with_capacity(schedule.len());
        for field in fields(schedule) {
            let field = field?;
            if field.number != schedule::SEQUENCES || singular(field.bytes()?, schedule::KEY)? != self.computation {
                out.extend(field.raw);
                continue;
            }
            let mut entry = Vec::with_capacity(field.raw.len());
            for field in fields(field.bytes()?) {
                let field = field?;
                if field.number != schedule::SEQUENCE {
                    entry.extend(field.raw);
                    continue;
                }
                let mut sequence = Vec::with_capacity(field.raw.len());
                let mut ids = Vec::new();
                for field in fields(field.bytes()?) {
                    let field = field?;
                    match field.number {
                        schedule::INSTRUCTION_IDS => field.integers(&mut ids)?,
                        _ => sequence.extend(field.raw),
                    }
                }
                ids.retain(|id| !self.hidden.contains(id));
                put_packed(&mut sequence, schedule::INSTRUCTION_IDS, &ids);
                put_bytes(&mut entry, field.number, &sequence);
            }
            put_bytes(&mut out, field.number, &entry);
        }
        Ok(out)
    }

    /// Drops the entries of a list whose field `parameter` names a hidden one.
    fn drop_entries(&self, list: &[u8], parameter: u32) -> Result<Vec<u8>, Reject> {
        let mut out = Vec::with_capacity(list.len());
        for field in fields(list) {
            let field = field?;
            if field.number != ENTRIES || !self.hides(&field, parameter)? {
                out.extend(field.raw);
            }
        }
        Ok(out)
    }

    /// Whether field `parameter` of the message `entry` names a hidden parameter.
    fn hides(&self, entry: &Field<'_>, parameter: u32) -> Result<bool, Reject> {
        Ok(self.is_hidden(singular(entry.bytes()?, parameter)?))
    }

    fn edit_config(&self, options: &[u8]) -> Result<Vec<u8>, Reject> {
        let mut out = Vec::with_capacity(options.len());
        for field in fields(options) {
            let field = field?;
            match field.number {
                config::ENTRY_COMPUTATION_LAYOUT => {
                    put_bytes(&mut out, field.number, &self.edit_shape(field.bytes()?)?);
                }
                config::SHARDABLE_VALUE_UPDATE_PAIRS if self.hides(&field, UPDATE_PAIR_PARAMETER)? => {}
                config::BROADCAST_VIA_COLLECTIVES | config::PROPAGATION_TO_PARAMETERS => {
                    let mut flags = Vec::new();
                    field.integers(&mut flags)?;
                    if flags.len() == self.parameters {
                        flags.truncate(self.visible);
                        put_packed(&mut out, field.number, &flags);
                    } else {
                        // One flag for all parameters.
                        out.extend(field.raw);
                    }
                }
                _ => out.extend(field.raw),
            }
        }
        Ok(out)
    }
}

/// The last value of a singular integer field, 0 where there is none.
fn singular(message: &[u8], number: u32) -> Result<u64, Reject> {
    let mut value = 0;
    for field in fields(message) {
        let field = field?;
        if field.number == number {
            value = field.integer()?;
        }
    }
    Ok(value)
}

/// A parameter instruction as an allocation.
fn allocation(parameter: &[u8]) -> Result<Vec<u8>, Reject> {
    let mut out = Vec::with_capacity(parameter.len() + 32);
    for field in fields(parameter) {
        let field = field?;
        match field.number {
            instruction::OPCODE => put_bytes(&mut out, field.number, b"custom-call"),
            instruction::PARAMETER_NUMBER => {}
            _ => out.extend(field.raw),
        }
    }
    put_bytes(&mut out, instruction::CUSTOM_CALL_TARGET, b"AllocateBuffer");
    Ok(out)
}

/// How often a field occurs.
fn count(message: &[u8], number: u32) -> Result<usize, Reject> {
    let mut count = 0;
    for field in fields(message) {
        count += usize::from(field?.number == number);
    }
    Ok(count)
}

#[cfg(test)]
mod tests;
