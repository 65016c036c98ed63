//! Client -> devices -> arenas, and the tables that find them from the engine's own pointers.

pub mod adoption;
pub mod open_devices;

use std::{
    ffi::CString,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    config::{Compact, EngineKind, Settings, ZeroCopy},
    engine::{
        Engine, Outcome, Raw,
        fence::ExecutionQueue,
        process,
        views::{AliasableTypes, ViewKind},
    },
    error::Error,
    runtime::{
        allocator::{pinned_host::PinnedHost, trimmer::Trimmer},
        device_memory::DeviceMemory,
        executable::{bound::HostMemories, counters::Counters, output_cache::OutputCaches},
        in_flight::InFlight,
        nested::NestedSessions,
    },
    sys,
};

/// One addressable device and the arena of its memory.
pub struct Device {
    /// The engine's device.
    pub handle: Raw<sys::PJRT_Device>,
    /// The engine's default memory of the device: the one that the arena stands for.
    pub memory: Raw<sys::PJRT_Memory>,
    /// Ours; `None` when this engine's memory cannot be viewed, so that everything stays with the engine.
    pub arena: Option<Arc<DeviceMemory>>,
    /// Bytes of buffers that the engine holds itself, but for those in [`Self::pinned`].
    pub engine_bytes: Arc<AtomicI64>,
    /// Bytes of outsiders' memory that buffers alias.
    pub foreign_bytes: Arc<AtomicI64>,
    /// The host's memory that the device reads and writes by itself; `None` where that stays with the engine.
    pub pinned: Option<PinnedHost>,
    /// The engine's memories of the host that results can be bound to.
    pub host: HostMemories,
}

/// A memory that arrays of ours lie in: a device's own, or its part of the host's.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    /// The device.
    pub device: &'a Device,
    /// The engine's memory.
    pub memory: Raw<sys::PJRT_Memory>,
    /// Ours.
    pub arena: &'a Arc<DeviceMemory>,
}

impl Device {
    /// Its own memory; `None` where that stays with the engine.
    pub fn site(&self) -> Option<Site<'_>> {
        Some(Site { device: self, memory: self.memory, arena: self.arena.as_ref()? })
    }

    /// Its `pinned_host` memory.
    pub fn pinned_site(&self) -> Option<Site<'_>> {
        let pinned = self.pinned.as_ref()?;
        Some(Site { device: self, memory: pinned.memory, arena: &pinned.arena })
    }

    /// The engine's memory that stands for an arena of this device.
    pub fn memory_of(&self, arena: &Arc<DeviceMemory>) -> Raw<sys::PJRT_Memory> {
        let pinned = self.pinned.as_ref().filter(|pinned| Arc::ptr_eq(&pinned.arena, arena));
        pinned.map_or(self.memory, |pinned| pinned.memory)
    }
}

/// One `PJRT_Client`.
pub struct Client {
    /// The engine behind it.
    pub engine: &'static Engine,
    /// The engine's client.
    pub handle: Raw<sys::PJRT_Client>,
    /// What was decided when it was created.
    pub settings: Settings,
    /// When live buffers are moved.
    pub compaction: Compact,
    /// Whether arrays take what a TPU's tiles take.
    pub counts_tiles: bool,
    /// Whether arrays of the host are used where they lie.
    pub zero_copy: bool,
    /// How the engine is shown memory of the arenas.
    pub sight: ViewKind,
    /// Element types whose arrays can lie in the arena.
    pub viewable: AliasableTypes,
    /// The addressable devices, in the engine's order.
    pub devices: Vec<Device>,
    /// The engine's platform version, with our name appended: it is part of JAX's compilation-cache key (trap T16).
    pub platform_version: CString,
    /// Programs and results, counted.
    pub counters: Counters,
    /// What is under way.
    pub in_flight: Arc<InFlight>,
    /// Destinations that wait for the next run of their program.
    pub spares: OutputCaches,
    /// What programs with host callbacks run on.
    pub beside: NestedSessions,
    /// Programs with host callbacks that are under way.
    pub callbacks_under_way: AtomicI64,
    /// Gives memory back that is not used any more.
    pub idle: Trimmer,
    /// Counts what buffers take of the engine's and of outsiders' memory on devices that are not ours to address.
    elsewhere: Arc<AtomicI64>,
    open: AtomicBool,
    /// Calls of ours, not of the C API's contract, that use the engine's client at this moment.
    visitors: Guards,
}

