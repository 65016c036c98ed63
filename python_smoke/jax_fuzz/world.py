"""The arrays of one thread: each in the arena and, with the same numbers, on JAX's CPU backend."""

from __future__ import annotations

import random
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from turns import Turns

from jax_fuzz.programs import Program, is_exhausted
from jax_fuzz.values import difference

#: For programs over several devices.
TURNS = Turns()
#: Types that dlpack has, for NumPy.
DLPACK = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")


class Different(AssertionError):
    """The arena's numbers are not those of JAX's CPU backend."""


class Exhausted(Exception):
    """The arena had no room."""


def is_gone(array: jax.Array) -> bool:
    """Whether an array was deleted or donated, or a part of it, which other arrays may share."""
    if array.is_deleted() or len(array.devices()) == 1:
        return bool(array.is_deleted())
    return any(shard.data.is_deleted() for shard in array.addressable_shards)


@dataclass(eq=False)
class Pair:
    """An array of the arena, and what it must be."""

    ours: jax.Array
    theirs: jax.Array
    #: How it was made.
    how: str

    @property
    def place(self) -> tuple[int, ...]:
        """The devices that it lies on: what is to be an argument of the same program lies on the same ones."""
        return tuple(sorted(device.id for device in self.ours.devices()))


@dataclass
class World:
    """What one thread has and counts."""

    seed: int
    devices: list[jax.Device]
    cpu: jax.Device
    #: Elements of the largest array, and bytes of all.
    most: int
    budget: int
    rng: random.Random = field(init=False)
    pairs: list[Pair] = field(default_factory=list)
    #: Views of arrays of the arena, with the bytes that they must show.
    views: list[tuple[str, Any, bytes]] = field(default_factory=list)
    #: NumPy arrays that the arena was given, with the bytes that they must keep.
    lent: deque[tuple[np.ndarray, bytes]] = field(default_factory=lambda: deque(maxlen=8))
    programs: list[Program] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    said: deque[str] = field(default_factory=lambda: deque(maxlen=12))

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.mesh = None
        if len(self.devices) > 1:
            axis = (jax.sharding.AxisType.Auto,)
            self.mesh = jax.make_mesh((len(self.devices),), ("x",), devices=self.devices, axis_types=axis)

    def sharding(self, shape: Sequence[int]) -> NamedSharding | None:
        """A sharding over all devices: split where the first dimension can be, else whole on each."""
        if self.mesh is None:
            return None
        split = bool(shape) and shape[0] % len(self.devices) == 0 and self.rng.random() < 0.7
        return NamedSharding(self.mesh, PartitionSpec(*("x",) if split else ()))

    def say(self, text: str) -> None:
        """Notes what is done, for the report of a failure."""
        self.said.append(text)

    def in_arena(self, work: Callable[[], Any], several: bool = False) -> Any:
        """Does something on the arena.

        Raises:
          Exhausted: there was no room; what was there is as before.
        """
        try:
            with TURNS.taken(several):
                return jax.block_until_ready(work()) if several else work()
        except (RuntimeError, ValueError) as error:
            if is_exhausted(error):
                raise Exhausted(str(error).splitlines()[0]) from None
            raise

    def pick(self) -> Pair | None:
        """One of the arrays."""
        return self.rng.choice(self.pairs) if self.pairs else None

    def together(self, count: int) -> list[Pair]:
        """Some arrays that lie on the same devices; the same one may be there twice."""
        if (first := self.pick()) is None:
            return []
        near = [pair for pair in self.pairs if pair.place == first.place]
        return [first, *(self.rng.choice(near) for _ in range(count - 1))]

    def add(self, ours: jax.Array, theirs: jax.Array, how: str) -> None:
        """Takes up an array that was made twice."""
        self.pairs.append(Pair(ours, theirs, how))

    def take(self, pair: Pair) -> None:
        """Forgets a pair without looking at it."""
        self.pairs.remove(pair)

    def drop(self, pair: Pair) -> None:
        """Compares a pair and lets it go."""
        self.take(pair)
        self.check(pair)

    def check(self, pair: Pair, seen: Any = None) -> None:
        """Compares a pair; `seen` is the arena's array as NumPy has it.

        Raises:
          Different: they are not the same, bit for bit.
        """
        ours = np.asarray(pair.ours if seen is None else seen)
        theirs = np.asarray(pair.theirs)
        self.counts["compared"] += 1
        if wrong := difference(ours, theirs):
            raise Different(f"{wrong}\n  made by {pair.how}, on devices {pair.place}")

    def check_view(self, how: str, view: Any, expected: bytes) -> None:
        """Compares what a view shows with what it showed at first.

        Raises:
          Different: it has changed.
        """
        self.counts["compared"] += 1
        if np.asarray(view).tobytes() != expected:
            raise Different(f"what a view shows has changed: {how}")

    def sweep(self) -> None:
        """Forgets what was deleted or donated as another array of the same buffer, such as a program's own argument."""
        self.pairs = [pair for pair in self.pairs if not is_gone(pair.ours) and not is_gone(pair.theirs)]

    def keep_within_budget(self) -> None:
        """Drops arrays until they take no more than they may."""
        while self.pairs and sum(pair.ours.nbytes for pair in self.pairs) > self.budget:
            self.drop(self.pairs[self.rng.randrange(len(self.pairs))])
        while len(self.views) > 6:
            self.check_view(*self.views.pop(self.rng.randrange(len(self.views))))

    def make_room(self) -> None:
        """Drops half of the arrays, and all views."""
        while self.views:
            self.check_view(*self.views.pop())
        for pair in self.rng.sample(self.pairs, (len(self.pairs) + 1) // 2):
            self.drop(pair)

    def end(self) -> None:
        """Compares and drops everything; whatever is no longer referred to must be gone."""
        while self.views:
            self.check_view(*self.views.pop())
        references = [weakref.ref(pair.ours) for pair in self.pairs]
        while self.pairs:
            self.drop(self.pairs[-1])
        if any(reference() is not None for reference in references):
            raise Different("an array outlives its last reference")
        for given, expected in self.lent:
            if given.tobytes() != expected:
                raise Different(f"a NumPy array was written to: {given.dtype}{list(given.shape)}")
        self.lent.clear()
        self.programs.clear()
