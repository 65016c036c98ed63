"""The parts of a run, in the order of their worth: what is measured on which backend, and about how long that takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpu.backends import Backend, alone
from gpu.sizes import Sizes

#: In the order of the page; `jobs` has that in which they run.
PARTS = {
    "k": "What the driver does",
    "a": "Machine, versions, and how the engine treats views",
    "b": "Does it work: programs whose results are known",
    "c": "Fragmented memory, as in jax-ml/jax#9064",
    "e": "Usable share of memory",
    "l": "Arrays and scratch up to the limit, and up to the device's last bytes",
    "m": "The first array, a trim, the end of a process",
    "n": "PyTorch in the same process",
    "d": "Training steps",
    "f": "Compaction",
    "g": "From and to the host",
    "h": "Dispatch, and what a live array takes on the host",
    "i": "Many small kernels, with and without command buffers",
    "j": "compute-sanitizer",
}

#: The part behind which a run may be given up, and why it is.
CHECKS = "b"
GATE = "stopped: the arena passed no check on any backend, and the rest would tell nothing"
#: Tells a process the limit that its backend was given, in bytes.
LIMIT_VARIABLE = "GPU_SCRIPT_LIMIT"
#: Turns XLA's CUDA graphs off.
NO_COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer="
#: Models whose step is given its state; the MLP's keeps the old one, as programs without donation do.
DONATED = ["transformer", "convolution"]
#: What runs under compute-sanitizer, which makes kernels some ten to a hundred times slower.
SANITIZED = ["arithmetic", "donation", "transfers", "compaction_and_reports"]
#: What is left to CUDA and its libraries where the arena has nearly all: 4 GiB of 140.
NEARLY_ALL = "97%"


@dataclass(frozen=True)
class Job:
    """One measurement in one process."""

    part: str
    #: The function, with its module.
    measure: str
    backend: Backend
    #: About how long it takes at full size, in seconds. It is ended after a multiple of that.
    seconds: float
    #: The function's arguments besides the sizes.
    values: dict[str, Any] = field(default_factory=dict)
    #: Bytes of memory that it may take; of the arena's, also a share in its own words.
    limit: int | str | None = None
    #: XLA_FLAGS.
    flags: str = ""
    round: int = 1
    #: Runs under compute-sanitizer.
    sanitized: bool = False
    #: Means nothing on a CPU.
    for_gpus: bool = False

    @property
    def key(self) -> tuple[str, str, str, str, str, int]:
        """What it is known by: a second run of the same replaces the first."""
        return self.part, self.measure, self.backend.name, repr(sorted(self.values.items())), self.flags, self.round

    @property
    def name(self) -> str:
        """The same as a text, for a record."""
        return "|".join(map(str, self.key))


def jobs(platform: str, sizes: Sizes, columns: list[Backend], rounds: int) -> list[Job]:
    """Everything, in order. `columns` are the backends that take part.

    First whether it is right, under each strategy, and what fits; then how long steps take; then the rest.
    """
    theirs = [backend for backend in columns if not backend.ours]
    ours = [backend for backend in columns if backend.ours]
    # JAX's CPU backend has no limit, so nothing is ever full there; of XLA's allocators bfc alone tells its own.
    limited = [backend for backend in theirs if backend.kind]
    telling = [backend for backend in limited if backend.kind == "bfc"]
    movers = [backend for backend in ours if backend.kind == "tpu"] or ours[:1]
    pair = theirs[:1] + ours[:1]
    others = [backend for backend in movers if backend not in pair]
    # Pieces of memory that are mapped, and beside them allocations of the driver's own: see the table of part j.
    watched = [*movers, *(backend for backend in ours if backend.kind == "platform" and backend not in movers)]
    # Those that take the memory up front, with and without compaction; the one that asks for it while others work.
    regions = [backend for backend in ours if backend.kind in ("tpu", "preallocate")]
    asking = [backend for backend in ours if backend.kind == "growing"]
    shares = [Job("e", "gpu.room.share", each, 30, {"seeds": 3}, limit=sizes.limit) for each in [*limited, *ours]]
    told = {each.name for each in [*telling, *regions]}

    def made() -> Iterator[Job]:
        yield Job("k", "gpu.driver_facts.measure", alone(platform), 30, for_gpus=True)
        yield from (Job("a", "gpu.machine.about", backend, 15) for backend in pair)
        yield from (Job("b", "gpu.checks.run", backend, 60, {"ours": True}) for backend in ours)
        yield from (Job("c", "gpu.room.fragmented", backend, 25, limit=sizes.limit) for backend in [*telling, *movers])
        yield from (job for job in shares if job.backend.name in told)
        yield from (Job("l", "gpu.pressure.scratch", backend, 25, limit=sizes.limit) for backend in regions)
        yield from (
            Job("l", "gpu.pressure.device", backend, 50, limit=NEARLY_ALL, for_gpus=True) for backend in regions
        )
        yield from (
            Job("f", "gpu.room.compaction", backend, 30, {"odd": False, "trimmed": True}, limit=sizes.compacted)
            for backend in movers
        )
        yield from (Job("m", "gpu.start.ends", backend, 10) for backend in pair)
        # XLA's own allocator is the control: what goes wrong there as well is not the arena's.
        yield from (
            Job("n", "gpu.beside_torch.both", backend, 25, for_gpus=True) for backend in [*telling, *movers, *asking]
        )
        yield from _steps(columns, 1)
        yield from (job for job in shares if job.backend.name not in told)
        yield from (Job("a", "gpu.machine.views", backend, 20) for backend in theirs[:1])
        yield from (Job("g", "gpu.transfers.both", backend, 30) for backend in [*pair, *others])
        yield from (Job("g", "gpu.transfers.puts", backend, 20) for backend in [*pair, *others])
        yield from (
            Job("f", "gpu.room.compaction", backend, 30, {"odd": odd}, limit=sizes.compacted)
            for backend in movers
            for odd in (True, False)
        )
        yield from (Job("h", "gpu.small.costs", backend, 25) for backend in columns)
        # On a CPU the flag does nothing: there is one row then.
        graphs = ("", NO_COMMAND_BUFFERS) if platform != "cpu" else ("",)
        yield from (
            Job("i", "gpu.small.many_kernels", backend, 25, flags=flags) for backend in pair for flags in graphs
        )
        yield from (Job("i", "gpu.small.graph_memory", backend, 25) for backend in pair)
        yield from (
            Job(
                "j",
                "gpu.checks.run",
                backend,
                150,
                # The first check loads all libraries, and the tool looks through each of them.
                {"ours": True, "names": SANITIZED, "longest": 150},
                limit=sizes.limit,
                sanitized=True,
                for_gpus=True,
            )
            for backend in watched
        )
        for number in range(2, rounds + 1):
            yield from _steps(columns, number)

    return list(made())


def _steps(columns: list[Backend], number: int) -> Iterator[Job]:
    """One round: every backend in turn, each round starts one further, so that a slow minute hits others each time."""
    first = (number - 1) % max(1, len(columns))
    for backend in columns[first:] + columns[:first]:
        yield Job("d", "gpu.steps.train", backend, 50, {"donate": DONATED}, round=number)
