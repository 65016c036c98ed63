"""Training steps: the time of each, what memory they took, and what was learned, so that backends can be compared."""

from __future__ import annotations

import gc
from typing import Any

import jax

from gpu.clock import timed
from gpu.models import MODELS
from gpu.sizes import Sizes


def train(sizes: Sizes, donate: list[str]) -> dict[str, Any]:
    """Seconds of a training step of each model; those in `donate` give their state to the step, the others do not."""
    return {name: _one(name, sizes, name in donate) for name in MODELS}


def _one(name: str, sizes: Sizes, donate: bool) -> dict[str, Any]:
    step, state, batch = MODELS[name](sizes)
    step = jax.jit(step, donate_argnums=0 if donate else ())
    held, losses = [state], []
    del state

    def run():
        for _ in range(sizes.steps):
            held.append(step(held.pop(0), batch))
        # The loss is the last thing that is known of a step.
        losses.append(float(held[0][-1]))

    seconds = timed(run, sizes.readings, calls=sizes.steps)
    stats = jax.devices()[0].memory_stats() or {}
    held.clear()
    gc.collect()
    return {
        "seconds": seconds,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "donated": donate,
        "peak_bytes": stats.get("peak_bytes_in_use"),
    }
