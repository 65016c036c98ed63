"""The memory of pjrt-arena's devices, in your hands: look at it, tidy it up, ask what a TPU would need.

    from jax_plugins.arena import memory

    print(memory.summary())                     how much there is, and which programs' results hold it
    with memory.track("load") as t: ...         the peak of a piece of code, and who made it
    memory.snapshot("x.html")                   everything, with its history, as a page, JSON, a trace or a pickle
    print(memory.diff("a.json", "b.json"))      what grew between two snapshots
    memory.reset_peak()                         sets the peaks to what is there now
    print(memory.map())                         what lies where, on one screen
    memory.stats()                              the arenas' numbers, one dict for each device
    memory.compact()                            moves buffers together, on every device
    memory.trim()                               gives empty regions and pages back to the system
    memory.sleep()                              spills all arrays too; memory.wake() brings them back
    memory.tpu_footprint((1000, 3), "bfloat16") what an array takes in a TPU's tiled layout

All but `tpu_footprint`, `load` and `diff` speak of the clients that this process has: a device is there once JAX has
started on it, and before that the lists are empty. Nothing here starts JAX. Every function that asks the library raises
`ArenaError` where that cannot be found, or is older than the function. Sizes are in bytes, times in seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jax_plugins.arena import _library, _reports, _snapshots
from jax_plugins.arena._library import ArenaError
from jax_plugins.arena._reports import (
    DeviceSummary,
    Holder,
    Moved,
    Pool,
    Spilled,
    Summary,
    Track,
    TrackedDevice,
    Usage,
    known as _fields,
)
from jax_plugins.arena._snapshots import Diff, Growth, Snapshot

__all__ = [
    "ArenaError",
    "Compaction",
    "DeviceSummary",
    "Diff",
    "Footprint",
    "Growth",
    "Holder",
    "Moved",
    "Pool",
    "Sleep",
    "Snapshot",
    "Spilled",
    "Summary",
    "Track",
    "TrackedDevice",
    "Trim",
    "Usage",
    "Wake",
    "compact",
    "diff",
    "launches",
    "load",
    "map",
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


@dataclasses.dataclass(frozen=True)
class Compaction:
    """What `compact` did on one device."""

    #: The device, as the library names it.
    device: str
    #: How many buffers were moved, and the bytes in them.
    buffers_moved: int
    bytes_moved: int
    #: How long it took, in seconds.
    seconds: float
    #: The largest hole before and after, in bytes.
    largest_free_before: int
    largest_free_after: int
    #: How many buffers had to stay where they are, and the bytes in them.
    pinned_buffers: int
    pinned_bytes: int
    #: How many of them stayed for each reason.
    pinned_why: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Trim:
    """What `trim` gave back on one device."""

    #: The device, as the library names it; or ``scratch``.
    device: str
    #: Bytes given back to the system.
    bytes_returned: int
    #: How many whole regions were among them.
    regions_returned: int
    #: How long it took, in seconds.
    seconds: float


@dataclasses.dataclass(frozen=True)
class Sleep:
    """What `sleep` did on one device."""

    #: The device, as the library names it.
    device: str
    #: Bytes of arrays that were spilled.
    bytes_spilled: int
    #: Bytes given back to the system.
    bytes_returned: int
    #: How many whole regions were among them.
    regions_returned: int
    #: What stays in use, in bytes.
    bytes_in_use: int
    #: Whose that is, the largest first.
    holders: tuple[Holder, ...]
    #: How long it took, in seconds.
    seconds: float


@dataclasses.dataclass(frozen=True)
class Wake:
    """What `wake` did on one device."""

    #: The device, as the library names it.
    device: str
    #: Bytes of arrays that came back.
    bytes_brought_back: int
    #: Bytes of arrays for which there is no room: they come when a program takes them.
    bytes_waiting: int
    #: How long it took, in seconds.
    seconds: float


@dataclasses.dataclass(frozen=True)
class Footprint:
    """What one array takes on a TPU. ``int(footprint)`` is `bytes`."""

    #: Bytes with padding, where the dimensions lie in the order in which they are written, the last fastest.
    bytes: int
    #: Bytes of the elements alone, those narrower than a byte packed.
    dense_bytes: int
    #: The tiles in XLA's notation, such as ``T(8,128)(2,1)``.
    layout: str
    #: Bytes in the order of dimensions that takes the fewest, and that order in XLA's notation, the fastest dimension
    #: first. XLA chooses the order by itself, often one as small as this.
    smallest_bytes: int
    smallest_layout: str

    @property
    def padding(self) -> int:
        """Bytes of `bytes` that hold no element."""
        return self.bytes - self.dense_bytes

    def __int__(self) -> int:
        return self.bytes


class ShapeAndDtype(Protocol):
    """What `jax.ShapeDtypeStruct`, JAX's arrays and NumPy's have."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...


