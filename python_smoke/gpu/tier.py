"""Arrays that leave the GPU: spilling and the same by hand, sleep, and processes that share one limit."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from gpu.libcuda import free_bytes
from gpu.room import check, fill, filled, holds
from gpu.sizes import MIB, Sizes

PASSES = 4
update = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)


def _around(arrays: list[jax.Array], visit: Any) -> list[float]:
    """Seconds of each pass, in which each array is updated once."""
    passes = []
    for _ in range(PASSES):
        start = time.perf_counter()
        for at, array in enumerate(arrays):
            arrays[at] = visit(array)
        del array
        jax.block_until_ready(arrays)
        passes.append(time.perf_counter() - start)
    # x * 2 + 1, so many times.
    expected = [float(at * 2**PASSES + 2**PASSES - 1) for at in range(len(arrays))]
    wrong = sum(not bool(holds(visit_nothing(array), value)) for array, value in zip(arrays, expected, strict=True))
    assert not wrong, f"{wrong} of {len(arrays)} arrays have other contents"
    return passes


def visit_nothing(array: jax.Array) -> jax.Array:
    """The array on the device."""
    return jax.device_put(array, jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="device"))


def spilling(sizes: Sizes) -> dict[str, Any]:
    """Arrays of three times the limit are updated in place, one after the other."""
    from pjrt_arena import memory

    count, elements = sizes.tier
    passes = _around([filled(float(at), elements) for at in range(count)], update)
    told = memory.stats()[0].spill
    assert told and told.num_spilled, "nothing was spilled"
    return {"bytes": 4 * elements * count, "passes": passes, "out": told.spilled_bytes, "back": told.brought_back_bytes}


def by_hand(sizes: Sizes) -> dict[str, Any]:
    """The same with the arrays in `pinned_host`, and `device_put` there and back."""
    device = jax.devices()[0]
    on, off = (jax.sharding.SingleDeviceSharding(device, memory_kind=kind) for kind in ("device", "pinned_host"))
    count, elements = sizes.tier
    arrays = jax.block_until_ready([jax.device_put(filled(float(at), elements), off) for at in range(count)])
    passes = _around(arrays, lambda array: jax.device_put(update(jax.device_put(array, on)), off))
    return {"bytes": 4 * elements * count, "passes": passes}


def sleeping(sizes: Sizes) -> dict[str, Any]:
    """Seconds to sleep and to wake, and what the device has free meanwhile."""
    from pjrt_arena import memory

    count, elements = sizes.tier
    arrays = fill(count // 3, elements)

    def timed(run: Any) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    awake = free_bytes()
    took = {"sleep": timed(memory.sleep)}
    asleep = free_bytes()
    took |= {"wake": timed(memory.wake)}
    check(arrays)
    # Nothing was written since, so nothing is copied.
    took |= {"sleep again": timed(memory.sleep), "first use": timed(lambda: float((arrays[0][1] + 1)[5]))}
    gained = None if asleep is None or awake is None else asleep - awake
    assert gained is None or gained >= 4 * elements * len(arrays), f"{gained} bytes more are free while it sleeps"
    return {"bytes": 4 * elements * len(arrays), "seconds": took, "gained": gained}


MEMBER = """
import gc, sys, time, jax, jax.numpy as jnp
kept = []
def keep(count, mib):
    for _ in range(count):
        kept.append((float(len(kept)), jnp.full(mib << 18, float(len(kept)))))
    jax.block_until_ready([array for _, array in kept])
def check():
    assert all(bool((array == value).all()) for value, array in kept), "other contents"
for line in sys.stdin:
    start = time.perf_counter()
    try:
        exec(line)
        said = "ok"
    except BaseException as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
    print(f"<<{line.strip()}>> {time.perf_counter() - start:.3f} {said}", flush=True)
"""


def sharing(sizes: Sizes) -> dict[str, Any]:
    """Memory changes hands: what lies idle with the other one, then, with spilling, what is in use; then one dies."""
    unit = sizes.limit // 32 // MIB
    told: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o700)
        env = os.environ | {"PJRT_ARENA_SHARE": "script", "XDG_RUNTIME_DIR": folder}
        env.pop("PJRT_ARENA_STRATEGY", None)
        pair = [
            subprocess.Popen(
                [sys.executable, "-c", MEMBER], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]

        def do(number: int, line: str, title: str = "", refused: bool = False) -> None:
            member = pair[number]
            assert member.stdin and member.stdout
            member.stdin.write(line + "\n")
            member.stdin.flush()
            for answer in member.stdout:
                if answer.startswith(f"<<{line}>> "):
                    took, said = answer.removeprefix(f"<<{line}>> ").split(maxsplit=1)
                    assert said.strip() == "ok" or (refused and "RESOURCE_EXHAUSTED" in said), f"{line}: {said}"
                    if title:
                        told[title] = float(took)
                    return
            raise AssertionError(f"{line}: process {number} ended with {member.wait()}")

        try:
            do(0, f"keep(24, {unit}); check()")
            do(1, f"keep(2, {unit}); check()")
            do(0, "kept = kept[::2]; gc.collect()")
            do(1, f"keep(14, {unit}); check()", "idle memory of the other")
            do(0, "check()")
            spills = os.environ.get("PJRT_ARENA_SPILL", "off") != "off"
            title = "memory in use by the other" if spills else "refused, for the other uses it"
            do(1, f"keep(10, {unit})", title, refused=not spills)
            do(1, "check()" if spills else "del kept[12:]; gc.collect()")
            do(0, "check()")
            pair[0].kill()
            pair[0].wait()
            do(1, f"kept.clear(); gc.collect(); keep(28, {unit}); check()", "memory of one that was killed")
            for each in pair:
                if each.stdin:
                    each.stdin.close()
            assert pair[1].wait(30) == 0
        finally:
            for each in pair:
                each.kill()
    return {"limit": sizes.limit, "seconds": told}
