"""Names that are no UTF-8, and search paths that Python itself ignores."""

import os
import sys

import pytest
from harness import run_python

pytestmark = pytest.mark.arena

# No program: jaxlib cannot put such a name into one's locations.
EXHAUST = """
import jax, numpy
try:
    jax.device_put(numpy.ones(8 << 20, numpy.float32)).block_until_ready()
except Exception as error:
    print(error)
"""


def test_a_script_whose_name_is_no_utf_8_gets_its_report(tmp_path):
    script, report = tmp_path / os.fsdecode(b"caf\xe9.py"), tmp_path / "report.json"
    script.write_text(EXHAUST)
    settings = {"PJRT_ARENA_LIMIT": "16MiB", "PJRT_ARENA_OOM_REPORT": str(report)}
    run = run_python(str(script), **settings)
    assert "RESOURCE_EXHAUSTED" in run.stdout and "panicked" not in run.stdout + run.stderr, run
    assert '"caf\N{REPLACEMENT CHARACTER}.py"' in report.read_text(encoding="utf-8")


#: The same as a user who gives JAX the library by its path, without the package.
ENGINE = """
import ctypes, os
library = ctypes.CDLL(os.environ["PJRT_ARENA_LIBRARY_PATH"])
text = ctypes.create_string_buffer(1 << 16)
library.pjrt_arena_engine(text, ctypes.c_size_t(len(text)))
print(text.value.decode())
"""


def planted(folder):
    """An engine's file below `folder`, which nobody can load."""
    library = folder / "xla_plugins" / "xla_cpu_pjrt" / "xla_cpu_pjrt.so"
    library.parent.mkdir(parents=True)
    library.write_text("not a library")
    return library


def doctor(*options, cwd, monkeypatch, **settings):
    monkeypatch.chdir(cwd)
    arguments = (*options, "-S", "-c", ENGINE)
    return run_python(*arguments, check=False, PJRT_ARENA_ENGINE=None, PJRT_ARENA_LOG="debug", **settings)


@pytest.mark.parametrize(("options", "seen"), [((), True), (("-I",), False), (("-E",), False)])
def test_pythonpath_is_ignored_where_python_ignores_it(tmp_path, monkeypatch, options, seen):
    library = planted(tmp_path / "path")
    path = str(tmp_path / "path")
    run = doctor(*options, cwd=tmp_path, monkeypatch=monkeypatch, PYTHONPATH=path, VIRTUAL_ENV=None, CONDA_PREFIX=None)
    assert (str(library) in run.stdout + run.stderr) == seen, (sys.version, run)


@pytest.mark.parametrize("path", [":", ":/no/such/folder", None])
def test_the_current_folder_is_not_searched(tmp_path, monkeypatch, path):
    library = planted(tmp_path)
    run = doctor(cwd=tmp_path, monkeypatch=monkeypatch, PYTHONPATH=path, VIRTUAL_ENV=None, CONDA_PREFIX=None)
    assert str(library) not in run.stdout + run.stderr, run
    code = "from jax_plugins.arena import _library; l = _library.load(); l.set_search_path(); "
    code += "print(l._text('pjrt_arena_engine'))"
    run = run_python("-c", code, PJRT_ARENA_ENGINE=None)
    assert str(library) not in run.stdout, run
