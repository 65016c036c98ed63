"""Arrays move to make room: the workload of jax-ml/jax#9064 (see `fragments.py`), each case in a process of its own.

What moved is compared bit for bit with what NumPy computes; what an outsider knows the address of must not move.
"""

import textwrap

import pytest
from harness import run_jax

pytestmark = pytest.mark.arena

TPU = {"PJRT_ARENA_STRATEGY": "tpu", "PJRT_ARENA_LIMIT": "64MiB"}

#: Every case begins with this.
COMMON = """
import gc
import jax, jax.numpy as jnp, numpy as np
from harness import arena_device, bytes_in_use, eventually, stats
from pjrt_arena import memory
from fragments import MIB, Fragments, expected

DTYPES = ("float32", "bfloat16", "int8", "bool", "complex64", "float64")

def fails(act):
    # jaxlib's fast path of a jitted call raises ValueError
    try:
        jax.block_until_ready(act())
    except (RuntimeError, ValueError) as error:
        assert str(error).startswith("RESOURCE_EXHAUSTED: "), error
        return str(error)
    raise AssertionError("there was room")

def ramp(count, add=0):
    return jax.device_put(np.arange(count, dtype=np.float32) + np.float32(add), arena_device())
"""


def run_case(code: str, **settings: str) -> None:
    """Runs COMMON and `code`, whose arrays all lie in the arena, however NumPy's are aligned."""
    run_jax(COMMON + textwrap.dedent(code), **{"PJRT_ARENA_ZERO_COPY": "off"} | settings)


WORKLOAD = """
    start = stats()["bytes_in_use"]
    work = Fragments(DTYPES)
    assert {str(array.dtype) for array in work.kept} == set(DTYPES)
    others = [jnp.zeros((0, 5)), jnp.float32(2.5), jnp.int8(-3), jnp.zeros((3, 0, 2), jnp.complex64)]
    eventually(lambda: stats()["bytes_in_use"] - start, sum(a.nbytes for a in work.kept + others))

    # Outsiders: NumPy, dlpack, and an address that was asked for once. They hold arrays of different rounds.
    view = np.asarray(work.kept[0])
    exported = np.from_dlpack(work.kept[6])
    known = work.kept[3].unsafe_buffer_pointer()
    places = view.ctypes.data, exported.ctypes.data, known
    moves = memory.stats()[0].num_moves

    if MAKES_ROOM:
        whole = work.one_big(SHARE)
        assert (np.asarray(whole[::4097]) == 3).all()
        assert memory.stats()[0].num_moves > moves
    else:
        error = fails(work.one_big)
        assert "Out of memory while trying to allocate 51.20MiB (53687088 bytes) on cpu:0" in error, error
        assert "enough is free, but not in one piece" in error, error
        assert "could not move" not in error, error
        whole = None
        assert memory.stats()[0].num_moves == 0

    now = view.ctypes.data, exported.ctypes.data, work.kept[3].unsafe_buffer_pointer()
    assert now == places == (work.kept[0].unsafe_buffer_pointer(), work.kept[6].unsafe_buffer_pointer(), known)
    del whole
    gc.collect()
    work.check()
    assert view.tobytes() == expected(0, "float32").tobytes()
    assert exported.tobytes() == expected(6, "float32").tobytes()
    assert [float(others[1]), int(others[2])] == [2.5, -3]
    assert [np.asarray(a).shape for a in others[::3]] == [(0, 5), (3, 0, 2)]

    # Arrays that moved go on as arguments, also donated ones, and die as any.
    moved = jax.jit(lambda x: x + 1, donate_argnums=0)(work.kept[2 * 6 - 5])
    assert np.array_equal(np.asarray(moved), expected(7, "bfloat16") + 1)
    del moved, view, exported, now
    work.kept.clear()
    del others
    gc.collect()
    eventually(bytes_in_use, start)
"""


