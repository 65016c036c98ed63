//! The arena: all memory of one device, behind one lock.
//!
//! ```text
//!              allocate                 retire                    free
//!   (nothing) ---------->  live block  -------->  retired block  ------>  (nothing)
//!                     ^         `----------------- free -------------------^
//!                     `------------- reuse ------------'
//! ```
//!
//! `core` is the arena, and `state` what its lock guards. Six files add to it: `compaction` moves blocks, `pinning`
//! keeps blocks in place, `prospects` tries in a copy what would find room, `reuse` gives retired ones another owner,
//! `scratch` keeps the low end for programs, `recording` notes events. `least_limit` has the `past` happen again in an
//! arena with another limit; what a call does there and in a copy is a `rehearsal`.
//!
//! The lock is held for tens of nanoseconds, except while a strategy asks the device for memory or a compaction is
//! planned. No thread waits while it holds the lock, and nothing is called under it but
//! [`Backing::reserve`](super::Backing::reserve) (and [`Backing::release`](super::Backing::release) when growth needs
//! the room), so every function may be called from any thread, the engine's own included.
//!
//! A panic while the lock is held breaks the arena: its books may be half changed, and with wrong books two arrays
//! could get the same memory. It forgets them, unlocks, and wakes who waits. From then on every allocation fails with
//! INTERNAL and its name; blocks that it gave before stay where they are, to be read and written; to free, retire or
//! pin them succeeds and does nothing. Its numbers are zero, and its regions stay mapped until the process ends. `lock`
//! sees the panic, `state` forgets, and the strategy `broken` refuses.

pub(super) mod block;
mod compaction;
mod core;
mod floor;
mod idle;
mod least_limit;
mod lock;
mod past;
mod pinning;
pub(super) mod prospects;
mod recording;
mod rehearsal;
mod reuse;
mod scopes;
mod scratch;
mod state;
mod watched;

pub use crate::memory::arena::block::Block;
pub use crate::memory::arena::block::BlockInfo;
pub use crate::memory::arena::block::BlockState;
pub use crate::memory::arena::block::Ends;
pub use crate::memory::arena::compaction::Compaction;
pub use crate::memory::arena::compaction::Goal;
pub use crate::memory::arena::compaction::Move;
pub use crate::memory::arena::compaction::Obstacle;
pub use crate::memory::arena::core::Arena;
pub use crate::memory::arena::core::ArenaGuard;
pub use crate::memory::arena::idle::Surplus;
pub use crate::memory::arena::pinning::PIN_BYTES;
pub use crate::memory::arena::pinning::PIN_NANOS;
pub use crate::memory::arena::prospects::{Exhaustion, MayMove};
pub use crate::memory::arena::recording::Scoped;
pub use crate::memory::arena::recording::Survey;
pub use crate::memory::arena::rehearsal::Needs;
pub use crate::memory::arena::scopes::ScopeId;
