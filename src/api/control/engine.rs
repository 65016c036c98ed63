//! The engine for C callers: which one it is, before it is loaded. What a GPU's engine needs in the process has to be
//! loaded first.

use serde_json::{Value, json};

use crate::{
    api::text::text_functions,
    config::{self, Environment},
    engine::process,
    error::Result,
};

text_functions! {
    /// The engine that is loaded, or that would be with the present environment, as JSON: `kind` is `"cpu"`, `"cuda"`
    /// or `"rocm"`, or null if the file's name does not tell; `path` is its file. Or `error`, one sentence that says
    /// why there is none. Loads nothing into this process; engines for CPUs are tried in one of their own.
    pub fn pjrt_arena_engine() -> String {
        engine().unwrap_or_else(|error| json!({"error": error.message})).to_string()
    }
}

fn engine() -> Result<Value> {
    let (kind, path) = match process::loaded() {
        Some((engine, kind)) => (kind, engine.path().to_path_buf()),
        None => {
            let environment = Environment::of_process();
            let (request, _) = config::before_client(&environment)?;
            let choice = process::choose(&request, &environment)?;
            (choice.taken().kind, choice.taken().path.clone())
        }
    };
    Ok(json!({"kind": kind.map(|kind| kind.name()), "path": path.to_string_lossy()}))
}
