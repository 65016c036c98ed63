//! The command line.

use std::{ffi::OsString, num::NonZeroU64, path::PathBuf, str::FromStr};

use lexopt::prelude::*;
use pjrt_arena::units::Bytes;

use crate::{
    policy::PolicyName,
    spill::{Executions, SpillPolicies, SpillPolicy},
    synthetic::Workload,
    trace::UNIT,
};

const HELP: &str = "\
arena-replay: replays traces of allocations and of executions against a memory manager's policy, without any device

Usage:
  arena-replay --policy POLICY [OPTIONS] FILE...
  arena-replay --spill POLICY [--capacity C] [--json] FILE...
  arena-replay --generate WORKLOAD [--seed N]

A trace of allocations has a line `a ID BYTES` for each block that is taken and `f ID` for each that is freed; lines
that begin with # and blank ones are passed over. `-` reads standard input.

A trace of executions, for --spill, is an object of JSON, or one that has it as `spill`:
  {\"limit\": BYTES, \"launches\": [LAUNCH, ...], \"alive\": [NAME, ...]}
  LAUNCH: {\"step\": 17, \"program\": TEXT,
           \"arguments\": [[NAME, BYTES, CONSUMED], ...], \"results\": [[NAME, BYTES], ...]}
A NAME is ORIGIN@STEP for what a program made, and #NUMBER for another array, which comes at no cost when it is first
used. Steps ascend. An array is gone when it is consumed, or after its last use unless it is in `alive`.

Options:
  --policy POLICY     preallocate  pjrt-arena, all memory in one region
                      growing      pjrt-arena, regions on demand
                      tpu          pjrt-arena, all memory in one region, and blocks move when there is no room
                      bfc          XLA's BFC allocator, all memory in one region
  --spill POLICY      what is copied where arrays that a launch has no use for go to a tier when the device is full, and
                      come back as arguments; a copy in the tier stays good. The array goes first that is
                      predict      used again the latest by the past, as pjrt-arena tells it
                      lru          not used for longest
                      fifo         on the device for longest
                      belady       used again the latest in the trace; as sizes differ and an array with a copy goes at
                                   no cost, that is near the least, not exactly the least
                      floor        no policy, but what each has to copy at least: while a launch runs, what it does not
                                   use has the rest of the device, and of what the next launches use or the last ones
                                   made and left, the others come back or went out; the best stretches are added up
                      all          each of these
  --capacity C        bytes (8GiB) or a multiple of the trace's peak (1.01x), rounded up to 256 bytes; default 2x,
                      and for --spill the trace's limit
  --min-capacity      also search the smallest capacity that replays without failure, in steps of 0.05 % of the peak
  --pin-every K       an outsider holds the address of every Kth block until it is freed, so that it cannot move; under
                      tpu it moves out of the way of others before, whatever that costs, and counts among the moves
  --json              one object of JSON a trace and line instead of a table
  --generate WORKLOAD write a synthetic trace to standard output; WORKLOAD is one of
";

const AFTER_WORKLOADS: &str = "  --seed N            of the synthetic trace; default 0
  -h, --help          this text

Figures (keys of --json; null: not asked for, or nothing to tell):
  peak_live_bytes     the most bytes held at once, each block rounded up to 256 bytes
  capacity_bytes      what the policy had to do with
  min_capacity_bytes  see --min-capacity
  failed              blocks that found no room; the replay goes on without them
  moves, moved_bytes, compactions, plan_ns_max
                      blocks moved, their bytes, how often a request needed it, and the longest planning
  ns_per_op           nanoseconds to take or free one block, with the lock and without pins: median of several rounds
And of --spill:
  failed              launches that need more than the capacity; the replay goes on without them and their results
  bytes_out, bytes_back, bytes_moved
                      copied to the tier, from it, and both
  ratio_to_belady     bytes_moved by those of belady
";

/// The text of `--help`.
pub(crate) fn help() -> String {
    let line = |name: &str, about: &str| format!("{:22}{name:<14}{about}\n", "");
    let workloads = Workload::ALL.map(|workload| line(workload.name(), workload.about()));
    let executions = Executions::ALL.map(|workload| line(workload.name(), workload.about()));
    format!("{HELP}{}{}{AFTER_WORKLOADS}", workloads.concat(), executions.concat())
}

/// How much memory the policy gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capacity {
    /// So many bytes.
    Bytes(Bytes),
    /// So many billionths of the trace's peak.
    Peaks(u64),
}

/// One, as [`Capacity::Peaks`] counts.
const ONE: u64 = 1_000_000_000;
/// Larger ones need larger addresses than a policy has.
const MOST_PEAKS: u64 = 1000;
const MOST_BYTES: Bytes = Bytes::gib(1 << 30);

impl Capacity {
    /// The capacity for a trace of this peak, in whole units and at least one.
    pub(crate) fn of(self, peak: Bytes) -> Result<Bytes, String> {
        let bytes = match self {
            Self::Bytes(bytes) => u128::from(bytes.get()),
            Self::Peaks(billionths) => (u128::from(peak.get()) * u128::from(billionths)).div_ceil(u128::from(ONE)),
        };
        let rounded = u64::try_from(bytes).ok().and_then(|bytes| Bytes::new(bytes).max(UNIT).checked_round_up(UNIT));
        rounded
            .filter(|&rounded| rounded <= MOST_BYTES)
            .ok_or_else(|| format!("a capacity of {bytes} bytes; allowed are at most {MOST_BYTES}"))
    }
}

impl FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "--capacity `{text}`: allowed are bytes, such as 8GiB, and multiples of the peak up to {MOST_PEAKS}x, such as 1.01x"
            )
        };
        let Some(number) = text.strip_suffix(['x', 'X']) else {
            let bytes: Bytes = text.parse().map_err(|error: pjrt_arena::error::Error| error.message)?;
            return Ok(Self::Bytes(bytes));
        };
        // Decimal digits as they stand: a factor such as 1.01 has no exact binary form, and 1.000x is to be the peak.
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 || number.ends_with('.') {
            return Err(refused());
        }
        let whole: u64 = whole.parse().map_err(|_| refused())?;
        let fraction: u64 = format!("{fraction:0<9}").parse().map_err(|_| refused())?;
        let billionths = whole.checked_mul(ONE).and_then(|whole| whole.checked_add(fraction));
        billionths.filter(|&all| all != 0 && all <= MOST_PEAKS * ONE).map(Self::Peaks).ok_or_else(refused)
    }
}

