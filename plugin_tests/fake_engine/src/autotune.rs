//! What XLA's autotuner does while it compiles: kernels are tried out on arrays of its own, from the pool that
//! programs' scratch comes from. Where there is no memory for these, the program does not compile (`config_runner.cc`,
//! `ProfileAll`).

use std::env;

use crate::{client::Client, error::Result};

const VARIABLE: &str = "FAKE_ENGINE_AUTOTUNE";

/// Takes so many MiB of each GPU as the environment says, and frees them, in the order of the compute stream.
///
/// # Errors
/// RESOURCE_EXHAUSTED.
pub fn try_out(client: &Client) -> Result {
    let Some(mib) = env::var(VARIABLE).ok().and_then(|mib| mib.parse::<u64>().ok()) else { return Ok(()) };
    for device in &client.devices {
        let array = device.gpu.allocate(mib << 20)?;
        // The kernels are timed, so they are waited for; what is freed then is not.
        let timed = device.gpu.synchronize(device.gpu.compute);
        device.gpu.free(array);
        timed?;
    }
    Ok(())
}
