"""Loops as users write them: nobody waits in them, nothing is donated unless it says so, results are dropped.

Each makes a state, and has a step and a number of steps; `bytes_` is the size of its largest array, or of the four
largest together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

#: A state to begin with, a step, how often.
Loop = tuple[Any, Callable[[Any, int], Any], int]
LOOPS: dict[str, Callable[[int], Loop]] = {}


def loop(make: Callable[[int], Loop]) -> Callable[[int], Loop]:
    """Adds a loop to the list."""
    LOOPS[make.__name__] = make
    return make


@loop
def eager(bytes_: int) -> Loop:
    """`x = (x * 2 + 1) / 3 - x`: four programs, three arrays that nobody keeps."""
    return jnp.ones(bytes_ // 4), lambda x, _: (x * 2 + 1) / 3 - x, 30


@loop
def ahead(bytes_: int) -> Loop:
    """Steps that take longer than their launch: the caller runs ahead as far as it may."""

    def step(x: Any, w: Any) -> Any:
        for _ in range(4):
            w = jnp.tanh(w @ w)
        return x + w[0, 0], w

    jitted = jax.jit(step)
    return (jnp.ones(bytes_ // 4), jnp.ones((512, 512))), lambda state, _: jitted(*state), 100


@loop
def sgd(bytes_: int) -> Loop:
    """Eight parameters."""
    step = jax.jit(lambda parameters: [p - 1e-3 * p for p in parameters])
    return [jnp.ones(bytes_ // 16) for _ in range(8)], lambda parameters, _: step(parameters), 30


@loop
def cache(bytes_: int) -> Loop:
    """A row of a cache is written in each step."""
    step = jax.jit(lambda cache, at: cache.at[at].set(jnp.tanh(cache[at - 1] + 1)))
    return jnp.ones((bytes_ // 4096, 1024)), lambda cache, turn: step(cache, turn + 1), 60


@loop
def rollouts(bytes_: int) -> Loop:
    """The history of a `scan`, of which the last step is kept."""
    roll = jax.jit(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) + 1, c), x, None, length=64)[1])
    return jnp.ones(bytes_ // 256), lambda x, _: roll(x)[-1], 30


@loop
def solver(bytes_: int) -> Loop:
    """A step with a custom call in it, which may fail: LAPACK's Cholesky decomposition."""
    symmetric = jnp.ones((128, 128)) + 300 * jnp.eye(128)
    step = jax.jit(lambda x: x * 0.5 + jnp.linalg.cholesky(symmetric + x[0])[0, 0])
    return jnp.ones(bytes_ // 4), lambda x, _: step(x), 30


def perceptron(bytes_: int, layers: int) -> tuple[list[Any], Any]:
    """The weights of a perceptron, four layers of which have `bytes_` together, and a batch."""
    width = max(64, int((bytes_ / 16) ** 0.5) // 64 * 64)
    key = jax.random.key(0)
    weights = [jax.random.normal(jax.random.fold_in(key, i), (width, width)) / width**0.5 for i in range(layers)]
    return weights, jax.random.normal(key, (min(64, width), width))


def forward(weights: list[Any], x: Any) -> Any:
    """What the perceptron makes of `x`."""
    for each in weights:
        x = jnp.tanh(x @ each)
    return x


def _training(bytes_: int, donate: bool = False, print_each: int = 0) -> Loop:
    weights, batch = perceptron(bytes_, 6)
    losses = []

    def loss(weights: Any) -> Any:
        return (forward(weights, batch) ** 2).mean()

    def step(weights: Any, moments: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights)
        moments = [0.9 * m + g for m, g in zip(moments, slopes, strict=True)]
        return [w - 0.1 * m for w, m in zip(weights, moments, strict=True)], moments, value

    jitted = jax.jit(step, donate_argnums=(0, 1) if donate else ())

    def run(state: Any, turn: int) -> Any:
        *state, value = jitted(*state)
        losses.append(value)
        if print_each and turn % print_each == 0:
            float(value)
        return state

    return [weights, [jnp.zeros_like(each) for each in weights]], run, 40


@loop
def training(bytes_: int) -> Loop:
    """A perceptron of six layers, with momentum; the losses are kept."""
    return _training(bytes_)


@loop
def training_printed(bytes_: int) -> Loop:
    """The same, and every tenth loss is waited for."""
    return _training(bytes_, print_each=10)


@loop
def training_donated(bytes_: int) -> Loop:
    """The same as `training`, with `donate_argnums`."""
    return _training(bytes_, donate=True)


@loop
def random_state(bytes_: int) -> Loop:
    """Three arrays of random numbers; then nothing happens."""
    key = jax.random.key(0)
    return [jax.random.normal(jax.random.fold_in(key, i), bytes_ // 4) for i in range(3)], lambda state, _: state, 1
