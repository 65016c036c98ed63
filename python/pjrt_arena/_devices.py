"""Which devices a caller means: a `jax.Device`, the library's name of one, or all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from pjrt_arena import _library

if TYPE_CHECKING:
    import jax

    #: What the functions of `pjrt_arena.memory` take for a device.
    Device: TypeAlias = jax.Device | str


#: What JAX is told where nothing says which platforms it has.
PLATFORMS = "arena,cpu"

VARIABLE = "JAX_PLATFORMS"


def platforms() -> tuple[str, str]:
    """Which platforms JAX was told to have, and by what; an empty text where it was told none.

    JAX reads the variable when it is imported. From then on its own setting counts.
    """
    jax = sys.modules.get("jax")
    if jax and (named := jax.config.jax_platforms):
        return named, "jax.config.jax_platforms"
    return os.environ.get(VARIABLE, ""), VARIABLE


def names_arena(named: str) -> bool:
    """Whether these platforms, separated by commas, have the arena among them."""
    return "arena" in [name.strip() for name in named.split(",")]


def puts_arena_first(named: str) -> bool:
    """Whether JAX has its arrays on the arena by default: it takes the first of these platforms for that."""
    return named.partition(",")[0].strip() == "arena"


def not_started() -> str:
    """That there is no device, and what to do where JAX was not told of the arena."""
    todo = "" if names_arena(platforms()[0]) else f"; set {VARIABLE}={PLATFORMS} before JAX starts"
    return f"JAX has not started on the arena{todo}"


class UnknownDeviceError(_library.ArenaError, ValueError):
    """There is no such device of pjrt-arena in this process; the text lists those that there are."""


def name_of(device: Any) -> str:
    """The library's name of a `jax.Device`; a name is what it is, if there is such a device.

    Raises:
      UnknownDeviceError: there is none.
      TypeError: it is neither.
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
    there = ", ".join(dict.fromkeys(names)) or f"none, as {not_started()}"
    if names and not isinstance(device, str | None):
        there += f"; it is of JAX's own backend {device.platform!r}: take one of jax.devices('arena')"
    raise UnknownDeviceError(f"{device!r} is no device of pjrt-arena; there are: {there}")


def names_of(device: Device | Iterable[Device] | None) -> list[str] | None:
    """The names of one device, or of several; None for all.

    Raises:
      UnknownDeviceError: one of them is not there.
      TypeError: one of them is no device and no name.
    """
    if device is None:
        return None
    if isinstance(device, str) or not isinstance(device, Iterable):
        return [name_of(device)]
    return [name_of(one) for one in device]
