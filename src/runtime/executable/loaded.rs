//! What pjrt-arena knows of a compiled program, beyond what the engine knows.

use std::{
    hash::Hasher,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use once_cell::sync::OnceCell;
use rustc_hash::FxHasher;
use serde::{Deserialize, Serialize};

use crate::{
    engine::{Live, Outcome, Raw, views::ViewKind},
    memory::{Donation, OriginId, Strategy},
    program::HostMemory,
    report::stacks::StackId,
    runtime::{
        allocator::{Allocator, allocate::footprint, output_cache::OutputCache, pinned_host::KIND},
        buffer::{BufferRef, CacheSlot},
        client::{Client, Device},
        counters::{Executions, Miss, Tally},
        device_memory::origins::ORIGINS,
        dispatch::{Dispatch, Timed},
        executable::{bound::OutputKinds, cost::Cost, queries, undonated::UndonatedArguments},
        nested::NestedExecutables,
        shape::Shape,
    },
    sys,
    units::Bytes,
};

/// Where a result is expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResultPlacement {
    /// In the destination with this number.
    Destination(usize),
    /// In the memory of this argument, which the program aliases with the result.
    Argument(usize),
    /// Where the engine puts it: in a donated argument that the engine chose, or in memory of its own; and why.
    Anywhere(String),
}

/// How the user's own arguments may be consumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Donations {
    /// Only these arguments, in ascending order.
    Only(Vec<usize>),
    /// The program could not be read: it may consume any argument.
    Unknown,
}

/// A program's arguments, destinations and results as planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How many arguments the user passes; `None` if the program could not be read.
    pub arguments: Option<usize>,
    /// Which of them may be consumed.
    pub donations: Donations,
    /// The placement of each result; empty if the program could not be read. Named `homes` in plans of old caches.
    #[serde(alias = "homes")]
    pub placements: Vec<ResultPlacement>,
    /// Results that have a destination, in the order of the extra parameters.
    pub destinations: Vec<usize>,
    /// Why the program runs unchanged; `None` if it was rewritten. Named `left_alone` in plans of old caches.
    #[serde(alias = "left_alone")]
    pub not_rewritten: Option<String>,
    /// The program calls back into the host while it runs.
    pub host_callbacks: bool,
    /// The program has no custom call, so that nothing in it can read an execute context. Not in plans of old caches.
    #[serde(default)]
    pub needs_no_context: bool,
    /// The program computes next to nothing besides its custom calls. Not in plans of old caches.
    #[serde(default)]
    pub is_cheap: bool,
    /// For each result the memory of the host that it is bound to, where the engine does not tell memories apart;
    /// empty if none is. Not in plans of old caches.
    #[serde(default)]
    pub bound: Vec<Option<HostMemory>>,
    /// Donated arguments that the program only reads, in ascending order: they lie in another memory than the result
    /// that would have had theirs. Not in plans of old caches.
    #[serde(default)]
    pub released: Vec<usize>,
    /// The compile options as the user gave them, if the program was rewritten.
    pub user_options: Vec<u8>,
}

impl Plan {
    /// Whether the program has all arguments and `results` that the plan names, and argument lists are in ascending
    /// order.
    fn is_within(&self, results: usize) -> bool {
        let arguments = self.arguments.unwrap_or(0);
        let are_arguments =
            |list: &[usize]| list.is_sorted_by(|one, other| one < other) && list.iter().all(|&at| at < arguments);
        let donated = match &self.donations {
            Donations::Only(list) => are_arguments(list),
            Donations::Unknown => true,
        } && are_arguments(&self.released);
        let placement = |placement: &ResultPlacement| match placement {
            ResultPlacement::Destination(number) => *number < self.destinations.len(),
            ResultPlacement::Argument(argument) => *argument < arguments,
            ResultPlacement::Anywhere(_) => true,
        };
        let bound = self.bound.is_empty() || self.bound.len() == results;
        donated
            && bound
            && self.destinations.iter().all(|&result| result < results)
            && self.placements.iter().all(placement)
    }

