"""What the arena's design rests on, asked of the driver itself: libcuda alone, without JAX and without the arena.

Each fact has a sentence of what the design expects, another of what was found, and whether they agree; `None` where
that cannot be told. What is expected is what an H100 did (driver 580, CUDA 13.0). Times are of one call in Python,
which adds about a microsecond. What is measured is as large as the device allows.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from gpu import progress
from gpu.libcuda import (
    ATTRIBUTES,
    Driver,
    HostFunction,
    Missing,
    Pointer,
    Refused,
    Size,
    driver,
    properties,
)
from gpu.sizes import GIB, MIB, Sizes, chunk_of
from gpu.units import seconds, size

#: Whether it is as expected, what was found, and the numbers.
Found = tuple[bool | None, str, dict[str, Any]]
FACTS: dict[str, tuple[str, Callable[[Driver], Found]]] = {}


def fact(expected: str) -> Callable[[Callable[[Driver], Found]], Callable[[Driver], Found]]:
    """Adds a function to the list, with what the design expects of it."""

    def add(function: Callable[[Driver], Found]) -> Callable[[Driver], Found]:
        FACTS[function.__name__] = (expected, function)
        return function

    return add


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what it returned."""
    start = time.perf_counter()
    value = run()
    return time.perf_counter() - start, value


#: Seconds that one fact may take.
LONGEST = 25
#: The largest chunk of a region (`src/device/cuda/backing.rs`), and the driver's unit so far.
CHUNK, UNIT = 32 * MIB, 2 * MIB
#: Seconds of copies before one is measured.
WARM = 0.3
#: What a chunk and an exchange of two may take, in seconds, and all memory at the start: about twice what the design
#: counts on.
CHUNK_TIME, EXCHANGE_TIME, START_TIME = 0.2e-3, 0.3e-3, 1.0


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


def _whole(bytes_: float, unit: int) -> int:
    return int(bytes_) // unit * unit


def arenas_chunk(asked: Driver) -> int:
    """The arena's chunk for all of this device's memory."""
    return chunk_of(asked.memory()[1])


@fact("the device maps memory in units of 2 MiB and has pools")
def device(asked: Driver) -> Found:
    version = asked.out(ctypes.c_int, "cuDriverGetVersion")
    has = {name: asked.attribute(number) for name, number in ATTRIBUTES.items()}
    units = [asked.granularity(recommended) for recommended in (False, True)]
    free, total = asked.memory()
    said = ", ".join(f"{'has' if there else 'no'} {name}" for name, there in has.items())
    return (
        bool(has["mapping"] and has["pools"]) and units[1] == UNIT,
        (
            f"CUDA {version // 1000}.{version % 1000 // 10}, {size(free)} of {size(total)} free, "
            f"units of {size(units[0])}, {size(units[1])} recommended; {said}"
        ),
        {"version": version, "free": free, "total": total, "units": units, **has},
    )


@fact("memory as XLA's own can be made: exported as a file, and for RDMA, where the device has that")
def kinds_of_memory(asked: Driver) -> Found:
    has = {name: bool(asked.attribute(ATTRIBUTES[name])) for name in ("posix", "rdma")}
    said = {}
    for posix in (False, True):
        for rdma in (False, True):
            name = " and ".join(name for name, wanted in (("exported", posix), ("for RDMA", rdma)) if wanted) or "plain"
            said[name] = (posix <= has["posix"] and rdma <= has["rdma"], _can_be_made(asked, posix, rdma))
    good = all(why is None for wanted, why in said.values() if wanted)
    text = "; ".join(f"{name}: {why or 'yes'}" for name, (_, why) in said.items())
    return good, text, {name: why for name, (_, why) in said.items()}


def _can_be_made(asked: Driver, posix: bool, rdma: bool) -> str | None:
    """Why it cannot, or `None`."""
    at = asked.reserve(UNIT)
    handle = None
    try:
        handle = asked.create(UNIT, properties(posix, rdma))
        asked.map(at, UNIT, handle)
        try:
            asked.open(at, UNIT)
        finally:
            asked.unmap(at, UNIT)
    except Refused as why:
        return str(why)
    finally:
        if handle:
            asked.release(handle)
        asked.unreserve(at, UNIT)
    return None


class _Region:
    """Addresses with a chunk of memory behind each piece, and the seconds that each kind of call took."""

    def __init__(self, asked: Driver, bytes_: int, chunk: int) -> None:
        self._asked, self.chunk, self.count = asked, chunk, bytes_ // chunk
        self.took: dict[str, float] = {}
        self.at = self._timed("reserve", lambda: asked.reserve(self.bytes, chunk))
        self.handles: list[int] = []
        self._timed("create", lambda: self.handles.extend(asked.create(chunk) for _ in range(self.count)))
        self._timed("map", lambda: [asked.map(self.place(i), chunk, handle) for i, handle in enumerate(self.handles)])
        # As a region of the arena is opened: all of it at once.
        self._timed("open", lambda: asked.open(self.at, self.bytes))

    @property
    def bytes(self) -> int:
        return self.count * self.chunk

    def place(self, number: int) -> int:
        return self.at + number * self.chunk

    def end(self) -> None:
        self._timed("unmap", lambda: [self._asked.unmap(self.place(i), self.chunk) for i in range(self.count)])
        self._timed("release", lambda: [self._asked.release(handle) for handle in self.handles])
        self._asked.unreserve(self.at, self.bytes)

    def _timed(self, name: str, run: Callable[[], Any]) -> Any:
        self.took[name], value = timed(run)
        return value

    def each(self) -> dict[str, float]:
        """Seconds for one chunk."""
        return {name: took / self.count for name, took in self.took.items() if name != "reserve"}