/// How many are in; `None` once nobody may come in any more.
struct Guards {
    inside: Mutex<Option<usize>>,
    left: Condvar,
}

/// A call that may use the engine's client: it is not destroyed meanwhile.
pub struct ClientGuard(Arc<Client>);

impl Deref for ClientGuard {
    type Target = Arc<Client>;

    fn deref(&self) -> &Arc<Client> {
        &self.0
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        let mut inside = self.0.visitors.inside.lock();
        *inside = inside.map(|count| count - 1);
        self.0.visitors.left.notify_all();
    }
}

impl Client {
    /// A client around the engine's.
    pub fn new(
        engine: &'static Engine,
        handle: Raw<sys::PJRT_Client>,
        settings: Settings,
        (sight, viewable): (ViewKind, AliasableTypes),
        devices: Vec<Device>,
        platform_version: CString,
    ) -> Self {
        Self {
            engine,
            handle,
            compaction: settings.compaction(),
            counts_tiles: settings.counts_tiles(),
            // Another device's memory is not where NumPy's arrays lie.
            zero_copy: settings.zero_copy.value == ZeroCopy::On && sight == ViewKind::Host,
            settings,
            sight,
            viewable,
            devices,
            platform_version,
            counters: Counters::default(),
            in_flight: Arc::default(),
            spares: OutputCaches::default(),
            beside: NestedSessions::default(),
            callbacks_under_way: AtomicI64::new(0),
            idle: Trimmer::default(),
            elsewhere: Arc::default(),
            open: AtomicBool::new(true),
            visitors: Guards { inside: Mutex::new(Some(0)), left: Condvar::new() },
        }
    }

    /// Whether live buffers are moved when there is no room.
    pub fn compacts(&self) -> bool {
        self.compaction != Compact::Off
    }

    /// Comes in from outside of the C API, whose callers see to it themselves that a client lives; `None` if it is about to
    /// be destroyed.
    pub fn visit(self: &Arc<Self>) -> Option<ClientGuard> {
        let mut inside = self.visitors.inside.lock();
        *inside = Some(inside.as_ref()? + 1);
        Some(ClientGuard(Arc::clone(self)))
    }

    /// Lets nobody in any more, and waits for those who are. What they do waits for nothing but copies.
    pub fn show_out(&self) {
        let mut inside = self.visitors.inside.lock();
        while inside.is_some_and(|count| count > 0) {
            self.visitors.left.wait(&mut inside);
        }
        *inside = None;
    }

    /// Whether the engine's client still lives. Buffers may outlive it (trap T22).
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Says that the engine's client is about to be destroyed.
    pub fn close(&self) {
        self.open.store(false, Ordering::Release);
    }

    /// The addressable device with this handle.
    pub fn device(&self, handle: *mut sys::PJRT_Device) -> Option<&Device> {
        self.devices.iter().find(|device| device.handle.0 == handle)
    }

    /// The device whose arena stands for this memory; `None` for host memories and for memories of other processes.
    pub fn device_of_memory(&self, memory: *mut sys::PJRT_Memory) -> Option<&Device> {
        self.devices.iter().find(|device| device.memory.0 == memory)
    }