def compact() -> list[Compaction]:
    """Moves the buffers of every device together, so that its free memory becomes one piece as far as that is possible.

    Works under every strategy but ``platform``, whatever ``PJRT_ARENA_COMPACT`` says. Buffers in use, and those whose
    address someone outside knows (NumPy views, DLPack), stay where they are; see `Compaction.pinned_why`.
    """
    return [Compaction(**_fields(Compaction, told)) for told in _act("pjrt_arena_compact")]


def trim() -> list[Trim]:
    """Gives memory that holds nothing back to the system: whole regions, and pages of those that stay.

    One for each device, and one called ``scratch`` where memory that the engine used for programs' scratch went back.
    """
    return [Trim(**_fields(Trim, told)) for told in _act("pjrt_arena_trim")]


def sleep(devices: Iterable[Any] | None = None, keep: Any = None) -> list[Sleep]:
    """Spills all arrays and gives the devices' memory back to the system, so that other processes have it.

    It waits for programs under way. Arrays keep their identity and contents: those that are read are read where they
    are, and a program brings its arguments back. Compiled programs stay. What an outsider holds (a NumPy view, dlpack)
    stays on the device; the answer names what stays. Needs ``PJRT_ARENA_SPILL``; with ``host`` on a CPU, arrays stay in
    this process' memory, with a folder they do not.

    Args:
      devices: `jax.Device` objects, or the library's names of devices, such as ``cpu:0``; all by default.
      keep: a pytree of `jax.Array` that stay where they are, if they are on the devices.

    Raises:
      ArenaError: a device has nowhere to spill to, or there is no such device.
    """
    held = [shard.data.__dlpack__() for array in _leaves(keep) for shard in array.addressable_shards]
    try:
        told = _on(devices, "pjrt_arena_sleep")
    finally:
        held.clear()
    for device in told:
        device["holders"] = tuple(Holder(**holder) for holder in device["holders"])
    return [Sleep(**_fields(Sleep, device)) for device in told]


def wake(devices: Iterable[Any] | None = None) -> list[Wake]:
    """Brings spilled arrays back while there is room, those first that are used first. Programs do without it.

    Args:
      devices: as for `sleep`.

    Raises:
      ArenaError: there is no such device.
    """
    return [Wake(**_fields(Wake, device)) for device in _on(devices, "pjrt_arena_wake")]


def launches(path: str | os.PathLike[str], device: Any = None) -> Path:
    """Writes the last launches on a device that spills to `path`, for ``arena-replay --spill``; returns the path.

    Args:
      path: the file, of JSON.
      device: a `jax.Device`, or the library's name of one; the first by default.

    Raises:
      ArenaError: nothing spills, or there is no such device.
    """
    name = device if device is None or isinstance(device, str) else _name(device)
    argument = (ctypes.c_char_p, name.encode() if name is not None else None)
    told = _library.load().ask("pjrt_arena_launches", argument)
    if "error" in told:
        raise ArenaError(told["error"])
    Path(path).write_text(json.dumps(told))
    return Path(path)


def map(width: int = 64, rows: int = 16) -> str:
    """A text map of every device's memory.

    Args:
      width: the longest line, in characters; fewer than 32 count as 32.
      rows: the most rows of cells for each device; a few lines of numbers and explanation come on top.
    """
    return _library.load().map(operator.index(width), operator.index(rows))


def stats() -> list[dict[str, Any]]:
    """For each device what its arena and its engine hold, in bytes: ``devices`` of `jax_plugins.arena.counters`."""
    devices: list[dict[str, Any]] = _library.load().counters()["devices"]
    return devices


