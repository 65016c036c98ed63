"""One matrix product under limits of the system, as batch systems and shells set them: `python -m bench.limits`.

    round 1   -v 1 GB: cpu, preallocate, growing, ...    -v 1.5 GB: ..., growing, preallocate, cpu    ...
    round 2   -v 1 GB: ..., growing, preallocate, cpu    ...

A process for each limit, backend and round. It sets the limit before it imports JAX. A cell says how many of the
processes were well, ended with an error that names the limit, with another error, or by a signal. The status is 1 where
a strategy's process ended by a signal under a limit under which all of JAX's CPU backend were well.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.backends import clean_environment, engine_path
from bench.whole import STRATEGIES

#: What `ulimit -v` and the others limit, and the unit of the number behind it here.
KINDS = {
    "v": (resource.RLIMIT_AS, 10**9, "GB"),
    "d": (resource.RLIMIT_DATA, 10**9, "GB"),
    "l": (resource.RLIMIT_MEMLOCK, 10**3, "kB"),
}
#: No limit but those under which the caller is: a control group.
NONE = "none"
LIMITS = tuple(f"{kind}{size}" for kind in "vd" for size in ("1", "1.5", "2.5", "4", "6"))
#: How a process can end.
WELL, NAMED, ERROR = "ok", "names the limit", "error"


def limited(limit: str) -> tuple[int, int] | None:
    """The resource and the bytes of a limit as it is written here, `v1.5`.

    Raises:
      ValueError: it is not one.
    """
    if limit == NONE:
        return None
    if limit[:1] not in KINDS:
        raise ValueError(limit)
    which, unit, _ = KINDS[limit[0]]
    return which, int(float(limit[1:]) * unit)


def titled(limit: str) -> str:
    """The limit as a row of the table has it."""
    return limit if limit == NONE else f"`ulimit -{limit[0]}`, {limit[1:]} {KINDS[limit[0]][2]}"


def multiply(limit: str) -> None:
    """The product, in this process."""
    if chosen := limited(limit):
        which, most = chosen
        resource.setrlimit(which, (most, most))
    import jax
    import jax.numpy as jnp

    ones = jnp.ones((1024, 1024))
    if float((ones @ ones)[-1, -1]) != 1024 or not jax.devices():
        raise RuntimeError("a wrong product")


def ended(status: int, said: str) -> str:
    """How a process with this status ended that said so on standard error."""
    if status < 0:
        return signal.Signals(-status).name
    if status == 0:
        return WELL
    return NAMED if "`ulimit -" in said else ERROR


def run(limit: str, backend: str) -> tuple[str, str]:
    """How a fresh process ended, and the end of what it said."""
    settings = {"JAX_PLATFORMS": "cpu"}
    if backend != "cpu":
        settings = {"JAX_PLATFORMS": "arena,cpu", "PJRT_ARENA_ENGINE": str(engine_path())}
        settings["PJRT_ARENA_STRATEGY"] = backend
    command = [sys.executable, "-m", "bench.limits", "--run", limit]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    return ended(done.returncode, done.stderr), done.stderr[-2000:]


def table(runs: dict[str, dict[str, list[str]]]) -> str:
    """Markdown: how often processes ended how, the most frequent end first."""
    backends = list(next(iter(runs.values())))

    def cell(ends: list[str]) -> str:
        return ", ".join(f"{times} {end}" for end, times in Counter(ends).most_common())

    lines = ["| limit | " + " | ".join(backends) + " |", "|---" * (len(backends) + 1) + "|"]
    lines += [
        f"| {titled(limit)} | " + " | ".join(cell(row[backend]) for backend in backends) + " |"
        for limit, row in runs.items()
    ]
    return "\n".join(lines)


def broken(runs: dict[str, dict[str, list[str]]]) -> list[str]:
    """Where a strategy ended by a signal, and JAX's CPU backend was well each time."""
    return [
        f"{titled(limit)}: {backend} ended by a signal, JAX's CPU backend was well"
        for limit, row in runs.items()
        if set(row["cpu"]) == {WELL}
        for backend, ends in row.items()
        if any(end.startswith("SIG") for end in ends)
    ]


def measure(limits: Sequence[str], backends: Sequence[str], rounds: int, at_once: int) -> dict[str, dict[str, list]]:
    """For each limit and backend the ends of its processes, each with what it said."""
    plan = [
        (limit, backend)
        for turn in range(rounds)
        for number, limit in enumerate(limits)
        for backend in backends[:: -1 if (turn + number) % 2 else 1]
    ]
    runs: dict[str, dict[str, list]] = {limit: {backend: [] for backend in backends} for limit in limits}
    with ThreadPoolExecutor(at_once) as pool:
        for (limit, backend), end in zip(plan, pool.map(lambda one: run(*one), plan), strict=True):
            runs[limit][backend].append(end)
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--limits",
        default=",".join(LIMITS),
        metavar="LIMIT,...",
        help="v1.5 is `ulimit -v` of 1.5 GB, d1.5 is -d, l8 is -l of 8 kB; none is what the caller has",
    )
    parser.add_argument("--strategies", default=",".join(STRATEGIES), metavar="NAME,...", help="all by default")
    parser.add_argument("--rounds", type=int, default=10, help="(10)")
    parser.add_argument("--at-once", type=int, default=1, help="processes that run at the same time (1)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write how each process ended, and its last words")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run:
        multiply(chosen.run)
        return 0
    clean_environment()
    limits, backends = chosen.limits.split(","), ["cpu", *chosen.strategies.split(",")]
    for limit in limits:
        try:
            limited(limit)
        except ValueError:
            parser.error(f"--limits={limit}: none of {', '.join(LIMITS)}, {NONE}, or another number")
    if unknown := [each for each in backends[1:] if each not in STRATEGIES]:
        parser.error(f"--strategies={unknown[0]}: none of {', '.join(STRATEGIES)}")
    if min(chosen.rounds, chosen.at_once) < 1:
        parser.error("--rounds and --at-once must be 1 or more")
    told = measure(limits, backends, chosen.rounds, chosen.at_once)
    runs = {limit: {name: [end for end, _ in ends] for name, ends in row.items()} for limit, row in told.items()}
    print(table(runs))
    if chosen.json:
        chosen.json.write_text(json.dumps({"rounds": chosen.rounds, "runs": told}, indent=1) + "\n")
    wrong = broken(runs)
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
