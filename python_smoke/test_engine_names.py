"""The engines that scripts name, and the script that tries every JAX on them."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from engines import DEFAULT, ENGINES, by_name, of_library

HERE = Path(__file__).resolve().parent

#: PJRT_Api begins with its size, a chain of extensions, and the version: a size, a chain and two numbers.
API = """
import ctypes, sys
get = ctypes.CDLL(sys.argv[1]).GetPjrtApi
get.restype = ctypes.POINTER(ctypes.c_int)
print(*get()[8:10], sep=".")
"""


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.distribution)
def test_installed_engines_are_what_is_said_of_them(engine):
    try:
        installed = version(engine.distribution)
    except PackageNotFoundError:
        pytest.skip(f"{engine.requirement} is not installed")
    assert installed == engine.version
    # In a process of its own: it brings an XLA.
    run = subprocess.run(
        [sys.executable, "-c", API, engine.path()], capture_output=True, text=True, timeout=600, check=False
    )
    assert run.stdout.strip() == engine.api, run.stdout + run.stderr


def test_engines_are_those_that_the_library_looks_for():
    searched = (HERE.parent / "src/engine/discover.rs").read_text()
    for engine in ENGINES:
        assert f'"{engine.distribution}"' in searched and f'"{engine.library}"' in searched, engine


def test_engines_have_names():
    for engine in ENGINES:
        assert by_name(engine.api) == by_name(engine.distribution) == by_name(engine.requirement) == engine
        assert of_library(f"/some/where/{engine.library}") == engine == of_library(engine.path(Path("/any")))
    other = by_name(f"{DEFAULT.distribution}==1.2")
    assert (other.requirement, other.library) == (f"{DEFAULT.distribution}==1.2", DEFAULT.library)
    assert of_library("/no/engine.so") is None
    for name in ("", "0.8", "no-such-engine", "0.81==1"):
        with pytest.raises(ValueError, match=DEFAULT.distribution):
            by_name(name)


def test_compat_refuses_engines_and_rows_that_it_does_not_know():
    for option, value, words in [
        ("--engine", "0.115,nobody", ("'nobody'", DEFAULT.distribution)),
        ("--only", "0.5.0", ("0.5.0", "0.12.0.1")),
    ]:
        command = [sys.executable, HERE / "compat" / "run.py", option, value]
        run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert run.returncode == 2 and all(word in run.stderr for word in words), run.stderr
