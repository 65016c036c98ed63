//! What the engine says of an executable.

use std::sync::Arc;

use crate::{
    engine::{Engine, EngineError},
    runtime::{
        allocator::pinned_host::KIND,
        shape::{Shape, dense_size},
    },
    sys::{self, slice, text},
    units::Bytes,
};

/// A program's name, as far as the engine says.
///
/// # Safety
/// `executable` must be alive.
pub unsafe fn name(engine: &'static Engine, executable: *mut sys::PJRT_Executable) -> String {
    // SAFETY: the executable is alive, as this function asks, and so long the name lives.
    unsafe {
        let name = engine.call(sys::PJRT_Executable_Name_Args { executable, ..Default::default() });
        name.map(|args| text(args.executable_name, args.executable_name_size).into_owned()).unwrap_or_default()
    }
}

/// A program's scratch (`temp_size_in_bytes` of its statistics), as far as the engine says.
///
/// # Safety
/// `executable` must be alive.
pub unsafe fn scratch(engine: &'static Engine, executable: *mut sys::PJRT_Executable) -> Bytes {
    // SAFETY: the executable is alive, as this function asks.
    let stats =
        unsafe { engine.call(sys::PJRT_Executable_GetCompiledMemoryStats_Args { executable, ..Default::default() }) };
    Bytes::new(stats.ok().and_then(|stats| u64::try_from(stats.temp_size_in_bytes).ok()).unwrap_or(0))
}

/// Which of an executable's results lie in `pinned_host` memory, as far as the engine says.
///
/// # Safety
/// `executable` must be alive.
pub unsafe fn pinned(engine: &'static Engine, executable: *mut sys::PJRT_Executable, count: usize) -> Box<[bool]> {
    let mut pinned = vec![false; count].into_boxed_slice();
    // SAFETY: the executable is alive, as this function asks, and so long live the names, whose arrays are as long as
    // the engine says.
    unsafe {
        let args = sys::PJRT_Executable_OutputMemoryKinds_Args { executable, ..Default::default() };
        if let Ok(args) = engine.call(args) {
            let sizes = slice(args.memory_kind_sizes, args.num_outputs);
            let kinds = slice(args.memory_kinds, args.num_outputs).iter().zip(sizes);
            for (pinned, (&kind, &size)) in pinned.iter_mut().zip(kinds) {
                *pinned = text(kind, size) == KIND;
            }
        }
    }
    pinned
}

/// The shapes of an executable's results on one device.
///
/// # Safety
/// `executable` must be alive.
pub unsafe fn results(
    engine: &'static Engine,
    executable: *mut sys::PJRT_Executable,
) -> Result<Vec<Arc<Shape>>, EngineError> {
    // SAFETY: the executable is alive, as this function asks, and so long live the arrays, whose lengths the engine
    // gives.
    unsafe {
        let count = engine.call(sys::PJRT_Executable_NumOutputs_Args { executable, ..Default::default() })?.num_outputs;
        let types = engine.call(sys::PJRT_Executable_OutputElementTypes_Args { executable, ..Default::default() })?;
        let dims = engine.call(sys::PJRT_Executable_OutputDimensions_Args { executable, ..Default::default() })?;
        let types = slice(types.output_types, types.num_output_types);
        let ranks = slice(dims.dim_sizes, dims.num_outputs);
        let mut rest = slice(dims.dims, ranks.iter().sum());
        let mut results = Vec::with_capacity(count);
        for (&element_type, &rank) in types.iter().zip(ranks) {
            let (dims_of_result, others) = rest.split_at(rank);
            rest = others;
            let size = dense_size(element_type, dims_of_result).map_or(0, |size| size.get() as usize);
            results.push(Arc::new(Shape::new(element_type, dims_of_result, size)));
        }
        Ok(results)
    }
}
