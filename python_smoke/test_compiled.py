"""Ahead-of-time compilation and what a compiled program says of itself: it must show the user's program, not ours."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import arena_device, on, run_jax
from jax.experimental import serialize_executable

X = np.linspace(0, 1, 128 * 64, dtype=np.float32).reshape(128, 64)


def program(x, y):
    return x @ y.T, x.sum() + y.sum()


def compiled_on(device):
    with jax.default_device(device):
        return jax.jit(program).lower(X, X).compile()


def test_compiled_program_runs():
    product, total = compiled_on(arena_device())(X, X)
    np.testing.assert_allclose(product, X @ X.T, rtol=1e-4)
    np.testing.assert_allclose(total, 2 * X.sum(), rtol=1e-4)


def test_wrong_arguments_are_refused():
    compiled = compiled_on(arena_device())
    with pytest.raises(TypeError):
        compiled(X[:5], X)
    with pytest.raises(TypeError):
        compiled(X)


def test_memory_analysis_shows_the_users_program():
    memory = compiled_on(arena_device()).memory_analysis()
    assert memory.argument_size_in_bytes == 2 * X.nbytes
    # The product, the sum, and the table of two pointers that XLA may count with them.
    assert 0 <= memory.output_size_in_bytes - (128 * 128 * 4 + 4) <= 16
    assert memory.alias_size_in_bytes == 0
    assert memory.temp_size_in_bytes >= 0
    assert memory.generated_code_size_in_bytes >= 0


def test_memory_analysis_shows_the_users_donation():
    with jax.default_device(arena_device()):
        donating = jax.jit(lambda x: x + 1, donate_argnums=0).lower(X).compile()
    memory = donating.memory_analysis()
    assert (memory.argument_size_in_bytes, memory.alias_size_in_bytes) == (X.nbytes, X.nbytes)


def test_cost_analysis_counts_the_users_program():
    ours = compiled_on(arena_device()).cost_analysis()
    theirs = compiled_on(jax.devices("cpu")[0]).cost_analysis()
    # A product of 128x64 by 64x128 is 2 * 128 * 128 * 64 operations; the two sums add one for each element.
    assert ours["flops"] == pytest.approx(theirs["flops"], rel=0.02)
    assert ours["flops"] == pytest.approx(2 * 128 * 128 * 64 + 2 * X.size, rel=0.02)
    assert ours["bytes accessed"] == pytest.approx(theirs["bytes accessed"], rel=0.5)


COST = """
    import jax, json, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    X = np.ones((64, 32), np.float32)
    Y = np.ones((32, 16), np.float32)

    def costs(devices):
        mesh = Mesh(np.array(devices), "x")
        rows, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
        programs = {
            "product": (lambda x, y: x @ y, (X, Y), {}),
            "donated": (lambda x: x + 1, (X,), {"donate_argnums": 0}),
            "several results": (lambda x, y: (x @ y, x * 2, y + y), (X, Y), {}),
            "no destination": (lambda x: None, (X,), {"keep_unused": True}),
            "sharded": (lambda x, y: x @ y, (X, Y), {"in_shardings": (rows, whole)}),
            "reduced": (lambda x: x.T @ x, (X,), {"in_shardings": rows, "out_shardings": whole}),
        }
        with jax.default_device(devices[0]):
            compiled = {name: jax.jit(p, **how).lower(*given).compile() for name, (p, given, how) in programs.items()}
        return {name: each.cost_analysis() for name, each in compiled.items()}

    print(json.dumps([costs(jax.devices(name)) for name in ("arena", "cpu")]))
