"""What is paid per client, per call and per copy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpu.clock import timed
from gpu.sizes import Sizes


def resident() -> int:
    """Bytes of the host that this process has."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def client(sizes: Sizes) -> dict[str, Any]:
    """Seconds until a client is there, and its first array; its limit, and what both take of the host."""
    before, start = resident(), time.perf_counter()
    device = jax.devices()[0]
    started = time.perf_counter() - start
    jnp.zeros(1).block_until_ready()
    first = time.perf_counter() - start - started
    stats = device.memory_stats() or {}
    return {
        "kind": device.device_kind,
        "version": " ".join(device.client.platform_version.split()),
        "limit": stats.get("bytes_limit"),
        "client": started,
        "first_array": first,
        "host_bytes": resident() - before,
    }


def dispatch(sizes: Sizes) -> dict[str, Any]:
    """Seconds of a call of a tiny jitted program, one argument and thirty-two; nobody waits between calls."""
    add, add_all = jax.jit(lambda x: x + 1), jax.jit(lambda tree: [x + 1 for x in tree])
    one, many = jnp.float32(1), [jnp.full(16, i, jnp.float32) for i in range(32)]
    jax.block_until_ready((one, many))
    few = max(1, sizes.calls // 8)

    def run(step, argument, calls):
        for _ in range(calls):
            result = step(argument)
        jax.block_until_ready(result)

    return {
        "one": timed(lambda: run(add, one, sizes.calls), sizes.readings, sizes.calls)["median"],
        "thirty_two": timed(lambda: run(add_all, many, few), sizes.readings, few)["median"],
    }


def transfers(sizes: Sizes) -> dict[str, Any]:
    """Seconds of `device_put` and `device_get` of one array."""
    host = np.ones(sizes.copy // 4, np.float32)
    put = timed(lambda: jax.device_put(host).block_until_ready(), sizes.readings)
    # Each result is new: of an array that was read once, JAX keeps the copy.
    double, on_device = jax.jit(lambda x: x * 2), jax.device_put(host)
    results = iter(jax.block_until_ready([double(on_device) for _ in range(sizes.readings + 2)]))
    get = timed(lambda: np.testing.assert_equal(float(np.asarray(next(results))[-1]), 2.0), sizes.readings)
    return {"bytes": host.nbytes, "put": put["median"], "get": get["median"]}
