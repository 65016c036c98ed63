"""Work on the devices, in steps. Every array is checked, bit for bit, before a worker lets it go."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import model
import numpy as np
from harness import host_array
from jax.sharding import NamedSharding, PartitionSpec

#: Elements of arrays, from nothing to 4 MiB.
SIZES = (0, 1, 300, 20_001, 131_072, 400_001, 1_000_003)
DTYPES = ("int32", "uint8", "uint32")
#: Bytes that the pool of one device holds at most: of its limit of `LIMIT`, with views and scratch, most.
HELD = 24 << 20
LIMIT = "32MiB"


class Worker:
    """Work in steps, which another thread never makes at the same time."""

    #: Whether no other worker may make a step meanwhile: see `turns.py`.
    alone = False
    #: Seconds between steps, in which the others work.
    pause = 0.0

    def __init__(self, seed: int = 0):
        self.rng = random.Random(seed)

    def step(self) -> None:
        """A piece of work, checked. Raises AssertionError where an array is wrong."""
        raise NotImplementedError

    def rest(self) -> None:
        """Lets go of every array."""


@dataclass(frozen=True)
class Ramp:
    """The numbers `start + step * i`, in integers that wrap round: sums, products and slices of them are such, too."""

    size: int
    dtype: str
    start: int
    step: int

    def numpy(self) -> np.ndarray:
        """The numbers themselves."""
        numbers = self.start % 2**32 + self.step % 2**32 * np.arange(self.size, dtype=np.uint64)
        return numbers.astype(np.uint32).astype(self.dtype)

    def check(self, array: Any) -> None:
        """Compares an array with the numbers."""
        seen = np.asarray(array)
        assert (seen.shape, str(seen.dtype)) == ((self.size,), self.dtype), (self, seen.shape, seen.dtype)
        wrong = np.flatnonzero(seen != self.numpy())
        assert not wrong.size, f"{self}: {wrong.size} elements are wrong, the first at {wrong[0]}: {seen[wrong[0]]}"


class Training(Worker):
    """The small model of the demo, again and again from the same beginning: it must end with the same bits."""

    def __init__(self, device: jax.Device):
        super().__init__()
        self._device = device
        with jax.default_device(device):
            *state, optimiser = model.initial_state()
        self._first = jax.tree.map(np.array, state)
        self._train = model.make_step(optimiser)
        self._expected: list[bytes] | None = None
        self.rest()

    def step(self) -> None:
        if self._number == 0:
            with jax.default_device(self._device):
                self._state = (*jax.device_put(self._first, self._device), jax.random.key(1))
        for _ in range(20):
            *state, value = self._train(*self._state)
            self._state = tuple(state)
        self._number += 1
        if self._number == 10:
            ended = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((self._state[:2], value))]
            self._expected = self._expected or ended
            assert ended == self._expected, "200 steps of training did not end as the first ones"
            self.rest()

    def rest(self) -> None:
        self._number, self._state = 0, ()


class Pool(Worker):
    """Eager work: arrays of many sizes that come, change and go, so that what is free is in pieces."""

    def __init__(self, device: jax.Device, seed: int):
        super().__init__(seed)
        self._device = device
        self._held: list[tuple[Ramp, jax.Array]] = []
        self._views: list[tuple[Ramp, Any]] = []
        self._donated = jax.jit(lambda x: x * 3 + 1, donate_argnums=0)
        self._made = jax.jit(lambda start, size: jnp.arange(size, dtype=jnp.int32) + start, static_argnums=1)
        self._acts = (self._put, self._make, self._change, self._change, self._donate, self._cut, self._view)

    def step(self) -> None:
        for _ in range(10):
            self.rng.choice(self._acts)()
            while sum(array.nbytes for _, array in self._held) > HELD:
                self._drop()

    def rest(self) -> None:
        for ramp, view in self._views:
            ramp.check(view)
        self._views.clear()
        while self._held:
            self._drop()

    def _add(self, ramp: Ramp, array: jax.Array) -> None:
        self._held.append((ramp, array))

    def _drop(self) -> None:
        ramp, array = self._held.pop(self.rng.randrange(len(self._held)))
        ramp.check(array)

    def _one(self) -> tuple[Ramp, jax.Array] | None:
        return self.rng.choice(self._held) if self._held else None

    def _put(self) -> None:
        ramp = Ramp(self.rng.choice(SIZES), self.rng.choice(DTYPES), self.rng.randrange(1000), self.rng.randrange(1, 9))
        self._add(ramp, jax.device_put(ramp.numpy(), self._device))

    def _make(self) -> None:
        ramp = Ramp(self.rng.choice(SIZES), "int32", self.rng.randrange(1000), 1)
        self._add(ramp, self._made(jax.device_put(np.int32(ramp.start), self._device), ramp.size))

    def _change(self) -> None:
        if one := self._one():
            ramp, array = one
            changes: list[tuple[Ramp, Callable[[], jax.Array]]] = [
                (replace(ramp, start=ramp.start + 5), lambda: array + 5),
                (replace(ramp, start=ramp.start * 2, step=ramp.step * 2), lambda: array + array),
                (replace(ramp, start=ramp.start + ramp.step * (ramp.size - 1), step=-ramp.step), lambda: array[::-1]),
            ]
            after, change = self.rng.choice(changes)
            self._add(after, change())

    def _donate(self) -> None:
        if self._held:
            ramp, array = self._held.pop(self.rng.randrange(len(self._held)))
            after = replace(ramp, start=ramp.start * 3 + 1, step=ramp.step * 3)
            # Arrays that a view refers to are copied by the arena.
            self._add(after, self._donated(array))

    def _cut(self) -> None:
        # What was cut is not cut again: each size is a program of its own.
        if (one := self._one()) and one[0].size in SIZES[2:]:
            ramp, array = one
            first = ramp.size // 3
            self._add(replace(ramp, size=ramp.size - first, start=ramp.start + ramp.step * first), array[first:])

    def _view(self) -> None:
        if one := self._one():
            ramp, array = one
            self._views.append((ramp, self.rng.choice((np.asarray, np.from_dlpack))(array)))
            while len(self._views) > 4:
                old, view = self._views.pop(0)
                old.check(view)


class Callbacks(Worker):
    """Programs that call back into Python, small ones and one whose argument is 1 MiB."""

    def __init__(self, device: jax.Device):
        super().__init__()
        self._device, self._turn = device, 0

        def program(x: jax.Array, turn: jax.Array) -> jax.Array:
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return jax.pure_callback(lambda x, turn: np.asarray(x) * 2 + np.asarray(turn), shape, x + turn, turn) - turn

        self._program = jax.jit(program)

    def step(self) -> None:
        self._turn = self._turn % 1000 + 1
        ramp = Ramp((3, 5000, 262_144)[self._turn % 3], "int32", 7, 2)
        x, turn = jax.device_put((ramp.numpy(), np.int32(self._turn)), self._device)
        after = replace(ramp, start=2 * (7 + self._turn), step=4)
        after.check(self._program(x, turn))


class Views(Worker):
    """NumPy's arrays that the arena uses where they lie, and views of the arena's arrays, while programs run."""

    def __init__(self, device: jax.Device):
        super().__init__()
        self._device, self._turn = device, 0
        self._donated = jax.jit(lambda x: x + 1, donate_argnums=0)
        self._kept: list[tuple[np.ndarray, Any]] = []

    def step(self) -> None:
        self._turn = self._turn % 1000 + 1
        host = host_array(start=self._turn, offset=self._turn % 2 * 16)
        before = host.copy()
        x = jax.device_put(host, self._device)
        view = (np.asarray, np.from_dlpack)[self._turn % 2](x)
        y = self._donated(x)
        assert host.tobytes() == before.tobytes() == view.tobytes(), "a donated array that has a view was written to"
        self._kept.append((before + 1, np.from_dlpack(y)))
        self._kept.append((before, view))
        while len(self._kept) > 8:
            self._check(self._kept.pop(0))

    def rest(self) -> None:
        while self._kept:
            self._check(self._kept.pop())

    @staticmethod
    def _check(kept: tuple[np.ndarray, Any]) -> None:
        assert kept[0].tobytes() == kept[1].tobytes(), "what a view shows has changed"


class Sharded(Worker):
    """Programs over all devices, donated arguments and other shardings."""

    alone = True
    pause = 0.3

    def __init__(self, devices: list[jax.Device]):
        super().__init__()
        mesh = jax.make_mesh((len(devices),), ("x",), devices=devices, axis_types=(jax.sharding.AxisType.Auto,))
        self._split, self._whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("x",), ()))
        self._step = jax.jit(lambda x: (x * 3 + 1, x.sum()), donate_argnums=0)
        self._gather = jax.jit(lambda x: x + 1, out_shardings=self._whole)
        self._turn = 0

    def step(self) -> None:
        self._turn = self._turn % 1000 + 1
        ramp = Ramp((64, 65_536, 524_288)[self._turn % 3], "int32", self._turn, 3)
        x = jax.device_put(ramp.numpy(), self._split)
        for _ in range(3):
            total = int(ramp.numpy().astype(np.int64).sum()) % 2**32
            x, seen = self._step(x)
            assert int(seen) % 2**32 == total, (ramp, int(seen), total)
            ramp = replace(ramp, start=ramp.start * 3 + 1, step=ramp.step * 3)
        ramp.check(x)
        replace(ramp, start=ramp.start + 1).check(self._gather(x))


class Threads(Worker):
    """Threads that live for a moment, each on a device of its own."""

    def __init__(self, devices: list[jax.Device]):
        super().__init__()
        self._devices, self._turn = devices, 0
        self._program = jax.jit(lambda x: (x + 1, x[::2] * 2, x))

    def step(self) -> None:
        self._turn = self._turn % 1000 + 1
        with ThreadPoolExecutor(len(self._devices)) as pool:
            list(pool.map(self._one, self._devices))

    def _one(self, device: jax.Device) -> None:
        ramp = Ramp(20_000, "uint32", self._turn, 5)
        more, half, same = self._program(jax.device_put(ramp.numpy(), device))
        replace(ramp, start=ramp.start + 1).check(more)
        replace(ramp, size=10_000, start=ramp.start * 2, step=20).check(half)
        ramp.check(same)


def all_workers(devices: list[jax.Device]) -> list[Worker]:
    """A pool for each device, and of the others one, each on another device where it needs one only."""
    count = len(devices)
    return [
        *(Pool(device, seed) for seed, device in enumerate(devices)),
        Training(devices[0]),
        Callbacks(devices[1 % count]),
        Views(devices[2 % count]),
        Sharded(devices),
        Threads(devices),
    ]
