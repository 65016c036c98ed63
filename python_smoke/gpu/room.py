"""Memory that is nearly full: what still fits, what is refused and how soon, how fast arrays are moved together."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpu.clock import out_of_memory
from gpu.jobs import LIMIT_VARIABLE
from gpu.libcuda import free_bytes
from gpu.sizes import MIB, Sizes, chunk_of

#: Of the memory: what the one array takes that fragmented memory has no hole for.
WANTED = 0.8
#: Of the limit: what arrays fill, and what a program takes as scratch once every second one is gone.
FULL, SCRATCH = 0.9, 0.3
#: How far the scratch may be from that: cuBLAS has some of its own.
NEAR = 0.1

filled = jax.jit(lambda value, count: jnp.full(count, value, jnp.float32), static_argnums=1)
holds = jax.jit(lambda array, value: (array == value).all())
Filled = list[tuple[float, jax.Array]]


def fill(count: int, elements: int, first: int = 0) -> Filled:
    """So many arrays, each with a value of its own."""
    arrays = [(float(first + turn), filled(float(first + turn), elements)) for turn in range(count)]
    jax.block_until_ready([array for _, array in arrays])
    return arrays


def check(arrays: Filled) -> None:
    """Fails unless each has its value."""
    wrong = sum(not bool(holds(array, value)) for value, array in arrays)
    assert not wrong, f"{wrong} of {len(arrays)} arrays have other contents"


def limit() -> int:
    """What the backend may have. Some of XLA's allocators do not say."""
    return (jax.devices()[0].memory_stats() or {}).get("bytes_limit") or int(os.environ[LIMIT_VARIABLE])


def refusal(error: Exception) -> str:
    """What an error says that tells of exhausted memory; others are raised."""
    if not out_of_memory(error):
        raise error
    return " ".join(str(error).split())[:900]


