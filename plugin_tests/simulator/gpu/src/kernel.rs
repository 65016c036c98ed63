//! Modules, their kernels, and launches: what a GPU would compute, the interpreter of `ptx` does on the thread of the
//! stream.
//!
//! ```text
//!  cuModuleLoadData   text -> ptx::Module; its variables are allocated on the context's GPU
//!  cuLaunchKernel     a Call: the arguments' values are copied; those declared as pointers must point to memory that is there
//!  the stream's turn  Call::run: `reach` finds the memory behind each address that the kernel uses
//!  its end            `perform` tells `race` what was read and written
//! ```
//!
//! Nobody knows what a kernel uses before it runs, so the detector hears of it at its end, with the clock of its
//! launch. What was put into streams meanwhile, it compares by their clocks: see [`crate::race`]. Kernels that are
//! functions of the program say what they use at the call; those are in [`crate::host_kernel`].

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::MutexGuard;

use crate::{
    KnownParts,
    memory::{self, Home, User},
    operation::{Order, Work},
    parts::{Part, Turn},
    reach::{self, Reach},
    state::{Driver, State},
    status::{self, Answer, misuse},
};

/// What `cuModuleLoadData` gave.
#[derive(Debug)]
pub struct Module {
    /// Where its variables are, and its kernels run.
    gpu: usize,
    image: Arc<ptx::Module>,
    /// Its variables: where, and how many bytes.
    globals: Arc<BTreeMap<String, (u64, u64)>>,
}

/// What `cuModuleGetFunction` gave.
#[derive(Debug)]
pub struct Function {
    module: u64,
    /// Its name. The detector tells it in sentences, until the end of the process.
    name: &'static str,
    /// What was set by `cuFuncSetAttribute`, to be told again.
    attributes: BTreeMap<u32, i32>,
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of shared memory besides the kernel's own.
    pub shared: u32,
}

/// A kernel with its arguments, to be run once or, in a graph, many times.
#[derive(Clone, Debug)]
pub struct Call {
    /// The function's handle.
    pub function: u64,
    /// See [`Shape`].
    pub shape: Shape,
    /// A value for each parameter.
    pub arguments: Vec<Vec<u8>>,
    name: &'static str,
    image: Arc<ptx::Module>,
    globals: Arc<BTreeMap<String, (u64, u64)>>,
}

/// `cuModuleLoadData`. Only PTX is known, no machine code.
pub fn load(driver: &mut Driver, text: &str) -> Answer<u64> {
    let gpu = driver.working()?;
    let image = ptx::Module::parse(text).map_err(|why| misuse(status::INVALID_PTX, why))?;
    let mut globals = BTreeMap::new();
    for global in image.globals() {
        let address = match memory::allocate(driver, global.bytes.max(1)) {
            Ok(address) => address,
            Err(failure) => {
                globals.values().try_for_each(|&(address, _)| memory::free(driver, address))?;
                return Err(failure);
            }
        };
        reach::write(address, &global.initial);
        globals.insert(global.name.clone(), (address, global.bytes));
    }
    let handle = driver.number() << 8;
    driver.parts.known_mut().modules.insert(handle, Module { gpu, image: Arc::new(image), globals: Arc::new(globals) });
    Ok(handle)
}

fn module(driver: &State, handle: u64) -> Answer<&Module> {
    let unknown = || misuse(status::INVALID_HANDLE, format!("{handle:#x} is no module, or was unloaded before"));
    driver.parts.known().modules.get(&handle).ok_or_else(unknown)
}

/// `cuModuleUnload`. Launches that are in streams keep what they need.
pub fn unload(driver: &mut Driver, handle: u64) -> Answer {
    module(driver, handle)?;
    let Some(gone) = driver.parts.known_mut().modules.remove(&handle) else { return Ok(()) };
    driver.parts.known_mut().functions.retain(|_, function| function.module != handle);
    for &(address, _) in gone.globals.values() {
        memory::free(driver, address)?;
    }
    Ok(())
}

