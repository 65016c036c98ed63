//! Which of the engines that were found is taken.
//!
//! ```text
//!  discover.rs: candidates --> trial.rs, in a process of its own --+-- speaks 0.115 --.
//!                                                                  |-- speaks 0.81    |--> the newest API
//!                                                                  |-- no answer    --'    (unknown: oldest)
//!                                                                  '-- fails: its sentence, for the doctor and errors
//! ```
//!
//! An engine is tried because loading it is not the same as using it: a wheel may have been built for a processor with
//! more instructions than this one has, and would end the process with the first of them. Engines for GPUs, and plugins
//! of a kind that their names do not tell, are not tried: to make a client of theirs takes hold of the hardware.

use std::fmt;

use crate::{
    config::EngineKind,
    engine::{
        discover::EngineChoice,
        trial::{Spoken, Trial},
    },
    error::{Code, Error, Result},
};

/// An engine that was found, and what its trial said.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The engine.
    pub choice: EngineChoice,
    /// The outcome of its trial; `None` for one that is not tried.
    pub trial: Option<Trial>,
}

/// The engines that were found, and which of them is taken.
#[derive(Clone, Debug)]
pub struct Choice {
    /// All of them, in the order of discovery.
    pub candidates: Vec<Candidate>,
    /// The index of the one that is taken.
    taken: usize,
}

impl Choice {
    /// The engine that is taken.
    pub fn taken(&self) -> &EngineChoice {
        &self.candidates[self.taken].choice
    }

    /// A line for each engine: what it is, what it speaks, and why it is taken or not.
    pub fn lines(&self) -> Vec<String> {
        let line = |(index, candidate): (usize, &Candidate)| {
            let said = match &candidate.trial {
                Some(Trial::Fails(error)) => format!(", {}", about(error, &candidate.choice)),
                Some(trial) => format!(", {trial}"),
                None => String::new(),
            };
            let fate = match (index == self.taken, self.candidates.len()) {
                (true, 1) => "taken, the only one".to_owned(),
                (true, _) if candidate.trial.is_some() => "taken: the newest API that serves".to_owned(),
                (true, _) => "taken: the first by name".to_owned(),
                (false, _) if matches!(candidate.trial, Some(Trial::Fails(_))) => "cannot serve".to_owned(),
                (false, _) => "not taken".to_owned(),
            };
            format!("{} ({}){said}: {fate}", candidate.choice.path.display(), candidate.choice.why)
        };
        self.candidates.iter().enumerate().map(line).collect()
    }
}

/// Takes one of `candidates`: of those for CPUs the one with the newest API that passes `trial`, else the first. A
/// trial costs some 25 ms of this thread's time.
///
/// # Errors
/// FAILED_PRECONDITION: every one that was tried failed. Of each it says what and why.
pub fn choose(candidates: Vec<EngineChoice>, trial: impl Fn(&EngineChoice) -> Trial) -> Result<Choice> {
    let candidates: Vec<Candidate> = candidates
        .into_iter()
        .map(|choice| {
            let trial = (choice.kind == Some(EngineKind::Cpu)).then(|| trial(&choice));
            Candidate { choice, trial }
        })
        .collect();
    let rank = |candidate: &Candidate| match &candidate.trial {
        Some(Trial::Serves(Spoken { minor, .. })) => Some(*minor),
        // It may serve, so it is better than nothing.
        Some(Trial::Unknown(_)) | None => Some(i32::MIN),
        Some(Trial::Fails(_)) => None,
    };
    // Of equals the first in the order of discovery.
    let best = candidates.iter().enumerate().filter_map(|(index, one)| Some((rank(one)?, std::cmp::Reverse(index))));
    match best.max() {
        Some((_, std::cmp::Reverse(taken))) => Ok(Choice { candidates, taken }),
        None => Err(none_serves(&candidates)),
    }
}

/// Why none of `candidates` is taken.
fn none_serves(candidates: &[Candidate]) -> Error {
    let failures = candidates.iter().filter_map(|candidate| match &candidate.trial {
        Some(Trial::Fails(error)) => Some((error, &candidate.choice)),
        _ => None,
    });
    match failures.collect::<Vec<_>>().as_slice() {
        [(error, choice)] => {
            let allowed = "allowed: the path of a PJRT plugin library, or one of cpu, cuda, rocm";
            Error::new(error.code, format!("{} ({}; {allowed})", error.message, choice.why))
        }
        all => {
            let each = |(error, choice): &(&Error, &EngineChoice)| {
                format!("{} ({}): {}", choice.path.display(), choice.why, about(error, choice))
            };
            let each: Vec<String> = all.iter().map(each).collect();
            let none = format!("none of the {} engines that are installed can serve", all.len());
            Error::new(Code::FailedPrecondition, format!("{none}: {}", each.join("; ")))
        }
    }
}

