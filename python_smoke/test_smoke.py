"""A little of everything in one process of JAX for each strategy: what `make check` runs of the tests with JAX."""

from __future__ import annotations

import json

import pytest
from harness import run_jax

pytestmark = pytest.mark.arena

#: Two devices of 64 MiB. Each function is a check; what it returns is printed by name.
SMOKE = """
    import gc, json, threading
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from harness import assert_same, bytes_in_use, eventually, stats
    from pjrt_arena import memory

    MIB = 1 << 20
    rng = np.random.default_rng(0)

    def arrays_of_many_types_come_back():
        for dtype in (np.bool_, np.int8, np.uint16, np.int32, np.float16, np.float32, np.complex64, jnp.bfloat16):
            host = rng.integers(0, 2, (5, 7)).astype(dtype)
            assert np.asarray(jax.device_put(host)).tobytes() == host.tobytes(), dtype
            assert np.asarray(jax.device_put(host.T)).tobytes() == host.T.tobytes(), dtype

    def programs_give_what_jaxs_cpu_gives():
        a, b = rng.standard_normal((2, 64, 64)).astype(np.float32)
        assert_same(lambda a, b: (a @ b, jnp.sort(a), jnp.cumsum(b, 1)), a, b)
        assert_same(lambda a: jnp.linalg.inv(a @ a.T + 64 * jnp.eye(64)), a)
        assert_same(jax.jit(lambda a: jax.lax.scan(lambda c, x: (jnp.tanh(c + x), c.sum()), a[0], a)), a)
        assert_same(jax.grad(lambda a: (jnp.tanh(a @ a) ** 2).sum()), a)

    def training_in_place_keeps_one_copy():
        step = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w), donate_argnums=0)
        w, x = jnp.ones((512, 512)), jnp.asarray(rng.standard_normal((16, 512)), jnp.float32)
        w = jax.block_until_ready(step(w, x))
        before = bytes_in_use()
        for _ in range(20):
            w = step(w, x)
        jax.block_until_ready(w)
        assert np.isfinite(np.asarray(w)).all()
        eventually(bytes_in_use, before)
        return memory.counters().results.donated

    def two_devices_share_an_array():
        mesh = Mesh(np.array(jax.devices()), ("d",))
        host = rng.standard_normal((8, 6)).astype(np.float32)
        x = jax.device_put(host, NamedSharding(mesh, P("d")))
        total = jax.jit(jax.shard_map(lambda v: jax.lax.psum(v.sum(0), "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
        np.testing.assert_allclose(np.asarray(total(x)), host.sum(0), 1e-5)
        there = jax.device_put(x[:4], jax.devices()[1])
        assert there.devices() == {jax.devices()[1]} and (np.asarray(there) == host[:4]).all()

    def the_host_is_called():
        shape = jax.ShapeDtypeStruct((3,), np.float32)
        call = jax.jit(lambda x: jax.pure_callback(np.negative, shape, x))
        assert np.asarray(call(jnp.ones(3))).tolist() == [-1, -1, -1]

    def a_pinned_host_array_comes_back():
        there = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
        x = jax.device_put(np.arange(8.0, dtype=np.float32), there)
        assert x.sharding.memory_kind == "pinned_host" and np.asarray(x).sum() == 28

    def threads_compute_at_once():
        program, wrong = jax.jit(lambda x: (x @ x).sum()), []
        def work(value):
            x = jnp.full((32, 32), value, jnp.float32)
            wrong.extend(got for got in (float(program(x)) for _ in range(20)) if got != value * value * 32**3)
        threads = [threading.Thread(target=work, args=(float(value),)) for value in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not wrong, wrong

    def memory_is_found_in_pieces_or_moved_together():
        # Every other one of 14 arrays of 4 MiB is freed; then one of 12 MiB is asked for.
        held = [jax.block_until_ready(jnp.full(MIB, at, jnp.float32)) for at in range(14)]
        del held[::2]
        gc.collect()
        eventually(lambda: bytes_in_use() < 32 * MIB, True)
        try:
            big = jax.block_until_ready(jnp.ones(3 * MIB, jnp.float32))
            fits = bool((np.asarray(big)[::4096] == 1).all())
        except (RuntimeError, ValueError) as error:
            fits = False
            assert "RESOURCE_EXHAUSTED" in str(error)
        assert [int(x[7]) for x in held] == list(range(1, 14, 2))
        return fits

    def out_of_memory_says_so_and_all_is_well_after_it():
        try:
            jax.block_until_ready(jnp.zeros(65 * MIB // 4, jnp.float32) + 1)
        except (RuntimeError, ValueError) as error:
            assert "RESOURCE_EXHAUSTED" in str(error) and "limit 64.00MiB" in str(error), error
        else:
            raise AssertionError("65 MiB were found in 64")
        assert float(jnp.ones(1000).sum()) == 1000

    def nothing_is_left():
        jax.clear_caches()
        gc.collect()
        eventually(lambda: bytes_in_use() < MIB, True)
        return stats()["bytes_limit"]

    checks = [function for function in list(globals().values()) if getattr(function, "__module__", "") == "__main__"]
    print(json.dumps({check.__name__: check() for check in checks}))
"""


@pytest.mark.parametrize("strategy", ["preallocate", "growing", "platform", "tpu"])
def test_a_little_of_everything(strategy):
    run = run_jax(
        SMOKE,
        PJRT_ARENA_STRATEGY=strategy,
        PJRT_ARENA_LIMIT="64MiB",
        PJRT_ARENA_DEVICES="2",
        PJRT_ARENA_ZERO_COPY="off",
    )
    seen = json.loads(run.stdout.splitlines()[-1])
    assert len(seen) == 10
    assert seen["training_in_place_keeps_one_copy"] > 20
    # What `platform` maps for each array and what `tpu` moves together need no hole that is large enough.
    if strategy in ("platform", "tpu"):
        assert seen["memory_is_found_in_pieces_or_moved_together"]
    assert seen["nothing_is_left"] == 64 << 20
