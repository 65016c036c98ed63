//! Client -> devices -> arenas, and the tables that find them from the engine's own pointers.

use std::{
    ffi::CString,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    config::{Settings, ZeroCopy},
    engine::{Outcome, Raw, scratch, session::Session, views::ViewKind},
    error::Error,
    memory::idle::WORTH_WATCHING,
    runtime::{
        allocator::{
            admission::{self, Admission},
            core::{Allocator, OnExhausted},
            pinned_host::{PinnedHost, admit_pinned},
        },
        buffer::Buffer,
        counters::Counters,
        device_memory::DeviceMemory,
        host_memories::HostMemories,
        nested::NestedSessions,
        shape::element_bytes,
    },
    sys,
    units::Bytes,
};

pub mod adoption;
pub mod open_devices;

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
pub struct MemorySpace<'a> {
    /// The device.
    pub device: &'a Device,
    /// The engine's memory.
    pub memory: Raw<sys::PJRT_Memory>,
    /// Ours.
    pub arena: &'a Arc<DeviceMemory>,
}

impl Device {
    /// Its own memory; `None` where that stays with the engine.
    pub fn memory_space(&self) -> Option<MemorySpace<'_>> {
        Some(MemorySpace { device: self, memory: self.memory, arena: self.arena.as_ref()? })
    }

    /// Its `pinned_host` memory.
    pub fn pinned_memory_space(&self) -> Option<MemorySpace<'_>> {
        let pinned = self.pinned.as_ref()?;
        Some(MemorySpace { device: self, memory: pinned.memory, arena: &pinned.arena })
    }

    /// The engine's memory that stands for an arena of this device.
    pub fn memory_of(&self, arena: &Arc<DeviceMemory>) -> Raw<sys::PJRT_Memory> {
        let pinned = self.pinned.as_ref().filter(|pinned| Arc::ptr_eq(&pinned.arena, arena));
        pinned.map_or(self.memory, |pinned| pinned.memory)
    }
}

/// One `PJRT_Client`.
pub struct Client {
    /// The engine's client.
    pub session: &'static Session,
    /// What was decided when it was created.
    pub settings: Arc<Settings>,
    /// Room for arrays, and what is under way.
    pub allocator: Allocator,
    /// Whether arrays of the host are used where they lie.
    pub zero_copy: bool,
    /// The addressable devices, in the engine's order.
    pub devices: Vec<Device>,
    /// The engine's platform version, with our name appended: it is part of JAX's compilation-cache key (engine behaviour T16).
    pub platform_version: CString,
    /// Programs and results, counted.
    pub counters: Counters,
    /// What programs with host callbacks run on.
    pub nested: Arc<NestedSessions>,
    /// Counts what buffers take of the engine's and of outsiders' memory on devices that are not ours to address.
    elsewhere: Arc<AtomicI64>,
    /// Calls of ours, not of the C API's contract, that use the engine's client at this moment.
    guards: Guards,
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
        let mut inside = self.0.guards.inside.lock();
        *inside = inside.map(|count| count - 1);
        self.0.guards.left.notify_all();
    }
}

impl Client {
    /// A client around the engine's.
    pub fn new(
        session: &'static Session,
        settings: Settings,
        devices: Vec<Device>,
        platform_version: CString,
        on_exhausted: OnExhausted,
    ) -> Self {
        let settings = Arc::new(settings);
        let memories = devices.iter().filter_map(|device| device.arena.clone()).collect();
        let handles = devices.iter().map(|device| device.handle).collect();
        Self {
            session,
            allocator: Allocator::new(session, Arc::clone(&settings), memories, on_exhausted),
            // Another device's memory is not where NumPy's arrays lie.
            zero_copy: settings.zero_copy.value == ZeroCopy::On && session.view_kind == ViewKind::Host,
            nested: NestedSessions::new(session, Arc::clone(&settings), handles),
            settings,
            devices,
            platform_version,
            counters: Counters::default(),
            elsewhere: Arc::default(),
            guards: Guards { inside: Mutex::new(Some(0)), left: Condvar::new() },
        }
    }

    /// Comes in from outside of the C API, whose callers see to it themselves that a client lives; `None` if it is about to
    /// be destroyed.
    pub fn visit(self: &Arc<Self>) -> Option<ClientGuard> {
        let mut inside = self.guards.inside.lock();
        *inside = Some(inside.as_ref()? + 1);
        Some(ClientGuard(Arc::clone(self)))
    }