/// What went wrong with an engine, behind its path: without the path.
fn about(error: &Error, choice: &EngineChoice) -> String {
    error.message.replacen(&format!("the engine {} ", choice.path.display()), "it ", 1)
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serves(spoken) => write!(f, "{spoken}"),
            Self::Unknown(why) => write!(f, "not tried: {why}"),
            Self::Fails(error) => f.write_str(&error.message),
        }
    }
}

impl fmt::Display for Spoken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PJRT API 0.{}", self.minor)?;
        if let Some((major, minor)) = self.ffi {
            write!(f, ", XLA FFI {major}.{minor}")?;
        }
        if let Some(month) = xla_month(self.minor) {
            write!(f, ", XLA of {month} or later")?;
        }
        Ok(())
    }
}

/// The month in which XLA's header took up a minor version of the C API: an engine that speaks it is no older. By the
/// history of `xla/pjrt/c/pjrt_c_api.h`, of 2026-07 at the latest; `None` for versions before 0.70.
fn xla_month(minor: i32) -> Option<&'static str> {
    const FIRST_OF_MONTH: [(i32, &str); 14] = [
        (114, "July 2026"),
        (112, "June 2026"),
        (107, "May 2026"),
        (104, "April 2026"),
        (98, "March 2026"),
        (91, "February 2026"),
        (89, "January 2026"),
        (83, "December 2025"),
        (82, "November 2025"),
        (80, "October 2025"),
        (76, "September 2025"),
        (75, "August 2025"),
        (74, "July 2025"),
        (70, "June 2025"),
    ];
    FIRST_OF_MONTH.iter().find(|(first, _)| minor >= *first).map(|(_, month)| *month)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Source,
        engine::discover::{Place, Why},
    };
    use std::path::PathBuf;

    fn wheel(wheel: &'static str, kind: EngineKind) -> EngineChoice {
        let why = Why::Wheel { wheel, version: Some("1".to_owned()), place: Place::SearchPath };
        EngineChoice { path: PathBuf::from(format!("/{wheel}.so")), kind: Some(kind), why }
    }

    fn serves(minor: i32) -> Trial {
        Trial::Serves(Spoken { minor, ffi: Some((0, 4)) })
    }

    fn fails(why: &str) -> Trial {
        Trial::Fails(Error::failed_precondition(why))
    }

    /// Chooses among engines for CPUs with these trials; their names are their places.
    fn among(trials: &[Trial]) -> Result<Choice> {
        let names = ["a", "b", "c", "d"];
        let candidates = names.iter().take(trials.len()).map(|name| wheel(name, EngineKind::Cpu)).collect();
        choose(candidates, |choice| {
            let place = names.iter().position(|name| choice.path == *format!("/{name}.so")).unwrap();
            trials[place].clone()
        })
    }

    #[test]
    fn the_newest_api_that_serves_is_taken() {
        let unknown = Trial::Unknown("no process".to_owned());
        for (trials, taken) in [
            (vec![serves(81), serves(115)], 1),
            (vec![serves(115), serves(81)], 0),
            (vec![serves(106), serves(106)], 0),
            (vec![fails("illegal instruction"), serves(81)], 1),
            (vec![unknown.clone(), serves(81)], 1),
            (vec![unknown.clone(), unknown.clone()], 0),
            (vec![fails("x"), unknown], 1),
        ] {
            assert_eq!(among(&trials).unwrap().taken, taken, "{trials:?}");
        }
    }

    #[test]
    fn where_none_serves_each_says_why() {
        let error = among(&[fails("first"), fails("the engine /b.so has second")]).unwrap_err();
        assert_eq!(error.code, Code::FailedPrecondition);
        assert_eq!(
            error.message,
            "none of the 2 engines that are installed can serve: /a.so (wheel a 1 in Python's search path): first; \
             /b.so (wheel b 1 in Python's search path): it has second"
        );
        let one = among(&[fails("alone")]).unwrap_err();
        assert!(one.message.starts_with("alone (wheel a 1 in Python's search path; allowed: "), "{one}");
    }

    #[test]
    fn engines_for_gpus_and_unknown_ones_are_not_tried() {
        let path = EngineChoice { path: "/p.so".into(), kind: None, why: Why::Path(Source::Default) };
        for candidates in [vec![wheel("a", EngineKind::Cuda), wheel("b", EngineKind::Cuda)], vec![path]] {
            let choice = choose(candidates, |choice| panic!("{choice:?} was tried")).unwrap();
            assert_eq!(choice.taken, 0);
        }
    }

    #[test]
    fn each_engine_has_a_line() {
        let lines = among(&[serves(106), fails("it ended"), serves(115)]).unwrap().lines();
        assert_eq!(
            lines,
            [
                "/a.so (wheel a 1 in Python's search path), PJRT API 0.106, XLA FFI 0.4, XLA of April 2026 or later: not taken",
                "/b.so (wheel b 1 in Python's search path), it ended: cannot serve",
                "/c.so (wheel c 1 in Python's search path), PJRT API 0.115, XLA FFI 0.4, XLA of July 2026 or later: taken: \
                 the newest API that serves",
            ]
        );
    }
}
