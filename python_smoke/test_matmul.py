"""Matrix products see the matrices as they are now, wherever those lie: XLA's CPU engine may keep packed copies of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.arena


def test_training_that_is_donated_its_weights_learns_what_other_training_learns():
    random = np.random.default_rng(0)
    layers = [784, 1024, 1024, 10]
    start = [random.standard_normal(pair, np.float32) / pair[0] ** 0.5 for pair in zip(layers, layers[1:], strict=False)]
    x = jnp.asarray(random.standard_normal((128, 784), np.float32))
    labels = jnp.asarray(random.integers(10, size=128))

    def loss(weights):
        hidden = x
        for layer in weights[:-1]:
            hidden = jax.nn.relu(hidden @ layer)
        return -jnp.take_along_axis(jax.nn.log_softmax(hidden @ weights[-1]), labels[:, None], 1).mean()

    def step(weights):
        value, gradients = jax.value_and_grad(loss)(weights)
        return [layer - 0.1 * gradient for layer, gradient in zip(weights, gradients, strict=True)], value

    losses = []
    for donated in (False, True):
        run, weights = jax.jit(step, donate_argnums=(0,) if donated else ()), [jnp.array(layer) for layer in start]
        values = []
        for _ in range(6):
            weights, value = run(weights)
            values.append(float(value))
        losses.append(values)
    np.testing.assert_allclose(*losses, rtol=1e-4)
