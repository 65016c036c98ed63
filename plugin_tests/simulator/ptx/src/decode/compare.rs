//! Comparisons, and choices that follow from them.

use std::cmp::Ordering;

use crate::{
    code::{Action, Compare, Logic},
    decode::{
        body::Body,
        integer::write,
        lift::{integers, three},
        opcode::{Opcode, UNKNOWN},
    },
    syntax::statement::Operand,
    value::{
        Bits,
        float::{Bf16, F16, Finish, Float},
        types::Type,
    },
};

/// Which outcomes of a comparison are true.
#[derive(Clone, Copy, Debug)]
struct Outcomes {
    less: bool,
    equal: bool,
    greater: bool,
    /// One of the two is no number.
    unordered: bool,
    /// For numbers without a sign, whatever the type says.
    unsigned: bool,
}

impl Outcomes {
    fn named(word: &str) -> Option<Self> {
        let (less, equal, greater, unordered) = match word {
            "eq" => (false, true, false, false),
            "ne" => (true, false, true, false),
            "lt" | "lo" => (true, false, false, false),
            "le" | "ls" => (true, true, false, false),
            "gt" | "hi" => (false, false, true, false),
            "ge" | "hs" => (false, true, true, false),
            "equ" => (false, true, false, true),
            "neu" => (true, false, true, true),
            "ltu" => (true, false, false, true),
            "leu" => (true, true, false, true),
            "gtu" => (false, false, true, true),
            "geu" => (false, true, true, true),
            "num" => (true, true, true, false),
            "nan" => (false, false, false, true),
            _ => return None,
        };
        Some(Self { less, equal, greater, unordered, unsigned: matches!(word, "lo" | "ls" | "hi" | "hs") })
    }

    fn of(self, order: Option<Ordering>) -> bool {
        match order {
            Some(Ordering::Less) => self.less,
            Some(Ordering::Equal) => self.equal,
            Some(Ordering::Greater) => self.greater,
            None => self.unordered,
        }
    }
}

/// A comparison of numbers as one of all lanes.
pub fn lanes<T: Bits>(test: impl Fn(T, T) -> bool + Send + Sync + 'static) -> Compare {
    Box::new(move |a, b| {
        let pairs = a.iter().zip(b).enumerate();
        pairs.fold(0, |all, (lane, (a, b))| all | u32::from(test(T::of(*a), T::of(*b))) << lane)
    })
}

fn floating<F: Float>(outcomes: Outcomes, finish: Finish) -> Compare {
    lanes(move |a: F, b: F| outcomes.of(finish.take(a).partial_cmp(&finish.take(b))))
}

fn compare(kind: Type, outcomes: Outcomes, finish: Finish) -> Result<Compare, String> {
    let kind = match kind {
        Type::Signed(bytes) if outcomes.unsigned => Type::Unsigned(bytes),
        other => other,
    };
    Ok(match kind {
        Type::F16 => floating::<F16>(outcomes, finish),
        Type::Bf16 => floating::<Bf16>(outcomes, finish),
        Type::F32 => floating::<f32>(outcomes, finish),
        Type::F64 => floating::<f64>(outcomes, finish),
        _ => integers!(kind, T => lanes(move |a: T, b: T| outcomes.of(Some(a.cmp(&b))))),
    })
}

/// Translates `setp`, `set`, `selp` or `slct`.
///
/// # Errors
/// Why it is not translated.
pub fn decode(body: &mut Body<'_>, mut opcode: Opcode<'_>, operands: &[Operand<'_>]) -> Result<(), String> {
    match opcode.name {
        "selp" => {
            let kind = opcode.kind()?;
            opcode.done()?;
            let [to, a, b, by] = operands else { return Err("needs four operands".to_owned()) };
            let of = [body.source(a, kind)?, body.source(b, kind)?];
            let (by, (to, _)) = (body.truth(by)?, body.destination(to)?);
            body.push(Action::Select { to, of, by });
            Ok(())
        }
        "slct" => {
            let finish = opcode.finish();
            let (kind, by) = (opcode.kind()?, opcode.kind()?);
            opcode.done()?;
            let apply = match by {
                Type::Signed(4) => three(|a: u64, b: u64, c: i32| if c >= 0 { a } else { b }),
                Type::F32 => three(move |a: u64, b: u64, c: f32| if finish.take(c) >= 0.0 { a } else { b }),
                _ => return Err(UNKNOWN.to_owned()),
            };
            write(body, operands, &[kind, kind, by], apply)
        }
        _ => test(body, opcode, operands),
    }
}

/// `setp` and `set`.
fn test(body: &mut Body<'_>, mut opcode: Opcode<'_>, operands: &[Operand<'_>]) -> Result<(), String> {
    let outcomes = opcode.first(Outcomes::named).ok_or("has no comparison that this interpreter knows")?;
    let logic = opcode.first(|word| match word {
        "and" => Some(Logic::And),
        "or" => Some(Logic::Or),
        "xor" => Some(Logic::Xor),
        _ => None,
    });
    let finish = opcode.finish();
    let result = if opcode.name == "set" { Some(opcode.kind()?) } else { None };
    let kind = opcode.kind()?;
    opcode.done()?;
    let (to, a, b, with) = match (operands, logic) {
        ([to, a, b], None) => (to, a, b, None),
        ([to, a, b, with], Some(logic)) => (to, a, b, Some((logic, body.truth(with)?))),
        _ => return Err(format!("has {} operands", operands.len())),
    };
    let of = [body.source(a, kind)?, body.source(b, kind)?];
    let apply = compare(kind, outcomes, finish)?;
    let Some(result) = result else {
        let to = match *to {
            Operand::Word(to, false) => [Some(body.predicate(to)?), None],
            Operand::Pair(to, other) => [Some(body.predicate(to)?), Some(body.predicate(other)?)],
            _ => return Err("needs a predicate to write".to_owned()),
        };
        body.push(Action::Test { to, of, apply, with });
        return Ok(());
    };
    let yes = match result {
        Type::F32 => 1f32.bits(),
        Type::Signed(4) | Type::Unsigned(4) | Type::Bits(4) => u32::MAX.bits(),
        _ => return Err(UNKNOWN.to_owned()),
    };
    let chosen = body.fresh_predicate();
    body.push(Action::Test { to: [Some(chosen), None], of, apply, with });
    let (of, (to, _)) = ([body.literal(yes), body.literal(0)], body.destination(to)?);
    body.push(Action::Select { to, of, by: crate::code::Truth { predicate: chosen, negated: false } });
    Ok(())
}
