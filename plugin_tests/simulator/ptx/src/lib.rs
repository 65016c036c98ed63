//! Runs PTX, the code that compilers make for NVIDIA's GPUs, on the host.
//!
//! ```text
//!   text --syntax--> declarations, statements --decode--> code: registers by number, functions of 32 lanes
//!                                                             |
//!   Launch: grid, block, arguments  ------------------------> run: block after block, warps in lockstep
//!                                                             |
//!   Memory: checked and noted by the driver  <----------------'
//! ```
//!
//! What is computed is what the PTX ISA says. Where that leaves a choice (approximations, subnormal numbers in atomic
//! sums, division of whole numbers by zero) the nearest number is given, or what GPUs are known to give. Tensor cores,
//! asynchronous copies, textures and calls are not known: a kernel that has them says so when it is run, with the line,
//! and the others of its module run.

#![forbid(unsafe_code)]

mod code;
mod decode;
mod run;
mod syntax;
mod value;

use std::fmt;

pub use run::Launch;

use code::Code;

/// A translation of PTX text.
#[derive(Debug)]
pub struct Module {
    kernels: Vec<Kernel>,
    globals: Vec<Global>,
}

impl Module {
    /// Translates a module. Instructions that are not known are an error of their kernel, when it is run.
    ///
    /// # Errors
    /// A sentence with the line and the declaration that is not known.
    pub fn parse(text: &str) -> Result<Self, String> {
        let declarations = syntax::module::parse(text)?;
        let kernel = |entry: &syntax::module::Entry<'_>| Kernel {
            name: entry.name.to_owned(),
            parameters: entry.parameters.clone(),
            required: entry.required,
            most: entry.most,
            code: decode::kernel(entry, &declarations),
        };
        let kernels = declarations.entries.iter().map(kernel).collect();
        Ok(Self { kernels, globals: declarations.globals })
    }

    /// The kernel of a name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// All kernels.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// Variables in global and constant memory, which somebody has to place before a launch.
    pub fn globals(&self) -> &[Global] {
        &self.globals
    }
}

/// A variable of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// What its address is a multiple of.
    pub alignment: u64,
    /// What it begins with; the rest is zero.
    pub initial: Vec<u8>,
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its size.
    pub bytes: u64,
    /// What its place among the arguments is a multiple of.
    pub alignment: u64,
    /// Whether it is declared to be an address.
    pub pointer: bool,
}

/// A kernel.
pub struct Kernel {
    name: String,
    parameters: Vec<Parameter>,
    required: Option<[u32; 3]>,
    most: Option<[u32; 3]>,
    code: Result<Code, String>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Kernel")
            .field("name", &self.name)
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Bytes of shared memory that it declares.
    pub fn static_shared(&self) -> u64 {
        self.code.as_ref().map_or(0, |code| code.shared)
    }

    /// The only size of a block that it runs with (`.reqntid`).
    pub fn required_threads(&self) -> Option<[u32; 3]> {
        self.required
    }

    /// The largest size of a block that it runs with (`.maxntid`).
    pub fn most_threads(&self) -> Option<[u32; 3]> {
        self.most
    }

    /// Why it cannot be run, if so.
    pub fn unknown(&self) -> Option<&str> {
        self.code.as_ref().err().map(String::as_str)
    }

    fn code(&self) -> Result<&Code, String> {
        self.code.as_ref().map_err(String::clone)
    }
}

/// The GPU's memory as kernels see it. What neighbouring lanes use side by side is one access, of up to 1024 bytes.
pub trait Memory {
    /// Reads from an address on.
    ///
    /// # Errors
    /// A sentence that says why it may not be read.
    fn load(&mut self, address: u64, into: &mut [u8]) -> Result<(), String>;

    /// Writes from an address on.
    ///
    /// # Errors
    /// A sentence that says why it may not be written.
    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), String>;
}
