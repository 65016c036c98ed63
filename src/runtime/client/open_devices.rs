//! The devices of a new client: which memory each of their arenas divides.
//!
//! ```text
//!  platform cpu    the machine's memory, shared by all devices      device/host
//!  platform cuda   each GPU's own, by NVIDIA's driver               device/cuda
//!  platform rocm   each GPU's own, by AMD's driver                  device/cuda
//!    both          the host's, pinned for each GPU                  device/cuda, allocator/pinned_host.rs
//!  any other       stays with the engine: no arena
//! ```

use std::{
    borrow::Cow,
    ffi::{CString, OsStr},
    num::NonZeroU32,
    sync::Arc,
};

use crate::{
    config::{Compact, HugePages, Inline, Outcome as Decided, Settings, Spill, strategy_name},
    device::{
        Carrier, ScratchPool,
        cuda::{CudaBacking, CudaDevice, Driver, EnginePool, FixedShare, KeptPool, PinnedBacking, Vendor},
        host,
    },
    engine::{
        Engine, Live, Outcome, Raw, process,
        session::Session,
        views::{self, AliasableTypes, ClientMemory, ViewKind},
    },
    error::{Error, Result},
    memory::{Arena, Backing, Strategy, budget::Budget},
    runtime::{
        allocator::{
            core::OnExhausted,
            pinned_host::{KIND, PinnedHost},
        },
        client::{
            Client, Device,
            join_group::{join, part},
            limits::{self, gpu_limit, library_of, taken, vendor_of},
        },
        device_memory::{DeviceMemory, GroupPart, SharedPool},
        host_memories::HostMemories,
        shape::element_bytes,
    },
    sys,
    units::Bytes,
};

/// The memory of one device.
struct Memory {
    backing: Box<dyn Backing>,
    carrier: Box<dyn Carrier>,
    limit: Bytes,
    /// The part of the same memory that the engine takes for itself.
    shared: Option<SharedPool>,
    /// The host's memory that arrays are spilled to, and its limit.
    tier: Option<(TierBacking, Bytes)>,
    /// The part in the group of processes that share the device.
    group: Option<Arc<GroupPart>>,
    /// The host's memory that can be pinned for the device, and its limit.
    pinned: Option<(PinnedBacking, Arc<Budget>)>,
}

/// Opens the engine's new client: decides which memory each device's arena divides, and makes the arenas.
///
/// `inline` says which programs the engine runs in the caller's thread.
///
/// # Errors
/// The engine's, or INVALID_ARGUMENT for a limit that a device cannot have.
pub fn open_devices(
    client: Live<'_, sys::PJRT_Client>,
    settings: Settings,
    (share, inline): (Option<f32>, Inline),
    on_exhausted: OnExhausted,
) -> Outcome<Arc<Client>> {
    let shown = Shown::of(client)?;
    let numbers = check_job(client, &settings, &shown.devices)?;
    let own = shown.devices.iter().map(|device| device.part::<sys::PJRT_Device_DefaultMemory_Args>());
    let own = own.collect::<Result<Vec<_>, _>>()?;
    let Managed { view_kind, aliasable, memories } = manage(client, &settings, &shown, own.first().copied(), share)?;
    let decided = decided(client.engine(), &memories);
    let limit = decided.as_ref().map_or(0, |decided| decided.limit_bytes);
    let mut memories = memories.into_iter();
    let mut devices = Vec::with_capacity(numbers.len());
    for (number, (&device, &memory)) in numbers.iter().zip(shown.devices.iter().zip(&own)) {
        let name = format!("{}:{number}", shown.platform);
        devices.push(open_device(client, (device, memory), name, &settings, memories.next())?);
    }
    log::info!("{}", settings.summary(decided));
    let strategy = strategy_name(settings.strategy.value);
    log::debug!("{} device(s), strategy {strategy}, {limit} bytes each", devices.len());
    // The engine's last: programs read its number as the last word, as JAX's own tests do.
    let version = format!("pjrt-arena {}\n{}", env!("CARGO_PKG_VERSION"), shown.version);
    let version = CString::new(version.replace('\0', " ")).unwrap_or_default();
    let orders_executions = vendor_of(process::kind()).is_some();
    let session = Session::new(client.engine(), Raw(client.raw()), (view_kind, aliasable), orders_executions);
    let mut client = Client::new(session, settings, devices, version, on_exhausted);
    client.inline = inline;
    Ok(Arc::new(client))
}

