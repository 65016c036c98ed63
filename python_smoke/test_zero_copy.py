"""NumPy arrays that are used where they lie: which, for how long, and what programs may do with them."""

import functools
import gc
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import arena_device, bytes_in_use, eventually, host_array, run_jax
from pjrt_arena import memory

pytestmark = pytest.mark.arena

COUNT = 64 * 1024
BYTES = 4 * COUNT


def owner(host):
    """A weak reference to the array whose memory `host` shows: JAX keeps that alive, by a view of its own."""
    return weakref.ref(host.base)


def on_arena(host, index=0):
    return jax.device_put(host, arena_device(index))


def foreign_bytes():
    """Bytes of arrays that are used where they lie."""
    return sum(device.foreign_bytes for device in memory.counters().devices)


def usage():
    return bytes_in_use(), foreign_bytes()


def results():
    return memory.counters().results


def gone(alive):
    """Whether the array behind a weak reference is gone; JAX lets arrays go when it is called next."""
    jax.device_put(0, arena_device())
    gc.collect()
    return alive() is None


def test_an_aligned_array_is_used_where_it_lies_and_let_go():
    gc.collect()
    before = usage()
    host = host_array()
    address, alive, expected = host.ctypes.data, owner(host), host.tolist()
    x = on_arena(host)
    assert x.unsafe_buffer_pointer() == address
    assert usage() == (before[0], before[1] + BYTES)
    del host
    gc.collect()
    assert np.asarray(x + 0).tolist() == expected
    assert alive() is not None
    x.delete()
    eventually(functools.partial(gone, alive), True)
    eventually(usage, before)


def test_the_owner_outlives_every_view():
    host = host_array()
    alive, expected = owner(host), host.tolist()
    view = np.asarray(on_arena(host))
    outside = np.from_dlpack(on_arena(host))
    assert view.ctypes.data == outside.ctypes.data == host.ctypes.data
    assert not view.flags.writeable
    del host
    gc.collect()
    assert view.tolist() == outside.tolist() == expected
    assert alive() is not None
    del view, outside
    eventually(functools.partial(gone, alive), True)


def test_what_cannot_be_used_in_place_is_copied():
    square = host_array().reshape(256, 256)
    cases = [
        host_array(offset=16),
        host_array(offset=4),
        host_array(count=1000),
        square.T,
        square[:, ::2],
        square[::-1],
    ]
    cases += [np.broadcast_to(host_array(count=256), (256, 256)), host_array().astype("int4")]
    for host in cases:
        before = foreign_bytes()
        x = on_arena(host)
        assert foreign_bytes() == before
        expected = host.copy()
        if host.flags.writeable:
            host[:] = 0
        assert np.asarray(x).tobytes() == expected.tobytes()


@pytest.mark.parametrize("platform", ["arena", "cpu"])
def test_later_changes_of_the_host_array_show_as_on_jaxs_own_cpu_backend(platform):
    host = host_array()
    x = jax.device_put(host, jax.devices(platform)[0])
    copy = jnp.array(host, copy=True, device=jax.devices(platform)[0])
    host[0] = 77
    assert float(jax.jit(lambda x: x[0])(x)) == 77
    assert float(jax.jit(lambda x: x[0])(copy)) == 0


def test_a_program_under_way_keeps_what_it_reads():
    work = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, m: jnp.tanh(m @ m), x.reshape(256, 256) / COUNT))
    expected = np.asarray(work(on_arena(host_array(offset=16))))
    gc.collect()
    before = usage()
    alive, pending = [], []
    for _ in range(4):
        host = host_array()
        x = on_arena(host)
        pending.append(work(x))
        alive.append(owner(host))
        x.delete()
        # What malloc gives next would be the array's memory, were it free.
        del host, x
        host_array(start=1e6)
    for result in pending:
        np.testing.assert_array_equal(np.asarray(result), expected)
    eventually(lambda: all(gone(array) for array in alive), True)
    del pending, result
    eventually(usage, before)


def test_a_donated_array_is_never_written_and_its_result_lies_in_the_arena():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    # The first run teaches where results lie, the second one knows; then with arrays of the arena, and again without.
    for turn in range(4):
        gc.collect()
        before, counted = usage(), results()
        host = host_array()
        alive, expected = owner(host), host.copy()
        x = on_arena(host)
        y = step(x)
        assert x.is_deleted()
        assert y.unsafe_buffer_pointer() != host.ctypes.data
        np.testing.assert_array_equal(np.asarray(y), expected + 1)
        np.testing.assert_array_equal(host, expected)
        # Who waits for a result hears of it before the engine says that the program is done with its arguments.
        deadline = time.monotonic() + 100
        while usage() != (before[0] + BYTES, before[1]) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert usage() == (before[0] + BYTES, before[1]), turn
        now = results()
        assert (now.donated, now.missed, now.skipped) == (
            counted.donated + 1,
            counted.missed,
            counted.skipped,
        )
        del host, x
        eventually(functools.partial(gone, alive), True)
        z = on_arena(expected[1:]) * 1
        address = z.unsafe_buffer_pointer()
        assert jax.jit(lambda x: x + 1, donate_argnums=0)(z).unsafe_buffer_pointer() == address
        del y, z
        eventually(usage, before)


