//! Engines that are missing, foreign, too old, ourselves, or newer.

use std::{env, fs, path::Path, process::Command};

use plugin_tests::{
    Client, Code, Plugin, Value, call, in_child, plugin,
    plugin::{engine_path, library_path},
};

use crate::table;

/// The sentence that a framework shows when the library is used with the engine named in the environment.
fn sentence() -> String {
    let plugin: &'static Plugin = Box::leak(Box::new(Plugin::load(&library_path()).expect("the library itself loads")));
    let outcome =
        call!(plugin, PJRT_Plugin_Initialize {}).map(drop).and_then(|()| Client::create_on(plugin, 1, &[]).map(drop));
    outcome.expect_err("no client without an engine").message
}

fn names(sentence: &str, parts: &[&str]) {
    for part in parts {
        assert!(sentence.contains(part), "{part:?} is missing in: {sentence}");
    }
}

#[test]
fn c33_arena_a_missing_engine_is_named() {
    in_child!(&[("PJRT_ARENA_ENGINE", "/no/such/engine.so")], || names(
        &sentence(),
        &["/no/such/engine.so", "PJRT_ARENA_ENGINE"]
    ));
}

#[test]
fn c33_arena_a_library_that_is_no_engine_is_named() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let foreign = maps.split_whitespace().find(|word| word.contains("/libc.so") || word.contains("/libc-")).unwrap();
    in_child!(&[("PJRT_ARENA_ENGINE", foreign)], || {
        let path = env::var("PJRT_ARENA_ENGINE").unwrap();
        names(&sentence(), &[&path, "GetPjrtApi"]);
    });
}

#[test]
fn c33_arena_a_file_that_is_no_library_is_named() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    in_child!(&[("PJRT_ARENA_ENGINE", file)], || names(
        &sentence(),
        &[concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]
    ));
}

#[test]
fn c33_arena_the_library_refuses_to_be_its_own_engine() {
    let library = library_path();
    in_child!(&[("PJRT_ARENA_ENGINE", library.to_str().unwrap())], || {
        names(&sentence(), &[library_path().file_name().unwrap().to_str().unwrap()]);
    });
}

/// A library whose table says version `major`.`minor` and holds nothing else.
fn make_engine(name: &str, major: i32, minor: i32) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (folder.join(format!("{name}.c")), folder.join(format!("lib{name}.so")));
    let code = format!(
        "#include <stddef.h>\n\
         static struct {{ size_t size; void* extensions; size_t version_size; void* more; int major, minor; void* slots[160]; }}\n\
         table = {{ 984, 0, 24, 0, {major}, {minor}, {{0}} }};\n\
         const void* GetPjrtApi(void) {{ return &table; }}\n"
    );
    fs::write(&source, code).unwrap();
    let made =
        Command::new("gcc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().expect("gcc runs");
    assert!(made.success());
    library.to_str().unwrap().into()
}

#[test]
fn c33_arena_an_engine_of_another_major_version_is_refused() {
    let library = make_engine("other_major", 7, 81);
    in_child!(&[("PJRT_ARENA_ENGINE", &library)], || names(&sentence(), &["7.81", "other_major"]));
}

#[test]
fn c33_arena_an_engine_of_an_ancient_minor_version_is_refused() {
    let library = make_engine("old_minor", 0, 12);
    in_child!(&[("PJRT_ARENA_ENGINE", &library)], || names(&sentence(), &["0.12", "old_minor"]));
}

#[test]
fn c33_arena_an_engine_for_another_processor_is_said_to_be() {
    let library = make_engine("another_processor", 0, 81);
    let mut bytes = fs::read(&library).unwrap();
    let machine: u16 = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    fs::write(&library, bytes).unwrap();
    in_child!(&[("PJRT_ARENA_ENGINE", &library)], || {
        let name = if cfg!(target_arch = "x86_64") { "aarch64" } else { "x86_64" };
        names(&sentence(), &["another_processor", &format!("it is built for {name}"), std::env::consts::ARCH]);
    });
}

#[test]
fn c33_arena_the_engine_is_found_by_path() {
    in_child!(&[("PJRT_ARENA_ENGINE", engine_path().to_str().unwrap())], || {
        assert_eq!(plugin().path(), library_path());
        assert_eq!(Client::one().platform_name(), "cpu");
    });
}

/// Names an `xla_cuda_plugin.so`; `make test-cuda-engine` fetches one. A newer engine is checked as far as a machine
/// without a GPU allows, which is to its refusal of a client.
const CUDA: &str = "PJRT_ARENA_TEST_CUDA_ENGINE";

fn cuda_engine() -> Option<String> {
    let engine = env::var(CUDA).ok();
    if engine.is_none() {
        eprintln!("not run: {CUDA} does not name a CUDA engine");
    }
    engine
}

/// In a child: the library under test, and its engine on its own.
fn both() -> (&'static Plugin, &'static Plugin) {
    let engine = env::var("PJRT_ARENA_ENGINE").expect("the child's engine");
    (plugin(), Box::leak(Box::new(Plugin::load(Path::new(&engine)).expect("the engine loads"))))
}

#[test]
fn c33_arena_a_cuda_engines_table_is_ours_as_far_as_we_know_it() {
    let Some(engine) = cuda_engine() else { return };
    in_child!(&[("PJRT_ARENA_ENGINE", &engine)], || {
        let (ours, bare) = both();
        assert!(bare.version().1 >= 112, "the engine of jax 0.10.2 has 112, this one {}", bare.version().1);
        table::version_and_size_are_the_engines(ours, bare);
        table::every_function_is_there(ours);
        table::nothing_follows_the_table(ours);
        table::extensions_are_known_ones_of_the_engine(ours, bare);
        table::extensions_are_copies(ours, bare);
        assert_eq!(ours.attributes(), bare.attributes());
    });
}

#[test]
fn c33_arena_a_cuda_engine_refuses_in_its_own_words() {
    let Some(engine) = cuda_engine() else { return };
    in_child!(&[("PJRT_ARENA_ENGINE", &engine)], || {
        let (ours, bare) = both();
        let unknown = [("bogus", Value::from("1"))];
        let refusal = |plugin| Client::create_with(plugin, &unknown).map(drop).unwrap_err();
        refusal(bare).expect(Code::INVALID_ARGUMENT, &["bogus"]);
        assert_eq!(refusal(ours), refusal(bare));
        // Each with the options that this library hands on: they are read before GPUs are looked for, so one that the
        // engine does not know would be named here instead.
        let options = [("allocator", Value::from("cuda_async")), ("preallocate", Value::Bool(false))];
        match Client::create_with(bare, &options) {
            Ok(_) => assert_eq!(Client::create_with(ours, &[]).expect("a client").platform_name(), "cuda"),
            Err(reason) => {
                assert!(!reason.message.contains("option"), "{reason}");
                for _ in 0..2 {
                    assert_eq!(Client::create_with(ours, &[]).map(drop), Err(reason.clone()));
                }
            }
        }
        // The process goes on, and so does the engine.
        assert_eq!(ours.attributes(), bare.attributes());
    });
}
