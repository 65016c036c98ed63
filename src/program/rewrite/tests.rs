use crate::program::{
    bytecode::{
        container::Artifact,
        ids::{AttrId, ValueId},
        ops::{Regions, UseLists},
        reader::Cursor,
        section,
        tables::Additions,
        writer::{put_section, varints},
    },
    rewrite::{
        emit::*,
        outcome::*,
        plan::{fit, plan},
        renumber::Renumber,
        *,
    },
    signature::{Donation, Known, MemoryKind, ParameterIndex, Program, ResultIndex},
    vhlo::{self, ValueType},
};

#[test]
fn values_move_by_what_is_added_before_them() {
    let sink = Renumber {
        out: Vec::new(),
        arguments: 2,
        values: 5,
        new_arguments: 3,
        first_results: 1,
        last_results: 4,
        instead: Vec::new(),
        seen: 0,
        use_lists: UseLists::Keep,
    };
    let moved: Vec<_> = (0..7).map(|value| sink.renumber(ValueId(value)).unwrap().0).collect();
    assert_eq!(moved, [0, 1, 6, 7, 8, 13, 14]);
    assert!(sink.renumber(ValueId(u64::MAX)).is_err());
}

/// The placements that [`plan`] decides on for a program from JAX after `change`.
fn placed(name: &str, change: impl FnOnce(&mut Program<'_>)) -> Vec<Placement> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/plugin_tests/data/artifacts");
    let bytes = std::fs::read(format!("{folder}/{name}.mlir")).unwrap();
    let file = Artifact::parse(&bytes).unwrap();
    let mut program = Program::find(&file).unwrap();
    change(&mut program);
    let policy = Policy {
        skip_sub_byte: true,
        tie_unspecified_shardings: false,
        place_pinned_host: true,
        one_memory: false,
        update_in_place: false,
    };
    plan(&file, &program, &policy).unwrap().placements
}

/// As many results as `fitting` says, of the type of the program's one donor where true and of another type where not.
fn results_beside_a_donor(program: &mut Program<'_>, partitions: u64, fitting: &[bool]) {
    let key = AttrId(0);
    let donor = program.known_parameters().find(|(parameter, _)| parameter.donation == Donation::Donor);
    let value_type = donor.expect("a donor").0.value_type.clone();
    let other = ValueType::Tensor { dimensions: [3, 5, 7].into(), element: Some(vhlo::ElementType::U16) };
    assert_ne!(value_type, other);
    // Their shardings leave nothing open.
    let known = Known { mhlo_sharding: Some((key, key)), ..Known::default() };
    let result = |fits: &bool| (if *fits { value_type.clone() } else { other.clone() }, known);
    program.results = fitting.iter().map(result).collect();
    program.result_types.resize(fitting.len(), program.result_types[0]);
    program.partitions = partitions;
}

#[test]
fn a_donor_takes_one_result_of_its_size() {
    let placed =
        |fitting: &[bool]| placed("0434_shard_donate_unspec", |program| results_beside_a_donor(program, 1, fitting));
    let own = |number: usize| Placement::Destination(ParameterIndex(2 + number));
    assert_eq!(placed(&[true]), [Placement::LeftToDonor]);
    assert_eq!(placed(&[false, true, true, true]), [own(0), Placement::LeftToDonor, own(1), own(2)]);
}

#[test]
fn among_partitions_a_donor_may_take_any_result_of_its_size() {
    let placed =
        |fitting: &[bool]| placed("0434_shard_donate_unspec", |program| results_beside_a_donor(program, 4, fitting));
    let own = |number: usize| Placement::Destination(ParameterIndex(2 + number));
    // Only XLA knows which of the three has the donor's shape on one device: none of them is taken from it.
    let left = Placement::LeftToDonor;
    assert_eq!(placed(&[true, false, true, true, false]), [left, own(0), left, left, own(1)]);
    // One that the user's own argument takes is nobody else's.
    assert_eq!(placed(&[false]), [own(0)]);
}

#[test]
fn a_donor_takes_a_result_of_its_size_and_another_shape() {
    for partitions in [1, 4] {
        let placed = placed("0434_shard_donate_unspec", |program| {
            results_beside_a_donor(program, partitions, &[false, true]);
            let ValueType::Tensor { dimensions, element } = program.results[1].0.clone() else { panic!("no tensor") };
            let flat: std::sync::Arc<[i64]> = [dimensions.iter().product()].into();
            assert_ne!(flat, dimensions);
            program.results[1].0 = ValueType::Tensor { dimensions: flat, element };
        });
        assert_eq!(placed, [Placement::Destination(ParameterIndex(2)), Placement::LeftToDonor], "{partitions}");
    }
}

#[test]
fn a_donation_into_another_memory_is_released() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/plugin_tests/data/artifacts/0445_shard_donate_resh.mlir");
    let bytes = std::fs::read(path).unwrap();
    let file = Artifact::parse(&bytes).unwrap();
    let key = AttrId(0);
    let planned = |one_memory, memory_kind| {
        let mut program = Program::find(&file).unwrap();
        program.results[0].1.memory_kind = memory_kind;
        let policy = Policy {
            skip_sub_byte: true,
            tie_unspecified_shardings: false,
            place_pinned_host: false,
            one_memory,
            update_in_place: false,
        };
        let plan = plan(&file, &program, &policy).unwrap();
        // What comes out has lost the alias, or has it still, and the destination of the other result.
        let emitted = emit(&file, &program, &plan).unwrap();
        let emitted = Artifact::parse(&emitted).unwrap();
        let donations: Vec<_> =
            Program::find(&emitted).unwrap().parameters().map(|parameter| parameter.donation).collect();
        let first = if plan.released.is_empty() { Donation::Aliases(ResultIndex(0)) } else { Donation::Kept };
        assert_eq!(donations, [first, Donation::Aliases(ResultIndex(1))], "{memory_kind:?}");
        (plan.placements[0], plan.released)
    };
    let aliased = (Placement::AliasedBy(ParameterIndex(0)), Vec::new());
    for elsewhere in [MemoryKind::PinnedHost(key, key), MemoryKind::UnpinnedHost] {
        assert_eq!(planned(false, elsewhere), aliased);
        assert_eq!(
            planned(true, elsewhere),
            (Placement::Skipped(Skip::MemoryKind), vec![ParameterIndex(0)]),
            "{elsewhere:?}"
        );
    }
    for here in [MemoryKind::Device, MemoryKind::Named(key, key), MemoryKind::Other] {
        assert_eq!(planned(true, here), aliased, "{here:?}");
    }
}

