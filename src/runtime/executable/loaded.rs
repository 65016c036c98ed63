//! What we know about a compiled program, beside what the engine knows.

use std::{
    hash::Hasher,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use once_cell::sync::OnceCell;
use rustc_hash::FxHasher;
use serde::{Deserialize, Serialize};

use crate::{
    config::Compact,
    engine::{Engine, EngineError, Outcome, Raw, views::ViewKind},
    memory::{OriginId, Strategy},
    program::HostMemory,
    runtime::{
        allocator::pinned_host::KIND,
        buffer::CacheSlot,
        client::{Client, Device},
        counters::{Executions, Miss, Tally},
        device_memory::origins::ORIGINS,
        executable::{bound::OutputKinds, cost::Cost, output_cache::OutputCache},
        nested::NestedExecutables,
        shape::{Shape, dense_size},
    },
    sys::{self, slice, text},
    units::Bytes,
};

/// Where a result is expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResultPlacement {
    /// In the destination with this number.
    Destination(usize),
    /// In the memory of this argument, which the program aliases with it.
    Argument(usize),
    /// Wherever the engine puts it: in a donated argument it chose itself, or in memory of its own. Why.
    Anywhere(String),
}

/// How the user's own arguments may be consumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Donations {
    /// Only these arguments, in ascending order.
    Only(Vec<usize>),
    /// We could not read the program: any argument may be.
    Unknown,
}

/// What a program was given and what it gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The user's arguments; `None` if we could not read the program.
    pub arguments: Option<usize>,
    /// Which of them may be consumed.
    pub donations: Donations,
    /// One entry for each result; empty if we could not read the program.
    pub homes: Vec<ResultPlacement>,
    /// Results that have a destination, in the order of the extra parameters.
    pub destinations: Vec<usize>,
    /// Why the program runs unchanged; `None` if it was rewritten. Named `left_alone` in plans of old caches.
    #[serde(alias = "left_alone")]
    pub not_rewritten: Option<String>,
    /// The program calls back into the host while it runs.
    pub host_callbacks: bool,
    /// It has no custom call, so that nothing in it can look into an execute context. Not in plans of old caches.
    #[serde(default)]
    pub needs_no_context: bool,
    /// For each result the memory of the host that it is bound to, where the engine tells memories not apart; empty if none is. Not in
    /// plans of old caches.
    #[serde(default)]
    pub bound: Vec<Option<HostMemory>>,
    /// Donated arguments that the program only reads, in ascending order: they lie in another memory than the result that they
    /// would have given theirs. Not in plans of old caches.
    #[serde(default)]
    pub released: Vec<usize>,
    /// The compile options as the user gave them, if the program was rewritten.
    pub user_options: Vec<u8>,
}

impl Plan {
    /// Whether all numbers are of arguments and of `results` that the program has, and arguments come in their order.
    fn is_within(&self, results: usize) -> bool {
        let arguments = self.arguments.unwrap_or(0);
        let are_arguments =
            |list: &[usize]| list.is_sorted_by(|one, other| one < other) && list.iter().all(|&at| at < arguments);
        let donated = match &self.donations {
            Donations::Only(list) => are_arguments(list),
            Donations::Unknown => true,
        } && are_arguments(&self.released);
        let home = |home: &ResultPlacement| match home {
            ResultPlacement::Destination(number) => *number < self.destinations.len(),
            ResultPlacement::Argument(argument) => *argument < arguments,
            ResultPlacement::Anywhere(_) => true,
        };
        let bound = self.bound.is_empty() || self.bound.len() == results;
        donated && bound && self.destinations.iter().all(|&result| result < results) && self.homes.iter().all(home)
    }

    /// The plan for a program that runs as it came.
    pub fn unmodified(reason: impl Into<String>) -> Self {
        Self {
            arguments: None,
            donations: Donations::Unknown,
            homes: Vec::new(),
            destinations: Vec::new(),
            not_rewritten: Some(reason.into()),
            host_callbacks: false,
            needs_no_context: false,
            bound: Vec::new(),
            released: Vec::new(),
            user_options: Vec::new(),
        }
    }
}

