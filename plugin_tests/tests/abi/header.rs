//! From a header to the list of what it declares, and back to numbers.

use std::{collections::BTreeMap, env, fs, path::Path, process::Command};

/// How a family of headers names its things.
pub struct Dialect {
    /// What the names of its structs and enumerators begin with.
    pub prefix: &'static str,
    /// The macro that gives its minor version.
    pub minor: &'static str,
}

pub const PJRT: Dialect = Dialect { prefix: "PJRT_", minor: "PJRT_API_MINOR" };
pub const XLA_FFI: Dialect = Dialect { prefix: "XLA_FFI_", minor: "XLA_FFI_API_MINOR" };

/// What a header says, as numbers: bytes, or an enumerator's value.
#[derive(Default)]
pub struct Abi {
    pub structs: BTreeMap<String, Struct>,
    pub values: BTreeMap<String, u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Struct {
    pub size: u64,
    /// In the order of the header.
    pub fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub offset: u64,
    pub size: u64,
}

impl Field {
    /// The first byte behind the field.
    pub fn end(&self) -> u64 {
        self.offset + self.size
    }
}

impl Abi {
    /// Reads lines `struct NAME size FIELD offset size FIELD offset size ...` and `value NAME number`.
    pub fn parse(text: &str) -> Self {
        let mut abi = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("`{word}` is no number in `{line}`"));
            match words.as_slice() {
                ["struct", name, size, fields @ ..] => {
                    let field = |words: &[&str]| Field {
                        name: words[0].to_owned(),
                        offset: number(words[1]),
                        size: number(words[2]),
                    };
                    let fields = fields.chunks_exact(3).map(field).collect();
                    abi.structs.insert((*name).to_owned(), Struct { size: number(size), fields });
                }
                ["value", name, value] => {
                    abi.values.insert((*name).to_owned(), number(value));
                }
                _ => panic!("`{line}` is neither a struct nor a value"),
            }
        }
        assert!(!abi.structs.is_empty() && !abi.values.is_empty(), "the list holds no struct or no value");
        abi
    }

    /// Compiles and runs the program that lists `header`.
    pub fn of_header(header: &Path, dialect: &Dialect, name: &str) -> Self {
        Self::parse(&list(header, dialect, name))
    }

    pub fn struct_size(&self, name: &str) -> u64 {
        let constant = format!("{name}_STRUCT_SIZE");
        *self.values.get(&constant).unwrap_or_else(|| panic!("{constant} is not declared"))
    }

    /// The enumerators proper, without the constants that tell a struct's size.
    pub fn enumerators(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.values.iter().filter(|(name, _)| !name.ends_with("_STRUCT_SIZE") && !name.ends_with("_MIN_SIZE"))
    }
}

/// Compiles and runs a C program that prints what `header` declares; `name` tells its files from those of others.
pub fn list(header: &Path, dialect: &Dialect, name: &str) -> String {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let text = output(Command::new(&compiler).args(["-E", "-P", "-x", "c"]).arg(header));
    let program = program(header, dialect, &structs(&text, dialect), &enumerators(&text, dialect));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (folder.join(format!("abi_{name}.c")), folder.join(format!("abi_{name}")));
    fs::write(&source, program).expect("the test's folder can be written to");
    output(Command::new(&compiler).args(["-w", "-o"]).arg(&binary).arg(&source));
    output(&mut Command::new(&binary))
}

fn output(command: &mut Command) -> String {
    let result = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(result.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&result.stderr));
    String::from_utf8(result.stdout).expect("names and numbers are text")
}

fn program(header: &Path, dialect: &Dialect, structs: &[(&str, Vec<&str>)], enumerators: &[&str]) -> String {
    let mut program = format!("#include \"{}\"\n#include <stdio.h>\nint main(void) {{\n", header.display());
    for (name, fields) in structs {
        program += &format!("printf(\"struct {name} %zu\", sizeof(struct {name}));\n");
        for field in fields {
            program += &format!(
                "printf(\" {field} %zu %zu\", offsetof(struct {name}, {field}), sizeof(((struct {name} *)0)->{field}));\n"
            );
        }
        program += "puts(\"\");\n";
    }
    for name in enumerators {
        program += &format!("printf(\"value {name} %d\\n\", (int){name});\n");
    }
    let minor = dialect.minor;
    program + &format!("printf(\"value {minor} %d\\n\", {minor});\nreturn 0;\n}}\n")
}

/// The structs that are defined in preprocessed C, with their fields; those of an unnamed union count as the struct's.
fn structs<'a>(text: &'a str, dialect: &Dialect) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(&format!("struct {}", dialect.prefix)) {
        let rest = &text[at + "struct ".len()..];
        let name = first_word(rest);
        if let Some(body) = rest[name.len()..].trim_start().strip_prefix('{') {
            found.push((name, fields(&body[..closing_brace(body)])));
        }
    }
    found
}

fn closing_brace(body: &str) -> usize {
    let mut depth = 1;
    for (at, byte) in body.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    panic!("a struct has no end: {body}")
}

fn fields(body: &str) -> Vec<&str> {
    body.split([';', '{', '}']).map(str::trim).filter(|part| !part.is_empty() && *part != "union").map(field).collect()
}

/// `x` in `T *x` and in `void (*x)(T *y)`.
fn field(declaration: &str) -> &str {
    match declaration.split_once("(*") {
        Some((_, pointer)) => first_word(pointer.trim_start()),
        None => {
            let start = declaration.rfind(|c: char| !is_name(c)).map_or(0, |at| at + 1);
            &declaration[start..]
        }
    }
}

fn enumerators<'a>(text: &'a str, dialect: &Dialect) -> Vec<&'a str> {
    text.match_indices("enum ")
        .filter_map(|(at, _)| text[at..].split_once('{'))
        .filter(|(head, _)| head.split_whitespace().count() <= 2)
        .flat_map(|(_, rest)| rest[..closing_brace(rest)].split(','))
        .filter_map(|part| enumerator(part, dialect))
        .collect()
}

/// `A` of `A` and of `A = 1`, but nothing of the `b)` that a comma left of `A = offsetof(a, b)`.
fn enumerator<'a>(part: &'a str, dialect: &Dialect) -> Option<&'a str> {
    let name = first_word(part.trim());
    let rest = part.trim()[name.len()..].trim_start();
    (name.starts_with(dialect.prefix) && (rest.is_empty() || rest.starts_with('='))).then_some(name)
}

fn first_word(text: &str) -> &str {
    &text[..text.find(|c: char| !is_name(c)).unwrap_or(text.len())]
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}
