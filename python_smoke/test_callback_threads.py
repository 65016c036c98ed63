"""Host callbacks that wait for threads which run programs: none of these waits for ever.

Each is a process of its own, which ends with every thread's stack after a while.
"""

import pytest
from harness import run_jax

pytestmark = pytest.mark.arena

COMMON = """
import faulthandler
faulthandler.dump_traceback_later(200, exit=True)
import gc, itertools, logging, threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from harness import bytes_in_use, eventually
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
logging.getLogger("jax._src.callback").disabled = True
devices = jax.devices("arena")
f32 = np.float32
def shape(*dims):
    return jax.ShapeDtypeStruct(dims, f32)
# The engine runs the large ones on threads of its own, the small ones on the caller's.
SIZES = 2, 200
def matrix(size):
    return np.arange(size * size, dtype=f32).reshape(size, size) % 7
def close(one, other):
    np.testing.assert_allclose(np.asarray(one), other, rtol=1e-4)
def in_threads(count, work):
    "The results of work(0), work(1), ..., each in a thread of its own, while this one waits."
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))
def settled(repeat, times=3):
    "What a few runs leave is what one has left."
    repeat()
    gc.collect()
    before = [bytes_in_use(device) for device in devices]
    for _ in range(times):
        repeat()
    gc.collect()
    eventually(lambda: [bytes_in_use(device) for device in devices], before)
"""


def run(code, devices=1):
    run_jax(COMMON + code, PJRT_ARENA_DEVICES=str(devices))


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_run_programs(threads):
    run(
        """
fresh = itertools.count(1)
for size in SIZES:
    a = matrix(size)
    cached = jax.jit(lambda x: x @ x)
    given = jax.jit(lambda x, y: (x @ y, y + 1), donate_argnums=1)
    def work(i):
        number = next(fresh)
        x = jax.device_put(a + i, devices[0])
        total = cached(x).sum()
        close(jax.jit(lambda x: x @ x + number)(x), (a + i) @ (a + i) + number)  # compiled here
        y = jax.device_put(a, devices[0]) * 1
        product, more = given(x, y)
        assert y.is_deleted()
        close(more, a + 1)
        close(product, (a + i) @ a)
        return np.asarray(total)
    def callback(v):
        return np.asarray(v) + sum(in_threads(THREADS, work))
    outer = jax.jit(lambda x: jax.pure_callback(callback, shape(), (x @ x).sum()))
    x = jax.device_put(a, devices[0])
    expected = (a @ a).sum() + sum(((a + i) @ (a + i)).sum() for i in range(THREADS))
    settled(lambda: close(outer(x), expected))
""".replace("THREADS", str(threads))
    )


def test_callbacks_of_the_threads_programs_wait_for_each_other():
    """Callbacks two deep: each thread's program is in its callback before any of them goes on."""
    run(
        """
for size in SIZES:
    a = matrix(size)
    barrier = threading.Barrier(4, timeout=100)
    square = jax.jit(lambda x: x @ x)
    def innermost(v):
        barrier.wait()
        return in_threads(1, lambda i: np.asarray(square(jax.device_put(np.asarray(v), devices[0]))))[0]
    # Compiled before: the first call of what jit gives keeps others of it waiting until it returns.
    inner = jax.jit(lambda x: jax.pure_callback(innermost, shape(size, size), x + 1)).lower(a).compile()
    def callback(v):
        v = np.asarray(v)
        return sum(in_threads(4, lambda i: np.asarray(inner(jax.device_put(v + i, devices[0])))))
    outer = jax.jit(lambda x: jax.pure_callback(callback, shape(size, size), x @ x))
    x = jax.device_put(a, devices[0])
    expected = sum((a @ a + i + 1) @ (a @ a + i + 1) for i in range(4))
    settled(lambda: close(outer(x), expected))
"""
    )


def test_buffer_callbacks():
    run(
        """
from jax.experimental.buffer_callback import buffer_callback
for size in SIZES:
    a = matrix(size)
    square = jax.jit(lambda x: x @ x)
    def callback(context, out, v):
        v = np.asarray(v).copy()
        np.asarray(out)[:] = sum(in_threads(4, lambda i: np.asarray(square(jax.device_put(v + i, devices[0])))))
    outer = jax.jit(lambda x: buffer_callback(callback, shape(size, size))(x + 1))
    expected = sum((a + 1 + i) @ (a + 1 + i) for i in range(4))
    x = jax.device_put(a, devices[0])
    settled(lambda: close(outer(x), expected))
"""
    )


