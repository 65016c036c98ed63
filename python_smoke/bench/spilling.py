"""A training of four times the device's memory: spilled, moved by hand, without a limit: `python -m bench.spilling`.

Layers with Adam's state, one program forward and one backward with the update for each layer, which consumes the old
weights. Each round runs each variant once, in a process of its own, the order turning; what is told are medians over
the rounds of the median step, with quartiles, and what was copied in a step.

    cpu         JAX's CPU backend: its losses and arrays are what the others are compared with
    unlimited   pjrt-arena with room for all
    spill       with a quarter of it, PJRT_ARENA_SPILL=host
    prefetch    the same, and PJRT_ARENA_PREFETCH=on
    by hand     with a quarter of it, without spilling: each layer's arrays are in `pinned_host`, and `jax.device_put`
                brings them to the device before its program, and back after it
    folder      with a quarter of it, PJRT_ARENA_SPILL=FOLDER, if --folder names one

    round 1   cpu  unlimited  spill  by hand        by hand:  put 2 | run 1 | put 3 | run 2 | put 4 | run 3 ...
    round 2   by hand  spill  unlimited  cpu        backward also:            away 1        | away 2 ...

By hand, the next layer's arrays are on the way while a layer runs, which is as far ahead as a user looks: weights alone
forward, all three backward. That takes room for two layers' states and some activations; the last layers stay on the
device as far as a third layer's room is left over (`--kept`). How much a program computes for each byte of its weights
is `--rows`: with few rows copies are all that counts. Losses may differ from those of `cpu`, whose XLA is another one
than the engine's; the table says so.
A variant that fails is a row with its error, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

from bench.backends import clean_environment, engine_path
from bench.worker import quartiles

#: Steps before those that count: compilation, and until spilling knows the loop.
WARM = 3
#: What a caller may have set and would make variants the same.
OURS = (
    "PJRT_ARENA_LIMIT",
    "PJRT_ARENA_SPILL",
    "PJRT_ARENA_SPILL_LIMIT",
    "PJRT_ARENA_PREFETCH",
    "PJRT_ARENA_SLEEP_AFTER",
    "PJRT_ARENA_DEVICES",
)
#: The variant that moves arrays itself; all others leave it to the backend.
BY_HAND = "by hand"


def state_bytes(layers: int, width: int) -> int:
    """Weights, and Adam's two of each, in float32."""
    return layers * 3 * 2 * 4 * width**2 * 4


class Mover:
    """Brings arrays to the device and to `pinned_host`, and counts the bytes."""

    def __init__(self) -> None:
        import jax
        from jax.sharding import SingleDeviceSharding

        self._put = jax.device_put
        self._leaves = jax.tree.leaves
        self._here = SingleDeviceSharding(jax.devices()[0])
        self._host = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
        self.copied = {"out": 0, "back": 0}

    def here(self, tree: Any) -> Any:
        self.copied["back"] += sum(leaf.nbytes for leaf in self._leaves(tree))
        return self._put(tree, self._here)

    def away(self, tree: Any) -> Any:
        self.copied["out"] += sum(leaf.nbytes for leaf in self._leaves(tree))
        return self._put(tree, self._host)


