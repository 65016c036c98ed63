//! Nested sessions: clients of the engine that programs with host callbacks run on, beside the user's client.
//!
//! ```text
//!  NestedSessions      the nested clients of one user's client, and which of them are idle
//!  NestedLease         one of them, while an execution has it
//!  NestedExecutables   one program, loaded on each nested client that it ran on
//! ```

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    config::Settings,
    engine::{Engine, Outcome, Raw, failure::discard, named_values::named_values, process, session::Session},
    sys::{self, slice},
};

/// The nested clients of one user's client. The first is made when a program needs it, and one more for each program
/// that needs one while all others are leased.
pub struct NestedSessions {
    /// The user's client.
    session: &'static Session,
    settings: Arc<Settings>,
    /// Its devices.
    devices: Vec<Raw<sys::PJRT_Device>>,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    /// The clients that no program runs on, in the order of their numbers.
    clients: Vec<Arc<NestedClient>>,
    /// How many clients were made.
    made: usize,
}

/// A client of the engine that one execution at a time has to itself.
pub struct NestedClient {
    number: usize,
    handle: Raw<sys::PJRT_Client>,
    /// Its devices with their default memories, in the order of the user's devices.
    devices: Vec<(Raw<sys::PJRT_Device>, Raw<sys::PJRT_Memory>)>,
}

/// One program, loaded once more on each client that it ran on.
#[derive(Default)]
pub struct NestedExecutables(Mutex<Vec<(usize, Raw<sys::PJRT_LoadedExecutable>)>>);

/// A nested client that is leased to one execution.
pub struct NestedLease {
    user: Arc<NestedSessions>,
    client: Arc<NestedClient>,
}

impl Drop for NestedLease {
    fn drop(&mut self) {
        let clients = &mut self.user.idle.lock().clients;
        let at = clients.partition_point(|idle| idle.number < self.client.number);
        clients.insert(at, Arc::clone(&self.client));
    }
}

impl NestedLease {
    /// Leases a client that no program runs on: one that has this program loaded, or another, or a new one. Returns
    /// the program on it as well.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// The user's client must be alive, and `executable` the loaded program that `nested_executables` belongs to.
    pub unsafe fn begin(
        user: &Arc<NestedSessions>,
        executable: *mut sys::PJRT_LoadedExecutable,
        nested_executables: &NestedExecutables,
    ) -> Outcome<(Self, *mut sys::PJRT_LoadedExecutable)> {
        let idle = {
            let mut idle = user.idle.lock();
            let knows = |client: &NestedClient| nested_executables.on(client).is_some();
            let at = idle.clients.iter().position(|client| knows(client)).unwrap_or(0);
            if idle.clients.is_empty() {
                idle.made += 1;
                Err(idle.made)
            } else {
                Ok(idle.clients.remove(at))
            }
        };
        // No lock is held while the engine creates a client or loads a program.
        let client = match idle {
            Ok(client) => client,
            // SAFETY: the user's client is alive, as this function asks.
            Err(number) => Arc::new(unsafe { NestedClient::new(user, number)? }),
        };
        let lease = Self { user: Arc::clone(user), client };
        if let Some(nested) = nested_executables.on(&lease.client) {
            return Ok((lease, nested));
        }
        // SAFETY: executable and user's client are alive, as this function asks; the leased client is alive, and no
        // other thread loads programs on it now.
        let nested = unsafe { copy(user.session.engine, executable, lease.handle())? };
        nested_executables.0.lock().push((lease.client.number, Raw(nested)));
        Ok((lease, nested))
    }

    /// Its client.
    pub fn handle(&self) -> *mut sys::PJRT_Client {
        self.client.handle.0
    }

    /// Its device, with the default memory, for one of the user's devices.
    pub fn place(&self, device: Raw<sys::PJRT_Device>) -> Option<(Raw<sys::PJRT_Device>, Raw<sys::PJRT_Memory>)> {
        let number = self.user.devices.iter().position(|known| known.0 == device.0)?;
        self.client.devices.get(number).copied()
    }
}