/// What to replay, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) policy: PolicyName,
    pub(crate) capacity: Capacity,
    pub(crate) pin_every: Option<NonZeroU64>,
    pub(crate) min_capacity: bool,
    pub(crate) json: bool,
    pub(crate) files: Vec<PathBuf>,
}

/// What to replay of executions, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpillOptions {
    pub(crate) policies: SpillPolicies,
    /// `None`: the trace's limit.
    pub(crate) capacity: Option<Capacity>,
    pub(crate) json: bool,
    pub(crate) files: Vec<PathBuf>,
}

/// What `--generate` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generated {
    Allocations(Workload),
    Executions(Executions),
}

impl Generated {
    fn from_name(name: &str) -> Option<Self> {
        let executions = || Executions::from_name(name).map(Self::Executions);
        Workload::from_name(name).map(Self::Allocations).or_else(executions)
    }

    fn names() -> String {
        [&Workload::ALL.map(Workload::name)[..], &Executions::ALL.map(Executions::name)].concat().join(", ")
    }
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Generate { workload: Generated, seed: u64 },
    Replay(Options),
    Spill(SpillOptions),
}

/// Reads the arguments behind the program's name.
///
/// # Errors
/// A sentence that names the argument and what is allowed.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let (mut policy, mut spill, mut capacity, mut pin_every, mut generate) = (None, None, None, None, None);
    let (mut min_capacity, mut json, mut seed) = (false, false, None);
    let mut files = Vec::new();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Long("json") => json = true,
            Long("min-capacity") => min_capacity = true,
            Long("policy") => {
                let name = text(&mut parser)?;
                policy = Some(PolicyName::from_name(&name).ok_or_else(|| {
                    format!(
                        "--policy `{name}`: allowed are {}",
                        PolicyName::ALL.map(|name| name.to_string()).join(", ")
                    )
                })?);
            }
            Long("spill") => spill = Some(text(&mut parser)?.parse::<SpillPolicies>()?),
            Long("capacity") => capacity = Some(text(&mut parser)?.parse()?),
            Long("pin-every") => {
                let every = text(&mut parser)?;
                let refused = |_| format!("--pin-every `{every}`: allowed are whole numbers from 1 on");
                pin_every = Some(every.parse().map_err(refused)?);
            }
            Long("generate") => {
                let name = text(&mut parser)?;
                let refused = || format!("--generate `{name}`: allowed are {}", Generated::names());
                generate = Some(Generated::from_name(&name).ok_or_else(refused)?);
            }
            Long("seed") => {
                let number = text(&mut parser)?;
                seed = Some(
                    number.parse().map_err(|_| format!("--seed `{number}`: allowed are whole numbers from 0 on"))?,
                );
            }
            Value(file) => files.push(PathBuf::from(file)),
            _ => return Err(argument.unexpected().to_string()),
        }
    }
    match (generate, policy, spill) {
        (Some(_), Some(_), _) => Err("--generate writes a trace and --policy replays one: give one of them".into()),
        (Some(_), _, Some(_)) => Err("--generate writes a trace and --spill replays one: give one of them".into()),
        (Some(_), ..) if !files.is_empty() => {
            Err(format!("--generate reads no file, such as `{}`", files[0].display()))
        }
        (Some(workload), None, None) => Ok(Command::Generate { workload, seed: seed.unwrap_or(0) }),
        (None, ..) if seed.is_some() => Err("--seed belongs to --generate, which is not there".into()),
        (None, Some(_), Some(_)) => {
            Err("--policy replays allocations and --spill replays executions: give one of them".into())
        }
        (None, ..) if files.is_empty() => Err("no trace to replay: name a FILE, or `-` for standard input".into()),
        (None, None, Some(_)) if pin_every.is_some() || min_capacity => {
            Err("--pin-every and --min-capacity belong to --policy, which is not there".into())
        }
        (None, None, Some(policies)) => Ok(Command::Spill(SpillOptions { policies, capacity, json, files })),
        (None, None, None) => Err(format!(
            "no --policy: name one of {}; or --spill: name one of {}, all",
            PolicyName::ALL.map(|name| name.to_string()).join(", "),
            SpillPolicy::ALL.map(SpillPolicy::name).join(", ")
        )),
        (None, Some(policy), None) => {
            let capacity = capacity.unwrap_or(Capacity::Peaks(2 * ONE));
            Ok(Command::Replay(Options { policy, capacity, pin_every, min_capacity, json, files }))
        }
    }
}

