"""The wheel, the table of settings, and that the files which state a version agree."""

import email
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import cargo_build
import engines
import pjrt_arena
import pytest
import third_party
import wheels
from harness import ROOT, run_python
from jax_plugins import arena
from pjrt_arena import _library, memory

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel around a library that was built already, so that no test waits for cargo."""
    folder = tmp_path_factory.mktemp("wheel")
    library = folder / "built" / "libpjrt_arena.so"
    library.parent.mkdir()
    library.write_bytes(b"\x7fELF stands for the library")
    replay = library.with_name("arena-replay")
    replay.write_text("#!/bin/sh\n")
    replay.chmod(0o755)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--wheel-dir", folder, ROOT], env={**os.environ, "PJRT_ARENA_PREBUILT": str(library)}, check=True
    )
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_is_for_every_python_and_this_platform(wheel):
    assert re.fullmatch(rf"pjrt_arena-{re.escape(VERSION)}-py3-none-linux_\w+\.whl", wheel.name)


def test_wheel_holds_the_library_beside_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert archive.read("pjrt_arena/libpjrt_arena.so").startswith(b"\x7fELF")
        # pip makes a file executable whose mode in the wheel says so: `pjrt-arena replay` runs it.
        assert archive.getinfo("pjrt_arena/arena-replay").external_attr >> 16 & 0o111
    # No jax_plugins/__init__.py: the namespace belongs to all plugins.
    assert files == {
        "jax_plugins/arena/__init__.py",
        "jax_plugins/arena/__main__.py",
        "jax_plugins/arena/_callbacks.py",
        "jax_plugins/arena/_cost.py",
        "jax_plugins/arena/_cuda.py",
        "jax_plugins/arena/_ffi.py",
        "jax_plugins/arena/_hooks.py",
        "jax_plugins/arena/_manual.py",
        "jax_plugins/arena/_partitioner_calls.py",
        "jax_plugins/arena/_partitioners.py",
        "jax_plugins/arena/_shardings.py",
        "jax_plugins/arena/memory.py",
        "jax_plugins/arena/py.typed",
        "pjrt_arena/__init__.py",
        "pjrt_arena/__main__.py",
        "pjrt_arena/_actions.py",
        "pjrt_arena/_configure.py",
        "pjrt_arena/_convert.py",
        "pjrt_arena/_devices.py",
        "pjrt_arena/_donations.py",
        "pjrt_arena/_footprint.py",
        "pjrt_arena/_former.py",
        "pjrt_arena/_groups.py",
        "pjrt_arena/_handlers.py",
        "pjrt_arena/_library.py",
        "pjrt_arena/_oom.py",
        "pjrt_arena/_reports.py",
        "pjrt_arena/_snapshots.py",
        "pjrt_arena/_stacks.py",
        "pjrt_arena/_stats.py",
        "pjrt_arena/_tables.py",
        "pjrt_arena/arena-replay",
        "pjrt_arena/cli.py",
        "pjrt_arena/libpjrt_arena.so",
        "pjrt_arena/memory.py",
        "pjrt_arena/py.typed",
        "pjrt_arena/pytest_plugin.py",
        "pjrt_arena/testing.py",
    }


def test_wheel_says_what_it_needs_and_where_jax_finds_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
        entry_points = archive.read(f"{folder}/entry_points.txt").decode()
    classifiers = metadata.get_all("Classifier")
    assert "Development Status :: 3 - Alpha" in classifiers and "Operating System :: POSIX :: Linux" in classifiers
    pythons = {name.rpartition(" ")[2] for name in classifiers if re.search(r":: 3\.\d+$", name)}
    assert pythons == {"3.11", "3.12", "3.13", "3.14"}
    assert metadata["License-Expression"] == "Apache-2.0" and "allocator" in metadata["Keywords"]
    needs = metadata.get_all("Requires-Dist")
    assert any(need.replace(" ", "").startswith("jax<0.13,>=0.6.2") for need in needs), needs
    # Each engine is the one that tests run on, and each machine gets one.
    for name, machine in [
        (engines.ENGINES[0], "x86_64"),
        (engines.ENGINES[1], "x86_64"),
        (engines.ENGINES[2], "aarch64"),
    ]:
        assert any(need.startswith(f"{name.requirement};") and machine in need for need in needs), needs
    assert set(metadata.get_all("Provides-Extra")) == {"cuda12", "cuda13", "newest", "rocm"}
    assert entry_points.split() == [
        *["[console_scripts]", "pjrt-arena", "=", "pjrt_arena.cli:main"],
        *["[jax_plugins]", "arena", "=", "jax_plugins.arena"],
        *["[pytest11]", "pjrt_arena.pytest_plugin", "=", "pjrt_arena.pytest_plugin"],
    ]


def test_wheel_has_the_licences_of_all_that_is_in_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        texts = {
            name.partition("/licenses/")[2]: archive.read(name).decode()
            for name in archive.namelist()
            if ".dist-info/licenses/" in name
        }
    assert "Apache License" in texts["LICENSE"]
    assert "Christos Lamprakos" in texts["plugin_tests/data/traces/LICENSE-MIT"]
    crates = set(re.findall(r"^([\w-]+) +\d+\.\d+\.\d+ ", texts[third_party.TEXTS], re.MULTILINE))
    for manifest in ("Cargo.toml", "plugin_tests/arena-replay/Cargo.toml"):
        described = tomllib.loads((ROOT / manifest).read_text())
        assert described["dependencies"].keys() - {"pjrt-arena"} <= crates
        # These are not linked in: tests and the build use them.
        others = described["dev-dependencies"].keys() | described.get("build-dependencies", {}).keys()
        assert not crates & (others - described["dependencies"].keys() - {"fastrand"})
    # Each has a text, of which the heading names it.
    headings = " ".join(re.findall(r"^={78}\n(.*)\n={78}$", texts[third_party.TEXTS], re.MULTILINE))
    assert crates == {name for name in crates if f"{name} " in headings}
    assert "Permission is hereby granted" in texts[third_party.TEXTS]


def test_a_crate_without_a_licence_text_is_refused(tmp_path):
    crate = third_party.Crate("bare", "1.0.0", "MIT", "", tmp_path)
    with pytest.raises(cargo_build.Unavailable, match=r"the crate bare 1\.0\.0 has no file with its licence"):
        crate.texts()
    (tmp_path / "LICENSE-MIT").write_text("text\n")
    assert crate.texts() == ["text"]


def test_what_no_index_should_get_is_told_of_a_wheel():
    files = dict.fromkeys(("arena-replay", "libpjrt_arena.so", third_party.TEXTS, third_party.STANDARD_LIBRARY), b"")
    assert wheels.faults_of_contents(files) == []
    (crates, _, root) = cargo_build.own_paths(ROOT)
    files["libpjrt_arena.so"] = f"..{root}/src/lib.rs..{crates}/log-0.4/src/lib.rs".encode()
    told = wheels.faults_of_contents(files)
    assert any(root in fault for fault in told) and any(crates in fault for fault in told), told
    del files[third_party.TEXTS]
    assert wheels.faults_of_contents(files)[0] == f"it lacks {third_party.TEXTS}"


def test_a_target_that_cannot_be_built_for_is_a_sentence(tmp_path, monkeypatch):
    """A rustc without the target's standard library and without its source."""
    rustc = tmp_path / "rustc"
    rustc.write_text(f"#!/bin/sh\necho {tmp_path}/none\n")
    rustc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(cargo_build.Unavailable, match="`rustup target add aarch64-unknown-linux-gnu` adds it"):
        cargo_build.compiled(ROOT, "aarch64-unknown-linux-gnu", wheels.GLIBC)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(cargo_build.Unavailable, match="rustc cannot be run"):
        cargo_build.host(ROOT)


