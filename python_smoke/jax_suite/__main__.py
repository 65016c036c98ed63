"""Runs JAX's own test suite on pjrt-arena, on JAX's CPU backend or on a bare PJRT plugin, and compares the runs.

JAX's tests are not in its wheel, and none of them is copied here. Get the tree of the version that is to be tested, and
make an environment for it:

    git clone --depth 1 --branch jax-v0.11.2 https://github.com/jax-ml/jax
    python python_smoke/jax_suite env target/suite --jax 0.11.2 --python 3.12 --tests jax/tests

It has that JAX, what the tests import, this checkout and an engine: --engine 0.81 for another of `engines.py`. What can
be run with it is printed:

    target/suite/bin/python python_smoke/jax_suite run --tests jax/tests --backend cpu   --out cpu.json
    target/suite/bin/python python_smoke/jax_suite run --tests jax/tests --backend arena --out arena.json
    target/suite/bin/python python_smoke/jax_suite compare cpu.json arena.json

Any other environment does too: the tests run on the JAX that is installed there, whatever the tree's own `jax` is.

The arena is used as anybody uses it: the installed package and JAX_PLATFORMS=arena,cpu. Its settings are variables, so
a strategy is a variable too, and so is JAX's 64-bit mode:

    PJRT_ARENA_STRATEGY=growing           python python_smoke/jax_suite run ...
    PJRT_ARENA_COMPACT=always             python python_smoke/jax_suite run ...
    JAX_ENABLE_X64=1                      python python_smoke/jax_suite run ...

Without --all the files of `sample.txt` are run: 47 files, of the large ones a part, chosen by the crc32 of each test's
name, so that every run has the same tests. JAX_NUM_GENERATED_CASES is 1 unless set. A crash or a stall ends one test:
it is marked `crash` or `timeout`, and the file goes on after it.

state_test, Pallas' tests and a few others need `jax/_src/hypothesis_test_util.py` and the like, which the wheel lacks:
`env` copies them from the tree into the installed package. Without them these files count as errors of collection on
every backend. The tree's pytest settings hold, and make errors of warnings: where the tree is older than the installed
JAX, PYTEST_ADDOPTS="-W ignore::DeprecationWarning" takes that back.

OUT.json has all outcomes, the versions and the variables; OUT.json.d has what pytest printed. All subcommands end with
status 1 when something is not as it should be: `env` when something is not to be had, `run` when a test failed, crashed
or stalled, or a file did not end well, `compare` when something passed in the first run and not in the second.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from comparing import compare
from engines import DEFAULT, ENGINES, by_name, of_library
from environments import make
from running import Backend, File, counts, in_words, read_list, run_file
from venvs import Unavailable

SAMPLE = Path(__file__).resolve().parent / "sample.txt"
BAD = ("failed", "crash", "timeout", "notrun")


def main() -> int:
    parser = argparse.ArgumentParser(prog="jax_suite", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    env = commands.add_parser("env", help="make an environment for a version of JAX")
    env.add_argument("folder", type=Path, help="where it goes, or is brought up to date")
    env.add_argument("--jax", required=True, metavar="VERSION", help="the version of JAX and jaxlib")
    env.add_argument("--python", default=sys.executable, help="a version, as 3.12, or a path; default: this Python")
    env.add_argument("--engine", default=DEFAULT.distribution, help=f"default: {DEFAULT.requirement}")
    env.add_argument("--tests", type=Path, help="the folder `tests` of JAX's repository")
    run = commands.add_parser("run", help="run test files and write a JSON file")
    run.add_argument("--tests", type=Path, required=True, help="the folder `tests` of JAX's repository")
    run.add_argument("--backend", default="arena", help="arena (default), cpu, cuda, or a bare PJRT plugin's path")
    run.add_argument("--out", type=Path, required=True, help="where the results go; --files adds to what is there")
    which = run.add_mutually_exclusive_group()
    which.add_argument("--sample", dest="list", type=Path, default=SAMPLE, help="a list of files; default: sample.txt")
    which.add_argument("--all", action="store_true", help="every *_test.py of the folder and of its pallas/")
    run.add_argument("--files", nargs="+", metavar="FILE", help="only these: array_test pallas/ops_test.py ...")
    run.add_argument("--except", dest="skip", nargs="+", default=[], metavar="FILE", help="all but these")
    run.add_argument("--keep", type=int, help="tests kept of each file, instead of the list's number; 0: all")
    run.add_argument("--limit", type=float, help="seconds for each file, instead of the list's (--all: 600)")
    run.add_argument("--stall", type=float, default=100, help="seconds without a result that end a test (100)")
    run.add_argument("--jobs", type=int, default=1, help="files that run at the same time (1)")
    against = commands.add_parser("compare", help="compare two runs; status 1 on any regression")
    against.add_argument("base", type=Path)
    against.add_argument("new", type=Path)
    against.add_argument("--every", action="store_true", help="name every test, not three for each cause")
    arguments = parser.parse_args()
    if arguments.command == "compare":
        base, new = (json.loads(path.read_text()) for path in (arguments.base, arguments.new))
        return int(compare(base, new, arguments.every))
    tests = arguments.tests.resolve() if arguments.tests else None
    if tests and (tests.name != "tests" or not tests.is_dir()):
        # The choice of tests goes by names that begin with it.
        parser.error(f"--tests {arguments.tests}: not a folder called tests")
    if arguments.command == "env":
        try:
            engine = by_name(arguments.engine)
            print(make(arguments.folder, arguments.jax, arguments.python, engine, tests))
        except (Unavailable, ValueError) as reason:
            sys.exit(f"jax_suite: {reason}")
        return 0
    assert tests, "the parser wants it"
    files = chosen(arguments, tests)
    if not files:
        parser.error("no file to run")
    named = {file.name for file in files} if arguments.files else set()
    if missing := sorted(name for name in named if not (tests / name).is_file()):
        parser.error(f"--files: not in {tests}: {', '.join(missing)}")
    backend = Backend(arguments.backend)
    if backend.plugin() and not backend.plugin().is_file():
        parser.error(f"--backend {arguments.backend}: none of {', '.join(Backend.NAMED)}, and no file")
    return run_all(files, tests, backend, arguments)


def chosen(arguments: argparse.Namespace, tests: Path) -> list[File]:
    """The files to run, with the limits that hold for each."""
    named = [name.removesuffix(".py") + ".py" for name in arguments.files or []]
    left_out = {name.removesuffix(".py") + ".py" for name in arguments.skip}
    listed = read_list(arguments.list)
    if arguments.all:
        listed = [File(name, 0, 600) for name in all_files(tests)]
    if named:
        known = {file.name: file for file in listed}
        listed = [known.get(name) or File(name, 0, 600) for name in named]
    kept = [file for file in listed if file.name not in left_out]

    def instead(value, other):
        return other if value is None else value

    return [
        File(file.name, instead(arguments.keep, file.keep), instead(arguments.limit, file.limit), file.variables)
        for file in kept
    ]


def all_files(tests: Path) -> list[str]:
    """The test files that one process can run by itself: those of pallas/ are."""
    found = (*tests.glob("*_test.py"), *tests.glob("pallas/**/*_test.py"))
    return sorted(path.relative_to(tests).as_posix() for path in found)


def run_all(files: list[File], tests: Path, backend: Backend, arguments: argparse.Namespace) -> int:
    work = arguments.out.with_name(arguments.out.name + ".d").resolve()
    work.mkdir(parents=True, exist_ok=True)
    results = {"about": about(backend), "files": {}}
    if arguments.files and arguments.out.exists():
        results["files"] = json.loads(arguments.out.read_text())["files"]
    total: Counter[str] = Counter()
    wall = 0.0
    engines: set[str] = set()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running = {pool.submit(run_file, file, tests, backend, arguments.stall, work): file for file in files}
        for done in as_completed(running):
            name, result = running[done].name, done.result()
            results["files"][name] = result
            if engine := (result["arena"] or {}).get("engine"):
                engines.add(engine)
            results["about"]["engines"] = sorted(map(named_engine, engines))
            # After each file: a run of hours that is ended early is still a result.
            write(arguments.out, results)
            counted = counts(result["tests"])
            total, wall = total + counted, wall + result["wall"]
            note = f"  [{result['note'].splitlines()[0]}]" if result["note"] else ""
            print(f"{name:44} {result['wall']:7.1f} s  {in_words(counted)}{note}", flush=True)
    for engine in results["about"]["engines"]:
        print(f"engine of pjrt-arena: {engine}")
    print(f"{'TOTAL':44} {wall:7.1f} s  {in_words(total)}")
    for name in ("compactions", "moved_blocks"):
        print(f"{name}: {sum((results['files'][file.name]['arena'] or {}).get(name, 0) for file in files)}")
    notes = any(results["files"][file.name]["note"] for file in files)
    return int(notes or any(total[outcome] for outcome in BAD))


def write(path: Path, results: dict) -> None:
    half = path.with_name(path.name + ".part")
    half.write_text(json.dumps(results, indent=0))
    half.replace(path)


def named_engine(path: str) -> str:
    """The engine at this path, by its wheel if that is known."""
    engine = of_library(path)
    return f"{engine.distribution} {path}" if engine else path


def about(backend: Backend) -> dict:
    """What a run can be told from another by. `engines`, which files tell, are those that the arena took."""
    versions: dict[str, str | None] = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in ("jax", "jaxlib", "numpy", "scipy", "pjrt-arena", *(engine.distribution for engine in ENGINES)):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    prefixes = ("JAX_", "PJRT_", "PYTEST_ADDOPTS", "XLA_")
    variables = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    return {"backend": backend.name, "versions": versions, "variables": variables | backend.variables(), "engines": []}


if __name__ == "__main__":
    sys.exit(main())
