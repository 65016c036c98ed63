"""Results of programs in memories of the host: what a training offloads to, and where JAX's own CPU says it lies."""

import contextlib
import gc
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import arena_device, bytes_in_use, eventually, run_jax
from jax.experimental import serialize_executable
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from pjrt_arena import memory

HOST_KINDS = ["pinned_host", "unpinned_host"]
#: The bare engine puts no result there.
pytestmark = pytest.mark.arena
X = np.arange(4096, dtype=np.float32).reshape(64, 64)


def in_kind(kind, device=None):
    return SingleDeviceSharding(device or arena_device(), memory_kind=kind)


def engine_bytes():
    return sum(device.engine_bytes for device in memory.counters().devices)


#: Programs with a result that something binds to a memory, as functions of the memory and of the device's own.
PROGRAMS = {
    "out_shardings": lambda there, own: (jax.jit(lambda x: x + 1, out_shardings=there), own),
    "device_put inside": lambda there, own: (jax.jit(lambda x: jax.device_put(x + 1, there)), own),
    "there and back": lambda there, own: (jax.jit(lambda x: jax.device_put(jax.device_put(x, there) + 1, own)), own),
    "an argument there": lambda there, own: (jax.jit(lambda x: x + 1), there),
    "both there": lambda there, own: (jax.jit(lambda x: x + 1, in_shardings=there, out_shardings=there), there),
    "brought back": lambda there, own: (jax.jit(lambda x: jax.device_put(x, own) + 1, out_shardings=own), there),
    "an operation by itself": lambda there, own: (lambda x: x + x, there),
    "several": lambda there, own: (jax.jit(lambda x: (x, x + 1, x * 2), out_shardings=(there, own, there)), own),
    "donated": lambda there, own: (jax.jit(lambda x: x * 2, out_shardings=there, donate_argnums=0), there),
    "donated from elsewhere": lambda there, own: (jax.jit(lambda x: x * 2, out_shardings=there, donate_argnums=0), own),
    "empty": lambda there, own: (jax.jit(lambda x: x[:0], out_shardings=there), own),
    "narrow": lambda there, own: (jax.jit(lambda x: x.astype("int4"), out_shardings=there), own),
    "no argument": lambda there, own: (jax.jit(lambda x: jnp.arange(9.0), out_shardings=there), own),
}


