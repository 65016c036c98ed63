//! How much memory this process can have.

use std::{fs, path::Path};

use crate::{
    device::host::{control_group::ControlGroup, mappable::Mappable},
    error::{Error, Result},
    units::Bytes,
};

/// What this process can have of the machine for arrays: its physical memory, or less where a control group (version 1
/// or 2, each level of it) leaves less beside what the rest of the process needs ([`ControlGroup::free`]), or the
/// process's own limits do ([`Mappable::free`]).
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
    let group = ControlGroup::under(root);
    if let Some(group) = &group {
        group.check()?;
    }
    Ok(group.map(|group| group.free()).into_iter().chain(left_to_map).fold(physical, Bytes::min))
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
    fn the_tightest_limit_around_the_process_counts() {
        let meminfo = ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
        // A group's limit that leaves so much.
        let gib = |n: u64| ((n << 30) + (128 << 20)).to_string();
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
