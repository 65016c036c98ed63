"""Arrays from and to the host: bandwidth, and how much of a copy a running step hides."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpu.clock import chain, spread, timed
from gpu.sizes import Sizes


def both(sizes: Sizes) -> dict[str, Any]:
    """`bandwidth` and `prefetch`."""
    return bandwidth(sizes) | {"prefetch": prefetch(sizes)}


def _put(host: np.ndarray) -> None:
    jax.device_put(host).block_until_ready()


def _get_next(arrays: Iterator[jax.Array]) -> None:
    np.asarray(jax.device_get(next(arrays)))


def bandwidth(sizes: Sizes) -> dict[str, Any]:
    """Seconds of `device_put` and of `device_get`, for each size."""
    rows = []
    for size in sizes.copies:
        host = _host(size)
        put = timed(functools.partial(_put, host), sizes.readings)
        # Each result is new: of an array that was read once, JAX keeps the copy.
        double = jax.jit(lambda x: x * 2)
        on_device = jax.device_put(host)
        results = [double(on_device) for _ in range(sizes.readings + 2)]
        jax.block_until_ready(results)
        turn = iter(results)
        get = timed(functools.partial(_get_next, turn), sizes.readings)
        assert np.array_equal(np.asarray(results[-1])[:: 1 << 12], 2 * host[:: 1 << 12])
        rows.append({"bytes": size, "put": put, "get": get})
    return {"rows": rows}


def prefetch(sizes: Sizes) -> dict[str, Any]:
    """A step alone, the copy of its next batch alone, and both at once: which share of the copy is hidden."""
    size = sizes.copies[0]
    batches = itertools.cycle([_host(size, turn) for turn in range(2)])
    width = sizes.product
    weights = jnp.asarray(np.random.default_rng(0).standard_normal((width, width), np.float32) / width**0.5)
    start = jax.block_until_ready(jnp.ones((width, width), jnp.float32))
    use = jax.jit(lambda batch: batch.sum())

    def copy():
        return jax.device_put(next(batches)).block_until_ready()

    copied = timed(copy, sizes.readings)["median"]
    # A step that takes about one and a half times as long as the copy.
    few = chain(4)
    once = timed(lambda: few(start, weights).block_until_ready(), sizes.readings)["median"] / 4
    work = chain(min(200, max(1, round(1.5 * copied / once))))
    step = timed(lambda: work(start, weights).block_until_ready(), sizes.readings)["median"]

    def overlapped():
        result = work(start, weights)
        batch = jax.device_put(next(batches))
        jax.block_until_ready((result, batch, use(batch)))

    together = timed(overlapped, sizes.readings)["median"]
    hidden = (step + copied - together) / min(step, copied)
    return {
        "bytes": size,
        "copy_seconds": copied,
        "step_seconds": step,
        "both_seconds": together,
        "hidden": max(0.0, min(1.0, hidden)),
    }


def puts(sizes: Sizes) -> dict[str, Any]:
    """`device_put` of one large array, and of many without a pause: seconds until they are there, and of the calls."""
    host = _host(sizes.large_put)
    large = timed(lambda: jax.device_put(host).block_until_ready(), min(3, sizes.readings), warm=1)
    assert float(jax.device_put(host)[0]) == float(host[0])
    count, size = sizes.many_puts
    hosts = [_host(size, turn) for turn in range(count)]
    called = []

    def all_of_them():
        start = time.perf_counter()
        arrays = [jax.device_put(each) for each in hosts]
        called.append((time.perf_counter() - start) / count)
        return jax.block_until_ready(arrays)

    together = timed(all_of_them, sizes.readings)
    for turn, array in enumerate(all_of_them()):
        assert float(array[0]) == float(hosts[turn][0]) and float(array[1]) == turn + 1, f"array {turn} is another"
    return {
        "large": {"bytes": host.nbytes, "seconds": large},
        "many": {"count": count, "bytes": size, "seconds": together, "call": spread(called[2:])},
    }


def _host(size: int, start: int = 0) -> np.ndarray:
    """Floats in memory of malloc's, not aligned to 64 bytes, so that a CPU device copies them too."""
    room = np.empty(size + 128, np.uint8)
    first = -room.ctypes.data % 64 + 16
    array = room[first : first + size].view(np.float32)
    array[:] = start + 1
    array[:: 1 << 12] = np.arange(start, start + len(array[:: 1 << 12]), dtype=np.float32) % 1000
    return array
