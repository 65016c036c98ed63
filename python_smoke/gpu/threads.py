"""Threads make, use, keep and drop arrays of known contents in memory that is nearly full, beside compactions."""

from __future__ import annotations

import gc
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from gpu.clock import out_of_memory
from gpu.room import Filled, check, filled, limit
from gpu.sizes import Sizes

WORKERS = 6
#: Arrays that a thread keeps at most.
KEPT = 24

step = jax.jit(lambda x: x * 0.5 + 1)
in_place = jax.jit(lambda x: x * 0.5 + 1, donate_argnums=0)


def _work(number: int, counts: list[int], end: float) -> Counter[str]:
    random, live, did = np.random.default_rng(number), Filled(), Counter[str]()

    def any_of_them() -> int:
        return int(random.integers(len(live)))

    def turn(kind: int) -> None:
        if kind <= 1 or not live:
            value = float(random.integers(1000))
            live.append((value, filled(value, int(random.choice(counts)))))
        elif kind == 2:
            value, array = live[any_of_them()]
            live.append((value * 0.5 + 1, step(array)))
        elif kind == 3:
            value, array = live.pop(any_of_them())
            live.append((value * 0.5 + 1, in_place(array)))
        elif kind == 4:
            check([live[any_of_them()]])
            did["checked"] += 1
        else:
            live.pop(any_of_them())

    while time.monotonic() < end:
        did["turns"] += 1
        try:
            turn(int(random.integers(6)))
        except Exception as error:
            if not out_of_memory(error):
                raise
            did["refused"] += 1
            for _ in range(max(1, len(live) // 3)):
                live.pop(any_of_them())
        del live[: max(0, len(live) - KEPT)]
    check(live)
    did["checked"] += len(live)
    return did


def run(sizes: Sizes) -> dict[str, Any]:
    """What they did; fails if an array had other contents, or if memory is left in use."""
    from pjrt_arena import memory

    counts = [max(64, int(limit() / WORKERS / 4 * 2**-octave)) for octave in (3, 4, 5, 6, 8, 10)]
    end = time.monotonic() + sizes.threads_seconds
    with ThreadPoolExecutor(WORKERS) as pool:
        working = [pool.submit(_work, number, counts, end) for number in range(WORKERS)]
        while time.monotonic() < end:
            memory.compact()
            time.sleep(0.05)
        did = sum((each.result() for each in working), Counter[str]())
    del working
    gc.collect()
    left = jax.devices()[0].memory_stats()["bytes_in_use"]
    assert not left, f"{left} bytes are in use when all is gone"
    stats = memory.stats()[0]
    spilled = stats.spill.num_spilled if stats.spill else 0
    return {**did, "num_moves": stats.num_moves, "moved_bytes": stats.moved_bytes, "num_spilled": spilled}
