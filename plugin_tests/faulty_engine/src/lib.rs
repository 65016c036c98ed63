//! An engine that fails when it is told to: every call goes on to another engine, except the one that a test names.
//!
//! ```text
//!  the library under test
//!         |  PJRT C API
//!  libfaulty_cpu_engine.so
//!    table     GetPjrtApi: one function for each slot, all of them `seam::cross`
//!    seam      counts the call; fails it before or after the engine did it, delays it, throws, or spoils its event
//!    faults    what is armed, and the calls of each function
//!    live      the handles that the engine has given and not been asked to destroy
//!    error     errors of this library, with a text that tests know
//!    event     events of this library, which happen with such an error when the engine's do
//!    throws    C++ exceptions
//!         |
//!  the engine that FAULTY_ENGINE_BEHIND names
//! ```
//!
//! What a test asks of it, by functions that it exports. A slot is a function's number in the table, from zero; a kind
//! is 0 to fail, 1 to be late, 2 to spoil the event that it gives, 3 to throw, 4 to fail an execution that all devices
//! have begun, 5 to throw when the engine has done it.
//!
//! | function | what it does |
//! |---|---|
//! | `faulty_engine_arm(slot, nth, kind)` | arms a fault: the `nth` call of the function from now on, counted from 1 |
//! | `faulty_engine_disarm()` | takes it back; gives whether it happened |
//! | `faulty_engine_calls(slot)` | calls of the function so far |
//! | `faulty_engine_kinds(slot)` | the kinds that make sense for it, as bits |
//! | `faulty_engine_live(slot)` | handles that it gave and that are alive |
//! | `faulty_engine_thrower()` | a handler of XLA FFI that throws in the middle of an execution |
//! | `faulty_engine_misuse(text, size)` | what the library under test did wrong: a handle destroyed twice or never given |
//!
//! A function that destroys something, or waits, fails after the engine has done it: an error of `PJRT_Event_Await`
//! says that the event has happened with an error, and a `..._Destroy` that failed has destroyed all the same. All
//! others fail before the engine is asked.

mod control;
mod error;
mod event;
mod faults;
mod live;
mod seam;
mod table;
mod throws;

// Not by depending on pjrt-arena: both libraries export GetPjrtApi.
#[allow(dead_code, reason = "the library's own file, of which not all is needed here")]
#[path = "../../../src/sys.rs"]
mod sys;
