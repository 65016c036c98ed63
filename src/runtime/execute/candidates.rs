//! Memory that a result may lie in: of a destination, or of an argument that the engine consumed.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    engine::{Engine, Raw},
    runtime::{
        buffer::{Buffer, storage::Storage},
        device_memory::Allocation,
        executable::loaded::{Loaded, Origin},
        execute::donation_copy::DonationCopy,
        in_flight::Consumed,
    },
    sys,
};

/// See the module's documentation.
pub struct Candidate {
    /// What it was.
    pub origin: Origin,
    /// Where it is; 0 for memory that is not ours.
    pub address: usize,
    /// The block, until a result takes it.
    pub held: Option<Allocation>,
    /// The buffer that lay there in the run before, where its owner gave it back.
    pub shell: Option<Arc<Buffer>>,
}

impl Candidate {
    /// A block of ours.
    pub fn new(origin: Origin, held: Allocation) -> Self {
        Self { origin, address: held.address(), held: Some(held), shell: None }
    }

    /// An argument that the engine consumed. Memory of the engine's own goes on in the result without us.
    pub fn consumed(argument: usize, storage: Storage) -> Self {
        let origin = Origin::Argument(argument);
        match storage.into_held() {
            Some(held) => Self::new(origin, held),
            None => Self { origin, address: 0, held: None, shell: None },
        }
    }
}

/// Whether the engine consumed a buffer. Asking does not block, even while the program runs.
///
/// # Safety
/// The handle must be alive.
pub unsafe fn is_consumed(engine: &'static Engine, handle: *mut sys::PJRT_Buffer) -> bool {
    // SAFETY: the caller's promise.
    let gone = unsafe { engine.call(sys::PJRT_Buffer_IsDeleted_Args { buffer: handle, ..Default::default() }) };
    gone.is_ok_and(|args| args.is_deleted)
}

/// After a run: deletes the arguments whose stand-ins were consumed, and hands on their memory among the candidates. The
/// views go to `consumed`, the blocks of those that were not to `leftovers`.
///
/// # Safety
/// The views must be alive, and the arguments those that the stand-ins were made for.
pub unsafe fn consumed_stand_ins(
    loaded: &Loaded,
    arguments: &[Option<&Buffer>],
    stand_ins: &mut Vec<DonationCopy>,
    candidates: &mut SmallVec<[Candidate; 8]>,
    consumed: &mut Consumed,
    leftovers: &mut Vec<Allocation>,
) {
    if stand_ins.is_empty() {
        return;
    }
    for DonationCopy { argument, place } in stand_ins.drain(..) {
        consumed.push(Raw(place.view.0));
        // SAFETY: the caller's promise.
        if !unsafe { is_consumed(loaded.client.session.engine, place.view.0) } {
            leftovers.push(place.held);
            continue;
        }
        candidates.push(Candidate::new(Origin::Argument(argument), place.held));
        // The caller gave the array away, whoever's memory the program took for it.
        if let Some(buffer) = arguments[argument]
            && buffer.delete().is_err()
        {
            log::warn!("the engine could not delete the array that argument {argument} stood for");
        }
    }
    // In the order that runs without stand-ins have, so that what is learned from one holds for the other.
    candidates.sort_by_key(|candidate| candidate.origin);
}
