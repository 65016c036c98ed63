"""Host callbacks: what they are given, what becomes of their results and errors, and what they may do themselves.

Programs that multiply `BIG` matrices are run by the engine on threads of its own; small ones on the caller's.
"""

import gc
import logging
import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from harness import arena_device, assert_same, bytes_in_use, eventually, on, run_jax
from jax.experimental import checkify, io_callback
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from test_dtypes import LONG, SMALL, SUB_BYTE, WHOLE, dtype_of, sample

BIG = 200


@pytest.fixture(autouse=True)
def unlogged(monkeypatch):
    """JAX logs what callbacks raise; pytest would keep the tracebacks, and with their frames every argument."""
    monkeypatch.setattr(logging.getLogger("jax._src.callback"), "disabled", True)


def shape_of(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def host_sin(x):
    return jax.pure_callback(np.sin, shape_of(x), x, vmap_method="sequential")


def called(callback):
    """The function of one argument that calls `callback` on the host, for a result of the same shape."""
    return lambda x: jax.pure_callback(callback, shape_of(x), x)


def big():
    return np.arange(BIG * BIG, dtype=np.float32).reshape(BIG, BIG) % 7


@pytest.mark.parametrize("name", WHOLE + SMALL + SUB_BYTE)
@pytest.mark.parametrize("shape", [(6, 5), (3,), (), (0, 3)])
def test_every_type_goes_there_and_back(name, shape):
    host = sample(dtype_of(name), shape)
    seen = []

    def callback(x):
        x = np.asarray(x)
        seen.append((x.dtype, x.shape, x.tobytes()))
        return np.flip(x)  # strides that run backwards

    result = on(arena_device(), jax.jit(lambda x: jax.pure_callback(callback, shape_of(x), x)), host)
    # XLA leaves out a call whose results are empty.
    assert seen == ([(host.dtype, host.shape, host.tobytes())] if host.size else [])
    assert result.tobytes() == np.flip(host).tobytes()


@pytest.mark.parametrize("name", LONG)
def test_64_bit_types(name):
    with jax.enable_x64(True):
        host = (np.arange(30).reshape(6, 5) * (2**40 + 1)).astype(name)
        result = on(
            arena_device(), jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x).T, shape_of(x.T), x)), host
        )
        assert result.tobytes() == host.T.tobytes()


def test_signs_of_narrow_integers():
    for name, values in (("int4", [-8, -1, 7]), ("int2", [-2, -1, 1]), ("uint4", [15, 8, 0]), ("uint2", [3, 2, 0])):
        host = np.array(values, dtype=getattr(ml_dtypes, name))
        seen = []

        def see(x, seen=seen):
            seen.append(np.asarray(x))
            return x

        assert on(arena_device(), jax.jit(called(see)), host).astype(int).tolist() == values
        assert seen[0].astype(int).tolist() == values


def test_arguments_are_copies_and_read_only():
    """What a callback keeps does not change when the program goes on."""
    kept = []

    def keep(x):
        kept.append(x)
        return np.float32(0)

    def program(x):
        def body(i, x):
            unused = io_callback(keep, jax.ShapeDtypeStruct((), np.float32), x, ordered=True)
            return x + 1 + unused

        return jax.lax.fori_loop(0, 4, body, x)

    on(arena_device(), jax.jit(program), np.zeros(1000, np.float32))
    assert [np.unique(np.asarray(x)).tolist() for x in kept] == [[0], [1], [2], [3]]


def test_results_of_other_layouts_and_of_scalars():
    outputs = (
        jax.ShapeDtypeStruct((4, 6), np.float32),
        jax.ShapeDtypeStruct((), np.int32),
        jax.ShapeDtypeStruct((3,), bool),
    )

    def callback(x):
        x = np.asarray(x)
        return np.asfortranarray(x)[::-1], np.int32(7), np.array([True, False, True])[::-1]

    assert_same(
        jax.jit(lambda x: jax.pure_callback(callback, outputs, x)), np.arange(24, dtype=np.float32).reshape(4, 6)
    )


