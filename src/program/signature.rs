//! Finding `main` in a program, and reading what it takes and gives.

use std::collections::HashMap;

use crate::program::{
    bytecode::{
        container::Artifact,
        ids::{AttrId, PropertyId, TypeId},
        ops::{self, Regions},
        reader::Cursor,
        section,
        tables::Tables,
    },
    reject::Reject,
    vhlo::{self, Attribute, VHLO, ValueType},
};

/// A parameter of the user's program, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParameterIndex(pub usize);

/// A result of the program, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResultIndex(pub usize);

/// What the program may do with the memory of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Donation {
    /// Read it.
    Kept,
    /// Write this result into it (`tf.aliasing_output`).
    Aliases(ResultIndex),
    /// Write whichever result XLA finds to fit into it (`jax.buffer_donor`).
    Donor,
}

/// A parameter of `main`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its type, before partitioning.
    pub value_type: ValueType,
    /// Whether the argument is donated.
    pub donation: Donation,
}

/// What a program takes and gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The user's parameters.
    pub parameters: Vec<Parameter>,
    /// The types of the results, before partitioning.
    pub results: Vec<ValueType>,
    /// Partitions of one replica (`mhlo.num_partitions`, 1 where absent).
    pub partitions: u64,
    /// Replicas (`mhlo.num_replicas`, 1 where absent).
    pub replicas: u64,
    /// Whether the program calls Python on the host while it runs; see [`has_host_callbacks`].
    pub host_callbacks: bool,
    /// Whether it has a custom call: code that may look into an execute context.
    pub custom_calls: bool,
    /// Whether it computes next to nothing besides its custom calls, by its operations, and, where it has such calls,
    /// by what it takes and gives:
    /// XLA runs what takes less than 1000 flops in the caller's thread, and counts none for a custom call (XLA
    /// `cpu_client.cc`, `cheap_computation_`). An estimate: XLA counts what is left after its optimisations.
    pub is_cheap: bool,
}

/// Reads the signature of a portable artifact. Linear in its size.
///
/// # Errors
/// [`Reject`] where the bytes are not an artifact of a version that is known here.
pub fn inspect(artifact: &[u8]) -> Result<Signature, Reject> {
    let artifact = Artifact::parse(artifact)?;
    let program = Program::find(&artifact)?;
    Ok(program.signature(&artifact.tables))
}

/// Whether some bytes name a custom call that enters Python, such as `xla_ffi_python_cpu_callback`: such programs must
/// run synchronously, which jaxlib asks of its own clients and cannot ask through the C API.
///
/// Looks for the target's name anywhere in the bytes, so that it also answers for programs of other formats and for
/// artifacts that are rejected. A program that merely mentions the name counts too. Linear in the input.
pub fn has_host_callbacks(program: &[u8]) -> bool {
    let mut rest = program;
    while let Some(at) = rest.iter().position(|&byte| byte == b'_') {
        rest = &rest[at + 1..];
        if let Some(device) = rest.strip_prefix(b"python_")
            && ["cpu", "gpu"]
                .iter()
                .any(|kind| device.strip_prefix(kind.as_bytes()).is_some_and(|tail| tail.starts_with(b"_callback")))
        {
            return true;
        }
    }
    false
}

/// Whether the artifact is for several partitions and one of its strings, such as a custom call's target, is among
/// those that are asked for. No for what cannot be read. Linear in the artifact.
pub fn names_one(artifact: &[u8], asked: impl Fn(&[u8]) -> bool) -> bool {
    let Ok(artifact) = Artifact::parse(artifact) else { return false };
    artifact.tables.strings().iter().any(|text| asked(text))
        && Program::find(&artifact).is_ok_and(|program| program.signature(&artifact.tables).partitions > 1)
}

/// Whether a program in the form of text computes nothing besides its custom calls: [`Signature::is_cheap`] for what is
/// no artifact. No for what names no operation. Linear in the input.
pub fn is_cheap_text(program: &[u8]) -> bool {
    const DIALECT: &[u8] = b"stablehlo.";
    let starts = (0..program.len()).filter(|&at| program[at..].starts_with(DIALECT));
    let mut names = starts.map(|at| {
        let name = &program[at + DIALECT.len()..];
        let end = name.iter().position(|&byte| !(byte.is_ascii_alphanumeric() || byte == b'_'));
        &name[..end.unwrap_or(name.len())]
    });
    names.next().is_some_and(|first| !computes(first)) && !names.any(computes)
}

fn has_custom_calls(text: &[u8]) -> bool {
    text.windows(b"custom_call".len()).any(|part| part == b"custom_call")
}

