//! What a control group lets this process have: a container, a batch job, a service.
//!
//! ```text
//!  |<------------------------- limit ------------------------->|
//!  |        kept        |                 free                 |
//!    Python, JAX, XLA                arrays, scratch
//! ```
//!
//! The system kills a process of a group that has taken more. What is taken counts when it is touched, so that the rest
//! of the process is not all there yet when arrays are promised room.

use std::{fmt, fs, path::Path};

use crate::{
    device::host::mappable::LEAST_FREE,
    error::{Code, Error, Result},
    units::Bytes,
};

/// For Python, NumPy, JAX and both copies of XLA, whose compiled code grows: a process had 85 MiB beside its arrays
/// after one program, and 140 after some.
const KEPT: Bytes = Bytes::mib(128);

/// What version 1 says where there is no limit is not less than this.
const NO_LIMIT: u64 = 1 << 62;

/// The limit of the process's control groups, or of one around them, that leaves least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlGroup {
    limit: Bytes,
}

impl ControlGroup {
    /// As it is now; `None` where no group has a limit. Reads files of the system's.
    pub fn now() -> Option<Self> {
        Self::under(Path::new("/"))
    }

    /// [`Self::now`] as the files below `root` say.
    pub(super) fn under(root: &Path) -> Option<Self> {
        limits(root).min().map(|limit| Self { limit })
    }

    /// What arrays and scratch may have.
    pub fn free(&self) -> Bytes {
        self.limit.saturating_sub(KEPT)
    }

    /// Whether there is room for some arrays beside what is kept.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where there is not; it names the limit and what is needed.
    pub fn check(&self) -> Result<()> {
        if self.free() >= LEAST_FREE {
            return Ok(());
        }
        Err(Error::new(Code::ResourceExhausted, format!("{self}; arrays need {LEAST_FREE}")))
    }
}

impl fmt::Display for ControlGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the control group lets this process have {}, of which {KEPT} are for Python, JAX and XLA",
            self.limit
        )
    }
}

/// The memory limits of the process's control groups, of version 1 or 2, and of those around them.
fn limits(root: &Path) -> impl Iterator<Item = Bytes> {
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut limits = Vec::new();
    for line in membership.lines() {
        // `<hierarchy>:<controllers>:<path>`; version 2 is hierarchy 0 without controllers.
        let mut fields = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, file) = match hierarchy {
            "0" if controllers.is_empty() => ("sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // A container may see its own group as the root of the mount, whatever its path is outside. So every level
        // that exists counts, the root too; "max" is no number and no limit.
        for level in Path::new(path.trim_start_matches('/')).ancestors() {
            let text = fs::read_to_string(root.join(mount).join(level).join(file)).unwrap_or_default();
            limits.extend(text.trim().parse().ok().filter(|&limit| limit < NO_LIMIT).map(Bytes::new));
        }
    }
    limits.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_has_to_be_there() {
        let group = |mib| ControlGroup { limit: Bytes::mib(mib) };
        assert_eq!((group(160).free(), group(160).check()), (Bytes::mib(32), Ok(())));
        assert_eq!(group(100).free(), Bytes::ZERO);
        let error = group(159).check().expect_err("one less");
        assert_eq!(error.code, Code::ResourceExhausted);
        let said = "the control group lets this process have 159.00MiB, of which 128.00MiB are for Python, JAX and \
                    XLA; arrays need 32.00MiB";
        assert_eq!(error.message, said);
    }
}
