"""Settings that cannot be: an error when the client is created, that names variable, value and what is allowed.

JAX shows it, the process goes on, and the next start reads the variables anew.
"""

import json
import os

import pytest
from harness import run_jax
from pjrt_arena import _library

pytestmark = pytest.mark.arena

#: case -> (variables, words that the error must hold)
BAD = {
    "unknown strategy": (
        {"PJRT_ARENA_STRATEGY": "fastest"},
        ["PJRT_ARENA_STRATEGY", "fastest", "preallocate", "growing", "platform", "tpu"],
    ),
    "scratch cold": ({"PJRT_ARENA_SCRATCH": "cold"}, ["PJRT_ARENA_SCRATCH=cold", "allowed: warm, system"]),
    "unknown allocator": (
        {"XLA_PYTHON_CLIENT_ALLOCATOR": "jemalloc"},
        ["XLA_PYTHON_CLIENT_ALLOCATOR", "jemalloc", "platform"],
    ),
    "fraction 0": ({"XLA_CLIENT_MEM_FRACTION": "0"}, ["XLA_CLIENT_MEM_FRACTION=0", "above 0, at most 1"]),
    "fraction 1.5": ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "1.5"}, ["XLA_PYTHON_CLIENT_MEM_FRACTION=1.5", "at most 1"]),
    "fraction abc": ({"XLA_CLIENT_MEM_FRACTION": "abc"}, ["XLA_CLIENT_MEM_FRACTION=abc", "at most 1"]),
    "both fractions": (
        {"XLA_CLIENT_MEM_FRACTION": ".5", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".6"},
        ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"],
    ),
    "limit above the machine": ({"PJRT_ARENA_LIMIT": "1000TiB"}, ["PJRT_ARENA_LIMIT", "1000.00TiB", "at most"]),
    "limit that is no size": ({"PJRT_ARENA_LIMIT": "plenty"}, ["PJRT_ARENA_LIMIT=plenty", "bytes"]),
    "limit of more than all": ({"PJRT_ARENA_LIMIT": "140%"}, ["PJRT_ARENA_LIMIT=140%", "at most 100%"]),
    "no devices": ({"PJRT_ARENA_DEVICES": "0"}, ["PJRT_ARENA_DEVICES=0", "from 1"]),
    "compact sometimes": ({"PJRT_ARENA_COMPACT": "sometimes"}, ["PJRT_ARENA_COMPACT=sometimes", "on, off, always"]),
    "tiles of a size": ({"PJRT_ARENA_TPU_TILES": "8x128"}, ["PJRT_ARENA_TPU_TILES=8x128", "on, off"]),
    "huge pages of a size": ({"PJRT_ARENA_HUGE_PAGES": "2MiB"}, ["PJRT_ARENA_HUGE_PAGES=2MiB", "on, off"]),
    "zero copies of a size": ({"PJRT_ARENA_ZERO_COPY": "64KiB"}, ["PJRT_ARENA_ZERO_COPY=64KiB", "on, off"]),
    "devices not a number": ({"PJRT_ARENA_DEVICES": "two"}, ["PJRT_ARENA_DEVICES=two", "from 1"]),
}


@pytest.fixture(scope="module")
def errors():
    """The error of each case, all from one process, which ends by running a program on the arena."""
    code = """
        import json, os
        import jax
        from harness import bytes_in_use, start_error
        seen = {}
        for case, variables in json.loads(os.environ["CASES"]).items():
            os.environ.update(variables)
            seen[case] = start_error()
            for name in variables:
                del os.environ[name]
        assert float(jax.numpy.arange(4.0).sum()) == 6
        assert bytes_in_use() >= 0 and jax.devices() == jax.devices("arena")
        print(json.dumps(seen))
    """
    run = run_jax(code, CASES=json.dumps({case: variables for case, (variables, _) in BAD.items()}))
    assert "Traceback" not in run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("case", BAD)
