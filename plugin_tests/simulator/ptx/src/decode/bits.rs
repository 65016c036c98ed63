//! Instructions on bits: logic, shifts, fields, permutations.

use crate::{
    code::{Action, Logic},
    decode::{
        body::Body,
        integer::write,
        lift::{four, integers, one, three, two},
        opcode::{Opcode, UNKNOWN},
    },
    syntax::{number, statement::Operand},
    value::types::Type,
};

const U32: Type = Type::Unsigned(4);

/// Translates an instruction on bits.
///
/// # Errors
/// Why it is not translated.
pub fn decode(body: &mut Body<'_>, mut opcode: Opcode<'_>, operands: &[Operand<'_>]) -> Result<(), String> {
    let name = opcode.name;
    let (left, right) = (opcode.flag("l"), opcode.flag("r"));
    let (clamp, wrap) = (opcode.flag("clamp"), opcode.flag("wrap"));
    let amount = opcode.flag("shiftamt");
    let kind = opcode.kind()?;
    opcode.done()?;
    if kind == Type::Predicate {
        return predicates(body, name, operands);
    }
    let bits = u32::from(kind.bytes()) * 8;
    match name {
        "and" => write(body, operands, &[kind; 2], two(|a: u64, b: u64| a & b)),
        "or" => write(body, operands, &[kind; 2], two(|a: u64, b: u64| a | b)),
        "xor" => write(body, operands, &[kind; 2], two(|a: u64, b: u64| a ^ b)),
        "not" => write(body, operands, &[kind], integers!(kind, T => one(|a: T| !a))),
        "cnot" => write(body, operands, &[kind], integers!(kind, T => one(|a: T| T::from(a == 0)))),
        "shl" => {
            let apply = integers!(kind, T => two(|a: T, by: u32| a.checked_shl(by).unwrap_or(0)));
            write(body, operands, &[kind, U32], apply)
        }
        "shr" => {
            // Beyond its width a number is filled with its sign.
            let apply = integers!(kind, T => two(move |a: T, by: u32| {
                a.checked_shr(by).unwrap_or_else(|| if matches!(kind, Type::Signed(_)) { a >> (bits - 1) } else { 0 })
            }));
            write(body, operands, &[kind, U32], apply)
        }
        "shf" if left != right && clamp != wrap => {
            let apply = three(move |a: u32, b: u32, by: u32| {
                let both = u64::from(b) << 32 | u64::from(a);
                let by = if wrap { by & 31 } else { by.min(32) };
                if left { (both << by >> 32) as u32 } else { (both >> by) as u32 }
            });
            write(body, operands, &[kind, kind, U32], apply)
        }
        "popc" => write(body, operands, &[kind], integers!(kind, T => one(|a: T| a.count_ones()))),
        "clz" => write(body, operands, &[kind], integers!(kind, T => one(|a: T| a.leading_zeros()))),
        "brev" => write(body, operands, &[kind], integers!(kind, T => one(|a: T| a.reverse_bits()))),
        "bfind" => {
            let apply = integers!(kind, T => one(move |a: T| {
                // The highest bit that is not the sign's.
                let from = if matches!(kind, Type::Signed(_)) && a >> (bits - 1) != 0 { !a } else { a };
                let zeros = from.leading_zeros();
                if zeros == bits { u32::MAX } else if amount { zeros } else { bits - 1 - zeros }
            }));
            write(body, operands, &[kind], apply)
        }
        "bfe" => {
            let signed = matches!(kind, Type::Signed(_));
            let apply = three(move |a: u64, at: u32, length: u32| extract(a, at & 0xff, length & 0xff, bits, signed));
            write(body, operands, &[kind, U32, U32], apply)
        }
        "bfi" => {
            let apply = four(move |a: u64, b: u64, at: u32, length: u32| insert(a, b, at & 0xff, length & 0xff, bits));
            write(body, operands, &[kind, kind, U32, U32], apply)
        }
        "prmt" if kind == Type::Bits(4) => write(body, operands, &[kind; 3], three(permute)),
        "lop3" if kind == Type::Bits(4) => {
            let [to, a, b, c, Operand::Word(table, false)] = operands else {
                return Err("needs three registers and a table".to_owned());
            };
            let table = number::integer(table).filter(|&table| table < 256);
            let table = table.ok_or("needs a table of 0 to 255")?;
            let apply = three(move |a: u32, b: u32, c: u32| look_up(a, b, c, table));
            write(body, &[to.clone(), a.clone(), b.clone(), c.clone()], &[kind; 3], apply)
        }
        _ => Err(UNKNOWN.to_owned()),
    }
}

fn predicates(body: &mut Body<'_>, name: &str, operands: &[Operand<'_>]) -> Result<(), String> {
    let (Some(Operand::Word(to, false)), sources) = (operands.first(), operands.get(1..).unwrap_or_default()) else {
        return Err("needs a predicate to write".to_owned());
    };
    let sources = sources.iter().map(|source| body.truth(source)).collect::<Result<Vec<_>, _>>()?;
    let (of, logic) = match (name, &sources[..]) {
        ("and", &[a, b]) => ([a, b], Logic::And),
        ("or", &[a, b]) => ([a, b], Logic::Or),
        ("xor", &[a, b]) => ([a, b], Logic::Xor),
        ("mov", &[a]) => ([a, a], Logic::And),
        ("not", &[mut a]) => {
            a.negated ^= true;
            ([a, a], Logic::And)
        }
        _ => return Err(UNKNOWN.to_owned()),
    };
    let to = body.predicate(to)?;
    body.push(Action::Logic { to, of, logic });
    Ok(())
}

