"""Rounds: forks a process for each (program, backend, round) in turn, and compares what they computed."""

from __future__ import annotations

import collections
import contextlib
import gc
import json
import os
import select
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.backends import REFERENCE, Backend
from bench.results import Run, show_seconds
from bench.worker import measure

#: A process that takes longer is ended, and counts as failed. Seconds.
LONGEST = 300


def turns(programs: list, backends: list[Backend], rounds: int) -> Iterator[tuple[int, Any, list[Backend]]]:
    """(round, program, backends) in the order of measuring; the backends start one further each round and program."""
    for number in range(rounds):
        for row, program in enumerate(programs):
            if program.rounds is not None and number >= program.rounds:
                continue
            takes_part = [backend for backend in backends if program.floor or not backend.floor]
            first = (number + row) % len(takes_part)
            yield number, program, takes_part[first:] + takes_part[:first]


def run(programs: list, backends: list[Backend], rounds: int, quick: bool) -> Run:
    """Measures everything, each in a process of its own; what fails is named in `Run.failures`."""
    _import_what_processes_share()
    with tempfile.TemporaryDirectory() as folder:
        return collect(
            list(turns(programs, backends, rounds)),
            lambda program, backend: _in_a_process(program.name, backend, quick, Path(folder)),
        )


#: Measures a program on a backend: what `worker.measure` returns, or an error in words.
Measure = Callable[[Any, Backend], tuple[dict | None, str | None]]


def collect(plan: list[tuple[int, Any, list[Backend]]], measured: Measure) -> Run:
    """Goes through `plan`. A backend that fails with a program, or computes something else, is done with it."""
    outcome, progress = Run(), _Progress(plan)
    for number, program, backends in plan:
        values = {}
        for backend in backends:
            if (program.name, backend.name) in outcome.failures:
                progress.passed(program)
                continue
            start = time.perf_counter()
            report, error = measured(program, backend)
            if report is None:
                outcome.failures[program.name, backend.name] = error or "no report"
                said = f"FAILED: {error}"
            else:
                values[backend.name] = report.pop("value")
                outcome.add(program.name, backend.name, report)
                said = show_seconds(report["median"])
            progress.passed(program, time.perf_counter() - start)
            progress.say(f"round {number + 1} {program.name} {backend.name}: {said}")
        for name, error in disagreements(values, program.tolerance).items():
            outcome.failures[program.name, name] = error
            progress.say(f"round {number + 1} {program.name} {name}: FAILED: {error}")
    return outcome


class _Progress:
    """Says how far the run is; each program takes as long as it took so far, and the unknown ones the mean."""

    def __init__(self, plan: list[tuple[int, Any, list[Backend]]]):
        self._seen: dict[str, list[float]] = {}
        self._rest: collections.Counter[str] = collections.Counter()
        for _, program, backends in plan:
            self._rest[program.name] += len(backends)
        self._all, self._done = self._rest.total(), 0

    def passed(self, program: Any, seconds: float | None = None) -> None:
        """One process less to come; `seconds` is what it took, None where it was left out."""
        self._done += 1
        self._rest[program.name] -= 1
        if seconds is not None:
            self._seen.setdefault(program.name, []).append(seconds)

    def say(self, text: str) -> None:
        means = {name: statistics.fmean(seen) for name, seen in self._seen.items()}
        usual = statistics.fmean(means.values())
        left = sum(count * means.get(name, usual) for name, count in self._rest.items())
        print(f"[{self._done}/{self._all}, {left / 60:.1f} min left] {text}", file=sys.stderr, flush=True)


def disagreements(values: dict[str, list], tolerance: float) -> dict[str, str]:
    """By backend: how its result differs from the built-in backend's, or from the first's where that is missing."""
    reference = REFERENCE if REFERENCE in values else next(iter(values), REFERENCE)
    return {
        name: f"result differs from that on {reference}: {error}"
        for name, value in values.items()
        if name != reference and (error := difference(value, values[reference], tolerance)) is not None
    }


def _import_what_processes_share() -> None:
    import jax
    import optax  # noqa: F401
    from jax._src import xla_bridge

    import bench.programs  # noqa: F401

    jax.config.update("jax_enable_compilation_cache", False)
    if xla_bridge.backends_are_initialized():
        raise RuntimeError("JAX has started a backend in the runner: its processes would inherit it")
    threads = len(list(Path("/proc/self/task").iterdir()))
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
