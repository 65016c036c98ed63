//! The rewriter over programs as JAX sends them, and over damaged ones.
//!
//! `data/artifacts/README.md` says where the programs come from; `data/rewriter_golden.tsv` has what is expected of
//! each.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use pjrt_arena::program::{
    Donation, Parameter, Placement, Policy, ResultIndex, Rewritten, Signature, add_destinations,
    hlo::{Format, hide_parameters},
    inspect,
    options::{CompileOptions, Partitioner, add_parameters, drop_fusion_types_above},
    without_annotations,
};

const NO_TIE: Policy = Policy {
    skip_sub_byte: true,
    tie_unspecified_shardings: false,
    place_pinned_host: false,
    one_memory: true,
    update_in_place: true,
};
const TIE: Policy = Policy {
    skip_sub_byte: true,
    tie_unspecified_shardings: true,
    place_pinned_host: false,
    one_memory: true,
    update_in_place: true,
};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data")
}

/// The files of `folder` that end in `extension`, by name.
fn files(folder: &str, extension: &str) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(data().join(folder)).expect("the data folder") {
        let path = entry.expect("a folder entry").path();
        if path.extension().is_some_and(|found| found == extension) {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            files.insert(name, fs::read(&path).expect("a readable file"));
        }
    }
    assert!(!files.is_empty(), "no .{extension} files in {folder}");
    files
}

/// FNV-1a, 64 bits: enough to notice a change.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// A list with runs of equal entries written `entry*count`.
fn runs(list: &[String]) -> String {
    let mut out = String::new();
    for run in list.chunk_by(|a, b| a == b) {
        let comma = if out.is_empty() { "" } else { "," };
        match run.len() {
            1 => write!(out, "{comma}{}", run[0]),
            count => write!(out, "{comma}{}*{count}", run[0]),
        }
        .expect("a string takes everything");
    }
    if out.is_empty() { "-".to_owned() } else { out }
}

fn row(name: &str, policy: &str, rewritten: &Rewritten<'_>, options: &[u8]) -> String {
    let signature = &rewritten.signature;
    let donations: Vec<String> = signature
        .parameters
        .iter()
        .map(|parameter| match parameter.donation {
            Donation::Kept => "kept".to_owned(),
            Donation::Aliases(result) => format!("alias@{}", result.0),
            Donation::Donor => "donor".to_owned(),
        })
        .collect();
    let placements: Vec<String> = rewritten
        .placements
        .iter()
        .map(|placement| match placement {
            Placement::Destination(_) => "destination".to_owned(),
            Placement::AliasedBy(parameter) => format!("alias@{}", parameter.0),
            Placement::LeftToDonor => "donor".to_owned(),
            Placement::Skipped(why) => format!("skip:{why:?}"),
        })
        .collect();
    let options = add_parameters(options, rewritten.parameters(), rewritten.destinations).expect("JAX's options");
    format!(
        "{name}\t{policy}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{:016x}\t{:016x}",
        signature.parameters.len(),
        signature.partitions,
        signature.replicas,
        u8::from(signature.host_callbacks),
        runs(&donations),
        runs(&placements),
        rewritten.bytes.len(),
        fnv(&rewritten.bytes),
        fnv(&options),
    )
}

#[test]
fn every_artifact_becomes_what_is_expected() {
    let golden = fs::read_to_string(data().join("rewriter_golden.tsv")).expect("the table");
    let expected: Vec<&str> = golden.lines().filter(|line| !line.starts_with('#')).collect();
    let options = files("artifacts", "opts");
    let mut actual = Vec::new();
    for (name, artifact) in files("artifacts", "mlir") {
        for (label, policy) in [("tie", TIE), ("no-tie", NO_TIE)] {
            let rewritten = add_destinations(&artifact, &policy).unwrap_or_else(|why| panic!("{name}: {why}"));
            actual.push(row(&name, label, &rewritten, &options[&name]));
        }
    }
    for (expected, actual) in expected.iter().zip(&actual) {
        assert_eq!(expected, actual);
    }
    assert_eq!(expected.len(), actual.len());
}

/// What a program must look like after destinations were added to it.
fn with_destinations(rewritten: &Rewritten<'_>) -> Signature {
    let mut signature = rewritten.signature.clone();
    for (result, placement) in rewritten.placements.iter().enumerate() {
        if let Placement::Destination(parameter) = placement {
            assert_eq!(parameter.0, signature.parameters.len(), "destinations are numbered in a row");
            signature.parameters.push(Parameter {
                value_type: signature.results[result].clone(),
                donation: Donation::Aliases(ResultIndex(result)),
            });
        }
    }
    assert_eq!(signature.parameters.len(), rewritten.parameters() + rewritten.destinations);
    signature
}

