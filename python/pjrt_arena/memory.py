"""The memory of pjrt-arena's devices, in your hands: look at it, tidy it up, ask what a TPU would need.

    from pjrt_arena import memory

    print(memory.summary())                     how much there is, and which programs' results hold it
    with memory.track("load") as t: ...         the peak of a piece of code, and who made it
    memory.snapshot("x.html")                   everything, with its history, as a page, JSON, a trace or a pickle
    print(memory.diff("a.json", "b.json"))      what grew between two snapshots
    memory.reset_peak()                         sets the peaks to what is there now
    print(memory.map())                         what lies where, on one screen
    memory.stats()                              the numbers of each device
    memory.compact()                            moves arrays together
    memory.trim()                               gives empty regions and pages back to the system
    memory.sleep()                              spills all arrays too; memory.wake() brings them back
    memory.on_oom(print)                        calls a function when memory is exhausted
    memory.record(python=True)                  each array keeps the Python stack that made it
    memory.tpu_footprint((1000, 3), "bfloat16") what an array takes in a TPU's tiled layout

All but `tpu_footprint`, `load_snapshot` and `diff` speak of the clients that this process has: a device is there once
JAX has started on it, and before that there is none. Nothing here starts JAX. ``device`` is a `jax.Device`, or the
library's name of one, such as ``cpu:0``; without it all are meant. With anything else there is a `TypeError`. Every
function that asks the library raises `ArenaError` where that cannot be found, or is older than the function. Sizes are
in bytes, times in seconds.
"""

from __future__ import annotations

import collections
import contextlib
import operator
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pjrt_arena import _convert, _devices, _groups, _library, _reports, _snapshots, _stats
from pjrt_arena._actions import Compaction, Sleep, Trim, Wake, compact, launches, sleep, trim, wake
from pjrt_arena._devices import UnknownDeviceError
from pjrt_arena._donations import Donation
from pjrt_arena._footprint import Footprint, Footprints, tpu_footprint
from pjrt_arena._groups import Group, GroupDevice, GroupMember
from pjrt_arena._library import ArenaError
from pjrt_arena._oom import OomHandler, OutOfMemoryReport, on_oom
from pjrt_arena._reports import DeviceSummary, Holder, Spilled, Summary, Track, TrackedDevice
from pjrt_arena._snapshots import Diff, Growth, Snapshot, SnapshotDevice
from pjrt_arena._stacks import Frame, Recording, record
from pjrt_arena._stats import (
    Counters,
    DeviceStats,
    GroupStats,
    ProgramCounters,
    ResultCounters,
    ScratchCounters,
    SpillStats,
)

if TYPE_CHECKING:
    from pjrt_arena._devices import Device

__all__ = [
    "ArenaError",
    "Compaction",
    "Counters",
    "DeviceStats",
    "DeviceSummary",
    "Diff",
    "Donation",
    "Footprint",
    "Footprints",
    "Frame",
    "Group",
    "GroupDevice",
    "GroupMember",
    "GroupStats",
    "Growth",
    "Holder",
    "OomHandler",
    "OutOfMemoryReport",
    "ProgramCounters",
    "Recording",
    "ResultCounters",
    "ScratchCounters",
    "Sleep",
    "Snapshot",
    "SnapshotDevice",
    "SpillStats",
    "Spilled",
    "Summary",
    "Track",
    "TrackedDevice",
    "Trim",
    "UnknownDeviceError",
    "Wake",
    "compact",
    "counters",
    "diff",
    "groups",
    "history",
    "launches",
    "load_snapshot",
    "map",
    "on_oom",
    "record",
    "reset_peak",
    "sleep",
    "snapshot",
    "stats",
    "summary",
    "tpu_footprint",
    "track",
    "trim",
    "wake",
]


#: How often peaks were reset. The peak of a device that came during a track is its own, since it is there.
_resets = 0


def stats(*, device: Device | None = None) -> tuple[DeviceStats, ...]:
    """The numbers of each device now, in bytes where the name says nothing else.

        >>> import jax.numpy as jnp
        >>> from pjrt_arena import memory
        >>> x = jnp.ones(1 << 20)
        >>> memory.stats()[0].bytes_in_use >= x.nbytes
        True

    Args:
      device: only this one.

    Raises:
      UnknownDeviceError: there is no such device.
    """
    devices = counters().devices
    if device is None:
        return devices
    name = _devices.name_of(device)
    pinned = (one.pinned_host for one in devices)
    return tuple(one for one in (*devices, *pinned) if one is not None and one.device == name)


