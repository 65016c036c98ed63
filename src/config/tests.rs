//! Settings as a whole: precedence, contradictions, errors, and what is said about them.

mod engine;
mod report;
mod share;

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use proptest::prelude::{prop_assert, proptest};

use crate::{
    config::*,
    error::{Error, Result},
    memory::Strategy,
};

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().copied().collect()
}

fn options(options: &[(&str, &str)]) -> Vec<(String, OptionValue)> {
    options.iter().map(|(name, value)| ((*name).to_owned(), OptionValue::String((*value).to_owned()))).collect()
}

fn read(variables: &[(&str, &str)], given: &[(&str, &str)]) -> Result<Settings> {
    Settings::read(&environment(variables), &options(given))
}

fn message(variables: &[(&str, &str)], given: &[(&str, &str)]) -> String {
    let error = read(variables, given).unwrap_err();
    assert_eq!(error.code, crate::error::Code::InvalidArgument);
    error.message
}

const ALLOCATOR: &str = "XLA_PYTHON_CLIENT_ALLOCATOR";
const PREALLOCATE: &str = "XLA_PYTHON_CLIENT_PREALLOCATE";
const OURS: &str = "PJRT_ARENA_STRATEGY";

#[test]
fn nothing_said_means_the_defaults_of_the_table() {
    let settings = read(&[], &[]).unwrap();
    let shown: Vec<String> = settings.shown().into_iter().map(|(_, (value, _))| value).collect();
    let defaults: Vec<&str> = TABLE.iter().map(|row| row.default).collect();
    assert_eq!(shown, defaults);
    assert_eq!(settings.strategy.source, Source::Default);
    assert!(settings.warnings.is_empty() && settings.overridden.is_empty());
}

#[test]
fn a_variable_set_to_nothing_is_unset() {
    let settings = read(&[(OURS, ""), ("XLA_CLIENT_MEM_FRACTION", ""), ("PJRT_ARENA_LIMIT", "")], &[]).unwrap();
    assert_eq!(settings.strategy.source, Source::Default);
    assert_eq!(settings.limit.source, Source::Default);
}

#[test]
fn the_strategy_out_of_every_name() {
    use Source::{Default, Environment as Var, Option as Opt};
    use Strategy::{Growing, Platform, Preallocate, Tpu};
    type Pairs = &'static [(&'static str, &'static str)];
    let cases: &[(Pairs, Pairs, Strategy, Source)] = &[
        (&[(OURS, "growing")], &[], Growing, Var(OURS)),
        (&[(OURS, "PLATFORM")], &[], Platform, Var(OURS)),
        (&[(PREALLOCATE, "false")], &[], Growing, Var(PREALLOCATE)),
        (&[(PREALLOCATE, "0")], &[], Growing, Var(PREALLOCATE)),
        (&[(PREALLOCATE, "true")], &[], Preallocate, Var(PREALLOCATE)),
        (&[(ALLOCATOR, "default")], &[], Preallocate, Default),
        (&[(ALLOCATOR, "default"), (PREALLOCATE, "False")], &[], Growing, Var(PREALLOCATE)),
        (&[(ALLOCATOR, "bfc")], &[], Preallocate, Var(ALLOCATOR)),
        (&[(ALLOCATOR, "BFC"), (PREALLOCATE, "false")], &[], Growing, Var(PREALLOCATE)),
        (&[(ALLOCATOR, "platform")], &[], Platform, Var(ALLOCATOR)),
        (&[(ALLOCATOR, "address")], &[], Platform, Var(ALLOCATOR)),
        (&[(ALLOCATOR, "platform"), (PREALLOCATE, "false")], &[], Platform, Var(ALLOCATOR)),
        // Ours over XLA's, an option over both.
        (&[(OURS, "growing"), (ALLOCATOR, "platform")], &[], Growing, Var(OURS)),
        (&[(OURS, "growing"), (ALLOCATOR, "cuda_async")], &[], Growing, Var(OURS)),
        (&[(OURS, "growing")], &[("strategy", "platform")], Platform, Opt("strategy")),
        (&[(OURS, "growing")], &[("preallocate", "true")], Preallocate, Opt("preallocate")),
        (&[(PREALLOCATE, "false")], &[("allocator", "bfc")], Growing, Var(PREALLOCATE)),
        // JAX's GPU registration sends `allocator=default` always: no opinion.
        (&[(OURS, "growing")], &[("allocator", "default")], Growing, Var(OURS)),
        // tpu only by its own name; XLA's names that mean "all up front" agree with it.
        (&[(OURS, "TPU")], &[], Tpu, Var(OURS)),
        (&[(OURS, "tpu"), (ALLOCATOR, "bfc"), (PREALLOCATE, "true")], &[], Tpu, Var(OURS)),
        (&[(OURS, "tpu"), (PREALLOCATE, "false")], &[], Tpu, Var(OURS)),
        (&[(OURS, "tpu"), (ALLOCATOR, "platform")], &[], Tpu, Var(OURS)),
        (&[(OURS, "tpu")], &[("preallocate", "true")], Tpu, Var(OURS)),
        (&[(OURS, "tpu")], &[("preallocate", "false")], Growing, Opt("preallocate")),
        (&[(PREALLOCATE, "true")], &[("strategy", "tpu"), ("allocator", "bfc")], Tpu, Opt("strategy")),
        // A weaker name narrows what a stronger one left open.
        (&[(ALLOCATOR, "platform")], &[("preallocate", "false")], Platform, Var(ALLOCATOR)),
    ];
    for (variables, given, strategy, source) in cases {
        let settings = read(variables, given).unwrap();
        assert_eq!(settings.strategy, Setting { value: *strategy, source: *source }, "{variables:?} {given:?}");
    }
}

