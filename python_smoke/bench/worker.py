"""One program on one backend, in one process: times, page faults, peak memory, and numbers that say what it computed.

The process is forked from the runner. A fork begins a new high-water mark at what is resident then (Linux, `dup_mm`),
so `VmHWM` at the end is the peak of this program alone. Two figures come of it:

    peak_bytes        VmHWM
    peak_data_bytes   VmHWM without mapped files, and without anonymous memory that was there after the import of JAX

The second is what the program and the allocator take; the first has libraries in it, and an engine behind the C API
is a second XLA: 50 to 70 MiB of code and tables, whatever the program. Mapped files are taken at the end, which is
exact as long as nothing is unmapped. A forked process maps again only those library pages that it touches: a program
that imports JAX by itself peaks 50 to 70 MiB higher, on every backend.
"""

from __future__ import annotations

import dataclasses
import gc
import resource
import statistics
import time
from pathlib import Path
from typing import Any

from bench.backends import Backend, enter


def resident(which: str) -> int:
    """`VmHWM`, `RssAnon` or `RssFile` of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(which + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {which}")


def quartiles(values: list[float]) -> dict[str, float]:
    """Median and quartiles; of one value, that value three times."""
    if len(values) == 1:
        return {"median": values[0], "q1": values[0], "q3": values[0]}
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}


def measure(name: str, backend: Backend, quick: bool, folder: Path) -> dict[str, Any]:
    """What `results.Reading` is made of: a JSON object."""
    base = resident("RssAnon")
    from bench.programs import BY_NAME, Sizes

    program = BY_NAME[name]
    enter(backend, program.devices, folder)
    case = program.make(Sizes(quick))
    if backend.floor:
        case = floor_of(case, backend.destinations)
    readings, faults = [], 0
    gc.collect()
    gc.disable()
    for number in range(program.warm + program.readings):
        prepared = case.prepare()
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
        result = case.run(prepared)
        # In the measured time: somebody has to give the memory back, and backends differ in who pays.
        del result
        seconds = time.perf_counter() - start
        if number >= program.warm:
            readings.append(seconds / case.calls)
            faults += resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        del prepared
    peak = resident("VmHWM")
    report = {
        **quartiles(readings),
        "fastest": min(readings),
        "faults": faults / (program.readings * case.calls),
        "peak_bytes": peak,
        "peak_data_bytes": peak - resident("RssFile") - base,
        "value": digest(case.value(case.run(case.prepare()))),
    }
    if backend.platform == "arena":
        from pjrt_arena import memory

        report["results"] = dataclasses.asdict(memory.counters().results)
    return report


def floor_of(case: Any, destinations: int) -> Any:
    """The same program writing into a previous result, which is donated as an argument that it does not read.

    With two destinations it writes into the last result but one, and the last stays alive meanwhile: that is what a
    loop does that calls the program itself, where `result = step(x)` drops the old result after the new one is there.
    The memory that takes turns then is larger by a result, which shows where it just fits the processor's cache.
    """
    import collections

    import jax

    from bench.programs import Case, wait

    function = case.function
    step = jax.jit(lambda destination, *arguments: function(*arguments), donate_argnums=0, keep_unused=True)
    plain = jax.jit(function)
    held = collections.deque(wait(plain(*case.arguments)) for _ in range(destinations))
    home = [addresses(each) for each in held]

    def run(_):
        for _ in range(case.calls):
            held.append(wait(step(held.popleft(), *case.arguments)))
        return held[-1]

    for _ in range(destinations):
        held.append(wait(step(held.popleft(), *case.arguments)))
    if [addresses(each) for each in held] != home:
        raise RuntimeError("a result does not lie in its destination: this is not the floor")
    return Case(run, calls=case.calls, value=case.value)


def addresses(tree: Any) -> list[int]:
    """Where the arrays of `tree` lie, in ascending order: XLA may permute destinations of one type."""
    import jax

    shards = (shard.data for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards)
    return sorted(shard.unsafe_buffer_pointer() for shard in shards)


def digest(tree: Any) -> list[list[float]]:
    """Numbers that say what was computed, each with the magnitude that a difference is to be compared with.

    Per array: the sum and the sum of magnitudes, so that a wrong byte anywhere can show, and three elements.
    """
    import jax
    import numpy as np

    said = []
    for leaf in jax.tree.leaves(tree):
        values = np.asarray(leaf).reshape(-1)
        if values.dtype.kind == "c":
            values = values.view(values.real.dtype)
        total = float(np.sum(np.abs(values), dtype=np.float64))
        mean = total / max(1, values.size)
        said += [[float(np.sum(values, dtype=np.float64)), total], [total, total]]
        said += [[float(v), max(mean, abs(float(v)))] for v in values[[0, values.size // 2, -1]]]
    return said
