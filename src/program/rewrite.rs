//! Destination passing: one more donated parameter for each result that has no memory of the caller's yet.
//!
//! ```text
//!   before   main(a, b {jax.buffer_donor}) -> (c, d, e)
//!   after    main(a, b {jax.buffer_donor}, C {tf.aliasing_output = 0}, E {tf.aliasing_output = 2}) -> (c, d, e)
//! ```
//!
//! Parameters are only appended, so the user's keep their numbers and all results keep their places. In the file,
//! `main` gets new properties (its type and parameter attributes), new block arguments behind the old ones, and every
//! operand in its body that named a value behind the arguments moves up by the number of arguments added:
//!
//! ```text
//!   values of main's region     0 .. arguments | arguments .. values | of nested inline regions ..
//!   after adding n (and 2t)     same           | + n                 | + n + 2t          t results tied (tie.rs)
//! ```
//!
//! Nested isolated regions have their own numbers and are copied as they are.

use std::{borrow::Cow, collections::HashMap};

use crate::program::{
    Reject,
    bytecode::{
        Additions, Artifact, AttrId, Cursor, DialectId, PropertyId, Tables, TypeId, ValueId, container,
        ops::{self, BLOCK_HAS_USE_LISTS, Regions, Sink, UseLists, mask},
        writer::{flagged, put_list, put_section, put_signed, put_varint, sum, varints},
    },
    sharding::{SDY, Shardings},
    signature::{ALIASING, Donation, Known, MemoryKind, ParameterIndex, Program, ResultIndex, Signature},
    tie::Ties,
    vhlo::{self, Attribute, VHLO, ValueType, attribute_code, type_code},
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
    /// To the engine all memory is one: it would put a result that is bound to the host's into a donated array of the device, and the
    /// other way round. Such a donation is taken out, and the array is the caller's to delete when the program has been started.
    pub one_memory: bool,
}

/// Why a result has no destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Skip {
    /// A token, a tuple, an unranked tensor or one with an encoding.
    NotATensor,
    /// A dimension is known at run time only.
    DynamicDimension,
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
            Self::ElementType => "an element type without destinations",
            Self::SubByte => "elements of less than a byte, which the engine packs",
            Self::Layout => "a layout of its own",
            Self::MemoryKind => "bound to a kind of memory",
            Self::UnspecifiedSharding => "a sharding that the partitioner chooses",
        }
    }
}

/// Where a result lands.
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
    /// Where each result lands.
    pub placements: Vec<Placement>,
    /// Parameters added behind the user's: as many as there are [`Placement::Destination`]s.
    pub destinations: usize,
    /// Donated parameters that the program only reads now, in ascending order: they lie in another memory than the result that they
    /// would alias.
    pub released: Vec<ParameterIndex>,
}

impl Rewritten<'_> {
    /// The number of parameters of the user's program.
    pub fn parameters(&self) -> usize {
        self.signature.parameters.len()
    }
}

/// Adds a destination for every result that the rules allow one for. Linear in the artifact.
///
/// After each run the caller has to compare the address of a result with its destination: XLA treats the aliasing as a
/// permission.
///
/// # Errors
/// [`Reject`] where the program has to be compiled as it is.
pub fn add_destinations<'a>(artifact: &'a [u8], policy: &Policy) -> Result<Rewritten<'a>, Reject> {
    let file = Artifact::parse(artifact)?;
    let program = Program::find(&file)?;
    let plan = plan(&file, &program, policy)?;
    let is_changed = !(plan.destinations.is_empty() && plan.released.is_empty());
    let bytes = if is_changed { Cow::Owned(emit(&file, &program, &plan)?) } else { Cow::Borrowed(artifact) };
    Ok(Rewritten {
        bytes,
        signature: program.signature(&file.tables),
        placements: plan.placements,
        destinations: plan.destinations.len(),
        released: plan.released,
    })
}

/// A result that takes a destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Destination {
    pub(super) result: ResultIndex,
    pub(super) value_type: TypeId,
    known: Known,
    pub(super) sharding: Sharding,
}

