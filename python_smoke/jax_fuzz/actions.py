"""What a thread may do next. Each action is done on the arena first; only what has worked there is done on the CPU."""

from __future__ import annotations

import copy
import ctypes
import gc
import tempfile
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from pjrt_arena import memory

from jax_fuzz.control import CONTROL
from jax_fuzz.programs import Program, act, aval
from jax_fuzz.terms import TERMS, fresh
from jax_fuzz.values import difference, draw_dtype, draw_numpy, draw_shape, is_narrow
from jax_fuzz.world import DLPACK, Different, Pair, World

Action = Callable[[World], None]


def put(world: World) -> None:
    """NumPy's array goes to a device, or in parts to all."""
    rng = world.rng
    dtype, shape = draw_dtype(rng), draw_shape(rng, world.most)
    host = draw_numpy(rng, dtype, shape)
    before = host.copy()
    to: Any = rng.choice(world.devices)
    if rng.random() < 0.25 and (sharding := world.sharding(shape)) is not None:
        to = sharding
    world.say(f"device_put {dtype}{list(shape)} to {to}")
    ours = world.in_arena(lambda: jax.device_put(host, to))
    world.add(ours, jax.device_put(before, world.cpu), world.said[-1])
    world.lent.append((host, before.tobytes()))


def create(world: World) -> None:
    """JAX makes an array, which is not committed to its device."""
    seed, device = world.rng.getrandbits(32), world.rng.choice(world.devices)
    world.say(f"create {seed} on {device}")

    def make(device: jax.Device) -> jax.Array | None:
        with jax.default_device(device):
            return act(fresh, seed, [], world.most)

    if (ours := world.in_arena(lambda: make(device))) is not None:
        theirs = make(world.cpu)
        assert theirs is not None
        world.add(ours, theirs, world.said[-1])


def eager(world: World) -> None:
    """An operation outside of any program of ours."""
    pairs = world.together(4)
    if not pairs:
        return
    term = world.rng.choice(TERMS + CONTROL[:2])
    seed = world.rng.getrandbits(32)
    ours, theirs = [pair.ours for pair in pairs], [pair.theirs for pair in pairs]
    world.say(f"{term.__name__} {seed} of {[aval(x) for x in ours]} on {pairs[0].place}")
    # What is made of nothing else lies where JAX puts it.
    with jax.default_device(world.devices[pairs[0].place[0]]):
        made = world.in_arena(lambda: act(term, seed, ours, world.most), len(pairs[0].place) > 1)
    with jax.default_device(world.cpu):
        expected = act(term, seed, theirs, world.most)
    if (made is None) != (expected is None):
        raise Different(f"refused by one of both: {world.said[-1]}")
    if made is not None and expected is not None:
        world.add(made, expected, world.said[-1])


def program(world: World) -> None:
    """A program, new or run before, perhaps with donated arguments."""
    rng = world.rng
    known = rng.choice(world.programs) if world.programs and rng.random() < 0.6 else None
    pairs = _arguments(world, known) if known else world.together(rng.choice((1, 2, 2, 3, 4)))
    if not pairs:
        return
    if known is None or len(pairs) < len(known.arguments):
        donated = [
            number
            for number, pair in enumerate(pairs)
            if rng.random() < 0.3 and sum(pair.ours is other.ours for other in pairs) == 1
        ]
        avals = [aval(pair.ours) for pair in pairs]
        known = Program(rng.getrandbits(32), rng.choice((1, 2, 4, 8, 12)), world.most, avals, tuple(donated))
        world.programs = [*world.programs[-30:], known]
    place, several = pairs[0].place, len(pairs[0].place) > 1
    out = world.sharding(()) if several and rng.random() < 0.2 else None
    world.say(f"program {known.seed} of {known.arguments} on {place}, donated {known.donated}, results {out}")
    run = known
    try:
        ours = world.in_arena(lambda: run.run([pair.ours for pair in pairs], out), several)
    except (RuntimeError, ValueError) as error:
        # Two arrays may have one buffer.
        if "donate" in str(error):
            return
        raise
    early = rng.random()
    gone = [pairs[number] for number in known.donated]
    # What a program reads may go while it runs.
    if early < 0.15:
        last = next((pair for pair in pairs if pair not in gone and all(pair.ours is not made for made in ours)), None)
        gone += [last] if last else []
    theirs = run.run([pair.theirs for pair in pairs])
    for pair in gone:
        if pair in world.pairs:
            world.take(pair)
            if early < 0.1 and not pair.ours.is_deleted():
                pair.ours.delete()
    world.counts["programs"] += 1
    if len(ours) != len(theirs):
        raise Different(f"{len(ours)} results instead of {len(theirs)}: {world.said[-1]}")
    for number, (made, expected) in enumerate(zip(ours, theirs, strict=True)):
        world.add(made, expected, f"result {number} of {world.said[-1]}")


