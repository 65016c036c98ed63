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
const ALLOWED_CIRCLES: &[&[&str]] = &[
    &[
        "memory/arena/compaction.rs",
        "memory/arena/idle.rs",
        "memory/arena/mod.rs",
        "memory/arena/recording.rs",
        "memory/arena/scratch.rs",
        "memory/arena/state.rs",
        "memory/compaction/costs.rs",
        "memory/compaction/layout.rs",
        "memory/compaction/plan.rs",
        "memory/compaction/plan/clear.rs",
        "memory/compaction/plan/evacuate.rs",
        "memory/compaction/plan/gather.rs",
        "memory/compaction/plan/pack.rs",
        "memory/compaction/plan/picture.rs",
        "memory/compaction/plan/pin.rs",
        "memory/compaction/plan/slide.rs",
        "memory/compaction/plan/windows.rs",
        "memory/history.rs",
        "memory/mod.rs",
        "memory/oom.rs",
        "memory/slab.rs",
        "memory/space/mod.rs",
        "memory/space/moves.rs",
        "memory/strategy/growing.rs",
        "memory/strategy/mod.rs",
        "memory/strategy/platform.rs",
        "memory/strategy/pool.rs",
        "memory/strategy/preallocate.rs",
        "memory/table.rs",
    ],
    &[
        "api/arena/admission.rs",
        "api/arena/compaction.rs",
        "api/arena/device_memory.rs",
        "api/arena/devices.rs",
        "api/arena/idle.rs",
        "api/arena/pinned_host.rs",
        "api/arena/room.rs",
        "api/buffer.rs",
        "api/buffer/storage.rs",
        "api/client.rs",
        "api/execute/beside/clients.rs",
        "api/execute/context.rs",
        "api/execute/spares.rs",
        "api/extensions.rs",
        "api/flight.rs",
        "api/partitioners.rs",
        "api/profiler.rs",
        "api/programs/bound.rs",
        "api/programs/compile.rs",
        "api/programs/cost.rs",
        "api/programs/executable.rs",
        "api/programs/loaded.rs",
        "api/state.rs",
        "api/table.rs",
    ],
    &[
        "program/bytecode/container.rs",
        "program/bytecode/mod.rs",
        "program/bytecode/ops.rs",
        "program/bytecode/reader.rs",
        "program/bytecode/tables.rs",
        "program/bytecode/writer.rs",
        "program/memories.rs",
        "program/mod.rs",
        "program/rewrite.rs",
        "program/sharding.rs",
        "program/signature.rs",
        "program/tie.rs",
        "program/vhlo.rs",
    ],
    &[
        "config/claim.rs",
        "config/engine_options.rs",
        "config/limit.rs",
        "config/mod.rs",
        "config/pinned_limit.rs",
        "config/report.rs",
        "config/strategy.rs",
        "config/table.rs",
        "config/values.rs",
    ],
    &[
        "report/snapshot/html.rs",
        "report/snapshot/json.rs",
        "report/snapshot/mod.rs",
        "report/snapshot/perfetto.rs",
        "report/snapshot/pickle.rs",
    ],
    &["api/execute/candidates.rs", "api/execute/gifts.rs", "api/execute/lane.rs", "api/execute/stand_in.rs"],
    &["api/python/arrays.rs", "api/python/gil.rs", "api/python/handler.rs", "api/python/mod.rs"],
    &["device/cuda/driver.rs", "device/cuda/failure.rs", "device/cuda/probe.rs", "device/cuda/vendor.rs"],
    &["engine/ffi.rs", "engine/handles.rs", "engine/library.rs", "engine/thrown.rs"],
    &["api/entry.rs", "api/error.rs", "api/plugin.rs"],
    &["device/host/exchange.rs", "device/host/mod.rs", "device/host/mover.rs"],
    &["api/ffi/states.rs", "api/ffi/tables.rs"],
    &["device/cuda/backing.rs", "device/cuda/carrier.rs"],
    &["engine/scratch/mod.rs", "engine/scratch/pool.rs"],
];
/// Arrows from a lower layer to a higher one that may stay.
const ALLOWED_UPWARD: &[(&str, &str)] = &[
    ("config/mod.rs", "memory/mod.rs"),
    ("config/strategy.rs", "memory/mod.rs"),
    ("config/values.rs", "memory/mod.rs"),
    ("config/values.rs", "report/snapshot/file.rs"),
];

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
