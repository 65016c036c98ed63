"""One job in a process of its own, which may fail, hang or be killed: it costs nobody else anything.

run(job) ---> python -m gpu.child MEASURE ... ---> result.json           what was measured
                    |                              result.json.partial   as far as it has come
                    |                              NAME.log              all that it and the library wrote
                    `-- hangs: its Python stacks, then its native ones, then it is ended with all that it started
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from gpu import progress
from gpu.jobs import LIMIT_VARIABLE, Job

#: The arena's own lines, `pjrt-arena[4711] WARN: ...`.
LOUD = re.compile(r"^pjrt-arena\[\d+\] ((?:ERROR|WARN): .*)$", re.MULTILINE)
#: What is added to a job's time for a machine that starts slowly, and how often it may take that.
START, FACTOR = 30.0, 3.0
#: Of a log: what is kept of either end, in bytes.
KEPT = 1 << 20
#: Seconds that a debugger may take for the native stacks of what hangs.
DEBUGGER_TIME = 25.0


def run(job: Job, environment: dict[str, str], size: str, seconds: float, logs: Path) -> dict[str, Any]:
    """What became of it: `status` is done, failed, timeout or skipped.

    `result` is what was measured, also as far as it went; `error` says why that is not all; `left` has the steps behind
    the one in which it ended, and `warned` what the arena warned of.
    """
    name = re.sub(r"\W+", "_", f"{job.part} {job.title}").strip("_")
    log = next(path for number in range(1000) if not (path := logs / f"{name}{number or ''}.log").exists())
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "result.json")
        command = [
            sys.executable,
            "-m",
            "gpu.child",
            job.measure,
            json.dumps({"size": size, **job.values}),
            str(target),
        ]
        environment = environment | {
            progress.SECONDS_VARIABLE: str(seconds),
            progress.PARENT_VARIABLE: str(os.getpid()),
            LIMIT_VARIABLE: str(job.limit or 0),
            "RUST_BACKTRACE": "1",
        }
        start = time.monotonic()
        with log.open("wb") as output:
            # A group of its own, so that all of it can be ended; no session, so that who ends ours ends it too.
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
            )
            try:
                status: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
                _native_stacks(process.pid, output)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        took = round(time.monotonic() - start, 1)
        text = log.read_text(errors="replace")
        try:
            record = _record(status, took, text, target)
        except (OSError, ValueError) as error:
            record = {"status": "failed", "error": f"its answer cannot be read: {error}"}
    if log.stat().st_size > 2 * KEPT:
        written = log.read_bytes()
        log.write_bytes(written[:KEPT] + b"\n...\n" + written[-KEPT:])
    warned = list(dict.fromkeys(line[:300] for line in LOUD.findall(text)))[:12]
    return {"seconds": took, "log": log.name, **({"warned": warned} if warned else {}), **record}


def _native_stacks(number: int, output: Any) -> None:
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"])
    debugger = shutil.which("gdb", path=places) or shutil.which("cuda-gdb", path=places)
    if debugger:
        command = [debugger, "-p", str(number), "-batch", "-ex", "thread apply all bt 25"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=DEBUGGER_TIME, check=False
            )


def _record(status: int | None, took: float, text: str, target: Path) -> dict[str, Any]:
    """`status` is the process's own, `None` where its time was up."""
    answer = json.loads(target.read_text()) if target.is_file() else {}
    if said := answer.get("skipped"):
        return {"status": "skipped", "error": said}
    record: dict[str, Any] = {}
    where = ""
    so_far = progress.partial(target)
    if (not answer or "error" in answer) and so_far.is_file():
        told = json.loads(so_far.read_text())
        where = f" in `{told['at']}`"
        record = {"result": told["answer"] | {"ended_at": told["at"]}, "left": told["left"]}
    elif answer and "error" not in answer:
        record = {"result": answer}
    # The watch of the process itself ends it with 1.
    if status is None or (status == 1 and not answer and progress.TIME_IS_UP in text):
        return record | {"status": "timeout", "error": f"ended after {took:.0f} s{where}; {_last(text)}"}
    if status:
        ended = f"ended by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return record | {"status": "failed", "error": answer.get("error") or f"{ended}{where}; {_last(text)}"}
    return record | {"status": "done"}


def _last(text: str) -> str:
    """The last line before the stacks that are written last."""
    text = re.split(rf"^{re.escape(progress.TIME_IS_UP)}|^Fatal Python error", text, flags=re.MULTILINE)[0]
    fatal = re.findall(r"^F\d{4} [\d:.]+ +\d+ (.*)$", text, flags=re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [*fatal[:1], *lines[-1:]]
    return f"last line: {said[0][:300]}" if said else "it printed nothing"


class Places:
    """How much memory of the device running processes may have, taken together: who finds none waits."""

    def __init__(self, bytes_: int) -> None:
        self._free, self._most, self._changed = bytes_, bytes_, threading.Condition()

    @contextlib.contextmanager
    def of(self, bytes_: int) -> Any:
        """A place, for as long as it takes."""
        wanted = min(bytes_, self._most)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= wanted)
            self._free -= wanted
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()
