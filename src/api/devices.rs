//! Arenas around the engine's devices: whose memory each of them divides.
//!
//! ```text
//!  platform cpu    the machine's memory, shared by all devices      device/host
//!  platform cuda   each GPU's own, by NVIDIA's driver               device/cuda
//!                  the host's, pinned for each GPU                  device/cuda, pinned_host.rs
//!  any other       stays with the engine: no arena
//! ```

use std::{
    ffi::{CString, OsStr},
    num::NonZeroU32,
    sync::Arc,
};

use super::{
    admission::Shared,
    device_memory::DeviceMemory,
    entry::{Outcome, slice, text},
    pinned_host::{self, PinnedHost},
    shape::element_bytes,
    state::{Client, Device},
};
use crate::{
    config::{Compact, HugePages, Outcome as Decided, Settings, strategy_name},
    device::{
        Carrier,
        cuda::{self, CudaBacking, CudaDevice, Driver, EnginePool, PinnedBacking},
        host,
    },
    engine::{
        Engine, Raw, views,
        views::{Sight, Viewable},
    },
    error::{Error, Result},
    memory::{Arena, Backing, Strategy, budget::Budget},
    sys,
    units::Bytes,
};

/// What the settings are held against before the engine starts its threads: the memory that a device can have at most.
///
/// # Errors
/// INVALID_ARGUMENT for a limit that no device can have.
pub fn check(settings: &Settings, platform_is_cuda: bool) -> Result<()> {
    let capacity = if platform_is_cuda {
        // Without an answer the engine says why there is no GPU.
        let driver = cuda::probe_library(settings.cuda_driver.value.as_str());
        let most = driver.ok().and_then(|driver| driver.gpus.iter().map(|gpu| gpu.memory).max());
        let Some(most) = most else { return Ok(()) };
        settings.pinned_limit.resolve(host::capacity()?.get(), NonZeroU32::MIN)?;
        most
    } else {
        host::capacity()?
    };
    settings.limit.resolve(capacity.get(), NonZeroU32::MIN).map(drop)
}

/// The memory of one device.
struct Memory {
    backing: Box<dyn Backing>,
    carrier: Box<dyn Carrier>,
    limit: Bytes,
    /// What the engine takes of the same memory for itself.
    shared: Option<Shared>,
    /// The host's memory that it can pin for the device, and how much of it.
    pinned: Option<(PinnedBacking, Arc<Budget>)>,
}

