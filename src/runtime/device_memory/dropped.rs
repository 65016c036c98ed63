//! Arrays that their owners dropped while programs use them: places of results that are launched later.
//!
//! ```text
//!  launch f(x) ---> the owner drops x ---> x is here ---> launch g: a result of x's size takes x's block
//!                   f has yet to read it                  the engine runs g behind f
//! ```
//!
//! What is dropped while a program in the queue uses it takes memory until then. A result of the same size may have the
//! block before that, if the engine orders the two programs. A caller that runs ahead then needs the memory of two
//! sets of arrays, however far ahead it runs, and touches no new pages.
//!
//! A CPU's engine orders them where `g` is donated `x`'s own buffer: it waits for what `x` waits for, as in
//! `p = step(p)` with donation. So an error of a program that `x` waits for would be `g`'s. An array is taken only
//! where none can fail, or where that error is `g`'s anyway: see [`crate::runtime::buffer::usage`]. The engine compares
//! sizes and nothing else (engine behaviour T43), so the array's type and dimensions may be other ones.
//!
//! XLA:GPU puts the executions of a device into one stream, so `g` gets a new view of the block. Copies and transfers
//! are in other streams: what they use is not taken.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    engine::EngineBuffer,
    memory::{Execution, OriginId, Provenance},
    units::Bytes,
};

/// So many entries are kept before those are looked for that are of no use any more.
const FEW: usize = 64;

/// So many arrays at most are refused to one result: each costs a lock.
const TRIES: usize = 8;

/// What orders a program behind those that use an array.
#[derive(Clone, Copy)]
pub enum OrderedBy<'a> {
    /// The array's own buffer, which the program is donated. It reads the results of some executions.
    Buffer(&'a dyn Fn(Execution) -> bool),
    /// The device, which does one execution after another.
    Device,
}

/// Why a program gets no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No program gets it.
    Always,
    /// It would get an error that is not its own.
    ThisProgram,
}

/// An array that its owner has dropped, in a block of the type `B`.
pub trait DroppedArray<B>: Send + Sync {
    /// Whether programs still use it.
    fn is_in_use(&self) -> bool;

    /// Takes the block for the execution in `provenance`, and the engine's buffer, if a program that is `ordered`
    /// behind those that use it may write there. The array must [take it back](Self::take_back) if there is no such
    /// program after all.
    ///
    /// # Errors
    /// Whether another program may.
    fn take(&self, provenance: Provenance, ordered: OrderedBy<'_>) -> Result<(Option<EngineBuffer>, B), Refused>;

    /// Takes back a block that [`Self::take`] gave away.
    fn take_back(&self, block: B);
}

/// A block for a result, in which another array was that programs still use.
pub struct Reused<B> {
    /// The array's own buffer, where the program is ordered by it.
    pub view: Option<EngineBuffer>,
    /// The block.
    pub block: B,
    /// The array, which takes the block back if the program does not come.
    pub previous: Arc<dyn DroppedArray<B>>,
}

/// Those of one memory. See the module's documentation.
pub struct DroppedArrays<B>(Mutex<Lists<B>>);

/// An array, and what made it.
type Dropped<B> = (OriginId, Arc<dyn DroppedArray<B>>);

struct Lists<B> {
    /// By the bytes of the array and of its block; the one that was dropped first at the front.
    by_size: FxHashMap<(usize, Bytes), VecDeque<Dropped<B>>>,
    count: usize,
    /// How many there may be before all are looked at.
    most: usize,
}

impl<B> Default for DroppedArrays<B> {
    fn default() -> Self {
        Self(Mutex::new(Lists { by_size: FxHashMap::default(), count: 0, most: FEW }))
    }
}

impl<B> DroppedArrays<B> {
    /// Notes an array of `bytes` bytes in a block of `block` bytes, made by `origin`.
    pub fn offer(&self, array: Arc<dyn DroppedArray<B>>, (bytes, block): (usize, Bytes), origin: OriginId) {
        let mut lists = self.0.lock();
        let mut gone = VecDeque::new();
        if lists.count >= lists.most {
            for list in lists.by_size.values_mut() {
                let (kept, ended) = list.drain(..).partition(|(_, array)| array.is_in_use());
                *list = kept;
                gone.extend::<VecDeque<_>>(ended);
            }
            lists.by_size.retain(|_, list| !list.is_empty());
            lists.count -= gone.len();
            lists.most = (2 * lists.count).max(FEW);
        }
        lists.by_size.entry((bytes, block)).or_default().push_back((origin, array));
        lists.count += 1;
        drop(lists);
        // Without the lock: these may be the last references.
        drop(gone);
    }

    /// The block of an array of `bytes` bytes in a block of `block` bytes, for the execution in `provenance` to write:
    /// of one that the same result of the same program was, so that a GPU's programs find theirs at addresses that
    /// they know, or else of the one that was dropped first, whose programs end first.
    pub fn take(&self, key: (usize, Bytes), provenance: Provenance, ordered: OrderedBy<'_>) -> Option<Reused<B>> {
        let mut refused: SmallVec<[Dropped<B>; TRIES]> = SmallVec::new();
        let mut taken = None;
        while let Some((origin, previous)) = self.next(key, provenance.origin) {
            // No lock is held while the engine destroys handles.
            match previous.take(provenance, ordered) {
                Ok((view, block)) => {
                    let view = view.filter(|_| matches!(ordered, OrderedBy::Buffer(_)));
                    taken = Some(Reused { view, block, previous });
                    break;
                }
                Err(Refused::ThisProgram) => refused.push((origin, previous)),
                Err(Refused::Always) => {}
            }
            if refused.len() == TRIES {
                break;
            }
        }
        if !refused.is_empty() {
            let mut lists = self.0.lock();
            lists.count += refused.len();
            let list = lists.by_size.entry(key).or_default();
            refused.into_iter().rev().for_each(|array| list.push_front(array));
        }
        taken
    }

    /// Takes the next array out that may be a result's of `origin`.
    fn next(&self, key: (usize, Bytes), origin: OriginId) -> Option<Dropped<B>> {
        let mut lists = self.0.lock();
        let list = lists.by_size.get_mut(&key)?;
        let same = list.iter().position(|&(made_by, _)| made_by == origin);
        let array = list.remove(same.unwrap_or(0))?;
        lists.count -= 1;
        Some(array)
    }
}
