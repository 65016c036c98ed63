"""What NumPy views cost with many live arrays: `python python_smoke/pin_cost.py [COUNT ...]`; 1000 to 1,000,000.

A view pins its array, and before the first one a small array moves out of the way of others. The time of each view,
and of an array that is made and dropped, must not grow with the number of arrays, and compaction must not make it more
than twice as long.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

#: The backend, and the variables of the arena.
CASES = {
    "JAX's CPU": None,
    "tpu, compaction on": {"PJRT_ARENA_STRATEGY": "tpu", "PJRT_ARENA_COMPACT": "on"},
    "tpu, off": {"PJRT_ARENA_STRATEGY": "tpu", "PJRT_ARENA_COMPACT": "off"},
    "preallocate, on": {"PJRT_ARENA_STRATEGY": "preallocate", "PJRT_ARENA_COMPACT": "on"},
    "preallocate, off": {"PJRT_ARENA_STRATEGY": "preallocate", "PJRT_ARENA_COMPACT": "off"},
}
PINS = 500


def measure(platform: str, count: int) -> dict[str, float]:
    """Medians in microseconds with so many live arrays of 8 bytes to 1 KiB."""
    import jax
    import numpy as np

    device = jax.devices(platform)[0]
    rng = random.Random(1)
    hosts = [np.arange(2**number, dtype=np.int32) for number in range(1, 9)]
    arrays: list[jax.Array] = []
    while len(arrays) < count:
        some = min(10_000, count - len(arrays))
        arrays += jax.device_put([hosts[rng.randrange(8)] for _ in range(some)], device)
    jax.block_until_ready(arrays[-1])
    made, pinned = [], []
    for _ in range(PINS):
        start = time.perf_counter()
        jax.device_put(hosts[3], device).block_until_ready()
        made.append(time.perf_counter() - start)
    for index in rng.sample(range(count), PINS):
        start = time.perf_counter()
        view = np.asarray(arrays[index])
        pinned.append(time.perf_counter() - start)
        if view.tobytes() != hosts[view.size.bit_length() - 2].tobytes():
            raise AssertionError(f"array {index} is wrong")
    start = time.perf_counter()
    device.memory_stats()
    stats = time.perf_counter() - start
    micro = {"put and drop": statistics.median(made), "view": statistics.median(pinned), "statistics": stats}
    return {name: seconds * 1e6 for name, seconds in micro.items()} | {"longest view": max(pinned) * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("counts", type=int, nargs="*", default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--platform", help="measure in this process")
    arguments = parser.parse_args()
    if arguments.platform:
        print(json.dumps(measure(arguments.platform, arguments.counts[0])))
        return
    print(
        f"{'':<22} {'arrays':>9} {'view':>9} {'longest':>9} {'put, drop':>9} {'statistics':>10}   us, medians of {PINS}"
    )
    for count in arguments.counts:
        for case, variables in CASES.items():
            platform = "cpu" if variables is None else "arena"
            run = subprocess.run(
                [sys.executable, __file__, str(count), "--platform", platform],
                env=os.environ | {"JAX_PLATFORMS": "arena,cpu", "PJRT_ARENA_LIMIT": "4GiB"} | (variables or {}),
                capture_output=True,
                text=True,
                check=False,
            )
            if run.returncode:
                sys.exit(run.stderr)
            seen = json.loads(run.stdout.splitlines()[-1])
            cells = (seen["view"], seen["longest view"], seen["put and drop"])
            print(f"{case:<22} {count:>9,} {' '.join(f'{cell:>9.1f}' for cell in cells)} {seen['statistics']:>10.1f}")


if __name__ == "__main__":
    main()