/// The elements of all parameters and results up to which a program with custom calls is cheap whatever it computes.
const FEW_ELEMENTS: u64 = 100;

/// Whether an operation of this name, with or without a version, computes: not one that calls, moves or names what is
/// there.
fn computes(name: &[u8]) -> bool {
    let version = name.iter().rposition(|&byte| byte == b'_').unwrap_or(name.len());
    let moves: [&[u8]; 16] = [
        b"module",
        b"func",
        b"return",
        b"call",
        b"custom_call",
        b"composite",
        b"constant",
        b"tuple",
        b"get_tuple_element",
        b"optimization_barrier",
        b"reshape",
        b"bitcast_convert",
        b"broadcast_in_dim",
        b"transpose",
        b"slice",
        b"concatenate",
    ];
    !moves.contains(&name) && !moves.contains(&&name[..version])
}

/// The kind of memory that a parameter or result is bound to (`mhlo.memory_kind`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum MemoryKind {
    /// To none, or to the device's own.
    #[default]
    Device,
    /// To `pinned_host`, by this key and value.
    PinnedHost(AttrId, AttrId),
    /// To `unpinned_host`.
    UnpinnedHost,
    /// To another one.
    Other,
    /// To the device's own, in words; by this key and value.
    Named(AttrId, AttrId),
}

impl MemoryKind {
    /// Whether it is `pinned_host`.
    pub(super) fn is_pinned_host(self) -> bool {
        matches!(self, Self::PinnedHost(..))
    }

    /// Whether it is a memory of the host.
    pub(super) fn is_host(self) -> bool {
        matches!(self, Self::PinnedHost(..) | Self::UnpinnedHost)
    }

    /// The attribute that says so.
    pub(super) fn attribute(self) -> Option<(AttrId, AttrId)> {
        match self {
            Self::Device | Self::UnpinnedHost | Self::Other => None,
            Self::PinnedHost(key, value) | Self::Named(key, value) => Some((key, value)),
        }
    }
}

/// The attributes of a parameter or result that matter here, as pairs of key and value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    pub(super) aliasing_output: Option<i64>,
    pub(super) is_donor: bool,
    pub(super) memory_kind: MemoryKind,
    pub(super) mhlo_sharding: Option<(AttrId, AttrId)>,
    pub(super) sdy_sharding: Option<(AttrId, AttrId)>,
    pub(super) layout_mode: Option<(AttrId, AttrId)>,
    /// An explicit layout, or one for the compiler to choose.
    pub(super) has_own_layout: bool,
}

/// The five properties of `vhlo.func_v1`, in alphabetical order of their names.
#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionProperties {
    pub(super) parameter_attributes: AttrId,
    pub(super) function_type: AttrId,
    pub(super) result_attributes: AttrId,
    pub(super) name: AttrId,
    pub(super) visibility: AttrId,
}

/// The operations of a file, taken apart around `main`.
#[derive(Debug)]
pub(super) struct Program<'a> {
    /// The IR section up to the region of the module.
    pub(super) top: &'a [u8],
    /// The region of the module before `main`.
    pub(super) before: &'a [u8],
    pub(super) head: ops::Head,
    /// The region of `main` as it stands in the file.
    pub(super) region: &'a [u8],
    /// The region of the module behind `main`.
    pub(super) after: &'a [u8],
    pub(super) properties: FunctionProperties,
    pub(super) parameter_types: Vec<TypeId>,
    pub(super) result_types: Vec<TypeId>,
    /// One dictionary for each parameter, or none at all.
    pub(super) parameter_dictionaries: Vec<AttrId>,
    parameters: Vec<(Parameter, Known)>,
    pub(super) results: Vec<(ValueType, Known)>,
    pub(super) partitions: u64,
    replicas: u64,
}

