"""What arrays are made of: types, shapes and numbers; and how two arrays are compared."""

from __future__ import annotations

import math
import random
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

#: Floating-point numbers stay whole and between these: exact in every type, and so are sums of thousands of them.
MOST = 64

SHORT = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "int32", "uint32"),
    *("float16", "bfloat16", "float32", "float32", "complex64"),
)
LONG = ("int64", "uint64", "float64", "complex128")
#: Types of less than a byte, which the arena leaves to the engine.
NARROW = ("int4", "uint4")

SHAPES = ((), (), (0,), (1,), (7,), (64,), (0, 4), (3, 5), (16, 16), (8, 1, 3), (1000,), (4, 64), (128, 257), (64, 640))


def kind(dtype: Any) -> str:
    """bool, int, float or complex."""
    if dtype == jnp.bool_:
        return "bool"
    for base, name in ((jnp.integer, "int"), (jnp.floating, "float"), (jnp.complexfloating, "complex")):
        if jnp.issubdtype(dtype, base):
            return name
    raise TypeError(f"no number: {dtype}")


def is_narrow(dtype: Any) -> bool:
    """Whether the type has less than eight bits."""
    return str(dtype) in NARROW


def draw_dtype(rng: random.Random) -> str:
    """A type that JAX has with the present settings."""
    draw = rng.random()
    if draw < 0.03:
        return rng.choice(NARROW)
    if draw < 0.25 and jax.config.jax_enable_x64:
        return rng.choice(LONG)
    return rng.choice(SHORT)


def draw_shape(rng: random.Random, most: int) -> tuple[int, ...]:
    """A shape of at most so many elements, one in eight of about so many."""
    if rng.random() < 0.125:
        return (max(1, most - rng.choice((0, 3, 64, 1000))),)
    return rng.choice([shape for shape in SHAPES if math.prod(shape) <= most])


def draw_numpy(rng: random.Random, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random numbers of a type, sometimes at an address that the arena cannot use in place, or with strides."""
    of = np.random.default_rng(rng.getrandbits(32))
    what = np.dtype(getattr(ml_dtypes, dtype, dtype))
    match kind(what):
        case "bool":
            numbers = of.integers(0, 2, shape).astype(what)
        case "int" if not is_narrow(what):
            limits = np.iinfo(what)
            numbers = of.integers(limits.min, limits.max, shape, dtype=what, endpoint=True)
        case "int":
            numbers = of.integers(0, 8, shape, dtype=np.int32).astype(what)
        case "complex":
            numbers = (of.integers(-MOST, MOST, shape) + 1j * of.integers(-MOST, MOST, shape)).astype(what)
        case _:
            numbers = of.integers(-MOST, MOST, shape).astype(what)
    return _laid_out(rng, np.asarray(numbers))


def _laid_out(rng: random.Random, numbers: np.ndarray) -> np.ndarray:
    match rng.randrange(4):
        case 0 if numbers.ndim > 1:
            return np.asfortranarray(numbers)
        case 1 if numbers.ndim:
            return np.repeat(numbers, 2, axis=-1)[..., ::2]
        case 2 if numbers.nbytes and not is_narrow(numbers.dtype):
            memory = np.empty(numbers.nbytes + 128, np.uint8)
            first = -memory.ctypes.data % 64 + rng.choice((0, 0, 16))
            placed = memory[first : first + numbers.nbytes].view(numbers.dtype).reshape(numbers.shape)
            placed[...] = numbers
            return placed
    return numbers


def difference(ours: np.ndarray, theirs: np.ndarray) -> str | None:
    """In words how the first array differs from the second; None if each bit is the same."""
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"{ours.dtype}{list(ours.shape)} instead of {theirs.dtype}{list(theirs.shape)}"
    if ours.tobytes() == theirs.tobytes():
        return None
    a, b = (np.frombuffer(x.tobytes(), np.uint8).reshape(-1, x.dtype.itemsize) for x in (ours, theirs))
    wrong = np.flatnonzero((a != b).any(axis=1))
    first = wrong[0]
    return (
        f"{len(wrong)} of {ours.size} elements of {ours.dtype}{list(ours.shape)}, the first at {first}: "
        f"{ours.reshape(-1)[first]} instead of {theirs.reshape(-1)[first]}"
    )
