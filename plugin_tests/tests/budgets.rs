//! What a parser may take grows with its input, and no faster: generated programs that refer to one large entry as
//! often as their size allows, with an allocator that counts.

use pjrt_arena::{
    program::{Policy, add_destinations, has_host_callbacks, hlo, inspect, names_one, options, without_annotations},
    runtime::executable::serialized,
};
use plugin_tests::counting::{Counting, peak_of};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: usize = 1 << 20;

/// A prefix varint of MLIR's bytecode.
fn put_varint(out: &mut Vec<u8>, value: u64) {
    for bytes in 1..=8u32 {
        if value < 1u64.checked_shl(7 * bytes).unwrap_or(u64::MAX) {
            let word = value << bytes | 1 << (bytes - 1);
            out.extend(&word.to_le_bytes()[..bytes as usize]);
            return;
        }
    }
    out.push(0);
    out.extend(value.to_le_bytes());
}

fn varints(values: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut out = Vec::new();
    values.into_iter().for_each(|value| put_varint(&mut out, value));
    out
}

/// A counted list.
fn list(values: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let values: Vec<u64> = values.into_iter().collect();
    varints([values.len() as u64].into_iter().chain(values))
}

fn put_section(out: &mut Vec<u8>, id: u8, payload: &[u8]) {
    out.push(id);
    put_varint(out, payload.len() as u64);
    out.extend(payload);
}

/// Codes of VHLO attributes and types.
const ARRAY: u64 = 1;
const DICTIONARY: u64 = 6;
const STRING: u64 = 14;
const TYPE: u64 = 17;
const F32: u64 = 4;
const FUNCTION: u64 = 8;
const TENSOR: u64 = 20;

/// The first attributes of [`artifact`].
const MAIN: u64 = 0;
const FUNCTION_TYPE: u64 = 1;
const DONOR: u64 = 2;
const FIRST_FREE: u64 = 3;

/// An artifact whose `main` takes `parameters` tensors of one type of this rank and gives `results` of them. Its
/// parameters' attributes are the last of `attributes`, which follow those that every such program has.
fn artifact(rank: u64, parameters: usize, results: usize, attributes: &[Vec<u8>]) -> Vec<u8> {
    let texts = ["builtin", "vhlo", "module", "func_v1", "main", "jax.buffer_donor"];
    let mut strings = varints([texts.len() as u64]);
    texts.iter().rev().for_each(|text| put_varint(&mut strings, text.len() as u64 + 1));
    texts.iter().for_each(|text| strings.extend([text.as_bytes(), b"\0"].concat()));
    // Two dialects without versions, two names: builtin.module and vhlo.func_v1.
    let dialects = varints([2, 0, 1 << 1, 2, 0, 1, 2 << 1, 1, 1, 3 << 1]);

    let none = list([]);
    let mut all = vec![varints([STRING, 4]), varints([TYPE, 2]), varints([STRING, 5])];
    all.extend_from_slice(attributes);
    all.push([varints([ARRAY]), none].concat());
    let no_attributes = all.len() as u64 - 1;
    let parameter_attributes = if attributes.is_empty() { no_attributes } else { no_attributes - 1 };
    let tensor = [varints([TENSOR]), list((0..rank).map(|at| 2 * at)), varints([0])].concat();
    let ones = |count: usize| list(std::iter::repeat_n(1, count));
    let types = [varints([F32]), tensor, [varints([FUNCTION]), ones(parameters), ones(results)].concat()];
    let mut offsets = varints([all.len() as u64, types.len() as u64]);
    for entries in [&all[..], &types[..]] {
        offsets.extend(varints([1, entries.len() as u64]));
        entries.iter().for_each(|entry| put_varint(&mut offsets, (entry.len() as u64) << 1 | 1));
    }
    let data = [all.concat(), types.concat()].concat();
    let property = varints([parameter_attributes, FUNCTION_TYPE, no_attributes, MAIN, MAIN]);
    let properties = [varints([1, property.len() as u64]), property].concat();

    // The module: one isolated region of one block with `main`, which has properties and no region.
    let main = [varints([1]), vec![0x40], varints([MAIN, 0])].concat();
    let mut ir = [varints([1 << 1, 0]), vec![0x10], varints([MAIN, 1 << 1 | 1])].concat();
    put_section(&mut ir, 4, &[varints([1, 0, 1 << 1]), main].concat());
    let mut file = b"ML\xefR".to_vec();
    put_varint(&mut file, 6);
    file.extend(b"StableHLO_v1.0.0\0");
    for (id, payload) in [(0, &strings), (1, &dialects), (2, &data), (3, &offsets), (4, &ir), (8, &properties)] {
        put_section(&mut file, id, payload);
    }
    file
}

const POLICY: Policy = Policy {
    skip_sub_byte: true,
    tie_unspecified_shardings: true,
    place_pinned_host: true,
    one_memory: true,
    update_in_place: true,
};

#[test]
fn one_type_is_decoded_once_however_many_parameters_have_it() {
    let program = artifact(256, 5000, 0, &[]);
    let (signature, peak) = peak_of(|| inspect(&program));
    let signature = signature.expect("a good program");
    assert_eq!(signature.parameters.len(), 5000);
    assert!(signature.parameters.iter().all(|parameter| parameter.value_type == signature.parameters[0].value_type));
    assert!(peak < 4 * MIB, "{peak} bytes for a program of {}", program.len());
}