/// Puts arenas around the engine's client.
///
/// # Errors
/// The engine's, or INVALID_ARGUMENT for a limit that a device cannot have.
///
/// # Safety
/// `handle` must be alive.
pub unsafe fn dress(
    engine: &'static Engine,
    handle: Raw<sys::PJRT_Client>,
    settings: Settings,
) -> Outcome<Arc<Client>> {
    // SAFETY: the client is alive, and with it what the getters point to.
    let (platform, version, handles) = unsafe {
        let name = engine.call(sys::PJRT_Client_PlatformName_Args { client: handle.0, ..Default::default() })?;
        let version = engine.call(sys::PJRT_Client_PlatformVersion_Args { client: handle.0, ..Default::default() })?;
        let devices =
            engine.call(sys::PJRT_Client_AddressableDevices_Args { client: handle.0, ..Default::default() })?;
        (
            text(name.platform_name, name.platform_name_size).into_owned(),
            text(version.platform_version, version.platform_version_size).into_owned(),
            slice(devices.addressable_devices, devices.num_addressable_devices),
        )
    };
    let mut own = Vec::with_capacity(handles.len());
    for &device in handles {
        // SAFETY: the device is alive.
        let memory = unsafe { engine.call(sys::PJRT_Device_DefaultMemory_Args { device, ..Default::default() })? };
        own.push(memory.memory);
    }
    let (sight, viewable, memories) = match (platform.as_str(), own.first()) {
        ("cpu", Some(&memory)) => {
            // SAFETY: the client and the memory are alive.
            let viewable = unsafe { views::probe(engine, handle, memory) };
            let wanted = if viewable == Viewable::NONE { 0 } else { handles.len() };
            (Sight::Host, viewable, of_the_host(&settings, wanted)?)
        }
        ("cuda", Some(_)) => {
            // SAFETY: the devices are alive.
            let ordinals = unsafe { ordinals(engine, handles)? };
            // A type narrower than a byte would be taken for one that fills bytes, until 0.114.
            let viewable = Viewable::those(|kind| element_bytes(kind).is_some());
            match of_gpus(&settings, &ordinals) {
                Ok(memories) => (Sight::Device, viewable, memories),
                Err(NotOurs::Settings(error)) => return Err(error.into()),
                Err(NotOurs::Driver(why)) => {
                    log::warn!("memory stays with the engine: {why}");
                    (Sight::Device, Viewable::NONE, Vec::new())
                }
            }
        }
        _ => {
            log::warn!(
                "memory stays with the engine: pjrt-arena does not manage the memory of platform {platform} yet"
            );
            (Sight::Host, Viewable::NONE, Vec::new())
        }
    };
    let limit = memories.iter().map(|memory| memory.limit.get()).min();
    let mut memories = memories.into_iter();
    let mut devices = Vec::with_capacity(handles.len());
    for (index, (&device, &memory)) in handles.iter().zip(&own).enumerate() {
        let mut pinned = None;
        let arena = match memories.next() {
            None => None,
            Some(Memory { backing, carrier, limit, shared, pinned: of_the_host }) => {
                if let Some((backing, budget)) = of_the_host
                    // SAFETY: the client and the device are alive.
                    && let Some(memory) = unsafe { pinned_host::find(engine, handle, device)? }
                {
                    let name = format!("{platform}:{index} {}", pinned_host::KIND);
                    pinned = Some(PinnedHost::new(memory, name, (&settings, &budget), backing)?);
                }
                let mut arena = Arena::new(format!("{platform}:{index}"), settings.strategy.value, limit, backing)?;
                arena.record_history(settings.history.value);
                if settings.compaction() == Compact::Always {
                    arena.use_no_slots();
                }
                Some(match shared {
                    Some(shared) => DeviceMemory::shared_with_engine(arena, carrier, shared),
                    None => DeviceMemory::new(arena, carrier),
                })
            }
        };
        devices.push(Device {
            handle: Raw(device),
            memory: Raw(memory),
            arena,
            engine_bytes: Arc::default(),
            foreign_bytes: Arc::default(),
            pinned,
        });
    }
    let decided = limit.map(|limit_bytes| Decided { limit_bytes, engine: engine.path() });
    log::info!("{}", settings.summary(decided));
    let strategy = strategy_name(settings.strategy.value);
    log::debug!("{} device(s), strategy {strategy}, {} bytes each", handles.len(), limit.unwrap_or(0));
    let version = format!("{version}\npjrt-arena {}", env!("CARGO_PKG_VERSION"));
    let version = CString::new(version.replace('\0', " ")).unwrap_or_default();
    Ok(Arc::new(Client::new(engine, handle, settings, (sight, viewable), devices, version)))
}

/// The machine's memory, for so many devices that share it.
///
/// # Errors
/// INVALID_ARGUMENT for a limit that the machine does not have so many times.
fn of_the_host(settings: &Settings, devices: usize) -> Result<Vec<Memory>> {
    let Some(count) = NonZeroU32::new(devices as u32) else { return Ok(Vec::new()) };
    let limit = Bytes::new(settings.limit.resolve(host::capacity()?.get(), count)?);
    let make = host_backing(settings);
    let memory = |_| {
        let host = make();
        Memory { backing: Box::new(host.clone()), carrier: Box::new(host), limit, shared: None, pinned: None }
    };
    Ok((0..devices).map(memory).collect())
}

/// How a device of this client gets its memory. Warns where huge pages are asked for and there are none.
fn host_backing(settings: &Settings) -> fn() -> host::HostBacking {
    match (settings.huge_pages.value, host::huge_pages()) {
        (HugePages::Off, _) => host::HostBacking::new,
        (HugePages::On, host::HugePages::Never(why)) => {
            log::warn!("huge_pages=on ({}) has no effect: {why}", settings.huge_pages.source);
            host::HostBacking::new
        }
        (HugePages::On, _) => host::HostBacking::with_huge_pages,
    }
}

