"""The advice to donate arguments, on optax's own loop, and what it was worth: `python -m bench.donating`.

    as it is    a track of ten steps: the peak, and what donating would have saved at it
    donated     the same with `donate_argnums=(0, 1)`: the peak
    exhausted   as it is, beside arrays that are kept, one more each step: the error when memory is full
    followed    the same, donated, with the same limit: how many steps more it has room for

A process for each. It ends with status 1 where the peaks differ from what was told by more than one percent.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from bench.backends import clean_environment

MIB = 1 << 20
STEPS = 10
#: An array that is kept.
KEPT = 8 * MIB


def tracked(bytes_: int, donate: bool) -> dict[str, Any]:
    """The peak of ten steps, and what was told."""
    import jax
    from library_loops import optax
    from pjrt_arena import memory

    # Who held a peak is known where JAX has started before.
    jax.devices()
    with memory.track("steps") as track:
        state, step, _ = optax(bytes_, (0, 1) if donate else ())
        for turn in range(STEPS):
            state = jax.block_until_ready(step(state, turn))
        del state
    told = track.donations
    return {"peak": track.peak_bytes_in_use, "told": [str(each) for each in told], "bytes": sum(e.bytes for e in told)}


def exhausted(bytes_: int, donate: bool) -> dict[str, Any]:
    """The steps until memory is full, and the error."""
    import jax
    import jax.numpy as jnp
    from library_loops import optax

    state, step, _ = optax(bytes_, (0, 1) if donate else ())
    kept: list[jax.Array] = []
    try:
        while True:
            state = jax.block_until_ready(step(state, len(kept)))
            kept.append(jax.block_until_ready(jnp.full(KEPT // 4, len(kept), "float32")))
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        return {"steps": len(kept), "text": str(error)}


RUNS = {"tracked": tracked, "exhausted": exhausted}


def run(what: str, mib: int, donate: bool, strategy: str, limit: int) -> dict[str, Any]:
    """One of them in a process of its own."""
    environment = os.environ | {
        "JAX_PLATFORMS": "arena",
        "PJRT_ARENA_STRATEGY": strategy,
        "PJRT_ARENA_LIMIT": f"{limit}MiB",
    }
    command = [sys.executable, "-m", "bench.donating", "--run", what, "--mib", str(mib), *["--donate"] * donate]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr[-2000:])
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def main() -> None:
    """Runs all of it, for one strategy."""
    parser = argparse.ArgumentParser(prog="python -m bench.donating", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--mib", type=int, default=64, help="MiB of parameters")
    parser.add_argument("--strategy", default="preallocate")
    parser.add_argument("--run", choices=list(RUNS), help=argparse.SUPPRESS)
    parser.add_argument("--donate", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(RUNS[options.run](options.mib * MIB, options.donate)))
        return
    clean_environment()
    common = options.strategy, 16 * options.mib
    plain, donated = (run("tracked", options.mib, donate, *common) for donate in (False, True))
    print(f"as it is    peak {plain['peak'] / MIB:.2f} MiB; {'; '.join(plain['told'])}")
    print(f"donated     peak {donated['peak'] / MIB:.2f} MiB; {'; '.join(donated['told']) or 'nothing is advised'}")
    # Room for the step, and for twelve arrays beside it.
    limit = plain["peak"] // MIB + 12 * KEPT // MIB
    full, followed = (run("exhausted", options.mib, donate, options.strategy, limit) for donate in (False, True))
    print(f"exhausted   with a limit of {limit} MiB after {full['steps']} steps:\n{full['text']}")
    print(f"followed    {followed['steps']} steps")
    saved = plain["peak"] - donated["peak"]
    print(f"told {plain['bytes'] / MIB:.2f} MiB, saved {saved / MIB:.2f} MiB")
    sys.exit(0 if plain["bytes"] and abs(saved - plain["bytes"]) <= plain["bytes"] / 100 else 1)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "arena")
    main()
