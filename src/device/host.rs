//! The machine's own memory: anonymous mappings.
//!
//! ```text
//!  mapped:    |   head   |      region, aligned to 2 MiB      | tail |
//!             unmapped at once                              unmapped at once
//! ```
//!
//! A region is a promise, not memory (`MAP_NORESERVE`): the kernel gives a page at its first use, and takes it back when
//! the region is released. Regions of 2 MiB and more start at a multiple of 2 MiB, where huge pages can serve
//! them if the administrator wants them; nothing asks for huge pages, because a first touch of them can stall.

use std::{ffi::c_void, fs, path::Path, ptr};

use rustix::{
    mm::{MapFlags, ProtFlags, mmap_anonymous, munmap},
    process::{Resource, getrlimit},
};

use crate::{
    error::{Code, Error, Result},
    memory::{Backing, Region},
    units::{Address, Bytes},
};

/// Regions of this size and more are aligned to it: a huge page of x86-64 and of arm64 with pages of 4 KiB.
const HUGE_PAGE: Bytes = Bytes::mib(2);

/// The host as a device.
#[derive(Clone, Copy, Debug)]
pub struct HostBacking {
    page: Bytes,
}

impl HostBacking {
    /// The host, with the page size of the running kernel.
    pub fn new() -> Self {
        Self { page: Bytes::new(rustix::param::page_size() as u64) }
    }
}

impl Default for HostBacking {
    fn default() -> Self {
        Self::new()
    }
}

impl Backing for HostBacking {
    fn reserve(&self, bytes: Bytes) -> Result<Region> {
        let refuse = |why: String| {
            Error::new(Code::ResourceExhausted, format!("mmap of {bytes} ({} bytes) failed: {why}", bytes.get()))
        };
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE.max(self.page) } else { self.page };
        let padded = bytes.checked_add(align - self.page).and_then(to_len);
        let padded = padded.ok_or_else(|| refuse("more than the address space".into()))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null hint and no MAP_FIXED: the kernel chooses a range that nothing else uses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), padded, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let start = start.map_err(|errno| refuse(errno.to_string()))?;
        let mapped = Address::new(start.expose_provenance() as u64);
        let address = Bytes::new(mapped.get()).checked_round_up(align).map(|start| Address::new(start.get()));
        let address = address.ok_or_else(|| refuse("a mapping at the end of the address space".into()))?;
        let head = address - mapped;
        let tail = Bytes::new(padded as u64) - head - bytes;
        for (from, len) in [(mapped, head), (address + bytes, tail)] {
            if !len.is_zero() {
                unmap(from, len)?;
            }
        }
        Ok(Region { address, bytes })
    }

    fn release(&self, region: Region) -> Result<()> {
        unmap(region.address, region.bytes)
    }

    fn granularity(&self) -> Bytes {
        self.page
    }
}

fn to_len(bytes: Bytes) -> Option<usize> {
    usize::try_from(bytes.get()).ok()
}

fn unmap(address: Address, bytes: Bytes) -> Result<()> {
    let failed = |why: String| Error::internal(format!("munmap of {} bytes at {address} failed: {why}", bytes.get()));
    let len = to_len(bytes).ok_or_else(|| failed("more than the address space".into()))?;
    let start = ptr::with_exposed_provenance_mut::<c_void>(address.get() as usize);
    // SAFETY: both callers name a part of a mapping of `reserve`, which nothing refers to: the padding was never
    // handed out, and a region comes back through `Backing::release` once no block of it is left.
    unsafe { munmap(start, len) }.map_err(|errno| failed(errno.to_string()))
}

/// Copies bytes into the host's memory.
///
/// # Safety
/// `to` lies in a live block with at least `from.len()` bytes from there on, which nobody reads or writes meanwhile.
pub unsafe fn write(to: Address, from: &[u8]) {
    let to = ptr::with_exposed_provenance_mut::<u8>(to.get() as usize);
    // SAFETY: `from` is valid for its length; `to` by the contract, and exclusive, so the two do not overlap.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
}

/// Copies bytes out of the host's memory.
///
/// # Safety
/// `from` lies in a live block with at least `to.len()` bytes from there on, which nobody writes meanwhile.
pub unsafe fn read(from: Address, to: &mut [u8]) {
    let from = ptr::with_exposed_provenance::<u8>(from.get() as usize);
    // SAFETY: `to` is valid for its length and exclusive, so the two do not overlap; `from` by the contract.
    unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
}

/// What this process can have of the machine: its physical memory, or less where a control group (version 1 or 2,
/// each level of it) or the limit of the address space (`RLIMIT_AS`) allows less.
///
/// # Errors
/// `INTERNAL` when the kernel does not say how much memory there is.
pub fn capacity() -> Result<Bytes> {
    let address_space = getrlimit(Resource::As).current.map(Bytes::new);
    capacity_under(Path::new("/"), address_space)
}

/// [`capacity`] as the files below `root` say.
fn capacity_under(root: &Path, address_space: Option<Bytes>) -> Result<Bytes> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    let physical = kib.and_then(|kib: u64| kib.checked_mul(1024)).map(Bytes::new);
    let physical = physical.ok_or_else(|| Error::internal("/proc/meminfo has no MemTotal in kB".to_owned()))?;
    Ok(cgroup_limits(root).chain(address_space).fold(physical, Bytes::min))
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
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_hold_what_is_written_and_go_back() {
        let host = HostBacking::new();
        let pages = [host.granularity(), Bytes::mib(2), Bytes::mib(64) + host.granularity()];
        for bytes in pages {
            let region = host.reserve(bytes).expect("room");
            assert_eq!(region.bytes, bytes);
            assert!(region.address.is_aligned_to(if bytes < HUGE_PAGE { host.granularity() } else { HUGE_PAGE }));
            let last = region.address + (bytes - Bytes::new(4));
            let mut back = [0; 4];
            // SAFETY: both ranges lie in the region, which is this test's own.
            unsafe {
                write(region.address, &[1, 2, 3, 4]);
                write(last, &[5, 6, 7, 8]);
                read(last, &mut back);
            }
            assert_eq!(back, [5, 6, 7, 8]);
            assert_eq!(host.release(region), Ok(()));
        }
    }

    #[test]
    fn what_cannot_be_mapped_is_refused_with_its_size() {
        for bytes in [Bytes::new(1 << 62), Bytes::MAX.round_down(Bytes::mib(2))] {
            let error = HostBacking::new().reserve(bytes).expect_err("no such address space");
            assert_eq!(error.code, Code::ResourceExhausted);
            assert!(error.message.contains(&bytes.get().to_string()), "{error}");
        }
    }

    #[test]
    fn the_machine_has_memory() {
        let capacity = capacity().expect("a running kernel");
        assert!(capacity > Bytes::mib(64) && capacity < Bytes::gib(1 << 20), "{capacity}");
    }

    /// A root folder with the files given, below the system's folder for temporary files.
    fn machine(name: &str, files: &[(&str, &str)]) -> std::path::PathBuf {
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
        let gib = |n: u64| (n << 30).to_string();
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
