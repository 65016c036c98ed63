"""What a compiled program says of itself: word for word what the bare engine says, which knows no destinations."""

import json

import pytest
from harness import beside_the_bare_engine, run_jax

#: Compiles each program on both backends and prints all that each says.
CODE = """
    import json, re
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
    from jax.experimental.layout import Format, Layout
    from jaxlib import _jax

    X = jax.ShapeDtypeStruct((64, 32), jnp.float32)
    V = jax.ShapeDtypeStruct((32,), jnp.float32)

    def programs(devices):
        one = SingleDeviceSharding(devices[0])
        mesh = Mesh(np.array(devices).reshape(2, 2), ("x", "y"))
        split, turned, whole = (NamedSharding(mesh, P(*axes)) for axes in (("x", "y"), ("y", None), ()))
        column = Format(Layout((1, 0)), one)
        alone = {"in_shardings": one}
        yield "several results", lambda x: (x @ x.T, x.sum(), jnp.sin(x)), (X,), alone
        yield "donated", lambda x: x + 1, (X,), alone | {"donate_argnums": 0}
        yield "one of two donated", lambda x, v: (x * v, v, x.T), (X, V), alone | {"donate_argnums": 0}
        yield "donated in vain", lambda x, v: (x @ v).sum(), (X, V), alone | {"donate_argnums": 0}
        yield "the argument itself", lambda x, v: (x, x, v), (X, V), alone
        yield "constants", lambda: (jnp.arange(100), jnp.arange(8.0)), (), {"out_shardings": one}
        yield "a literal", lambda: (jnp.arange(100), 1.5), (), {"out_shardings": one}
        yield "no result", lambda x: None, (X,), alone | {"keep_unused": True}
        yield "scratch", lambda x: jnp.sort(jax.nn.softmax(x @ x.T @ x, 0), 1), (X,), alone
        yield "a loop", lambda x: jax.lax.fori_loop(0, 9, lambda i, y: jnp.tanh(y @ y.T @ x), x), (X,), alone
        yield "narrow", lambda x: (x.astype("int4"), x > 0, x.astype("float8_e5m2")), (X,), alone
        yield "layouts", lambda x: x * 2, (X,), {"in_shardings": column, "out_shardings": column}
        yield "unused", lambda x, v: x + 1, (X, V), alone | {"keep_unused": True}
        yield "sharded", lambda x: (x * 2, x.sum(0)), (X,), {"in_shardings": split, "out_shardings": (split, whole)}
        yield "propagated", lambda x, v: (x * 2, v + 1, x.sum()), (X, V), {"in_shardings": (split, whole)}
        yield "resharded", lambda x: x + 1, (X,), {"in_shardings": split, "out_shardings": turned}
        yield "sharded, donated", lambda x: x + 1, (X,), dict(in_shardings=split, out_shardings=split, donate_argnums=0)

    def text(compiled):
        # Numbers that only tell instructions of one name apart; and a mark of the root that says nothing, which XLA
        # drops where it gives a result a place.
        return re.sub(r"(%[\\w-]+|\\bparam(?=[.\\d]*:))(\\.\\d+)+", r"\\1", compiled.as_text()).replace(
            ", sharding={{replicated}, {replicated}}", ""
        )

    def plain(tree):
        return str(jax.tree.leaves(tree, is_leaf=lambda x: x is None))

    def cost(compiled):
        # An engine that does not count leaves it to its caller (PJRT 0.106 and 0.115).
        (module,) = compiled.runtime_executable().hlo_modules()
        counted = compiled.cost_analysis() or _jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, module)
        return sorted(counted.items())

    def said(name, program, arguments, options):
        lowered = jax.jit(program, **options).lower(*arguments)
        compiled = lowered.compile()
        executable = compiled.runtime_executable()
        return {
            "memory_analysis": str(compiled.memory_analysis()),
            "cost_analysis": cost(compiled),
            "lowered cost_analysis": sorted((lowered.cost_analysis() or {}).items()),
            "as_text": text(compiled),
            "shardings": plain((compiled.input_shardings, compiled.output_shardings)),
            "formats": plain((compiled.input_formats, compiled.output_formats)),
            "parameter shardings": str(executable.get_parameter_shardings()),
            "output shardings": str(executable.get_output_shardings()),
            "layouts": [str(each) for each in executable.get_parameter_layouts() + executable.get_output_layouts()],
            "memory kinds": str(executable.get_output_memory_kinds()),
            "devices": str([device.id for device in executable.local_devices()]),
            "code size": executable.size_of_generated_code_in_bytes(),
        }

    import warnings
    warnings.simplefilter("ignore")
    print(json.dumps([{p[0]: said(*p) for p in programs(jax.devices(name))} for name in ("arena", "bare")]))
"""

FIELDS = [
    "memory_analysis",
    "cost_analysis",
    "lowered cost_analysis",
    "as_text",
    "shardings",
    "formats",
    "parameter shardings",
    "output shardings",
    "layouts",
    "memory kinds",
    "devices",
    "code size",
]


#: A literal that is a result is copied once by XLA, and once more into a result whose place is given.
A_COPY_MORE = {("a literal", field) for field in ("memory_analysis", "cost_analysis", "as_text")}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    settings = beside_the_bare_engine(tmp_path_factory.mktemp("engine"))
    return json.loads(run_jax(CODE, **settings).stdout)


@pytest.mark.arena
@pytest.mark.parametrize("field", FIELDS)
def test_each_program_is_described_as_if_nothing_were_added(said, field):
    ours, bare = said
    assert len(ours) == 17
    different = {name for name in bare if ours[name][field] != bare[name][field]}
    assert different == {name for name, of in A_COPY_MORE if of == field}


@pytest.mark.arena
def test_a_literal_that_is_a_result_is_copied_once_more(said):
    ours, bare = (each["a literal"]["as_text"] for each in said)
    assert (ours.count(" copy("), bare.count(" copy(")) == (2, 1)
