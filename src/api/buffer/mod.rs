//! `PJRT_Buffer`.

mod getters;
mod references;
mod wrapped;
