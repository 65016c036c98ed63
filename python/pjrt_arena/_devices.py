"""Which devices a caller means: a `jax.Device`, the library's name of one, or all."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from pjrt_arena import _library

if TYPE_CHECKING:
    import jax

    #: What the functions of `pjrt_arena.memory` take for a device.
    Device: TypeAlias = jax.Device | str


class UnknownDeviceError(_library.ArenaError, ValueError):
    """There is no such device of pjrt-arena in this process; the text lists those that there are."""


def name_of(device: Any) -> str:
    """The library's name of a `jax.Device`; a name is what it is, if there is such a device.

    Raises:
      UnknownDeviceError: there is none.
    """
    names = [str(told["device"]) for told in _library.load().summary()]
    if isinstance(device, str):
        if device in names:
            return device
    elif (jax := sys.modules.get("jax")) and isinstance(device, jax.Device):
        # Ours say so; those of other backends may have the same number.
        if "pjrt-arena" in device.client.platform_version:
            for name in names:
                if name.rpartition(":")[2] == str(device.id):
                    return name
    elif device is not None:
        raise TypeError(f"device={device!r}; it must be a jax.Device, the name of one, or None for all")
    there = ", ".join(dict.fromkeys(names)) or "none, as JAX has not started on the arena"
    raise UnknownDeviceError(f"{device!r} is no device of pjrt-arena; there are: {there}")


def names_of(devices: Any) -> list[str] | None:
    """The names of one device, or of several; None for all.

    Raises:
      UnknownDeviceError: one of them is not there.
    """
    if devices is None:
        return None
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        return [name_of(devices)]
    return [name_of(device) for device in devices]
