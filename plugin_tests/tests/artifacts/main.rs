//! Every program in `data/artifacts`, with destinations and without: the results must be the same, bit for bit.
//!
//! ```text
//!  artifact + options ──┬── client with rewrite=on ───┬── both refuse it in the same words, or both run it on the
//!                       └── client with rewrite=off ──┘   same arguments:
//!
//!    results         bytes, element types, dimensions, layouts equal
//!    arguments       the same ones are consumed, all others still hold what was put into them
//!    counters        every result that was planned for a destination lies in one
//!    in the end      no byte is in use on any device of either client
//! ```
//!
//! `cargo test -p plugin_tests --test artifacts -- --nocapture` prints one line for each artifact and their sum.

mod shapes;
mod values;

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    fs,
    io::Write as _,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pjrt_arena::program::{Placement, Policy, Rewritten, Signature, ValueType, add_destinations};
use plugin_tests::{
    Client, Device, ElementType, Failure, HostArray, Loaded, Program, RunOptions, Semantics, Value,
    event::{HANG, elsewhere},
    plugin,
};
use serde_json::Value as Json;

/// Devices of each client: as many as the programs were made for.
const DEVICES: i64 = 4;

/// What the library is asked to do on this engine.
const POLICY: Policy = Policy {
    skip_sub_byte: true,
    tie_unspecified_shardings: true,
    place_pinned_host: false,
    one_memory: true,
    update_in_place: true,
};

/// What the engine lacks, and the artifacts that therefore end in the same error on both clients. Any other must run.
const LACKING: [(&str, &[&str]); 1] = [(
    "xla_ffi_python_cpu_callback",
    &["0316_callback_pure", "0317_debug_print", "0318_ordered_effect", "0319_io_callback"],
)];

/// The same library twice in one process.
struct Clients {
    rewriting: Client,
    plain: Client,
}

impl Clients {
    fn create() -> Self {
        let client = |rewrite: &str| {
            let options = [("rewrite", Value::from(rewrite)), ("limit", Value::from("256MiB"))];
            Client::create(DEVICES, &options).unwrap_or_else(|failure| panic!("rewrite={rewrite}: {failure}"))
        };
        Self { rewriting: client("on"), plain: client("off") }
    }
}

/// What became of an artifact.
#[derive(Clone, Debug)]
enum Outcome {
    /// Neither client compiles it.
    Refused(Failure),
    /// Both compile it, and neither runs it.
    Failed(Failure),
    /// Both run it, and nothing tells them apart.
    Equal(Fate, Compared),
}

/// What the rewriting client did with it.
#[derive(Clone, Debug)]
enum Fate {
    /// Gave it destinations; where its results lie, counted.
    Rewritten(BTreeMap<&'static str, usize>),
    /// Ran it as it came, because its results are so.
    NotRewritten(String),
}

/// How much was compared, over all devices.
#[derive(Clone, Copy, Debug, Default)]
struct Compared {
    results: usize,
    bytes: usize,
    /// Arguments that both clients consumed.
    consumed: usize,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fate, compared) = match self {
            Self::Refused(failure) => return write!(f, "does not compile: {failure}"),
            Self::Failed(failure) => return write!(f, "does not run: {failure}"),
            Self::Equal(fate, compared) => (fate, compared),
        };
        match fate {
            Fate::Rewritten(homes) => write!(f, "rewritten, {}", listed(homes))?,
            Fate::NotRewritten(reason) => write!(f, "not rewritten, {reason}")?,
        }
        let Compared { results, bytes, consumed } = compared;
        write!(f, " | {results} results, {bytes} bytes compared, {consumed} arguments consumed")
    }
}

/// Where a result is planned to lie.
fn home(placement: &Placement) -> &'static str {
    match placement {
        Placement::Destination(_) => "in destinations",
        Placement::AliasedBy(_) => "in donated arguments",
        Placement::LeftToDonor => "left to donors",
        Placement::Skipped(skip) => skip.reason(),
    }
}

