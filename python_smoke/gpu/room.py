"""Memory that is nearly full: what still fits, what share of it is of use, and how fast it is moved together."""

from __future__ import annotations

import gc
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpu.clock import out_of_memory
from gpu.plan import LIMIT_VARIABLE
from gpu.sizes import MIB, Sizes

#: Of the memory: what the one array takes that fragmented memory has no hole for.
WANTED = 0.8


def fragmented(sizes: Sizes) -> dict[str, Any]:
    """The workload of jax-ml/jax#9064: large results go, small ones between them stay, then a large one is wanted."""
    from fragments import Fragments

    fragments = Fragments()
    answer = {"limit": fragments.limit, "kept": len(fragments.kept), "wanted": int(WANTED * fragments.limit)}
    try:
        whole = fragments.one_big(WANTED)
    except Exception as error:
        if not out_of_memory(error):
            raise
        answer |= {"served": False, "said": str(error).splitlines()[0][:300]}
    else:
        # Some of it: a comparison of all of it would need memory of its own.
        assert (np.asarray(whole[:: max(1, whole.size // 1000)]) == 3).all(), "the large array has other contents"
        answer["served"] = True
        del whole
    gc.collect()
    fragments.check()
    return answer | {"intact": True}


_fill = jax.jit(lambda value, count: jnp.full(count, value, jnp.float32), static_argnums=1)
_holds = jax.jit(lambda array, value: (array == value).all())


def share(sizes: Sizes, seeds: int) -> dict[str, Any]:
    """Arrays of mixed sizes come and go, at random, until one is refused: how much of the limit is in use then."""
    # Some of XLA's allocators tell no limit; what they were given is theirs to keep, or not.
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit") or int(os.environ[LIMIT_VARIABLE])
    # 24 sizes over 13 octaves: the largest are most of the bytes, the smallest most of the holes.
    counts = sorted({max(64, int(sizes.largest / 4 * 2 ** (-13 * step / 23))) for step in range(24)})
    for count in counts:
        assert bool(_holds(_fill(1.0, count), 1.0))
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
        try:
            # Waiting keeps what is in use the same on every backend.
            live.append((float(turn % 997), _fill(float(turn % 997), count).block_until_ready()))
        except Exception as error:
            if not out_of_memory(error):
                raise
            break
        if random.random() < 0.45:
            live.pop(int(random.integers(len(live))))
        turn += 1
        kept = 4 * sum(array.size for _, array in live) <= limit
    used = 4 * sum(array.size for _, array in live)
    room = 0
    # For what the check computes: scratch as large as an array, on a GPU in the driver's pieces of 2 MiB, of which arrays that
    # cannot move at that moment may spoil two.
    while live and room < 4 * counts[-1] + 4 * MIB:
        room += 4 * live.pop()[1].size
    for value, array in live[:: max(1, len(live) // 50)]:
        assert bool(_holds(array, value)), "an array has other contents"
    answer = {"share": used / limit, "limit_kept": kept, "allocations": turn}
    return answer | ({"refused_bytes": 4 * count, "free_bytes": limit - used} if kept else {})


def compaction(sizes: Sizes, odd: bool) -> dict[str, Any]:
    """`memory.compact()` where every second array was let go: bytes, seconds, and that all arrays are what they were.

    Arrays of whole 2 MiB can be moved by mapping their memory elsewhere, where a device does that; `odd` ones have to
    be copied.
    """
    from jax_plugins.arena import memory

    limit = jax.devices()[0].memory_stats()["bytes_limit"]
    piece = max(2 * MIB, limit // 384 // (2 * MIB) * 2 * MIB)
    count = (piece - (44 << 10 if odd else 0)) // 4
    arrays = []
    for turn in range(int(0.9 * limit) // piece):
        arrays.append((float(turn), _fill(float(turn), count)))
    jax.block_until_ready([array for _, array in arrays])
    del arrays[::2]
    gc.collect()
    before = memory.stats()[0]
    (done,) = memory.compact()[:1]
    after = memory.stats()[0]
    assert all(bool(_holds(array, value)) for value, array in arrays), "an array has other contents"
    return {
        "limit": limit,
        "array_bytes": 4 * count,
        "arrays": len(arrays),
        "bytes": done.bytes_moved,
        "buffers": done.buffers_moved,
        "seconds": done.seconds,
        "bytes_per_second": done.bytes_moved / done.seconds if done.seconds else None,
        "largest_free_before": done.largest_free_before,
        "largest_free_after": done.largest_free_after,
        # Whatever the library counts of it, copies and remapped memory apart where it tells them apart.
        "counters": {
            name: after[name] - value
            for name, value in before.items()
            if isinstance(value, int) and ("moved" in name or "remap" in name) and after[name] != value
        },
    }
