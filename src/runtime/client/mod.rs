//! A client: its devices, their arenas, and the tables that find them from the engine's pointers.
//!
//! ```text
//!  Client -> Device (the engine's handles) -> DeviceMemory (the arena), PinnedHost
//!         -> Allocator (operations in flight, caches, trimmer)
//!         -> NestedSessions
//!  limits.rs         what the settings allow of each device's memory
//!  open_devices.rs   arenas for the devices of a new client
//!  adoption.rs       buffers that the engine made, wrapped
//!  aliases.rs        alias buffers whose contents are to come
//!  join_group.rs     the group of processes that share the devices
//!  giver.rs          gives memory back that other processes of the group ask for
//!  prefetcher.rs     spilled arrays come back before they are needed
//!  sleeper.rs        devices that go to sleep by themselves
//! ```

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
    config::{Inline, Prefetch, Settings, Spill, ZeroCopy},
    engine::{Outcome, Raw, scratch, session::Session, views::ViewKind},
    error::Error,
    fork::PerProcess,
    memory::idle::WORTH_WATCHING,
    runtime::{
        allocator::{
            admission::{self, Admission},
            core::{Allocator, OnExhausted},
            group::give,
            pinned_host::{PinnedHost, admit_pinned},
            prefetch::prefetch,
            warm,
        },
        buffer::{Buffer, Place},
        client::{aliases::Aliases, giver::Giver, prefetcher::Prefetcher},
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
pub mod aliases;
pub mod giver;
pub mod join_group;
pub mod limits;
pub mod open_devices;
pub mod prefetcher;
pub mod sleeper;

/// One addressable device of a client and the arena of its memory. Only opening a client makes one.
pub struct Device {
    handle: Raw<sys::PJRT_Device>,
    memory: Raw<sys::PJRT_Memory>,
    /// The arena; `None` if the engine takes no views of this memory, so that everything in it stays with the engine.
    pub arena: Option<Arc<DeviceMemory>>,
    /// Bytes of buffers in the engine's own memory, except those in [`Self::pinned`].
    pub engine_bytes: Arc<AtomicI64>,
    /// Bytes of outsiders' memory that buffers alias.
    pub foreign_bytes: Arc<AtomicI64>,
    /// The host's memory that the device reads and writes by itself; `None` if that stays with the engine.
    pub pinned: Option<PinnedHost>,
    /// The engine's memories of the host that results can be bound to.
    pub host: HostMemories,
}

/// A memory with an arena: a device's own, or its part of the host's. Only a [`Device`] gives one.
#[derive(Clone, Copy)]
pub struct MemorySpace<'a> {
    device: &'a Device,
    memory: Raw<sys::PJRT_Memory>,
    arena: &'a Arc<DeviceMemory>,
}

impl<'a> MemorySpace<'a> {
    /// The device.
    pub fn device(self) -> &'a Device {
        self.device
    }

    /// The engine's memory, which the arena divides.
    pub fn memory(self) -> Raw<sys::PJRT_Memory> {
        self.memory
    }

    /// The arena.
    pub fn arena(self) -> &'a Arc<DeviceMemory> {
        self.arena
    }

    /// The engine's device and memory.
    pub fn place(self) -> Place {
        (self.device.handle, self.memory)
    }
}

impl Device {
    /// The engine's device.
    pub fn handle(&self) -> Raw<sys::PJRT_Device> {
        self.handle
    }

    /// The engine's default memory of the device: the one that the arena divides.
    pub fn memory(&self) -> Raw<sys::PJRT_Memory> {
        self.memory
    }

    /// Its own memory; `None` if that stays with the engine.
    pub fn memory_space(&self) -> Option<MemorySpace<'_>> {
        Some(MemorySpace { device: self, memory: self.memory, arena: self.arena.as_ref()? })
    }

    /// Its `pinned_host` memory.
    pub fn pinned_memory_space(&self) -> Option<MemorySpace<'_>> {
        let pinned = self.pinned.as_ref()?;
        Some(MemorySpace { device: self, memory: pinned.memory, arena: &pinned.arena })
    }

    /// The engine's memory that an arena of this device divides.
    pub fn memory_of(&self, arena: &Arc<DeviceMemory>) -> Raw<sys::PJRT_Memory> {
        let pinned = self.pinned.as_ref().filter(|pinned| Arc::ptr_eq(&pinned.arena, arena));
        pinned.map_or(self.memory, |pinned| pinned.memory)
    }
}

