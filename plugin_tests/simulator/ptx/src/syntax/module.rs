//! What a module declares: variables and functions.

use super::{
    lex::{Cursor, Token, tokens},
    number::{self, Number},
};
use crate::{Global, Parameter, value::types::Type};

/// What CUDA allows the parameters of a kernel to have.
const MOST_PARAMETERS: u64 = 32_764;

/// A module's declarations, with the bodies of its kernels as they are written.
#[derive(Debug, Default)]
pub struct Declarations<'a> {
    /// Variables in global and constant memory.
    pub globals: Vec<Global>,
    /// Variables in shared memory.
    pub shared: Vec<Variable>,
    /// The kernels.
    pub entries: Vec<Entry<'a>>,
}

/// A variable as it is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// What its address is a multiple of.
    pub alignment: u64,
    /// Its size; nothing where the launch says it (`.extern .shared name[]`).
    pub bytes: Option<u64>,
    /// What it begins with.
    pub initial: Vec<u8>,
}

/// A kernel as it is declared.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// Its name.
    pub name: &'a str,
    /// Names of its parameters.
    pub names: Vec<&'a str>,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// `.reqntid`.
    pub required: Option<[u32; 3]>,
    /// `.maxntid`.
    pub most: Option<[u32; 3]>,
    /// What stands between its braces.
    pub body: Vec<Token<'a>>,
}

/// Reads a module.
///
/// # Errors
/// A sentence with the line and what is not understood.
pub fn parse(text: &str) -> Result<Declarations<'_>, String> {
    let mut cursor = Cursor::new(tokens(text)?);
    let mut found = Declarations::default();
    while !cursor.is_at_end() {
        match cursor.peek() {
            ".version" | ".target" | ".address_size" | ".file" | ".loc" => cursor.skip_line(),
            ".pragma" | ".alias" => drop(cursor.until(";")?),
            ".section" => {
                cursor.until("{")?;
                cursor.until("}")?;
            }
            ".visible" | ".extern" | ".weak" | ".common" | ";" => drop(cursor.take()),
            ".func" => function(&mut cursor)?,
            ".entry" => {
                cursor.take();
                found.entries.extend(entry(&mut cursor)?);
            }
            space @ (".global" | ".const" | ".shared") => {
                cursor.take();
                for Variable { name, alignment, bytes, initial } in variables(&mut cursor)? {
                    if space == ".shared" {
                        found.shared.push(Variable { name, alignment, bytes, initial });
                    } else {
                        let bytes = bytes.unwrap_or(initial.len() as u64);
                        found.globals.push(Global { name, bytes, alignment, initial });
                    }
                }
            }
            other => return Err(cursor.error(&format!("\"{other}\" is not known to this interpreter"))),
        }
    }
    Ok(found)
}

/// Passes over a device function: a kernel that calls it says so itself.
fn function(cursor: &mut Cursor<'_>) -> Result<(), String> {
    cursor.take();
    while !cursor.is_at_end() {
        match cursor.take() {
            ";" => return Ok(()),
            "{" => return cursor.until("}").map(drop),
            _ => {}
        }
    }
    Err(cursor.error("a .func does not end"))
}

/// Reads a kernel; gives nothing where it is only declared.
fn entry<'a>(cursor: &mut Cursor<'a>) -> Result<Option<Entry<'a>>, String> {
    let name = cursor.take();
    let (mut names, mut parameters) = (Vec::new(), Vec::new());
    if cursor.eat("(") {
        while !cursor.eat(")") {
            let (name, parameter) = parameter(cursor)?;
            names.push(name);
            parameters.push(parameter);
            cursor.eat(",");
        }
    }
    let (mut required, mut most) = (None, None);
    loop {
        match cursor.take() {
            ".reqntid" => required = Some(threads(cursor)?),
            ".maxntid" => most = Some(threads(cursor)?),
            ".minnctapersm" | ".maxnreg" | ".maxclusterrank" => drop(cursor.take()),
            ".noreturn" => {}
            ".pragma" => drop(cursor.until(";")?),
            ";" => return Ok(None),
            "{" => break,
            other => {
                return Err(cursor.error(&format!("\"{other}\" of the kernel {name} is not known to this interpreter")));
            }
        }
    }
    Ok(Some(Entry { name, names, parameters, required, most, body: cursor.until("}")? }))
}

fn threads(cursor: &mut Cursor<'_>) -> Result<[u32; 3], String> {
    let mut all = [1; 3];
    for (index, count) in all.iter_mut().enumerate() {
        if index > 0 && !cursor.eat(",") {
            break;
        }
        *count = u32::try_from(count_of(cursor)?).map_err(|_| cursor.error("a block of more than 2^32 threads"))?;
    }
    Ok(all)
}

fn count_of(cursor: &mut Cursor<'_>) -> Result<u64, String> {
    let word = cursor.peek();
    let count =
        number::integer(word).ok_or_else(|| cursor.error(&format!("\"{word}\" stands in place of a number")))?;
    cursor.take();
    Ok(count)
}

