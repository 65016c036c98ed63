//! The files of the plugin make no circle, and none names what stands in a layer above it.
//!
//! What is allowed beyond that is recorded here, and only shrinks: an entry that nothing needs any more fails the test
//! until it is removed. `cargo run -q -p layers -- --allowance` prints the two constants as they would allow what
//! there is now, and `make layers` prints the arrows that tie each circle.

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

#[test]
fn no_circle_of_files() {
    let graph = graph();
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
    assert!(complaints.is_empty(), "{complaints}");
}

#[test]
fn no_arrow_points_up() {
    let graph = graph();
    let upward: Vec<_> = graph.upward().collect();
    let mut complaints = String::new();
    for arrow in upward.iter().filter(|(from, to, _)| !ALLOWED_UPWARD.contains(&(*from, *to))) {
        complaints.push_str(&format!("this arrow points up: {}\n", report::arrow(*arrow)));
    }
    for allowed in ALLOWED_UPWARD.iter().filter(|allowed| !upward.iter().any(|(from, to, _)| (*from, *to) == **allowed))
    {
        complaints.push_str(&format!("{allowed:?} of ALLOWED_UPWARD can go, there is no such arrow\n"));
    }
    assert!(complaints.is_empty(), "{complaints}");
}

#[test]
fn every_layer_has_its_place_in_the_order() {
    let graph = graph();
    assert!(graph.files.len() > 100, "only {} files were found", graph.files.len());
    let unknown: BTreeSet<&str> =
        graph.files.keys().map(|file| order::layer(file)).filter(|layer| order::row(layer).is_none()).collect();
    assert!(unknown.is_empty(), "not in order::ORDER: {unknown:?}");
}
