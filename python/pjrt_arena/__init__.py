"""pjrt-arena from Python: settings, and the memory of its devices.

    import pjrt_arena

    pjrt_arena.configure(strategy="tpu", limit="8GiB")  before JAX starts on the arena
    print(pjrt_arena.summary())                         who holds the memory
    pjrt_arena.memory                                   all that there is to do with it

JAX finds the backend by itself, where ``JAX_PLATFORMS=arena,cpu`` names it; this package is not needed for that. To
import it imports neither JAX nor the library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pjrt_arena import memory
    from pjrt_arena._configure import configure
    from pjrt_arena.memory import (
        ArenaError,
        OutOfMemoryReport,
        UnknownDeviceError,
        diff,
        load_snapshot,
        on_oom,
        reset_peak,
        snapshot,
        stats,
        summary,
        tpu_footprint,
        track,
    )

    __version__: str

__all__ = [
    "ArenaError",
    "OutOfMemoryReport",
    "UnknownDeviceError",
    "__version__",
    "configure",
    "diff",
    "load_snapshot",
    "memory",
    "on_oom",
    "reset_peak",
    "snapshot",
    "stats",
    "summary",
    "tpu_footprint",
    "track",
]


# JAX imports a part of this package in every program, whether that uses the arena or not: the rest comes when it is
# asked for. Type checkers read the names above: with this function every name would be right.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from pjrt_arena import _library

            return _library.version()
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "configure":
            from pjrt_arena._configure import configure

            return configure
        memory = importlib.import_module("pjrt_arena.memory")
        return memory if name == "memory" else getattr(memory, name)


def __dir__() -> list[str]:
    return sorted(__all__)
