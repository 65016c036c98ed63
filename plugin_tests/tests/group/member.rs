//! A process that does what a test says, line by line.

use std::{
    collections::HashMap,
    env, fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use pjrt_arena::{
    group::{Ask, Folder, Group, Overview, Refused, Share, Taken, Terms, look_in},
    units::Bytes,
};

/// Set in the processes that serve.
const SERVES: &str = "PJRT_ARENA_TEST_MEMBER";

/// What an answer begins with, so that it is told from what the test harness prints.
const ANSWER: &str = "answer: ";

/// A folder of groups, which goes with the value.
pub struct Place(PathBuf);

impl Place {
    pub fn new() -> Self {
        let unique = format!("pjrt-arena-group-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let path = env::temp_dir().join(unique);
        fs::create_dir(&path).expect("a new folder");
        Self(path)
    }

    /// What `XDG_RUNTIME_DIR` is in the processes.
    pub fn runtime(&self) -> &Path {
        &self.0
    }

    pub fn folder(&self) -> PathBuf {
        self.0.join("pjrt-arena")
    }

    /// The file of the group that the tests have.
    pub fn file(&self) -> PathBuf {
        self.folder().join("team")
    }

    pub fn look(&self) -> Overview {
        look_in(&Folder::at(&self.folder()).expect("the folder"), "team").expect("a group")
    }

    /// What the members hold of the first device, as this process sees it.
    pub fn held(&self) -> u64 {
        self.look().devices[0].1.iter().map(|member| member.held.get()).sum()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process, killed at the end if it still lives.
pub struct Member {
    pub child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Member {
    pub fn new(place: &Place) -> Self {
        Self::through(place, &[])
    }

    /// As [`Self::new`], started by the command `before`.
    pub fn through(place: &Place, before: &[&str]) -> Self {
        let own = env::current_exe().expect("the test binary has a path");
        let mut command = match before {
            [] => Command::new(own),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(own);
                command
            }
        };
        command.args(["--exact", "process", "--nocapture", "--test-threads=1"]);
        command.env(SERVES, "1").env("XDG_RUNTIME_DIR", place.runtime());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("starting the process");
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { child, to, from: BufReader::new(from) }
    }

    /// A member of the group with a limit of 100 bytes, without a minimum.
    pub fn joined(place: &Place) -> Self {
        let mut member = Self::new(place);
        assert_eq!(member.tell("join 100"), "joined");
        member
    }

    /// Has it do something; what came of it.
    pub fn tell(&mut self, what: &str) -> String {
        self.begin(what);
        self.answer()
    }

    /// Has it do something.
    pub fn begin(&mut self, what: &str) {
        writeln!(self.to, "{what}").expect("the process listens");
    }

    /// What came of what it was told first.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.from.read_line(&mut line).expect("reading"), 0, "the process has ended");
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return answer.trim_end().to_owned();
            }
        }
    }

    pub fn signal(&self, signal: i32) {
        send(self.child.id(), signal);
    }

    pub fn kill(mut self) {
        self.child.kill().expect("ending it");
        self.child.wait().expect("waiting for it");
    }

    /// Has it end by itself.
    pub fn end(mut self) {
        self.begin("end");
        assert!(self.child.wait().expect("waiting for it").success());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn send(pid: u32, signal: i32) {
    // SAFETY: it takes two numbers; the process is a child of this one that nobody has waited for.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// Looks until it is so, for a minute: there is no other bound on what a busy machine does.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What a process has.
#[derive(Default)]
pub struct State {
    pub group: Option<Arc<Group>>,
    pub share: Option<Share>,
    pub taken: Vec<Taken>,
    asks: HashMap<String, Ask>,
    /// A descriptor that is not the library's.
    foreign: Option<fs::File>,
}

impl State {
    pub fn share(&self) -> &Share {
        self.share.as_ref().expect("it has joined")
    }
}

/// The loop of a process.
pub fn serve() {
    if env::var_os(SERVES).is_none() {
        return;
    }
    let mut state = State::default();
    for line in std::io::stdin().lines() {
        let line = line.expect("reading");
        let words: Vec<&str> = line.split_whitespace().collect();
        if words == ["end"] {
            break;
        }
        println!("{ANSWER}{}", act(&mut state, &words));
    }
}

fn bytes(word: &str) -> Bytes {
    word.parse().expect("a number of bytes")
}

fn act(state: &mut State, words: &[&str]) -> String {
    match words {
        // The limit, and perhaps the minimum, the weight, how many devices, and that they are GPUs.
        ["join", limit, rest @ ..] => {
            let number = |at: usize, default: u64| rest.get(at).map_or(default, |word| bytes(word).get());
            let terms = Terms {
                limits: vec![bytes(limit); number(2, 1) as usize],
                platform: rest.get(3).map_or("cpu", |_| "cuda"),
                explicit_limit: true,
                min: Bytes::new(number(0, 0)),
                weight: number(1, 100) as u32,
            };
            match Group::join("team", &terms) {
                Ok(joined) => {
                    state.share = Some(joined.group.share(0).expect("a device"));
                    state.group = Some(joined.group);
                    joined.notes.first().cloned().unwrap_or_else(|| "joined".into())
                }
                Err(error) => error.to_string(),
            }
        }
        ["leave"] => {
            *state = State::default();
            "left".into()
        }
        ["take", count] => match state.share().take(bytes(count)) {
            Ok(taken) => {
                state.taken.push(taken);
                "taken".into()
            }
            Err(refused) => refused.to_string(),
        },
        ["give"] => state.taken.pop().map_or("nothing".into(), |taken| format!("gave {}", taken.bytes().get())),
        ["trim", count] => {
            state.taken.last_mut().expect("it holds some").trim_to(bytes(count));
            "trimmed".into()
        }
        ["available"] => state.share().available().get().to_string(),
        ["held"] => state.share().held().get().to_string(),
        ["publish", used, idle] => {
            state.share().publish(bytes(used), bytes(idle));
            "published".into()
        }
        ["wanted"] => {
            let wanted = state.share().wanted();
            format!("{} {}", wanted.idle.get(), wanted.beyond.get())
        }
        ["ask", name, count, millis] => {
            let until = Instant::now() + Duration::from_millis(millis.parse().expect("a number"));
            let ask = state.share().ask(bytes(count), until).expect("a member");
            state.asks.insert((*name).to_owned(), ask);
            "asked".into()
        }
        ["withdraw", name] => state.asks.remove(*name).map_or("nothing", |_| "withdrawn").into(),
        // Until what was asked for can be taken, as the reclaim loop waits.
        ["await", name] => {
            let ask = &state.asks[*name];
            while !ask.is_served() {
                ask.wait(Duration::from_secs(60));
            }
            "served".into()
        }
        // Until somebody asks; a look first, as whoever answers has.
        ["listen", seen] => {
            let group = state.group.as_ref().expect("it has joined");
            group.wait_for_asks(seen.parse().expect("a number"), Duration::from_secs(60)).to_string()
        }
        ["asks"] => state.group.as_ref().expect("it has joined").asks().to_string(),
        ["sweep"] => state.group.as_ref().expect("it has joined").sweep().to_string(),
        ["members"] => match state.group.as_ref().expect("it has joined").members(0) {
            Ok(members) => members
                .iter()
                .map(|it| format!("{}:{:?}:{}", it.process.pid, it.state, it.held.get()))
                .collect::<Vec<_>>()
                .join(" "),
            Err(error) => error.to_string(),
        },
        ["look"] => format!("{}", pjrt_arena::group::look("team").expect("a group").devices[0].1.len()),
        ["pid"] => std::process::id().to_string(),
        // Joins and leaves so often, without a rest.
        ["cycle", count] => {
            for round in 0..count.parse().expect("a number") {
                let answer = act(state, &["join", "100"]);
                if answer != "joined" {
                    return format!("round {round}: {answer}");
                }
                state.taken.push(state.share().take(Bytes::new(3)).expect("room"));
                act(state, &["leave"]);
            }
            "cycled".into()
        }
        // Takes and gives until it is killed.
        ["churn", seed] => {
            let mut random = fastrand::Rng::with_seed(seed.parse().expect("a number"));
            println!("{ANSWER}churning");
            loop {
                match state.share().take(Bytes::new(random.u64(1..40))) {
                    Err(Refused::Broken(error)) => panic!("{error}"),
                    Ok(taken) if random.bool() => state.taken.push(taken),
                    _ => drop(state.taken.pop()),
                }
            }
        }
        // The books' lock, as a process has it that is stopped while it reads.
        ["seize", path] => {
            let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("the file");
            let mut lock = libc::flock {
                l_type: libc::F_WRLCK as i16,
                l_whence: libc::SEEK_SET as i16,
                l_start: 0,
                l_len: 1,
                l_pid: 0,
            };
            let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
            // SAFETY: the descriptor is open, and the command takes a pointer to a `flock`, which is valid.
            assert_eq!(unsafe { libc::fcntl(descriptor, libc::F_SETLKW, &raw mut lock) }, 0);
            state.foreign = Some(file);
            "seized".into()
        }
        // As another copy of the library has it.
        ["map", path] => {
            let file = fs::File::open(path).expect("the file");
            let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
            // SAFETY: the kernel chooses the address, and nobody refers to the memory.
            let start =
                unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, descriptor, 0) };
            assert_ne!(start, libc::MAP_FAILED);
            "mapped".into()
        }
        // As a library does that reads the file for itself.
        ["reopen", path] => {
            drop(fs::File::open(path).expect("the file"));
            "closed".into()
        }
        ["tick"] => {
            state.group.as_ref().expect("it has joined").look_after();
            "looked".into()
        }
        // As programs do that become a service.
        ["close"] => {
            // SAFETY: what this process does with its other descriptors ends here: it is killed.
            assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
            "closed".into()
        }
        ["fork"] => crate::death::in_a_child(state),
        _ => panic!("unknown: {words:?}"),
    }
}