#[test]
fn what_was_overridden_is_told() {
    let settings =
        read(&[(OURS, "growing"), (ALLOCATOR, "platform"), ("PJRT_ARENA_DEVICES", "2")], &[("devices", "3")]);
    assert_eq!(settings.unwrap().overridden, ["XLA_PYTHON_CLIENT_ALLOCATOR=platform", "PJRT_ARENA_DEVICES=2"]);
    let settings = read(&[(OURS, "growing"), (PREALLOCATE, "false")], &[]).unwrap();
    assert!(settings.overridden.is_empty(), "they agree: {:?}", settings.overridden);
    let settings = read(&[(OURS, "tpu"), (ALLOCATOR, "bfc"), (PREALLOCATE, "true")], &[]).unwrap();
    assert!(settings.overridden.is_empty() && settings.warnings.is_empty(), "they agree: {settings:?}");
    let settings = read(&[(OURS, "tpu"), (ALLOCATOR, "platform"), (PREALLOCATE, "false")], &[]).unwrap();
    assert_eq!(settings.overridden, ["XLA_PYTHON_CLIENT_ALLOCATOR=platform", "XLA_PYTHON_CLIENT_PREALLOCATE=false"]);
}

#[test]
fn xlas_names_never_lead_to_tpu() {
    let allocators = ["", "default", "bfc", "platform", "address"];
    let preallocates = ["", "true", "false", "1", "0", "yes"];
    for allocator in allocators {
        for preallocate in preallocates {
            for option in [false, true] {
                let told = [("allocator", allocator), ("preallocate", preallocate)];
                let told: Vec<_> = told.into_iter().filter(|(_, value)| option && !value.is_empty()).collect();
                let variables = if option {
                    [(ALLOCATOR, ""), (PREALLOCATE, "")]
                } else {
                    [(ALLOCATOR, allocator), (PREALLOCATE, preallocate)]
                };
                match read(&variables, &told) {
                    Ok(settings) => {
                        assert_ne!(
                            settings.strategy.value,
                            Strategy::Tpu,
                            "{allocator} {preallocate} as options: {option}"
                        )
                    }
                    // As an option, only XLA's own two words are taken.
                    Err(error) => assert!(option && preallocate == "yes", "{error}"),
                }
            }
        }
    }
}

