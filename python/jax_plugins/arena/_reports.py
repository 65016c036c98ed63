"""What the library tells of memory, as objects and as text: `Summary` and `Track`.

    library's JSON --> frozen dataclasses, in bytes and seconds --> str(): a table of at most 100 columns

`jax_plugins.arena.memory` is where users find them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jax_plugins.arena._tables import WIDTH, age, cell, lines, plural, shorten, size

#: Characters of a table's first column.
_TITLE = 16

#: Characters of an origin in a table of holders.
_ORIGIN = WIDTH - 44


@dataclasses.dataclass(frozen=True)
class Usage:
    """One kind of bytes: now, at most, and in all."""

    #: Bytes now.
    current: int
    #: The most bytes since the start, or since `memory.reset_peak`.
    peak: int
    #: Bytes taken and given back since the start. `current` is their difference.
    allocated: int
    freed: int


@dataclasses.dataclass(frozen=True)
class Pool:
    """Bytes taken from the machine."""

    current: int
    #: The most since the start, or since `memory.reset_peak`.
    peak: int


@dataclasses.dataclass(frozen=True)
class Moved:
    """What was moved since the start."""

    #: Bytes and blocks, a block counted each time it moves.
    bytes: int
    blocks: int
    #: Runs of the compaction.
    compactions: int
    #: Arrays that went to the upper end of memory, because they were about to be pinned.
    migrations: int


@dataclasses.dataclass(frozen=True)
class Spilled:
    """Arrays that went to memory beyond the limit, or to files, because no program used them. In bytes."""

    #: What waits there, and how much may.
    waiting_bytes: int
    limit_bytes: int
    #: What went there since the start, the part of it that did not have to be copied, and what came back.
    out_bytes: int
    clean_bytes: int
    back_bytes: int


@dataclasses.dataclass(frozen=True)
class Holder:
    """The blocks that come from one place, such as one result of one program."""

    #: Where they come from: ``jit_step output 0 f32[256,256]``, ``from host bf16[4,4]``. The library names the 20
    #: largest, and sums up the others in one more.
    origin: str
    #: Bytes that they take from the pool, slack included.
    bytes: int
    blocks: int
    #: Age of the oldest in seconds; None where it is not known or makes no sense.
    oldest_seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class DeviceSummary:
    """One device of a `Summary`. In bytes, where no other unit is named."""

    #: The device, as the library names it, and its strategy.
    device: str
    strategy: str
    #: What the device may hold at most.
    limit_bytes: int
    #: Arrays.
    in_use: Usage
    #: Those of them whose address someone outside knows (NumPy views, DLPack), so that they cannot be moved.
    pinned: Usage
    #: Kept for programs' scratch; 0 but for the strategy ``tpu``.
    reserved: Usage
    #: Taken from the machine: in use + pending + slack + reserved + free.
    pool: Pool
    #: What compaction did.
    moved: Moved
    #: What is spilled; None where nothing is (``PJRT_ARENA_SPILL``).
    spilled: Spilled | None
    #: Arrays that were dropped, but that a program still uses.
    pending_bytes: int
    #: What blocks take beyond the size that was asked for.
    slack_bytes: int
    #: Free in the pool, and the largest piece of it.
    free_bytes: int
    largest_hole_bytes: int
    #: The share of the free memory that is not in the largest hole: 0.0 is one piece, near 1.0 many small ones.
    fragmentation: float
    #: Blocks handed out and given back since the start, and how many there are now.
    allocations: int
    frees: int
    blocks: int
    #: Arrays in memory that the engine holds; no part of the pool.
    engine_bytes: int
    #: Who holds the memory, the largest first. Pending blocks are among them.
    holders: tuple[Holder, ...]

    def table(self, top: int = 10) -> str:
        """The device as text; `top` origins are named."""
        head = f"{self.device}, strategy {self.strategy}, limit {size(self.limit_bytes)}"
        if not (self.allocations or self.pool.peak or self.engine_bytes):
            return f"{head}: nothing was allocated so far"
        rows = [head, " " * _TITLE + "".join(f"{title:>12}" for title in ("now", "peak", "allocated", "freed"))]
        for title, usage in (("in use", self.in_use), ("pinned", self.pinned), ("reserved", self.reserved)):
            if title == "in use" or usage.allocated or usage.peak:
                numbers = (usage.current, usage.peak, usage.allocated, usage.freed)
                rows.append(_row(title, *numbers))
        rows.append(_row("pool", self.pool.current, self.pool.peak))
        rows.append(_row("free", self.free_bytes))
        if self.free_bytes:
            pieces = f"  fragmentation {_percent(self.fragmentation)}"
            rows.append(_row("largest hole", self.largest_hole_bytes) + pieces)
        for title, count, meaning in (
            ("pending", self.pending_bytes, "dropped, but a program still uses it"),
            ("slack", self.slack_bytes, "taken beyond the sizes asked for"),
            ("moved", self.moved.bytes, self._moves()),
            ("engine's own", self.engine_bytes, "not part of the pool or the limit"),
        ):
            if count:
                rows.append(_row(title, count) + f"  {meaning}")
        if self.spilled is not None:
            went = f"of {size(self.spilled.limit_bytes)}; {size(self.spilled.out_bytes)} out"
            rows.append(_row("spilled", self.spilled.waiting_bytes) + f"  {went}, {size(self.spilled.back_bytes)} back")
        calls = f"{plural(self.allocations, 'allocation')} and {plural(self.frees, 'free')} so far"
        rows.append(f"  {'blocks':<{_TITLE - 2}}{self.blocks:>8}      {calls}")
        if self.holders:
            rows += ["", *_holders("held by", self.holders, top)]
        return lines(rows)

    def _moves(self) -> str:
        moved = self.moved
        parts = [plural(moved.blocks, "block"), plural(moved.compactions, "compaction")]
        if moved.migrations:
            parts.append(f"{moved.migrations} moved aside to be pinned")
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True)
class Summary:
    """What the memory of every device comes to; ``print(summary)`` is a table."""

    #: In the library's order; empty before JAX has started on the arena.
    devices: tuple[DeviceSummary, ...]
    #: How many origins the text names for each device.
    top: int = 10

    def __str__(self) -> str:
        if not self.devices:
            return "no device: JAX has not started on the arena"
        return "\n\n".join(device.table(self.top) for device in self.devices)


@dataclasses.dataclass(frozen=True)
class TrackedDevice:
    """What a `Track` saw on one device, in bytes in use."""

    #: The device, as the library names it.
    device: str
    #: When the track began, when it ended, and the most in between.
    start: int
    end: int
    peak: int
    #: Who held the memory at the peak, the largest first; empty where that is not known.
    holders: tuple[Holder, ...]
    #: Why it is not known; None where it is.
    holders_unknown: str | None = None


class Track:
    """What memory did in a ``with memory.track():`` block. The numbers are there once the block has ended."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._devices: tuple[TrackedDevice, ...] | None = None

    @property
    def devices(self) -> tuple[TrackedDevice, ...]:
        """Each device that there was when the track began, and still is.

        Raises:
          RuntimeError: the block has not ended, here and in the properties below.
        """
        if self._devices is None:
            raise RuntimeError(f"track {self.name!r} has not ended; its numbers are there after the with block")
        return self._devices

    @property
    def start(self) -> int:
        """Bytes in use when the block began, over all devices."""
        return sum(device.start for device in self.devices)

    @property
    def end(self) -> int:
        """Bytes in use when it ended, over all devices."""
        return sum(device.end for device in self.devices)

    @property
    def peak(self) -> int:
        """The sum of the devices' peaks in bytes; they need not have been at one time."""
        return sum(device.peak for device in self.devices)

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Who held the memory at the peaks, over all devices, the largest first."""
        sums: dict[str, tuple[int, int]] = {}
        for holder in (holder for device in self.devices for holder in device.holders):
            held, blocks = sums.get(holder.origin, (0, 0))
            sums[holder.origin] = (held + holder.bytes, blocks + holder.blocks)
        merged = (Holder(origin, held, blocks) for origin, (held, blocks) in sums.items())
        return tuple(sorted(merged, key=lambda holder: -holder.bytes))

    def __str__(self) -> str:
        name = self.name or "track"
        if self._devices is None:
            return f"{name}: not ended"
        if not self._devices:
            return f"{name}: no device was there when it began"
        rows = [f"{name}: {_course(self)}"]
        busy = [device for device in self._devices if device.peak]
        if len(busy) > 1:
            rows += [f"  {device.device}: {_course(device)}" for device in busy]
        rows += _holders("held at the peak by", self.holders, top=5)
        rows += [f"  {why}" for why in dict.fromkeys(device.holders_unknown for device in busy) if why]
        return lines(rows)

    def __repr__(self) -> str:
        return f"<{self}>" if self._devices is None else f"Track(name={self.name!r}, devices={self._devices!r})"


def summary(told: Iterable[Mapping[str, Any]], top: int) -> Summary:
    """The `Summary` in the answer of ``pjrt_arena_summary``."""
    parts = {"in_use": Usage, "pinned": Usage, "reserved": Usage, "pool": Pool, "moved": Moved}
    devices = []
    for device in told:
        fields = known(DeviceSummary, device)
        fields |= {name: kind(**known(kind, fields[name])) for name, kind in parts.items()}
        spilled = fields["spilled"] and Spilled(**known(Spilled, fields["spilled"]))
        devices.append(DeviceSummary(**fields | {"holders": _read_holders(fields["holders"]), "spilled": spilled}))
    return Summary(tuple(devices), top)


def end(track: Track, told: Iterable[Mapping[str, Any]]) -> None:
    """Gives `track` what ``pjrt_arena_track_end`` answered."""
    track._devices = tuple(
        TrackedDevice(
            device=device["device"],
            start=device["start_bytes"],
            end=device["end_bytes"],
            peak=device["peak_bytes"],
            holders=_read_holders(device["peak_holders"] or ()),
            holders_unknown=device["peak_holders_unknown"],
        )
        for device in told
    )


def known(kind: type, told: Mapping[str, Any]) -> dict[str, Any]:
    """What the dataclass `kind` has a place for: a newer library may tell more."""
    return {field.name: told[field.name] for field in dataclasses.fields(kind)}


def _read_holders(told: Iterable[Mapping[str, Any]]) -> tuple[Holder, ...]:
    return tuple(Holder(**known(Holder, holder)) for holder in told)


def _row(title: str, *counts: int) -> str:
    return f"  {title:<{_TITLE - 2}}" + "".join(map(cell, counts))


def _percent(share: float) -> str:
    """A share of 1. What is there is never 0 %, and what is not all is never 100 %."""
    if 0 < share < 0.01:
        return "< 1 %"
    return f"{min(round(100 * share), 99) if share < 1 else 100} %"


def _course(seen: Track | TrackedDevice) -> str:
    return f"{size(seen.start)} in use at the start, {size(seen.peak)} at the peak, {size(seen.end)} at the end"


def _holders(title: str, holders: Sequence[Holder], top: int) -> list[str]:
    """A table of holders; those after the first `top` in one row."""
    if not holders:
        return []
    total = sum(holder.bytes for holder in holders)
    aged = any(holder.oldest_seconds is not None for holder in holders)
    rows = [f"  {title:<{_ORIGIN}}{'bytes':>12}{'share':>8}{'blocks':>9}{'oldest' if aged else '':>10}"]
    shown, rest = list(holders[:top]), holders[top:]
    if rest:
        shown.append(Holder("all others", sum(other.bytes for other in rest), sum(other.blocks for other in rest)))
    for holder in shown:
        share = _percent(holder.bytes / total if total else 0.0)
        origin = f"  {shorten(holder.origin, _ORIGIN - 1):<{_ORIGIN}}"
        rows.append(f"{origin}{cell(holder.bytes)}{share:>8}{holder.blocks:>9}{age(holder.oldest_seconds):>10}")
    return rows
