//! The shapes that one device's arguments have: PJRT tells those of results only, so they are read from the optimised
//! program, whose entry computation has been partitioned.
//!
//! Field numbers: `xla/service/hlo.proto` and `xla/xla_data.proto`, the same in PJRT 0.81, 0.112 and 0.114.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct ModuleWithConfig {
    #[prost(message, optional, tag = "1")]
    module: Option<Module>,
}

#[derive(Clone, PartialEq, Message)]
struct Module {
    #[prost(message, repeated, tag = "3")]
    computations: Vec<Computation>,
    #[prost(int64, tag = "6")]
    entry: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Computation {
    #[prost(message, optional, tag = "4")]
    program_shape: Option<ProgramShape>,
    #[prost(int64, tag = "5")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ProgramShape {
    #[prost(message, repeated, tag = "1")]
    parameters: Vec<Shape>,
}

/// A parameter on one device.
#[derive(Clone, PartialEq, Message)]
pub struct Shape {
    /// Elements along each dimension.
    #[prost(int64, repeated, tag = "3")]
    pub dimensions: Vec<i64>,
    #[prost(message, optional, tag = "5")]
    layout: Option<Layout>,
}

#[derive(Clone, PartialEq, Message)]
struct Layout {
    #[prost(int64, repeated, tag = "1")]
    minor_to_major: Vec<i64>,
}

impl Shape {
    /// Whether the last dimension is the densest, as that of arrays from the host is.
    pub fn is_row_major(&self) -> bool {
        self.layout.as_ref().is_none_or(|layout| layout.minor_to_major.iter().rev().copied().eq(0..self.rank()))
    }

    /// Elements in all.
    pub fn elements(&self) -> i64 {
        self.dimensions.iter().product()
    }

    fn rank(&self) -> i64 {
        self.dimensions.len() as i64
    }
}

/// The parameters of an optimised program as `PJRT_Executable_OptimizedProgram` gives it.
///
/// # Errors
/// One sentence where the program is something else.
pub fn parameters(format: &str, program: &[u8]) -> Result<Vec<Shape>, String> {
    let module = match format {
        "hlo" => Some(Module::decode(program).map_err(|error| error.to_string())?),
        "hlo_with_config" => ModuleWithConfig::decode(program).map_err(|error| error.to_string())?.module,
        other => return Err(format!("an optimised program in format {other}")),
    };
    let module = module.ok_or("an optimised program without a module")?;
    let entry = module.computations.into_iter().find(|computation| computation.id == module.entry);
    let shape = entry.and_then(|entry| entry.program_shape).ok_or("a module without the shape of its entry")?;
    Ok(shape.parameters)
}
