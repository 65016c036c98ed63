"""Deprecated: the former name of `pjrt_arena.memory`."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from pjrt_arena import _library, memory

warnings.warn("jax_plugins.arena.memory is now pjrt_arena.memory", DeprecationWarning, stacklevel=2)


def stats() -> list[dict[str, Any]]:
    """Deprecated: `pjrt_arena.memory.stats`. This gives the library's own names, as dicts."""
    warnings.warn("memory.stats() is now pjrt_arena.memory.stats()", DeprecationWarning, stacklevel=2)
    devices: list[dict[str, Any]] = _library.load().counters()["devices"]
    return devices


def load(path: str | os.PathLike[str]) -> memory.Snapshot:
    """Deprecated: `pjrt_arena.memory.load_snapshot`."""
    warnings.warn("memory.load() is now pjrt_arena.memory.load_snapshot()", DeprecationWarning, stacklevel=2)
    return memory.load_snapshot(path)


# Type checkers know the present names alone.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return getattr(memory, name)
