//! Serialised executables: the engine's blob with the plan before it.

use crate::{
    error::{Error, Result},
    program::has_host_callbacks,
    runtime::executable::loaded::Plan,
};

/// The first bytes of a serialised executable of pjrt-arena; no engine's blob begins with them.
const MAGIC: &[u8; 16] = b"pjrt-arena\0exec1";

/// Wraps the engine's blob with the plan.
pub fn seal(plan: &Plan, blob: &[u8]) -> Result<Vec<u8>> {
    let plan =
        serde_json::to_vec(plan).map_err(|error| Error::internal(format!("a plan cannot be written: {error}")))?;
    let mut sealed = Vec::with_capacity(MAGIC.len() + 8 + plan.len() + blob.len());
    sealed.extend_from_slice(MAGIC);
    sealed.extend_from_slice(&(plan.len() as u64).to_le_bytes());
    sealed.extend_from_slice(&plan);
    sealed.extend_from_slice(blob);
    Ok(sealed)
}

/// The plan and the engine's blob. A blob without a plan, the bare engine's for instance, runs as it is.
pub fn open(sealed: &[u8]) -> Result<(Plan, &[u8])> {
    let Some(rest) = sealed.strip_prefix(MAGIC) else {
        // The blob holds the program as text that names its custom calls.
        let host_callbacks = has_host_callbacks(sealed);
        return Ok((Plan { host_callbacks, ..Plan::unmodified("serialised by the bare engine") }, sealed));
    };
    let broken = || Error::invalid_argument(format!("a serialised executable of {} bytes is cut short", sealed.len()));
    let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(broken)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| broken())?;
    let (plan, blob) = rest.split_at_checked(length).ok_or_else(broken)?;
    let plan = serde_json::from_slice(plan)
        .map_err(|error| Error::invalid_argument(format!("a serialised executable has an unreadable plan: {error}")))?;
    Ok((plan, blob))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_blobs_open_again_and_foreign_ones_pass() {
        let mut plan = Plan::unmodified("a reason");
        plan.arguments = Some(3);
        plan.destinations = vec![0, 2];
        let sealed = seal(&plan, b"blob").unwrap();
        assert_eq!(open(&sealed).unwrap(), (plan, &b"blob"[..]));
        assert_eq!(open(b"the engine's own").unwrap().1, b"the engine's own");
    }

    #[test]
    fn every_cut_of_a_sealed_blob_is_an_error_or_a_shorter_blob() {
        let sealed = seal(&Plan::unmodified("a reason"), b"blob").unwrap();
        let whole = sealed.len() - b"blob".len();
        for cut in MAGIC.len()..sealed.len() {
            assert_eq!(open(&sealed[..cut]).is_ok(), cut >= whole, "cut at {cut}");
        }
    }
}
