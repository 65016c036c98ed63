"""Custom calls that their owner splits over devices, beside the numbers and the shardings of JAX's own CPU backend."""

from __future__ import annotations

import itertools
import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import run_jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax_plugins.arena import _shardings
from pjrt_arena import memory

pytestmark = pytest.mark.arena

rng = np.random.default_rng(21)
HOST = rng.standard_normal((8, 16)).astype(np.float32)


def mesh(*shape, order=None):
    devices = np.array(jax.devices("arena"))
    return Mesh(devices[order if order is not None else slice(None)].reshape(shape), tuple("xyz"[: len(shape)]))


def put(x, *spec, over):
    return jax.device_put(x, NamedSharding(over, P(*spec)))


def shardings(shapes):
    return jax.tree.map(lambda shape: shape.sharding, shapes)


# ---- Calls with functions of their own ------------------------------------------------------------------------------


def make_fft():
    """An FFT along the last dimension that keeps the others split, and what its partitioner was asked."""
    asked = []

    def kept(sharding, rank):
        spec = (*sharding.spec, *(None,) * rank)[: rank - 1]
        return NamedSharding(sharding.mesh, P(*spec, None))

    @custom_partitioning
    def fft(x):
        return jnp.fft.fft(x)

    def partition(mesh, arg_shapes, result_shape):
        sharding = kept(arg_shapes[0].sharding, len(arg_shapes[0].shape))
        asked.append(sharding.spec)
        return mesh, jnp.fft.fft, sharding, (sharding,)

    def infer(mesh, arg_shapes, result_shape):
        return kept(arg_shapes[0].sharding, len(arg_shapes[0].shape))

    fft.def_partition(partition, infer_sharding_from_operands=infer, sharding_rule="... i -> ... i")
    return fft, asked


@pytest.mark.parametrize("spec", [("x",), ("x", "y"), (None, "x"), (("x", "y"),), ()], ids=str)
def test_an_fft_keeps_its_leading_dimension_split(shardy, spec):
    over = mesh(2, 2)
    fft, asked = make_fft()
    program = jax.jit(lambda x: fft(x * 2) + 1)
    x = put(HOST, *spec, over=over)
    result = program(x)
    np.testing.assert_allclose(result, np.fft.fft(HOST * 2) + 1, rtol=1e-4, atol=1e-4)
    assert asked, "nobody asked the partitioner"
    text = program.lower(x).compile().as_text()
    assert ("all-gather" in text or "all-to-all" in text) == (len(spec) == 2), (
        "only the last dimension is brought together"
    )
    assert "CustomSPMDPartitioning" not in text
    # What the rule says, by which Shardy goes; what the function says, by which the older partitioner goes.
    expected = NamedSharding(over, P(*(spec if shardy else spec[:1])))
    assert result.sharding.is_equivalent_to(expected, 2), result.sharding


@pytest.mark.parametrize("scale", [1, 3])
def test_a_sum_over_a_split_dimension_and_static_arguments(shardy, scale):
    over = mesh(4)

    @partial(custom_partitioning, static_argnums=(1,))
    def norm(x, factor):
        return jnp.sum(x * x) * factor, x * factor

    def partition(factor, mesh, arg_shapes, result_shape):
        def lower(x):
            return jax.lax.psum(jnp.sum(x * x), "x") * factor, x * factor

        return mesh, lower, (NamedSharding(mesh, P()), arg_shapes[0].sharding), shardings(arg_shapes)

    norm.def_partition(
        partition,
        infer_sharding_from_operands=lambda factor, mesh, args, result: (NamedSharding(mesh, P()), args[0].sharding),
        sharding_rule="i j -> , i j",
    )
    whole, scaled = jax.jit(lambda x: norm(jnp.sin(x), scale))(put(HOST, None, "x", over=over))
    np.testing.assert_allclose(whole, np.sum(np.sin(HOST) ** 2) * scale, rtol=1e-5)
    np.testing.assert_allclose(scaled, np.sin(HOST) * scale, rtol=1e-5)
    assert scaled.sharding.is_equivalent_to(NamedSharding(over, P(None, "x")), 2)


def make_double(fail=None):
    """Doubles, and adds the number of devices that share a row, so that one device's code differs from the whole's."""

    @custom_partitioning
    def double(x):
        return x * 2

    def partition(mesh, arg_shapes, result_shape):
        if fail is not None:
            raise fail
        return mesh, lambda x: x + x, arg_shapes[0].sharding, shardings(arg_shapes)

    def infer(mesh, arg_shapes, result_shape):
        return arg_shapes[0].sharding

    double.def_partition(
        partition,
        infer_sharding_from_operands=infer,
        propagate_user_sharding=lambda mesh, user: user.sharding,
        sharding_rule="... -> ...",
    )
    return double


