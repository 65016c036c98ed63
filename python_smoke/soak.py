"""`make soak`: 10,000 training steps. Memory must be flat while they run and nothing may be left after them.

Prints a line every tenth of the way and ends with status 1 where something grew.
"""

import argparse
import gc
import sys
import time
from pathlib import Path

import jax
import model
from pjrt_arena import memory


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def blocks() -> int:
    """Blocks that the arena has handed out and not got back."""
    return sum(device.num_live_blocks for device in memory.counters().devices)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    steps = parser.parse_args().steps
    device = jax.devices("arena")[0]

    parameters, state, optimiser = model.initial_state()
    step = model.make_step(optimiser)
    key = jax.random.key(1)
    readings = []
    start = time.perf_counter()
    print(f"{'step':>7} {'loss':>9} {'bytes_in_use':>13} {'blocks':>7} {'peak':>11} {'resident MiB':>13}")
    for number in range(1, steps + 1):
        parameters, state, key, value = step(parameters, state, key)
        if number % max(1, steps // 10) == 0:
            jax.block_until_ready((parameters, state, key, value))
            stats = device.memory_stats()
            readings.append((stats["bytes_in_use"], blocks(), resident()))
            peak = stats["peak_bytes_in_use"]
            print(
                f"{number:7} {float(value):9.6f} {readings[-1][0]:13,} {readings[-1][1]:7}"
                f" {peak:11,} {readings[-1][2] / 2**20:13.1f}"
            )
    took = time.perf_counter() - start
    del parameters, state, key, value, step, optimiser
    jax.clear_caches()
    gc.collect()
    # The last frees wait for the engine's threads.
    end = time.monotonic() + 10
    while (left := (device.memory_stats()["bytes_in_use"], blocks())) != (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    print(f"{took:.1f} s, {took / steps * 1e6:.0f} us a step; left after deletion: {left[0]} bytes in {left[1]} blocks")
    counters = memory.counters().results
    print(f"results: {counters.placed} placed, missed {counters.missed}, left out {counters.skipped}")

    faults = []
    if len({(live, count) for live, count, _ in readings}) != 1:
        faults.append("bytes_in_use or the number of blocks was not flat")
    # Allocators of Python, jaxlib and the engine settle in the first tenth; 2 % is what they may still take.
    if readings[-1][2] > 1.02 * readings[0][2]:
        faults.append(f"resident memory grew from {readings[0][2]} to {readings[-1][2]} bytes")
    if left != (0, 0):
        faults.append(f"{left[1]} blocks with {left[0]} bytes were left")
    for fault in faults:
        print(f"FAULT: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