fn parameter<'a>(cursor: &mut Cursor<'a>) -> Result<(&'a str, Parameter), String> {
    cursor.expect(".param")?;
    let (mut kind, mut alignment, mut pointer) = (None, None, false);
    while cursor.peek().starts_with('.') {
        match cursor.take() {
            // What a pointer points to is aligned so, not the pointer.
            ".align" if pointer => drop(count_of(cursor)?),
            ".align" => alignment = Some(count_of(cursor)?),
            ".ptr" => pointer = true,
            ".global" | ".const" | ".shared" | ".local" | ".generic" => {}
            word => match Type::named(&word[1..]) {
                Some(named) => kind = Some(named),
                None => {
                    return Err(cursor.error(&format!("\"{word}\" of a parameter is not known to this interpreter")));
                }
            },
        }
    }
    let name = cursor.take();
    let kind = kind.ok_or_else(|| cursor.error(&format!("the parameter \"{name}\" has no type")))?;
    let bytes = u64::from(kind.bytes()) * dimensions(cursor)?.unwrap_or(1);
    if bytes > MOST_PARAMETERS {
        return Err(
            cursor.error(&format!("the parameter \"{name}\" has {bytes} bytes, and {MOST_PARAMETERS} are allowed"))
        );
    }
    let alignment = align(cursor, alignment.unwrap_or(kind.bytes().into()))?;
    Ok((name, Parameter { bytes, alignment, pointer }))
}

fn align(cursor: &Cursor<'_>, alignment: u64) -> Result<u64, String> {
    if alignment.is_power_of_two() && alignment <= 1 << 20 {
        Ok(alignment)
    } else {
        Err(cursor.error(&format!("an alignment of {alignment} is no power of two of up to 2^20")))
    }
}

/// `[4][8]`: 32; `[]`: 0; nothing where no bracket comes.
fn dimensions(cursor: &mut Cursor<'_>) -> Result<Option<u64>, String> {
    let mut all = None;
    while cursor.eat("[") {
        let count = if cursor.peek() == "]" { 0 } else { count_of(cursor)? };
        cursor.expect("]")?;
        let product = all.unwrap_or(1u64).checked_mul(count).filter(|&all| all <= 1 << 40);
        all = Some(product.ok_or_else(|| cursor.error("an array of more than 2^40 elements"))?);
    }
    Ok(all)
}

/// Reads what comes after a variable's space, up to the semicolon.
///
/// # Errors
/// A sentence with the line and what is not understood.
pub fn variables(cursor: &mut Cursor<'_>) -> Result<Vec<Variable>, String> {
    let (mut kind, mut alignment) = (None, None);
    while cursor.peek().starts_with('.') {
        match cursor.take() {
            ".align" => alignment = Some(count_of(cursor)?),
            ".attribute" => {
                cursor.expect("(")?;
                cursor.until(")")?;
            }
            word => match Type::named(&word[1..]) {
                Some(named) => kind = Some(named),
                None => return Err(cursor.error(&format!("\"{word}\" of a variable is not known to this interpreter"))),
            },
        }
    }
    let mut found = Vec::new();
    loop {
        let name = cursor.take().to_owned();
        let kind = kind.ok_or_else(|| cursor.error(&format!("the variable \"{name}\" has no type")))?;
        let alignment = align(cursor, alignment.unwrap_or(kind.bytes().into()))?;
        let count = dimensions(cursor)?.unwrap_or(1);
        let initial = if cursor.eat("=") { initial(cursor, kind)? } else { Vec::new() };
        let declared = count * u64::from(kind.bytes());
        let bytes = if count == 0 { (!initial.is_empty()).then_some(initial.len() as u64) } else { Some(declared) };
        if bytes.is_some_and(|bytes| bytes < initial.len() as u64) {
            return Err(cursor.error(&format!("\"{name}\" has {declared} bytes, and {} to begin with", initial.len())));
        }
        found.push(Variable { name, alignment, bytes, initial });
        if !cursor.eat(",") {
            cursor.expect(";")?;
            return Ok(found);
        }
    }
}

/// The bytes of an initializer.
fn initial(cursor: &mut Cursor<'_>, kind: Type) -> Result<Vec<u8>, String> {
    let (mut bytes, mut depth) = (Vec::new(), 0);
    loop {
        while cursor.eat("{") {
            depth += 1;
        }
        if cursor.peek() != "}" {
            let negative = cursor.eat("-");
            let word = cursor.peek();
            let number = number::read(word, negative);
            let number = number.ok_or_else(|| cursor.error(&format!("\"{word}\" is no number to begin with")))?;
            cursor.take();
            let bits = match (number, kind) {
                (Number::Integer(bits), _) => bits,
                (Number::Single(bits), Type::F64) => f64::from(f32::from_bits(bits)).to_bits(),
                (Number::Single(bits), _) => bits.into(),
                (Number::Double(value), Type::F32) => (value as f32).to_bits().into(),
                (Number::Double(value), _) => value.to_bits(),
            };
            bytes.extend(bits.to_le_bytes().iter().take(kind.bytes().into()));
        }
        while depth > 0 && cursor.eat("}") {
            depth -= 1;
        }
        if depth == 0 {
            return Ok(bytes);
        }
        cursor.expect(",")?;
    }
}