def test_no_arguments_and_no_results():
    calls = []
    program = jax.jit(lambda: io_callback(lambda: calls.append(1), None))
    with jax.default_device(arena_device()):
        program()
        jax.effects_barrier()
    assert calls == [1]


def test_results_of_big_programs_are_never_early():
    a = big()
    program = jax.jit(lambda x: host_sin(x @ x) @ x)
    for _ in range(10):
        result = on(arena_device(), program, a)
        np.testing.assert_allclose(result, np.sin(a @ a) @ a, rtol=1e-3, atol=1e-2)


def test_within_control_flow_and_transformations():
    x = np.linspace(0, 1, 8, dtype=np.float32)
    scan = jax.jit(lambda x: jax.lax.scan(lambda c, x: (c + host_sin(x), host_sin(c)), jnp.float32(0), x))
    assert_same(scan, x)
    loop = jax.jit(lambda x: jax.lax.while_loop(lambda x: x[0] < 3, lambda x: host_sin(x) + x + 1, x))
    assert_same(loop, x)
    branch = jax.jit(lambda x: jax.lax.cond(x[0] < 1, host_sin, lambda x: x, x))
    assert_same(branch, x)
    assert_same(jax.jit(jax.vmap(host_sin)), x)

    @jax.custom_jvp
    def sin(x):
        return host_sin(x)

    sin.defjvp(lambda primals, tangents: (sin(*primals), host_sin(primals[0] + np.float32(np.pi / 2)) * tangents[0]))
    assert_same(jax.jit(jax.grad(lambda x: sin(x).sum())), x)


@pytest.mark.parametrize("ordered", [False, True])
def test_debug_print_and_callback(ordered, capfd):
    seen = []

    @jax.jit
    def program(x):
        for step in range(3):
            jax.debug.print("step {} of {}", step, x, ordered=ordered)
            jax.debug.callback(lambda step: seen.append(int(step)), jnp.int32(step), ordered=ordered)
        return x + 1

    on(arena_device(), program, np.float32(2))
    jax.effects_barrier()
    printed = capfd.readouterr().out.splitlines()
    if not ordered:
        printed, seen = sorted(printed), sorted(seen)
    assert printed == [f"step {step} of 2.0" for step in range(3)]
    assert seen == [0, 1, 2]


def test_ordered_callbacks_of_several_programs_keep_their_order():
    seen = []
    program = jax.jit(lambda x, n: (io_callback(lambda n: seen.append(int(n)), None, n, ordered=True), x @ x)[1])
    x = jax.device_put(big(), arena_device())
    numbers = jax.device_put(list(range(12)), arena_device())
    for n in numbers:
        program(x, n)
    jax.effects_barrier()
    assert seen == list(range(12))


def test_checkify_and_debug_nans():
    checked = jax.jit(checkify.checkify(lambda x: (checkify.check(x > 0, "x is {x}", x=x), jnp.log(x))[1]))
    with jax.default_device(arena_device()):
        error, _ = checked(jnp.float32(-3))
        with pytest.raises(checkify.JaxRuntimeError, match=r"x is -3\.0"):
            error.throw()
        assert checked(jnp.float32(1))[0].get() is None
        with jax.debug_nans(True), pytest.raises(FloatingPointError):
            jax.jit(lambda x: x / x)(jnp.zeros(3))


class Reason(Exception):
    pass


@pytest.mark.parametrize("size", [2, BIG])
@pytest.mark.parametrize("donated", [False, True])
def test_an_error_is_raised_and_nothing_stays(size, donated):
    def fail(x):
        raise Reason("on purpose: ä")

    program = jax.jit(
        lambda x, y: (jax.pure_callback(fail, shape_of(x), x @ x) @ y, y + 1), donate_argnums=(1,) if donated else ()
    )
    gc.collect()
    before = bytes_in_use()
    for _ in range(3):
        x, y = jax.device_put([np.ones((size, size), np.float32)] * 2, arena_device())
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as raised:
            jax.block_until_ready(program(x, y))
        text = str(raised.value)
        # What the engine's threads report, it prefixes with "Compute error: ".
        assert text.startswith("INTERNAL: ") and "CpuCallback error calling callback: Traceback (most recent" in text, (
            text
        )
        assert text.split("\n----", maxsplit=1)[0].rstrip().endswith("Reason: on purpose: ä"), text
        assert f'File "{__file__}"' in text and "in fail" in text, text
        assert np.asarray(x).sum() == size * size
        del x, y, raised
        gc.collect()
    eventually(bytes_in_use, before)
    on(arena_device(), jax.jit(lambda x: host_sin(x @ x)), np.ones((size, size), np.float32))