def summary(top: int = 10) -> Summary:
    """What the memory of every device comes to. ``print(memory.summary())`` is a table of at most 100 columns.

    The object has the numbers: ``memory.summary().devices[0].in_use.peak``. Peaks are since the start or `reset_peak`,
    sums since the start.

    Args:
      top: how many origins the text names for each device; the library tells of the 20 largest.

    Raises:
      ValueError: `top` is below 0.
    """
    if (top := operator.index(top)) < 0:
        raise ValueError(f"top={top}; it must be 0 or more")
    return _reports.summary(_library.load().summary(), top)


def reset_peak() -> None:
    """Sets the peaks of every device to what is there now, for `summary` and for ``memory_stats()``.

    For the peak of one piece of code `track` is the better way: tracks do not disturb each other.
    """
    _library.load().reset_peak()


def snapshot(path: str | os.PathLike[str]) -> Path:
    """Writes everything about the memory, with what happened of late, to a file, and returns its path.

    The file is for its user alone (mode 0600), and is there as a whole or not at all; a file that is there is replaced.
    It holds names, shapes, sizes and times, never the contents of an array.

    Args:
      path: a file name whose end says the format: ``.html``, a page for a browser, which needs no network; ``.json``,
        what `load` and `diff` read; ``.perfetto.json``, for ui.perfetto.dev; ``.pickle``, for PyTorch's memory viewer.

    Raises:
      ValueError: the name has another end.
      OSError: the file cannot be written, as from `open`; or a link, a folder or a device is there.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"{path!r} has a null character; no file can have that")
    target = Path(os.fsdecode(name))
    if why := _library.load().snapshot(name):
        if not target.name.lower().endswith(_snapshots.FORMATS):
            raise ValueError(why)
        # With the system's number it becomes FileNotFoundError, PermissionError and so on.
        if said := re.search(r"\(os error (\d+)\)$", why):
            number = int(said[1])
            raise OSError(number, os.strerror(number), os.fspath(target))
        raise OSError(why)
    return target


def load(path: str | os.PathLike[str]) -> Snapshot:
    """Reads a snapshot from a ``.json`` or ``.html`` file; needs neither the library nor JAX.

    Raises:
      ValueError: the file is no snapshot, or of a version that this package does not know.
      OSError: it cannot be read.
    """
    return _snapshots.load(path)


def diff(a: str | os.PathLike[str] | Snapshot, b: str | os.PathLike[str] | Snapshot) -> Diff:
    """What changed from snapshot `a` to snapshot `b`, by origin: what grows is held by somebody.

    Take one snapshot before and one after a few rounds of a loop. An origin that grew by a block a round leaks; one
    whose blocks are all kept holds what it always did. Needs neither the library nor JAX.

    Args:
      a, b: ``.json`` or ``.html`` files, or what `load` returned.

    Raises:
      ValueError, OSError: as `load`.
    """
    return _snapshots.diff(a, b)


@contextlib.contextmanager
def track(name: str = "", report: Callable[[Track], object] | None = None) -> Iterator[Track]:
    """Watches the memory while a block of code runs: its peak, and who made it.

        with memory.track("load") as t:
            parameters = load()
        print(t)             # t.start, t.peak, t.end in bytes; t.holders: who had how much at the peak; t.devices

    As a decorator, ``@memory.track("step", report=print)``, it watches each call. Tracks may be nested, and open in
    many threads; each sees all that the process does. It watches the devices that are there when it begins: none,
    before JAX has started. A result takes its memory when its program is dispatched, so nothing has to be waited for;
    what is dropped counts no longer, also while a program still uses it.

    Args:
      name: for the text.
      report: called with the track when the block has ended, also by an exception, which passes on.

    Raises:
      ArenaError: 1024 tracks are open.
    """
    library = _library.load()
    number = library.track_begin()
    if number == 0:
        raise ArenaError("1024 tracks are open, and there is room for no more: leave some of their with blocks.")
    seen = Track(name)
    try:
        yield seen
    finally:
        told = library.track_end(number)
        if isinstance(told, dict):
            raise ArenaError(told["error"])
        _reports.end(seen, told)
        if report is not None:
            report(seen)


def tpu_footprint(shape: int | Sequence[int] | ShapeAndDtype, dtype: Any = None) -> Footprint:
    """What one array takes in a TPU's memory, computed on this machine.

    Args:
      shape: dimensions, or a `jax.ShapeDtypeStruct` or array, and then no `dtype`.
      dtype: what NumPy or JAX takes for a dtype, such as ``jnp.bfloat16``, ``"float32"`` or ``np.int8``. 64-bit types
        count as they are: JAX without ``jax_enable_x64`` makes 32-bit ones of them.

    What is certain of the rule, what is inferred and what it leaves out (programs' scratch, layouts that XLA chooses
    otherwise, alignment between buffers) is written in the library's ``src/memory/tiles.rs``.

    Raises:
      ValueError: a TPU has no such array: complex128, a negative dimension, more than 64 bits of bytes.
      TypeError: `dtype` is missing, or is no dtype.
    """
    if dtype is None:
        if not (hasattr(shape, "shape") and hasattr(shape, "dtype")):
            raise TypeError("dtype is missing: give a shape and a dtype, or one object that has both")
        dtype, shape = shape.dtype, shape.shape
    dims = _dimensions(shape)
    for dim in dims:
        if not 0 <= dim < 1 << 63:
            raise ValueError(f"a dimension of {tuple(dims)} is {dim}; it must be from 0 to 2**63 - 1")
    answer = _library.load().tpu_footprint(_xla_name(dtype), dims)
    if "error" in answer:
        raise ValueError(answer["error"])
    return Footprint(**_fields(Footprint, answer))


def _dimensions(shape: Any) -> list[int]:
    try:
        return [operator.index(shape)]
    except TypeError:
        pass
    try:
        return [operator.index(dim) for dim in shape]
    except TypeError:
        raise TypeError(f"shape={shape!r} is neither a whole number nor a sequence of them") from None


def _xla_name(dtype: Any) -> str:
    """XLA's name for `dtype`. Which of them a TPU has, the library judges."""
    import ml_dtypes  # noqa: F401  # makes bfloat16 and its like known to NumPy by name
    import numpy as np

    try:
        name: str = np.dtype(dtype).name
    except TypeError:
        raise TypeError(f"dtype={dtype!r} is not a dtype of NumPy's or JAX's") from None
    if name == "bool":
        return "pred"
    # int8 s8, uint4 u4, bfloat16 bf16, float32 f32, float8_e4m3fn f8e4m3fn, complex64 c64
    for theirs, xlas in (("uint", "u"), ("int", "s"), ("bfloat", "bf"), ("float", "f"), ("complex", "c")):
        if name.startswith(theirs):
            return xlas + name.removeprefix(theirs).replace("_", "")
    raise TypeError(f"{name} is not a type of elements of JAX's arrays")


