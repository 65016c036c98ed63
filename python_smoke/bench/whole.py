"""Whole processes with loops that do not wait, as users run them: `python -m bench.whole`.

    round 1   eager: cpu, preallocate, tpu    sgd: tpu, preallocate, cpu    ...
    round 2   eager: tpu, preallocate, cpu    ...

A process for each loop, backend and round: seconds of the loop, its highest resident memory (VmHWM), and what is
resident two seconds after it. A process that does nothing is measured, too: a second XLA is in it. What is told are
medians, in MB; `--json` has all.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.backends import clean_environment, engine_path

if TYPE_CHECKING:
    from user_loops import Loop

STRATEGIES = ("preallocate", "growing", "platform", "tpu")
#: A process that does nothing.
IDLE = "idle"
#: Seconds before what is resident is read.
REST = 2.0


def resident(key: str) -> float:
    """MB of this process: VmHWM or VmRSS."""
    return int(Path("/proc/self/status").read_text().split(f"{key}:")[1].split()[0]) / 1e3


def loops() -> dict[str, Callable[[int], Loop]]:
    """Those of users, and those of libraries."""
    from library_loops import LIBRARY_LOOPS
    from user_loops import LOOPS

    return LOOPS | LIBRARY_LOOPS


def measure(name: str, mib: int, steps: int | None) -> dict[str, float]:
    """Runs the loop in this process."""
    import jax

    if name == IDLE:
        jax.numpy.zeros(1).block_until_ready()
        return {"seconds": 0.0, "peak": resident("VmHWM"), "after": resident("VmRSS")}
    state, step, times = loops()[name](mib << 20)
    start = time.perf_counter()
    for turn in range(steps or times):
        state = step(state, turn)
    jax.block_until_ready(state)
    took, peak = time.perf_counter() - start, resident("VmHWM")
    time.sleep(REST)
    return {"seconds": took, "peak": peak, "after": resident("VmRSS")}


def run(name: str, backend: str, mib: int, steps: int | None, others: Sequence[str]) -> dict[str, float]:
    """The same in a fresh process, on JAX's CPU backend or on a strategy of the arena.

    Raises:
      RuntimeError: it failed; with what it said.
    """
    settings = {"JAX_PLATFORMS": "cpu"}
    if backend != "cpu":
        settings = {"JAX_PLATFORMS": "arena,cpu", "PJRT_ARENA_ENGINE": str(engine_path())}
        settings["PJRT_ARENA_STRATEGY"] = backend
        for setting, _, value in (each.partition("=") for each in others):
            settings[f"PJRT_ARENA_{setting.upper()}"] = value
    command = [sys.executable, "-m", "bench.whole", "--run", name, "--mib", str(mib)]
    command += [] if steps is None else ["--steps", str(steps)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} on {backend}: status {done.returncode}\n{done.stderr[-2000:]}")
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def table(runs: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """Markdown: for each loop and backend the peak, what stays, and the time, and ratios to JAX's CPU backend."""
    backends = list(next(iter(runs.values())))

    def median(name: str, backend: str, what: str) -> float:
        return statistics.median(each[what] for each in runs[name][backend])

    def cell(name: str, backend: str) -> str:
        peak, after, took = (median(name, backend, what) for what in ("peak", "after", "seconds"))
        ratio = f" ({took / median(name, 'cpu', 'seconds'):.2f})" if backend != "cpu" and took else ""
        return f"{peak:.0f}, {after:.0f}" + (f", {took:.2f} s{ratio}" if took else "")

    lines = ["| loop | " + " | ".join(backends) + " |", "|---|" + "---:|" * len(backends)]
    lines += [f"| {name} | " + " | ".join(cell(name, backend) for backend in backends) + " |" for name in runs]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.whole", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="NAME,...", help="loops; all by default")
    parser.add_argument("--strategies", default="preallocate,tpu", metavar="NAME,...", help="(preallocate,tpu)")
    parser.add_argument("--mib", type=int, default=64, help="of the largest array (64)")
    parser.add_argument("--steps", type=int, help="of each loop; some tens by default")
    parser.add_argument("--rounds", type=int, default=3, help="(3)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SETTING=VALUE", help="of the arena: limit=2GiB, compact=on, ..."
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures to this file")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run:
        print(json.dumps(measure(chosen.run, chosen.mib, chosen.steps)))
        return 0
    clean_environment()
    known_names = [IDLE, *loops()]
    names = chosen.only.split(",") if chosen.only else known_names
    backends = ["cpu", *chosen.strategies.split(",")]
    for option, given, known in (("only", names, known_names), ("strategies", backends[1:], STRATEGIES)):
        if unknown := [each for each in given if each not in known]:
            parser.error(f"--{option}={unknown[0]}: none of {', '.join(known)}")
    if wrong := [each for each in chosen.set if not each.partition("=")[2]]:
        parser.error(f"--set={wrong[0]}: no SETTING=VALUE, such as limit=2GiB")
    if min(chosen.mib, chosen.rounds) < 1 or (chosen.steps is not None and chosen.steps < 1):
        parser.error("--mib, --rounds and --steps must be 1 or more")
    runs: dict[str, dict[str, list[Any]]] = {name: {backend: [] for backend in backends} for name in names}
    for turn in range(chosen.rounds):
        for number, name in enumerate(names):
            for backend in backends[:: -1 if (turn + number) % 2 else 1]:
                runs[name][backend].append(run(name, backend, chosen.mib, chosen.steps, chosen.set))
    print(table(runs))
    if chosen.json:
        given = {"mib": chosen.mib, "steps": chosen.steps, "set": chosen.set}
        chosen.json.write_text(json.dumps(given | {"runs": runs}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
