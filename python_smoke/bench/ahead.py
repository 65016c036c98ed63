"""How far callers run ahead of their programs: `python -m bench.ahead`.

A loop calls one program 100 times and waits for nothing. What is told is the time until the loop is done and its caller
is free, and the time until the last result is there. The program is a loop of sines over 1024 elements, as long as each
row says; how many turns that takes, JAX's CPU backend is asked once, so that all backends compute the same.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.backends import BACKENDS, REFERENCE, Backend, another_library, clean_environment, enter
from bench.results import show_seconds

#: Milliseconds that the programs take by default.
LENGTHS = (0.1, 1.0, 10.0, 100.0)


def _program(turns: int):
    import jax
    import jax.numpy as jnp

    @jax.jit
    def program(x):
        return jax.lax.fori_loop(0, turns, lambda _, y: jnp.sin(y) + x, x)

    x = jax.block_until_ready(jnp.full(1024, 0.5, jnp.float32))
    return program, x


def turns_for(milliseconds: float) -> int:
    """Turns of the program's loop that take so long on JAX's CPU backend. In a process that has not imported JAX."""
    with tempfile.TemporaryDirectory() as folder:
        enter(BACKENDS[REFERENCE], 1, Path(folder))
    turns = 2000
    program, x = _program(turns)
    program(x).block_until_ready()
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        program(x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return max(1, round(turns * milliseconds / 1e3 / statistics.median(seconds)))


def measure(backend: Backend, turns: int, calls: int) -> tuple[float, float]:
    """Seconds until the caller is free, and until all is done. In a process that has not imported JAX."""
    with tempfile.TemporaryDirectory() as folder:
        enter(backend, 1, Path(folder))
    program, x = _program(turns)
    for _ in range(5):
        program(x).block_until_ready()
    start = time.perf_counter()
    for _ in range(calls):
        result = program(x)
    free = time.perf_counter() - start
    result.block_until_ready()
    return free, time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.ahead", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--lengths", metavar="MS", type=float, nargs="+", default=LENGTHS, help="milliseconds that the programs take"
    )
    parser.add_argument("--rounds", type=int, default=3, help="processes for each program and backend (3)")
    parser.add_argument("--calls", type=int, default=100, help="calls of a loop (100)")
    parser.add_argument("--library", metavar="PATH", type=Path, help="one more build of pjrt-arena")
    chosen = parser.parse_args()
    if min(chosen.rounds, chosen.calls) < 1:
        parser.error("--rounds and --calls must be 1 or more")
    if min(chosen.lengths) <= 0:
        parser.error("--lengths must be above 0")
    if chosen.library and not chosen.library.is_file():
        parser.error(f"--library={chosen.library}: must be the path of a file")
    clean_environment()
    backends = [BACKENDS[REFERENCE], BACKENDS["synchronous"], BACKENDS["arena"]]
    if chosen.library:
        backends.append(another_library("other build", chosen.library))
    context = multiprocessing.get_context("spawn")

    def alone(function, *arguments):
        with context.Pool(1) as pool:
            return pool.apply(function, arguments)

    print("| a program of | " + " | ".join(f"{backend.title}: free, done" for backend in backends) + " |")
    print("|---|" + "---:|" * len(backends))
    for milliseconds in chosen.lengths:
        turns = alone(turns_for, milliseconds)
        seconds: dict[str, list[tuple[float, float]]] = {backend.name: [] for backend in backends}
        for number in range(chosen.rounds):
            for backend in backends[:: 1 if number % 2 else -1]:
                seconds[backend.name].append(alone(measure, backend, turns, chosen.calls))
        cells = []
        for backend in backends:
            medians = (statistics.median(values) for values in zip(*seconds[backend.name], strict=True))
            cells.append(", ".join(map(show_seconds, medians)))
        print(f"| {milliseconds:g} ms | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