def test_donations_of_all_kinds_in_one_call():
    step = jax.jit(lambda *xs: tuple(x * 2 + n for n, x in enumerate(xs)), donate_argnums=(0, 1, 2, 3))
    for turn in range(3):
        before = bytes_in_use()
        hosts = [host_array(start=turn + n) for n in range(4)]
        kept = [host.copy() for host in hosts]
        arguments = [on_arena(hosts[0]), on_arena(hosts[1]) + 0, on_arena(hosts[2]), on_arena(hosts[3])]
        view = np.asarray(arguments[3])
        ys = step(*arguments)
        for n, (y, host, values) in enumerate(zip(ys, hosts, kept, strict=True)):
            np.testing.assert_array_equal(np.asarray(y), values * 2 + n)
            np.testing.assert_array_equal(host, values)
        assert [x.is_deleted() for x in arguments[:3]] == [True] * 3
        np.testing.assert_array_equal(view, kept[3])
        del ys, y, arguments, view
        eventually(bytes_in_use, before)


def test_donating_an_array_twice_is_refused_as_ever():
    x = on_arena(host_array())
    both = jax.jit(lambda a, b: (a + b, a - b), donate_argnums=(0, 1))
    with pytest.raises((RuntimeError, ValueError), match=r"[Dd]onat"):
        both(x, x)
    assert not x.is_deleted()


def test_a_copy_to_another_device_lies_in_its_arena():
    x = on_arena(host_array())
    before = bytes_in_use(arena_device(2))
    y = jax.device_put(x, arena_device(2))
    assert bytes_in_use(arena_device(2)) == before + BYTES
    assert np.asarray(y).tolist() == np.asarray(x).tolist()


def test_deleting_an_array_while_threads_use_it():
    add = jax.jit(lambda x: x + 1)
    add(on_arena(host_array()))

    def copy(x):
        return np.array(jax.device_put(x, arena_device(1)))

    def run(x):
        return np.array(add(x)) - 1

    for _ in range(20):
        host = host_array()
        expected, x, found, errors = host.copy(), on_arena(host), [], []

        def use(work, x=x, found=found, errors=errors):
            try:
                found.append(work(x))
            except Exception as error:
                errors.append(str(error))

        threads = [threading.Thread(target=use, args=(work,)) for work in (copy, run, copy)]
        for thread in threads:
            thread.start()
        x.delete()
        del host
        for thread in threads:
            thread.join()
        assert all("deleted" in said for said in errors), errors
        for values in found:
            np.testing.assert_array_equal(values, expected)


def test_a_donated_array_of_dlpack_is_never_written():
    host = host_array()
    expected = host.copy()
    x = jnp.from_dlpack(host)
    y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    np.testing.assert_array_equal(np.asarray(y), expected + 1)
    np.testing.assert_array_equal(host, expected)


IN_A_PROCESS = """
    import jax, numpy as np
    from harness import bytes_in_use, host_array
    from test_zero_copy import BYTES, on_arena

    host = host_array()
    x = on_arena(host)
    in_place = x.unsafe_buffer_pointer() == host.ctypes.data
    assert bytes_in_use() == (0 if in_place else BYTES)
    print("in place" if in_place else "copied")
    y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted() and bytes_in_use() == BYTES
    assert np.asarray(y).tolist() == (host + 1).tolist()
"""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"PJRT_ARENA_ZERO_COPY": "off"}, "copied"),
        ({"PJRT_ARENA_STRATEGY": "tpu"}, "copied"),
        ({"PJRT_ARENA_STRATEGY": "tpu", "PJRT_ARENA_ZERO_COPY": "on"}, "in place"),
        ({"PJRT_ARENA_STRATEGY": "growing"}, "in place"),
    ],
)
def test_the_setting(settings, expected):
    assert run_jax(IN_A_PROCESS, **settings).stdout.strip() == expected


def test_no_room_for_a_donated_array_leaves_it_alone():
    run_jax(
        """
        import jax, numpy as np
        from harness import host_array
        from test_zero_copy import on_arena

        full = jax.numpy.zeros(960 << 10, "uint8")
        x = on_arena(host_array())
        step = jax.jit(lambda x: x + 1, donate_argnums=0)
        try:
            step(x)
        except Exception as error:
            assert "RESOURCE_EXHAUSTED" in str(error), error
        else:
            raise SystemExit("it fitted")
        assert not x.is_deleted()
        full.delete()
        assert np.asarray(step(x)).tolist() == (host_array() + 1).tolist()
        """,
        PJRT_ARENA_LIMIT="1MiB",
        PJRT_ARENA_ZERO_COPY="on",
    )