def fragmented(sizes: Sizes) -> dict[str, Any]:
    """The workload of jax-ml/jax#9064: large results go, small ones between them stay, then a large one is wanted."""
    from fragments import Fragments

    fragments = Fragments()
    answer = {"limit": fragments.limit, "kept": len(fragments.kept), "wanted": int(WANTED * fragments.limit)}
    start = time.perf_counter()
    try:
        whole = fragments.one_big(WANTED)
    except Exception as error:
        answer |= {"served": False, "seconds": time.perf_counter() - start, "said": refusal(error)[:300]}
    else:
        answer |= {"served": True, "seconds": time.perf_counter() - start}
        # Some of it: a comparison of all of it would need memory of its own.
        assert (np.asarray(whole[:: max(1, whole.size // 1000)]) == 3).all(), "the large array has other contents"
        del whole
    gc.collect()
    fragments.check()
    return answer | {"intact": True}


def usable(sizes: Sizes, seeds: int) -> dict[str, Any]:
    """Arrays of mixed sizes come and go, at random, until one is refused: how much of the limit is in use then."""
    # 24 sizes over 13 octaves: the largest are most of the bytes, the smallest most of the holes.
    counts = sorted({max(64, int(sizes.largest / 4 * 2 ** (-13 * step / 23))) for step in range(24)})
    for count in counts:
        assert bool(holds(filled(1.0, count), 1.0))
    rounds = []
    for seed in range(seeds):
        gc.collect()
        rounds.append(_until_refused(np.random.default_rng(seed), counts))
    shares = sorted(each["share"] for each in rounds)
    return {"limit": limit(), "share": shares[len(shares) // 2], "rounds": rounds}


def _until_refused(random: np.random.Generator, counts: list[int]) -> dict[str, Any]:
    live: Filled = []
    most, turn = limit(), 0
    while True:
        count = int(random.choice(counts))
        start = time.perf_counter()
        try:
            # Waiting keeps what is in use the same on every backend.
            live.append((float(turn % 997), filled(float(turn % 997), count).block_until_ready()))
        except Exception as error:
            took = time.perf_counter() - start
            refusal(error)
            break
        if random.random() < 0.45:
            live.pop(int(random.integers(len(live))))
        turn += 1
        assert 4 * sum(array.size for _, array in live) <= most, "the limit is not kept"
    used = 4 * sum(array.size for _, array in live)
    # For what the check computes: scratch as large as an array, in the pieces of 32 MiB that the driver's pool takes.
    room = 0
    while live and room < 4 * counts[-1] + 64 * MIB:
        room += 4 * live.pop()[1].size
    check(live[:: max(1, len(live) // 50)])
    return {"share": used / most, "refused_bytes": 4 * count, "free_bytes": most - used, "seconds": took}


def refusals(sizes: Sizes, cases: list[str] | None = None, times: int = 3) -> dict[str, Any]:
    """Arrays fill the limit but for a sixteenth: seconds from a request for an eighth to its error, the last time."""
    most = limit()
    held = fill(60, most // 64 // 4)
    every: dict[str, Callable[[], Any]] = {
        "array": lambda: jnp.zeros(most // 8 // 4),
        "device_put": lambda: jax.device_put(np.zeros(most // 8 // 4, np.float32)),
        "several results": jax.jit(lambda: [jnp.full(most // 40 // 4, float(turn)) for turn in range(4)]),
        "eager": lambda: jnp.outer(jnp.ones(most // 8 // 4 // 256), jnp.ones(256)),
    }
    answer = {}
    for name in cases or every:
        seen, said = [], ""
        for _ in range(times):
            start = time.perf_counter()
            try:
                jax.block_until_ready(every[name]())
                raise AssertionError(f"{name}: an eighth of the limit was served where a sixteenth is free")
            except Exception as error:
                seen.append(time.perf_counter() - start)
                said = refusal(error)
        answer[name] = {"seconds": seen[-1], "first": seen[0], "said": said}
    check(held[::8])
    return answer


def compaction(sizes: Sizes, odd: bool = False, trimmed: bool = False) -> dict[str, Any]:
    """`memory.compact()` where every second array was let go: bytes, seconds, and that all arrays are what they were.

    `odd`: the arrays are no whole chunks. `trimmed`: the holes have no memory when it begins, so that chunks go there
    with the arrays: a copy would need memory of the device for what it writes, and an exchange of chunks needs none.
    """
    from pjrt_arena import memory

    most = limit()
    unit = chunk_of(most)
    piece = max(unit, most // 384 // unit * unit)
    arrays = fill(int(0.9 * most) // piece, (piece - (44 << 10 if odd else 0)) // 4)
    del arrays[::2]
    gc.collect()
    given_back = sum(trim.returned_bytes for trim in memory.trim()) if trimmed else None
    before, free = memory.stats()[0], free_bytes()
    (done,) = memory.compact()[:1]
    after, free_then = memory.stats()[0], free_bytes()
    check(arrays)
    made = max(0, free - free_then) if free is not None and free_then is not None else None
    assert done.moved_bytes > 0 and after.num_moves > before.num_moves, "nothing was moved"
    if trimmed and made is not None:
        assert given_back, "a trim gives nothing back"
        assert made <= done.moved_bytes // 2, f"{made} bytes of memory were made for {done.moved_bytes} that were moved"
    return {
        "limit": most,
        "array_bytes": 4 * arrays[0][1].size,
        "bytes": done.moved_bytes,
        "buffers": done.num_moves,
        "seconds": done.seconds,
        "bytes_per_second": done.moved_bytes / done.seconds,
        "largest_free_before": done.largest_free_block_bytes_before,
        "largest_free_after": done.largest_free_block_bytes_after,
        "given_back": given_back,
        "made_bytes": made,
    }


def scratch(sizes: Sizes) -> dict[str, Any]:
    """Arrays fill the limit, every second one goes, a program takes scratch, arrays fill what is left.

    45 % of arrays and 30 % of scratch fit, then arrays alone, where arrays can move.
    """
    most = limit()
    program, taken = _with_scratch(int(SCRATCH * most), most)
    piece = most // 32
    arrays = fill(count := int(FULL * most) // piece, piece // 4)
    del arrays[::2]
    gc.collect()
    kept, took = len(arrays), []
    for _ in range(2):
        start = time.perf_counter()
        value = float(program(jnp.float32(3)))
        took.append(time.perf_counter() - start)
        assert value == _EXPECTED, f"the program gives {value}"
    arrays += fill(count - kept, piece // 4, first=count)
    check(arrays)
    return {"limit": most, "arrays": kept, "array_bytes": piece, "scratch_bytes": taken, "seconds": took}


#: Of 3: the largest is 3 * 6 * 8, and as far from the smallest.
_EXPECTED = 288.0


def _with_scratch(wanted: int, most: int) -> tuple[Any, int]:
    """A program whose scratch is about so large, and how large: a product that is read twice has to lie somewhere."""
    rows = int((wanted / 4) ** 0.5)

    def product(x, rows):
        # Small whole numbers, which every kind of product has right.
        left = jnp.broadcast_to(x * (jnp.arange(rows) % 7)[:, None], (rows, 8))
        whole = left @ jnp.ones((8, rows), jnp.float32)
        largest = whole.max()
        return largest + jnp.abs(whole - largest).max()

    for _ in range(3):
        shape = jax.ShapeDtypeStruct((), np.float32)
        program = jax.jit(product, static_argnums=1).lower(shape, rows).compile()
        taken = program.memory_analysis().temp_size_in_bytes
        if abs(taken - wanted) <= NEAR * most:
            return program, taken
        rows = max(64, int(rows * (wanted / max(taken, 1)) ** 0.5))
    raise RuntimeError(f"no program with {wanted} bytes of scratch: {taken} with {rows} rows")


def nearly_all(sizes: Sizes) -> dict[str, Any]:
    """Steps of the transformer where the arena has nearly all of the device, and arrays nearly all of the arena.

    What CUDA, its libraries and its graphs need beside it must fit in the rest. The losses are those of the same steps
    with nothing beside them.
    """
    from gpu.models import MODELS

    device = jax.devices()[0]
    step, state, batch = MODELS["transformer"](sizes)
    step = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
    need = step.memory_analysis().temp_size_in_bytes

    def losses(state: Any) -> list[float]:
        seen = []
        for _ in range(sizes.steps):
            state = step(state, batch)
            seen.append(float(state[-1]))
        return seen

    expected = losses(state)
    state = MODELS["transformer"](sizes)[1]
    most = limit()
    piece = max(MIB, most // 96)
    ballast: Filled = []
    # A sixteenth of the limit stays, and twice the scratch.
    while device.memory_stats()["bytes_in_use"] + piece + 2 * need + most // 16 <= most:
        ballast += fill(1, piece // 4, first=len(ballast))
    start = time.perf_counter()
    found = losses(state)
    took = (time.perf_counter() - start) / sizes.steps
    # Sums of a GPU have no order.
    np.testing.assert_allclose(found, expected, rtol=0.02)
    check(ballast[:: max(1, len(ballast) // 12)])
    used = device.memory_stats()["bytes_in_use"]
    return {"limit": most, "in_use": used, "scratch_bytes": need, "seconds": took, "free_bytes": free_bytes()}
