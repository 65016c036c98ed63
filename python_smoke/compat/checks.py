"""What a JAX version must be able to do on the arena: one function for each ability, each with a way to fail.

Run by `run.py` in the Python of an environment of its own, with four devices; `python checks.py --list` names them.
One line of JSON tells that a check begins, another how it ended, so that a crash is known by its name:

    {"begin": "sort"}
    {"name": "sort", "ok": true, "detail": ""}

Only functions that JAX has had since 0.6.2 are used. The expected values come from numpy, or from JAX's own CPU
backend where numpy has no such function.
"""

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

DEVICES = 4
CHECKS: dict[str, Callable[[], str | None]] = {}


def check(function):
    """Adds `function` to the list; it fails by raising, and may return a text that is shown."""
    CHECKS[function.__name__] = function
    return function


def same(actual, expected, rtol=1e-5, atol=1e-6):
    """Asserts that two trees have the same values, shapes and dtypes."""
    import jax
    import numpy as np

    ours, theirs = jax.tree.leaves(actual), jax.tree.leaves(expected)
    assert ours and len(ours) == len(theirs), f"{len(ours)} results instead of {len(theirs)}"
    for our, their in zip(map(np.asarray, ours), map(np.asarray, theirs), strict=True):
        assert (our.shape, our.dtype) == (their.shape, their.dtype), (
            f"{our.shape} {our.dtype}, not {their.shape} {their.dtype}"
        )
        np.testing.assert_allclose(our, their, rtol=rtol, atol=atol)


def on(platform, function, *arguments):
    """The results of `function` on the first device of a platform, jitted, as numpy arrays."""
    import jax
    import numpy as np

    device = jax.devices(platform)[0]
    results = jax.jit(function)(*jax.device_put(arguments, device))
    assert all(leaf.devices() == {device} for leaf in jax.tree.leaves(results))
    return jax.tree.map(np.asarray, results)


def as_on_cpu(function, *arguments, rtol=1e-5):
    """Asserts that `function` gives on the arena what it gives on JAX's own CPU backend."""
    same(on("arena", function, *arguments), on("cpu", function, *arguments), rtol=rtol)


@check
def load():
    import jax

    devices = jax.devices()
    assert len(devices) == DEVICES and jax.devices("arena") == devices, devices
    assert {device.platform for device in devices} == {"cpu"}
    assert "pjrt-arena" in devices[0].client.platform_version, devices[0].client.platform_version
    assert any(line.endswith("/libpjrt_arena.so") for line in Path("/proc/self/maps").read_text().splitlines())


@check
def jnp():
    import jax.numpy as jnp
    import numpy as np

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    same(jnp.asarray(x) @ jnp.asarray(x).T + 1, x @ x.T + 1)
    same(jnp.where(jnp.asarray(x) > 5, jnp.exp(-jnp.asarray(x)), 0), np.where(x > 5, np.exp(-x), np.float32(0)))


@check
def training_with_donation():
    import jax
    import jax.numpy as jnp
    import numpy as np

    def loss(weights, x, y):
        return ((jnp.tanh(x @ weights["in"]) @ weights["out"] - y) ** 2).mean()

    def update(weights, x, y):
        value, slope = jax.value_and_grad(loss)(weights, x, y)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, slope), value

    random = np.random.default_rng(0)
    data = [random.normal(size=size).astype(np.float32) for size in ((8, 16), (16, 1), (32, 8), (32, 1))]

    def train(platform):
        first, second, x, y = jax.device_put(data, jax.devices(platform)[0])
        weights, losses = {"in": first, "out": second}, []
        step = jax.jit(update, donate_argnums=0)
        for _ in range(20):
            given = jax.tree.leaves(weights)
            weights, value = step(weights, x, y)
            assert all(array.is_deleted() for array in given), "donated weights are still there"
            losses.append(float(value))
        return np.array(losses), weights

    ours, theirs = train("arena"), train("cpu")
    same(ours, theirs, rtol=1e-4)
    assert ours[0][-1] < 0.5 * ours[0][0], ours[0]


