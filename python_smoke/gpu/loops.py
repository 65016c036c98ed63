"""Loops in which nobody waits (`user_loops.py`): the time until the caller is free, until all is done; the peak."""

from __future__ import annotations

import gc
import time
from typing import Any

import jax
from user_loops import LOOPS

from gpu.libcuda import memory
from gpu.sizes import MIB, Sizes


def run(sizes: Sizes) -> dict[str, Any]:
    """Each in turn; results are dropped."""
    answer: dict[str, Any] = {}
    device = jax.devices()[0]
    for name, make in LOOPS.items():
        state, step, times = make(sizes.loop_mib * MIB)
        try:
            state = jax.block_until_ready(step(jax.block_until_ready(state), 0))
        except jax.errors.JaxRuntimeError as error:
            # A simulated GPU has none of NVIDIA's libraries.
            if "No FFI handler registered" not in str(error):
                raise
            answer[name] = {"left_out": "a library is missing"}
            continue
        taken, start = 0, time.perf_counter()
        for turn in range(1, times):
            state = step(state, turn)
            if turn % 5 == 0 and (seen := memory()):
                taken = max(taken, seen[1] - seen[0])
        free_caller = time.perf_counter() - start
        jax.block_until_ready(state)
        answer[name] = {
            "seconds": time.perf_counter() - start,
            "caller_free": free_caller,
            # Of this loop and those before it.
            "peak_bytes_in_use": (device.memory_stats() or {}).get("peak_bytes_in_use"),
            "device_bytes": taken or None,
        }
        del state, step, make
        gc.collect()
    return answer