/// Bits from a place on; those beyond the end are the sign or zero.
fn extract(a: u64, at: u32, length: u32, bits: u32, signed: bool) -> u64 {
    let all = u64::MAX >> (64 - bits);
    let a = a & all;
    let sign = if length == 0 { 0 } else { a >> (at + length - 1).min(bits - 1) & 1 };
    let field = a.checked_shr(at).unwrap_or(0);
    let kept = length.min(bits.saturating_sub(at));
    let below = u64::MAX.checked_shr(64 - kept).unwrap_or(0);
    let field = field & below;
    (if signed && sign == 1 && length > 0 { field | !below } else { field }) & all
}

/// `b` with bits of `a` from a place on.
fn insert(a: u64, b: u64, at: u32, length: u32, bits: u32) -> u64 {
    let all = u64::MAX >> (64 - bits);
    let field = u64::MAX.checked_shr(64u32.saturating_sub(length)).unwrap_or(0);
    let place = field.checked_shl(at).unwrap_or(0) & all;
    (b & all & !place) | (a.checked_shl(at).unwrap_or(0) & place)
}

/// Four of eight bytes, each by four bits; the fourth bit takes only the byte's sign.
fn permute(a: u32, b: u32, by: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let byte = |index: u32| {
        let choice = by >> (4 * index) & 15;
        let byte = (bytes >> (8 * (choice & 7))) as u8;
        let byte = if choice & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        u32::from(byte) << (8 * index)
    };
    (0..4).map(byte).sum()
}

/// Each bit by a table of eight.
fn look_up(a: u32, b: u32, c: u32, table: u64) -> u32 {
    let of = |value: u32, bit: u32| if bit == 0 { !value } else { value };
    let chosen = (0..8u32).filter(|row| table >> row & 1 == 1);
    chosen.fold(0, |all, row| all | (of(a, row >> 2 & 1) & of(b, row >> 1 & 1) & of(c, row & 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_reach_over_the_end() {
        assert_eq!(extract(0x1234_5678, 8, 8, 32, false), 0x56);
        assert_eq!(extract(0x0000_8000, 8, 8, 32, true), 0xffff_ff80);
        assert_eq!(extract(0x8000_0000, 28, 16, 32, true), 0xffff_fff8);
        assert_eq!(extract(0x8000_0000, 200, 4, 32, true), 0xffff_ffff);
        assert_eq!(extract(u64::MAX, 0, 0, 64, true), 0);
        assert_eq!(extract(u64::MAX, 0, 64, 64, false), u64::MAX);
        assert_eq!(insert(0xff, 0, 28, 8, 32), 0xf000_0000);
        assert_eq!(insert(0xff, 0x1234, 4, 0, 32), 0x1234);
        assert_eq!(insert(1, 2, 0, 64, 64), 1);
        assert_eq!(insert(1, 2, 64, 8, 64), 2);
    }

    #[test]
    fn bytes_are_permuted_and_bits_looked_up() {
        assert_eq!(permute(0x3322_1180, 0x7766_5544, 0x7086), 0x7780_ff66);
        // These three have each row of a table once.
        for table in [0x96, 0xe8, 0x01, 0x80] {
            assert_eq!(u64::from(look_up(0xf0, 0xcc, 0xaa, table) & 0xff), table);
        }
    }
}