def _arguments(world: World, known: Program) -> list[Pair]:
    """Arrays that a program takes, each of them once; fewer if there are not enough on one place."""
    chosen: list[Pair] = []
    for wanted in known.arguments:
        fit = [
            pair
            for pair in world.pairs
            if aval(pair.ours) == wanted and pair not in chosen and (not chosen or pair.place == chosen[0].place)
        ]
        if not fit:
            break
        chosen.append(world.rng.choice(fit))
    return chosen


def move(world: World) -> None:
    """An array goes to another device, to all of them, or is copied where it is."""
    if (pair := world.pick()) is None:
        return
    rng = world.rng
    to: Any = rng.choice(world.devices)
    if rng.random() < 0.3 and (sharding := world.sharding(pair.ours.shape)) is not None:
        to = sharding
    how = rng.choice(("put", "put", "donate", "copy", "deepcopy"))
    world.say(f"{how} {aval(pair.ours)} from {pair.place} to {to}")
    several = len(pair.place) > 1 or not isinstance(to, jax.Device)
    if how in ("copy", "deepcopy"):
        copied: Callable[[], jax.Array] = pair.ours.copy if how == "copy" else partial(copy.deepcopy, pair.ours)
        ours = world.in_arena(copied, several)
    else:
        # Otherwise the copy on all devices has the buffer of this one, and is half gone when that is donated.
        may_alias = None if how == "donate" else False
        ours = world.in_arena(
            lambda: jax.device_put(pair.ours, to, donate=how == "donate", may_alias=may_alias), several
        )
    if how == "donate":
        world.take(pair)
    # One that shares its buffer would be gone when the other is donated.
    world.add(ours, pair.theirs.copy(), world.said[-1])


def view(world: World) -> None:
    """NumPy, dlpack or an address shows an array's memory, for a while."""
    if (pair := world.pick()) is None or is_narrow(pair.ours.dtype):
        return
    how = world.rng.choice(("numpy", "numpy", "dlpack", "shard", "address"))
    world.say(f"view by {how} of {aval(pair.ours)} on {pair.place}")
    expected = np.asarray(pair.theirs).tobytes()
    alone = len(pair.place) == 1
    if how == "dlpack" and str(pair.ours.dtype) in DLPACK and alone:
        seen = world.in_arena(lambda: np.from_dlpack(pair.ours))
    elif how == "address" and alone and pair.ours.nbytes:
        address = world.in_arena(lambda: jax.block_until_ready(pair.ours).unsafe_buffer_pointer())
        world.check_view(world.said[-1], np.frombuffer(ctypes.string_at(address, pair.ours.nbytes), np.uint8), expected)
        return
    elif how == "shard":
        shard = world.rng.choice(pair.ours.addressable_shards)
        seen = world.in_arena(lambda: np.asarray(shard.data))
        expected = np.asarray(pair.theirs)[shard.index].tobytes()
    else:
        seen = world.in_arena(lambda: np.asarray(pair.ours))
    world.check_view(world.said[-1], seen, expected)
    world.views.append((world.said[-1], seen, expected))