    /// The memory that arrays of ours go to by this name; `None` for what stays with the engine.
    pub fn site_of_memory(&self, memory: *mut sys::PJRT_Memory) -> Option<Site<'_>> {
        match self.device_of_memory(memory) {
            Some(device) => device.site(),
            None => self.pinned(memory)?.0.pinned_site(),
        }
    }

    /// All arenas: the devices' own, then those of the host's memory that anything was put in.
    pub fn arenas(&self) -> impl Iterator<Item = &Arc<DeviceMemory>> {
        let pinned = self.devices.iter().filter_map(|device| device.pinned.as_ref());
        let pinned = pinned.filter(|pinned| pinned.is_used()).map(|pinned| &pinned.arena);
        self.devices.iter().filter_map(|device| device.arena.as_ref()).chain(pinned)
    }

    /// The same with the bytes that the engine holds beside each.
    pub fn arenas_and_engine(&self) -> impl Iterator<Item = (&Arc<DeviceMemory>, i64)> {
        let own = self.devices.iter().filter_map(|device| Some((device.arena.as_ref()?, &device.engine_bytes)));
        let pinned = self.devices.iter().filter_map(|device| device.pinned.as_ref());
        let pinned = pinned.filter(|pinned| pinned.is_used()).map(|pinned| (&pinned.arena, &pinned.engine_bytes));
        own.chain(pinned).map(|(arena, engine)| (arena, engine.load(Ordering::Relaxed)))
    }

    /// Where bytes that the engine holds for `device` in `memory` are counted.
    pub fn engine_bytes(&self, device: *mut sys::PJRT_Device, memory: *mut sys::PJRT_Memory) -> Arc<AtomicI64> {
        Arc::clone(match self.pinned(memory) {
            Some((_, pinned)) => &pinned.engine_bytes,
            None => self.device(device).map_or(&self.elsewhere, |device| &device.engine_bytes),
        })
    }

    /// Where bytes of outsiders that buffers of `device` alias are counted.
    pub fn foreign_bytes(&self, device: *mut sys::PJRT_Device) -> Arc<AtomicI64> {
        Arc::clone(self.device(device).map_or(&self.elsewhere, |device| &device.foreign_bytes))
    }

    /// Whether the engine does the executions of a device one after another: XLA:GPU puts them into one stream. XLA's own
    /// allocator relies on it as well.
    pub fn orders_runs(&self) -> bool {
        matches!(process::kind(), Some(EngineKind::Cuda | EngineKind::Rocm))
    }

    /// The queue of `device`, if it does one execution after another.
    pub fn queue(&self, device: Raw<sys::PJRT_Device>) -> Option<ExecutionQueue> {
        self.orders_runs().then_some(ExecutionQueue { client: self.handle, device })
    }

    /// Lands all that is done and gives the spares back, so that what is free counts as free.
    pub fn settle(&self) {
        self.in_flight.sweep(self.engine);
        self.spares.clear();
    }
}

static CLIENTS: RwLock<Vec<Arc<Client>>> = RwLock::new(Vec::new());

/// Registers a client.
pub fn register(client: Arc<Client>) {
    CLIENTS.write().push(client);
}

/// Forgets a client.
pub fn unregister(handle: *mut sys::PJRT_Client) -> Option<Arc<Client>> {
    let mut clients = CLIENTS.write();
    let index = clients.iter().position(|client| client.handle.0 == handle)?;
    Some(clients.swap_remove(index))
}

/// All clients of the process, none of which is destroyed while its visit lasts.
pub fn guard_all() -> Vec<ClientGuard> {
    CLIENTS.read().iter().filter_map(Client::visit).collect()
}

/// Calls `act` with one of the process's clients, if there is any. It must call nothing of the engine.
pub fn with_any(act: impl FnOnce(&Client)) {
    if let Some(client) = CLIENTS.read().first() {
        act(client);
    }
}

/// The client with this handle.
///
/// # Errors
/// INVALID_ARGUMENT if no client of ours has it.
pub fn find(handle: *mut sys::PJRT_Client) -> Outcome<Arc<Client>> {
    CLIENTS
        .read()
        .iter()
        .find(|client| client.handle.0 == handle)
        .cloned()
        .ok_or_else(|| Error::invalid_argument(format!("{handle:p} is no client of this plugin")).into())
}

/// The client that a device belongs to.
pub fn of_device(device: *mut sys::PJRT_Device) -> Option<Arc<Client>> {
    CLIENTS.read().iter().find(|client| client.device(device).is_some()).cloned()
}
