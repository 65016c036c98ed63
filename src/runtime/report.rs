//! The arenas of the process at one instant, for `report::snapshot` to write.

use std::{
    env,
    ffi::{OsStr, OsString},
    path::Path,
    time::SystemTime,
};

use crate::{
    config,
    handlers::python::stacks,
    memory::{MoveBarrier, began},
    report::snapshot::{Device, Snapshot},
    runtime::{
        client::{self, Client},
        device_memory::{DeviceMemory, origins::ORIGINS},
    },
    units::Bytes,
};

/// Whether operations that are done are reaped and caches cleared first, so that free memory shows as free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Yes, for a query from outside.
    Yes,
    /// No: the state at this instant.
    No,
}

/// All arenas now. Each is read under its own lock.
pub fn take(drained: Drained) -> Snapshot {
    let clients = client::guard_all();
    if drained == Drained::Yes {
        clients.iter().for_each(|client| client.allocator.drain());
    }
    let mut now = 0;
    let mut devices = Vec::new();
    for client in &clients {
        for (memory, engine) in client.arenas_and_engine() {
            let engine = u64::try_from(engine).unwrap_or(0);
            let (device, at) = one(client, memory, Bytes::new(engine));
            now = now.max(at);
            devices.push(device);
        }
    }
    Snapshot {
        library: env!("CARGO_PKG_VERSION"),
        process: std::process::id(),
        command: command(env::args_os()),
        written: SystemTime::now(),
        began: began(),
        now,
        // After the blocks, so that each finds its row.
        origins: ORIGINS.rows(),
        stacks: stacks::with_stacks(Clone::clone),
        pin_reasons: std::iter::once("").chain(MoveBarrier::ALL.map(MoveBarrier::reason)).collect(),
        devices,
    }
}

/// Writes a snapshot to `path` because memory is exhausted. A failure to write is only logged.
pub fn on_exhausted(path: &Path) {
    match take(Drained::No).save(path) {
        Ok(()) => log::warn!("memory is exhausted; the report is {}", path.display()),
        Err(error) => log::warn!("no report of exhausted memory: {}", error.message),
    }
}

/// One device, and the time.
fn one(client: &Client, memory: &DeviceMemory, engine: Bytes) -> (Device, u64) {
    let survey = memory.survey();
    let (mut blocks, mut regions) = (survey.blocks, survey.regions);
    memory.complete(&mut blocks);
    blocks.sort_unstable_by_key(|info| info.block.address);
    regions.sort_unstable_by_key(|region| region.address);
    let device = Device {
        name: memory.name().to_owned(),
        strategy: config::strategy_name(memory.strategy()),
        compaction: client.allocator.compacts(),
        stats: survey.stats,
        engine,
        regions,
        blocks,
        scratch: survey.scratch,
        events: survey.events,
    };
    (device, survey.at.nanos().unwrap_or(0))
}

/// The name of the program file: of the script, where Python runs one. What is not UTF-8 of it is replaced.
fn command(mut arguments: impl Iterator<Item = OsString>) -> String {
    let file = |path: &OsStr| Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
    let program = arguments.next().and_then(|path| file(&path)).unwrap_or_default();
    if !program.starts_with("python") {
        return program;
    }
    let script = match arguments.next() {
        Some(option) if option == "-m" => arguments.next(),
        Some(option) if option.as_encoded_bytes().starts_with(b"-") => None,
        other => other,
    };
    script.and_then(|path| file(&path)).unwrap_or(program)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_command_is_a_name_without_folders_and_arguments() {
        for (arguments, expected) in [
            (&["/usr/bin/train", "--secret"][..], "train"),
            (&["python3.12", "/home/me/train.py", "--token=1"], "train.py"),
            (&["/venv/bin/python", "-m", "train.main", "x"], "train.main"),
            (&["python", "-c", "print('private')"], "python"),
            (&["python"], "python"),
            (&[], ""),
        ] {
            assert_eq!(command(arguments.iter().map(OsString::from)), expected);
        }
    }

    #[test]
    fn a_command_may_be_no_utf_8() {
        let of = |arguments: &[&[u8]]| command(arguments.iter().map(|&bytes| OsStr::from_bytes(bytes).to_owned()));
        assert_eq!(of(&[b"python3", b"/tmp/caf\xe9.py"]), "caf\u{fffd}.py");
        assert_eq!(of(&[b"/bin/caf\xe9", b"\xff"]), "caf\u{fffd}");
        assert_eq!(of(&[b"python", b"-\xff", b"x.py"]), "python");
    }
}
