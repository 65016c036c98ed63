"""What acts on the devices' memory: `compact`, `trim`, `sleep`, `wake`, and what each says that it did."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pjrt_arena import _devices, _library, _reports
from pjrt_arena._former import Renamed
from pjrt_arena._reports import Holder

if TYPE_CHECKING:
    from pjrt_arena._devices import Device


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(Renamed):
    """What `compact` did on one device."""

    #: The device, as the library names it.
    device: str
    #: How many arrays were moved, and the bytes in them.
    num_moves: int
    moved_bytes: int
    #: How long it took, in seconds.
    seconds: float
    #: The largest hole before and after, in bytes.
    largest_free_block_bytes_before: int
    largest_free_block_bytes_after: int
    #: How many blocks could not be moved, the bytes in them, and how many of them for each reason: an outsider holds
    #: the address, a program or a transfer uses them, they are being written, or are deleted and not yet free.
    num_unmoved_blocks: int
    unmoved_bytes: int
    unmoved_why: Mapping[str, int]

    FORMER: ClassVar[Mapping[str, str | Mapping[str, str]]] = {
        "buffers_moved": "num_moves",
        "bytes_moved": "moved_bytes",
        "largest_free_before": "largest_free_block_bytes_before",
        "largest_free_after": "largest_free_block_bytes_after",
        "pinned_buffers": "num_unmoved_blocks",
        "num_pinned_blocks": "num_unmoved_blocks",
        "pinned_bytes": "unmoved_bytes",
        "pinned_why": "unmoved_why",
    }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trim(Renamed):
    """What `trim` gave back on one device."""

    #: The device, as the library names it; or ``scratch``.
    device: str
    #: Bytes given back to the system, and how many whole regions were among them.
    returned_bytes: int
    num_returned_regions: int
    #: How long it took, in seconds.
    seconds: float

    FORMER: ClassVar[Mapping[str, str | Mapping[str, str]]] = {
        "bytes_returned": "returned_bytes",
        "regions_returned": "num_returned_regions",
    }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sleep(Renamed):
    """What `sleep` did on one device."""

    #: The device, as the library names it.
    device: str
    #: Bytes of arrays that were spilled.
    spilled_bytes: int
    #: Bytes given back to the system, and how many whole regions were among them.
    returned_bytes: int
    num_returned_regions: int
    #: What stays in use, in bytes, and whose that is, the largest first.
    bytes_in_use: int
    holders: tuple[Holder, ...]
    #: How many programs and transfers were still under way at the end: what they use stays, and goes with the next
    #: `sleep`.
    num_under_way: int
    #: How long it took, in seconds.
    seconds: float

    FORMER: ClassVar[Mapping[str, str | Mapping[str, str]]] = {
        "bytes_spilled": "spilled_bytes",
        "bytes_returned": "returned_bytes",
        "regions_returned": "num_returned_regions",
    }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wake(Renamed):
    """What `wake` did on one device."""

    #: The device, as the library names it.
    device: str
    #: Bytes of arrays that came back.
    brought_back_bytes: int
    #: Bytes of arrays for which there is no room: they come when a program takes them.
    waiting_bytes: int
    #: How long it took, in seconds.
    seconds: float

    FORMER: ClassVar[Mapping[str, str | Mapping[str, str]]] = {
        "bytes_brought_back": "brought_back_bytes",
        "bytes_waiting": "waiting_bytes",
    }


def compact(*, device: Device | None = None) -> tuple[Compaction, ...]:
    """Moves the arrays of every device, or of one, together, so that its free memory is one piece as far as possible.

    Works under every strategy but ``platform``, whatever ``PJRT_ARENA_COMPACT`` says. Arrays in use, and those whose
    address someone outside knows (NumPy views, DLPack), stay where they are; see `Compaction.unmoved_why`.

        >>> from pjrt_arena import memory
        >>> [done.device for done in memory.compact(device="cpu:0")]
        ['cpu:0']

    Args:
      device: a `jax.Device`, or the library's name of one, such as ``cpu:0``; all by default.

    Raises:
      UnknownDeviceError: there is no such device.
    """
    return tuple(
        Compaction(
            device=one["device"],
            num_moves=one["buffers_moved"],
            moved_bytes=one["bytes_moved"],
            seconds=one["seconds"],
            largest_free_block_bytes_before=one["largest_free_before"],
            largest_free_block_bytes_after=one["largest_free_after"],
            num_unmoved_blocks=one["pinned_buffers"],
            unmoved_bytes=one["pinned_bytes"],
            unmoved_why=one["pinned_why"],
        )
        for one in _act("compact", device)
    )


def trim(*, device: Device | None = None) -> tuple[Trim, ...]:
    """Gives memory that holds nothing back to the system: whole regions, and pages of those that stay.

    One for each device; without `device`, one more called ``scratch`` where memory that the engine used for programs'
    scratch went back.

        >>> from pjrt_arena import memory
        >>> memory.trim(device="cpu:0")[0].returned_bytes >= 0
        True

    Args:
      device: as for `compact`.

    Raises:
      UnknownDeviceError: there is no such device.
    """
    return tuple(
        Trim(
            device=one["device"],
            returned_bytes=one["bytes_returned"],
            num_returned_regions=one["regions_returned"],
            seconds=one["seconds"],
        )
        for one in _act("trim", device)
    )


def sleep(device: Device | Iterable[Device] | None = None, *, keep: Any = None) -> tuple[Sleep, ...]:
    """Spills all arrays and gives the devices' memory back to the system, so that other processes have it.

    It waits for the programs that were under way when it began, on a CPU at most 10 s, and not for programs that call
    back into Python: `Sleep.num_under_way` says how many of all were not over. Arrays keep their identity and
    contents: those that are read are read where they are, and a program brings its arguments back. Compiled programs
    stay. What an outsider holds (a NumPy view, dlpack) stays on the device; the answer names what stays. Needs
    ``PJRT_ARENA_SPILL``; with ``host`` on a CPU, arrays stay in this process' memory, with a folder they do not.

        >>> import jax.numpy as jnp
        >>> from pjrt_arena import memory
        >>> x = jnp.ones(1 << 20)
        >>> memory.sleep("cpu:0")[0].spilled_bytes >= x.nbytes
        True
        >>> float(x.sum())
        1048576.0

    Args:
      device: a `jax.Device`, the library's name of one, such as ``cpu:0``, or an iterable of them; all by default.
      keep: a pytree of `jax.Array` that stay where they are, if they are on the devices.

    Raises:
      UnknownDeviceError: there is no such device.
      ArenaError: a device has nowhere to spill to.
      TypeError: `keep` has something else; `device` is no device and no iterable of them.
    """
    held = [shard.data.__dlpack__() for array in _leaves(keep) for shard in array.addressable_shards]
    try:
        told = _on(device, "pjrt_arena_sleep")
    finally:
        held.clear()
    return tuple(
        Sleep(
            device=one["device"],
            spilled_bytes=one["bytes_spilled"],
            returned_bytes=one["bytes_returned"],
            num_returned_regions=one["regions_returned"],
            bytes_in_use=one["bytes_in_use"],
            holders=_reports.read_holders(one["holders"]),
            num_under_way=one["under_way"],
            seconds=one["seconds"],
        )
        for one in told
    )


def wake(device: Device | Iterable[Device] | None = None) -> tuple[Wake, ...]:
    """Brings spilled arrays back while there is room, those first that are used first. Programs do without it.

        >>> import jax.numpy as jnp
        >>> from pjrt_arena import memory
        >>> x = jnp.ones(1 << 20)
        >>> slept = memory.sleep()
        >>> memory.wake()[0].brought_back_bytes >= x.nbytes
        True

    Args:
      device: as for `sleep`.

    Raises:
      UnknownDeviceError: there is no such device.
      TypeError: as for `sleep`.
      ArenaError: an array could not be read. All others came back, as far as there is room, on every device.
    """
    told = _on(device, "pjrt_arena_wake")
    if failed := [one for one in told if "error" in one]:
        came = sum(one["bytes_brought_back"] for one in told)
        raise _library.ArenaError(f"{failed[0]['device']}: {failed[0]['error']}; {came:,} bytes of others came back")
    return tuple(
        Wake(
            device=one["device"],
            brought_back_bytes=one["bytes_brought_back"],
            waiting_bytes=one["bytes_waiting"],
            seconds=one["seconds"],
        )
        for one in told
    )


def launches(path: str | os.PathLike[str], *, device: Device | None = None) -> Path:
    """Writes the last launches on a device that spills to `path`, for ``arena-replay --spill``; returns the path.

        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> from pjrt_arena import memory
        >>> x = jnp.ones(1 << 20) + 1
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     memory.launches(f"{folder}/launches.json", device="cpu:0").stat().st_size > 0
        True

    Args:
      path: the file, of JSON.
      device: a `jax.Device`, or the library's name of one; the first that spills by default.

    Raises:
      UnknownDeviceError: there is no such device.
      ArenaError: nothing spills.
      OSError: the file cannot be written, as from `open`.
    """
    name = None if device is None else _devices.name_of(device).encode()
    told = _library.load().ask("pjrt_arena_launches", (ctypes.c_char_p, name))
    if "error" in told:
        raise _library.ArenaError(told["error"])
    Path(path).write_text(json.dumps(told))
    return Path(path)


def _act(what: str, device: Device | None) -> list[dict[str, Any]]:
    library = _library.load()
    if device is None:
        return library.act(f"pjrt_arena_{what}")
    return library.act(f"pjrt_arena_{what}_device", (ctypes.c_char_p, _devices.name_of(device).encode()))


def _on(device: Device | Iterable[Device] | None, function: str) -> list[dict[str, Any]]:
    """What `function` answers for one device, for each of several, or for all."""
    names, library = _devices.names_of(device), _library.load()
    if names is None:
        return library.act(function, (ctypes.c_char_p, None))
    return [told for name in names for told in library.act(function, (ctypes.c_char_p, name.encode()))]


def _leaves(tree: Any) -> list[Any]:
    if tree is None:
        return []
    import jax

    leaves: list[Any] = jax.tree.leaves(tree)
    for leaf in leaves:
        if not isinstance(leaf, jax.Array):
            raise TypeError(f"keep has a {type(leaf).__name__}; allowed are pytrees of jax.Array")
    return leaves
