"""Threads make, use, keep and drop arrays of known contents in memory that is nearly full, beside compactions."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import jax
import numpy as np

from gpu.clock import out_of_memory
from gpu.room import filled, holds, limit
from gpu.sizes import Sizes

WORKERS = 6
#: Arrays that a thread keeps at most.
KEPT = 24

step = jax.jit(lambda x: x * 0.5 + 1)
in_place = jax.jit(lambda x: x * 0.5 + 1, donate_argnums=0)


class _Worker(threading.Thread):
    """One of them."""

    def __init__(self, number: int, counts: list[int], end: float) -> None:
        super().__init__(daemon=True)
        self._random, self._counts, self._end = np.random.default_rng(number), counts, end
        self._live: list[tuple[float, jax.Array]] = []
        self.turns = self.refused = self.checked = 0
        self.failure = ""

    def run(self) -> None:
        try:
            while time.monotonic() < self._end:
                self.turns += 1
                try:
                    self._turn(int(self._random.integers(6)))
                except Exception as error:
                    if not out_of_memory(error):
                        raise
                    self.refused += 1
                    for _ in range(max(1, len(self._live) // 3)):
                        self._live.pop(self._any())
                if len(self._live) > KEPT:
                    self._live.pop(0)
            for value, array in self._live:
                self._check(value, array)
        except BaseException as error:
            self.failure = f"{type(error).__name__}: {error}"[:500]
        self._live.clear()

    def _any(self) -> int:
        return int(self._random.integers(len(self._live)))

    def _turn(self, kind: int) -> None:
        if kind <= 1 or not self._live:
            value = float(self._random.integers(1000))
            self._live.append((value, filled(value, int(self._random.choice(self._counts)))))
        elif kind == 2:
            value, array = self._live[self._any()]
            self._live.append((value * 0.5 + 1, step(array)))
        elif kind == 3:
            value, array = self._live.pop(self._any())
            self._live.append((value * 0.5 + 1, in_place(array)))
        elif kind == 4:
            self._check(*self._live[self._any()])
        else:
            self._live.pop(self._any())

    def _check(self, value: float, array: jax.Array) -> None:
        self.checked += 1
        assert bool(holds(array, value)), f"{float(array[0])} is not {value}"


def run(sizes: Sizes) -> dict[str, Any]:
    """What they did; fails if an array had other contents, if one hangs, or if memory is left in use."""
    from pjrt_arena import memory

    counts = [max(64, int(limit() / WORKERS / 4 * 2**-octave)) for octave in (3, 4, 5, 6, 8, 10)]
    end = time.monotonic() + sizes.threads_seconds
    workers = [_Worker(number, counts, end) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    while time.monotonic() < end:
        memory.compact()
        time.sleep(0.05)
    for worker in workers:
        worker.join(60)
    assert not any(worker.is_alive() for worker in workers), "a thread hangs"
    failures = [worker.failure for worker in workers if worker.failure]
    assert not failures, "; ".join(failures)
    del worker
    gc.collect()
    left = jax.devices()[0].memory_stats()["bytes_in_use"]
    assert not left, f"{left} bytes are in use when all is gone"
    stats = memory.stats()[0]
    return {
        **{name: sum(getattr(each, name) for each in workers) for name in ("turns", "refused", "checked")},
        "num_moves": stats.num_moves,
        "moved_bytes": stats.moved_bytes,
        "num_spilled": stats.spill.num_spilled if stats.spill else 0,
    }
