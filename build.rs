//! Generates the Rust view of the PJRT C ABI from `pjrt_c_api/`.

use std::{env, path::PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=pjrt_c_api");
    let gcc = std::process::Command::new("gcc").arg("-print-file-name=include").output().expect("gcc");
    let include = String::from_utf8(gcc.stdout).expect("utf8");
    bindgen::Builder::default()
        .header("pjrt_c_api/pjrt_c_api.h")
        .clang_arg(format!("-I{}", include.trim()))
        .allowlist_item("PJRT_.*")
        .generate()
        .expect("bindings")
        .write_to_file(PathBuf::from(env::var_os("OUT_DIR").expect("OUT_DIR")).join("pjrt_c_api.rs"))
        .expect("write");
}
