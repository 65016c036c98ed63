"""Memory that arrays and programs' scratch ask for at once, up to the limit, and up to the device's last bytes."""

from __future__ import annotations

import gc
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpu.clock import out_of_memory
from gpu.libcuda import free_bytes
from gpu.room import filled, holds
from gpu.sizes import MIB, Sizes, chunk_of

#: Of the limit: what arrays fill, and what a program takes as scratch once every second one is gone.
FULL, SCRATCH = 0.9, 0.3
#: How far the scratch may be from that: cuBLAS has some of its own.
NEAR = 0.1


def scratch(sizes: Sizes) -> dict[str, Any]:
    """Arrays fill the limit, every second one goes, a program takes scratch, arrays fill what is left.

    45 % of arrays and 30 % of scratch fit, then arrays alone: a refusal fails, but where arrays cannot move and whole
    chunks behind the holes come to less than the scratch.
    """
    from pjrt_arena import memory

    limit = jax.devices()[0].memory_stats()["bytes_limit"]
    program, taken = _with_scratch(int(SCRATCH * limit), limit)
    unit = chunk_of(limit)
    piece = max(unit, limit // 32 // unit * unit)
    count = int(FULL * limit) // piece
    arrays = [(float(turn), filled(float(turn), piece // 4)) for turn in range(count)]
    jax.block_until_ready([array for _, array in arrays])
    del arrays[::2]
    gc.collect()
    kept = len(arrays)
    # A hole may begin and end within a chunk.
    holes = (count - kept) * (piece - unit) + max(0, limit - count * piece - unit)
    moves = memory.stats()[0].strategy == "tpu"
    room = limit - kept * piece if moves else holes
    took, said = [], None
    for _ in range(2):
        start = time.perf_counter()
        try:
            value = float(program(jnp.float32(3)))
        except Exception as error:
            said = _refusal(error)
            assert taken > room, f"{taken} bytes of scratch refused where {room} can be had: {said}"
            break
        took.append(time.perf_counter() - start)
        assert value == _EXPECTED, f"the program gives {value}"
    while len(arrays) < count:
        turn = len(arrays) + count
        try:
            arrays.append((float(turn), filled(float(turn), piece // 4).block_until_ready()))
        except Exception as error:
            said = _refusal(error)
            raise AssertionError(f"array {len(arrays) + 1} of {count} refused behind the program: {said}") from None
    good = [bool(holds(array, value)) for value, array in arrays]
    assert all(good), f"{good.count(False)} of {count} arrays have other contents"
    return {
        "limit": limit,
        "array_bytes": piece,
        "arrays": kept,
        "scratch_bytes": taken,
        "room": room,
        "seconds": took,
        "refused": said,
        "refilled": count - kept,
    }


def _refusal(error: Exception) -> str:
    """What an error says that tells of exhausted memory; others are raised."""
    if not out_of_memory(error):
        raise error
    return str(error).splitlines()[0][:300]


#: Of 3: the largest is 3 * 6 * 8, and as far from the smallest.
_EXPECTED = 288.0


def _with_scratch(wanted: int, limit: int) -> tuple[Any, int]:
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
        if abs(taken - wanted) <= NEAR * limit:
            return program, taken
        rows = max(64, int(rows * (wanted / max(taken, 1)) ** 0.5))
    raise RuntimeError(f"no program with {wanted} bytes of scratch: {taken} with {rows} rows")


def device(sizes: Sizes) -> dict[str, Any]:
    """Steps of the transformer where the arena has nearly all of the device, and arrays nearly all of the arena.

    What CUDA, its libraries and its graphs need beside it must fit in the rest; a step says so if it does not.
    """
    from gpu.models import MODELS

    device = jax.devices()[0]
    step, state, batch = MODELS["transformer"](sizes)
    step = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
    need = step.memory_analysis().temp_size_in_bytes
    state = step(state, batch)
    losses = [float(state[-1])]
    limit = device.memory_stats()["bytes_limit"]
    piece = max(MIB, limit // 96)
    ballast: list[tuple[float, jax.Array]] = []
    # A sixteenth of the limit stays, and twice the scratch.
    while device.memory_stats()["bytes_in_use"] + piece + 2 * need + limit // 16 <= limit:
        ballast.append((float(len(ballast)), filled(float(len(ballast)), piece // 4)))
    jax.block_until_ready([array for _, array in ballast])
    free = [free_bytes()]
    start = time.perf_counter()
    for _ in range(sizes.steps):
        state = step(state, batch)
        losses.append(float(state[-1]))
        free.append(free_bytes())
    seconds = (time.perf_counter() - start) / sizes.steps
    assert losses[-1] < losses[0] and np.isfinite(losses).all(), f"the loss goes from {losses[0]} to {losses[-1]}"
    checked = ballast[:: max(1, len(ballast) // 12)]
    assert all(bool(holds(array, value)) for value, array in checked), "an array has other contents"
    known = [each for each in free if each is not None]
    return {
        "limit": limit,
        "in_use": device.memory_stats()["bytes_in_use"],
        "scratch_bytes": need,
        "seconds": seconds,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "least_free_bytes": min(known) if known else None,
    }
