"""A training of four times the device's memory: spilled, moved by hand, without a limit: `python -m bench.spilling`.

Layers with Adam's state, one program forward and one backward with the update for each layer, which consumes the old
weights. Each round runs each variant once, in a process of its own, the order turning; what is told are medians over
the rounds of the median step, with quartiles, and what was copied in a step.

    cpu         JAX's CPU backend, whose losses all others have to have
    unlimited   pjrt-arena with room for all
    host        with a quarter of it, PJRT_ARENA_SPILL=host
    folder      with a quarter of it, PJRT_ARENA_SPILL=FOLDER, if --folder names one
    by hand     without spilling: each layer's arrays are in `pinned_host`, and `jax.device_put` brings them to the
                device before its program, the next layer's while the present one runs, and back after it
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.backends import clean_environment, engine_path
from bench.worker import quartiles

#: Steps before those that count.
WARM = 4


def train(layers: int, width: int, steps: int, by_hand: bool) -> dict[str, Any]:
    """Trains; what is told is seconds of each step, the losses, and MiB copied in a step. In a process of its own."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import SingleDeviceSharding

    def layer(weights: Any, x: Any) -> Any:
        return x + jax.nn.gelu(x @ weights[0]) @ weights[1]

    def update(weights: Any, first: Any, second: Any, x: Any, gradient: Any, step: Any) -> Any:
        _, pull = jax.vjp(layer, weights, x)
        of_weights, of_x = pull(gradient)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, of_weights)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, of_weights)

        def move(w: Any, m: Any, v: Any) -> Any:
            return w - 1e-3 * (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.999**step)) + 1e-8)

        return (jax.tree.map(move, weights, first, second), first, second), of_x

    forward, backward = jax.jit(layer), jax.jit(update, donate_argnums=(0, 1, 2))
    loss = jax.jit(jax.value_and_grad(lambda x, y: jnp.mean((x - y) ** 2)))
    random = np.random.default_rng(0)

    def draw(*dims: int) -> Any:
        return random.standard_normal(dims, np.float32) / 16

    here = jax.devices()[0]

    def put(tree: Any) -> Any:
        return jax.device_put(tree, SingleDeviceSharding(here))

    def away(tree: Any) -> Any:
        return jax.device_put(tree, SingleDeviceSharding(here, memory_kind="pinned_host"))

    state = []
    for _ in range(layers):
        weights = [draw(width, 4 * width), draw(4 * width, width)]
        fresh = (weights, [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights])
        state.append(away(put(fresh)) if by_hand else put(fresh))
    x, y = put(draw(16, width)), put(draw(16, width))
    seconds, losses, before = [], [], {}
    for step in range(1, steps + 1):
        if step == WARM + 1:
            before = _spilled()
        start = time.perf_counter()
        inputs = [x]
        if by_hand:
            next_weights = put(state[0][0])
            for number in range(layers):
                weights = next_weights
                if number + 1 < layers:
                    next_weights = put(state[number + 1][0])
                inputs.append(forward(weights, inputs[-1]))
            value, gradient = loss(inputs[-1], y)
            ready = put(state[-1])
            for number in reversed(range(layers)):
                now = ready
                if number:
                    ready = put(state[number - 1])
                fresh, gradient = backward(*now, inputs[number], gradient, np.float32(step))
                state[number] = away(fresh)
        else:
            for weights, _, _ in state:
                inputs.append(forward(weights, inputs[-1]))
            value, gradient = loss(inputs[-1], y)
            for number in reversed(range(layers)):
                state[number], gradient = backward(*state[number], inputs[number], gradient, np.float32(step))
        losses.append(float(value))
        seconds.append(time.perf_counter() - start)
    after, steady = _spilled(), steps - WARM
    copied = {name: (after[name] - before[name]) / steady / 2**20 for name in after}
    return {"seconds": seconds[WARM:], "losses": losses, "copied": copied}


def _spilled() -> dict[str, int]:
    if "arena" not in os.environ["JAX_PLATFORMS"]:
        return {}
    from jax_plugins import arena

    spill = arena.counters()["devices"][0].get("spill")
    if spill is None:
        return {}
    return {"out": spill["spilled_bytes"] - spill["clean_bytes"], "back": spill["brought_back_bytes"]}


def variants(total: int, folder: Path | None) -> dict[str, dict[str, str]]:
    """The environment of each variant, for arrays of `total` bytes."""
    quarter = {"PJRT_ARENA_LIMIT": str(total // 4)}
    arena = {"JAX_PLATFORMS": "arena,cpu", "PJRT_ARENA_ENGINE": str(engine_path())}
    chosen = {
        "cpu": {"JAX_PLATFORMS": "cpu"},
        "unlimited": arena,
        "host": {**arena, **quarter, "PJRT_ARENA_SPILL": "host"},
        "by hand": {**arena, **quarter},
    }
    if folder is not None:
        chosen["folder"] = {**arena, **quarter, "PJRT_ARENA_SPILL": str(folder.resolve())}
    return chosen


def table(told: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown."""
    middle = {name: [1e3 * statistics.median(run["seconds"]) for run in runs] for name, runs in told.items()}
    medians = {name: quartiles(values) for name, values in middle.items()}
    base, losses = medians["unlimited"]["median"], told["cpu"][0]["losses"]
    lines = ["| | a step | of unlimited | MiB out | MiB back | losses |", "|---|---:|---:|---:|---:|---|"]
    for name, runs in told.items():
        step, copied = medians[name], runs[0]["copied"]
        same = all(run["losses"] == losses for run in runs)
        lines.append(
            f"| {name} | {step['median']:.1f} ms ({step['q1']:.1f} to {step['q3']:.1f}) | {step['median'] / base:.2f} "
            f"| {copied.get('out', 0):.0f} | {copied.get('back', 0):.0f} | {'the same bits' if same else 'others'} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spilling", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="also spills to files of this folder")
    parser.add_argument("--run", choices=("here", "by hand"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run:
        print(json.dumps(train(chosen.layers, chosen.width, chosen.steps, chosen.run == "by hand")))
        return
    clean_environment()
    # Weights, and Adam's two of each.
    total = chosen.layers * 3 * 2 * 4 * chosen.width**2 * 4
    environments = variants(total, chosen.folder)
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in environments}
    for turn in range(chosen.rounds):
        for name in list(environments)[:: -1 if turn % 2 else 1]:
            sizes = [f"--{size}={getattr(chosen, size)}" for size in ("layers", "width", "steps")]
            way = "by hand" if name == "by hand" else "here"
            command = [sys.executable, "-m", "bench.spilling", *sizes, f"--run={way}"]
            run = subprocess.run(
                command, env={**os.environ, **environments[name]}, capture_output=True, text=True, check=False
            )
            if run.returncode:
                raise SystemExit(f"{name} failed:\n{run.stderr[-2000:]}")
            told[name].append(json.loads(run.stdout.splitlines()[-1]))
    print(f"{chosen.layers} layers, arrays of {total >> 20} MiB, a limit of {total >> 22} MiB\n\n{table(told)}")


if __name__ == "__main__":
    main()