def test_other_exceptions():
    class Mute(Exception):
        def __str__(self):
            raise ValueError("mute")

    def ending(x):
        raise SystemExit(3)

    def mute(x):
        raise Mute

    for callback, words in ((ending, "SystemExit: 3"), (mute, "Mute: (str() of it raised ValueError)")):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as raised:
            on(arena_device(), jax.jit(called(callback)), np.float32(1))
        assert words in str(raised.value)


def test_wrong_results_are_named():
    program = jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x)[:1], shape_of(x), x))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="shape"):
        on(arena_device(), program, np.ones(3, np.float32))


def test_donated_arguments():
    program = jax.jit(lambda x, y: (host_sin(x @ y), y + 1), donate_argnums=(0, 1))
    gc.collect()
    before = bytes_in_use()
    a = big()
    x, y = (array * 1 for array in jax.device_put([a, a], arena_device()))
    place = y.unsafe_buffer_pointer()
    sin, more = program(x, y)
    assert y.is_deleted()
    np.testing.assert_allclose(np.asarray(sin), np.sin(a @ a), rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(np.asarray(more), a + 1)
    assert place in (sin.unsafe_buffer_pointer(), more.unsafe_buffer_pointer())
    del x, y, sin, more
    gc.collect()
    eventually(bytes_in_use, before)


def test_results_that_nobody_waits_for():
    program = jax.jit(lambda x: host_sin(x @ x))
    gc.collect()
    before = bytes_in_use()
    x = jax.device_put(big(), arena_device())
    for _ in range(20):
        program(x)
    del x
    gc.collect()
    eventually(bytes_in_use, before)


DEVICES = jax.devices("arena")


def test_on_every_device_at_once():
    """Each device's callback waits for all the others': none of them may keep another from running."""
    barrier = threading.Barrier(len(DEVICES), timeout=60)

    def callback(x):
        barrier.wait()
        return np.asarray(x) + 1

    program = jax.pmap(lambda x: jax.pure_callback(callback, shape_of(x), x @ x) @ x, devices=DEVICES)
    a = np.stack([big() + i for i in range(len(DEVICES))])
    np.testing.assert_allclose(np.asarray(program(a)), (a @ a + 1) @ a, rtol=1e-4)


def test_shard_map_and_sharded_jit():
    mesh = Mesh(np.array(DEVICES), "i")
    spec = PartitionSpec("i")
    # Of at most 1: the sine of a large product says how that was rounded, which each library does in its own way.
    a = np.linspace(0, 1, 8 * BIG, dtype=np.float32).reshape(8, BIG)
    x = jax.device_put(a, NamedSharding(mesh, spec))
    mapped = jax.jit(
        jax.shard_map(lambda x: jax.lax.psum(host_sin(x), "i"), mesh=mesh, in_specs=spec, out_specs=PartitionSpec())
    )
    np.testing.assert_allclose(np.asarray(mapped(x)), np.sin(a).reshape(4, 2, BIG).sum(0), rtol=1e-4, atol=1e-4)
    # One device runs the callback for all.
    whole = jax.jit(lambda x: host_sin(x @ x.T), out_shardings=NamedSharding(mesh, spec))
    np.testing.assert_allclose(np.asarray(whole(x)), np.sin(a @ a.T), rtol=1e-3, atol=1e-3)


def test_an_error_on_one_of_several_devices():
    def fail(x):
        if np.asarray(x).sum() > 2 * BIG * BIG * BIG:
            raise Reason("the third")
        return x

    program = jax.pmap(lambda x: jax.pure_callback(fail, shape_of(x), x @ x), devices=DEVICES)
    gc.collect()
    before = [bytes_in_use(device) for device in DEVICES]
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="Reason: the third"):
        jax.block_until_ready(
            program(np.sqrt(np.arange(4, dtype=np.float32))[:, None, None] * np.ones((4, BIG, BIG), np.float32))
        )
    gc.collect()
    eventually(lambda: [bytes_in_use(device) for device in DEVICES], before)


