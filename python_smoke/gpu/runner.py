"""Runs jobs, each in a fresh process with a time limit, and keeps what came of them on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu import inventory, leash, logs, progress
from gpu.backends import Backend
from gpu.plan import CHECKS, GATE, LIMIT_VARIABLE, Job

#: What XLA's allocator takes by itself, as a share of the device's memory.
XLA_SHARE = 0.75
#: How many processes go on behind one that hung or crashed.
RESTS = 3
#: What is added to a job's time for a machine that starts slowly.
START = 30
#: Seconds for the first program of all, and at most as a share of the budget.
WARM_UP, SHARE_OF_BUDGET = 180, 1 / 3
#: Lines of a log that are shown where a run is given up.
SHOWN = 30
# XLA and the arena ask by trying: a call that a driver refuses is no error of memory.
SANITIZER = ("--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9", "--print-limit", "20")


class Runner:
    """A run: what was asked for, what is left of the time, what came of it so far.

    A record is a dict: part, measure, backend, values, flags, round, limit; `status` (done, failed, timeout, skipped);
    `seconds`, and `end_seconds` from the answer to the end of the process; `result` where it is done, or as far as it
    went; `error` where it is not; `log`, the end of what was written, `warned`, what the arena warned of, and `noted`,
    what else the log tells; `again` where a later run may have it: time was missing, or something that was to come
    first, or it took too long for the first time; `timeouts`, how often it did; `rest_of` where it goes on behind
    another; `library`, the start of its sha256.
    """

    def __init__(
        self,
        size: str,
        scale: float,
        timeout_factor: float,
        budget: float,
        saved: Callable[[list[dict[str, Any]]], None],
        flags: str = "",
        library: str | None = None,
    ) -> None:
        self._size = size
        self._library = library
        #: XLA_FLAGS of every process, beside the job's own.
        self._flags = flags
        #: What an expected time is multiplied with for this size.
        self._scale = scale
        #: How often a job may take as long as it was expected to.
        self._timeout_factor = timeout_factor
        self._end = time.monotonic() + budget
        self._saved = saved
        #: How long the last job took that did the same.
        self._took: dict[tuple[str, ...], float] = {}
        self.records: list[dict[str, Any]] = []

    def warm_up(self, backend: Backend) -> dict[str, Any]:
        """A tiny program before the first measurement, so that no row pays for bringing the engine from the disk."""
        timeout = max(1.0, min(WARM_UP, SHARE_OF_BUDGET * (self._end - time.monotonic())))
        job = Job("", "gpu.start.warm", backend, timeout)
        answer = self._in_a_process(job, backend.environment(None, None, self._flags), timeout)
        return {"backend": backend.name, **answer}

    def run(self, jobs: list[Job], before: list[dict[str, Any]], gate: bool = False) -> str | None:
        """Goes through `jobs`; each takes the place of what an earlier run has of it, when it has something to show.

        With `gate` it stops behind the checks where the arena passed none. Returns why it stopped, or `None`.
        """
        self.records = list(before)
        last_check = max((number for number, job in enumerate(jobs, 1) if job.part == CHECKS), default=0)
        for number, job in enumerate(jobs, 1):
            rest: Job | None = job
            timeouts = max((old.get("timeouts", 0) for old in self.records if job_of(old) == job.name), default=0)
            for turn in range(1 + RESTS):
                if rest is None:
                    break
                now, rest = rest, None
                record = {"key": now.name, **({"rest_of": job.name} if turn else {}), **self._one(now)}
                if left := record.pop("left", None):
                    # One that hangs or crashes takes nothing from those behind it: they run in the next process.
                    rest = dataclasses.replace(now, values={**now.values, "names": left})
                if record["status"] == "timeout" and not record.get("again"):
                    # A machine may have been slow once. What takes too long twice is no longer waited for.
                    record |= {"timeouts": timeouts + 1} | ({"again": True} if not timeouts else {})
                elif timeouts:
                    record["timeouts"] = timeouts
                self._keep(record)
                self._saved(self.records)
                said = record.get("error", f"{record['seconds']:.1f} s")
                place = f"{job.part} {number}/{len(jobs)}"
                print(f"[{place}] {job.measure} on {job.backend.name}: {record['status']}, {said}", flush=True)
            if gate and number == last_check and (why := self._nothing_works()):
                return why
        return None

    def _nothing_works(self) -> str | None:
        """What to say where checks ran on the arena and none passed."""
        ran = [
            record
            for record in self.records
            if record["part"] == CHECKS and record["backend"].startswith("arena") and record["status"] != "skipped"
        ]
        if not ran or any((record.get("result") or {}).get("passed") for record in ran):
            return None
        last = ran[-1]
        failed = [f"{each['name']}: {each['error']}" for each in (last.get("result") or {}).get("failed", [])][:3]
        end = [last["error"]] if "error" in last else failed
        lines = "\n".join(f"    {line}" for line in [*end, *last["log"][-SHOWN:]])
        return f"{GATE}.\nThe last was {last['backend']}; the end of its log:\n{lines}"

    def _keep(self, record: dict[str, Any]) -> None:
        """Adds a record, in the place of those of the same job, unless they say more."""
        key = record["key"]
        if record["status"] == "skipped" and any(old["key"] == key and "result" in old for old in self.records):
            return
        self.records = [old for old in self.records if key not in (old["key"], old.get("rest_of"))]
        self.records.append(record)

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
            "library": self._library,
        }
        expected = self._took.get(_work(job), job.seconds * self._scale)
        left = self._end - time.monotonic()
        why, share = _reason(job), None
        if not why and isinstance(limit, int) and not job.backend.ours:
            total = self._total()
            if total is None:
                why = "the device's memory is not known, which part k or a tells"
                return record | {"status": "skipped", "seconds": 0.0, "error": why, "again": True}
            share = min(0.9, limit / total)
        if why:
            return record | {"status": "skipped", "seconds": 0.0, "error": why}
        if expected > left:
            why = f"it takes about {expected:.0f} s, and {max(0, left):.0f} s of the budget are left"
            return record | {"status": "skipped", "seconds": 0.0, "error": why, "again": True}
        timeout = self._timeout_factor * job.seconds * self._scale + START
        environment = job.backend.environment(limit, share, f"{self._flags} {job.flags}".strip())
        if isinstance(limit, int):
            environment[LIMIT_VARIABLE] = str(limit)
        answer = self._in_a_process(job, environment, min(timeout, left))
        if answer["status"] == "timeout" and left < timeout:
            answer = {key: value for key, value in answer.items() if key != "left"} | {"again": True}
        if answer["status"] == "done":
            # The first of a kind may have paid for all, so the last counts.
            self._took[_work(job)] = answer["seconds"]
        return record | answer

    def _limit(self, job: Job) -> int | str | None:
        """The job's limit; where JAX's own allocator did the same, the very bytes that it had."""
        if not isinstance(job.limit, int):
            return job.limit
        for record in self.records:
            if (
                record["part"] == job.part
                and not record["backend"].startswith("arena")
                and (had := (record.get("result") or {}).get("limit"))
            ):
                return had
        return job.limit

    def _total(self) -> int | None:
        """Bytes of the device's memory: as the driver says, or by what JAX's own allocator has of it."""
        shares = []
        for record in self.records:
            result = record.get("result") or {}
            if record["measure"] == "gpu.driver_facts.measure":
                for fact in result.get("facts", ()):
                    if total := fact["numbers"].get("total"):
                        return int(total)
            elif record["measure"] == "gpu.machine.about" and not record["backend"].startswith("arena"):
                shares.append((result.get("memory_stats") or {}).get("bytes_limit"))
        return next((int(limit / XLA_SHARE) for limit in shares if limit), None)

    def _in_a_process(self, job: Job, environment: dict[str, str], timeout: float) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            target, log = Path(folder, "result.json"), Path(folder, "log")
            values = json.dumps({"size": self._size, **job.values})
            command = [sys.executable, "-m", "gpu.child", job.measure, values, str(target)]
            environment[progress.SECONDS_VARIABLE] = str(timeout)
            environment[leash.PARENT_VARIABLE] = str(os.getpid())
            if job.sanitized:
                # The child holds on to the sanitizer then, which knows nothing of that itself.
                tool = inventory.sanitizer() or inventory.SANITIZER
                command = [sys.executable, "-m", "gpu.leash", tool, *SANITIZER, *command]
            start = time.monotonic()
            with log.open("wb") as output:
                # A group of its own, so that all of it can be ended; no session, so that who ends ours ends it too.
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
                try:
                    status: int | None = process.wait(timeout)
                except subprocess.TimeoutExpired:
                    status = None
                finally:
                    ended = time.time()
                    _end(process)
            seconds = round(time.monotonic() - start, 2)
            answer = _result(status, seconds, log.read_text(errors="replace"), target, job.sanitized)
            if target.is_file() and status is not None:
                # By the file's time: beside it, waiting looks 20 times a second.
                answer["end_seconds"] = round(max(0.0, ended - target.stat().st_mtime), 3)
            return answer


def _result(status: int | None, seconds: float, text: str, target: Path, sanitized: bool) -> dict[str, Any]:
    """What became of a process: `status` is its own, `None` where it was ended because its time was up."""
    answer = json.loads(target.read_text()) if target.is_file() else {}
    record: dict[str, Any] = {"status": "done", "seconds": seconds, "log": logs.kept(text, status == 0)}
    if warned := logs.warnings(text):
        record["warned"] = warned
    if noted := logs.telling(text):
        record["noted"] = noted
    if said := answer.get("skipped"):
        return record | {"status": "skipped", "error": said}
    where = ""
    so_far = progress.partial(target)
    if not answer and so_far.is_file():
        told = json.loads(so_far.read_text())
        where = f" in `{told['at']}`"
        record |= {"result": told["answer"] | {"ended_at": told["at"]}, "left": told["left"]}
    late = ""
    if answer and "error" not in answer:
        late = ", its result was there"
        record["result"] = answer
    # Our own watch ends a process with 1; after the answer it does not watch.
    if status is None or (status == 1 and not answer and progress.TIME_IS_UP in text):
        return record | {"status": "timeout", "error": f"ended after {seconds:.0f} s{where}{late}; {_words(text)}"}
    errors = re.search(r"ERROR SUMMARY: (\d+) error", text) if sanitized else None
    if errors:
        answer["sanitizer_errors"] = int(errors[1])
    if errors and answer["sanitizer_errors"]:
        answer["sanitizer"] = text[:20_000]
    elif status != 0:
        ended = f"ended by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return record | {"status": "failed", "error": answer.get("error") or f"{ended}{where}{late}; {_words(text)}"}
    return record | {"result": answer}


def _reason(job: Job) -> str | None:
    """Why it cannot run here."""
    if job.backend.platform == "cpu" and job.for_gpus:
        return "it is for GPUs"
    if job.sanitized and inventory.sanitizer() is None:
        return f"{inventory.SANITIZER} is not installed"
    return None


def job_of(record: dict[str, Any]) -> str:
    """The job that a record is of, also where a later process went on with it."""
    name: str = record.get("rest_of") or record["key"]
    return name


def _words(text: str) -> str:
    """The last line, but for the stacks that are written last where a process hangs or crashes."""
    return logs.last(re.split(rf"^{re.escape(progress.TIME_IS_UP)}|^Fatal Python error", text, flags=re.MULTILINE)[0])


def _work(job: Job) -> tuple[str, ...]:
    """What takes about the same time: on any backend, in any round."""
    return job.measure, repr(sorted(job.values.items())), job.flags, str(job.sanitized)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process, if it runs, and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