@pytest.mark.parametrize(
    ("settings", "makes_room", "share"),
    [
        ({"PJRT_ARENA_STRATEGY": "preallocate"}, False, 0.8),
        ({"PJRT_ARENA_STRATEGY": "tpu", "PJRT_ARENA_COMPACT": "off"}, False, 0.8),
        ({"PJRT_ARENA_STRATEGY": "tpu"}, True, 0.8),
        ({"PJRT_ARENA_STRATEGY": "preallocate", "PJRT_ARENA_COMPACT": "on"}, True, 0.8),
        # More than any region has. Those in which something is pinned, 14 MiB, cannot go.
        ({"PJRT_ARENA_STRATEGY": "growing", "PJRT_ARENA_COMPACT": "on"}, True, 0.6),
    ],
    ids=["preallocate", "tpu off", "tpu", "preallocate on", "growing on"],
)
def test_small_results_between_big_ones(settings, makes_room, share):
    settings = settings | {"PJRT_ARENA_LIMIT": "64MiB", "JAX_ENABLE_X64": "1"}
    run_case(WORKLOAD.replace("MAKES_ROOM", str(makes_room)).replace("SHARE", str(share)), **settings)


def test_four_devices_each_compact_on_their_own():
    run_case(
        """
        from jax.sharding import NamedSharding, PartitionSpec
        mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        split = NamedSharding(mesh, PartitionSpec("x"))
        work = Fragments(("float32", "int8"), split)
        view = np.asarray(work.kept[2].addressable_shards[1].data)
        address = view.ctypes.data

        # On one device alone first: the others have nothing to do with it.
        alone = jax.device_put(np.ones(40 * MIB // 4, np.float32), jax.devices()[2])
        alone.block_until_ready()
        assert [bool(device.num_compactions) for device in memory.stats()] == [False, False, True, False]
        del alone

        whole = work.one_big()
        assert all((np.asarray(shard.data)[::4097] == 3).all() for shard in whole.addressable_shards)
        assert all(device.num_compactions for device in memory.stats())
        del whole
        work.check()
        assert view.ctypes.data == address == work.kept[2].addressable_shards[1].data.unsafe_buffer_pointer()
        count = work.count // 4
        right = expected(2, "float32", work.count)[count:2 * count]
        assert view.tobytes() == right.tobytes()
        """,
        PJRT_ARENA_DEVICES="4",
        **TPU,
    )


def test_while_other_threads_run_programs():
    run_case(
        """
        # Every step checks its arrays itself: a NumPy view that a check takes would pin them while it lives.
        import threading
        def step(x, y, turn, good):
            counted = jnp.arange(x.size, dtype=jnp.float32)
            good &= (x == counted + turn).all() & (y == counted).all()
            return x + 1, y * 2 - y, turn + 1, good
        step = jax.jit(step, donate_argnums=(0, 1, 2, 3))
        part = jax.jit(lambda x: x[:3000] * 1)
        same = jax.jit(lambda part, turn, good: good & (part == jnp.arange(3000, dtype=jnp.float32) + turn).all())
        stop, steps, results = threading.Event(), [0] * 4, [None] * 4
        warm = threading.Barrier(5)

        def run(number):
            size = 60_000 + 1000 * number
            x, y, turn, good = ramp(size), ramp(size), jnp.float32(0), jnp.bool_(True)
            held = []
            while not stop.is_set():
                x, y, turn, good = step(x, y, turn, good)
                steps[number] += 1
                held = held[-5:] + [(steps[number], part(x))]
                if steps[number] % 8 == 0:
                    for then, array in held:
                        good = same(array, np.float32(then), good)
                    jax.block_until_ready(good)
                    if steps[number] == 8:
                        warm.wait(60)
            results[number] = bool(good), np.array_equal(np.asarray(x), np.arange(size) + steps[number])

        # Daemons: a failure of this thread ends the process.
        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(4)]
        for thread in threads:
            thread.start()
        warm.wait(60)
        small = jax.jit(lambda turn: jnp.full(20_000, turn, jnp.float32))
        large = jax.jit(lambda turn: jnp.full(MIB, turn, jnp.float32))
        for turn in range(8):
            # Fragments, up to about 40 of 64 MiB, then one array that needs most of what is free.
            pairs = [(large(i), small(i)) for i in range(9)]
            kept = [small for _, small in pairs]
            jax.block_until_ready(pairs)
            del pairs
            whole = jax.device_put(np.full(44 * MIB // 4, turn, np.float32), arena_device())
            assert (np.asarray(whole) == turn).all()
            del whole
            for i, array in enumerate(kept):
                assert (np.asarray(array) == i).all(), (turn, i)
            del kept, array  # and with them the views
        stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert results == [(True, True)] * 4, results
        seen = memory.stats()[0]
        assert seen.num_compactions > 0 and seen.num_moves > seen.num_migrations, seen
        assert min(steps) > 16, steps
        """,
        **TPU,
    )