#[test]
fn a_donor_bound_to_another_memory_waits_in_vain() {
    let key = AttrId(0);
    let placed = placed("0434_shard_donate_unspec", |program| {
        results_beside_a_donor(program, 1, &[true, true]);
        program.results[0].1.memory_kind = MemoryKind::PinnedHost(key, key);
    });
    assert_eq!(placed, [Placement::Destination(ParameterIndex(2)), Placement::LeftToDonor]);
}

#[test]
fn a_result_is_fit_by_its_type_and_its_attributes() {
    let policy = Policy {
        skip_sub_byte: true,
        tie_unspecified_shardings: false,
        place_pinned_host: false,
        one_memory: false,
        update_in_place: false,
    };
    let key = (AttrId(0), AttrId(0));
    let tensor = |dimensions: &[i64], element| ValueType::Tensor { dimensions: dimensions.into(), element };
    let (f32, s4) = (Some(vhlo::ElementType::F32), Some(vhlo::ElementType::S4));
    let plain = Known::default();
    let pinned = Known { memory_kind: MemoryKind::PinnedHost(key.0, key.1), ..plain };
    let named = Known { memory_kind: MemoryKind::Named(key.0, key.1), ..plain };
    let unpinned = Known { memory_kind: MemoryKind::UnpinnedHost, ..plain };
    let elsewhere = Known { memory_kind: MemoryKind::Other, ..plain };
    for (value_type, known, expected) in [
        (tensor(&[2, 3], f32), plain, Ok(())),
        (tensor(&[], f32), plain, Ok(())),
        (ValueType::Token, plain, Err(Skip::NotATensor)),
        (tensor(&[2, -1], f32), plain, Err(Skip::DynamicDimension)),
        (tensor(&[2, 0], f32), plain, Err(Skip::NoElements)),
        (tensor(&[2], None), plain, Err(Skip::ElementType)),
        (tensor(&[2], s4), plain, Err(Skip::SubByte)),
        (tensor(&[2], f32), Known { has_own_layout: true, ..plain }, Err(Skip::Layout)),
        (tensor(&[2], f32), pinned, Err(Skip::MemoryKind)),
        (tensor(&[2], f32), named, Ok(())),
        (tensor(&[2], f32), unpinned, Err(Skip::MemoryKind)),
        (tensor(&[2], f32), elsewhere, Err(Skip::MemoryKind)),
    ] {
        assert_eq!(fit(&value_type, &known, &policy), expected, "{value_type} {known:?}");
    }
    let all = Policy { skip_sub_byte: false, place_pinned_host: true, ..policy };
    assert_eq!(fit(&tensor(&[2], s4), &pinned, &all), Ok(()));
    assert_eq!(fit(&tensor(&[2], s4), &named, &all), Ok(()));
    assert_eq!(fit(&tensor(&[2], f32), &elsewhere, &all), Err(Skip::MemoryKind));
    let reasons = [Skip::NotATensor, Skip::Layout, Skip::SubByte, Skip::MemoryKind].map(Skip::reason);
    assert!(reasons.iter().all(|reason| reason.contains(' ')), "{reasons:?}: words for the user");
}

/// A writer that isolates operations by their kind only would store `main` inline.
#[test]
fn an_inline_main_is_rewritten_like_an_isolated_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/plugin_tests/data/artifacts/0018_while_capture.mlir");
    let bytes = std::fs::read(path).unwrap();
    let file = Artifact::parse(&bytes).unwrap();
    let program = Program::find(&file).unwrap();
    let isolated = |program: &Program<'_>| {
        assert_eq!(program.head.regions, Regions::Isolated(1));
        Cursor::new(program.region).section_of(section::IR).unwrap().to_vec()
    };
    let head = program.head;
    let mut region = program.before.to_vec();
    region.extend(varints([head.name.0]));
    region.push(head.mask);
    region.extend(varints([head.location.0, head.properties.unwrap().0, 1 << 1]));
    region.extend(isolated(&program));
    region.extend(program.after);
    let mut ir = program.top.to_vec();
    put_section(&mut ir, section::IR, &region);
    let inline = file.emit(&Additions::new(&file.tables), &ir).unwrap();

    let policy = Policy {
        skip_sub_byte: true,
        tie_unspecified_shardings: true,
        place_pinned_host: false,
        one_memory: false,
        update_in_place: false,
    };
    let (one, other) = (add_destinations(&bytes, &policy).unwrap(), add_destinations(&inline, &policy).unwrap());
    assert!(one.destinations > 0);
    assert_eq!(one.placements, other.placements);
    let (one, other) = (Artifact::parse(&one.bytes).unwrap(), Artifact::parse(&other.bytes).unwrap());
    let (one, other) = (Program::find(&one).unwrap(), Program::find(&other).unwrap());
    assert_eq!(other.head.regions, Regions::Inline(1));
    assert_eq!(isolated(&one), other.region);
}