def test_error_names_variable_value_and_what_is_allowed(errors, case):
    text = errors[case]
    assert text.startswith("Unable to initialize backend 'arena': ")
    for word in BAD[case][1]:
        assert word in text, text


def test_bad_option_through_jax():
    code = """
        import jax
        from harness import start_error
        jax.config.update("jax_pjrt_client_create_options", "strategy:fastest")
        print(start_error())
        jax.config.update("jax_pjrt_client_create_options", "strategy:growing")
        assert float(jax.numpy.arange(4.0).sum()) == 6
    """
    text = run_jax(code).stdout
    assert "INVALID_ARGUMENT" in text and "strategy" in text and "fastest" in text and "growing" in text


def test_another_backend_can_be_used_instead():
    code = """
        import jax
        from harness import start_error
        start_error()
        jax.config.update("jax_platforms", "cpu")
        assert float(jax.numpy.arange(4.0).sum()) == 6
    """
    run_jax(code, PJRT_ARENA_STRATEGY="fastest")


def test_engine_missing_foreign_and_back():
    """One process: no such file, a file that is no library, a library that is no plugin, then the right one."""
    code = """
        import json, os
        import jax, _ctypes
        from harness import start_error
        seen = {}
        for case, path in [("missing", "/no/such/engine.so"), ("text", os.path.abspath(os.environ["TEXT"])),
                           ("foreign", _ctypes.__file__), ("name", "quantum")]:
            os.environ["PJRT_ARENA_ENGINE"] = path
            seen[case] = [path, start_error()]
        del os.environ["PJRT_ARENA_ENGINE"]
        assert float(jax.numpy.arange(4.0).sum()) == 6
        assert jax.devices() == jax.devices("arena")
        print(json.dumps(seen))
    """
    run = run_jax(code, TEXT=__file__)
    assert "Traceback" not in run.stderr
    for path, text in json.loads(run.stdout).values():
        assert text.startswith("Unable to initialize backend 'arena': ")
        assert "PJRT_ARENA_ENGINE" in text and path in text, text


def test_unknown_variable_of_ours_is_warned_about():
    run = run_jax("import jax; jax.devices()", PJRT_ARENA_STRATEGIE="growing")
    assert "PJRT_ARENA_STRATEGIE" in run.stderr and "PJRT_ARENA_STRATEGY" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PJRT_ARENA_STRATEGY": "platform", "PJRT_ARENA_COMPACT": "on"}, ["PJRT_ARENA_COMPACT=on", "platform"]),
        ({"PJRT_ARENA_STRATEGY": "growing", "PJRT_ARENA_TPU_TILES": "1"}, ["PJRT_ARENA_TPU_TILES=1", "growing"]),
        ({"PJRT_ARENA_TPU_TILE": "on"}, ["PJRT_ARENA_TPU_TILE means nothing", "PJRT_ARENA_TPU_TILES"]),
        ({"PJRT_ARENA_STRATEGY": "tpu", "PJRT_ARENA_TPU_TILES": "on"}, []),
        ({"PJRT_ARENA_STRATEGY": "tpu", "PJRT_ARENA_COMPACT": "off"}, []),
        ({"PJRT_ARENA_STRATEGY": "growing", "PJRT_ARENA_COMPACT": "on"}, []),
    ],
)
def test_what_has_no_effect_is_warned_about(variables, words):
    run = run_jax("import jax; jax.devices()", **variables)
    if words:
        assert all(word in run.stderr for word in words), run.stderr
    else:
        assert run.stderr == ""


IN_VAIN = "JAX does not use the arena, so these settings have no effect: {} ({}); set JAX_PLATFORMS=arena,cpu\n"
TWO = {"PJRT_ARENA_STRATEGY": "tpu", "PJRT_ARENA_LIMIT": "64MiB"}
BOTH = "PJRT_ARENA_LIMIT, PJRT_ARENA_STRATEGY"


