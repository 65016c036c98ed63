"""What sleep gives back, and what it costs: `python -m bench.sleeping`.

Arrays of so many MiB, spilled to memory of the host or to files of a folder, and brought back: resident memory before
them, with them and asleep; seconds of `memory.sleep()` and `memory.wake()`, and of a copy of as much memory, as NumPy
makes it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.backends import clean_environment, engine_path

#: The size of each array.
ARRAY = 64 << 20


def resident() -> int:
    """Bytes of this process in memory."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/smaps_rollup has no Rss")


def timed(act: Callable[[], Any]) -> float:
    """Seconds that `act` takes."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sleeping", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where the arrays go; without one, memory of the host")
    parser.add_argument("--mib", type=int, default=2048)
    chosen = parser.parse_args()
    clean_environment()
    settings = {
        "ENGINE": engine_path(),
        "SPILL": chosen.folder.resolve() if chosen.folder else "host",
        "LIMIT": f"{2 * chosen.mib}MiB",
    }
    os.environ["JAX_PLATFORMS"] = "arena,cpu"
    os.environ |= {f"PJRT_ARENA_{name}": str(value) for name, value in settings.items()}
    import jax
    import jax.numpy as jnp
    import numpy as np
    from pjrt_arena import memory

    fill = jax.jit(lambda value: jnp.arange(ARRAY // 4, dtype=jnp.float32) + value)
    check = jax.jit(lambda array, value: (array == jnp.arange(ARRAY // 4, dtype=jnp.float32) + value).all())
    bool(check(fill(0.0), 0.0))
    fresh = resident()
    arrays = [fill(float(number)) for number in range((chosen.mib << 20) // ARRAY)]
    jax.block_until_ready(arrays)
    full = resident()
    [slept] = memory.sleep()
    asleep = resident()
    [woken] = memory.wake()
    right = all(bool(check(array, float(number))) for number, array in enumerate(arrays))
    [again] = memory.sleep()
    source, target = np.ones(ARRAY, np.uint8), np.ones(ARRAY, np.uint8)
    floor = len(arrays) * min(timed(lambda: np.copyto(target, source)) for _ in range(5))
    print(f"resident: {fresh >> 20} MiB before the arrays, {full >> 20} with them, {asleep >> 20} asleep")
    print(f"asleep in {slept.seconds:.2f} s, awake in {woken.seconds:.2f} s, asleep again in {again.seconds:.2f} s")
    print(f"a copy of {len(arrays) * ARRAY >> 20} MiB takes {floor:.2f} s; {slept.bytes_in_use} bytes stayed in use")
    print(f"arrays: {'all as before' if right else 'WRONG'}")


if __name__ == "__main__":
    main()
