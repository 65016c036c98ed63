//! A process as people know it: its number, when it was started, its command, and what it does now.

use std::{fmt, fs};

/// A process. Its number may be that of another pid namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it was started, in ticks since the system was: a number that is used again has another one.
    pub started: u64,
    /// The first 16 bytes of its command's name.
    pub command: String,
}

/// What a process does now, as far as the system says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs, or could.
    Running,
    /// A signal or a debugger has stopped it.
    Stopped,
    /// It cannot be seen from here: it is in another pid namespace, or there is no `/proc`.
    Unseen,
}

/// The fields of `/proc/PID/stat` that matter here.
struct Stat {
    command: String,
    state: char,
    started: u64,
}

impl Process {
    /// This one.
    pub(super) fn current() -> Self {
        let stat = stat("self");
        let (command, started) = stat.map_or((String::new(), 0), |stat| (stat.command, stat.started));
        Self { pid: std::process::id(), started, command }
    }

    /// Whether it is the same one, as far as its number and its start say.
    pub(super) fn is(&self, other: &Self) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }

    /// From what [`Self::command_words`] gave.
    pub(super) fn new(pid: u32, started: u64, words: [u64; 2]) -> Self {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
        // What another process wrote goes to terminals.
        let command = String::from_utf8_lossy(&bytes).chars().filter(|char| !char.is_control()).collect();
        Self { pid, started, command }
    }

    /// The command's name, as the file has it.
    pub(super) fn command_words(&self) -> [u64; 2] {
        let mut bytes = [0; 16];
        for (to, from) in bytes.iter_mut().zip(self.command.bytes()) {
            *to = from;
        }
        [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte])))
    }

    /// What it does now.
    pub(super) fn state(&self) -> State {
        match stat(&self.pid.to_string()) {
            Some(stat) if stat.started == self.started => {
                if matches!(stat.state, 'T' | 't') {
                    State::Stopped
                } else {
                    State::Running
                }
            }
            _ => State::Unseen,
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, command, .. } = self;
        if command.is_empty() { write!(f, "process {pid}") } else { write!(f, "process {pid} ({command})") }
    }
}

/// `None` where the process cannot be seen.
fn stat(process: &str) -> Option<Stat> {
    parse(&fs::read(format!("/proc/{process}/stat")).ok()?)
}

/// Of `pid (command) state ...`: a command may have brackets and spaces of its own.
fn parse(text: &[u8]) -> Option<Stat> {
    let text = String::from_utf8_lossy(text);
    let (before, after) = text.rsplit_once(')')?;
    let command = before.split_once('(')?.1.to_owned();
    let mut fields = after.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is the third field of proc(5), and the start the 22nd.
    Some(Stat { command, state, started: fields.nth(18)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_have_brackets_and_spaces() {
        let line = b"42 (a) b (c)) T 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 1234567 20 21";
        let stat = parse(line).expect("a line of /proc");
        assert_eq!((stat.command.as_str(), stat.state, stat.started), ("a) b (c)", 'T', 1_234_567));
        assert!(parse(b"").is_none() && parse(b"42 (a) T 1 2").is_none());
    }

    #[test]
    fn a_process_is_found_again_by_what_the_file_has() {
        let current = Process::current();
        let again = Process::new(current.pid, current.started, current.command_words());
        assert_eq!(again.state(), State::Running);
        assert_eq!((again.pid, again.started), (current.pid, current.started));
        assert!(current.command.starts_with(&again.command) && !again.command.is_empty());
        assert_eq!(Process { started: current.started + 1, ..current }.state(), State::Unseen);
        let named = Process::new(7, 0, [u64::from_le_bytes(*b"py\x1bthon\n"), 0]);
        assert_eq!(named.to_string(), "process 7 (python)");
    }
}
