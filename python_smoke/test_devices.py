"""Several devices: every way to ask for them, both partitioners, collectives, pmap, what programs say of shardings."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import run_jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

HOST = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)

COUNT = """
    import jax
    {before}
    devices = jax.devices("arena")
    assert jax.local_devices(backend="arena") == devices
    # An arena each: the limit is divided, and a byte on one is none on another.
    held = jax.device_put(jax.numpy.ones(1000, "int8", device=devices[0]), devices[-1])
    print(len(devices), len({{d.memory_stats()["bytes_limit"] for d in devices}}))
"""


@pytest.mark.parametrize(
    ("before", "variables", "expected"),
    [
        ("", {}, 1),
        ("", {"PJRT_ARENA_DEVICES": "5"}, 5),
        ("", {"JAX_NUM_CPU_DEVICES": "3"}, 3),
        ("jax.config.update('jax_num_cpu_devices', 6)", {"PJRT_ARENA_DEVICES": "5"}, 6),
        ("", {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}, 8),
        ("", {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PJRT_ARENA_DEVICES": "2"}, 2),
    ],
    ids=["nothing", "ours", "JAX's variable", "JAX's setting wins", "XLA's flag", "ours before XLA's"],
)
def test_the_number_of_devices(before, variables, expected):
    out = run_jax(COUNT.format(before=before), **variables).stdout
    assert out.split() == [str(expected), "1"]


def mesh(*shape):
    names = "xy"[: len(shape)]
    return Mesh(np.array(jax.devices("arena")).reshape(shape), tuple(names))


@pytest.mark.parametrize("out", ["unspecified", "split", "turned", "replicated"])
def test_result_shardings(shardy, out):
    """Destinations must not change what the partitioner chooses where nobody says anything."""
    where = mesh(2, 2)
    spec = {"split": PartitionSpec("x", "y"), "turned": PartitionSpec("y", "x"), "replicated": PartitionSpec()}
    asked = {"out_shardings": NamedSharding(where, spec[out])} if out in spec else {}
    x = jax.device_put(HOST, NamedSharding(where, PartitionSpec("x", "y")))
    program = jax.jit(lambda x: jnp.tanh(x) * 2, **asked)
    result = program(x)
    wanted = asked.get("out_shardings", x.sharding)
    assert result.sharding.is_equivalent_to(wanted, 2)
    np.testing.assert_allclose(np.asarray(result), np.tanh(HOST) * 2, rtol=1e-5)
    compiled = program.lower(x).compile()
    (arguments,), _ = compiled.input_shardings
    assert arguments.is_equivalent_to(x.sharding, 2) and compiled.output_shardings.is_equivalent_to(wanted, 2)
    assert ("sdy.mesh" in program.lower(x).as_text()) == shardy


def test_donated_arrays_go_to_results_of_other_shapes_too(shardy):
    """JAX leaves to XLA which result takes an array whose shape or sharding no result has; it goes by the size."""
    where = mesh(4)
    rows, columns = (NamedSharding(where, PartitionSpec(*axes)) for axes in (("x",), (None, "x", None)))
    x, y, z = (jax.device_put(np.arange(16).reshape(shape), rows) for shape in ((16,), (16, 1), (4, 4, 1)))

    @partial(jax.jit, out_shardings=(rows, rows, columns), donate_argnums=(0, 1, 2))
    def program(x, y, z):
        return x, y.reshape(16), z

    for result in program(x, y, z):
        np.testing.assert_array_equal(np.asarray(result).reshape(-1), np.arange(16))
    assert x.is_deleted() and y.is_deleted() and z.is_deleted()


def test_constraints_and_propagation(shardy):
    where = mesh(4)
    rows, columns = (NamedSharding(where, PartitionSpec(*axes)) for axes in (("x", None), (None, "x")))

    @jax.jit
    def program(x, w):
        hidden = jax.lax.with_sharding_constraint(x @ w, columns)
        return hidden, hidden.sum(0), (hidden @ w.T)

    w = jax.device_put(HOST[:, :8].T.copy() @ HOST, NamedSharding(where, PartitionSpec()))
    w = w[:, :12] * 1e-3
    hidden, total, back = program(jax.device_put(HOST[:, :8], rows), w)
    assert hidden.sharding.is_equivalent_to(columns, 2)
    expected = HOST[:, :8] @ np.asarray(w)
    np.testing.assert_allclose(np.asarray(hidden), expected, rtol=1e-4)
    np.testing.assert_allclose(np.asarray(total), expected.sum(0), rtol=1e-4)
    np.testing.assert_allclose(np.asarray(back), expected @ np.asarray(w).T, rtol=1e-4)


def test_every_collective(shardy):
    where = mesh(4)

    @jax.jit
    @partial(jax.shard_map, mesh=where, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"), check_vma=False)
    def collect(x):
        turn = [(i, (i + 1) % 4) for i in range(4)]
        results = (
            jax.lax.psum(x, "x"),
            jax.lax.pmax(x, "x"),
            jax.lax.pmean(x, "x"),
            jax.lax.ppermute(x, "x", turn),
            jax.lax.all_gather(x, "x", tiled=True)[:2],
            jax.lax.all_to_all(x, "x", 1, 0, tiled=True).reshape(2, 12),
            jax.lax.psum_scatter(jnp.tile(x, (2, 1)), "x", tiled=True).repeat(2, 0),
            jnp.full((2, 12), jax.lax.axis_index("x"), jnp.float32),
        )
        return jnp.stack(results, 1)

    found = np.asarray(collect(jax.device_put(HOST, NamedSharding(where, PartitionSpec("x")))))
    blocks = HOST.reshape(4, 2, 12)
    expected = [
        np.tile(blocks.sum(0), (4, 1)),
        np.tile(blocks.max(0), (4, 1)),
        np.tile(blocks.mean(0), (4, 1)),
        np.roll(blocks, 1, 0).reshape(8, 12),
        np.tile(HOST[:2], (4, 1)),
        # Of each block the columns that are one device's, in the devices' order.
        np.concatenate([HOST[:, 3 * i : 3 * i + 3].reshape(2, 12) for i in range(4)]),
        np.repeat(np.tile(blocks.sum(0), (2, 1)), 2, 0),
        np.repeat(np.arange(4.0), 2)[:, None] * np.ones(12),
    ]
    np.testing.assert_allclose(found, np.stack(expected, 1), rtol=1e-6)


def test_pmap():
    @partial(jax.pmap, axis_name="i", devices=jax.devices("arena"), donate_argnums=0)
    def step(x, y):
        return x + jax.lax.psum(y, "i"), jax.lax.axis_index("i")

    x = HOST.reshape(4, 2, 12)
    sums, indices = step(jnp.array(x), x)
    np.testing.assert_allclose(np.asarray(sums), x + x.sum(0))
    assert np.asarray(indices).tolist() == [0, 1, 2, 3]


def test_a_program_on_some_of_the_devices():
    some = Mesh(np.array(jax.devices("arena")[1:3]), ("x",))
    x = jax.device_put(HOST, NamedSharding(some, PartitionSpec("x")))
    result = jax.jit(lambda x: jnp.cumsum(x, 0), donate_argnums=0)(x)
    assert result.devices() == set(jax.devices("arena")[1:3])
    np.testing.assert_allclose(np.asarray(result), HOST.cumsum(0))


def test_make_array_from_callback_and_single_arrays():
    where = NamedSharding(mesh(2, 2), PartitionSpec("x", "y"))
    x = jax.make_array_from_callback(HOST.shape, where, lambda index: HOST[index])
    again = jax.make_array_from_single_device_arrays(HOST.shape, where, [shard.data for shard in x.addressable_shards])
    np.testing.assert_array_equal(np.asarray(again * 1), HOST)


def test_export_of_a_sharded_program():
    # Under Shardy only: with the other, JAX's own lowering of the call fails a verifier (0.10.2), on any backend.
    where = mesh(4)
    split = NamedSharding(where, PartitionSpec("x"))
    program = jax.jit(lambda x: x - x.mean(0), in_shardings=split, out_shardings=split)
    blob = jax.export.export(program, platforms=["cpu"])(jax.ShapeDtypeStruct(HOST.shape, HOST.dtype)).serialize()
    again = jax.export.deserialize(bytearray(blob))
    assert again.nr_devices == 4
    result = jax.jit(again.call)(jax.device_put(HOST, split))
    np.testing.assert_allclose(np.asarray(result), HOST - HOST.mean(0), rtol=1e-5, atol=1e-5)
