"""How JAX finds the plugin, and how it does not: installed but not named, named but unusable, without the package."""

import json
import site
from pathlib import Path

import pytest
from harness import run_jax, run_python

pytestmark = pytest.mark.arena

QUIET = """
    import jax
    from jax._src import xla_bridge
    import engines
    from harness import library_is_mapped
    assert {device.platform for device in jax.devices()} == {"cpu"}
    assert float((kept := jax.numpy.arange(4.0)).sum()) == 6
    assert "arena" not in xla_bridge._backend_factories
    assert not library_is_mapped() and not library_is_mapped(engines.under_test().name)
"""


@pytest.mark.parametrize("platforms", [None, "", "cpu"])
def test_installed_but_not_named_does_nothing(platforms):
    run = run_jax(QUIET, JAX_PLATFORMS=platforms)
    assert (run.stdout, run.stderr) == ("", "")


def test_not_named_and_broken_does_nothing_either():
    run = run_jax(QUIET, JAX_PLATFORMS=None, PJRT_ARENA_LIBRARY_PATH="/no/such/library.so")
    assert (run.stdout, run.stderr) == ("", "")


@pytest.mark.parametrize("platforms", ["arena", "arena,cpu", "cpu,arena"])
def test_named_registers(platforms):
    code = """
        import jax
        from harness import library_is_mapped
        assert library_is_mapped() is False
        first = jax.config.jax_platforms.split(",")[0]
        assert jax.devices() == jax.devices(first)
        assert jax.devices("arena")[0].memory_stats()["bytes_limit"] > 0
        assert library_is_mapped()
    """
    run = run_jax(code, JAX_PLATFORMS=platforms)
    assert (run.stdout, run.stderr) == ("", "")


def test_named_by_configuration_after_import():
    code = """
        import jax
        jax.config.update("jax_platforms", "arena,cpu")
        assert jax.devices() == jax.devices("arena")
    """
    run_jax(code, JAX_PLATFORMS=None)


def test_initialize_again_is_harmless():
    code = """
        import jax
        from jax_plugins import arena
        arena.initialize()
        arena.initialize()
        assert float((kept := jax.numpy.arange(4.0)).sum()) == 6
        arena.initialize()
        assert jax.devices() == jax.devices("arena")
    """
    assert run_jax(code).stderr == ""


@pytest.mark.parametrize("hash_seed", ["0", "1", "2"])
def test_the_default_backend_does_not_depend_on_the_hash_seed(hash_seed):
    run_jax("import jax; assert jax.devices() == jax.devices('arena')", PYTHONHASHSEED=hash_seed)
    run_jax(QUIET, PYTHONHASHSEED=hash_seed, JAX_PLATFORMS=None)


@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [
        ("PJRT_ARENA_LIBRARY_PATH", "/no/such/library.so", "is not a file"),
        ("PJRT_ARENA_LIBRARY_PATH", __file__, "cannot be loaded"),
        ("PJRT_ARENA_ENGINE", "/no/such/engine.so", "PJRT_ARENA_ENGINE"),
    ],
    ids=["no library", "no shared library", "no engine"],
)
def test_named_but_unusable_says_one_sentence(variable, value, word):
    code = """
        import jax
        from harness import start_error
        text = start_error()
        assert "\\n" not in text, text
        print(text)
        # The start is tried anew each time, and JAX itself is unhurt.
        assert start_error() == text
        jax.config.update("jax_platforms", "cpu")
        assert float((kept := jax.numpy.arange(4.0)).sum()) == 6
    """
    run = run_jax(code, **{variable: value})
    assert run.stderr == ""
    assert run.stdout.startswith("Unable to initialize backend 'arena': ")
    assert word in run.stdout and value in run.stdout


def test_a_library_that_is_not_ours_is_refused_by_name():
    code = "from harness import start_error; print(start_error())"
    import _ctypes

    run = run_jax(code, PJRT_ARENA_LIBRARY_PATH=_ctypes.__file__)
    assert run.stderr == "" and "it is not pjrt-arena's library" in run.stdout


def test_an_engine_that_appears_later_is_found():
    """A notebook: the start fails, the user mends the setting, the same cell works."""
    code = """
        import os
        import jax
        from harness import start_error
        start_error()
        del os.environ["PJRT_ARENA_ENGINE"]
        assert float((kept := jax.numpy.arange(4.0)).sum()) == 6
        assert jax.devices() == jax.devices("arena")
    """
    run_jax(code, PJRT_ARENA_ENGINE="/no/such/engine.so")


@pytest.fixture(scope="module")
def library():
    """Path of the library under test."""
    return run_python("-m", "pjrt_arena", "--library").stdout.strip()


@pytest.fixture(scope="module")
def without_package(tmp_path_factory):
    """A folder like site-packages, in which pjrt-arena is not installed."""
    folder = tmp_path_factory.mktemp("packages")
    for entry in Path(site.getsitepackages()[0]).iterdir():
        if "pjrt_arena" not in entry.name and entry.name != "jax_plugins":
            (folder / entry.name).symlink_to(entry)
    return folder


def test_jaxs_variable_works_without_the_package(library, without_package):
    code = """
import importlib.util, jax
assert importlib.util.find_spec("jax_plugins") is None
assert jax.devices() == jax.devices("arena")
assert float((kept := jax.numpy.arange(4.0)).sum()) == 6
assert jax.devices()[0].memory_stats()["bytes_in_use"] >= kept.nbytes
"""
    run_python(
        "-S",
        "-c",
        code,
        PYTHONPATH=str(without_package),
        PJRT_ARENA_LIBRARY_PATH=None,
        PJRT_NAMES_AND_LIBRARY_PATHS=f"arena:{library}",
    )


def test_jaxs_variable_works_beside_the_package(library):
    code = """
        import jax
        from pjrt_arena import memory
        x = jax.jit(lambda x: x + 1)(jax.numpy.arange(4.0))
        assert x.tolist() == [1, 2, 3, 4] and jax.devices() == jax.devices("arena")
        assert memory.counters().results.placed > 0
    """
    run_jax(code, PJRT_NAMES_AND_LIBRARY_PATHS=f"arena:{library}", PJRT_ARENA_LIBRARY_PATH=None)


def test_options_by_a_json_file(library, tmp_path):
    description = tmp_path / "arena.json"
    description.write_text(
        json.dumps(
            {
                "library_path": str(library),
                "create_options": {"strategy": "growing", "limit": "32MiB", "devices": 2},
            }
        )
    )
    code = """
        import jax
        assert len(jax.devices("arena")) == 2
        assert jax.devices()[0].memory_stats()["bytes_limit"] == 32 << 20
    """
    run_jax(code, PJRT_NAMES_AND_LIBRARY_PATHS=f"arena:{description}")


def test_an_untried_jax_is_one_line():
    code = """
        import jax
        jax.__version__ = "0.99.1"
        assert float((kept := jax.numpy.arange(4.0)).sum()) == 6
    """
    run = run_jax(code)
    (line,) = run.stderr.splitlines()
    assert "0.99.1" in line and ">=0.6.2,<0.13" in line


def test_importing_the_package_starts_no_jax():
    code = """
        import sys
        import jax_plugins.arena, jax_plugins.arena.__main__
        assert not [name for name in sys.modules if name.split(".")[0] in ("jax", "jaxlib", "numpy")]
    """
    run_jax(code)
    assert (Path(__file__).parent.parent / "python/jax_plugins/arena/py.typed").is_file()
