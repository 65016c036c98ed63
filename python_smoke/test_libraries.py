"""Programs of libraries that people run on JAX, small: on the arena and on JAX's own CPU backend, results compared.

Tolerances. The two XLA versions order sums differently, so one f32 operation differs by a few units in the last place
(1.2e-7 of the value), and training feeds that back: `TRAINED` allows what tens of steps of Adam make of it, whose
division by the root of a running mean turns an error in a gradient near 0 into one of the size of a step (1e-3). Where
a program solves for a fixed point or reads back what was written, the tolerance is that of the solver, or none.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import arena_device, on

RANDOM = np.random.default_rng(11)
TRAINED = {"rtol": 2e-3, "atol": 2e-3}
ONE_PASS = {"rtol": 1e-4, "atol": 1e-5}


def both(function, *arguments, **tolerance):
    """Runs it on the arena and on the built-in backend; all leaves agree. The arena's results."""
    ours = on(arena_device(), function, *arguments)
    theirs = on(jax.devices("cpu")[0], function, *arguments)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for our, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(our, their, **tolerance)
    return ours


def test_flax_transformer_with_remat_learns():
    """A decoder block with the parts that Hugging Face's Flax models have: embeddings, causal attention with dropout
    and a mask, an MLP with GELU, layer norms, tied output; `nn.remat` recomputes activations, like `jax.checkpoint`."""
    import flax.linen as nn
    import optax

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, mask):
            normed = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=4, dropout_rate=0.1, deterministic=False)(
                normed, mask=mask
            )
            return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x))))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            embed = nn.Embed(31, 32)
            x = embed(tokens) + self.param("positions", nn.initializers.normal(0.02), (tokens.shape[1], 32))
            mask = nn.make_causal_mask(tokens)
            return embed.attend(nn.LayerNorm()(nn.remat(Block)()(x, mask)))

    def train(tokens):
        model, optimiser = Model(), optax.adamw(3e-3)
        keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
        parameters = jax.jit(model.init)(keys, tokens[:, :-1])
        state = jax.jit(optimiser.init)(parameters)

        def loss(parameters, key):
            logits = model.apply(parameters, tokens[:, :-1], rngs={"dropout": key})
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        @jax.jit
        def step(parameters, state, key):
            value, gradient = jax.value_and_grad(loss)(parameters, key)
            updates, state = optimiser.update(gradient, state, parameters)
            return optax.apply_updates(parameters, updates), state, value

        losses = []
        for i in range(30):
            parameters, state, value = step(parameters, state, jax.random.key(i))
            losses.append(value)
        return jnp.stack(losses)

    tokens = (np.arange(8)[:, None] * 3 + np.arange(17)) % 31
    losses = both(train, tokens.astype(np.int32), rtol=2e-2, atol=2e-2)
    assert losses[-1] < 0.5 * losses[0]


def test_flax_nnx_and_optax_with_checkpoint():
    import optax
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(8, 32, rngs=rngs), nnx.Linear(32, 8, rngs=rngs)])
            self.norm = nnx.BatchNorm(32, rngs=rngs)

        def __call__(self, x):
            return self.layers[1](jax.nn.relu(self.norm(self.layers[0](x))))

    def train(x):
        model = Network(nnx.Rngs(0))
        optimiser = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

        @nnx.jit
        def step(model, optimiser, x):
            value, gradient = nnx.value_and_grad(nnx.remat(lambda model: jnp.mean((model(x) - x) ** 2)))(model)
            optimiser.update(model, gradient)
            return value

        losses = jnp.stack([step(model, optimiser, x) for _ in range(25)])
        return losses, model.norm.mean[...]

    losses, _ = both(train, RANDOM.standard_normal((64, 8), np.float32), **TRAINED)
    assert losses[-1] < 0.5 * losses[0]


def test_equinox_gru():
    import equinox as eqx
    import optax

    def train(x, y):
        cell = eqx.nn.GRUCell(4, 16, key=jax.random.key(0))
        head = eqx.nn.Linear(16, 1, key=jax.random.key(1))

        def predict(model, row):
            cell, head = model
            return head(jax.lax.scan(lambda h, v: (cell(v, h), None), jnp.zeros(16), row)[0])

        @eqx.filter_jit(donate="all")
        def step(model, state, x, y):
            def loss(model):
                return jnp.mean((jax.vmap(lambda row: predict(model, row))(x)[:, 0] - y) ** 2)

            value, gradient = eqx.filter_value_and_grad(loss)(model)
            updates, state = optimiser.update(gradient, state, model)
            return eqx.apply_updates(model, updates), state, value

        model, optimiser, losses = (cell, head), optax.adam(1e-2), []
        state = jax.jit(optimiser.init)(eqx.filter(model, eqx.is_array))
        for _ in range(20):
            model, state, value = step(model, state, x + 0, y + 0)
            losses.append(value)
        return jnp.stack(losses)

    x = RANDOM.standard_normal((32, 10, 4), np.float32)
    losses = both(train, x, x.sum(axis=(1, 2)) / 10, **TRAINED)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("spec", [("x", None), (None, "y"), ("x", "y"), ()], ids=str)
