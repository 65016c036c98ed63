//! Statements to instructions: once for each kernel, before it is run.
//!
//! ```text
//!   body      names, labels, and the code that grows      opcode    qualifiers; each has to be taken by somebody
//!   integer, bits, float, compare, convert, moves, memory, control      the groups of instructions
//!   lift      functions of numbers to functions of the 32 lanes of a warp
//!   special   %tid and its like
//! ```

mod bits;
mod body;
mod compare;
mod control;
mod convert;
mod float;
mod integer;
mod lift;
mod memory;
mod moves;
mod opcode;
mod special;

use crate::{
    code::{Action, Code},
    decode::{
        body::Body,
        opcode::{Opcode, UNKNOWN},
    },
    syntax::{
        lex::Cursor,
        module::{Declarations, Entry, variables},
        number,
        statement::{Operand, Statement},
    },
    value::types::Type,
};

/// Translates a kernel's body.
///
/// # Errors
/// A sentence with the line and the statement that is not known.
pub fn kernel(entry: &Entry<'_>, declarations: &Declarations<'_>) -> Result<Code, String> {
    let mut body = Body::new(entry, declarations);
    let mut cursor = Cursor::new(entry.body.clone());
    while !cursor.is_at_end() {
        body.line = cursor.line();
        match cursor.peek() {
            "{" => {
                cursor.take();
                body.open();
            }
            "}" => {
                cursor.take();
                body.close();
            }
            ";" => drop(cursor.take()),
            ".loc" | ".file" => cursor.skip_line(),
            ".pragma" => drop(cursor.until(";")?),
            ".reg" => registers(&mut body, &mut cursor)?,
            space @ (".shared" | ".local") => {
                cursor.take();
                for variable in variables(&mut cursor)? {
                    let line = body.line;
                    body.variable(variable, space == ".shared").map_err(|told| format!("ptx: line {line}: {told}"))?;
                }
            }
            name => statement(&mut body, &mut cursor, name)?,
        }
    }
    body.finish()
}

/// `.reg .b32 %r<10>, x;`
fn registers(body: &mut Body<'_>, cursor: &mut Cursor<'_>) -> Result<(), String> {
    cursor.take();
    let word = cursor.take();
    let kind = word.strip_prefix('.').and_then(Type::named);
    let kind =
        kind.ok_or_else(|| cursor.error(&format!("registers of \"{word}\" are not known to this interpreter")))?;
    loop {
        let name = cursor.take();
        let mut count = None;
        if cursor.eat("<") {
            let word = cursor.take();
            count = Some(number::integer(word).ok_or_else(|| cursor.error(&format!("\"{word}\" is no count")))?);
            cursor.expect(">")?;
        }
        body.declare(name, kind, count);
        if !cursor.eat(",") {
            return cursor.expect(";");
        }
    }
}

/// A label or an instruction.
fn statement<'a>(body: &mut Body<'_>, cursor: &mut Cursor<'a>, name: &'a str) -> Result<(), String> {
    if cursor.second() == ":" {
        cursor.take();
        cursor.take();
        if matches!(cursor.peek(), ".branchtargets" | ".calltargets" | ".callprototype") {
            cursor.take();
            let targets = cursor.until(";")?;
            body.table(
                name,
                targets.iter().filter(|token| token.text != ",").map(|token| token.text.to_owned()).collect(),
            );
        } else {
            body.label(name);
        }
        return Ok(());
    }
    let statement = Statement::parse(cursor.until(";")?)?;
    let line = statement.line;
    body.line = line;
    let told = |told: String| format!("ptx: line {line}: \"{}\" {told}", statement.opcode);
    body.guard = match statement.guard {
        Some((word, negated)) => {
            let operand = if negated { Operand::Not(word) } else { Operand::Word(word, false) };
            Some(body.truth(&operand).map_err(told)?)
        }
        None => None,
    };
    instruction(body, Opcode::new(statement.opcode), &statement.operands).map_err(told)
}

fn instruction(body: &mut Body<'_>, opcode: Opcode<'_>, operands: &[Operand<'_>]) -> Result<(), String> {
    match opcode.name {
        "add" | "sub" | "mul" | "mad" | "div" | "min" | "max" | "abs" | "neg" => {
            if opcode.last_kind().is_some_and(Type::is_integer) {
                integer::decode(body, opcode, operands)
            } else {
                float::decode(body, opcode, operands)
            }
        }
        "addc" | "subc" | "madc" | "mul24" | "rem" | "sad" => integer::decode(body, opcode, operands),
        "fma" | "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" | "copysign" | "testp" => {
            float::decode(body, opcode, operands)
        }
        "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "shf" | "popc" | "clz" | "brev" | "bfind" | "bfe"
        | "bfi" | "prmt" | "lop3" => bits::decode(body, opcode, operands),
        "setp" | "set" | "selp" | "slct" => compare::decode(body, opcode, operands),
        "cvt" => convert::decode(body, opcode, operands),
        "mov" | "cvta" | "isspacep" => moves::decode(body, opcode, operands),
        "ld" | "ldu" | "st" | "atom" | "red" | "ldmatrix" | "stmatrix" | "createpolicy" => {
            memory::decode(body, opcode, operands)
        }
        "bra" | "brx" | "ret" | "exit" | "trap" | "bar" | "barrier" => control::decode(body, opcode, operands),
        "shfl" | "vote" | "match" | "redux" | "elect" | "activemask" => control::collective(body, opcode, operands),
        // One thread runs all of a launch, and the next one begins when it has ended.
        "membar" | "fence" | "griddepcontrol" | "nanosleep" | "prefetch" | "prefetchu" | "pmevent" | "discard" => {
            body.push(Action::Nothing);
            Ok(())
        }
        _ => Err(UNKNOWN.to_owned()),
    }
}
