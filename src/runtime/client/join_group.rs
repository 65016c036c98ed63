//! Joining the group of processes that share the devices.

use std::sync::Arc;

use crate::{
    config::{Settings, Source},
    error::{Code, Result},
    group::{Group, Joined, Terms},
    units::Bytes,
};

/// The group that the settings name, of which this process is a member from now on, if they name one and it can be. A
/// process that cannot goes on alone, and says why.
///
/// # Errors
/// INVALID_ARGUMENT, or RESOURCE_EXHAUSTED: what the settings ask for cannot be had.
pub fn join(settings: &Settings, limits: Vec<Bytes>) -> Result<Option<Arc<Group>>> {
    let Some(name) = &settings.share.value.0 else { return Ok(None) };
    let terms = Terms {
        limits,
        explicit_limit: settings.limit.source != Source::Default,
        min: settings.share_min.value.0,
        weight: settings.share_weight.value.get(),
    };
    match Group::join(name, &terms) {
        Ok(Joined { group, notes }) => {
            notes.iter().for_each(|note| log::warn!("{note}"));
            Ok(Some(group))
        }
        Err(error) if matches!(error.code, Code::InvalidArgument | Code::ResourceExhausted) => Err(error),
        Err(error) => {
            log::warn!("share={} has no effect: {error}; this process shares its devices with nobody", settings.share);
            Ok(None)
        }
    }
}