    /// The plan of a program that runs unchanged.
    pub fn unmodified(reason: impl Into<String>) -> Self {
        Self {
            arguments: None,
            donations: Donations::Unknown,
            placements: Vec::new(),
            destinations: Vec::new(),
            not_rewritten: Some(reason.into()),
            host_callbacks: false,
            needs_no_context: false,
            is_cheap: false,
            bound: Vec::new(),
            released: Vec::new(),
            user_options: Vec::new(),
        }
    }
}

/// Where the results of an execution were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origins {
    /// The arguments that the execution consumed, in ascending order.
    pub consumed: Vec<usize>,
    /// For each result which it lay in of the destinations, or, counted on behind those, of the consumed arguments;
    /// `None` is memory of the engine.
    pub results: Vec<Option<usize>>,
}

/// A compiled program.
pub struct Program {
    /// Its client; `None` if it was compiled without one.
    pub client: Option<Arc<Client>>,
    /// What was planned for it.
    pub plan: Plan,
    /// Its results on one device.
    pub results: Vec<Arc<Shape>>,
    /// Which results lie in `pinned_host` memory; none, where that stays with the engine.
    pub pinned: Box<[bool]>,
    /// Where blocks that hold its results come from, in the order of the results.
    pub origin_ids: Box<[OriginId]>,
    /// Its name, for messages.
    pub name: String,
    /// Its memory while it runs, beside arguments and results, where the strategy reserves that; on a GPU what the
    /// engine takes from its own pool for it, results outside of the arenas included.
    pub scratch: Bytes,
    /// Results in `pinned_host` memory that the engine puts into its own.
    pub unplaced_pinned: Bytes,
    /// Its executions, and results that were not where they were expected.
    pub executions: Executions,
    /// Where the results of the first execution were.
    pub origins: OnceCell<Origins>,
    /// Which thread runs it, where that can be chosen.
    pub dispatch: Arc<Dispatch>,
    /// Whether a later execution was seen to differ from it.
    pub differs: AtomicBool,
    /// The memory kinds of its results for the user, where some are bound.
    pub output_kinds: OnceCell<OutputKinds>,
    /// The optimised program for the user: its format and its bytes.
    pub optimized: OnceCell<(String, Vec<u8>)>,
    /// What it costs, for an engine that does not say.
    pub cost: OnceCell<Cost>,
}

impl Program {
    /// Asks the engine what results `executable` has.
    ///
    /// # Errors
    /// The engine's.
    pub fn new(client: Option<Arc<Client>>, executable: Live<'_, sys::PJRT_Executable>, plan: Plan) -> Outcome<Self> {
        let results = queries::results(executable)?;
        let by_engine = client.as_ref().is_some_and(|client| client.session.view_kind == ViewKind::Device);
        let sets_aside = client.as_ref().is_some_and(|client| client.settings.strategy.value == Strategy::Tpu);
        let mut scratch = if sets_aside || by_engine { queries::scratch(executable) } else { Bytes::ZERO };
        let pinned = if by_engine { queries::pinned(executable, results.len()) } else { Box::default() };
        let name = queries::name(executable);
        let mut unplaced_pinned = Bytes::ZERO;
        if by_engine {
            let placed = |result: usize| {
                matches!(
                    plan.placements.get(result),
                    Some(ResultPlacement::Destination(_) | ResultPlacement::Argument(_))
                )
            };
            for (result, shape) in results.iter().enumerate().filter(|&(result, _)| !placed(result)) {
                *(if pinned[result] { &mut unplaced_pinned } else { &mut scratch }) += Bytes::new(shape.size as u64);
            }
        }
        Ok(Self {
            client,
            dispatch: Arc::new(if plan.needs_no_context && !plan.is_cheap {
                Dispatch::measured()
            } else {
                Dispatch::fixed(plan.is_cheap)
            }),
            plan,
            origin_ids: ORIGINS.of_results(&name, &results),
            results,
            name,
            scratch,
            pinned,
            unplaced_pinned,
            executions: Executions::default(),
            origins: OnceCell::new(),
            differs: AtomicBool::new(false),
            output_kinds: OnceCell::new(),
            optimized: OnceCell::new(),
            cost: OnceCell::new(),
        })
    }