/// How a destination comes by the sharding of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharding {
    /// By the same attributes, if any.
    Same,
    /// By a sharding group of the two values.
    Tied,
}

/// What a donor and a result must have in common: the size in bits, and whether they are bound to `pinned_host`. XLA goes
/// by the size on one device (`OptimizeInputOutputBufferAlias`), so a donor may take a result of another shape (JAX's
/// `testBufferDonationDifferentIOShapes`). The size before partitioning stands for it.
type Fits = (u64, bool);

/// `None` for what no donor fits, or what is no array.
fn fits(value_type: &ValueType, known: &Known) -> Option<Fits> {
    let ValueType::Tensor { dimensions, element: Some(element) } = value_type else { return None };
    let bits = dimensions.iter().try_fold(u64::from(element.bits()), |bits, &dimension| {
        u64::try_from(dimension).ok().and_then(|dimension| bits.checked_mul(dimension))
    })?;
    Some((bits, known.memory_kind.is_pinned_host()))
}

struct Plan {
    placements: Vec<Placement>,
    destinations: Vec<Destination>,
    released: Vec<ParameterIndex>,
}

/// Where more results have a donor's size than there are donors, none of them takes a destination: XLA matches donors
/// after partitioning, by the shape on one device, and only it knows which of the results has that. Taking one away could
/// take the donor's own (JAX's `testBufferDonationWithOutputShardingInference`).
fn spare_candidates(
    program: &Program<'_>,
    policy: &Policy,
    aliased_by: &[Option<ParameterIndex>],
    donors: &mut HashMap<Fits, usize>,
) {
    let mut candidates: HashMap<Fits, usize> = HashMap::new();
    for ((value_type, known), aliased) in program.results.iter().zip(aliased_by) {
        if aliased.is_none()
            && fit(value_type, known, policy).is_ok()
            && let Some(fits) = fits(value_type, known)
        {
            *candidates.entry(fits).or_default() += 1;
        }
    }
    for (fits, waiting) in donors {
        *waiting = (*waiting).max(candidates.get(fits).copied().unwrap_or(0));
    }
}

/// Decides where each result lands.
fn plan(file: &Artifact<'_>, program: &Program<'_>, policy: &Policy) -> Result<Plan, Reject> {
    let tables = &file.tables;
    let can_tie = policy.tie_unspecified_shardings
        && tables.dialect(SDY).is_some()
        && tables.find_op(SDY, b"mesh").is_some()
        && tables.dialect(vhlo::BUILTIN).is_some();
    let mut aliased_by = vec![None; program.results.len()];
    let mut released = Vec::new();
    // Donors wait for a result of their size; how many of each size still do.
    let mut donors: HashMap<Fits, usize> = HashMap::new();
    for (at, (parameter, known)) in program.known_parameters().enumerate() {
        match parameter.donation {
            Donation::Kept => {}
            Donation::Aliases(ResultIndex(result))
                if policy.one_memory
                    && known.memory_kind.is_host() != program.results[result].1.memory_kind.is_host() =>
            {
                released.push(ParameterIndex(at));
            }
            Donation::Aliases(ResultIndex(result)) => aliased_by[result] = Some(ParameterIndex(at)),
            Donation::Donor => {
                if let Some(fits) = fits(&parameter.value_type, known) {
                    *donors.entry(fits).or_default() += 1;
                }
            }
        }
    }
    if program.partitions > 1 {
        spare_candidates(program, policy, &aliased_by, &mut donors);
    }
    let mut shardings = Shardings::default();
    let mut plan = Plan { placements: Vec::with_capacity(program.results.len()), destinations: Vec::new(), released };
    for (at, (value_type, known)) in program.results.iter().enumerate() {
        let placement = if let Some(parameter) = aliased_by[at] {
            Placement::AliasedBy(parameter)
        } else if let Err(why) = fit(value_type, known, policy) {
            Placement::Skipped(why)
        } else {
            let specified = program.partitions <= 1 || shardings.is_specified(tables, known)?;
            let sharding = if specified { Sharding::Same } else { Sharding::Tied };
            if sharding == Sharding::Tied && !(can_tie && Ties::can_tie(value_type)) {
                Placement::Skipped(Skip::UnspecifiedSharding)
            } else if let Some(waiting @ 1..) = fits(value_type, known).and_then(|fits| donors.get_mut(&fits)) {
                *waiting -= 1;
                Placement::LeftToDonor
            } else {
                let parameter = ParameterIndex(program.parameter_types.len() + plan.destinations.len());
                let value_type = program.result_types[at];
                plan.destinations.push(Destination { result: ResultIndex(at), value_type, known: *known, sharding });
                Placement::Destination(parameter)
            }
        };
        plan.placements.push(placement);
    }
    Ok(plan)
}

