//! What goes to the engine, and what of it is refused.

use crate::config::{limit::Bytes, tests::*};

#[test]
fn the_engine_gets_its_own_options_as_they_came() {
    let given: Vec<(String, OptionValue)> = vec![
        ("node_id".to_owned(), OptionValue::Int64(1)),
        ("visible_devices".to_owned(), OptionValue::Int64List(vec![0, 2])),
        ("limit".to_owned(), OptionValue::Int64(1 << 30)),
        ("allocator".to_owned(), OptionValue::String("default".to_owned())),
        ("memory_fraction".to_owned(), OptionValue::Float(0.5)),
        ("preallocate".to_owned(), OptionValue::Bool(false)),
    ];
    let given = &given[..];
    assert!(Settings::read(&environment(&[]), given).is_err(), "limit and memory_fraction differ");
    let given: Vec<_> = given.iter().filter(|(name, _)| name != "limit").cloned().collect();
    let settings = Settings::read(&environment(&[("PJRT_ARENA_DEVICES", "4")]), &given).unwrap();
    let passed = [given[0].clone(), given[1].clone()];
    let count = ("cpu_device_count".to_owned(), OptionValue::Int64(4));

    let cpu = settings.engine_options(Some(EngineKind::Cpu), None).unwrap();
    assert_eq!(cpu.values, [given[1].clone(), count.clone()], "of a job it knows nothing");
    assert!(cpu.warnings.is_empty());

    let cuda = settings.engine_options(Some(EngineKind::Cuda), None).unwrap();
    let pool = [
        ("allocator".to_owned(), OptionValue::String("cuda_async".to_owned())),
        ("preallocate".to_owned(), OptionValue::Bool(false)),
    ];
    assert_eq!(cuda.values, [passed.to_vec(), pool.to_vec()].concat());
    assert_eq!(cuda.warnings, ["PJRT_ARENA_DEVICES=4 has no effect: a cuda engine shows the devices of the machine"]);

    let cuda = settings.engine_options(Some(EngineKind::Cuda), Some(0.25)).unwrap();
    let share = [
        ("allocator".to_owned(), OptionValue::String("bfc".to_owned())),
        ("preallocate".to_owned(), OptionValue::Bool(true)),
        ("memory_fraction".to_owned(), OptionValue::Float(0.25)),
    ];
    assert_eq!(cuda.values, [passed.to_vec(), share.to_vec()].concat());

    // ROCm's engine has no pools: a share, or all that it wants where there is no driver to take the rest by.
    let rocm = settings.engine_options(Some(EngineKind::Rocm), Some(0.25)).unwrap();
    assert_eq!(rocm.values, [passed.to_vec(), share.to_vec()].concat());
    let rocm = settings.engine_options(Some(EngineKind::Rocm), None).unwrap();
    let alone = [share[0].clone(), pool[1].clone()];
    assert_eq!(rocm.values, [passed.to_vec(), alone.to_vec()].concat());
    assert_eq!(rocm.warnings, ["PJRT_ARENA_DEVICES=4 has no effect: a rocm engine shows the devices of the machine"]);

    assert_eq!(settings.engine_options(None, None).unwrap().values, [passed.to_vec(), vec![count]].concat());
    assert!(read(&[], &[]).unwrap().engine_options(None, None).unwrap().values.is_empty());
}

#[test]
fn each_vendors_driver_is_a_file() {
    let drivers = |variables: &[(&str, &str)]| {
        let settings = read(variables, &[]).unwrap();
        (settings.cuda_driver.value.as_str().to_owned(), settings.hip_driver.value.as_str().to_owned())
    };
    let own = ("libcuda.so.1".to_owned(), "libamdhip64.so".to_owned());
    assert_eq!(drivers(&[]), own);
    let named = drivers(&[("PJRT_ARENA_HIP_DRIVER", "/opt/rocm/lib/libamdhip64.so.6")]);
    assert_eq!(named, (own.0.clone(), "/opt/rocm/lib/libamdhip64.so.6".to_owned()));
    assert_eq!(drivers(&[("PJRT_ARENA_CUDA_DRIVER", "libcuda.so")]), ("libcuda.so".to_owned(), own.1));
    for option in ["cuda_driver", "hip_driver"] {
        let text = message(&[], &[(option, " ")]);
        assert!(text.contains(option) && text.contains("a library's file name, or its path"), "{text}");
    }
}

