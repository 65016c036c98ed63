//! Compile options: `xla.CompileOptionsProto` as it goes into `PJRT_Client_Compile`, read and edited on the wire.
//!
//! ```text
//!   CompileOptionsProto
//!     1  argument_layouts                    JAX leaves it empty
//!     2  parameter_is_tupled_arguments
//!     3  executable_build_options
//!          3  debug_options
//!               359  xla_cpu_use_xnnpack
//!               422  xla_cpu_experimental_ynn_fusion_type
//!          4  num_replicas    5  num_partitions
//!         15  device_memory_size
//!         18  allow_spmd_sharding_propagation_to_parameters      one flag for each parameter
//!         19  use_shardy_partitioner
//!     7  env_option_overrides                a map from a debug option's name to its value; they go over field 3
//! ```
//!
//! Field numbers: `xla/pjrt/proto/compile_options.proto` and `xla/xla.proto`, the same in PJRT 0.81, 0.112 and 0.114.
//! All other fields pass unchanged, known or not.

use std::borrow::Cow;

use crate::program::{
    reject::Reject,
    wire::{Field, fields, put_bytes, put_integer, put_packed},
};

const ARGUMENT_LAYOUTS: u32 = 1;
const TUPLED_ARGUMENTS: u32 = 2;
const BUILD_OPTIONS: u32 = 3;
const OVERRIDES: u32 = 7;

const DEBUG_OPTIONS: u32 = 3;
const REPLICAS: u32 = 4;
const PARTITIONS: u32 = 5;
const DEVICE_MEMORY_SIZE: u32 = 15;
const PROPAGATION_TO_PARAMETERS: u32 = 18;
const SHARDY: u32 = 19;

const USE_XNNPACK: u32 = 359;
const YNN_FUSION_TYPES: u32 = 422;

const OVERRIDE_NAME: u32 = 1;
const OVERRIDE_VALUE: u32 = 2;
const OVERRIDE_BOOL: u32 = 2;

/// What compile options say that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// Replicas; absent or 0 is 1.
    pub replicas: u64,
    /// Partitions of each replica; absent or 0 is 1.
    pub partitions: u64,
    /// Which partitioner runs.
    pub partitioner: Partitioner,
    /// The memory the compiler may plan with, in bytes, where the caller says so.
    pub device_memory_size: Option<u64>,
    /// How arguments are passed.
    pub arguments: Arguments,
    /// Layouts given for arguments; JAX gives none.
    pub argument_layouts: usize,
    /// Flags in `allow_spmd_sharding_propagation_to_parameters`.
    pub propagation_flags: usize,
}

/// Which partitioner splits the program over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioner {
    /// XLA's older one, which works on HLO.
    Gspmd,
    /// Shardy, which works on StableHLO.
    Shardy,
}

/// How arguments are passed to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// One buffer for each parameter.
    Flat,
    /// All in one tuple.
    Tupled,
}

impl CompileOptions {
    /// Reads serialised options. Linear in their size.
    ///
    /// # Errors
    /// [`Reject`] where the bytes are not a protocol buffer, or a field above has another type.
    pub fn read(options: &[u8]) -> Result<Self, Reject> {
        let mut read = Self {
            replicas: 0,
            partitions: 0,
            partitioner: Partitioner::Gspmd,
            device_memory_size: None,
            arguments: Arguments::Flat,
            argument_layouts: 0,
            propagation_flags: 0,
        };
        // A message may come in several pieces; those that follow are merged into the first.
        for field in fields(options) {
            let field = field?;
            match field.number {
                ARGUMENT_LAYOUTS => read.argument_layouts += 1,
                TUPLED_ARGUMENTS if field.integer()? == 0 => read.arguments = Arguments::Flat,
                TUPLED_ARGUMENTS => read.arguments = Arguments::Tupled,
                BUILD_OPTIONS => read.read_build_options(field.bytes()?)?,
                _ => {}
            }
        }
        read.replicas = read.replicas.max(1);
        read.partitions = read.partitions.max(1);
        Ok(read)
    }