impl<'a> Program<'a> {
    /// Finds `main` and decodes its signature. Linear in the file.
    pub(super) fn find(artifact: &Artifact<'a>) -> Result<Self, Reject> {
        let tables = &artifact.tables;
        let mut cursor = Cursor::new(artifact.ir);
        let mark = cursor.mark();
        let block = ops::block_head(&mut cursor)?;
        if block.ops != 1 || !block.arguments.is_empty() {
            return Err(Reject::found("operations at the top (1 is allowed)", block.ops as u64));
        }
        let module = ops::head(tables, &mut cursor, &mut ops::Ignore)?;
        let name = tables.op_name(module.name)?;
        if (name.dialect, name.name) != (vhlo::BUILTIN, b"module") || module.regions != Regions::Isolated(1) {
            return Err(Reject::new("the top operation is not an isolated module"));
        }
        let top = cursor.since(mark);
        let region = cursor.section_of(section::IR)?;
        cursor.finish("bytes after the module")?;

        let mut cursor = Cursor::new(region);
        let start = cursor.mark();
        let (blocks, values) = (cursor.varint()?, cursor.varint()?);
        let block = ops::block_head(&mut cursor)?;
        if blocks != 1 || values != 0 || !block.arguments.is_empty() {
            return Err(Reject::new("the module is not one block without arguments"));
        }
        let mut main = None;
        for _ in 0..block.ops {
            let before = cursor.since(start);
            let head = ops::head(tables, &mut cursor, &mut ops::Ignore)?;
            let mark = cursor.mark();
            ops::regions(tables, &mut cursor, &mut ops::Ignore, head.regions)?;
            let name = tables.op_name(head.name)?;
            if (name.dialect, name.name) != (VHLO, b"func_v1") {
                continue;
            }
            let properties = function_properties(tables, head.properties)?;
            if vhlo::attribute(tables, properties.name)? == Attribute::String(b"main")
                && main.replace((before, head, properties, cursor.since(mark), cursor.rest())).is_some()
            {
                return Err(Reject::new("two functions called main"));
            }
        }
        cursor.finish("bytes after the module's operations")?;
        let (before, head, properties, region, after) = main.ok_or(Reject::new("no function called main"))?;

        let Attribute::Type(function_type) = vhlo::attribute(tables, properties.function_type)? else {
            return Err(Reject::new("main's type is not a type attribute"));
        };
        let (parameter_types, result_types) = vhlo::function_type(tables, function_type)?;
        let parameter_dictionaries = dictionaries(tables, properties.parameter_attributes, parameter_types.len())?;
        let result_dictionaries = dictionaries(tables, properties.result_attributes, result_types.len())?;

        let kept = size_of::<(Parameter, Known)>() + size_of::<Parameter>() + size_of::<TypeId>();
        let reason = "main has more parameters or results than a program of this size may, bytes for them";
        tables.budget.spend(parameter_types.len() + result_types.len(), kept, reason)?;

        let (mut seen, mut types) = (HashMap::new(), vhlo::Types::default());
        let mut parameters = Vec::with_capacity(parameter_types.len());
        for (at, &value_type) in parameter_types.iter().enumerate() {
            let known = known(tables, &mut seen, parameter_dictionaries.get(at).copied())?;
            let donation = match known.aliasing_output {
                Some(result) => Donation::Aliases(result_index(result, result_types.len())?),
                None if known.is_donor => Donation::Donor,
                None => Donation::Kept,
            };
            parameters.push((Parameter { value_type: types.get(tables, value_type)?, donation }, known));
        }
        let mut results = Vec::with_capacity(result_types.len());
        for (at, &value_type) in result_types.iter().enumerate() {
            let known = known(tables, &mut seen, result_dictionaries.get(at).copied())?;
            results.push((types.get(tables, value_type)?, known));
        }
        let counts = module_counts(tables, module.attributes)?;
        Ok(Self {
            top,
            before,
            head,
            region,
            after,
            properties,
            parameter_types,
            result_types,
            parameter_dictionaries,
            parameters,
            results,
            partitions: counts.0,
            replicas: counts.1,
        })
    }

    /// The parameters of `main`.
    pub(super) fn parameters(&self) -> impl ExactSizeIterator<Item = &Parameter> {
        self.parameters.iter().map(|(parameter, _)| parameter)
    }

    /// The same with what is known of each.
    pub(super) fn known_parameters(&self) -> impl ExactSizeIterator<Item = &(Parameter, Known)> {
        self.parameters.iter()
    }

    /// The elements of all parameters and results.
    fn elements(&self) -> u64 {
        let results = self.results.iter().map(|(value_type, _)| value_type);
        let all = self.parameters().map(|parameter| &parameter.value_type).chain(results);
        let elements = |value_type: &ValueType| match value_type {
            ValueType::Tensor { dimensions, .. } => {
                dimensions.iter().fold(1u64, |all, &size| all.saturating_mul(size.unsigned_abs()))
            }
            ValueType::Token | ValueType::Other => 0,
        };
        all.fold(0, |sum, value_type| sum.saturating_add(elements(value_type)))
    }

