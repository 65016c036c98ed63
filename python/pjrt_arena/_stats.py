"""Numbers of the devices and of programs, as the library counts them: `DeviceStats`, `Counters`.

What JAX's ``memory_stats()`` has, has its name here: `bytes_in_use`, `peak_bytes_in_use`, `num_allocs`. What it has not
is called likewise: ``<what>_bytes``, ``num_<what>``, ``<what>_seconds``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pjrt_arena._donations import Donation, read_donations

#: The library's names of what is called otherwise here.
_TOLD = {
    "bytes_limit": "limit_bytes",
    "bytes_in_use": "in_use_bytes",
    "peak_bytes_in_use": "peak_in_use_bytes",
    "bytes_reserved": "reserved_bytes",
    "peak_bytes_reserved": "peak_reserved_bytes",
    "num_allocs": "allocations",
    "num_live_blocks": "live_blocks",
    "num_pending_blocks": "pending_blocks",
    "num_pinned_blocks": "pinned_blocks",
    "num_moves": "moved_blocks",
    "num_compactions": "compactions",
    "num_migrations": "migrations",
    "num_spilled": "spilled",
    "num_clean": "clean",
    "num_brought_back": "brought_back",
    "num_prefetched": "prefetched",
    "num_predictions_right": "predictions_right",
    "num_predictions_wrong": "predictions_wrong",
    "num_asked": "asked",
    "num_given": "given",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpillStats:
    """The memory beyond the limit, or the files, that one device spills to (``PJRT_ARENA_SPILL``). In bytes."""

    #: What it may hold, what arrays have there, and the most so far.
    bytes_limit: int
    bytes_in_use: int
    peak_bytes_in_use: int
    #: Taken from the machine.
    pool_bytes: int
    #: What is there of arrays that are on the device as well.
    copies_bytes: int
    #: What went there since the start: arrays, bytes, and seconds that it took.
    num_spilled: int
    spilled_bytes: int
    spilled_seconds: float
    #: The part of that which did not have to be copied.
    num_clean: int
    clean_bytes: int
    #: What came back.
    num_brought_back: int
    brought_back_bytes: int
    brought_back_seconds: float
    #: The part of that which came before a launch needed it (``PJRT_ARENA_PREFETCH``).
    num_prefetched: int
    prefetched_bytes: int
    #: How often the next use of an array was predicted right, and how often not.
    num_predictions_right: int
    num_predictions_wrong: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """The part of this process in a device that it shares with others (``PJRT_ARENA_SHARE``). In bytes."""

    #: The group's name.
    name: str
    #: The limit of all processes together, and what this one has taken.
    bytes_limit: int
    held_bytes: int
    #: How often it has asked the others for memory, for how much, and how long it waited.
    num_asked: int
    asked_bytes: int
    asked_seconds: float
    #: How often it has given memory back for others, how much, and how long that took.
    num_given: int
    given_bytes: int
    given_seconds: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStats:
    """What one device's memory comes to, in bytes where no other unit is named.

    At every instant `bytes_in_use` + `pending_bytes` + `slack_bytes` + `bytes_reserved` + `free_bytes` is `pool_bytes`.
    """

    #: The device, as the library names it: ``cpu:0``.
    device: str
    #: Its strategy: ``preallocate``, ``growing``, ``platform`` or ``tpu``; empty where the engine holds all its arrays.
    strategy: str = ""
    #: What it may hold at most.
    bytes_limit: int = 0
    #: Arrays, as they were asked for; and the most since the start or `pjrt_arena.memory.reset_peak`, as each peak.
    bytes_in_use: int = 0
    peak_bytes_in_use: int = 0
    #: Arrays that were dropped, but that a program still uses; and the most of both together.
    pending_bytes: int = 0
    peak_used_bytes: int = 0
    #: What blocks take beyond the size that was asked for.
    slack_bytes: int = 0
    #: Kept for programs' scratch; 0 but for the strategy ``tpu``.
    bytes_reserved: int = 0
    peak_bytes_reserved: int = 0
    #: Free in the pool, and the largest piece of it.
    free_bytes: int = 0
    largest_free_block_bytes: int = 0
    #: Taken from the machine.
    pool_bytes: int = 0
    peak_pool_bytes: int = 0
    #: Arrays in use whose address someone outside knows (NumPy views, DLPack), so that they cannot be moved.
    pinned_bytes: int = 0
    #: The part of what is in use that only a TPU's tiles would take.
    padding_bytes: int = 0
    #: Arrays in memory that the engine holds, and in NumPy's or another library's; no part of the pool or the limit.
    engine_bytes: int = 0
    foreign_bytes: int = 0
    #: What compaction moved since the start.
    moved_bytes: int = 0
    #: Blocks allocated since the start or `reset_peak`; the other counts are since the start, or of now.
    num_allocs: int = 0
    #: Blocks of arrays now; those of dropped ones that a program still uses; those of the first that are pinned.
    num_live_blocks: int = 0
    num_pending_blocks: int = 0
    num_pinned_blocks: int = 0
    #: Blocks that were moved, each counted every time; runs of the compaction; arrays moved aside to be pinned.
    num_moves: int = 0
    num_compactions: int = 0
    num_migrations: int = 0
    #: The longest that the arena was locked to plan a compaction, in seconds.
    longest_plan_seconds: float = 0.0
    #: Where arrays are spilled to; None where they are not.
    spill: SpillStats | None = None
    #: The part in the group of processes that share the device; None where none do. `groups` has the others' parts.
    group: GroupStats | None = None
    #: The arrays in ``pinned_host``, on GPUs; None where the engine holds them.
    pinned_host: DeviceStats | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCounters:
    """Programs that were compiled, and their executions."""

    #: Compiled with destinations for their results.
    rewritten: int
    #: Compiled as they came, for each reason.
    not_rewritten: Mapping[str, int]
    #: Runs, counted for each device.
    executions: int
    #: Those on GPUs that found arrays at other addresses than the run before.
    address_changes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResultCounters:
    """Where results of programs lie."""

    #: Written straight into a block of the arena; and in the memory of an argument that was donated.
    placed: int
    donated: int
    #: In the engine's memory, for each reason: although they had a destination, and because the rules allow none.
    missed: Mapping[str, int]
    skipped: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScratchCounters:
    """What a CPU engine takes for programs' scratch out of memory that stays warm."""

    #: Held by programs now, in bytes, and what of that memory stays resident.
    bytes_in_use: int
    warm_bytes: int
    #: How often the engine asked.
    num_allocs: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What this process's programs did so far, over all clients that are alive."""

    programs: ProgramCounters
    results: ResultCounters
    devices: tuple[DeviceStats, ...]
    #: None where the engine takes all of it from malloc.
    scratch: ScratchCounters | None
    #: Arguments that programs should be donated, the 20 programs first that this saves most.
    donations: tuple[Donation, ...] = ()


