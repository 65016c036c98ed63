//! Compilation: the program gets destinations on its way to the engine.

use std::{borrow::Cow, sync::Arc};

use crate::{
    config::{EngineKind, Rewrite},
    engine::{Engine, Outcome, Raw, failure::required, process, views::AliasableTypes},
    error::Error,
    handlers::partitioners,
    program::{
        self, Donation, Placement, Policy, Reject, Unbound,
        options::{self, Partitioner},
    },
    runtime::{
        allocator::shared::{make_room_to_compile, trim_pools},
        client::Client,
        executable::{
            bound::unbind,
            loaded::{Donations, Loaded, Plan, Program, ResultPlacement},
            registry,
        },
    },
    sys::{self, slice},
};

/// The highest kind of YNNPACK fusion that XLA knew at PJRT 0.81. A newer JAX asks for more, and an engine of that age
/// prints an error for each, with every program.
const HIGHEST_FUSION_TYPE_AT_81: u64 = 4;

/// A program and its options, ready for the engine, and the plan for running it.
struct Prepared<'a> {
    code: Cow<'a, [u8]>,
    options: Cow<'a, [u8]>,
    plan: Plan,
}

/// Options that this engine takes without complaint, and computes rightly with.
///
/// With XNNPACK, which this XLA takes for some matrix products where the processor has AVX-512, it keeps the packed right-hand
/// side of a product for as long as that lies at one address, whatever is written there: a training step that is donated
/// its weights goes on with old ones (seen with xla-cpu-pjrt 0.0.1, without pjrt-arena too; `python_smoke/test_matmul.py`). With
/// memory that is used again, one address is the rule.
pub fn polished<'a>(engine: &Engine, options: &'a [u8]) -> Cow<'a, [u8]> {
    // What cannot be read is the engine's to refuse.
    let counted = apply(Cow::Borrowed(options), options::with_counts);
    if engine.minor() > 81 {
        return counted;
    }
    let known = apply(counted, |options| options::drop_fusion_types_above(options, HIGHEST_FUSION_TYPE_AT_81));
    apply(known, options::without_xnnpack)
}

/// `edit`'s options, or `options` as they are where it changes or reads nothing.
fn apply<'a>(options: Cow<'a, [u8]>, edit: impl FnOnce(&[u8]) -> Result<Cow<'_, [u8]>, Reject>) -> Cow<'a, [u8]> {
    let edited = match edit(&options) {
        Ok(Cow::Owned(edited)) => edited,
        Ok(Cow::Borrowed(_)) | Err(_) => return options,
    };
    Cow::Owned(edited)
}

/// Adds destinations to the program, or says why it stays as it is.
fn prepare<'a>(client: &Client, format: &[u8], code: &'a [u8], options: &'a [u8]) -> Result<Prepared<'a>, String> {
    if client.settings.rewrite.value == Rewrite::Off {
        return Err("rewriting is switched off".into());
    }
    if client.session.aliasable == AliasableTypes::NONE {
        return Err("the engine keeps its memory".into());
    }
    if format != b"mlir" {
        return Err(format!("program format {}", String::from_utf8_lossy(format)));
    }
    let given = options;
    let options = polished(client.session.engine, given);
    let read = options::CompileOptions::read(&options).map_err(|reject| reject.to_string())?;
    let policy = Policy {
        skip_sub_byte: !client.session.aliasable.contains(sys::PJRT_Buffer_Type_S4),
        tie_unspecified_shardings: read.partitioner == Partitioner::Shardy,
        one_memory: process::kind() == Some(EngineKind::Cpu),
        place_pinned_host: client.devices.iter().all(|device| device.pinned.is_some()),
    };
    let rewritten = program::add_destinations(code, &policy).map_err(|reject| reject.to_string())?;
    let parameters = rewritten.parameters();
    let released: Vec<usize> = rewritten.released.iter().map(|parameter| parameter.0).collect();
    let donations = (rewritten.signature.parameters.iter().enumerate())
        .filter(|(index, parameter)| parameter.donation != Donation::Kept && !released.contains(index))
        .map(|(index, _)| index)
        .collect();
    let mut destinations: Vec<(usize, usize)> = Vec::new();
    let mut homes = Vec::with_capacity(rewritten.placements.len());
    for (result, placement) in rewritten.placements.iter().enumerate() {
        homes.push(match placement {
            Placement::Destination(parameter) => {
                destinations.push((parameter.0, result));
                ResultPlacement::Destination(parameter.0 - parameters)
            }
            Placement::AliasedBy(parameter) => ResultPlacement::Argument(parameter.0),
            Placement::LeftToDonor => ResultPlacement::Anywhere("left to a donated argument".into()),
            Placement::Skipped(skip) => ResultPlacement::Anywhere(skip.reason().into()),
        });
    }
    destinations.sort_unstable();
    let not_rewritten = destinations.is_empty().then(|| "no result takes a destination".to_owned());
    let options = match options::add_parameters(&options, parameters, destinations.len()) {
        Ok(extended) => Cow::Owned(extended.into_owned()),
        Err(reject) if not_rewritten.is_none() => return Err(reject.to_string()),
        Err(_) => options,
    };
    let plan = Plan {
        arguments: Some(parameters),
        donations: Donations::Only(donations),
        homes,
        destinations: destinations.into_iter().map(|(_, result)| result).collect(),
        not_rewritten,
        host_callbacks: rewritten.signature.host_callbacks,
        needs_no_context: !rewritten.signature.custom_calls,
        bound: Vec::new(),
        released,
        user_options: given.to_vec(),
    };
    Ok(Prepared { code: rewritten.bytes, options, plan })
}

