"""Times, in seconds, and what they come to."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles; of one value, that value three times."""
    if len(values) == 1:
        return {"median": values[0], "q1": values[0], "q3": values[0]}
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}


def timed(run: Callable[[], Any], readings: int, calls: int = 1, warm: int = 2) -> dict[str, float]:
    """Seconds per call of `run`, which makes `calls` of them and returns when they are done."""
    for _ in range(warm):
        run()
    seen = []
    for _ in range(readings):
        start = time.perf_counter()
        run()
        seen.append((time.perf_counter() - start) / calls)
    return spread(seen)


def repeats(took: float, least: float) -> int:
    """How often something that takes `took` seconds is to be done in one reading, so that this takes `least`."""
    return max(1, math.ceil(least / max(took, 1e-9)))


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception of JAX's says that memory is exhausted, and not something else."""
    return "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)