#[test]
fn scratch_without_pools_has_a_share_of_the_limit() {
    let share = |text: &str, limit: Bytes| {
        let settings = read(&[("PJRT_ARENA_GPU_SCRATCH", text)], &[])?;
        GpuScratch::of(&settings.gpu_scratch, crate::units::Bytes::new(limit)).map(crate::units::Bytes::get)
    };
    const MIB: Bytes = 1 << 20;
    for (text, limit, bytes) in [
        ("50%", 64 * MIB, 32 * MIB),
        ("25%", 30 * MIB, 6 * MIB),
        ("3MiB", 64 * MIB, 2 * MIB),
        ("8GiB", 24 << 30, 8 << 30),
        ("99%", 1 << 40, (1 << 40) / 100 * 99 / (2 * MIB) * (2 * MIB)),
    ] {
        assert_eq!(share(text, limit), Ok(bytes), "{text} of {limit}");
    }
    for text in ["100%", "0%", "1MiB", "0.5", "half"] {
        let error = share(text, 64 * MIB).unwrap_err();
        assert!(error.message.contains(GPU_SCRATCH.allowed) && error.message.contains(text), "{error}");
    }
    for (text, limit) in [("63MiB", 64 * MIB), ("64MiB", 64 * MIB), ("10%", 16 * MIB), ("90%", 3 * MIB)] {
        let error = share(text, limit);
        if text == "63MiB" {
            assert_eq!(error, Ok(62 * MIB));
            continue;
        }
        let error = error.unwrap_err();
        assert!(
            error.message.starts_with("gpu_scratch=") && error.message.contains("PJRT_ARENA_GPU_SCRATCH"),
            "{error}"
        );
    }
}

#[test]
fn gpu_clients_that_break_the_order_of_the_queue_are_refused() {
    let settings = read(&[("PJRT_GPU_ENABLE_ASYNC_DISPATCH", "1")], &[]).unwrap();
    assert!(settings.engine_options(Some(EngineKind::Cpu), None).is_ok());
    let error = settings.engine_options(Some(EngineKind::Cuda), None).unwrap_err();
    assert!(error.message.starts_with("PJRT_GPU_ENABLE_ASYNC_DISPATCH=1 is not valid"), "{error}");
    for (value, allowed) in [(true, false), (false, true)] {
        let given = [("use_tfrt_gpu_client".to_owned(), OptionValue::Bool(value))];
        let settings = Settings::read(&environment(&[]), &given).unwrap();
        assert_eq!(settings.engine_options(Some(EngineKind::Cuda), None).is_ok(), allowed);
    }
    for (mode, allowed) in
        [("never_update", false), ("SKIP_TEMP", false), ("ALWAYS_UPDATE", true), ("always_update", true)]
    {
        let flags = format!("--xla_y=1 --xla_gpu_command_buffer_update_mode={mode}");
        let options = read(&[("XLA_FLAGS", &flags)], &[]).unwrap().engine_options(Some(EngineKind::Cuda), None);
        assert_eq!(options.is_ok(), allowed, "{mode}");
        if let Err(error) = options {
            assert!(error.message.contains(mode) && error.message.contains("ALWAYS_UPDATE"), "{error}");
        }
    }
}

#[test]
fn engines_are_names_or_paths() {
    let engine = |value| read(&[("PJRT_ARENA_ENGINE", value)], &[]).map(|settings| settings.engine.value);
    assert_eq!(engine("CUDA").unwrap(), EngineRequest::Installed(EngineKind::Cuda));
    assert_eq!(engine("./x").unwrap(), EngineRequest::Path(PathBuf::from("./x")));
    assert_eq!(engine("libpjrt_cpu.so").unwrap(), EngineRequest::Path(PathBuf::from("libpjrt_cpu.so")));
    assert_eq!(
        engine("cdua").unwrap_err().message,
        "PJRT_ARENA_ENGINE=cdua is not valid; allowed: cpu, cuda, rocm, or the path of a PJRT plugin library; did you mean \
         cuda?"
    );
    assert!(engine("GPU").unwrap_err().message.ends_with("; a GPU's engine is cuda (NVIDIA) or rocm (AMD)"));
    assert!(engine("tpu").unwrap_err().message.ends_with("is a strategy: PJRT_ARENA_STRATEGY=tpu"));
}

#[test]
fn a_path_need_not_be_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let path = OsStr::from_bytes(b"/lib/\xff.so");
    let variables: Environment = [("PJRT_ARENA_ENGINE", path)].into_iter().collect();
    assert_eq!(Settings::read(&variables, &[]).unwrap().engine.value, EngineRequest::Path(PathBuf::from(path)));
}

#[test]
fn an_engines_error_that_names_a_misspelt_option_is_explained() {
    let settings = read(&[], &[("limt", "8GiB")]).unwrap();
    let why = settings.unknown_option("Unexpected option name passed to PJRT_Client_Create: limt").unwrap();
    assert!(why.ends_with("did you mean limit?"), "{why}");
    assert_eq!(settings.unknown_option("limts and unlimted are other words"), None);
}
