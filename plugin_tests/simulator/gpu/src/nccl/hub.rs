//! Where ranks of several processes meet: a thread of the process that made the unique id, which the others reach by
//! TCP.
//!
//! ```text
//!  process 0, rank 0   "all-reduce 3 of clique X, of 4 ranks": bytes of rank 0 ---->  hub    gathers, until all four
//!  process 0, rank 1        "                                : bytes of rank 1 ---->         have brought theirs;
//!  process 1, rank 2        ...                                                              then tells each of them
//!  process 1, rank 3        ...                                                              what all have brought
//! ```
//!
//! The hub knows nothing of NCCL. A meeting has a name, that nobody uses twice, and a number of ranks. It fails where a
//! rank says so or its process ends: then nobody is told anything, and who comes later is not either.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{Arc, OnceLock},
    thread,
};

use parking_lot::Mutex;

/// A hub that listens on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hub {
    port: u16,
}

/// A rank, and what it brings.
pub type Brought = (usize, Vec<u8>);

/// What is known of a meeting.
#[derive(Debug)]
enum Meeting {
    /// Ranks that have come, and where they wait.
    Open { brought: BTreeMap<usize, Vec<u8>>, waiting: Vec<Arc<TcpStream>> },
    /// It came to nothing.
    Failed,
}

/// Meetings, by name.
type Meetings = Mutex<BTreeMap<Vec<u8>, Meeting>>;

impl Hub {
    /// That of this process, which begins to listen when it is first asked for; none where nothing can listen.
    pub fn here() -> Option<Self> {
        static HERE: OnceLock<Option<Hub>> = OnceLock::new();
        *HERE.get_or_init(|| Self::listen().inspect_err(|why| eprintln!("fake_cuda: no hub: {why}")).ok())
    }

    /// That of another process, by its port.
    pub fn at(port: u16) -> Option<Self> {
        (port != 0).then_some(Self { port })
    }

    /// Its port.
    pub fn port(self) -> u16 {
        self.port
    }

    fn listen() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let meetings: Arc<Meetings> = Arc::default();
        thread::Builder::new().name("fake NCCL hub".into()).spawn(move || {
            for stream in listener.incoming().flatten() {
                let meetings = Arc::clone(&meetings);
                // A rank that finds no thread learns of it by the end of its connection.
                let _ = thread::Builder::new().name("fake NCCL meeting".into()).spawn(move || serve(&meetings, stream));
            }
        })?;
        Ok(Self { port })
    }

    /// Brings what a rank has to a meeting of `ranks`, without waiting for the others.
    pub fn bring(self, name: &[u8], ranks: usize, (rank, bytes): &Brought) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        put(&mut stream, name)?;
        put_number(&mut stream, ranks)?;
        put_number(&mut stream, *rank)?;
        put(&mut stream, bytes)?;
        Ok(stream)
    }

    /// Lets a meeting fail.
    pub fn fail(self, name: &[u8]) {
        // Where the hub is gone, all its meetings have failed.
        let _ = self.bring(name, 0, &(0, Vec::new()));
    }
}

/// Waits for the other ranks of a meeting; gives what each has brought, in their order.
pub fn wait(mut stream: &TcpStream) -> io::Result<Vec<Vec<u8>>> {
    let ranks = get_number(&mut stream)?;
    (0..ranks).map(|_| get(&mut stream)).collect()
}

/// One rank's visit at the hub.
fn serve(meetings: &Meetings, stream: TcpStream) {
    let stream = Arc::new(stream);
    let Ok((name, ranks, (rank, bytes))) = request(&stream) else { return };
    let arrived = arrive(&mut meetings.lock(), &name, ranks, rank, bytes, &stream);
    match arrived {
        Ok(Some((brought, waiting))) => {
            for to in waiting {
                let mut to = to.as_ref();
                let told = put_number(&mut to, brought.len())
                    .and_then(|()| brought.values().try_for_each(|each| put(&mut to, each)));
                // One that has left is not told.
                let _ = told.and_then(|()| to.shutdown(Shutdown::Write));
            }
        }
        Ok(None) => {
            // A rank says no more. This ends when it has heard what it wanted or its process has gone; then nobody must
            // wait for it.
            let _ = stream.as_ref().read(&mut [0]);
            fail(&mut meetings.lock(), &name);
        }
        Err(()) => {}
    }
}

