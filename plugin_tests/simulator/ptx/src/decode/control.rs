//! Branches, barriers, and what lanes tell each other.

use crate::{
    code::{Action, Combine, Exchange, Register, Vote, Way},
    decode::{
        body::Body,
        lift::integers,
        opcode::{Opcode, UNKNOWN},
    },
    syntax::statement::Operand,
    value::{Bits, types::Type},
};

const U32: Type = Type::Unsigned(4);

/// Translates a branch, an end or a barrier.
///
/// # Errors
/// Why it is not translated.
pub fn decode(body: &mut Body<'_>, mut opcode: Opcode<'_>, operands: &[Operand<'_>]) -> Result<(), String> {
    opcode.flag("uni");
    match (opcode.name, operands) {
        ("bra", [Operand::Word(label, false)]) => {
            opcode.done()?;
            body.jump(Action::Jump { to: 0 }, label);
            Ok(())
        }
        ("brx", [index, Operand::Word(table, false)]) => {
            opcode.flag("idx");
            opcode.done()?;
            let index = body.source(index, U32)?;
            body.jump(Action::Table { index, to: Vec::new() }, table);
            Ok(())
        }
        ("ret" | "exit", []) => push(body, &opcode, Action::Exit),
        ("trap", []) => push(body, &opcode, Action::Trap),
        ("bar" | "barrier", _) => barrier(body, opcode, operands),
        _ => Err(UNKNOWN.to_owned()),
    }
}

fn push(body: &mut Body<'_>, opcode: &Opcode<'_>, action: Action) -> Result<(), String> {
    opcode.done()?;
    body.push(action);
    Ok(())
}

fn barrier(body: &mut Body<'_>, mut opcode: Opcode<'_>, operands: &[Operand<'_>]) -> Result<(), String> {
    opcode.flag("cta");
    // "bar.sync" is short for "barrier.sync.aligned".
    let aligned = opcode.flag("aligned") | (opcode.name == "bar");
    let warp = opcode.flag("warp");
    if !opcode.flag("sync") {
        return Err(UNKNOWN.to_owned());
    }
    let (first, threads) = match operands {
        [first] => (body.source(first, U32)?, None),
        [first, threads] if !warp => (body.source(first, U32)?, Some(body.source(threads, U32)?)),
        _ => return Err(format!("has {} operands", operands.len())),
    };
    let together = Action::Collective { members: first, exchange: Exchange::Nothing };
    push(body, &opcode, if warp { together } else { Action::Barrier { id: first, threads, aligned } })
}

/// Translates what lanes tell each other.
///
/// # Errors
/// Why it is not translated.
pub fn collective(body: &mut Body<'_>, mut opcode: Opcode<'_>, operands: &[Operand<'_>]) -> Result<(), String> {
    if opcode.name == "activemask" {
        let kind = opcode.kind()?;
        let [to] = operands else { return Err("needs one operand".to_owned()) };
        if kind.bytes() != 4 {
            return Err(UNKNOWN.to_owned());
        }
        let (to, _) = body.destination(to)?;
        let members = body.literal(0);
        return push(body, &opcode, Action::Collective { members, exchange: Exchange::Active { to } });
    }
    if !opcode.flag("sync") {
        return Err(format!("{UNKNOWN}: without \".sync\" it is not defined on today's GPUs"));
    }
    let [rest @ .., members] = operands else { return Err("has no operands".to_owned()) };
    let exchange = match opcode.name {
        "shfl" => shuffle(body, &mut opcode, rest)?,
        "vote" => vote(body, &mut opcode, rest)?,
        "match" => same(body, &mut opcode, rest)?,
        "redux" => reduce(body, &mut opcode, rest)?,
        "elect" => match rest {
            [Operand::Pair(to, chosen)] => {
                let to = if *to == "_" { None } else { Some(body.destination(&Operand::Word(to, false))?.0) };
                Exchange::Elect { to, chosen: body.predicate(chosen)? }
            }
            _ => return Err(UNKNOWN.to_owned()),
        },
        _ => return Err(UNKNOWN.to_owned()),
    };
    let members = body.source(members, U32)?;
    push(body, &opcode, Action::Collective { members, exchange })
}

/// A register, and a predicate after a bar.
fn pair(body: &mut Body<'_>, operand: &Operand<'_>) -> Result<(Register, Option<u32>), String> {
    match *operand {
        Operand::Pair(to, valid) => Ok((body.destination(&Operand::Word(to, false))?.0, Some(body.predicate(valid)?))),
        ref one => Ok((body.destination(one)?.0, None)),
    }
}

fn shuffle(body: &mut Body<'_>, opcode: &mut Opcode<'_>, operands: &[Operand<'_>]) -> Result<Exchange, String> {
    let way = opcode.first(|word| match word {
        "up" => Some(Way::Up),
        "down" => Some(Way::Down),
        "bfly" => Some(Way::Butterfly),
        "idx" => Some(Way::Index),
        _ => None,
    });
    let kind = opcode.kind()?;
    let ([to, of, by, clamp], Some(way), 4) = (operands, way, kind.bytes()) else { return Err(UNKNOWN.to_owned()) };
    let (to, valid) = pair(body, to)?;
    let (of, by, clamp) = (body.source(of, kind)?, body.source(by, U32)?, body.source(clamp, U32)?);
    Ok(Exchange::Shuffle { to, valid, way, of, by, clamp })
}

fn vote(body: &mut Body<'_>, opcode: &mut Opcode<'_>, operands: &[Operand<'_>]) -> Result<Exchange, String> {
    let ballot = opcode.flag("ballot");
    let vote = opcode.first(|word| match word {
        "all" => Some(Vote::All),
        "any" => Some(Vote::Any),
        "uni" => Some(Vote::Uniform),
        _ => None,
    });
    opcode.kind()?;
    let [to, of] = operands else { return Err(format!("has {} operands", operands.len() + 1)) };
    let of = body.truth(of)?;
    match (vote, to) {
        (None, to) if ballot => Ok(Exchange::Ballot { to: body.destination(to)?.0, of }),
        (Some(vote), Operand::Word(to, false)) => Ok(Exchange::Vote { to: body.predicate(to)?, vote, of }),
        _ => Err(UNKNOWN.to_owned()),
    }
}

/// `match.any` and `match.all`.
fn same(body: &mut Body<'_>, opcode: &mut Opcode<'_>, operands: &[Operand<'_>]) -> Result<Exchange, String> {
    let (any, all) = (opcode.flag("any"), opcode.flag("all"));
    let kind = opcode.kind()?;
    let [to, of] = operands else { return Err(format!("has {} operands", operands.len() + 1)) };
    let of = body.source(of, kind)?;
    let (to, same) = pair(body, to)?;
    match (any, all, same) {
        (true, false, None) => Ok(Exchange::MatchAny { to, of }),
        (false, true, same) => Ok(Exchange::MatchAll { to, same, of }),
        _ => Err(UNKNOWN.to_owned()),
    }
}

fn reduce(body: &mut Body<'_>, opcode: &mut Opcode<'_>, operands: &[Operand<'_>]) -> Result<Exchange, String> {
    let names = ["add", "min", "max", "and", "or", "xor"];
    let name = opcode.first(|word| names.into_iter().find(|known| *known == word)).ok_or(UNKNOWN)?;
    let kind = opcode.kind()?;
    if kind.bytes() != 4 {
        return Err(UNKNOWN.to_owned());
    }
    let combine: Combine = integers!(kind, T => match name {
        "add" => Box::new(|a, b| T::of(a).wrapping_add(T::of(b)).bits()),
        "min" => Box::new(|a, b| T::of(a).min(T::of(b)).bits()),
        "max" => Box::new(|a, b| T::of(a).max(T::of(b)).bits()),
        "and" => Box::new(|a, b| a & b),
        "or" => Box::new(|a, b| a | b),
        _ => Box::new(|a, b| a ^ b),
    });
    let [to, of] = operands else { return Err(format!("has {} operands", operands.len() + 1)) };
    let of = body.source(of, kind)?;
    Ok(Exchange::Reduce { to: body.destination(to)?.0, of, combine })
}