#[test]
fn a_million_parameters_in_a_mebibyte_are_refused_with_the_number_of_bytes() {
    let program = artifact(256, 1_000_000, 0, &[]);
    assert!(program.len() < 2 * MIB);
    let (refused, peak) = peak_of(|| inspect(&program));
    let refused = refused.expect_err("too many parameters for its size").to_string();
    assert!(refused.contains("more parameters or results than a program of this size may"), "{refused}");
    assert!(refused.rsplit(' ').next().is_some_and(|bytes| bytes.parse().is_ok_and(|bytes: u64| bytes > 100_000_000)));
    assert!(peak < 128 * MIB, "{peak} bytes for a program of {}", program.len());
    let program = artifact(256, 0, 1_000_000, &[]);
    let (refused, peak) = peak_of(|| add_destinations(&program, &POLICY).map(|_| ()));
    assert!(refused.is_err() && peak < 128 * MIB, "{refused:?}: {peak}");
}

#[test]
fn a_large_attribute_that_many_refer_to_is_not_decoded_for_each() {
    const DICTIONARIES: u64 = 50_000;
    let large = [varints([ARRAY]), list(std::iter::repeat_n(0, 500_000))].concat();
    let dictionary = varints([DICTIONARY, 1, DONOR, FIRST_FREE]);
    let mut attributes = vec![large];
    attributes.extend(std::iter::repeat_n(dictionary, DICTIONARIES as usize));
    attributes.push([varints([ARRAY]), list((1..=DICTIONARIES).map(|at| FIRST_FREE + at))].concat());
    let program = artifact(1, DICTIONARIES as usize, 0, &attributes);
    let (refused, peak) = peak_of(|| inspect(&program));
    let refused = refused.expect_err("decoded for each it would take minutes").to_string();
    assert!(refused.contains("decoded too often for a program of this size"), "{refused}");
    assert!(peak < 256 * MIB, "{peak} bytes for a program of {}", program.len());
}

/// All that reads programs, on every program of the corpus: none is refused for its cost.
#[test]
fn real_programs_stay_far_below_the_bound() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/data/artifacts");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus") {
        let program = std::fs::read(entry.expect("an entry").path()).expect("a file");
        let (rejects, peak) = peak_of(|| {
            let mut rejects = Vec::new();
            rejects.extend(inspect(&program).err());
            rejects.extend(add_destinations(&program, &POLICY).err());
            rejects.extend(without_annotations(&program).err());
            names_one(&program, |_| false);
            has_host_callbacks(&program);
            rejects
        });
        assert!(!rejects.iter().any(|reject| reject.reason().contains("program of this size")), "{rejects:?}");
        assert!(peak < 64 * program.len() + MIB, "{peak} bytes for a program of {}", program.len());
        read += 1;
    }
    assert!(read > 100, "{read}");
}

/// A field with a length of a protocol buffer.
fn field(number: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for mut value in [number << 3 | 2, payload.len() as u64] {
        while value > 0x7f {
            out.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }
    out.extend(payload);
    out
}

#[test]
fn lists_of_protocol_buffers_take_a_multiple_of_their_size() {
    let ones = vec![1; MIB];
    // HLO: operands of an instruction; the schedule of a computation.
    let instruction = field(2, &field(36, &ones));
    let computation = field(3, &[instruction, vec![5 << 3, 0]].concat());
    let schedule = field(7, &field(1, &field(2, &field(1, &ones))));
    let module = [computation, schedule].concat();
    let (read, peak) = peak_of(|| hlo::hide_parameters(&module, hlo::Format::Hlo, 0));
    assert!(read.is_ok(), "{read:?}");
    assert!(peak < 32 * module.len(), "{peak} bytes for HLO of {}", module.len());
    // Options: flags of parameters, and kinds of fusion.
    let flags = field(3, &field(18, &ones));
    let (read, peak) = peak_of(|| options::add_parameters(&flags, MIB, 1).map(|_| ()));
    assert!(read.is_ok(), "{read:?}");
    assert!(peak < 32 * flags.len(), "{peak} bytes for options of {}", flags.len());
    let kinds = field(3, &field(3, &field(422, &ones)));
    let (read, peak) = peak_of(|| options::drop_fusion_types_above(&kinds, 0).map(|_| ()));
    assert!(read.is_ok(), "{read:?}");
    assert!(peak < 32 * kinds.len(), "{peak} bytes for options of {}", kinds.len());
}

#[test]
fn plans_take_a_multiple_of_their_size() {
    let plan = |fields: &str| {
        let json = format!("{{{fields}}}");
        let magic = &b"pjrt-arena\0exec1"[..];
        [magic, &(json.len() as u64).to_le_bytes(), json.as_bytes(), b"blob"].concat()
    };
    let many = |value: &str| vec![value; MIB / (value.len() + 1)].join(",");
    let deep = "[".repeat(MIB);
    for fields in [
        format!(r#""placements":[{}]"#, many("null")),
        format!(r#""placements":[{}]"#, many("{}")),
        format!(r#""destinations":[{}]"#, many("1")),
        format!(r#""bound":[{}]"#, many("null")),
        format!(r#""user_options":[{}]"#, many("1")),
        format!(r#""unknown":[{}]"#, many("{}")),
        format!(r#""unknown":{deep}"#),
    ] {
        let sealed = plan(&fields);
        let (opened, peak) = peak_of(|| serialized::open(&sealed).map(|_| ()));
        assert!(opened.is_err(), "parts are missing");
        assert!(peak < 32 * sealed.len(), "{peak} bytes for a plan of {}", sealed.len());
    }
}
