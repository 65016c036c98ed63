//! The names of a kernel's body: registers, variables, labels; and the code that grows out of it.

use std::collections::HashMap;

use crate::{
    code::{Action, Apply, Code, Constant, Register, Special, Step, Truth},
    decode::special,
    syntax::{
        module::{Declarations, Entry, Variable},
        number::{self, Number},
        statement::Operand,
    },
    value::{
        Bits as _, WARP,
        float::{Bf16, F16, Float as _},
        round::{Exact, Rounding},
        types::{Type, mask},
    },
};

/// The predicate that is never true; the one after it always is.
const FALSE: u32 = 0;
/// The most bytes of local or shared memory that a kernel may declare; CUDA's limit for the former.
const MOST_BYTES: u64 = 512 << 10;

/// What a name stands for.
#[derive(Clone, Debug)]
enum Name {
    Register(Register, Type),
    Variable(Constant),
}

/// Names between a pair of braces.
#[derive(Debug, Default)]
struct Scope {
    outer: Option<usize>,
    names: HashMap<String, Name>,
    /// `.reg .b32 %r<10>`: the prefix, the type and the count.
    ranges: HashMap<String, (Type, u64)>,
    labels: HashMap<String, u32>,
    tables: HashMap<String, Vec<String>>,
}

/// A body that is being translated.
pub struct Body<'a> {
    declarations: &'a Declarations<'a>,
    scopes: Vec<Scope>,
    scope: usize,
    /// Where the guard and the line of the next steps come from.
    pub line: u32,
    /// The guard of the next steps.
    pub guard: Option<Truth>,
    code: Code,
    literals: HashMap<u64, Register>,
    /// Jumps whose targets are not known yet, with the scope that they stand in.
    jumps: Vec<(usize, usize, String)>,
}

impl<'a> Body<'a> {
    /// Before the first instruction.
    pub fn new(entry: &Entry<'a>, declarations: &'a Declarations<'a>) -> Self {
        let (mut offsets, mut end) = (Vec::new(), 0u64);
        let mut outermost = Scope::default();
        for (name, parameter) in entry.names.iter().zip(&entry.parameters) {
            let offset = end.next_multiple_of(parameter.alignment.max(1));
            outermost.names.insert((*name).to_owned(), Name::Variable(Constant::Value(offset)));
            offsets.push(offset);
            end = offset + parameter.bytes;
        }
        let code = Code {
            steps: Vec::new(),
            registers: 0,
            predicates: 2,
            constants: Vec::new(),
            specials: Vec::new(),
            parameters: (offsets, end),
            shared: 0,
            local: 0,
        };
        Self {
            declarations,
            scopes: vec![outermost],
            scope: 0,
            line: 0,
            guard: None,
            code,
            literals: HashMap::new(),
            jumps: Vec::new(),
        }
    }

    /// A pair of braces begins.
    pub fn open(&mut self) {
        self.scopes.push(Scope { outer: Some(self.scope), ..Scope::default() });
        self.scope = self.scopes.len() - 1;
    }

    /// It ends.
    pub fn close(&mut self) {
        self.scope = self.scopes[self.scope].outer.unwrap_or(0);
    }

    /// `.reg`: registers of a type; a count declares a range of names.
    pub fn declare(&mut self, name: &str, kind: Type, count: Option<u64>) {
        let scope = self.scope;
        match count {
            Some(count) => drop(self.scopes[scope].ranges.insert(name.to_owned(), (kind, count))),
            None => drop(self.define(scope, name, kind)),
        }
    }

    fn define(&mut self, scope: usize, name: &str, kind: Type) -> Name {
        let register = if kind == Type::Predicate {
            self.code.predicates += 1;
            self.code.predicates - 1
        } else {
            self.fresh()
        };
        let found = Name::Register(register, kind);
        self.scopes[scope].names.insert(name.to_owned(), found.clone());
        found
    }

    /// A register without a name.
    pub fn fresh(&mut self) -> Register {
        self.code.registers += 1;
        self.code.registers - 1
    }

    /// A predicate without a name.
    pub fn fresh_predicate(&mut self) -> u32 {
        self.code.predicates += 1;
        self.code.predicates - 1
    }

