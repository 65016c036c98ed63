"""Operations with a program inside: loops, branches, mapped functions, derivatives and host callbacks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_fuzz.terms import Array, Term, constant, tame
from jax_fuzz.values import is_narrow, kind


def _body(rng: random.Random, dtype: Any) -> Callable[[Array], Array]:
    """A function from arrays of a type to those of the same type and shape."""
    c, seen = constant(rng, dtype), rng.randrange(3)
    if kind(dtype) == "bool":
        return lambda x: (x ^ c, ~x, x & c)[seen]
    return lambda x: tame((x + c, x + x, x - c)[seen])


def scan(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    if x.ndim == 0 or not 0 < x.shape[0] <= 64 or is_narrow(x.dtype):
        return None
    body = _body(rng, x.dtype)

    def step(carry: Array, row: Array) -> tuple[Array, Array]:
        after = jnp.where(body(row) == row, carry, body(row))
        return after, (carry == after) if kind(x.dtype) == "complex" else carry

    last, rows = lax.scan(step, jnp.zeros_like(x[0]), x, reverse=rng.random() < 0.3)
    return rng.choice((last, rows))


def loop(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    body, turns = _body(rng, x.dtype), rng.randrange(5)
    if is_narrow(x.dtype):
        return None
    if rng.random() < 0.5:
        return lax.fori_loop(0, turns, lambda _, x: body(x), x)
    end = jnp.asarray(turns, jnp.int32)
    return lax.while_loop(lambda state: state[0] < end, lambda state: (state[0] + 1, body(state[1])), (end * 0, x))[1]


def branch(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    choices = [_body(rng, x.dtype) for _ in range(3)] + [lambda x: x]
    conditions = [y for y in values if y.dtype == jnp.bool_ and y.ndim == 0]
    if is_narrow(x.dtype):
        return None
    if conditions:
        return lax.cond(rng.choice(conditions), choices[0], choices[3], x)
    numbers = [y for y in values if y.dtype == jnp.int32 and y.ndim == 0] or [jnp.asarray(1, jnp.int32)]
    return lax.switch(rng.choice(numbers), choices, x)


def mapped(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    if x.ndim == 0 or not 0 < x.shape[0] <= 1000 or is_narrow(x.dtype):
        return None
    body = jax.jit(_body(rng, x.dtype))
    return (jax.vmap if rng.random() < 0.7 else lambda body: lambda x: lax.map(body, x))(body)(x)


def slope(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    if x.dtype != jnp.float32:
        return None
    c = constant(rng, x.dtype)
    return tame(jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda x: jnp.where(x > c, x * c, x + c))(x)))(x))


def callback(rng: random.Random, values: Sequence[Array], most: int) -> Array | None:
    x = rng.choice(values)
    if is_narrow(x.dtype):
        return None
    backwards, more = rng.random() < 0.3, rng.random() < 0.3

    def host(x: Any) -> Any:
        seen = np.asarray(x)
        flipped = np.flip(seen) if backwards else seen
        return (flipped, np.int32(seen.size)) if more else flipped

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    size = jax.ShapeDtypeStruct((), np.int32)
    called = jax.pure_callback(host, (shape, size) if more else shape, x)
    return called[0] if more else called


CONTROL: tuple[Term, ...] = (scan, loop, branch, mapped, slope, callback)
