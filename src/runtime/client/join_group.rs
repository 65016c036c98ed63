//! Joining the group of processes that share the devices.

use std::sync::Arc;

use crate::{
    config::{Settings, Source},
    error::{Code, Result},
    group::{Group, Joined, Terms},
    runtime::device_memory::GroupPart,
    units::Bytes,
};

/// The part in a device of this number, and the limit of its arena: the group's, or `most`, what this process can have
/// of the device, where that is less. Then the log says so.
///
/// # Errors
/// As [`GroupPart::new`].
pub fn part(group: &Arc<Group>, device: usize, most: Bytes) -> Result<(Arc<GroupPart>, Bytes)> {
    let part = GroupPart::new(group, device)?;
    let limit = part.limit();
    if most < limit {
        log::warn!(
            "the limit of device {device} in the group `{}` is {limit}, and this process can have {most} of the device: \
             it takes no more than that",
            group.name()
        );
    }
    Ok((Arc::new(part), limit.min(most)))
}

/// The group that the settings name, of which this process is a member from now on, if they name one and it can be. A
/// process that cannot goes on alone, and says why.
///
/// # Errors
/// INVALID_ARGUMENT, or RESOURCE_EXHAUSTED: what the settings ask for cannot be had.
pub fn join(settings: &Settings, platform: &'static str, limits: Vec<Bytes>) -> Result<Option<Arc<Group>>> {
    let Some(name) = &settings.share.value.0 else { return Ok(None) };
    let terms = Terms {
        limits,
        platform,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_takes_no_more_than_its_own_device_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let limits = vec![Bytes::mib(100)];
        let terms = Terms { limits, platform: "cuda", explicit_limit: false, min: Bytes::ZERO, weight: 100 };
        let joined = Group::join_in(&folder.path().join("groups"), "team", &terms).expect("joined");
        let limit = |most| part(&joined.group, 0, Bytes::mib(most)).expect("a device").1;
        assert_eq!((limit(60), limit(200)), (Bytes::mib(60), Bytes::mib(100)));
    }
}
