//! Literals: `12`, `-0x1F`, `0b101`, `017`, `0f3F800000`, `0d3FF0000000000000`, `1.5`.

/// What a literal says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole number; what is negative is kept as its complement in 64 bits.
    Integer(u64),
    /// The bits of a number in single precision.
    Single(u32),
    /// A number in double precision.
    Double(f64),
}

/// Reads a literal; nothing where the word is none.
pub fn read(word: &str, negative: bool) -> Option<Number> {
    if !word.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    if let Some(bits) = word.strip_prefix("0f").or(word.strip_prefix("0F")) {
        let bits = u32::from_str_radix(bits, 16).ok()?;
        return Some(Number::Single(bits ^ (u32::from(negative) << 31)));
    }
    if let Some(bits) = word.strip_prefix("0d").or(word.strip_prefix("0D")) {
        let value = f64::from_bits(u64::from_str_radix(bits, 16).ok()?);
        return Some(Number::Double(if negative { -value } else { value }));
    }
    if let Some(value) = integer(word) {
        return Some(Number::Integer(if negative { value.wrapping_neg() } else { value }));
    }
    let value = word.parse::<f64>().ok()?;
    Some(Number::Double(if negative { -value } else { value }))
}

/// Reads a whole number without a sign.
pub fn integer(word: &str) -> Option<u64> {
    let word = word.strip_suffix(['u', 'U']).unwrap_or(word);
    let lower = word.get(..2).map(str::to_ascii_lowercase);
    match lower.as_deref() {
        Some("0x") => u64::from_str_radix(&word[2..], 16).ok(),
        Some("0b") => u64::from_str_radix(&word[2..], 2).ok(),
        _ if word.len() > 1 && word.starts_with('0') && !word.contains('.') => u64::from_str_radix(&word[1..], 8).ok(),
        _ => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_of_every_kind_are_read() {
        let cases = [
            ("12", Number::Integer(12)),
            ("0x1f", Number::Integer(31)),
            ("0b101", Number::Integer(5)),
            ("017", Number::Integer(15)),
            ("7U", Number::Integer(7)),
            ("0f3F800000", Number::Single(0x3f80_0000)),
            ("0d4000000000000000", Number::Double(2.0)),
            ("1.5", Number::Double(1.5)),
        ];
        for (word, number) in cases {
            assert_eq!(read(word, false), Some(number), "{word}");
        }
        assert_eq!(read("12", true), Some(Number::Integer(12u64.wrapping_neg())));
        assert_eq!(read("0f3F800000", true), Some(Number::Single(0xbf80_0000)));
        assert_eq!(read("%r1", false), None);
        assert_eq!(read("9z", false), None);
    }
}