/// What becomes of modules.
pub trait ModulesOfGpus {
    /// Forgets the modules of a GPU whose context is destroyed. Their variables go with all else that was allocated in
    /// it.
    fn forget_modules_of(&mut self, gpu: usize);
}

impl ModulesOfGpus for State {
    fn forget_modules_of(&mut self, gpu: usize) {
        let known = self.parts.known_mut();
        known.modules.retain(|_, module| module.gpu != gpu);
        known.functions.retain(|_, function| known.modules.contains_key(&function.module));
    }
}

/// `cuModuleGetFunction`.
pub fn function(driver: &mut Driver, module_handle: u64, name: &str) -> Answer<u64> {
    if module(driver, module_handle)?.image.kernel(name).is_none() {
        return Err(status::NOT_FOUND.into());
    }
    let known =
        driver.parts.known().functions.iter().find(|(_, known)| known.module == module_handle && known.name == name);
    if let Some((&handle, _)) = known {
        return Ok(handle);
    }
    let handle = driver.number() << 8;
    let name = String::leak(name.to_owned());
    driver
        .parts
        .known_mut()
        .functions
        .insert(handle, Function { module: module_handle, name, attributes: BTreeMap::new() });
    Ok(handle)
}

/// `cuModuleGetGlobal`: where, and how many bytes.
pub fn global(driver: &State, handle: u64, name: &str) -> Answer<(u64, u64)> {
    module(driver, handle)?.globals.get(name).copied().ok_or_else(|| status::NOT_FOUND.into())
}

fn find(driver: &State, handle: u64) -> Answer<(&Function, &Module)> {
    let unknown = || misuse(status::INVALID_HANDLE, format!("{handle:#x} is no kernel, or its module was unloaded"));
    let function = driver.parts.known().functions.get(&handle).ok_or_else(unknown)?;
    Ok((function, module(driver, function.module)?))
}

/// `cuFuncGetAttribute`.
pub fn attribute(driver: &State, handle: u64, which: u32) -> Answer<i32> {
    let (function, module) = find(driver, handle)?;
    let kernel = module.image.kernel(function.name).ok_or(status::NOT_FOUND)?;
    let known = match which {
        // CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, _SHARED_SIZE_BYTES, _NUM_REGS.
        0 => 1024,
        1 => i32::try_from(kernel.static_shared()).unwrap_or(i32::MAX),
        4 => 32,
        _ => 0,
    };
    Ok(function.attributes.get(&which).copied().unwrap_or(known))
}

/// `cuFuncSetAttribute`.
pub fn set_attribute(driver: &mut State, handle: u64, which: u32, value: i32) -> Answer {
    find(driver, handle)?;
    if let Some(function) = driver.parts.known_mut().functions.get_mut(&handle) {
        function.attributes.insert(which, value);
    }
    Ok(())
}

/// The sizes of a kernel's parameters, in bytes.
pub fn parameters(driver: &State, handle: u64) -> Answer<Vec<usize>> {
    let (function, module) = find(driver, handle)?;
    let kernel = module.image.kernel(function.name).ok_or(status::NOT_FOUND)?;
    Ok(kernel.parameters().iter().map(|parameter| parameter.bytes as usize).collect())
}

/// A kernel with arguments.
pub fn call(driver: &State, function: u64, shape: Shape, arguments: Vec<Vec<u8>>) -> Answer<Call> {
    let (found, module) = find(driver, function)?;
    if shape.grid.contains(&0) || shape.block.contains(&0) {
        return Err(misuse(status::INVALID_VALUE, format!("{shape:?} for {} has a side of 0", found.name)));
    }
    if shape.block.iter().map(|&side| u64::from(side)).product::<u64>() > 1024 {
        return Err(misuse(
            status::INVALID_VALUE,
            format!("{shape:?} for {}: blocks have 1024 threads at most", found.name),
        ));
    }
    let (image, globals) = (Arc::clone(&module.image), Arc::clone(&module.globals));
    Ok(Call { function, shape, arguments, name: found.name, image, globals })
}