/// One `PJRT_Client`.
pub struct Client {
    /// The engine's client.
    pub session: &'static Session,
    /// The settings of this client.
    pub settings: Arc<Settings>,
    /// Gives memory back that other processes ask for.
    pub giver: Giver,
    /// Brings spilled arrays back before they are needed.
    pub prefetcher: Prefetcher,
    /// Allocates arrays, and knows the operations in flight.
    pub allocator: Allocator,
    /// Whether arrays of the host are aliased instead of copied.
    pub zero_copy: bool,
    /// The addressable devices, in the engine's order.
    pub devices: Vec<Device>,
    /// The engine's platform version, with pjrt-arena's appended: it is part of JAX's compilation-cache key (engine
    /// behaviour T16).
    pub platform_version: CString,
    /// Programs and results, counted.
    pub counters: Counters,
    /// The nested clients that programs with host callbacks run on.
    pub nested: Arc<NestedSessions>,
    /// Which programs the engine runs in the caller's thread.
    pub inline: Inline,
    /// Counts the bytes of the engine's and of outsiders' memory on devices that this process cannot address.
    elsewhere: Arc<AtomicI64>,
    /// Alias buffers whose contents are to come.
    pub aliases: Aliases,
    /// Calls outside of the C API's contract that use the engine's client at this moment.
    guards: Guards,
}

/// How many guards there are; `None` once no more are given.
struct Guards {
    count: Mutex<Option<usize>>,
    dropped: Condvar,
}

/// A call that may use the engine's client: the client is not destroyed meanwhile.
pub struct ClientGuard(Arc<Client>);

impl Deref for ClientGuard {
    type Target = Arc<Client>;

    fn deref(&self) -> &Arc<Client> {
        &self.0
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        let mut count = self.0.guards.count.lock();
        *count = count.map(|count| count - 1);
        self.0.guards.dropped.notify_all();
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
            // NumPy's arrays do not lie in a GPU's memory.
            zero_copy: settings.zero_copy.value == ZeroCopy::On && session.view_kind == ViewKind::Host,
            nested: NestedSessions::new(session, Arc::clone(&settings), handles),
            settings,
            devices,
            platform_version,
            counters: Counters::default(),
            inline: Inline::default(),
            elsewhere: Arc::default(),
            aliases: Aliases::default(),
            giver: Giver::default(),
            prefetcher: Prefetcher::default(),
            guards: Guards { count: Mutex::new(Some(0)), dropped: Condvar::new() },
        }
    }

    /// A guard for a call that is not one of the C API's, whose callers must keep the client alive themselves; `None`
    /// if the client is about to be destroyed.
    pub fn guard(self: &Arc<Self>) -> Option<ClientGuard> {
        let mut count = self.guards.count.lock();
        *count = Some(count.as_ref()? + 1);
        Some(ClientGuard(Arc::clone(self)))
    }

    /// Starts the thread that gives memory back to the processes that the devices are shared with, if there are any.
    pub fn start_giving(self: &Arc<Self>) {
        let Some(part) = self.allocator.memories.iter().find_map(|memory| memory.group.as_ref()) else { return };
        let client = Arc::downgrade(self);
        self.giver.start(part.group(), move || {
            // The client is not destroyed meanwhile.
            let Some(client) = client.upgrade().and_then(|client| client.guard()) else { return false };
            let parts = client.allocator.memories.iter().filter_map(|memory| Some((memory, memory.group.as_ref()?)));
            parts.fold(false, |wanted, (memory, part)| {
                give(&client.allocator, memory, part);
                wanted | part.is_asked()
            })
        });
    }

    /// Starts the thread that brings spilled arrays back before they are needed, if that is wanted.
    pub fn start_prefetching(self: &Arc<Self>) {
        if self.settings.prefetch.value == Prefetch::Off || self.allocator.spill == Spill::Off {
            return;
        }
        let client = Arc::downgrade(self);
        self.prefetcher.start(move || {
            let Some(client) = client.upgrade().and_then(|client| client.guard()) else { return };
            for memory in &client.allocator.memories {
                prefetch(&client.allocator, memory);
            }
        });
    }

    /// Gives no more guards, and waits until all are dropped. The calls that have them wait for nothing but copies.
    pub fn close_guards(&self) {
        let mut count = self.guards.count.lock();
        while count.is_some_and(|count| count > 0) {
            self.guards.dropped.wait(&mut count);
        }
        *count = None;
    }

    /// The addressable device with this handle.
    pub fn device(&self, handle: *mut sys::PJRT_Device) -> Option<&Device> {
        self.devices.iter().find(|device| device.handle.0 == handle)
    }

    /// The device whose arena divides this memory; `None` for host memories and for memories of other processes.
    pub fn device_of_memory(&self, memory: *mut sys::PJRT_Memory) -> Option<&Device> {
        self.devices.iter().find(|device| device.memory.0 == memory)
    }

    /// Whether a memory is one of the devices': their own, or `pinned_host`.
    pub fn has_memory(&self, memory: *mut sys::PJRT_Memory) -> bool {
        self.device_of_memory(memory).is_some() || self.pinned(memory).is_some()
    }

    /// The memory with this handle, if it has an arena; `None` if it stays with the engine.
    pub fn memory_space_of(&self, memory: *mut sys::PJRT_Memory) -> Option<MemorySpace<'_>> {
        match self.device_of_memory(memory) {
            Some(device) => device.memory_space(),
            None => self.pinned(memory)?.0.pinned_memory_space(),
        }
    }

    /// All arenas: the devices' own, then those of the host's memory that were ever used.
    pub fn arenas(&self) -> impl Iterator<Item = &Arc<DeviceMemory>> {
        let pinned = self.devices.iter().filter_map(|device| device.pinned.as_ref());
        let pinned = pinned.filter(|pinned| pinned.is_used()).map(|pinned| &pinned.arena);
        self.devices.iter().filter_map(|device| device.arena.as_ref()).chain(pinned)
    }

    /// All arenas, each with the bytes of the engine's own buffers in its memory.
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

    /// Room for an array that the engine is about to make in `memory`, or, if that is NULL, in the own memory of
    /// `device`.
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

    /// As [`Self::admit_array`], of an array whose size only the engine knows. Packed elements count as whole bytes
    /// until the array exists.
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
        // A shape without a size is left for the engine to refuse.
        most.map_or(Ok(Admission::Unlimited), |most| self.admit_array(place, Bytes::new(most)))
    }

    /// The counter of the engine's own buffers of `device` in `memory`.
    pub fn engine_bytes(&self, device: *mut sys::PJRT_Device, memory: *mut sys::PJRT_Memory) -> Arc<AtomicI64> {
        Arc::clone(match self.pinned(memory) {
            Some((_, pinned)) => &pinned.engine_bytes,
            None => self.device(device).map_or(&self.elsewhere, |device| &device.engine_bytes),
        })
    }

    /// The counter of outsiders' memory that buffers of `device` alias.
    pub fn foreign_bytes(&self, device: *mut sys::PJRT_Device) -> Arc<AtomicI64> {
        Arc::clone(self.device(device).map_or(&self.elsewhere, |device| &device.foreign_bytes))
    }
}