def test_sdist_has_every_file_that_git_knows(tmp_path):
    """So the tests pass from it: those of the pages need the pages."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git's")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    known = subprocess.run(listed, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    assert names - {"PKG-INFO"} == {name for name in known if (ROOT / name).is_file()}


def test_a_bad_prebuilt_path_is_a_sentence(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT]
    run = subprocess.run(
        command, env={**os.environ, "PJRT_ARENA_PREBUILT": "/no/such.so"}, capture_output=True, text=True, check=False
    )
    assert run.returncode != 0 and "PJRT_ARENA_PREBUILT=/no/such.so is not a file" in run.stdout + run.stderr


def test_versions_agree():
    assert arena.__version__ == pjrt_arena.__version__ == importlib.metadata.version("pjrt-arena") == VERSION
    first, end = (".".join(map(str, version)) for version in arena.JAX_TRIED)
    assert f"jax>={first},<{end}" in PROJECT["dependencies"]


def test_unknown_attribute():
    for module in (arena, pjrt_arena):
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            module.nonsense  # noqa: B018


def test_a_missing_library_is_a_sentence():
    run = run_python("-m", "pjrt_arena", "doctor", check=False, PJRT_ARENA_LIBRARY_PATH="/no/such.so")
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr == (
        "pjrt-arena cannot run: PJRT_ARENA_LIBRARY_PATH=/no/such.so is not a file;"
        " it must be the path of libpjrt_arena.so.\n"
    )


@pytest.mark.arena
def test_library_states_the_same_version():
    assert _library.load().version() == VERSION
    assert run_python("-m", "pjrt_arena", "--version").stdout.strip() == VERSION


@pytest.mark.arena
def test_table_of_settings():
    run = run_python("-m", "pjrt_arena", "doctor", PJRT_ARENA_STRATEGY="growing", XLA_CLIENT_MEM_FRACTION=".25")
    assert run.stderr == ""
    for word in (
        "PJRT_ARENA_STRATEGY",
        "growing",
        "PJRT_ARENA_LIMIT",
        "XLA_CLIENT_MEM_FRACTION",
        engines.under_test().name,
    ):
        assert word in run.stdout, run.stdout
    assert "NVIDIA driver" in run.stdout, "with or without a GPU, the table says what there is"
    assert max(map(len, run.stdout.splitlines())) <= 100


@pytest.mark.arena
def test_table_shows_a_bad_setting_in_its_row():
    run = run_python("-m", "pjrt_arena", "doctor", check=False, PJRT_ARENA_STRATEGY="fastest")
    assert "PJRT_ARENA_STRATEGY=fastest is not valid; allowed: preallocate, growing" in " ".join(run.stdout.split())
    # The other rows are there all the same.
    assert "PJRT_ARENA_LIMIT" in run.stdout
    assert "Traceback" not in run.stderr


@pytest.mark.arena
def test_table_where_the_terminal_has_fewer_letters(tmp_path):
    folder = tmp_path / "jörg"
    folder.mkdir()
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    run = run_python("-m", "pjrt_arena", "doctor", PJRT_ARENA_OOM_REPORT=str(folder / "x.html"), **ascii_only)
    assert "PJRT_ARENA_OOM_REPORT" in run.stdout and "\\xf6" in run.stdout and "Traceback" not in run.stderr


@pytest.mark.arena
def test_table_without_an_engine_says_so():
    run = run_python("-m", "pjrt_arena", "doctor", check=False, PJRT_ARENA_ENGINE="/no/such/engine.so")
    assert run.returncode == 1
    assert "PJRT_ARENA_STRATEGY" in run.stdout
    (line,) = run.stderr.splitlines()
    assert "/no/such/engine.so" in line


@pytest.mark.arena
def test_counters():
    counters = memory.counters()
    assert counters.programs.rewritten >= 0 and isinstance(counters.programs.not_rewritten, dict)
    assert len(counters.devices) == 4 and counters.devices == memory.stats()
    assert Path(_library.load().path).name == "libpjrt_arena.so"