/// What the engine's client shows of itself.
struct Shown<'a> {
    platform: Cow<'a, str>,
    version: Cow<'a, str>,
    /// The addressable devices.
    devices: Vec<Live<'a, sys::PJRT_Device>>,
}

impl<'a> Shown<'a> {
    /// Asks the engine.
    ///
    /// # Errors
    /// The engine's.
    fn of(client: Live<'a, sys::PJRT_Client>) -> Outcome<Self> {
        Ok(Self {
            platform: client.text::<sys::PJRT_Client_PlatformName_Args>()?,
            version: client.text::<sys::PJRT_Client_PlatformVersion_Args>()?,
            devices: client.handles::<sys::PJRT_Client_AddressableDevices_Args, _>()?,
        })
    }
}

/// The devices' memory that pjrt-arena manages, and how the engine takes views of it.
struct Managed {
    view_kind: ViewKind,
    aliasable: AliasableTypes,
    /// One for each device, or none if all memory stays with the engine.
    memories: Vec<Memory>,
}

/// Decides which memory the arenas divide, by the platform. `memory` is the first device's, if there is a device.
///
/// # Errors
/// The engine's, or INVALID_ARGUMENT for a limit that a device cannot have.
fn manage(
    client: Live<'_, sys::PJRT_Client>,
    settings: &Settings,
    shown: &Shown<'_>,
    memory: Option<Live<'_, sys::PJRT_Memory>>,
    share: Option<f32>,
) -> Outcome<Managed> {
    let (view_kind, aliasable, memories) = match (&*shown.platform, memory) {
        ("cpu", Some(memory)) => {
            let aliasable = views::probe(ClientMemory { client, memory });
            let wanted = if aliasable == AliasableTypes::NONE { 0 } else { shown.devices.len() };
            (ViewKind::Host, aliasable, of_the_host(settings, wanted)?)
        }
        (name @ ("cuda" | "rocm"), Some(_)) => {
            let vendor = if name == "cuda" { Vendor::Nvidia } else { Vendor::Amd };
            let ordinals = ordinals(&shown.devices)?;
            // A type narrower than a byte would be taken for one that fills bytes, until 0.114.
            let aliasable = AliasableTypes::those(|kind| element_bytes(kind).is_some());
            match of_gpus(settings, vendor, &ordinals, share) {
                Ok(memories) => (ViewKind::Device, aliasable, memories),
                Err(Unmanaged::Settings(error)) => return Err(error.into()),
                Err(Unmanaged::Driver(why)) => {
                    log::warn!("memory stays with the engine: {why}");
                    (ViewKind::Device, AliasableTypes::NONE, Vec::new())
                }
            }
        }
        (platform, _) => {
            log::warn!(
                "memory stays with the engine: pjrt-arena does not manage the memory of platform {platform} yet"
            );
            (ViewKind::Host, AliasableTypes::NONE, Vec::new())
        }
    };
    Ok(Managed { view_kind, aliasable, memories })
}

/// What was decided, for the log: the smallest limit and the smallest fixed share; `None` without an arena.
fn decided<'a>(engine: &'a Engine, memories: &[Memory]) -> Option<Decided<'a>> {
    let scratch = |memory: &Memory| memory.shared.as_ref()?.budget.share();
    let limit_of = |memory: &Memory| (memory.limit + scratch(memory).unwrap_or(Bytes::ZERO)).get();
    let limit_bytes = memories.iter().map(limit_of).min()?;
    let scratch_bytes = memories.iter().filter_map(scratch).map(Bytes::get).min();
    Some(Decided { limit_bytes, scratch_bytes, engine: engine.path() })
}