def in_a_loop(double):
    def step(carry, x):
        return carry + double(x), double(carry)

    return lambda x: jax.lax.scan(step, x[0], x)


def in_a_branch(double):
    return lambda x: jax.lax.cond(x.sum() > 0, double, lambda x: x - 1, x)


def with_a_gradient(double):
    @jax.custom_vjp
    def f(x):
        return double(x)

    f.defvjp(lambda x: (f(x), None), lambda _, g: (double(g),))
    return jax.grad(lambda x: jnp.sum(jnp.sin(f(x))))


def in_a_function_used_twice(double):
    inner = jax.jit(lambda x: double(x) + 1)
    # The second use is of another sharding, which the first one's code has to serve.
    return lambda x: (inner(x), inner(jax.lax.with_sharding_constraint(x * 3, P("y", "x"))))


def many(double):
    def f(x):
        for _ in range(5):
            x = double(x) - x.mean()
        return x, double(x[:, 0]), double(x[0, 0])

    return f


def unused(double):
    def f(x):
        double(x)
        return x + 1

    return f


@pytest.mark.parametrize(
    "use",
    [in_a_loop, in_a_branch, with_a_gradient, in_a_function_used_twice, many, unused],
    ids=lambda use: use.__name__,
)
def test_where_calls_stand(shardy, use):
    double = make_double()
    over = mesh(2, 2)
    with jax.set_mesh(over) if hasattr(jax, "set_mesh") else over:
        ours = jax.jit(use(double))(put(HOST, "x", "y", over=over))
    with jax.default_device(jax.devices("cpu")[0]):
        theirs = jax.jit(
            use(lambda x: x * 2) if use is not in_a_function_used_twice else lambda x: (x * 2 + 1, x * 6 + 1)
        )(HOST)
    for our, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(our, their, rtol=1e-5, atol=1e-5)


def test_a_mesh_in_another_order(shardy):
    over = mesh(2, 2, order=[3, 0, 2, 1])
    fft, _ = make_fft()
    result = jax.jit(fft)(put(HOST, "y", over=over))
    np.testing.assert_allclose(result, np.fft.fft(HOST), rtol=1e-4, atol=1e-4)
    assert result.sharding.is_equivalent_to(NamedSharding(over, P("y")), 2)


def test_results_have_destinations():
    before = memory.counters().programs.rewritten
    double = make_double()
    over = mesh(4)
    np.testing.assert_array_equal(jax.jit(double)(put(HOST, "x", over=over)), HOST * 2)
    assert memory.counters().programs.rewritten > before