/// Whose memory a result was seen to lie in. Ordered as a run consumes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The destination with this number.
    Destination(usize),
    /// The argument with this number, which the engine consumed.
    Argument(usize),
}

/// Where the results of a run were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origins {
    /// The memory that the run consumed.
    pub consumed: Vec<Origin>,
    /// For each result which of these it lay in; `None` is memory of the engine.
    pub results: Vec<Option<usize>>,
}

/// A compiled program.
pub struct Program {
    /// Whose it is; `None` if it was compiled without a client.
    pub client: Option<Arc<Client>>,
    /// What was planned for it.
    pub plan: Plan,
    /// Its results on one device.
    pub results: Vec<Arc<Shape>>,
    /// Which of them lie in `pinned_host` memory; none, where that is not ours.
    pub pinned: Box<[bool]>,
    /// Where blocks that hold its results come from, in the order of the results.
    pub origin_ids: Box<[OriginId]>,
    /// Its name, for messages.
    pub name: String,
    /// What it takes beside arguments and results while it runs, where the strategy sets that aside; on a GPU what the engine
    /// takes from its own pool for it, results that are not placed in our memory included.
    pub scratch: Bytes,
    /// Results in `pinned_host` memory that the engine puts into its own.
    pub unplaced_pinned: Bytes,
    /// Runs and misses.
    pub executions: Executions,
    /// Where the results of the first run were.
    pub origins: OnceCell<Origins>,
    /// Whether a later run was seen to differ from it.
    pub differs: AtomicBool,
    /// The memories of its results as the user should see them, where some are bound.
    pub output_kinds: OnceCell<OutputKinds>,
    /// The optimised program as the user should see it, by format.
    pub optimized: OnceCell<(String, Vec<u8>)>,
    /// What it costs, where the engine does not say.
    pub cost: OnceCell<Cost>,
}

