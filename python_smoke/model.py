"""The small model that the demo, the soak run and the tests train: a two-layer network that learns a sine."""

import jax
import jax.numpy as jnp
import optax

WIDTH = 64


def initial_state(seed: int = 0):
    """Parameters, the optimiser's state and the optimiser."""
    first, second = jax.random.split(jax.random.key(seed))
    parameters = {
        "w1": jax.random.normal(first, (1, WIDTH)),
        "b1": jnp.zeros(WIDTH),
        "w2": jax.random.normal(second, (WIDTH, 1)) / WIDTH**0.5,
        "b2": jnp.zeros(1),
    }
    optimiser = optax.adam(3e-3)
    return parameters, optimiser.init(parameters), optimiser


def batch(key, size: int = 256):
    """Points of one period and their sines."""
    x = jax.random.uniform(key, (size, 1), minval=-jnp.pi, maxval=jnp.pi)
    return x, jnp.sin(x)


def loss(parameters, x, y):
    """Mean squared error."""
    hidden = jnp.tanh(x @ parameters["w1"] + parameters["b1"])
    return jnp.mean((hidden @ parameters["w2"] + parameters["b2"] - y) ** 2)


def make_step(optimiser):
    """One training step, compiled, that donates parameters and optimiser state."""

    def step(parameters, state, key):
        key, here = jax.random.split(key)
        value, gradient = jax.value_and_grad(loss)(parameters, *batch(here))
        updates, state = optimiser.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, key, value

    return jax.jit(step, donate_argnums=(0, 1, 2))
