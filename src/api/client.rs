//! `PJRT_Client`: creation, destruction, version.

use std::sync::Arc;

use crate::{
    api::{call::Call, entry::Entry},
    config::{EngineKind, Environment, Inline, OptionValue, Scratch, Settings},
    engine::{
        EngineError, Failure, Live, Outcome, asynchronous, failure::discard, named_values::named_values, process,
        scratch,
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
/// # Errors
/// INVALID_ARGUMENT for an option of an unknown type.
fn options(call: &Call<'_, sys::PJRT_Client_Create_Args>) -> Result<Vec<(String, OptionValue)>> {
    let read = |value: &sys::PJRT_NamedValue| {
        // SAFETY: texts and lists are as long as the value says, as the call asks; the type says which field of the
        // union is set.
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
    };
    call.create_options().iter().map(read).collect()
}

impl Entry for sys::PJRT_Client_Create_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let engine = process::engine()?;
        let options = options(&call)?;
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
        let mut for_engine = settings.engine_options(process::kind(), share)?;
        let takes_it = process::kind() == Some(EngineKind::Cpu) && asynchronous::is_possible(engine);
        let inline = if takes_it { for_engine.run_inline() } else { Inline::Short };
        for warning in &for_engine.warnings {
            log::warn!("{warning}");
        }
        let values = named_values(&for_engine.values);
        // SAFETY: the options live until the call returns; the rest of the struct, with its callbacks, is the caller's,
        // valid as a call's. The client was just created, and is alive.
        let (created, new) = unsafe {
            let created = engine.call(Self { create_options: values.as_ptr(), num_options: values.len(), ..*call });
            let created = created.map_err(|refused| explained(refused, &settings))?.client;
            (created, Live::new(engine, created))
        };
        match open_devices::open_devices(new, settings, (share, inline), report::on_exhausted) {
            Ok(client) => {
                client::watch_scratch(&client);
                client::sleeper::watch(&client);
                client.start_giving();
                client.start_prefetching();
                client::register(client);
                call.out().client = created;
                Ok(())
            }
            Err(failure) => {
                // SAFETY: the client is alive, and was not passed to the caller: it is destroyed once.
                let destroyed =
                    unsafe { engine.call(sys::PJRT_Client_Destroy_Args { client: created, ..Default::default() }) };
                discard(destroyed, "destroy its client");
                Err(failure)
            }
        }
    }
}

/// The engine's error; where it names a client option that may be a typing error, with that.
fn explained(refused: EngineError, settings: &Settings) -> Failure {
    let message = refused.message();
    match settings.unknown_option(&message) {
        Some(why) => Error::invalid_argument(format!("{message}; {why}")).into(),
        None => refused.into(),
    }
}

impl Entry for sys::PJRT_Client_Destroy_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let handle = call.required(call.client, "client")?;
        let Some(client) = client::unregister(handle) else {
            return Err(Error::invalid_argument(format!("{handle:p} is no client of this plugin")).into());
        };
        client.close_guards();
        client.allocator.trimmer.end();
        client.giver.end();
        client.prefetcher.end();
        client::with_any(client::watch_scratch);
        // The views first, then the engine's client; an arena is dropped with its last buffer.
        client.allocator.in_flight.end();
        client.allocator.clear_caches();
        for loaded in registry::LOADED.values().iter().filter(|loaded| Arc::ptr_eq(&loaded.client, &client)) {
            loaded.nested_executables.end(client.session.engine);
        }
        client.nested.end();
        client.session.close();
        // Everything of this library that uses it has ended.
        call.forward().0.map(drop)
    }
}

impl Entry for sys::PJRT_Client_PlatformVersion_Args {
    fn run(call: Call<'_, Self>) -> Outcome {
        let client = client::find(call.client)?;
        let version = client.platform_version.as_bytes();
        let out = call.out();
        (out.platform_version, out.platform_version_size) = (version.as_ptr().cast(), version.len());
        Ok(())
    }
}
