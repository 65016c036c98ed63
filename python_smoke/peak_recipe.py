"""Known programs, and the most memory that each may need: a recipe for tests of your own (docs/guides/peaks.md).

Run with ``PJRT_ARENA_STRATEGY=tpu``, where scratch counts, and two devices; ``test_peaks.py`` does. Each limit is what
was measured, to the MiB above it: for scalars of JAX's own. The scans have 1.75 MiB, because their scratch is the
compiler's choice.
"""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# JAX before 0.8 has it elsewhere.
shard_map = getattr(jax, "shard_map", None) or importlib.import_module("jax.experimental.shard_map").shard_map

MIB = 1 << 20


def array(mib: int, fill: float = 1.0) -> jax.Array:
    """An array of so many MiB."""
    return jnp.full((mib, MIB // 4), fill)


def loop(state):
    return jax.lax.fori_loop(0, 10, lambda _, s: s * 0.5 + 1, state)


@pytest.mark.peak_memory("17MiB")
def test_a_donated_loop_needs_its_state_once():
    """It once needed twice as much: openxla/xla#45912."""
    state, step = array(16), jax.jit(loop, donate_argnums=0)
    for _ in range(3):
        state = step(state)
    state.block_until_ready()


@pytest.mark.peak_memory("33MiB")
def test_a_loop_that_is_not_donated_needs_it_twice():
    state, step = array(16), jax.jit(loop)
    for _ in range(3):
        state = step(state)
    state.block_until_ready()


LAYERS, WIDTH, BATCH = 8, 256, 1024


def model(remat: bool):
    def layer(x, w):
        return jnp.tanh(x @ w), None

    def loss(weights, x):
        return jnp.mean(jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, weights)[0] ** 2)

    return jax.jit(lambda weights, x: weights - 0.1 * jax.grad(loss)(weights, x), donate_argnums=0)


def train(remat: bool) -> None:
    weights, x, step = jnp.full((LAYERS, WIDTH, WIDTH), 0.01), jnp.ones((BATCH, WIDTH)), model(remat)
    for _ in range(3):
        weights = step(weights, x)
    weights.block_until_ready()


@pytest.mark.peak_memory("34MiB")
def test_a_scan():
    train(remat=False)


@pytest.mark.peak_memory("18MiB")
def test_a_scan_with_checkpoints_needs_less():
    train(remat=True)


def adam(params, m, v):
    grads = jax.tree.map(lambda p: 2 * p, params)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, grads)
    return jax.tree.map(lambda p, m, v: p - 0.01 * m / (jnp.sqrt(v) + 1e-8), params, m, v), m, v


def optimise(**how) -> None:
    state, step = tuple([array(4) for _ in range(2)] for _ in range(3)), jax.jit(adam, **how)
    for _ in range(3):
        state = step(*state)
    jax.block_until_ready(state)


@pytest.mark.peak_memory("25MiB")
def test_an_optimiser_that_is_donated_needs_its_state_once():
    optimise(donate_argnums=(0, 1, 2))


@pytest.mark.peak_memory("49MiB")
def test_an_optimiser_that_is_not_donated_needs_it_twice():
    optimise()


@pytest.mark.peak_memory("9MiB")
def test_a_batched_product():
    a = jnp.ones((16, 256, 256))
    jax.jit(lambda a, b: a @ b)(a, a).block_until_ready()


@pytest.mark.peak_memory("9MiB")
def test_a_convolution():
    images, kernel = jnp.ones((8, 128, 128, 8)), jnp.ones((3, 3, 8, 8))
    convolve = jax.jit(lambda x, k: jax.lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))  # fmt: skip
    convolve(images, kernel).block_until_ready()


@pytest.mark.peak_memory("17MiB")
def test_a_softmax():
    jax.jit(jax.nn.softmax)(array(8)).block_until_ready()


@pytest.mark.peak_memory("25MiB")
def test_a_chain_of_eager_operations_needs_three_arrays():
    x = array(8)
    for _ in range(5):
        x = x * 2 + 1
    x.block_until_ready()


@pytest.mark.peak_memory("17MiB")
def test_two_devices_share_an_array():
    mesh = Mesh(np.array(jax.devices()[:2]), "d")
    halves = NamedSharding(mesh, PartitionSpec("d"))
    x = jax.device_put(np.ones((16, MIB // 4), np.float32), halves)
    each = PartitionSpec("d")
    jax.jit(shard_map(lambda x: 2 * x, mesh=mesh, in_specs=each, out_specs=each))(x).block_until_ready()


@pytest.mark.peak_memory("17MiB")
def test_to_the_host_and_back():
    x = array(8)
    for _ in range(3):
        x = jax.device_put(np.array(x) + 1)
    x.block_until_ready()
