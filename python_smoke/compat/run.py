#!/usr/bin/env python3
"""Tries pjrt-arena with every JAX version and Python of a table, each in an environment of its own.

    make wheel && python python_smoke/compat/run.py              all of TABLE
    python python_smoke/compat/run.py --only 0.7.2:3.11,0.12     some of it
    python python_smoke/compat/run.py --engine 0.115,0.81        on these engines; --engine all
    python python_smoke/compat/run.py --library target/debug/libpjrt_arena.so

For each row: a virtual environment with that jax (pip installs the wheel with its dependencies, so the range in
pyproject.toml is tried too), `pip check`, then `checks.py` with four devices. Prints a Markdown table and what failed;
--json keeps all of it. An environment is kept and found again: 0.5 GB each. Engines that are named lie beside the
environments, in folders of their own, whatever JAX they ask for.

A row is "not run", and never "passed", where this machine has not that Python or pip finds no wheels. The status is 1
when a check fails, or when nothing could be run.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from engines import ENGINES, Engine, by_name
from venvs import QUIET, Unavailable, install, install_engine, pip, virtual_environment

ROOT = Path(__file__).resolve().parents[2]
CHECKS = Path(__file__).with_name("checks.py")

#: JAX version -> the Pythons that its wheels are for, of those that pjrt-arena supports.
TABLE = {
    "0.6.2": ("3.11", "3.12", "3.13"),
    "0.7.0": ("3.11", "3.12", "3.13"),
    "0.7.2": ("3.11", "3.12", "3.13"),
    "0.8.0": ("3.11", "3.12", "3.13"),
    "0.8.1": ("3.11", "3.12", "3.13"),
    "0.9.2": ("3.11", "3.12", "3.13"),
    "0.10.2": ("3.11", "3.12", "3.13"),
    "0.11.0": ("3.12", "3.13"),
    "0.11.2": ("3.12", "3.13", "3.14"),
    "0.12.0.1": ("3.12", "3.13", "3.14"),
}
#: Beside what the wheel asks for: jax.export needs it.
EXTRAS = ("flatbuffers",)
#: A check that takes longer hangs.
TIMEOUT = 180


def environment(folder, jax, version, wheel):
    """The Python of the environment for one row, made or found, with this wheel in it.

    Raises:
      Unavailable: no Python, or no wheels.
      RuntimeError: the wheel does not go together with that JAX.
    """
    python = virtual_environment(folder / f"jax-{jax}-py{version}", version)
    install(python, f"jax=={jax}", *EXTRAS)
    if reason := pip(python, "install", *QUIET, f"jax=={jax}", wheel):
        raise RuntimeError(f"the wheel cannot be installed beside it: {reason}")
    if reason := pip(python, "install", *QUIET, "--force-reinstall", "--no-deps", wheel) or pip(python, "check"):
        raise RuntimeError(reason)
    return python


def run_checks(python, library=None):
    """Runs `checks.py` to its end, past crashes and hangs: name -> reason why it failed, empty for passed.

    `library` is the engine's; without it pjrt-arena takes what it finds.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PJRT_", "XLA_", "JAX_", "TF_CPP_", "PYTHON"))}
    settings = {"JAX_PLATFORMS": "arena,cpu", "PJRT_ARENA_DEVICES": "4", "TF_CPP_MIN_LOG_LEVEL": "3"}
    settings |= {"PJRT_ARENA_ENGINE": str(library)} if library else {}
    names = subprocess.run([python, CHECKS, "--list"], capture_output=True, text=True, check=True).stdout.split()
    results: dict[str, str] = {}
    while left := [name for name in names if name not in results]:
        command = [python, CHECKS, *left]
        try:
            run = subprocess.run(
                command,
                env=kept | settings,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                cwd=python.parent,
                check=False,
            )
            out, ended = run.stdout, f"the process ended with status {run.returncode}: {run.stderr.strip()[-300:]}"
        except subprocess.TimeoutExpired as expired:
            out, ended = (expired.stdout or b"").decode(), f"no end within {TIMEOUT} s"
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        results |= {line["name"]: "" if line["ok"] else line["detail"] for line in lines if "name" in line}
        begun = [line["begin"] for line in lines if "begin" in line]
        if (
            lost := [name for name in begun if name not in results]
            or [name for name in left if name not in results][:1]
        ):
            results[lost[-1]] = ended
    return results


