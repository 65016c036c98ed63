"""Two small models to train, in plain JAX with optax: (step, state, batch) of each.

`step(state, batch)` returns the new state and the loss. Flax and Equinox models compile to the same kind of program:
a tree of parameters in, a tree of updated ones out.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax


def _step(loss, optimiser):
    def step(state, batch):
        parameters, memory = state
        value, gradients = jax.value_and_grad(loss)(parameters, batch)
        updates, memory = optimiser.update(gradients, memory, parameters)
        return (optax.apply_updates(parameters, updates), memory), value

    return step


def _weights(random, *shape: int) -> jax.Array:
    return jnp.asarray(random.standard_normal(shape, np.float32) / shape[0] ** 0.5)


def mlp(width):
    """784 - 1024 - 1024 - 10, batches of 128, Adam: 7 MiB of parameters."""
    random = np.random.default_rng(0)
    layers = [width(784), width(1024), width(1024), 10]
    parameters = [{"w": _weights(random, *pair), "b": jnp.zeros(pair[1])} for pair in itertools.pairwise(layers)]
    batch = (
        jnp.asarray(random.standard_normal((width(128), layers[0]), np.float32)),
        jnp.asarray(random.integers(10, size=width(128))),
    )

    def loss(parameters, batch):
        x, labels = batch
        for layer in parameters[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        logits = x @ parameters[-1]["w"] + parameters[-1]["b"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    # So slow that the loss stays near its start: once this one batch is learned by heart, what is left of it is
    # rounding, and two versions of XLA differ in that.
    optimiser = optax.adam(1e-5)
    return _step(loss, optimiser), (parameters, optimiser.init(parameters)), batch


def transformer(width):
    """Decoder of two layers, 192 wide, four heads, 8 sequences of 128 tokens, AdamW: 4 MiB of parameters."""
    random = np.random.default_rng(0)
    size, length, heads, words = width(192), width(128), 4, 256
    tokens = jnp.asarray(random.integers(words, size=(8, length + 1)))
    parameters = {
        "embedding": _weights(random, words, size),
        "position": _weights(random, length, size),
        "layers": [
            {
                "qkv": _weights(random, size, 3 * size),
                "out": _weights(random, size, size),
                "up": _weights(random, size, 4 * size),
                "down": _weights(random, 4 * size, size),
                "scale": jnp.ones((2, size)),
            }
            for _ in range(2)
        ],
    }
    mask = jnp.tril(jnp.ones((length, length), bool))

    def norm(x, scale):
        return scale * (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def attention(x, layer):
        q, k, v = jnp.split((x @ layer["qkv"]).reshape(*x.shape[:2], heads, -1), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        shares = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        return jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape) @ layer["out"]

    def loss(parameters, tokens):
        x = parameters["embedding"][tokens[:, :-1]] + parameters["position"]
        for layer in parameters["layers"]:
            x = x + attention(norm(x, layer["scale"][0]), layer)
            x = x + jax.nn.gelu(norm(x, layer["scale"][1]) @ layer["up"]) @ layer["down"]
        logits = x @ parameters["embedding"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    optimiser = optax.adamw(1e-3)
    return _step(loss, optimiser), (parameters, optimiser.init(parameters)), tokens
