//! The driver as a program calls it. All tests share one binary, and a `Session` gives each a driver of its own.

#[macro_use]
mod common;

mod capture;
mod control;
mod hip;
mod memory;
mod pool;
mod races;
mod streams;
mod threads;
mod vmm;
