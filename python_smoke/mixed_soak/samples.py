"""What is sampled while all workers rest, and the verdict."""

from __future__ import annotations

import gc
import statistics
import time
from pathlib import Path
from typing import Any

from pjrt_arena import memory

#: Allocators of Python, jaxlib and the engine settle in this share of the time, at least so many seconds.
WARM_UP, SHORTEST_WARM_UP = 0.15, 60.0
#: What resident memory may grow by in the rest of the time, as its slope says: a share of its median.
GROWTH = 0.02


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def books() -> list[list[int]]:
    """For each device the bytes and the blocks in use, and the bytes whose owner let go."""
    return [[device.bytes_in_use, device.num_live_blocks, device.pending_bytes] for device in memory.stats()]


def at_rest(expected: list[list[int]] | None, timeout: float = 60.0) -> list[list[int]]:
    """The books once they are as expected, or after some time: the last frees wait for threads of the engine."""
    end = time.monotonic() + timeout
    gc.collect()
    while (seen := books()) != expected and time.monotonic() < (end if expected else end - timeout + 1):
        time.sleep(0.01)
    return seen


def counted() -> dict[str, int]:
    """Of all devices together: compactions, and what they moved."""
    names = {"compactions": "num_compactions", "moved_blocks": "num_moves", "moved_bytes": "moved_bytes"}
    return {told: sum(getattr(device, name) for device in memory.stats()) for told, name in names.items()}


def slope(samples: list[dict[str, Any]]) -> float:
    """Bytes of resident memory in a second, by least squares."""
    if len(samples) < 3:
        return 0.0
    seconds = [sample["seconds"] for sample in samples]
    return statistics.linear_regression(seconds, [sample["resident"] for sample in samples]).slope


def after_warm_up(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples that count for the slope."""
    warm = max(WARM_UP * samples[-1]["seconds"], SHORTEST_WARM_UP)
    return [sample for sample in samples if sample["seconds"] >= warm]


def verdict(samples: list[dict[str, Any]]) -> tuple[list[str], str]:
    """What is wrong, and a sentence of figures."""
    faults = []
    if len({str(sample["books"]) for sample in samples}) != 1:
        first = samples[0]
        other = next(sample for sample in samples if sample["books"] != first["books"])
        faults.append(f"the books were {first['books']} and, after {other['seconds']:.0f} s, {other['books']}")
    if not (warm := after_warm_up(samples)):
        return faults, "resident memory is not judged: the time is no longer than the warm-up"
    grown = slope(warm) * (warm[-1]["seconds"] - warm[0]["seconds"])
    median = statistics.median(sample["resident"] for sample in warm)
    text = (
        f"resident memory after the warm-up: median {median / 2**20:.1f} MiB, "
        f"slope {slope(warm) * 3600 / 2**20:+.2f} MiB an hour, "
        f"by it {grown / 2**20:+.2f} MiB in all ({grown / median:+.2%}; at most {GROWTH:.0%})"
    )
    if grown > GROWTH * median:
        faults.append(text)
    return faults, text
