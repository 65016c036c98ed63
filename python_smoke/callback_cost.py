"""The cost of a `jax.pure_callback` on the arena beside JAX's own CPU backend.

    python python_smoke/callback_cost.py [ROUNDS]      (a release build)

Both backends run the same jitted program, whose callback returns a scalar, in turns, so that what else the machine does
falls on both. Printed are medians and quartiles of one call, result included.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "arena,cpu")

import jax
import numpy as np

SIZES = {"4 B": (1, 300), "1 MiB": (1 << 18, 60), "64 MiB": (1 << 24, 4)}


def program(device, count):
    result = jax.ShapeDtypeStruct((), np.float32)
    run = jax.jit(lambda x: jax.pure_callback(lambda x: np.float32(1), result, x))
    argument = jax.device_put(np.ones(count, np.float32), device)
    return lambda: run(argument).block_until_ready()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    devices = {"arena": jax.devices("arena")[0], "cpu": jax.devices("cpu")[0]}
    for size, (count, repeats) in SIZES.items():
        programs = {name: program(device, count) for name, device in devices.items()}
        for run in programs.values():
            for _ in range(3):
                run()
        times: dict[str, list[float]] = {name: [] for name in programs}
        for turn in range(rounds):
            for name, run in sorted(programs.items(), reverse=turn % 2 == 1):
                for _ in range(repeats):
                    begun = time.perf_counter()
                    run()
                    times[name].append(time.perf_counter() - begun)
        for name, taken in times.items():
            low, median, high = (1e6 * value for value in np.percentile(taken, [25, 50, 75]))
            print(f"{size:>7}  {name:5}  {median:9.1f} us  ({low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