    pub(super) fn signature(&self, tables: &Tables<'_>) -> Signature {
        // The operation by its name, `vhlo.custom_call_v1`: whatever else has it in its name counts too.
        let custom_calls = tables.strings().iter().any(|text| has_custom_calls(text));
        Signature {
            parameters: self.parameters().cloned().collect(),
            results: self.results.iter().map(|(value_type, _)| value_type.clone()).collect(),
            partitions: self.partitions,
            replicas: self.replicas,
            host_callbacks: tables.strings().iter().any(|text| has_host_callbacks(text)),
            custom_calls,
            is_cheap: !tables.has_op(|op| computes(op.name)) || custom_calls && self.elements() <= FEW_ELEMENTS,
        }
    }
}

fn result_index(result: i64, results: usize) -> Result<ResultIndex, Reject> {
    match usize::try_from(result) {
        Ok(index) if index < results => Ok(ResultIndex(index)),
        _ => Err(Reject::found("a parameter aliases a result that does not exist", result.cast_unsigned())),
    }
}

fn function_properties(tables: &Tables<'_>, id: Option<PropertyId>) -> Result<FunctionProperties, Reject> {
    let mut cursor = Cursor::new(tables.property(id.ok_or(Reject::new("a function without properties"))?)?);
    let mut next = || cursor.varint().map(AttrId);
    let properties = FunctionProperties {
        parameter_attributes: next()?,
        function_type: next()?,
        result_attributes: next()?,
        name: next()?,
        visibility: next()?,
    };
    cursor.finish("bytes after the properties of a function")?;
    Ok(properties)
}

/// The attribute of a parameter that names the result that it aliases.
pub(super) const ALIASING: &[u8] = b"tf.aliasing_output";

fn dictionaries(tables: &Tables<'_>, id: AttrId, values: usize) -> Result<Vec<AttrId>, Reject> {
    match vhlo::attribute(tables, id)? {
        Attribute::Array(list) if list.is_empty() || list.len() == values => Ok(list),
        _ => Err(Reject::new("main's parameter or result attributes do not fit its type")),
    }
}

/// Picks the known keys out of a dictionary. Each dictionary is read once, however many values share it.
fn known(tables: &Tables<'_>, seen: &mut HashMap<AttrId, Known>, id: Option<AttrId>) -> Result<Known, Reject> {
    let Some(id) = id else { return Ok(Known::default()) };
    if let Some(&known) = seen.get(&id) {
        return Ok(known);
    }
    let Attribute::Dictionary(items) = vhlo::attribute(tables, id)? else {
        return Err(Reject::new("attributes of a parameter or result are not a dictionary"));
    };
    let mut found = Known::default();
    for (key, value) in items {
        let Attribute::String(name) = vhlo::attribute(tables, key)? else {
            return Err(Reject::new("a dictionary key is not a string"));
        };
        match name {
            ALIASING => match vhlo::attribute(tables, value)? {
                Attribute::Integer(result) => found.aliasing_output = Some(result),
                _ => return Err(Reject::new("tf.aliasing_output is not an integer")),
            },
            b"jax.buffer_donor" => found.is_donor = vhlo::attribute(tables, value)? != Attribute::Boolean(false),
            b"mhlo.memory_kind" => {
                found.memory_kind = match vhlo::attribute(tables, value)? {
                    Attribute::String(b"pinned_host") => MemoryKind::PinnedHost(key, value),
                    Attribute::String(b"unpinned_host") => MemoryKind::UnpinnedHost,
                    Attribute::String(b"device") => MemoryKind::Named(key, value),
                    _ => MemoryKind::Other,
                }
            }
            b"mhlo.sharding" => found.mhlo_sharding = Some((key, value)),
            b"sdy.sharding" => found.sdy_sharding = Some((key, value)),
            b"mhlo.layout_mode" => {
                found.layout_mode = Some((key, value));
                found.has_own_layout = vhlo::attribute(tables, value)? != Attribute::String(b"default");
            }
            _ => {}
        }
    }
    seen.insert(id, found);
    Ok(found)
}