    /// `.shared` and `.local` within a body.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn variable(&mut self, variable: Variable, shared: bool) -> Result<(), String> {
        let place = self.place(&variable, shared)?;
        self.scopes[self.scope].names.insert(variable.name, Name::Variable(place));
        Ok(())
    }

    fn place(&mut self, variable: &Variable, shared: bool) -> Result<Constant, String> {
        let end = if shared { &mut self.code.shared } else { &mut self.code.local };
        let Some(bytes) = variable.bytes.filter(|&bytes| bytes > 0) else {
            return Ok(if shared { Constant::Dynamic(0) } else { Constant::Value(*end) });
        };
        let offset = end.next_multiple_of(variable.alignment.max(1));
        if bytes > MOST_BYTES - offset.min(MOST_BYTES) {
            return Err(format!("\"{}\" of {bytes} bytes makes the variables larger than {MOST_BYTES}", variable.name));
        }
        *end = offset + bytes;
        Ok(Constant::Value(offset))
    }

    /// A label before the next step.
    pub fn label(&mut self, name: &str) {
        let next = self.code.steps.len() as u32;
        self.scopes[self.scope].labels.insert(name.to_owned(), next);
    }

    /// `.branchtargets`.
    pub fn table(&mut self, name: &str, targets: Vec<String>) {
        self.scopes[self.scope].tables.insert(name.to_owned(), targets);
    }

    /// Adds a step that goes to a label, or to one of a table's.
    pub fn jump(&mut self, action: Action, target: &str) {
        self.jumps.push((self.code.steps.len(), self.scope, target.to_owned()));
        self.push(action);
    }

    /// Adds a step.
    pub fn push(&mut self, action: Action) {
        self.code.steps.push(Step { line: self.line, guard: self.guard, action });
    }

    /// Adds a step that computes a register.
    pub fn compute(&mut self, to: Register, sources: &[Register], apply: Apply) {
        let mut of = [sources.first().copied().unwrap_or(to); 4];
        for (slot, &source) in of.iter_mut().zip(sources) {
            *slot = source;
        }
        self.push(Action::Compute { to, of, apply });
    }

    fn find(&mut self, name: &str) -> Option<Name> {
        let mut scope = Some(self.scope);
        while let Some(at) = scope {
            if let Some(found) = self.scopes[at].names.get(name) {
                return Some(found.clone());
            }
            let prefix = name.trim_end_matches(|last: char| last.is_ascii_digit());
            let number = name[prefix.len()..].parse::<u64>();
            if let (Ok(number), Some(&(kind, count))) = (number, self.scopes[at].ranges.get(prefix))
                && number < count
            {
                return Some(self.define(at, name, kind));
            }
            scope = self.scopes[at].outer;
        }
        let variable = if self.declarations.globals.iter().any(|global| global.name == name) {
            Name::Variable(Constant::Global(name.to_owned(), 0))
        } else {
            let shared = self.declarations.shared.iter().find(|shared| shared.name == name)?;
            Name::Variable(self.place(shared, true).ok()?)
        };
        // It keeps its place for the rest of the kernel.
        self.scopes[0].names.insert(name.to_owned(), variable.clone());
        Some(variable)
    }

    /// A register that holds a value.
    pub fn literal(&mut self, value: u64) -> Register {
        if let Some(&register) = self.literals.get(&value) {
            return register;
        }
        let register = self.constant(Constant::Value(value));
        self.literals.insert(value, register);
        register
    }

    fn constant(&mut self, constant: Constant) -> Register {
        let register = self.fresh();
        self.code.constants.push((register, constant));
        register
    }

    /// A register to read: one of the kernel's, of the machine's, an address or a literal as a type has it.
    ///
    /// # Errors
    /// Why it is none.
    pub fn source(&mut self, operand: &Operand<'_>, kind: Type) -> Result<Register, String> {
        let (word, negative, offset) = match *operand {
            Operand::Word(word, negative) => (word, negative, 0),
            Operand::Sum(word, offset) => (word, false, offset as u64),
            _ => return Err(format!("has {operand:?} where a register or a number is needed")),
        };
        if let Some(number) = number::read(word, negative) {
            return Ok(self.literal(literal(number, kind)?.wrapping_add(offset)));
        }
        if let Some(special) = special::named(word) {
            return Ok(self.special(special));
        }
        match self.find(word) {
            Some(Name::Register(register, kind)) if kind != Type::Predicate => Ok(register),
            Some(Name::Variable(constant)) => Ok(match constant {
                Constant::Value(at) => self.literal(at.wrapping_add(offset)),
                Constant::Global(name, at) => self.constant(Constant::Global(name, at.wrapping_add(offset))),
                Constant::Dynamic(at) => self.constant(Constant::Dynamic(at.wrapping_add(offset))),
            }),
            _ => Err(format!("names \"{word}\", which is no register or variable here")),
        }
    }

    fn special(&mut self, special: Special) -> Register {
        if let Some(&(register, _)) = self.code.specials.iter().find(|other| other.1 == special) {
            return register;
        }
        let register = self.fresh();
        self.code.specials.push((register, special));
        register
    }

    /// A register to write, with its size; `_` is one that nobody reads.
    ///
    /// # Errors
    /// Why it is none.
    pub fn destination(&mut self, operand: &Operand<'_>) -> Result<(Register, u8), String> {
        match *operand {
            Operand::Word("_", false) => Ok((self.fresh(), 8)),
            Operand::Word(word, false) => match self.find(word) {
                Some(Name::Register(register, kind)) if kind != Type::Predicate => Ok((register, kind.bytes())),
                _ => Err(format!("writes \"{word}\", which is no register here")),
            },
            _ => Err(format!("has {operand:?} where a register to write is needed")),
        }
    }

    /// A predicate to write.
    ///
    /// # Errors
    /// Why it is none.
    pub fn predicate(&mut self, word: &str) -> Result<u32, String> {
        match self.find(word) {
            Some(Name::Register(register, Type::Predicate)) => Ok(register),
            _ if word == "_" => Ok(self.fresh_predicate()),
            _ => Err(format!("names \"{word}\", which is no predicate here")),
        }
    }

    /// A predicate to read.
    ///
    /// # Errors
    /// Why it is none.
    pub fn truth(&mut self, operand: &Operand<'_>) -> Result<Truth, String> {
        match *operand {
            Operand::Not(word) => Ok(Truth { predicate: self.predicate(word)?, negated: true }),
            Operand::Word(word, negative) => match number::read(word, negative) {
                Some(Number::Integer(value)) => Ok(Truth { predicate: FALSE + u32::from(value != 0), negated: false }),
                _ => Ok(Truth { predicate: self.predicate(word)?, negated: false }),
            },
            _ => Err(format!("has {operand:?} where a predicate is needed")),
        }
    }

    /// Ends the body: every jump gets its place.
    ///
    /// # Errors
    /// A label that is nowhere.
    pub fn finish(mut self) -> Result<Code, String> {
        self.guard = None;
        self.push(Action::Exit);
        let (scopes, steps) = (&self.scopes, &mut self.code.steps);
        for (step, scope, name) in &self.jumps {
            let line = steps[*step].line;
            let lost = |name: &str| format!("ptx: line {line}: nothing is called \"{name}\" here");
            let label = |name: &str| outwards(scopes, *scope, |scope| scope.labels.get(name).copied());
            match &mut steps[*step].action {
                Action::Table { to, .. } => {
                    let table = outwards(scopes, *scope, |scope| scope.tables.get(name)).ok_or_else(|| lost(name))?;
                    *to = table.iter().map(|name| label(name).ok_or_else(|| lost(name))).collect::<Result<_, _>>()?;
                }
                Action::Jump { to } => *to = label(name).ok_or_else(|| lost(name))?,
                _ => {}
            }
        }
        let dynamic = self.code.shared.next_multiple_of(WARP as u64 * 4);
        for (_, constant) in &mut self.code.constants {
            if let Constant::Dynamic(at) = *constant {
                self.code.shared = dynamic;
                *constant = Constant::Value(dynamic.wrapping_add(at));
            }
        }
        Ok(self.code)
    }
}

fn outwards<'a, T>(scopes: &'a [Scope], from: usize, look: impl Fn(&'a Scope) -> Option<T>) -> Option<T> {
    let mut scope = scopes.get(from);
    while let Some(at) = scope {
        if let Some(found) = look(at) {
            return Some(found);
        }
        scope = scopes.get(at.outer?);
    }
    None
}

/// The bits of a literal where a type is needed.
fn literal(number: Number, kind: Type) -> Result<u64, String> {
    let wide = match number {
        Number::Integer(_) if matches!(kind, Type::F32 | Type::F64) => {
            return Err("has a whole number where one of floating point is needed".to_owned());
        }
        Number::Integer(bits) => return Ok(bits & mask(kind.bytes())),
        Number::Single(bits) if kind != Type::F64 => return Ok(bits.into()),
        Number::Single(bits) => f32::from_bits(bits).into(),
        Number::Double(value) => value,
    };
    let near = Rounding::Nearest;
    Ok(match kind {
        Type::F32 => (wide as f32).bits(),
        Type::F16 => F16::rounded(Exact::of(wide), near).bits(),
        Type::Bf16 => Bf16::rounded(Exact::of(wide), near).bits(),
        _ => wide.to_bits(),
    })
}
