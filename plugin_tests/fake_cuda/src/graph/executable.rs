//! Executable graphs: a snapshot of a graph, in an order in which it may run.

use std::collections::BTreeSet;

use crate::{
    clock::{Clock, Point},
    graph::{Content, Task},
    operation::Order,
    state::{Driver, State},
    status::{self, Answer, Failure, misuse},
};

/// What `cuGraphInstantiate` gave.
#[derive(Debug)]
pub struct Executable {
    plan: Plan,
    /// The last operation of its last launch, and what had happened by then.
    last: Option<(Point, Clock)>,
}

/// A graph as it was.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its nodes in the order in which they were added.
    steps: Vec<Step>,
    /// Their places in an order that keeps the dependencies.
    order: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Step {
    node: u64,
    /// The places of the nodes that it comes after.
    after: BTreeSet<usize>,
    content: Content<Plan>,
}

impl Plan {
    /// # Errors
    /// The graph is not known, or its dependencies go in a circle.
    fn new(driver: &State, graph: u64) -> Answer<Self> {
        let nodes = &driver.graphs.graph(graph)?.nodes;
        let step = |&handle: &u64| -> Answer<Step> {
            let node = driver.graphs.node(handle)?;
            let content = match &node.content {
                Content::Task(task) => Content::Task(task.clone()),
                Content::Child(child) => Content::Child(Self::new(driver, *child)?),
            };
            let after = node.after.iter().filter_map(|before| nodes.iter().position(|node| node == before)).collect();
            Ok(Step { node: handle, after, content })
        };
        let steps = nodes.iter().map(step).collect::<Answer<Vec<_>>>()?;
        let order = order(graph, &steps)?;
        Ok(Self { steps, order })
    }

    /// The tasks with their nodes, in order, those of child graphs in their node's place.
    fn tasks(&self) -> Vec<(u64, &Task)> {
        let steps = self.order.iter().filter_map(|&place| self.steps.get(place));
        let tasks = steps.flat_map(|step| match &step.content {
            Content::Task(task) => vec![(step.node, task)],
            Content::Child(child) => child.tasks(),
        });
        tasks.collect()
    }

    fn find(&mut self, node: u64) -> Option<&mut Content<Self>> {
        self.steps.iter_mut().find_map(|step| match &mut step.content {
            content if step.node == node => Some(content),
            Content::Child(child) => child.find(node),
            Content::Task(_) => None,
        })
    }

    /// Takes over the tasks of a plan with the same nodes in the same order. The nodes keep their handles.
    ///
    /// # Errors
    /// A sentence that says where the other one differs.
    fn adopt(&mut self, other: Self) -> Result<(), String> {
        let (ours, theirs) = (self.steps.len(), other.steps.len());
        if ours != theirs {
            return Err(format!("it has {theirs} nodes, not {ours}"));
        }
        for (place, (step, new)) in self.steps.iter_mut().zip(other.steps).enumerate() {
            if step.after != new.after {
                return Err(format!("its node {place} comes after {:?}, not after {:?}", new.after, step.after));
            }
            match (&mut step.content, new.content) {
                (Content::Child(child), Content::Child(new)) => child.adopt(new)?,
                (old, new) if old.kind() == new.kind() => *old = new,
                (old, new) => return Err(format!("its node {place} is a {}, not a {}", new.name(), old.name())),
            }
        }
        Ok(())
    }
}

/// An order of the steps that keeps their dependencies, and otherwise that in which they were added.
fn order(graph: u64, steps: &[Step]) -> Answer<Vec<usize>> {
    let (mut order, mut done) = (Vec::new(), BTreeSet::new());
    while order.len() < steps.len() {
        let ready = |(place, step): &(usize, &Step)| !done.contains(place) && step.after.is_subset(&done);
        let Some((place, _)) = steps.iter().enumerate().find(ready) else {
            let nodes = steps.iter().enumerate().filter(|(place, _)| !done.contains(place));
            let nodes: Vec<_> = nodes.map(|(_, step)| format!("{:#x}", step.node)).collect();
            let why = format!("the graph {graph:#x} has a cycle: none of {} can be the first", nodes.join(", "));
            return Err(misuse(status::INVALID_VALUE, why));
        };
        order.push(place);
        done.insert(place);
    }
    Ok(order)
}

