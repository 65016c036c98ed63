//! Loads, stores and atomic operations.

use crate::{
    code::{Action, Address, Space, Update},
    decode::{
        body::Body,
        lift::{Packed, integers, one},
        opcode::{Opcode, UNKNOWN},
    },
    run::global,
    syntax::statement::Operand,
    value::{
        Bits,
        float::{Bf16, F16, Float},
        round::Rounding,
        types::{Type, mask},
    },
};

/// Translates an instruction of memory.
///
/// # Errors
/// Why it is not translated.
pub fn decode(body: &mut Body<'_>, mut opcode: Opcode<'_>, operands: &[Operand<'_>]) -> Result<(), String> {
    let space = opcode.first(space).unwrap_or(Space::Generic);
    match opcode.name {
        "ldmatrix" | "stmatrix" => return matrix(body, opcode, space, operands),
        // One thread runs all: every order and every scope is kept, and there is no cache to advise.
        _ => opcode.ignore(is_order_or_hint),
    }
    let operands = match operands {
        [rest @ .., _policy] if opcode.flag("L2::cache_hint") => rest,
        all => all,
    };
    match opcode.name {
        "createpolicy" => {
            // What a cache is told, and nobody reads here.
            let [to, ..] = operands else { return Err("has no operands".to_owned()) };
            let (to, nothing) = (body.destination(to)?.0, body.literal(0));
            body.compute(to, &[nothing], one(|a: u64| a));
            Ok(())
        }
        "ld" | "ldu" => load(body, opcode, space, operands),
        "st" => store(body, opcode, space, operands),
        _ => atomic(body, opcode, space, operands),
    }
}

fn space(word: &str) -> Option<Space> {
    match word {
        "global" | "const" => Some(Space::Global),
        "shared" | "shared::cta" => Some(Space::Shared),
        "local" => Some(Space::Local),
        "param" | "param::entry" => Some(Space::Parameter),
        _ => None,
    }
}

fn is_order_or_hint(word: &str) -> bool {
    let orders = ["weak", "volatile", "mmio", "relaxed", "acquire", "release", "acq_rel", "sc"];
    let scopes = ["cta", "cluster", "gpu", "sys"];
    let caches = ["nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified"];
    orders.contains(&word)
        || scopes.contains(&word)
        || caches.contains(&word)
        || (word.starts_with("L1::") || word.starts_with("L2::")) && !word.ends_with("cache_hint")
}

fn address(body: &mut Body<'_>, operand: &Operand<'_>, space: Space) -> Result<Address, String> {
    let Operand::Address(base, offset) = *operand else {
        return Err(format!("has {operand:?} where an address in brackets is needed"));
    };
    let base = body.source(&Operand::Word(base, false), Type::Unsigned(8))?;
    Ok(Address { base, offset: offset as u64, space })
}

/// The elements of a vector, or the only one.
fn elements<'o, 'a>(operand: &'o Operand<'a>, count: usize) -> Result<&'o [Operand<'a>], String> {
    let all = match operand {
        Operand::List(all) => &all[..],
        one => std::slice::from_ref(one),
    };
    if all.len() == count { Ok(all) } else { Err(format!("has {} elements in place of {count}", all.len())) }
}

/// The number of elements and their type.
fn shape(opcode: &mut Opcode<'_>) -> Result<(usize, Type), String> {
    let (count, kind) = (opcode.vector(), opcode.kind()?);
    opcode.done()?;
    if count * usize::from(kind.bytes()) > global::MOST { Err(UNKNOWN.to_owned()) } else { Ok((count, kind)) }
}

