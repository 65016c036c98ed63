"""Snapshots read back: `Snapshot`, and the `Diff` of two.

A snapshot file holds JSON of the schema ``pjrt-arena.snapshot``, version 1, described in the library's
``src/report/snapshot/json.rs``; an ``.html`` file holds the same in its element of the id "snapshot".
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import html.parser
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pjrt_arena import _convert
from pjrt_arena._former import Renamed
from pjrt_arena._oom import OutOfMemoryReport
from pjrt_arena._reports import Holder, Row, device_text, sum_of_holders
from pjrt_arena._stacks import of_snapshot, stack_of
from pjrt_arena._tables import WIDTH, age, cell, lines, plural, shorten, size

SCHEMA, VERSION = "pjrt-arena.snapshot", 1

#: `blocks.state` of what arrays hold, live and pinned, and of programs' scratch.
_HELD, _SCRATCH = (0, 1), 3

#: Origins that the text of a `Diff` names.
_TOP = 20

#: Characters of an origin in that text.
_ORIGIN = WIDTH - 57


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDevice:
    """One device of a `Snapshot`. In bytes, where no other unit is named; names as in `DeviceSummary`."""

    #: The device, as the library names it, and its strategy.
    device: str
    strategy: str
    #: What the device may hold at most.
    bytes_limit: int
    #: Arrays: now, at most, all that ever were, and those of them that were freed.
    bytes_in_use: int
    peak_bytes_in_use: int
    total_allocated_bytes: int
    total_freed_bytes: int
    #: Those of them whose address someone outside knows, so that they cannot be moved.
    pinned_bytes: int
    peak_pinned_bytes: int
    #: Kept for programs' scratch; 0 but for the strategy ``tpu``.
    bytes_reserved: int
    peak_bytes_reserved: int
    #: Taken from the machine: in use + pending + slack + reserved + free.
    pool_bytes: int
    peak_pool_bytes: int
    #: Arrays that were dropped, but that a program still uses.
    pending_bytes: int
    #: What blocks take beyond the size that was asked for.
    slack_bytes: int
    #: Free in the pool, and the largest piece of it.
    free_bytes: int
    largest_free_block_bytes: int
    #: What compaction moved, and how often it ran.
    moved_bytes: int
    num_compactions: int
    #: Blocks allocated and freed since the start, and how many there are now.
    total_allocs: int
    total_frees: int
    num_blocks: int
    #: Arrays in memory that the engine holds; no part of the pool.
    engine_bytes: int
    #: What the history has, and how many older events it has forgotten.
    num_events: int
    num_lost_events: int
    #: Who holds the memory, the largest first. Pending blocks are among them.
    holders: tuple[Holder, ...]
    #: Requests that found no room, the oldest first.
    failures: tuple[OutOfMemoryReport, ...]

    def table(self, top: int = 10) -> str:
        """The device as text; `top` origins are named."""
        head = f"{self.device}, strategy {self.strategy}, limit {size(self.bytes_limit)}"
        in_use = (self.bytes_in_use, self.peak_bytes_in_use, self.total_allocated_bytes, self.total_freed_bytes)
        rows: list[Row] = [("in use", in_use, "")]
        for title, pair in (
            ("pinned", (self.pinned_bytes, self.peak_pinned_bytes)),
            ("reserved", (self.bytes_reserved, self.peak_bytes_reserved)),
        ):
            if any(pair):
                rows.append((title, pair, ""))
        rows += [("pool", (self.pool_bytes, self.peak_pool_bytes), ""), ("free", (self.free_bytes,), "")]
        for title, count, note in (
            ("largest hole", self.largest_free_block_bytes, ""),
            ("pending", self.pending_bytes, "dropped, but a program still uses it"),
            ("slack", self.slack_bytes, "taken beyond the sizes asked for"),
            ("moved", self.moved_bytes, plural(self.num_compactions, "compaction")),
            ("engine's own", self.engine_bytes, "not part of the pool or the limit"),
        ):
            if count:
                rows.append((title, (count,), note))
        calls = f"{plural(self.total_allocs, 'allocation')} and {plural(self.total_frees, 'free')} so far"
        rows.append(("blocks", self.num_blocks, calls))
        rows.append(("events", self.num_events, f"{self.num_lost_events} older ones are lost"))
        text = device_text(head, rows, self.holders, top)
        # The first line says what could not be allocated.
        failures = [f"  {shorten(failure.text.partition(chr(10))[0], WIDTH - 2)}" for failure in self.failures[-5:]]
        return "\n".join(
            [text, *(["", "  requests that found no room, the last ones:", *failures] if failures else [])]
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot(Renamed):
    """A snapshot that was read from a file."""

    #: The file.
    path: Path
    #: Its JSON, as the schema says: bytes, and nanoseconds since `began_unix_ns`.
    data: Mapping[str, Any] = dataclasses.field(repr=False)
    # What `devices` gives, once it was asked.
    _devices: list[SnapshotDevice] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)

    FORMER: ClassVar[Mapping[str, str | Mapping[str, str]]] = {"in_use": "bytes_in_use", "pending": "pending_bytes"}

    @property
    def devices(self) -> tuple[SnapshotDevice, ...]:
        """Each device, in the library's order; those of several clients may have one name."""
        if not self._devices:
            self._devices[:] = [_device(self.data, device) for device in self.data["devices"]]
        return tuple(self._devices)

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Who held the memory, over all devices, the largest first."""
        return sum_of_holders(holder for device in self.devices for holder in device.holders)

    @property
    def failures(self) -> tuple[OutOfMemoryReport, ...]:
        """Requests that found no room, device by device, the oldest first."""
        return tuple(failure for device in self.devices for failure in device.failures)

    @property
    def bytes_in_use(self) -> int:
        """Bytes of arrays, over all devices, as they were asked for."""
        return sum(device["stats"]["in_use"] for device in self.data["devices"])

    @property
    def pending_bytes(self) -> int:
        """Bytes that were dropped and that programs still used, over all devices."""
        return sum(device["stats"]["pending"] for device in self.data["devices"])

    @property
    def taken(self) -> float:
        """When it was taken, in seconds since 1970."""
        return int(self.data["written_unix_ns"]) / 1e9

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes it to a file in the format of the name's end, as `memory.snapshot` does; returns the path.

        Only ``.html`` needs the library, which has the page.

        Raises:
          ValueError: the name has another end.
          OSError: the file cannot be written; or a link, a folder or a device is there.
        """
        return _convert.save(self.data, path)

    def table(self, top: int = 10) -> str:
        """The snapshot as text of at most 100 columns; `top` origins are named for each device."""
        data = self.data
        when = datetime.datetime.fromtimestamp(self.taken).astimezone().isoformat(" ", "seconds")
        who = f"process {data['process']} ({data['command']}), pjrt-arena {data['library']}"
        parts = [shorten(f"{self.path.name}: {who}, {when}", WIDTH)]
        parts += [device.table(top) for device in self.devices]
        return "\n\n".join(parts if self.devices else [*parts, "no device: JAX had not started on the arena"])

    def __str__(self) -> str:
        return self.table()

    def _run(self) -> tuple[int, str]:
        """Which process it is of: numbers of blocks are of one process."""
        return self.data["process"], self.data["began_unix_ns"]

    def _held(self) -> Iterator[tuple[tuple[str, int, int], str, int]]:
        """Key, origin and bytes of each block that an array holds."""
        labels = self.data["origins"]["label"]
        seen: collections.Counter[str] = collections.Counter()
        for device in self.data["devices"]:
            # Each client has its own device of that name.
            name = device["name"]
            number = seen[name]
            seen[name] += 1
            blocks = device["blocks"]
            for block, origin, held, state in zip(
                blocks["id"], blocks["origin"], blocks["bytes"], blocks["state"], strict=True
            ):
                if state in _HELD:
                    yield (name, number, block), labels[origin], held


