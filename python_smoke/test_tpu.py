"""What the strategy `tpu` models beside moving: programs' scratch and tiled layouts; and `memory` used by hand."""

import json

import pytest
from harness import run_jax
from test_compaction import TPU, run_case

pytestmark = pytest.mark.arena


def test_a_view_at_the_bottom_leaves_programs_their_scratch():
    """An array that a program reads does not move, so a view of it then stays at the bottom for as long as it lives."""
    run_case(
        """
        slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200_000, lambda _, x: (x * 3 + 1) % 1000, x))
        scratch = jax.jit(lambda x: jnp.sort(jnp.sin(x)[::-1])[:10] + jnp.cumsum(x)[:10])
        x = ramp(1000)
        large = ramp(MIB // 4)
        needs = scratch.lower(large).compile().memory_analysis().temp_size_in_bytes
        assert needs >= MIB, needs
        expected = np.asarray(jax.jit(scratch)(jax.device_put(np.asarray(large), jax.devices("cpu")[0])))
        under_way = slow(x)
        view = np.asarray(x)
        address = view.ctypes.data
        for _ in range(3):
            result = scratch(large)
            np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-4)
        assert stats()["bytes_reserved"] >= needs
        assert address == view.ctypes.data == x.unsafe_buffer_pointer()
        assert np.array_equal(view, np.arange(1000))
        # Scratch goes to whoever needs the room.
        del result, large
        under_way.block_until_ready()
        whole = ramp(60 * MIB // 4)
        assert float(whole[-1]) > 0
        """,
        **TPU,
    )


def test_scratch_is_set_aside_at_the_bottom():
    run_case(
        """
        # Products of products: XLA keeps the inner ones, 4 MiB each, in its scratch.
        program = jax.jit(lambda x: jnp.tanh((x @ x) @ (x.T @ x)) @ x)
        x = jax.block_until_ready(jnp.ones((1024, 1024)) / 1024)
        needs = program.lower(x).compile().memory_analysis().temp_size_in_bytes
        assert needs >= 4 * MIB, needs

        # Arrays lie where the scratch has to be: they move, and stay as they are. A view moves before it is given out.
        low = [ramp(MIB // 4, turn) for turn in range(12)]
        jax.block_until_ready(low)
        view = np.asarray(low[5])
        address = view.ctypes.data
        start = stats()
        # An engine may want some bytes for the programs that made the arrays.
        assert start["bytes_reserved"] == start["peak_bytes_reserved"] <= 256, start
        result = program(x).block_until_ready()
        seen = stats()
        assert seen["bytes_reserved"] == seen["peak_bytes_reserved"] == needs, (seen, needs)
        assert seen["bytes_in_use"] == start["bytes_in_use"] + 4 * MIB, "scratch is no array"
        assert memory.stats()[0].bytes_reserved == needs
        rows = [line for line in memory.map(80, 8).splitlines() if "|" in line]
        assert rows[0].split("|")[1].startswith("S" * 16), rows
        for turn, array in enumerate(low):
            assert np.array_equal(np.asarray(array), np.arange(MIB // 4, dtype="f4") + turn), turn
        assert view.ctypes.data == address

        # The next run finds it set aside. Arrays outrank it when no program runs.
        moves = memory.stats()[0].num_moves
        assert np.array_equal(np.asarray(program(x)), np.asarray(result))
        assert memory.stats()[0].num_moves - moves <= 2  # of the two views
        del low, array, view, result
        gc.collect()
        rest = stats()["bytes_limit"] - stats()["bytes_in_use"] - MIB
        filler = jax.device_put(np.ones(rest // 4, np.float32), arena_device())
        assert (np.asarray(filler) == 1).all()
        assert stats()["bytes_reserved"] == 0 and stats()["peak_bytes_reserved"] == needs

        # Now the program does not fit, and says which it is. Nothing is lost, and then it runs again.
        before = stats()["bytes_in_use"]
        error = fails(lambda: program(x))
        assert error.startswith(
            f"RESOURCE_EXHAUSTED: Error loading program 'jit__lambda': Attempting to reserve {needs / MIB:.2f}M at the "
            "bottom of memory. That was not possible. There are "), error
        assert " free, 0B reserved, and " in error and " reservable." in error, error
        assert stats()["bytes_in_use"] == before
        del filler
        gc.collect()
        assert np.asarray(program(x)).shape == (1024, 1024)
        assert stats()["bytes_reserved"] == needs
        """,
        **TPU,
    )


