//! Holds `pjrt_c_api/bindings.rs`, the Rust view of the C ABIs, which `src/sys.rs` includes, against the headers.
//!
//! ```text
//!  headers --bindgen (feature `bindgen`)--> text --> the same as bindings.rs?   `make lint`
//!     |                                      `-----> bindings.rs                `make bindings`
//!     `--hash-------------------------------------> the one in bindings.rs?     every build
//! ```
//!
//! The file is checked in, so that a build needs neither bindgen nor libclang. Only whoever changes a header does.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

const BINDINGS: &str = "pjrt_c_api/bindings.rs";

/// What the line with the hash of the headers begins with.
const HASH: &str = "// Headers: FNV-1a ";

fn main() {
    if let Err(sentence) = check() {
        // cargo shows the sentence and fails; an exit code would add a page of text.
        println!("cargo::error={sentence}");
    }
}

fn check() -> Result<(), String> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?);
    println!("cargo::rerun-if-changed=pjrt_c_api");
    let headers = hash_of_headers(&root.join("pjrt_c_api"))?;
    #[cfg(feature = "bindgen")]
    generator::check_or_write(&root, &headers)?;
    let bindings = read(&root.join(BINDINGS))?;
    match bindings.lines().find_map(|line| line.strip_prefix(HASH)) {
        Some(hash) if hash == headers => Ok(()),
        hash => Err(format!(
            "{BINDINGS} was made from headers with hash {}, those in pjrt_c_api have {headers}: run `make bindings`",
            hash.unwrap_or("(none)")
        )),
    }
}

/// FNV-1a with 64 bits over the names and the bytes of the headers. It need not withstand anybody: it tells a change.
fn hash_of_headers(folder: &Path) -> Result<String, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut headers: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    headers.retain(|path| path.extension().is_some_and(|extension| extension == "h"));
    headers.sort();
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for header in &headers {
        let name = header.file_name().unwrap_or_default().to_string_lossy();
        for byte in format!("{name}\0{}\0", read(header)?).bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(format!("{hash:016x}"))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Makes the bindings. bindgen loads libclang at run time, from `LIBCLANG_PATH` or where clang-sys looks
/// (`llvm-config`, the system's library folders).
///
/// Beside bindgen's types the file holds, for every struct with sizes in the header, an implementation of `CStruct`, so
/// that generic code can fill and check `struct_size`.
#[cfg(feature = "bindgen")]
mod generator {
    use std::{collections::BTreeSet, env, fmt, fs, path::Path, process::Command};

    use super::{BINDINGS, HASH, read};

    /// `write` has the file written; unset, it is compared.
    const WISH: &str = "PJRT_ARENA_BINDINGS";

    /// The C enums. They become newtypes over the C integer: a plugin may send a value that this header does not know
    /// yet, which would be undefined behaviour in a Rust enum.
    const ENUMS: &str = "PJRT_(Extension_Type|Error_Code|NamedValue_Type|ProcessState|Buffer_Type|HostBufferSemantics|\
                         Buffer_MemoryLayout_Type|FFI_Handler_TraitsBits)|\
                         XLA_FFI_(Extension_Type|Error_Code|DataType|ExecutionStage|ArgType|RetType|AttrType|\
                         Handler_TraitsBits)";

    /// The first includes all of PJRT's, the second stands for itself.
    const HEADERS: [&str; 2] = ["pjrt_c_api/pjrt_c_api_extensions.h", "pjrt_c_api/xla_ffi.h"];

    const INSTALL: &str = "libclang was not found: run `pip install libclang` and set LIBCLANG_PATH to the wheel's \
                           clang/native folder, or run `apt install libclang-dev`";

    pub(crate) fn check_or_write(root: &Path, headers: &str) -> Result<(), String> {
        println!("cargo::rerun-if-env-changed={WISH}");
        println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
        println!("cargo::rerun-if-changed=rustfmt.toml"); // by which bindgen formats what it makes
        let path = root.join(BINDINGS);
        let made = generate(root, headers)?;
        match env::var(WISH).as_deref() {
            Err(env::VarError::NotPresent) => {
                let found = read(&path)?;
                let same = made.lines().zip(found.lines()).take_while(|(made, found)| made == found).count();
                if made == found { Ok(()) } else { Err(differs(same + 1)) }
            }
            Ok("write") => fs::write(&path, made).map_err(|error| format!("{}: {error}", path.display())),
            other => Err(format!("{WISH}={} is not valid; allowed: write, or unset", other.unwrap_or("(not text)"))),
        }
    }

    fn differs(line: usize) -> String {
        format!("{BINDINGS} is not what bindgen makes of pjrt_c_api, from line {line} on: run `make bindings`")
    }

    fn generate(root: &Path, headers: &str) -> Result<String, String> {
        load_libclang()?;
        // Of the version that the crate asks for, so that a newer compiler makes the same bindings.
        let rust = env::var("CARGO_PKG_RUST_VERSION").map_err(|error| format!("CARGO_PKG_RUST_VERSION: {error}"))?;
        let rust = rust.parse().map_err(|error| format!("rust-version {rust}: {error}"))?;
        let bindings = bindgen::Builder::default()
            .headers(HEADERS.map(|header| root.join(header).to_string_lossy().into_owned()))
            .clang_args(compiler_includes())
            .rust_target(rust)
            .rustfmt_configuration_file(Some(root.join("rustfmt.toml")))
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
        Ok(format!(
            "// Generated by `make bindings` from the headers of this folder: change those, not this file.\n\
             {HASH}{headers}\n{bindings}{implementations}"
        ))
    }

    /// Loads libclang for bindgen, which would panic without it, or says in one sentence how to get it.
    fn load_libclang() -> Result<(), String> {
        let Err(error) = clang_sys::load() else { return Ok(()) };
        Err(match env::var("LIBCLANG_PATH") {
            Ok(path) => format!("LIBCLANG_PATH is {path}, which holds no libclang that loads: {}", one_line(&error)),
            Err(_) => INSTALL.to_owned(),
        })
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

    /// One `CStruct` implementation for each pair of constants `X_STRUCT_SIZE`, `X_MIN_SIZE`, and a list of them all.
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
}
