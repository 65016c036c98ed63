"""What is paid per call and per array: dispatch, many live arrays, many small kernels."""

from __future__ import annotations

import gc
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpu.clock import out_of_memory, timed
from gpu.inventory import host_memory
from gpu.libcuda import free_bytes
from gpu.sizes import MIB, Sizes

#: What the device's free memory may fall by while a step is repeated.
MOST_LOST = 64 * MIB
#: Seconds in which live arrays are made.
ARRAYS_TIME = 15.0


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
    """Resident memory of this process for each live array of 4 bytes.

    An allocator that takes a unit of the driver's for each has no memory for so many, or no time: it has fewer.
    """
    add = jax.jit(lambda x: x + 1)
    start = jax.block_until_ready(jnp.float32(0))
    arrays = [add(start) for _ in range(min(sizes.arrays, 1000))]
    jax.block_until_ready(arrays)
    gc.collect()
    before, held = host_memory()["resident"], len(arrays)
    end, refused = time.perf_counter() + ARRAYS_TIME, None
    while len(arrays) < sizes.arrays + held and time.perf_counter() < end:
        try:
            arrays.append(add(start))
            # The queue is no part of what a live array takes.
            if len(arrays) % 1000 == 0:
                arrays[-1].block_until_ready()
        except Exception as error:
            if not out_of_memory(error):
                raise
            refused = str(error).splitlines()[0][:300]
            # What could not be computed for want of memory is no array.
            del arrays[held + (len(arrays) - held) // 1000 * 1000 :]
            break
    jax.block_until_ready(arrays)
    gc.collect()
    after, made = host_memory()["resident"], len(arrays) - held
    assert float(arrays[-1]) == 1
    return {
        "arrays": made,
        "bytes": after - before,
        "bytes_per_array": (after - before) / made if made else None,
        "refused": refused,
    }


def many_kernels(sizes: Sizes) -> dict[str, Any]:
    """Seconds of a step of small matrix products in a chain, which XLA can record as one CUDA graph."""
    step = _products(sizes.kernels)
    held = [jnp.ones((128, 128), jnp.float32)]

    def run():
        for _ in range(sizes.steps):
            held[0] = step(held[0])
        held[0].block_until_ready()

    return {"kernels": sizes.kernels, "seconds": timed(run, sizes.readings, sizes.steps, warm=3)}


def graph_memory(sizes: Sizes) -> dict[str, Any]:
    """Free memory of the device before and after many such steps, whose arguments and results lie elsewhere each time.

    CUDA takes memory for a graph that the caller does not see; an update for new addresses must not add to it.
    """
    step = _products(sizes.kernels)
    rows = 128
    start = jax.block_until_ready(jnp.ones((rows, rows), jnp.float32))
    random, kept, places = np.random.default_rng(0), [start], set()
    right = None
    before = None
    for turn in range(sizes.graph_steps):
        # What is kept, and for how long, is random: the places are.
        result = step(kept[int(random.integers(len(kept)))] * 0 + 1)
        kept.append(result)
        if len(kept) > 12:
            kept.pop(int(random.integers(1, len(kept))))
        if turn % 10 == 0:
            right = float(result[3, 5]) if right is None else right
            assert float(result[3, 5]) == right, f"step {turn} gives {float(result[3, 5])}, the first {right}"
            places.add(result.unsafe_buffer_pointer())
        # The first ones make the graph.
        if turn == sizes.graph_steps // 10:
            jax.block_until_ready(kept)
            before = free_bytes()
    jax.block_until_ready(kept)
    after = free_bytes()
    lost = before - after if before is not None and after is not None else None
    assert len(places) > 1, "all results lie at one place"
    assert lost is None or lost <= MOST_LOST, f"{lost} bytes of the device are gone after {sizes.graph_steps} steps"
    return {"steps": sizes.graph_steps, "places": len(places), "free_before": before, "free_after": after, "lost": lost}


def _products(kernels: int) -> Any:
    weights = jnp.asarray(np.random.default_rng(0).standard_normal((128, 128), np.float32) / 12)

    @jax.jit
    def step(x):
        for _ in range(kernels):
            x = jnp.tanh(x @ weights)
        return x

    return step
