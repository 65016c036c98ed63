"""Every element type: to the device, through a program and back, and the edges: empty, scalar, strided."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from harness import arena_device

WHOLE = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32", "complex64"]
SMALL = [
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e4m3b11fnuz",
    "float8_e4m3",
    "float8_e3m4",
    "float8_e8m0fnu",
]
SUB_BYTE = ["int4", "uint4", "int2", "uint2", "float4_e2m1fn"]
LONG = ["int64", "uint64", "float64", "complex128"]


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def sample(dtype, shape=(6, 5)):
    values = np.array([0, 1, 0, 1, 1] * 6, dtype=np.float32).reshape(6, 5)
    if dtype_of("float8_e8m0fnu") == dtype:
        values = values + 1  # powers of two only, and no zero
    return np.resize(values, shape).astype(dtype)


@pytest.mark.parametrize("name", WHOLE + SMALL + SUB_BYTE)
def test_round_trip_and_program(name):
    host = sample(dtype_of(name))
    array = jax.device_put(host, arena_device())
    assert array.dtype == host.dtype
    assert np.asarray(array).tobytes() == host.tobytes()
    turned = jax.jit(lambda x: x.T)(array)
    assert np.asarray(turned).tobytes() == host.T.copy().tobytes()
    assert np.asarray(jax.jit(lambda x: x)(array)).tobytes() == host.tobytes()
    assert np.asarray(jax.device_put(array, jax.devices("cpu")[0])).tobytes() == host.tobytes()


@pytest.mark.parametrize("name", LONG)
def test_64_bit_types(name):
    with jax.enable_x64(True):
        host = (np.arange(30).reshape(6, 5) * (2**40 + 1)).astype(name)
        array = jax.device_put(host, arena_device())
        assert array.dtype == host.dtype
        assert np.asarray(jax.jit(lambda x: x + x)(array)).tobytes() == (host + host).tobytes()


@pytest.mark.parametrize("name", ["bfloat16", "float16", "int8", "complex64", "float8_e5m2"])
def test_conversion_matches_numpy(name):
    host = np.linspace(-3, 3, 64, dtype=np.float32)
    converted = jax.jit(lambda x: x.astype(dtype_of(name)))(jax.device_put(host, arena_device()))
    assert np.asarray(converted).tobytes() == host.astype(dtype_of(name)).tobytes()


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (), (1,), (1, 1, 1, 1)])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int4", "bool"])
def test_empty_scalar_and_single(shape, name):
    host = np.ones(shape, dtype_of(name))
    array = jax.device_put(host, arena_device())
    assert array.shape == shape
    assert np.asarray(array).tobytes() == host.tobytes()
    moved = jax.jit(lambda x: jnp.concatenate([x.ravel(), x.ravel()]))(array)
    assert moved.shape == (2 * host.size,)
    assert np.asarray(moved).tobytes() == host.tobytes() * 2


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[::2],
        lambda x: x[:, ::-1],
        lambda x: x[1:, 2:7],
        lambda x: np.broadcast_to(x[0], (9, 8)),
    ],
    ids=["transposed", "every second", "reversed", "window", "broadcast"],
)
def test_strided_host_arrays(view):
    host = view(np.arange(80, dtype=np.float32).reshape(10, 8))
    assert np.asarray(jax.device_put(host, arena_device())).tobytes() == host.tobytes()
    assert np.asarray(jnp.asarray(host) + 1).tobytes() == (host + 1).astype(np.float32).tobytes()


def test_special_values_keep_their_bits():
    bits = np.array([0x7FC00001, 0xFF800000, 0x80000000, 0x00000001, 0x7F7FFFFF], np.uint32)
    array = jax.device_put(bits.view(np.float32), arena_device())
    assert np.asarray(array).tobytes() == bits.tobytes()
    assert np.asarray(jax.jit(lambda x: jnp.stack([x, x]))(array)).tobytes() == bits.tobytes() * 2


def test_a_large_array_comes_back_whole():
    host = np.arange(8 * 1024 * 1024, dtype=np.int32)
    array = jax.device_put(host, arena_device())
    np.testing.assert_array_equal(np.asarray(array + 1), host + 1)
