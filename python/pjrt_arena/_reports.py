"""What the library tells of memory, as objects and as text: `Summary` and `Track`.

    library's JSON --> frozen dataclasses, in bytes and seconds --> str(): a table of at most 100 columns

`pjrt_arena.memory` is where users find them.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from pjrt_arena import _devices
from pjrt_arena._donations import Donation, on_all_devices, read_donations
from pjrt_arena._former import Renamed
from pjrt_arena._library import ArenaError
from pjrt_arena._stacks import Frame, read_frames
from pjrt_arena._stats import DeviceStats
from pjrt_arena._tables import WIDTH, age, cell, lines, page, page_table, plural, shorten, size

#: Characters of a table's first column.
_TITLE = 16

#: The numbers of a row, in its order.
_COLUMNS = ("now", "peak", "allocated", "freed")

#: Characters of an origin in a table of holders.
_ORIGIN = WIDTH - 44


#: How many callers of the code that made a holder's blocks its text names.
_CALLERS = 3

#: How many programs a text gives advice for.
_ADVICE = 3

#: A row of a device's table: its title, bytes for the columns or a count, and a note.
Row: TypeAlias = tuple[str, tuple[int, ...] | int, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Spilled(Renamed):
    """Arrays that went to memory beyond the limit, or to files, because no program used them. In bytes."""

    #: What waits there, and how much may.
    waiting_bytes: int
    bytes_limit: int
    #: What went there since the start, the part of it that did not have to be copied, and what came back.
    spilled_bytes: int
    clean_bytes: int
    brought_back_bytes: int

    FORMER: ClassVar[Mapping[str, str | Mapping[str, str]]] = {
        "limit_bytes": "bytes_limit",
        "out_bytes": "spilled_bytes",
        "back_bytes": "brought_back_bytes",
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Holder(Renamed):
    """The blocks that come from one place, such as one result of one program."""

    #: Where they come from: ``jit_step output 0 f32[256,256]``, ``from host bf16[4,4]``. The library names the 20
    #: largest, and sums up the others in one more.
    origin: str
    #: Bytes that they take from the pool, slack included.
    bytes: int
    #: How many they are.
    num_blocks: int
    #: Age of the oldest in seconds; None where it is not known or makes no sense.
    oldest_seconds: float | None = None
    #: The Python code that made them, the innermost frame first; empty where that was not recorded
    #: (`memory.record`). `origin` then ends with its first frame.
    stack: tuple[Frame, ...] = ()

    FORMER: ClassVar[Mapping[str, str | Mapping[str, str]]] = {"blocks": "num_blocks"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSummary(Renamed):
    """One device of a `Summary`. In bytes, where no other unit is named; names as in `DeviceStats`.

    Peaks are since the start or `reset_peak`; ``total_`` counts are since the start.
    """

    #: The device, as the library names it, and its strategy.
    device: str
    strategy: str
    #: What the device may hold at most.
    bytes_limit: int
    #: Arrays: now, at most, and all that ever were.
    bytes_in_use: int
    peak_bytes_in_use: int
    total_allocated_bytes: int
    #: Those of them whose address someone outside knows (NumPy views, DLPack), so that they cannot be moved.
    pinned_bytes: int
    peak_pinned_bytes: int
    total_pinned_bytes: int
    #: Kept for programs' scratch; 0 but for the strategy ``tpu``.
    bytes_reserved: int
    peak_bytes_reserved: int
    total_reserved_bytes: int
    #: Taken from the machine: in use + pending + slack + reserved + free.
    pool_bytes: int
    peak_pool_bytes: int
    #: Arrays that were dropped, but that a program still uses; and the most in use and pending together.
    pending_bytes: int
    peak_used_bytes: int
    #: What blocks take beyond the size that was asked for.
    slack_bytes: int
    #: Free in the pool, and the largest piece of it.
    free_bytes: int
    largest_free_block_bytes: int
    #: The share of the free memory that is not in the largest hole: 0.0 is one piece, near 1.0 many small ones.
    fragmentation: float
    #: What compaction moved: bytes, blocks (each counted every time), its runs, arrays moved aside to be pinned.
    moved_bytes: int
    num_moves: int
    num_compactions: int
    num_migrations: int
    #: Blocks allocated and freed since the start, and how many there are now.
    total_allocs: int
    total_frees: int
    num_blocks: int
    #: Arrays in memory that the engine holds; no part of the pool.
    engine_bytes: int
    #: Arrays that are used where they lie, in NumPy's or another library's memory; no part of the pool, either.
    foreign_bytes: int
    #: What is spilled; None where nothing is (``PJRT_ARENA_SPILL``).
    spilled: Spilled | None
    #: Who holds the memory, the largest first. Pending blocks are among them.
    holders: tuple[Holder, ...]

    FORMER: ClassVar[Mapping[str, str | Mapping[str, str]]] = {
        "limit_bytes": "bytes_limit",
        "in_use": {
            "current": "bytes_in_use",
            "peak": "peak_bytes_in_use",
            "allocated": "total_allocated_bytes",
            "freed": "total_freed_bytes",
        },
        "pinned": {"current": "pinned_bytes", "peak": "peak_pinned_bytes", "allocated": "total_pinned_bytes"},
        "reserved": {"current": "bytes_reserved", "peak": "peak_bytes_reserved", "allocated": "total_reserved_bytes"},
        "pool": {"current": "pool_bytes", "peak": "peak_pool_bytes"},
        "moved": {
            "bytes": "moved_bytes",
            "blocks": "num_moves",
            "compactions": "num_compactions",
            "migrations": "num_migrations",
        },
        "largest_hole_bytes": "largest_free_block_bytes",
        "allocations": "total_allocs",
        "frees": "total_frees",
        "blocks": "num_blocks",
    }

    @property
    def total_freed_bytes(self) -> int:
        """Bytes of arrays that were freed since the start."""
        return self.total_allocated_bytes - self.bytes_in_use

    def table(self, top: int = 10) -> str:
        """The device as text; `top` origins are named."""
        head, rows = self._rows()
        if not rows:
            return f"{head}: nothing was allocated so far"
        return device_text(head, rows, self.holders, top)

    def _page(self, top: int = 10) -> str:
        """The device as an element of a page; what stands in it is escaped."""
        head, rows = self._rows()
        if not rows:
            return f"<p>{html.escape(head)}: nothing was allocated so far</p>"
        body = [
            (title, [str(numbers)] if isinstance(numbers, int) else list(map(size, numbers)), note)
            for title, numbers, note in rows
        ]
        shares = [
            (origin, [size(held), share, str(blocks), age(oldest)], "")
            for origin, held, share, blocks, oldest in _shares(self.holders, top)
        ]
        told = page_table(head, ("", *_COLUMNS), body)
        heads = ("held by", "bytes", "share", "blocks", "oldest")
        return told + page_table("", heads, shares) if shares else told

    def _rows(self) -> tuple[str, list[Row]]:
        """The heading, and for each row its title, bytes or a count, and a note. No row: nothing was allocated."""
        head = f"{self.device}, strategy {self.strategy}, limit {size(self.bytes_limit)}"
        if not (self.total_allocs or self.peak_pool_bytes or self.engine_bytes or self.foreign_bytes):
            return head, []
        rows: list[Row] = []
        for title, now, peak, total in (
            ("in use", self.bytes_in_use, self.peak_bytes_in_use, self.total_allocated_bytes),
            ("pinned", self.pinned_bytes, self.peak_pinned_bytes, self.total_pinned_bytes),
            ("reserved", self.bytes_reserved, self.peak_bytes_reserved, self.total_reserved_bytes),
        ):
            if title == "in use" or total or peak:
                rows.append((title, (now, peak, total, max(total - now, 0)), ""))
        if _is_more(self.peak_used_bytes, self.peak_bytes_in_use):
            used = self.bytes_in_use + self.pending_bytes
            rows.append(("used", (used, self.peak_used_bytes), "in use, or dropped while a program uses it"))
        rows.append(("pool", (self.pool_bytes, self.peak_pool_bytes), ""))
        rows.append(("free", (self.free_bytes,), ""))
        if self.free_bytes:
            note = f"fragmentation {_percent(self.fragmentation)}"
            rows.append(("largest hole", (self.largest_free_block_bytes,), note))
        for title, count, note in (
            ("pending", self.pending_bytes, "dropped, but a program still uses it"),
            ("slack", self.slack_bytes, "taken beyond the sizes asked for"),
            ("moved", self.moved_bytes, self._moves()),
            ("engine's own", self.engine_bytes, "not part of the pool or the limit"),
            ("foreign", self.foreign_bytes, "in NumPy's or another library's memory; not part of them either"),
        ):
            if count:
                rows.append((title, (count,), note))
        if (spilled := self.spilled) is not None:
            went = f"of {size(spilled.bytes_limit)}; {size(spilled.spilled_bytes)} out"
            rows.append(("spilled", (spilled.waiting_bytes,), f"{went}, {size(spilled.brought_back_bytes)} back"))
        calls = f"{plural(self.total_allocs, 'allocation')} and {plural(self.total_frees, 'free')} so far"
        rows.append(("blocks", self.num_blocks, calls))
        return head, rows

    def _moves(self) -> str:
        parts = [plural(self.num_moves, "block"), plural(self.num_compactions, "compaction")]
        if self.num_migrations:
            parts.append(f"{self.num_migrations} moved aside to be pinned")
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What the memory of every device comes to; ``print(summary)`` is a table, and a notebook shows one."""

    #: In the library's order; empty before JAX has started on the arena.
    devices: tuple[DeviceSummary, ...]
    #: How many origins the text names for each device.
    top: int = 10
    #: Arguments that programs on these devices should be donated, those first that this saves most.
    donations: tuple[Donation, ...] = ()

    def __str__(self) -> str:
        if not self.devices:
            return f"no device: {_devices.not_started()}"
        return "\n\n".join([*(device.table(self.top) for device in self.devices), *self._advice()])

    def _advice(self) -> list[str]:
        return [donation._text("would save", "while it runs") for donation in self.donations[:_ADVICE]]

    def _repr_html_(self) -> str:
        """What a notebook shows: tables without scripts, in the notebook's own colours."""
        if not self.devices:
            return page(f"<p>{html.escape(str(self))}</p>")
        advice = (f"<p>{html.escape(line)}</p>" for line in self._advice())
        return page(*(device._page(self.top) for device in self.devices), *advice)