def test_other_strategies_set_nothing_aside():
    run_case(
        """
        x = jax.block_until_ready(jnp.ones((512, 512)))
        (jax.jit(lambda x: jnp.tanh((x @ x) @ (x.T @ x)) @ x)(x)).block_until_ready()
        assert stats()["peak_bytes_reserved"] == 0
        """,
        PJRT_ARENA_LIMIT="64MiB",
        PJRT_ARENA_COMPACT="on",
    )


TILES = """
    shapes = [((1000, 3), "float32"), ((7, 130), "bfloat16"), ((16, 1280, 40), "bfloat16"), ((), "float32"),
              ((33,), "int8"), ((4, 5, 6), "complex64"), ((256, 256), "float32"), ((9, 9), "bool"), ((0, 7), "int32")]
    host = [np.ones(shape, jnp.dtype(dtype)) for shape, dtype in shapes]
    dense = sum(array.nbytes for array in host)
    padded = sum(int(memory.tpu_footprint(shape, dtype)) for shape, dtype in shapes)
    assert padded > 2 * dense
    start = stats()["bytes_in_use"]
    arrays = jax.block_until_ready(jax.device_put(host, arena_device()))
    taken, padding = stats()["bytes_in_use"] - start, memory.stats()[0].padding_bytes
    assert (taken, padding) == ((padded, padded - dense) if TILED else (dense, 0)), (taken, padding, padded, dense)

    # A program's result takes as much; the same values come back.
    doubled = jax.jit(lambda xs: [x + x for x in xs[:3]])(arrays)
    jax.block_until_ready(doubled)
    assert stats()["bytes_in_use"] - start == taken + sum(
        int(memory.tpu_footprint(x)) if TILED else x.nbytes for x in arrays[:3])
    assert all((np.asarray(x) == 2).all() for x in doubled)
    assert all(np.array_equal(np.asarray(x), y) for x, y in zip(arrays, host, strict=True))
    del doubled, arrays
    gc.collect()
    eventually(bytes_in_use, start)
    assert memory.stats()[0].padding_bytes == 0

    # Weights with a short last dimension: 24 MB of numbers, 512 bytes a row of three on a TPU.
    model = lambda: jax.block_until_ready(
        [jax.device_put(np.ones((20_000, 3), "f4"), arena_device()) for _ in range(10)])
    if TILED:
        assert int(memory.tpu_footprint((20_000, 3), "float32")) == 20_000 * 512
        error = fails(model)
        assert "Attempting to allocate 9.77M. That was not possible." in error, error
    else:
        model()
"""


@pytest.mark.parametrize("tiled", [True, False], ids=["on", "off"])
def test_tiles_count_as_a_tpu_would_lay_arrays_out(tiled):
    run_case(TILES.replace("TILED", str(tiled)), PJRT_ARENA_TPU_TILES="on" if tiled else "off", **TPU)


