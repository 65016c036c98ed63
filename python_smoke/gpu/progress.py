"""A process that does several things in a row: what it has is on disk, and one that hangs is ended with all its stacks.

begin ---> step "a" ---> step "b" ---> the answer           result.json
              |             |
              |             `-- takes too long: stacks of all threads in the log, and the end
              v
    result.json.partial: the answer so far, what runs now, what is left       from which the runner goes on
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Tells a process after how many seconds it will be ended.
SECONDS_VARIABLE = "GPU_SCRIPT_SECONDS"
#: Tells a process who started it.
PARENT_VARIABLE = "GPU_SCRIPT_PARENT"
#: faulthandler's words where it writes stacks because time is up.
TIME_IS_UP = "Timeout ("
#: How long before its end a process says where it is, in seconds, and at most as a share of its time.
BEFORE_THE_END, SHARE_OF_IT = 5.0, 0.3


class Skip(Exception):
    """What cannot be measured here, and why: no failure."""


_state: dict[str, Any] = {"end": math.inf, "target": None}


def begin(target: Path) -> None:
    """Stacks are written at a crash, and shortly before the time is up; parts of the answer go beside `target`."""
    faulthandler.enable()
    _state["target"] = target
    if seconds := float(os.environ.get(SECONDS_VARIABLE, "0")):
        _state["end"] = time.monotonic() + seconds - min(BEFORE_THE_END, SHARE_OF_IT * seconds)
        _watch(math.inf)


def write(path: Path, value: Any) -> None:
    """Writes a file that is there as a whole at any time."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(value))
    beside.replace(path)


def partial(target: Path) -> Path:
    """Where the answer lies as far as it goes."""
    return target.with_name(target.name + ".partial")


@contextlib.contextmanager
def step(name: str, left: list[str], answer: dict[str, Any], seconds: float) -> Iterator[None]:
    """What runs here is called `name`, and `left` comes after it. It has so many seconds.

    The watch is faulthandler's, a thread that needs no interpreter lock: what hangs may hold that.
    """
    if _state["target"]:
        write(partial(_state["target"]), {"answer": answer, "at": name, "left": left})
    _watch(seconds)
    try:
        yield
    finally:
        _watch(math.inf)


def _watch(seconds: float) -> None:
    """Ends the process after so many seconds; says where it is before the runner ends it, if that is sooner."""
    left = max(0.01, _state["end"] - time.monotonic())
    if min(seconds, left) < math.inf:
        faulthandler.dump_traceback_later(min(seconds, left), exit=seconds < left)
    else:
        faulthandler.cancel_dump_traceback_later()