def test_two_threads_at_once():
    over = mesh(4)
    arrays = [put(HOST[:, : 4 * n], "x", over=over) for n in range(1, 5)]
    results = [None] * len(arrays)

    def compute(n):
        fft, _ = make_fft()
        results[n] = np.asarray(jax.jit(fft)(arrays[n]))

    threads = [threading.Thread(target=compute, args=(n,)) for n in range(len(arrays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for array, result in zip(arrays, results, strict=True):
        np.testing.assert_allclose(result, np.fft.fft(np.asarray(array)), rtol=1e-4, atol=1e-4)


# ---- Errors ---------------------------------------------------------------------------------------------------------


def test_an_error_of_the_partitioner_is_the_callers(shardy):
    double = make_double(fail=ValueError("no code for one device today"))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"CustomSPMDPartitioning(.|\n)*no code for one device today"):
        jax.jit(double)(put(HOST, "x", over=mesh(4)))
    # The next program is none the worse for it.
    np.testing.assert_array_equal(jax.jit(make_double())(put(HOST, "x", over=mesh(4))), HOST * 2)


def test_an_error_while_shardings_are_inferred_is_the_callers():
    """JAX's own backend ends the process."""
    out = run_jax(
        """
        import jax, jax.numpy as jnp
        from jax.experimental.custom_partitioning import custom_partitioning
        jax.config.update("jax_use_shardy_partitioner", False)
        @custom_partitioning
        def f(x):
            return x
        def infer(mesh, args, result):
            raise ValueError("no sharding today")
        f.def_partition(lambda mesh, args, result: None, infer_sharding_from_operands=infer)
        mesh = jax.make_mesh((4,), ("x",), devices=jax.devices("arena"))
        x = jax.device_put(jnp.ones(8), jax.NamedSharding(mesh, jax.P("x")))
        try:
            jax.jit(lambda x: f(x) + 1)(x)
        except jax.errors.JaxRuntimeError as error:
            print("CustomSPMDPartitioning" in str(error), "no sharding today" in str(error))
        """,
        PJRT_ARENA_DEVICES="4",
    ).stdout
    assert out.split() == ["True", "True"]


def test_pieces_that_are_not_alike_are_refused_by_name(shardy):
    double = make_double()
    over = mesh(4)

    def f(x):
        return double(jax.lax.with_sharding_constraint(x[:6] + 1, NamedSharding(over, P("x"))))

    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"UNIMPLEMENTED: custom call CustomSPMDPartitioning: .* 6 .* 4 pieces"
    ):
        jax.jit(f)(put(HOST, over=over))


# ---- What rests on partitioners -------------------------------------------------------------------------------------


def test_a_sharding_can_be_asked_for(shardy):
    over = mesh(2, 2)
    seen = []

    def f(x):
        y = jnp.sin(x) * 2
        jax.debug.inspect_array_sharding(y, callback=seen.append)
        return y.sum()

    result = jax.jit(f)(put(HOST, "x", "y", over=over))
    np.testing.assert_allclose(result, (np.sin(HOST) * 2).sum(), rtol=1e-5)
    assert [sharding.spec for sharding in seen] == [P("x", "y")]


def test_an_error_of_who_asks_for_a_sharding_is_the_callers(shardy):
    def ask(sharding):
        raise ValueError("seen enough")

    def f(x):
        jax.debug.inspect_array_sharding(x * 2, callback=ask)
        return x

    with pytest.raises(jax.errors.JaxRuntimeError, match=r"InspectSharding(.|\n)*seen enough"):
        jax.jit(f)(put(HOST, "x", over=mesh(4)))


def test_each_device_makes_a_callback_with_its_part(shardy):
    if not hasattr(jax.debug, "callback") or "partitioned" not in jax.debug.callback.__code__.co_varnames:
        pytest.skip("this JAX has no partitioned callbacks")
    over = mesh(4)
    seen = []

    def f(x):
        jax.debug.callback(lambda part: seen.append(np.array(part)), x * 2, partitioned=True)
        return x + 1

    result = jax.jit(f)(put(HOST, "x", over=over))
    jax.effects_barrier()
    np.testing.assert_array_equal(result, HOST + 1)
    assert [part.shape for part in seen] == [(2, 16)] * 4
    np.testing.assert_array_equal(
        np.concatenate(sorted(seen, key=lambda part: HOST[:, 0].tolist().index(part[0, 0] / 2))), HOST * 2
    )


@pytest.mark.parametrize("spec", [("x",), ("x", None, "y"), (None, "x"), ()], ids=str)
def test_linear_algebra_of_a_split_batch(shardy, spec):
    over = mesh(2, 2)
    matrices = np.einsum("bij,bkj->bik", *[rng.standard_normal((8, 4, 4)).astype(np.float32)] * 2) + 4 * np.eye(
        4, dtype=np.float32
    )
    x = put(matrices, *spec, over=over)
    for function, numpys in [(jnp.linalg.cholesky, np.linalg.cholesky), (jnp.linalg.eigvalsh, np.linalg.eigvalsh)]:
        program = jax.jit(lambda x, function=function: function(x * 2) + 1)
        np.testing.assert_allclose(program(x), numpys(matrices * 2) + 1, rtol=1e-4, atol=1e-4)
        if spec == ("x",):
            assert "all-gather" not in program.lower(x).compile().as_text()


def test_linear_algebra_of_one_device_stays():
    over = mesh(4)
    matrices = np.stack([np.eye(4, dtype=np.float32) * n for n in range(1, 9)])
    split = jax.shard_map(jax.jit(jnp.linalg.cholesky), mesh=over, in_specs=P("x"), out_specs=P("x"))
    both = jax.jit(lambda x: split(x) + jnp.linalg.cholesky(x))
    np.testing.assert_allclose(both(put(matrices, "x", over=over)), 2 * np.linalg.cholesky(matrices), rtol=1e-5)


# ---- Beside JAX's own backend ---------------------------------------------------------------------------------------


def test_shardings_and_numbers_are_those_of_jaxs_own_backend():
    out = run_jax(
        """
        import numpy as np, jax, jax.numpy as jnp
        from jax.experimental.custom_partitioning import custom_partitioning
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

        def make():
            @custom_partitioning
            def f(x, y):
                return x @ y
            def partition(mesh, args, result):
                def lower(x, y):
                    return jax.lax.psum(x @ y, "y")
                shardings = NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P("y"))
                return mesh, lower, NamedSharding(mesh, P("x")), shardings
            f.def_partition(partition, sharding_rule="i j, j k -> i k", reduction_factors=("j",))
            return f

        rng = np.random.default_rng(0)
        a, b = rng.integers(0, 9, (8, 8)).astype("f4"), rng.integers(0, 9, (8, 8)).astype("f4")
        def run(platform, of_a, of_b):
            mesh = Mesh(np.array(jax.devices(platform)).reshape(2, 2), ("x", "y"))
            f = make()
            put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
            out = jax.jit(lambda x, y: (f(x, y) + 1, f(y, x).sum(0)))(put(a, of_a), put(b, of_b))
            return [(np.asarray(r).tolist(), r.sharding.spec) for r in out]
        cases = [P(), P("x"), P("y"), P("x", "y"), P(None, ("x", "y")), P(("y", "x"))]
        print(all(run("arena", p, q) == run("cpu", p, q) for p in cases for q in cases))
        """,
        JAX_NUM_CPU_DEVICES="4",
    ).stdout
    assert out.split() == ["True"]


# ---- Shardings in words ---------------------------------------------------------------------------------------------


def test_the_axes_of_every_partition_spec_are_found_again():
    count = 0
    for shape, order in [
        ((4,), None),
        ((2, 2), None),
        ((2, 2), [2, 0, 3, 1]),
        ((1, 4), None),
        ((2, 1, 2), [3, 2, 1, 0]),
    ]:
        over = mesh(*shape, order=order)
        ids = tuple(np.arange(4)[order if order is not None else slice(None)].tolist())
        told = _shardings.Mesh("mesh", tuple(over.shape.items()), ids)
        names = [name for name in over.axis_names if over.shape[name] > 1]
        groups = [(), *(chosen for n in range(1, 3) for chosen in itertools.permutations(names, n))]
        for spec in itertools.product(groups, repeat=2):
            if len(set(itertools.chain(*spec))) < len(list(itertools.chain(*spec))):
                continue
            sharding = _hlo(over, spec, ids)
            found = _shardings.axes(_shardings.tiles(sharding, 2, 4), told)
            assert [tuple(axis.name for axis in axes) for axes in found] == list(spec), (shape, order, spec)
            count += 1
    assert count > 30


def _hlo(over, spec, ids):
    """The sharding of a two-dimensional array as XLA has it, over partitions rather than devices."""
    from jaxlib import xla_client

    places = np.array(ids).reshape(list(over.shape.values()))
    names = list(over.axis_names)
    order = [names.index(name) for axes in spec for name in axes]
    rest = [n for n in range(len(names)) if n not in order]
    dims = [int(np.prod([over.shape[name] for name in axes])) for axes in spec]
    proto = xla_client.OpSharding()
    if np.prod(dims) == 1:
        return xla_client.HloSharding.replicate()
    copies = 4 // int(np.prod(dims))
    proto.type = xla_client.OpSharding.Type.OTHER
    proto.tile_assignment_dimensions = [*dims, copies] if copies > 1 else dims
    proto.tile_assignment_devices = places.transpose(order + rest).ravel().tolist()
    proto.replicate_on_last_tile_dim = copies > 1
    return xla_client.HloSharding.from_proto(proto)


def test_an_axis_in_two_parts():
    told = _shardings.Mesh("mesh", (("x", 4),), (0, 1, 2, 3))
    halves = _shardings.Tiles((2, 2), np.array([[0, 0], [0, 1], [1, 0], [1, 1]]))
    assert _shardings.axes(halves, told) == [[("x", 1, 2)], [("x", 2, 2)]]
    whole = _shardings.Tiles((4,), np.arange(4)[:, None])
    assert _shardings.axes(whole, told) == [[("x", 1, 4)]]
    # Neither a sum of strides, nor of this many partitions.
    assert _shardings.axes(_shardings.Tiles((4,), np.array([[0], [1], [3], [2]])), told) is None
    assert _shardings.axes(_shardings.Tiles((2,), np.array([[0], [1]])), told) is None


def test_shardings_that_are_more_than_cuts_are_told():
    from jaxlib import xla_client

    with pytest.raises(_shardings.Inexpressible, match="manual"):
        _shardings.tiles(xla_client.HloSharding.manual(), 2, 4)
