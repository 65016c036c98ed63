//! Modules, kernels and launches.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    sync::Arc,
};

use cudarc::driver::sys;

use super::{In, Out, functions, graphs::KernelParameters};
use crate::{
    graph::Task,
    kernel::{self, Shape},
    state::{Driver, call},
    status::{self, Answer, Status, misuse},
};

/// `CUlaunchConfig`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LaunchConfiguration {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: usize,
    attributes: usize,
    attribute_count: c_uint,
}

/// Takes the values that `values` points to, one for each parameter.
fn arguments(driver: &Driver, function: usize, values: &In<usize>) -> Answer<Vec<Vec<u8>>> {
    let sizes = kernel::parameters(driver, function as u64)?;
    let pointers = values.list(sizes.len())?;
    sizes.into_iter().zip(pointers).map(|(bytes, at)| In::<u8>::at(at).list(bytes)).collect()
}

fn no_extra(extra: usize) -> Answer {
    if extra == 0 {
        Ok(())
    } else {
        Err(misuse(status::NOT_SUPPORTED, "arguments in `extra` are not known to this driver"))
    }
}

/// What a node of a graph does that runs a kernel.
///
/// # Errors
/// The function is not known, or its arguments are given in a way that is not.
pub fn kernel_task(driver: &Driver, parameters: KernelParameters) -> Answer<Task> {
    let KernelParameters { function, grid, block, shared, values, extra } = parameters;
    no_extra(extra)?;
    let values = arguments(driver, function, &In::at(values))?;
    Ok(Task::Part(Arc::new(kernel::call(driver, function as u64, Shape { grid, block, shared }, values)?)))
}

functions! {
    call cuModuleLoadData(module: Out<u64> as *mut sys::CUmodule, image: In<c_char> as *const c_void) |driver| {
        module.checked()?.put(kernel::load(driver, image.text()?)?)
    };
    call cuModuleLoadFatBinary(module: Out<u64> as *mut sys::CUmodule, image: In<c_char> as *const c_void) |driver| {
        module.checked()?.put(kernel::load(driver, image.text()?)?)
    };
    call cuModuleLoadDataEx(
        module: Out<u64> as *mut sys::CUmodule, image: In<c_char> as *const c_void, _count: c_uint,
        _options: usize as *mut sys::CUjit_option, _values: usize as *mut *mut c_void
    ) |driver| module.checked()?.put(kernel::load(driver, image.text()?)?);
    call cuModuleUnload(module: usize as sys::CUmodule) |driver| kernel::unload(driver, module as u64);
    call cuModuleGetFunction(
        function: Out<u64> as *mut sys::CUfunction, module: usize as sys::CUmodule, name: In<c_char> as *const c_char
    ) |driver| function.checked()?.put(kernel::function(driver, module as u64, name.text()?)?);
    call cuModuleGetGlobal_v2(
        address: Out<u64> as *mut sys::CUdeviceptr, bytes: Out<usize> as *mut usize, module: usize as sys::CUmodule,
        name: In<c_char> as *const c_char
    ) |driver| {
        let (at, size) = kernel::global(driver, module as u64, name.text()?)?;
        address.put_if_wanted(at);
        bytes.put_if_wanted(size as usize);
        Ok(())
    };
    call cuFuncGetAttribute(
        value: Out<c_int> as *mut c_int, which: c_uint as sys::CUfunction_attribute, function: usize as sys::CUfunction
    ) |driver| value.put(kernel::attribute(driver, function as u64, which)?);
    call cuFuncSetAttribute(
        function: usize as sys::CUfunction, which: c_uint as sys::CUfunction_attribute, value: c_int
    ) |driver| kernel::set_attribute(driver, function as u64, which, value);
    call cuFuncSetCacheConfig(function: usize as sys::CUfunction, _preference: c_uint as sys::CUfunc_cache) |driver| {
        kernel::parameters(driver, function as u64).map(|_| ())
    };
    call cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int> as *mut c_int, function: usize as sys::CUfunction, threads: c_int, _shared: usize,
        _flags: c_uint
    ) |driver| {
        kernel::parameters(driver, function as u64)?;
        // As many as have room by their threads; registers and shared memory are not counted here.
        blocks.put((2048 / threads.max(32)).min(32))
    };
    call cuLaunchKernel(
        function: usize as sys::CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: usize as sys::CUstream,
        values: In<usize> as *mut *mut c_void, extra: usize as *mut *mut c_void
    ) |driver| {
        no_extra(extra)?;
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        let values = arguments(driver, function, &values)?;
        let call = kernel::call(driver, function as u64, shape, values)?;
        kernel::launch(driver, call, stream)
    };
}

/// CUDA's `cuLaunchKernelEx`, which is younger than the CUDA that cudarc's declarations here are of. Attributes of a
/// launch (clusters, programmatic order) change nothing here.
///
/// # Safety
/// As CUDA documents: each pointer is null or fit for what the function reads or writes there.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn cuLaunchKernelEx(
    configuration: In<LaunchConfiguration>,
    function: usize,
    values: In<usize>,
    extra: usize,
) -> Status {
    call(LAUNCH, |driver| {
        no_extra(extra)?;
        let LaunchConfiguration { grid, block, shared, stream, .. } = configuration.get()?;
        let values = arguments(driver, function, &values)?;
        let call = kernel::call(driver, function as u64, Shape { grid, block, shared }, values)?;
        kernel::launch(driver, call, stream)
    })
}

const LAUNCH: &str = "cuLaunchKernelEx";

/// The functions of this module that cudarc does not declare.
pub(super) const MORE: &[(&str, *const ())] = &[(LAUNCH, cuLaunchKernelEx as *const ())];
