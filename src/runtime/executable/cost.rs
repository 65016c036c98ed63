//! `PJRT_Executable_GetCostAnalysis`: where the engine does not implement it, XLA in jaxlib counts for it.
//!
//! ```text
//!  GetCostAnalysis --> the engine says UNIMPLEMENTED --> jax_plugins.arena, with the optimised HLO of the program
//!                      what it costs                 <-- (_cost.py)
//! ```

use std::{ffi::c_void, str};

use once_cell::sync::OnceCell;

use crate::{
    config::OptionValue,
    engine::named_values::named_values,
    handlers::hooks::{Give, ask},
    program::hlo,
    sys,
};

/// `analyze(module, size, give, reply)`, with an `HloModuleProto`, calls `give` once with `reply`, before it returns.
/// The code is -1 for an answer, which has a line for each property, `VALUE NAME`; with any other there is none.
pub type Analyze = unsafe extern "C-unwind" fn(*const u8, usize, Give, *mut c_void);

/// The function that analyses programs for engines that do not, once installed.
pub static ANALYZE: OnceCell<Analyze> = OnceCell::new();

/// What a program costs, in the form of the C API.
pub struct Cost {
    /// The properties with their values; they live as long as this.
    pub values: Box<[sys::PJRT_NamedValue]>,
    /// What the pointers in `values` lead to.
    _names: Vec<(String, OptionValue)>,
}

// SAFETY: the values are never written; their pointers lead to strings that live as long as they.
unsafe impl Send for Cost {}
// SAFETY: the values are never written, so several threads may read them at once.
unsafe impl Sync for Cost {}

impl Cost {
    /// From lines of `VALUE NAME`; `None` if one is not of that form.
    fn read(lines: &[u8]) -> Option<Self> {
        let property = |line: &str| {
            let (value, name) = line.split_once(' ')?;
            Some((name.to_owned(), OptionValue::Float(value.parse().ok()?)))
        };
        let names: Vec<_> = str::from_utf8(lines).ok()?.lines().map(property).collect::<Option<_>>()?;
        Some(Self { values: named_values(&names).into(), _names: names })
    }

    /// Has the installed function analyse the program; `None` where none is installed, or where it cannot.
    pub fn ask(format: &str, code: &[u8]) -> Option<Self> {
        let analyze = ANALYZE.get()?;
        let module = hlo::module_of(code, hlo::Format::from_name(format.as_bytes())?).ok()?;
        // SAFETY: the function takes a module of this length, and calls `give` with `reply` before it returns; both
        // live until then.
        let answer = ask(|give, reply| unsafe { analyze(module.as_ptr(), module.len(), give, reply) });
        match answer? {
            (-1, lines) => Self::read(&lines),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_named_values() {
        let cost = Cost::read(b"4096.0 flops\n1e+20 bytes accessed0{}\ninf optimal_seconds\n").unwrap();
        let seen: Vec<_> = (cost.values.iter())
            .map(|value| {
                // SAFETY: the name and the number that were just made.
                unsafe {
                    let name = crate::sys::text(value.name, value.name_size).into_owned();
                    (name, value.type_, value.__bindgen_anon_1.float_value)
                }
            })
            .collect();
        let expected = [("flops", 4096.0), ("bytes accessed0{}", 1e20), ("optimal_seconds", f32::INFINITY)];
        assert_eq!(seen, expected.map(|(name, value)| (name.to_owned(), sys::PJRT_NamedValue_kFloat, value)));
        assert!(Cost::read(b"").is_some_and(|cost| cost.values.is_empty()));
    }

    #[test]
    fn other_lines_are_no_answer() {
        for lines in [&b"many flops"[..], b"1.0", b"1.0 flops\n\n", b"\xff flops"] {
            assert!(Cost::read(lines).is_none(), "{lines:?}");
        }
    }
}