@dataclasses.dataclass(frozen=True, slots=True)
class Growth(Renamed):
    """What the arrays of one origin held in two snapshots. Bytes are what blocks take from the pool, slack included."""

    #: Where they come from, as in `memory.summary`.
    origin: str
    #: Bytes in the first snapshot, and in the second.
    bytes_before: int
    bytes_after: int
    #: How many blocks that were.
    num_blocks_before: int
    num_blocks_after: int
    #: Blocks that are in both: they were held all the time. 0 where the snapshots are of two processes.
    num_blocks_kept: int

    FORMER: ClassVar[Mapping[str, str | Mapping[str, str]]] = {
        "before": "bytes_before",
        "after": "bytes_after",
        "bytes": "grown_bytes",
        "blocks_before": "num_blocks_before",
        "blocks_after": "num_blocks_after",
        "blocks_kept": "num_blocks_kept",
    }

    @property
    def grown_bytes(self) -> int:
        """Bytes more in the second snapshot; below 0 where it is less."""
        return self.bytes_after - self.bytes_before


@dataclasses.dataclass(frozen=True, slots=True)
class Diff(Renamed):
    """What changed between two snapshots; ``print(diff)`` is a table. Blocks that were pending are left out."""

    #: Where the snapshots were read.
    before: Path
    after: Path
    #: From the first to the second, in seconds; below 0 if they were given the wrong way round.
    seconds: float
    #: Whether both are of one process; only then `num_blocks_kept` is known.
    same_process: bool
    #: Bytes that arrays held, as they were asked for.
    bytes_in_use_before: int
    bytes_in_use_after: int
    #: Bytes that were dropped and that programs still used.
    pending_bytes_before: int
    pending_bytes_after: int
    #: Every origin in either, what grew most first.
    origins: tuple[Growth, ...]

    FORMER: ClassVar[Mapping[str, str | Mapping[str, str]]] = {
        "in_use": "grown_bytes",
        "in_use_before": "bytes_in_use_before",
        "in_use_after": "bytes_in_use_after",
        "pending_before": "pending_bytes_before",
        "pending_after": "pending_bytes_after",
        "blocks_kept": "num_blocks_kept",
    }

    @property
    def grown_bytes(self) -> int:
        """Bytes more in use; below 0 where it is less."""
        return self.bytes_in_use_after - self.bytes_in_use_before

    @property
    def num_blocks_kept(self) -> int:
        """Blocks that are in both snapshots."""
        return sum(growth.num_blocks_kept for growth in self.origins)

    def __str__(self) -> str:
        span = age(abs(self.seconds)) + (" earlier" if self.seconds < 0 else " later")
        rows = [shorten(f"{self.before.name} -> {self.after.name}, {span}", WIDTH)]
        rows.append(f"  {'':<{_ORIGIN}}{'before':>12}{'after':>12}{'growth':>13}{'blocks':>9}{'kept':>7}")
        rows.append(_line("in use", self.bytes_in_use_before, self.bytes_in_use_after))
        if self.pending_bytes_before or self.pending_bytes_after:
            rows.append(_line("pending", self.pending_bytes_before, self.pending_bytes_after))
        changed = [growth for growth in self.origins if growth.grown_bytes]
        for growth in changed[:_TOP]:
            line = _line(growth.origin, growth.bytes_before, growth.bytes_after)
            more = growth.num_blocks_after - growth.num_blocks_before
            rows.append(line + f"{more:>+9}{growth.num_blocks_kept:>7}")
        if rest := changed[_TOP:]:
            before = sum(other.bytes_before for other in rest)
            rows.append(_line("all others", before, sum(other.bytes_after for other in rest)))
        if same := len(self.origins) - len(changed):
            rows.append(f"  {plural(same, 'origin')} with as much as before")
        if not self.same_process:
            rows.append("  the snapshots are of two processes: which blocks were kept is not known")
        return lines(rows)


