//! Graphs: work that is described once and launched many times.
//!
//! ```text
//!  cuGraphAdd...Node, or a captured stream (capture)        a graph: nodes, and which comes after which
//!        |                                                       |
//!        |                                                       | cuGraphInstantiate (executable): a snapshot, in an order
//!        |                                                       v
//!        |                                                  an executable graph <- cuGraphExec...NodeSetParams
//!        v                                                       |
//!  task: what a node does                                        | cuGraphLaunch: checks all nodes, then issues all
//!                                                                v
//!                                                  stream   [ node ] [ node ] [ node ]     operations like any other
//! ```
//!
//! A GPU may run nodes at once that do not depend on each other. Here they come one after another in the launch's
//! stream, which is one of the orders that CUDA allows; so what such nodes do to each other's memory is not looked for.

use std::collections::{BTreeMap, BTreeSet};

pub use capture::Capture;
pub use executable::Executable;
pub use task::Task;

use crate::{
    clock::Line,
    state::State,
    status::{self, Answer, misuse},
};

pub mod capture;
pub mod dot;
pub mod executable;
mod task;

/// The value of an attribute of a kernel node, `CUlaunchAttributeValue` in C.
pub type Attribute = [u8; 64];

/// All that has to do with graphs.
#[derive(Debug, Default)]
pub struct Graphs {
    /// Graphs, by handle.
    graphs: BTreeMap<u64, Graph>,
    /// The nodes of all graphs, by handle.
    nodes: BTreeMap<u64, Node>,
    /// Executable graphs, by handle.
    executables: BTreeMap<u64, Executable>,
    /// Streams whose work goes into a graph.
    captures: BTreeMap<Line, Capture>,
}

/// What `cuGraphCreate` gave, or the graph inside of a node.
#[derive(Debug, Default)]
struct Graph {
    /// Its nodes in the order in which they were added.
    nodes: Vec<u64>,
    /// The node that it is inside of.
    owner: Option<u64>,
}

/// One node.
#[derive(Debug)]
struct Node {
    graph: u64,
    content: Content<u64>,
    /// The nodes that it comes after.
    after: BTreeSet<u64>,
    /// What was set by `cuGraphKernelNodeSetAttribute`, to be told again.
    attributes: BTreeMap<u32, Attribute>,
}

/// What is in a node: a task, or a graph.
#[derive(Clone, Debug)]
pub enum Content<Child> {
    /// A task.
    Task(Task),
    /// A graph.
    Child(Child),
}

impl<Child> Content<Child> {
    /// Its type, `CUgraphNodeType` in C.
    pub fn kind(&self) -> u32 {
        match self {
            Self::Task(task) => task.kind(),
            Self::Child(_) => 4,
        }
    }

    /// Its type in words.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Task(task) => task.name(),
            Self::Child(_) => "child graph node",
        }
    }
}

impl Graphs {
    fn graph(&self, handle: u64) -> Answer<&Graph> {
        let unknown = || misuse(status::INVALID_VALUE, format!("{handle:#x} is no graph, or was destroyed before"));
        self.graphs.get(&handle).ok_or_else(unknown)
    }

    fn node(&self, handle: u64) -> Answer<&Node> {
        let unknown = || misuse(status::INVALID_VALUE, format!("{handle:#x} is no node, or its graph was destroyed"));
        self.nodes.get(&handle).ok_or_else(unknown)
    }

    /// Refuses what is no node of this graph.
    fn member(&self, graph: u64, node: u64) -> Answer {
        let of = self.node(node)?.graph;
        if of == graph {
            return Ok(());
        }
        Err(misuse(status::INVALID_VALUE, format!("the node {node:#x} is of the graph {of:#x}, not of {graph:#x}")))
    }

    /// Refuses a node that runs no kernel.
    fn kernel(&self, node: u64) -> Answer {
        match &self.node(node)?.content {
            Content::Task(task) if task.kind() == task::KERNEL => Ok(()),
            other => Err(misuse(status::INVALID_VALUE, format!("{node:#x} is a {}, no kernel node", other.name()))),
        }
    }

    /// Refuses a graph that a stream is being captured into.
    fn quiet(&self, graph: u64) -> Answer {
        if self.captures.values().any(|capture| capture.graph == graph) {
            return Err(misuse(status::INVALID_VALUE, format!("a stream is being captured into the graph {graph:#x}")));
        }
        Ok(())
    }

    /// Removes a graph with its nodes and what is inside of them.
    fn remove(&mut self, graph: u64) {
        let nodes = self.graphs.remove(&graph).map(|graph| graph.nodes).unwrap_or_default();
        for node in nodes {
            if let Some(Node { content: Content::Child(child), .. }) = self.nodes.remove(&node) {
                self.remove(child);
            }
        }
    }
}

/// `cuGraphCreate`.
pub fn create(driver: &mut State) -> u64 {
    let handle = driver.number() << 8;
    driver.graphs.graphs.insert(handle, Graph::default());
    handle
}

/// `cuGraphDestroy`. What was made of it, and what runs of that, stays.
pub fn destroy(driver: &mut State, graph: u64) -> Answer {
    if let Some(owner) = driver.graphs.graph(graph)?.owner {
        let why = format!("the graph {graph:#x} is the child graph of the node {owner:#x}, which destroys it");
        return Err(misuse(status::INVALID_VALUE, why));
    }
    driver.graphs.quiet(graph)?;
    driver.graphs.remove(graph);
    Ok(())
}

/// Adds a node that comes after others.
pub fn add(driver: &mut State, graph: u64, after: &[u64], task: Task) -> Answer<u64> {
    insert(driver, graph, after, |_, _| Ok(Content::Task(task)))
}

