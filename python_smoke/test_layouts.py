"""Arrays in layouts of their own: copied, moved, donated into, and given by programs of callbacks, numbers intact."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import arena_device
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from pjrt_arena import memory

#: The bare engine gives wrong numbers in some of them.
pytestmark = pytest.mark.arena
X = np.arange(2 * 3 * 5, dtype=np.float32).reshape(2, 3, 5)
ORDERS = list(itertools.permutations(range(3)))


def laid_out(order, host=X, device=None):
    """An array in that order of dimensions."""
    own = SingleDeviceSharding(device or arena_device())
    return jax.jit(lambda x: x + 0, out_shardings=Format(Layout(order), own))(jax.device_put(host, own))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["device", "pinned_host", "unpinned_host"])
@pytest.mark.parametrize("index", [0, 1])
def test_copies(order, kind, index):
    there = SingleDeviceSharding(arena_device(index), memory_kind=kind)
    x = laid_out(order)
    copy = jax.device_put(x, there, may_alias=False)
    x.delete()
    assert copy.sharding == there and copy.format.layout.major_to_minor == order
    np.testing.assert_array_equal(np.asarray(copy), X)
    back = jax.device_put(copy, SingleDeviceSharding(arena_device()), may_alias=False)
    np.testing.assert_array_equal(np.asarray(back), X)
    total = jax.jit(lambda x: x.sum(0))(back)
    np.testing.assert_array_equal(np.asarray(total), X.sum(0))


def test_a_copy_is_made_of_what_is_still_computed():
    own = SingleDeviceSharding(arena_device())
    slow = jax.jit(lambda x: jnp.linalg.matrix_power(x, 30) * 0 + x, out_shardings=Format(Layout((1, 0)), own))
    host = np.random.default_rng(3).standard_normal((700, 700), np.float32) / 100
    slow(host)
    copy = jax.device_put(slow(host), arena_device(1))
    np.testing.assert_array_equal(np.asarray(copy), host)


@pytest.mark.parametrize("read", ["to the host", "by a program", "by a copy"])
def test_a_result_that_xla_put_into_a_donated_array_moves_as_it_is_laid_out(read):
    mesh = Mesh(np.array(jax.devices("arena")), "x")
    rows = NamedSharding(mesh, PartitionSpec("x", None))
    columns = Format(Layout((1, 0)), rows)
    host = np.arange(256 * 96, dtype=np.float32).reshape(256, 96)
    # Donated on several devices, where XLA chooses the result by its size.
    turn = jax.jit(lambda x: x + 1, donate_argnums=0, out_shardings=columns)
    before = [jax.device_put(host, rows) for _ in range(4)]
    result = turn(before[3])
    assert before[3].is_deleted() and result.format.layout.major_to_minor == (1, 0)
    jax.block_until_ready(result)
    for array in before[:3]:
        array.delete()
    assert sum(device.num_moves for device in memory.compact()) >= len(mesh.devices)
    assert result.format.layout.major_to_minor == (1, 0)
    if read == "by a program":
        twice = jax.jit(lambda x: x * 2, in_shardings=columns)(result)
        np.testing.assert_array_equal(np.asarray(twice), (host + 1) * 2)
        return
    shards = [shard.data for shard in result.addressable_shards]
    if read == "by a copy":
        others = jax.devices("arena")[1:] + jax.devices("arena")[:1]
        shards = [jax.device_put(shard, other) for shard, other in zip(shards, others, strict=True)]
    np.testing.assert_array_equal(np.concatenate([np.asarray(shard) for shard in shards]), host + 1)


@pytest.mark.parametrize("order", ORDERS)
def test_programs_that_callbacks_run(order):
    own = SingleDeviceSharding(arena_device())
    form = Format(Layout(order), own)
    held = laid_out(order)
    add = jax.jit(lambda a, b: (a + b, a * 2), in_shardings=(form, own), out_shardings=(form, own))
    seen = []

    def on_the_host(value):
        total, twice = add(held, jax.device_put(value, own))
        seen.append(total)
        return np.asarray(total) + np.asarray(twice)

    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    result = jax.jit(lambda x: jax.pure_callback(on_the_host, shape, x))(jax.device_put(X, own))
    np.testing.assert_array_equal(np.asarray(result), X * 4)
    # What came out of it is an array as any other.
    (total,) = seen
    assert total.format.layout.major_to_minor == order
    memory.compact()
    np.testing.assert_array_equal(np.asarray(add(total, X)[1]), X * 4)
    np.testing.assert_array_equal(np.asarray(jax.device_put(total, arena_device(1))), X * 2)