/// A device of the engine with the arenas of its memory; without arenas if `memory` is `None`.
///
/// # Errors
/// The arenas'.
fn open_device(
    client: Live<'_, sys::PJRT_Client>,
    (device, default_memory): (Live<'_, sys::PJRT_Device>, Live<'_, sys::PJRT_Memory>),
    name: String,
    settings: &Settings,
    memory: Option<Memory>,
) -> Outcome<Device> {
    let (host, pinned_host) = HostMemories::find(device);
    let (mut arena, mut pinned) = (None, None);
    if let Some(Memory { backing, carrier, limit, shared, tier, group, pinned: of_the_host }) = memory {
        if let Some((backing, budget)) = of_the_host
            && let Some(memory) = pinned_host
            && views::takes_views_as_they_are(ClientMemory { client, memory })
        {
            let name = format!("{name} {KIND}");
            pinned = Some(PinnedHost::new(memory, name, (settings, &budget), backing)?);
        }
        let tier = tier.map(|(backing, limit)| open_tier(&name, backing, limit)).transpose()?;
        arena = Some(open_memory(name, settings, (backing, carrier, limit), (shared, tier, group))?);
    }
    Ok(Device {
        handle: Raw(device.raw()),
        memory: Raw(default_memory.raw()),
        arena,
        engine_bytes: Arc::default(),
        foreign_bytes: Arc::default(),
        pinned,
        host,
    })
}

/// What a device's arrays are spilled to.
#[derive(Clone)]
enum TierBacking {
    Host(host::HostBacking),
    Folder(host::FolderBacking),
    Pinned(PinnedBacking),
}

/// The memory that a device's arrays are spilled to.
///
/// # Errors
/// The arena's.
fn open_tier(device: &str, backing: TierBacking, limit: Bytes) -> Result<Arc<DeviceMemory>> {
    let (backing, carrier): (Box<dyn Backing>, Box<dyn Carrier>) = match backing {
        TierBacking::Host(host) => (Box::new(host.clone()), Box::new(host)),
        TierBacking::Folder(folder) => (Box::new(folder.clone()), Box::new(folder)),
        TierBacking::Pinned(pinned) => (Box::new(pinned.clone()), Box::new(pinned)),
    };
    let arena = Arena::new(format!("{device} spill"), Strategy::Growing, limit, backing)?;
    Ok(DeviceMemory::new(arena, carrier))
}

/// The arena of one device's memory.
///
/// # Errors
/// The arena's.
fn open_memory(
    name: String,
    settings: &Settings,
    (backing, carrier, limit): (Box<dyn Backing>, Box<dyn Carrier>, Bytes),
    (shared, tier, group): (Option<SharedPool>, Option<Arc<DeviceMemory>>, Option<Arc<GroupPart>>),
) -> Result<Arc<DeviceMemory>> {
    let mut arena = Arena::new(name, settings.strategy.value, limit, backing)?;
    arena.record_history(settings.history.value);
    if settings.compaction() == Compact::Always {
        arena.use_no_slots();
    }
    if shared.is_none() {
        arena.use_colours();
    }
    Ok(DeviceMemory::with(arena, carrier, (shared, tier, group)))
}

/// Compares what the engine shows with the job that the caller says this process is part of, and returns the numbers
/// of this process's devices in the job, which no two processes share.
///
/// An engine that knows nothing of jobs would show each process as the only one, and every process would compute the
/// whole.
///
/// # Errors
/// The engine's, or FAILED_PRECONDITION where it shows another job.
fn check_job(
    client: Live<'_, sys::PJRT_Client>,
    settings: &Settings,
    own: &[Live<'_, sys::PJRT_Device>],
) -> Outcome<Vec<i32>> {
    let described = |device: &Live<'_, sys::PJRT_Device>| -> Outcome<(i32, i32)> {
        let description = device.part::<sys::PJRT_Device_GetDescription_Args>()?;
        let process = description.ask::<sys::PJRT_DeviceDescription_ProcessIndex_Args>()?.process_index;
        Ok((description.ask::<sys::PJRT_DeviceDescription_Id_Args>()?.id, process))
    };
    if let Some((node, nodes)) = settings.place_in_job() {
        let process = client.ask::<sys::PJRT_Client_ProcessIndex_Args>()?.process_index;
        let all = client.handles::<sys::PJRT_Client_Devices_Args, _>()?;
        let mut others = false;
        for device in &all {
            others |= described(device)?.1 != process;
        }
        if i64::from(process) != node || !others {
            let (path, count) = (client.engine().path().display(), all.len());
            return Err(Error::failed_precondition(format!(
                "this is process {node} of {nodes} (node_id, num_nodes; jax.distributed.initialize), but the engine {path} shows \
                 process {process} with {count} device(s) and none of another process: XLA's CPU plugin takes no part in jobs of \
                 several processes; allowed: an engine for GPUs, or one process"
            ))
            .into());
        }
    }
    own.iter().map(|device| described(device).map(|(id, _)| id)).collect()
}

