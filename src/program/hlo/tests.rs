//! Programs with hidden parameters, built field by field.

use super::*;
use crate::program::wire::tests::{bytes, integer};

fn parameter(id: u64, number: u64) -> Vec<u8> {
    bytes(
        computation::INSTRUCTIONS,
        &[bytes(1, b"p"), bytes(2, b"parameter"), integer(9, number), integer(35, id)].concat(),
    )
}

fn shape(parameters: &[&[u8]]) -> Vec<u8> {
    let mut out: Vec<u8> = parameters.iter().flat_map(|p| bytes(1, p)).collect();
    out.extend(bytes(2, b"result"));
    out.extend(parameters.iter().flat_map(|p| bytes(3, p)));
    out
}

/// `r = add(p0, p0)` with as many parameters as `names`, which are aliased by result 0 each.
fn program(names: &[&[u8]], operands: &[u8]) -> Vec<u8> {
    let all = 0..names.len() as u64;
    let mut entry: Vec<u8> = all.clone().flat_map(|number| parameter(10 + number, number)).collect();
    entry.extend(bytes(2, &[bytes(2, b"add"), integer(35, 30), bytes(36, operands)].concat()));
    entry.extend([bytes(4, &shape(names)), integer(5, 7), integer(6, 30)].concat());
    let other = [parameter(11, 1), integer(5, 8), integer(99, 1)].concat();
    let sequence: Vec<u8> = all.clone().map(|number| 10 + number as u8).chain([30]).collect();
    let scheduled = |key, ids: &[u8]| bytes(1, &[integer(1, key), bytes(2, &bytes(1, ids))].concat());
    let entries = |field: u32| -> Vec<u8> { all.clone().flat_map(|n| bytes(1, &integer(field, n))).collect() };
    let module = [
        bytes(1, b"jit_f"),
        bytes(3, &other),
        bytes(3, &entry),
        bytes(4, &shape(names)),
        integer(6, 7),
        bytes(7, &[scheduled(8, &[11]), scheduled(7, &sequence)].concat()),
        bytes(8, &entries(2)),
        all.clone().flat_map(|n| bytes(10, &integer(1, n))).collect(),
        names.iter().flat_map(|name| bytes(14, name)).collect(),
        bytes(18, &entries(1)),
        bytes(77, b"unknown"),
    ]
    .concat();
    let config = [
        bytes(1, &shape(names)),
        integer(2, 42),
        bytes(6, &[1]),
        all.clone().flat_map(|n| bytes(16, &integer(1, n))).collect(),
        bytes(33, &vec![0; names.len()]),
    ]
    .concat();
    [bytes(1, &module), bytes(2, &config)].concat()
}

#[test]
fn hidden_parameters_leave_no_trace() {
    let (users, all): (&[&[u8]], &[&[u8]]) = (&[b"a", b"b"], &[b"a", b"b", b"C", b"D"]);
    let program_of_all = program(all, &[10, 10]);
    let shown = hide_parameters(&program_of_all, Format::HloWithConfig, 2).unwrap();
    assert_eq!(shown, program(users, &[10, 10]));
    // Nothing to hide: the same bytes.
    assert_eq!(hide_parameters(&program_of_all, Format::HloWithConfig, 4).unwrap(), program_of_all);
    // The module alone.
    let module_of = |program: &[u8]| fields(program).next().unwrap().unwrap().bytes().unwrap().to_vec();
    let shown = hide_parameters(&module_of(&program_of_all), Format::Hlo, 2).unwrap();
    assert_eq!(shown, module_of(&program(users, &[10, 10])));
}

#[test]
fn a_used_parameter_is_shown_as_an_allocation() {
    let allocation = |id| {
        let parts = [bytes(1, b"p"), bytes(2, b"custom-call"), integer(35, id), bytes(28, b"AllocateBuffer")];
        bytes(computation::INSTRUCTIONS, &parts.concat())
    };
    let uses = |uses: Vec<u8>| bytes(2, &[bytes(2, b"add"), integer(35, 30), uses].concat());
    let module = |entry: &[Vec<u8>]| [bytes(3, &entry.concat()), integer(6, 7)].concat();
    // As an operand, or as what has to come first.
    for field in [36, 37] {
        let of = |second| module(&[parameter(10, 0), second, uses(bytes(field, &[11])), integer(5, 7), integer(6, 30)]);
        assert_eq!(hide_parameters(&of(parameter(11, 1)), Format::Hlo, 1), Ok(of(allocation(11))));
    }
    // Another computation has an instruction of that id.
    let unused = program(&[b"a", b"C"], &[10, 10]);
    assert_eq!(hide_parameters(&unused, Format::HloWithConfig, 1), Ok(program(&[b"a"], &[10, 10])));
}

#[test]
fn a_parameter_that_is_the_result_stays() {
    // The computation's root is the parameter itself, and no instruction names it.
    let entry = |root| [parameter(10, 0), parameter(11, 1), integer(5, 7), integer(6, root)].concat();
    let module = |root| [bytes(3, &entry(root)), integer(6, 7)].concat();
    assert!(hide_parameters(&module(11), Format::Hlo, 1).is_err());
    let shown = [bytes(3, &[parameter(10, 0), integer(5, 7), integer(6, 10)].concat()), integer(6, 7)].concat();
    assert_eq!(hide_parameters(&module(10), Format::Hlo, 1), Ok(shown));
}

#[test]
fn shardings_for_another_number_of_parameters_are_left_alone() {
    let entry = [parameter(10, 0), parameter(11, 1), integer(5, 7), integer(6, 10)].concat();
    let module = |shardings: &[u8]| {
        let shardings: Vec<u8> = shardings.iter().flat_map(|&sharding| bytes(14, &[sharding])).collect();
        [integer(6, 7), bytes(3, &entry), shardings].concat()
    };
    let kept = |module: Vec<u8>| {
        let shown = hide_parameters(&module, Format::Hlo, 1).unwrap();
        count(&shown, module::SPMD_PARAMETERS_SHARDINGS).unwrap()
    };
    assert_eq!([kept(module(&[])), kept(module(&[1, 2])), kept(module(&[1, 2, 3]))], [0, 1, 3]);
}

#[test]
fn formats_have_pjrt_s_names() {
    assert_eq!(Format::from_name(b"hlo"), Some(Format::Hlo));
    assert_eq!(Format::from_name(b"hlo_with_config"), Some(Format::HloWithConfig));
    assert_eq!(Format::from_name(b"mlir"), None);
}
