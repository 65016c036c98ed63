//! GPUs, their primary contexts, and the stack of contexts that each thread has.

use std::cell::RefCell;

use cudarc::driver::sys::CUdevice_attribute;

use crate::{
    pages::File,
    pool::Pool,
    state::{Driver, State},
    status::{self, Answer, Failure, Status, misuse},
    stream::Waits,
};

/// The number of CUDA that the driver says it runs: 12.8.
pub const VERSION: i32 = 12080;

/// Handles of contexts and pools lie at one distance, so that nothing that a program adds to one gives another.
const STEP: usize = 0x100;
const CONTEXTS: usize = 0xc0de_0000;
const POOLS: usize = 0xb001_0000;

/// One GPU.
#[derive(Debug)]
pub struct Gpu {
    /// Memory that is taken: allocations, physical handles, the pool's segments.
    pub used: u64,
    /// Where physical handles lie.
    pub file: File,
    /// How often the primary context is retained.
    pub retained: u32,
    /// The context's legacy default stream.
    pub null: u64,
    /// What every call gets after a kernel or a copy has hit memory that is not there.
    pub poison: Option<Status>,
    /// The memory pool.
    pub pool: Pool,
}

impl Gpu {
    /// One that nobody uses.
    ///
    /// # Errors
    /// The system gives no file.
    pub fn new() -> Answer<Self> {
        let file = File::new().map_err(|_| status::OUT_OF_MEMORY)?;
        Ok(Self { used: 0, file, retained: 0, null: 0, poison: None, pool: Pool::default() })
    }
}

thread_local! {
    /// The contexts of this thread by the ordinal of their GPU, the current one last; `None` is no context.
    static STACK: RefCell<Vec<Option<usize>>> = const { RefCell::new(Vec::new()) };
}

/// Handles.
impl State {
    /// The ordinal of a device.
    pub fn gpu(&self, device: i32) -> Answer<usize> {
        let ordinal = usize::try_from(device).ok().filter(|&ordinal| ordinal < self.gpus.len());
        ordinal
            .ok_or_else(|| misuse(status::INVALID_DEVICE, format!("{device} is none of {} devices", self.gpus.len())))
    }

    /// The ordinal of the GPU whose context a handle is.
    pub fn context(&self, handle: usize) -> Answer<usize> {
        let unknown = || misuse(status::INVALID_CONTEXT, format!("{handle:#x} is no context"));
        self.ordinal(handle, CONTEXTS).ok_or_else(unknown)
    }

    /// The ordinal of the GPU whose pool a handle is.
    pub fn pool(&self, handle: usize) -> Answer<usize> {
        let unknown = || misuse(status::INVALID_VALUE, format!("{handle:#x} is no memory pool"));
        self.ordinal(handle, POOLS).ok_or_else(unknown)
    }

    /// The handle of a device's pool; NOT_SUPPORTED where there are none.
    pub fn pool_of(&self, device: i32) -> Answer<usize> {
        let gpu = self.gpu(device)?;
        if self.settings.pools { Ok(pool_handle(gpu)) } else { Err(status::NOT_SUPPORTED.into()) }
    }

    fn ordinal(&self, handle: usize, base: usize) -> Option<usize> {
        let distance = handle.checked_sub(base)?;
        (distance.is_multiple_of(STEP) && distance / STEP < self.gpus.len()).then_some(distance / STEP)
    }

    /// The GPU of the context that is current on this thread.
    pub fn current(&self) -> Answer<usize> {
        let top = STACK.try_with(|stack| stack.borrow().last().copied().flatten()).ok().flatten();
        let ordinal = top.ok_or_else(|| misuse(status::INVALID_CONTEXT, "no context is current on this thread"))?;
        match self.gpus.get(ordinal) {
            Some(gpu) if gpu.retained > 0 => Ok(ordinal),
            _ => {
                Err(misuse(status::CONTEXT_IS_DESTROYED, format!("the primary context of GPU {ordinal} was released")))
            }
        }
    }

    /// As [`Self::current`], for calls that a context refuses once it has seen an illegal access.
    pub fn working(&self) -> Answer<usize> {
        let ordinal = self.current()?;
        self.healthy(ordinal)?;
        Ok(ordinal)
    }

    /// Refuses what comes after an illegal access.
    pub fn healthy(&self, ordinal: usize) -> Answer {
        self.gpus[ordinal].poison.map_or(Ok(()), |code| Err(Failure::from(code)))
    }

    /// Whether GPUs reach each other's memory.
    pub fn are_peers(&self, one: usize, other: usize) -> bool {
        one != other && self.settings.peer
    }

    /// Memory of a GPU that is left.
    pub fn left(&self, gpu: usize) -> u64 {
        self.settings.memory.saturating_sub(self.gpus[gpu].used)
    }