@check
def random():
    import jax
    import numpy as np

    bits = {p: on(p, lambda key: jax.random.bits(key, (1000,)), jax.random.key(7)) for p in ("arena", "cpu")}
    assert (bits["arena"] == bits["cpu"]).all()
    normal = on("arena", lambda key: jax.random.normal(key, (10_000,)), jax.random.key(7))
    assert abs(normal.mean()) < 0.05 and abs(np.std(normal) - 1) < 0.05


@check
def sort():
    import jax.numpy as jnp
    import numpy as np

    x = np.random.default_rng(1).permutation(1000).astype(np.float32)
    same(jnp.sort(x), np.sort(x))
    same(jnp.argsort(x), np.argsort(x).astype(np.int32))


@check
def conv():
    import jax
    import numpy as np

    random = np.random.default_rng(2)
    image, kernel = (random.normal(size=size).astype(np.float32) for size in ((2, 3, 16, 16), (4, 3, 3, 3)))
    result = jax.lax.conv(image, kernel, (1, 1), "VALID")
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(2, 3))
    same(result, np.einsum("nchwij,ocij->nohw", windows, kernel), rtol=1e-4, atol=1e-4)


@check
def fft():
    import jax.numpy as jnp
    import numpy as np

    x = np.random.default_rng(3).normal(size=64).astype(np.float32)
    same(jnp.fft.fft(x), np.fft.fft(x).astype(np.complex64), rtol=1e-4, atol=1e-4)
    same(jnp.fft.irfft(jnp.fft.rfft(x)), x, rtol=1e-4, atol=1e-4)


@check
def scan():
    import jax
    import jax.numpy as jnp
    import numpy as np

    last, sums = jax.lax.scan(lambda c, x: (c + x, c + x), jnp.float32(0), jnp.arange(50, dtype=jnp.float32))
    same([last, sums], [np.float32(1225), np.cumsum(np.arange(50, dtype=np.float32))])


@check
def loops_and_branches():
    import jax

    def collatz(n):
        odd, even = (lambda n: 3 * n + 1), (lambda n: n // 2)

        def step(state):
            return jax.lax.cond(state[0] % 2 == 1, odd, even, state[0]), state[1] + 1

        return jax.lax.while_loop(lambda state: state[0] != 1, step, (n, 0))[1]

    assert int(jax.jit(collatz)(27)) == 111


@check
def cumsum_and_top_k():
    import jax
    import jax.numpy as jnp
    import numpy as np

    x = np.random.default_rng(4).permutation(100).astype(np.float32)
    same(jnp.cumsum(x), np.cumsum(x))
    same(jax.lax.top_k(x, 3), [np.array([99, 98, 97], np.float32), np.argsort(-x)[:3].astype(np.int32)])


@check
def small_floats_and_integers():
    import jax.numpy as jnp
    import ml_dtypes
    import numpy as np

    for dtype in ("bfloat16", "float16", "float8_e4m3fn", "int8", "uint16", "int4"):
        values = np.arange(8).astype(getattr(ml_dtypes, dtype, None) or dtype)
        held = jnp.asarray(values)
        same((held + held).astype(jnp.float32)[:4], np.array([0, 2, 4, 6], np.float32))


@check
def shard_map_psum():
    import jax
    import numpy as np
    from jax.sharding import Mesh, PartitionSpec as P

    mesh = Mesh(np.array(jax.devices("arena")), ("x",))
    total = jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    x = np.arange(4 * DEVICES, dtype=np.float32).reshape(DEVICES, 4)
    same(jax.jit(total)(x), x.sum(axis=0, keepdims=True))


@check
def sharded_jit():
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    mesh = Mesh(np.array(jax.devices("arena")).reshape(2, 2), ("x", "y"))
    x = np.random.default_rng(5).normal(size=(16, 16)).astype(np.float32)
    spread = jax.device_put(x, NamedSharding(mesh, P("x", "y")))
    product = jax.jit(lambda a: jnp.sin(a) @ a.T)(spread)
    assert len(product.devices()) == DEVICES
    same(product, np.sin(x) @ x.T, rtol=1e-4, atol=1e-4)


@check
def eigh():
    import jax.numpy as jnp
    import numpy as np

    a = np.random.default_rng(6).normal(size=(12, 12)).astype(np.float32)
    a = a + a.T
    values, vectors = jnp.linalg.eigh(a)
    same(values, np.linalg.eigh(a)[0], rtol=1e-3, atol=1e-3)
    same(vectors @ jnp.diag(values) @ vectors.T, a, rtol=1e-3, atol=1e-3)


@check
def cholesky_and_solve():
    import jax.numpy as jnp
    import numpy as np

    a = np.random.default_rng(7).normal(size=(12, 12)).astype(np.float32)
    positive, right = a @ a.T + 12 * np.eye(12, dtype=np.float32), np.ones(12, np.float32)
    same(jnp.linalg.cholesky(positive), np.linalg.cholesky(positive), rtol=1e-3, atol=1e-3)
    same(jnp.linalg.solve(positive, right), np.linalg.solve(positive, right), rtol=1e-3, atol=1e-3)


@check
def pure_callback():
    import jax
    import numpy as np

    seen = []

    def host(x):
        seen.append(np.array(x))
        return np.asarray(x) * 3

    x = np.arange(5, dtype=np.float32)
    double = jax.jit(lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct((5,), np.float32), x + 1) + 1)
    same(double(x), (x + 1) * 3 + 1)
    assert seen and (seen[0] == x + 1).all(), seen