/// `2 of this; 1 of that`.
fn listed<T: fmt::Display>(counts: &BTreeMap<T, usize>) -> String {
    counts.iter().map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join("; ")
}

/// An argument on one device.
struct Argument {
    element_type: ElementType,
    dims: Vec<i64>,
    bytes: Vec<u8>,
}

/// An array that was read back.
#[derive(PartialEq)]
struct Array {
    element_type: ElementType,
    dims: Vec<i64>,
    minor_to_major: Vec<i64>,
    bytes: Vec<u8>,
}

impl Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { element_type, dims, minor_to_major, bytes } = self;
        let head = &bytes[..bytes.len().min(16)];
        write!(f, "type {} {dims:?} layout {minor_to_major:?}, {} bytes {head:x?} ...", element_type.0, bytes.len())
    }
}

/// What an execution left behind, by device.
struct Ran {
    results: Vec<Vec<Array>>,
    /// The bytes of the arguments after the run; `None` for those that were consumed.
    arguments: Vec<Vec<Option<Vec<u8>>>>,
}

/// One reading of `pjrt_arena_counters`, over both clients.
struct Counters(Json);

impl Counters {
    fn read() -> Self {
        let text = plugin().text("pjrt_arena_counters").expect("the arena exports its counters");
        Self(serde_json::from_str(&text).expect("counters are JSON"))
    }

    fn number(&self, path: &str) -> u64 {
        self.0.pointer(path).and_then(Json::as_u64).unwrap_or_else(|| panic!("no number {path} in {}", self.0))
    }

    /// Counts by reason.
    fn reasons(&self, path: &str) -> BTreeMap<String, u64> {
        let counts = self.0.pointer(path).and_then(Json::as_object);
        let counts = counts.unwrap_or_else(|| panic!("no counts {path} in {}", self.0));
        counts.iter().map(|(reason, count)| (reason.clone(), count.as_u64().expect("a count"))).collect()
    }

    /// A device on which anything is still in use, by us or by the engine.
    fn busy_device(&self) -> Option<Json> {
        let devices = self.0["devices"].as_array().expect("devices");
        assert_eq!(devices.len(), 2 * DEVICES as usize, "both clients' devices are counted");
        let parts = ["in_use_bytes", "pending_bytes", "live_blocks", "pending_blocks", "engine_bytes"];
        devices.iter().find(|device| parts.iter().any(|&part| device[part] != 0)).cloned()
    }
}