def counters(told: Mapping[str, Any]) -> Counters:
    """The `Counters` in the answer of ``pjrt_arena_counters``."""
    scratch = told["scratch"]
    return Counters(
        programs=ProgramCounters(**known(ProgramCounters, told["programs"])),
        results=ResultCounters(**known(ResultCounters, told["results"])),
        devices=tuple(_device(device, number) for number, device in enumerate(told["devices"])),
        scratch=scratch and ScratchCounters(**known(ScratchCounters, scratch)),
        donations=read_donations(told.get("donations", ())),
    )


def _device(told: Mapping[str, Any], number: int) -> DeviceStats:
    fields = known(DeviceStats, told)
    # An arena has a name; without one all is the engine's.
    fields["device"] = told.get("name", f"device {number}")
    if spill := told.get("spill"):
        fields["spill"] = SpillStats(**known(SpillStats, spill))
    if group := told.get("group"):
        fields["group"] = GroupStats(**known(GroupStats, group))
    if pinned := told.get("pinned_host"):
        fields["pinned_host"] = _device(pinned, number)
    return DeviceStats(**fields)


def known(kind: type, told: Mapping[str, Any]) -> dict[str, Any]:
    """What `told` has of the fields of `kind`: a newer library may tell more."""
    names = {field.name: _TOLD.get(field.name, field.name) for field in dataclasses.fields(kind)}
    return {field: told[name] for field, name in names.items() if name in told}
