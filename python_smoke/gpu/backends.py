"""JAX's own allocators and the arena's strategies, as environments of a process."""

from __future__ import annotations

import os
from dataclasses import dataclass

#: Variables of the caller that would change what is measured: types, precision, what is compiled and where it runs.
#: Where libraries and compiled programs lie, how much is told, and what others need, is kept.
FOREIGN = ("PJRT_", "JAX_", "XLA_", "TF_CPP_")
KEPT = (
    "PJRT_ARENA_LIBRARY_PATH",
    "PJRT_ARENA_CUDA_DRIVER",
    "PJRT_ARENA_HEADROOM",
    "PJRT_ARENA_GPU_SCRATCH",
    "PJRT_ARENA_LOG",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK",
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES",
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES",
)

#: Tells a process what it has to run on.
PLATFORM_VARIABLE = "GPU_SCRIPT_PLATFORM"

STRATEGIES = ("preallocate", "growing", "platform", "tpu")
ALLOCATORS = ("bfc", "cuda_async", "vmm", "platform")


@dataclass(frozen=True)
class Backend:
    """One column of a table."""

    name: str
    title: str
    ours: bool
    #: JAX's name of the platform whose memory it is: "cuda" or "cpu".
    platform: str
    #: The arena's strategy, or XLA's allocator; empty for JAX's CPU backend, which has none to choose.
    kind: str
    #: PJRT_ARENA_ENGINE: the platform's installed engine, or a path.
    engine: str = ""

    def environment(self, limit: int | str | None, share: float | None, flags: str) -> dict[str, str]:
        """The variables of a process that uses it.

        Args:
          limit: bytes of memory it may take, for the arena, or a share as the arena's setting has it.
          share: the same as a share of the device's memory, for XLA.
          flags: XLA_FLAGS.
        """
        kept = {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith(FOREIGN)}
        kept["XLA_FLAGS"] = flags
        kept[PLATFORM_VARIABLE] = self.platform
        # The CPU engine logs a harmless error for each program that a newer JAX compiles.
        kept["TF_CPP_MIN_LOG_LEVEL"] = "3" if self.platform == "cpu" else "2"
        if self.ours:
            kept |= {
                "JAX_PLATFORMS": "arena,cpu",
                "PJRT_ARENA_ENGINE": self.engine or self.platform,
                "PJRT_ARENA_STRATEGY": self.kind,
            }
            if limit is not None:
                kept["PJRT_ARENA_LIMIT"] = str(limit)
            # What was decided at the start, and all that was unusual.
            kept.setdefault("PJRT_ARENA_LOG", "info")
            return kept
        # "cpu" second, as on the arena: callbacks want it.
        kept["JAX_PLATFORMS"] = "cpu" if self.platform == "cpu" else f"{self.platform},cpu"
        if self.kind:
            kept["XLA_PYTHON_CLIENT_ALLOCATOR"] = self.kind
            if share is not None:
                kept["XLA_CLIENT_MEM_FRACTION"] = f"{share:.6f}"
        return kept


def alone(platform: str) -> Backend:
    """A process that asks the driver, without JAX."""
    return Backend("driver", "the driver", False, platform, "")


def backends(platform: str, engine: str = "") -> dict[str, Backend]:
    """The columns for a platform, theirs first; `engine` is the path of another engine for the arena."""
    if platform == "cpu":
        theirs = [Backend("cpu", "JAX's CPU", False, platform, "")]
    else:
        theirs = [Backend(f"jax_{kind}", f"JAX {kind}", False, platform, kind) for kind in ALLOCATORS]
    ours = [Backend(f"arena_{kind}", f"arena {kind}", True, platform, kind, engine) for kind in STRATEGIES]
    return {backend.name: backend for backend in [*theirs, *ours]}
