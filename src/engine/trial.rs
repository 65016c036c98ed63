//! Whether an engine can serve on this machine: it is loaded and runs a small program, in a process of its own.
//!
//! ```text
//!  this process --fork--> the child: dlopen, GetPjrtApi, a client, 2 + 2, its table of XLA FFI
//!       |                     |-- one line: what it speaks, or its error
//!       '<--- the line -------'-- or the signal that ended it (SIGILL: built for another processor)
//! ```
//!
//! An instruction that the processor does not know ends the process that meets it, and dlopen's initialisers may hold
//! one already; nothing short of another process survives that. It costs some 25 ms, once for each file.

use std::{
    fs,
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    ptr,
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, setrlimit, waitpid},
    stdio,
};

use crate::{
    device::host::Mappable,
    engine::{Engine, EngineEvent, ffi},
    error::{Code, Error, Result},
    sys,
    units::Bytes,
};

/// What an engine speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spoken {
    /// The minor version of the PJRT C API; the major one is 0.
    pub minor: i32,
    /// The version of XLA FFI, major and minor, where the engine shows it.
    pub ffi: Option<(i32, i32)>,
}

/// The outcome of a trial.
#[derive(Clone, Debug)]
pub enum Trial {
    /// It ran the program.
    Serves(Spoken),
    /// It did not; the sentence says why.
    Fails(Error),
    /// There was no trial, or it had no end; the sentence says why.
    Unknown(String),
}

/// How long a trial may take; it takes some 25 ms, and longer where the library is read from a slow disk.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The outcome for each file that was tried: engines are looked for more than once while a process starts.
static TRIED: Mutex<Vec<(Stamp, Trial)>> = Mutex::new(Vec::new());

/// A file as it was when it was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    path: PathBuf,
    inode: u64,
    size: u64,
    modified: Option<SystemTime>,
}

/// Tries the engine at `path`, or says how its trial went; a file that was replaced since is tried anew.
pub fn of(path: &Path) -> Trial {
    let stamp = match fs::metadata(path) {
        Ok(file) => {
            Stamp { path: path.to_owned(), inode: file.ino(), size: file.len(), modified: file.modified().ok() }
        }
        Err(error) => {
            return Trial::Fails(Error::not_found(format!("the engine {} cannot be loaded: {error}", path.display())));
        }
    };
    if let Some((_, trial)) = TRIED.lock().iter().find(|(tried, _)| *tried == stamp) {
        return trial.clone();
    }
    let limit = Mappable::now();
    // What its library takes is the file's size, or a little more.
    if let Some(Err(error)) = limit.map(|limit| limit.check(Bytes::new(stamp.size))) {
        return Trial::Fails(error.context(&format!("the engine {} cannot be loaded", path.display())));
    }
    let trial = attempt(path, child);
    // The limit may be the reason, and can be raised: this is not remembered.
    if let (Trial::Fails(error), Some(limit)) = (&trial, limit) {
        return Trial::Fails(error.clone().with(Some(limit)));
    }
    TRIED.lock().push((stamp, trial.clone()));
    trial
}

/// Runs `body` on `path` in a child process, and reads what it said.
fn attempt(path: &Path, body: fn(&Path) -> Result<Spoken>) -> Trial {
    // A program that is started meanwhile inherits neither end.
    let (reader, writer) = match io::pipe() {
        Ok(ends) => ends,
        Err(error) => return Trial::Unknown(format!("no pipe for a trial: {error}")),
    };
    // SAFETY: the child runs `speak` and nothing else. Of other threads it has none; glibc keeps malloc and the loader
    // usable in it, whatever those threads held, and a lock of anybody else's that was held costs no more than
    // `TIME_LIMIT`.
    match unsafe { libc::fork() } {
        -1 => Trial::Unknown(format!("no process for a trial: {}", io::Error::last_os_error())),
        0 => speak(&writer, path, body),
        child => {
            drop(writer);
            let (said, ended) =
                Pid::from_raw(child).map_or((String::new(), Ended::Quietly), |child| listen(&reader, child));
            outcome(path, &said, ended)
        }
    }
}

