//! `mov`, with packing and unpacking; addresses from one space to another.

use crate::{
    code::Action,
    decode::{
        bits,
        body::Body,
        compare,
        integer::write,
        lift::{one, two},
        opcode::{Opcode, UNKNOWN},
        special::is_clock,
    },
    run::space::{Window, window},
    syntax::statement::Operand,
    value::types::{Type, mask},
};

/// Translates `mov`, `cvta` or `isspacep`.
///
/// # Errors
/// Why it is not translated.
pub fn decode(body: &mut Body<'_>, mut opcode: Opcode<'_>, operands: &[Operand<'_>]) -> Result<(), String> {
    match opcode.name {
        "cvta" => address(body, opcode, operands),
        "isspacep" => {
            // Constants lie in global memory here, so what is asked cannot be answered.
            let asked = if opcode.flag("const") { None } else { opcode.first(Window::named) }.ok_or(UNKNOWN)?;
            opcode.done()?;
            let [Operand::Word(to, false), of] = operands else { return Err("needs two operands".to_owned()) };
            let (to, of) = (body.predicate(to)?, body.source(of, Type::Unsigned(8))?);
            let apply = compare::lanes(move |address: u64, _: u64| window(address) == asked);
            body.push(Action::Test { to: [Some(to), None], of: [of, of], apply, with: None });
            Ok(())
        }
        _ => {
            if opcode.last_kind() == Some(Type::Predicate) {
                return bits::decode(body, opcode, operands);
            }
            let kind = opcode.kind()?;
            opcode.done()?;
            copy(body, kind, operands)
        }
    }
}

fn copy(body: &mut Body<'_>, kind: Type, operands: &[Operand<'_>]) -> Result<(), String> {
    let part = |count: usize| u8::try_from(usize::from(kind.bytes()) / count.max(1)).unwrap_or(0);
    match operands {
        [to, Operand::Word(word, false)] if is_clock(word) => {
            let (to, _) = body.destination(to)?;
            body.push(Action::Clock { to });
            Ok(())
        }
        [Operand::List(to), from] => {
            let (source, bytes) = (body.source(from, kind)?, part(to.len()));
            if !matches!(to.len(), 2 | 4) || bytes == 0 {
                return Err(UNKNOWN.to_owned());
            }
            for (index, to) in (0u32..).zip(to) {
                let (to, _) = body.destination(to)?;
                let shift = index * u32::from(bytes) * 8;
                body.compute(to, &[source], one(move |a: u64| a >> shift & mask(bytes)));
            }
            Ok(())
        }
        [to, Operand::List(from)] => {
            let bytes = part(from.len());
            if !matches!(from.len(), 2 | 4) || bytes == 0 {
                return Err(UNKNOWN.to_owned());
            }
            // The result may be one of the sources.
            let packed = body.fresh();
            let mut so_far = body.literal(0);
            for (index, from) in (0u32..).zip(from) {
                let source = body.source(from, Type::Bits(bytes))?;
                let shift = index * u32::from(bytes) * 8;
                let apply = two(move |all: u64, part: u64| all | (part & mask(bytes)) << shift);
                body.compute(packed, &[so_far, source], apply);
                so_far = packed;
            }
            let (to, _) = body.destination(to)?;
            body.compute(to, &[packed], one(|a: u64| a));
            Ok(())
        }
        _ => {
            let bytes = kind.bytes();
            write(body, operands, &[kind], one(move |a: u64| a & mask(bytes)))
        }
    }
}

/// `cvta`: addresses within a space are counted from 0, but for those of global memory, which are what they are.
fn address(body: &mut Body<'_>, mut opcode: Opcode<'_>, operands: &[Operand<'_>]) -> Result<(), String> {
    let to_space = opcode.flag("to");
    let space = opcode.first(Window::named).ok_or(UNKNOWN)?;
    let kind = opcode.kind()?;
    opcode.done()?;
    if kind.bytes() != 8 {
        return Err(format!("{UNKNOWN}: addresses have 64 bits here"));
    }
    let base = space.base();
    let apply =
        if to_space { one(move |a: u64| a.wrapping_sub(base)) } else { one(move |a: u64| a.wrapping_add(base)) };
    write(body, operands, &[kind], apply)
}