fn find(driver: &mut State, handle: u64) -> Answer<&mut Executable> {
    let unknown =
        || misuse(status::INVALID_VALUE, format!("{handle:#x} is no executable graph, or was destroyed before"));
    driver.graphs.executables.get_mut(&handle).ok_or_else(unknown)
}

fn content(driver: &mut State, handle: u64, node: u64) -> Answer<&mut Content<Plan>> {
    let foreign = || misuse(status::INVALID_VALUE, format!("the executable graph {handle:#x} has no node {node:#x}"));
    find(driver, handle)?.plan.find(node).ok_or_else(foreign)
}

/// `cuGraphInstantiate`.
pub fn instantiate(driver: &mut Driver, graph: u64) -> Answer<u64> {
    driver.working()?;
    let plan = Plan::new(driver, graph)?;
    let handle = driver.number() << 8;
    driver.graphs.executables.insert(handle, Executable { plan, last: None });
    Ok(handle)
}

/// `cuGraphExecDestroy`: launches that are in streams are still done.
pub fn destroy(driver: &mut Driver, handle: u64) -> Answer {
    find(driver, handle)?;
    driver.graphs.executables.remove(&handle);
    Ok(())
}

/// `cuGraphExecKernelNodeSetParams` and those like it: what the node does from the next launch on.
pub fn set_task(driver: &mut Driver, handle: u64, node: u64, task: Task) -> Answer {
    let content = content(driver, handle, node)?;
    if content.kind() != task.kind() {
        let why = format!("the node {node:#x} is a {}, no {}", content.name(), task.name());
        return Err(misuse(status::INVALID_VALUE, why));
    }
    *content = Content::Task(task);
    Ok(())
}

/// `cuGraphExecChildGraphNodeSetParams`: the node's graph does from the next launch on what `child` says now.
pub fn set_child(driver: &mut Driver, handle: u64, node: u64, child: u64) -> Answer {
    let new = Plan::new(driver, child)?;
    let Content::Child(old) = content(driver, handle, node)? else {
        return Err(misuse(status::INVALID_VALUE, format!("the node {node:#x} is no child graph node")));
    };
    // What does not fit must not be taken over in part.
    let mut plan = old.clone();
    plan.adopt(new).map_err(|why| {
        misuse(
            status::GRAPH_EXEC_UPDATE_FAILURE,
            format!("the graph {child:#x} does not fit the node {node:#x}: {why}"),
        )
    })?;
    *old = plan;
    Ok(())
}

/// `cuGraphUpload`: there is nothing to upload.
pub fn upload(driver: &mut Driver, handle: u64, stream: usize) -> Answer {
    driver.line_to_use(stream)?;
    find(driver, handle).map(|_| ())
}

/// `cuGraphLaunch`: all nodes are checked before the first one is put into the stream.
pub fn launch(driver: &mut Driver, handle: u64, stream: usize) -> Answer {
    let (line, gpu) = driver.line_to_use(stream)?;
    let Executable { plan, last } = find(driver, handle)?;
    let tasks: Vec<_> = plan.tasks().into_iter().map(|(node, task)| (node, task.clone())).collect();
    let last = last.clone();
    let order = |(node, task): &(u64, Task)| -> Answer<Order> {
        task.order(driver, gpu).map_err(|Failure { code, violation }| {
            let sentence = |why| format!("the {} {node:#x} of {handle:#x}: {why}", task.name());
            Failure { code, violation: violation.map(sentence) }
        })
    };
    let mut orders = tasks.iter().map(order).collect::<Answer<Vec<_>>>()?;
    let captured = driver.capture_status(line) != 0;
    if let (false, Some((point, clock)), Some(first)) = (captured, last, orders.first_mut()) {
        // Launches of one executable graph come one after another, in whatever streams.
        first.after.push(point);
        first.seen.join(&clock);
    }
    for order in orders {
        driver.issue(line, order)?;
    }
    if !captured {
        let (point, clock) = (driver.tail(line), driver.streams[&line].clock.clone());
        find(driver, handle)?.last = Some((point, clock));
    }
    Ok(())
}
