"""Memory that is nearly full: what still fits, what share of it is of use, and how fast it is moved together."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpu.clock import out_of_memory
from gpu.libcuda import free_bytes
from gpu.plan import LIMIT_VARIABLE
from gpu.sizes import MIB, Sizes, chunk_of

#: Of the memory: what the one array takes that fragmented memory has no hole for.
WANTED = 0.8


def fragmented(sizes: Sizes) -> dict[str, Any]:
    """The workload of jax-ml/jax#9064: large results go, small ones between them stay, then a large one is wanted."""
    from fragments import Fragments

    fragments = Fragments()
    answer = {"limit": fragments.limit, "kept": len(fragments.kept), "wanted": int(WANTED * fragments.limit)}
    start = time.perf_counter()
    try:
        whole = fragments.one_big(WANTED)
    except Exception as error:
        refused = time.perf_counter() - start
        if not out_of_memory(error):
            raise
        # XLA's allocator may wait for memory before it says no.
        answer |= {"served": False, "refused_seconds": refused, "said": str(error).splitlines()[0][:300]}
    else:
        # Some of it: a comparison of all of it would need memory of its own.
        assert (np.asarray(whole[:: max(1, whole.size // 1000)]) == 3).all(), "the large array has other contents"
        answer["served"] = True
        del whole
    gc.collect()
    fragments.check()
    return answer | {"intact": True}


filled = jax.jit(lambda value, count: jnp.full(count, value, jnp.float32), static_argnums=1)
holds = jax.jit(lambda array, value: (array == value).all())


def share(sizes: Sizes, seeds: int) -> dict[str, Any]:
    """Arrays of mixed sizes come and go, at random, until one is refused: how much of the limit is in use then."""
    # Some of XLA's allocators tell no limit; what they were given is theirs to keep, or not.
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit") or int(os.environ[LIMIT_VARIABLE])
    # 24 sizes over 13 octaves: the largest are most of the bytes, the smallest most of the holes.
    counts = sorted({max(64, int(sizes.largest / 4 * 2 ** (-13 * step / 23))) for step in range(24)})
    for count in counts:
        assert bool(holds(filled(1.0, count), 1.0))
    rounds = []
    for seed in range(seeds):
        gc.collect()
        rounds.append(_until_refused(np.random.default_rng(seed), counts, limit))
    shares = sorted(each["share"] for each in rounds)
    return {"limit": limit, "share": shares[len(shares) // 2], "rounds": rounds}


def _until_refused(random: np.random.Generator, counts: list[int], limit: int) -> dict[str, Any]:
    live: list[tuple[float, jax.Array]] = []
    turn, kept = 0, True
    while kept:
        count = int(random.choice(counts))
        start = time.perf_counter()
        try:
            # Waiting keeps what is in use the same on every backend.
            live.append((float(turn % 997), filled(float(turn % 997), count).block_until_ready()))
        except Exception as error:
            refused = time.perf_counter() - start
            if not out_of_memory(error):
                raise
            break
        if random.random() < 0.45:
            live.pop(int(random.integers(len(live))))
        turn += 1
        kept = 4 * sum(array.size for _, array in live) <= limit
    used = 4 * sum(array.size for _, array in live)
    room = 0
    # For what the check computes: scratch as large as an array, on a GPU in the driver's pieces of 2 MiB, of which
    # arrays that cannot move at that moment may spoil two.
    while live and room < 4 * counts[-1] + 4 * MIB:
        room += 4 * live.pop()[1].size
    for value, array in live[:: max(1, len(live) // 50)]:
        assert bool(holds(array, value)), "an array has other contents"
    answer = {"share": used / limit, "limit_kept": kept, "allocations": turn}
    if kept:
        answer |= {"refused_bytes": 4 * count, "free_bytes": limit - used, "refused_seconds": refused}
    return answer


def compaction(sizes: Sizes, odd: bool, trimmed: bool = False) -> dict[str, Any]:
    """`memory.compact()` where every second array was let go: bytes, seconds, and that all arrays are what they were.

    Arrays of whole chunks can be moved by mapping their memory elsewhere, where a device does that; `odd` ones have to
    be copied. `trimmed`: the holes have no memory when it begins, so that chunks go there with the arrays. Nothing
    counts them, but a copy would need memory of the device for what it writes, and an exchange needs none.
    """
    from pjrt_arena import memory

    limit = jax.devices()[0].memory_stats()["bytes_limit"]
    unit = chunk_of(limit)
    piece = max(unit, limit // 384 // unit * unit)
    count = (piece - (44 << 10 if odd else 0)) // 4
    arrays = [(float(turn), filled(float(turn), count)) for turn in range(int(0.9 * limit) // piece)]
    jax.block_until_ready([array for _, array in arrays])
    del arrays[::2]
    gc.collect()
    given_back = sum(trim.returned_bytes for trim in memory.trim()) if trimmed else None
    before, free = memory.stats()[0], free_bytes()
    (done,) = memory.compact()[:1]
    after, free_then = memory.stats()[0], free_bytes()
    assert all(bool(holds(array, value)) for value, array in arrays), "an array has other contents"
    made = max(0, free - free_then) if free is not None and free_then is not None else None
    if trimmed and made is not None:
        assert given_back, "a trim gives nothing back"
        assert done.moved_bytes > 0, "nothing was moved"
        assert made <= done.moved_bytes // 2, f"{made} bytes of memory were made for {done.moved_bytes} that were moved"
    return {
        "limit": limit,
        "array_bytes": 4 * count,
        "arrays": len(arrays),
        "bytes": done.moved_bytes,
        "buffers": done.num_moves,
        "seconds": done.seconds,
        "bytes_per_second": done.moved_bytes / done.seconds if done.seconds else None,
        "largest_free_before": done.largest_free_block_bytes_before,
        "largest_free_after": done.largest_free_block_bytes_after,
        "given_back": given_back,
        # Of the device's memory, while arrays moved.
        "made_bytes": made,
        "counters": {
            name: getattr(after, name) - getattr(before, name)
            for name in ("num_moves", "moved_bytes")
            if getattr(after, name) != getattr(before, name)
        },
    }
