//! Huge pages: who gets them, and how memory asks for them.
//!
//! ```text
//!  /sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled     inherit, or its own word (Linux 6.8)
//!  /sys/kernel/mm/transparent_hugepage/enabled                      always | madvise | never
//!  prctl(PR_SET_THP_DISABLE)                                        off for this process, whatever the files say
//! ```
//!
//! With the setting `huge_pages`, regions of 2 MiB and more ask for huge pages (`MADV_HUGEPAGE`). Measured (AMD EPYC of
//! 2 cores, virtual, Linux 6.18, `enabled` and `defrag` at `madvise`):
//!
//! ```text
//!                                               pages of 4 KiB    huge pages
//!   first write to 64 MiB, lately used          11 to 27 ms       3 to 6 ms
//!   the same, free for a while                  10 to 60 ms       100 to 400 ms
//!   discarding 1 GiB                            71 to 150 ms      6 ms
//!   x + 1 over 256 MiB, `platform`              89 ms             24 ms
//!   the same, warm (`preallocate`)              14 ms             14 ms
//! ```
//!
//! The second line is the virtual machine: it reports free memory to its host in blocks of this very size (free page
//! reporting), and the host takes its time to back them again; the guest's kernel did not once have to clear room
//! (`compact_stall` in `/proc/vmstat`). Where memory is in small pieces, it has to, and a first touch waits for that.
//! So it is for the user to ask.
//!
//! What that means for the rest of the device: pages move and are returned in whole huge pages, because a part of one
//! breaks it up. A part that was returned would not even be free: the kernel keeps the huge page until memory runs
//! short, and khugepaged fills such gaps again. The advice itself belongs to the mapping, and stays through `mremap`
//! and `MADV_DONTNEED` (seen in `VmFlags` of `/proc/self/smaps`); only a fresh mapping has to ask again.

use std::{fmt, fs, path::Path, sync::Once};

use rustix::{
    mm::{Advice, madvise},
    thread::transparent_huge_pages_are_disabled,
};

use crate::device::shift::Extent;

/// The kernel's folder, below the root.
const FOLDER: &str = "sys/kernel/mm/transparent_hugepage";

/// Whether this process can have huge pages of 2 MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// All memory gets them, whether it asks or not.
    Always,
    /// Memory that asks gets them.
    OnRequest,
    /// No memory gets them; why not.
    Never(String),
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("all memory gets huge pages, asked for or not"),
            Self::OnRequest => f.write_str("memory that asks for huge pages gets them"),
            Self::Never(why) => write!(f, "no huge pages: {why}"),
        }
    }
}

/// What the running kernel says. Two small files and a system call.
pub fn huge_pages() -> HugePages {
    // A kernel that does not know the question has no such switch.
    offer_under(Path::new("/"), transparent_huge_pages_are_disabled().unwrap_or(false))
}

/// [`huge_pages`] as the files below `root` say, for a process that may have them `disabled`.
pub(super) fn offer_under(root: &Path, disabled: bool) -> HugePages {
    if disabled {
        return HugePages::Never("they are switched off for this process (prctl PR_SET_THP_DISABLE)".to_owned());
    }
    let read = |name: &str| {
        let text = fs::read_to_string(root.join(FOLDER).join(name)).ok()?;
        Some((format!("/{FOLDER}/{name} is `{}`", text.trim()), text))
    };
    let own = read("hugepages-2048kB/enabled").filter(|(_, choices)| !choices.contains("[inherit]"));
    match own.or_else(|| read("enabled")) {
        Some((_, choices)) if choices.contains("[always]") => HugePages::Always,
        Some((_, choices)) if choices.contains("[madvise]") => HugePages::OnRequest,
        Some((said, _)) => HugePages::Never(said),
        None => HugePages::Never(format!("the kernel has none (/{FOLDER}/enabled cannot be read)")),
    }
}

/// Asks for huge pages in whole pages of a mapping. What the kernel refuses is said once, and changes nothing else.
pub(super) fn advise(extent: Extent) {
    static REFUSED: Once = Once::new();
    // SAFETY: the advice changes no contents and unmaps nothing, whatever is mapped there; the kernel refuses what is
    // not mapped.
    if let Err(errno) = unsafe { madvise(extent.pointer(), extent.len(), Advice::LinuxHugepage) } {
        let (bytes, start) = (extent.bytes.get(), extent.start);
        REFUSED.call_once(|| {
            log::warn!("no huge pages: madvise(MADV_HUGEPAGE) of {bytes} bytes at {start} failed: {errno}");
        });
    }
}
