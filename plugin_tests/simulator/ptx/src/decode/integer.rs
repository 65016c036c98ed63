//! Arithmetic of whole numbers.

use crate::{
    code::{Action, Apply, Carry, Register},
    decode::{
        body::Body,
        lift::{integers, one, three, two},
        opcode::{Opcode, UNKNOWN},
    },
    syntax::statement::Operand,
    value::{
        Bits,
        types::{Type, mask},
    },
};

/// Which part of a product is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Low,
    High,
    Wide,
}

fn part(word: &str) -> Option<Part> {
    match word {
        "lo" => Some(Part::Low),
        "hi" => Some(Part::High),
        "wide" => Some(Part::Wide),
        _ => None,
    }
}

/// Translates an instruction of whole numbers.
///
/// # Errors
/// Why it is not translated.
pub fn decode(body: &mut Body<'_>, mut opcode: Opcode<'_>, operands: &[Operand<'_>]) -> Result<(), String> {
    let name = opcode.name;
    let saturate = opcode.flag("sat");
    let part = opcode.first(part);
    let keep = opcode.flag("cc");
    let kind = opcode.kind()?;
    opcode.done()?;
    if saturate && !matches!((name, kind), ("add" | "sub", Type::Signed(4))) {
        return Err(format!("{UNKNOWN}: its \".sat\""));
    }
    if keep || matches!(name, "addc" | "subc" | "madc") {
        return carrying(body, name, part, kind, keep, operands);
    }
    let part_needed = || part.ok_or("needs one of \".lo\", \".hi\" and \".wide\"");
    let apply = match name {
        "add" if saturate => two(i32::saturating_add),
        "sub" if saturate => two(i32::saturating_sub),
        "add" => integers!(kind, T => two(T::wrapping_add)),
        "sub" => integers!(kind, T => two(T::wrapping_sub)),
        "mul" => multiply(kind, part_needed()?)?,
        "mad" => multiply_add(kind, part_needed()?)?,
        "mul24" => return multiply_24(body, kind, part_needed()?, operands),
        // What division by zero gives is not specified; GPUs give all bits, and for the rest the dividend.
        "div" => integers!(kind, T => two(|a: T, b: T| if b == 0 { !0 } else { a.wrapping_div(b) })),
        "rem" => integers!(kind, T => two(|a: T, b: T| if b == 0 { a } else { a.wrapping_rem(b) })),
        "min" => integers!(kind, T => two(|a: T, b: T| a.min(b))),
        "max" => integers!(kind, T => two(|a: T, b: T| a.max(b))),
        "abs" | "neg" => match (name, kind) {
            ("abs", Type::Signed(2)) => one(i16::wrapping_abs),
            ("abs", Type::Signed(4)) => one(i32::wrapping_abs),
            ("abs", Type::Signed(8)) => one(i64::wrapping_abs),
            ("neg", _) => integers!(kind, T => one(T::wrapping_neg)),
            _ => return Err(UNKNOWN.to_owned()),
        },
        "sad" => integers!(kind, T => three(|a: T, b: T, c: T| c.wrapping_add(a.max(b).wrapping_sub(a.min(b))))),
        _ => return Err(UNKNOWN.to_owned()),
    };
    let sources = match name {
        "abs" | "neg" => 1,
        "mad" | "sad" => 3,
        _ => 2,
    };
    let mut kinds = [kind; 3];
    if part == Some(Part::Wide) {
        kinds[2] = doubled(kind);
    }
    write(body, operands, &kinds[..sources], apply)
}

/// Reads a destination and sources, and adds the step.
///
/// # Errors
/// Another number of operands, or one that is none.
pub fn write(body: &mut Body<'_>, operands: &[Operand<'_>], kinds: &[Type], apply: Apply) -> Result<(), String> {
    let [to, sources @ ..] = operands else { return Err("has no operands".to_owned()) };
    if sources.len() != kinds.len() {
        return Err(format!("has {} operands in place of {}", operands.len(), kinds.len() + 1));
    }
    let sources = sources.iter().zip(kinds).map(|(source, &kind)| body.source(source, kind));
    let sources = sources.collect::<Result<Vec<Register>, _>>()?;
    let (to, _) = body.destination(to)?;
    body.compute(to, &sources, apply);
    Ok(())
}

fn doubled(kind: Type) -> Type {
    match kind {
        Type::Signed(bytes) => Type::Signed(bytes * 2),
        Type::Unsigned(bytes) => Type::Unsigned(bytes * 2),
        other => other,
    }
}

