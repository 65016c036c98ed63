"""Loops as users write them, in which nobody waits: the time until the caller is free, until all is done; the peak."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from gpu.libcuda import memory
from gpu.sizes import MIB, Sizes

#: A starting state, a step, how often.
Loop = tuple[Any, Callable[[Any, int], Any], int]


def _loops(bytes_: int) -> Iterator[tuple[str, Callable[[], Loop]]]:
    count = bytes_ // 4

    def eager() -> Loop:
        return jnp.ones(count), lambda x, _: (x * 2 + 1) / 3 - x, 30

    def sgd() -> Loop:
        step = jax.jit(lambda parameters: [p - 1e-3 * p for p in parameters])
        return [jnp.ones(count // 4) for _ in range(8)], lambda parameters, _: step(parameters), 30

    def cache() -> Loop:
        step = jax.jit(lambda cache, at: cache.at[at].set(jnp.tanh(cache[at - 1] + 1)))
        return jnp.ones((count // 1024, 1024)), lambda cache, turn: step(cache, turn + 1), 60

    def rollouts() -> Loop:
        start = jnp.ones(count // 64)
        roll = jax.jit(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c) + 1, c), x, None, length=64)[1])
        return start, lambda *_: roll(start)[-1], 30

    def training() -> Loop:
        width = max(64, int((count / 6) ** 0.5) // 64 * 64)
        key = jax.random.key(0)
        weights = [jax.random.normal(jax.random.fold_in(key, i), (width, width)) / width**0.5 for i in range(6)]
        batch, losses = jax.random.normal(key, (min(1024, width), width)), []

        def loss(weights):
            x = batch
            for each in weights:
                x = jnp.tanh(x @ each)
            return (x * x).mean()

        @jax.jit
        def step(weights, moments):
            value, slopes = jax.value_and_grad(loss)(weights)
            moments = [0.9 * m + g for m, g in zip(moments, slopes, strict=True)]
            return [w - 0.1 * m for w, m in zip(weights, moments, strict=True)], moments, value

        def run(state, _):
            *state, value = step(*state)
            losses.append(value)
            return state

        return [weights, [jnp.zeros_like(each) for each in weights]], run, 40

    yield from {each.__name__: each for each in (eager, sgd, cache, rollouts, training)}.items()


def run(sizes: Sizes) -> dict[str, Any]:
    """Nothing is donated, and results are dropped."""
    answer, device = {}, jax.devices()[0]
    for name, make in _loops(sizes.loop_mib * MIB):
        state, step, times = make()
        state = jax.block_until_ready(step(jax.block_until_ready(state), 0))
        taken, start = 0, time.perf_counter()
        for turn in range(1, times):
            state = step(state, turn)
            if turn % 5 == 0 and (seen := memory()):
                taken = max(taken, seen[1] - seen[0])
        free_caller = time.perf_counter() - start
        jax.block_until_ready(state)
        answer[name] = {
            "seconds": time.perf_counter() - start,
            "caller_free": free_caller,
            # Of this loop and those before it.
            "peak_bytes_in_use": (device.memory_stats() or {}).get("peak_bytes_in_use"),
            "device_bytes": taken or None,
        }
        del state, step, make
        gc.collect()
    return answer
