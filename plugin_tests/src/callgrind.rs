//! What `valgrind --tool=callgrind` counted, by the object file and the function that ran.
//!
//! The format is the one of valgrind's manual ("Callgrind Format Specification"): a line that begins with a number is a
//! cost of the function named last; the line after `calls=` is the cost of a call, which its callee has already.

use std::collections::BTreeMap;

/// Counts of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Instructions.
    pub instructions: u64,
    /// Accesses that lock the bus: atomic read-modify-writes.
    pub atomics: u64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.instructions += other.instructions;
        self.atomics += other.atomics;
    }
}

/// One dump of callgrind's, taken with `--collect-bus=yes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// What ran inside each function itself, by object file and name.
    pub own: BTreeMap<(String, String), Cost>,
    /// How often an object file's code called a function: by the caller's object file and the callee's name.
    pub calls: BTreeMap<(String, String), u64>,
}

impl Profile {
    /// Reads a dump.
    ///
    /// # Panics
    /// When it is none, or has other events than instructions and bus locks.
    pub fn parse(dump: &str) -> Self {
        let mut profile = Self::default();
        let mut names: BTreeMap<(bool, String), String> = BTreeMap::new();
        let (mut object, mut function, mut callee) = (String::new(), String::new(), String::new());
        let mut is_call = false;
        for line in dump.lines() {
            if let Some((key, value)) = line.split_once('=')
                && key.bytes().all(|byte| byte.is_ascii_lowercase())
            {
                // Objects and functions are numbered apart; a number stands for the name that it came with first.
                let mut name = |is_object: bool| {
                    let (number, given) = value.split_once(')').unwrap_or(("", value));
                    let name = names.entry((is_object, number.to_owned()));
                    name.or_insert_with(|| given.trim_start().to_owned()).clone()
                };
                match key {
                    "ob" => object = name(true),
                    "cob" => drop(name(true)),
                    "fn" => function = name(false),
                    "cfn" => callee = name(false),
                    "calls" => {
                        let count = value.split(' ').next().and_then(|count| count.parse::<u64>().ok());
                        *profile.calls.entry((object.clone(), callee.clone())).or_default() += count.expect("a count");
                        is_call = true;
                    }
                    _ => {}
                }
            } else if line.starts_with("events:") {
                assert_eq!(line.trim_end(), "events: Ir Ge", "run with --collect-bus=yes and no other events");
            } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
                // What is 0 at the end of a line is left out.
                let mut numbers = line.split(' ').skip(1).map(|number| number.parse::<u64>().expect("a cost"));
                let mut next = || numbers.next().unwrap_or(0);
                let cost = Cost { instructions: next(), atomics: next() };
                if !std::mem::take(&mut is_call) {
                    *profile.own.entry((object.clone(), function.clone())).or_default() += cost;
                }
            }
        }
        profile
    }

    /// What ran inside the object files that `which` picks.
    pub fn sum(&self, which: impl Fn(&str) -> bool) -> Cost {
        let mut sum = Cost::default();
        self.own.iter().filter(|((object, _), _)| which(object)).for_each(|(_, &cost)| sum += cost);
        sum
    }

    /// How often code of the object files that `which` picks called one of libc's allocating functions.
    pub fn allocations(&self, which: impl Fn(&str) -> bool) -> u64 {
        let calls = self.calls.iter().filter(|((object, callee), _)| {
            which(object) && matches!(&**callee, "malloc" | "calloc" | "realloc" | "posix_memalign" | "aligned_alloc")
        });
        calls.map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_the_functions_themselves() {
        let dump = "# callgrind format\nversion: 1\npositions: line\nevents: Ir Ge\nsummary: 20 3\n\n\
            ob=(1) /lib/a.so\nfl=(1) ???\nfn=(1) caller\n0 5 1\ncob=(2) /lib/c.so\ncfn=(2) malloc\ncalls=3 0 \n0 9\n\
            fi=(2) other.h\n+4 2\n\nob=(2)\nfl=(1)\nfn=(2)\n* 9\n\nob=(1)\nfl=(1)\nfn=(3) second\n0 1 2\n\
            cob=(1)\ncfn=(1)\ncalls=1 0\n0 16 1\n";
        let profile = Profile::parse(dump);
        let own = |object: &str, function: &str| profile.own[&(object.to_owned(), function.to_owned())];
        assert_eq!(own("/lib/a.so", "caller"), Cost { instructions: 7, atomics: 1 });
        assert_eq!(own("/lib/c.so", "malloc"), Cost { instructions: 9, atomics: 0 });
        assert_eq!(profile.sum(|object| object == "/lib/a.so"), Cost { instructions: 8, atomics: 3 });
        assert_eq!(profile.allocations(|object| object == "/lib/a.so"), 3);
        assert_eq!(profile.allocations(|object| object == "/lib/c.so"), 0);
    }
}
