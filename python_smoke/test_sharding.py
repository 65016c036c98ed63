"""Four devices: shardings, collectives, donation of sharded arrays."""

import gc
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import bytes_in_use, eventually
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

HOST = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices("arena")).reshape(4), ("x",))


@pytest.fixture
def grid():
    return Mesh(np.array(jax.devices("arena")).reshape(2, 2), ("a", "b"))


def test_four_devices():
    devices = jax.devices("arena")
    assert [device.id for device in devices] == [0, 1, 2, 3]
    assert jax.local_device_count() == 4
    assert {device.platform for device in devices} == {"cpu"}


def test_named_sharding_places_every_shard(mesh):
    x = jax.device_put(HOST, NamedSharding(mesh, P("x")))
    assert len(x.addressable_shards) == 4
    for i, shard in enumerate(x.addressable_shards):
        assert shard.device == jax.devices("arena")[i]
        np.testing.assert_array_equal(np.asarray(shard.data), HOST[4 * i : 4 * i + 4])
    np.testing.assert_array_equal(np.asarray(x), HOST)


def test_elementwise_keeps_the_sharding(mesh):
    sharding = NamedSharding(mesh, P("x"))
    y = jax.jit(lambda x: x * 2 + 1)(jax.device_put(HOST, sharding))
    assert y.sharding.is_equivalent_to(sharding, 2)
    np.testing.assert_array_equal(np.asarray(y), HOST * 2 + 1)


def test_requested_result_sharding(mesh):
    wanted = NamedSharding(mesh, P(None, "x"))
    y = jax.jit(lambda x: x + 1, out_shardings=wanted)(jax.device_put(HOST, NamedSharding(mesh, P("x"))))
    assert y.sharding.is_equivalent_to(wanted, 2)
    assert y.addressable_shards[0].data.shape == (16, 2)
    np.testing.assert_array_equal(np.asarray(y), HOST + 1)


def test_unspecified_result_sharding_is_the_engines_choice(mesh):
    """Adding destinations must not change what XLA chooses: the same program on the built-in backend is not at hand
    with four devices, so the sharding is asserted that XLA derives from the arguments."""
    x = jax.device_put(HOST, NamedSharding(mesh, P("x", None)))
    y = jax.jit(lambda x: (x @ x.T, jnp.sum(x, axis=1), x.sum()))(x)
    assert y[1].sharding.is_equivalent_to(NamedSharding(mesh, P("x")), 1)
    assert y[2].sharding.is_fully_replicated
    np.testing.assert_allclose(np.asarray(y[0]), HOST @ HOST.T, rtol=1e-5)


def test_reduction_over_devices(mesh):
    x = jax.device_put(HOST, NamedSharding(mesh, P("x")))
    total = jax.jit(lambda x: x.sum(axis=0))(x)
    np.testing.assert_allclose(np.asarray(total), HOST.sum(0))


def test_replicated(mesh):
    x = jax.device_put(HOST, NamedSharding(mesh, P()))
    assert x.is_fully_replicated and len(x.addressable_shards) == 4
    y = jax.jit(lambda x: x - 1)(x)
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), HOST - 1)


def test_two_axes_and_a_product(grid):
    a = jax.device_put(HOST, NamedSharding(grid, P("a", "b")))
    b = jax.device_put(HOST.T.copy(), NamedSharding(grid, P("b", None)))
    np.testing.assert_allclose(np.asarray(jax.jit(jnp.matmul)(a, b)), HOST @ HOST.T, rtol=1e-5)


def test_resharding(grid):
    x = jax.device_put(HOST, NamedSharding(grid, P("a", "b")))
    for spec in [P("b", "a"), P(None, ("a", "b")), P(), P("a")]:
        x = jax.device_put(x, NamedSharding(grid, spec))
        np.testing.assert_array_equal(np.asarray(x), HOST)


def test_shard_map_with_collectives(mesh):
    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=(P(), P("x")))
    def collect(x):
        return jax.lax.psum(x.sum(), "x"), jax.lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)])

    total, turned = collect(jax.device_put(HOST, NamedSharding(mesh, P("x"))))
    assert float(total) == HOST.sum()
    np.testing.assert_array_equal(np.asarray(turned), np.roll(HOST, 4, axis=0))


def test_donation_of_a_sharded_array(mesh):
    sharding = NamedSharding(mesh, P("x"))
    step = jax.jit(lambda x: x + 1, donate_argnums=0, in_shardings=sharding, out_shardings=sharding)
    x = step(jax.device_put(HOST, sharding))
    places = [shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards]
    y = step(x)
    assert x.is_deleted()
    assert [shard.data.unsafe_buffer_pointer() for shard in y.addressable_shards] == places
    np.testing.assert_array_equal(np.asarray(y), HOST + 2)


def test_data_parallel_training_step(mesh):
    def loss(weights, x):
        return jnp.mean((x @ weights) ** 2)

    weights = np.ones((8, 3), np.float32)
    x = HOST / 100
    step = jax.jit(lambda w, x: w - 0.1 * jax.grad(loss)(w, x))
    sharded = step(jax.device_put(weights, NamedSharding(mesh, P())), jax.device_put(x, NamedSharding(mesh, P("x"))))
    alone = step(jax.device_put(weights, jax.devices("arena")[0]), jax.device_put(x, jax.devices("arena")[0]))
    np.testing.assert_allclose(np.asarray(sharded), np.asarray(alone), rtol=1e-5)


@pytest.mark.arena
def test_each_device_counts_its_own_bytes(mesh):
    gc.collect()
    devices = jax.devices("arena")
    before = [bytes_in_use(device) for device in devices]
    x = jax.jit(lambda x: x + 1)(jax.device_put(HOST, NamedSharding(mesh, P("x"))))
    jax.block_until_ready(x)
    for device, start in zip(devices, before, strict=True):
        eventually(lambda device=device: bytes_in_use(device), start + HOST.nbytes // 4)
    only = jax.device_put(np.ones(500, np.int8), devices[2])
    eventually(lambda: [bytes_in_use(d) - b for d, b in zip(devices, before, strict=True)], [128, 128, 628, 128])
    del x, only
    gc.collect()
    eventually(lambda: [bytes_in_use(device) for device in devices], before)


def test_a_donor_finds_its_result_among_others_of_its_type(mesh):
    """Of two results with the donor's type XLA gives only one the donor's shape on a device, and chooses which."""
    replicated = NamedSharding(mesh, P())
    x = jax.device_put(HOST, NamedSharding(mesh, P("x")))
    both = jax.jit(lambda x: (jax.lax.with_sharding_constraint(x, replicated), x + 1), donate_argnums=0)
    whole, split = both(x)
    assert x.is_deleted()
    assert whole.sharding.is_equivalent_to(replicated, 2)
    np.testing.assert_array_equal(np.asarray(whole), HOST)
    np.testing.assert_array_equal(np.asarray(split), HOST + 1)