/// What arrays and scratch may have of a GPU with so much memory, and what they could have at most.
///
/// # Errors
/// INVALID_ARGUMENT for a limit that the GPU cannot have, or a headroom that leaves nothing.
fn gpu_limit(settings: &Settings, total: Bytes) -> Result<(Bytes, Bytes)> {
    let limit = Bytes::new(settings.limit.resolve(total.get(), NonZeroU32::MIN)?);
    let headroom = settings.headroom.value.bytes();
    let most = total.saturating_sub(headroom).round_down(Bytes::mib(1));
    if most.is_zero() {
        return Err(Error::invalid_argument(format!(
            "{}={headroom} leaves nothing of the GPU's {total}; allowed: less than that by 1MiB or more",
            settings.headroom.source
        )));
    }
    if limit > most {
        log::info!("the limit of {limit} is lowered to {most}, for the headroom of {headroom}");
    }
    Ok((limit.min(most), most))
}

/// Why GPUs' memory is not ours to manage.
enum NotOurs {
    /// The user wants what no GPU can give.
    Settings(Error),
    /// What the driver lacks, or refuses.
    Driver(String),
}

/// The numbers by which NVIDIA's driver knows the engine's devices.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// The devices must be alive.
unsafe fn ordinals(engine: &'static Engine, handles: &[*mut sys::PJRT_Device]) -> Outcome<Vec<i32>> {
    let mut ordinals = Vec::with_capacity(handles.len());
    for &device in handles {
        // SAFETY: the caller's promise.
        let args = unsafe { engine.call(sys::PJRT_Device_LocalHardwareId_Args { device, ..Default::default() })? };
        ordinals.push(args.local_hardware_id);
    }
    Ok(ordinals)
}

/// The memory of GPUs that the engine has opened: their contexts are there, and each can reach the others' memory as far as the
/// machine allows.
fn of_gpus(settings: &Settings, ordinals: &[i32]) -> Result<Vec<Memory>, NotOurs> {
    let driver = Driver::load(OsStr::new(settings.cuda_driver.value.as_str()))
        .map_err(|why| NotOurs::Driver(why.to_string()))?;
    let count = NonZeroU32::new(ordinals.len() as u32).unwrap_or(NonZeroU32::MIN);
    let capacity = host::capacity().map_err(NotOurs::Settings)?;
    let pinned = Bytes::new(settings.pinned_limit.resolve(capacity.get(), count).map_err(NotOurs::Settings)?);
    let mut memories = Vec::with_capacity(ordinals.len());
    for &ordinal in ordinals {
        let failed = |error: Error| NotOurs::Driver(error.to_string());
        let device = CudaDevice::open(driver, ordinal, ordinals).map_err(failed)?;
        let total = device.memory_info().map_err(failed)?.total;
        let (limit, most) = gpu_limit(settings, total).map_err(NotOurs::Settings)?;
        let budget = Arc::new(Budget::new(limit));
        let memory = match settings.strategy.value {
            Strategy::Platform => CudaBacking::with_driver_allocations(Arc::clone(&device)),
            Strategy::Preallocate | Strategy::Growing | Strategy::Tpu => {
                CudaBacking::new(Arc::clone(&device)).map_err(failed)?
            }
        };
        let memory = memory.bound_by(&budget).map_err(failed)?;
        let pool = EnginePool::of(&device).map_err(failed)?;
        if let Some(pool) = &pool {
            // The engine has set it to nothing when it started (XLA `se_gpu_pjrt_client.cc`): then each synchronisation would
            // give all scratch back, and the next program would find it elsewhere.
            pool.set_release_threshold(limit).map_err(failed)?;
        }
        let shared = pool.map(|pool| Shared { budget, pool: Box::new(pool), most });
        let pinned = Some((PinnedBacking::new(device), Arc::new(Budget::new(pinned))));
        memories.push(Memory { backing: Box::new(memory.clone()), carrier: Box::new(memory), limit, shared, pinned });
    }
    Ok(memories)
}
