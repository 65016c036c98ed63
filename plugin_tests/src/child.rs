//! Tests that need a process of their own: other environment variables, or a crash that must not take others along.

use std::{
    env,
    io::Read,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::event::HANG;

/// Set in children to the name of the one test that they run.
const CHILD: &str = "PJRT_ARENA_TEST_CHILD";

/// Runs the rest of the calling test in a child process with `env` added (an empty value removes the variable).
///
/// The body runs only in the child; the parent waits for it and gives its standard error.
///
/// # Panics
/// When the child fails, crashes or hangs.
#[macro_export]
macro_rules! in_child {
    ($env:expr, $body:expr) => {{
        fn here() {}
        let path = ::std::any::type_name_of_val(&here);
        let name = path.strip_suffix("::here").expect("the path ends with the function above");
        let name = name.split_once("::").expect("the path starts with the crate").1;
        $crate::child::run(name, $env, $body)
    }};
}

/// See [`in_child!`]. In the child itself: runs `body` and gives `None`.
pub fn run(name: &str, env: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    if env::var(CHILD).is_ok_and(|child| child == name) {
        body();
        return None;
    }
    let mut command = Command::new(env::current_exe().expect("the test binary has a path"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, name);
    for (variable, value) in env {
        if value.is_empty() {
            command.env_remove(variable);
        } else {
            command.env(variable, value);
        }
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starting the child");
    let out = drain(child.stdout.take().expect("piped"));
    let err = drain(child.stderr.take().expect("piped"));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("waiting for the child") {
            break status;
        }
        if start.elapsed() > HANG {
            child.kill().expect("ending the child");
            break child.wait().expect("waiting for the child");
        }
        thread::sleep(Duration::from_millis(5));
    };
    let (out, err) = (out.join().expect("reading"), err.join().expect("reading"));
    assert!(
        status.success(),
        "child {name} with {env:?} ended with {status} after {:?}:\n{out}\n{err}",
        start.elapsed()
    );
    assert!(out.contains("1 passed"), "child {name} ran no test:\n{out}");
    Some(err)
}

fn drain(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // A child that was killed may break the pipe; what came until then is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
