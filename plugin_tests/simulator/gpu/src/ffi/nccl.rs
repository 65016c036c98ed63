//! NCCL (`libnccl.so.2`) for GPUs of one process or of several: the functions that XLA calls, but for those of
//! one-sided operations and of kernels that communicate themselves.

use std::ffi::{c_char, c_int};

use super::{In, Out};
use crate::nccl::communicator::Communicators;
use crate::{
    memory,
    nccl::{
        self, Kind, Reduction, Task, Type,
        bootstrap::{self, UniqueId},
        communicator,
        group::{self, Request, Role},
    },
    state::{Driver, call_to_hip},
    status::{Answer, Failure, Status, misuse},
};

/// The frame of a function of NCCL's: as one of the driver's, with NCCL's codes.
fn call(name: &'static str, body: impl FnOnce(&mut Driver) -> Answer) -> Status {
    let code = call_to_hip(name, |driver| {
        body(driver).inspect_err(|Failure { violation, .. }| {
            if let Some(sentence) = violation {
                nccl::keep_error(sentence);
            }
        })
    });
    let known = if code <= nccl::IN_PROGRESS { code } else { nccl::UNHANDLED_CUDA_ERROR };
    if known != nccl::SUCCESS && name != GROUP_END {
        group::note_failure(known);
    }
    known
}

const GROUP_END: &str = "ncclGroupEnd";

fn element(number: c_int) -> Answer<Type> {
    let found = u32::try_from(number).ok().and_then(Type::numbered);
    found.ok_or_else(|| {
        misuse(nccl::INVALID_ARGUMENT, format!("{number} is no type of elements; types are from 0 to 11"))
    })
}

fn reduction(number: c_int) -> Answer<Reduction> {
    let found = u32::try_from(number).ok().and_then(Reduction::numbered);
    let why = || format!("{number} is no reduction; sum, product, max, min and average are from 0 to 4");
    found.ok_or_else(|| misuse(nccl::INVALID_ARGUMENT, why()))
}

fn rank(number: c_int) -> Answer<usize> {
    usize::try_from(number).map_err(|_| misuse(nccl::INVALID_ARGUMENT, format!("{number} is no rank")))
}

/// The end of each operation's arguments: the communicator and the stream.
type To = (u64, usize);

/// Asks for an operation of all ranks.
fn collective(what: &'static str, buffers: (u64, u64), count: usize, of: c_int, kind: Answer<Kind>, to: To) -> Status {
    operation(what, buffers, count, of, kind, Role::Everybody, to)
}

fn operation(
    what: &'static str,
    (send, receive): (u64, u64),
    count: usize,
    of: c_int,
    kind: Answer<Kind>,
    role: Role,
    (communicator, stream): To,
) -> Status {
    call(what, |driver| {
        let task = Task { kind: kind?, count: count as u64, element: element(of)? };
        group::ask(driver, Request { what, communicator, stream, task, role, send, receive })
    })
}

/// Joins a communicator.
fn join(driver: &mut Driver, out: Out<u64>, ranks: c_int, id: &UniqueId, rank: c_int) -> Answer {
    let out = out.checked()?;
    let handle = bootstrap::join(driver, ranks, id, rank)?;
    out.put(handle)?;
    group::join(driver, handle)
}

/// Declares functions that answer with a code, and a table of them by name.
macro_rules! functions {
    ($($name:ident($($parameter:ident: $type:ty),*) $body:expr;)*) => {
        $(
            #[doc = concat!("NCCL's `", stringify!($name), "`.")]
            ///
            /// # Safety
            /// As NVIDIA documents: each pointer is null or fit for what the function reads or writes there.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::too_many_arguments)]
            pub unsafe extern "C" fn $name($($parameter: $type),*) -> Status {
                $body
            }
        )*

        /// The functions of this module, by name.
        pub(super) const TABLE: &[(&str, *const ())] = &[$((stringify!($name), $name as *const ())),*];
    };
}

