//! Processes of one user that share the budget of their devices: the file that they have in common.
//!
//! ```text
//!  join ---- how a process becomes a member          look ---- a group from outside, for people
//!    |                                                 |
//!  share --- one device's part: take, give, ask        |
//!    |                                                 |
//!  core ---- the membership: lock, sweep, leave ------ info -- who is in it
//!    |-- folder    where the files are, and whose
//!    |-- lock      the kernel's record locks: the books', and one for each member that lives
//!    |-- mapping   the file in memory
//!    `-- layout    the words in it: slots, limits, asks
//!          |-- signal    words to sleep on
//!          `-- process   who a member is
//! ```
//!
//! There is no other process that keeps books. Each member writes what it holds into a slot of its own, and reads the
//! others': what is free is the limit without that. `memory::group` has the rules.
//!
//! *The only lock is the kernel's.* Whatever a process dies of, and at whichever instruction, its locks end, and the
//! one on its slot tells the others that what stands there is nobody's. *What is held is raised before memory is
//! mapped, and lowered after it was unmapped*, and what could not be unmapped stays held. The kernel ends a process's
//! memory of the host before its locks, so the sum of what is mapped of the host is never above the limit. A GPU's
//! memory the driver takes back when it sees that the process is gone, which may be later: an allocation that the
//! driver refuses within a second after a member's death is tried again. A child after `fork` keeps the pages that its
//! parent had, until it ends or starts another program; they are not counted.
//!
//! A child after `fork` is no member: what it has from its parent answers with an error, and it can join by itself.

mod core;
mod folder;
mod info;
mod join;
mod layout;
mod lock;
mod look;
mod mapping;
mod process;
mod share;
mod signal;
#[cfg(test)]
mod tests;

pub use crate::group::core::Group;
pub use crate::group::folder::Folder;
pub use crate::group::folder::check_name;
pub use crate::group::folder::path_of_user;
pub use crate::group::info::MemberInfo;
pub use crate::group::join::Joined;
pub use crate::group::join::Terms;
pub use crate::group::layout::MAX_DEVICES;
pub use crate::group::layout::MAX_MEMBERS;
pub use crate::group::look::Overview;
pub use crate::group::look::look;
pub use crate::group::look::look_in;
pub use crate::group::look::names;
pub use crate::group::look::names_in;
pub use crate::group::process::Process;
pub use crate::group::process::State;
pub use crate::group::share::Ask;
pub use crate::group::share::Refused;
pub use crate::group::share::Share;
pub use crate::group::share::Short;
pub use crate::group::share::Taken;
pub use crate::memory::group::Wanted;
