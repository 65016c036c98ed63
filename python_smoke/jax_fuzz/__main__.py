"""The command line: one process after another for some time, or one of them again.

It ends with status 1 where a result differed, the books did not balance, or a process did not end well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jax_fuzz.drawn import draw, read, variables, word

#: Seconds that a process may take. One that hangs ends itself before, with what its threads do.
LONGEST = 3600


def main() -> int:
    parser = argparse.ArgumentParser(prog="jax_fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the process's, or of the first one; default: 1")
    parser.add_argument("--settings", help="run this one process, with the settings that a failure named")
    parser.add_argument("--steps", type=int, default=250, help="actions of each thread; default: 250")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to go on with other seeds; default: 1")
    parser.add_argument("--count", type=int, default=10**9, help="end after so many seeds")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time; default: 1")
    arguments = parser.parse_args()
    if arguments.settings is not None:
        settings = read(arguments.settings)
        # JAX reads them when it is imported.
        os.environ.update(variables(settings))
        from jax_fuzz import process

        return process.run(arguments.seed, settings, arguments.steps)
    return _many(arguments)


def _many(arguments: argparse.Namespace) -> int:
    end, total = time.monotonic() + 60 * arguments.minutes, Counter[str]()
    seeds = iter(range(arguments.seed, arguments.seed + arguments.count))

    def work(_: int) -> Counter[str]:
        counts: Counter[str] = Counter()
        while (time.monotonic() < end or not counts) and (seed := next(seeds, None)) is not None:
            counts.update(_one(seed, arguments.steps))
        return counts

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for counts in pool.map(work, range(arguments.jobs)):
            total.update(counts)
    print(", ".join(f"{name} {total[name]:,}" for name in ("processes", *sorted(set(total) - {"processes"}))))
    return 1 if total["failures"] else 0


def _one(seed: int, steps: int) -> dict[str, int]:
    """What a process of this seed counted. Prints how to repeat a failure."""
    command = ["--seed", str(seed), "--settings", word(draw(seed)), "--steps", str(steps)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_", "TF_CPP_"))}
    folder = str(Path(__file__).resolve().parents[1])
    kept["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [kept.get("PYTHONPATH")])])
    try:
        run = subprocess.run(
            [sys.executable, "-m", "jax_fuzz", *command],
            env=kept,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        status, said, lines = run.returncode, run.stdout + run.stderr[-20_000:], run.stdout.splitlines()
    except subprocess.TimeoutExpired as late:
        status, said, lines = -1, f"no end after {LONGEST} s\n{late.stdout!r}\n{late.stderr!r}", []
    counts: dict[str, int] = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    if status != 0:
        counts["failures"] = max(1, counts.get("failures", 0))
        print(f"{said}\nstatus {status}; again:\n  python -m jax_fuzz {' '.join(command)}", flush=True)
    return counts | {"processes": 1, "failures": counts.get("failures", 0)}


if __name__ == "__main__":
    sys.exit(main())
