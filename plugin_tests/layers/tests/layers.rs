//! The files of the plugin make no circle, and none names what stands in a layer above it.
//!
//! What is allowed beyond that is recorded here, and only shrinks: an entry that nothing needs any more fails the test
//! until it is removed. `cargo run -q -p layers -- --allowance` prints the two constants as they would allow what
//! there is now, and `make layers` prints the arrows that tie each circle.

#[path = "layers/reading.rs"]
mod reading;

use std::collections::BTreeSet;

use layers::{graph::Graph, order, plugin_sources, report, tree};

/// Each is the files of a circle that may stay. A circle of only some of these files may stay, too.
const ALLOWED_CIRCLES: &[&[&str]] = &[];
/// Arrows from a lower layer to a higher one that may stay.
const ALLOWED_UPWARD: &[(&str, &str)] = &[];

fn graph() -> Graph {
    let sources = tree::read(&plugin_sources()).expect("the sources of the plugin");
    Graph::new(&sources).expect("sources that can be read")
}

/// Which of the allowed circles holds `circle`.
fn allowing(circle: &BTreeSet<String>) -> Option<usize> {
    ALLOWED_CIRCLES.iter().position(|allowed| circle.iter().all(|file| allowed.contains(&file.as_str())))
}

fn complaints_of_circles(graph: &Graph) -> String {
    let circles = graph.circles();
    let mut complaints = String::new();
    for circle in circles.iter().filter(|circle| allowing(circle).is_none()) {
        complaints.push_str("these files make a circle that is not allowed:\n");
        graph.arrows_within(circle).for_each(|arrow| complaints.push_str(&format!("  {}\n", report::arrow(arrow))));
    }
    let needed: BTreeSet<usize> = circles.iter().filter_map(allowing).collect();
    for (at, allowed) in ALLOWED_CIRCLES.iter().enumerate().filter(|(at, _)| !needed.contains(at)) {
        complaints.push_str(&format!("entry {at} of ALLOWED_CIRCLES can go, its circle is no more: {allowed:?}\n"));
    }
    complaints
}

fn complaints_of_upward_arrows(graph: &Graph) -> String {
    let upward: Vec<_> = graph.upward().collect();
    let mut complaints = String::new();
    for arrow in upward.iter().filter(|(from, to, _)| !ALLOWED_UPWARD.contains(&(*from, *to))) {
        complaints.push_str(&format!("this arrow points up: {}\n", report::arrow(*arrow)));
    }
    let exists = |allowed: &(&str, &str)| upward.iter().any(|(from, to, _)| (*from, *to) == *allowed);
    for allowed in ALLOWED_UPWARD.iter().filter(|allowed| !exists(allowed)) {
        complaints.push_str(&format!("{allowed:?} of ALLOWED_UPWARD can go, there is no such arrow\n"));
    }
    complaints
}

fn complaints_of_unknown_layers(graph: &Graph) -> String {
    let layers: BTreeSet<&str> = graph.files.keys().map(|file| order::layer(file)).collect();
    let unknown = layers.into_iter().filter(|layer| order::row(layer).is_none());
    unknown.map(|layer| format!("the layer {layer} has no place in order::ORDER\n")).collect()
}

// One test, because reading the sources takes longer than all the rest.
#[test]
fn no_circle_and_no_arrow_that_points_up() {
    let graph = graph();
    assert!(graph.files.len() > 100, "only {} files were found", graph.files.len());
    let complaints =
        [complaints_of_circles(&graph), complaints_of_upward_arrows(&graph), complaints_of_unknown_layers(&graph)];
    assert!(complaints.iter().all(String::is_empty), "\n{}", complaints.concat());
}
