"""`make demo`: trains a small model with JAX on the arena and shows, on one screen, what memory did.

Then the same program twice in a memory of 64 MiB that it leaves in pieces (`fragments.py`): under the default strategy
it runs out of memory, under `tpu`, which moves arrays, it does not.
"""

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

import jax
import model
import pjrt_arena
from pjrt_arena import memory

STEPS = 1000


def size(count: int) -> str:
    """Bytes in the largest unit that keeps them above one."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def reasons(counts: Mapping[str, int]) -> str:
    """`3 (2 of one kind, 1 of another)`."""
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    return f"{sum(counts.values())}" + (f" ({listed})" if listed else "")


def row(title: str, text: str) -> None:
    """One line of the screen."""
    print(f"{title:10} {text}")


def fragments(strategy: str) -> dict:
    """What became of the workload of `fragments.py` under `strategy`, in a process of its own."""
    settings = {"STRATEGY": strategy, "LIMIT": "64MiB", "DEVICES": "1"}
    environment = {f"PJRT_ARENA_{name}": value for name, value in settings.items()}
    run = subprocess.run(
        [sys.executable, Path(__file__).with_name("fragments.py")],
        env={name: value for name, value in os.environ.items() if name != "PJRT_ARENA_COMPACT"} | environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(run.stdout)


def show_fragments() -> bool:
    """The last act; whether it went as it must."""
    fails, works = fragments("preallocate"), fragments("tpu")
    print(f"\n{fails['kept']} small results are kept, big ones between them are gone; asked for: 51.2 MiB")
    print(f"\nwith PJRT_ARENA_STRATEGY=preallocate:\n{fails['before'].rstrip()}")
    for line in (fails["error"] or "It went through, although it should not have.").splitlines():
        print(textwrap.fill(line, 80, subsequent_indent="    "))
    if works["error"]:
        print(f"\nwith PJRT_ARENA_STRATEGY=tpu: {works['error']}")
        return False
    picture = [line for line in works["after"].splitlines() if line[:1] not in "#+"]
    print("\nwith PJRT_ARENA_STRATEGY=tpu it is there:", *picture, sep="\n")
    stats = works["stats"]
    print(
        f"{stats['num_moves']} moves, {size(stats['moved_bytes'])} in all. Every array that was kept is bit for bit "
        "as it\nwas; the one with a NumPy view (p) stayed where it was."
    )
    return fails["error"] is not None


def main() -> int:
    try:
        devices = jax.devices("arena")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    strategies = sorted({device.strategy for device in memory.counters().devices})
    row("pjrt-arena", f"{pjrt_arena.__version__} with jax {jax.__version__}")
    row("strategy", ", ".join(strategies))
    row("devices", ", ".join(f"{device.id}: {device.device_kind}" for device in devices))

    parameters, state, optimiser = model.initial_state()
    step = model.make_step(optimiser)
    key = jax.random.key(1)
    parameters, state, key, first = step(parameters, state, key)
    first = float(first)
    start = time.perf_counter()
    for _ in range(STEPS - 1):
        parameters, state, key, last = step(parameters, state, key)
    last = float(last)
    took = time.perf_counter() - start
    row("training", f"{STEPS} steps of a network that learns a sine: loss {first:.3f} -> {last:.5f}, {took:.2f} s")

    every = [device.memory_stats() for device in devices[:4]]
    row("memory", f"{'of device':26}" + "".join(f"{device.id:>12}" for device in devices[:4]))
    for field in sorted(every[0]):
        show = str if field == "num_allocs" else size
        row("", f"{field:26}" + "".join(f"{show(stats[field]):>12}" for stats in every))
    counters = memory.counters()
    programs, results = counters.programs, counters.results
    row("programs", f"{programs.rewritten} rewritten, not rewritten: {reasons(programs.not_rewritten)}")
    row("results", f"{results.placed} placed in the arena, missed: {reasons(results.missed)}")
    row("", f"left out by the rules: {reasons(results.skipped)}")
    return 0 if show_fragments() and last < 0.1 * first else 1


if __name__ == "__main__":
    sys.exit(main())