def test_orbax_saves_and_restores_sharded(tmp_path, spec):
    import orbax.checkpoint as ocp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices("arena")).reshape(2, 2), ("x", "y"))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    host = {
        "weights": RANDOM.standard_normal((8, 6), np.float32),
        "low": RANDOM.standard_normal((4, 4), np.float32).astype(jnp.bfloat16),
        "counts": np.arange(16, dtype=np.int32).reshape(4, 4),
    }
    saved = jax.device_put(host, sharding)
    other = NamedSharding(mesh, PartitionSpec("y"))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "step", saved)
        checkpointer.wait_until_finished()

        def shapes(where):
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), saved)

        # To where it was, and cut up in another way: each process reads what its devices hold.
        for where in (sharding, other):
            restored = checkpointer.restore(tmp_path / "step", shapes(where))
            for name, array in restored.items():
                assert array.sharding == where and array.devices() == set(jax.devices("arena"))
                assert np.asarray(array).tobytes() == host[name].tobytes()
            # What was restored is an array like any other.
            doubled = jax.jit(lambda tree: jax.tree.map(lambda x: x + x, tree), donate_argnums=0)(restored)
            np.testing.assert_array_equal(np.asarray(doubled["counts"]), host["counts"] * 2)


def test_numpyro_nuts_finds_the_posterior():
    """Two backends draw different chains once a rounding error has turned one decision, so this one is held to the
    posterior, which is known: with 50 observations of mean m and unit noise, N(m * 50/51, 1/51)."""
    import numpyro
    from numpyro.distributions import Normal
    from numpyro.infer import MCMC, NUTS

    observed = RANDOM.standard_normal(50).astype(np.float32) + 1.5

    def model(y):
        mean = numpyro.sample("mean", Normal(0.0, 1.0))
        numpyro.sample("y", Normal(mean, 1.0), obs=y)

    def sample(y):
        chain = MCMC(NUTS(model), num_warmup=100, num_samples=400, progress_bar=False)
        chain.run(jax.random.key(0), y)
        return chain.get_samples()["mean"]

    exact, deviation = observed.sum() / 51, 51**-0.5
    drawn = on(arena_device(), sample, observed)
    # A chain of 400 is worth at least 50 independent draws; four standard errors.
    assert abs(drawn.mean() - exact) < 4 * deviation / 50**0.5
    assert 0.7 < drawn.std() / deviation < 1.4


def test_diffrax_solves_and_differentiates():
    import diffrax

    def solve(rate):
        def end(rate):
            solution = diffrax.diffeqsolve(
                diffrax.ODETerm(lambda t, y, rate: -rate * y),
                diffrax.Tsit5(),
                t0=0.0,
                t1=2.0,
                dt0=0.1,
                y0=jnp.ones(3),
                args=rate,
                stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-7),
            )
            return solution.ys[-1]

        return end(rate), jax.jacobian(end)(rate)

    rate = np.array([0.5, 1.0, 2.0], np.float32)
    ends, slopes = both(jax.jit(solve), rate, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ends, np.exp(-2 * rate), rtol=1e-4)
    np.testing.assert_allclose(slopes, np.diag(-2 * np.exp(-2 * rate)), rtol=1e-3, atol=1e-5)


def test_jax_scipy():
    matrix = RANDOM.standard_normal((6, 6)).astype(np.float32)
    positive = matrix @ matrix.T + 6 * np.eye(6, dtype=np.float32)

    def compute(positive, x):
        factor = jax.scipy.linalg.cho_factor(positive)
        return (
            jax.scipy.linalg.cho_solve(factor, x),
            jax.scipy.linalg.expm(positive / 20),
            jax.scipy.linalg.solve_triangular(jnp.tril(positive), x, lower=True),
            jax.scipy.sparse.linalg.cg(positive, x)[0],
            jax.scipy.special.logsumexp(x),
            jax.scipy.special.gammaln(jnp.abs(x) + 1),
            jax.scipy.stats.norm.logpdf(x),
            jax.scipy.signal.convolve(x, x[::-1]),
            jax.scipy.ndimage.map_coordinates(positive, [x % 5, x % 5], order=1),
            jax.scipy.optimize.minimize(lambda y: jnp.sum((y - x) ** 4 + y**2), jnp.zeros(6), method="BFGS").x,
        )

    # The minimiser stops where its gradient is small: 1e-5, at a curvature of 2 and more.
    solved, *_ = both(compute, positive, matrix[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(positive @ solved, matrix[0], rtol=1e-3, atol=1e-4)


def test_linear_algebra():
    """eigh, svd, qr, lu, cholesky: LAPACK, through jaxlib's handlers."""
    matrix = RANDOM.standard_normal((5, 5)).astype(np.float32)

    def decompose(matrix):
        values, vectors = jnp.linalg.eigh(matrix + matrix.T)
        u, s, v = jnp.linalg.svd(matrix)
        q, r = jnp.linalg.qr(matrix)
        # Signs of vectors are free, products are not.
        products = (vectors * values) @ vectors.T, (u * s) @ v, q @ r
        return values, products, s, jnp.linalg.inv(matrix), jnp.linalg.det(matrix)

    _, (again, *_), *_ = both(jax.jit(decompose), matrix, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(again, matrix + matrix.T, atol=1e-4)


def test_sparse():
    from jax.experimental import sparse

    dense = RANDOM.standard_normal((12, 9)).astype(np.float32) * (RANDOM.random((12, 9)) < 0.3)

    def compute(dense, x):
        matrix = sparse.BCOO.fromdense(dense, nse=int(np.count_nonzero(DENSE)))
        gradient = jax.grad(lambda data: jnp.sum((sparse.BCOO((data, matrix.indices), shape=matrix.shape) @ x) ** 2))
        rows = sparse.BCSR.from_bcoo(matrix)
        return matrix @ x, (matrix.T @ (matrix @ x)), gradient(matrix.data), rows @ x, matrix.sum(0).todense()

    DENSE = dense
    product, *_ = both(compute, dense, np.arange(9, dtype=np.float32), **ONE_PASS)
    np.testing.assert_allclose(product, dense @ np.arange(9), rtol=1e-4, atol=1e-5)