def test_training_in_barely_enough_memory():
    # Parameters, moments and batch take 1.7 MiB and donate; around them arrays of odd sizes come and go.
    run_case(
        """
        import collections, random
        def loss(p, x): return jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"] - x) ** 2)
        def update(p, m, x):
            value, g = jax.value_and_grad(loss)(p, x)
            m = jax.tree.map(lambda m, g: 0.9 * m + g, m, g)
            return jax.tree.map(lambda p, m: p - 0.01 * m, p, m), m, value

        rng = np.random.default_rng(1)
        host = {"a": rng.normal(size=(64, 512)).astype("f4") / 8, "b": rng.normal(size=(512, 64)).astype("f4") / 20}
        x = rng.normal(size=(128, 64)).astype("f4")
        def train(device, steps, around):
            step = jax.jit(update, donate_argnums=(0, 1))
            p, m, x_ = jax.device_put((host, jax.tree.map(np.zeros_like, host), x), device)
            first = None
            for number in range(steps):
                p, m, value = step(p, m, x_)
                first = value if first is None else first
                around(number)
            return jax.tree.map(np.asarray, (p, m, first, value))

        random.seed(7)
        live, held = collections.deque(), 0
        def around(number):
            # Up to 5 MiB of arrays from 5 KiB to 1 MiB: in 8 MiB there is a hole for a new one only by luck.
            global held
            count = random.choice([1300, 9000, 40_000, 130_000, 260_000])
            while held + 4 * count > 5 * MIB:
                at = random.randrange(len(live))
                size, add, old = live[at]
                del live[at]
                held -= 4 * size
                if number % 16 == 0:
                    assert np.array_equal(np.asarray(old), np.arange(size, dtype="f4") + np.float32(add)), (size, add)
            live.append((count, number, ramp(count, number)))
            held += 4 * count

        ours = train(arena_device(), 2000, around)
        for size, add, old in live:
            assert np.array_equal(np.asarray(old), np.arange(size, dtype="f4") + np.float32(add)), (size, add)
        compactions = memory.stats()[0].num_compactions
        # Alone on the same device, bit for bit; on JAX's own backend, another build of XLA, nearly.
        alone = train(arena_device(), 2000, lambda number: None)
        theirs = train(jax.devices("cpu")[0], 2000, lambda number: None)
        for our, same, their in zip(*map(jax.tree.leaves, (ours, alone, theirs)), strict=True):
            assert our.tobytes() == same.tobytes()
            np.testing.assert_allclose(our, their, rtol=1e-3, atol=1e-4)
        assert ours[3] < 0.5 * ours[2]
        assert compactions > 3, memory.stats()
        """,
        PJRT_ARENA_STRATEGY="tpu",
        PJRT_ARENA_LIMIT="8MiB",
    )


