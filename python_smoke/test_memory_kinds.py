"""Memory kinds, layouts, transfers between them, transfer guards, tokens, the array interfaces."""

import gc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from harness import arena_device, bytes_in_use, eventually, host_array
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

KINDS = ["device", "pinned_host", "unpinned_host"]
HOST = np.arange(4096, dtype=np.float32).reshape(64, 64)


def in_kind(kind):
    return SingleDeviceSharding(arena_device(), memory_kind=kind)


def bytes_outside():
    """Bytes of arrays outside of the arenas: in the engine's memory, and in memory of others that is used in place."""
    from pjrt_arena import memory

    devices = memory.counters().devices
    return tuple(sum(getattr(device, name) for device in devices) for name in ("engine_bytes", "foreign_bytes"))


def test_the_kinds_of_a_device():
    assert [memory.kind for memory in arena_device().addressable_memories()] == KINDS
    assert arena_device().default_memory().kind == "device"


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_device_put_between_kinds(source, target):
    x = jax.device_put(HOST, in_kind(source))
    assert x.sharding.memory_kind == source
    y = jax.device_put(x, in_kind(target))
    assert (x.sharding.memory_kind, y.sharding.memory_kind) == (source, target)
    assert y.is_fully_addressable and y.devices() == {arena_device()}
    if source != target:  # Otherwise they are one.
        x.delete()
    np.testing.assert_array_equal(np.asarray(y), HOST)
    # Back to where programs take their arguments from.
    z = jax.jit(lambda y: y + 1)(jax.device_put(y, in_kind("device")))
    np.testing.assert_array_equal(np.asarray(z), HOST + 1)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("name", ["int4", "float8_e5m2", "bfloat16", "bool", "complex64"])
def test_every_width_in_host_memory(kind, name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    host = (np.arange(30).reshape(6, 5) % 2).astype(dtype)
    array = jax.device_put(host, in_kind(kind))
    assert np.asarray(array).tobytes() == host.tobytes()
    assert np.asarray(jax.device_put(array, in_kind("device"))).tobytes() == host.tobytes()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_sharded_into_host_memory_and_back(kind):
    mesh = Mesh(np.array(jax.devices("arena")).reshape(2, 2), ("x", "y"))
    there = NamedSharding(mesh, PartitionSpec("x", "y"), memory_kind=kind)
    x = jax.device_put(HOST, there)
    assert x.sharding == there and {shard.data.shape for shard in x.addressable_shards} == {(32, 32)}
    back = jax.device_put(x, there.with_memory_kind("device"))
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda x: x * 2)(back)), HOST * 2)


@pytest.mark.arena
@pytest.mark.parametrize("aligned", [True, False])
def test_only_device_memory_counts_in_the_arena(aligned):
    gc.collect()
    host = host_array(count=HOST.size, offset=0 if aligned else 16)
    arena, (engine, foreign) = bytes_in_use(), bytes_outside()
    held = [jax.device_put(host, in_kind(kind)) for kind in KINDS]
    jax.block_until_ready(held)
    # In host memories the engine decides, which uses any aligned array in place; this one is small for the device's.
    outside = (engine, foreign + 2 * host.nbytes) if aligned else (engine + 2 * host.nbytes, foreign)
    eventually(lambda: (bytes_in_use(), bytes_outside()), (arena + host.nbytes, outside))
    del held
    gc.collect()
    eventually(lambda: (bytes_in_use(), bytes_outside()), (arena, (engine, foreign)))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_layouts(order):
    from jax.experimental.layout import Format, Layout

    host = np.arange(2 * 3 * 5, dtype=np.float32).reshape(2, 3, 5)
    wanted = Format(Layout(order), in_kind("device"))
    x = jax.device_put(host, wanted)
    assert x.format.layout.major_to_minor == order
    np.testing.assert_array_equal(np.asarray(x), host)
    y = jax.jit(lambda x: x + 1, in_shardings=wanted, out_shardings=wanted)(x)
    assert y.format.layout.major_to_minor == order
    np.testing.assert_array_equal(np.asarray(y), host + 1)
    back = jax.device_put(y, Format(Layout((0, 1, 2)), in_kind("device")))
    np.testing.assert_array_equal(np.asarray(back), host + 1)