/// Puts a call into a stream.
pub fn launch(driver: &mut Driver, call: Call, stream: usize) -> Answer {
    let (line, gpu) = driver.line_to_use(stream)?;
    let order = order(driver, Arc::new(call), gpu)?;
    driver.issue(line, order).map(|_| ())
}

/// The operation that runs a call. A graph may hold one whose module was unloaded since.
pub fn order(driver: &Driver, call: Arc<Call>, gpu: usize) -> Answer<Order> {
    let (_, module) = find(driver, call.function)?;
    if module.gpu != gpu {
        let why = format!("{} was loaded for GPU {}, and the stream is of GPU {gpu}", call.name, module.gpu);
        return Err(misuse(status::INVALID_HANDLE, why));
    }
    call.check(driver, gpu)?;
    Ok(Order::new("cuLaunchKernel", Work::Part(call)))
}

impl Call {
    /// Refuses pointers to memory that is not there now. Where a kernel goes from there is seen when it runs.
    fn check(&self, driver: &Driver, gpu: usize) -> Answer {
        let Some(kernel) = self.image.kernel(self.name) else { return Ok(()) };
        for (parameter, value) in kernel.parameters().iter().zip(&self.arguments) {
            let Ok(address) = <[u8; 8]>::try_from(value.as_slice()).map(u64::from_le_bytes) else { continue };
            if !parameter.pointer || address == 0 {
                continue;
            }
            let place = driver.place(User::Kernel(gpu), address, 1, false);
            let place = place.and_then(|place| match place.home {
                Home::Pageable => Err(format!("nothing that a GPU reaches is at {address:#x}")),
                Home::Pinned | Home::Gpu(_) => Ok(()),
            });
            place.map_err(|why| misuse(status::INVALID_VALUE, format!("an argument of {}: {why}", self.name)))?;
        }
        Ok(())
    }

    /// Runs on the thread of a stream, without the driver's lock.
    ///
    /// # Errors
    /// A sentence: the kernel uses memory that it may not use, or has an instruction that is not known.
    pub fn run(&self, reach: &mut Reach) -> Result<(), String> {
        let globals = |name: &str| self.globals.get(name).map(|&(address, _)| address);
        let Shape { grid, block, shared } = self.shape;
        let launch = ptx::Launch {
            grid,
            block,
            dynamic_shared: shared,
            arguments: &self.arguments,
            globals: &globals,
            limit: ptx::Launch::LIMIT,
        };
        let kernel = self.image.kernel(self.name).ok_or_else(|| format!("{} is not in its module", self.name))?;
        kernel.run(&launch, reach).map_err(|why| format!("the kernel {}: {why}", self.name))
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl Part for Call {
    /// Notes afterwards what the kernel used: nobody knew before.
    fn run(&self, driver: &mut Driver, turn: Turn<'_>) {
        let Turn { gpu, point, clock } = turn;
        let mut reach = Reach::new(gpu, point.line);
        let done = MutexGuard::unlocked(driver, || self.run(&mut reach));
        let [reads, writes] = reach.pieces();
        for (pieces, write) in [(reads, false), (writes, true)] {
            let found = driver.races.access(point, clock, self.name(), &pieces, write);
            found.into_iter().for_each(|sentence| driver.violation(sentence));
        }
        for sentence in reach.lost(driver) {
            driver.violation(format!("the kernel {}: {sentence}", self.name()));
        }
        if let Err(why) = done {
            driver.violation(why);
            driver.gpus[gpu].poison = Some(status::LAUNCH_FAILED);
        }
    }

    fn is_node(&self) -> bool {
        true
    }

    fn order(self: Arc<Self>, driver: &Driver, gpu: usize) -> Answer<Order> {
        order(driver, self, gpu)
    }
}
