"""One run of a program in a client of its own, in this process, up to where memory is exhausted."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import backend
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pjrt_arena import memory

from jax_fuzz.hint_programs import BOTH, Busy, Drop, Function, Operation, Pin, Program, Put, Run, Unpin
from jax_fuzz.hint_text import Known
from jax_fuzz.programs import is_exhausted

#: Where arrays come from. What is in them does not matter.
HOST = np.zeros(1 << 30, np.uint8)

#: More than what pads a block.
PADDING = 4096

#: Seconds after which what should be at once is given up.
LONGEST = 30.0


@dataclass
class Failure:
    """An operation that found no memory."""

    text: str
    #: For each device.
    known: list[Known]
    seconds: float
    #: How many arrays were moved, spilled or brought back for it.
    moved: int
    #: Whether, on one device, its own arrays and those that must stay are more than the limit.
    is_too_much: bool


def _wait_until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LONGEST
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.0005)


def _moved() -> int:
    count = 0
    for device in memory.stats():
        count += device.num_moves + device.num_migrations
        if device.spill:
            count += device.spill.num_spilled + device.spill.num_brought_back
    return count


def _no_client() -> None:
    """Has the last client go."""
    backend.clear_backends()
    jax.clear_caches()
    if memory.stats():
        gc.collect()
        _wait_until(lambda: not memory.stats(), f"the last client stays: {memory.stats()}")


class Client:
    """A client with the program's settings, and what the program has there."""

    def __init__(self, program: Program, donated: dict[int, tuple[int, ...]] | None = None, **changed: str) -> None:
        self.functions, self.donated = program.functions, donated or {}
        self.settings = program.settings | changed
        self.folder: str | None = None
        self.arrays: dict[str, jax.Array] = {}
        self.views: dict[str, Any] = {}
        self.compiled: dict[tuple[int, int], Callable[..., list[jax.Array]]] = {}
        self.go, self.threads = threading.Event(), list[threading.Thread]()
        #: What programs that are under way hold on each device, though it was deleted.
        self.held = [0, 0]
        #: Seconds before each operation, in which the ends of programs are noted whoever has the processors.
        self.pause = 0.0
        _no_client()
        settings = {"zero_copy": "off", **self.settings}
        if settings["spill"] == "folder":
            self.folder = settings["spill"] = tempfile.mkdtemp(prefix="hints-") + os.sep
        for name in [name for name in os.environ if name.startswith("PJRT_ARENA_") and "LIBRARY" not in name]:
            del os.environ[name]
        os.environ.update({f"PJRT_ARENA_{name.upper()}": value for name, value in settings.items()})
        self.devices = jax.devices("arena")
        self.limit = self.devices[0].memory_stats()["bytes_limit"]
        self.both = NamedSharding(Mesh(np.array(self.devices), ("x",)), PartitionSpec("x"))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self.arrays.clear()
        self.views.clear()
        self.compiled.clear()
        # They keep the client.
        self.devices, self.both = [], None
        if self.folder:
            shutil.rmtree(Path(self.folder), ignore_errors=True)

    def release(self) -> None:
        """Has programs that are under way end."""
        self.go.set()
        for thread in self.threads:
            thread.join(LONGEST)
        self.threads.clear()
        self.held = [0, 0]
        self.settle()

    def settle(self) -> None:
        """Waits until memory that was dropped is free, but for what programs under way hold."""
        # What pads a block is pending, too.
        most = [held + (held and PADDING) for held in self.held]

        def is_settled() -> bool:
            return all(device.pending_bytes <= held for device, held in zip(memory.stats(), most, strict=False))

        _wait_until(is_settled, f"more blocks stay pending than {self.held}")

    def do(self, operation: Operation) -> Failure | None:
        """Does one operation of the program; what it is about may be missing."""
        self.settle()
        time.sleep(self.pause)
        known = [self._known(operation, device) for device in range(len(self.devices))]
        before, since = _moved(), time.monotonic()
        try:
            self._act(operation)
        except (RuntimeError, ValueError) as error:
            if not is_exhausted(error):
                raise
            seconds = time.monotonic() - since
            too_much = any(is_too_much for _, is_too_much in known)
            return Failure(str(error), [one for one, _ in known], seconds, _moved() - before, too_much)
        return None

    def is_whole(self, operation: Operation) -> bool:
        """Whether nothing that an operation is about was donated and is lost."""
        names = operation.arguments if isinstance(operation, Run) else ()
        return not any(self.arrays[name].is_deleted() for name in names if name in self.arrays)

    def _act(self, operation: Operation) -> None:
        arrays = self.arrays
        match operation:
            case Put(name, bytes_, where):
                count = 2 if where == BOTH else 1
                host = HOST[: count * bytes_].reshape(count, bytes_)
                array = jax.device_put(host, self.both if where == BOTH else self.devices[where])
                arrays[name] = jax.block_until_ready(array)
            case Drop(name):
                arrays.pop(name, None)
                self.views.pop(name, None)
            case Pin(name) if name in arrays:
                self.views[name] = np.asarray(arrays[name])
            case Unpin(name):
                self.views.pop(name, None)
            case Busy(name) if name in arrays:
                self._begin(arrays[name])
                del arrays[name]
            case Run(number, names, results) if all(name in arrays for name in names):
                arguments = [arrays[name] for name in names]
                made = jax.block_until_ready(self._function(number, arguments[0])(*arguments))
                for name in [name for name in names if arrays[name].is_deleted()]:
                    del arrays[name]
                arrays.update(zip(results, made, strict=True))

    def _where(self, array: jax.Array) -> int:
        devices = array.devices()
        return BOTH if len(devices) > 1 else self.devices.index(next(iter(devices)))

    def _function(self, number: int, array: jax.Array) -> Callable[..., list[jax.Array]]:
        where = self._where(array)
        if (number, where) not in self.compiled:
            what = self.functions[number]
            function = body(what, 2 if where == BOTH else 1)
            # The name that reports and hints have for it.
            function.__name__ = f"f{number}"
            donated = self.donated.get(number, what.donated)
            more = {"out_shardings": self.both} if where == BOTH else {}
            self.compiled[number, where] = jax.jit(function, donate_argnums=donated, **more)
        return self.compiled[number, where]

    def _begin(self, array: jax.Array) -> None:
        """Has a program use an array until `release`."""
        entered, go, failed = threading.Event(), self.go, list[Exception]()

        def wait(value: Any) -> Any:
            entered.set()
            go.wait(LONGEST)
            return np.asarray(value)

        def busy(x: jax.Array) -> jax.Array:
            return jax.pure_callback(wait, jax.ShapeDtypeStruct((1, 1), jnp.uint8), x[:1, :1])

        def run() -> None:
            try:
                jax.block_until_ready(jax.jit(busy)(array))
            except RuntimeError as error:
                failed.append(error)
                entered.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        if not entered.wait(LONGEST):
            raise TimeoutError("a program with a callback does not begin")
        if failed:
            raise failed[0]
        self.threads.append(thread)
        self.held[self._where(array)] += array.nbytes
        array.delete()

    def _known(self, operation: Operation, device: int) -> tuple[Known, bool]:
        """What is known of a call on a device before it, and whether it can never succeed there."""
        sizes, is_all, stay, arguments = list[int](), True, set[str](self.views), list[int]()
        match operation:
            case Put(_, bytes_, where) if where in (device, BOTH):
                sizes = [bytes_]
            case Run(number, names, _) if all(name in self.arrays for name in names) and self._is_on(names[0], device):
                what, donated = self.functions[number], self.donated.get(number, self.functions[number].donated)
                sizes = [self._bytes(names[i]) for i in range(what.updates) if i not in donated]
                sizes += what.results
                stay |= {name for number, name in enumerate(names) if number not in donated}
                arguments = [self._bytes(name) for name in names]
                is_all = not donated and not (what.scratch and self.settings["strategy"] == "tpu")
            case Busy(name) if name in self.arrays and self._is_on(name, device):
                sizes, is_all, arguments = [1], False, [self._bytes(name)]
                stay.add(name)
        stats = memory.stats()[device]
        spills = self.settings["spill"] != "off"
        stays = sum(self._bytes(name) for name in stay if name in self.arrays and self._is_on(name, device))
        # What busy programs hold may come back.
        stays = stays if spills else stats.bytes_in_use
        known = Known(stats.strategy, spills, sizes, is_all, arguments, stats.bytes_in_use, stats.num_live_blocks)
        # Arrays that are donated give their memory to results.
        return known, is_all and sum(sizes) + stays > self.limit

    def _bytes(self, name: str) -> int:
        """Bytes of an array on each of its devices."""
        array = self.arrays[name]
        return int(array.nbytes) // len(array.devices())

    def _is_on(self, name: str, device: int) -> bool:
        return self._where(self.arrays[name]) in (device, BOTH)


def body(what: Function, count: int) -> Callable[..., list[jax.Array]]:
    """The Python function of a program on so many devices."""

    def function(*arguments: jax.Array) -> list[jax.Array]:
        first = arguments[0][:, :1]
        if what.scratch:
            # A loop's own array is memory that no argument and no result has.
            start = jnp.broadcast_to(first, (count, what.scratch))
            first = first + jax.lax.fori_loop(0, 3, lambda _, x: x * x + 1, start)[:, -1:]
        updated = [x + jnp.uint8(1) for x in arguments[: what.updates]]
        return updated + [jnp.broadcast_to(first + jnp.uint8(i), (count, n)) for i, n in enumerate(what.results)]

    return function
