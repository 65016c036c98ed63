"""Runs jobs, each in a fresh process with a time limit, and keeps what came of them on disk."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu.plan import LIMIT_VARIABLE, Job

#: What XLA's allocator takes by itself, as a share of the device's memory.
XLA_SHARE = 0.75
#: How often a job may take as long as it was expected to, and what is added for a machine that starts slowly.
PATIENCE, START = 4, 30
SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", "--print-limit", "20")


class Runner:
    """A run: what was asked for, what is left of the time, what came of it so far.

    A record is a dict: part, measure, backend, values, flags, round, limit; `status` (done, failed, timeout, skipped);
    `seconds`; `result` where it is done; `error` where it is not.
    """

    def __init__(
        self, size: str, scale: float, budget: float, saved: Callable[[list[dict[str, Any]]], None], flags: str = ""
    ) -> None:
        self._size = size
        #: XLA_FLAGS of every process, beside the job's own.
        self._flags = flags
        #: What an expected time is multiplied with for this size.
        self._scale = scale
        self._end = time.monotonic() + budget
        self._saved = saved
        #: How long the jobs of each measure took, at most.
        self._took: dict[str, float] = {}
        self.records: list[dict[str, Any]] = []

    def run(self, jobs: list[Job], before: list[dict[str, Any]]) -> None:
        """Goes through `jobs`; records of an earlier run are kept where no job takes their place."""
        keys = {_named(job) for job in jobs}
        self.records = [record for record in before if record["key"] not in keys]
        for number, job in enumerate(jobs, 1):
            record = self._one(job)
            self.records.append({"key": _named(job), **record})
            self._saved(self.records)
            said = record.get("error", f"{record['seconds']:.1f} s")
            place = f"{job.part} {number}/{len(jobs)}"
            print(f"[{place}] {job.measure} on {job.backend.name}: {record['status']}, {said}", flush=True)

    def _one(self, job: Job) -> dict[str, Any]:
        limit = self._limit(job)
        record = {
            "part": job.part,
            "measure": job.measure,
            "backend": job.backend.name,
            "values": job.values,
            "flags": job.flags,
            "round": job.round,
            "limit": limit,
        }
        expected = self._took.get(job.measure, job.seconds * self._scale)
        left = self._end - time.monotonic()
        why = None
        if expected > left:
            why = f"it takes about {expected:.0f} s, and {max(0, left):.0f} s of the budget are left"
        elif job.sanitized and (job.backend.platform == "cpu" or shutil.which(SANITIZER[0]) is None):
            why = "it is for GPUs" if job.backend.platform == "cpu" else f"{SANITIZER[0]} is not installed"
        share = None
        if limit is not None and not job.backend.ours:
            total = self._total()
            if total is None:
                why = "the device's memory is not known: part a failed"
            else:
                share = min(0.9, limit / total)
        if why:
            return record | {"status": "skipped", "seconds": 0.0, "error": why}
        patience = min(PATIENCE * job.seconds * self._scale + START, left)
        environment = job.backend.environment(limit, share, f"{self._flags} {job.flags}".strip())
        if limit is not None:
            environment[LIMIT_VARIABLE] = str(limit)
        answer = self._in_a_process(job, environment, patience)
        self._took[job.measure] = max(answer["seconds"], self._took.get(job.measure, 0))
        return record | answer

    def _limit(self, job: Job) -> int | None:
        """The job's limit; where JAX's own allocator did the same, the very bytes that it had."""
        if job.limit is None:
            return None
        for record in self.records:
            if record["part"] == job.part and not record["backend"].startswith("arena"):
                if had := (record.get("result") or {}).get("limit"):
                    return had
        return job.limit

    def _total(self) -> int | None:
        """Bytes of the device's memory, by what JAX's own allocator has of it."""
        for record in self.records:
            if record["measure"] == "gpu.machine.about" and not record["backend"].startswith("arena"):
                stats = (record.get("result") or {}).get("memory_stats") or {}
                if limit := stats.get("bytes_limit"):
                    return int(limit / XLA_SHARE)
        return None

    def _in_a_process(self, job: Job, environment: dict[str, str], patience: float) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            target, log = Path(folder, "result.json"), Path(folder, "log")
            values = json.dumps({"size": self._size, **job.values})
            command = [sys.executable, "-m", "gpu.child", job.measure, values, str(target)]
            if job.sanitized:
                command = [*SANITIZER, *command]
            start = time.monotonic()
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                try:
                    status: int | None = process.wait(patience)
                except subprocess.TimeoutExpired:
                    status = None
                finally:
                    _end(process)
            seconds = round(time.monotonic() - start, 2)
            text = log.read_text(errors="replace")
            answer = json.loads(target.read_text()) if target.is_file() else {}
        late = ", its result was there" if answer and "error" not in answer else ""
        if status is None:
            error = f"ended after {seconds:.0f} s{late}; {_last(text)}"
            return {"status": "timeout", "seconds": seconds, "error": error}
        errors = re.search(r"ERROR SUMMARY: (\d+) error", text) if job.sanitized else None
        if errors:
            answer["sanitizer_errors"] = int(errors[1])
        if errors and answer["sanitizer_errors"]:
            answer["sanitizer"] = text[:20_000]
        elif status != 0:
            ended = f"ended by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            error = answer.get("error") or f"{ended}{late}; {_last(text)}"
            return {"status": "failed", "seconds": seconds, "error": error, "log": text[-4000:]}
        return {"status": "done", "seconds": seconds, "result": answer}


def _named(job: Job) -> str:
    return "|".join(map(str, job.key))


def _last(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"last line: {lines[-1][:300]}" if lines else "it printed nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process, if it runs, and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
