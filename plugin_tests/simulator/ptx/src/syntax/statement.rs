//! Statements: `@!%p1 ld.global.v2.b32 {%r1, %r2}, [%rd1+8];`.

use super::{
    lex::{Cursor, Token},
    number,
};

/// One instruction as it is written.
#[derive(Clone, Debug)]
pub struct Statement<'a> {
    /// Where it is.
    pub line: u32,
    /// The predicate that it runs under, and whether that is negated.
    pub guard: Option<(&'a str, bool)>,
    /// Its name with all qualifiers.
    pub opcode: &'a str,
    /// What comes after the name.
    pub operands: Vec<Operand<'a>>,
}

/// An operand as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand<'a> {
    /// A register, a label, a literal; and whether a minus stands before it.
    Word(&'a str, bool),
    /// `!%p1`.
    Not(&'a str),
    /// `%r1|%p1`.
    Pair(&'a str, &'a str),
    /// `name+4`.
    Sum(&'a str, i64),
    /// `[%rd1+8]`.
    Address(&'a str, i64),
    /// `{%r1, %r2}`; also what stands in parentheses.
    List(Vec<Operand<'a>>),
}

impl<'a> Statement<'a> {
    /// Reads one without its semicolon.
    ///
    /// # Errors
    /// A sentence with the line and what is not understood.
    pub fn parse(tokens: Vec<Token<'a>>) -> Result<Self, String> {
        let mut cursor = Cursor::new(tokens);
        let line = cursor.line();
        let guard = if cursor.eat("@") {
            let negated = cursor.eat("!");
            Some((cursor.take(), negated))
        } else {
            None
        };
        let opcode = cursor.take();
        let mut operands = Vec::new();
        while !cursor.is_at_end() {
            operands.push(operand(&mut cursor)?);
            if !cursor.is_at_end() {
                cursor.expect(",")?;
            }
        }
        Ok(Self { line, guard, opcode, operands })
    }
}

fn operand<'a>(cursor: &mut Cursor<'a>) -> Result<Operand<'a>, String> {
    let close = match cursor.peek() {
        "{" => "}",
        "(" => ")",
        _ => "",
    };
    if !close.is_empty() {
        cursor.take();
        let mut list = Vec::new();
        while !cursor.eat(close) {
            list.push(single(cursor)?);
            if !cursor.eat(",") {
                cursor.expect(close)?;
                break;
            }
        }
        return Ok(Operand::List(list));
    }
    single(cursor)
}

/// An operand that is no list.
fn single<'a>(cursor: &mut Cursor<'a>) -> Result<Operand<'a>, String> {
    if cursor.eat("[") {
        let base = word(cursor)?;
        let offset = offset(cursor)?;
        cursor.expect("]")?;
        return Ok(Operand::Address(base, offset));
    }
    if cursor.eat("!") {
        return Ok(Operand::Not(word(cursor)?));
    }
    let negative = cursor.eat("-");
    let first = word(cursor)?;
    if cursor.eat("|") {
        return Ok(Operand::Pair(first, word(cursor)?));
    }
    Ok(match cursor.peek() {
        "+" | "-" => Operand::Sum(first, offset(cursor)?),
        _ => Operand::Word(first, negative),
    })
}

fn word<'a>(cursor: &mut Cursor<'a>) -> Result<&'a str, String> {
    let text = cursor.peek();
    if text.starts_with(|first: char| first.is_ascii_alphanumeric() || "_$%".contains(first)) {
        Ok(cursor.take())
    } else {
        Err(cursor.error(&format!("a register, a name or a number is needed in place of \"{text}\"")))
    }
}

/// `+4`, `-4`, `+-4`, or nothing.
fn offset(cursor: &mut Cursor<'_>) -> Result<i64, String> {
    let mut total = 0i64;
    while matches!(cursor.peek(), "+" | "-") {
        let negative = (cursor.take() == "-") != cursor.eat("-");
        let text = word(cursor)?;
        let value = number::integer(text).and_then(|value| i64::try_from(value).ok());
        let value = value.ok_or_else(|| cursor.error(&format!("the offset \"{text}\" is no number")))?;
        total = total.wrapping_add(if negative { -value } else { value });
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::lex::tokens;

    #[test]
    fn operands_of_every_kind_are_read() {
        let text = "@!%p1 x.y.L1::evict_last {%r1, _}, [%rd1+-8], -5, !%p2, %r3|%p4, name+16";
        let statement = Statement::parse(tokens(text).unwrap()).unwrap();
        assert_eq!((statement.guard, statement.opcode), (Some(("%p1", true)), "x.y.L1::evict_last"));
        let list = Operand::List(vec![Operand::Word("%r1", false), Operand::Word("_", false)]);
        let rest = [
            Operand::Address("%rd1", -8),
            Operand::Word("5", true),
            Operand::Not("%p2"),
            Operand::Pair("%r3", "%p4"),
            Operand::Sum("name", 16),
        ];
        assert_eq!(statement.operands[0], list);
        assert_eq!(statement.operands[1..], rest);
    }

    #[test]
    fn what_is_no_operand_is_told_with_its_line() {
        let error = Statement::parse(tokens("\n\nadd.s32 %r1, ;").unwrap()).unwrap_err();
        assert_eq!(error, "ptx: line 3: a register, a name or a number is needed in place of \";\"");
    }
}
