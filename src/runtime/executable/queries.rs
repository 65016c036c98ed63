//! What the engine says of an executable.

use std::sync::Arc;

use crate::{
    engine::{EngineError, Live},
    runtime::{
        allocator::pinned_host::KIND,
        shape::{Shape, dense_size},
    },
    sys::{self, slice, text},
    units::Bytes,
};

/// A compiled program of the engine, as a description.
type Executable<'a> = Live<'a, sys::PJRT_Executable>;

/// A program's name, as far as the engine says.
pub fn name(executable: Executable<'_>) -> String {
    executable.text::<sys::PJRT_Executable_Name_Args>().map(|name| name.into_owned()).unwrap_or_default()
}

/// A program's scratch (`temp_size_in_bytes` of its statistics), as far as the engine says.
pub fn scratch(executable: Executable<'_>) -> Bytes {
    let stats = executable.ask::<sys::PJRT_Executable_GetCompiledMemoryStats_Args>();
    Bytes::new(stats.ok().and_then(|stats| u64::try_from(stats.temp_size_in_bytes).ok()).unwrap_or(0))
}

/// Which of an executable's results lie in `pinned_host` memory, as far as the engine says.
pub fn pinned(executable: Executable<'_>, count: usize) -> Box<[bool]> {
    let mut pinned = vec![false; count].into_boxed_slice();
    if let Ok(answer) = executable.ask::<sys::PJRT_Executable_OutputMemoryKinds_Args>() {
        // SAFETY: the executable is alive, and so long live the arrays of the answer, which are as long as the engine
        // says, and the names in them.
        unsafe {
            let sizes = slice(answer.memory_kind_sizes, answer.num_outputs);
            let kinds = slice(answer.memory_kinds, answer.num_outputs).iter().zip(sizes);
            for (pinned, (&kind, &size)) in pinned.iter_mut().zip(kinds) {
                *pinned = text(kind, size) == KIND;
            }
        }
    }
    pinned
}

/// The shapes of an executable's results on one device.
pub fn results(executable: Executable<'_>) -> Result<Vec<Arc<Shape>>, EngineError> {
    let count = executable.ask::<sys::PJRT_Executable_NumOutputs_Args>()?.num_outputs;
    let types = executable.list::<sys::PJRT_Executable_OutputElementTypes_Args>()?;
    let answer = executable.ask::<sys::PJRT_Executable_OutputDimensions_Args>()?;
    // SAFETY: the executable is alive, and so long live the arrays: a rank for each result, and all dimensions.
    let (ranks, mut rest) = unsafe {
        let ranks = slice(answer.dim_sizes, answer.num_outputs);
        (ranks, slice(answer.dims, ranks.iter().sum()))
    };
    let mut results = Vec::with_capacity(count);
    for (&element_type, &rank) in types.iter().zip(ranks) {
        let (dims, others) = rest.split_at(rank);
        rest = others;
        let size = dense_size(element_type, dims).map_or(0, |size| size.get() as usize);
        results.push(Arc::new(Shape::new(element_type, dims, size)));
    }
    Ok(results)
}
