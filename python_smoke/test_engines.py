"""Which engine is taken of those that are installed, and what an engine that cannot serve says."""

import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import engines
import pytest
from harness import ROOT, run_jax, run_python

pytestmark = pytest.mark.arena

#: A plugin whose table says another version, in C. What stands behind the version is never called.
TABLE = """
#include <stddef.h>
static struct { size_t size; void* extensions; size_t version_size; void* more; int major, minor; void* slots[138]; }
  table = { 1144, 0, 24, 0, %d, %d };
const void* GetPjrtApi(void) { return &table; }
"""
CRASH = "const void* GetPjrtApi(void) { return *(void* volatile*)0; }"
#: What a library does that was built for another processor.
ILLEGAL = '__attribute__((constructor)) static void first(void) { __asm__ volatile("%s"); }'
INSTRUCTION = {"x86_64": "ud2", "aarch64": "udf #0"}[os.uname().machine]


def library(path: Path, code: str) -> Path:
    """A shared library of this C code at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=code, text=True, check=True)
    return path


def refusal(**settings) -> str:
    """The sentence on why no program could run."""
    run = run_python("-m", "pjrt_arena", "doctor", check=False, **settings)
    assert run.returncode == 1, run.stdout
    (line,) = run.stderr.splitlines()
    return line


def foreign(path: Path) -> Path:
    """The engine's first bytes, as a library for a machine of another kind has them."""
    head = bytearray(engines.under_test().open("rb").read(1 << 16))
    head[18:20] = (0xF3).to_bytes(2, "little")  # e_machine: RISC-V
    path.write_bytes(head)
    return path


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("missing_cpu.so", lambda path: path, ["is not valid", "No such file"]),
        ("text_cpu.so", lambda path: path.write_text("no library"), ["cannot be loaded"]),
        ("foreign_cpu.so", foreign, ["cannot be loaded"]),
        ("plain_cpu.so", lambda path: library(path, "int x;"), ["is no PJRT plugin", "GetPjrtApi"]),
        ("old_cpu.so", lambda path: library(path, TABLE % (0, 60)), ["speaks PJRT C API 0.60", "0.70 and newer"]),
        ("major_cpu.so", lambda path: library(path, TABLE % (1, 2)), ["speaks PJRT C API 1.2", "major version 0"]),
        ("avx_cpu.so", lambda path: library(path, ILLEGAL % INSTRUCTION), ["illegal instruction", "another processor"]),
        ("crash_cpu.so", lambda path: library(path, CRASH), ["cannot be used", "signal 11"]),
    ],
    ids=["missing", "no library", "foreign machine", "no plugin", "too old", "too new", "other processor", "crash"],
)
def test_an_engine_that_cannot_serve_is_one_sentence(tmp_path, name, make, words):
    path = tmp_path / name
    make(path)
    said = refusal(PJRT_ARENA_ENGINE=str(path))
    assert said.startswith("pjrt-arena cannot run: "), said
    for word in [str(path), *words]:
        assert word in said, said


@pytest.fixture
def packages(tmp_path):
    """A folder like site-packages with all that is installed here, but without an engine."""
    folder = tmp_path / "packages"
    folder.mkdir()
    wheels = {engine.library.split("/")[0] for engine in engines.ENGINES}
    wheels |= {engine.distribution.replace("-", "_") for engine in engines.ENGINES}
    for entry in Path(site.getsitepackages()[0]).iterdir():
        if entry.name.split("-")[0] not in wheels and "pjrt_arena" not in entry.name and entry.name != "jax_plugins":
            (folder / entry.name).symlink_to(entry)
    for package in ("jax_plugins", "pjrt_arena"):
        (folder / package).symlink_to(ROOT / "python" / package)
    return folder


def doctor(packages: Path, check: bool = True, **settings):
    """What `pjrt-arena doctor` prints when these packages are all that is installed."""
    run = run_python(
        "-S", "-m", "pjrt_arena", "doctor", check=check, PYTHONPATH=str(packages), PJRT_ARENA_ENGINE=None, **settings
    )
    return run.stderr if run.returncode else " ".join(run.stdout.split())


def put(packages: Path, engine: engines.Engine) -> Path:
    """The place of an engine's library in these packages, with its metadata beside it."""
    path = packages / engine.library
    path.parent.mkdir(parents=True)
    (packages / f"{engine.distribution.replace('-', '_')}-{engine.version}.dist-info").mkdir()
    return path


def test_the_newest_that_serves_is_taken_and_all_are_listed(packages):
    newest, _, oldest = engines.ENGINES
    library(put(packages, newest), ILLEGAL % INSTRUCTION)
    there = put(packages, oldest)
    # No symbolic link: the loader would show the folder that it leads to, and the engines in that.
    try:
        os.link(engines.under_test(), there)
    except OSError:
        shutil.copy(engines.under_test(), there)
    said = doctor(packages)
    assert f"(wheel {newest.distribution} {newest.version} in Python's search path), it cannot be used: " in said, said
    assert "illegal instruction" in said and "cannot serve" in said, said
    assert f"wheel {oldest.distribution} {oldest.version}" in said and "taken: the newest API that serves" in said, said
    code = "import jax; assert float((kept := jax.numpy.arange(4.0)).sum()) == 6; assert jax.devices('arena')"
    run_python("-S", "-c", code, PYTHONPATH=str(packages), PJRT_ARENA_ENGINE=None)


def test_where_none_serves_each_says_why(packages):
    newest, _, oldest = engines.ENGINES
    library(put(packages, newest), ILLEGAL % INSTRUCTION)
    put(packages, oldest).write_text("cut off")
    said = doctor(packages, check=False)
    assert "none of the 2 engines that are installed can serve" in said, said
    assert "illegal instruction" in said and "cannot be loaded" in said and oldest.distribution in said, said


def test_without_an_engine_the_way_to_one_is_told(packages):
    said = doctor(packages, check=False)
    assert "no cpu engine is installed" in said and "pip install" in said, said


def test_the_trial_leaves_no_trace():
    """No process, no thread and no engine's file is left in a process that looked for an engine and made no client."""
    code = """
        import os
        from pjrt_arena import _library
        library = _library.load()
        library.set_search_path()
        assert library.gpu_engine() is None
        assert os.listdir("/proc/self/task") == [str(os.getpid())]
        assert not any("pjrt_c_api_cpu_plugin" in line or "xla_cpu" in line for line in open("/proc/self/maps"))
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("no child")
    """
    assert run_jax(code).stdout == "no child\n"


def test_the_trial_works_where_children_are_reaped_by_another():
    code = """
        import signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        import jax
        assert float((kept := jax.numpy.arange(4.0)).sum()) == 6 and jax.devices() == jax.devices("arena")
    """
    assert run_jax(code).stderr == ""


def test_the_list_of_engines_is_the_librarys():
    """What tests call the newest is what the library takes first, by its table of wheels."""
    assert sysconfig.get_path("purelib") in str(engines.DEFAULT.path())
    code = "from pjrt_arena import _library; l = _library.load(); l.set_search_path(); "
    code += "print(l._text('pjrt_arena_engine'))"
    told = json.loads(run_python("-c", code).stdout)
    assert told == {"kind": "cpu", "path": str(engines.under_test())}, (told, sys.path)
