//! `cvt`: between all types.

use crate::{
    code::Apply,
    decode::{
        body::Body,
        integer::write,
        lift::{Lift, Packed, floats, integers, one, two},
        opcode::{Opcode, UNKNOWN},
    },
    syntax::statement::Operand,
    value::{
        Bits,
        float::{Bf16, F16, Finish, Float},
        round::{Exact, Rounding},
        types::{Type, mask},
    },
};

/// Translates `cvt`.
///
/// # Errors
/// Why it is not translated.
pub fn decode(body: &mut Body<'_>, mut opcode: Opcode<'_>, operands: &[Operand<'_>]) -> Result<(), String> {
    let finish = opcode.finish();
    let whole = opcode.first(|word| match word {
        "rni" => Some(Rounding::Nearest),
        "rzi" => Some(Rounding::Zero),
        "rmi" => Some(Rounding::Down),
        "rpi" => Some(Rounding::Up),
        _ => None,
    });
    let mode = opcode.rounding();
    let (to, from) = (opcode.kind()?, opcode.kind()?);
    opcode.done()?;
    let mode = mode.unwrap_or(Rounding::Nearest);
    if let Type::F16x2 | Type::Bf16x2 = to {
        let apply = match (to, from) {
            (Type::F16x2, Type::F32) => pair::<F16>(finish, mode),
            (Type::Bf16x2, Type::F32) => pair::<Bf16>(finish, mode),
            _ => return Err(UNKNOWN.to_owned()),
        };
        return write(body, operands, &[from; 2], apply);
    }
    let [Operand::Word(name, _), _] = operands else { return Err("needs two operands".to_owned()) };
    let (register, bytes) = body.destination(&operands[0])?;
    let source = body.source(&operands[1], from)?;
    let apply = match (to.is_integer(), from.is_integer()) {
        (true, true) => integers(to, from, finish.saturate, bytes)?,
        (true, false) => to_integer(to, from, whole.unwrap_or(mode), finish, bytes)?,
        (false, true) => from_integer(to, from, mode, finish)?,
        (false, false) => between(to, from, whole, mode, finish)?,
    };
    if *name == "_" {
        return Err(UNKNOWN.to_owned());
    }
    body.compute(register, &[source], apply);
    Ok(())
}

/// The first operand becomes the upper half.
fn pair<F: Float>(finish: Finish, mode: Rounding) -> Apply
where
    Packed<F>: Bits,
{
    let each = move |value: f32| finish.give(F::rounded(Exact::of(value.into()), mode));
    two(move |high: f32, low: f32| Packed([each(low), each(high)]))
}

/// The least and the largest number of a type.
fn limits(kind: Type) -> (i128, i128) {
    let bits = u32::from(kind.bytes()) * 8;
    match kind {
        Type::Signed(_) => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => (0, (1 << bits) - 1),
    }
}

/// A register that is wider than the type is filled with the sign.
fn fill(value: i128, to: Type, register: u8) -> u64 {
    let bits = value as u64 & mask(to.bytes());
    let wide = if matches!(to, Type::Signed(_)) { crate::value::types::extend(bits, to.bytes()) } else { bits };
    wide & mask(register)
}

fn integers(to: Type, from: Type, saturate: bool, register: u8) -> Result<Apply, String> {
    let (least, most) = limits(to);
    Ok(integers!(from, T => one(move |a: T| {
        let value = i128::from(a);
        fill(if saturate { value.clamp(least, most) } else { value }, to, register)
    })))
}

fn to_integer(to: Type, from: Type, mode: Rounding, finish: Finish, register: u8) -> Result<Apply, String> {
    let (least, most) = limits(to);
    let nothing = if from == Type::F64 || to.bytes() == 8 { 1 << (u32::from(to.bytes()) * 8 - 1) } else { 0 };
    let convert = move |value: f64| {
        // Out of range it stays at the limit, with or without ".sat".
        let whole = if value.is_nan() { nothing } else { (mode.whole(value) as i128).clamp(least, most) };
        fill(whole, to, register)
    };
    Ok(match from {
        Type::F16 => one(move |a: F16| convert(finish.take(a).wide())),
        Type::Bf16 => one(move |a: Bf16| convert(finish.take(a).wide())),
        Type::F32 => one(move |a: f32| convert(finish.take(a).wide())),
        Type::F64 => one(convert),
        _ => return Err(UNKNOWN.to_owned()),
    })
}

fn from_integer(to: Type, from: Type, mode: Rounding, finish: Finish) -> Result<Apply, String> {
    if let Type::F16x2 | Type::Bf16x2 = to {
        return Err(UNKNOWN.to_owned());
    }
    Ok(integers!(from, T => {
        floats!(to, F => one(move |a: T| {
            finish.give(<F as Lift>::Each::rounded(Exact::whole(a.into()), mode))
        }))
    }))
}

fn between(to: Type, from: Type, whole: Option<Rounding>, mode: Rounding, finish: Finish) -> Result<Apply, String> {
    match from {
        Type::F16 => float_to::<F16>(to, whole, mode, finish),
        Type::Bf16 => float_to::<Bf16>(to, whole, mode, finish),
        Type::F32 => float_to::<f32>(to, whole, mode, finish),
        Type::F64 => float_to::<f64>(to, whole, mode, finish),
        _ => Err(UNKNOWN.to_owned()),
    }
}

fn float_to<A: Float + 'static>(
    to: Type,
    whole: Option<Rounding>,
    mode: Rounding,
    finish: Finish,
) -> Result<Apply, String> {
    Ok(floats!(to, F => one(move |a: A| {
        let wide = finish.take(a).wide();
        let value = whole.map_or(wide, |mode| mode.whole(wide));
        finish.give(<F as Lift>::Each::rounded(Exact::of(value), mode))
    })))
}
