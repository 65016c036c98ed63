//! Settings that cannot be: an error at client creation that names the variable, its value and what is allowed.

use plugin_tests::{Client, Code, Program, Value, client::refused, in_child, plugin};

use crate::{DIMS, limited, ramp};

/// Runs in a child with `env`: creating a client fails with all of `parts` in the message, and the process goes on.
macro_rules! refuses {
    ($name:ident, $env:expr, $parts:expr) => {
        #[test]
        fn $name() {
            in_child!($env, || {
                let failure = refused(&[]);
                failure.expect(Code::INVALID_ARGUMENT, $parts);
                // Asking again gives the same answer: nothing was half made.
                assert_eq!(refused(&[]), failure);
            });
        }
    };
}

refuses!(
    c33_arena_strategy_unknown,
    &[("PJRT_ARENA_STRATEGY", "bogus")],
    &["PJRT_ARENA_STRATEGY", "bogus", "preallocate", "growing", "platform", "tpu"]
);
refuses!(c33_arena_fraction_zero, &[("XLA_PYTHON_CLIENT_MEM_FRACTION", "0")], &["XLA_PYTHON_CLIENT_MEM_FRACTION", "0"]);
refuses!(
    c33_arena_fraction_beyond_one,
    &[("XLA_PYTHON_CLIENT_MEM_FRACTION", "1.5")],
    &["XLA_PYTHON_CLIENT_MEM_FRACTION", "1.5"]
);
refuses!(c33_arena_fraction_no_number, &[("XLA_CLIENT_MEM_FRACTION", "abc")], &["XLA_CLIENT_MEM_FRACTION", "abc"]);
refuses!(
    c33_arena_fraction_twice,
    &[("XLA_CLIENT_MEM_FRACTION", "0.5"), ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")],
    &["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"]
);
refuses!(c33_arena_limit_above_the_machine, &[("PJRT_ARENA_LIMIT", "900TiB")], &["PJRT_ARENA_LIMIT", "900"]);
refuses!(c33_arena_limit_no_size, &[("PJRT_ARENA_LIMIT", "much")], &["PJRT_ARENA_LIMIT", "much"]);
refuses!(
    c33_arena_allocator_unknown,
    &[("XLA_PYTHON_CLIENT_ALLOCATOR", "bogus")],
    &["XLA_PYTHON_CLIENT_ALLOCATOR", "bogus"]
);
refuses!(c33_arena_devices_no_number, &[("PJRT_ARENA_DEVICES", "many")], &["PJRT_ARENA_DEVICES", "many"]);
refuses!(
    c33_arena_compact_neither_on_nor_off,
    &[("PJRT_ARENA_COMPACT", "maybe")],
    &["PJRT_ARENA_COMPACT", "on, off, always"]
);
refuses!(
    c33_arena_zero_copy_neither_on_nor_off,
    &[("PJRT_ARENA_ZERO_COPY", "64KiB")],
    &["PJRT_ARENA_ZERO_COPY", "64KiB", "on, off"]
);
refuses!(
    c33_arena_tpu_tiles_neither_on_nor_off,
    &[("PJRT_ARENA_TPU_TILES", "8x128")],
    &["PJRT_ARENA_TPU_TILES", "8x128", "on, off"]
);

refuses!(
    c33_arena_huge_pages_neither_on_nor_off,
    &[("PJRT_ARENA_HUGE_PAGES", "1GiB")],
    &["PJRT_ARENA_HUGE_PAGES", "1GiB", "on, off"]
);

#[test]
fn c33_arena_tpu_by_its_own_name_only() {
    // XLA's word for growing is overridden by ours.
    let variables =
        [("PJRT_ARENA_STRATEGY", "tpu"), ("PJRT_ARENA_LIMIT", "64MiB"), ("XLA_PYTHON_CLIENT_PREALLOCATE", "false")];
    in_child!(&variables, || {
        let client = Client::one();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        assert_eq!(client.stats().unwrap().pool_bytes, Some(64 << 20), "all of it up front");
        assert_eq!(strategies(), ["tpu"]);
        let add_one = client.compile(&Program::add_one()).unwrap();
        assert_eq!(add_one.run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
    });
    refused(&[("strategy", "tpu".into()), ("preallocate", false.into())])
        .expect(Code::INVALID_ARGUMENT, &["strategy=tpu", "preallocate=false"]);
}

#[test]
fn c33_arena_xlas_variables_never_mean_tpu() {
    in_child!(&[("XLA_PYTHON_CLIENT_ALLOCATOR", "bfc"), ("XLA_PYTHON_CLIENT_PREALLOCATE", "true")], || {
        let _client = Client::create(1, &[("limit", Value::from("64MiB"))]).unwrap();
        assert_eq!(strategies(), ["preallocate"]);
    });
}

/// The strategy of each device that there is.
fn strategies() -> Vec<String> {
    let counters: serde_json::Value = serde_json::from_str(&plugin().text("pjrt_arena_counters").unwrap()).unwrap();
    let devices = counters["devices"].as_array().unwrap();
    devices.iter().map(|device| device["strategy"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn c33_arena_variables_choose_strategy_and_limit() {
    in_child!(&[("PJRT_ARENA_STRATEGY", "growing"), ("PJRT_ARENA_LIMIT", "64MiB")], || {
        let client = Client::one();
        let _buffer = client.put(&ramp(0.0), &DIMS).unwrap();
        let stats = client.stats().unwrap();
        assert_eq!(stats.bytes_limit, Some(64 << 20));
        assert!(stats.pool_bytes.unwrap() < 64 << 20);
        // An option of the client is nearer than the environment.
        let other = limited("preallocate", 32 << 20);
        let _buffer = other.put(&ramp(0.0), &DIMS).unwrap();
        assert_eq!(other.stats().unwrap().pool_bytes, Some(32 << 20));
    });
}

#[test]
fn c33_arena_xlas_variables_keep_their_meaning() {
    in_child!(&[("XLA_PYTHON_CLIENT_PREALLOCATE", "false"), ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.25")], || {
        let client = Client::one();
        let _buffer = client.put(&ramp(0.0), &DIMS).unwrap();
        let stats = client.stats().unwrap();
        let quarter = stats.bytes_limit.unwrap();
        assert!(stats.pool_bytes.unwrap() < quarter, "{stats:?}");
        let half = Client::create(1, &[("memory_fraction", Value::from("0.5"))])
            .unwrap()
            .stats()
            .unwrap()
            .bytes_limit
            .unwrap();
        // Limits are rounded down to whole granules of at most 4 MiB.
        assert!((half - 2 * quarter).abs() <= 8 << 20, "{half} is twice {quarter}");
    });
}

#[test]
fn c33_arena_bad_options_are_refused_by_name() {
    refused(&[("strategy", "bogus".into())]).expect(Code::INVALID_ARGUMENT, &["strategy", "bogus", "preallocate"]);
    refused(&[("limit", "much".into())]).expect(Code::INVALID_ARGUMENT, &["limit", "much"]);
    refused(&[("memory_fraction", "1.5".into())]).expect(Code::INVALID_ARGUMENT, &["memory_fraction", "1.5"]);
}

#[test]
fn c33_arena_a_refused_client_harms_no_other() {
    refused(&[("strategy", "bogus".into())]);
    let client = Client::one();
    let x = client.put(&ramp(0.0), &DIMS).unwrap();
    let add_one = client.compile(&Program::add_one()).unwrap();
    assert_eq!(add_one.run1(&[&x]).unwrap().read::<f32>().unwrap(), ramp(1.0));
}

#[test]
fn c33_arena_the_engines_false_alarms_stay_inside() {
    // Newer JAX sends a fusion type that this engine logs as an error and ignores.
    let noise = in_child!(&[], || {
        let client = Client::one();
        let x = client.put(&ramp(0.0), &DIMS).unwrap();
        client.compile(&Program::add_one()).unwrap().run1(&[&x]).unwrap().ready().wait().unwrap();
    });
    if let Some(noise) = noise {
        assert!(!noise.contains("Unsupported fusion type"), "{noise}");
    }
}