def train(layers: int, width: int, rows: int, steps: int, kept: int | None) -> dict[str, Any]:
    """Trains; what is told is seconds of each step, the losses, and MiB copied in a step. In a process of its own.

    `kept` is None where the backend moves arrays. Otherwise they are moved by hand, but for the last `kept` layers'.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

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
    mover, by_hand = Mover(), kept is not None
    # Layers from this number on stay on the device.
    staying = layers - (kept or 0)

    def draw(*dims: int) -> Any:
        return random.standard_normal(dims, np.float32) / 16

    state = []
    for number in range(layers):
        weights = [draw(width, 4 * width), draw(4 * width, width)]
        fresh = (weights, *([np.zeros_like(w) for w in weights] for _ in range(2)))
        state.append(mover.away(fresh) if by_hand and number < staying else mover.here(fresh))
    del weights, fresh
    x, y = mover.here((draw(rows, width), draw(rows, width)))

    def step_here(step: Any) -> tuple[Any, Any]:
        inputs = [x]
        for weights, _, _ in state:
            inputs.append(forward(weights, inputs[-1]))
        value, gradient = loss(inputs[-1], y)
        for number in reversed(range(layers)):
            state[number], gradient = backward(*state[number], inputs.pop(-2), gradient, step)
        return value, gradient

    def here(number: int, parts: slice) -> Any:
        return state[number][parts] if number >= staying else mover.here(state[number][parts])

    def step_by_hand(step: Any) -> tuple[Any, Any]:
        weights, whole = slice(0, 1), slice(0, 3)
        inputs, ready = [x], here(0, weights)
        for number in range(layers):
            now = ready
            if number + 1 < layers:
                ready = here(number + 1, weights)
            inputs.append(forward(*now, inputs[-1]))
        value, gradient = loss(inputs[-1], y)
        # The last layer's weights are still there.
        ready = (*now, *here(layers - 1, slice(1, 3)))
        for number in reversed(range(layers)):
            now = ready
            if number:
                ready = here(number - 1, whole)
            fresh, gradient = backward(*now, inputs.pop(-2), gradient, step)
            state[number] = fresh if number >= staying else mover.away(fresh)
            del now, fresh
        return value, gradient

    one_step = step_by_hand if by_hand else step_here
    seconds, losses, before = [], [], _copied(mover, by_hand)
    for step in range(1, steps + 1):
        if step == WARM + 1:
            before = _copied(mover, by_hand)
        start = time.perf_counter()
        value, gradient = one_step(np.float32(step))
        losses.append(float(value))
        # The gradient of the first layer's input is there when the last update is: a step ends where it ends.
        gradient.block_until_ready()
        seconds.append(time.perf_counter() - start)
    after = _copied(mover, by_hand)
    check = 0
    for leaf in jax.tree.leaves(state):
        check = zlib.crc32(np.asarray(leaf).tobytes(), check)
    statistics_of_device = jax.devices()[0].memory_stats() or {}
    return {
        "seconds": seconds[WARM:],
        "losses": losses,
        "arrays": check,
        "copied": {name: (after[name] - before[name]) / (steps - WARM) / 2**20 for name in after},
        "peak_bytes": statistics_of_device.get("peak_bytes_in_use"),
    }


def _copied(mover: Mover, by_hand: bool) -> dict[str, int]:
    """Bytes copied from the device and to it so far: by hand what `mover` counted, else what the library spilled."""
    if by_hand:
        return dict(mover.copied)
    if "arena" not in os.environ["JAX_PLATFORMS"]:
        return {}
    from pjrt_arena import memory

    spill = memory.stats()[0].spill
    if spill is None:
        return {}
    return {"out": spill.spilled_bytes - spill.clean_bytes, "back": spill.brought_back_bytes}


def variants(limit: int, folder: Path | None) -> dict[str, dict[str, str]]:
    """The environment of each variant."""
    arena = {"JAX_PLATFORMS": "arena,cpu", "PJRT_ARENA_ENGINE": str(engine_path())}
    limited = {**arena, "PJRT_ARENA_LIMIT": str(limit)}
    chosen = {
        "cpu": {"JAX_PLATFORMS": "cpu"},
        "unlimited": arena,
        "spill": {**limited, "PJRT_ARENA_SPILL": "host"},
        "prefetch": {**limited, "PJRT_ARENA_SPILL": "host", "PJRT_ARENA_PREFETCH": "on"},
        BY_HAND: limited,
    }
    if folder is not None:
        chosen["folder"] = {**limited, "PJRT_ARENA_SPILL": str(folder.resolve())}
    return chosen


def run(name: str, variables: dict[str, str], sizes: dict[str, int]) -> dict[str, Any]:
    """What `train` tells in a fresh process; or `error`, its last line."""
    arguments = [f"--{size}={value}" for size, value in sizes.items()]
    command = [sys.executable, "-m", "bench.spilling", *arguments, f"--run={name}"]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        first = next((line for line in said if "RESOURCE_EXHAUSTED" in line), said[-1] if said else "no word")
        return {"error": f"{first} (exit {done.returncode})", "stderr": done.stderr[-4000:]}
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def compared(run: dict[str, Any], reference: dict[str, Any]) -> str:
    """In words how the losses and arrays of `run` differ from those of `reference`."""
    pairs = list(zip(run["losses"], reference["losses"], strict=True))
    different = [abs(one - other) / abs(other) for one, other in pairs if one != other]
    if different:
        return f"{len(different)} of {len(pairs)} differ, by {max(different):.1e} at most"
    return "equal" if run["arrays"] == reference["arrays"] else "equal, arrays at the end differ"


def verdict(runs: list[dict[str, Any]], told: dict[str, list[dict[str, Any]]]) -> str:
    """How all `runs` of a variant compare with `cpu`; where they differ, also with `unlimited`."""
    said = []
    for name in ("cpu", "unlimited"):
        reference = next((run for run in told[name] if "error" not in run), None)
        if reference is None:
            continue
        words = sorted({compared(run, reference) for run in runs})
        said.append(f"{'; '.join(words)} ({name})")
        if words == ["equal"]:
            break
    return ", ".join(said)


def table(told: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown."""
    good = {name: [run for run in runs if "error" not in run] for name, runs in told.items()}
    middle = {
        name: quartiles([1e3 * statistics.median(run["seconds"]) for run in runs])
        for name, runs in good.items()
        if runs
    }
    base = middle["unlimited"]["median"] if "unlimited" in middle else float("nan")
    lines = [
        "| variant | step | of unlimited | MiB out a step | MiB back a step | peak MiB | losses and arrays |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for name, runs in good.items():
        failed = [run["error"] for run in told[name] if "error" in run]
        if not runs:
            lines.append(f"| {name} | | | | | | {_cell(failed[0])} |")
            continue
        step, first = middle[name], runs[0]
        out, back = (
            f"{statistics.median(run['copied'][way] for run in runs):.0f}" if first["copied"] else ""
            for way in ("out", "back")
        )
        peak = f"{max(run['peak_bytes'] for run in runs) / 2**20:.0f}" if first["peak_bytes"] else ""
        words = verdict(runs, told) + (f"; {len(failed)} runs failed: {_cell(failed[0])}" if failed else "")
        lines.append(
            f"| {name} | {step['median']:.1f} ms ({step['q1']:.1f} to {step['q3']:.1f}) | {step['median'] / base:.2f} "
            f"| {out} | {back} | {peak} | {words} |"
        )
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "/")[:200]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spilling", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=16, help="(16)")
    parser.add_argument("--width", type=int, default=512, help="of a layer, whose inner width is four times that (512)")
    parser.add_argument(
        "--rows", type=int, default=64, help="of the input: what is computed for a byte of weights (64)"
    )
    parser.add_argument("--steps", type=int, default=20, help=f"of each training; the first {WARM} do not count (20)")
    parser.add_argument("--rounds", type=int, default=3, help="(3)")
    parser.add_argument("--part", type=float, default=4, help="the limit is this part of the arrays' bytes: 1/PART (4)")
    parser.add_argument("--kept", type=int, help="by hand: layers that stay on the device (what fits besides three)")
    parser.add_argument("--folder", type=Path, help="also spills to files of this folder")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures to this file")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if min(chosen.layers, chosen.width, chosen.rows, chosen.rounds) < 1 or chosen.part <= 0:
        parser.error("--layers, --width, --rows and --rounds must be 1 or more, and --part above 0")
    if chosen.steps <= WARM:
        parser.error(f"--steps must be more than {WARM}")
    sizes = {size: getattr(chosen, size) for size in ("layers", "width", "rows", "steps")}
    if chosen.run:
        print(json.dumps(train(**sizes, kept=chosen.kept if chosen.run == BY_HAND else None)))
        return 0
    clean_environment()
    for name in OURS:
        os.environ.pop(name, None)
    total = state_bytes(chosen.layers, chosen.width)
    limit = int(total / chosen.part)
    kept = chosen.kept
    if kept is None:
        kept = min(chosen.layers, max(0, limit // state_bytes(1, chosen.width) - 3))
    environments = variants(limit, chosen.folder)
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in environments}
    for turn in range(chosen.rounds):
        for name in list(environments)[:: -1 if turn % 2 else 1]:
            told[name].append(run(name, environments[name], {**sizes, "kept": kept}))
    print(
        f"{chosen.layers} layers, {chosen.rows} rows, arrays of {total / 2**20:.0f} MiB, a limit of "
        f"{limit / 2**20:.0f} MiB, {chosen.rounds} rounds of {chosen.steps} steps\n\n{table(told)}"
    )
    if chosen.json:
        chosen.json.write_text(
            json.dumps({**sizes, "kept": kept, "limit": limit, "total": total, "variants": told}, indent=1)
        )
    return int(any("error" in each for runs in told.values() for each in runs))


if __name__ == "__main__":
    sys.exit(main())
