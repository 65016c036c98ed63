//! An opcode in parts: its name and its qualifiers, each of which somebody has to take.

use crate::value::{float::Finish, round::Rounding, types::Type};

/// Why an instruction is not translated: what stands after its name in the sentence.
pub const UNKNOWN: &str = "is not known to this interpreter";

/// `add.rn.f32`: the name, and the qualifiers that nobody has taken yet.
#[derive(Clone, Debug)]
pub struct Opcode<'a> {
    /// What comes first.
    pub name: &'a str,
    words: Vec<&'a str>,
}

impl<'a> Opcode<'a> {
    /// Takes it apart.
    pub fn new(text: &'a str) -> Self {
        let mut words = text.split('.').filter(|word| !word.is_empty());
        Self { name: words.next().unwrap_or(""), words: words.collect() }
    }

    /// Takes a qualifier if it is there.
    pub fn flag(&mut self, word: &str) -> bool {
        let found = self.words.iter().position(|other| *other == word);
        found.map(|at| self.words.remove(at)).is_some()
    }

    /// Takes qualifiers that change nothing here.
    pub fn ignore(&mut self, ignored: impl Fn(&str) -> bool) {
        self.words.retain(|word| !ignored(word));
    }

    /// Takes the first qualifier that means something.
    pub fn first<T>(&mut self, meaning: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, found) = self.words.iter().enumerate().find_map(|(at, word)| Some((at, meaning(word)?)))?;
        self.words.remove(at);
        Some(found)
    }

    /// Takes the first type.
    ///
    /// # Errors
    /// There is none.
    pub fn kind(&mut self) -> Result<Type, String> {
        self.first(Type::named).ok_or_else(|| "has no type that this interpreter knows".to_owned())
    }

    /// The last type, which stays.
    pub fn last_kind(&self) -> Option<Type> {
        self.words.iter().rev().find_map(|word| Type::named(word))
    }

    /// Takes the direction of rounding.
    pub fn rounding(&mut self) -> Option<Rounding> {
        self.first(|word| match word {
            "rn" | "rna" => Some(Rounding::Nearest),
            "rz" => Some(Rounding::Zero),
            "rm" => Some(Rounding::Down),
            "rp" => Some(Rounding::Up),
            _ => None,
        })
    }

    /// Takes what is done to operands and results.
    pub fn finish(&mut self) -> Finish {
        Finish { flush: self.flag("ftz"), saturate: self.flag("sat"), relu: self.flag("relu") }
    }

    /// The number of elements of `.v2` and its like.
    pub fn vector(&mut self) -> usize {
        let count = self.first(|word| match word {
            "v2" => Some(2),
            "v4" => Some(4),
            "v8" => Some(8),
            _ => None,
        });
        count.unwrap_or(1)
    }

    /// All that was written must have been taken.
    ///
    /// # Errors
    /// A qualifier is left.
    pub fn done(&self) -> Result<(), String> {
        match self.words.first() {
            None => Ok(()),
            Some(word) => Err(format!("{UNKNOWN}: its \".{word}\"")),
        }
    }
}
