"""What is paid per client, per call and per array."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from gpu.clock import out_of_memory, timed
from gpu.sizes import Sizes

#: Seconds in which live arrays are made.
ARRAYS_TIME = 15.0


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


def costs(sizes: Sizes) -> dict[str, Any]:
    """`dispatch` and `live_arrays`."""
    return dispatch(sizes) | live_arrays(sizes)


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


def live_arrays(sizes: Sizes) -> dict[str, Any]:
    """Resident memory of this process for each live array of 4 bytes.

    An allocator that takes a unit of the driver's for each has no memory for so many, or no time: it has fewer.
    """
    add = jax.jit(lambda x: x + 1)
    start = jax.block_until_ready(jnp.float32(0))
    arrays = jax.block_until_ready([add(start) for _ in range(min(sizes.arrays, 1000))])
    gc.collect()
    before, held, end = resident(), len(arrays), time.perf_counter() + ARRAYS_TIME
    while len(arrays) < sizes.arrays + held and time.perf_counter() < end:
        try:
            arrays += jax.block_until_ready([add(start) for _ in range(min(sizes.arrays, 1000))])
        except Exception as error:
            if not out_of_memory(error):
                raise
            break
    gc.collect()
    made = len(arrays) - held
    assert float(arrays[-1]) == 1
    return {"arrays": made, "bytes_per_array": (resident() - before) / made if made else None}