def look(world: World) -> None:
    """An array is compared and lives on, without a view that JAX keeps where dlpack has the type."""
    if pair := world.pick():
        world.say(f"look at {aval(pair.ours)} on {pair.place}")
        brief = len(pair.place) == 1 and str(pair.ours.dtype) in DLPACK
        world.check(pair, world.in_arena(lambda: np.from_dlpack(pair.ours)) if brief else None)


def forget(world: World) -> None:
    """Some arrays go, compared or not, in some order."""
    world.say("forget")
    for pair in world.rng.sample(world.pairs, min(len(world.pairs), world.rng.choice((1, 1, 2, 5)))):
        if world.rng.random() < 0.7:
            world.drop(pair)
            continue
        world.take(pair)
        reference = weakref.ref(pair.ours)
        pair.ours = pair.theirs
        # NumPy's views keep what they show.
        kept = world.views or any(reference() is other.ours for other in world.pairs)
        if reference() is not None and not kept:
            raise Different(f"an array outlives its last reference: {pair.how}")


def delete(world: World) -> None:
    """An array is deleted; a use afterwards is an error."""
    if (pair := world.pick()) is None or any(pair is not other and pair.ours is other.ours for other in world.pairs):
        return
    world.say(f"delete {aval(pair.ours)} on {pair.place}")
    world.take(pair)
    pair.ours.delete()
    try:
        np.asarray(pair.ours)
    except RuntimeError as error:
        if "deleted" in str(error):
            return
        raise
    raise Different("a deleted array can be used")


def wait(world: World) -> None:
    """Waits for some arrays, or starts their way to the host."""
    world.say("wait")
    some = [pair.ours for pair in world.pairs if world.rng.random() < 0.3]
    if world.rng.random() < 0.5:
        world.in_arena(lambda: jax.block_until_ready(some))
    else:
        world.in_arena(lambda: [array.copy_to_host_async() for array in some])


def tidy(world: World) -> None:
    """Memory is compacted, given back, or looked at."""
    draw = world.rng.randrange(12)
    world.say(f"tidy {draw}")
    if draw < 5:
        memory.compact()
    elif draw < 8:
        memory.trim()
    elif draw == 8:
        with tempfile.TemporaryDirectory() as folder:
            memory.snapshot(Path(folder) / f"snapshot.{world.rng.choice(('json', 'html', 'pickle'))}")
    elif draw == 9:
        gc.collect()
    else:
        memory.summary()
        for device in world.devices:
            _balanced(device)


def _balanced(device: jax.Device) -> None:
    stats = device.memory_stats()
    if not 0 <= stats["bytes_in_use"] <= stats["peak_bytes_in_use"]:
        raise Different(f"more is in use than at the peak: {stats}")


def same_twice(world: World) -> None:
    """One program at once on two devices that have the same numbers."""
    if (pair := world.pick()) is None or len(world.devices) < 2 or len(pair.place) > 1:
        return
    world.say(f"the same twice: {aval(pair.ours)} on {pair.place}")
    twin = world.in_arena(lambda: jax.device_put(pair.ours, world.rng.choice(world.devices)))
    one = Program(world.rng.getrandbits(32), 4, world.most, [aval(pair.ours)], ())
    results = [world.in_arena(partial(one.run, [x])) for x in (pair.ours, twin)]
    for first, second in zip(*results, strict=True):
        world.counts["compared"] += 1
        if wrong := difference(np.asarray(first), np.asarray(second)):
            raise Different(f"two devices give different results: {wrong}, program {one.seed}")
    world.counts["programs"] += 2


#: Each action, and how often it is chosen.
ACTIONS: dict[Action, int] = {
    put: 8,
    create: 2,
    eager: 10,
    program: 16,
    move: 4,
    view: 4,
    look: 4,
    forget: 6,
    delete: 2,
    wait: 2,
    tidy: 1,
    same_twice: 1,
}
