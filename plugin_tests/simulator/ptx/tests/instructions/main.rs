//! PTX on the host: small kernels for each group of instructions and each hard case.
//!
//! ```text
//!   arithmetic, floats, convert, compare   one instruction in one thread: `one("add.s32 %r0, %r1, %r2;", [a, b, c])`
//!   memory, control, warps, errors         whole kernels: `Kernel::of(..).run(..)`
//! ```

mod arithmetic;
mod compare;
mod control;
mod convert;
mod errors;
mod floats;
mod memory;
mod warps;

use ptx::{Launch, Memory, Module};

/// Where memory begins.
const BASE: u64 = 0x7f00_0000_0000;

/// Memory of one piece.
struct Ram(Vec<u8>);

impl Ram {
    fn part(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], String> {
        let at = address.checked_sub(BASE).and_then(|at| usize::try_from(at).ok());
        let part = at.and_then(|at| self.0.get_mut(at..at.checked_add(bytes)?));
        part.ok_or_else(|| format!("{bytes} bytes at {address:#x} are outside of memory"))
    }
}

impl Memory for Ram {
    fn load(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        into.copy_from_slice(self.part(address, into.len())?);
        Ok(())
    }
    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), String> {
        self.part(address, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }
}

/// A kernel `k` with a pointer, and how it is launched.
struct Kernel {
    text: String,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    limit: u64,
}

const REGISTERS: &str = ".reg .pred %p<10>; .reg .b16 %h<20>; .reg .b32 %r<40>; .reg .b64 %d<40>;";

impl Kernel {
    /// Of a body, with registers %p, %h, %r, %d of 1, 16, 32 and 64 bits; the pointer is in %d20.
    fn of(body: &str) -> Self {
        Self::with("", body)
    }

    /// With declarations before the kernel.
    fn with(declarations: &str, body: &str) -> Self {
        let text = format!(
            ".version 8.0\n.target sm_90a\n.address_size 64\n{declarations}\n.visible .entry k(.param .u64 .ptr .align 16 \
             data)\n{{\n{REGISTERS}\nld.param.b64 %d20, [data];\n{body}\nret;\n}}\n"
        );
        Self { text, grid: [1; 3], block: [1; 3], shared: 0, limit: 1 << 20 }
    }

    fn block(mut self, block: [u32; 3]) -> Self {
        self.block = block;
        self
    }

    fn threads(self, threads: u32) -> Self {
        self.block([threads, 1, 1])
    }

    /// Runs on memory that begins with some words, and gives what they are then.
    fn run(&self, words: &[u32]) -> Result<Vec<u32>, String> {
        let mut ram = Ram(words.iter().flat_map(|word| word.to_le_bytes()).collect());
        let module = Module::parse(&self.text)?;
        // Variables of the module lie at the beginning.
        let globals = |name: &str| module.globals().iter().any(|global| global.name == name).then_some(BASE);
        let launch = Launch {
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.shared,
            arguments: &[BASE.to_le_bytes().to_vec()],
            globals: &globals,
            limit: self.limit,
        };
        module.kernel("k").expect("the kernel").run(&launch, &mut ram)?;
        Ok(ram.0.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect())
    }

    /// One word for each of some threads of one block, the %r0 of each.
    fn each(body: &str, threads: u32) -> Vec<u32> {
        let body = format!("{body}\n{STORE}");
        Self::of(&body).threads(threads).run(&vec![0; threads as usize]).unwrap_or_else(|told| panic!("{told}\n{body}"))
    }
}

/// Stores %r0 at the thread's place.
const STORE: &str =
    "mov.u32 %r30, %tid.x; mul.wide.u32 %d30, %r30, 4; add.s64 %d30, %d30, %d20; st.global.b32 [%d30], %r0;";

/// The result %h0, %r0, %d0 or %p0 of instructions whose operands are 1, 2 and 3 of each.
fn one(instructions: &str, operands: [u64; 3]) -> u64 {
    let load = "ld.global.v2.b64 {%d1, %d2}, [%d20]; ld.global.b64 %d3, [%d20+16]; mov.b64 %d0, 0;\
                cvt.u32.u64 %r1, %d1; cvt.u32.u64 %r2, %d2; cvt.u32.u64 %r3, %d3; mov.b32 %r0, 0;\
                cvt.u16.u64 %h1, %d1; cvt.u16.u64 %h2, %d2; cvt.u16.u64 %h3, %d3;";
    let widen = ["%r0", "%h0", "%p0"].into_iter().find(|name| instructions.contains(name));
    let widen = match widen {
        Some("%r0") => "cvt.u64.u32 %d0, %r0;",
        Some("%h0") => "cvt.u64.u16 %d0, %h0;",
        Some(_) => "selp.b64 %d0, 1, 0, %p0;",
        None => "",
    };
    let body = format!("{load}\n{instructions}\n{widen} st.global.b64 [%d20], %d0;");
    let words = operands.iter().flat_map(|value| [*value as u32, (value >> 32) as u32]).collect::<Vec<_>>();
    let words = Kernel::of(&body).run(&words).unwrap_or_else(|told| panic!("{told}\n{instructions}"));
    u64::from(words[0]) | u64::from(words[1]) << 32
}

/// Checks instructions against tables of operands and results.
fn table(cases: &[(&str, [u64; 3], u64)]) {
    for (instructions, operands, expected) in cases {
        let found = one(instructions, *operands);
        assert_eq!(found, *expected, "{instructions} of {operands:x?}: {found:#x} in place of {expected:#x}");
    }
}