@dataclasses.dataclass(frozen=True, slots=True)
class TrackedDevice(Renamed):
    """What a `Track` saw on one device, in bytes."""

    #: The device, as the library names it.
    device: str
    #: In use when the track began, when it ended, and the most in between.
    bytes_in_use_before: int
    bytes_in_use_after: int
    peak_bytes_in_use: int
    #: The most in between with what was dropped, but that a program still used.
    peak_used_bytes: int
    #: Who held the memory at the peak, the largest first; empty where that is not known.
    holders: tuple[Holder, ...]
    #: Why it is not known; None where it is.
    holders_unknown: str | None = None
    #: Arguments that would have made the peak lower, had they been donated, and by how much.
    donations: tuple[Donation, ...] = ()

    FORMER: ClassVar[Mapping[str, str | Mapping[str, str]]] = {
        "start": "bytes_in_use_before",
        "end": "bytes_in_use_after",
        "peak": "peak_bytes_in_use",
    }


class Track(Renamed):
    """What memory did in a ``with memory.track():`` block. The numbers are there once the block has ended."""

    FORMER = TrackedDevice.FORMER

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._devices: tuple[TrackedDevice, ...] | None = None

    @property
    def devices(self) -> tuple[TrackedDevice, ...]:
        """Each device that there is when the block has ended, also where JAX started on it within the block.

        Raises:
          RuntimeError: the block has not ended, here and in the properties below.
        """
        if self._devices is None:
            raise RuntimeError(f"track {self.name!r} has not ended; its numbers are there after the with block")
        return self._devices

    @property
    def bytes_in_use_before(self) -> int:
        """Bytes in use when the block began, over all devices.

        Raises:
          ArenaError: there is no device, here and in the next three.
        """
        return sum(device.bytes_in_use_before for device in self._seen())

    @property
    def bytes_in_use_after(self) -> int:
        """Bytes in use when it ended, over all devices."""
        return sum(device.bytes_in_use_after for device in self._seen())

    @property
    def peak_bytes_in_use(self) -> int:
        """The sum of the devices' peaks in bytes; they need not have been at one time."""
        return sum(device.peak_bytes_in_use for device in self._seen())

    @property
    def peak_used_bytes(self) -> int:
        """The same with what was dropped while programs used it."""
        return sum(device.peak_used_bytes for device in self._seen())

    def _seen(self) -> tuple[TrackedDevice, ...]:
        # Without a device nothing was measured, and 0 would say that nothing was used.
        if not self.devices:
            raise ArenaError(f"track {self.name!r} saw no device: {_devices.not_started()}")
        return self.devices

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Who held the memory at the peaks, over all devices, the largest first."""
        return sum_of_holders(holder for device in self.devices for holder in device.holders)

    @property
    def donations(self) -> tuple[Donation, ...]:
        """Arguments that would have made the peaks lower, had they been donated, over all devices."""
        return on_all_devices(donation for device in self.devices for donation in device.donations)

    def __str__(self) -> str:
        name = self.name or "track"
        if self._devices is None:
            return f"{name}: not ended"
        if not self._devices:
            return f"{name}: no device: {_devices.not_started()}"
        rows = [f"{name}: {_course(self)}"]
        busy = [device for device in self._devices if device.peak_bytes_in_use]
        if len(busy) > 1:
            rows += [f"  {device.device}: {_course(device)}" for device in busy]
        rows += _holders("held at the peak by", self.holders, top=5)
        rows += [f"  {why}" for why in dict.fromkeys(device.holders_unknown for device in busy) if why]
        rows += [one._text("would have saved", "at the peak", "  ") for one in self.donations[:_ADVICE]]
        return lines(rows)

    def __repr__(self) -> str:
        return f"<{self}>" if self._devices is None else f"Track(name={self.name!r}, devices={self._devices!r})"


def summary(told: Iterable[Mapping[str, Any]], counters: Mapping[str, Any], top: int) -> Summary:
    """The `Summary` in the answer of ``pjrt_arena_summary``; `counters` is that of ``pjrt_arena_counters``."""
    # Two clients have devices of the same names, in the same order in both answers.
    foreign: dict[str, list[int]] = {}
    for device in reversed(counters["devices"]):
        foreign.setdefault(device.get("name", ""), []).append(device["foreign_bytes"])
    found = ((one, foreign.get(one["device"])) for one in told)
    devices = tuple(_device(one, left.pop() if left else 0) for one, left in found)
    names = {device.device for device in devices}
    donations = read_donations(counters.get("donations", ()))
    return Summary(devices, top, tuple(one for one in donations if not names.isdisjoint(one.devices)))


def _device(told: Mapping[str, Any], foreign_bytes: int) -> DeviceSummary:
    in_use, pinned, reserved, spilled = told["in_use"], told["pinned"], told["reserved"], told["spilled"]
    return DeviceSummary(
        **{name: told[name] for name in ("device", "strategy", "fragmentation")},
        **{f"{name}_bytes": told[f"{name}_bytes"] for name in ("pending", "peak_used", "slack", "free", "engine")},
        foreign_bytes=foreign_bytes,
        bytes_limit=told["limit_bytes"],
        bytes_in_use=in_use["current"],
        peak_bytes_in_use=in_use["peak"],
        total_allocated_bytes=in_use["allocated"],
        pinned_bytes=pinned["current"],
        peak_pinned_bytes=pinned["peak"],
        total_pinned_bytes=pinned["allocated"],
        bytes_reserved=reserved["current"],
        peak_bytes_reserved=reserved["peak"],
        total_reserved_bytes=reserved["allocated"],
        pool_bytes=told["pool"]["current"],
        peak_pool_bytes=told["pool"]["peak"],
        largest_free_block_bytes=told["largest_hole_bytes"],
        moved_bytes=told["moved"]["bytes"],
        num_moves=told["moved"]["blocks"],
        num_compactions=told["moved"]["compactions"],
        num_migrations=told["moved"]["migrations"],
        total_allocs=told["allocations"],
        total_frees=told["frees"],
        num_blocks=told["blocks"],
        spilled=spilled
        and Spilled(
            waiting_bytes=spilled["waiting_bytes"],
            bytes_limit=spilled["limit_bytes"],
            spilled_bytes=spilled["out_bytes"],
            clean_bytes=spilled["clean_bytes"],
            brought_back_bytes=spilled["back_bytes"],
        ),
        holders=read_holders(told["holders"]),
    )


def end(track: Track, told: Iterable[Mapping[str, Any]], late: Iterable[DeviceStats]) -> None:
    """Gives `track` what ``pjrt_arena_track_end`` answered, and the devices that came after it had begun."""
    watched = tuple(
        TrackedDevice(
            device=device["device"],
            bytes_in_use_before=device["start_bytes"],
            bytes_in_use_after=device["end_bytes"],
            peak_bytes_in_use=device["peak_bytes"],
            peak_used_bytes=device["peak_used_bytes"],
            holders=read_holders(device["peak_holders"] or ()),
            holders_unknown=device["peak_holders_unknown"],
            donations=read_donations(device.get("peak_donations", ())),
        )
        for device in told
    )
    track._devices = watched + tuple(
        TrackedDevice(
            device=device.device,
            bytes_in_use_before=0,
            bytes_in_use_after=device.bytes_in_use,
            # Since the client's start, which is within the block.
            peak_bytes_in_use=device.peak_bytes_in_use,
            peak_used_bytes=device.peak_used_bytes,
            holders=(),
            holders_unknown="JAX started in the block; who held the peak is known where it has started before",
        )
        for device in late
    )


def read_holders(told: Iterable[Mapping[str, Any]]) -> tuple[Holder, ...]:
    """Holders as the library names them, in its order."""
    return tuple(
        Holder(one["origin"], one["bytes"], one["blocks"], one.get("oldest_seconds"), read_frames(one.get("stack", ())))
        for one in told
    )


def sum_of_holders(holders: Iterable[Holder]) -> tuple[Holder, ...]:
    """One holder for each origin and stack, the largest first; as old as the oldest, where the age of all is known."""
    sums: dict[tuple[str, tuple[Frame, ...]], Holder] = {}
    for one in holders:
        key = one.origin, one.stack
        if (other := sums.get(key)) is None:
            sums[key] = one
            continue
        ages = other.oldest_seconds, one.oldest_seconds
        oldest = None if ages[0] is None or ages[1] is None else max(ages[0], ages[1])
        held, blocks = other.bytes + one.bytes, other.num_blocks + one.num_blocks
        sums[key] = Holder(one.origin, held, blocks, oldest, one.stack)
    return tuple(sorted(sums.values(), key=lambda holder: (-holder.bytes, holder.origin)))


def device_text(head: str, rows: Sequence[Row], holders: Sequence[Holder], top: int) -> str:
    """The table of one device; `top` holders are named."""
    text = [head, " " * _TITLE + "".join(f"{title:>12}" for title in _COLUMNS)]
    for title, numbers, note in rows:
        indent = " " * 6 if isinstance(numbers, int) else "  "
        counts = f"{numbers:>8}" if isinstance(numbers, int) else "".join(map(cell, numbers))
        text.append(f"  {title:<{_TITLE - 2}}{counts}" + (indent + note if note else ""))
    if holders:
        text += ["", *_holders("held by", holders, top)]
    return lines(text)


def _percent(share: float) -> str:
    """A share of 1. What is there is never 0 %, and what is not all is never 100 %."""
    if 0 < share < 0.01:
        return "< 1 %"
    return f"{min(round(100 * share), 99) if share < 1 else 100} %"


def _is_more(used: int, in_use: int) -> bool:
    """Whether what programs still used is worth a word beside what was in use: a MiB, and a twentieth of it."""
    return used - in_use >= max(1 << 20, in_use // 20)


def _course(seen: Track | TrackedDevice) -> str:
    before, peak, after = map(size, (seen.bytes_in_use_before, seen.peak_bytes_in_use, seen.bytes_in_use_after))
    used, dropped = seen.peak_used_bytes, ""
    if _is_more(used, seen.peak_bytes_in_use):
        dropped = f" ({size(used)} with what was dropped while programs used it)"
    return f"{before} in use at the start, {peak} at the peak{dropped}, {after} at the end"


def _shares(holders: Sequence[Holder], top: int) -> list[tuple[str, int, str, int, float | None]]:
    """Origin, bytes, share, blocks and age of each holder; those after the first `top` in one row."""
    total = sum(holder.bytes for holder in holders)
    shown, rest = list(holders[:top]), holders[top:]
    if rest:
        shown.append(Holder("all others", sum(other.bytes for other in rest), sum(other.num_blocks for other in rest)))
    return [
        (one.origin, one.bytes, _percent(one.bytes / total if total else 0.0), one.num_blocks, one.oldest_seconds)
        for one in shown
    ]


def _holders(title: str, holders: Sequence[Holder], top: int) -> list[str]:
    """A table of holders."""
    if not holders:
        return []
    aged = any(holder.oldest_seconds is not None for holder in holders)
    rows = [f"  {title:<{_ORIGIN}}{'bytes':>12}{'share':>8}{'blocks':>9}{'oldest' if aged else '':>10}"]
    for number, (name, held, share, blocks, oldest) in enumerate(_shares(holders, top)):
        origin = f"  {shorten(name, _ORIGIN - 1):<{_ORIGIN}}"
        rows.append(f"{origin}{cell(held)}{share:>8}{blocks:>9}{age(oldest):>10}")
        # The origin's own words end with the first frame.
        callers = holders[number].stack[1 : 1 + _CALLERS] if number < top else ()
        rows += [" " * 6 + shorten(f"called from {frame}", WIDTH - 6) for frame in callers]
    return rows
