"""The JSON file of a run, and the statistics in it.

Schema `pjrt-arena-bench/1`. Times are seconds per call, memory is in bytes:

    schema        "pjrt-arena-bench/1"
    machine       cpu, cpus, memory_bytes, kernel, architecture, transparent_hugepage,
                  load_before, load_after (the load average of one minute)
    versions      python, jax, jaxlib, numpy, engine (wheel and version), pjrt_arena
    settings      rounds, quick, started (UTC), seconds (of the run), variables (PJRT_ARENA_* of the caller),
                  backends: what each is called in tables
    programs      a list of
      name, title
      floor       the floor is defined for this program
      backends    by name:
        seconds     median, q1, q3 over the rounds' medians
        relative    median, q1, q3 over the rounds of (this time / the built-in backend's in the same round)
        speedup     median, q1, q3 over the rounds of (the built-in backend's time in the same round / this time)
        peak_bytes  highest resident memory of the process, median of the rounds
        peak_data_bytes  the same without libraries and without what the import of JAX takes; see `worker`
        faults      minor page faults per call, median of the rounds
        rounds      a list: median, q1, q3, fastest of the readings of one process, faults, peak_bytes, peak_data_bytes,
                    and on the arena `results`, which says where the results lay (see `pjrt_arena.memory.counters`)
    failures      a list of program, backend, error

`relative` and `speedup` are absent where the built-in backend was not measured. Quartiles are inclusive: of two
rounds they lie a quarter of the way in.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import os
import platform
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import engines

from bench.backends import REFERENCE
from bench.worker import quartiles

SCHEMA = "pjrt-arena-bench/1"


@dataclass
class Run:
    """What a run measured so far."""

    #: Reports of `worker.measure` by program and backend, in the order of the rounds.
    readings: dict[tuple[str, str], list[dict]] = field(default_factory=dict)
    #: Errors by program and backend.
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, program: str, backend: str, report: dict) -> None:
        """Takes one process's report."""
        self.readings.setdefault((program, backend), []).append(report)

    def of(self, program: str, backend: str) -> dict | None:
        """What the schema says for a program on a backend; None where nothing was measured, or something failed."""
        rounds = self.readings.get((program, backend))
        if not rounds or (program, backend) in self.failures:
            return None
        times = [each["median"] for each in rounds]
        entry: dict[str, Any] = {"seconds": quartiles(times)}
        reference = self.readings.get((program, REFERENCE), [])
        if len(reference) == len(rounds) and (program, REFERENCE) not in self.failures:
            pairs = list(zip(times, (each["median"] for each in reference), strict=True))
            entry["relative"] = quartiles([time / other for time, other in pairs])
            entry["speedup"] = quartiles([other / time for time, other in pairs])
        for figure in ("peak_bytes", "peak_data_bytes", "faults"):
            entry[figure] = statistics.median(each[figure] for each in rounds)
        entry["rounds"] = rounds
        return entry


def report(run: Run, programs: list, backends: list, settings: dict, machine: dict) -> dict:
    """The JSON object of a run."""
    return {
        "schema": SCHEMA,
        "machine": machine,
        "versions": versions(),
        "settings": {**settings, "backends": {backend.name: backend.title for backend in backends}},
        "programs": [
            {
                "name": program.name,
                "title": program.title,
                "floor": program.floor,
                "backends": {
                    backend.name: entry
                    for backend in backends
                    if (entry := run.of(program.name, backend.name)) is not None
                },
            }
            for program in programs
        ],
        "failures": [
            {"program": program, "backend": backend, "error": error}
            for (program, backend), error in run.failures.items()
        ],
    }


def load(path: Path) -> dict:
    """Reads a JSON file of this schema.

    Raises:
      SystemExit: the file cannot be read, or is of another schema.
    """
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: {error}") from error
    if not isinstance(loaded, dict) or loaded.get("schema") != SCHEMA:
        raise SystemExit(f"{path}: not a file of the schema {SCHEMA}")
    return loaded


def machine() -> dict[str, Any]:
    """Where this runs; the loads are added by the caller."""
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "cpu": model[0].partition(":")[2].strip() if model else platform.processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "transparent_hugepage": huge.read_text().split("[")[-1].split("]")[0] if huge.exists() else None,
    }


def versions() -> dict[str, str | None]:
    """Versions of what was measured."""

    def of(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {
        "python": platform.python_version(),
        "jax": of("jax"),
        "jaxlib": of("jaxlib"),
        "numpy": of("numpy"),
        "engine": engines.described(),
        "pjrt_arena": of("pjrt-arena"),
    }


def now() -> str:
    """The time in UTC, as the schema has it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def geometric_mean(values: list[float]) -> float:
    """The mean of ratios."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def show_seconds(seconds: float) -> str:
    """Three digits and a unit: 3.42 us, 66.1 ms, 1.20 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size or unit == "us":
            value = seconds / size
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    raise AssertionError("the last unit takes all")


def show_ratio(value: float) -> str:
    """0.97x, 4.90x, 12.3x; two digits below 0.1, where a 0.00x would say nothing."""
    return f"{value:.2g}x" if value < 0.0995 else f"{value:.2f}x" if value < 9.995 else f"{value:.1f}x"