functions! {
    ncclGetVersion(version: Out<c_int>) call("ncclGetVersion", |_| version.put(nccl::VERSION));
    ncclGetUniqueId(id: Out<UniqueId>) call("ncclGetUniqueId", |driver| id.put(bootstrap::unique_id(driver)));
    ncclCommInitRank(comm: Out<u64>, ranks: c_int, id: UniqueId, rank: c_int) {
        call("ncclCommInitRank", |driver| join(driver, comm, ranks, &id, rank))
    };
    ncclCommInitRankConfig(comm: Out<u64>, ranks: c_int, id: UniqueId, rank: c_int, _configuration: usize) {
        call("ncclCommInitRankConfig", |driver| join(driver, comm, ranks, &id, rank))
    };
    ncclCommInitRankScalable(
        comm: Out<u64>, ranks: c_int, rank: c_int, ids: c_int, first: In<UniqueId>, _configuration: usize
    ) call("ncclCommInitRankScalable", |driver| {
        if ids < 1 {
            return Err(misuse(nccl::INVALID_ARGUMENT, format!("{ids} unique ids; there is to be one at least")));
        }
        // The others are there for speed, and the same for all ranks.
        join(driver, comm, ranks, &first.get()?, rank)
    });
    ncclCommInitAll(comms: Out<u64>, count: c_int, devices: In<c_int>) call("ncclCommInitAll", |driver| {
        let comms = comms.checked()?;
        let devices = match usize::try_from(count) {
            Ok(count) if devices.address() != 0 => devices.list(count)?,
            _ => (0..count).collect(),
        };
        comms.put_all(communicator::all(driver, &devices)?.into_iter())
    });
    ncclCommSplit(comm: u64, color: c_int, key: c_int, new: Out<u64>, _configuration: usize) {
        call("ncclCommSplit", |driver| {
            let new = new.checked()?;
            let handle = bootstrap::split(driver, comm, color, key)?;
            new.put(handle.unwrap_or_default())?;
            handle.map_or(Ok(()), |handle| group::join(driver, handle))
        })
    };
    ncclCommFinalize(comm: u64) call("ncclCommFinalize", |driver| communicator::finalize(driver, comm));
    ncclCommDestroy(comm: u64) call("ncclCommDestroy", |driver| communicator::destroy(driver, comm));
    ncclCommAbort(comm: u64) call("ncclCommAbort", |driver| communicator::abort(driver, comm));
    ncclCommCount(comm: u64, count: Out<c_int>) call("ncclCommCount", |driver| {
        let (clique, _) = driver.membership(comm)?;
        count.put(driver.ranks(clique) as c_int)
    });
    ncclCommUserRank(comm: u64, rank: Out<c_int>) call("ncclCommUserRank", |driver| {
        rank.put(driver.membership(comm)?.1 as c_int)
    });
    ncclCommCuDevice(comm: u64, device: Out<c_int>) call("ncclCommCuDevice", |driver| {
        device.put(driver.communicator(comm)?.gpu as c_int)
    });
    ncclCommGetAsyncError(comm: u64, error: Out<Status>) call("ncclCommGetAsyncError", |driver| {
        error.put(communicator::error(driver, comm)?)
    });
    ncclGroupStart() call("ncclGroupStart", |_| { group::start(); Ok(()) });
    ncclGroupEnd() call(GROUP_END, group::end);
    ncclAllReduce(send: u64, receive: u64, count: usize, of: c_int, by: c_int, comm: u64, stream: usize) {
        let kind = reduction(by).map(Kind::AllReduce);
        collective("ncclAllReduce", (send, receive), count, of, kind, (comm, stream))
    };
    ncclAllGather(send: u64, receive: u64, count: usize, of: c_int, comm: u64, stream: usize) {
        collective("ncclAllGather", (send, receive), count, of, Ok(Kind::AllGather), (comm, stream))
    };
    ncclReduceScatter(send: u64, receive: u64, count: usize, of: c_int, by: c_int, comm: u64, stream: usize) {
        let kind = reduction(by).map(Kind::ReduceScatter);
        collective("ncclReduceScatter", (send, receive), count, of, kind, (comm, stream))
    };
    ncclBroadcast(send: u64, receive: u64, count: usize, of: c_int, root: c_int, comm: u64, stream: usize) {
        let kind = rank(root).map(|root| Kind::Broadcast { root });
        collective("ncclBroadcast", (send, receive), count, of, kind, (comm, stream))
    };
    ncclBcast(buffer: u64, count: usize, of: c_int, root: c_int, comm: u64, stream: usize) {
        let kind = rank(root).map(|root| Kind::Broadcast { root });
        collective("ncclBcast", (buffer, buffer), count, of, kind, (comm, stream))
    };
    ncclReduce(send: u64, receive: u64, count: usize, of: c_int, by: c_int, root: c_int, comm: u64, stream: usize) {
        let kind = reduction(by).and_then(|reduction| Ok(Kind::Reduce { reduction, root: rank(root)? }));
        collective("ncclReduce", (send, receive), count, of, kind, (comm, stream))
    };
    ncclAlltoAll(send: u64, receive: u64, count: usize, of: c_int, comm: u64, stream: usize) {
        collective("ncclAlltoAll", (send, receive), count, of, Ok(Kind::AllToAll), (comm, stream))
    };
    ncclSend(send: u64, count: usize, of: c_int, peer: c_int, comm: u64, stream: usize) {
        operation("ncclSend", (send, 0), count, of, Ok(Kind::Message), Role::Sender(peer), (comm, stream))
    };
    ncclRecv(receive: u64, count: usize, of: c_int, peer: c_int, comm: u64, stream: usize) {
        operation("ncclRecv", (0, receive), count, of, Ok(Kind::Message), Role::Receiver(peer), (comm, stream))
    };
    ncclCommRegister(comm: u64, buffer: u64, bytes: usize, handle: Out<u64>) call("ncclCommRegister", |driver| {
        handle.checked()?.put(nccl::register(driver, "ncclCommRegister", comm, buffer, bytes)?)
    });
    ncclCommDeregister(comm: u64, handle: u64) {
        call("ncclCommDeregister", |driver| nccl::deregister(driver, comm, handle))
    };
    ncclCommWindowRegister(comm: u64, buffer: u64, bytes: usize, window: Out<u64>, _flags: c_int) {
        call("ncclCommWindowRegister", |driver| {
            window.checked()?.put(nccl::register(driver, "ncclCommWindowRegister", comm, buffer, bytes)?)
        })
    };
    ncclCommWindowDeregister(comm: u64, window: u64) {
        call("ncclCommWindowDeregister", |driver| nccl::deregister(driver, comm, window))
    };
    ncclMemAlloc(address: Out<u64>, bytes: usize) call("ncclMemAlloc", |driver| {
        address.checked()?.put(memory::allocate(driver, bytes as u64)?)
    });
    ncclMemFree(address: u64) call("ncclMemFree", |driver| memory::free(driver, address));
}

/// NCCL's `ncclGetErrorString`.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn ncclGetErrorString(code: Status) -> *const c_char {
    let text = match code {
        nccl::SUCCESS => c"no error",
        nccl::UNHANDLED_CUDA_ERROR => c"unhandled cuda error",
        nccl::SYSTEM_ERROR => c"unhandled system error",
        nccl::INVALID_ARGUMENT => c"invalid argument",
        nccl::INVALID_USAGE => c"invalid usage",
        nccl::REMOTE_ERROR => c"remote process exited or there was a network error",
        nccl::IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// NCCL's `ncclGetLastError`: the last mistake of this thread.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn ncclGetLastError(_side: u64) -> *const c_char {
    nccl::last_error()
}