@check
def callback_threads():
    """A callback that waits for a program which another thread runs: the engine must have a thread left for that."""
    import threading

    import jax
    import numpy as np

    triple = jax.jit(lambda x: x * 3)

    def host(x):
        results = []
        thread = threading.Thread(target=lambda: results.append(np.asarray(triple(np.asarray(x)))), daemon=True)
        thread.start()
        thread.join(60)
        assert results, "the program of the thread has not ended after 60 s"
        return results[0]

    shape = jax.ShapeDtypeStruct((1 << 16,), np.float32)
    x = np.arange(1 << 16, dtype=np.float32)
    same(jax.jit(lambda x: jax.pure_callback(host, shape, x + 1) - 1)(x), (x + 1) * 3 - 1)


@check
def ffi_error():
    """A handler of jaxlib's that asks the engine for what a CPU has not, and is given an error to read and to free."""
    import jax
    import numpy as np

    try:
        from jax.experimental.buffer_callback import buffer_callback
    except ImportError:
        return "this JAX has no buffer_callback"
    seen = []

    def host(context, out, x):
        try:
            context.stream  # noqa: B018
        except Exception as error:  # The type differs between versions.
            seen.append(str(error))
        np.asarray(out)[...] = np.asarray(x) * 2

    x = np.arange(5, dtype=np.float32)
    double = jax.jit(buffer_callback(host, jax.ShapeDtypeStruct((5,), np.float32)))
    for _ in range(3):
        same(double(x), x * 2)
    assert len(seen) == 3 and all(seen), seen
    return ""


@check
def debug_callback():
    import jax
    import numpy as np

    seen = []

    def loud(x):
        jax.debug.callback(lambda y: seen.append(float(y)), x.sum())
        return x * 2

    same(jax.jit(loud)(np.ones(3, np.float32)), np.full(3, 2, np.float32))
    jax.effects_barrier()
    assert seen == [3.0], seen


@check
def dlpack():
    import jax
    import jax.numpy as jnp
    import numpy as np

    ours = jnp.arange(6, dtype=jnp.float32) + 1
    out = np.from_dlpack(ours)
    assert out.ctypes.data == ours.unsafe_buffer_pointer(), "the export is a copy"
    same(out, np.arange(1, 7, dtype=np.float32))
    source = np.arange(6, dtype=np.float32)
    same(jax.jit(lambda x: x + 1)(jnp.from_dlpack(source)), source + 1)


@check
def memory_stats():
    import gc

    import jax
    import jax.numpy as jnp

    device = jax.devices("arena")[0]
    gc.collect()
    before = device.memory_stats()
    # A program's result: NumPy's arrays may be used where they lie, and do not count then.
    held = jnp.ones(1 << 18, jnp.float32).block_until_ready()
    after = device.memory_stats()
    assert after["bytes_in_use"] - before["bytes_in_use"] == 1 << 20, (before, after)
    assert after["peak_bytes_in_use"] >= after["bytes_in_use"] and after["bytes_limit"] > 1 << 20
    del held


