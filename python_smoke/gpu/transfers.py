"""Arrays from and to the host: bandwidth, of one array and of many without a pause."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from gpu.clock import timed
from gpu.sizes import Sizes


def _host(size: int, start: int = 0) -> np.ndarray:
    """Floats in memory of malloc's, not aligned to 64 bytes, so that a CPU device copies them too."""
    room = np.empty(size + 128, np.uint8)
    first = -room.ctypes.data % 64 + 16
    array = room[first : first + size].view(np.float32)
    array[:] = start
    return array


def run(sizes: Sizes) -> dict[str, Any]:
    """Seconds of `device_put` and `device_get` of one array, and of `device_put` of many."""
    host = _host(sizes.copy, 1)
    put = timed(lambda: jax.device_put(host).block_until_ready(), sizes.readings)
    # Each result is new: of an array that was read once, JAX keeps the copy.
    double, on_device = jax.jit(lambda x: x * 2), jax.device_put(host)
    results = iter(jax.block_until_ready([double(on_device) for _ in range(sizes.readings + 2)]))
    get = timed(lambda: np.testing.assert_equal(float(np.asarray(next(results))[-1]), 2.0), sizes.readings)
    count, size = sizes.many_copies
    hosts = [_host(size, turn) for turn in range(count)]

    def all_of_them(check: bool = False) -> None:
        arrays = jax.block_until_ready([jax.device_put(each) for each in hosts])
        assert not check or [float(array[-1]) for array in arrays] == list(range(count)), "arrays have other contents"

    many = timed(all_of_them, sizes.readings)
    functools.partial(all_of_them, check=True)()
    return {
        "bytes": host.nbytes,
        "put": put["median"],
        "get": get["median"],
        "count": count,
        "each": size,
        "many": many["median"],
    }
