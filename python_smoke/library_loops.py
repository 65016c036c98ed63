"""Loops as the libraries on JAX show them: training with flax, optax and equinox, with a loader of NumPy's, orbax.

As those of `user_loops.py`; a library is imported by its own loop alone.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from user_loops import Loop, forward, perceptron


def flax(bytes_: int) -> Loop:
    """The convolutional network of flax's tutorial, with Adam, on batches of 64 random images."""
    import optax
    from flax import nnx

    # An eighth of the bytes is the largest layer.
    width, pool = max(64, bytes_ // 8 // (4 * 3136)), cast(Any, nnx.avg_pool)

    class Network(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.first = nnx.Conv(1, 32, kernel_size=(3, 3), rngs=rngs)
            self.second = nnx.Conv(32, 64, kernel_size=(3, 3), rngs=rngs)
            self.wide = nnx.Linear(3136, width, rngs=rngs)
            self.last = nnx.Linear(width, 10, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = pool(nnx.relu(self.first(x)), window_shape=(2, 2), strides=(2, 2))
            x = pool(nnx.relu(self.second(x)), window_shape=(2, 2), strides=(2, 2))
            return self.last(nnx.relu(self.wide(x.reshape(x.shape[0], -1))))

    network = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(network, optax.adam(1e-3), wrt=nnx.Param)
    rng = np.random.default_rng(0)

    def step(network: Any, optimizer: Any, images: Any, labels: Any) -> Any:
        def loss(network: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(network(images), labels).mean()

        value, slopes = nnx.value_and_grad(loss)(network)
        optimizer.update(network, slopes)
        return value

    jitted = nnx.jit(step)

    def run(_: Any, __: int) -> Any:
        return jitted(network, optimizer, rng.random((64, 28, 28, 1), np.float32), rng.integers(0, 10, 64))

    return jnp.zeros(()), run, 40


def optax(bytes_: int, donate: tuple[int, ...] = ()) -> Loop:
    """Adam on a perceptron, as optax's page on it; the losses are kept. The page donates nothing."""
    import optax

    parameters, batch = perceptron(bytes_, 4)
    solver, losses = optax.adam(1e-3), []

    def loss(parameters: Any) -> Any:
        return (forward(parameters, batch) ** 2).mean()

    def step(parameters: Any, state: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(parameters)
        updates, state = solver.update(slopes, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    jitted = jax.jit(step, donate_argnums=donate)

    def run(state: Any, _: int) -> Any:
        *state, value = jitted(*state)
        losses.append(value)
        return state

    return [parameters, solver.init(parameters)], run, 40


def equinox(bytes_: int) -> Loop:
    """A perceptron of equinox's, with optax's Adam, on new batches."""
    import equinox as eqx
    import optax

    batch = perceptron(bytes_, 0)[1]
    width, network = batch.shape[1], cast(Any, eqx.nn.MLP)
    model = network(width, 1, width, 3, key=jax.random.key(0))
    solver = optax.adam(1e-3)

    def loss(model: Any, x: Any) -> Any:
        return (jax.vmap(model)(x) ** 2).mean()

    def step(model: Any, state: Any, x: Any) -> Any:
        gradient: Any = eqx.filter_grad(loss)
        slopes = gradient(model, x)
        updates, state = solver.update(slopes, state, model)
        return eqx.apply_updates(model, updates), state

    jitted: Any = eqx.filter_jit(step)

    def run(state: Any, turn: int) -> Any:
        return jitted(*state, jax.random.normal(jax.random.key(turn), batch.shape))

    return (model, solver.init(eqx.filter(model, eqx.is_array))), run, 40


def loader(bytes_: int) -> Loop:
    """Q-learning: each step takes a batch of a replay memory in NumPy's arrays, and every tenth copies the target."""
    parameters, batch = perceptron(bytes_, 4)
    memory, rng = np.ones((4096, batch.shape[1]), np.float32), np.random.default_rng(0)

    def value(parameters: Any, x: Any) -> Any:
        return forward(parameters, x).max(axis=1)

    def step(parameters: Any, target: Any, now: Any, following: Any) -> Any:
        def loss(parameters: Any) -> Any:
            return ((value(parameters, now) - 0.99 * value(target, following)) ** 2).mean()

        return [p - 1e-3 * g for p, g in zip(parameters, jax.grad(loss)(parameters), strict=True)]

    jitted = jax.jit(step)

    def run(state: Any, turn: int) -> Any:
        parameters, target = state
        rows = rng.integers(0, len(memory) - 1, 256)
        new = jitted(parameters, target, jnp.asarray(memory[rows]), jnp.asarray(memory[rows + 1]))
        return new, [jnp.copy(each) for each in new] if turn % 10 == 0 else target

    return (parameters, parameters), run, 40


def checkpoints(bytes_: int) -> Loop:
    """A state of twelve arrays, three times `bytes_` together, that orbax saves and restores three times."""
    import orbax.checkpoint as ocp

    folder = tempfile.TemporaryDirectory()
    checkpointer = ocp.StandardCheckpointer()
    keys = jax.random.split(jax.random.key(0), 12)

    def step(state: Any, turn: int) -> Any:
        path = Path(folder.name, str(turn))
        checkpointer.save(path, state)
        checkpointer.wait_until_finished()
        return checkpointer.restore(path, state)

    return {str(i): jax.random.normal(key, (bytes_ // 8192, 512)) for i, key in enumerate(keys)}, step, 3


LIBRARY_LOOPS = {each.__name__: each for each in (flax, optax, equinox, loader, checkpoints)}