/// Whether a result can be written to memory of the caller's, sharding apart.
fn fit(value_type: &ValueType, known: &Known, policy: &Policy) -> Result<(), Skip> {
    let ValueType::Tensor { dimensions, element } = value_type else { return Err(Skip::NotATensor) };
    if dimensions.iter().any(|&dimension| dimension < 0) {
        return Err(Skip::DynamicDimension);
    }
    match element {
        None => return Err(Skip::ElementType),
        Some(element) if policy.skip_sub_byte && element.is_sub_byte() => return Err(Skip::SubByte),
        Some(_) => {}
    }
    if known.has_own_layout {
        return Err(Skip::Layout);
    }
    match known.memory_kind {
        MemoryKind::Device | MemoryKind::Named(..) => Ok(()),
        MemoryKind::PinnedHost(..) if policy.place_pinned_host => Ok(()),
        MemoryKind::PinnedHost(..) | MemoryKind::UnpinnedHost | MemoryKind::Other => Err(Skip::MemoryKind),
    }
}

/// The file with the destinations of `plan`, and without the donations that it releases.
fn emit(file: &Artifact<'_>, program: &Program<'_>, plan: &Plan) -> Result<Vec<u8>, Reject> {
    let mut added = Additions::new(&file.tables);
    let properties = new_properties(file, program, plan, &mut added)?;
    let main = main(file, program, plan, &mut added, properties)?;
    let mut region = Vec::with_capacity(program.before.len() + main.len() + program.after.len());
    region.extend(program.before);
    region.extend(main);
    region.extend(program.after);
    let mut ir = Vec::with_capacity(program.top.len() + region.len() + 16);
    ir.extend(program.top);
    put_section(&mut ir, container::id::IR, &region);
    file.emit(&added, &ir)
}

/// The properties of `main` with the destinations in its type and its parameter attributes.
fn new_properties(
    file: &Artifact<'_>,
    program: &Program<'_>,
    plan: &Plan,
    added: &mut Additions<'_, '_>,
) -> Result<PropertyId, Reject> {
    let vhlo = file.tables.dialect(VHLO).ok_or(Reject::new("no VHLO dialect"))?;
    let si32 = added.r#type(vhlo, varints([type_code::SI32]));
    let name = added.string(ALIASING);
    let aliasing = added.attribute(vhlo, varints([attribute_code::STRING, name.0]));
    let mut dictionaries = program.parameter_dictionaries.clone();
    if dictionaries.is_empty() {
        let empty = added.attribute(vhlo, varints([attribute_code::DICTIONARY, 0]));
        dictionaries.resize(program.parameter_types.len(), empty);
    }
    for &ParameterIndex(parameter) in &plan.released {
        dictionaries[parameter] = not_aliasing(&file.tables, added, vhlo, dictionaries[parameter])?;
    }
    for destination in &plan.destinations {
        dictionaries.push(dictionary(added, vhlo, si32, aliasing, destination));
    }
    let destinations = plan.destinations.iter().map(|destination| destination.value_type);
    let parameter_types: Vec<TypeId> = program.parameter_types.iter().copied().chain(destinations).collect();

    let mut bytes = varints([type_code::FUNCTION]);
    put_list(&mut bytes, parameter_types.iter().map(|id| id.0));
    put_list(&mut bytes, program.result_types.iter().map(|id| id.0));
    let function_type = added.r#type(vhlo, bytes);
    let function_type = added.attribute(vhlo, varints([attribute_code::TYPE, function_type.0]));
    let mut bytes = varints([attribute_code::ARRAY]);
    put_list(&mut bytes, dictionaries.iter().map(|id| id.0));
    let parameter_attributes = added.attribute(vhlo, bytes);

    let old = program.properties;
    let ids = [parameter_attributes, function_type, old.result_attributes, old.name, old.visibility];
    Ok(added.property(varints(ids.map(|id| id.0))))
}