impl NestedSessions {
    /// No nested clients yet, for the client of `session` with these devices.
    pub fn new(session: &'static Session, settings: Arc<Settings>, devices: Vec<Raw<sys::PJRT_Device>>) -> Arc<Self> {
        Arc::new(Self { session, settings, devices, idle: Mutex::default() })
    }

    /// Destroys the nested clients, before the user's client is destroyed.
    pub fn end(&self) {
        let engine = self.session.engine;
        let clients = std::mem::take(&mut self.idle.lock().clients);
        for client in clients {
            let args = sys::PJRT_Client_Destroy_Args { client: client.handle.0, ..Default::default() };
            // SAFETY: the client is alive, and idle: no program runs on it, and its buffers and executables are gone.
            discard(unsafe { engine.call(args) }, "destroy its client for callbacks");
        }
    }
}

impl NestedClient {
    /// # Safety
    /// The user's client must be alive.
    unsafe fn new(user: &NestedSessions, number: usize) -> Outcome<Self> {
        let engine = user.session.engine;
        let options = user.settings.engine_options(process::kind(), None)?;
        let values = named_values(&options.values);
        // SAFETY: the options live until the call returns; devices and memories live as long as the new client.
        unsafe {
            let created = engine.call(sys::PJRT_Client_Create_Args {
                create_options: values.as_ptr(),
                num_options: values.len(),
                ..Default::default()
            })?;
            let client = created.client;
            let devices = engine.call(sys::PJRT_Client_AddressableDevices_Args { client, ..Default::default() })?;
            let handles = slice(devices.addressable_devices, devices.num_addressable_devices);
            let mut devices = Vec::with_capacity(handles.len());
            for &device in handles {
                let memory = engine.call(sys::PJRT_Device_DefaultMemory_Args { device, ..Default::default() })?;
                devices.push((Raw(device), Raw(memory.memory)));
            }
            Ok(Self { number, handle: Raw(client), devices })
        }
    }
}

impl NestedExecutables {
    /// The program on this client, if it ran there before.
    fn on(&self, client: &NestedClient) -> Option<*mut sys::PJRT_LoadedExecutable> {
        self.0.lock().iter().find(|(number, _)| *number == client.number).map(|(_, nested)| nested.0)
    }

    /// Destroys the programs, while their clients are alive.
    pub fn end(&self, engine: &'static Engine) {
        for (_, nested) in std::mem::take(&mut *self.0.lock()) {
            let args = sys::PJRT_LoadedExecutable_Destroy_Args { executable: nested.0, ..Default::default() };
            // SAFETY: the executable and its client are alive, and the user's program has ended: nothing runs it any
            // more.
            discard(unsafe { engine.call(args) }, "destroy a program for callbacks");
        }
    }
}

/// Loads the same program on another client of the engine.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// The executable and the client must be alive.
unsafe fn copy(
    engine: &'static Engine,
    loaded: *mut sys::PJRT_LoadedExecutable,
    client: *mut sys::PJRT_Client,
) -> Outcome<*mut sys::PJRT_LoadedExecutable> {
    // SAFETY: executable and client are alive, as this function asks; the blob lives until its deleter is called,
    // once, with what the engine gave for it; the description is destroyed once.
    unsafe {
        let described = engine
            .call(sys::PJRT_LoadedExecutable_GetExecutable_Args { loaded_executable: loaded, ..Default::default() })?;
        let executable = described.executable;
        let blob = engine.call(sys::PJRT_Executable_Serialize_Args { executable, ..Default::default() });
        let copy = blob.and_then(|blob| {
            let copy = engine.call(sys::PJRT_Executable_DeserializeAndLoad_Args {
                client,
                serialized_executable: blob.serialized_bytes,
                serialized_executable_size: blob.serialized_bytes_size,
                ..Default::default()
            });
            if let Some(delete) = blob.serialized_executable_deleter {
                delete(blob.serialized_executable);
            }
            copy
        });
        engine.call(sys::PJRT_Executable_Destroy_Args { executable, ..Default::default() })?;
        Ok(copy?.loaded_executable)
    }
}
