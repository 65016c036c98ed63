//! Groups: what a thread asks for between `ncclGroupStart` and `ncclGroupEnd`, as one operation for each communicator.
//! A call outside of a group is one of its own.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use super::communicator::Communicators;
use super::rendezvous::Meetings;
use super::{
    Kind, Launch, Task, bootstrap,
    communicator::{Channel, number_of_rank},
    of_cuda,
    rendezvous::Key,
    transfer::Part,
    wrong_argument, wrong_usage,
};
use crate::{
    KnownParts,
    clock::{Clock, Line, Point},
    memory::{Home, Place, User},
    operation::{Order, Work},
    state::{Driver, State},
    status::{Answer, Failure, Status, misuse},
};

/// What a rank has asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The function.
    pub what: &'static str,
    /// The rank's communicator.
    pub communicator: u64,
    /// The stream.
    pub stream: usize,
    /// What.
    pub task: Task,
    /// Whom with.
    pub role: Role,
    /// What it sends, if it does.
    pub send: u64,
    /// Where it receives, if it does.
    pub receive: u64,
}

/// Whom an operation is with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// All.
    Everybody,
    /// A rank that it sends to.
    Sender(i32),
    /// A rank that it receives from.
    Receiver(i32),
}

/// What a thread has asked for since the group began.
#[derive(Debug, Default)]
struct Group {
    depth: u32,
    failed: Option<Status>,
    joining: Vec<u64>,
    requests: Vec<Request>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

fn with<T: Default>(body: impl FnOnce(&mut Group) -> T) -> T {
    // At the end of a thread there is no group any more.
    GROUP.try_with(|group| body(&mut group.borrow_mut())).unwrap_or_default()
}

/// `ncclGroupStart`.
pub fn start() {
    with(|group| group.depth += 1);
}

/// `ncclGroupEnd`.
pub fn end(driver: &mut Driver) -> Answer {
    let ended = with(|group| {
        let inside = group.depth > 0;
        group.depth = group.depth.saturating_sub(1);
        inside.then(|| if group.depth == 0 { mem::take(group) } else { Group::default() })
    });
    let group = ended.ok_or_else(|| wrong_usage("called without ncclGroupStart"))?;
    if let Some(code) = group.failed {
        // The call that failed has said why; none of the group is done.
        return Err(code.into());
    }
    bootstrap::wait(driver, &group.joining)?;
    launch_all(driver, group.requests)
}

/// Notes that a call of a group has failed.
pub fn note_failure(code: Status) {
    with(|group| {
        if group.depth > 0 {
            group.failed.get_or_insert(code);
        }
    });
}

/// Waits for the other ranks of a new communicator: at the end of the group, if there is one.
pub fn join(driver: &mut Driver, handle: u64) -> Answer {
    let later = with(|group| {
        if group.depth > 0 {
            group.joining.push(handle);
        }
        group.depth > 0
    });
    if later { Ok(()) } else { bootstrap::wait(driver, &[handle]) }
}

/// Asks for an operation.
pub fn ask(driver: &mut Driver, request: Request) -> Answer {
    check(driver, &request)?;
    if request.role == Role::Everybody && request.task.count == 0 {
        return Ok(());
    }
    let later = with(|group| {
        if group.depth > 0 {
            group.requests.push(request);
        }
        group.depth > 0
    });
    if later { Ok(()) } else { launch_all(driver, vec![request]) }
}

/// What a rank uses, and whether it writes there.
fn check(driver: &Driver, request: &Request) -> Answer<Vec<(Place, bool)>> {
    let (clique, rank) = driver.membership_to_use(request.communicator)?;
    let gpu = driver.communicator(request.communicator)?.gpu;
    line(driver, request.stream, gpu)?;
    let task = request.task;
    let ranks = driver.ranks(clique);
    if let Kind::Broadcast { root } | Kind::Reduce { root, .. } = task.kind
        && root >= ranks
    {
        return Err(wrong_argument(format!("the root is rank {root}, which is none of {ranks}")));
    }
    let too_much = || wrong_argument(format!("{task} is more than there can be"));
    let (mut sent, mut received) = task.bytes(rank, ranks).ok_or_else(too_much)?;
    if let Role::Sender(peer) | Role::Receiver(peer) = request.role {
        number_of_rank(peer, ranks)?;
        (sent, received) = if let Role::Sender(_) = request.role { (sent, 0) } else { (0, received) };
    }
    let mut uses = Vec::new();
    for (address, bytes, write) in [(request.send, sent, false), (request.receive, received, true)] {
        if bytes == 0 {
            continue;
        }
        let place = driver.place(User::Kernel(gpu), address, bytes, write).map_err(wrong_argument)?;
        if place.home == Home::Pageable {
            return Err(wrong_argument(format!("{bytes} bytes at {address:#x} are no memory that a GPU reaches")));
        }
        uses.push((place, write));
    }
    let (send, receive) = (request.send..request.send + sent, request.receive..request.receive + received);
    let distance = i128::from(send.start) - i128::from(receive.start);
    if sent > 0
        && received > 0
        && crate::memory::overlap(&send, &receive)
        && task.in_place(rank).map(i128::from) != Some(distance)
    {
        return Err(wrong_argument(format!(
            "{sent} bytes at {:#x} are sent and {received} bytes at {:#x} received, which overlap, but not as NCCL allows",
            send.start, receive.start
        )));
    }
    Ok(uses)
}

/// The stream of a handle, which must be one of the rank's GPU.
fn line(driver: &Driver, stream: usize, gpu: usize) -> Answer<Line> {
    let line = driver.line_on(stream, gpu).map_err(of_cuda)?;
    let other = driver.streams.get(&line).map_or(gpu, |stream| stream.gpu);
    if other != gpu {
        let why = format!("the stream {stream:#x} is of GPU {other}, but the communicator of GPU {gpu}");
        return Err(of_cuda(misuse(0, why)));
    }
    Ok(line)
}

/// Puts the operations of a group into streams, one for each communicator. What can be done is, so that no rank waits
/// for ever.
fn launch_all(driver: &mut Driver, requests: Vec<Request>) -> Answer {
    let mut launches: BTreeMap<u64, Vec<Request>> = BTreeMap::new();
    for request in requests {
        launches.entry(request.communicator).or_default().push(request);
    }
    let mut done = Ok(());
    for (handle, requests) in launches {
        let launched = launch(driver, handle, &requests);
        done = done.and(launched);
    }
    done
}

fn launch(driver: &mut Driver, handle: u64, requests: &[Request]) -> Answer {
    let (clique, rank) = driver.membership_to_use(handle)?;
    let gpu = driver.communicator(handle)?.gpu;
    let Some(first) = requests.first() else { return Ok(()) };
    let alike = requests.iter().all(|request| request.what == first.what);
    let what = if alike { first.what } else { "ncclGroupEnd" };
    let (mut order, mut wrong) = (Order::new(what, Work::Nothing), None);
    let mut steps = Vec::new();
    let mut lines = BTreeSet::new();
    for request in requests {
        // Memory may have gone since the call.
        order.uses.extend(check(driver, request)?);
        lines.insert(line(driver, request.stream, gpu)?);
    }
    for request in requests {
        let (key, after) = place_in_order(driver, clique, rank, request)?;
        if let Some(point) = after {
            order.seen.see(point);
        }
        let place = match request.role {
            Role::Everybody => rank,
            Role::Sender(_) => 0,
            Role::Receiver(_) => 1,
        };
        let part = Part { place, send: request.send, receive: request.receive };
        match driver.call(clique, key, rank, request.task, part) {
            Ok(step) => steps.push((step, matches!(request.role, Role::Sender(_)))),
            Err(failure) => wrong = wrong.or(Some(failure)),
        }
    }
    let met: Vec<_> = steps.iter().map(|(step, sends)| (step.key, *sends)).collect();
    order.work = Work::Part(Arc::new(Launch { clique, steps: steps.into_iter().map(|(step, _)| step).collect() }));
    match issue(driver, handle, line(driver, first.stream, gpu)?, &lines, order) {
        Ok(clock) => met.into_iter().for_each(|(key, sends)| driver.issued(clique, key, sends, &clock)),
        Err(failure) => {
            met.into_iter().for_each(|(key, _)| driver.cancel(clique, key, failure.code));
            return Err(failure);
        }
    }
    wrong.map_or(Ok(()), Err)
}

/// Puts a rank's operation into a stream, between all of what is in the other streams of its group before and after.
fn issue(driver: &mut Driver, handle: u64, main: Line, lines: &BTreeSet<Line>, mut order: Order) -> Answer<Clock> {
    let others = || lines.iter().copied().filter(|&line| line != main);
    let what = order.what;
    // A communicator's operations are done one after another, in whatever streams they are.
    if let Some((point, clock)) = &driver.communicator(handle)?.last {
        order.after.push(*point);
        order.seen.join(clock);
    }
    for line in others() {
        order.after.push(driver.tail(line));
        if let Some(stream) = driver.streams.get(&line) {
            order.seen.join(&stream.clock);
        }
    }
    let point = driver.issue(main, order).map_err(of_cuda)?;
    let clock = driver.streams.get(&main).map(|stream| stream.clock.clone()).unwrap_or_default();
    for line in others() {
        let wait = Order { after: vec![point], seen: clock.clone(), ..Order::new(what, Work::Nothing) };
        driver.issue(line, wait).map_err(of_cuda)?;
    }
    if let Some(communicator) = driver.parts.known_mut().nccl.communicators.get_mut(&handle) {
        communicator.last = Some((point, clock.clone()));
    }
    Ok(clock)
}

/// Counts a request: what it meets, and what it comes after besides its own stream.
fn place_in_order(driver: &mut State, clique: u64, rank: usize, request: &Request) -> Answer<(Key, Option<Point>)> {
    let gone = || Failure::from(super::UNHANDLED_CUDA_ERROR);
    let ranks = driver.ranks(clique);
    let (from, to) = match request.role {
        Role::Everybody => {
            let line = driver.parts.known().nccl.cliques.get(&clique).map(|shared| shared.line).ok_or_else(gone)?;
            let communicator =
                driver.parts.known_mut().nccl.communicators.get_mut(&request.communicator).ok_or_else(gone)?;
            communicator.collectives += 1;
            let number = communicator.collectives;
            return Ok((Key::Collective(number), Some(Point { line, number })));
        }
        Role::Sender(peer) => (rank, number_of_rank(peer, ranks)?),
        Role::Receiver(peer) => (number_of_rank(peer, ranks)?, rank),
    };
    let line = driver.number();
    let shared = driver.parts.known_mut().nccl.cliques.get_mut(&clique).ok_or_else(gone)?;
    let channel = shared.channels.entry((from, to)).or_insert(Channel { line, sent: 0, received: 0 });
    Ok(if let Role::Sender(_) = request.role {
        channel.sent += 1;
        (Key::Message { from, to, number: channel.sent }, None)
    } else {
        channel.received += 1;
        let number = channel.received;
        (Key::Message { from, to, number }, Some(Point { line: channel.line, number }))
    })
}
