"""Processes that are told what to do, one line at a time: members of a group that shares a device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness import clean_environment

#: What each of them begins with. `part` is the process's part in the group, `others` are all members.
BEGIN = """
import dataclasses, gc, json, os, sys, time
import jax, jax.numpy as jnp, numpy as np
from pjrt_arena import memory

MIB = 1 << 20
kept = []

def device(number=0):
    return jax.devices("arena")[number]

def part(number=0):
    return dataclasses.asdict(memory.stats()[number].group)

def others(number=0):
    [group] = memory.groups()
    return [dataclasses.asdict(member) for member in group.devices[number].members]

def ramp(number, mib=1, where=0):
    values = np.arange(int(mib * MIB) // 4, dtype=np.float32) + np.float32(number)
    return jax.device_put(values, device(where))

def keep(count, mib=1, first=0, where=0):
    for number in range(first, first + count):
        kept.append((number, ramp(number, mib, where)))

def check():
    for number, array in kept:
        host = np.arange(array.size, dtype=np.float32) + np.float32(number)
        assert (np.asarray(array) == host).all(), number

def error_of(call):
    try:
        call()
    except Exception as error:
        return str(error)
    raise AssertionError("no error")

device()
said = sys.stdout
sys.stdout = sys.stderr
print(json.dumps(None), file=said, flush=True)
for line in sys.stdin:
    code, expression = json.loads(line)
    exec(code, globals())
    print(json.dumps(eval(expression, globals()) if expression else None), file=said, flush=True)
"""


class Member:
    """One process. What it is told may be waited for later: `tell` and `answer` in place of `do`."""

    def __init__(self, name: str, settings: dict[str, str]) -> None:
        environment = clean_environment(**{"JAX_PLATFORMS": "arena,cpu", "PJRT_ARENA_ZERO_COPY": "off"} | settings)
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, code: str = "", expression: str = "") -> None:
        """Has the process run `code`, and answer with `expression`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([textwrap.dedent(code), expression]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self.process.stderr.read()}")
        return json.loads(line)

    def complaint(self) -> str:
        """The next line that the process writes to standard error."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def do(self, code: str = "", expression: str = "") -> Any:
        self.tell(code, expression)
        return self.answer()

    def end(self) -> str:
        """Lets the process end; what it wrote to standard error."""
        assert self.process.stdin is not None and self.process.stderr is not None
        self.process.stdin.close()
        wrote = self.process.stderr.read()
        assert self.process.wait() == 0, wrote
        return wrote

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def members(runtime: str | os.PathLike[str], *settings: dict[str, str]) -> Iterator[list[Member]]:
    """So many processes as there are settings, in the group `test` unless they say otherwise, with a folder of their
    own. Those that have not ended at the end are killed."""
    common = {"XDG_RUNTIME_DIR": os.fspath(runtime), "PJRT_ARENA_SHARE": "test", "PJRT_ARENA_LIMIT": "64MiB"}
    started = [Member(f"member {number}", common | more) for number, more in enumerate(settings)]
    try:
        for member in started:
            member.answer()
        yield started
    finally:
        for member in started:
            if member.process.poll() is None:
                member.kill()