/// Partitions and replicas, from the attributes of the module.
fn module_counts(tables: &Tables<'_>, id: Option<AttrId>) -> Result<(u64, u64), Reject> {
    let mut counts = (1, 1);
    let Some(id) = id else { return Ok(counts) };
    let Attribute::Dictionary(items) = vhlo::builtin_attribute(tables, id)? else { return Ok(counts) };
    for (key, value) in items {
        let Attribute::String(name) = vhlo::builtin_attribute(tables, key)? else { continue };
        let count = match name {
            b"mhlo.num_partitions" => &mut counts.0,
            b"mhlo.num_replicas" => &mut counts.1,
            _ => continue,
        };
        match vhlo::builtin_attribute(tables, value)? {
            Attribute::Integer(number @ 0..) => *count = number.cast_unsigned(),
            _ => return Err(Reject::new("the number of partitions or replicas is not a count")),
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_for_several_partitions_are_asked_for_names() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("plugin_tests/data/programs");
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        let names = |artifact: &[u8], wanted: &str| names_one(artifact, |text| text == wanted.as_bytes());
        assert!(names(&read("sharded.mlir"), "main"));
        assert!(!names(&read("sharded.mlir"), "mai"), "whole strings only");
        assert!(!names(&read("add_one.mlir"), "main"), "one partition");
        assert!(!names(b"", "main") && !names(b"main", "main"));
    }

    #[test]
    fn a_destination_is_bound_to_the_memory_of_its_result() {
        let artifact = |name: &str| {
            let path = format!("{}/plugin_tests/data/artifacts/{name}.mlir", env!("CARGO_MANIFEST_DIR"));
            std::fs::read(path).unwrap()
        };
        let policy = crate::program::Policy {
            skip_sub_byte: true,
            tie_unspecified_shardings: false,
            place_pinned_host: true,
            one_memory: false,
            update_in_place: false,
        };
        for (name, pinned) in [("0506_pinned_out", true), ("0507_pinned_in", false)] {
            let bytes = artifact(name);
            let rewritten = crate::program::add_destinations(&bytes, &policy).unwrap();
            let file = Artifact::parse(&rewritten.bytes).unwrap();
            let program = Program::find(&file).unwrap();
            let (_, destination) = program.known_parameters().last().unwrap();
            let (_, result) = program.results[0];
            assert_eq!(destination.memory_kind.is_pinned_host(), pinned, "{name}");
            assert!(destination.memory_kind.attribute().is_some(), "{name}");
            assert_eq!(destination.memory_kind.attribute(), result.memory_kind.attribute(), "{name}");
        }
    }

    #[test]
    fn custom_calls_are_recognised_by_the_operation() {
        assert!(has_custom_calls(b"custom_call_v1") && has_custom_calls(b"vhlo.custom_call_v2"));
        assert!(!has_custom_calls(b"custom_cal") && !has_custom_calls(b"call_v1") && !has_custom_calls(b""));
        assert!(!has_custom_calls(b"vhlo.broadcast_in_dim_v1"), "as long, and something else");
    }

    #[test]
    fn what_only_moves_computes_nothing() {
        for name in ["module", "func_v1", "return_v1", "custom_call_v1", "broadcast_in_dim_v1", "get_tuple_element_v1"]
        {
            assert!(!computes(name.as_bytes()), "{name}");
        }
        for name in ["add_v1", "dot_general_v2", "while_v1", "case_v1", "convert_v1", "", "_v1"] {
            assert!(computes(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_text_is_cheap_if_all_that_it_names_only_moves() {
        assert!(is_cheap_text(b"%0 = stablehlo.custom_call @f(%x) ... %1 = stablehlo.reshape"));
        assert!(!is_cheap_text(b"%0 = stablehlo.custom_call @f(%x) ... %1 = stablehlo.add %0, %0"));
        assert!(!is_cheap_text(b"stablehlo.") && !is_cheap_text(b"ML\xefR stablehlo") && !is_cheap_text(b""));
    }

    /// The index is used unchecked from there on.
    #[test]
    fn a_parameter_aliases_a_result_that_exists() {
        assert_eq!((result_index(0, 2), result_index(1, 2)), (Ok(ResultIndex(0)), Ok(ResultIndex(1))));
        for (result, results) in [(2, 2), (0, 0), (-1, 2), (i64::MAX, 2), (i64::MIN, 2)] {
            assert!(result_index(result, results).is_err(), "{result} of {results}");
        }
    }

    #[test]
    fn callback_targets_are_recognised() {
        for target in [
            "xla_python_cpu_callback",
            "xla_ffi_python_cpu_callback",
            "xla_ffi_partitioned_python_cpu_callback",
            "xla_buffer_python_cpu_callback",
            "xla_python_gpu_callback",
            "xla_ffi_python_gpu_callback",
            "\0\x02xla_buffer_python_gpu_callback\0",
        ] {
            assert!(has_host_callbacks(target.as_bytes()), "{target}");
        }
        for other in ["", "_", "lapack_sgesdd_ffi", "my_python_callback", "x_python_cpu_call", "python_cpu"] {
            assert!(!has_host_callbacks(other.as_bytes()), "{other}");
        }
    }
}
