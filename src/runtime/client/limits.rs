//! What the settings allow arrays and programs' scratch of each device's memory.

use std::num::NonZeroU32;

use crate::{
    config::{EngineKind, GpuScratch, Limit, Setting, Settings},
    device::{
        cuda::{self, Gpu, Offer, Vendor},
        host,
    },
    error::{Error, Result},
    units::Bytes,
};

/// Whose GPUs an engine of this kind computes on.
pub fn vendor_of(kind: Option<EngineKind>) -> Option<Vendor> {
    match kind? {
        EngineKind::Cpu => None,
        EngineKind::Cuda => Some(Vendor::Nvidia),
        EngineKind::Rocm => Some(Vendor::Amd),
    }
}

/// The file that the settings name for a vendor's driver.
pub fn library_of(settings: &Settings, vendor: Vendor) -> &str {
    match vendor {
        Vendor::Nvidia => settings.cuda_driver.value.as_str(),
        Vendor::Amd => settings.hip_driver.value.as_str(),
    }
}

/// The limit of each of so many devices that share the host's memory.
///
/// # Errors
/// Those of [`host::capacity`]. INVALID_ARGUMENT for a limit that there is not so many times; it tells of the system's
/// limits, if there are some.
pub fn of_the_host(limit: &Setting<Limit>, devices: NonZeroU32) -> Result<Bytes> {
    let capacity = host::capacity()?;
    let bytes = limit.resolve(capacity.get(), devices).map_err(|error| {
        let group = host::ControlGroup::now().filter(|group| group.free() <= capacity);
        error.with(host::Mappable::now()).with(group)
    })?;
    Ok(Bytes::new(bytes))
}

/// Checks the settings before the engine starts its threads, against the memory that a device can have at most.
/// Returns the share of each GPU's memory that the engine has to keep for itself, if it cannot have a pool.
///
/// # Errors
/// INVALID_ARGUMENT for a limit that no device or machine can have, or a share of it that leaves nothing.
pub fn check(settings: &Settings, kind: Option<EngineKind>) -> Result<Option<f32>> {
    let Some(vendor) = vendor_of(kind) else {
        of_the_host(&settings.limit, NonZeroU32::MIN)?;
        return Ok(None);
    };
    // Without an answer the engine says why there is no GPU.
    let Ok(offer) = cuda::probe_library(vendor, library_of(settings, vendor)) else { return Ok(None) };
    let Some(most) = offer.gpus.iter().map(|gpu| gpu.memory).max() else { return Ok(None) };
    settings.limit.resolve(most.get(), NonZeroU32::MIN)?;
    settings.pinned_limit.resolve(host::capacity()?.get(), NonZeroU32::MIN)?;
    let share = engine_share(settings, &offer)?;
    if let Some(scratch) = scratch_of_gpus(settings, vendor)? {
        // AMD's GPUs never have pools, and a user cannot change that.
        log::log!(if vendor == Vendor::Amd { log::Level::Info } else { log::Level::Warn }, "{scratch}");
    }
    Ok(share)
}

/// The share of each GPU's memory that the settings give to programs' scratch, in the precision that the engine
/// takes; `None` if all GPUs that are used have pools.
///
/// # Errors
/// As [`check`].
fn engine_share(settings: &Settings, offer: &Offer) -> Result<Option<f32>> {
    let gpus = used(settings, offer);
    if gpus.iter().all(|gpu| gpu.pools) {
        return Ok(None);
    }
    // One number for all of them: the least share.
    let mut least = 1.0_f64;
    for gpu in gpus {
        let (limit, _) = gpu_limit(settings, gpu.memory)?;
        least = least.min(GpuScratch::of(&settings.gpu_scratch, limit)?.get() as f64 / gpu.memory.get() as f64);
    }
    let share = least as f32;
    Ok(Some(if f64::from(share) > least { share.next_down() } else { share }))
}

/// The GPUs that the engine will use.
fn used<'a>(settings: &Settings, offer: &'a Offer) -> Vec<&'a Gpu> {
    let visible = settings.visible_devices();
    let is_used = |gpu: &&Gpu| visible.is_none_or(|visible| visible.contains(&i64::from(gpu.ordinal)));
    offer.gpus.iter().filter(is_used).collect()
}

/// What an engine whose share is `share` takes of a GPU (XLA `gpu_helpers.cc`: `total_memory * memory_fraction`), and
/// what of that its programs can rely on, because older engines do not round it up.
pub fn taken(total: Bytes, share: f32) -> (Bytes, Bytes) {
    let bytes = Bytes::new((total.get() as f64 * f64::from(share)) as u64);
    (bytes.checked_round_up(GpuScratch::UNIT).unwrap_or(bytes), bytes.round_down(Bytes::new(256)))
}

