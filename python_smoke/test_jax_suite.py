"""The script that runs JAX's tests, on a folder of tests that do everything a test can do to its runner."""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from engines import ENGINES

SUITE = Path(__file__).parent / "jax_suite"

FILES = {
    "good_test.py": """
        import pytest
        def test_passes(): pass
        def test_is_skipped(): pytest.skip("not here")
        @pytest.mark.xfail
        def test_fails_as_expected(): assert 0
    """,
    "pallas/kernel_test.py": """
        import pytest
        def test_the_tree_is_not_on_the_path():
            with pytest.raises(ImportError): import only_in_the_tree
    """,
    "bad_test.py": """
        def test_fails(): assert 1 == 2, "the sum is 37"
        def test_passes(): pass
    """,
    "crashing_test.py": """
        import os
        def test_before(): pass
        def test_aborts(): os.abort()
        def test_between(): pass
        def test_leaves(): os._exit(3)
        def test_after(): pass
    """,
    "hanging_test.py": """
        import subprocess, time
        def test_before(): pass
        def test_hangs(): subprocess.run(["sleep", "1000"])
        def test_after(): pass
    """,
    "slow_test.py": """
        import time, pytest
        @pytest.mark.parametrize("i", range(1000))
        def test_is_slow(i): time.sleep(0.1)
    """,
    "unreadable_test.py": "import there_is_no_such_module",
    "broken_at_exit_test.py": """
        import atexit, os
        atexit.register(os._exit, 5 + 4)
        def test_passes(): pass
    """,
}


def suite(*arguments, **variables):
    command = [sys.executable, str(SUITE), *map(str, arguments)]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tests = tmp_path_factory.mktemp("jax") / "tests"
    (tests / "pallas").mkdir(parents=True)
    (tests.parent / "only_in_the_tree.py").touch()
    for name, text in FILES.items():
        lines = text.strip("\n").splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        (tests / name).write_text("\n".join(line[indent:] for line in lines) + "\n")
    return tests


@pytest.fixture(scope="module")
def ran(folder):
    out, sample = folder.parent / "out.json", folder.parent / "sample.txt"
    # A machine that is busy with other things needs seconds to start pytest, and some files start it four times.
    sample.write_text("".join(f"{name} 0 {8 if name == 'slow_test.py' else 100}\n" for name in FILES))
    options = ("--tests", folder, "--backend", "cpu", "--out", out, "--sample", sample, "--jobs", 3)
    run = suite("run", *options, "--stall", 8)
    return run, json.loads(out.read_text()), out


def outcomes(results, name):
    return {test.rpartition("::")[2]: each["o"] for test, each in results["files"][name]["tests"].items()}


def test_every_end_of_a_test_is_told_apart(ran):
    run, results, _ = ran
    assert run.returncode == 1, run.stderr
    assert outcomes(results, "good_test.py") == {
        "test_passes": "passed",
        "test_is_skipped": "skipped",
        "test_fails_as_expected": "xfailed",
    }
    assert outcomes(results, "bad_test.py") == {"test_fails": "failed", "test_passes": "passed"}
    assert "the sum is 37" in results["files"]["bad_test.py"]["tests"]["tests/bad_test.py::test_fails"]["msg"]


def test_all_has_the_files_of_pallas_and_not_the_tree_itself(folder):
    out, wanted = folder.parent / "all.json", {"good_test.py", "pallas/kernel_test.py"}
    options = ("--tests", folder, "--backend", "cpu", "--out", out, "--all", "--except", *(set(FILES) - wanted))
    run = suite("run", *options)
    assert run.returncode == 0, run.stdout + (out.with_name("all.json.d") / "pallas_kernel_test.py.log").read_text()
    results = json.loads(out.read_text())
    assert set(results["files"]) == wanted
    kernel = results["files"]["pallas/kernel_test.py"]["tests"]
    assert set(kernel) == {"tests/pallas/kernel_test.py::test_the_tree_is_not_on_the_path"}


