"""Training steps: the time of each, what memory they took, and what was learned, so that backends can be compared."""

from __future__ import annotations

import gc
import traceback
from typing import Any

import jax

from gpu.clock import timed
from gpu.models import MODELS
from gpu.sizes import Sizes


def train(sizes: Sizes, donate: list[str]) -> dict[str, Any]:
    """Seconds of a training step of each model; those in `donate` give their state to the step, the others do not.

    A model that fails costs no other its figures: it has an `error` in their place. If all fail, so does this.
    """
    answers: dict[str, Any] = {}
    for name in MODELS:
        try:
            answers[name] = _one(name, sizes, name in donate)
        except Exception as error:
            traceback.print_exc()
            said = next(iter(str(error).splitlines()), "")
            answers[name] = {"error": f"{type(error).__name__}: {said}"[:300]}
        gc.collect()
    if all("error" in answer for answer in answers.values()):
        raise RuntimeError("; ".join(dict.fromkeys(answer["error"] for answer in answers.values())))
    return answers


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
    return {
        "seconds": seconds,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "donated": donate,
        "peak_bytes": stats.get("peak_bytes_in_use"),
    }
