"""What arrays take in a TPU's tiled layout: `tpu_footprint`."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Protocol, overload

from pjrt_arena import _library
from pjrt_arena._former import Renamed


@dataclasses.dataclass(frozen=True, slots=True)
class Footprint(Renamed):
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

    FORMER: ClassVar[Mapping[str, str | Mapping[str, str]]] = {"padding": "padding_bytes"}

    @property
    def padding_bytes(self) -> int:
        """Bytes of `bytes` that hold no element."""
        return self.bytes - self.dense_bytes

    def __int__(self) -> int:
        return self.bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Footprints:
    """What the arrays of a pytree take on a TPU. ``int(footprints)`` is `bytes`."""

    #: The same pytree, with a `Footprint` in the place of each array. JAX has no type for a pytree, whose nodes may be
    #: of classes of your own.
    tree: Any
    #: The sums over all arrays; see `Footprint`.
    bytes: int
    dense_bytes: int
    smallest_bytes: int

    @property
    def padding_bytes(self) -> int:
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


@overload
def tpu_footprint(shape: int | Sequence[int], /, dtype: Any) -> Footprint: ...
@overload
def tpu_footprint(array: ShapeAndDtype, /) -> Footprint: ...  # type: ignore[overload-overlap]
# A shape without a dtype is no pytree of arrays: it raises.
@overload
def tpu_footprint(shape: int | Sequence[int], /) -> NoReturn: ...
@overload
def tpu_footprint(tree: object, /) -> Footprints: ...


def tpu_footprint(shape: Any, /, dtype: Any = None) -> Footprint | Footprints:
    """What one array, or a pytree of arrays, takes in a TPU's memory, computed on this machine.

        >>> from pjrt_arena import memory
        >>> memory.tpu_footprint((1000, 3), "bfloat16").bytes
        256000
        >>> import jax, jax.numpy as jnp
        >>> init = lambda key: {"w": jax.random.normal(key, (512, 512)), "b": jnp.zeros(3)}
        >>> model = memory.tpu_footprint(jax.eval_shape(init, jax.random.key(0)))
        >>> model.bytes, model.tree["b"].bytes
        (1049088, 512)

    Args:
      shape: dimensions, with a `dtype`; or a `jax.ShapeDtypeStruct` or an array, and then no `dtype`; or a pytree of
        those, as `jax.eval_shape` gives, which may hold any number of them.
      dtype: what NumPy or JAX takes for a dtype, such as ``jnp.bfloat16``, ``"float32"`` or ``np.int8``. 64-bit types
        count as they are: JAX without ``jax_enable_x64`` makes 32-bit ones of them.

    Returns:
      A `Footprint` of one array, in bytes; `Footprints` of a pytree, with the tree and the sums.

    Programs' scratch, layouts that XLA chooses otherwise and alignment between buffers are left out: see the tutorial
    ``tutorials/does-it-fit.md`` of the documentation. Shardings are not looked at: each array counts as a whole.

    Raises:
      ValueError: a TPU has no such array: complex128, a negative dimension, more than 64 bits of bytes.
      TypeError: `dtype` is missing, or is no dtype; a pytree has a leaf that is no array.
      ArenaError: there is no library, or an older one.
    """
    if dtype is not None:
        return _of_one(shape, dtype)
    if _is_array(shape):
        return _of_one(shape.shape, shape.dtype)
    if isinstance(shape, int) or (isinstance(shape, Sequence) and all(isinstance(dim, int) for dim in shape)):
        raise TypeError("dtype is missing: give a shape and a dtype, or one object that has both")
    import jax

    for leaf in jax.tree.leaves(shape):
        if not _is_array(leaf):
            raise TypeError(f"the pytree has a {type(leaf).__name__}; allowed are objects with a shape and a dtype")
    tree = jax.tree.map(tpu_footprint, shape)
    each = jax.tree.leaves(tree)
    return Footprints(
        tree=tree,
        bytes=sum(one.bytes for one in each),
        dense_bytes=sum(one.dense_bytes for one in each),
        smallest_bytes=sum(one.smallest_bytes for one in each),
    )


def _is_array(given: Any) -> bool:
    return hasattr(given, "shape") and hasattr(given, "dtype")


def _of_one(shape: Any, dtype: Any) -> Footprint:
    dims = _dimensions(shape)
    for dim in dims:
        if not 0 <= dim < 1 << 63:
            raise ValueError(f"a dimension of {tuple(dims)} is {dim}; it must be from 0 to 2**63 - 1")
    answer = _library.load().tpu_footprint(_xla_name(dtype), dims)
    if "error" in answer:
        raise ValueError(answer["error"])
    return Footprint(**{field.name: answer[field.name] for field in dataclasses.fields(Footprint)})


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