    /// Why the plan cannot be executed; `None` if it can.
    pub fn problem(&self, client: &Client) -> Option<String> {
        if !self.plan.is_within(self.results.len()) {
            // Only a damaged cache has such a plan.
            return Some("the plan names results or arguments that the program has not".to_owned());
        }
        let lacking = |bound: &&HostMemory| client.devices.iter().any(|device| device.host.of(**bound).is_none());
        if let Some(bound) = self.plan.bound.iter().flatten().find(lacking) {
            // The executable and its results would name different memories, for which jaxlib ends the process.
            return Some(format!("a result is bound to {}, which the engine has not", bound.name()));
        }
        if self.plan.not_rewritten.is_some() {
            return None;
        }
        if self.plan.placements.len() != self.results.len() {
            return Some(format!("{} results planned, {} compiled", self.plan.placements.len(), self.results.len()));
        }
        let unplaceable = |&result: &usize| self.is_pinned(result) && client.devices.iter().any(|d| d.pinned.is_none());
        if self.plan.destinations.iter().any(unplaceable) {
            return Some(format!("{KIND} memory stays with the engine"));
        }
        let unfit = |&&result: &&usize| !client.session.aliasable.contains(self.results[result].element_type);
        self.plan
            .destinations
            .iter()
            .find(unfit)
            .map(|&result| format!("the engine copies arrays of element type {}", self.results[result].element_type.0))
    }

    /// The memory of the host that a result is bound to, on `device`.
    pub fn bound(&self, result: usize, device: &Device) -> Option<Raw<sys::PJRT_Memory>> {
        self.plan.bound.get(result).copied().flatten().and_then(|memory| device.host.of(memory))
    }

    /// The origin of a result of an execution that `stack` called.
    #[inline]
    pub fn origin(&self, result: usize, stack: StackId) -> OriginId {
        ORIGINS.made_by(self.origin_ids[result], stack)
    }

    /// Whether a result lies in `pinned_host` memory.
    pub fn is_pinned(&self, result: usize) -> bool {
        self.pinned.get(result).copied().unwrap_or(false)
    }

    /// How many of `parameters` are the user's.
    pub fn visible(&self, parameters: usize) -> usize {
        self.plan.arguments.map_or(parameters, |arguments| arguments.min(parameters))
    }

    /// Bytes of all destinations on one device, in its own memory and in `pinned_host`.
    pub fn destination_bytes(&self) -> (i64, i64) {
        let sum = |pinned: bool| {
            let destinations = self.plan.destinations.iter().filter(|&&result| self.is_pinned(result) == pinned);
            destinations.map(|&result| self.results[result].size as i64).sum()
        };
        (sum(false), sum(true))
    }

    /// What the program has done so far.
    pub fn tally(&self) -> Tally {
        let runs = self.executions.runs.load(Ordering::Relaxed);
        let mut tally = Tally {
            executions: runs,
            address_changes: self.executions.address_changes.load(Ordering::Relaxed),
            ..Tally::default()
        };
        match &self.plan.not_rewritten {
            Some(reason) => *tally.programs_not_rewritten.entry(reason.clone()).or_default() += 1,
            None => tally.programs_rewritten += 1,
        }
        for placement in &self.plan.placements {
            match placement {
                ResultPlacement::Destination(_) => tally.results_placed += runs,
                ResultPlacement::Argument(_) => tally.results_donated += runs,
                ResultPlacement::Anywhere(reason) => *tally.results_skipped.entry(reason.clone()).or_default() += runs,
            }
        }
        if self.plan.placements.is_empty() && !self.results.is_empty() {
            let reason = self.plan.not_rewritten.clone().unwrap_or_default();
            *tally.results_skipped.entry(reason).or_default() += runs * self.results.len() as u64;
        }
        for miss in Miss::ALL {
            // An argument that is not consumed is no fault, because its holders may keep it; a destination that is
            // not used is one.
            let (planned, instead) = match miss {
                Miss::Destination => (&mut tally.results_placed, &mut tally.results_missed),
                Miss::Argument => (&mut tally.results_donated, &mut tally.results_skipped),
            };
            let count = self.executions.missed(miss);
            *planned = planned.saturating_sub(count);
            if count > 0 {
                *instead.entry(miss.reason().to_owned()).or_default() += count;
            }
        }
        tally
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(client) = &self.client {
            client.counters.add(&self.tally());
        }
    }
}