@pytest.mark.parametrize("kind", HOST_KINDS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_results_lie_where_jax_s_own_cpu_says(name, kind):
    def run(device):
        program, where = PROGRAMS[name](in_kind(kind, device), in_kind("device", device))
        argument = jax.device_put(X, where)
        results = jax.tree.leaves(program(argument))
        found = [(np.asarray(result), result.sharding.memory_kind, result.devices()) for result in results]
        assert all(devices == {device} for *_, devices in found)
        return argument.is_deleted(), found

    (own_deleted, own), (deleted, ours) = run(jax.devices("cpu")[0]), run(arena_device())
    assert [memory for _, memory, _ in ours] == [memory for _, memory, _ in own]
    assert deleted == own_deleted
    for (expected, *_), (found, *_) in zip(own, ours, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_what_is_offloaded_leaves_the_arena(kind):
    gc.collect()
    x = jax.device_put(X, in_kind("device"))
    before = eventually_settled()
    away = jax.block_until_ready(jax.jit(lambda x: x + 1, out_shardings=in_kind(kind))(x))
    eventually(lambda: (bytes_in_use(), engine_bytes()), (before[0], before[1] + X.nbytes))
    back = jax.device_put(away, in_kind("device"))
    away.delete()
    eventually(lambda: (bytes_in_use(), engine_bytes()), (before[0] + X.nbytes, before[1]))
    np.testing.assert_array_equal(np.asarray(back), X + 1)


def eventually_settled():
    """What the arena and the engine hold, once that stays."""
    last = None
    while last != (last := (bytes_in_use(), engine_bytes())):
        gc.collect()
    return last


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_what_is_donated_does_not_stay_where_it_was(kind):
    # Where the argument's sharding names no memory JAX lets it alias the result, and to XLA:CPU all memory is one.
    away = jax.jit(lambda x: (x, x.sum()), donate_argnums=0, out_shardings=(in_kind(kind), None))
    base = eventually_settled()
    x = jax.device_put(X, arena_device())
    offloaded, total = jax.block_until_ready(away(x))
    assert x.is_deleted() and offloaded.sharding.memory_kind == kind
    assert float(total) == X.sum()
    eventually(lambda: (bytes_in_use(), engine_bytes()), (base[0] + total.nbytes, base[1] + X.nbytes))
    np.testing.assert_array_equal(np.asarray(offloaded), X)


def test_results_in_device_memory_have_destinations_beside_those_that_do_not():
    own, there = in_kind("device"), in_kind("pinned_host")
    program = jax.jit(lambda x: (jax.device_put(x * 3, there), x + 3), out_shardings=(there, own))
    x = jax.device_put(X, own)
    jax.block_until_ready(program(x))
    before = memory.counters().results.placed
    kept = [jax.block_until_ready(program(x)) for _ in range(5)]
    del program
    assert memory.counters().results.placed >= before + 5
    for away, here in kept:
        np.testing.assert_array_equal(np.asarray(away), X * 3)
        np.testing.assert_array_equal(np.asarray(here), X + 3)


def test_a_training_keeps_its_state_on_the_host():
    own, there = in_kind("device"), in_kind("pinned_host")

    @jax.jit
    def gradient(weights, batch):
        return jax.grad(lambda w: jnp.mean((jnp.tanh(batch @ w) - 0.5) ** 2))(weights)

    def update(weights, moment, batch):
        moment = jax.device_put(moment, own) * 0.9 + gradient(weights, batch)
        return weights - 0.1 * moment, jax.device_put(moment, there)

    step = jax.jit(update, donate_argnums=(0, 1), out_shardings=(own, there))
    rng = np.random.default_rng(7)
    batch, first = rng.standard_normal((32, 64), np.float32), rng.standard_normal((64, 64), np.float32)
    weights, moment = jax.device_put(first, own), jax.device_put(np.zeros_like(first), there)
    for _ in range(40):
        before = moment
        weights, moment = step(weights, moment, batch)
        assert before.is_deleted() and moment.sharding.memory_kind == "pinned_host"
    with jax.default_device(jax.devices("cpu")[0]):
        expected, state = jnp.asarray(first), jnp.zeros_like(first)
        for _ in range(40):
            state = state * 0.9 + gradient(expected, jnp.asarray(batch))
            expected = expected - 0.1 * state
    np.testing.assert_allclose(np.asarray(weights), np.asarray(expected), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.asarray(moment), np.asarray(state), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["device", *HOST_KINDS])
def test_sharded_results(kind):
    mesh = Mesh(np.array(jax.devices("arena")).reshape(2, 2), ("x", "y"))
    own = NamedSharding(mesh, PartitionSpec("x", "y"))
    there = own.with_memory_kind(kind)
    away = jax.jit(lambda x: x * 2, out_shardings=there)(jax.device_put(X, own))
    assert away.sharding == there
    assert {shard.data.sharding.memory_kind for shard in away.addressable_shards} == {kind}
    turned = jax.jit(lambda x: x.T + 1, out_shardings=there, donate_argnums=0)(away)
    assert turned.sharding == there and away.is_deleted()
    np.testing.assert_array_equal(np.asarray(turned), (X * 2).T + 1)
    total = jax.jit(lambda x: jax.device_put(x, own).sum(0), out_shardings=NamedSharding(mesh, PartitionSpec()))(turned)
    np.testing.assert_allclose(np.asarray(total), ((X * 2).T + 1).sum(0), rtol=1e-6)


@pytest.mark.parametrize("platforms", [["cpu"], ["cpu", "cuda", "tpu"]])
def test_exported_programs(platforms):
    there = in_kind("pinned_host")
    # For several platforms the annotation of the others is in a function of its own, behind a case.
    program = jax.jit(lambda x: jax.device_put(jnp.sin(x), there) * 2)
    written = jax.export.export(program, platforms=platforms)(jax.ShapeDtypeStruct(X.shape, X.dtype))
    result = jax.jit(jax.export.deserialize(written.serialize()).call)(jax.device_put(X, in_kind("device")))
    assert result.sharding.memory_kind == "pinned_host"
    np.testing.assert_allclose(np.asarray(result), np.sin(X) * 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", HOST_KINDS)
def test_serialised_executables_remember(kind):
    x = jax.device_put(X, in_kind("device"))
    compiled = jax.jit(lambda x: x + 1, out_shardings=in_kind(kind)).lower(x).compile()
    assert compiled.runtime_executable().get_output_memory_kinds() == [[kind]]
    loaded = serialize_executable.deserialize_and_load(
        *serialize_executable.serialize(compiled), execution_devices=[arena_device()]
    )
    assert loaded(x).sharding.memory_kind == kind
    np.testing.assert_array_equal(np.asarray(loaded(x)), X + 1)


def test_programs_that_callbacks_run():
    own, there = in_kind("device"), in_kind("pinned_host")
    held = jax.device_put(X, there)
    add = jax.jit(lambda a, b: (a + b, a), out_shardings=(there, own))

    def on_the_host(value):
        total, copy = add(jax.device_put(value, there), held)
        assert (total.sharding, copy.sharding) == (there, own)
        return np.asarray(total) + np.asarray(copy)

    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    result = jax.jit(lambda x: jax.pure_callback(on_the_host, shape, x))(jax.device_put(X, own))
    np.testing.assert_array_equal(np.asarray(result), X * 3)


def test_a_copy_to_the_device_is_whole_though_the_array_is_donated_meanwhile():
    own, there = in_kind("device"), in_kind("pinned_host")
    make = jax.jit(lambda: jnp.full((8 << 20,), 3, jnp.float32), out_shardings=there)
    overwrite = jax.jit(lambda x: x * 0 + 7, donate_argnums=0, in_shardings=there, out_shardings=there)
    copies = []

    def copy(x):
        # Who comes after the donation is told so.
        with contextlib.suppress(RuntimeError):
            copies.append(jax.device_put(x, own))

    for attempt in range(20):
        x = jax.block_until_ready(make())
        copying = threading.Thread(target=copy, args=(x,))
        copying.start()
        time.sleep(attempt % 5 / 1000)
        jax.block_until_ready(overwrite(x))
        copying.join()
    assert copies
    for made in copies:
        assert set(np.unique(np.asarray(made))) == {3}


def test_without_rewriting_too():
    run = run_jax(
        """
        import jax, jax.numpy as jnp
        there = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
        print(jax.jit(lambda x: x + 1, out_shardings=there)(jnp.arange(3.0)).sharding.memory_kind)
        """,
        PJRT_ARENA_REWRITE="off",
    )
    assert run.stdout.split() == ["pinned_host"]
