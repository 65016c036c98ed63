//! Compilation: the program gets destinations before the engine sees it.

use std::{borrow::Cow, sync::Arc};

use crate::{
    config::{EngineKind, Rewrite},
    engine::{Engine, Live, Outcome, Raw, executables::Description, failure::required, process, views::AliasableTypes},
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

/// Options that this engine takes without complaint, and computes correctly with.
///
/// With XNNPACK, which this XLA takes for some matrix products where the processor has AVX-512, XLA keeps the packed
/// right-hand side of a product for as long as that has one address, whatever is written there: a training step that
/// is donated its weights goes on with old ones (seen with xla-cpu-pjrt 0.0.1, without pjrt-arena too;
/// `python_smoke/test_matmul.py`). With memory that is reused, one address is the rule.
pub fn polished<'a>(engine: &Engine, options: &'a [u8]) -> Cow<'a, [u8]> {
    // Options that cannot be read are left for the engine to refuse.
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
    let original = options;
    let options = polished(client.session.engine, original);
    let read = options::CompileOptions::read(&options).map_err(|reject| reject.to_string())?;
    let policy = Policy {
        skip_sub_byte: !client.session.aliasable.contains(sys::PJRT_Buffer_Type_S4),
        tie_unspecified_shardings: read.partitioner == Partitioner::Shardy,
        one_memory: process::kind() == Some(EngineKind::Cpu),
        update_in_place: process::kind() == Some(EngineKind::Cpu),
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
    let mut placements = Vec::with_capacity(rewritten.placements.len());
    for (result, placement) in rewritten.placements.iter().enumerate() {
        placements.push(match placement {
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
        placements,
        destinations: destinations.into_iter().map(|(_, result)| result).collect(),
        not_rewritten,
        host_callbacks: rewritten.signature.host_callbacks,
        needs_no_context: !rewritten.signature.custom_calls,
        is_cheap: rewritten.signature.is_cheap,
        bound: Vec::new(),
        released,
        user_options: original.to_vec(),
    };
    Ok(Prepared { code: rewritten.bytes, options, plan })
}

/// The caller's program with other bytes, which must live as long as the result is used.
pub fn with_code(original: sys::PJRT_Program, code: &[u8]) -> sys::PJRT_Program {
    sys::PJRT_Program { code: code.as_ptr().cast_mut().cast(), code_size: code.len(), ..original }
}

/// Dropped, it trims what compiling has left in the engine's pools beyond what programs may have.
struct TrimOnDrop<'a>(&'a Client);

impl Drop for TrimOnDrop<'_> {
    fn drop(&mut self) {
        trim_pools(&self.0.allocator);
    }
}

/// Compiles with all custom calls resolved that have a partitioner. `compile` calls the engine.
///
/// # Safety
/// `program` must be NULL or valid, and its pointers valid, as the C API says.
pub unsafe fn compile<T>(
    client: &Client,
    program: *const sys::PJRT_Program,
    options: &[u8],
    mut compile: impl FnMut(&sys::PJRT_Program, &[u8]) -> Outcome<T>,
    done: impl Fn(T, Plan) -> Outcome<Result<T, String>>,
) -> Outcome<T> {
    let program = required(program.cast_mut(), "compilation", "program")?;
    // SAFETY: the program is not NULL, and it and its pointers are valid for their lengths, as this function asks.
    let (original, format, code) = unsafe {
        let original = *program;
        (
            original,
            slice(original.format.cast::<u8>(), original.format_size),
            slice(original.code.cast::<u8>(), original.code_size),
        )
    };
    let resolved = partitioners::resolve(format, code, options)?;
    match compile_code(client, original, format, &resolved.code, options, &mut compile, &done) {
        Err(failure) if resolved.optional => {
            log::debug!("the engine refused the program with resolved custom calls: {failure:?}");
            compile_code(client, original, format, code, options, &mut compile, &done)
        }
        outcome => outcome,
    }
}

/// Compiles with destinations if that is possible, and the caller's program otherwise.
fn compile_code<T>(
    client: &Client,
    original: sys::PJRT_Program,
    format: &[u8],
    code: &[u8],
    options: &[u8],
    mut compile: impl FnMut(&sys::PJRT_Program, &[u8]) -> Outcome<T>,
    done: impl Fn(T, Plan) -> Outcome<Result<T, String>>,
) -> Outcome<T> {
    let Unbound { bytes: code, results: bound } = unbind(Some(client), format, code);
    let original = with_code(original, &code);
    let code = &*code;
    // Trims what the engine's autotuner took and freed, once the engine has compiled.
    let _trim = TrimOnDrop(client);
    let planned = match prepare(client, format, code, options) {
        Ok(prepared) if matches!(prepared.code, Cow::Owned(_)) => {
            let mut rewritten = || compile(&with_code(original, &prepared.code), &prepared.options);
            let compiled = match rewritten() {
                Err(failure) if failure.is_exhausted() && make_room_to_compile(&client.allocator) => rewritten(),
                done => done,
            };
            match compiled {
                Ok(executable) => match done(executable, Plan { bound: bound.clone(), ..prepared.plan })? {
                    Ok(executable) => return Ok(executable),
                    Err(reason) => Err(reason),
                },
                // The second try reports the program's own errors, in the user's terms.
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
    let executable = compile(&original, &polished(client.session.engine, options))?;
    let plan = planned.unwrap_or_else(|reason| Plan {
        host_callbacks: program::has_host_callbacks(code),
        is_cheap: program::is_cheap_text(code),
        ..Plan::unmodified(reason)
    });
    match done(executable, Plan { bound, ..plan })? {
        Ok(executable) => Ok(executable),
        Err(reason) => Err(Error::internal(reason).into()),
    }
}

/// Registers an executable that was just loaded. Without success, which includes a problem with the plan, the
/// executable is destroyed.
///
/// # Errors
/// The engine's.
///
/// # Safety
/// `executable` must be alive, the client's, and not be used after a failure.
pub unsafe fn register(
    client: &Arc<Client>,
    executable: *mut sys::PJRT_LoadedExecutable,
    plan: Plan,
) -> Outcome<Result<(), String>> {
    let engine = client.session.engine;
    // SAFETY: the executable is alive and the client's, as this function asks; it is destroyed once, and not used
    // again.
    unsafe {
        let outcome = try_register(client, Live::new(engine, executable), plan);
        if !matches!(outcome, Ok(Ok(()))) {
            engine.call(sys::PJRT_LoadedExecutable_Destroy_Args { executable, ..Default::default() })?;
        }
        outcome
    }
}

fn try_register(
    client: &Arc<Client>,
    executable: Live<'_, sys::PJRT_LoadedExecutable>,
    plan: Plan,
) -> Outcome<Result<(), String>> {
    let devices = executable.handles::<sys::PJRT_LoadedExecutable_AddressableDevices_Args, _>()?;
    let devices = devices.iter().map(|device| Raw(device.raw())).collect();
    let description = Description::of(executable)?;
    let program = Program::new(Some(Arc::clone(client)), description.live(), plan)?;
    if let Some(problem) = program.problem(client) {
        return Ok(Err(problem));
    }
    let loaded = Loaded::new(Arc::clone(client), Arc::new(program), devices);
    registry::LOADED.insert(executable.raw(), Arc::new(loaded));
    Ok(Ok(()))
}
