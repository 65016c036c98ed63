//! Writes the file with its destinations.

use crate::program::{
    bytecode::{
        container::Artifact,
        ids::{AttrId, DialectId, PropertyId, TypeId},
        ops::{self, BLOCK_HAS_USE_LISTS, Regions, UseLists, mask},
        reader::Cursor,
        section,
        tables::{Additions, Tables},
        writer::{flagged, put_list, put_section, put_signed, put_varint, sum, varints},
    },
    reject::Reject,
    rewrite::{outcome::Destination, plan::Plan, renumber::Renumber, updates::Updates},
    signature::{ALIASING, ParameterIndex, Program},
    tie::Ties,
    vhlo::{self, Attribute, VHLO, attribute_code, type_code},
};

/// The file with the destinations of `plan`, and without the donations that it releases.
pub(super) fn emit(file: &Artifact<'_>, program: &Program<'_>, plan: &Plan) -> Result<Vec<u8>, Reject> {
    let mut added = Additions::new(&file.tables);
    let properties = new_properties(file, program, plan, &mut added)?;
    let main = main(file, program, plan, &mut added, properties)?;
    let mut region = Vec::with_capacity(program.before.len() + main.len() + program.after.len());
    region.extend(program.before);
    region.extend(main);
    region.extend(program.after);
    let mut ir = Vec::with_capacity(program.top.len() + region.len() + 16);
    ir.extend(program.top);
    put_section(&mut ir, section::IR, &region);
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

/// The attributes of a destination: what it aliases, and its result's sharding, layout and kind of memory. In order of
/// the keys.
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
            let region = body(file, program, plan, added, cursor.section_of(section::IR)?)?;
            put_varint(&mut out, flagged(1, true)?);
            put_section(&mut out, section::IR, &region);
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
    let updates = if plan.update_in_place {
        Updates::find(file, program, &plan.destinations, cursor.clone(), before_return)?
    } else {
        Updates::none()
    };
    let (arguments, new_arguments) = (block.arguments.len() as u64, plan.destinations.len() as u64);
    let mut sink = Renumber {
        out: Vec::with_capacity(region.len() + plan.destinations.len() * 4 + 16),
        arguments,
        values,
        new_arguments,
        first_results: updates.new_ops(),
        last_results: ties.new_results(),
        instead: Vec::new(),
        seen: 0,
        // A list must have as many entries as its value has uses, and ties and copies are uses.
        use_lists: if ties.is_empty() && updates.is_empty() { UseLists::Keep } else { UseLists::Drop },
    };
    let old_and_first = sum(sum(values, new_arguments)?, updates.new_ops())?;
    let out = &mut sink.out;
    put_varint(out, blocks);
    put_varint(out, sum(old_and_first, ties.new_results())?);
    put_varint(out, flagged(sum(sum(block.ops as u64, updates.new_ops())?, ties.new_ops())?, true)?);
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
    updates.emit(file, program, added, arguments, arguments + new_arguments, &mut sink.out)?;
    if updates.is_empty() {
        ops::operations(tables, &mut cursor, &mut sink, before_return)?;
    } else {
        for operation in 0..before_return {
            sink.instead.extend(updates.instead(operation, arguments + new_arguments));
            sink.instead.reverse();
            sink.seen = 0;
            ops::operations(tables, &mut cursor, &mut sink, 1)?;
        }
    }
    ties.emit(file, program, added, cursor.clone(), old_and_first, &mut sink)?;
    ops::operations(tables, &mut cursor, &mut sink, 1)?;
    cursor.finish("bytes after main")?;
    Ok(sink.out)
}
