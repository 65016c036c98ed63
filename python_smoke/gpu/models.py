"""Two models in plain JAX, with Adam: (step, state, batch) of each; `step(state, batch)` is the new state.

A state holds parameters and moments in float32, and the loss; matrices are multiplied in bfloat16 where that is usual.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpu.sizes import Sizes


def _weights(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape, np.float32) / np.float32(np.prod(shape[:-1]) ** 0.5)


def _adam(loss: Callable[[Any, Any], jax.Array]) -> Callable[[Any, Any], Any]:
    def step(state, batch):
        parameters, means, squares, _ = state
        value, slopes = jax.value_and_grad(loss)(parameters, batch)
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, slopes)
        squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, slopes)
        parameters = jax.tree.map(lambda p, m, v: p - 1e-4 * m / (jnp.sqrt(v) + 1e-8), parameters, means, squares)
        return parameters, means, squares, value

    return step


def _state(parameters: Any) -> Any:
    parameters = jax.tree.map(jnp.asarray, parameters)
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    return parameters, zeros, jax.tree.map(jnp.copy, zeros), jnp.float32(0)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def transformer(sizes: Sizes) -> tuple[Callable[[Any, Any], Any], Any, Any]:
    """A decoder, bfloat16."""
    layers, width, heads, length, batch, words = sizes.transformer
    random = np.random.default_rng(0)
    parameters = {
        "words": _weights(random, words, width),
        "places": _weights(random, length, width),
        "layers": [
            {
                "qkv": _weights(random, width, 3 * width),
                "out": _weights(random, width, width),
                "up": _weights(random, width, 4 * width),
                "down": _weights(random, 4 * width, width),
                "scale": np.ones((2, width), np.float32),
            }
            for _ in range(layers)
        ],
    }
    tokens = jnp.asarray(random.integers(words, size=(batch, length + 1), dtype=np.int32))
    mask = np.tril(np.ones((length, length), bool))

    def dot(x, w):
        return x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)

    def norm(x, scale):
        x = x.astype(jnp.float32)
        return scale * (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def attention(x, layer):
        q, k, v = jnp.split(dot(x, layer["qkv"]).reshape(*x.shape[:2], heads, -1), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
        shares = jax.nn.softmax(jnp.where(mask, scores, -1e9)).astype(jnp.bfloat16)
        return dot(jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape), layer["out"])

    def loss(parameters, tokens):
        x = parameters["words"][tokens[:, :-1]] + parameters["places"]
        for layer in parameters["layers"]:
            x = x + attention(norm(x, layer["scale"][0]), layer)
            x = x + dot(jax.nn.gelu(dot(norm(x, layer["scale"][1]), layer["up"])), layer["down"])
        return _cross_entropy(dot(x, parameters["words"].T), tokens[:, 1:])

    return _adam(loss), _state(parameters), tokens


def mlp(sizes: Sizes) -> tuple[Callable[[Any, Any], Any], Any, Any]:
    """784, three hidden layers, 10; float32."""
    width, rows = sizes.mlp
    random = np.random.default_rng(2)
    layers = [784, width, width, width, 10]
    parameters = [
        {"w": _weights(random, *pair), "b": np.zeros(pair[1], np.float32)} for pair in itertools.pairwise(layers)
    ]
    batch = (
        jnp.asarray(random.standard_normal((rows, 784), np.float32)),
        jnp.asarray(random.integers(10, size=rows, dtype=np.int32)),
    )

    def loss(parameters, batch):
        x, labels = batch
        for layer in parameters[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return _cross_entropy(x @ parameters[-1]["w"] + parameters[-1]["b"], labels)

    return _adam(loss), _state(parameters), batch


MODELS = {"transformer": transformer, "mlp": mlp}
