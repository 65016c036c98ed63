//! Generates the Rust view of the C ABIs, PJRT's and XLA FFI's, which `src/sys.rs` includes, from `pjrt_c_api/`.
//!
//! bindgen loads libclang at run time. It is looked for in `LIBCLANG_PATH`, then where clang-sys looks (`llvm-config`,
//! the system's library folders), then in a `.venv` beside `pjrt_c_api` that has PyPI's `libclang` wheel.
//!
//! Test crates further down that speak the C ABIs themselves run it too.
//!
//! Beside bindgen's types the generated file holds, for every struct with sizes in the header, an implementation of
//! `CStruct`, so that generic code can fill and check `struct_size`.

use std::{
    collections::BTreeSet,
    env, fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The C enums. They become newtypes over the C integer: a plugin may send a value that this header does not know yet,
/// which would be undefined behaviour in a Rust enum.
const ENUMS: &str = "PJRT_(Extension_Type|Error_Code|NamedValue_Type|ProcessState|Buffer_Type|HostBufferSemantics|\
                     Buffer_MemoryLayout_Type|FFI_Handler_TraitsBits)|\
                     XLA_FFI_(Extension_Type|Error_Code|DataType|ExecutionStage|ArgType|RetType|AttrType|\
                     Handler_TraitsBits)";

/// The first includes all of PJRT's, the second stands for itself.
const HEADERS: [&str; 2] = ["pjrt_c_api/pjrt_c_api_extensions.h", "pjrt_c_api/xla_ffi.h"];

const INSTALL: &str = "libclang was not found: run `pip install libclang` and set LIBCLANG_PATH to the wheel's \
                       clang/native folder, or run `apt install libclang-dev`";

fn main() {
    if let Err(sentence) = generate() {
        println!("cargo::error={sentence}"); // cargo shows the sentence and fails; an exit code would add a page of text
    }
}

fn generate() -> Result<(), String> {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?);
    let root = package
        .ancestors()
        .find(|folder| folder.join("pjrt_c_api").is_dir())
        .ok_or_else(|| format!("no folder pjrt_c_api in {} or above it", package.display()))?;
    println!("cargo::rerun-if-changed={}", root.join("pjrt_c_api").display());
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?).join("pjrt_c_api.rs");
    load_libclang(root)?;
    let bindings = bindgen::Builder::default()
        .headers(HEADERS.map(|header| root.join(header).to_string_lossy().into_owned()))
        .clang_args(compiler_includes())
        .allowlist_item("(PJRT|PLUGIN|XLA_FFI)_.*")
        .override_abi(bindgen::Abi::CUnwind, "XLA_FFI_Handler") // handlers may throw
        .newtype_global_enum(ENUMS)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .merge_extern_blocks(true)
        .generate_cstr(true)
        .use_core()
        .generate()
        .map_err(|error| format!("bindgen could not read {HEADERS:?}: {}", one_line(&error)))?
        .to_string();
    let implementations = c_struct_implementations(&bindings);
    fs::write(&out, bindings + &implementations).map_err(|error| format!("{}: {error}", out.display()))
}

/// Loads libclang for bindgen, which would panic without it, or says in one sentence how to get it.
fn load_libclang(root: &Path) -> Result<(), String> {
    let Err(error) = clang_sys::load() else { return Ok(()) };
    if let Some(folder) = libclang_in_venv(root) {
        // SAFETY: the build script has one thread, so nothing reads the environment meanwhile.
        unsafe { env::set_var("LIBCLANG_PATH", folder) };
        if clang_sys::load().is_ok() {
            return Ok(());
        }
    }
    Err(match env::var("LIBCLANG_PATH") {
        Ok(path) => format!("LIBCLANG_PATH is {path}, which holds no libclang that loads: {}", one_line(&error)),
        Err(_) => INSTALL.to_owned(),
    })
}

/// `.venv/lib/python3*/site-packages/clang/native`, where PyPI's `libclang` wheel puts its library.
fn libclang_in_venv(root: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(root.join(".venv/lib")).ok()?;
    versions
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .map(|entry| entry.path().join("site-packages/clang/native"))
        .find(|folder| folder.is_dir())
}

/// The C compiler's own include folder. PyPI's libclang comes without `stddef.h` and `stdbool.h`; a full clang
/// installation has them, so having no C compiler is no error here.
fn compiler_includes() -> Vec<String> {
    let compilers = [env::var("CC").unwrap_or_else(|_| "cc".into()), "gcc".into()];
    compilers
        .iter()
        .filter_map(|compiler| Command::new(compiler).arg("-print-file-name=include").output().ok())
        .filter_map(|answer| String::from_utf8(answer.stdout).ok())
        .map(|folder| folder.trim().to_owned())
        .find(|folder| Path::new(folder).join("stddef.h").is_file())
        .map(|folder| vec!["-isystem".to_owned(), folder])
        .unwrap_or_default()
}

/// One `CStruct` implementation for each pair of constants `X_STRUCT_SIZE`, `X_MIN_SIZE`, and a list of all of them.
fn c_struct_implementations(bindings: &str) -> String {
    let names: BTreeSet<&str> = bindings
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub const "))
        .filter_map(|line| line.split(':').next()?.strip_suffix("_STRUCT_SIZE"))
        .collect();
    let implementations: String = names
        .iter()
        .map(|name| {
            format!(
                "// SAFETY: a plain C struct; all its fields are integers, floats, bools, raw pointers, optional\n\
                 // function pointers, or structs of these, for which zero is a value.\n\
                 unsafe impl CStruct for {name} {{\n    \
                 const NAME: &'static str = \"{name}\";\n    \
                 const STRUCT_SIZE: usize = {name}_STRUCT_SIZE as usize;\n    \
                 const MIN_SIZE: usize = {name}_MIN_SIZE as usize;\n}}\n"
            )
        })
        .collect();
    let rows: String = names.iter().map(|name| format!("    StructSizes::of::<{name}>(),\n")).collect();
    format!(
        "{implementations}/// Every struct of the ABI that has sizes.\n\
         pub const C_STRUCTS: [StructSizes; {}] = [\n{rows}];\n",
        names.len()
    )
}

fn one_line(error: &dyn fmt::Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
