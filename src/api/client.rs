//! `PJRT_Client`: creation, destruction, version.

use std::{ffi::CString, num::NonZeroU32, sync::Arc};

use super::{
    device_memory::DeviceMemory,
    entry::{Entry, Outcome, required, slice, text},
    idle, plugin,
    state::{self, Client, Device},
};
use crate::{
    config::{Compact, Environment, HugePages, OptionValue, Outcome as Decided, Scratch, Settings, strategy_name},
    device::host,
    engine::{Engine, Raw, scratch, views, views::Viewable},
    error::{Error, Result},
    logging,
    memory::Arena,
    sys,
    units::Bytes,
};

/// The client options as the caller passed them.
///
/// # Safety
/// The pointers must be valid as the C API says.
unsafe fn options(args: &sys::PJRT_Client_Create_Args) -> Result<Vec<(String, OptionValue)>> {
    // SAFETY: the caller's promise.
    let values = unsafe { slice(args.create_options, args.num_options) };
    values
        .iter()
        .map(|value| {
            // SAFETY: the caller's promise; the type says which field of the union is set.
            unsafe {
                let name = text(value.name, value.name_size).into_owned();
                let inner = &value.__bindgen_anon_1;
                let option = match value.type_ {
                    sys::PJRT_NamedValue_kString => {
                        OptionValue::String(text(inner.string_value, value.value_size).into_owned())
                    }
                    sys::PJRT_NamedValue_kInt64 => OptionValue::Int64(inner.int64_value),
                    sys::PJRT_NamedValue_kInt64List => {
                        OptionValue::Int64List(slice(inner.int64_array_value, value.value_size).to_vec())
                    }
                    sys::PJRT_NamedValue_kFloat => OptionValue::Float(inner.float_value),
                    sys::PJRT_NamedValue_kBool => OptionValue::Bool(inner.bool_value),
                    other => {
                        return Err(Error::invalid_argument(format!(
                            "the client option {name} has the unknown type {}; known are 0 to 4",
                            other.0
                        )));
                    }
                };
                Ok((name, option))
            }
        })
        .collect()
}

/// Options in the form of the C API; the pointers are into `from`.
pub(super) fn named_values(from: &[(String, OptionValue)]) -> Vec<sys::PJRT_NamedValue> {
    from.iter()
        .map(|(name, option)| {
            let mut value = sys::PJRT_NamedValue {
                struct_size: size_of::<sys::PJRT_NamedValue>(),
                name: name.as_ptr().cast(),
                name_size: name.len(),
                value_size: 1,
                ..Default::default()
            };
            let inner = &mut value.__bindgen_anon_1;
            value.type_ = match option {
                OptionValue::String(string) => {
                    inner.string_value = string.as_ptr().cast();
                    value.value_size = string.len();
                    sys::PJRT_NamedValue_kString
                }
                OptionValue::Int64(number) => {
                    inner.int64_value = *number;
                    sys::PJRT_NamedValue_kInt64
                }
                OptionValue::Int64List(numbers) => {
                    inner.int64_array_value = numbers.as_ptr();
                    value.value_size = numbers.len();
                    sys::PJRT_NamedValue_kInt64List
                }
                OptionValue::Float(number) => {
                    inner.float_value = *number;
                    sys::PJRT_NamedValue_kFloat
                }
                OptionValue::Bool(flag) => {
                    inner.bool_value = *flag;
                    sys::PJRT_NamedValue_kBool
                }
            };
            value
        })
        .collect()
}

impl Entry for sys::PJRT_Client_Create_Args {
    unsafe fn run(&mut self) -> Outcome {
        let engine = plugin::engine()?;
        // SAFETY: the caller's promise.
        let options = unsafe { options(self)? };
        let environment = Environment::of_process();
        let settings = Settings::read(&environment, &options)?;
        logging::init(&settings.log.value);
        for warning in &settings.warnings {
            log::warn!("{warning}");
        }
        let wanted = plugin::choose(&settings.engine, &environment)?;
        if wanted.path != engine.path() {
            return Err(Error::failed_precondition(format!(
                "{} asks for the engine {}, but this process has loaded {}; a process has one engine",
                settings.engine.source,
                wanted.path.display(),
                engine.path().display()
            ))
            .into());
        }
        scratch::open(settings.scratch.value == Scratch::Warm);
        let for_engine = settings.engine_options(plugin::kind())?;
        for warning in &for_engine.warnings {
            log::warn!("{warning}");
        }
        // Settle what can be wrong on our side before the engine starts its threads.
        let capacity = host::capacity()?;
        settings.limit.resolve(capacity.get(), NonZeroU32::MIN)?;
        let values = named_values(&for_engine.values);
        // SAFETY: the options live until the call returns; the callbacks are the caller's, handed on as they are.
        let created =
            unsafe { engine.call(Self { create_options: values.as_ptr(), num_options: values.len(), ..*self })? };
        // SAFETY: the client was just created and is ours.
        match unsafe { dress(engine, Raw(created.client), settings, capacity) } {
            Ok(client) => {
                idle::watch_scratch(&client);
                state::insert_client(client);
                self.client = created.client;
                Ok(())
            }
            Err(failure) => {
                // SAFETY: nobody else has seen the client.
                let destroyed = unsafe {
                    engine.call(sys::PJRT_Client_Destroy_Args { client: created.client, ..Default::default() })
                };
                if let Err(error) = destroyed {
                    log::warn!("the engine could not destroy its client: {}", error.message());
                }
                Err(failure)
            }
        }
    }
}

