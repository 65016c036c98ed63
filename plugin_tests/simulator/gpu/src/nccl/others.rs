//! Ranks of other processes: what those of this one have is brought to the hub, and what all have is heard from there.

use std::{
    io,
    net::{Shutdown, TcpStream},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{hub, hub::Hub, rendezvous::Key};

/// How a clique's ranks of other processes are met.
#[derive(Debug)]
pub struct Others {
    hub: Hub,
    /// The clique's name, which all of its processes know and no other clique has.
    name: Vec<u8>,
    /// Visits that last.
    visits: Mutex<Vec<Arc<TcpStream>>>,
}

/// A meeting with them.
#[derive(Clone, Debug)]
pub struct Meeting {
    others: Arc<Others>,
    name: Vec<u8>,
    ranks: usize,
}

/// What ranks of this process have brought to a meeting, until the others have come.
#[derive(Debug)]
pub struct Visits {
    others: Arc<Others>,
    streams: Vec<Arc<TcpStream>>,
}

impl Others {
    /// Those of the clique of this name.
    pub fn new(hub: Hub, name: Vec<u8>) -> Self {
        Self { hub, name, visits: Mutex::default() }
    }

    /// Where they are met.
    pub fn hub(&self) -> Hub {
        self.hub
    }

    /// The name of something that happens in the clique.
    pub fn name_of(&self, what: impl std::fmt::Debug) -> Vec<u8> {
        let mut name = self.name.clone();
        name.extend_from_slice(format!("/{what:?}").as_bytes());
        name
    }

    /// The meeting for a rendezvous of as many ranks.
    pub fn meeting(self: &Arc<Self>, key: Key, ranks: usize) -> Meeting {
        Meeting { others: Arc::clone(self), name: self.name_of(key), ranks }
    }

    /// Nobody waits for them any more.
    pub fn give_up(&self) {
        for visit in self.visits.lock().drain(..) {
            // What has ended needs no end.
            let _ = visit.shutdown(Shutdown::Both);
        }
    }
}

impl Meeting {
    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Brings what ranks of this process have.
    pub fn bring(&self, all: &[hub::Brought]) -> io::Result<Visits> {
        let streams = all.iter().map(|each| self.others.hub.bring(&self.name, self.ranks, each).map(Arc::new));
        let streams: Vec<_> = streams.collect::<io::Result<_>>()?;
        self.others.visits.lock().extend(streams.iter().cloned());
        Ok(Visits { others: Arc::clone(&self.others), streams })
    }

    /// Lets it fail for all.
    pub fn fail(&self) {
        self.others.hub.fail(&self.name);
    }
}

impl Visits {
    /// Waits; gives what each rank has brought.
    pub fn wait(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut heard = Vec::new();
        for stream in &self.streams {
            heard = hub::wait(stream)?;
        }
        Ok(heard)
    }
}

impl Drop for Visits {
    fn drop(&mut self) {
        self.others.visits.lock().retain(|visit| !self.streams.iter().any(|mine| Arc::ptr_eq(mine, visit)));
    }
}
