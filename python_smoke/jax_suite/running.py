"""Runs one test file after the other, each in a process of its own, whatever happens to that process.

```
 process ended or was killed          then
 all tests ended                      the file is done
 while a test ran, by itself          that test is a crash; the file goes on after it, in a new process
 while a test ran, killed             nothing was logged for `stall` seconds: that test is a timeout; likewise
 between two tests                    the file goes on as long as each process ends at least one test
 the file's time is over              what is left is not run
```
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from recorder import read

HERE = Path(__file__).resolve().parent
#: A file that crashes more often is given up: a library that always crashes must not take a day.
MOST_CRASHES = 25
#: pytest's statuses: all passed, some failed, no test collected.
GOOD = (0, 1, 5)


@dataclass(frozen=True)
class File:
    """A line of the list: which file, how many tests of it (0: all), how many seconds, with which variables."""

    name: str
    keep: int
    limit: float
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, line: str) -> File:
        name, keep, limit, *variables = line.split()
        return cls(name, int(keep), float(limit), dict(pair.split("=", 1) for pair in variables))


@dataclass(frozen=True)
class Backend:
    """`cpu`, `cuda`: JAX's own; `arena`: pjrt-arena as it is installed; otherwise the path of a bare PJRT plugin."""

    name: str

    #: Those that are not a path, and the platforms that JAX is told.
    NAMED: ClassVar[dict[str, str]] = {"arena": "arena,cpu", "cpu": "cpu", "cuda": "cuda,cpu"}

    def plugin(self) -> Path | None:
        return None if self.name in self.NAMED else Path(self.name).resolve()

    def variables(self) -> dict[str, str]:
        if plugin := self.plugin():
            return {"JAX_PLATFORMS": "bare,cpu", "JAX_SUITE_PLUGIN": str(plugin)}
        return {"JAX_PLATFORMS": self.NAMED[self.name]}

    def is_wrong(self, platform_version: str) -> bool:
        """Whether tests that were to run on the arena did not, or the other way round."""
        return ("pjrt-arena" in platform_version) != (self.name == "arena") and self.name in self.NAMED


def read_list(path: Path) -> list[File]:
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [File.parse(line) for line in lines if line]


class Log:
    """What the processes of one file have written so far."""

    def __init__(self, path: Path):
        self.path = path
        path.unlink(missing_ok=True)

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def lines(self) -> list[dict]:
        return list(read(self.path)) if self.path.exists() else []

    def tests(self) -> dict[str, dict]:
        return {line["id"]: {key: line[key] for key in ("o", "msg", "t")} for line in self.lines() if "id" in line}

    def collected(self) -> list[str]:
        return next((line["collected"] for line in self.lines() if line.get("collected")), [])

    def begun(self) -> str | None:
        """The test that began and did not end."""
        begun = [line["start"] for line in self.lines() if "start" in line]
        return begun[-1] if begun and begun[-1] not in self.tests() else None

    def end(self, test: str, outcome: str, message: str) -> None:
        with self.path.open("a") as log:
            # The line before it may be cut off.
            log.write("\n" + json.dumps({"id": test, "o": outcome, "msg": message, "t": 0}) + "\n")

    def last(self, key: str):
        return next((line[key] for line in reversed(self.lines()) if line.get(key) is not None), None)


def run_file(file: File, tests: Path, backend: Backend, stall: float, work: Path) -> dict:
    """Runs one file; its tests' outcomes, seconds and what there is to say of it as a whole."""
    log = Log(work / f"{file.name.replace('/', '_')}.jsonl")
    output = work / f"{file.name.replace('/', '_')}.log"
    output.unlink(missing_ok=True)
    # The tree's own `jax` must not be found before the installed one, so its root is neither on the path nor the
    # folder that Python starts in.
    path = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    defaults = {"JAX_NUM_GENERATED_CASES": "1", "JAX_SKIP_SLOW_TESTS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    always = {
        "JAX_SUITE_LOG": str(log.path),
        "JAX_SUITE_KEEP": str(file.keep),
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    environment = defaults | os.environ | always | backend.variables() | file.variables
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", "-p", "recorder"]
    command += ["-p", "no:cacheprovider", f"--rootdir={tests.parent}", str(tests / file.name)]
    start, crashes, deaths, note = time.monotonic(), 0, 0, ""
    while True:
        before = len(log.tests())
        status, killed = _run_once(command, work, environment, output, log, start + file.limit, stall)
        if killed == "limit":
            note = f"not done after {file.limit:.0f} s"
            break
        if test := log.begun():
            kind = "timeout" if killed else "crash"
            log.end(test, kind, f"no progress for {stall:.0f} s" if killed else f"the process ended: {_named(status)}")
            crashes += 1
            if crashes > MOST_CRASHES:
                note = f"given up after {crashes} crashes"
                break
            continue
        if killed or status not in GOOD:
            left = set(log.collected()) - set(log.tests())
            deaths += 1
            if left and len(log.tests()) > before:
                continue
            note = f"the process ended: {killed or _named(status)}; {log.last('collect_error') or ''}"[:800]
        elif deaths:
            note = f"the process died between tests, {deaths} times"
        break
    if (ran_on := log.last("backend")) and backend.is_wrong(ran_on):
        note = f"ran on the wrong backend: {ran_on}; {note}"
    outcomes = log.tests()
    for test in log.collected():
        outcomes.setdefault(test, {"o": "notrun", "msg": note, "t": 0})
    wall = round(time.monotonic() - start, 1)
    return {"wall": wall, "note": note, "backend": ran_on, "arena": log.last("arena"), "tests": outcomes}


def _run_once(
    command: list[str], folder: Path, environment: dict, output: Path, log: Log, end: float, stall: float
) -> tuple[int, str]:
    """One process: its status, and why it was killed if it was."""
    with output.open("ab") as sink:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
    seen, since = log.size(), time.monotonic()
    while True:
        try:
            return process.wait(timeout=0.2), ""
        except subprocess.TimeoutExpired:
            pass
        now, size = time.monotonic(), log.size()
        if size != seen:
            seen, since = size, now
        killed = "limit" if now > end else "stall" if now - since > stall else ""
        if killed:
            # Its children too: some tests start processes.
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait(), killed


def _named(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def counts(tests: dict[str, dict]) -> Counter:
    return Counter(test["o"] for test in tests.values())


def in_words(counted: Counter) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in sorted(counted.items())) or "no tests"
