"""What a custom call costs on the arena and on JAX's own CPU backend: `python python_smoke/ffi_cost.py`, release build.

Both backends run in one process, in turn, so that a slow moment of the machine hits both; the table shows the median
of many readings, each the mean of a few calls that are waited for. "nothing" is a program without a custom call: what
is above it is the custom call's.
"""

import statistics
import tempfile
import time
from pathlib import Path

import handlers
import jax
import jax.numpy as jnp
import numpy as np

ROUNDS, CALLS = 300, 20


def programs() -> dict:
    """What is measured: a function and its arguments."""
    small = np.ones(8, np.float32)
    square = np.eye(4, dtype=np.float32) + 1
    return {
        "nothing: 2 x, 8 floats": (lambda x: 2 * x, small),
        "a handler: 2 x, 8 floats": (lambda x: handlers.scale(x, 2), small),
        "1000 times nothing": (lambda x: jax.lax.fori_loop(0, 1000, lambda _, x: 1 * x + 0 * x[0], x), small),
        "1000 times a handler": (lambda x: jax.lax.fori_loop(0, 1000, lambda _, x: handlers.scale(x, 1), x), small),
        "a handler with a state": (handlers.count,),
        "cholesky, 4 x 4": (jnp.linalg.cholesky, square),
        "eigh, 4 x 4": (jnp.linalg.eigh, square),
    }


def main() -> None:
    """Measures and prints the table."""
    devices = {"JAX's CPU": jax.devices("cpu")[0], "pjrt-arena": jax.devices("arena")[0]}
    with tempfile.TemporaryDirectory() as folder:
        handlers.register(handlers.build(Path(folder), "-O2"))
        print(f"{'microseconds a call, median':<32}" + "".join(f"{name:>12}" for name in devices))
        for row, (function, *arguments) in programs().items():
            ready = {}
            for name, device in devices.items():
                with jax.default_device(device):
                    compiled, placed = jax.jit(function), jax.device_put(arguments, device)
                    jax.block_until_ready(compiled(*placed))
                    ready[name] = device, compiled, placed
            readings: dict[str, list[float]] = {name: [] for name in devices}
            for _ in range(ROUNDS):
                for name, (device, compiled, placed) in ready.items():
                    with jax.default_device(device):
                        start = time.perf_counter()
                        for _ in range(CALLS):
                            jax.block_until_ready(compiled(*placed))
                        readings[name].append((time.perf_counter() - start) / CALLS * 1e6)
            print(f"{row:<32}" + "".join(f"{statistics.median(readings[name]):>12.1f}" for name in devices))


if __name__ == "__main__":
    main()
