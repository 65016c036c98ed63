"""The workload of jax-ml/jax#9064, small enough for a test: memory is free, but not in one piece.

    | big | kept | big | kept | big | kept |     jitted functions fill the device, two results a round
    |  .  | kept |  .  | kept |  .  | kept |     the big results go, the small ones stay
    | one array of 80 % of the memory   |        no hole is as large as that

`python fragments.py` runs it in this process and prints what became of it as JSON: the demo's last act.
"""

import dataclasses
import functools
import json
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

MIB = 1 << 20
#: Elements of a result that is kept. Not a multiple of the arena's granule in any type.
KEPT = 25_004
BIG_BYTES = 4 * MIB


def _numbers(xp, turn, count):
    # Small whole numbers: every type but bool holds them exactly.
    return (xp.arange(count, dtype=np.int32) * 7 + turn) % 113


@functools.cache
def _kept(dtype: str, count: int, sharding):
    def result(turn):
        numbers = _numbers(jnp, turn, count)
        if dtype == "complex64":
            return jax.lax.complex(numbers.astype("float32"), (numbers + 1).astype("float32"))
        return (numbers > 50) if dtype == "bool" else numbers.astype(dtype)

    return jax.jit(result, out_shardings=sharding)


def expected(turn: int, dtype: str, count: int = KEPT) -> np.ndarray:
    """What the result that was kept in this round is, as NumPy computes it."""
    numbers = _numbers(np, np.int32(turn), count)
    if dtype == "complex64":
        return (numbers + 1j * (numbers + 1)).astype(np.complex64)
    return numbers > 50 if dtype == "bool" else numbers.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))


@functools.cache
def _full(count: int, sharding):
    return jax.jit(lambda value: jnp.full(count, value, jnp.float32), out_shardings=sharding)


def big(value: float, count: int, sharding=None) -> jax.Array:
    """An array of `count` elements of 4 bytes, written by a program."""
    return jax.block_until_ready(_full(count, sharding)(np.float32(value)))


class Fragments:
    """Fills every device of `sharding`, the default device without one, and lets the big results go."""

    def __init__(self, dtypes=("float32",), sharding=None):
        devices = sorted(sharding.device_set, key=lambda device: device.id) if sharding else jax.devices()[:1]
        self.sharding, self.devices, self.dtypes = sharding, devices, dtypes
        self.limit = devices[0].memory_stats()["bytes_limit"]
        count = KEPT * len(devices)
        widest = max(np.dtype(expected(0, dtype, 1).dtype).itemsize for dtype in dtypes)
        rounds = (self.limit - devices[0].memory_stats()["bytes_in_use"]) // (BIG_BYTES + widest * KEPT + 512) - 1
        self.count, self.kept, bigs = count, [], []
        for dtype in dtypes:  # Scratch that a program needs is set aside before the memory fills.
            jax.block_until_ready(_kept(dtype, count, sharding)(np.int32(0)))
        for turn in range(rounds):
            bigs.append(big(turn, BIG_BYTES // 4 * len(devices), sharding))
            self.kept.append(_kept(self.dtype(turn), count, sharding)(np.int32(turn)))
        jax.block_until_ready(self.kept)

    def dtype(self, turn: int) -> str:
        """The type of the result that was kept in this round."""
        return self.dtypes[turn % len(self.dtypes)]

    def one_big(self, share: float = 0.8) -> jax.Array:
        """One array of that share of every device's memory."""
        return big(3, int(share * self.limit) // 4 * len(self.devices), self.sharding)

    def check(self) -> None:
        """Fails unless every result that was kept is bit for bit what NumPy says."""
        for turn, array in enumerate(self.kept):
            right = expected(turn, self.dtype(turn), self.count)
            seen = np.asarray(array.copy())  # A copy: NumPy's view of the array itself would pin it.
            assert seen.dtype == right.dtype and seen.tobytes() == right.tobytes(), turn


def main() -> None:
    from pjrt_arena import memory

    fragments = Fragments()
    view = np.asarray(fragments.kept[3])
    address = view.ctypes.data
    told = {"before": memory.map(80, 4), "kept": len(fragments.kept), "error": None}
    try:
        whole = fragments.one_big()
    except (RuntimeError, ValueError) as error:  # jaxlib's fast path of a jitted call raises ValueError
        told["error"] = str(error)
    else:
        told["after"] = memory.map(80, 4)
        told["stats"] = dataclasses.asdict(memory.stats()[0])
        del whole
    fragments.check()
    right = expected(3, "float32")
    assert view.ctypes.data == address and view.tobytes() == right.tobytes()
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