    fn read_build_options(&mut self, options: &[u8]) -> Result<(), Reject> {
        for field in fields(options) {
            let field = field?;
            match field.number {
                REPLICAS => self.replicas = field.integer()?,
                PARTITIONS => self.partitions = field.integer()?,
                DEVICE_MEMORY_SIZE => self.device_memory_size = Some(field.integer()?).filter(|&size| size != 0),
                SHARDY if field.integer()? == 0 => self.partitioner = Partitioner::Gspmd,
                SHARDY => self.partitioner = Partitioner::Shardy,
                PROPAGATION_TO_PARAMETERS => {
                    let mut flags = Vec::new();
                    field.integers(&mut flags)?;
                    self.propagation_flags += flags.len();
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The options for a program of `parameters` parameters to which `added` more were given: the flags that say of each
/// parameter whether the partitioner may choose its sharding grow by `added` times no. Linear in the options.
///
/// # Errors
/// [`Reject`] where the options describe parameters in a way that cannot be extended: tupled arguments, argument
/// layouts, or flags of another number than `parameters`, 1 or 0.
pub fn add_parameters(options: &[u8], parameters: usize, added: usize) -> Result<Cow<'_, [u8]>, Reject> {
    let read = CompileOptions::read(options)?;
    if read.arguments == Arguments::Tupled {
        return Err(Reject::new("arguments are passed in a tuple"));
    }
    if read.argument_layouts != 0 {
        return Err(Reject::found("the options give layouts of arguments", read.argument_layouts as u64));
    }
    if added == 0 || read.propagation_flags == 0 {
        return Ok(Cow::Borrowed(options));
    }
    if read.propagation_flags != parameters {
        // One flag for all parameters is legal, and holds for those added as well.
        return match read.propagation_flags {
            1 => Ok(Cow::Borrowed(options)),
            flags => Err(Reject::found("flags for another number of parameters", flags as u64)),
        };
    }
    edit_build_options(options, |build_options, out| {
        let mut flags = Vec::with_capacity(parameters + added);
        for field in fields(build_options) {
            let field = field?;
            match field.number {
                PROPAGATION_TO_PARAMETERS => {
                    field.integers(&mut flags)?;
                    // All flags go where the last piece of them was.
                    if flags.len() == parameters {
                        flags.resize(parameters + added, 0);
                        put_packed(out, PROPAGATION_TO_PARAMETERS, &flags);
                    }
                }
                _ => out.extend(field.raw),
            }
        }
        if flags.len() == parameters + added { Ok(()) } else { Err(Reject::new("flags are spread over messages")) }
    })
    .map(Cow::Owned)
}

/// The options without kinds of YNNPACK fusion above `highest`, which the engine does not know: an older XLA logs an
/// error for each of them with every compilation. Linear in the options.
///
/// # Errors
/// [`Reject`] where the bytes are not a protocol buffer, or a field above has another type.
pub fn drop_fusion_types_above(options: &[u8], highest: u64) -> Result<Cow<'_, [u8]>, Reject> {
    edit_debug_options(options, |field, out| {
        if field.number != YNN_FUSION_TYPES {
            out.extend(field.raw);
            return Ok(false);
        }
        let mut types = Vec::new();
        field.integers(&mut types)?;
        let all = types.len();
        types.retain(|&fusion| fusion <= highest);
        put_packed(out, YNN_FUSION_TYPES, &types);
        Ok(types.len() != all)
    })
}

/// The options with XNNPACK switched off: the flag dropped from debug options, where absent is off; an override where
/// there are none, for which an engine takes its own defaults. What the caller overrides by name (in JAX
/// `compiler_options` of one program) holds. Linear in the options.
///
/// # Errors
/// As [`drop_fusion_types_above`].
pub fn without_xnnpack(options: &[u8]) -> Result<Cow<'_, [u8]>, Reject> {
    let mut defaults = true;
    let edited = edit_debug_options(options, |field, out| {
        defaults = false;
        let on = field.number == USE_XNNPACK && field.integer()? != 0;
        if !on {
            out.extend(field.raw);
        }
        Ok(on)
    })?;
    if !defaults {
        return Ok(edited);
    }
    let mut value = Vec::new();
    put_integer(&mut value, OVERRIDE_BOOL, 0);
    let mut entry = Vec::new();
    put_bytes(&mut entry, OVERRIDE_NAME, b"xla_cpu_use_xnnpack");
    put_bytes(&mut entry, OVERRIDE_VALUE, &value);
    // Of two entries with one name the last counts: the caller's.
    let mut out = Vec::with_capacity(options.len() + entry.len() + 8);
    put_bytes(&mut out, OVERRIDES, &entry);
    out.extend(options);
    Ok(Cow::Owned(out))
}

/// The options with one replica and one partition where they give no number: XLA reads an absent one as 0, and ends the
/// process over it (`computation_placer.h`, seen with PJRT 0.81). Linear in the options.
///
/// # Errors
/// As [`CompileOptions::read`].
pub fn with_counts(options: &[u8]) -> Result<Cow<'_, [u8]>, Reject> {
    let mut given = [0, 0];
    for field in fields(options) {
        let field = field?;
        if field.number != BUILD_OPTIONS {
            continue;
        }
        for field in fields(field.bytes()?) {
            let field = field?;
            match field.number {
                REPLICAS => given[0] = field.integer()?,
                PARTITIONS => given[1] = field.integer()?,
                _ => {}
            }
        }
    }
    let mut counts = Vec::new();
    for (number, given) in [REPLICAS, PARTITIONS].into_iter().zip(given) {
        if given == 0 {
            put_integer(&mut counts, number, 1);
        }
    }
    if counts.is_empty() {
        return Ok(Cow::Borrowed(options));
    }
    // A piece that follows is merged into the message before it.
    let mut out = options.to_vec();
    put_bytes(&mut out, BUILD_OPTIONS, &counts);
    Ok(Cow::Owned(out))
}

/// Copies the options with `edit` writing each field of the debug options and saying whether it is another one now; as
/// they are, where none is.
fn edit_debug_options(
    options: &[u8],
    mut edit: impl FnMut(&Field<'_>, &mut Vec<u8>) -> Result<bool, Reject>,
) -> Result<Cow<'_, [u8]>, Reject> {
    let mut changed = false;
    let edited = edit_build_options(options, |build_options, out| {
        for field in fields(build_options) {
            let field = field?;
            if field.number != DEBUG_OPTIONS {
                out.extend(field.raw);
                continue;
            }
            let mut debug_options = Vec::with_capacity(field.raw.len());
            for field in fields(field.bytes()?) {
                changed |= edit(&field?, &mut debug_options)?;
            }
            put_bytes(out, DEBUG_OPTIONS, &debug_options);
        }
        Ok(())
    })?;
    Ok(if changed { Cow::Owned(edited) } else { Cow::Borrowed(options) })
}

/// Copies the options with `edit` writing the payload of each piece of the build options.
fn edit_build_options(
    options: &[u8],
    mut edit: impl FnMut(&[u8], &mut Vec<u8>) -> Result<(), Reject>,
) -> Result<Vec<u8>, Reject> {
    let mut out = Vec::with_capacity(options.len() + 64);
    for field in fields(options) {
        let field = field?;
        if field.number == BUILD_OPTIONS {
            let mut edited = Vec::with_capacity(field.raw.len() + 64);
            edit(field.bytes()?, &mut edited)?;
            put_bytes(&mut out, BUILD_OPTIONS, &edited);
        } else {
            out.extend(field.raw);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::wire::tests::{bytes, integer};

    /// Options with `build` as build options, between fields that are not known here.
    fn options(build: &[Vec<u8>]) -> Vec<u8> {
        [integer(999, 7), bytes(BUILD_OPTIONS, &build.concat()), bytes(1000, b"kept")].concat()
    }

    #[test]
    fn facts_are_read() {
        let read = CompileOptions::read(&options(&[
            integer(REPLICAS, 2),
            integer(PARTITIONS, 4),
            integer(SHARDY, 1),
            integer(DEVICE_MEMORY_SIZE, 1 << 34),
            bytes(PROPAGATION_TO_PARAMETERS, &[0, 1, 0]),
        ]))
        .unwrap();
        assert_eq!(
            read,
            CompileOptions {
                replicas: 2,
                partitions: 4,
                partitioner: Partitioner::Shardy,
                device_memory_size: Some(1 << 34),
                arguments: Arguments::Flat,
                argument_layouts: 0,
                propagation_flags: 3,
            }
        );
        let empty = CompileOptions::read(&[]).unwrap();
        assert_eq!((empty.replicas, empty.partitions, empty.device_memory_size), (1, 1, None));
    }

    #[test]
    fn flags_grow_with_the_parameters() {
        let flags = |list: &[u8]| options(&[integer(50, 1), bytes(PROPAGATION_TO_PARAMETERS, list), integer(19, 1)]);
        assert_eq!(add_parameters(&flags(&[1, 0]), 2, 3).unwrap(), flags(&[1, 0, 0, 0, 0]));
        assert_eq!(add_parameters(&flags(&[1]), 1, 1).unwrap(), flags(&[1, 0]));
        // One flag for all, no flags, nothing added.
        for (options, parameters, added) in
            [(flags(&[1]), 3, 2), (options(&[integer(50, 1)]), 3, 2), (flags(&[1, 1]), 2, 0)]
        {
            assert_eq!(add_parameters(&options, parameters, added).unwrap(), options);
        }
        // Flags that came unpacked are put together.
        let unpacked = [integer(18, 1), integer(50, 1), integer(18, 0)];
        let expected = options(&[integer(50, 1), bytes(PROPAGATION_TO_PARAMETERS, &[1, 0, 0])]);
        assert_eq!(add_parameters(&options(&unpacked), 2, 1).unwrap(), expected);
    }

    #[test]
    fn descriptions_that_cannot_grow_are_refused() {
        let flags = options(&[bytes(PROPAGATION_TO_PARAMETERS, &[1, 0])]);
        assert!(add_parameters(&flags, 3, 1).is_err());
        assert!(add_parameters(&integer(TUPLED_ARGUMENTS, 1), 3, 1).is_err());
        assert!(add_parameters(&integer(TUPLED_ARGUMENTS, 0), 3, 1).is_ok());
        assert!(add_parameters(&bytes(ARGUMENT_LAYOUTS, &[]), 1, 1).is_err());
        let split = [bytes(BUILD_OPTIONS, &integer(18, 1)), bytes(BUILD_OPTIONS, &integer(18, 1))].concat();
        assert!(add_parameters(&split, 2, 1).is_err());
    }

    #[test]
    fn unknown_fusion_types_are_dropped() {
        let types = |list: &[u8]| {
            let fusion = if list.is_empty() { vec![] } else { bytes(YNN_FUSION_TYPES, list) };
            options(&[bytes(DEBUG_OPTIONS, &[integer(60, 1), fusion, integer(500, 2)].concat()), integer(4, 1)])
        };
        assert_eq!(drop_fusion_types_above(&types(&[4, 5, 3]), 4).unwrap(), types(&[4, 3]));
        assert_eq!(drop_fusion_types_above(&types(&[6, 5]), 4).unwrap(), types(&[]));
        assert!(matches!(drop_fusion_types_above(&types(&[4, 5, 3]), 5).unwrap(), Cow::Borrowed(_)));
        assert!(matches!(drop_fusion_types_above(&[], 4).unwrap(), Cow::Borrowed(_)));
    }

    #[test]
    fn counts_that_are_missing_are_one() {
        let counts = |list: &[(u32, u64)]| {
            let fields: Vec<_> = list.iter().map(|&(number, value)| integer(number, value)).collect();
            bytes(BUILD_OPTIONS, &fields.concat())
        };
        assert_eq!(with_counts(&[]).unwrap(), counts(&[(REPLICAS, 1), (PARTITIONS, 1)]));
        let two = counts(&[(REPLICAS, 2), (PARTITIONS, 0)]);
        assert_eq!(with_counts(&two).unwrap(), [two.clone(), counts(&[(PARTITIONS, 1)])].concat());
        let all = counts(&[(REPLICAS, 1), (PARTITIONS, 4)]);
        assert!(matches!(with_counts(&all).unwrap(), Cow::Borrowed(_)));
        assert!(with_counts(&[0xff]).is_err());
    }

    #[test]
    fn what_comes_last_counts() {
        let read = |build: &[Vec<u8>]| CompileOptions::read(&options(build)).unwrap();
        assert_eq!(read(&[integer(SHARDY, 1), integer(SHARDY, 0)]).partitioner, Partitioner::Gspmd);
        assert_eq!(read(&[integer(SHARDY, 0), integer(SHARDY, 7)]).partitioner, Partitioner::Shardy);
        let sizes = [integer(DEVICE_MEMORY_SIZE, 5), integer(DEVICE_MEMORY_SIZE, 0)];
        assert_eq!(read(&sizes).device_memory_size, None, "0 says nothing");
        let tuples = [integer(TUPLED_ARGUMENTS, 1), integer(TUPLED_ARGUMENTS, 0)].concat();
        assert_eq!(CompileOptions::read(&tuples).unwrap().arguments, Arguments::Flat);
        // Flags of several pieces are all there.
        let flags = [bytes(PROPAGATION_TO_PARAMETERS, &[1, 0]), integer(PROPAGATION_TO_PARAMETERS, 1)];
        assert_eq!(read(&flags).propagation_flags, 3);
    }

    #[test]
    fn one_changed_field_is_enough() {
        // Each of them drops something, and an even number of them does as well.
        let debug = |list: &[u64]| {
            let types: Vec<Vec<u8>> = list.iter().map(|&fusion| integer(YNN_FUSION_TYPES, fusion)).collect();
            options(&[bytes(DEBUG_OPTIONS, &types.concat())])
        };
        for dropped in 1..4 {
            let unknown = vec![9; dropped];
            assert_eq!(drop_fusion_types_above(&debug(&unknown), 4).unwrap(), debug(&[]), "{dropped}");
        }
    }

    #[test]
    fn xnnpack_is_switched_off_and_nothing_else() {
        let with = |flag: Vec<u8>| options(&[bytes(DEBUG_OPTIONS, &[integer(60, 1), flag, integer(500, 2)].concat())]);
        assert_eq!(without_xnnpack(&with(integer(USE_XNNPACK, 1))).unwrap(), with(vec![]));
        assert!(matches!(without_xnnpack(&with(integer(USE_XNNPACK, 0))).unwrap(), Cow::Borrowed(_)));
        assert!(matches!(without_xnnpack(&with(vec![])).unwrap(), Cow::Borrowed(_)));
        // An engine's own defaults are overridden, and the caller's overrides come later.
        let by_name = |on: u64| {
            bytes(OVERRIDES, &[bytes(1, b"xla_cpu_use_xnnpack"), bytes(2, &integer(OVERRIDE_BOOL, on))].concat())
        };
        assert_eq!(without_xnnpack(&[]).unwrap(), by_name(0));
        assert_eq!(without_xnnpack(&by_name(1)).unwrap(), [by_name(0), by_name(1)].concat());
        assert!(without_xnnpack(&with(bytes(USE_XNNPACK, &[1]))).is_err());
    }
}