fn load(body: &mut Body<'_>, mut opcode: Opcode<'_>, space: Space, operands: &[Operand<'_>]) -> Result<(), String> {
    let (count, kind) = shape(&mut opcode)?;
    let [to, from] = operands else { return Err("needs two operands".to_owned()) };
    let (mut registers, mut width) = (Vec::new(), 8);
    for to in elements(to, count)? {
        let (register, bytes) = body.destination(to)?;
        registers.push(register);
        width = bytes;
    }
    let sign = matches!(kind, Type::Signed(_)).then_some(mask(width));
    let address = address(body, from, space)?;
    body.push(Action::Load { to: registers, address, bytes: kind.bytes(), sign });
    Ok(())
}

fn store(body: &mut Body<'_>, mut opcode: Opcode<'_>, space: Space, operands: &[Operand<'_>]) -> Result<(), String> {
    let (count, kind) = shape(&mut opcode)?;
    let [to, from] = operands else { return Err("needs two operands".to_owned()) };
    let of = elements(from, count)?.iter().map(|from| body.source(from, kind)).collect::<Result<_, _>>()?;
    let address = address(body, to, space)?;
    body.push(Action::Store { of, address, bytes: kind.bytes() });
    Ok(())
}

fn matrix(body: &mut Body<'_>, mut opcode: Opcode<'_>, space: Space, operands: &[Operand<'_>]) -> Result<(), String> {
    let store = opcode.name == "stmatrix";
    let count = opcode.first(|word| match word {
        "x1" => Some(1),
        "x2" => Some(2),
        "x4" => Some(4),
        _ => None,
    });
    let transposed = opcode.flag("trans");
    let known = opcode.flag("sync") & opcode.flag("aligned") & opcode.flag("m8n8");
    let kind = opcode.kind()?;
    opcode.done()?;
    if !known || kind != Type::Bits(2) || !matches!(space, Space::Shared | Space::Generic) {
        return Err(UNKNOWN.to_owned());
    }
    let (list, place) = match operands {
        [to, from] if store => (from, to),
        [to, from] => (to, from),
        _ => return Err("needs two operands".to_owned()),
    };
    let mut registers = Vec::new();
    for operand in elements(list, count.unwrap_or(1))? {
        registers.push(if store { body.source(operand, Type::Bits(4))? } else { body.destination(operand)?.0 });
    }
    let address = address(body, place, space)?;
    body.push(Action::Matrix { registers, address, transposed, store });
    Ok(())
}

/// `atom` and `red`.
fn atomic(body: &mut Body<'_>, mut opcode: Opcode<'_>, space: Space, operands: &[Operand<'_>]) -> Result<(), String> {
    // Subnormal numbers are kept in sums, whatever the space.
    opcode.flag("noftz");
    let operations = ["add", "and", "or", "xor", "exch", "cas", "inc", "dec", "min", "max"];
    let operation = opcode.first(|word| operations.into_iter().find(|known| *known == word)).ok_or(UNKNOWN)?;
    let (count, kind) = shape(&mut opcode)?;
    let (to, rest) = match (opcode.name, operands) {
        ("atom", [to, rest @ ..]) => (Some(elements(to, count)?), rest),
        (_, rest) => (None, rest),
    };
    let (place, b, c) = match (rest, operation) {
        ([place, b, c], "cas") => (place, b, c),
        ([place, b], "add" | "and" | "or" | "xor" | "exch" | "inc" | "dec" | "min" | "max") => (place, b, b),
        _ => return Err(format!("has {} operands", operands.len())),
    };
    let (b, c, mut address) = (elements(b, count)?, elements(c, count)?, address(body, place, space)?);
    // Only each element of a vector is atomic by itself.
    for index in 0..count {
        let of = [body.source(&b[index], kind)?, body.source(&c[index], kind)?];
        let to = to.map(|to| body.destination(&to[index])).transpose()?.map(|(to, _)| to);
        body.push(Action::Atomic { to, address, bytes: kind.bytes(), of, update: update(operation, kind)? });
        address.offset = address.offset.wrapping_add(kind.bytes().into());
    }
    Ok(())
}

fn lift<T: Bits>(update: impl Fn(T, T) -> T + Send + Sync + 'static) -> Update {
    Box::new(move |old, b, _| update(T::of(old), T::of(b)).bits())
}

fn sum<F: Float>(a: F, b: F) -> F {
    F::sum(a, b, Rounding::Nearest)
}

fn update(operation: &str, kind: Type) -> Result<Update, String> {
    let all = mask(kind.bytes());
    Ok(match (operation, kind) {
        ("exch", _) => Box::new(|_, b, _| b),
        ("cas", _) => Box::new(move |old, b, c| if old == b & all { c } else { old }),
        ("and", _) => Box::new(|old, b, _| old & b),
        ("or", _) => Box::new(|old, b, _| old | b),
        ("xor", _) => Box::new(|old, b, _| old ^ b),
        ("inc", Type::Unsigned(4)) => lift(|old: u32, b: u32| if old >= b { 0 } else { old + 1 }),
        ("dec", Type::Unsigned(4)) => lift(|old: u32, b: u32| if old == 0 || old > b { b } else { old - 1 }),
        ("add", Type::F16) => lift(sum::<F16>),
        ("add", Type::Bf16) => lift(sum::<Bf16>),
        ("add", Type::F32) => lift(sum::<f32>),
        ("add", Type::F64) => lift(sum::<f64>),
        ("add", Type::F16x2) => lift(|Packed([a, b]): Packed<F16>, Packed([c, d])| Packed([sum(a, c), sum(b, d)])),
        ("add", Type::Bf16x2) => lift(|Packed([a, b]): Packed<Bf16>, Packed([c, d])| Packed([sum(a, c), sum(b, d)])),
        ("add", _) => integers!(kind, T => lift(T::wrapping_add)),
        ("min", _) => integers!(kind, T => lift(|old: T, b: T| old.min(b))),
        ("max", _) => integers!(kind, T => lift(|old: T, b: T| old.max(b))),
        _ => return Err(UNKNOWN.to_owned()),
    })
}
