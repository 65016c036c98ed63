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
    engine::{
        Engine, Live, Outcome, Raw, executables::Description, failure::discard, named_values::named_values, process,
        session::Session, views::ClientMemory,
    },
    sys,
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

type DeviceWithMemory = (Live<'static, sys::PJRT_Device>, Live<'static, sys::PJRT_Memory>);

/// A client of the engine that one execution at a time has to itself.
pub struct NestedClient {
    number: usize,
    /// Alive until [`NestedSessions::end`] takes it from those that are idle.
    client: Live<'static, sys::PJRT_Client>,
    /// Its devices with their default memories, in the order of the user's devices.
    devices: Vec<DeviceWithMemory>,
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
    /// the program on it as well. `nested_executables` is what is known of `executable`.
    ///
    /// # Errors
    /// The engine's.
    pub fn begin(
        user: &Arc<NestedSessions>,
        executable: Live<'_, sys::PJRT_LoadedExecutable>,
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
            Err(number) => Arc::new(NestedClient::new(user, number)?),
        };
        let lease = Self { user: Arc::clone(user), client };
        if let Some(nested) = nested_executables.on(&lease.client) {
            return Ok((lease, nested));
        }
        let nested = copy(executable, lease.client.client)?;
        nested_executables.0.lock().push((lease.client.number, Raw(nested)));
        Ok((lease, nested))
    }

    /// Its device for one of the user's devices, and the default memory of that. They live as long as the lease,
    /// because no client is destroyed that is leased.
    pub fn place(&self, device: Raw<sys::PJRT_Device>) -> Option<(Live<'_, sys::PJRT_Device>, ClientMemory<'_>)> {
        let number = self.user.devices.iter().position(|known| known.0 == device.0)?;
        let &(device, memory) = self.client.devices.get(number)?;
        Some((device, ClientMemory { client: self.client.client, memory }))
    }
}

impl NestedSessions {
    /// No nested clients yet, for the client of `session` with these devices.
    pub fn new(session: &'static Session, settings: Arc<Settings>, devices: Vec<Raw<sys::PJRT_Device>>) -> Arc<Self> {
        Arc::new(Self { session, settings, devices, idle: Mutex::default() })
    }

    /// Destroys the nested clients, before the user's client is destroyed.
    pub fn end(&self) {
        let clients = std::mem::take(&mut self.idle.lock().clients);
        for client in clients {
            // SAFETY: the client is alive, and idle: no program runs on it, and its buffers and executables are gone.
            unsafe { destroy(client.client) };
        }
    }
}

impl NestedClient {
    /// # Errors
    /// The engine's.
    fn new(user: &NestedSessions, number: usize) -> Outcome<Self> {
        let engine = user.session.engine;
        let options = user.settings.engine_options(process::kind(), None)?;
        let values = named_values(&options.values);
        // SAFETY: the options live until the call returns. The client is new, and alive until `NestedSessions::end`.
        let client = unsafe {
            let created = engine.call(sys::PJRT_Client_Create_Args {
                create_options: values.as_ptr(),
                num_options: values.len(),
                ..Default::default()
            })?;
            Live::new(engine, created.client)
        };
        let devices = Self::devices(client).inspect_err(|_| {
            // SAFETY: the client is alive, and nothing of it is known to anybody.
            unsafe { destroy(client) };
        })?;
        Ok(Self { number, client, devices })
    }

    /// The client's devices, each with its default memory.
    ///
    /// # Errors
    /// The engine's.
    fn devices(client: Live<'static, sys::PJRT_Client>) -> Outcome<Vec<DeviceWithMemory>> {
        let devices = client.handles::<sys::PJRT_Client_AddressableDevices_Args, _>()?.into_iter();
        devices.map(|device| Ok((device, device.part::<sys::PJRT_Device_DefaultMemory_Args>()?))).collect()
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

/// Destroys a nested client.
///
/// # Safety
/// It must be alive, idle, and not be used again.
unsafe fn destroy(client: Live<'_, sys::PJRT_Client>) {
    let args = sys::PJRT_Client_Destroy_Args { client: client.raw(), ..Default::default() };
    // SAFETY: the client is alive, and this is its end, as this function asks.
    discard(unsafe { client.engine().call(args) }, "destroy its client for callbacks");
}

/// Loads the same program on another client of the engine.
///
/// # Errors
/// The engine's.
fn copy(
    loaded: Live<'_, sys::PJRT_LoadedExecutable>,
    client: Live<'_, sys::PJRT_Client>,
) -> Outcome<*mut sys::PJRT_LoadedExecutable> {
    let engine = loaded.engine();
    let description = Description::of(loaded)?;
    // SAFETY: description and client are alive; the blob lives until its deleter is called, once, with what the engine
    // gave for it.
    unsafe {
        let executable = description.live().raw();
        let blob = engine.call(sys::PJRT_Executable_Serialize_Args { executable, ..Default::default() })?;
        let copy = engine.call(sys::PJRT_Executable_DeserializeAndLoad_Args {
            client: client.raw(),
            serialized_executable: blob.serialized_bytes,
            serialized_executable_size: blob.serialized_bytes_size,
            ..Default::default()
        });
        if let Some(delete) = blob.serialized_executable_deleter {
            delete(blob.serialized_executable);
        }
        Ok(copy?.loaded_executable)
    }
}