fn text(parser: &mut lexopt::Parser) -> Result<String, String> {
    parser.value().and_then(ValueExt::string).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &str) -> Result<Command, String> {
        parse(arguments.split_whitespace().map(OsString::from))
    }

    fn options() -> Options {
        Options {
            policy: PolicyName::Bfc,
            capacity: Capacity::Peaks(2 * ONE),
            pin_every: None,
            min_capacity: false,
            json: false,
            files: vec!["t.ev".into()],
        }
    }

    #[test]
    fn arguments_are_read_in_any_order() {
        assert_eq!(read("--policy bfc t.ev"), Ok(Command::Replay(options())));
        let all = Options {
            policy: PolicyName::Preallocate,
            capacity: Capacity::Peaks(1_010_000_000),
            pin_every: NonZeroU64::new(20),
            min_capacity: true,
            json: true,
            files: vec!["t.ev".into(), "-".into()],
        };
        let line = "t.ev --json --capacity=1.01x --pin-every 20 --min-capacity - --policy Preallocate";
        assert_eq!(read(line), Ok(Command::Replay(all)));
        let files = vec!["--json".into()];
        assert_eq!(read("--policy=bfc -- --json"), Ok(Command::Replay(Options { files, ..options() })));
        assert_eq!(read("x --help --nonsense"), Ok(Command::Help));
        let workload = Generated::Allocations(Workload::Serving);
        assert_eq!(read("--generate serving --seed 7"), Ok(Command::Generate { workload, seed: 7 }));
        let workload = Generated::Executions(Executions::Layers(16));
        assert_eq!(read("--generate layers-16"), Ok(Command::Generate { workload, seed: 0 }));
        let (policies, files) = (SpillPolicies(vec![SpillPolicy::Lru]), vec!["t.json".into()]);
        let spill = SpillOptions { policies, capacity: None, json: false, files };
        assert_eq!(read("--spill LRU t.json"), Ok(Command::Spill(spill.clone())));
        let (policies, capacity) = (SpillPolicies(SpillPolicy::ALL.into()), Some(Capacity::Bytes(Bytes::mib(4))));
        let spill = SpillOptions { policies, capacity, json: true, ..spill };
        assert_eq!(read("--capacity 4MiB --spill all --json t.json"), Ok(Command::Spill(spill)));
    }

    #[test]
    fn what_is_not_allowed_is_told() {
        for (line, message) in [
            ("", "no trace to replay: name a FILE"),
            ("t.ev", "no --policy: name one of preallocate, growing, tpu, bfc"),
            ("--policy best t.ev", "--policy `best`: allowed are preallocate, growing, tpu, bfc"),
            ("--policy bfc t.ev --pin-every 0", "--pin-every `0`: allowed are whole numbers from 1 on"),
            ("--policy bfc t.ev --nonsense", "--nonsense"),
            ("--policy bfc --json=yes t.ev", "--json"),
            ("t.ev --policy", "--policy"),
            ("--policy bfc --seed 1 t.ev", "--seed belongs to --generate"),
            ("--generate serving t.ev", "--generate reads no file, such as `t.ev`"),
            ("--generate serving --policy bfc", "give one of them"),
            ("--generate nothing", "--generate `nothing`: allowed are serving, "),
            ("--generate nothing", "random-mixed, layers-8, "),
            ("--spill best t.json", "--spill `best`: allowed are predict, lru, fifo, belady, floor, and all"),
            ("t.json", "--spill: name one of predict, lru, fifo, belady, floor, all"),
            ("--spill all", "no trace to replay"),
            ("--spill lru --policy bfc t", "--policy replays allocations and --spill replays executions"),
            ("--spill lru --min-capacity t", "--pin-every and --min-capacity belong to --policy"),
            ("--spill lru --pin-every 2 t", "--pin-every and --min-capacity belong to --policy"),
            ("--spill lru --generate layers-8", "--generate writes a trace and --spill replays one"),
            ("--generate serving --seed x", "--seed `x`: allowed are whole numbers"),
        ] {
            let error = read(line).expect_err(line);
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn capacities_are_bytes_or_exact_multiples_of_the_peak() {
        let peak = Bytes::new(256 * 1000);
        for (text, bytes) in [
            ("1.000x", 256_000),
            ("1x", 256_000),
            ("1.01x", 258_560),
            ("1.0001X", 256_256),
            ("0.5x", 128_000),
            ("4KiB", 4096),
            ("1000", 1024),
            ("0", 256),
        ] {
            assert_eq!(
                text.parse::<Capacity>().and_then(|capacity| capacity.of(peak)),
                Ok(Bytes::new(bytes)),
                "{text}"
            );
        }
        assert_eq!(Capacity::Peaks(ONE).of(Bytes::ZERO), Ok(UNIT));
        for text in
            ["x", "0x", "1.x", ".5x", "-1x", "1e3x", "1.0000000001x", "1001x", "99999999999999999999x", "8GB", ""]
        {
            assert!(text.parse::<Capacity>().is_err_and(|error| error.contains(&format!("`{text}`"))), "{text}");
        }
        assert!(Capacity::Bytes(Bytes::MAX).of(peak).is_err());
    }

    #[test]
    fn the_help_names_everything() {
        let help = help();
        for name in Workload::ALL.map(Workload::name) {
            assert!(help.contains(name), "{name}");
        }
        for name in Executions::ALL.map(Executions::name) {
            assert!(help.contains(name), "{name}");
        }
        for policy in PolicyName::ALL {
            assert!(help.contains(&policy.to_string()), "{policy}");
        }
        for name in SpillPolicy::ALL.map(SpillPolicy::name) {
            assert!(help.contains(name), "{name}");
        }
        assert!(help.lines().all(|line| line.chars().count() <= 120), "{help}");
    }
}