def _leaves(tree: Any) -> list[Any]:
    if tree is None:
        return []
    import jax

    leaves: list[Any] = jax.tree.leaves(tree)
    for leaf in leaves:
        if not isinstance(leaf, jax.Array):
            raise TypeError(f"keep has a {type(leaf).__name__}; allowed are pytrees of jax.Array")
    return leaves


def _on(devices: Iterable[Any] | None, function: str) -> list[dict[str, Any]]:
    """What `function` answers for each of `devices`, or for all."""
    if devices is None:
        return _act(function, (ctypes.c_char_p, None))
    names = [device if isinstance(device, str) else _name(device) for device in devices]
    return [told for name in names for told in _act(function, (ctypes.c_char_p, name.encode()))]


def _name(device: Any) -> str:
    """The library's name of a `jax.Device`."""
    import jax

    names = [told["name"] for told in stats()]
    if isinstance(device, jax.Device) and device in jax.devices("arena"):
        for name in names:
            if name.rpartition(":")[2] == str(device.id):
                return str(name)
    raise ArenaError(f"{device!r} is no device of pjrt-arena; there are: {', '.join(names)}")


def _act(name: str, *arguments: tuple[Any, Any]) -> list[dict[str, Any]]:
    answer = _library.load().act(name, *arguments)
    if isinstance(answer, dict) and "error" in answer:
        raise ArenaError(answer["error"])
    done: list[dict[str, Any]] = answer
    return done