def test_threads():
    """Many threads, their own programs' callbacks, one GIL."""
    program = jax.jit(lambda x: host_sin(x @ x))
    a = big()
    expected = np.sin(a @ a)
    faults = []

    def work(device):
        try:
            x = jax.device_put(a, device)
            for _ in range(5):
                np.testing.assert_allclose(np.asarray(program(x)), expected, rtol=1e-3, atol=1e-3)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(DEVICES[i % len(DEVICES)],)) for i in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not faults


# What a callback may do itself. Each of these hung on the bare engine, or would without care: a process of their own,
# which ends with every thread's stack after a while.

NESTED = """
import faulthandler
faulthandler.dump_traceback_later(100, exit=True)
import gc
import jax, jax.numpy as jnp, numpy as np
from harness import arena_device, bytes_in_use, eventually
from pjrt_arena import memory
devices = jax.devices("arena")
BIG = 200
a = np.arange(BIG * BIG, dtype=np.float32).reshape(BIG, BIG) % 7
shape = jax.ShapeDtypeStruct(a.shape, a.dtype)
x = jax.device_put(a, devices[0])
square = jax.jit(lambda x: x @ x)
def close(one, other):
    np.testing.assert_allclose(np.asarray(one), other, rtol=1e-4)
"""


@pytest.mark.arena
def test_a_callback_runs_programs_on_the_device_that_waits_for_it():
    run_jax(
        NESTED
        + """
both = jax.jit(lambda x, y: (x @ y, y + 1, x[:0], x.sum(), (x > 3)), donate_argnums=1)
def callback(v):
    v = jax.device_put(np.asarray(v), devices[0])
    close(square(x), a @ a)
    given = jax.device_put(a, devices[0])
    product, more, none, total, mask = both(v, given)
    assert given.is_deleted() and none.shape == (0, BIG) and product.devices() == {devices[0]}
    close(more, a + 1)
    close(total, (a @ a).sum())
    assert (np.asarray(mask) == (a @ a > 3)).all()
    with jax.default_device(devices[0]):
        close(jnp.cos(x) + jnp.sin(product * 0), np.cos(a))   # compiled here
    return np.asarray(product)
outer = jax.jit(lambda x: jax.pure_callback(callback, shape, x @ x))
gc.collect()
before = bytes_in_use()
for _ in range(3):
    close(outer(x), a @ a @ a)
gc.collect()
eventually(bytes_in_use, before)

# Callbacks inside of callbacks.
def inner(v):
    return np.asarray(square(jax.device_put(np.asarray(v), devices[0])))
middle = jax.jit(lambda x: jax.pure_callback(inner, shape, x @ x))
outer = jax.jit(lambda y: jax.pure_callback(lambda v: np.asarray(middle(x)), shape, y @ y))
close(outer(x), np.linalg.matrix_power(a.astype(np.float64), 4))

# An error in there comes out.
def fail(v):
    raise KeyError("inside")
broken = jax.jit(lambda x: jax.pure_callback(fail, shape, x @ x))
outer = jax.jit(lambda y: jax.pure_callback(lambda v: np.asarray(broken(x)), shape, y @ y))
try:
    jax.block_until_ready(outer(x))
except (RuntimeError, ValueError) as error:
    assert "KeyError: 'inside'" in str(error), error
else:
    raise AssertionError("no error")
del outer, middle, broken, both
gc.collect()
eventually(bytes_in_use, before)
""",
        PJRT_ARENA_DEVICES="1",
    )