@pytest.mark.parametrize("strategy", ["preallocate", "growing", "tpu"])
def test_compact_and_map_by_hand(strategy):
    # Works without PJRT_ARENA_COMPACT: it is the user who asks.
    run_case(
        """
        arrays = [ramp(MIB // 4, turn).block_until_ready() for turn in range(40)]
        view = np.asarray(arrays[1])
        address = view.ctypes.data
        del arrays[::2]
        gc.collect()
        right = lambda: all(np.array_equal(np.asarray(a.copy()), np.arange(MIB // 4, dtype="f4") + float(a[0]))
                            for a in arrays)
        firsts = [float(a[0]) for a in arrays]
        cells = lambda: "".join(line.split("|")[1] for line in memory.map(80, 8).splitlines() if "|" in line)
        seen = cells()
        assert "#" in seen and "." in seen and "P" in seen, seen

        [report] = memory.compact()
        assert report.device == "cpu:0" and report.seconds > 0
        assert report.num_moves > 5 and report.moved_bytes == report.num_moves * MIB, report
        if STRATEGY != "growing":  # There the largest hole may leave with its region.
            assert report.largest_free_block_bytes_before < 30 * MIB, report
            assert 40 * MIB < report.largest_free_block_bytes_after, report
            assert cells().replace("P", "#").strip("#+").strip(".") == "", cells()
        assert report.unmoved_why.get("external references (NumPy views, dlpack)") == 1, report
        assert report.num_unmoved_blocks >= 1 and report.unmoved_bytes >= MIB
        assert [float(a[0]) for a in arrays] == firsts and right()
        assert view.ctypes.data == address and view[5] == view[0] + 5

        # Regions that the first call emptied are gone: there may be more to do, but not for ever.
        if STRATEGY == "growing":
            memory.compact()
        [again] = memory.compact()
        assert (again.num_moves, again.moved_bytes) == (0, 0), again
        del view
        """.replace("STRATEGY", repr(strategy)),
        PJRT_ARENA_STRATEGY=strategy,
        PJRT_ARENA_LIMIT="64MiB",
    )


def test_trim_gives_whole_regions_back():
    run_case(
        """
        # Twice: the second time the strategy keeps what it has, for a third.
        for _ in range(2):
            arrays = [ramp(MIB, turn).block_until_ready() for turn in range(8)]
            kept = arrays[0]
            del arrays
            gc.collect()
        pool = stats()["pool_bytes"]
        [report] = memory.trim()
        assert report.device == "cpu:0" and report.num_returned_regions > 0 and report.returned_bytes > 8 * MIB, report
        assert stats()["pool_bytes"] <= pool - 8 * MIB
        assert np.array_equal(np.asarray(kept), np.arange(MIB, dtype="f4"))
        assert memory.trim()[0].num_returned_regions == 0
        """,
        PJRT_ARENA_STRATEGY="growing",
        PJRT_ARENA_LIMIT="64MiB",
    )


def test_trim_gives_pages_of_holes_back():
    run_case(
        """
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096

        arrays = [ramp(MIB, turn).block_until_ready() for turn in range(12)]
        before = resident()
        kept = arrays[1::3]
        del arrays
        gc.collect()
        [report] = memory.trim()
        assert report.num_returned_regions == 0 and report.returned_bytes >= 30 * MIB, report
        assert before - resident() > 24 * MIB, "the system has them again"
        assert stats()["pool_bytes"] == 64 * MIB
        for number, array in enumerate(kept):
            assert np.array_equal(np.asarray(array), np.arange(MIB, dtype="f4") + 1 + 3 * number)
        # What was given back can be used again.
        whole = jnp.zeros(16 * MIB // 4, jnp.float32)
        assert not np.asarray(whole).any()
        """,
        PJRT_ARENA_STRATEGY="preallocate",
        PJRT_ARENA_LIMIT="64MiB",
    )


def test_the_pool_is_taken_whole_and_compaction_is_on():
    run = run_jax(
        """
        import json
        import jax
        from harness import stats
        seen = [stats()]
        x = jax.device_put(1.0)
        seen.append(stats())
        print(json.dumps(seen))
        """,
        **TPU,
    )
    before, after = json.loads(run.stdout)
    assert before["bytes_limit"] == before["bytes_reservable_limit"] == 64 << 20
    assert after["pool_bytes"] == 64 << 20
