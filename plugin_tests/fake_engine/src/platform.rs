//! Which of XLA's engines for GPUs is played: the one for CUDA, or the one for ROCm.

use std::{env, sync::LazyLock};

/// Names the platform, `cuda` or `rocm`.
const VARIABLE: &str = "FAKE_ENGINE_PLATFORM";

/// What the engines differ in, as far as callers see it.
#[derive(Debug)]
pub struct Platform {
    /// What `PJRT_Client_PlatformName` says; programs, handlers and dlpack go by it.
    pub name: &'static str,
    /// What `PJRT_Client_PlatformVersion` says. Frameworks look for the platform in it.
    pub version: &'static str,
    /// The attribute of a device that says what it runs.
    pub capability: &'static str,
    /// Its multiprocessors.
    pub cores: i64,
    /// Whether arrays and scratch can come from a pool of the driver's.
    pub pools: bool,
}

const CUDA: Platform = Platform {
    name: "cuda",
    version: concat!("cuda 12080, fake CUDA engine ", env!("CARGO_PKG_VERSION"), " without a GPU"),
    capability: "9.0",
    cores: 132,
    pools: true,
};

/// XLA's name and version: `RocmName` and `TF_ROCM_VERSION` (`se_gpu_pjrt_client.cc`).
const ROCM: Platform = Platform {
    name: "rocm",
    version: concat!("rocm 70001, fake ROCm engine ", env!("CARGO_PKG_VERSION"), " without a GPU"),
    capability: "gfx942",
    cores: 304,
    pools: false,
};

/// The one that the environment names; CUDA's without.
pub fn platform() -> &'static Platform {
    static PLATFORM: LazyLock<&Platform> = LazyLock::new(|| match env::var(VARIABLE).as_deref() {
        Ok("rocm") => &ROCM,
        Err(env::VarError::NotPresent) | Ok("cuda") => &CUDA,
        other => {
            eprintln!("fake engine: {VARIABLE} is {other:?}; cuda and rocm are allowed: cuda is played");
            &CUDA
        }
    });
    *PLATFORM
}
