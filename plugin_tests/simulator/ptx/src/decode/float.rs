//! Arithmetic of floating point.

use crate::{
    code::{Apply, Register},
    decode::{
        body::Body,
        lift::{Lift, Packed, floats, one},
        opcode::{Opcode, UNKNOWN},
    },
    syntax::statement::Operand,
    value::{
        float::{Bf16, F16, Finish, Float},
        round::{Exact, Rounding},
        types::Type,
    },
};

/// Translates an instruction of floating point.
///
/// # Errors
/// Why it is not translated.
pub fn decode(body: &mut Body<'_>, mut opcode: Opcode<'_>, operands: &[Operand<'_>]) -> Result<(), String> {
    let name = opcode.name;
    let finish = opcode.finish();
    let rounding = opcode.rounding();
    let (approximate, full) = (opcode.flag("approx"), opcode.flag("full"));
    let nan = opcode.flag("NaN");
    let test = (name == "testp").then(|| opcode.first(tested)).flatten();
    let kind = opcode.kind()?;
    opcode.done()?;
    let mode = rounding.unwrap_or(Rounding::Nearest);
    if kind == Type::F64 && name == "fma" && mode != Rounding::Nearest {
        return Err(format!("{UNKNOWN}: in double precision it rounds to the nearest only"));
    }
    if matches!(name, "div" | "rcp" | "sqrt") && !approximate && !full && rounding.is_none() {
        return Err("has no rounding and no \".approx\"".to_owned());
    }
    if let Some(test) = test {
        let [Operand::Word(to, false), value] = operands else { return Err("needs two operands".to_owned()) };
        let (to, value) = (body.predicate(to)?, body.source(value, kind)?);
        let apply: crate::code::Compare = match kind {
            Type::F32 => super::compare::lanes(move |a: f32, _: f32| test(a.classify())),
            Type::F64 => super::compare::lanes(move |a: f64, _: f64| test(a.classify())),
            _ => return Err(UNKNOWN.to_owned()),
        };
        let of = [value, value];
        body.push(crate::code::Action::Test { to: [Some(to), None], of, apply, with: None });
        return Ok(());
    }
    let (to, sources) = operands.split_first().ok_or("has no operands")?;
    let apply = match name {
        "abs" | "neg" => sign(name, kind, finish)?,
        "copysign" => floats!(kind, T => T::two(copy_sign)),
        "add" => floats!(kind, T => T::two(move |a, b| finish.give(Float::sum(finish.take(a), finish.take(b), mode)))),
        "sub" => floats!(kind, T => T::two(move |a, b| {
            finish.give(Float::sum(finish.take(a), finish.take(b).minus(), mode))
        })),
        "mul" => floats!(kind, T => T::two(move |a, b| {
            finish.give(Float::product(finish.take(a), finish.take(b), mode))
        })),
        "div" => floats!(kind, T => T::two(move |a, b| {
            finish.give(Float::quotient(finish.take(a), finish.take(b), mode))
        })),
        "fma" | "mad" => floats!(kind, T => T::three(move |a, b, c| {
            finish.give(Float::fused(finish.take(a), finish.take(b), finish.take(c), mode))
        })),
        "min" | "max" => {
            let larger = name == "max";
            match sources.len() {
                3 => floats!(kind, T => T::three(move |a, b, c| {
                    let (a, b, c) = (finish.take(a), finish.take(b), finish.take(c));
                    finish.give(pick(pick(a, b, larger, nan), c, larger, nan))
                })),
                _ => floats!(kind, T => T::two(move |a, b| {
                    finish.give(pick(finish.take(a), finish.take(b), larger, nan))
                })),
            }
        }
        "sqrt" if !approximate => floats!(kind, T => T::one(move |a| finish.give(Float::root(finish.take(a), mode)))),
        "rcp" if !approximate => floats!(kind, T => T::one(move |a| {
            finish.give(Float::quotient(Float::narrow(1.0), finish.take(a), mode))
        })),
        _ if approximate => approximation(name, kind, finish)?,
        _ => return Err(UNKNOWN.to_owned()),
    };
    let sources = sources.iter().map(|source| body.source(source, kind)).collect::<Result<Vec<Register>, _>>()?;
    let needed = match name {
        "add" | "sub" | "mul" | "div" | "copysign" => 2..=2,
        "min" | "max" => 2..=3,
        "fma" | "mad" => 3..=3,
        _ => 1..=1,
    };
    if !needed.contains(&sources.len()) {
        return Err(format!("has {} operands to compute with", sources.len()));
    }
    let (to, _) = body.destination(to)?;
    body.compute(to, &sources, apply);
    Ok(())
}

fn tested(word: &str) -> Option<fn(std::num::FpCategory) -> bool> {
    use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal};
    Some(match word {
        "finite" => |class| !matches!(class, Nan | Infinite),
        "infinite" => |class| class == Infinite,
        "number" => |class| class != Nan,
        "notanumber" => |class| class == Nan,
        "normal" => |class| class == Normal,
        "subnormal" => |class| class == Subnormal,
        _ => return None,
    })
}

/// Signs are bits: what is no number has one as well.
fn sign(name: &str, kind: Type, finish: Finish) -> Result<Apply, String> {
    let bits: u64 = match kind {
        Type::F16 | Type::Bf16 => 0x8000,
        Type::F16x2 | Type::Bf16x2 => 0x8000_8000,
        Type::F32 => 0x8000_0000,
        Type::F64 => 1 << 63,
        _ => return Err(UNKNOWN.to_owned()),
    };
    let negates = name == "neg";
    if finish.flush && kind == Type::F32 {
        return Ok(one(move |a: f32| {
            let a = finish.take(a);
            if negates { -a } else { a.abs() }
        }));
    }
    Ok(if negates { one(move |a: u64| a ^ bits) } else { one(move |a: u64| a & !bits) })
}

fn copy_sign<F: Float>(sign: F, size: F) -> F {
    F::narrow(size.wide().copysign(sign.wide()))
}

/// The larger or the smaller one; -0 is less than +0. One that is no number counts only where `nan` asks for it.
pub fn pick<F: Float>(a: F, b: F, larger: bool, nan: bool) -> F {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => F::NAN,
        (true, false) => {
            if nan {
                F::NAN
            } else {
                b
            }
        }
        (false, true) => {
            if nan {
                F::NAN
            } else {
                a
            }
        }
        (false, false) => {
            let (x, y) = (a.wide(), b.wide());
            let above = x > y || x == y && y.is_sign_negative();
            if above == larger { a } else { b }
        }
    }
}

/// Functions that a GPU approximates: computed in double precision and rounded, so they are nearer than any GPU's.
fn approximation(name: &str, kind: Type, finish: Finish) -> Result<Apply, String> {
    let function: fn(f64) -> f64 = match name {
        "rcp" => |x| 1.0 / x,
        "sqrt" => f64::sqrt,
        "rsqrt" => |x| 1.0 / x.sqrt(),
        "ex2" => f64::exp2,
        "lg2" => f64::log2,
        "sin" => f64::sin,
        "cos" => f64::cos,
        "tanh" => f64::tanh,
        _ => return Err(UNKNOWN.to_owned()),
    };
    Ok(floats!(kind, T => T::one(move |a| {
        let value = Exact::of(function(finish.take(a).wide()));
        finish.give(Float::rounded(value, Rounding::Nearest))
    })))
}