/// The attributes of a parameter without the name of the result that it aliases.
fn not_aliasing(
    tables: &Tables<'_>,
    added: &mut Additions<'_, '_>,
    vhlo: DialectId,
    id: AttrId,
) -> Result<AttrId, Reject> {
    let Attribute::Dictionary(mut items) = vhlo::attribute(tables, id)? else {
        return Err(Reject::new("attributes of a parameter are not a dictionary"));
    };
    // Of a key that cannot be read nothing was known before either.
    items.retain(|&(key, _)| vhlo::attribute(tables, key) != Ok(Attribute::String(ALIASING)));
    Ok(put_dictionary(added, vhlo, &items))
}

fn put_dictionary(added: &mut Additions<'_, '_>, vhlo: DialectId, items: &[(AttrId, AttrId)]) -> AttrId {
    let mut bytes = varints([attribute_code::DICTIONARY, items.len() as u64]);
    for &(key, value) in items {
        put_varint(&mut bytes, key.0);
        put_varint(&mut bytes, value.0);
    }
    added.attribute(vhlo, bytes)
}

/// The attributes of a destination: what it aliases, and its result's sharding, layout and kind of memory. In order of the keys.
fn dictionary(
    added: &mut Additions<'_, '_>,
    vhlo: DialectId,
    si32: TypeId,
    aliasing: AttrId,
    destination: &Destination,
) -> AttrId {
    let mut value = varints([attribute_code::INTEGER, si32.0]);
    put_signed(&mut value, destination.result.0 as i64);
    let value = added.attribute(vhlo, value);
    let known = &destination.known;
    let kind = known.memory_kind.attribute();
    let items = [known.layout_mode, kind, known.mhlo_sharding, known.sdy_sharding, Some((aliasing, value))];
    let items: Vec<(AttrId, AttrId)> = items.into_iter().flatten().collect();
    put_dictionary(added, vhlo, &items)
}

/// Copies operations, with operands renumbered.
pub(super) struct Renumber {
    pub(super) out: Vec<u8>,
    /// Values below this are arguments that keep their number.
    arguments: u64,
    /// Values from here on belong to nested regions.
    values: u64,
    new_arguments: u64,
    new_results: u64,
    use_lists: UseLists,
}

impl Renumber {
    /// The new number of a value.
    pub(super) fn renumber(&self, value: ValueId) -> Result<ValueId, Reject> {
        let mut number = value.0;
        if value.0 >= self.arguments {
            number = sum(number, self.new_arguments)?;
        }
        if value.0 >= self.values {
            number = sum(number, self.new_results)?;
        }
        Ok(ValueId(number))
    }
}

impl Sink for Renumber {
    fn copy(&mut self, raw: &[u8]) {
        self.out.extend(raw);
    }

    fn operand(&mut self, value: ValueId) -> Result<(), Reject> {
        let renumbered = self.renumber(value)?;
        put_varint(&mut self.out, renumbered.0);
        Ok(())
    }

    fn use_lists(&self) -> UseLists {
        self.use_lists
    }
}

