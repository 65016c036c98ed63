"""Training steps: the time of each, what memory they took, and what was learned, so that backends can be compared."""

from __future__ import annotations

import gc
import time
from typing import Any

import jax

from gpu import progress
from gpu.clock import repeats, timed
from gpu.models import MODELS
from gpu.sizes import Sizes

#: Seconds that one model may take. The first process of all compiles, and tries kernels, for the others as well.
LONGEST = 75
#: Runs of so many steps as `Sizes` says, before a time is taken: the same on every backend, so that losses compare.
WARM = 4


def train(sizes: Sizes, donate: list[str], names: list[str] | None = None) -> dict[str, Any]:
    """Seconds of a training step of each model; those in `donate` give their state to the step, the others do not.

    One that takes too long ends the process, and the next process goes on with the others: `names` are theirs.
    """
    chosen = names or list(MODELS)
    answers: dict[str, Any] = {}
    for number, name in enumerate(chosen):
        with progress.step(name, chosen[number + 1 :], answers, LONGEST):
            answers[name] = _one(name, sizes, name in donate)
        gc.collect()
    return answers


def _one(name: str, sizes: Sizes, donate: bool) -> dict[str, Any]:
    step, state, batch = MODELS[name](sizes)
    step = jax.jit(step, donate_argnums=0 if donate else ())
    held, losses = [state], []
    del state

    def run(steps: int) -> None:
        for _ in range(steps):
            held.append(step(held.pop(0), batch))
        # The loss is the last thing that is known of a step.
        losses.append(float(held[0][-1]))

    for _ in range(WARM):
        start = time.perf_counter()
        run(sizes.steps)
        took = time.perf_counter() - start
    # A reading of a few milliseconds tells more of the clock and of the host than of the steps.
    steps = sizes.steps * repeats(took, sizes.step_seconds)
    return {
        "seconds": timed(lambda: run(steps), sizes.step_readings, calls=steps, warm=1),
        "steps": steps,
        "first_loss": losses[0],
        "last_loss": losses[WARM - 1],
        "donated": donate,
        "peak_bytes": (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
    }
