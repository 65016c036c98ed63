"""Arrays as memory: donation, deletion, views, copies, dlpack, movement between devices."""

import contextlib
import gc
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import arena_device, bytes_in_use, eventually

SIZE = 64 * 1024


def on_arena(host):
    return jax.device_put(host, arena_device())


def test_donation_reuses_the_address_and_deletes_the_input():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = step(on_arena(np.zeros(SIZE, np.float32)))
    address = x.unsafe_buffer_pointer()
    for _ in range(5):
        before, x = x, step(x)
        assert before.is_deleted()
        assert x.unsafe_buffer_pointer() == address
    assert np.asarray(x).tolist() == [6.0] * SIZE
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(before)


def test_a_deleted_input_is_refused():
    x = on_arena(np.ones(SIZE, np.float32))
    x.delete()
    with pytest.raises((RuntimeError, ValueError), match="has been deleted"):
        jax.jit(lambda x: x + 1)(x)


def test_donating_the_same_array_twice_in_a_call_is_refused():
    x = on_arena(np.ones(SIZE, np.float32))
    both = jax.jit(lambda a, b: (a + b, a - b), donate_argnums=(0, 1))
    with pytest.raises((RuntimeError, ValueError), match=r"[Dd]onat"):
        both(x, x)
    # The client is unhurt.
    assert float(jnp.sum(on_arena(np.ones(4, np.float32)))) == 4


