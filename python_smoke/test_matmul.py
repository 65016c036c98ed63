"""Matrix products see the matrices as they are now, wherever those lie: XLA's CPU engine may keep packed copies."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib import xla_client

pytestmark = pytest.mark.arena

STEPS = 6


@pytest.fixture(scope="module")
def training():
    """A step of training, and weights to start from."""
    random = np.random.default_rng(0)
    layers = [784, 1024, 1024, 10]
    start = [random.standard_normal(pair, np.float32) / pair[0] ** 0.5 for pair in itertools.pairwise(layers)]
    x = random.standard_normal((128, 784), np.float32)
    labels = random.integers(10, size=128)

    def loss(weights):
        hidden = x
        for layer in weights[:-1]:
            hidden = jax.nn.relu(hidden @ layer)
        return -jnp.take_along_axis(jax.nn.log_softmax(hidden @ weights[-1]), labels[:, None], 1).mean()

    def step(weights):
        value, gradients = jax.value_and_grad(loss)(weights)
        return [layer - 0.1 * gradient for layer, gradient in zip(weights, gradients, strict=True)], value

    return step, start


@pytest.fixture(scope="module")
def expected(training):
    """The losses of training that writes nothing in place."""
    step, weights = training
    losses, run = [], jax.jit(step)
    for _ in range(STEPS):
        weights, loss = run(weights)
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("isa", [None, "AVX2"])
@pytest.mark.parametrize("xnnpack", [None, True])
def test_training_that_is_donated_its_weights_learns_what_other_training_learns(training, expected, xnnpack, isa):
    """As JAX asks for it, with XNNPACK asked for, and with code for processors without AVX-512."""
    step, start = training
    options = {"xla_cpu_use_xnnpack": xnnpack, "xla_cpu_max_isa": isa}
    options = {name: value for name, value in options.items() if value is not None}
    run = jax.jit(step, donate_argnums=0, compiler_options=options or None)
    weights, losses = [jnp.array(layer) for layer in start], []
    for _ in range(STEPS):
        weights, loss = run(weights)
        losses.append(float(loss))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_a_client_that_leaves_the_debug_options_to_the_engine_gets_right_products_too(training, expected):
    step, start = training
    device = jax.devices()[0]
    options = xla_client.CompileOptions.ParseFromString(b"")
    program = str(jax.jit(step, donate_argnums=0).lower(start).compiler_ir())
    run = device.client.compile_and_load(program, [device], options)
    weights, losses = [jnp.array(layer) for layer in start], []
    for _ in range(STEPS):
        *weights, loss = run.execute(weights)
        losses.append(float(loss))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