#[test]
fn compaction_follows_the_strategy_unless_told() {
    for (name, compact) in [("preallocate", false), ("growing", false), ("platform", false), ("tpu", true)] {
        let settings = read(&[(OURS, name)], &[]).unwrap();
        let moves = settings.compaction() == Compact::On;
        assert_eq!((moves, settings.compact.source), (compact, Source::Default), "{name}");
        assert!(settings.warnings.is_empty(), "{name}: {:?}", settings.warnings);
        let on = ["on", "True", "1"].map(|text| (text, Compact::On));
        let off = ["off", "FALSE", "0"].map(|text| (text, Compact::Off));
        for (text, told) in on.into_iter().chain(off).chain([("Always", Compact::Always)]) {
            let settings = read(&[(OURS, name), ("PJRT_ARENA_COMPACT", text)], &[]).unwrap();
            assert_eq!(settings.compact.value, told);
            assert_eq!(settings.compaction(), if name == "platform" { Compact::Off } else { told });
            let warnings: &[&str] = if told != Compact::Off && name == "platform" {
                &["has no effect: the strategy platform has no region in which buffers could be moved"]
            } else {
                &[]
            };
            let expected: Vec<String> = warnings.iter().map(|why| format!("PJRT_ARENA_COMPACT={text} {why}")).collect();
            assert_eq!(settings.warnings, expected, "{name} {text}");
        }
    }
    // The strategy may come from anywhere, and so may the word that decides.
    let settings = read(&[("PJRT_ARENA_COMPACT", "on")], &[("strategy", "tpu"), ("compact", "off")]).unwrap();
    assert_eq!(settings.compact.to_string(), "off (client option compact)");
    assert_eq!(settings.overridden, ["PJRT_ARENA_COMPACT=on"]);
    assert_eq!(settings.compaction(), Compact::Off);
    assert_eq!(
        message(&[("PJRT_ARENA_COMPACT", "never")], &[]),
        "PJRT_ARENA_COMPACT=never is not valid; allowed: on, off, always"
    );
    let text = message(&[(OURS, "fast"), ("PJRT_ARENA_COMPACT", "on"), ("PJRT_ARENA_TPU_TILES", "on")], &[]);
    assert!(text.starts_with("PJRT_ARENA_STRATEGY=fast") && text.matches("not valid").count() == 1, "{text}");
}

#[test]
fn tiles_are_counted_for_tpu_only() {
    for (name, counts) in [("preallocate", false), ("growing", false), ("platform", false), ("tpu", true)] {
        assert!(!read(&[(OURS, name)], &[]).unwrap().counts_tiles(), "{name}: off unless told");
        let settings = read(&[(OURS, name)], &[("tpu_tiles", "true")]).unwrap();
        assert_eq!(settings.counts_tiles(), counts, "{name}");
        let warning = format!(
            "client option tpu_tiles=true has no effect: only the strategy tpu counts tiles, and this is {name}"
        );
        assert_eq!(settings.warnings, if counts { vec![] } else { vec![warning] });
        assert!(read(&[(OURS, name), ("PJRT_ARENA_TPU_TILES", "off")], &[]).unwrap().warnings.is_empty(), "{name}");
    }
    let typed = [("tpu_tiles".to_owned(), OptionValue::Bool(true)), ("compact".to_owned(), OptionValue::Bool(false))];
    let settings = Settings::read(&environment(&[(OURS, "tpu")]), &typed).unwrap();
    assert!(settings.counts_tiles() && settings.compaction() == Compact::Off);
    assert!(message(&[("PJRT_ARENA_TPU_TILES", "8x128")], &[]).ends_with("allowed: on, off"));
    // The doctor shows both, and their errors.
    let table = doctor(&environment(&[("PJRT_ARENA_TPU_TILES", "maybe"), ("PJRT_ARENA_COMPACT", "on")]), &[], &[]);
    assert!(table.contains("PJRT_ARENA_TPU_TILES=maybe is not valid"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("compact       on               PJRT_ARENA_COMPACT")), "{table}");
}

