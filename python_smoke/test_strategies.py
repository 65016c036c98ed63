"""The strategies, by our variables and by XLA's, and what happens when memory is out. One process for each."""

import json

import pytest
from harness import run_jax

pytestmark = pytest.mark.arena

MIB = 1 << 20

#: Runs in a process with a limit of 64 MiB; prints what it saw as JSON.
PROBE = """
    import gc, json
    import jax, jax.numpy as jnp, numpy as np
    from harness import arena_device, bytes_in_use, eventually, stats

    MIB = 1 << 20
    seen = {"start": stats()}
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    put = lambda mib: jax.block_until_ready(jax.device_put(np.ones(mib << 18, np.float32), arena_device()))

    x = step(put(8))
    assert (np.asarray(x) == 2).all()
    seen["holding"] = stats()
    del x
    gc.collect()
    eventually(bytes_in_use, seen["start"]["bytes_in_use"])
    seen["empty"] = stats()

    # Out of memory three times over, by transfer and by a program's result, then all is well.
    seen["errors"] = []
    for attempt in range(3):
        held = []
        try:
            while True:
                held.append(put(8) if attempt == 0 else jax.block_until_ready(jnp.zeros(2 * MIB, jnp.float32) + 1))
                assert len(held) < 20, "64 MiB cannot hold this many"
        except (RuntimeError, ValueError) as error:  # jaxlib's fast path of a jitted call raises ValueError
            seen["errors"].append(str(error))
        seen.setdefault("held", []).append(len(held))
        # What was there before the failure is still right, and still usable.
        assert all(np.asarray(a)[-1] == 1 for a in held)  # a view: needs no memory
        del held
        gc.collect()
        eventually(bytes_in_use, seen["start"]["bytes_in_use"])
    seen["after"] = stats()
    x = step(put(16))
    assert float(x[123]) == 2
    try:
        put(65)
    except RuntimeError as error:
        seen["too big"] = str(error)
    print(json.dumps(seen))
"""

WAYS = {
    "default": ("preallocate", {}),
    "ours preallocate": ("preallocate", {"PJRT_ARENA_STRATEGY": "preallocate"}),
    "ours growing": ("growing", {"PJRT_ARENA_STRATEGY": "growing"}),
    "ours platform": ("platform", {"PJRT_ARENA_STRATEGY": "platform"}),
    "XLA growing": ("growing", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    "XLA platform": ("platform", {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    "ours before XLA's": (
        "growing",
        {"PJRT_ARENA_STRATEGY": "growing", "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
    ),
}


@pytest.fixture(scope="module", params=WAYS, ids=str)
def probed(request):
    strategy, variables = WAYS[request.param]
    # Every array is to take memory of the arena, however NumPy's are aligned.
    run = run_jax(PROBE, PJRT_ARENA_LIMIT="64MiB", PJRT_ARENA_ZERO_COPY="off", **variables)
    assert run.stderr == ""
    return strategy, json.loads(run.stdout)


def test_pool_follows_the_strategy(probed):
    strategy, seen = probed
    assert seen["start"]["bytes_limit"] == 64 * MIB
    pools = [seen[when]["pool_bytes"] for when in ("start", "holding", "empty")]
    if strategy == "preallocate":
        # Taken whole, at the first allocation.
        assert pools == [0, 64 * MIB, 64 * MIB]
    elif strategy == "growing":
        assert pools[0] == 0 and 8 * MIB <= pools[1] < 64 * MIB
        assert pools[2] < pools[1], "an empty region goes back"
    else:
        # One mapping for each array: nothing is kept.
        assert pools[0] == 0 and 8 * MIB <= pools[1] < 9 * MIB and pools[2] == 0


def test_out_of_memory_names_the_numbers(probed):
    _, seen = probed
    assert len(seen["errors"]) == 3
    for text in seen["errors"]:
        assert text.startswith("RESOURCE_EXHAUSTED: Out of memory")
        for words in (f"{8 * MIB}", "limit", "in use", "largest", "free"):
            assert words in text, text
    assert "RESOURCE_EXHAUSTED" in seen["too big"] and f"{65 * MIB}" in seen["too big"]


def test_memory_is_used_to_the_end_before_it_is_out(probed):
    _, seen = probed
    # The transfers fill 8 of 8 places. A program's result needs room beside its argument while it runs.
    # Scalars and constants that JAX keeps take a little, so the last place may be too small.
    assert seen["held"][0] in (7, 8)
    assert all(count in (6, 7, 8) for count in seen["held"])


def test_nothing_leaks_from_a_failure(probed):
    strategy, seen = probed
    assert seen["after"]["bytes_in_use"] == seen["start"]["bytes_in_use"]
    if strategy == "growing":
        # After taking and freeing the same memory over and over it keeps some warm.
        assert seen["after"]["pool_bytes"] <= seen["after"]["bytes_limit"]
    else:
        assert seen["after"]["pool_bytes"] == seen["empty"]["pool_bytes"]
    assert seen["after"]["peak_bytes_in_use"] <= 64 * MIB


def test_fraction_and_percentage_set_the_limit():
    read = "import harness; print(harness.stats()['bytes_limit'])"
    whole = int(run_jax(read, XLA_CLIENT_MEM_FRACTION="1.0").stdout)
    tenth = int(run_jax(read, XLA_PYTHON_CLIENT_MEM_FRACTION=".1").stdout)
    percent = int(run_jax(read, PJRT_ARENA_LIMIT="10%").stdout)
    assert tenth == pytest.approx(percent, rel=1e-6)
    assert tenth == pytest.approx(whole / 10, rel=0.01)


def test_options_given_through_jax():
    code = """
        import jax
        from harness import stats
        jax.config.update("jax_pjrt_client_create_options", "strategy:platform;limit:32MiB")
        jax.config.update("jax_num_cpu_devices", 2)
        assert len(jax.devices()) == 2, jax.devices()
        x = jax.numpy.ones(1000)
        seen = stats()
        assert seen["bytes_limit"] == 32 << 20, seen
        assert seen["pool_bytes"] < 1 << 20, seen
        del x
    """
    run_jax(code, PJRT_ARENA_STRATEGY="growing", PJRT_ARENA_LIMIT="48MiB", PJRT_ARENA_DEVICES="3")


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 1),
        ({"PJRT_ARENA_DEVICES": "3"}, 3),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, 2),
        ({"JAX_NUM_CPU_DEVICES": "2"}, 2),
    ],
    ids=["default", "ours", "XLA's flag", "JAX's setting"],
)
def test_number_of_devices(variables, count):
    assert int(run_jax("import jax; print(len(jax.devices('arena')))", **variables).stdout) == count


def test_loops_of_the_engine_may_look_over_the_edges_of_a_buffer():
    # This convolution loads an element before its first one, and drops it. With one mapping that is another page.
    run_jax(
        """
        import jax.numpy as jnp, numpy as np
        roots = np.linspace(-1, 1, 12, dtype=np.float32)
        for _ in range(4):
            np.testing.assert_allclose(jnp.poly(roots), np.poly(roots), atol=1e-5)
        """,
        PJRT_ARENA_STRATEGY="platform",
    )