#[test]
fn a_rewritten_program_has_the_destinations_and_needs_no_more() {
    for (name, artifact) in files("artifacts", "mlir") {
        for policy in [TIE, NO_TIE] {
            let once = add_destinations(&artifact, &policy).expect(&name);
            assert_eq!(inspect(&once.bytes).as_ref(), Ok(&with_destinations(&once)), "{name}");
            let twice = add_destinations(&once.bytes, &policy).expect(&name);
            assert_eq!(twice.destinations, 0, "{name}");
            assert_eq!(twice.bytes, once.bytes, "{name}");
        }
    }
}

#[test]
fn sub_byte_results_take_destinations_where_the_policy_says_so() {
    let all = Policy { skip_sub_byte: false, ..NO_TIE };
    let mut more = 0;
    for (name, artifact) in files("artifacts", "mlir") {
        let (some, all) = (add_destinations(&artifact, &NO_TIE), add_destinations(&artifact, &all));
        more += all.expect(&name).destinations - some.expect(&name).destinations;
    }
    // int2, int4, uint2 and float4_e2m1fn, twice each.
    assert_eq!(more, 8);
}

#[test]
fn results_bound_to_a_kind_of_memory_take_destinations_where_the_policy_says_so() {
    let placed = Policy { place_pinned_host: true, ..NO_TIE };
    let mut more = Vec::new();
    for (name, artifact) in files("artifacts", "mlir") {
        let (some, all) = (add_destinations(&artifact, &NO_TIE), add_destinations(&artifact, &placed).expect(&name));
        if all.destinations != some.expect(&name).destinations {
            let twice = add_destinations(&all.bytes, &placed).expect(&name);
            assert_eq!((twice.destinations, &twice.bytes), (0, &all.bytes), "{name}");
            more.push(name);
        }
    }
    // A result in `pinned_host`; not the one in `unpinned_host`. Those in `device` have destinations anyway.
    assert_eq!(more, ["0506_pinned_out"]);
}

#[test]
fn other_formats_are_left_alone() {
    for (bytes, reason) in [
        (&b""[..], "the bytecode ends too early"),
        (b"module {}", "not MLIR bytecode"),
        (b"ML\xefR\x09StableHLO_v0.14.0\0", "bytecode version (5 and 6 are read)"),
        (b"ML\xefR\x0dMLIR20\0", "not a StableHLO portable artifact"),
        (b"ML\xefR\x0dStableHLO_v1.13.3\0", "a section is missing"),
    ] {
        assert_eq!(add_destinations(bytes, &NO_TIE).map_err(|why| why.reason()), Err(reason));
        assert_eq!(inspect(bytes).map_err(|why| why.reason()), Err(reason));
    }
}

#[test]
fn options_as_jax_sends_them_are_understood() {
    for (name, options) in files("artifacts", "opts") {
        let read = CompileOptions::read(&options).expect(&name);
        assert_eq!(read.partitioner, Partitioner::Shardy, "{name}");
        let signature = inspect(&files("artifacts", "mlir")[&name]).expect(&name);
        assert_eq!(read.partitions, signature.partitions, "{name}");
        assert_eq!(read.propagation_flags, signature.parameters.len(), "{name}");
        // JAX 0.10 asks for fusion types 4, 5 and 3.
        let known = drop_fusion_types_above(&options, 4).expect(&name);
        assert_eq!(options.len() - known.len(), 1, "{name}");
        assert_eq!(drop_fusion_types_above(&known, 4).expect(&name), known, "{name}");
        assert_eq!(drop_fusion_types_above(&options, 5).expect(&name), options, "{name}");
    }
}

/// xorshift64*, so that every run sees the same mutants.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// One to three changes: bits flipped and bytes overwritten (which often leave a program), ranges deleted or
    /// doubled, bytes inserted, the end cut off.
    fn damage(&mut self, original: &[u8]) -> Vec<u8> {
        let mut bytes = original.to_vec();
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len());
            let end = (at + 1 + self.below(8)).min(bytes.len());
            let random = self.next() as u8;
            match self.below(13) {
                _ if bytes.is_empty() => {}
                0..=4 => bytes[at] ^= 1 << self.below(8),
                9 => drop(bytes.drain(at..end)),
                10 => bytes.insert(at, random),
                5..=8 => bytes[at] = [0, 1, 0x7f, 0x80, 0xfe, 0xff, random][self.below(7)],
                11 => {
                    let range = bytes[at..end].to_vec();
                    bytes.splice(at..at, range);
                }
                _ => bytes.truncate(bytes.len() - self.below(32).min(bytes.len())),
            }
        }
        bytes
    }
}