def groups() -> tuple[Group, ...]:
    """The groups of processes of this user that share devices, whether this process is in one or not.

        >>> from pjrt_arena import memory
        >>> for group in memory.groups():
        ...     print(group)

    Raises:
      ArenaError: the folder of groups cannot be read, or no library can be found.
    """
    told = _library.load().ask("pjrt_arena_groups")
    if isinstance(told, dict):
        raise ArenaError(told["error"])
    return _groups.read(told)


def counters() -> Counters:
    """What this process's programs did so far, as the library counts it: programs, their results, devices, scratch.

        >>> from pjrt_arena import memory
        >>> memory.counters().results.missed
        {}

    Raises:
      ArenaError: no library can be found, or it is not pjrt-arena's.
    """
    return _stats.counters(_library.load().counters())


def summary(top: int = 10, *, device: Device | None = None) -> Summary:
    """What the memory of every device comes to. ``print(memory.summary())`` is a table of at most 100 columns.

    The object has the numbers: ``memory.summary().devices[0].peak_bytes_in_use``. Peaks are since the start or
    `reset_peak`, ``total_`` numbers since the start. In a notebook it shows itself as a table.

        >>> from pjrt_arena import memory
        >>> print(memory.summary(top=3, device="cpu:0"))
        cpu:0, strategy ...

    Args:
      top: how many origins the text names for each device; the library tells of the 20 largest.
      device: only this one.

    Raises:
      ValueError: `top` is below 0.
      UnknownDeviceError: there is no such device.
    """
    if (top := operator.index(top)) < 0:
        raise ValueError(f"top={top}; it must be 0 or more")
    name = None if device is None else _devices.name_of(device)
    library = _library.load()
    told, counters = library.summary(), library.counters()
    return _reports.summary((one for one in told if name in (None, one["device"])), counters, top)


def map(width: int = 64, rows: int = 16, *, device: Device | None = None) -> str:
    """A text map of every device's memory, or of one's.

        >>> from pjrt_arena import memory
        >>> print(memory.map(device="cpu:0"))
        cpu:0: ...

    Args:
      width: the longest line, in characters; fewer than 32 count as 32.
      rows: the most rows of cells for each device; a few lines of numbers and explanation come on top.
      device: only this one.

    Raises:
      UnknownDeviceError: there is no such device.
    """
    name = None if device is None else _devices.name_of(device)
    return _library.load().map(operator.index(width), operator.index(rows), name)


def reset_peak(*, device: Device | None = None) -> None:
    """Sets the peaks of every device, or of one, to what is there now, for `summary` and for ``memory_stats()``.

    For the peak of one piece of code `track` is the better way: tracks do not disturb each other.

        >>> import jax.numpy as jnp
        >>> from pjrt_arena import memory
        >>> jnp.ones(1 << 20).delete()
        >>> before = memory.stats()[0].peak_bytes_in_use
        >>> memory.reset_peak()
        >>> memory.stats()[0].peak_bytes_in_use < before
        True

    Args:
      device: only this one.

    Raises:
      UnknownDeviceError: there is no such device.
    """
    global _resets
    name, library = None if device is None else _devices.name_of(device), _library.load()
    _resets += 1
    library.reset_peak(name)


def history(enabled: bool) -> None:
    """Whether the devices remember what happens in their memory, for `snapshot` and for who held a peak of `track`.

    Without history no event is noted and no clock is read. What was remembered is forgotten; what is remembered from
    the next ``history(True)`` on begins there. Devices of a client that is created later go by ``PJRT_ARENA_HISTORY``.

        >>> from pjrt_arena import memory
        >>> memory.history(False)
        >>> memory.history(True)

    Args:
      enabled: on, with as many events as ``PJRT_ARENA_HISTORY`` says (65536 where that is 0), or off.
    """
    _library.load().history(bool(enabled))


def snapshot(path: str | os.PathLike[str]) -> Path:
    """Writes everything about the memory, with what happened of late, to a file, and returns its path.

    The file is for its user alone (mode 0600), and is there as a whole or not at all; a file that is there is replaced.
    It holds names, shapes, sizes and times, never the contents of an array.

        >>> import tempfile
        >>> from pjrt_arena import memory
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     memory.snapshot(f"{folder}/a.html").stat().st_size > 0
        True

    Args:
      path: a file name whose end says the format: ``.html``, a page for a browser, which needs no network; ``.json``,
        what `load_snapshot` and `diff` read; ``.perfetto.json``, for ui.perfetto.dev; ``.pickle``, for PyTorch's memory
        viewer.

    Raises:
      ValueError: the name has another end.
      OSError: the file cannot be written, as from `open`; or a link, a folder or a device is there.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"{path!r} has a null character; no file can have that")
    target = Path(os.fsdecode(name))
    if why := _library.load().snapshot(name):
        if not target.name.lower().endswith(_convert.FORMATS):
            raise ValueError(why)
        # With the system's number it becomes FileNotFoundError, PermissionError and so on.
        if said := re.search(r"\(os error (\d+)\)$", why):
            number = int(said[1])
            raise OSError(number, os.strerror(number), os.fspath(target))
        raise OSError(why)
    return target


def load_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Reads a snapshot from a ``.json`` or ``.html`` file; needs neither the library nor JAX.

    ``print(snapshot)`` shows it, ``snapshot.devices`` has its numbers, `Snapshot.save` writes it in another format.

        >>> import tempfile
        >>> from pjrt_arena import memory
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     snapshot = memory.load_snapshot(memory.snapshot(f"{folder}/a.json"))
        >>> print(snapshot)
        a.json: process ...

    Args:
      path: a file that `snapshot` wrote.

    Raises:
      ValueError: the file is no snapshot, or of another version of the schema than 1.
      OSError: it cannot be read.
    """
    return _snapshots.load(path)