def test_what_was_run_is_told(ran):
    said = ran[1]["about"]
    assert {"jax", "pjrt-arena", *(engine.distribution for engine in ENGINES)} <= set(said["versions"])
    assert said["backend"] == "cpu" and said["engines"] == []


@pytest.mark.arena
def test_the_engine_that_the_arena_took_is_told(folder):
    """A second pytest on the arena, in which one test starts JAX."""
    (folder / "starts_test.py").write_text("def test_starts():\n    import jax\n    jax.devices()\n")
    out = folder.parent / "arena.json"
    try:
        run = suite("run", "--tests", folder, "--backend", "arena", "--out", out, "--files", "starts_test")
    finally:
        (folder / "starts_test.py").unlink()
    assert run.returncode == 0, run.stdout + run.stderr
    (engine,) = json.loads(out.read_text())["about"]["engines"]
    name, path = engine.split(maxsplit=1)
    assert name in {known.distribution for known in ENGINES} and Path(path).is_file(), engine
    assert f"engine of pjrt-arena: {engine}" in run.stdout


def test_a_file_goes_on_after_crashes_and_stalls(ran):
    results = ran[1]
    assert outcomes(results, "crashing_test.py") == {
        "test_before": "passed",
        "test_aborts": "crash",
        "test_between": "passed",
        "test_leaves": "crash",
        "test_after": "passed",
    }
    crashes = results["files"]["crashing_test.py"]["tests"]
    assert "SIGABRT" in crashes["tests/crashing_test.py::test_aborts"]["msg"]
    assert "status 3" in crashes["tests/crashing_test.py::test_leaves"]["msg"]
    expected = {"test_before": "passed", "test_hangs": "timeout", "test_after": "passed"}
    assert outcomes(results, "hanging_test.py") == expected


def test_what_is_no_tests_fault_is_a_note(ran):
    run, results, _ = ran
    notes = {name: result["note"] for name, result in results["files"].items() if result["note"]}
    assert set(notes) == {"slow_test.py", "unreadable_test.py", "broken_at_exit_test.py"}
    assert "there_is_no_such_module" in notes["unreadable_test.py"]
    assert "status 9" in notes["broken_at_exit_test.py"]
    slow = outcomes(results, "slow_test.py")
    assert notes["slow_test.py"] == "not done after 8 s"
    assert len(slow) == 1000 and {"passed", "notrun"} == set(slow.values())
    assert "TOTAL" in run.stdout


def test_compare_groups_regressions_by_cause(ran, tmp_path):
    results, out = ran[1:]
    same = suite("compare", out, out)
    assert same.returncode == 0 and "regressions, mended" in same.stdout, same.stdout + same.stderr
    for number, test in enumerate(results["files"]["crashing_test.py"]["tests"].values()):
        test |= {"o": "failed", "msg": f"jax.errors.JaxRuntimeError: {number} bytes at 0x7f{number}"}
    results["files"]["bad_test.py"]["tests"] |= {"tests/bad_test.py::test_fails": {"o": "passed", "msg": "", "t": 0}}
    del results["files"]["good_test.py"]
    worse = tmp_path / "worse.json"
    worse.write_text(json.dumps(results))
    found = suite("compare", out, worse)
    assert found.returncode == 1
    assert "    3  failed: JaxRuntimeError: N bytes at N\n" in found.stdout
    assert "not in the new run: good_test.py" in found.stdout
    total = next(line for line in found.stdout.splitlines() if line.startswith("TOTAL"))
    assert total.split()[-2:] == ["3", "1"]
    del results["files"]["hanging_test.py"]["tests"]["tests/hanging_test.py::test_before"]
    worse.write_text(json.dumps(results))
    assert "    1  missing:" in suite("compare", out, worse).stdout


def test_the_choice_is_the_same_in_every_run(folder):
    out = folder.parent / "few.json"
    options = ("--tests", folder, "--backend", "cpu", "--out", out, "--files", "slow_test", "--keep", 3)
    run = suite("run", *options)
    names = [f"tests/slow_test.py::test_is_slow[{i}]" for i in range(1000)]
    chosen = json.loads(out.read_text())["files"]["slow_test.py"]["tests"]
    assert (run.returncode, set(chosen)) == (0, set(sorted(names, key=lambda name: zlib.crc32(name.encode()))[:3]))