impl Program {
    /// Asks the engine what results `executable` has.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// `executable` must be alive.
    pub unsafe fn new(
        engine: &'static Engine,
        client: Option<Arc<Client>>,
        executable: *mut sys::PJRT_Executable,
        plan: Plan,
    ) -> Outcome<Self> {
        // SAFETY: the caller's promise; arrays live as long as the executable.
        let results = unsafe { results(engine, executable)? };
        let by_engine = client.as_ref().is_some_and(|client| client.session.view_kind == ViewKind::Device);
        let sets_aside = client.as_ref().is_some_and(|client| client.settings.strategy.value == Strategy::Tpu);
        // SAFETY: as above.
        let (name, mut scratch, pinned) = unsafe {
            let scratch = if sets_aside || by_engine { scratch(engine, executable) } else { Bytes::ZERO };
            let pinned = if by_engine { pinned(engine, executable, results.len()) } else { Box::default() };
            (name(engine, executable), scratch, pinned)
        };
        let mut unplaced_pinned = Bytes::ZERO;
        if by_engine {
            let placed = |result: usize| {
                matches!(plan.homes.get(result), Some(ResultPlacement::Destination(_) | ResultPlacement::Argument(_)))
            };
            for (result, shape) in results.iter().enumerate().filter(|&(result, _)| !placed(result)) {
                *(if pinned[result] { &mut unplaced_pinned } else { &mut scratch }) += Bytes::new(shape.size as u64);
            }
        }
        Ok(Self {
            client,
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

    /// Why the plan cannot be carried out after all; `None` if it can.
    pub fn problem(&self, client: &Client) -> Option<String> {
        if !self.plan.is_within(self.results.len()) {
            // Of a damaged cache: what is made here is.
            return Some("the plan names results or arguments that the program has not".to_owned());
        }
        let lacking = |bound: &&HostMemory| client.devices.iter().any(|device| device.host.of(**bound).is_none());
        if let Some(bound) = self.plan.bound.iter().flatten().find(lacking) {
            // The executable would say one thing and its results another, which jaxlib ends the process for.
            return Some(format!("a result is bound to {}, which the engine has not", bound.name()));
        }
        if self.plan.not_rewritten.is_some() {
            return None;
        }
        if self.plan.homes.len() != self.results.len() {
            return Some(format!("{} results planned, {} compiled", self.plan.homes.len(), self.results.len()));
        }
        let homeless = |&result: &usize| self.is_pinned(result) && client.devices.iter().any(|d| d.pinned.is_none());
        if self.plan.destinations.iter().any(homeless) {
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
            let those = self.plan.destinations.iter().filter(|&&result| self.is_pinned(result) == pinned);
            those.map(|&result| self.results[result].size as i64).sum()
        };
        (sum(false), sum(true))
    }

    /// What this program did so far.
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
        for home in &self.plan.homes {
            match home {
                ResultPlacement::Destination(_) => tally.results_placed += runs,
                ResultPlacement::Argument(_) => tally.results_donated += runs,
                ResultPlacement::Anywhere(reason) => *tally.results_skipped.entry(reason.clone()).or_default() += runs,
            }
        }
        if self.plan.homes.is_empty() && !self.results.is_empty() {
            let reason = self.plan.not_rewritten.clone().unwrap_or_default();
            *tally.results_skipped.entry(reason).or_default() += runs * self.results.len() as u64;
        }
        for miss in Miss::ALL {
            // That an argument is not consumed is its holders' right; that a destination is not used is a fault.
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

/// A program's name, as far as the engine says.
///
/// # Safety
/// `executable` must be alive.
unsafe fn name(engine: &'static Engine, executable: *mut sys::PJRT_Executable) -> String {
    // SAFETY: the caller's promise; the name lives as long as the executable.
    unsafe {
        let name = engine.call(sys::PJRT_Executable_Name_Args { executable, ..Default::default() });
        name.map(|args| text(args.executable_name, args.executable_name_size).into_owned()).unwrap_or_default()
    }
}

/// A program's scratch (`temp_size_in_bytes` of its statistics), as far as the engine says.
///
/// # Safety
/// `executable` must be alive.
unsafe fn scratch(engine: &'static Engine, executable: *mut sys::PJRT_Executable) -> Bytes {
    // SAFETY: the caller's promise.
    let stats =
        unsafe { engine.call(sys::PJRT_Executable_GetCompiledMemoryStats_Args { executable, ..Default::default() }) };
    Bytes::new(stats.ok().and_then(|stats| u64::try_from(stats.temp_size_in_bytes).ok()).unwrap_or(0))
}

/// Which of an executable's results lie in `pinned_host` memory, as far as the engine says.
///
/// # Safety
/// `executable` must be alive.
unsafe fn pinned(engine: &'static Engine, executable: *mut sys::PJRT_Executable, count: usize) -> Box<[bool]> {
    let mut pinned = vec![false; count].into_boxed_slice();
    // SAFETY: the caller's promise; the names live as long as the executable.
    unsafe {
        let args = sys::PJRT_Executable_OutputMemoryKinds_Args { executable, ..Default::default() };
        if let Ok(args) = engine.call(args) {
            let sizes = slice(args.memory_kind_sizes, args.num_outputs);
            let kinds = slice(args.memory_kinds, args.num_outputs).iter().zip(sizes);
            for (pinned, (&kind, &size)) in pinned.iter_mut().zip(kinds) {
                *pinned = text(kind, size) == KIND;
            }
        }
    }
    pinned
}

/// The shapes of an executable's results on one device.
///
/// # Safety
/// `executable` must be alive.
unsafe fn results(
    engine: &'static Engine,
    executable: *mut sys::PJRT_Executable,
) -> Result<Vec<Arc<Shape>>, EngineError> {
    // SAFETY: the caller's promise; what the getters point to lives as long as the executable.
    unsafe {
        let count = engine.call(sys::PJRT_Executable_NumOutputs_Args { executable, ..Default::default() })?.num_outputs;
        let types = engine.call(sys::PJRT_Executable_OutputElementTypes_Args { executable, ..Default::default() })?;
        let dims = engine.call(sys::PJRT_Executable_OutputDimensions_Args { executable, ..Default::default() })?;
        let types = slice(types.output_types, types.num_output_types);
        let ranks = slice(dims.dim_sizes, dims.num_outputs);
        let mut rest = slice(dims.dims, ranks.iter().sum());
        let mut results = Vec::with_capacity(count);
        for (&element_type, &rank) in types.iter().zip(ranks) {
            let (mine, others) = rest.split_at(rank);
            rest = others;
            let size = dense_size(element_type, mine).map_or(0, |size| size.get() as usize);
            results.push(Arc::new(Shape::new(element_type, mine, size)));
        }
        Ok(results)
    }
}

/// A program ready to run.
pub struct Loaded {
    /// Whose it is.
    pub client: Arc<Client>,
    /// What it is.
    pub program: Arc<Program>,
    /// The addressable devices that it runs on, in the order of the argument lists.
    pub devices: Vec<Raw<sys::PJRT_Device>>,
    /// For each of them the destinations that wait for the next run.
    pub spares: Vec<Arc<OutputCache>>,
    /// The same program beside the user's client.
    pub nested_executables: NestedExecutables,
    /// For each device the addresses that the last run found its arrays at, in one number; zero before the first.
    addresses: Vec<AtomicU64>,
}

impl Loaded {
    /// A program on `devices`.
    pub fn new(client: Arc<Client>, program: Arc<Program>, devices: Vec<Raw<sys::PJRT_Device>>) -> Self {
        // What this strategy frees goes back to the device at once. And a spare would save the allocation before which
        // everything is to move.
        let keeps =
            client.settings.strategy.value != Strategy::Platform && client.allocator.compaction != Compact::Always;
        let count = if keeps { program.plan.destinations.len() } else { 0 };
        let in_order = client.session.orders_executions;
        let spares: Vec<_> = devices
            .iter()
            .map(|_| OutputCache::new(count, in_order, Arc::clone(&client.allocator.in_flight)))
            .collect();
        if count > 0 {
            for cache in &spares {
                let cache: Weak<OutputCache> = Arc::downgrade(cache);
                client.allocator.add_cache(cache);
            }
        }
        let addresses = devices.iter().map(|_| AtomicU64::new(0)).collect();
        Self { client, program, devices, spares, nested_executables: NestedExecutables::default(), addresses }
    }

    /// Notes where a run finds its arguments and destinations. A GPU's engine records a program's kernels once, as a CUDA graph, and
    /// again for each array that lies elsewhere.
    pub fn note_addresses(&self, lane: usize, addresses: impl Iterator<Item = usize>) {
        let mut hasher = FxHasher::default();
        addresses.for_each(|address| hasher.write_usize(address));
        let now = hasher.finish() | 1;
        let before = self.addresses.get(lane).map_or(now, |last| last.swap(now, Ordering::Relaxed));
        if before != now && before != 0 {
            self.program.executions.address_changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Where a result in the destination with this number goes when it is destroyed.
    pub fn cache_slot(&self, lane: usize, destination: usize) -> Option<CacheSlot> {
        let result = *self.program.plan.destinations.get(destination)?;
        let bytes = self.program.results[result].size;
        let cache = self.spares.get(lane).filter(|cache| cache.takes(destination, bytes))?;
        Some(CacheSlot { cache: Arc::clone(cache) as _, destination })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.spares.iter().for_each(|spares| spares.close());
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
            plan.homes = vec![
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
            &|plan| plan.homes[0] = ResultPlacement::Destination(1),
            &|plan| plan.homes[1] = ResultPlacement::Argument(2),
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
        let older = old.replace("not_rewritten", "left_alone");
        assert_ne!(older, old);
        for old in [old, older] {
            assert_eq!(serde_json::from_str::<Plan>(&old).unwrap(), Plan { bound: Vec::new(), ..plan.clone() });
        }
    }
}