#[test]
fn strategies_that_are_not_valid() {
    assert_eq!(
        message(&[(OURS, "platfrom")], &[]),
        "PJRT_ARENA_STRATEGY=platfrom is not valid; allowed: preallocate, growing, platform, tpu; did you mean platform?"
    );
    assert!(message(&[(OURS, "fast")], &[]).ends_with("allowed: preallocate, growing, platform, tpu"));
    let text = message(&[(ALLOCATOR, "cuda_async")], &[]);
    assert!(text.starts_with("XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async is not valid; allowed: default, bfc, platform"));
    assert!(text.contains("PJRT_ARENA_STRATEGY") && text.contains("growing"), "{text}");
    assert!(message(&[(ALLOCATOR, "vmm")], &[]).contains("platform makes one device allocation per buffer"));
    assert!(
        message(&[(ALLOCATOR, "jemalloc"), (OURS, "growing")], &[]).contains("jemalloc"),
        "even where ours decides"
    );
    assert!(message(&[], &[("preallocate", "maybe")]).contains("client option preallocate=maybe"));
}

#[test]
fn contradictions_within_a_level() {
    for (one, other) in [
        (("strategy", "growing"), ("allocator", "platform")),
        (("strategy", "growing"), ("preallocate", "true")),
        (("strategy", "platform"), ("allocator", "bfc")),
        (("strategy", "tpu"), ("allocator", "platform")),
        (("strategy", "tpu"), ("preallocate", "false")),
        (("compact", "on"), ("compact", "off")),
        (("strategy", "growing"), ("strategy", "platform")),
        (("limit", "50%"), ("memory_fraction", "0.75")),
        (("devices", "2"), ("cpu_device_count", "4")),
    ] {
        assert_eq!(
            message(&[], &[one, other]),
            format!(
                "client option {}={} contradicts client option {}={}; give only one of them",
                one.0, one.1, other.0, other.1
            )
        );
    }
    assert!(read(&[], &[("limit", "50%"), ("memory_fraction", "0.5")]).is_ok(), "they agree");
    assert!(read(&[], &[("strategy", "platform"), ("preallocate", "false")]).is_ok(), "XLA ignores the second");
}

#[test]
fn preallocation_without_effect_is_a_warning() {
    let settings = read(&[(ALLOCATOR, "platform"), (PREALLOCATE, "true")], &[]).unwrap();
    assert_eq!(settings.strategy.value, Strategy::Platform);
    assert_eq!(
        settings.warnings,
        ["XLA_PYTHON_CLIENT_PREALLOCATE=true has no effect: the strategy platform preallocates nothing"]
    );
    let settings = read(&[(PREALLOCATE, "off")], &[]).unwrap();
    assert_eq!(settings.strategy.value, Strategy::Preallocate, "XLA's meaning");
    assert!(settings.warnings[0].starts_with("XLA_PYTHON_CLIENT_PREALLOCATE=off counts as true"));
}

