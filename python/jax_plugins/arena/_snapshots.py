"""Snapshots read back: `Snapshot`, and the `Diff` of two.

A snapshot file holds JSON of the schema ``pjrt-arena.snapshot``, version 1, described in the library's
``src/report/snapshot/json.rs``; an ``.html`` file holds the same in its element of the id "snapshot".
"""

from __future__ import annotations

import collections
import dataclasses
import html.parser
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jax_plugins.arena._tables import WIDTH, age, cell, lines, plural, shorten

#: The ends of file names that `memory.snapshot` writes.
FORMATS = (".html", ".json", ".perfetto.json", ".pickle")

SCHEMA, VERSION = "pjrt-arena.snapshot", 1

#: `blocks.state` of what arrays hold: live and pinned; of those that wait for a program; of programs' scratch.
_HELD, _PENDING = (0, 1), 2

#: Origins that the text of a `Diff` names.
_TOP = 20

#: Characters of an origin in that text.
_ORIGIN = WIDTH - 57


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A snapshot that was read from a file."""

    #: The file.
    path: Path
    #: Its JSON, as the schema says: bytes, and nanoseconds since `began_unix_ns`.
    data: Mapping[str, Any] = dataclasses.field(repr=False)

    @property
    def in_use(self) -> int:
        """Bytes of arrays, over all devices, as they were asked for."""
        return sum(device["stats"]["in_use"] for device in self.data["devices"])

    @property
    def pending(self) -> int:
        """Bytes that were dropped and that programs still used, over all devices."""
        return sum(device["stats"]["pending"] for device in self.data["devices"])

    @property
    def taken(self) -> float:
        """When it was taken, in seconds since 1970."""
        return int(self.data["written_unix_ns"]) / 1e9

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


@dataclasses.dataclass(frozen=True)
class Growth:
    """What the arrays of one origin held in two snapshots. Bytes are what blocks take from the pool, slack included."""

    #: Where they come from, as in `memory.summary`.
    origin: str
    #: Bytes in the first snapshot, and in the second.
    before: int
    after: int
    #: How many blocks that were.
    blocks_before: int
    blocks_after: int
    #: Blocks that are in both: they were held all the time. 0 where the snapshots are of two processes.
    blocks_kept: int

    @property
    def bytes(self) -> int:
        """Bytes more in the second snapshot; below 0 where it is less."""
        return self.after - self.before


@dataclasses.dataclass(frozen=True)
class Diff:
    """What changed between two snapshots; ``print(diff)`` is a table. Blocks that were pending are left out."""

    #: Where the snapshots were read.
    before: Path
    after: Path
    #: From the first to the second, in seconds; below 0 if they were given the wrong way round.
    seconds: float
    #: Whether both are of one process; only then `blocks_kept` is known.
    same_process: bool
    #: Bytes that arrays held, as they were asked for.
    in_use_before: int
    in_use_after: int
    #: Bytes that were dropped and that programs still used.
    pending_before: int
    pending_after: int
    #: Every origin in either, what grew most first.
    origins: tuple[Growth, ...]

    @property
    def in_use(self) -> int:
        """Bytes more in use; below 0 where it is less."""
        return self.in_use_after - self.in_use_before

    @property
    def blocks_kept(self) -> int:
        """Blocks that are in both snapshots."""
        return sum(growth.blocks_kept for growth in self.origins)

    def __str__(self) -> str:
        span = age(abs(self.seconds)) + (" earlier" if self.seconds < 0 else " later")
        rows = [shorten(f"{self.before.name} -> {self.after.name}, {span}", WIDTH)]
        rows.append(f"  {'':<{_ORIGIN}}{'before':>12}{'after':>12}{'growth':>13}{'blocks':>9}{'kept':>7}")
        rows.append(_line("in use", self.in_use_before, self.in_use_after))
        if self.pending_before or self.pending_after:
            rows.append(_line("pending", self.pending_before, self.pending_after))
        changed = [growth for growth in self.origins if growth.before != growth.after]
        for growth in changed[:_TOP]:
            line = _line(growth.origin, growth.before, growth.after)
            rows.append(line + f"{growth.blocks_after - growth.blocks_before:>+9}{growth.blocks_kept:>7}")
        if rest := changed[_TOP:]:
            rows.append(_line("all others", sum(other.before for other in rest), sum(other.after for other in rest)))
        if same := len(self.origins) - len(changed):
            rows.append(f"  {plural(same, 'origin')} with as much as before")
        if not self.same_process:
            rows.append("  the snapshots are of two processes: which blocks were kept is not known")
        return lines(rows)


def load(path: str | os.PathLike[str]) -> Snapshot:
    """See `memory.load`."""
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
        in_use_before=before.in_use,
        in_use_after=after.in_use,
        pending_before=before.pending,
        pending_after=after.pending,
        origins=tuple(sorted(origins, key=lambda growth: (-growth.bytes, -growth.after, growth.origin))),
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