def test_donation_that_matches_no_result():
    x = on_arena(np.ones(SIZE, np.float32))
    total = jax.jit(lambda x: x.sum(), donate_argnums=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="donated buffers were not usable"):
            total(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = total(on_arena(np.ones(SIZE, np.float32)))
    assert float(y) == SIZE


def test_donation_keeps_an_array_that_somebody_views():
    """numpy holds the memory, so the program must not write into it."""
    x = on_arena(np.zeros(SIZE, np.float32))
    view = np.asarray(x)
    y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert view.tolist() == [0.0] * SIZE
    assert np.asarray(y).tolist() == [1.0] * SIZE


def test_views_stay_valid_after_the_array_is_gone():
    views = []
    for i in range(8):
        x = on_arena(np.full(SIZE, i, np.int32)) * 1
        views.append(np.asarray(x))
        del x
    gc.collect()
    # New arrays of the same size would land in the memory of the old ones, were it free.
    fresh = [on_arena(np.full(SIZE, -1, np.int32)) * 1 for _ in range(8)]
    jax.block_until_ready(fresh)
    for i, view in enumerate(views):
        assert not view.flags.writeable
        assert view.tolist() == [i] * SIZE


def test_a_copy_is_a_copy():
    x = on_arena(np.arange(SIZE, dtype=np.int32)) + 0
    y = jnp.array(x, copy=True)
    assert x.unsafe_buffer_pointer() != y.unsafe_buffer_pointer()
    x.delete()
    assert np.asarray(y).tolist() == list(range(SIZE))


def test_changing_the_host_array_later_changes_nothing():
    host = np.zeros(SIZE, np.float32)
    x = jnp.array(host, copy=True, device=arena_device())
    host[:] = 7
    assert np.asarray(x).tolist() == [0.0] * SIZE


def test_dlpack_out_and_in():
    x = on_arena(np.arange(SIZE, dtype=np.float32)) + 1
    outside = np.from_dlpack(x)
    assert outside.__array_interface__["data"][0] == x.unsafe_buffer_pointer()
    expected = outside.tolist()
    del x
    gc.collect()
    on_arena(np.zeros(SIZE, np.float32)) + 1
    assert outside.tolist() == expected

    host = np.arange(SIZE, dtype=np.float32)
    imported = jnp.from_dlpack(host)
    assert np.asarray(jax.jit(lambda x: x * 2)(imported)).tolist() == (host * 2).tolist()


def test_dlpack_between_the_backends():
    theirs = jax.device_put(np.arange(64, dtype=np.int32), jax.devices("cpu")[0])
    ours = on_arena(theirs)
    assert np.asarray(ours + 1).tolist() == list(range(1, 65))
    back = jax.device_put(ours, jax.devices("cpu")[0])
    assert back.devices() == {jax.devices("cpu")[0]}
    assert np.asarray(back).tolist() == list(range(64))


def test_between_devices_of_the_arena():
    x = jax.device_put(np.arange(SIZE, dtype=np.int32), arena_device(0))
    y = jax.device_put(x, arena_device(3))
    assert y.devices() == {arena_device(3)}
    assert np.asarray(y + 1).tolist() == list(range(1, SIZE + 1))
    assert (y + 1).devices() == {arena_device(3)}


def test_pending_result_of_a_deleted_argument():
    """The argument is let go while the program that reads it may still run."""
    work = jax.jit(lambda x: jax.lax.fori_loop(0, 30, lambda _, m: jnp.tanh(m @ m), x))
    host = np.eye(256, dtype=np.float32)
    expected = np.asarray(work(on_arena(host)))
    results = []
    for _ in range(6):
        x = on_arena(host)
        results.append(work(x))
        x.delete()
        on_arena(np.full((256, 256), 9, np.float32))
    for result in results:
        np.testing.assert_array_equal(np.asarray(result), expected)


@pytest.mark.arena
def test_deletion_frees_the_bytes_and_keeps_others():
    gc.collect()
    start = bytes_in_use()
    keep = on_arena(np.ones(1000, np.float32)) + 1
    drop = on_arena(np.ones(3000, np.float32)) + 1
    jax.block_until_ready((keep, drop))
    eventually(bytes_in_use, start + 16000)
    drop.delete()
    assert drop.is_deleted()
    eventually(bytes_in_use, start + 4000)
    assert np.asarray(keep).tolist() == [2.0] * 1000
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(drop)


@pytest.mark.arena
def test_a_view_holds_the_bytes_until_it_goes():
    gc.collect()
    start = bytes_in_use()
    x = on_arena(np.ones(1000, np.float32)) + 1
    view = np.asarray(x)
    del x
    gc.collect()
    eventually(bytes_in_use, start + 4000)
    del view
    gc.collect()
    eventually(bytes_in_use, start)


@pytest.mark.arena
def test_a_donation_that_an_outsider_prevents_is_counted():
    from pjrt_arena import memory

    step = jax.jit(lambda x: x * 3, donate_argnums=0)
    jax.block_until_ready(step(jnp.arange(1000.0)))
    before = memory.counters().results
    x = jnp.arange(1000.0)
    view = np.asarray(x)  # as long as it lives, the address of x may not be written to
    y = jax.block_until_ready(step(x))
    after = memory.counters().results
    assert after.donated == before.donated
    reason = "the donated argument was not consumed"
    assert after.skipped[reason] == before.skipped.get(reason, 0) + 1
    assert after.missed == before.missed
    np.testing.assert_array_equal(view, np.arange(1000.0))
    np.testing.assert_array_equal(np.asarray(y), np.arange(1000.0) * 3)


def test_deletion_beside_a_donating_launch_leaves_no_live_array_out_of_the_count():
    """Whichever comes first: a result that is there is in use, and what is neither is free."""
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    gc.collect()
    before = bytes_in_use()
    host = np.ones(SIZE, np.float32)
    results = []
    for turn in range(200):
        x = jax.device_put(host, arena_device(), may_alias=False).block_until_ready()
        together = threading.Barrier(2)

        def launch(x=x, together=together):
            together.wait()
            with contextlib.suppress(RuntimeError, ValueError):
                results.append(step(x))

        thread = threading.Thread(target=launch)
        thread.start()
        together.wait()
        time.sleep(2e-5 * (turn % 8))
        x.delete()
        thread.join()
        del x, launch
    # A launch that lost is an error, of the call or of its result.
    live = []
    for result in results:
        with contextlib.suppress(RuntimeError, ValueError):
            live.append(result.block_until_ready())
    assert live, "the deletion always came first"
    results.clear()
    del result
    eventually(bytes_in_use, before + len(live) * host.nbytes)
    del live
    eventually(bytes_in_use, before)