"""


@pytest.fixture(scope="module")
def costs():
    ours, theirs = json.loads(run_jax(COST, JAX_NUM_CPU_DEVICES="4").stdout)
    assert set(ours) == set(theirs)
    return ours, theirs


@pytest.mark.arena
@pytest.mark.parametrize(
    ("program", "flops"),
    {
        "product": 2 * 64 * 32 * 16,
        "donated": 64 * 32,
        "several results": 2 * 64 * 32 * 16 + 64 * 32 + 32 * 16,
        "no destination": 0,
        # One device's share.
        "sharded": 2 * 16 * 32 * 16,
        # The sum over devices adds one for each element.
        "reduced": 2 * 32 * 16 * 32 + 32 * 32,
    }.items(),
)
def test_operations_are_those_that_jaxs_own_backend_counts(costs, program, flops):
    ours, theirs = (side[program] for side in costs)
    assert ours.get("flops", 0) == theirs.get("flops", 0) == flops
    if flops:
        assert ours["bytes accessed"] > 0


def compiled_anew():
    """What nobody has asked for its cost."""
    with jax.default_device(arena_device()):
        return jax.jit(lambda x: x @ x.T).lower(X).compile()


@pytest.fixture
def counting(monkeypatch):
    """The module that counts for an engine which does not."""
    from jax_plugins.arena import _cost

    asked = []
    with monkeypatch.context() as patch:
        patch.setattr(_cost, "properties", lambda module: asked.append(module) or {})
        compiled_anew().cost_analysis()
    if not asked:
        pytest.skip("the engine counts by itself")
    return _cost


@pytest.mark.arena
def test_a_cost_that_cannot_be_counted_is_not_known_yet(counting, monkeypatch):
    compiled = compiled_anew()
    with monkeypatch.context() as patch:
        patch.setattr(counting, "properties", lambda module: 1 / 0)
        assert compiled.cost_analysis() is None
    assert compiled.cost_analysis()["flops"] == 2 * 128 * 128 * 64


@pytest.mark.arena
def test_threads_that_ask_for_one_cost_do_not_wait_for_each_other(counting, monkeypatch):
    compiled = compiled_anew()
    both, count = threading.Barrier(2), counting.properties

    def properties(module):
        both.wait(60)
        return count(module)

    monkeypatch.setattr(counting, "properties", properties)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda _: compiled.cost_analysis(), range(2))
    assert one == other and one["flops"] == 2 * 128 * 128 * 64


def test_text_has_the_users_parameters():
    text = compiled_on(arena_device()).as_text()
    entry = text[text.index("ENTRY") :]
    assert entry.count(" parameter(") == 2
    layout = next(line for line in text.splitlines() if "entry_computation_layout" in line)
    arguments = layout.split("entry_computation_layout={(")[1].split(")->")[0]
    assert arguments.count("f32[128,64]") == 2 and arguments.count("f32[") == 2
    assert "input_output_alias" not in text


def test_layouts_and_shardings():
    compiled = compiled_on(arena_device())
    (arguments, _), results = compiled.input_formats, compiled.output_formats
    assert len(arguments) == 2 and len(results) == 2
    (shardings, _) = compiled.input_shardings
    assert [s.device_set for s in shardings] == [{arena_device()}] * 2


def test_unused_arguments_and_kept_ones():
    assert jax.jit(lambda x, unused: x + 1)(X, X)[0, 0] == X[0, 0] + 1
    assert jax.jit(lambda x, unused: x + 1, keep_unused=True)(X, X)[0, 0] == X[0, 0] + 1


def test_serialised_program_runs_again():
    with jax.default_device(arena_device()):
        payload, in_tree, out_tree = serialize_executable.serialize(jax.jit(program).lower(X, X).compile())
        again = serialize_executable.deserialize_and_load(
            payload, in_tree, out_tree, backend="arena", execution_devices=[arena_device()]
        )
    product, total = again(X, X)
    np.testing.assert_allclose(product, X @ X.T, rtol=1e-4)
    np.testing.assert_allclose(total, 2 * X.sum(), rtol=1e-4)


def test_export_and_call():
    exported = jax.export.export(jax.jit(program), platforms=["cpu"])(X, X)
    product, _ = on(arena_device(), exported.call, X, X)
    np.testing.assert_allclose(product, X @ X.T, rtol=1e-4)


def test_a_compile_error_is_an_error_and_no_more():
    call = jax.ffi.ffi_call("no_such_target", jax.ShapeDtypeStruct((4,), jnp.float32))
    with pytest.raises(Exception, match="no_such_target"):
        jax.block_until_ready(jax.jit(call)(jnp.ones(4)))
    assert float(jnp.ones(4).sum()) == 4