    /// Takes memory of a GPU, or gives OUT_OF_MEMORY.
    pub fn take(&mut self, gpu: usize, bytes: u64) -> Answer {
        if bytes > self.left(gpu) {
            return Err(status::OUT_OF_MEMORY.into());
        }
        self.gpus[gpu].used += bytes;
        Ok(())
    }
}

/// The handle of a GPU's primary context.
pub fn context_handle(gpu: usize) -> usize {
    CONTEXTS + gpu * STEP
}

/// The handle of a GPU's pool.
fn pool_handle(gpu: usize) -> usize {
    POOLS + gpu * STEP
}

/// Starts the driver.
pub fn init(driver: &mut Driver, flags: u32) -> Answer {
    if flags != 0 {
        return Err(misuse(status::INVALID_VALUE, format!("flags are {flags}, not 0")));
    }
    if driver.started {
        return Ok(());
    }
    driver.settings.read_environment().map_err(|why| {
        eprintln!("fake_cuda: {why}");
        Failure::from(status::INVALID_VALUE)
    })?;
    if driver.settings.gpus == 0 {
        return Err(status::NO_DEVICE.into());
    }
    driver.gpus = (0..driver.settings.gpus).map(|_| Gpu::new()).collect::<Answer<_>>()?;
    driver.order_faults();
    driver.started = true;
    Ok(())
}

/// Retains the primary context of a device, and gives its handle.
pub fn retain(driver: &mut Driver, device: i32) -> Answer<usize> {
    let gpu = driver.gpu(device)?;
    if driver.gpus[gpu].retained == 0 {
        driver.gpus[gpu].null = driver.new_stream(gpu, true)?;
    }
    driver.gpus[gpu].retained += 1;
    Ok(context_handle(gpu))
}

/// Releases the primary context; the last release destroys it, and with it all that was made in it.
pub fn release(driver: &mut Driver, device: i32) -> Answer {
    let gpu = driver.gpu(device)?;
    match driver.gpus[gpu].retained {
        0 => Err(misuse(status::INVALID_CONTEXT, format!("the primary context of GPU {gpu} is not retained"))),
        1 => {
            driver.wait_for_gpu(gpu);
            driver.gpus[gpu].retained = 0;
            driver.destroy_streams(gpu);
            driver.events.retain(|_, event| event.gpu != gpu);
            driver.free_all_of(gpu);
            let dead = &mut driver.gpus[gpu];
            (dead.poison, dead.null) = (None, 0);
            Ok(())
        }
        _ => {
            driver.gpus[gpu].retained -= 1;
            Ok(())
        }
    }
}

/// Makes a context current on this thread until it is popped.
pub fn push(driver: &Driver, context: usize) -> Answer {
    let gpu = driver.context(context)?;
    alive(driver, gpu)?;
    STACK.with_borrow_mut(|stack| stack.push(Some(gpu)));
    Ok(())
}

/// Takes the current context off this thread's stack, and gives its handle.
pub fn pop() -> Answer<usize> {
    match STACK.with_borrow_mut(Vec::pop) {
        Some(gpu) => Ok(gpu.map_or(0, context_handle)),
        None => Err(misuse(status::INVALID_CONTEXT, "this thread's stack of contexts is empty")),
    }
}

/// Replaces the current context of this thread; 0 pops it.
pub fn set(driver: &Driver, context: usize) -> Answer {
    if context == 0 {
        STACK.with_borrow_mut(Vec::pop);
        return Ok(());
    }
    let gpu = driver.context(context)?;
    alive(driver, gpu)?;
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        stack.push(Some(gpu));
    });
    Ok(())
}

/// The handle of the context that is current on this thread, or 0.
pub fn get() -> usize {
    STACK.with_borrow(|stack| stack.last().copied().flatten()).map_or(0, context_handle)
}

/// Drops this thread's stack: for tests that begin anew.
pub fn forget_stack() {
    STACK.with_borrow_mut(Vec::clear);
}

fn alive(driver: &Driver, gpu: usize) -> Answer {
    if driver.gpus[gpu].retained == 0 {
        return Err(misuse(status::INVALID_CONTEXT, format!("the primary context of GPU {gpu} is not retained")));
    }
    Ok(())
}

/// More attributes than any driver knows.
const NO_ATTRIBUTE: u32 = 1000;

/// `cuDeviceGetAttribute`: what a program here asks for, as an H200 of compute capability 9.0 answers; the others are 0.
pub fn attribute(driver: &Driver, which: u32) -> Answer<i32> {
    use CUdevice_attribute::*;
    if which == 0 || which >= NO_ATTRIBUTE {
        return Err(misuse(status::INVALID_VALUE, format!("{which} is no attribute of a device")));
    }
    let known = [
        (CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3_201_000),
        (CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144),
        (CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
        (CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0),
        (CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, 1),
        (CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
        (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, driver.settings.rdma.into()),
        (CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, driver.settings.pools.into()),
    ];
    Ok(known.iter().find(|(known, _)| *known as u32 == which).map_or(0, |&(_, value)| value))
}