    /// Lets nobody in any more, and waits for those who are. What they do waits for nothing but copies.
    pub fn lock_out_guards(&self) {
        let mut inside = self.guards.inside.lock();
        while inside.is_some_and(|count| count > 0) {
            self.guards.left.wait(&mut inside);
        }
        *inside = None;
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
    pub fn memory_space_of(&self, memory: *mut sys::PJRT_Memory) -> Option<MemorySpace<'_>> {
        match self.device_of_memory(memory) {
            Some(device) => device.memory_space(),
            None => self.pinned(memory)?.0.pinned_memory_space(),
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

    /// The device whose `pinned_host` memory this is, if there is an arena for it.
    pub fn pinned(&self, memory: *mut sys::PJRT_Memory) -> Option<(&Device, &PinnedHost)> {
        let of = |device: &Device| device.pinned.as_ref().is_some_and(|pinned| pinned.memory.0 == memory);
        let device = self.devices.iter().find(|device| of(device))?;
        Some((device, device.pinned.as_ref()?))
    }

    /// Room for an array that the engine is about to make in `memory`, or where that is NULL in the own memory of `device`.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED with the numbers.
    pub fn admit_array(
        &self,
        (device, memory): (*mut sys::PJRT_Device, *mut sys::PJRT_Memory),
        bytes: Bytes,
    ) -> Result<Admission<'_>, Error> {
        if let Some((_, pinned)) = self.pinned(memory) {
            return Ok(Admission::Pinned(admit_pinned(&self.allocator, pinned, bytes)?));
        }
        let device = if memory.is_null() { self.device(device) } else { self.device_of_memory(memory) };
        match device.and_then(|device| Some((device, device.arena.as_deref()?))) {
            Some((device, memory)) => admission::admit_array(&self.allocator, memory, &device.engine_bytes, bytes),
            None => Ok(Admission::Unlimited),
        }
    }

    /// As [`Self::admit_array`], of an array whose size only the engine knows. Elements that it packs are taken for whole bytes until
    /// the array is there.
    ///
    /// # Errors
    /// As [`Self::admit_array`].
    pub fn admit_shape(
        &self,
        place: (*mut sys::PJRT_Device, *mut sys::PJRT_Memory),
        element_type: sys::PJRT_Buffer_Type,
        dims: &[i64],
    ) -> Result<Admission<'_>, Error> {
        let element = element_bytes(element_type).map_or(1, u64::from);
        let most = dims.iter().try_fold(element, |bytes, &dim| bytes.checked_mul(u64::try_from(dim).ok()?));
        // What is no size is the engine's to refuse.
        most.map_or(Ok(Admission::Unlimited), |most| self.admit_array(place, Bytes::new(most)))
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
}

static CLIENTS: RwLock<Vec<Arc<Client>>> = RwLock::new(Vec::new());

/// Registers a client.
pub fn register(client: Arc<Client>) {
    CLIENTS.write().push(client);
}

/// Forgets a client.
pub fn unregister(handle: *mut sys::PJRT_Client) -> Option<Arc<Client>> {
    let mut clients = CLIENTS.write();
    let index = clients.iter().position(|client| client.session.handle.0 == handle)?;
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

/// Lets this client look after the engine's scratch once it is large: to be called when a client has been made, and with
/// another one when one has ended.
pub fn watch_scratch(client: &Client) {
    scratch::watch(WORTH_WATCHING, || with_any(|client| client.allocator.wake_trimmer()));
    if scratch::usage().is_some_and(|usage| usage.warm >= WORTH_WATCHING) {
        client.allocator.wake_trimmer();
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
        .find(|client| client.session.handle.0 == handle)
        .cloned()
        .ok_or_else(|| Error::invalid_argument(format!("{handle:p} is no client of this plugin")).into())
}

/// The client of a session; `None` once it is destroyed.
pub fn of_session(session: &Session) -> Option<Arc<Client>> {
    CLIENTS.read().iter().find(|client| std::ptr::eq(client.session, session)).cloned()
}

/// The client of a buffer.
///
/// # Errors
/// FAILED_PRECONDITION once the client is destroyed.
pub fn of_buffer(buffer: &Buffer) -> Result<Arc<Client>, Error> {
    of_session(buffer.session).ok_or_else(|| Error::failed_precondition("the buffer's client has been destroyed"))
}

/// The client that a device belongs to.
pub fn of_device(device: *mut sys::PJRT_Device) -> Option<Arc<Client>> {
    CLIENTS.read().iter().find(|client| client.device(device).is_some()).cloned()
}
