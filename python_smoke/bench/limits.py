"""One matrix product under limits of the system, as batch systems and shells set them: `python -m bench.limits`.

    round 1   -v 1 GB: cpu, preallocate, growing, ...    -v 1.5 GB: ..., growing, preallocate, cpu    ...
    round 2   -v 1 GB: ..., growing, preallocate, cpu    ...

A process for each limit, backend and round. It is under the limit before it imports JAX. With `--fill` it keeps arrays
after the product until memory is exhausted, and then multiplies again. A cell says how many of the processes were well,
ended with an error that names the limit, with another error, or by a signal. The status is 1 where a strategy's process
ended by a signal under a limit under which all of JAX's CPU backend were well, or with `--fill`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.backends import clean_environment, engine_path
from bench.whole import STRATEGIES

#: What `ulimit -v` and the others limit, and the unit of the number behind it here; a control group is no such limit.
KINDS = {
    "v": (resource.RLIMIT_AS, 10**9, "GB"),
    "d": (resource.RLIMIT_DATA, 10**9, "GB"),
    "l": (resource.RLIMIT_MEMLOCK, 10**3, "kB"),
    "g": (None, 10**9, "GB"),
}
#: No limit but those under which the caller is.
NONE = "none"
#: Where control groups are, of version 1 and 2, and what limits the memory of one.
GROUPS = {"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}
#: Bytes of an array that is kept, and the most that a process keeps: a test of the limit of the arena needs no more.
KEPT, MOST_KEPT = 4 << 20, 8 << 30
LIMITS = tuple(f"{kind}{size}" for kind in "vd" for size in ("1", "1.5", "2.5", "4", "6"))
#: How a process can end.
WELL, NAMED, ERROR = "ok", "names the limit", "error"


def limited(limit: str) -> tuple[int | None, int] | None:
    """The resource, if it is one, and the bytes of a limit as it is written here, `v1.5`.

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
    if limit == NONE:
        return limit
    name = "control group" if limit[0] == "g" else f"`ulimit -{limit[0]}`"
    return f"{name}, {limit[1:]} {KINDS[limit[0]][2]}"


@contextmanager
def control_group(most: int) -> Iterator[Path]:
    """A new control group whose processes have so many bytes of memory together.

    Raises:
      OSError: the system lets none be made.
    """
    root = next((Path(root) for root in GROUPS if Path(root, "cgroup.procs").exists()), None)
    if root is None:
        raise FileNotFoundError(f"no control groups in {', '.join(GROUPS)}")
    group = Path(tempfile.mkdtemp(prefix="bench-limits-", dir=root))
    try:
        (group / GROUPS[str(root)]).write_text(str(most))
        yield group
    finally:
        # A process that was killed is in it for a moment yet.
        for pause in (0.01, 0.1, 1, 10):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(pause)


def multiply(limit: str, fill: bool) -> None:
    """The product, in this process."""
    if chosen := limited(limit):
        which, most = chosen
        if which is not None:
            resource.setrlimit(which, (most, most))
    import jax
    import jax.numpy as jnp

    def product() -> None:
        ones = jnp.ones((1024, 1024))
        if float((ones @ ones)[-1, -1]) != 1024 or not jax.devices():
            raise RuntimeError("a wrong product")

    product()
    kept = list[jax.Array]()
    try:
        while fill and len(kept) * KEPT < MOST_KEPT:
            kept.append(jax.block_until_ready(jnp.full(KEPT, 1, "uint8")))
    except (ValueError, RuntimeError) as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        del kept[-4:]
        product()


def ended(status: int, said: str) -> str:
    """How a process with this status ended that said so on standard error."""
    if status < 0:
        return signal.Signals(-status).name
    if status == 0:
        return WELL
    return NAMED if "`ulimit -" in said or "control group lets" in said else ERROR


def run(limit: str, backend: str, fill: bool) -> tuple[str, str]:
    """How a fresh process ended, and the end of what it said."""
    settings = {"JAX_PLATFORMS": "cpu"}
    if backend != "cpu":
        settings = {"JAX_PLATFORMS": "arena,cpu", "PJRT_ARENA_ENGINE": str(engine_path())}
        settings["PJRT_ARENA_STRATEGY"] = backend
    command = [sys.executable, "-m", "bench.limits", "--run", limit, *["--fill"] * fill]
    with ExitStack() as stack:
        chosen = limited(limit)
        if chosen and chosen[0] is None:
            group = stack.enter_context(control_group(chosen[1]))
            command = ["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(group), *command]
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


def broken(runs: dict[str, dict[str, list[str]]], fill: bool = False) -> list[str]:
    """Where a strategy ended by a signal, and JAX's CPU backend was well each time, or was to `fill` its memory."""
    return [
        f"{titled(limit)}: {backend} ended by a signal" + ("" if fill else ", JAX's CPU backend was well")
        for limit, row in runs.items()
        if fill or set(row["cpu"]) == {WELL}
        for backend, ends in row.items()
        if backend != "cpu" and any(end.startswith("SIG") for end in ends)
    ]


def measure(
    limits: Sequence[str], backends: Sequence[str], fill: bool, rounds: int, at_once: int
) -> dict[str, dict[str, list]]:
    """For each limit and backend the ends of its processes, each with what it said."""
    plan = [
        (limit, backend)
        for turn in range(rounds)
        for number, limit in enumerate(limits)
        for backend in backends[:: -1 if (turn + number) % 2 else 1]
    ]
    runs: dict[str, dict[str, list]] = {limit: {backend: [] for backend in backends} for limit in limits}
    with ThreadPoolExecutor(at_once) as pool:
        for (limit, backend), end in zip(plan, pool.map(lambda one: run(one[0], one[1], fill), plan), strict=True):
            runs[limit][backend].append(end)
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--limits",
        default=",".join(LIMITS),
        metavar="LIMIT,...",
        help="v1.5 is `ulimit -v` of 1.5 GB, d1.5 is -d, l8 is -l of 8 kB, g1.5 is a control group of 1.5 GB; none is "
        "what the caller has",
    )
    parser.add_argument("--fill", action="store_true", help="keep arrays until memory is exhausted")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), metavar="NAME,...", help="all by default")
    parser.add_argument("--rounds", type=int, default=10, help="(10)")
    parser.add_argument("--at-once", type=int, default=1, help="processes that run at the same time (1)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write how each process ended, and its last words")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run:
        multiply(chosen.run, chosen.fill)
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
    told = measure(limits, backends, chosen.fill, chosen.rounds, chosen.at_once)
    runs = {limit: {name: [end for end, _ in ends] for name, ends in row.items()} for limit, row in told.items()}
    print(table(runs))
    if chosen.json:
        chosen.json.write_text(json.dumps({"rounds": chosen.rounds, "runs": told}, indent=1) + "\n")
    wrong = broken(runs, chosen.fill)
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