@pytest.mark.arena
def test_a_buffer_callback_runs_programs_on_the_device_that_waits_for_it():
    run_jax(
        NESTED
        + """
from jax.experimental.buffer_callback import buffer_callback
def callback(context, out, v):
    np.asarray(out)[:] = np.asarray(square(jax.device_put(np.asarray(v).copy(), devices[0])))
outer = jax.jit(lambda x: buffer_callback(callback, shape)(x @ x))
close(outer(x), np.linalg.matrix_power(a.astype(np.float64), 4))
""",
        PJRT_ARENA_DEVICES="1",
    )


@pytest.mark.arena
def test_callbacks_of_every_device_run_programs_there():
    run_jax(
        NESTED
        + """
everywhere = jax.pmap(lambda x: jax.lax.psum(x @ x, "i"), "i", devices=devices)
stacked = np.stack([a] * 4)
def callback(v):
    close(square(jax.device_put(v, devices[0])), np.linalg.matrix_power(a.astype(np.float64), 4))
    return np.asarray(v) + 1
outer = jax.pmap(lambda x: jax.pure_callback(callback, shape, x @ x), devices=devices)
close(outer(stacked), stacked @ stacked + 1)
def callback(v):
    return np.asarray(everywhere(stacked))[0]
outer = jax.jit(lambda x: jax.pure_callback(callback, shape, x @ x))
close(outer(x), 4 * a @ a)
""",
        PJRT_ARENA_DEVICES="4",
    )


@pytest.mark.arena
@pytest.mark.parametrize("strategy", ["preallocate", "tpu"])
def test_in_a_full_arena(strategy):
    """A callback that finds no room is told so soon; one that finds it after a compaction goes on."""
    run_jax(
        NESTED
        + """
MIB = 1 << 20
def block(n):
    return jax.device_put(np.full(MIB // 4, n, np.float32), devices[0])
def callback(v):
    try:
        jax.device_put(np.zeros(40 * MIB, np.uint8), devices[0])
        raise AssertionError("there was room")
    except (RuntimeError, ValueError) as error:
        assert "RESOURCE_EXHAUSTED" in str(error), error
    if COMPACTS:
        wide = jax.device_put(np.ones(10 * MIB, np.uint8), devices[0])
        assert (np.asarray(wide) == 1).all()
        close(square(x), a @ a)
    return np.asarray(v) + 1
outer = jax.jit(lambda x: jax.pure_callback(callback, shape, x @ x) @ x)
blocks = [block(n) for n in range(28)]
del blocks[::2]
gc.collect()
for _ in range(3):
    close(outer(x), (a @ a + 1) @ a)
for n, kept in enumerate(blocks):
    assert (np.asarray(kept) == 2 * n + 1).all()
assert (memory.stats()[0].num_moves > 0) == COMPACTS
""".replace("COMPACTS", str(strategy == "tpu")),
        PJRT_ARENA_STRATEGY=strategy,
        PJRT_ARENA_LIMIT="32MiB",
        PJRT_ARENA_DEVICES="1",
        PJRT_ARENA_ZERO_COPY="off",  # what NumPy aligns by chance would take no room
    )


@pytest.mark.arena
def test_without_jaxs_own_cpu_devices():
    """JAX puts a callback's arguments on a device of its backend "cpu", which JAX_PLATFORMS=arena leaves out."""
    run = run_jax(
        """
import jax, numpy as np
program = jax.jit(lambda x: jax.pure_callback(lambda x: np.sin(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x))
assert jax.devices()[0].memory_stats() is not None
print("sin", float(program(np.float32(0.5))))
""",
        JAX_PLATFORMS="arena",
    )
    assert "sin 0.479" in run.stdout


@pytest.mark.arena
def test_the_interpreter_ends_while_a_callback_runs():
    """A daemon thread's callback is still there when Python ends."""
    run_jax(
        """
import jax, numpy as np, threading, time
begun = threading.Event()
def callback(x):
    begun.set()
    time.sleep(0.2)
    return x
program = jax.jit(lambda x: jax.pure_callback(callback, jax.ShapeDtypeStruct(x.shape, x.dtype), x @ x))
x = np.ones((200, 200), np.float32)
def work():
    while True:
        program(x)
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""
    )
