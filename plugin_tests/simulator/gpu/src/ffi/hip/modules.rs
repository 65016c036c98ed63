//! Modules of machine code, and launches, which are errors.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{In, NO_BINARY, Out, call, functions};
use crate::{
    code_object,
    status::{self, Status, misuse},
};

/// `dim3`, as the calling convention passes it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Sides {
    x: c_uint,
    y: c_uint,
    z: c_uint,
}

functions! {
    call hipModuleLoadData(module: Out<u64>, image: In<u8>) |driver| {
        let module = module.checked()?;
        let bytes = code_object::size(&image.list(code_object::HEADER)?)?;
        module.put(code_object::load(driver, &image.list(bytes)?)?)
    };
    call hipModuleUnload(module: u64) |driver| code_object::unload(driver, module);
    call hipModuleGetFunction(function: Out<u64>, module: u64, name: In<c_char>) |driver| {
        function.checked()?.put(code_object::function(driver, module, name.text()?)?)
    };
    call hipModuleGetGlobal(address: Out<u64>, bytes: Out<usize>, module: u64, name: In<c_char>) |driver| {
        let (at, size) = code_object::global(driver, module, name.text()?)?;
        address.put_if_wanted(at);
        bytes.put_if_wanted(size as usize);
        Ok(())
    };
    call hipModuleLaunchKernel(
        function: u64, _grid_x: c_uint, _grid_y: c_uint, _grid_z: c_uint, _block_x: c_uint, _block_y: c_uint,
        _block_z: c_uint, _shared: c_uint, _stream: usize, _values: In<usize>, _extra: In<usize>
    ) |driver| {
        code_object::refuse(driver, function)?;
        Err(NO_BINARY.into())
    };
    call hipFuncGetAttribute(value: Out<c_int>, which: c_uint, function: u64) |driver| {
        code_object::name(driver, function)?;
        // Threads of a block and registers, as CUDA numbers them too; of the others there are none.
        value.put(match which {
            0 => 1024,
            4 => 32,
            _ => 0,
        })
    };
    call hipFuncSetAttribute(_function: In<c_void>, _which: c_uint, _value: c_int) |_driver| Err(NO_BINARY.into());
    call hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, function: u64, threads: c_int, _shared: usize
    ) |driver| {
        code_object::name(driver, function)?;
        // As many as have room by their threads.
        blocks.put((2048 / threads.max(64)).min(32))
    };

    // Kernels that AMD's compiler has put into a library: they are registered, and there is nothing to run.
    call hipGetFuncBySymbol(_function: Out<u64>, symbol: u64) |_driver| {
        if symbol == 0 {
            return Err(misuse(status::INVALID_VALUE, "the symbol is null"));
        }
        Err(NO_BINARY.into())
    };
    call hipLaunchKernel(
        _function: In<c_void>, _grid: Sides, _block: Sides, _values: In<usize>, _shared: usize, _stream: usize
    ) |_driver| Err(NO_BINARY.into());
}
