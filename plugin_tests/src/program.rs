//! The programs of the tests: portable artifacts as JAX sends them, and StableHLO text for what only text can say.

use crate::{sized, sys};

/// A program with its compile options.
#[derive(Clone, Debug)]
pub struct Program {
    code: Vec<u8>,
    format: String,
    options: Vec<u8>,
}

macro_rules! programs {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        impl Program {
            $(
                $(#[$doc])*
                pub fn $name() -> Self {
                    Self::artifact(
                        include_bytes!(concat!("../data/programs/", stringify!($name), ".mlir")),
                        include_bytes!(concat!("../data/programs/", stringify!($name), ".opts")),
                    )
                }
            )*
        }
    };
}

programs! {
    /// `f32[1024]`: `x + 1`.
    add_one,
    /// `f32[262144]` (1 MiB): `x + 1`.
    add_one_1m,
    /// `f32[1048576]` (4 MiB): `x + 1`.
    add_one_4m,
    /// `u8[4194304]` (4 MiB): `x + 1`.
    add_one_u8_4m,
    /// `bf16[1024]`: `x + 1`.
    add_one_bf16,
    /// `c64[64]`: `x + (1 + 2i)`.
    add_one_c64,
    /// `s4[16]`: `x + 1`.
    add_one_s4,
    /// `f32[]`: `x + 1`.
    add_one_scalar,
    /// `f32[0]`: `x + 1`.
    add_one_empty,
    /// `pred[64]`: `!x`.
    not_pred,
    /// `f32[1024]`: `a + b`.
    add,
    /// `f32[32,48] x f32[48,64]`.
    matmul,
    /// `f32[1024]`: `a + b`, `a * b`.
    two_results,
    /// No argument; `s32[256]`: `0, 1, 2 ...`.
    constant,
    /// `f32[1024]`: `(a, b) -> (b, a, a)`.
    passthrough,
    /// One argument `f32[1024]`, no result.
    no_results,
    /// `f32[1024]`: `x + 1`, with `x` donated to the result.
    donate,
    /// `f32[1024]`: `a + b`, with `a` donated to the result.
    donate_first,
    /// `f32[1024]`: `a + b`, with `b` donated to the result.
    donate_second,
    /// `f32[1024]`: `a + b`, `a - b`, with both donated.
    donate_both,
    /// `f32[1024]`: `x + 1`, `x + 2`, with `x` offered as a donor to whichever result.
    buffer_donor,
    /// `f32[16]`: 300 results, `x + i`.
    many_results,
    /// `f32[256,256]`: `x` to the fourth power, which needs temporary memory.
    temp_heavy,
    /// `f32[1024]`: 1000 times `sin(x) + 1` in a while loop.
    iterate,
    /// Four devices, `f32[4096]` split over them: `x + 1` split as well, and the sum on every device.
    sharded,
    /// `f32[1024], s32[]`: `x + 1` computed behind a [`Gate`](crate::Gate) by the engine's threads, and a product of
    /// `x`.
    gate,
    /// The same with the first argument donated to the first result.
    gate_donate,
    /// `f32[1024], s32[]`: `x` behind a gate, light enough that the calling thread runs it inside of Execute.
    gate_inline,
    /// `f32[1048576], s32[]` (4 MiB): `x + 1` behind a gate, by the engine's threads.
    gate_large,
}

impl Program {
    /// A program as recorded.
    pub fn artifact(code: &[u8], options: &[u8]) -> Self {
        Self { code: code.to_vec(), format: "mlir".into(), options: options.to_vec() }
    }

    /// StableHLO text with the options of a one-device program. Plugins leave text as it is.
    pub fn text(code: &str) -> Self {
        Self { code: code.into(), ..Self::add_one() }
    }

    /// The same options with other bytes in another format.
    pub fn with_code(mut self, code: &[u8], format: &str) -> Self {
        (self.code, self.format) = (code.to_vec(), format.into());
        self
    }

    /// The same program with other options.
    pub fn with_options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }

    /// The same program on as many devices, each with arguments of its own.
    pub fn replicated(self, replicas: u8) -> Self {
        // `CompileOptionsProto.executable_build_options` (3) with `num_replicas` (4) and `num_partitions` (5).
        self.with_options(&[0x1a, 4, 0x20, replicas, 0x28, 1])
    }

    /// The same program on the one device with this id.
    pub fn on_device(self, id: u8) -> Self {
        // As above, each 1, with `device_assignment` (9): one replica (1), one computation (2), its device (3, 1).
        self.with_options(&[0x1a, 15, 0x20, 1, 0x28, 1, 0x4a, 9, 0x08, 1, 0x10, 1, 0x1a, 3, 0x0a, 1, id])
    }

    /// The bytes of the program.
    pub fn code(&self) -> &[u8] {
        &self.code
    }

    /// The compile options.
    pub fn options(&self) -> &[u8] {
        &self.options
    }

    /// The C form; it borrows from `self`.
    pub fn raw(&self) -> sys::PJRT_Program {
        let mut program = sized!(PJRT_Program);
        program.code = self.code.as_ptr().cast_mut().cast();
        program.code_size = self.code.len();
        program.format = self.format.as_ptr().cast();
        program.format_size = self.format.len();
        program
    }
}
