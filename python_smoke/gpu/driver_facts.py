"""What the arena's design rests on, asked of the driver itself: libcuda alone, without JAX and without the arena.

Each fact has a sentence of what the design expects, another of what was found, and whether they agree; `None` where
that cannot be told. What is expected is what an H100 did (driver 580, CUDA 13.0).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from gpu import progress
from gpu.libcuda import ATTRIBUTES, Driver, Missing, Pointer, Refused, Size, driver, properties
from gpu.sizes import GIB, MIB, Sizes, chunk_of
from gpu.units import rate, seconds, size

#: Whether it is as expected, what was found, and the numbers.
Found = tuple[bool | None, str, dict[str, Any]]
FACTS: dict[str, tuple[str, Callable[[Driver], Found]]] = {}
#: Seconds that one fact may take.
LONGEST = 25
#: The driver's unit so far, and what all memory may take at the start, in seconds.
UNIT, START_TIME = 2 * MIB, 1.0
#: Seconds of copies before one is measured.
WARM = 0.3


def fact(expected: str) -> Callable[[Callable[[Driver], Found]], Callable[[Driver], Found]]:
    """Adds a function to the list, with what the design expects of it."""

    def add(function: Callable[[Driver], Found]) -> Callable[[Driver], Found]:
        FACTS[function.__name__] = (expected, function)
        return function

    return add


def measure(sizes: Sizes, names: list[str] | None = None) -> dict[str, Any]:
    """All facts, or those of these names."""
    chosen = names or list(FACTS)
    answer: dict[str, Any] = {"facts": []}
    try:
        asked = driver()
    except OSError as error:
        raise progress.Skip(f"no driver: {error}") from None
    with asked.current():
        for number, name in enumerate(chosen):
            with progress.step(name, chosen[number + 1 :], answer, LONGEST):
                answer["facts"].append({"name": name} | _one(asked, name))
    return answer


def _one(asked: Driver, name: str) -> dict[str, Any]:
    expected, function = FACTS[name]
    try:
        holds, found, numbers = function(asked)
    except Missing as error:
        # That says nothing about the design.
        holds, found, numbers = None, str(error), {}
    except Exception as error:
        # The driver's refusal, or our mistake, which costs no other fact.
        holds, found, numbers = False, f"{type(error).__name__}: {error}", {}
    return {"expected": expected, "found": found, "holds": holds, "numbers": numbers}


@fact("the device maps memory in units of 2 MiB and has pools")
def device(asked: Driver) -> Found:
    version, unit = asked.out(ctypes.c_int, "cuDriverGetVersion"), asked.granularity()
    has = {name: asked.attribute(number) for name, number in ATTRIBUTES.items()}
    free, total = asked.memory()
    said = ", ".join(f"{'has' if there else 'no'} {name}" for name, there in has.items())
    text = f"CUDA {version // 1000}.{version % 1000 // 10}, {size(free)} of {size(total)} free, units of {size(unit)}"
    good = bool(has["mapping"] and has["pools"]) and unit == UNIT
    return good, f"{text}; {said}", {"version": version, "free": free, "total": total, "unit": unit, **has}


@fact("memory as XLA's own can be made: exported as a file, and for RDMA, where the device has that")
def kinds_of_memory(asked: Driver) -> Found:
    wanted = {name: bool(asked.attribute(ATTRIBUTES[name])) for name in ("posix", "rdma")}
    refused = {}
    for name, of in {"plain": {}, "exported": {"posix": True}, "for RDMA": {"rdma": True}, "as XLA's": wanted}.items():
        try:
            _Region(asked, UNIT, UNIT, properties(**{"posix": False} | of)).end()
        except Refused as why:
            refused[name] = str(why)
    good = not {"plain", "as XLA's"} & {*refused}
    return good, "; ".join(f"{name}: {why}" for name, why in refused.items()) or "every kind", refused


class _Region:
    """Addresses with a chunk of memory behind each piece, and the seconds that each kind of call took."""

    def __init__(self, asked: Driver, bytes_: int, chunk: int, of: Any = None) -> None:
        self._asked, self._chunk = asked, chunk
        self.count, self.bytes = bytes_ // chunk, bytes_
        self.took: dict[str, float] = {}
        self.at = asked.reserve(bytes_, chunk)
        self._handles: list[int] = []
        try:
            self._timed("create", lambda _: self._handles.append(asked.create(chunk, of)))
            self._timed("map", lambda number: asked.map(self._place(number), chunk, self._handles[number]))
            # As a region of the arena is opened: all of it at once.
            self.took["open"] = took(lambda: asked.open(self.at, bytes_))
        except Refused:
            self.end()
            raise

    def end(self) -> None:
        if "map" in self.took:
            self._timed("unmap", lambda number: self._asked.unmap(self._place(number), self._chunk))
        self._timed("release", lambda _: self._handles and self._asked.release(self._handles.pop()))
        self._asked.unreserve(self.at, self.bytes)

    def _place(self, number: int) -> int:
        return self.at + number * self._chunk

    def _timed(self, name: str, run: Callable[[int], Any]) -> None:
        self.took[name] = took(lambda: [run(number) for number in range(self.count)])


def took(run: Callable[[], Any]) -> float:
    """Seconds that it takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _whole(bytes_: float, unit: int) -> int:
    return int(bytes_) // unit * unit


