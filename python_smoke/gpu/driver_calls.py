"""More facts about the driver: what an allocation really takes, how late the host is called, how long pinning takes.

As in `driver_facts.py`, which measures all: each is a fact with what the design expects.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
import time

from gpu.fact import Found, fact, timed
from gpu.form import seconds, size
from gpu.libcuda import Driver, Pointer, Refused
from gpu.sizes import GIB, MIB

#: Allocations, and the bytes of each: a little more than the driver's unit of 2 MiB.
ALLOCATIONS, ALLOCATED = 64, 2 * MIB + MIB // 10
#: Calls of the host whose latency is measured, at most, and for how many seconds.
CALLS, CALLS_TIME = 300, 0.3
#: How late the host may be called, in seconds: the median, and the worst of a hundred. The arena learns from such calls
#: that a block is free again.
CALL_TIME, WORST_CALL_TIME = 0.1e-3, 1e-3
#: How fast memory of the host has to be pinned, in bytes per second.
PINNED_PER_SECOND = 1.0 * GIB


@fact("an allocation takes no more of the device than its bytes, rounded up to 2 MiB")
def rounding_of_allocations(asked: Driver) -> Found:
    # The first one may bring memory of the driver's own.
    asked.free(asked.allocate(ALLOCATED))
    before = asked.memory()[0]
    # A simulated device may be small.
    count = min(ALLOCATIONS, before // (2 * MIB) // 4)
    places = [asked.allocate(ALLOCATED) for _ in range(count)]
    taken = before - asked.memory()[0]
    for place in places:
        asked.free(place)
    left = before - asked.memory()[0]
    each = taken / count
    text = f"{count} of {size(ALLOCATED)} take {size(taken)}, {size(each)} each; {size(max(0, left))} stay afterwards"
    return each <= 4 * MIB, text, {"count": count, "bytes": ALLOCATED, "taken": taken, "each": each, "left": left}


@fact("the host is called within 0.1 ms of an event, the worst of a hundred within 1 ms, also while others launch")
def calls_of_the_host(asked: Driver) -> Found:
    idle = _latencies(asked)
    closed, launched = threading.Event(), 0

    def launch() -> None:
        nonlocal launched
        with asked.current():
            at, stream = asked.allocate(MIB), asked.stream()
            while not closed.is_set():
                asked.fill(at, 1, MIB, stream)
                launched += 1
                # The queue has an end, at which a launch waits: that would be measured in place of launches.
                if launched % 256 == 0:
                    asked.wait(stream)
            asked.wait(stream)
            asked.end(stream)
            asked.free(at)

    other = threading.Thread(target=launch, daemon=True)
    other.start()
    try:
        busy = _latencies(asked)
    finally:
        closed.set()
        other.join(20)
    rows = {"idle": _row(idle), "beside launches": _row(busy)}
    text = "; ".join(
        f"{name}: median {seconds(row['median'])}, 99 of 100 within {seconds(row['p99'])}" for name, row in rows.items()
    )
    text += f", {launched:,} launches"
    good = all(row["median"] <= CALL_TIME and row["p99"] <= WORST_CALL_TIME for row in rows.values())
    return good, text, {**rows, "launches": launched}


def _row(values: list[float]) -> dict[str, float]:
    values = sorted(values)
    at = min(len(values) - 1, int(0.99 * len(values)))
    return {"median": statistics.median(values), "p99": values[at], "most": values[-1], "count": len(values)}


def _latencies(asked: Driver) -> list[float]:
    """Seconds from the moment before an event is recorded until the host is called behind it, on another stream.

    The function that is called is the C library's own `sem_post`: one in Python would wait for the interpreter's lock.
    """
    library = ctypes.CDLL(None)
    # Larger than the type is on any machine.
    semaphore = ctypes.create_string_buffer(64)
    library.sem_init(semaphore, 0, 0)
    post = ctypes.cast(library.sem_post, Pointer)
    # An absolute time, `struct timespec`: a driver that never calls must not hang the facts behind.
    until = (ctypes.c_long * 2)(int(time.time()) + 15, 0)
    first, second = asked.stream(), asked.stream()

    def once() -> float:
        start = time.perf_counter()
        event = asked.record(first)
        asked.call("cuStreamWaitEvent", Pointer(second), Pointer(event), ctypes.c_uint(0))
        asked.call("cuLaunchHostFunc", Pointer(second), post, ctypes.cast(semaphore, Pointer))
        if library.sem_timedwait(semaphore, until):
            raise Refused("a function of the host was not called in 15 s")
        took = time.perf_counter() - start
        asked.call("cuEventDestroy_v2", Pointer(event))
        return took

    # The first calls start the driver's threads.
    for _ in range(10):
        once()
    taken: list[float] = []
    end = time.perf_counter() + CALLS_TIME
    while len(taken) < CALLS and (not taken or time.perf_counter() < end):
        taken.append(once())
    asked.end(first)
    asked.end(second)
    return taken


@fact("1 GiB of the host's memory is pinned in a second")
def pinning(asked: Driver) -> Found:
    # As much as suits a small simulated device.
    bytes_ = min(GIB, asked.memory()[1] // 8)
    taken, at = timed(lambda: asked.pin(bytes_))
    given = timed(lambda: asked.unpin(at))[0]
    text = f"{size(bytes_)} in {seconds(taken)}, given back in {seconds(given)}"
    return taken <= bytes_ / PINNED_PER_SECOND, text, {"bytes": bytes_, "pin": taken, "unpin": given}