/// A sentence that says what programs' scratch has for good, where the engine has no memory pools on a GPU.
///
/// # Errors
/// As [`check`].
pub fn scratch_of_gpus(settings: &Settings, vendor: Vendor) -> Result<Option<String>> {
    let Ok(offer) = cuda::probe_library(vendor, library_of(settings, vendor)) else { return Ok(None) };
    let Some(share) = engine_share(settings, &offer)? else { return Ok(None) };
    let mut words = Vec::new();
    for gpu in used(settings, &offer) {
        let (limit, _) = gpu_limit(settings, gpu.memory)?;
        let why = if gpu.pools { "" } else { " (no memory pools)" };
        words.push(format!("{} of {limit} on GPU {}{why}", taken(gpu.memory, share).0, gpu.ordinal));
    }
    Ok(Some(format!("programs' scratch has a fixed share of the limit, which arrays never get: {}", words.join(", "))))
}

/// What arrays and scratch may have of a GPU with so much memory, and what they could have at most.
///
/// # Errors
/// INVALID_ARGUMENT for a limit that the GPU cannot have, or a headroom that leaves nothing.
pub fn gpu_limit(settings: &Settings, total: Bytes) -> Result<(Bytes, Bytes)> {
    let limit = Bytes::new(settings.limit.resolve(total.get(), NonZeroU32::MIN)?);
    let headroom = settings.headroom.value.bytes();
    let most = total.saturating_sub(headroom).round_down(Bytes::mib(1));
    if most.is_zero() {
        return Err(Error::invalid_argument(format!(
            "{}={headroom} leaves nothing of the GPU's {total}; allowed: less than that by 1MiB or more",
            settings.headroom.source
        )));
    }
    Ok((limit.min(most), most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Environment, OptionValue},
        device::cuda::Version,
    };

    fn offer(gpus: &[(u64, bool)]) -> Offer {
        let version = Version { major: 12, minor: 8 };
        let gpu = |(ordinal, &(memory, pools)): (i32, &(u64, bool))| {
            let memory = Bytes::new(memory);
            Gpu { ordinal, name: "a GPU".to_owned(), memory, compute_capability: version, pools }
        };
        Offer { vendor: Vendor::Nvidia, version, gpus: (0..).zip(gpus).map(gpu).collect() }
    }

    fn settings(limit: &str, scratch: &str, visible: Option<&[i64]>) -> Settings {
        let variables = [("PJRT_ARENA_LIMIT", limit), ("PJRT_ARENA_GPU_SCRATCH", scratch)];
        let visible = visible.map(|list| ("visible_devices".to_owned(), OptionValue::Int64List(list.to_vec())));
        Settings::read(&variables.into_iter().collect::<Environment>(), &visible.into_iter().collect::<Vec<_>>())
            .expect("valid settings")
    }

    #[test]
    fn the_engine_takes_what_the_settings_say_however_a_share_is_rounded() {
        // Of an H200, an L4, and sizes that no power of two divides.
        for memory in [150_110_994_432, 23034 << 20, (80 << 30) - (4096 * 12345), 1 << 40, (16 << 30) + 1] {
            for (limit, scratch) in [("75%", "50%"), ("99%", "33%"), ("5GiB", "1GiB"), ("61%", "7%")] {
                let settings = settings(limit, scratch, None);
                let share = engine_share(&settings, &offer(&[(memory, false)])).expect("room").expect("no pools");
                let (limit, _) = gpu_limit(&settings, Bytes::new(memory)).expect("a limit");
                let wanted = GpuScratch::of(&settings.gpu_scratch, limit).expect("a share");
                let (taken, relied_on) = taken(Bytes::new(memory), share);
                assert_eq!(taken, wanted, "{memory} {limit} {scratch}");
                assert!(relied_on <= taken && taken - relied_on < GpuScratch::UNIT, "{memory}: {relied_on} of {taken}");
            }
        }
    }

    #[test]
    fn only_gpus_without_pools_that_are_used_count_and_the_least_share_holds() {
        const GIB: u64 = 1 << 30;
        let mixed = offer(&[(16 * GIB, true), (32 * GIB, false)]);
        let share = |visible| engine_share(&settings("8GiB", "25%", visible), &mixed).expect("room");
        assert_eq!(share(None), Some(0.0625), "2 GiB of the larger one");
        assert_eq!(share(Some(&[1])), Some(0.0625));
        assert_eq!(share(Some(&[0])), None, "the one that is used has pools");
        assert_eq!(engine_share(&settings("8GiB", "25%", None), &offer(&[(16 * GIB, true)])), Ok(None));
        let refused = engine_share(&settings("8GiB", "8GiB", None), &mixed).expect_err("nothing is left for arrays");
        assert!(refused.message.contains("gpu_scratch=8.00GiB"), "{refused}");
    }
}