/// A program ready to run.
pub struct Loaded {
    /// Its client.
    pub client: Arc<Client>,
    /// The program.
    pub program: Arc<Program>,
    /// The addressable devices that it runs on, in the order of the argument lists.
    pub devices: Vec<Raw<sys::PJRT_Device>>,
    /// For each device the cached outputs.
    pub caches: Vec<Arc<OutputCache>>,
    /// The same program on nested clients of the engine.
    pub nested_executables: NestedExecutables,
    /// For each device a hash of the addresses of the last execution's arrays; zero before the first.
    addresses: Vec<AtomicU64>,
    /// Arguments that it could be donated, and is not; `None` if there are none, as in most programs.
    undonated: Option<Box<UndonatedArguments>>,
}

impl Loaded {
    /// A program on `devices`.
    pub fn new(client: Arc<Client>, program: Arc<Program>, devices: Vec<Raw<sys::PJRT_Device>>) -> Self {
        let count = if Allocator::keeps(&client.settings) { program.plan.destinations.len() } else { 0 };
        let caches: Vec<_> =
            devices.iter().map(|_| OutputCache::new(count, Arc::clone(&client.allocator.in_flight))).collect();
        if count > 0 {
            for cache in &caches {
                client.allocator.add_cache(Arc::downgrade(cache));
            }
        }
        let addresses = devices.iter().map(|_| AtomicU64::new(0)).collect();
        let undonated = match &program.plan.donations {
            Donations::Only(donated) => {
                // Other results lie in donated arguments already, or where the engine puts them.
                let placed = program.plan.destinations.iter().filter(|&&result| !program.is_pinned(result));
                let placed = placed.map(|&result| (result, &program.results[result]));
                UndonatedArguments::new(devices.len(), donated, placed).map(Box::new)
            }
            Donations::Unknown => None,
        };
        let nested_executables = NestedExecutables::default();
        Self { client, program, devices, caches, nested_executables, addresses, undonated }
    }

