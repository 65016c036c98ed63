"""XLA's shardings in the words of a mesh: which axes cut which dimension."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np


class Inexpressible(Exception):
    """A sharding that cannot be written; one sentence."""


class Axis(NamedTuple):
    """An axis of a mesh, or the part of it that remains when `before` pieces were cut off on the major side."""

    name: str
    before: int
    size: int


class Mesh(NamedTuple):
    """A mesh as a program declares it."""

    name: str
    axes: tuple[tuple[str, int], ...]
    #: The partitions, in the order of the mesh.
    devices: tuple[int, ...]

    def factors(self) -> list[Axis]:
        """The axes in prime factors, major to minor."""
        parts = []
        for name, size in self.axes:
            before = 1
            for factor in _primes(size):
                parts.append(Axis(name, before, factor))
                before *= factor
        return parts


def _primes(number: int) -> list[int]:
    found, factor = [], 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found


class Tiles(NamedTuple):
    """A sharding as numbers."""

    #: Into how many pieces each dimension is cut.
    counts: tuple[int, ...]
    #: For each partition, which piece of each dimension it has.
    places: np.ndarray


def tiles(sharding: Any, rank: int, partitions: int) -> Tiles:
    """The numbers of a sharding.

    Raises:
      Inexpressible: it is more than cuts and copies.
    """
    if sharding.is_replicated():
        return Tiles((1,) * rank, np.zeros((partitions, rank), int))
    if not sharding.is_tiled():
        raise Inexpressible(f"the sharding {sharding} neither cuts an array nor copies it")
    if hasattr(sharding, "v3_to_v2_sharding"):
        sharding = sharding.v3_to_v2_sharding()
    counts = tuple(sharding.tile_assignment_dimensions())
    last = sharding.replicate_on_last_tile_dim()
    others = [kind for kind in sharding.subgroup_types() if "REPLICATED" not in str(kind)]
    if len(counts) - last - len(sharding.subgroup_types()) != rank or others:
        raise Inexpressible(f"the sharding {sharding} of an array of {rank} dimensions is more than cuts and copies")
    devices = np.asarray(sharding.tile_assignment_devices())
    if len(devices) != partitions or set(devices.tolist()) != set(range(partitions)):
        raise Inexpressible(f"the sharding {sharding} is not over the program's {partitions} partitions")
    places = np.empty((partitions, rank), int)
    index = np.unravel_index(np.arange(partitions), counts)
    places[devices] = np.stack(index, axis=-1)[:, :rank] if counts else places[devices]
    return Tiles(counts[:rank], places)


def axes(found: Tiles, mesh: Mesh) -> list[list[Axis]] | None:
    """The axes of the mesh that cut each dimension, major to minor; None if no axes do.

    Each prime factor of an axis moves the place along one dimension by a fixed stride, or not at all. The strides of a
    dimension's factors are those of a number with mixed radix, and together they must give every partition its place.
    """
    factors = mesh.factors()
    if math.prod(factor.size for factor in factors) != len(found.places):
        return None
    places = found.places[np.asarray(mesh.devices)].reshape([factor.size for factor in factors] + [-1])
    strided: list[list[tuple[int, Axis]]] = [[] for _ in found.counts]
    for position, factor in enumerate(factors):
        step = places[tuple(int(position == other) for other in range(len(factors)))]
        moved = np.flatnonzero(step)
        if len(moved) > 1:
            return None
        if len(moved) == 1:
            strided[moved[0]].append((int(step[moved[0]]), factor))
    expected = np.zeros_like(places)
    for dimension, cuts in enumerate(strided):
        cuts.sort(key=lambda cut: -cut[0])
        size = 1
        for stride, factor in reversed(cuts):
            if stride != size:
                return None
            size *= factor.size
            shape = [1] * len(factors)
            shape[factors.index(factor)] = factor.size
            expected[..., dimension] += np.arange(factor.size).reshape(shape) * stride
        if size != found.counts[dimension]:
            return None
    if not np.array_equal(expected, places):
        return None
    return [_merged([factor for _, factor in cuts]) for cuts in strided]


def _merged(factors: list[Axis]) -> list[Axis]:
    """Neighbouring parts of one axis, in one."""
    merged: list[Axis] = []
    for factor in factors:
        last = merged[-1] if merged else None
        if last is not None and last.name == factor.name and last.before * last.size == factor.before:
            merged[-1] = last._replace(size=last.size * factor.size)
        else:
            merged.append(factor)
    return merged


def is_manual(sharding: Any) -> bool:
    """Whether an array with it is one device's already, in some axes at least."""
    if sharding.is_manual():
        return True
    return sharding.is_tiled() and any("MANUAL" in str(kind) for kind in sharding.subgroup_types())


# ---- Shardings of leading dimensions --------------------------------------------------------------------------------


def of_leading(sharding: Any, rank: int, dimensions: int) -> Any:
    """The sharding with all but the first dimensions in one piece, as an array of those; None where nothing is cut."""
    if sharding is None or not sharding.is_tiled() or dimensions >= rank:
        return None
    partitions = sharding.num_devices()
    try:
        found = tiles(sharding, rank, partitions)
    except Inexpressible:
        return None
    counts = found.counts[:dimensions]
    if math.prod(counts) == 1:
        return None
    return Tiles(counts, found.places[:, :dimensions])


def pieces(batch: Tiles | None) -> int:
    """Into how many pieces it cuts."""
    return math.prod(batch.counts) if batch is not None else 1


def over_leading(batch: Tiles | None, rank: int) -> Any:
    """An array's sharding whose leading dimensions are cut like this."""
    from jaxlib import xla_client

    if batch is None or rank < len(batch.counts):
        return xla_client.HloSharding.replicate()
    order = np.argsort(np.ravel_multi_index(tuple(batch.places.T), batch.counts), kind="stable")
    copies = len(order) // math.prod(batch.counts)
    proto = xla_client.OpSharding()
    proto.type = xla_client.OpSharding.Type.OTHER
    dims = [*batch.counts, *(1,) * (rank - len(batch.counts))]
    proto.tile_assignment_dimensions = [*dims, copies] if copies > 1 else dims
    proto.tile_assignment_devices = order.tolist()
    proto.replicate_on_last_tile_dim = copies > 1
    return xla_client.HloSharding.from_proto(proto)