@fact("a chunk of 32 MiB is made, mapped and opened in 0.1 ms, about as one of 2 MiB")
def chunks(asked: Driver) -> Found:
    whole = min(4 * GIB, asked.memory()[0] // 4)
    rows = {}
    for chunk in (UNIT, CHUNK, 512 * MIB):
        if chunk <= whole:
            region = _Region(asked, whole, chunk)
            region.end()
            rows[size(chunk)] = region.each()
    text = "; ".join(
        f"{name}: " + ", ".join(f"{call} {seconds(took)}" for call, took in row.items()) for name, row in rows.items()
    )
    row = rows.get(size(CHUNK)) or rows[size(UNIT)]
    return row["create"] + row["map"] + row["open"] <= CHUNK_TIME, text, rows


@fact("three quarters of the memory, as `preallocate` takes them, are there within a second")
def most_of_the_memory(asked: Driver) -> Found:
    free, total = asked.memory()
    chunk = arenas_chunk(asked)
    region = _Region(asked, _whole(min(0.75 * total, 0.95 * free), chunk), chunk)
    aligned = region.at % chunk == 0
    region.end()
    took = region.took
    start = took["reserve"] + took["create"] + took["map"] + took["open"]
    text = f"{size(region.bytes)} in {region.count} chunks of {size(chunk)}: {seconds(start)}, given back in "
    text += f"{seconds(took['unmap'] + took['release'])}; addresses aligned to chunks: {'yes' if aligned else 'no'}"
    return start <= START_TIME and aligned, text, {"bytes": region.bytes, "chunk": chunk, **took}


@fact("two chunks change places in 0.3 ms with their contents, by way of a second address for one memory")
def exchange(asked: Driver) -> Found:
    chunk = arenas_chunk(asked)
    region, stream = _Region(asked, 2 * chunk, chunk), asked.stream()
    for number in range(2):
        asked.fill(region.place(number), number + 1, chunk, stream)
    asked.wait(stream)
    took = min(timed(lambda: _exchanged(asked, region))[0] for _ in range(3))  # an odd number of times
    ends = [asked.read(region.place(number) + at, 1)[0] for number in range(2) for at in (0, chunk - 4)]
    # The memory behind the first piece at a second address, while the first still has it.
    again = asked.reserve(chunk, chunk)
    asked.map(again, chunk, region.handles[0])
    asked.open(again, chunk)
    both = asked.read(again, 1) == asked.read(region.place(0), 1)
    asked.unmap(again, chunk)
    asked.unreserve(again, chunk)
    region.end()
    asked.end(stream)
    good = ends == [2, 2, 1, 1]
    text = f"{seconds(took)} for two of {size(chunk)}, contents {'right' if good else f'wrong: {ends}'}, "
    text += f"one memory at two addresses: {'yes' if both else 'no'}"
    return good and both and took <= EXCHANGE_TIME, text, {"seconds": took, "chunk": chunk, "ends": ends, "twice": both}


def _exchanged(asked: Driver, region: _Region) -> None:
    region.handles.reverse()
    for number in range(2):
        asked.unmap(region.place(number), region.chunk)
    for number, handle in enumerate(region.handles):
        asked.map(region.place(number), region.chunk, handle)
    asked.open(region.at, region.bytes)


@fact("a pool gives back what was freed once the host knows that the stream is done, by whatever way")
def trimming(asked: Driver) -> Found:
    # Older drivers wanted a call of the host that waits for the stream or for an event of it.
    bytes_ = min(GIB, _whole(asked.memory()[1] / 8, UNIT))
    asked.keep((1 << 64) - 1)
    left = {way: _left_after(asked, way, bytes_) for way in ("host function", "event", "context")}
    enough = [way for way in left if left[way] < bytes_]
    not_enough = [way for way in left if way not in enough]
    text = f"goes back after: {', '.join(enough) or 'none'}; stays after: {', '.join(not_enough) or 'none'}"
    return {"event", "context"} <= {*enough}, text, {"bytes": bytes_, "reserved_after": left}


def _left_after(asked: Driver, way: str, bytes_: int) -> int:
    """What the pool has after a trim, where the host learned by `way` alone that the stream is done."""
    stream, other, rung = asked.stream(), asked.stream(), threading.Event()
    at = asked.take(bytes_, stream)
    asked.fill(at, 1, bytes_, stream)
    asked.give(at, stream)
    event = asked.record(stream)
    # As XLA does: another stream waits for the first, and calls the host.
    ring = HostFunction(lambda _: rung.set())
    asked.call("cuStreamWaitEvent", Pointer(other), Pointer(event), ctypes.c_uint(0))
    asked.call("cuLaunchHostFunc", Pointer(other), ring, None)
    if not rung.wait(20):
        raise Refused("a function of the host was not called in 20 s")
    time.sleep(0.02)
    if way == "event":
        asked.call("cuEventSynchronize", Pointer(event))
    elif way == "context":
        asked.call("cuCtxSynchronize")
    left = asked.trim()
    asked.call("cuCtxSynchronize")
    asked.trim()
    asked.end(stream)
    asked.end(other)
    return left


@fact("a pool takes at most 32 MiB for a byte, and for a larger piece after a smaller one no more than both together")
def growth_of_a_pool(asked: Driver) -> Found:
    stream = asked.stream()
    asked.keep((1 << 64) - 1)
    asked.give(asked.take(1, stream), stream)
    one = asked.reserved()
    asked.wait(stream)
    asked.trim()
    step = min(GIB, _whole(asked.memory()[1] / 16, UNIT))
    seen = []
    for bytes_ in (step, step * 5 // 4, step * 3 // 2):
        at = asked.take(bytes_, stream)
        seen.append({"asked": bytes_, "reserved": asked.reserved()})
        asked.give(at, stream)
    asked.wait(stream)
    kept = asked.reserved()
    left = asked.trim()
    asked.end(stream)
    grown = ", ".join(f"{size(each['reserved'])} for {size(each['asked'])}" for each in seen)
    text = f"{size(one)} for a byte; {grown}, one after the other; {size(kept)} kept, {size(left)} after a trim"
    most = sum(each["asked"] for each in seen)
    holds = one <= CHUNK and kept <= most + UNIT and left <= CHUNK
    return holds, text, {"one": one, "seen": seen, "kept": kept, "left": left}


@fact("mapping, pinning and trimming wait for no work of the device; cuMemFree and cuMemFreeHost wait for all")
def calls_beside_work(asked: Driver) -> Found:
    total = asked.memory()[1]
    bytes_, chunk = min(4 * GIB, _whole(total / 16, UNIT)), arenas_chunk(asked)
    at, addresses, stream = asked.allocate(bytes_), asked.reserve(chunk), asked.stream()
    held: dict[str, int] = {}
    # As much work as takes a fifth of a second, less where a simulated device computes.
    once = timed(lambda: (asked.fill(at, 1, bytes_, stream), asked.wait(stream)))[0]
    times = max(2, min(800, int((0.2 if total > 32 * GIB else 0.05) / once)))
    calls: dict[str, Callable[[], Any]] = {
        "create": lambda: held.update(handle=asked.create(chunk)),
        "map and open": lambda: (asked.map(addresses, chunk, held["handle"]), asked.open(addresses, chunk)),
        "unmap": lambda: asked.unmap(addresses, chunk),
        "release": lambda: asked.release(held["handle"]),
        "pin": lambda: held.update(host=asked.pin(chunk)),
        "unpin": lambda: asked.unpin(held["host"]),
        "allocate": lambda: held.update(device=asked.allocate(chunk)),
        "free": lambda: asked.free(held["device"]),
        "memory info": asked.memory,
        "trim": asked.trim,
    }
    rows = {}
    for name, call in calls.items():
        for _ in range(times):
            asked.fill(at, 1, bytes_, stream)
        took = timed(call)[0]
        rows[name] = {"took": took, "left": timed(lambda: asked.wait(stream))[0]}
    asked.unreserve(addresses, chunk)
    asked.free(at)
    asked.end(stream)
    waited = [name for name, row in rows.items() if row["took"] > row["left"]]
    each = ", ".join(f"{name} {seconds(row['took'])}" for name, row in rows.items())
    text = f"{', '.join(waited) or 'none'} waited; {each}"
    return {*waited} <= {"free", "unpin", "allocate"} and "free" in waited, text, rows


@fact("copies over borders of chunks are as fast as within one allocation")
def bandwidth(asked: Driver) -> Found:
    chunk = arenas_chunk(asked)
    half = max(chunk, min(2 * GIB, _whole(asked.memory()[1] / 16, chunk)))
    region, plain, stream = _Region(asked, 2 * half, chunk), asked.allocate(2 * half), asked.stream()
    pinning, host = timed(lambda: asked.pin(half))

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

        return 4 * half / timed(run)[0]

    # An idle GPU runs at a low clock, and what is asked first would pay for it.
    end = time.perf_counter() + WARM
    while time.perf_counter() < end:
        copies("over borders")
        copies("within one")
    # In turn, so that a slow moment hits both kinds; the best of five.
    found = dict.fromkeys(ways, 0.0)
    for _ in range(5):
        for way in ways:
            found[way] = max(found[way], copies(way))
    found["pinning"] = half / pinning
    asked.unpin(host)
    asked.free(plain)
    asked.end(stream)
    region.end()
    text = ", ".join(f"{name} {each / 1e9:.1f} GB/s" for name, each in found.items())
    # A copy within the device reads each byte and writes it: twice this much passes its memory.
    text += "; bytes are counted once"
    return found["over borders"] >= 0.9 * found["within one"], text, found