def test_the_compiler_may_choose_layouts():
    from jax.experimental.layout import Format, Layout

    shape = jax.ShapeDtypeStruct((16, 32), jnp.float32)
    free = Format(Layout.AUTO, in_kind("device"))
    compiled = jax.jit(lambda x: x.T @ x, in_shardings=free, out_shardings=free).lower(shape).compile()
    (chosen,), _ = compiled.input_formats
    x = jax.device_put(np.ones((16, 32), np.float32), chosen)
    result = compiled(x)
    assert result.format == compiled.output_formats
    np.testing.assert_array_equal(np.asarray(result), np.full((32, 32), 16))


def test_transfer_guards():
    x = jnp.arange(4, device=arena_device())
    double = jax.jit(lambda x: x * 2)
    double(x)
    for guard in (jax.transfer_guard_host_to_device, jax.transfer_guard):
        with guard("disallow"):
            double(x)
            with pytest.raises(Exception, match=r"[Dd]isallowed"):
                double(np.arange(4))
    with jax.transfer_guard("disallow"):
        y = jax.device_put(np.arange(4), arena_device())  # asked for by name
        z = jax.device_put(y, arena_device(2))
    assert np.asarray(double(y)).tolist() == np.asarray(z * 2).tolist() == [0, 2, 4, 6]


def test_tokens_keep_effects_in_order():
    """A token is an array of no bytes that the engine holds, and an argument and a result like others."""
    step = jax.jit(lambda token, x: (jax.lax.after_all(token, jax.lax.create_token()), x + 1))
    token, x = jax.jit(lambda: (jax.lax.create_token(), jnp.zeros(3)))()
    for _ in range(3):
        token, x = step(token, x)
    token.block_until_ready()
    assert np.asarray(x).tolist() == [3, 3, 3]


def test_the_array_interfaces_out():
    x = jax.device_put(HOST, arena_device()) + 0
    view = np.asarray(x)
    assert view.__array_interface__["data"] == (x.unsafe_buffer_pointer(), True)
    assert memoryview(view).nbytes == HOST.nbytes and not view.flags.writeable
    copy = np.array(x)
    assert copy.flags.writeable and copy.__array_interface__["data"][0] != x.unsafe_buffer_pointer()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    assert np.from_dlpack(x).ctypes.data == x.unsafe_buffer_pointer()
    for type_ in (int, float, bool):
        assert type_(jnp.ones((), jnp.int32, device=arena_device())) == 1
    assert x.__array__(np.float64).dtype == np.float64


@pytest.mark.parametrize("copy", [None, True])
def test_dlpack_in(copy):
    """JAX imports it as an array of its own CPU backend; what the arena then holds is a copy."""
    host = HOST.copy()
    imported = jax.device_put(jnp.from_dlpack(host, copy=copy), arena_device())
    result = jax.jit(lambda x: x - 1, donate_argnums=0)(imported)
    np.testing.assert_array_equal(np.asarray(result), HOST - 1)
    np.testing.assert_array_equal(host, HOST)


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "float8_e4m3fn"])
def test_a_view_of_narrow_elements_is_theirs(name):
    """What numpy sees of elements narrower than a byte is a copy, as one byte each."""
    host = (np.arange(35).reshape(5, 7) % 2).astype(getattr(ml_dtypes, name))
    array = jax.jit(lambda x: jnp.flip(x, 0))(jax.device_put(host, arena_device()))
    view = np.asarray(array)
    array.delete()
    jax.block_until_ready(jax.device_put(np.ones((5, 7), host.dtype), arena_device()))
    assert view.tobytes() == host[::-1].tobytes()
