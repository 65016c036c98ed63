"""The memory of pjrt-arena's devices, in your hands: look at it, tidy it up, ask what a TPU would need.

    from jax_plugins.arena import memory

    memory.compact()                            moves buffers together, on every device
    memory.trim()                               gives empty regions and pages back to the system
    print(memory.map())                         what lies where, on one screen
    memory.stats()                              the same in numbers, one dict for each device
    memory.tpu_footprint((1000, 3), "bfloat16") what an array takes in a TPU's tiled layout

All but `tpu_footprint` speak of the clients that this process has: a device is there once JAX has started on it, and
before that the lists are empty. Nothing here starts JAX. Every function raises `ArenaError` where the library cannot be
found, or is older than the function.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jax_plugins.arena import _library
from jax_plugins.arena._library import ArenaError

__all__ = ["ArenaError", "Compaction", "Footprint", "Trim", "compact", "map", "stats", "tpu_footprint", "trim"]


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

    #: The device, as the library names it.
    device: str
    #: Bytes given back to the system.
    bytes_returned: int
    #: How many whole regions were among them.
    regions_returned: int
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
    """Gives memory that holds nothing back to the system: whole regions, and pages of those that stay."""
    return [Trim(**_fields(Trim, told)) for told in _act("pjrt_arena_trim")]


def map(width: int = 64, rows: int = 16) -> str:
    """A text map of every device's memory.

    Args:
      width: the longest line, in characters; fewer than 32 count as 32.
      rows: the most rows of cells for each device; a few lines of numbers and explanation come on top.
    """
    return _library.load().map(operator.index(width), operator.index(rows))


def stats() -> list[dict[str, Any]]:
    """For each device what its arena and its engine hold, in bytes: ``devices`` of `jax_plugins.arena.counters`."""
    return _library.load().counters()["devices"]


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
        shape, dtype = shape.shape, shape.dtype
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
        name = np.dtype(dtype).name
    except TypeError:
        raise TypeError(f"dtype={dtype!r} is not a dtype of NumPy's or JAX's") from None
    if name == "bool":
        return "pred"
    # int8 s8, uint4 u4, bfloat16 bf16, float32 f32, float8_e4m3fn f8e4m3fn, complex64 c64
    for theirs, xlas in (("uint", "u"), ("int", "s"), ("bfloat", "bf"), ("float", "f"), ("complex", "c")):
        if name.startswith(theirs):
            return xlas + name.removeprefix(theirs).replace("_", "")
    raise TypeError(f"{name} is not a type of elements of JAX's arrays")


def _act(name: str) -> list[dict[str, Any]]:
    answer = _library.load().act(name)
    if isinstance(answer, dict) and "error" in answer:
        raise ArenaError(answer["error"])
    return answer


def _fields(kind: type, told: Mapping[str, Any]) -> dict[str, Any]:
    """What `kind` has a place for: a newer library may tell more."""
    return {field.name: told[field.name] for field in dataclasses.fields(kind)}
