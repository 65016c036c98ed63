//! The engine: XLA's own PJRT plugin, loaded behind ours. It compiles and computes; we own the memory.
//!
//! Rings, unsafe shrinking outwards:
//!
//! ```text
//!  discover.rs  which libraries it can be
//!  trial.rs     whether one of them works here, tried in a process of its own
//!  choice.rs    which one is taken
//!  abi.rs       the argument struct and the table slot of each function
//!  library.rs   dlopen, GetPjrtApi, version check, calls as `Result`
//!  exceptions.rs C++ exceptions, which end as errors
//!  ffi.rs       the engine's XLA FFI: handlers for custom calls
//!  live.rs      handles that are alive, and what they can be asked
//!  order.rs     what the engine orders between threads, for ThreadSanitizer
//!  handles.rs   owners of what the engine hands out: errors, events
//!  views.rs     buffers of the engine that look at memory of ours
//!  session.rs   a client of the engine, and whether it is still there
//!  buffers.rs   buffers of the engine that we own
//!  executables.rs the description of a loaded program
//!  asynchronous.rs executions that do not run in the caller's thread
//!  fence.rs     the end of what a device was given so far
//!  scratch/     warm memory for what the engine allocates itself
//!  atexit.rs    what the engine's library builds once stays to the end
//!  imports.rs   the import table of a library, where both of these meet it
//! ```

pub mod abi;
pub mod asynchronous;
pub mod atexit;
pub mod buffers;
pub mod choice;
pub mod discover;
pub mod exceptions;
pub mod executables;
pub mod extensions;
pub mod failure;
pub mod fence;
pub mod ffi;
pub mod handles;
mod imports;
pub mod library;
pub mod live;
pub mod named_values;
pub mod order;
pub mod process;
pub mod scratch;
pub mod session;
pub mod trial;
pub mod views;

pub use abi::{Args, fitted, set_struct_size};
pub use buffers::EngineBuffer;
pub use failure::{Failure, Outcome};
pub use handles::{Completion, EngineEvent};
pub use library::{Engine, EngineError};
pub use live::{Live, Raw};
pub use session::{Open, Session};
