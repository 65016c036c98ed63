"""Which thread runs a program: a long one never the caller's, a short one the caller's. Nothing is timed here: a
program that takes a tenth of a second is under way when the call returns, or it is over."""

import threading

import engines
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import arena_device, run_jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

pytestmark = pytest.mark.arena

#: Steps of a loop that takes a tenth of a second or more.
LONG = 10_000_000
#: What an array of one device keeps in the caller's thread, an older engine does elsewhere.
INLINE = pytest.mark.skipif(
    (engine := engines.of_library(engines.under_test())) is not None and engine.api != "0.115",
    reason="programs of this engine run on threads of its own if XLA takes them for long",
)


def spin(x, steps=LONG):
    """Takes as long as its steps say, and gives back what it is given: no cosine is above 2."""
    last = jax.lax.fori_loop(0, steps, lambda _, y: jnp.cos(y), x)
    return jnp.where(last > 2, last, x)


def compiled(function, *arguments, **options):
    return jax.jit(function, **options).lower(*arguments).compile()


def test_a_long_program_never_keeps_its_caller():
    x = jnp.ones(4)
    program = compiled(spin, x)
    for _ in range(3):
        y = program(x)
        assert not y.is_ready()
        np.testing.assert_array_equal(np.asarray(y), 1)


def test_a_caller_runs_ahead_of_programs_that_wait_for_each_other():
    x = jnp.ones(4)
    long, short = compiled(spin, x), compiled(lambda x: x + 1, x)
    for _ in range(3):
        short(x).block_until_ready()
    y = x
    for _ in range(3):
        y = short(long(y))
    assert not y.is_ready()
    np.testing.assert_array_equal(np.asarray(y), 4)


def test_programs_without_a_destination():
    # With what it is donated, every result has a place.
    program = compiled(spin, jnp.ones(4), donate_argnums=0)
    for _ in range(3):
        x = jnp.ones(4)
        y = program(x)
        assert x.is_deleted() and not y.is_ready()
        np.testing.assert_array_equal(np.asarray(y), 1)


def test_parts_of_a_program_on_several_devices_run_at_the_same_time():
    mesh = Mesh(np.asarray(jax.devices()[:4]), "x")
    x = jax.device_put(np.ones(16, np.float32), NamedSharding(mesh, PartitionSpec("x")))

    def summed(x):
        return jax.lax.psum(spin(x, LONG // 4), "x")

    program = compiled(
        jax.shard_map(summed, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec(), check_vma=False), x
    )
    for _ in range(3):
        y = program(x)
        assert not y.is_ready()
        np.testing.assert_array_equal(np.asarray(y), 4)


def test_each_device_has_its_own():
    # What is long on one keeps no program of another.
    programs = {}
    for device in jax.devices()[:2]:
        x = jax.device_put(jnp.ones(4), device)
        programs[device] = (x, compiled(spin, x), compiled(lambda x: x + 1, x))
    (x, long, _), (z, _, short) = programs.values()
    for _ in range(3):
        short(z).block_until_ready()
    y = long(x)
    np.testing.assert_array_equal(np.asarray(short(z)), 2)
    assert not y.is_ready()
    y.block_until_ready()


@INLINE
def test_a_short_program_runs_in_its_callers_thread():
    x = jnp.ones(1 << 16)
    program = compiled(lambda x: x + 1, x)

    def runs_here():
        y = program(x)
        over = y.is_ready()
        y.block_until_ready()
        return over

    # On a machine that does other things one may be taken for long now and then.
    assert any(all(runs_here() for _ in range(20)) for _ in range(100))


@INLINE
def test_a_program_that_becomes_long_leaves_its_callers_thread():
    x = jnp.ones(4)
    program = compiled(spin, x, 1)
    for _ in range(100):
        program(x, 1).block_until_ready()
    waited = []
    for _ in range(16):
        y = program(x, LONG // 4)
        waited.append(y.is_ready())
        y.block_until_ready()
    # Some it costs to see it, and on a busy machine a program is over before anybody looks.
    assert waited.count(False) >= 8, waited


def test_threads_that_run_short_and_long_programs_at_once():
    x = jnp.ones(1 << 12)
    short, long = compiled(lambda x: x + 1, x), compiled(spin, x[:4])
    short(x).block_until_ready()
    wrong = []

    def work(number):
        y = x
        for step in range(200):
            y = short(y)
            if step % 50 == number:
                z = long(y[:4])
        if not np.array_equal(np.asarray(y), np.full(1 << 12, 201.0)) or not np.isfinite(np.asarray(z)).all():
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_callbacks_program_may_be_long():
    program = compiled(spin, jnp.ones(4))

    def inside(x):
        return np.asarray(program(jax.device_put(x, arena_device())))

    def outside(x):
        return jax.pure_callback(inside, jax.ShapeDtypeStruct((4,), jnp.float32), x) + 1

    y = jax.jit(outside)(jnp.ones(4))
    np.testing.assert_array_equal(np.asarray(y), 2)


def test_an_error_of_an_argument_comes_with_the_results():
    run_jax(
        """
        import jax, jax.numpy as jnp
        from jax.experimental import checkify

        def checked(x):
            checkify.check(x.sum() > 0, "not above zero")
            return x + 1

        program = jax.jit(checkify.checkify(checked))
        for value, fails in ((1.0, False), (-1.0, True)) * 3:
            error, _ = program(jnp.full(4096, value))
            assert (error.get() is not None) == fails, value
        """
    )
