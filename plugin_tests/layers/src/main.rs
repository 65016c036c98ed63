//! Prints what the layers of the plugin measure. `--allowance` prints the constants of the test instead, as they would
//! allow what there is now.

use std::{env, error::Error};

use layers::{graph::Graph, plugin_sources, report, tree};

fn main() -> Result<(), Box<dyn Error>> {
    let sources = tree::read(&plugin_sources())?;
    let graph = Graph::new(&sources)?;
    let text = match env::args().nth(1).as_deref() {
        None => report::text(&sources, &graph),
        Some("--allowance") => report::allowance(&graph),
        Some(other) => return Err(format!("unknown argument {other}: there is only --allowance").into()),
    };
    print!("{text}");
    Ok(())
}