/// The machine's memory, for so many devices that share it.
///
/// # Errors
/// INVALID_ARGUMENT for a limit that the machine does not have so many times.
fn of_the_host(settings: &Settings, devices: usize) -> Result<Vec<Memory>> {
    let Some(count) = NonZeroU32::new(devices as u32) else { return Ok(Vec::new()) };
    let capacity = host::capacity()?;
    let limit = limits::of_the_host(&settings.limit, count)?;
    let make = host_backing(settings);
    let spill = |capacity: Bytes| settings.spill_limit.resolve(capacity.get(), count).map(Bytes::new);
    let tier = match &settings.spill.value {
        Spill::Off => None,
        Spill::Host | Spill::Always => Some((TierBacking::Host(make()), spill(capacity)?)),
        Spill::Folder(path) => {
            let folder = host::FolderBacking::open(path)?;
            let limit = spill(folder.free_space()?)?;
            Some((TierBacking::Folder(folder), limit))
        }
    };
    let group = join(settings, "cpu", vec![limit; devices])?;
    let most = Bytes::new(capacity.get() / u64::from(count.get())).round_down(Bytes::mib(1));
    let memory = |device| {
        let (host, tier) = (make(), tier.clone());
        let carrier = Box::new(host.clone());
        let Some(group) = &group else {
            let backing = Box::new(host);
            return Ok(Memory { backing, carrier, limit, shared: None, tier, group: None, pinned: None });
        };
        let (part, limit) = part(group, device, most)?;
        let budget = Budget::new(limit).part_of(Arc::<GroupPart>::clone(&part));
        let backing = Box::new(host::CountedBacking::new(host, Arc::new(budget)));
        Ok(Memory { backing, carrier, limit, shared: None, tier, group: Some(part), pinned: None })
    };
    (0..devices).map(memory).collect()
}

/// Makes the backing of a device's memory. Warns if huge pages are asked for and there are none.
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

/// How much of the host's memory may be pinned for the spilled arrays of each of so many GPUs, if they are spilled.
///
/// # Errors
/// INVALID_ARGUMENT for a folder: a GPU copies to memory that is pinned. Or for a limit that the machine does not have
/// so many times.
fn gpu_spill(settings: &Settings, capacity: Bytes, gpus: NonZeroU32) -> Result<Option<Bytes>> {
    match &settings.spill.value {
        Spill::Off => Ok(None),
        Spill::Host | Spill::Always => Ok(Some(Bytes::new(settings.spill_limit.resolve(capacity.get(), gpus)?))),
        Spill::Folder(path) => Err(Error::invalid_argument(format!(
            "{}={} is a folder, and GPUs' arrays are spilled to pinned memory of the host; allowed: off, host",
            settings.spill.source,
            path.display()
        ))),
    }
}

/// Why pjrt-arena does not manage the GPUs' memory.
enum Unmanaged {
    /// The user wants what no GPU can give.
    Settings(Error),
    /// What the driver lacks, or refuses.
    Driver(String),
}