/// Puts arenas around the engine's client.
///
/// # Safety
/// `handle` must be alive.
unsafe fn dress(
    engine: &'static Engine,
    handle: Raw<sys::PJRT_Client>,
    settings: Settings,
    capacity: Bytes,
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
    let mut memories = Vec::with_capacity(handles.len());
    for &device in handles {
        // SAFETY: the device is alive.
        let memory = unsafe { engine.call(sys::PJRT_Device_DefaultMemory_Args { device, ..Default::default() })? };
        memories.push(memory.memory);
    }
    // The engine of another platform keeps its memory for now: only host memory can be viewed without its driver.
    let viewable = match memories.first() {
        // SAFETY: the client and the memory are alive.
        Some(&memory) if platform == "cpu" => unsafe { views::probe(engine, handle, memory) },
        _ => Viewable::NONE,
    };
    let count = NonZeroU32::new(handles.len() as u32).unwrap_or(NonZeroU32::MIN);
    let limit = settings.limit.resolve(capacity.get(), count)?;
    let backing = host_backing(&settings);
    let mut devices = Vec::with_capacity(handles.len());
    for (index, (&device, &memory)) in handles.iter().zip(&memories).enumerate() {
        let arena = if viewable == Viewable::NONE {
            None
        } else {
            let name = format!("{platform}:{index}");
            let host = backing();
            let backing = Box::new(host.clone());
            let mut arena = Arena::new(name, settings.strategy.value, Bytes::new(limit), backing)?;
            arena.record_history(settings.history.value);
            if settings.compaction() == Compact::Always {
                arena.use_no_slots();
            }
            Some(DeviceMemory::new(arena, Box::new(host)))
        };
        devices.push(Device {
            handle: Raw(device),
            memory: Raw(memory),
            arena,
            engine_bytes: Arc::default(),
            foreign_bytes: Arc::default(),
        });
    }
    log::info!("{}", settings.summary(Some(Decided { limit_bytes: limit, engine: engine.path() })));
    if viewable == Viewable::NONE {
        log::warn!("memory stays with the engine: pjrt-arena does not manage the memory of platform {platform} yet");
    }
    let strategy = strategy_name(settings.strategy.value);
    log::debug!("{count} device(s), strategy {strategy}, {limit} bytes each");
    let version = format!("{version}\npjrt-arena {}", env!("CARGO_PKG_VERSION"));
    let version = CString::new(version.replace('\0', " ")).unwrap_or_default();
    Ok(Arc::new(Client::new(engine, handle, settings, viewable, devices, version)))
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

impl Entry for sys::PJRT_Client_Destroy_Args {
    unsafe fn run(&mut self) -> Outcome {
        let handle = required(self.client, "PJRT_Client_Destroy", "client")?;
        let Some(client) = state::remove_client(handle) else {
            return Err(Error::invalid_argument(format!("{handle:p} is no client of this plugin")).into());
        };
        client.show_out();
        client.idle.end();
        state::with_a_client(idle::watch_scratch);
        // Views first, then the engine's client; the arenas go with the last buffer.
        client.traffic.end(client.engine);
        client.spares.clear();
        for loaded in state::LOADED.values().iter().filter(|loaded| Arc::ptr_eq(&loaded.client, &client)) {
            loaded.twins.end(client.engine);
        }
        client.beside.end(client.engine);
        client.close();
        // SAFETY: the caller gives the client up.
        unsafe { client.engine.call(*self)? };
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_PlatformVersion_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = state::client(self.client)?;
        let version = client.platform_version.as_bytes();
        (self.platform_version, self.platform_version_size) = (version.as_ptr().cast(), version.len());
        Ok(())
    }
}
