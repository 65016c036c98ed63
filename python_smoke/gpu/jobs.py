"""What is measured on which backend, in which stage, and about how long that takes.

facts    the driver by itself, with the whole device
wave     what is right or wrong, all at once, each process with a few GiB
again    a check that fails on the arena and not on JAX's allocators, with one thing off each
quiet    what takes time, one after the other, the most valuable first
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from gpu.backends import Backend, alone
from gpu.sizes import Sizes

STAGES = ("facts", "wave", "quiet")
#: In the order of the report.
PARTS = {
    "driver": "What the driver does",
    "checks": "Programs whose results are known",
    "fragmented": "Fragmented memory, as in jax-ml/jax#9064",
    "scratch": "Arrays and scratch of one limit",
    "threads": "Threads in memory that is nearly full, beside compactions",
    "machine": "Clients",
    "steps": "Training steps",
    "usable": "Usable share of memory",
    "refusals": "From a request that cannot be served to its error",
    "compaction": "Compaction",
    "loops": "Loops that do not wait",
    "nearly_all": "97 % of the device",
    "dispatch": "Dispatch",
    "transfers": "From and to the host",
}
#: Tells a process the limit that its backend was given, in bytes.
LIMIT_VARIABLE = "GPU_SCRIPT_LIMIT"


@dataclass(frozen=True)
class Job:
    """One measurement in one process."""

    stage: str
    part: str
    #: The function, with its module.
    measure: str
    backend: Backend
    #: About how long it takes at full size on an H100, in seconds.
    seconds: float
    #: The function's arguments besides the sizes.
    values: dict[str, Any] = field(default_factory=dict)
    #: Bytes of the device that it may take; `None` leaves it to the backend.
    limit: int | None = None
    #: More variables of the process.
    variables: dict[str, str] = field(default_factory=dict)
    #: XLA_FLAGS.
    flags: str = ""
    #: What is different from others of the part.
    note: str = ""

    @property
    def title(self) -> str:
        """How it is called in the report."""
        return f"{self.backend.title}, {self.note}" if self.note else self.backend.title


#: One thing off each: variables, XLA_FLAGS. What begins with FIRST_HIDE is for the shim (`shim.c`): attributes of the
#: device that the arena does not see.
FALLBACKS: dict[str, tuple[dict[str, str], str]] = {
    "again, with a line for each call of the driver": ({"PJRT_ARENA_LOG": "trace"}, ""),
    "no command buffers": ({}, "--xla_gpu_enable_command_buffer="),
    "no autotuning": ({}, "--xla_gpu_autotune_level=0"),
    "no Triton products": ({}, "--xla_gpu_enable_triton_gemm=false"),
    "no rewriting": ({"PJRT_ARENA_REWRITE": "off"}, ""),
    "platform": ({"PJRT_ARENA_STRATEGY": "platform"}, ""),
    "no mapping": ({"FIRST_HIDE": "102"}, ""),
    "no pools": ({"FIRST_HIDE": "115"}, ""),
    "no RDMA, no export": ({"FIRST_HIDE": "110,103"}, ""),
    "one launch at a time": ({"CUDA_LAUNCH_BLOCKING": "1"}, ""),
}


def fallbacks(job: Job, check: str) -> Iterator[Job]:
    """The job again, with that check alone."""
    for note, (variables, flags) in FALLBACKS.items():
        yield replace(
            job,
            stage="again",
            values={**job.values, "names": [check]},
            variables={**job.variables, **variables},
            flags=flags,
            note=f"{check}, {note}",
        )


def jobs(platform: str, sizes: Sizes, columns: list[Backend]) -> list[Job]:
    """Everything, in order. `columns` are the backends that take part, JAX's own first."""
    by_name = {backend.name: backend for backend in columns}
    ours = [backend for backend in columns if backend.ours]
    tpu, preallocate, growing = (by_name.get(f"arena_{kind}") for kind in ("tpu", "preallocate", "growing"))
    bfc, cuda_async = by_name.get("jax_bfc"), by_name.get("jax_cuda_async")
    small, large = sizes.limit, sizes.compacted
    compacts, spills = {"PJRT_ARENA_COMPACT": "on"}, {"PJRT_ARENA_SPILL": "host"}
    on_gpu = platform == "cuda"

    def those(*wanted: Backend | None) -> list[Backend]:
        return [backend for backend in wanted if backend]

    def made() -> Iterator[Job]:
        if on_gpu:
            yield Job("facts", "driver", "gpu.driver_facts.measure", alone(platform), 12)
        for backend in columns:
            values = {"ours": backend.ours}
            yield Job("wave", "checks", "gpu.checks.run", backend, 45, values, small)
        for backend in those(bfc, tpu):
            yield Job("wave", "fragmented", "gpu.room.fragmented", backend, 15, limit=small)
        for backend in those(tpu):
            yield Job("wave", "scratch", "gpu.room.scratch", backend, 8, limit=small)
        kinds: tuple[tuple[Backend | None, dict[str, str], str], ...] = (
            (tpu, {}, ""),
            (growing, compacts, "compact=on"),
            (tpu, {"PJRT_ARENA_COMPACT": "always"}, "compact=always"),
            (preallocate, spills | compacts, "spill=host"),
        )
        for each, variables, note in kinds:
            for backend in those(each):
                limit = small // (4 if note == "spill=host" else 2)
                yield Job("wave", "threads", "gpu.threads.run", backend, 25, {}, limit, variables, note=note)
        for backend in [*those(bfc), *ours[:1]] if on_gpu else columns[:2]:
            yield Job("quiet", "machine", "gpu.small.client", backend, 4)
        for backend in [*those(bfc, cuda_async), *those(preallocate, tpu)] if on_gpu else columns[:2]:
            yield Job("quiet", "steps", "gpu.steps.train", backend, 25, {"donate": ["transformer"]})
        for backend in those(preallocate, tpu):
            yield Job("quiet", "usable", "gpu.room.usable", backend, 10, {"seeds": 3}, small)
            yield Job("quiet", "refusals", "gpu.room.refusals", backend, 6, {}, small)
        for backend in those(tpu):
            for note, values in (
                ("", {}),
                ("not whole chunks", {"odd": True}),
                ("holes given back", {"trimmed": True}),
            ):
                yield Job("quiet", "compaction", "gpu.room.compaction", backend, 4, values, large, note=note)
        for backend in those(bfc, cuda_async, preallocate, growing):
            variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if backend is cuda_async else {}
            yield Job("quiet", "loops", "gpu.loops.run", backend, 7, {}, large, variables)
        if on_gpu:
            for backend in those(preallocate, tpu):
                yield Job(
                    "quiet", "nearly_all", "gpu.room.nearly_all", backend, 12, variables={"PJRT_ARENA_LIMIT": "97%"}
                )
        for backend in dict.fromkeys(those(*columns[:1], preallocate, tpu)):
            yield Job("quiet", "dispatch", "gpu.small.dispatch", backend, 12)
        for backend in dict.fromkeys(those(*columns[:1], preallocate, tpu)):
            yield Job("quiet", "transfers", "gpu.small.transfers", backend, 20)
        for backend in those(bfc):
            yield Job("quiet", "usable", "gpu.room.usable", backend, 37, {"seeds": 3}, small)
            # It waits ten seconds before it says no.
            yield Job("quiet", "refusals", "gpu.room.refusals", backend, 16, {"cases": ["array"], "times": 1}, small)

    return list(made())