/// The caller's program with other bytes, which have to live as long.
pub fn with_code(given: sys::PJRT_Program, code: &[u8]) -> sys::PJRT_Program {
    sys::PJRT_Program { code: code.as_ptr().cast_mut().cast(), code_size: code.len(), ..given }
}

/// Gives back, when it is dropped, what compiling has left in the engine's pools beyond what programs may have.
struct Shed<'a>(&'a Client);

impl Drop for Shed<'_> {
    fn drop(&mut self) {
        trim_pools(&self.0.allocator);
    }
}

/// Compiles with all custom calls resolved that have a partitioner. `compile` calls the engine.
///
/// # Safety
/// The pointers in `program` must be valid as the C API says.
pub unsafe fn compile<T>(
    client: &Client,
    program: *const sys::PJRT_Program,
    options: &[u8],
    mut compile: impl FnMut(&sys::PJRT_Program, &[u8]) -> Outcome<T>,
    done: impl Fn(T, Plan) -> Outcome<Result<T, String>>,
) -> Outcome<T> {
    let program = required(program.cast_mut(), "compilation", "program")?;
    // SAFETY: the caller's promise.
    let (given, format, code) = unsafe {
        let given = *program;
        (given, slice(given.format.cast::<u8>(), given.format_size), slice(given.code.cast::<u8>(), given.code_size))
    };
    let resolved = partitioners::resolve(format, code, options)?;
    match compile_code(client, given, format, &resolved.code, options, &mut compile, &done) {
        Err(failure) if resolved.optional => {
            log::debug!("the engine refused the program with resolved custom calls: {failure:?}");
            compile_code(client, given, format, code, options, &mut compile, &done)
        }
        outcome => outcome,
    }
}

/// Compiles with destinations if that can be, and as it came otherwise.
fn compile_code<T>(
    client: &Client,
    given: sys::PJRT_Program,
    format: &[u8],
    code: &[u8],
    options: &[u8],
    mut compile: impl FnMut(&sys::PJRT_Program, &[u8]) -> Outcome<T>,
    done: impl Fn(T, Plan) -> Outcome<Result<T, String>>,
) -> Outcome<T> {
    let Unbound { bytes: code, results: bound } = unbind(Some(client), format, code);
    let given = with_code(given, &code);
    let code = &*code;
    // What the engine's autotuner took and freed, once it has compiled.
    let _shed = Shed(client);
    let planned = match prepare(client, format, code, options) {
        Ok(prepared) if matches!(prepared.code, Cow::Owned(_)) => {
            let mut rewritten = || compile(&with_code(given, &prepared.code), &prepared.options);
            let compiled = match rewritten() {
                Err(failure) if failure.is_exhausted() && make_room_to_compile(&client.allocator) => rewritten(),
                done => done,
            };
            match compiled {
                Ok(executable) => match done(executable, Plan { bound: bound.clone(), ..prepared.plan })? {
                    Ok(executable) => return Ok(executable),
                    Err(reason) => Err(reason),
                },
                // The program's own errors come back from the second try, in the user's terms.
                Err(failure) => {
                    let level = if failure.is_exhausted() { log::Level::Warn } else { log::Level::Debug };
                    log::log!(level, "the engine refused the rewritten program: {failure:?}");
                    Err("the engine refused the rewritten program".to_owned())
                }
            }
        }
        Ok(prepared) => Ok(prepared.plan),
        Err(reason) => Err(reason),
    };
    let executable = compile(&given, &polished(client.session.engine, options))?;
    let plan = planned.unwrap_or_else(|reason| Plan {
        host_callbacks: program::has_host_callbacks(code),
        ..Plan::unmodified(reason)
    });
    match done(executable, Plan { bound, ..plan })? {
        Ok(executable) => Ok(executable),
        Err(reason) => Err(Error::internal(reason).into()),
    }
}

/// Remembers an executable that was just loaded.
///
/// # Errors
/// The engine's; the executable is destroyed then.
///
/// # Safety
/// `executable` must be alive and the engine's.
pub unsafe fn register(
    client: &Arc<Client>,
    executable: *mut sys::PJRT_LoadedExecutable,
    plan: Plan,
) -> Outcome<Result<(), String>> {
    let engine = client.session.engine;
    // SAFETY: the executable is alive, and with it what the getters point to.
    unsafe {
        let devices =
            engine.call(sys::PJRT_LoadedExecutable_AddressableDevices_Args { executable, ..Default::default() })?;
        let devices: Vec<_> =
            slice(devices.addressable_devices, devices.num_addressable_devices).iter().map(|&d| Raw(d)).collect();
        let description = engine.call(sys::PJRT_LoadedExecutable_GetExecutable_Args {
            loaded_executable: executable,
            ..Default::default()
        })?;
        let program = Program::new(engine, Some(Arc::clone(client)), description.executable, plan);
        engine.call(sys::PJRT_Executable_Destroy_Args { executable: description.executable, ..Default::default() })?;
        let program = program?;
        if let Some(problem) = program.problem(client) {
            return Ok(Err(problem));
        }
        let loaded = Loaded::new(Arc::clone(client), Arc::new(program), devices);
        registry::LOADED.insert(executable, Arc::new(loaded));
    }
    Ok(Ok(()))
}