/// The child: says one line of what `body` found, and ends. What the engine prints is not shown, a signal leaves
/// neither a core file nor the host program's traceback, and nothing of the host program's runs at the end.
fn speak(mut writer: &PipeWriter, path: &Path, body: fn(&Path) -> Result<Spoken>) -> ! {
    // What cannot be done of this is done without.
    if let Ok(nowhere) = fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        let _ = stdio::dup2_stdin(&nowhere);
        let _ = stdio::dup2_stdout(&nowhere);
        let _ = stdio::dup2_stderr(&nowhere);
    }
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    for fatal in [libc::SIGILL, libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP] {
        // SAFETY: the default for a signal, in a process of one thread whose handlers nobody else needs.
        unsafe { libc::signal(fatal, libc::SIG_DFL) };
    }
    let line = match std::panic::catch_unwind(|| body(path)) {
        Ok(Ok(Spoken { minor, ffi: Some((major, small)) })) => format!("serves {minor} {major} {small}\n"),
        Ok(Ok(Spoken { minor, ffi: None })) => format!("serves {minor}\n"),
        Ok(Err(error)) => format!("fails {} {}\n", error.code as u32, error.message.replace('\n', " ")),
        Err(_) => "fails 13 a panic\n".to_owned(),
    };
    let _ = writer.write_all(line.as_bytes());
    // SAFETY: it runs no handler of the host program's, and nothing comes after it.
    unsafe { libc::_exit(0) }
}

/// How the child ended.
#[derive(Clone, Copy, Debug)]
enum Ended {
    /// By itself, or nobody can tell: the host program reaps children.
    Quietly,
    /// By this signal.
    Signal(i32),
    /// It was still at it after [`TIME_LIMIT`], and was ended.
    Late,
}

/// Reads what `child` says until its line or its process ends, and reaps it.
fn listen(mut reader: &PipeReader, child: Pid) -> (String, Ended) {
    let mut said = Vec::new();
    let begun = Instant::now();
    let mut ended = None;
    // Not to the end of the pipe: a process that another thread forks meanwhile holds the writing end as well.
    while !said.ends_with(b"\n") && ended.is_none() {
        ended = reaped(child, WaitOptions::NOHANG);
        let mut bytes = [0u8; 4096];
        let wait = Timespec { tv_sec: 0, tv_nsec: if ended.is_some() { 0 } else { 5_000_000 } };
        // Where there is something to read, reading does not wait.
        let read = match poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&wait)) {
            Ok(1) => reader.read(&mut bytes).unwrap_or(0),
            _ => 0,
        };
        said.extend_from_slice(&bytes[..read]);
        if ended.is_none() && begun.elapsed() > TIME_LIMIT {
            // A child of ours that was not reaped yet, so the number is nobody else's.
            let _ = kill_process(child, Signal::KILL);
            reaped(child, WaitOptions::empty());
            ended = Some(Ended::Late);
        }
    }
    let ended = ended.or_else(|| reaped(child, WaitOptions::empty())).unwrap_or(Ended::Quietly);
    (String::from_utf8_lossy(&said).trim_end().to_owned(), ended)
}

/// How `child` ended, if it did.
fn reaped(child: Pid, options: WaitOptions) -> Option<Ended> {
    match retry_on_intr(|| waitpid(Some(child), options)) {
        Ok(None) => None,
        Ok(Some((_, status))) => Some(status.terminating_signal().map_or(Ended::Quietly, Ended::Signal)),
        Err(_) => Some(Ended::Quietly),
    }
}

