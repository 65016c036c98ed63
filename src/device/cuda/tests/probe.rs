//! The probe, on drivers made here: small libraries that answer as NVIDIA's does.

use std::{ffi::OsStr, fs, path::PathBuf, process::Command};

use crate::{
    device::cuda::{Gpu, Offer, Unavailable, Vendor, Version, driver::required, probe},
    units::Bytes,
};

/// Answers for GPUs of two kinds, and as the real driver refuses every call before `cuInit`. Made with `-DINIT=<code>`
/// or `-DNAME=<code>` its `cuInit` or `cuDeviceGetName` fails; with `-DTOTAL_MEMORY=<symbol>` it has that symbol in
/// place of the one that is looked for. Handles of devices start at 40, so that one taken for an ordinal is refused.
const SOURCE: &str = r#"
#include <stddef.h>
#include <string.h>
#ifndef INIT
#define INIT 0
#endif
#ifndef NAME
#define NAME 0
#endif
#ifndef GPUS
#define GPUS 3
#endif
#ifndef POOLS
#define POOLS 1
#endif
#ifndef POOL
#define POOL 0
#endif
#ifndef TOTAL_MEMORY
#define TOTAL_MEMORY cuDeviceTotalMem_v2
#endif
static int started;
static int out(int *place, int value) { if (!started) return 3; *place = value; return 0; }
int cuInit(unsigned flags) { if (flags) return 1; started = !INIT; return INIT; }
int cuDriverGetVersion(int *version) { return out(version, 13020); }
int cuDeviceGetCount(int *count) { return out(count, GPUS); }
int cuDeviceGet(int *device, int ordinal) { return ordinal < 0 || ordinal >= GPUS ? 101 : out(device, 40 + ordinal); }
int cuDeviceGetName(char *name, int length, int device) {
    if (!started) return 3;
    strncpy(name, device < 42 ? "NVIDIA H200" : "NVIDIA L4", length);
    return NAME;
}
int TOTAL_MEMORY(size_t *bytes, int device) {
    if (!started) return 3;
    *bytes = device < 42 ? 150110994432 : 23034 * (size_t)1048576;
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (attribute == 115) return out(value, POOLS);
    if (attribute != 75 && attribute != 76) return 1;
    return out(value, attribute == 75 ? (device < 42 ? 9 : 8) : (device < 42 ? 0 : 9));
}
int cuDeviceGetDefaultMemPool(void **pool, int device) {
    if (!started || device < 40) return 1;
    *pool = 0;
    return POOL;
}
int cuGetErrorName(int code, const char **text) {
    if (code != 100) { *text = 0; return 1; }
    *text = "CUDA_ERROR_NO_DEVICE";
    return 0;
}
int cuGetErrorString(int code, const char **text) {
    if (code != 100) { *text = 0; return 1; }
    *text = "no CUDA-capable device is detected";
    return 0;
}
"#;

fn probe_library(library: impl AsRef<OsStr>) -> Result<Offer, Unavailable> {
    crate::device::cuda::probe_library(Vendor::Nvidia, library)
}

/// A driver, and the folder that it lies in.
struct Made {
    library: PathBuf,
    _folder: tempfile::TempDir,
}

/// Compiles the driver with `definitions`.
fn make(definitions: &[&str]) -> Made {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, library) = (folder.path().join("driver.c"), folder.path().join("libcuda.so.1"));
    // What the probe does not call is there all the same, as in a real driver.
    let rest = required(Vendor::Nvidia)
        .iter()
        .filter(|symbol| !SOURCE.contains(&format!("{symbol}(")) && **symbol != "cuDeviceTotalMem_v2");
    let rest: String = rest.map(|symbol| format!("int {symbol}(void) {{ return 801; }}\n")).collect();
    fs::write(&source, format!("{SOURCE}{rest}")).expect("writing the source");
    let status = Command::new("gcc")
        .args(["-shared", "-fPIC", "-Wl,-z,defs", "-o"])
        .arg(&library)
        .args(definitions)
        .arg(&source)
        .status()
        .expect("gcc runs");
    assert!(status.success());
    Made { library, _folder: folder }
}

fn refusal(definitions: &[&str]) -> (Unavailable, String) {
    let made = make(definitions);
    let why = probe_library(&made.library).expect_err("no driver that can be used");
    // The folder has another name each time.
    let text = why.to_string().replace(&made.library.display().to_string(), "<library>");
    (why, text)
}

