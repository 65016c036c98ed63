"""Operations that make one array of others. They run as they are, and within programs.

Each is drawn from a generator, so two generators of one seed give the same operation for the arena and for the CPU.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_fuzz.values import MOST, draw_dtype, draw_shape, is_narrow, kind

#: An array, or what stands for one while JAX traces.
Array = Any
#: Makes an array of some that there are, none larger than so many elements; None if it has no use for any of them.
Term = Callable[[random.Random, Sequence[Array], int], Array | None]


def tame(x: Array) -> Array:
    """Keeps floating-point numbers whole and small, and leaves others as they are."""
    match kind(x.dtype):
        case "float":
            return jnp.clip(jnp.floor(x), -MOST, MOST)
        case "complex":
            return lax.complex(tame(x.real), tame(x.imag))
    return x


def constant(rng: random.Random, dtype: Any) -> Array:
    """A small number of a type."""
    return jnp.asarray(rng.randrange(8), dtype) if kind(dtype) != "bool" else jnp.asarray(rng.random() < 0.5)


def unary(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    if is_narrow(x.dtype):
        return None
    c = constant(rng, x.dtype)
    shift = jnp.asarray(rng.randrange(4), x.dtype)
    one = jnp.asarray(1, x.dtype)
    acts: dict[str, tuple[Callable[[], Array], ...]] = {
        "bool": (lambda: ~x, lambda: x ^ c, lambda: x & c, lambda: x | c, lambda: jnp.where(x, c, ~c)),
        "int": (
            *(lambda: x + c, lambda: x - c, lambda: x * c, lambda: x ^ c, lambda: x & c, lambda: x | c, lambda: ~x),
            *(lambda: x // (c | one), lambda: x % (c | one), lambda: x << shift, lambda: x >> shift, lambda: abs(x)),
            *(lambda: -x, lambda: jnp.maximum(x, c), lambda: lax.population_count(x), lambda: jnp.sign(x)),
        ),
        "float": (
            *(lambda: x + c, lambda: x - c, lambda: x + x, lambda: x * one / 2, lambda: abs(x)),
            *(lambda: jnp.minimum(x, c), lambda: jnp.where(x > c, x, c)),
        ),
        "complex": (lambda: x + c, lambda: x - c, lambda: x + x),
    }
    return tame(rng.choice(acts[kind(x.dtype)])())


def binary(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    if is_narrow(x.dtype):
        return None
    y = rng.choice([y for y in values if (y.dtype, y.shape) == (x.dtype, x.shape)])
    acts: dict[str, tuple[Callable[[], Array], ...]] = {
        "bool": (lambda: x ^ y, lambda: x & y, lambda: x | y),
        "int": (
            *(lambda: x + y, lambda: x - y, lambda: x * y, lambda: x ^ y, lambda: jnp.minimum(x, y)),
            *(lambda: x < y, lambda: x == y, lambda: jnp.where(x > y, y, x)),
        ),
        "float": (
            *(lambda: x + y, lambda: x - y, lambda: jnp.maximum(x, y), lambda: x <= y, lambda: x != y),
            lambda: jnp.where(x > y, x, y),
        ),
        "complex": (lambda: x + y, lambda: x - y, lambda: x == y),
    }
    return tame(rng.choice(acts[kind(x.dtype)])())


def broadcast(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x, y = rng.choice(values), rng.choice(values)
    try:
        shape = jnp.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        return None
    if x.dtype != y.dtype or math.prod(shape) > most or kind(x.dtype) == "bool" or is_narrow(x.dtype):
        return None
    return tame(x + y)


def convert(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x, to = rng.choice(values), jnp.dtype(draw_dtype(rng))
    if kind(x.dtype) == "complex":
        x = x.real
    if kind(x.dtype) == "float":
        x = x.astype(jnp.int32)
    if kind(x.dtype) == "int" and kind(to) in ("float", "complex"):
        # What an unsigned type of 8 bits makes of its remainder is less than that of others, but the same everywhere.
        x = (x % jnp.asarray(7, x.dtype)).astype(jnp.int32)
    return x.astype(to)


def bits(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    to = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}.get(x.dtype.itemsize)
    if to is None or kind(x.dtype) in ("bool", "complex") or is_narrow(x.dtype):
        return None
    return lax.bitcast_convert_type(x, to)


def reduce(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    axis = rng.choice([None, *range(x.ndim)])
    if kind(x.dtype) == "complex" or is_narrow(x.dtype):
        return None
    if x.size == 0 or rng.random() < 0.5:
        if kind(x.dtype) == "bool":
            return rng.choice((jnp.any, jnp.all, jnp.sum))(x, axis=axis)
        # No sum of these is beyond what 32 bits count, whatever its order.
        return tame(jnp.sum(x, axis=axis, dtype=jnp.float32 if x.dtype == jnp.float16 else None))
    return rng.choice((jnp.max, jnp.min, jnp.argmax, jnp.argmin))(x, axis=axis)


def ordered(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    if x.ndim == 0 or kind(x.dtype) == "complex" or is_narrow(x.dtype):
        return None
    axis = rng.randrange(x.ndim)
    acts: list[Callable[[], Array]] = [lambda: jnp.sort(x, axis=axis), lambda: jnp.argsort(x, axis=axis, stable=True)]
    if kind(x.dtype) == "int":
        acts += [lambda: jnp.cumsum(x, axis=axis), lambda: lax.cummax(x, axis=axis)]
    return rng.choice(acts)()


def reshape(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    acts: list[Callable[[], Array]] = [
        *(lambda: x.reshape(-1), lambda: x[None], lambda: x.T, lambda: jnp.ravel(x)[::-1]),
        *(lambda: x.reshape(*x.shape, 1), lambda: jnp.roll(x, 1), lambda: lax.optimization_barrier(x)),
    ]
    if x.ndim:
        acts += [lambda: jnp.flip(x, 0), lambda: jnp.squeeze(x), lambda: jnp.swapaxes(x, 0, -1)]
    # JAX's arrays have more than four dimensions nowhere else.
    made = rng.choice(acts)()
    return made if made.ndim <= 4 else made.reshape(-1)


def cut(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    if x.ndim == 0:
        return None
    length = x.shape[0]
    low = rng.choice((0, length // 3, length // 2))
    start = jnp.asarray(rng.randrange(3), jnp.int32)
    acts: list[Callable[[], Array]] = [lambda: x[low:], lambda: x[::2], lambda: x[:low], lambda: x[..., :1]]
    if length:
        acts += [
            *(lambda: x[length // 2], lambda: x[-1], lambda: lax.dynamic_slice_in_dim(x, start, (length + 1) // 2)),
            lambda: x[jnp.asarray([rng.randrange(length) for _ in range(5)])],
        ]
    return rng.choice(acts)()


def gather(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    indices = [y for y in values if y.dtype == jnp.int32 and y.ndim <= 1]
    if x.size == 0 or x.ndim == 0 or not indices:
        return None
    index = rng.choice(indices) % x.shape[0]
    if index.size * (x.size // x.shape[0]) > most:
        return None
    return jnp.take(x, index, axis=0, mode=rng.choice(("clip", "wrap")))


def update(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    if x.size == 0 or x.ndim == 0 or is_narrow(x.dtype):
        return None
    at, c = rng.randrange(x.shape[0]), constant(rng, x.dtype)
    # Indices that meet have one result in every order only with these.
    index = jnp.asarray([rng.randrange(x.shape[0]) for _ in range(4)])
    acts: list[Callable[[], Array]] = [
        *(lambda: x.at[at].set(c), lambda: x.at[::2].set(c), lambda: x.at[at:].set(c), lambda: x.at[0].set(x[at])),
        lambda: lax.dynamic_update_slice_in_dim(x, x[at : at + 1], jnp.asarray(0, jnp.int32), 0),
    ]
    if kind(x.dtype) in ("int", "float"):
        acts += [lambda: x.at[index].max(c), lambda: x.at[index].min(c), lambda: tame(x.at[index].add(c))]
    return rng.choice(acts)()


def join(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    y = rng.choice([y for y in values if (y.dtype, y.shape[1:], y.ndim) == (x.dtype, x.shape[1:], x.ndim)])
    if x.size + y.size > most:
        return None
    if x.ndim == 0:
        return jnp.stack([x, y, x])
    padding = [(1, 2, rng.randrange(2))] + [(0, 0, 0)] * (x.ndim - 1)
    acts: list[Callable[[], Array]] = [lambda: jnp.concatenate([x, y])]
    if 2 * x.size + 3 * max(1, math.prod(x.shape[1:])) <= most:
        acts += [lambda: jnp.concatenate([x, x]), lambda: jnp.repeat(x, 2, axis=0)]
        acts += [lambda: lax.pad(x, constant(rng, x.dtype), padding)]
    return rng.choice(acts)()


def product(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    if x.ndim != 2 or x.dtype not in (jnp.float32, jnp.int32) or x.shape[0] ** 2 > most or x.size > 1 << 15:
        return None
    return tame(jnp.matmul(x, x.T, preferred_element_type=x.dtype))


def fresh(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    """An array that depends on no other, and is never too large."""
    shape, dtype = draw_shape(rng, min(most, 1 << 14)), jnp.dtype(draw_dtype(rng))
    c = constant(rng, dtype)
    acts: list[Callable[[], Array]] = [lambda: jnp.full(shape, c, dtype)]
    if kind(dtype) == "int" and not is_narrow(dtype):
        acts += [
            lambda: jnp.arange(math.prod(shape), dtype=jnp.int32).reshape(shape).astype(dtype),
            lambda: jax.random.bits(jax.random.key(rng.randrange(100)), shape, jnp.uint32).astype(dtype),
        ]
    return rng.choice(acts)()


TERMS: tuple[Term, ...] = (
    *(unary, unary, binary, binary, broadcast, convert, bits, reduce, ordered),
    *(reshape, cut, cut, gather, update, update, join, product, fresh),
)