/// The numbers by which the driver knows the engine's devices.
///
/// # Errors
/// The engine's.
fn ordinals(devices: &[Live<'_, sys::PJRT_Device>]) -> Outcome<Vec<i32>> {
    let ordinal = |device: &Live<'_, sys::PJRT_Device>| device.ask::<sys::PJRT_Device_LocalHardwareId_Args>();
    devices.iter().map(|device| Ok(ordinal(device)?.local_hardware_id)).collect()
}

/// The memory of GPUs that the engine has opened: their contexts exist, and each can reach the others' memory as far
/// as the machine allows.
///
/// With `share` the engine has so much of each GPU for itself.
fn of_gpus(
    settings: &Settings,
    vendor: Vendor,
    ordinals: &[i32],
    share: Option<f32>,
) -> Result<Vec<Memory>, Unmanaged> {
    let driver = Driver::load(vendor, OsStr::new(library_of(settings, vendor)))
        .map_err(|why| Unmanaged::Driver(why.to_string()))?;
    if vendor == Vendor::Amd && share.is_none() {
        // The engine may take all of a GPU's memory, and has no pool in which that could be seen.
        return Err(Unmanaged::Driver(
            "when the engine was started it was not known for one of ROCm by its file's name, or the driver showed no GPU"
                .to_owned(),
        ));
    }
    let count = NonZeroU32::new(ordinals.len() as u32).unwrap_or(NonZeroU32::MIN);
    let capacity = host::capacity().map_err(Unmanaged::Settings)?;
    let pinned = Bytes::new(settings.pinned_limit.resolve(capacity.get(), count).map_err(Unmanaged::Settings)?);
    let spill = gpu_spill(settings, capacity, count).map_err(Unmanaged::Settings)?;
    let failed = |error: Error| Unmanaged::Driver(error.to_string());
    let mut opened = Vec::with_capacity(ordinals.len());
    for &ordinal in ordinals {
        let device = CudaDevice::open(driver, ordinal, ordinals).map_err(failed)?;
        let total = device.memory_info().map_err(failed)?.total;
        let (limit, most) = gpu_limit(settings, total).map_err(Unmanaged::Settings)?;
        if limit == most {
            log::info!("the limit of GPU {ordinal} is {most}, all that the headroom of {} leaves", settings.headroom);
        }
        let (of_engine, fixed) = share.map(|share| taken(total, share)).unzip();
        let of_arrays = |bytes: Bytes| {
            of_engine.map_or(bytes, |of_engine| bytes.saturating_sub(of_engine).round_down(Bytes::mib(1)))
        };
        opened.push((device, (of_arrays(limit), of_arrays(most), most), fixed));
    }
    let limits = opened.iter().map(|&(_, (limit, ..), _)| limit).collect();
    let platform = if vendor == Vendor::Nvidia { "cuda" } else { "rocm" };
    let group = join(settings, platform, limits).map_err(Unmanaged::Settings)?;
    let mut memories = Vec::with_capacity(ordinals.len());
    for (number, (device, (limit, most_of_arrays, most), fixed)) in opened.into_iter().enumerate() {
        let part = group.as_ref().map(|group| part(group, number, most_of_arrays)).transpose();
        let (part, limit) =
            part.map_err(Unmanaged::Settings)?.map_or((None, limit), |(part, limit)| (Some(part), limit));
        let budget = fixed.map_or_else(|| Budget::new(limit), |fixed| Budget::with_share(limit, fixed));
        let budget = Arc::new(match &part {
            Some(part) => budget.part_of(Arc::<GroupPart>::clone(part)),
            None => budget,
        });
        let memory = match settings.strategy.value {
            Strategy::Platform => CudaBacking::with_driver_allocations(Arc::clone(&device)),
            Strategy::Preallocate | Strategy::Growing | Strategy::Tpu => {
                CudaBacking::new(Arc::clone(&device), limit).map_err(failed)?
            }
        };
        let memory = memory.bound_by(&budget).map_err(failed)?;
        let pool: Option<Box<dyn ScratchPool>> = match fixed {
            Some(bytes) => Some(Box::new(FixedShare::new(&device, bytes))),
            None => match EnginePool::of(&device).map_err(failed)? {
                Some(pool) => {
                    // The engine set the threshold to nothing when it started (XLA `se_gpu_pjrt_client.cc`): then
                    // each synchronisation would give all scratch back, and the next program would find it at other
                    // addresses.
                    Some(Box::new(KeptPool::new(pool, limit).map_err(failed)?))
                }
                None => None,
            },
        };
        let shared = pool.map(|pool| SharedPool { budget, pool, most });
        let backing = PinnedBacking::new(device);
        let tier = spill.map(|limit| (TierBacking::Pinned(backing.clone()), limit));
        let pinned = Some((backing, Arc::new(Budget::new(pinned))));
        memories.push(Memory {
            backing: Box::new(memory.clone()),
            carrier: Box::new(memory),
            limit,
            shared,
            tier,
            group: part,
            pinned,
        });
    }
    Ok(memories)
}