fn multiply(kind: Type, part: Part) -> Result<Apply, String> {
    let bits = u32::from(kind.bytes()) * 8;
    Ok(match part {
        Part::Low => integers!(kind, T => two(T::wrapping_mul)),
        Part::High => integers!(kind, T => two(move |a: T, b: T| (i128::from(a).wrapping_mul(b.into()) >> bits) as T)),
        Part::Wide => match kind {
            Type::Signed(2) => two(|a: i16, b: i16| i32::from(a) * i32::from(b)),
            Type::Signed(4) => two(|a: i32, b: i32| i64::from(a) * i64::from(b)),
            Type::Unsigned(2) => two(|a: u16, b: u16| u32::from(a) * u32::from(b)),
            Type::Unsigned(4) => two(|a: u32, b: u32| u64::from(a) * u64::from(b)),
            _ => return Err(UNKNOWN.to_owned()),
        },
    })
}

fn multiply_add(kind: Type, part: Part) -> Result<Apply, String> {
    let bits = u32::from(kind.bytes()) * 8;
    Ok(match part {
        Part::Low => integers!(kind, T => three(|a: T, b: T, c: T| a.wrapping_mul(b).wrapping_add(c))),
        Part::High => integers!(kind, T => three(move |a: T, b: T, c: T| {
            ((i128::from(a).wrapping_mul(b.into()) >> bits) as T).wrapping_add(c)
        })),
        Part::Wide => match kind {
            Type::Signed(2) => three(|a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c)),
            Type::Signed(4) => three(|a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c)),
            Type::Unsigned(2) => three(|a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c)),
            Type::Unsigned(4) => three(|a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c)),
            _ => return Err(UNKNOWN.to_owned()),
        },
    })
}

fn multiply_24(body: &mut Body<'_>, kind: Type, part: Part, operands: &[Operand<'_>]) -> Result<(), String> {
    let shift = if part == Part::High { 16 } else { 0 };
    let apply = match kind {
        Type::Signed(4) => {
            two(move |a: i32, b: i32| ((i64::from(a << 8 >> 8) * i64::from(b << 8 >> 8)) >> shift) as i32)
        }
        Type::Unsigned(4) => {
            two(move |a: u32, b: u32| ((u64::from(a << 8 >> 8) * u64::from(b << 8 >> 8)) >> shift) as u32)
        }
        _ => return Err(UNKNOWN.to_owned()),
    };
    write(body, operands, &[kind; 2], apply)
}

/// `add.cc`, `madc` and their like: sums that tell and take a carry.
fn carrying(
    body: &mut Body<'_>,
    name: &str,
    part: Option<Part>,
    kind: Type,
    keep: bool,
    operands: &[Operand<'_>],
) -> Result<(), String> {
    let bytes = kind.bytes();
    if !matches!(kind, Type::Signed(4 | 8) | Type::Unsigned(4 | 8)) {
        return Err(UNKNOWN.to_owned());
    }
    let takes = name.ends_with('c');
    let all = mask(bytes);
    // The carry of a sum, or the borrow of a difference.
    let add = move |a: u64, b: u64, carry: bool| {
        let sum = u128::from(a & all) + u128::from(b & all) + u128::from(takes && carry);
        (sum as u64 & all, sum > u128::from(all))
    };
    let high = matches!(kind, Type::Signed(_));
    let apply: Carry = match (name, part) {
        ("add" | "addc", None) => Box::new(move |a, b, _, carry| add(a, b, carry)),
        ("sub" | "subc", None) => Box::new(move |a, b, _, borrow| {
            let taken = u128::from(b & all) + u128::from(takes && borrow);
            ((u128::from(a & all).wrapping_sub(taken)) as u64 & all, taken > u128::from(a & all))
        }),
        ("mad" | "madc", Some(Part::Low)) => Box::new(move |a, b, c, carry| add(a.wrapping_mul(b), c, carry)),
        ("mad" | "madc", Some(Part::High)) => {
            let wide = move |bits: u64| match (high, bytes) {
                (true, 4) => i128::from(i32::of(bits)),
                (true, _) => i128::from(i64::of(bits)),
                (false, _) => i128::from(bits & all),
            };
            let shift = u32::from(bytes) * 8;
            Box::new(move |a, b, c, carry| add((wide(a).wrapping_mul(wide(b)) >> shift) as u64, c, carry))
        }
        _ => return Err(UNKNOWN.to_owned()),
    };
    let [to, sources @ ..] = operands else { return Err("has no operands".to_owned()) };
    if sources.len() != if part.is_some() { 3 } else { 2 } {
        return Err(format!("has {} operands to compute with", sources.len()));
    }
    let sources = sources.iter().map(|source| body.source(source, kind)).collect::<Result<Vec<_>, _>>()?;
    let of = [sources[0], sources[1], sources.last().copied().unwrap_or(sources[0])];
    let (to, _) = body.destination(to)?;
    body.push(Action::Carry { to, of, apply, keep });
    Ok(())
}