    /// The arguments that it could be donated, and is not. The `arguments` of a launch on this `device` show the first
    /// time which these are.
    #[inline]
    pub fn undonated_arguments<'a>(
        &self,
        arguments: impl FnOnce() -> &'a [Option<BufferRef<'a>>],
        device: Option<&Device>,
    ) -> Option<&UndonatedArguments> {
        let undonated = self.undonated.as_deref()?;
        let memory = device?.memory().0;
        undonated.see(arguments(), |buffer| buffer.memory.0 == memory);
        Some(undonated)
    }

    /// What donating arguments would save while the program runs, if there are some that were never used after a
    /// launch. O(arguments x results).
    pub fn donation(&self) -> Option<Donation> {
        self.donation_for(|_| true, |_| true)
    }

    /// The same at this instant, of a launch with these arguments for which there is no room.
    pub fn donation_now(&self, arguments: &[Option<BufferRef<'_>>]) -> Option<Donation> {
        let is_replaceable = |number: usize| {
            let buffer = arguments.get(number).copied().flatten();
            buffer.is_some_and(|buffer| buffer.is_replaceable(&buffer.state()))
        };
        self.donation_for(is_replaceable, |_| true)
    }

    /// As [`Self::donation`], of arguments that `is_one` and results that are `wanted`.
    pub fn donation_for(&self, is_one: impl Fn(usize) -> bool, wanted: impl Fn(usize) -> bool) -> Option<Donation> {
        let advised = self.undonated.as_ref()?.advised(is_one, wanted)?;
        Some(Donation {
            program: self.program.name.clone(),
            bytes: advised.arguments.iter().map(|(_, shape)| footprint(&self.client.allocator, shape)).sum(),
            arguments: advised.arguments.iter().map(|&(number, _)| number).collect(),
            launches: advised.launches,
        })
    }

    /// Notes the addresses of an execution's arguments and destinations. A GPU's engine records a program's kernels
    /// once, as a CUDA graph, and again for each array at another address.
    pub fn note_addresses(&self, device_index: usize, addresses: impl Iterator<Item = usize>) {
        let mut hasher = FxHasher::default();
        addresses.for_each(|address| hasher.write_usize(address));
        let now = hasher.finish() | 1;
        let before = self.addresses.get(device_index).map_or(now, |last| last.swap(now, Ordering::Relaxed));
        if before != now && before != 0 {
            self.program.executions.address_changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An execution that began at this instant, on a thread of the engine.
    pub fn timed(&self, began: Instant) -> Timed {
        // The engine does the executions of a device one after another.
        let last_end = (self.client.devices.len() == 1).then(|| self.client.allocator.in_flight.last_end.clone());
        Timed { program: Arc::clone(&self.program.dispatch), began, last_end }
    }

    /// The cache that keeps the result in this destination when its owner destroys it.
    pub fn cache_slot(&self, device_index: usize, destination: usize) -> Option<CacheSlot> {
        let result = *self.program.plan.destinations.get(destination)?;
        let bytes = self.program.results[result].size;
        let cache = self.caches.get(device_index).filter(|cache| cache.takes(destination, bytes))?;
        Some(CacheSlot { cache: Arc::clone(cache) as _, destination })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.caches.iter().for_each(|cache| cache.close());
        if self.client.session.is_open() {
            self.nested_executables.end(self.client.session.engine);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_names_only_what_the_program_has() {
        let fits = |change: &dyn Fn(&mut Plan)| {
            let mut plan = Plan::unmodified("a reason");
            plan.arguments = Some(2);
            plan.donations = Donations::Only(vec![0, 1]);
            plan.placements = vec![
                ResultPlacement::Destination(0),
                ResultPlacement::Argument(1),
                ResultPlacement::Anywhere("a reason".to_owned()),
            ];
            plan.destinations = vec![0];
            plan.bound = vec![None, None, Some(HostMemory::Pinned)];
            plan.released = vec![1];
            change(&mut plan);
            plan.is_within(3)
        };
        assert!(fits(&|_| {}) && fits(&|plan| plan.bound.clear()));
        let damages: [&dyn Fn(&mut Plan); 8] = [
            &|plan| plan.released.push(2),
            &|plan| plan.donations = Donations::Only(vec![1, 0]),
            &|plan| plan.donations = Donations::Only(vec![2]),
            &|plan| plan.placements[0] = ResultPlacement::Destination(1),
            &|plan| plan.placements[1] = ResultPlacement::Argument(2),
            &|plan| plan.destinations[0] = 3,
            &|plan| plan.bound.push(None),
            &|plan| plan.bound.truncate(2),
        ];
        for (number, damage) in damages.iter().enumerate() {
            assert!(!fits(damage), "damage {number}");
        }
    }

    #[test]
    fn plans_of_caches_from_before_results_were_bound_are_read() {
        let mut plan = Plan::unmodified("a reason");
        plan.bound = vec![Some(HostMemory::Unpinned), None];
        let written = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&written).unwrap(), plan);
        let old = written.replace("\"bound\":[\"Unpinned\",null],", "");
        assert_ne!(old, written);
        let older = old.replace("\"placements\"", "\"homes\"").replace("\"not_rewritten\"", "\"left_alone\"");
        assert_ne!(older, old);
        for old in [old, older] {
            assert_eq!(serde_json::from_str::<Plan>(&old).unwrap(), Plan { bound: Vec::new(), ..plan.clone() });
        }
    }
}