/// The operation `main` with the destinations as arguments.
fn main(
    file: &Artifact<'_>,
    program: &Program<'_>,
    plan: &Plan,
    added: &mut Additions<'_, '_>,
    properties: PropertyId,
) -> Result<Vec<u8>, Reject> {
    let head = program.head;
    if head.mask & (mask::RESULTS | mask::OPERANDS | mask::SUCCESSORS | mask::USE_LISTS) != 0 {
        return Err(Reject::found("main has parts that functions do not have", u64::from(head.mask)));
    }
    let mut out = varints([head.name.0]);
    out.push(head.mask);
    put_varint(&mut out, head.location.0);
    if let Some(attributes) = head.attributes {
        put_varint(&mut out, attributes.0);
    }
    put_varint(&mut out, properties.0);
    // Today's writers isolate every region that uses no value from outside; older ones went by the kind of operation,
    // and stored functions inline.
    match head.regions {
        Regions::Isolated(1) => {
            let mut cursor = Cursor::new(program.region);
            let region = body(file, program, plan, added, cursor.section_of(container::id::IR)?)?;
            put_varint(&mut out, flagged(1, true)?);
            put_section(&mut out, container::id::IR, &region);
        }
        Regions::Inline(1) => {
            put_varint(&mut out, flagged(1, false)?);
            out.extend(body(file, program, plan, added, program.region)?);
        }
        Regions::Isolated(count) | Regions::Inline(count) => {
            return Err(Reject::found("main's regions (1 is allowed)", count as u64));
        }
    }
    Ok(out)
}

/// The region of `main` with the destinations as arguments.
fn body(
    file: &Artifact<'_>,
    program: &Program<'_>,
    plan: &Plan,
    added: &mut Additions<'_, '_>,
    region: &[u8],
) -> Result<Vec<u8>, Reject> {
    let tables = &file.tables;
    let mut cursor = Cursor::new(region);
    let blocks = cursor.varint()?;
    if blocks != 1 {
        return Err(Reject::found("main's blocks (1 is allowed)", blocks));
    }
    let values = cursor.varint()?;
    let block = ops::block_head(&mut cursor)?;
    if !block.arguments.iter().map(|argument| argument.value_type).eq(program.parameter_types.iter().copied()) {
        return Err(Reject::new("the block's arguments differ from main's type"));
    }
    let Some(before_return) = block.ops.checked_sub(1) else { return Err(Reject::new("main is empty")) };

    let ties = Ties::new(&plan.destinations, block.arguments.len());
    let new_arguments = plan.destinations.len() as u64;
    let mut sink = Renumber {
        out: Vec::with_capacity(region.len() + plan.destinations.len() * 4 + 16),
        arguments: block.arguments.len() as u64,
        values,
        new_arguments,
        new_results: ties.new_results(),
        // A list must have as many entries as its value has uses, and ties are uses.
        use_lists: if ties.is_empty() { UseLists::Keep } else { UseLists::Drop },
    };
    let out = &mut sink.out;
    put_varint(out, blocks);
    put_varint(out, sum(sum(values, new_arguments)?, ties.new_results())?);
    put_varint(out, flagged(sum(block.ops as u64, ties.new_ops())?, true)?);
    put_varint(out, (block.arguments.len() + plan.destinations.len()) as u64);
    for argument in &block.arguments {
        put_varint(out, flagged(argument.value_type.0, argument.location.is_some())?);
        if let Some(location) = argument.location {
            put_varint(out, location.0);
        }
    }
    for destination in &plan.destinations {
        put_varint(out, flagged(destination.value_type.0, false)?);
    }
    match block.use_lists {
        Some(lists) if sink.use_lists == UseLists::Keep => {
            sink.out.push(BLOCK_HAS_USE_LISTS);
            if block.arguments.len() == 1 && new_arguments > 0 {
                // The only value of its range had neither count nor index; now it is one of several.
                sink.out.extend(varints([1, 0]));
            }
            sink.out.extend(lists);
        }
        _ => sink.out.push(0),
    }
    ops::operations(tables, &mut cursor, &mut sink, before_return)?;
    ties.emit(file, program, added, cursor.clone(), sum(values, new_arguments)?, &mut sink)?;
    ops::operations(tables, &mut cursor, &mut sink, 1)?;
    cursor.finish("bytes after main")?;
    Ok(sink.out)
}

#[cfg(test)]
mod tests;