@check
def memory_kinds():
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    device = jax.devices("arena")[0]
    kinds = {memory.kind for memory in device.addressable_memories()}
    assert {"device", "pinned_host"} <= kinds and device.default_memory().kind == "device", kinds
    x = jnp.arange(100, dtype=jnp.float32)
    there = jax.device_put(x, SingleDeviceSharding(device, memory_kind="pinned_host"))
    assert there.sharding.memory_kind == "pinned_host"
    back = jax.device_put(there, SingleDeviceSharding(device, memory_kind="device"))
    assert back.sharding.memory_kind == "device"
    same([there, back], [x, x])


@check
def memory_analysis():
    import jax
    import jax.numpy as jnp

    compiled = jax.jit(lambda x: (x @ x, x.sum())).lower(jnp.ones((64, 64))).compile()
    said = compiled.memory_analysis()
    # A result's memory is handed in by us; the analysis must not know of it.
    assert (said.argument_size_in_bytes, said.alias_size_in_bytes) == (64 * 64 * 4, 0), said
    assert said.output_size_in_bytes >= 64 * 64 * 4 + 4, said


@check
def hlo_text_and_cost():
    import jax
    import jax.numpy as jnp

    compiled = jax.jit(lambda x, y: x @ y).lower(jnp.ones((64, 32)), jnp.ones((32, 16))).compile()
    entry = compiled.as_text().split("ENTRY ")[1]
    assert entry.count(" parameter(") == 2, entry
    cost = compiled.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    assert cost["flops"] >= 2 * 64 * 32 * 16, cost


@check
def export_and_import():
    import jax
    import numpy as np
    from jax import export

    x = np.arange(8, dtype=np.float32)
    blob = export.export(jax.jit(lambda x: x * x + 1), platforms=["cpu"])(x).serialize()
    same(export.deserialize(blob).call(x), x * x + 1)


@check
def compilation_cache():
    import tempfile

    import jax
    import numpy as np
    from jax import monitoring
    from jax.experimental.compilation_cache import compilation_cache

    x = np.arange(8, dtype=np.float32)
    events = []
    monitoring.register_event_listener(lambda event, **_: events.append(event))
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        compilation_cache.reset_cache()
        try:
            for _ in range(2):
                jax.clear_caches()
                same(jax.jit(lambda x: x * 7 - 1)(x), x * 7 - 1)
        finally:
            jax.config.update("jax_compilation_cache_dir", None)
            compilation_cache.reset_cache()
    assert "/jax/compilation_cache/cache_hits" in events, "the second compilation found nothing in the cache"


@check
def errors():
    import jax
    import jax.numpy as jnp
    import numpy as np

    too_much = jax.devices("arena")[0].memory_stats()["bytes_limit"] // 4 + 1
    try:
        jnp.ones(too_much, jnp.float32).block_until_ready()
    except Exception as error:  # The type differs between versions.
        assert "RESOURCE_EXHAUSTED" in str(error), error
    else:
        raise AssertionError(f"{too_much} floats fitted")
    same(jnp.ones(3) + 1, np.full(3, 2, np.float32))


@check
def compaction():
    import gc

    import jax
    import numpy as np
    from pjrt_arena import memory

    device = jax.devices("arena")[1]
    gc.collect()
    values = [np.full(1 << 16, i, np.float32) for i in range(64)]
    arrays = [jax.device_put(value, device) for value in values]
    jax.block_until_ready(arrays)
    arrays = arrays[1::2]
    gc.collect()
    moved = memory.compact()[1]
    assert moved.num_moves > 0, moved
    assert moved.largest_free_block_bytes_after >= moved.largest_free_block_bytes_before, moved
    same(arrays, values[1::2])
    return f"{moved.num_moves} arrays moved"


def main(names):
    for name in names or CHECKS:
        print(json.dumps({"begin": name}), flush=True)
        try:
            detail, ok = CHECKS[name]() or "", True
        except BaseException as error:  # Whatever it is, the next check runs.
            where = traceback.extract_tb(error.__traceback__)[-1]
            detail, ok = f"{type(error).__name__}: {error} ({where.name}:{where.lineno})", False
        print(json.dumps({"name": name, "ok": ok, "detail": " ".join(detail.split())[:400]}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(CHECKS))
    else:
        main(sys.argv[1:])
