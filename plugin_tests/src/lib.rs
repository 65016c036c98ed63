//! Loads PJRT plugins through the C API and drives them from tests.

pub mod traces;