/// `cuGraphAddChildGraphNode`: the node gets a graph of its own, which is as `child` is now.
pub fn add_child(driver: &mut State, graph: u64, after: &[u64], child: u64) -> Answer<u64> {
    driver.graphs.graph(child)?;
    insert(driver, graph, after, |driver, node| Ok(Content::Child(copy(driver, child, node)?)))
}

/// A node of the type child graph that moves it: `child` is the node's from then on.
pub fn move_child(driver: &mut State, graph: u64, after: &[u64], child: u64) -> Answer<u64> {
    if let Some(owner) = driver.graphs.graph(child)?.owner {
        let why = format!("the graph {child:#x} is the child graph of the node {owner:#x} already");
        return Err(misuse(status::INVALID_VALUE, why));
    }
    driver.graphs.quiet(child)?;
    let mut outer = Some(graph);
    while let Some(graph) = outer {
        if graph == child {
            return Err(misuse(status::INVALID_VALUE, format!("the graph {child:#x} cannot be inside of itself")));
        }
        let owner = driver.graphs.graph(graph)?.owner;
        outer = owner.map(|node| driver.graphs.node(node)).transpose()?.map(|node| node.graph);
    }
    insert(driver, graph, after, |driver, node| {
        if let Some(child) = driver.graphs.graphs.get_mut(&child) {
            child.owner = Some(node);
        }
        Ok(Content::Child(child))
    })
}

fn insert(
    driver: &mut State,
    graph: u64,
    after: &[u64],
    content: impl FnOnce(&mut State, u64) -> Answer<Content<u64>>,
) -> Answer<u64> {
    driver.graphs.graph(graph)?;
    let mut before = BTreeSet::new();
    for &node in after {
        driver.graphs.member(graph, node)?;
        if !before.insert(node) {
            return Err(misuse(status::INVALID_VALUE, format!("the node {node:#x} is named twice as a dependency")));
        }
    }
    let handle = driver.number() << 8;
    let content = content(driver, handle)?;
    driver.graphs.nodes.insert(handle, Node { graph, content, after: before, attributes: BTreeMap::new() });
    if let Some(graph) = driver.graphs.graphs.get_mut(&graph) {
        graph.nodes.push(handle);
    }
    Ok(handle)
}

/// A graph like another one, for a node.
fn copy(driver: &mut State, graph: u64, owner: u64) -> Answer<u64> {
    let nodes = driver.graphs.graph(graph)?.nodes.clone();
    let new = create(driver);
    let twins: BTreeMap<u64, u64> = nodes.iter().map(|&node| (node, driver.number() << 8)).collect();
    for (node, &twin) in nodes.iter().filter_map(|node| twins.get_key_value(node)) {
        let Node { content, after, attributes, .. } = driver.graphs.node(*node)?;
        let after = after.iter().filter_map(|node| twins.get(node).copied()).collect();
        let (content, attributes) = (content.clone(), attributes.clone());
        let content = match content {
            Content::Child(child) => Content::Child(copy(driver, child, twin)?),
            task => task,
        };
        driver.graphs.nodes.insert(twin, Node { graph: new, content, after, attributes });
    }
    let nodes = nodes.iter().filter_map(|node| twins.get(node).copied()).collect();
    driver.graphs.graphs.insert(new, Graph { nodes, owner: Some(owner) });
    Ok(new)
}

/// `cuGraphAddDependencies`: each node of `to` comes after the one of `from` at the same place.
pub fn depend(driver: &mut State, graph: u64, from: &[u64], to: &[u64]) -> Answer {
    driver.graphs.graph(graph)?;
    for &node in from.iter().chain(to) {
        driver.graphs.member(graph, node)?;
    }
    for (&from, to) in from.iter().zip(to) {
        let added = driver.graphs.nodes.get_mut(to).is_some_and(|node| node.after.insert(from));
        if !added {
            return Err(misuse(status::INVALID_VALUE, format!("the node {to:#x} comes after {from:#x} already")));
        }
    }
    Ok(())
}

/// `cuGraphGetNodes`, in the order in which they were added.
pub fn nodes(driver: &State, graph: u64) -> Answer<Vec<u64>> {
    Ok(driver.graphs.graph(graph)?.nodes.clone())
}

/// `cuGraphGetRootNodes`: those that come after none.
pub fn roots(driver: &State, graph: u64) -> Answer<Vec<u64>> {
    let first = |node: &u64| driver.graphs.nodes.get(node).is_some_and(|node| node.after.is_empty());
    Ok(nodes(driver, graph)?.into_iter().filter(first).collect())
}

/// `cuGraphNodeGetType`.
pub fn kind(driver: &State, node: u64) -> Answer<u32> {
    Ok(driver.graphs.node(node)?.content.kind())
}

/// `cuGraphChildGraphNodeGetGraph`.
pub fn child(driver: &State, node: u64) -> Answer<u64> {
    match &driver.graphs.node(node)?.content {
        Content::Child(child) => Ok(*child),
        other => Err(misuse(status::INVALID_VALUE, format!("{node:#x} is a {}, no child graph node", other.name()))),
    }
}

/// `cuGraphKernelNodeGetAttribute`. What was never set is all zeros.
pub fn attribute(driver: &State, node: u64, which: u32) -> Answer<Attribute> {
    driver.graphs.kernel(node)?;
    Ok(driver.graphs.node(node)?.attributes.get(&which).copied().unwrap_or([0; 64]))
}

/// `cuGraphKernelNodeSetAttribute`: priorities, clusters and the like, which change nothing here.
pub fn set_attribute(driver: &mut State, node: u64, which: u32, value: Attribute) -> Answer {
    driver.graphs.kernel(node)?;
    if let Some(node) = driver.graphs.nodes.get_mut(&node) {
        node.attributes.insert(which, value);
    }
    Ok(())
}
