"""One process: threads that act at random, and what must be left at their end."""

from __future__ import annotations

import faulthandler
import gc
import json
import threading
import time
import traceback
import warnings
from collections import Counter
from typing import Any

import jax
from pjrt_arena import memory

from jax_fuzz.actions import ACTIONS
from jax_fuzz.world import Different, Exhausted, World

#: Seconds without a step of any thread after which a process shows what its threads do, and ends.
LONGEST = 300
#: A device's bytes, without which its limit is unknown.
LEAST = 1 << 20


def run(seed: int, settings: dict[str, str], steps: int) -> int:
    """Runs the threads, prints a line of counts, and returns 1 if something was wrong."""
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    # Donated arguments that no result can use are no fault.
    warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
    # Otherwise callbacks of the other backend wait for its threads.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    devices = jax.devices("arena")
    before = _books()
    count = int(settings.get("threads", "1"))
    limit = max(LEAST, devices[0].memory_stats()["bytes_limit"])
    most = min(1 << 18, max(256, limit // count // 32))
    budget = int(limit * int(settings.get("fill", "70")) / 100 / count)
    worlds = [World(seed * 100 + number, devices, jax.devices("cpu")[0], most, budget) for number in range(count)]
    faults: list[str] = []
    threads = [threading.Thread(target=_act, args=(world, steps, faults), daemon=True) for world in worlds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts: Counter[str] = Counter()
    for world in worlds:
        counts.update(world.counts)
    counts["compactions"] = sum(device.num_compactions for device in memory.stats())
    counts["moved"] = sum(device.num_moves for device in memory.stats())
    counts["spilled"] = sum(device.spill.num_spilled for device in memory.stats() if device.spill)
    worlds.clear()
    if not faults and (left := _left(before)):
        faults.append(f"the books are not what they were at the beginning: {left}")
    for fault in faults:
        print(fault, flush=True)
    counts["failures"] = len(faults)
    print(json.dumps(counts), flush=True)
    faulthandler.cancel_dump_traceback_later()
    return 1 if faults else 0


def _act(world: World, steps: int, faults: list[str]) -> None:
    """Acts so many times, and at the end compares everything that is there."""
    actions, weights = zip(*ACTIONS.items(), strict=True)
    step = 0
    try:
        while step < steps:
            step += 1
            faulthandler.dump_traceback_later(LONGEST, exit=True)
            if faults:
                return
            try:
                world.rng.choices(actions, weights)[0](world)
                world.counts["operations"] += 1
            except Exhausted:
                world.counts["exhausted"] += 1
                world.make_room()
            world.sweep()
            world.keep_within_budget()
        world.end()
    except Exception as error:
        what = str(error) if isinstance(error, Different) else "".join(traceback.format_exception(error))
        last = "\n    ".join(world.said)
        faults.append(f"FAILURE at step {step}, thread {world.seed % 100}: {what}\n  last actions:\n    {last}")


#: Of each device and of what was spilled from it.
IN_BOOKS = ("bytes_in_use", "num_live_blocks", "pending_bytes", "engine_bytes")


def _books() -> list[list[int]]:
    return [
        [getattr(tier, name, 0) for tier in (device, device.spill) for name in IN_BOOKS] for device in memory.stats()
    ]


def _left(before: list[list[int]], timeout: float = 30.0) -> Any:
    """What the books are if not, after a while, what they were."""
    jax.clear_caches()
    end = time.monotonic() + timeout
    while (now := _books()) != before and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    return None if now == before else (before, now)