type Complete = (BTreeMap<usize, Vec<u8>>, Vec<Arc<TcpStream>>);

/// Notes what a rank brings; gives all, if it was the last one.
fn arrive(
    meetings: &mut BTreeMap<Vec<u8>, Meeting>,
    name: &[u8],
    ranks: usize,
    rank: usize,
    bytes: Vec<u8>,
    stream: &Arc<TcpStream>,
) -> Result<Option<Complete>, ()> {
    let new = || Meeting::Open { brought: BTreeMap::new(), waiting: Vec::new() };
    let meeting = meetings.entry(name.to_vec()).or_insert_with(new);
    let Meeting::Open { brought, waiting } = meeting else { return Err(()) };
    waiting.push(Arc::clone(stream));
    if ranks == 0 || brought.insert(rank, bytes).is_some() {
        end(meeting);
        return Err(());
    }
    if brought.len() < ranks {
        return Ok(None);
    }
    let complete = (std::mem::take(brought), std::mem::take(waiting));
    meetings.remove(name);
    Ok(Some(complete))
}

/// Lets a meeting fail, if it is one still.
fn fail(meetings: &mut BTreeMap<Vec<u8>, Meeting>, name: &[u8]) {
    if let Some(meeting) = meetings.get_mut(name) {
        end(meeting);
    }
}

fn end(meeting: &mut Meeting) {
    if let Meeting::Open { waiting, .. } = std::mem::replace(meeting, Meeting::Failed) {
        for stream in waiting {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn request(mut stream: &TcpStream) -> io::Result<(Vec<u8>, usize, Brought)> {
    let name = get(&mut stream)?;
    let ranks = get_number(&mut stream)?;
    let rank = get_number(&mut stream)?;
    Ok((name, ranks, (rank, get(&mut stream)?)))
}

fn put(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    put_number(to, bytes.len())?;
    to.write_all(bytes)
}

fn put_number(to: &mut impl Write, number: usize) -> io::Result<()> {
    to.write_all(&(number as u64).to_le_bytes())
}

fn get(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; get_number(from)?];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn get_number(from: &mut impl Read) -> io::Result<usize> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_told_what_all_have_brought() {
        let hub = Hub::here().expect("something can listen");
        let streams: Vec<_> =
            (0..3).rev().map(|rank| hub.bring(b"all", 3, &(rank, vec![rank as u8; rank])).expect("a hub")).collect();
        for stream in &streams {
            assert_eq!(wait(stream).expect("all have come"), [vec![], vec![1], vec![2, 2]]);
        }
    }

    #[test]
    fn who_leaves_or_comes_twice_or_says_so_lets_a_meeting_fail() {
        let hub = Hub::here().expect("something can listen");
        type End<'a> = &'a dyn Fn(&[u8], TcpStream);
        let ends: [(&[u8], End<'_>); 3] = [
            (b"leaves", &|_, stream| drop(stream)),
            (b"twice", &|name, _stream| drop(hub.bring(name, 3, &(1, vec![])))),
            (b"says so", &|name, _stream| hub.fail(name)),
        ];
        for (name, end) in ends {
            let first = hub.bring(name, 3, &(0, vec![])).expect("a hub");
            let second = hub.bring(name, 3, &(1, vec![])).expect("a hub");
            end(name, second);
            assert!(wait(&first).is_err());
            let third = hub.bring(name, 3, &(2, vec![])).expect("a hub");
            assert!(wait(&third).is_err());
        }
    }
}