#[test]
fn a_driver_tells_its_version_and_gpus() {
    let made = make(&[]);
    let driver = probe_library(&made.library).expect("a driver");
    assert_eq!((driver.vendor, driver.version), (Vendor::Nvidia, Version { major: 13, minor: 2 }));
    let ordinals: Vec<_> = driver.gpus.iter().map(|gpu| gpu.ordinal).collect();
    assert_eq!(ordinals, [0, 1, 2]);
    assert_eq!(
        driver.gpus[2],
        Gpu {
            ordinal: 2,
            name: "NVIDIA L4".to_owned(),
            memory: Bytes::mib(23034),
            compute_capability: Version { major: 8, minor: 9 },
            pools: true,
        }
    );
    assert_eq!(driver.gpus[0].memory, Bytes::new(150_110_994_432));
    assert_eq!(
        driver.to_string(),
        "NVIDIA driver for CUDA 13.2: 3 GPUs: 2 x NVIDIA H200, 139.80GiB, compute capability 9.0; NVIDIA L4, 22.49GiB, \
         compute capability 8.9"
    );
    // Asking again finds the library open and the driver started.
    assert_eq!(probe_library(&made.library), Ok(driver));
}

#[test]
fn one_gpu_and_none_are_counted_in_words() {
    let text = |definition| probe_library(&make(&[definition]).library).expect("a driver").to_string();
    assert_eq!(text("-DGPUS=1"), "NVIDIA driver for CUDA 13.2: 1 GPU: NVIDIA H200, 139.80GiB, compute capability 9.0");
    assert_eq!(text("-DGPUS=0"), "NVIDIA driver for CUDA 13.2: 0 GPUs");
}

#[test]
fn a_driver_that_does_not_start_is_quoted() {
    let (why, text) = refusal(&["-DINIT=100"]);
    assert!(matches!(why, Unavailable::Call { function: "cuInit", code: 100, .. }), "{why:?}");
    assert_eq!(
        text,
        "the NVIDIA driver shows no GPU: cuInit gave 100, CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
    );
}

#[test]
fn a_code_that_even_the_driver_does_not_know_is_told() {
    let (_, text) = refusal(&["-DINIT=98765"]);
    assert_eq!(text, "the NVIDIA driver shows no GPU: cuInit gave 98765, an error without a name");
}

#[test]
fn an_error_after_the_start_names_its_function() {
    let (_, text) = refusal(&["-DNAME=999"]);
    assert_eq!(text, "the NVIDIA driver shows no GPU: cuDeviceGetName gave 999, an error without a name");
}

#[test]
fn a_missing_symbol_is_named() {
    let (why, text) = refusal(&["-DTOTAL_MEMORY=cuDeviceTotalMem"]);
    assert!(matches!(why, Unavailable::Symbol { symbol: "cuDeviceTotalMem_v2", .. }), "{why:?}");
    assert_eq!(text, "no NVIDIA driver that can be asked: <library> has no symbol cuDeviceTotalMem_v2");
}

#[test]
fn a_machine_without_the_library_has_no_driver() {
    let why = probe_library("libcuda-of-no-machine.so.1").expect_err("no such library");
    assert_eq!(why.to_string(), "no NVIDIA driver (libcuda-of-no-machine.so.1 not found)");
}

#[test]
fn a_file_that_is_no_library_is_named_with_the_loaders_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("libcuda.so.1");
    fs::write(&file, "no library").expect("writing");
    let text = probe_library(&file).expect_err("no library").to_string();
    let start = format!("no NVIDIA driver: {0} cannot be loaded: {0}: ", file.display());
    assert!(text.len() > start.len() && text.starts_with(&start), "{text}");
}

#[test]
fn this_machine_gives_an_answer() {
    // Whatever the machine has: an answer in one line, and the same one again.
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        let text = || probe(vendor).map_or_else(|why| why.to_string(), |driver| driver.to_string());
        let answer = text();
        assert!(answer.contains(&format!("{vendor} driver")) && !answer.contains('\n'), "{answer}");
        assert_eq!(text(), answer);
    }
}

#[test]
fn a_gpu_has_pools_where_it_promises_them_and_keeps_that() {
    for definition in ["-DPOOLS=0", "-DPOOL=801"] {
        let made = make(&[definition]);
        let driver = probe_library(&made.library).expect("a driver");
        assert!(driver.gpus.iter().all(|gpu| !gpu.pools), "{definition}: {driver:?}");
        assert!(
            driver.to_string().ends_with("NVIDIA L4, 22.49GiB, compute capability 8.9, no memory pools"),
            "{driver}"
        );
    }
}