def _device(data: Mapping[str, Any], told: Mapping[str, Any]) -> SnapshotDevice:
    stats, labels = told["stats"], data["origins"]["label"]
    return SnapshotDevice(
        device=told["name"],
        strategy=told["strategy"],
        bytes_limit=told["limit"],
        bytes_in_use=stats["in_use"],
        peak_bytes_in_use=stats["peak_in_use"],
        total_allocated_bytes=stats["allocated_total"],
        total_freed_bytes=stats["freed_total"],
        pinned_bytes=stats["pinned"],
        peak_pinned_bytes=stats["peak_pinned"],
        bytes_reserved=stats["reserved"],
        peak_bytes_reserved=stats["peak_reserved"],
        pool_bytes=stats["pool"],
        peak_pool_bytes=stats["peak_pool"],
        pending_bytes=stats["pending"],
        slack_bytes=stats["slack"],
        free_bytes=stats["free"],
        largest_free_block_bytes=stats["largest_hole"],
        moved_bytes=stats["moved"],
        num_compactions=stats["compactions"],
        total_allocs=stats["allocations"],
        total_frees=stats["frees"],
        num_blocks=sum(state != _SCRATCH for state in told["blocks"]["state"]),
        engine_bytes=stats["engine"],
        num_events=len(told["events"]["kind"]),
        num_lost_events=told["events_lost"],
        holders=_holders(data, told),
        failures=tuple(
            OutOfMemoryReport(told["name"], failure["bytes"], labels[failure["origin"]], failure["text"])
            for failure in told["failures"]
        ),
    )


