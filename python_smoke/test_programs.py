"""Programs of every shape, compared with JAX's own CPU backend.

Bit for bit where the mathematics is exact (integers, single additions, ordering, random bits), within rounding where
the two XLA versions may sum in another order.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import arena_device, assert_same

RANDOM = np.random.default_rng(7)
A = RANDOM.standard_normal((33, 17)).astype(np.float32)
B = RANDOM.standard_normal((17, 21)).astype(np.float32)
V = RANDOM.standard_normal(1000).astype(np.float32)
N = RANDOM.integers(-1000, 1000, 1000, dtype=np.int32)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: x * x - 2 * x,
        lambda x: -x,
        jnp.abs,
        lambda x: jnp.where(x > 0, x, 0.5),
        lambda x: jnp.maximum(x, x[::-1]),
        lambda x: jnp.floor(x) + jnp.sign(x),
    ],
    ids=["add", "multiply", "negate", "abs", "where", "maximum", "floor"],
)
def test_arithmetic_is_bit_for_bit(function):
    assert_same(function, V, exact=True)
    assert_same(jax.jit(function), V, exact=True)


@pytest.mark.parametrize("function", [jnp.exp, jnp.sin, jnp.tanh, jax.nn.softmax, jax.nn.gelu, jax.scipy.special.erf])
def test_transcendental_functions(function):
    assert_same(jax.jit(function), V)


def test_integer_arithmetic():
    assert_same(jax.jit(lambda x: (x // 7, x % 7, x << 3, x & 0xFF, x.astype(jnp.uint8))), N, exact=True)


def test_matrix_products():
    ours = assert_same(jax.jit(jnp.matmul), A, B)
    np.testing.assert_allclose(ours, A @ B, rtol=1e-5, atol=1e-5)
    assert_same(jax.jit(lambda a, b: jnp.einsum("ij,jk->ki", a, b)), A, B)
    stack = RANDOM.standard_normal((5, 8, 8)).astype(np.float32)
    assert_same(jax.jit(lambda s: s @ s.swapaxes(1, 2)), stack)


def test_linear_algebra_by_matmul():
    """Solves a linear system with nothing but products: conjugate gradients, and Newton's iteration for the inverse."""
    n = 24
    matrix = RANDOM.standard_normal((n, n)).astype(np.float32)
    matrix = matrix @ matrix.T + n * np.eye(n, dtype=np.float32)
    right = RANDOM.standard_normal(n).astype(np.float32)

    def solve(matrix, right):
        return jax.scipy.sparse.linalg.cg(lambda v: matrix @ v, right, maxiter=100)[0]

    def invert(matrix):
        start = matrix.T / (jnp.abs(matrix).sum(0).max() * jnp.abs(matrix).sum(1).max())
        return jax.lax.fori_loop(0, 30, lambda _, x: x @ (2 * jnp.eye(n) - matrix @ x), start)

    ours = assert_same(jax.jit(solve), matrix, right, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(matrix @ ours, right, atol=1e-3)
    inverse = assert_same(jax.jit(invert), matrix, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(inverse @ matrix, np.eye(n), atol=1e-3)


def test_convolution():
    image = RANDOM.standard_normal((2, 3, 16, 16)).astype(np.float32)
    kernel = RANDOM.standard_normal((4, 3, 3, 3)).astype(np.float32)
    assert_same(jax.jit(lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME")), image, kernel, rtol=1e-4, atol=1e-4)


def test_fft():
    assert_same(jax.jit(lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2)), V, rtol=1e-4, atol=1e-4)


def test_reductions():
    def reduce(x):
        return x.sum(), x.mean(axis=0), x.max(axis=1), x.argmin(), jnp.cumsum(x, axis=1), jnp.any(x > 2)

    ours = assert_same(jax.jit(reduce), A, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(ours[2], A.max(axis=1))
    assert ours[3] == A.argmin()
    assert assert_same(jax.jit(lambda n: n.sum()), N, exact=True) == N.sum()


def test_sort():
    ours = assert_same(jax.jit(lambda x: (jnp.sort(x), jnp.argsort(x), jax.lax.top_k(x, 5))), V, exact=True)
    np.testing.assert_array_equal(ours[0], np.sort(V))
    np.testing.assert_array_equal(V[ours[1]], np.sort(V))
    np.testing.assert_array_equal(ours[2][0], np.sort(V)[::-1][:5])


def test_random_numbers_are_the_same_bits():
    def draw(seed):
        key = jax.random.key(seed)
        return jax.random.bits(key, (64,)), jax.random.uniform(key, (64,)), jax.random.permutation(key, 50)

    bits, uniform, permutation = assert_same(jax.jit(draw), np.uint32(3), exact=True)
    assert len(set(bits.tolist())) > 60
    assert uniform.min() >= 0 and uniform.max() < 1
    assert sorted(permutation.tolist()) == list(range(50))
    assert_same(jax.jit(lambda s: jax.random.normal(jax.random.key(s), (64,))), np.uint32(3))


def test_indexing_and_scatter():
    index = np.array([3, 1, 1, 900], dtype=np.int32)
    assert_same(jax.jit(lambda x, i: (x[i], x.at[i].add(1.0), jnp.roll(x, 3), x[5:9])), V, index, exact=True)
    assert_same(jax.jit(lambda x, i: jax.lax.dynamic_slice(x, (i[0],), (4,))), V, index, exact=True)


def test_grad():
    def loss(weights, x):
        return jnp.mean(jnp.tanh(x @ weights) ** 2)

    _, gradient = assert_same(jax.jit(jax.value_and_grad(loss)), B, A)
    step = 1e-2
    numeric = (loss(B + step * gradient, A) - loss(B - step * gradient, A)) / (2 * step)
    np.testing.assert_allclose(numeric, (gradient**2).sum(), rtol=1e-2)
    assert_same(jax.jit(jax.hessian(lambda x: jnp.sum(x**3))), V[:10])


def test_vmap():
    ours = assert_same(jax.jit(jax.vmap(lambda row: jnp.dot(row, row))), A)
    np.testing.assert_allclose(ours, (A * A).sum(1), rtol=1e-5)
    assert_same(jax.jit(jax.vmap(jax.grad(lambda x: jnp.sin(x) * x))), V)


def test_scan():
    def run(x):
        return jax.lax.scan(lambda carry, item: (carry + item, carry * 2), jnp.int32(0), x)

    total, history = assert_same(jax.jit(run), N, exact=True)
    assert total == N.sum()
    np.testing.assert_array_equal(history[1:], 2 * np.cumsum(N)[:-1])


def test_loops_and_branches():
    def collatz(n):
        def body(state):
            n, steps = state
            return jax.lax.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, n), steps + 1

        return jax.lax.while_loop(lambda state: state[0] != 1, body, (n, jnp.int32(0)))[1]

    assert assert_same(jax.jit(collatz), np.int32(27), exact=True) == 111
    assert assert_same(jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, x: x + i, 0)), np.int32(101)) == 5050
    switch = jax.jit(lambda i, x: jax.lax.switch(i, [jnp.sin, jnp.negative, jnp.abs], x))
    np.testing.assert_array_equal(assert_same(switch, np.int32(1), V, exact=True), -V)


def test_many_results_and_many_arguments():
    many = [np.float32(i) * np.ones(7, np.float32) for i in range(300)]
    ours = assert_same(jax.jit(lambda *xs: [x + 1 for x in xs]), *many, exact=True)
    assert [result[0] for result in ours] == [i + 1 for i in range(300)]


def test_results_that_are_arguments_constants_or_the_same_value():
    def program(x):
        return x, x, jnp.float32(4), x + 1, jnp.arange(5)

    a, b, four, plus, arange = jax.jit(program)(jax.device_put(V, arena_device()))
    np.testing.assert_array_equal(a, V)
    np.testing.assert_array_equal(b, V)
    assert four == 4
    np.testing.assert_array_equal(plus, V + 1)
    np.testing.assert_array_equal(arange, np.arange(5))


def test_no_argument_and_no_result():
    assert jax.jit(lambda: jnp.zeros(3) + 2)().tolist() == [2, 2, 2]
    assert jax.jit(lambda x: ())(jnp.ones(3)) == ()


def test_checkpoint_and_custom_derivative():
    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, g: (3 * g,))
    assert jax.grad(lambda x: double(x).sum())(jnp.ones(4)).tolist() == [3, 3, 3, 3]
    assert_same(jax.jit(jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(jnp.sin(x)))))), V)


def test_the_same_program_many_times_with_new_values():
    step = jax.jit(lambda x, y: x * 3 + y)
    x = jnp.int32(1)
    expected = 1
    for i in range(200):
        x = step(x, jnp.int32(i))
        expected = (expected * 3 + i + 2**31) % 2**32 - 2**31
    assert int(x) == expected