@fact("three quarters of the memory, as `preallocate` takes them, are there within a second")
def most_of_the_memory(asked: Driver) -> Found:
    free, total = asked.memory()
    chunk = chunk_of(total)
    region = _Region(asked, _whole(min(0.75 * total, 0.95 * free), chunk), chunk)
    aligned = region.at % chunk == 0
    region.end()
    start = sum(region.took[name] for name in ("create", "map", "open"))
    text = f"{size(region.bytes)} in {region.count} chunks of {size(chunk)}: {seconds(start)}; of a chunk "
    text += ", ".join(f"{name} {seconds(each / region.count)}" for name, each in region.took.items())
    numbers = {"bytes": region.bytes, "chunk": chunk, **region.took}
    return start <= START_TIME and aligned, text + ("" if aligned else "; addresses are not aligned to chunks"), numbers


@fact("copies over borders of chunks are as fast as within one allocation")
def bandwidth(asked: Driver) -> Found:
    total = asked.memory()[1]
    chunk = chunk_of(total)
    half = max(chunk, min(2 * GIB, _whole(total / 16, chunk)))
    region, plain, stream = _Region(asked, 2 * half, chunk), asked.allocate(2 * half), asked.stream()
    host = asked.pin(half)
    within = ctypes.c_uint64
    ways = {
        "over borders": ("cuMemcpyDtoDAsync_v2", within(region.at + half), within(region.at)),
        "within one": ("cuMemcpyDtoDAsync_v2", within(plain + half), within(plain)),
        "from the host": ("cuMemcpyHtoDAsync_v2", within(region.at), Pointer(host)),
        "to the host": ("cuMemcpyDtoHAsync_v2", Pointer(host), within(region.at)),
    }

    def copies(way: str) -> float:
        """Bytes in a second, of four copies."""
        name, to, source = ways[way]

        def run() -> None:
            for _ in range(4):
                asked.call(name, to, source, Size(half), Pointer(stream))
            asked.wait(stream)

        return 4 * half / took(run)

    # An idle GPU runs at a low clock, and what is asked first would pay for it.
    end = time.perf_counter() + WARM
    while time.perf_counter() < end:
        copies("within one")
    # In turn, so that a slow moment hits both kinds; the best of five.
    found = dict.fromkeys(ways, 0.0)
    for _ in range(5):
        for way in ways:
            found[way] = max(found[way], copies(way))
    asked.unpin(host)
    asked.free(plain)
    asked.end(stream)
    region.end()
    # A copy within the device reads each byte and writes it: twice this much passes its memory.
    text = ", ".join(f"{name} {rate(each, 1)}" for name, each in found.items()) + "; bytes are counted once"
    return found["over borders"] >= 0.9 * found["within one"], text, found