/// The reasons that were counted once more in `after` than in `before`.
fn grown(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Vec<String> {
    after
        .iter()
        .filter(|(reason, count)| before.get(*reason) != Some(count))
        .map(|(reason, _)| reason.clone())
        .collect()
}

/// Says what differs.
fn same<T: PartialEq + Debug>(what: &str, rewriting: &T, plain: &T) -> Result<(), String> {
    if rewriting == plain { Ok(()) } else { Err(format!("{what}: {rewriting:?} rewritten, {plain:?} unmodified")) }
}

/// Compiles and runs one artifact on both clients; `index` seeds its arguments.
///
/// # Errors
/// One sentence for the first difference.
fn examine(clients: &Clients, program: &Program, index: u64) -> Result<Outcome, String> {
    let before = Counters::read();
    let rewriting = clients.rewriting.compile(program);
    let compiled = Counters::read();
    let plain = clients.plain.compile(program);
    let (rewriting, plain) = match (rewriting, plain) {
        (Ok(rewriting), Ok(plain)) => (rewriting, plain),
        (Err(failure), Err(plain)) => {
            same("error of compilation", &failure, &plain)?;
            return Ok(Outcome::Refused(failure));
        }
        (Ok(_), Err(plain)) => return Err(format!("compiles only when rewritten: {plain}")),
        (Err(failure), Ok(_)) => return Err(format!("compiles only unmodified: {failure}")),
    };

    let plan = add_destinations(program.code(), &POLICY).map_err(|reject| reject.to_string())?;
    let fate = fate(&plan, &before, &compiled)?;

    // The user sees the same program.
    let on = rewriting.executable();
    let off = plain.executable();
    same("number of results", &on.num_outputs(), &off.num_outputs())?;
    same("element types of results", &on.output_types(), &off.output_types())?;
    same("dimensions of results", &on.output_dims(), &off.output_dims())?;
    same("replicas and partitions", &on.replicas_and_partitions(), &off.replicas_and_partitions())?;
    same("number of devices", &rewriting.devices().len(), &plain.devices().len())?;
    let parameters = parameters(&plain)?;
    same("parameters", &self::parameters(&rewriting)?, &parameters)?;

    let devices = plain.devices().len();
    let arguments = arguments(&plan.signature, &parameters, devices, index)?;
    let before = Counters::read();
    let (rewriting, plain) =
        match (run(&clients.rewriting, &rewriting, &arguments), run(&clients.plain, &plain, &arguments)) {
            (Ok(rewriting), Ok(plain)) => (rewriting, plain),
            (Err(failure), Err(plain)) => {
                same("error of execution", &failure, &plain)?;
                return Ok(Outcome::Failed(failure));
            }
            (Ok(_), Err(plain)) => return Err(format!("runs only when rewritten: {plain}")),
            (Err(failure), Ok(_)) => return Err(format!("runs only unmodified: {failure}")),
        };
    let after = Counters::read();
    same("missed results", &after.reasons("/results/missed"), &BTreeMap::new())?;
    let placed = after.number("/results/placed") - before.number("/results/placed");
    if placed != (plan.destinations * devices) as u64 {
        return Err(format!("{placed} results placed, {} planned on each of {devices} devices", plan.destinations));
    }
    Ok(Outcome::Equal(fate, compare(&rewriting, &plain, &arguments)?))
}

/// What the rewriting client says that it did, between two readings, with a program of this plan.
///
/// # Errors
/// One sentence where it is not what was planned.
fn fate(plan: &Rewritten<'_>, before: &Counters, after: &Counters) -> Result<Fate, String> {
    let mut homes = BTreeMap::new();
    for placement in &plan.placements {
        *homes.entry(home(placement)).or_insert(0) += 1;
    }
    let not_rewritten = grown(&before.reasons("/programs/not_rewritten"), &after.reasons("/programs/not_rewritten"));
    let rewritten = after.number("/programs/rewritten") - before.number("/programs/rewritten");
    match (plan.destinations, rewritten, &not_rewritten[..]) {
        (1.., 1, []) => Ok(Fate::Rewritten(homes)),
        (0, 0, [reason]) if reason == "no result takes a destination" => {
            let why: Vec<_> = homes.into_keys().collect();
            Ok(Fate::NotRewritten(if why.is_empty() { "without results".to_owned() } else { why.join(", ") }))
        }
        (planned, ..) => Err(format!(
            "{planned} destinations planned; {rewritten} programs rewritten, not rewritten: {not_rewritten:?}"
        )),
    }
}

/// Compares what two runs on the same arguments left behind.
///
/// # Errors
/// One sentence for the first difference.
fn compare(rewriting: &Ran, plain: &Ran, arguments: &[Vec<Argument>]) -> Result<Compared, String> {
    let mut compared = Compared::default();
    for (device, given) in arguments.iter().enumerate() {
        let (on, off) = (&rewriting.results[device], &plain.results[device]);
        same(&format!("number of results on device {device}"), &on.len(), &off.len())?;
        for (number, (on, off)) in on.iter().zip(off).enumerate() {
            let first = on.bytes.iter().zip(&off.bytes).position(|(on, off)| on != off);
            let at = first.map_or_else(String::new, |byte| format!(", from byte {byte}"));
            same(&format!("result {number} on device {device}{at}"), on, off)?;
            compared.results += 1;
            compared.bytes += off.bytes.len();
        }
        let (on, off) = (&rewriting.arguments[device], &plain.arguments[device]);
        for (number, ((on, off), given)) in on.iter().zip(off).zip(given).enumerate() {
            same(&format!("argument {number} on device {device} consumed"), &on.is_none(), &off.is_none())?;
            compared.consumed += usize::from(off.is_none());
            for (left, how) in [(on, "rewritten"), (off, "unmodified")] {
                if left.as_ref().is_some_and(|left| *left != given.bytes) {
                    return Err(format!("argument {number} on device {device} changed, {how}"));
                }
            }
        }
    }
    Ok(compared)
}

/// The parameters of one device's program.
fn parameters(loaded: &Loaded) -> Result<Vec<shapes::Shape>, String> {
    let (format, program) = loaded.executable().optimized().map_err(|failure| failure.to_string())?;
    shapes::parameters(&format, &program)
}

/// Arguments for each device. Where every device has a part of its own, the parts differ; replicas, whole or in part,
/// are equal, or programs that decide by them would wait for each other.
fn arguments(
    signature: &Signature,
    parameters: &[shapes::Shape],
    devices: usize,
    index: u64,
) -> Result<Vec<Vec<Argument>>, String> {
    if signature.parameters.len() != parameters.len() {
        return Err(format!("{} parameters, {} after compilation", signature.parameters.len(), parameters.len()));
    }
    let argument = |device: usize, number: usize| {
        let ValueType::Tensor { dimensions, element: Some(element) } = &signature.parameters[number].value_type else {
            return Err(format!("parameter {number} is {:?}", signature.parameters[number].value_type));
        };
        let part = &parameters[number];
        if !part.is_row_major() {
            return Err(format!("parameter {number} has a layout of its own"));
        }
        let is_split = part.elements() * devices as i64 == dimensions.iter().product::<i64>();
        let seed = index << 32 | (number as u64) << 8 | if is_split { device as u64 } else { 0 };
        Ok(Argument {
            element_type: values::element_type(*element),
            dims: part.dimensions.clone(),
            bytes: values::array(*element, part.elements(), seed),
        })
    };
    let on_device = |device| (0..parameters.len()).map(|number| argument(device, number)).collect();
    (0..devices).map(on_device).collect()
}

/// Runs the program on its devices and reads everything back.
fn run(client: &Client, loaded: &Loaded, arguments: &[Vec<Argument>]) -> Result<Ran, Failure> {
    let mut buffers = Vec::new();
    for (raw, arguments) in loaded.devices().into_iter().zip(arguments) {
        let device = Device::new(client.plugin(), raw);
        let mut list = Vec::new();
        for Argument { element_type, dims, bytes } in arguments {
            let array = HostArray::of_bytes(bytes, *element_type, dims).on_device(device);
            let (buffer, done) = client.from_host(&array, Semantics::OnlyDuringCall)?;
            done.wait()?;
            list.push(buffer);
        }
        buffers.push(list);
    }
    let lists: Vec<Vec<_>> = buffers.iter().map(|list| list.iter().collect()).collect();
    let lists: Vec<_> = lists.iter().map(Vec::as_slice).collect();
    let run = loaded.execute(&lists, RunOptions { complete: true, ..RunOptions::default() })?;
    // All events before the first error: no device may still run when its buffers go.
    let outcomes: Vec<_> = run.complete.iter().map(|event| event.wait()).collect();
    outcomes.into_iter().collect::<Result<(), _>>()?;
    let read = |buffer: &plugin_tests::Buffer| {
        Ok(Array {
            element_type: buffer.element_type(),
            dims: buffer.dims(),
            minor_to_major: buffer.minor_to_major(),
            bytes: buffer.read::<u8>()?,
        })
    };
    let left = |buffer: &plugin_tests::Buffer| match buffer.is_deleted() {
        true => Ok(None),
        false => buffer.read::<u8>().map(Some),
    };
    Ok(Ran {
        results: run.outputs.iter().map(|list| list.iter().map(read).collect()).collect::<Result<_, Failure>>()?,
        arguments: buffers.iter().map(|list| list.iter().map(left).collect()).collect::<Result<_, Failure>>()?,
    })
}

/// The programs in `data/artifacts`, by name.
fn artifacts() -> BTreeMap<String, Program> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/artifacts");
    let mut artifacts = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("the artifacts") {
        let path = entry.expect("a folder entry").path();
        if path.extension().is_some_and(|extension| extension == "mlir") {
            let read = |path: &Path| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            artifacts.insert(name, Program::artifact(&read(&path), &read(&path.with_extension("opts"))));
        }
    }
    artifacts
}