def test_a_wrong_backend_or_folder_is_refused(folder, tmp_path):
    for option, value, word in [("--tests", tmp_path, "called tests"), ("--backend", "/no/such.so", "/no/such.so")]:
        options = {"--tests": folder, "--backend": "cpu", "--out": tmp_path / "out.json", option: value}
        run = suite("run", *(word for pair in options.items() for word in pair))
        assert run.returncode != 0 and word in run.stderr
    run = suite("run", "--tests", folder, "--out", tmp_path / "out.json", "--files", "good_test", "pallas/no_test")
    assert run.returncode != 0 and "pallas/no_test.py" in run.stderr and "good_test.py" not in run.stderr
    assert not (tmp_path / "out.json").exists()


def test_an_environment_that_cannot_be_made_is_refused(folder, tmp_path):
    (tmp_path / "file").touch()
    for place, options, words in [
        ("new", ("--python", "3.99"), ("no Python 3.99", "python3.99 on PATH", "3.99.*/bin/python")),
        ("new", ("--python", "/no/such/python"), ("/no/such/python",)),
        ("new", ("--python", "/bin/false"), ("/bin/false makes no virtual environment",)),
        ("new", ("--engine", "0.1"), ("'0.1'", "lammps-jax-pjrt-cpu (0.115)", "xla-cpu-pjrt (0.81)")),
        ("new", ("--tests", folder), ("hypothesis_test_util.py", str(folder.parent))),
        ("", (), (f"{tmp_path} is there, and is no virtual environment",)),
    ]:
        run = suite("env", tmp_path / place, "--jax", "0.11.2", *options)
        assert run.returncode == 1, run.stdout + run.stderr
        assert run.stderr.startswith("jax_suite: ") and all(word in run.stderr for word in words), run.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


def test_helpers_of_the_tests_that_the_wheel_lacks_are_copied(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SUITE)
    from environments import copy_helpers

    tree, packages = tmp_path / "tree", tmp_path / "site-packages"
    for folder, name, text in [
        (tree, "jax/_src/hypothesis_test_util.py", "the tree's"),
        (tree, "jax/_src/test_util.py", "the tree's"),
        (tree, "jax/_src/pallas/pallas_test_util.py", "the tree's"),
        (tree, "jax/_src/api_util.py", "the tree's"),
        (tree, "jax/gone/gone_test_util.py", "the tree's"),
        (packages, "jax/_src/test_util.py", "its own"),
        (packages, "jax/_src/hypothesis_test_util.py", "copied from another tree"),
        (packages, "jax/_src/pallas/__init__.py", ""),
        (packages, "jax-0.11.2.dist-info/RECORD", "jax/_src/test_util.py,sha256=x,7\njax/_src/pallas/__init__.py,,\n"),
    ]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    expected = ["jax/_src/hypothesis_test_util.py", "jax/_src/pallas/pallas_test_util.py"]
    assert copy_helpers(tree, packages) == expected
    assert [(packages / name).read_text() for name in expected] == ["the tree's"] * 2
    assert (packages / "jax/_src/test_util.py").read_text() == "its own"
    assert not (packages / "jax/_src/api_util.py").exists()


def test_an_environment_without_wheels_is_refused(tmp_path):
    """An index that has nothing; the environment is there then, and found again."""
    nothing = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}
    for _ in range(2):
        run = suite("env", tmp_path / "new", "--jax", "0.11.2", **nothing)
        assert run.returncode == 1 and "jax==0.11.2" in run.stderr, run.stderr
        assert run.stderr.startswith(f"jax_suite: pip of Python {sys.version.split()[0]}: "), run.stderr
    run = suite("env", tmp_path / "new", "--jax", "0.11.2", "--python", "3.99")
    assert run.returncode == 1 and "environment of Python 3." in run.stderr and "not 3.99" in run.stderr, run.stderr