def test_arguments_of_a_program_move_for_its_results():
    run_case(
        """
        def divided(pieces):
            # `pieces` of 4 MiB stay, with holes of 4 MiB between them.
            arrays = [ramp(MIB, turn).block_until_ready() for turn in range(2 * pieces)]
            return arrays[::2]

        def right(arrays):
            return all(np.array_equal(np.asarray(a), np.arange(MIB, dtype="f4") + 2 * i) for i, a in enumerate(arrays))

        arrays = divided(7)
        joined = jax.jit(lambda xs: jnp.concatenate(xs))(arrays)
        assert memory.stats()[0].num_compactions == 1 and joined.nbytes == 28 * MIB
        assert right(np.split(np.asarray(joined), 7)) and right(arrays)
        del joined, arrays
        gc.collect()
        eventually(bytes_in_use, 0)

        # Each of the results fits a hole, all of them together do not, before something moves.
        arrays = divided(7)
        before = memory.stats()[0].num_compactions
        results = jax.jit(lambda xs: [jnp.concatenate(xs[:5]) + 1, xs[0][:MIB // 2] + 1, xs[1] + 1])(arrays)
        assert memory.stats()[0].num_compactions > before
        assert np.array_equal(np.asarray(results[0])[-MIB:], np.arange(MIB, dtype="f4") + 9)
        assert np.array_equal(np.asarray(results[1]), np.arange(MIB // 2, dtype="f4") + 1)
        assert np.array_equal(np.asarray(results[2]), np.arange(MIB, dtype="f4") + 3)
        assert right(arrays)
        """,
        **TPU,
    )


def test_out_of_memory_names_what_could_not_move():
    run_case(
        """
        import re
        arrays = [ramp(MIB, turn).block_until_ready() for turn in range(15)]
        views = [np.asarray(array) for array in arrays[3::4]]
        places = [view.ctypes.data for view in views]
        del arrays[::2]  # Every view's array stays.
        before = stats()
        error = fails(lambda: jnp.zeros(30 * MIB // 4, jnp.float32))
        first, *rest = error.splitlines()
        sentence = (r"RESOURCE_EXHAUSTED: Attempting to allocate 30\\.00M\\. "
                    r"That was not possible\\. There are (.+)M free\\. "
                    r"Due to fragmentation, the largest contiguous region of free memory is (.+)M\\.")
        free, hole = map(float, re.match(sentence, first).groups())
        assert 30 <= free < 40 and hole < 30, first
        said = "Out of memory while trying to allocate 30.00MiB (31457280 bytes) on cpu:0 [arena, tpu]."
        assert rest[0] == said, rest
        assert "  could not move 12.00MiB in 3 block(s): external references (NumPy views, dlpack)" in rest, rest
        assert stats()["bytes_in_use"] == before["bytes_in_use"]
        assert [view.ctypes.data for view in views] == places
        for number, view in enumerate(views):
            assert np.array_equal(view, np.arange(MIB, dtype="f4") + 3 + 4 * number)

        # Asked for more than is free, it does not speak of fragmentation, and works on.
        error = fails(lambda: jnp.zeros(50 * MIB // 4, jnp.float32) + 1)
        assert "Due to fragmentation" not in error and "could not move" not in error, error
        fits = jnp.zeros(3 * MIB // 4, jnp.float32) + 1
        assert float(fits.sum()) == 3 * MIB // 4
        del fits

        # Once the views are gone there is room.
        del views, view
        gc.collect()
        assert (np.asarray(jnp.ones(30 * MIB // 4, jnp.float32)) == 1).all()
        """,
        **TPU,
    )


def test_out_of_memory_for_real_leaks_nothing():
    run_case(
        """
        held = [ramp(MIB, turn) for turn in range(14)]
        jax.block_until_ready(held)
        gc.collect()
        before = memory.stats()[0]
        for turn in range(30):
            fails(lambda: ramp(3 * MIB))
            fails(lambda: jax.jit(lambda x: jnp.tile(x, 4))(held[0]))
        after = memory.stats()[0]
        blocks = ("num_live_blocks", "num_pending_blocks", "num_moves")
        for field in ("bytes_in_use", "free_bytes", "slack_bytes", *blocks):
            assert getattr(after, field) == getattr(before, field), (field, before, after)
        assert float(ramp(MIB)[5]) == 5
        assert all(np.array_equal(np.asarray(a), np.arange(MIB, dtype="f4") + i) for i, a in enumerate(held))
        del held
        gc.collect()
        eventually(bytes_in_use, 0)
        """,
        **TPU,
    )