/// What became of all artifacts.
#[derive(Default)]
struct Summary {
    rewritten: usize,
    not_rewritten: BTreeMap<String, usize>,
    refused: BTreeMap<&'static str, usize>,
    compared: Compared,
    wrong: Vec<String>,
}

impl Summary {
    fn add(&mut self, name: &str, outcome: Result<Outcome, String>) {
        match outcome {
            Ok(Outcome::Equal(fate, compared)) => {
                match fate {
                    Fate::Rewritten(_) => self.rewritten += 1,
                    Fate::NotRewritten(reason) => *self.not_rewritten.entry(reason).or_insert(0) += 1,
                }
                self.compared.results += compared.results;
                self.compared.bytes += compared.bytes;
                self.compared.consumed += compared.consumed;
            }
            Ok(Outcome::Refused(failure) | Outcome::Failed(failure)) => {
                let is_known =
                    |(what, names): &&(&str, &[&str])| failure.message.contains(what) && names.contains(&name);
                match LACKING.iter().find(is_known) {
                    Some((what, _)) => *self.refused.entry(what).or_insert(0) += 1,
                    None => self.wrong.push(format!("{name}: fails on both clients, but should not: {failure}")),
                }
            }
            Err(difference) => self.wrong.push(format!("{name}: {difference}")),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rewritten, not_rewritten, refused, compared, wrong } = self;
        let (alone, lacking) = (not_rewritten.values().sum::<usize>(), refused.values().sum::<usize>());
        let Compared { results, bytes, consumed } = compared;
        write!(
            f,
            "{} artifacts: {rewritten} rewritten, {alone} not rewritten ({}), {lacking} do not run on this engine, which \
             lacks ({}); {results} results of {bytes} bytes compared, {consumed} arguments consumed, {}",
            rewritten + alone + lacking + wrong.len(),
            listed(not_rewritten),
            listed(refused),
            if wrong.is_empty() { "all equal".to_owned() } else { format!("{} artifacts WRONG", wrong.len()) }
        )
    }
}

