//! What reads inputs, and the inputs that it begins with.

use std::{
    borrow::Cow,
    fs,
    path::{Path, PathBuf},
};

use fastrand::Rng;
use pjrt_arena::{
    program::{Policy, add_destinations, hlo, inspect, names_one, options, without_annotations},
    runtime::executable::{
        loaded::{Plan, ResultPlacement},
        serialized,
    },
};

#[allow(dead_code, reason = "only the reader is wanted here, not what is done with a trace")]
#[path = "../../arena-replay/src/trace.rs"]
mod trace;

/// A reader of input.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Reads an input, and says whether it was accepted. What it may choose comes from the generator.
    pub(crate) read: fn(&[u8], &mut Rng) -> bool,
    pub(crate) corpus: fn() -> Vec<Vec<u8>>,
    /// Inputs of one round.
    pub(crate) share: u32,
}

pub(crate) const TARGETS: [Target; 6] = [
    Target { name: "rewrite", read: rewrite, corpus: programs, share: 100 },
    Target { name: "annotations", read: annotations, corpus: programs, share: 50 },
    Target { name: "hlo", read: read_hlo, corpus: || files("hlo", "pb"), share: 50 },
    Target { name: "options", read: read_options, corpus: all_options, share: 50 },
    Target { name: "plans", read: read_plan, corpus: plans, share: 50 },
    Target { name: "traces", read: read_trace, corpus: traces, share: 25 },
];

fn rewrite(input: &[u8], rng: &mut Rng) -> bool {
    let policy = Policy {
        skip_sub_byte: rng.bool(),
        tie_unspecified_shardings: rng.bool(),
        place_pinned_host: rng.bool(),
        one_memory: rng.bool(),
        update_in_place: rng.bool(),
    };
    let Ok(rewritten) = add_destinations(input, &policy) else { return false };
    let again = inspect(&rewritten.bytes).expect("a program that was rewritten can be read");
    let more = rewritten.signature.parameters.len() + rewritten.destinations;
    assert_eq!(again.parameters.len(), more, "it has a parameter more for each destination");
    assert_eq!(again.results, rewritten.signature.results, "its results stay what they were");
    true
}

fn annotations(input: &[u8], _: &mut Rng) -> bool {
    names_one(input, |text| text == b"main");
    let Ok(unbound) = without_annotations(input) else { return false };
    if let (Cow::Owned(bytes), Ok(before)) = (&unbound.bytes, inspect(input)) {
        assert_eq!(inspect(bytes), Ok(before), "only annotations are taken out");
    }
    true
}

fn read_hlo(input: &[u8], rng: &mut Rng) -> bool {
    let visible = rng.usize(0..6);
    let format = if rng.bool() { hlo::Format::Hlo } else { hlo::Format::HloWithConfig };
    hlo::hide_parameters(input, format, visible).is_ok()
}

fn read_options(input: &[u8], rng: &mut Rng) -> bool {
    let read = options::CompileOptions::read(input);
    let (parameters, added) = (rng.usize(0..6), rng.usize(0..6));
    if let (Ok(read), Ok(grown)) = (read, options::add_parameters(input, parameters, added)) {
        let grown = options::CompileOptions::read(&grown).expect("options that were edited can be read");
        let more = if parameters != 0 && read.propagation_flags == parameters { added } else { 0 };
        assert_eq!(grown.propagation_flags, read.propagation_flags + more, "a flag more for each parameter");
    }
    _ = options::drop_fusion_types_above(input, rng.u64(0..4));
    _ = options::without_xnnpack(input);
    if let (Ok(read), Ok(counted)) = (read, options::with_counts(input)) {
        let counted = options::CompileOptions::read(&counted);
        assert_eq!(counted, Ok(read), "an absent number is 1 already");
    }
    read.is_ok()
}

fn read_plan(input: &[u8], _: &mut Rng) -> bool {
    let Ok((plan, blob)) = serialized::open(input) else { return false };
    let sealed = serialized::seal(&plan, blob).expect("a plan that was read can be written");
    assert_eq!(serialized::open(&sealed).expect("and read again"), (plan, blob));
    true
}

fn read_trace(input: &[u8], _: &mut Rng) -> bool {
    trace::Trace::parse("a trace", "a file", input).is_ok()
}

/// The files of a folder of the corpus with this ending.
fn files(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(folder);
    let entries = fs::read_dir(&folder).expect("the corpus");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let wanted = |path: &&PathBuf| path.extension().is_some_and(|of| of == ending);
    paths.iter().filter(wanted).map(|path| fs::read(path).expect("a file")).collect()
}

fn programs() -> Vec<Vec<u8>> {
    [files("artifacts", "mlir"), files("programs", "mlir")].concat()
}

fn all_options() -> Vec<Vec<u8>> {
    [files("artifacts", "opts"), files("programs", "opts")].concat()
}

fn plans() -> Vec<Vec<u8>> {
    let mut plan = Plan::unmodified("a reason");
    let first = serialized::seal(&plan, b"blob");
    plan.arguments = Some(2);
    plan.placements = vec![
        ResultPlacement::Destination(0),
        ResultPlacement::Argument(1),
        ResultPlacement::Anywhere("a reason".to_owned()),
    ];
    (plan.destinations, plan.released, plan.user_options) = (vec![0], vec![1], vec![1, 2, 3]);
    let sealed = [first, serialized::seal(&plan, b"blob")].into_iter().map(|sealed| sealed.expect("a plan is written"));
    sealed.chain([b"a blob that calls xla_ffi_python_cpu_callback".to_vec()]).collect()
}

fn traces() -> Vec<Vec<u8>> {
    vec![b"# two blocks\na x 1\r\n\n  a 7 257\nf x\na x 0\nf 7\n".to_vec(), b"a 1 1125899906842624\nf 1\n".to_vec()]
}
