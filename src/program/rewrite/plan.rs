//! Which results get a destination.

use std::collections::HashMap;

use crate::program::{
    bytecode::container::Artifact,
    reject::Reject,
    rewrite::outcome::{Destination, Placement, Policy, Sharding, Skip},
    sharding::{SDY, Shardings},
    signature::{Donation, Known, MemoryKind, ParameterIndex, Program, ResultIndex},
    tie::Ties,
    vhlo::{self, ValueType},
};

/// What a donor and a result must have in common: the size in bits, and whether they are bound to `pinned_host`. XLA
/// goes by the size on one device (`OptimizeInputOutputBufferAlias`), so a donor may take a result of another shape
/// (JAX's `testBufferDonationDifferentIOShapes`). The size before partitioning stands for it.
pub(super) type Fits = (u64, bool);

/// `None` for what no donor fits, or what is no array.
pub(super) fn fits(value_type: &ValueType, known: &Known) -> Option<Fits> {
    let ValueType::Tensor { dimensions, element: Some(element) } = value_type else { return None };
    let bits = dimensions.iter().try_fold(u64::from(element.bits()), |bits, &dimension| {
        u64::try_from(dimension).ok().and_then(|dimension| bits.checked_mul(dimension))
    })?;
    Some((bits, known.memory_kind.is_pinned_host()))
}

/// What a destination takes until the program is written: itself, its attributes, and their entries in tables.
const DESTINATION_BYTES: usize = 512;

pub(super) struct Plan {
    pub(super) placements: Vec<Placement>,
    pub(super) destinations: Vec<Destination>,
    pub(super) released: Vec<ParameterIndex>,
    /// Whether arguments go on in destinations. Slices would move data between partitions.
    pub(super) update_in_place: bool,
}

/// Where more results have a donor's size than there are donors, none of them takes a destination: XLA matches donors
/// after partitioning, by the shape on one device, and only it knows which of the results has that. Taking one away
/// could take the donor's own (JAX's `testBufferDonationWithOutputShardingInference`).
fn spare_candidates(
    program: &Program<'_>,
    policy: &Policy,
    aliased_by: &[Option<ParameterIndex>],
    donors: &mut HashMap<Fits, usize>,
) {
    let mut candidates: HashMap<Fits, usize> = HashMap::new();
    for ((value_type, known), aliased) in program.results.iter().zip(aliased_by) {
        if aliased.is_none()
            && fit(value_type, known, policy).is_ok()
            && let Some(fits) = fits(value_type, known)
        {
            *candidates.entry(fits).or_default() += 1;
        }
    }
    for (fits, waiting) in donors {
        *waiting = (*waiting).max(candidates.get(fits).copied().unwrap_or(0));
    }
}

/// Decides where each result is put.
pub(super) fn plan(file: &Artifact<'_>, program: &Program<'_>, policy: &Policy) -> Result<Plan, Reject> {
    let tables = &file.tables;
    let can_tie = policy.tie_unspecified_shardings
        && tables.dialect(SDY).is_some()
        && tables.find_op(SDY, b"mesh").is_some()
        && tables.dialect(vhlo::BUILTIN).is_some();
    let mut aliased_by = vec![None; program.results.len()];
    let mut released = Vec::new();
    // Donors wait for a result of their size; how many of each size still do.
    let mut donors: HashMap<Fits, usize> = HashMap::new();
    for (at, (parameter, known)) in program.known_parameters().enumerate() {
        match parameter.donation {
            Donation::Kept => {}
            Donation::Aliases(ResultIndex(result))
                if policy.one_memory
                    && known.memory_kind.is_host() != program.results[result].1.memory_kind.is_host() =>
            {
                released.push(ParameterIndex(at));
            }
            Donation::Aliases(ResultIndex(result)) => aliased_by[result] = Some(ParameterIndex(at)),
            Donation::Donor => {
                if let Some(fits) = fits(&parameter.value_type, known) {
                    *donors.entry(fits).or_default() += 1;
                }
            }
        }
    }
    if program.partitions > 1 {
        spare_candidates(program, policy, &aliased_by, &mut donors);
    }
    let mut shardings = Shardings::default();
    let mut plan = Plan {
        placements: Vec::with_capacity(program.results.len()),
        destinations: Vec::new(),
        released,
        update_in_place: policy.update_in_place && program.partitions <= 1,
    };
    for (at, (value_type, known)) in program.results.iter().enumerate() {
        let placement = if let Some(parameter) = aliased_by[at] {
            Placement::AliasedBy(parameter)
        } else if let Err(why) = fit(value_type, known, policy) {
            Placement::Skipped(why)
        } else {
            let specified = program.partitions <= 1 || shardings.is_specified(tables, known)?;
            let sharding = if specified { Sharding::Same } else { Sharding::Tied };
            if sharding == Sharding::Tied && !(can_tie && Ties::can_tie(value_type)) {
                Placement::Skipped(Skip::UnspecifiedSharding)
            } else if let Some(waiting @ 1..) = fits(value_type, known).and_then(|fits| donors.get_mut(&fits)) {
                *waiting -= 1;
                Placement::LeftToDonor
            } else {
                let reason = "more destinations than a program of this size may have, bytes for one more";
                tables.budget.spend(1, DESTINATION_BYTES, reason)?;
                let parameter = ParameterIndex(program.parameter_types.len() + plan.destinations.len());
                let value_type = program.result_types[at];
                plan.destinations.push(Destination { result: ResultIndex(at), value_type, known: *known, sharding });
                Placement::Destination(parameter)
            }
        };
        plan.placements.push(placement);
    }
    Ok(plan)
}

/// Whether a result can be written to memory of the caller's, sharding apart.
pub(super) fn fit(value_type: &ValueType, known: &Known, policy: &Policy) -> Result<(), Skip> {
    let ValueType::Tensor { dimensions, element } = value_type else { return Err(Skip::NotATensor) };
    if dimensions.iter().any(|&dimension| dimension < 0) {
        return Err(Skip::DynamicDimension);
    }
    if dimensions.contains(&0) {
        return Err(Skip::NoElements);
    }
    match element {
        None => return Err(Skip::ElementType),
        Some(element) if policy.skip_sub_byte && element.is_sub_byte() => return Err(Skip::SubByte),
        Some(_) => {}
    }
    if known.has_own_layout {
        return Err(Skip::Layout);
    }
    match known.memory_kind {
        MemoryKind::Device | MemoryKind::Named(..) => Ok(()),
        MemoryKind::PinnedHost(..) if policy.place_pinned_host => Ok(()),
        MemoryKind::PinnedHost(..) | MemoryKind::UnpinnedHost | MemoryKind::Other => Err(Skip::MemoryKind),
    }
}
