"""Environments for JAX's tests: a version of JAX, what its tests import, pjrt-arena from this checkout, an engine."""

from __future__ import annotations

import shutil
from pathlib import Path

from engines import Engine
from venvs import Unavailable, install, install_engine, pip, site_packages, version_of, virtual_environment

ROOT = Path(__file__).resolve().parents[2]
#: What JAX's tests import, or skip themselves for the lack of.
OF_THE_TESTS = ("pytest", "absl-py", "hypothesis", "cloudpickle", "flatbuffers", "portpicker", "matplotlib")
#: What installs this checkout.
OF_THE_BUILD = ("hatchling>=1.27",)
#: What JAX's tests import from `jax`; JAX's wheel lacks some of these: the first, and Pallas' own.
HELPERS = "*test_util.py"
FIRST = "jax/_src/hypothesis_test_util.py"


def make(folder: Path, jax: str, python: str, engine: Engine, tests: Path | None) -> str:
    """Makes the environment in `folder`, or brings the one that is there up to date; what can be run in it now.

    Raises:
      Unavailable: this machine has not that Python, the index not those wheels, or the tree not its file.
    """
    if tests and not (tests.parent / FIRST).is_file():
        raise Unavailable(f"{tests.parent} has no {FIRST}: --tests must be the folder `tests` of JAX's whole tree")
    executable = virtual_environment(folder.resolve(), python)
    install(executable, f"jax=={jax}", *OF_THE_TESTS, *OF_THE_BUILD)
    packages = site_packages(executable)
    if tests:
        copy_helpers(tests.parent, packages)
    # As it lies here: Python files are taken from the checkout, and the library from cargo's target folder.
    if reason := pip(executable, "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", ROOT):
        raise Unavailable(f"this checkout cannot be installed: {reason}")
    return in_words(executable, jax, install_engine(executable, engine), engine, tests)


def copy_helpers(tree: Path, packages: Path) -> list[str]:
    """Copies the helpers that the installed JAX has not of its own; their paths in the tree."""
    records = [path.read_text().splitlines() for path in packages.glob("jax-*.dist-info/RECORD")]
    own = {line.split(",")[0] for lines in records for line in lines}
    found = (path.relative_to(tree) for path in tree.glob(f"jax/**/{HELPERS}"))
    lacking = sorted(path.as_posix() for path in found if path.as_posix() not in own)
    # Not where the installed JAX has no such folder: nothing of it could import them.
    copied = [path for path in lacking if (packages / path).parent.is_dir()]
    for path in copied:
        shutil.copy(tree / path, packages / path)
    return copied


def in_words(executable: Path, jax: str, library: Path, engine: Engine, tests: Path | None) -> str:
    """What there is, and what to run."""
    run = f"{executable} {Path(__file__).parent} run --tests {tests or 'TREE/tests'}"
    libraries = [ROOT / "target" / profile / "libpjrt_arena.so" for profile in ("release", "debug")]
    if any(path.is_file() for path in libraries):
        built = ""
    else:
        built = "\npjrt-arena is not built yet: cargo build --release, or PJRT_ARENA_LIBRARY_PATH=FILE"
    without = "" if tests else f"\nA few test files cannot be read without {FIRST} of JAX's tree: name it, --tests"
    return f"""\
JAX {jax} on Python {version_of(executable)}, {engine.requirement} (PJRT API {engine.api}){built}{without}

{run} --backend cpu --out cpu.json
PJRT_ARENA_ENGINE={library} \\
  {run} --backend arena --out arena.json
{run} --backend {library} --out bare.json
{executable} {Path(__file__).parent} compare cpu.json arena.json"""