@pytest.mark.parametrize("method", ["sequential", "broadcast_all"])
def test_under_vmap(method):
    run(
        """
for size in SIZES:
    a = np.stack([matrix(size) + i for i in range(3)])
    square = jax.jit(lambda x: x @ x)
    def callback(v):
        v = np.asarray(v)
        return sum(in_threads(4, lambda i: np.asarray(square(jax.device_put(v + i, devices[0])))))
    outer = jax.jit(jax.vmap(lambda x: jax.pure_callback(callback, shape(size, size), x @ x, vmap_method=METHOD)))
    x = jax.device_put(a, devices[0])
    settled(lambda: close(outer(x), sum((a @ a + i) @ (a @ a + i) for i in range(4))))
""".replace("METHOD", repr(method))
    )


def test_on_several_devices():
    """The callbacks of all devices run programs of one device and of all of them, with collectives."""
    run(
        """
mesh = Mesh(np.array(devices), "i")
across = NamedSharding(mesh, P("i"))
map_over = partial(jax.shard_map, mesh=mesh, in_specs=P("i"))
for size in SIZES:
    a = np.stack([matrix(size) + i for i in range(4)])
    square = jax.jit(lambda x: x @ x)
    everywhere = jax.jit(map_over(lambda x: jax.lax.psum(x, "i"), out_specs=P()))
    barrier = threading.Barrier(4, timeout=100)
    def work(v, i):
        if i == 4:
            return np.asarray(everywhere(jax.device_put(a, across)))[0]
        return np.asarray(square(jax.device_put(v, devices[i])))
    def callback(v):
        barrier.wait()
        v = np.asarray(v)[0]
        return sum(in_threads(5, lambda i: work(v, i)))[None]
    outer = jax.jit(map_over(lambda x: jax.pure_callback(callback, shape(1, size, size), x @ x), out_specs=P("i")))
    x = jax.device_put(a, across)
    settled(lambda: close(outer(x), 4 * (a @ a) @ (a @ a) + a.sum(0)))
    # One device's callback for all.
    whole = jax.jit(
        lambda x: jax.pure_callback(lambda v: callback_of_all(v), shape(4, size, size), x @ x), out_shardings=across
    )
    def callback_of_all(v):
        v = np.asarray(v)
        return np.stack(in_threads(4, lambda i: work(v[i], i)))
    settled(lambda: close(whole(x), (a @ a) @ (a @ a)))
""",
        devices=4,
    )


def test_a_callback_waits_for_a_thread_outside():
    """It was there before the callback, and its programs come before, while and after the callback waits for them."""
    run(
        """
for size in SIZES:
    a = matrix(size)
    x = jax.device_put(a, devices[0])
    square = jax.jit(lambda x: x @ x)
    asked, answered, over = threading.Event(), threading.Event(), threading.Event()
    answer = []
    def outside():
        while not over.is_set():
            y = square(x)
            if asked.is_set() and not answered.is_set():
                answer.append(np.asarray(square(square(y))))
                answered.set()
    def callback(v):
        asked.set()
        answered.wait()
        return np.asarray(v) + answer[-1]
    outer = jax.jit(lambda x: jax.pure_callback(callback, shape(size, size), x @ x))
    expected = a @ a + np.linalg.matrix_power(a.astype(np.float64), 8)
    thread = threading.Thread(target=outside)
    thread.start()
    for _ in range(5):
        close(outer(x), expected)
        asked.clear()
        answered.clear()
    over.set()
    thread.join()
"""
    )


def test_what_a_waiting_program_reads_may_be_donated_by_a_thread():
    run(
        """
for size in SIZES:
    a = matrix(size)
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    def callback(v):
        def work(i):
            y = add(x)
            assert x.is_deleted()
            return np.asarray(y)
        return np.asarray(v) + in_threads(1, work)[0]
    # The argument is read after the callback as well.
    outer = jax.jit(lambda x: jax.pure_callback(callback, shape(size, size), x @ x) + x)
    def repeat():
        global x
        x = jax.device_put(a, devices[0]) * 1
        close(outer(x), a @ a + a + 1 + a)
        del x
    settled(repeat)
"""
    )


def test_errors_of_the_threads_programs_come_out():
    run(
        """
for size in SIZES:
    a = matrix(size)
    def fail(v):
        raise KeyError("inside")
    broken = jax.jit(lambda x: jax.pure_callback(fail, shape(size, size), x @ x))
    square = jax.jit(lambda x: x @ x)
    def work(i):
        x = jax.device_put(a, devices[0])
        return np.asarray((broken if i == 2 else square)(x))
    outer = jax.jit(lambda x: jax.pure_callback(lambda v: sum(in_threads(4, work)), shape(size, size), x @ x))
    x = jax.device_put(a, devices[0])
    def repeat():
        try:
            jax.block_until_ready(outer(x))
        except (RuntimeError, ValueError) as error:
            assert "KeyError: 'inside'" in str(error), error
        else:
            raise AssertionError("no error")
    settled(repeat)
    close(square(x), a @ a)
"""
    )
