//! How much memory this process can have.

use std::{fs, path::Path};

use crate::{
    device::host::mappable::{LEAST_FREE, Mappable},
    error::{Code, Error, Result},
    units::Bytes,
};

/// Of a control group's memory, for Python, NumPy, JAX and both copies of XLA, whose compiled code grows: a process
/// had 85 MiB beside its arrays after one program, and 140 after some.
const KEPT_OF_GROUP: Bytes = Bytes::mib(128);

/// What this process can have of the machine for arrays: its physical memory, or less where a control group (version 1
/// or 2, each level of it) leaves less beside what the rest of the process needs, or the process's own limits do
/// ([`Mappable::free`]).
///
/// # Errors
/// `INTERNAL` when the kernel does not say how much memory there is; `RESOURCE_EXHAUSTED` when the control group or the
/// process's own limits leave nothing.
pub fn capacity() -> Result<Bytes> {
    let mappable = Mappable::now();
    if let Some(mappable) = &mappable {
        mappable.check(Bytes::ZERO)?;
    }
    capacity_under(Path::new("/"), mappable.map(|mappable| mappable.free()))
}

/// [`capacity`] as the files below `root` say.
fn capacity_under(root: &Path, left_to_map: Option<Bytes>) -> Result<Bytes> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    let physical = kib.and_then(|kib: u64| kib.checked_mul(1024)).map(Bytes::new);
    let physical = physical.ok_or_else(|| Error::internal("/proc/meminfo has no MemTotal in kB".to_owned()))?;
    let group = cgroup_limits(root).min().map(free_of_group).transpose()?;
    Ok(group.into_iter().chain(left_to_map).fold(physical, Bytes::min))
}

/// What arrays may have of a control group's memory. A process that takes more than its group has is killed.
///
/// # Errors
/// RESOURCE_EXHAUSTED where that is next to nothing.
fn free_of_group(limit: Bytes) -> Result<Bytes> {
    let free = limit.saturating_sub(KEPT_OF_GROUP);
    if free >= LEAST_FREE {
        return Ok(free);
    }
    let needed = KEPT_OF_GROUP + LEAST_FREE;
    let why = format!("the control group lets this process have {limit}; Python, JAX and XLA need {needed}");
    Err(Error::new(Code::ResourceExhausted, why))
}

/// The memory limits of the process's control groups and of those around them.
fn cgroup_limits(root: &Path) -> impl Iterator<Item = Bytes> {
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
            limits.extend(text.trim().parse().ok().map(Bytes::new));
        }
    }
    limits.into_iter()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn the_machine_has_memory() {
        let capacity = capacity().expect("a running kernel");
        assert!(capacity > Bytes::mib(64) && capacity < Bytes::gib(1 << 20), "{capacity}");
    }

    /// A root folder with the files given, below the system's folder for temporary files.
    pub(in super::super) fn machine(name: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("pjrt-arena-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a file in a folder")).expect("writable");
            fs::write(path, text).expect("writable");
        }
        root
    }

    #[test]
    fn what_is_kept_of_a_group_has_to_be_there() {
        assert_eq!(free_of_group(Bytes::mib(160)), Ok(Bytes::mib(32)));
        let error = free_of_group(Bytes::mib(159)).expect_err("one less");
        assert_eq!(error.code, Code::ResourceExhausted);
        assert_eq!(
            error.message,
            "the control group lets this process have 159.00MiB; Python, JAX and XLA need 160.00MiB"
        );
    }

    #[test]
    fn the_tightest_limit_around_the_process_counts() {
        let meminfo = ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
        // A group's limit that leaves so much.
        let gib = |n: u64| ((n << 30) + KEPT_OF_GROUP.get()).to_string();
        let v2 = ("proc/self/cgroup", "0::/pod/box\n");
        type Files<'a> = &'a [(&'a str, &'a str)];
        let cases: &[(&str, Files<'_>, Option<Bytes>, u64)] = &[
            ("plain", &[meminfo], None, 16),
            ("rlimit", &[meminfo], Some(Bytes::gib(3)), 3),
            (
                "v2",
                &[meminfo, v2, ("sys/fs/cgroup/pod/box/memory.max", &gib(4)), ("sys/fs/cgroup/memory.max", "max")],
                None,
                4,
            ),
            (
                "v2-outer",
                &[
                    meminfo,
                    v2,
                    ("sys/fs/cgroup/pod/box/memory.max", "max\n"),
                    ("sys/fs/cgroup/pod/memory.max", &gib(2)),
                ],
                None,
                2,
            ),
            ("v2-namespaced", &[meminfo, v2, ("sys/fs/cgroup/memory.max", &gib(5))], None, 5),
            (
                "v1",
                &[
                    meminfo,
                    ("proc/self/cgroup", "9:cpu,memory:/a\n3:cpuset:/\n0::/\n"),
                    ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", &gib(6)),
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
                ],
                None,
                6,
            ),
        ];
        for &(name, files, address_space, expected) in cases {
            let root = machine(name, files);
            assert_eq!(capacity_under(&root, address_space), Ok(Bytes::gib(expected)), "{name}");
            fs::remove_dir_all(root).expect("ours");
        }
        assert!(capacity_under(Path::new("/nowhere-at-all"), None).is_err());
    }
}