/// What a child's line and its end mean.
fn outcome(path: &Path, said: &str, ended: Ended) -> Trial {
    let words: Vec<&str> = said.splitn(3, ' ').collect();
    match (words.as_slice(), ended) {
        (["serves", minor, rest @ ..], _) => {
            let ffi = rest.first().and_then(|ffi| {
                let (major, minor) = ffi.split_once(' ')?;
                Some((major.parse().ok()?, minor.parse().ok()?))
            });
            match minor.parse() {
                Ok(minor) => Trial::Serves(Spoken { minor, ffi }),
                Err(_) => Trial::Unknown(format!("its trial said {said:?}")),
            }
        }
        (["fails", code, message], _) => Trial::Fails(Error::new(code_of(code), *message)),
        (_, Ended::Signal(signal)) => {
            let why = match signal {
                libc::SIGILL => {
                    "with an illegal instruction: it was built for another processor than this machine's".into()
                }
                libc::SIGBUS => "with a bus error: its file may be cut off".into(),
                other => format!("by signal {other}"),
            };
            let shown = path.display();
            let message =
                format!("the engine {shown} cannot be used: a trial of it in a process of its own ended {why}");
            Trial::Fails(Error::failed_precondition(message))
        }
        (_, Ended::Late) => Trial::Unknown(format!("its trial had no end within {} s", TIME_LIMIT.as_secs())),
        (_, Ended::Quietly) => Trial::Unknown("its trial ended without a word".to_owned()),
    }
}

fn code_of(number: &str) -> Code {
    [Code::InvalidArgument, Code::NotFound, Code::ResourceExhausted, Code::FailedPrecondition, Code::Unimplemented]
        .into_iter()
        .find(|code| number == (*code as u32).to_string())
        .unwrap_or(Code::Internal)
}

/// What the trial's program computes, in a text that each version of StableHLO reads.
const PROGRAM: &str = "module @trial {
  func.func @main() -> tensor<f32> {
    %0 = stablehlo.constant dense<2.0> : tensor<f32>
    %1 = stablehlo.add %0, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}";

/// `CompileOptionsProto { executable_build_options { num_replicas: 1, num_partitions: 1 } }`.
const OPTIONS: [u8; 6] = [0x1a, 4, 0x20, 1, 0x28, 1];

