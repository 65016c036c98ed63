"""What is paid per call and per array: dispatch, many live arrays, many small kernels."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpu.clock import timed
from gpu.sizes import Sizes


def costs(sizes: Sizes) -> dict[str, Any]:
    """`dispatch` and `live_arrays`."""
    return {"dispatch": dispatch(sizes), "live": live_arrays(sizes)}


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
        "one": timed(lambda: run(add, one, sizes.calls), sizes.readings, sizes.calls),
        "thirty_two": timed(lambda: run(add_all, many, few), sizes.readings, few),
    }


def live_arrays(sizes: Sizes) -> dict[str, Any]:
    """Resident memory of this process for each live array of 4 bytes."""
    add = jax.jit(lambda x: x + 1)
    start = jax.block_until_ready(jnp.float32(0))
    arrays = [add(start) for _ in range(min(sizes.arrays, 1000))]
    jax.block_until_ready(arrays)
    gc.collect()
    before, held = _resident(), len(arrays)
    while len(arrays) < sizes.arrays + held:
        arrays.append(add(start))
        # The queue is no part of what a live array takes.
        if len(arrays) % 1000 == 0:
            arrays[-1].block_until_ready()
    jax.block_until_ready(arrays)
    gc.collect()
    after = _resident()
    assert float(arrays[-1]) == 1
    return {"arrays": sizes.arrays, "bytes": after - before, "bytes_per_array": (after - before) / sizes.arrays}


def _resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmRSS")


def many_kernels(sizes: Sizes) -> dict[str, Any]:
    """Seconds of a step of small matrix products in a chain, which XLA can record as one CUDA graph."""
    weights = jnp.asarray(np.random.default_rng(0).standard_normal((128, 128), np.float32) / 12)

    @jax.jit
    def step(x):
        for _ in range(sizes.kernels):
            x = jnp.tanh(x @ weights)
        return x

    held = [jnp.ones((128, 128), jnp.float32)]

    def run():
        for _ in range(sizes.steps):
            held[0] = step(held[0])
        held[0].block_until_ready()

    return {"kernels": sizes.kernels, "seconds": timed(run, sizes.readings, sizes.steps, warm=3)}
