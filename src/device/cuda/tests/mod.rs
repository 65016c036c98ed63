//! The CUDA device, on drivers made for tests.

mod probe;
