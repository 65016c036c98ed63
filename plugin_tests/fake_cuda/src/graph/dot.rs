//! A graph as text in the language of Graphviz, which programs print to look at.

use std::fmt::Write;

use crate::{graph::Content, state::State, status::Answer};

/// `cuGraphDebugDotPrint`'s text.
///
/// # Errors
/// The graph is not known.
pub fn text(driver: &State, graph: u64) -> Answer<String> {
    let mut text = "digraph {\n".to_owned();
    body(driver, graph, &mut text)?;
    text.push_str("}\n");
    Ok(text)
}

fn body(driver: &State, graph: u64, text: &mut String) -> Answer {
    for &handle in &driver.graphs.graph(graph)?.nodes {
        let node = driver.graphs.node(handle)?;
        // Writing to a `String` does not fail.
        let _ = writeln!(text, "  n{handle:x} [label=\"{}\"];", node.content.name());
        for after in &node.after {
            let _ = writeln!(text, "  n{after:x} -> n{handle:x};");
        }
        if let Content::Child(child) = node.content {
            let _ = writeln!(text, "  subgraph cluster_{child:x} {{");
            body(driver, child, text)?;
            text.push_str("  }\n");
        }
    }
    Ok(())
}