#[test]
fn damaged_artifacts_are_refused_or_rewritten_soundly() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut refused, mut rewritten) = (0, 0);
    for (name, artifact) in files("artifacts", "mlir") {
        let mutants = if artifact.len() < 4096 { 200 } else { 20 };
        for mutant in 0..mutants {
            let damaged = random.damage(&artifact);
            if let Ok(unbound) = without_annotations(&damaged) {
                // What was taken out is out.
                let again = without_annotations(&unbound.bytes);
                assert_eq!(again.as_ref(), Ok(&unbound), "{name} #{mutant}");
            }
            let policy = if mutant % 2 == 0 { TIE } else { NO_TIE };
            match add_destinations(&damaged, &policy) {
                Err(_) => refused += 1,
                Ok(once) => {
                    rewritten += 1;
                    // What comes out is an artifact again, with the destinations and nothing else changed, and not
                    // longer than its additions account for.
                    assert_eq!(inspect(&once.bytes).as_ref(), Ok(&with_destinations(&once)), "{name} #{mutant}");
                    let growth = once.bytes.len() - damaged.len().min(once.bytes.len());
                    let values = once.parameters() + once.placements.len() + once.destinations;
                    assert!(growth <= 512 + 128 * values, "{name} #{mutant}: grew by {growth}");
                }
            }
        }
    }
    // Both happen: mutants in names, constants and locations do no harm.
    assert!(refused > 5000 && rewritten > 5000, "{refused} refused, {rewritten} rewritten");
}

#[test]
fn truncated_artifacts_are_refused_at_every_length() {
    let artifacts = files("artifacts", "mlir");
    for name in ["0018_while_capture", "0052_rng_"] {
        let artifact = &artifacts[name];
        for length in 0..artifact.len() {
            assert!(add_destinations(&artifact[..length], &TIE).is_err(), "{name} cut to {length}");
        }
    }
}

#[test]
fn damaged_options_are_refused_or_edited() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let (mut refused, mut edited) = (0, 0);
    for (_, options) in files("artifacts", "opts") {
        for _ in 0..150 {
            let damaged = random.damage(&options);
            let Ok(read) = CompileOptions::read(&damaged) else {
                refused += 1;
                continue;
            };
            let flags = read.propagation_flags;
            if let Ok(longer) = add_parameters(&damaged, flags, 3) {
                edited += 1;
                let expected = if flags == 0 { 0 } else { flags + 3 };
                let again = CompileOptions::read(&longer).expect("edited options are options");
                assert_eq!(again, CompileOptions { propagation_flags: expected, ..read });
            }
            if let Ok(known) = drop_fusion_types_above(&damaged, 4) {
                assert!(known.len() <= damaged.len() + 8);
                assert_eq!(CompileOptions::read(&known), Ok(read));
            }
        }
    }
    assert!(refused > 1000 && edited > 1000, "{refused} refused, {edited} edited");
}

/// Captured optimised programs, and the number of parameters that are the user's.
const OPTIMISED: [(&str, usize); 2] = [("0018_while_capture", 2), ("0434_shard_donate_unspec", 2)];

fn optimised(name: &str, kind: &str) -> Vec<u8> {
    fs::read(data().join("hlo").join(format!("{name}.{kind}.pb"))).expect("a captured program")
}

#[test]
fn destinations_are_hidden_from_optimised_programs() {
    for (name, parameters) in OPTIMISED {
        let program = optimised(name, "destinations");
        let hidden = hide_parameters(&program, Format::HloWithConfig, parameters).expect(name);
        assert!(hidden.len() < program.len(), "{name}");
        // Nothing that belongs to a hidden parameter is left: hiding them again changes nothing.
        assert_eq!(hide_parameters(&hidden, Format::HloWithConfig, parameters), Ok(hidden), "{name}");
        // The program without destinations has nothing to hide, and must not be touched.
        let plain = optimised(name, "plain");
        assert_eq!(hide_parameters(&plain, Format::HloWithConfig, parameters), Ok(plain.clone()), "{name}");
        // Parameters that the program reads are shown as allocations.
        let without = hide_parameters(&plain, Format::HloWithConfig, 0).expect(name);
        let allocations = |program: &[u8]| program.windows(14).filter(|part| part == b"AllocateBuffer").count();
        assert_eq!((allocations(&plain), allocations(&without)), (0, parameters), "{name}");
    }
}

#[test]
fn damaged_optimised_programs_are_refused_or_edited() {
    let mut random = Random(0x0dd0_f00d_cafe_0001);
    let (mut refused, mut edited) = (0, 0);
    for (name, parameters) in OPTIMISED {
        let program = optimised(name, "destinations");
        for mutant in 0..4000 {
            let damaged = random.damage(&program);
            match hide_parameters(&damaged, Format::HloWithConfig, parameters) {
                Err(_) => refused += 1,
                Ok(hidden) => {
                    edited += 1;
                    let again = hide_parameters(&hidden, Format::HloWithConfig, parameters);
                    assert_eq!(again, Ok(hidden), "{name} #{mutant}");
                }
            }
        }
    }
    assert!(refused > 1000 && edited > 1000, "{refused} refused, {edited} edited");
}