/// The child's work: loads the engine, makes a client, and has it add two numbers.
fn child(path: &Path) -> Result<Spoken> {
    // Nothing is taken down: the process is over with this.
    let engine: &'static Engine = Box::leak(Box::new(Engine::load(path)?));
    let shown = path.display();
    let refused = |error: super::EngineError| {
        Error::failed_precondition(format!("the engine {shown} fails its trial: {}", error.message()))
    };
    let name = "cpu_device_count";
    let mut devices = sys::PJRT_NamedValue {
        struct_size: size_of::<sys::PJRT_NamedValue>(),
        name: name.as_ptr().cast(),
        name_size: name.len(),
        type_: sys::PJRT_NamedValue_kInt64,
        value_size: 1,
        ..Default::default()
    };
    devices.__bindgen_anon_1.int64_value = 1;
    let mut result = f32::NAN;
    // SAFETY: handles are the engine's own, alive to the end of the process; texts, lists and the place of the result
    // outlive the calls that are given them, the last one because its event is waited for.
    unsafe {
        engine.call(sys::PJRT_Plugin_Initialize_Args::default()).map_err(refused)?;
        let client = engine
            .call(sys::PJRT_Client_Create_Args {
                create_options: &raw const devices,
                num_options: 1,
                ..Default::default()
            })
            .map_err(refused)?
            .client;
        let format = "mlir";
        let mut program = sys::PJRT_Program {
            struct_size: size_of::<sys::PJRT_Program>(),
            code: PROGRAM.as_ptr().cast_mut().cast(),
            code_size: PROGRAM.len(),
            format: format.as_ptr().cast(),
            format_size: format.len(),
            ..Default::default()
        };
        let executable = engine
            .call(sys::PJRT_Client_Compile_Args {
                client,
                program: &raw mut program,
                compile_options: OPTIONS.as_ptr().cast(),
                compile_options_size: OPTIONS.len(),
                ..Default::default()
            })
            .map_err(refused)?
            .executable;
        let mut options =
            sys::PJRT_ExecuteOptions { struct_size: size_of::<sys::PJRT_ExecuteOptions>(), ..Default::default() };
        let arguments: [*const *mut sys::PJRT_Buffer; 1] = [ptr::null()];
        let mut results = [ptr::null_mut::<sys::PJRT_Buffer>()];
        let lists = [results.as_mut_ptr()];
        engine
            .call(sys::PJRT_LoadedExecutable_Execute_Args {
                executable,
                options: &raw mut options,
                argument_lists: arguments.as_ptr().cast_mut().cast(),
                num_devices: 1,
                num_args: 0,
                output_lists: lists.as_ptr().cast_mut().cast(),
                ..Default::default()
            })
            .map_err(refused)?;
        let read = engine
            .call(sys::PJRT_Buffer_ToHostBuffer_Args {
                src: results[0],
                dst: (&raw mut result).cast(),
                dst_size: size_of::<f32>(),
                ..Default::default()
            })
            .map_err(refused)?;
        if let Some(event) = EngineEvent::own(engine, read.event) {
            event.wait().map_err(refused)?;
        }
    }
    // The last call wrote through a pointer.
    let result = std::hint::black_box(result);
    if result != 4.0 {
        return Err(Error::failed_precondition(format!("the engine {shown} fails its trial: 2 + 2 is {result}")));
    }
    let ffi = ffi::Table::learn(engine, "Host").ok().flatten().map(|table| table.version());
    Ok(Spoken { minor: engine.minor(), ffi })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of a child that does this.
    fn after(body: fn(&Path) -> Result<Spoken>) -> Trial {
        attempt(Path::new("/engine.so"), body)
    }

    #[test]
    fn a_child_says_what_it_found() {
        let served = after(|_| Ok(Spoken { minor: 115, ffi: Some((0, 4)) }));
        assert!(matches!(served, Trial::Serves(Spoken { minor: 115, ffi: Some((0, 4)) })), "{served:?}");
        let without = after(|_| Ok(Spoken { minor: 70, ffi: None }));
        assert!(matches!(without, Trial::Serves(Spoken { minor: 70, ffi: None })), "{without:?}");
        let Trial::Fails(error) = after(|path| Err(Error::not_found(format!("{} is\nnot there", path.display()))))
        else {
            panic!("it failed");
        };
        assert_eq!((error.code, error.message.as_str()), (Code::NotFound, "/engine.so is not there"));
    }

    #[test]
    fn a_child_that_dies_leaves_a_sentence() {
        for (body, word) in [
            ((|_| die(libc::SIGILL)) as fn(&Path) -> Result<Spoken>, "illegal instruction"),
            (|_| die(libc::SIGBUS), "bus error"),
            (|_| die(libc::SIGSEGV), "signal 11"),
        ] {
            let Trial::Fails(error) = after(body) else { panic!("it died") };
            assert_eq!(error.code, Code::FailedPrecondition);
            assert!(
                error.message.starts_with("the engine /engine.so cannot be used: ") && error.message.contains(word),
                "{error}"
            );
        }
        // SAFETY: ends the child, and runs nothing before that.
        let silent = after(|_| unsafe { libc::_exit(3) });
        assert!(matches!(&silent, Trial::Unknown(why) if why == "its trial ended without a word"), "{silent:?}");
    }

    fn die(signal: i32) -> Result<Spoken> {
        // SAFETY: the child's own end.
        unsafe { libc::raise(signal) };
        Err(Error::internal("still alive"))
    }

    #[test]
    fn a_file_that_is_no_library_fails_with_the_loaders_reason() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let Trial::Fails(error) = of(file.path()) else { panic!("an empty file serves") };
        assert_eq!(error.code, Code::NotFound);
        assert!(error.message.contains("cannot be loaded"), "{error}");
    }
}
