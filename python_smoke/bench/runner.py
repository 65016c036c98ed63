"""Rounds: forks a process for each (program, backend, round) in turn, and compares what they computed."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.backends import REFERENCE, Backend
from bench.results import Run, show_seconds
from bench.worker import measure

#: A process that takes longer is ended, and counts as failed. Seconds.
LONGEST = 300


def turns(programs: list, backends: list[Backend], rounds: int) -> Iterator[tuple[int, Any, Backend]]:
    """(round, program, backend) in the order of measuring; the backends start one further each round and program."""
    for number in range(rounds):
        for row, program in enumerate(programs):
            if program.rounds is not None and number >= program.rounds:
                continue
            takes_part = [backend for backend in backends if program.floor or not backend.floor]
            first = (number + row) % len(takes_part)
            for backend in takes_part[first:] + takes_part[:first]:
                yield number, program, backend


def run(programs: list, backends: list[Backend], rounds: int, quick: bool) -> Run:
    """Measures everything; a program that fails or computes something else is named in `Run.failures`."""
    _import_what_processes_share()
    outcome = Run()
    plan = list(turns(programs, backends, rounds))
    clock = _Clock(plan)
    with tempfile.TemporaryDirectory() as folder:
        for place, (number, program, backend) in enumerate(plan):
            if (program.name, backend.name) in outcome.failures:
                continue
            start = time.perf_counter()
            report, error = _in_a_process(program.name, backend, quick, Path(folder))
            clock.took(program, time.perf_counter() - start)
            if error is None:
                value = report.pop("value")
                # The reference's value of this round; of the previous where its turn is still to come.
                if backend.name == REFERENCE or program.name not in outcome.values:
                    outcome.values[program.name] = (backend.name, value)
                error = difference(value, outcome.values[program.name][1], program.tolerance)
                if error is not None:
                    error = f"result differs from that on {outcome.values[program.name][0]}: {error}"
            if error is None:
                outcome.add(program.name, backend.name, report)
                said = show_seconds(report["median"])
            else:
                outcome.failures[program.name, backend.name] = error
                said = f"FAILED: {error}"
            left = clock.left(plan[place + 1 :])
            print(
                f"[{place + 1}/{len(plan)}, {left / 60:.1f} min left] round {number + 1} {program.name} "
                f"{backend.name}: {said}",
                file=sys.stderr,
                flush=True,
            )
    return outcome


class _Clock:
    """Guesses the remaining time: each program takes as long as it took so far, and the unknown ones the mean."""

    def __init__(self, plan: list):
        self._seen: dict[str, list[float]] = {}

    def took(self, program: Any, seconds: float) -> None:
        self._seen.setdefault(program.name, []).append(seconds)

    def left(self, rest: list) -> float:
        means = {name: sum(seen) / len(seen) for name, seen in self._seen.items()}
        usual = sum(means.values()) / len(means)
        return sum(means.get(program.name, usual) for _, program, _ in rest)


def _import_what_processes_share() -> None:
    import jax
    import optax  # noqa: F401
    from jax._src import xla_bridge

    import bench.programs  # noqa: F401

    jax.config.update("jax_enable_compilation_cache", False)
    if xla_bridge.backends_are_initialized():
        raise RuntimeError("JAX has started a backend in the runner: its processes would inherit it")
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"the runner has {threads} threads: it cannot fork")
    # The collector must not touch, and so copy, what the processes share.
    gc.collect()
    gc.freeze()


def _in_a_process(name: str, backend: Backend, quick: bool, folder: Path) -> tuple[dict | None, str | None]:
    """The report of a forked process, or what it said instead."""
    reader, writer = os.pipe()
    said = folder / "stderr"
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            log = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            with os.fdopen(writer, "w") as pipe:
                json.dump(measure(name, backend, quick, folder), pipe)
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            # Nothing of the parent's, its temporary folder above all, is to be tidied up here.
            os._exit(status)
    os.close(writer)
    try:
        text, ended = _read(reader, time.monotonic() + LONGEST)
        if not ended:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(reader)
    code = os.waitstatus_to_exitcode(status)
    if ended and code == 0:
        return json.loads(text), None
    tail = said.read_text(errors="replace").strip()[-2000:]
    why = f"status {code}" if ended else f"not ready after {LONGEST} s"
    return None, f"{why}: {tail}"


def _read(reader: int, deadline: float) -> tuple[bytes, bool]:
    """All bytes of the pipe, and whether its other end was closed before the deadline."""
    text = b""
    while (left := deadline - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            piece = os.read(reader, 1 << 16)
            if not piece:
                return text, True
            text += piece
    return text, False


def difference(here: list, there: list, tolerance: float) -> str | None:
    """Why two digests are not those of the same result, or None where they are."""
    if len(here) != len(there):
        return f"{len(here)} numbers instead of {len(there)}"
    for place, ((ours, _), (theirs, scale)) in enumerate(zip(here, there, strict=True)):
        # Not `>`: a NaN must not pass.
        if not abs(ours - theirs) <= tolerance * max(scale, 1e-30):
            return f"number {place} is {ours!r} instead of {theirs!r}, allowed: {tolerance:g} of {scale:g}"
    return None