def diff(a: str | os.PathLike[str] | Snapshot, b: str | os.PathLike[str] | Snapshot) -> Diff:
    """What changed from snapshot `a` to snapshot `b`, by origin: what grows is held by somebody.

    Take one snapshot before and one after a few rounds of a loop. An origin that grew by a block a round leaks; one
    whose blocks are all kept holds what it always did. Needs neither the library nor JAX.

        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> from pjrt_arena import memory
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     before = memory.load_snapshot(memory.snapshot(f"{folder}/a.json"))
        ...     x = jnp.ones(1 << 20)
        ...     memory.diff(before, memory.snapshot(f"{folder}/b.json")).origins[0].bytes_after >= x.nbytes
        True

    Args:
      a: a ``.json`` or ``.html`` file, or what `load_snapshot` returned.
      b: the same, of a later instant.

    Raises:
      ValueError, OSError: as `load_snapshot`.
    """
    return _snapshots.diff(a, b)


@contextlib.contextmanager
def track(
    name: str = "", report: Callable[[Track], object] | None = None, *, device: Device | None = None
) -> Iterator[Track]:
    """Watches the memory while a block of code runs: its peak, and who made it.

        >>> import jax.numpy as jnp
        >>> from pjrt_arena import memory
        >>> with memory.track("sum") as t:
        ...     total = jnp.ones(1 << 20).sum()
        >>> t.peak_bytes_in_use - t.bytes_in_use_before >= 4 << 20
        True

    ``print(t)`` is a table; ``t.holders`` has who had how much at the peak, ``t.devices`` each device. As a decorator,
    ``@memory.track("step", report=print)``, it watches each call. Tracks may be nested, and open in many threads; each
    sees all that the process does. Where JAX starts on the arena within the block, the devices count from 0 bytes on.
    A result takes its memory when its program is dispatched, so nothing has to be waited for; what is dropped counts no
    longer, also while a program still uses it.

    An exception of the block passes on. Where the end of the track or `report` fails after it, it has a note of that.

    Args:
      name: for the text.
      report: called with the track when the block has ended, also by an exception. What it raises passes on.
      device: only this one, which is there already.

    Raises:
      ArenaError: 1024 tracks are open; there is no library, or an older one; or `reset_peak` was called in the block in
        which JAX started, so that the peak is not known.
      UnknownDeviceError: there is no such device.
    """
    library = _library.load()
    only = None if device is None else _devices.name_of(device)
    number = library.track_begin()
    if number == 0:
        raise ArenaError("1024 tracks are open, and there is room for no more: leave some of their with blocks.")
    seen, resets = Track(name), _resets

    def end() -> None:
        told = library.track_end(number)
        if isinstance(told, dict):
            raise ArenaError(told["error"])
        late = _not_among([one["device"] for one in told], stats()) if only is None else []
        if late and _resets != resets:
            names = ", ".join(one.device for one in late)
            raise ArenaError(f"the peak of {names} is not known: JAX started in the block, which called reset_peak().")
        _reports.end(seen, (one for one in told if only in (None, one["device"])), late)
        if report is not None:
            report(seen)

    try:
        yield seen
    except BaseException as error:
        try:
            end()
        except Exception as failed:
            error.add_note(f"memory.track({name!r}) failed, too: {type(failed).__name__}: {failed}")
        raise
    end()


def _not_among(names: list[str], devices: tuple[DeviceStats, ...]) -> list[DeviceStats]:
    """The devices, and their ``pinned_host``, that are not among these; of several clients' the later ones."""
    left, late = collections.Counter(names), []
    for one in (one for device in devices for one in (device, device.pinned_host)):
        # Where the engine holds all arrays, there is nothing to watch.
        if one is None or not one.strategy:
            continue
        if left[one.device]:
            left[one.device] -= 1
        else:
            late.append(one)
    return late