static CLIENTS: PerProcess<RwLock<Vec<Arc<Client>>>> = PerProcess::empty();

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

/// Whether there is no client. Without a lock: if another thread is about to change that, there is one.
pub fn is_none_open() -> bool {
    CLIENTS.used().is_none_or(|clients| clients.try_read().is_some_and(|clients| clients.is_empty()))
}

/// In a child after fork: its parent's clients are none of its own. Takes no lock.
pub fn leave_parents() {
    CLIENTS.renew();
}

/// All clients of the process, none of which is destroyed while its guard lives.
pub fn guard_all() -> Vec<ClientGuard> {
    CLIENTS.read().iter().filter_map(Client::guard).collect()
}

/// Calls `act` with one of the process's clients, if there is one. `act` must not call the engine.
pub fn with_any(act: impl FnOnce(&Client)) {
    if let Some(client) = CLIENTS.read().first() {
        act(client);
    }
}

/// Has this client trim the engine's scratch once that is large: called when a client has been created, and with
/// another client when one has ended.
pub fn watch_scratch(client: &Client) {
    scratch::watch(WORTH_WATCHING, || {
        let clients = CLIENTS.read();
        clients.iter().for_each(|client| warm::scratch_grows(&client.allocator));
        if let Some(client) = clients.first() {
            client.allocator.wake_trimmer();
        }
    });
    if scratch::usage().is_some_and(|usage| usage.warm >= WORTH_WATCHING) {
        client.allocator.wake_trimmer();
    }
}

/// The client with this handle.
///
/// # Errors
/// INVALID_ARGUMENT if no client has it.
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

/// Whether device or memory, of which one is NULL, belong to another client than this one.
pub fn is_of_another(client: &Client, device: *mut sys::PJRT_Device, memory: *mut sys::PJRT_Memory) -> bool {
    let has = |client: &Client| client.device(device).is_some() || client.has_memory(memory);
    !has(client) && CLIENTS.read().iter().any(|client| has(client))
}

/// The client that a device belongs to.
pub fn of_device(device: *mut sys::PJRT_Device) -> Option<Arc<Client>> {
    CLIENTS.read().iter().find(|client| client.device(device).is_some()).cloned()
}