#[test]
fn fractions() {
    for name in ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"] {
        let settings = read(&[(name, " .4 ")], &[]).unwrap();
        assert_eq!(settings.limit.value, Limit::Fraction(Fraction::new(0.4).unwrap()));
        assert_eq!(settings.limit.source.name(), name);
        let refused = |value| format!("{name}={value} is not valid; allowed: a number above 0, at most 1");
        for value in ["0", "abc", "-0.1", "nan", "inf", "40%"] {
            assert_eq!(message(&[(name, value)], &[]), refused(value));
        }
        // To XLA it means unified memory.
        for value in ["1.5", "4.0", "100"] {
            let spill = "; memory beyond the device is PJRT_ARENA_SPILL";
            assert_eq!(message(&[(name, value)], &[]), refused(value) + spill);
            let settings = read(&[("PJRT_ARENA_LIMIT", "8GiB"), (name, value)], &[]).unwrap();
            assert_eq!(settings.limit.to_string(), "8.00GiB (PJRT_ARENA_LIMIT)");
            assert_eq!(settings.overridden, [format!("{name}={value}")]);
        }
    }
    let both = message(&[("XLA_CLIENT_MEM_FRACTION", "0.5"), ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")], &[]);
    assert!(both.starts_with("XLA_CLIENT_MEM_FRACTION=0.5 and XLA_PYTHON_CLIENT_MEM_FRACTION=0.5 are set together"));
    let typed = [("memory_fraction".to_owned(), OptionValue::Float(0.4))];
    let settings = Settings::read(&environment(&[("PJRT_ARENA_LIMIT", "8GiB")]), &typed).unwrap();
    assert_eq!(settings.limit.to_string(), "40% (client option memory_fraction)");
    assert_eq!(settings.overridden, ["PJRT_ARENA_LIMIT=8GiB"]);
}

#[test]
fn devices_come_from_four_names() {
    let flags = ("XLA_FLAGS", "--xla_force_host_platform_device_count=8");
    let devices =
        |variables: &[(&str, &str)], given: &[(&str, &str)]| read(variables, given).unwrap().devices.to_string();
    assert_eq!(devices(&[flags], &[]), "8 (XLA_FLAGS --xla_force_host_platform_device_count)");
    assert_eq!(devices(&[flags, ("PJRT_ARENA_DEVICES", "4")], &[]), "4 (PJRT_ARENA_DEVICES)");
    assert_eq!(devices(&[flags], &[("cpu_device_count", "2")]), "2 (client option cpu_device_count)");
    for value in ["0", "-1", "4097", "two", "1.5"] {
        assert_eq!(
            message(&[("PJRT_ARENA_DEVICES", value)], &[]),
            format!("PJRT_ARENA_DEVICES={value} is not valid; allowed: a whole number from 1 to 4096")
        );
    }
    let text = message(&[("XLA_FLAGS", "--xla_force_host_platform_device_count=0")], &[]);
    assert!(text.starts_with("XLA_FLAGS --xla_force_host_platform_device_count=0 is not valid"), "{text}");
}

#[test]
fn log_filters() {
    for filter in ["info", "OFF", "warn,pjrt_arena::memory=debug", "pjrt_arena"] {
        assert_eq!(read(&[("PJRT_ARENA_LOG", filter)], &[]).unwrap().log.value.as_str(), filter);
    }
    for filter in ["loud", "jax=debug", "pjrt_arena=loud", "warn,", "info/x"] {
        let text = message(&[("PJRT_ARENA_LOG", filter)], &[]);
        assert!(text.starts_with(&format!("PJRT_ARENA_LOG={filter} is not valid; allowed: off, error")), "{text}");
    }
    assert!(message(&[("PJRT_ARENA_LOG", "wran")], &[]).ends_with("did you mean warn?"));
}

#[test]
fn rewriting_is_on_or_off() {
    assert_eq!(read(&[("PJRT_ARENA_REWRITE", "off")], &[]).unwrap().rewrite.value, Rewrite::Off);
    let typed = [("rewrite".to_owned(), OptionValue::Bool(false))];
    assert_eq!(Settings::read(&environment(&[]), &typed).unwrap().rewrite.value, Rewrite::Off);
    assert!(message(&[("PJRT_ARENA_REWRITE", "never")], &[]).ends_with("allowed: on, off"));
    let scratch = |variables: &[(&str, &str)]| read(variables, &[]).unwrap().scratch.value;
    assert_eq!(scratch(&[(OURS, "growing")]), Scratch::Warm);
    assert_eq!(scratch(&[(OURS, "platform")]), Scratch::System);
    assert_eq!(scratch(&[(OURS, "platform"), ("PJRT_ARENA_SCRATCH", "Warm")]), Scratch::Warm);
    assert!(message(&[("PJRT_ARENA_SCRATCH", "off")], &[]).ends_with("allowed: warm, system"));
}

#[test]
fn huge_pages_are_asked_for_where_the_user_says_so() {
    let settings = read(&[("PJRT_ARENA_HUGE_PAGES", "on")], &[]).unwrap();
    assert_eq!(settings.huge_pages.value, HugePages::On);
    assert!(settings.summary(None).contains("huge_pages=on (PJRT_ARENA_HUGE_PAGES)"));
    let settings = read(&[("PJRT_ARENA_HUGE_PAGES", "on")], &[("huge_pages", "off")]).unwrap();
    assert_eq!((settings.huge_pages.value, settings.overridden.len()), (HugePages::Off, 1));
    let text = message(&[("PJRT_ARENA_HUGE_PAGES", "2MiB")], &[]);
    assert!(text.contains("PJRT_ARENA_HUGE_PAGES=2MiB") && text.ends_with("allowed: on, off"), "{text}");
}

#[test]
fn arrays_are_used_in_place_except_on_what_stands_for_a_tpu() {
    for (name, default) in
        [("preallocate", ZeroCopy::On), ("growing", ZeroCopy::On), ("platform", ZeroCopy::On), ("tpu", ZeroCopy::Off)]
    {
        let settings = read(&[(OURS, name)], &[]).unwrap();
        assert_eq!(settings.zero_copy, Setting { value: default, source: Source::Default }, "{name}");
        for (text, told) in [("on", ZeroCopy::On), ("False", ZeroCopy::Off)] {
            let settings = read(&[(OURS, name), ("PJRT_ARENA_ZERO_COPY", text)], &[]).unwrap();
            assert_eq!(settings.zero_copy.value, told, "{name} {text}");
            assert!(settings.warnings.is_empty(), "{name} {text}: {:?}", settings.warnings);
        }
    }
    let typed = [("zero_copy".to_owned(), OptionValue::Bool(true))];
    let settings = Settings::read(&environment(&[(OURS, "tpu"), ("PJRT_ARENA_ZERO_COPY", "off")]), &typed).unwrap();
    assert_eq!(settings.zero_copy.to_string(), "on (client option zero_copy)");
    assert_eq!(settings.overridden, ["PJRT_ARENA_ZERO_COPY=off"]);
    assert!(message(&[("PJRT_ARENA_ZERO_COPY", "64KiB")], &[]).ends_with("allowed: on, off"));
}

#[test]
fn every_wrong_setting_is_named_at_once() {
    let text = message(&[(OURS, "x"), ("PJRT_ARENA_LIMIT", "y"), ("PJRT_ARENA_DEVICES", "z")], &[]);
    for part in ["PJRT_ARENA_STRATEGY=x", "PJRT_ARENA_LIMIT=y", "PJRT_ARENA_DEVICES=z"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn unknown_names_are_warned_of() {
    let variables = [("PJRT_ARENA_LIMT", "8GiB"), ("PJRT_ARENA_LIBRARY_PATH", "/x"), ("PJRT_ARENA_", "1")];
    let settings = read(&variables, &[("stratgey", "growing"), ("num_nodes", "2")]).unwrap();
    assert_eq!(
        settings.warnings,
        [
            "the environment variable PJRT_ARENA_ means nothing to pjrt-arena",
            "the environment variable PJRT_ARENA_LIMT means nothing to pjrt-arena; did you mean PJRT_ARENA_LIMIT?",
            "the client option stratgey=growing means nothing to pjrt-arena and is passed on to the engine; did you mean \
             strategy?",
        ]
    );
}

#[test]
fn what_belongs_to_a_setting_that_is_off_is_warned_of() {
    let warnings = |given: &[(&str, &str)]| read(given, &[]).unwrap().warnings;
    for (name, value, unset, of) in [
        ("PREFETCH", "on", "off", "spill"),
        ("SLEEP_AFTER", "5", "off", "spill"),
        ("SPILL_LIMIT", "1GiB", "25%", "spill"),
        ("SHARE_MIN", "1GiB", "0", "share"),
        ("SHARE_WEIGHT", "7", "100", "share"),
    ] {
        let name = format!("PJRT_ARENA_{name}");
        let told = [format!("{name}={value} has no effect: it means something with {of} only, which is off")];
        assert_eq!(warnings(&[(&name, value)]), told);
        assert_eq!(warnings(&[(&name, unset)]), [""; 0]);
        let with = [("PJRT_ARENA_SPILL", "host"), ("PJRT_ARENA_SHARE", "here"), (&name, value)];
        assert_eq!(warnings(&with), [""; 0]);
    }
    // What is wrong with the other one is an error of its own.
    assert!(
        message(&[("PJRT_ARENA_SPILL", "nowhere"), ("PJRT_ARENA_PREFETCH", "on")], &[]).starts_with("PJRT_ARENA_SPILL")
    );
}

#[test]
fn the_table_shows_valid_and_invalid_settings_in_100_columns() {
    let variables = [
        (OURS, "fast"),
        ("PJRT_ARENA_ENGINE", "/a/very/long/path/that/no/column/of/the/table/could/ever/hold/in/one/line/engine.so"),
        ("XLA_FLAGS", "--xla_force_host_platform_device_count=8"),
        ("PJRT_ARENA_LIMT", "1"),
    ];
    let findings = [
        Finding { row: &LIMIT, what: Found::Led(Ok("6.4 GiB per device".to_owned())) },
        Finding { row: &ENGINE, what: Found::Led(Err(Error::not_found("no such file"))) },
        Finding { row: &ENGINE, what: Found::Offer("NVIDIA driver for CUDA 13.0: 1 GPU".to_owned()) },
    ];
    let text = doctor(&environment(&variables), &options(&[("limit", "40%")]), &findings);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    for row in TABLE {
        assert!(text.lines().any(|line| line.starts_with(row.name)), "{}\n{text}", row.name);
    }
    let flat: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "ERROR: PJRT_ARENA_STRATEGY=fast is not valid; allowed: preallocate, growing, platform, tpu",
        "40% client option limit",
        "= 6.4 GiB per device Memory of one device.",
        "ERROR: no such file here: NVIDIA driver for CUDA 13.0: 1 GPU XLA's own plugin",
        "warning: the environment variable PJRT_ARENA_LIMT means nothing",
        "set by: client option rewrite; PJRT_ARENA_REWRITE",
        "value: /a/very/long/path",
    ] {
        assert!(flat.contains(part), "{part}\n{text}");
    }
}

#[test]
fn a_history_is_a_count_and_a_report_a_file_of_a_known_kind() {
    let history = |text: &str| read(&[("PJRT_ARENA_HISTORY", text)], &[]).map(|settings| settings.history.value);
    assert_eq!((history("0"), history("1000000")), (Ok(0), Ok(1_000_000)));
    for text in ["1000001", "-1", "on", "1e3"] {
        let message = history(text).unwrap_err().message;
        assert!(
            message.contains(&format!("PJRT_ARENA_HISTORY={text}")) && message.contains("0 to 1000000"),
            "{message}"
        );
    }
    let report = |text: &str| read(&[("PJRT_ARENA_OOM_REPORT", text)], &[]).map(|settings| settings.oom_report.value);
    assert_eq!(report("off").unwrap().path(), None);
    for path in ["/x.html", "./x.html", "x.html"] {
        assert_eq!(report(path).unwrap().path(), Some(std::path::Path::new(path)));
    }
    let message = report("/a b/x.html").unwrap_err().message;
    assert!(message.contains("PJRT_ARENA_OOM_REPORT=/a b/x.html") && message.contains("/a b is none"), "{message}");
    let message = report("/a/x.txt").unwrap_err().message;
    assert!(message.contains("PJRT_ARENA_OOM_REPORT=/a/x.txt") && message.contains(".pickle"), "{message}");
}

#[test]
fn every_row_of_the_table_is_explained() {
    for row in TABLE {
        assert!(row.doc.ends_with('.') && !row.allowed.is_empty());
        assert_eq!(row.names.first(), Some(&Source::Option(row.name)));
        let level =
            |source: &Source| precedence::Given { source: *source, raw: OsString::new(), allowed: row.allowed }.level();
        assert!(row.names.is_sorted_by_key(level), "{}: strongest first", row.name);
    }
}

proptest! {
    #[test]
    fn no_value_makes_reading_panic(index in 0usize..64, text in "\\PC{0,24}", other in "[-a-z0-9_%=.'\" ]{0,24}") {
        let names: Vec<Source> = TABLE.iter().flat_map(|row| row.names).copied().collect();
        let source = names[index % names.len()];
        for text in [&text, &other] {
            let (variables, given) = match source {
                Source::Option(name) => (environment(&[]), options(&[(name, text)])),
                Source::Environment(name) => (environment(&[(name, text)]), Vec::new()),
                _ => (environment(&[("XLA_FLAGS", text)]), Vec::new()),
            };
            let shown = doctor(&variables, &given, &[]);
            match Settings::read(&variables, &given) {
                Ok(settings) => prop_assert!(!settings.summary(None).is_empty()),
                Err(error) => {
                    prop_assert!(error.message.contains(source.name()) || error.message.contains("XLA_FLAGS"));
                    prop_assert!(shown.contains("ERROR"));
                }
            }
        }
    }
}