def cells(folder, jax, version, wheel, engines):
    """The lines of one row of the table, one for each engine, as JSON has them."""
    try:
        python, reason, state = environment(folder, jax, version, wheel), "", ""
    except Unavailable as error:
        reason, state = str(error), "not run"
    except (RuntimeError, subprocess.CalledProcessError) as error:
        reason, state = str(error), "failed"
    for engine in engines:
        said = {"jax": jax, "python": version, "engine": engine.requirement if engine else "default"}
        yield said | ({"state": state, "reason": reason} if state else tried(python, folder, engine))


def tried(python, folder, engine):
    """How the checks end on an engine, or on the one that is found."""
    try:
        library = engine and install_engine(python, engine, folder / "engines" / engine.requirement)
    except Unavailable as reason:
        return {"state": "not run", "reason": str(reason)}
    results = run_checks(python, library)
    failed = {name: why for name, why in results.items() if why}
    return {"state": "failed" if failed else "passed", "checks": len(results), "failures": failed}


def markdown(rows):
    """The table for docs/compatibility.md."""
    lines = ["| jax | Python | engine | checks | failed |", "|---|---|---|---|---|"]
    for row in rows:
        count = f"{row['checks'] - len(row['failures'])} of {row['checks']}" if "checks" in row else row["state"]
        failed = ", ".join(row.get("failures", ())) or row.get("reason", "")
        lines.append(f"| {row['jax']} | {row['python']} | {row['engine']} | {count} | {failed} |")
    return "\n".join(lines)


def the_engines(names: str) -> list[Engine | None]:
    """What --engine names; None is the one that pjrt-arena finds."""
    if names == "all":
        return list(ENGINES)
    try:
        return [by_name(name) for name in names.split(",") if name] or [None]
    except ValueError as reason:
        raise argparse.ArgumentTypeError(str(reason)) from None


def the_wheel(arguments):
    """The wheel that is tried: the one named, one around the library named, or the newest for this machine in dist/."""
    if arguments.wheel:
        return Path(arguments.wheel).resolve(strict=True)
    if arguments.library:
        made = arguments.envs / "wheel"
        shutil.rmtree(made, ignore_errors=True)
        library = str(Path(arguments.library).resolve(strict=True))
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run(
            [*command, "--wheel-dir", made, ROOT], env=os.environ | {"PJRT_ARENA_PREBUILT": library}, check=True
        )
        return next(made.glob("*.whl"))
    wheels = sorted((ROOT / "dist").glob(f"*_{platform.machine()}.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        sys.exit("there is no wheel for this machine in dist/: run `make wheel`, or name a library with --library")
    return wheels[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows, as JAX version or JAX:Python, separated by commas")
    parser.add_argument(
        "--engine",
        type=the_engines,
        default=[None],
        metavar="NAMES",
        help="engines, as distribution or PJRT API, separated by commas, or all; otherwise the one that is found",
    )
    parser.add_argument("--envs", type=Path, default=ROOT / "target" / "compat", help="folder of the environments")
    parser.add_argument("--library", help="built library to wrap in a wheel; needs hatchling in this Python")
    parser.add_argument("--wheel", help="the wheel to try; otherwise the newest for this machine in dist/")
    parser.add_argument("--json", type=Path, help="file for all results")
    arguments = parser.parse_args()
    wanted = [name for name in arguments.only.split(",") if name]
    rows = [(jax, python) for jax, pythons in TABLE.items() for python in pythons]
    unknown = [name for name in wanted if not any(matches(name, *row) for row in rows)]
    if unknown:
        parser.error(f"--only names no row: {', '.join(unknown)}; there are {', '.join(TABLE)}")
    arguments.envs = arguments.envs.resolve()
    arguments.envs.mkdir(parents=True, exist_ok=True)
    wheel = the_wheel(arguments)
    results = []
    for jax, python in rows:
        if wanted and not any(matches(name, jax, python) for name in wanted):
            continue
        for result in cells(arguments.envs, jax, python, wheel, arguments.engine):
            results.append(result)
            print(f"{in_words(result)}: {result['state']}", file=sys.stderr, flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"wheel": wheel.name, "rows": results}, indent=1) + "\n")
    print(markdown(results))
    for result in results:
        for name, why in result.get("failures", {}).items():
            print(f"\n{in_words(result)}, {name}: {why}")
    states = {result["state"] for result in results}
    sys.exit("failed" in states or "passed" not in states)


def in_words(result):
    """Which cell of the table it is."""
    return f"jax {result['jax']}, Python {result['python']}, engine {result['engine']}"


def matches(name, jax, python):
    """Whether `name` of --only means this row: `0.7.2`, `0.7.2:3.11`, or the beginning of a version such as `0.12`."""
    version, _, wanted = name.partition(":")
    return (jax == version or re.match(re.escape(version) + r"\.", jax) is not None) and wanted in ("", python)


if __name__ == "__main__":
    main()