#[test]
fn every_artifact_gives_the_same_results_rewritten_and_unmodified() {
    let clients = Arc::new(Clients::create());
    let mut summary = Summary::default();
    for (index, (name, program)) in artifacts().into_iter().enumerate() {
        // Said before it runs: the last line names the program that hangs or crashes.
        print!("{name}: ");
        std::io::stdout().flush().expect("standard output");
        let shared = Arc::clone(&clients);
        let outcome = elsewhere(move || examine(&shared, &program, index as u64)).wait();
        match &outcome {
            Ok(outcome) => println!("{outcome}"),
            Err(difference) => println!("WRONG: {difference}"),
        }
        summary.add(&name, outcome);
    }
    println!("{summary}");
    assert!(summary.wrong.is_empty(), "{}", summary.wrong.join("\n"));

    // Memory comes back when the engine lets go of it, a little after the handles are gone.
    let start = Instant::now();
    while let Some(busy) = Counters::read().busy_device() {
        assert!(start.elapsed() < HANG, "still in use: {busy}");
        thread::sleep(Duration::from_millis(1));
    }
    for client in [&clients.rewriting, &clients.plain] {
        for device in client.addressable_devices() {
            assert_eq!(device.stats().expect("statistics").bytes_in_use, 0);
        }
    }
}