def _holders(data: Mapping[str, Any], device: Mapping[str, Any]) -> tuple[Holder, ...]:
    """Who held the device's memory, the largest first."""
    labels, sums = data["origins"]["label"], dict[tuple[str, int], list[Any]]()
    for block in _convert.rows(device["blocks"]):
        if block["state"] != _SCRATCH:
            born = block["born"] if block["born"] >= 0 else None
            key = labels[block["origin"]], stack_of(data, block["origin"])
            held = sums.setdefault(key, [0, 0, born])
            held[0] += block["bytes"]
            held[1] += 1
            # One whose age is not known may be the oldest.
            held[2] = None if None in (held[2], born) else min(held[2], born)
    holders = [
        Holder(label, held, blocks, None if born is None else (data["now"] - born) / 1e9, of_snapshot(data, stack))
        for (label, stack), (held, blocks, born) in sums.items()
    ]
    return tuple(sorted(holders, key=lambda holder: (-holder.bytes, holder.origin)))


def load(path: str | os.PathLike[str]) -> Snapshot:
    """See `memory.load_snapshot`."""
    path = Path(path)
    # A file of other bytes is no snapshot, and is told so below.
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix.lower() == ".html":
        page = _Page()
        page.feed(text)
        text = "".join(page.found)
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"{path} holds no snapshot; only .html and .json files of memory.snapshot are read")
    if data.get("version") != VERSION:
        raise ValueError(f"{path} is a snapshot of version {data.get('version')}; this package reads version {VERSION}")
    return Snapshot(path, data)


def diff(a: str | os.PathLike[str] | Snapshot, b: str | os.PathLike[str] | Snapshot) -> Diff:
    """See `memory.diff`."""
    before, after = (given if isinstance(given, Snapshot) else load(given) for given in (a, b))
    same_process = before._run() == after._run()
    # For each origin bytes and blocks in either, and blocks in both.
    sums: dict[str, list[int]] = collections.defaultdict(lambda: [0] * 5)
    earlier = set()
    for key, origin, held in before._held():
        earlier.add(key)
        sums[origin][0] += held
        sums[origin][2] += 1
    for key, origin, held in after._held():
        sums[origin][1] += held
        sums[origin][3] += 1
        sums[origin][4] += same_process and key in earlier
    origins = [Growth(origin, *numbers) for origin, numbers in sums.items()]
    return Diff(
        before=before.path,
        after=after.path,
        seconds=after.taken - before.taken,
        same_process=same_process,
        bytes_in_use_before=before.bytes_in_use,
        bytes_in_use_after=after.bytes_in_use,
        pending_bytes_before=before.pending_bytes,
        pending_bytes_after=after.pending_bytes,
        origins=tuple(sorted(origins, key=lambda one: (-one.grown_bytes, -one.bytes_after, one.origin))),
    )


def _line(title: str, before: int, after: int) -> str:
    grown = cell(after - before, signed=True)
    return f"  {shorten(title, _ORIGIN - 1):<{_ORIGIN}}{cell(before)}{cell(after)}{grown}"


class _Page(html.parser.HTMLParser):
    """Finds what the page keeps in the element of the id "snapshot"."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script" and ("id", "snapshot") in attrs

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found.append(data)