@pytest.mark.parametrize(
    ("platforms", "variables", "said"),
    [
        (None, TWO, IN_VAIN.format(BOTH, "JAX_PLATFORMS is not set")),
        ("cpu", TWO, IN_VAIN.format(BOTH, "jax_platforms is cpu")),
        ("cpu", {"PJRT_ARENA_ENGINE": "cuda"}, IN_VAIN.format("PJRT_ARENA_ENGINE", "jax_platforms is cpu")),
        # These ask for nothing.
        (None, {"PJRT_ARENA_LOG": "info", "PJRT_ARENA_ENGINE": "/x/y.so", "PJRT_ARENA_CUDA_DRIVER": "/x/z.so"}, ""),
        (None, {"PJRT_ARENA_LIMIT": "", "PJRT_ARENA_NONSENSE": "1"}, ""),
        ("arena,cpu", TWO, ""),
        # Programs may name a device of it.
        ("cpu,arena", TWO, ""),
    ],
)
def test_settings_are_warned_about_where_jax_does_not_use_the_arena(platforms, variables, said):
    run = run_jax("import jax; jax.devices(); jax.devices()", JAX_PLATFORMS=platforms, **variables)
    assert run.stderr == said


def test_settings_are_not_warned_about_where_jax_finds_the_arena_otherwise():
    named = "import jax; jax.config.update('jax_platforms', 'arena,cpu'); jax.devices()"
    assert run_jax(named, JAX_PLATFORMS=None, **TWO).stderr == ""
    of_jax = {"PJRT_NAMES_AND_LIBRARY_PATHS": f"arena:{os.fspath(_library.locate())}"}
    code = "import jax; assert 'pjrt-arena' in jax.devices()[0].client.platform_version"
    assert "settings have no effect" not in run_jax(code, JAX_PLATFORMS=None, **TWO, **of_jax).stderr


def test_huge_pages_that_there_are_none_of_are_warned_about_once():
    code = """
        import ctypes, jax
        PR_SET_THP_DISABLE = 41
        assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
        assert len(jax.devices()) == 2 and float(jax.numpy.arange(4e6).max()) == 4e6 - 1
        assert all(" hg" not in line for line in open("/proc/self/smaps") if line.startswith("VmFlags"))
    """
    run = run_jax(code, PJRT_ARENA_HUGE_PAGES="on", PJRT_ARENA_DEVICES="2")
    (line,) = run.stderr.splitlines()
    assert "huge_pages=on (PJRT_ARENA_HUGE_PAGES) has no effect" in line and "PR_SET_THP_DISABLE" in line


def test_one_line_shows_what_follows_from_the_strategy():
    variables = {"PJRT_ARENA_LOG": "info", "PJRT_ARENA_STRATEGY": "tpu", "PJRT_ARENA_LIMIT": "64MiB"}
    run = run_jax("import jax; jax.numpy.ones(3)", **variables)
    assert "strategy=tpu (PJRT_ARENA_STRATEGY)" in run.stderr
    for said in ("compact=on (default), share=off (default)", "tpu_tiles=off (default), huge_pages=off (default)"):
        assert said in run.stderr


def test_one_line_says_what_was_decided():
    run = run_jax("import jax; jax.numpy.ones(3)", PJRT_ARENA_LOG="info", PJRT_ARENA_LIMIT="64MiB")
    (line,) = [line for line in run.stderr.splitlines() if "PJRT_ARENA_LIMIT" in line]
    assert "preallocate" in line and "64" in line


def test_a_normal_program_prints_nothing():
    code = """
        import jax, jax.numpy as jnp
        import model
        parameters, state, optimiser = model.initial_state()
        step = model.make_step(optimiser)
        key = jax.random.key(0)
        for _ in range(5):
            parameters, state, key, value = step(parameters, state, key)
        jnp.sort(jnp.dot(jnp.ones((50, 50)), jnp.ones((50, 50)))).block_until_ready()
        jax.lax.conv(jnp.ones((1, 1, 8, 8)), jnp.ones((1, 1, 3, 3)), (1, 1), "SAME").block_until_ready()
    """
    run = run_jax(code)
    assert (run.stdout, run.stderr) == ("", "")
