//! `PJRT_Client`: creation, destruction, version.

use std::sync::Arc;

use crate::{
    api::entry::Entry,
    config::{Environment, OptionValue, Scratch, Settings},
    engine::{
        Live, Outcome,
        failure::{discard, required},
        named_values::named_values,
        process, scratch,
    },
    error::{Error, Result},
    logging,
    runtime::{
        client::{self, limits, open_devices},
        executable::registry,
        report,
    },
    sys::{self, slice, text},
};

/// The client options as the caller passed them.
///
/// # Safety
/// The pointers must be valid as the C API says.
unsafe fn options(args: &sys::PJRT_Client_Create_Args) -> Result<Vec<(String, OptionValue)>> {
    // SAFETY: the list is as long as the caller's struct says, as this function asks.
    let values = unsafe { slice(args.create_options, args.num_options) };
    values
        .iter()
        .map(|value| {
            // SAFETY: texts and lists are as long as the value says, as this function asks; the type says which field
            // of the union is set.
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

impl Entry for sys::PJRT_Client_Create_Args {
    unsafe fn run(&mut self) -> Outcome {
        let engine = process::engine()?;
        // SAFETY: the struct's pointers are valid, as `run` asks.
        let options = unsafe { options(self)? };
        let environment = Environment::of_process();
        let settings = Settings::read(&environment, &options)?;
        logging::init(&settings.log.value);
        for warning in &settings.warnings {
            log::warn!("{warning}");
        }
        let choice = process::choose(&settings.engine, &environment)?;
        let wanted = choice.taken();
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
        // Checks the settings before the engine starts its threads.
        let share = limits::check(&settings, process::kind())?;
        let for_engine = settings.engine_options(process::kind(), share)?;
        for warning in &for_engine.warnings {
            log::warn!("{warning}");
        }
        let values = named_values(&for_engine.values);
        // SAFETY: the options live until the call returns; the rest of the struct, with its callbacks, is the
        // caller's, valid as `run` asks.
        let created =
            unsafe { engine.call(Self { create_options: values.as_ptr(), num_options: values.len(), ..*self })? };
        // SAFETY: the client was just created, and is alive.
        let new = unsafe { Live::new(engine, created.client) };
        match open_devices::open_devices(new, settings, share, report::on_exhausted) {
            Ok(client) => {
                client::watch_scratch(&client);
                client::register(client);
                self.client = created.client;
                Ok(())
            }
            Err(failure) => {
                // SAFETY: the client is alive, and was not passed to the caller: it is destroyed once.
                let destroyed = unsafe {
                    engine.call(sys::PJRT_Client_Destroy_Args { client: created.client, ..Default::default() })
                };
                discard(destroyed, "destroy its client");
                Err(failure)
            }
        }
    }
}

impl Entry for sys::PJRT_Client_Destroy_Args {
    unsafe fn run(&mut self) -> Outcome {
        let handle = required(self.client, "PJRT_Client_Destroy", "client")?;
        let Some(client) = client::unregister(handle) else {
            return Err(Error::invalid_argument(format!("{handle:p} is no client of this plugin")).into());
        };
        client.close_guards();
        client.allocator.trimmer.end();
        client::with_any(client::watch_scratch);
        // The views first, then the engine's client; an arena is dropped with its last buffer.
        client.allocator.in_flight.end();
        client.allocator.clear_caches();
        for loaded in registry::LOADED.values().iter().filter(|loaded| Arc::ptr_eq(&loaded.client, &client)) {
            loaded.nested_executables.end(client.session.engine);
        }
        client.nested.end();
        client.session.close();
        // SAFETY: the client is alive, as `run` asks, and the caller does not use it again; everything of this
        // library that uses it has ended.
        unsafe { client.session.engine.call(*self)? };
        Ok(())
    }
}

impl Entry for sys::PJRT_Client_PlatformVersion_Args {
    unsafe fn run(&mut self) -> Outcome {
        let client = client::find(self.client)?;
        let version = client.platform_version.as_bytes();
        (self.platform_version, self.platform_version_size) = (version.as_ptr().cast(), version.len());
        Ok(())
    }
}
