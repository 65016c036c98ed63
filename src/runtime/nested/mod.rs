//! The engine's clients beside the user's, and programs loaded on them.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    config::Settings,
    engine::{Engine, Outcome, Raw, named_values::named_values, process, session::Session},
    sys::{self, slice},
};

/// The clients beside one of the user's. There is one as soon as a program needs it, and one more for each that needs
/// one while all others are taken.
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
    /// Those that no program runs on, in the order of their numbers.
    clients: Vec<Arc<Other>>,
    /// How many were made.
    made: usize,
}

/// A client of the engine that one program at a time has to itself.
pub struct Other {
    number: usize,
    handle: Raw<sys::PJRT_Client>,
    /// Its devices with their default memories, in the order of the user's.
    devices: Vec<(Raw<sys::PJRT_Device>, Raw<sys::PJRT_Memory>)>,
}

/// One program, loaded once more on each client that it ran on.
#[derive(Default)]
pub struct NestedExecutables(Mutex<Vec<(usize, Raw<sys::PJRT_LoadedExecutable>)>>);

/// A client, until it is given back.
pub struct NestedLease {
    user: Arc<NestedSessions>,
    other: Arc<Other>,
}

impl Drop for NestedLease {
    fn drop(&mut self) {
        let clients = &mut self.user.idle.lock().clients;
        let at = clients.partition_point(|idle| idle.number < self.other.number);
        clients.insert(at, Arc::clone(&self.other));
    }
}

impl NestedLease {
    /// Takes a client that no program runs on: one that knows this program, or another, or a new one. Gives the program
    /// on it as well.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Safety
    /// The user's client must be alive, and `executable` the one that the nested_executables are of.
    pub unsafe fn begin(
        user: &Arc<NestedSessions>,
        executable: *mut sys::PJRT_LoadedExecutable,
        nested_executables: &NestedExecutables,
    ) -> Outcome<(Self, *mut sys::PJRT_LoadedExecutable)> {
        let idle = {
            let mut idle = user.idle.lock();
            let knows = |other: &Other| nested_executables.on(other).is_some();
            let at = idle.clients.iter().position(|other| knows(other)).unwrap_or(0);
            if idle.clients.is_empty() {
                idle.made += 1;
                Err(idle.made)
            } else {
                Ok(idle.clients.remove(at))
            }
        };
        // No lock is held while the engine makes a client or loads a program.
        let other = match idle {
            Ok(other) => other,
            // SAFETY: the caller's promise.
            Err(number) => Arc::new(unsafe { Other::new(user, number)? }),
        };
        let stay = Self { user: Arc::clone(user), other };
        if let Some(twin) = nested_executables.on(&stay.other) {
            return Ok((stay, twin));
        }
        // SAFETY: the caller's promise; the client is alive, and nobody else loads programs on it now.
        let twin = unsafe { copy(user.session.engine, executable, stay.handle())? };
        nested_executables.0.lock().push((stay.other.number, Raw(twin)));
        Ok((stay, twin))
    }

    /// Its client.
    pub fn handle(&self) -> *mut sys::PJRT_Client {
        self.other.handle.0
    }

    /// Its device, with the default memory, that stands for one of the user's.
    pub fn place(&self, device: Raw<sys::PJRT_Device>) -> Option<(Raw<sys::PJRT_Device>, Raw<sys::PJRT_Memory>)> {
        let number = self.user.devices.iter().position(|known| known.0 == device.0)?;
        self.other.devices.get(number).copied()
    }
}

impl NestedSessions {
    /// None yet, beside the client of `session` with these devices.
    pub fn new(session: &'static Session, settings: Arc<Settings>, devices: Vec<Raw<sys::PJRT_Device>>) -> Arc<Self> {
        Arc::new(Self { session, settings, devices, idle: Mutex::default() })
    }

    /// Ends them, before the user's client ends.
    pub fn end(&self) {
        let engine = self.session.engine;
        let clients = std::mem::take(&mut self.idle.lock().clients);
        for other in clients {
            let args = sys::PJRT_Client_Destroy_Args { client: other.handle.0, ..Default::default() };
            // SAFETY: no program runs on it, and its buffers are gone.
            if let Err(error) = unsafe { engine.call(args) } {
                log::warn!("the engine could not destroy its client for callbacks: {}", error.message());
            }
        }
    }
}

impl Other {
    /// # Safety
    /// The user's client must be alive.
    unsafe fn new(user: &NestedSessions, number: usize) -> Outcome<Self> {
        let engine = user.session.engine;
        let options = user.settings.engine_options(process::kind(), None)?;
        let values = named_values(&options.values);
        // SAFETY: the options live until the call returns; the handles live as long as the client.
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
    /// The program on `other`, if it ran there before.
    fn on(&self, other: &Other) -> Option<*mut sys::PJRT_LoadedExecutable> {
        self.0.lock().iter().find(|(number, _)| *number == other.number).map(|(_, twin)| twin.0)
    }

    /// Destroys them, while their clients live.
    pub fn end(&self, engine: &'static Engine) {
        for (_, twin) in std::mem::take(&mut *self.0.lock()) {
            let args = sys::PJRT_LoadedExecutable_Destroy_Args { executable: twin.0, ..Default::default() };
            // SAFETY: the program is the user's to run no more.
            if let Err(error) = unsafe { engine.call(args) } {
                log::warn!("the engine could not destroy a program for callbacks: {}", error.message());
            }
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
    // SAFETY: the caller's promise; the engine's blob lives until its deleter is called.
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
