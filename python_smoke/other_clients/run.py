#!/usr/bin/env python3
"""Tries pjrt-arena with PJRT clients that are not JAX: `make clients`.

* `pypjrt` (PyPI): its conformance checker runs on the bare engine and on the library, and what differs must be in
  BETTER below, line for line; a line there that does not differ on an engine that it is for is a failure too.
* `pjrt` (crates.io): `plugin_tests/clients/pjrt` is built in a target folder of its own and run on the library.

Both need tools that nothing else here does (pypjrt, protoc): they go to a virtual environment in --envs.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import engines

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
#: pypjrt has the checker, grpcio-tools has protoc.
TOOLS = ("pypjrt==0.1.1", "grpcio-tools==1.85.1")

#: Engines by the minor number of their PJRT API.
ANY, UP_TO_81, AFTER_81 = range(1000), range(82), range(82, 1000)
#: Where the library's answers differ from the engine's: check -> (which engines, the engine's, ours, why).
BETTER = {
    "device.memory_stats": (ANY, "unsupported", "pass", "the engine counts no memory; the arena does"),
    "device.clear_memory_stats": (AFTER_81, "unsupported", "pass", "as above"),
    "layouts.executable_parameters": (
        UP_TO_81,
        "crash",
        "unsupported",
        "the checker reads a function behind the end of the engine's extension; behind ours it reads NULL",
    ),
}


def environment(folder):
    """The Python of an environment with TOOLS in it."""
    python = folder / "bin" / "python"
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--only-binary", ":all:"]
    subprocess.run([*pip, *TOOLS], check=True)
    return python


def conformance(python, folder, engine, library):
    """Runs pypjrt's checker on both and prints what differs; True when that is what BETTER says."""
    reports = []
    # As many devices as the engine makes when nobody says how many.
    settings = os.environ | {"PJRT_ARENA_ENGINE": str(engine), "PJRT_ARENA_DEVICES": "4"}
    for name, plugin in (("engine", engine), ("arena", library)):
        report = folder / f"pypjrt-{name}.json"
        subprocess.run([python, HERE / "conform.py", plugin, report], env=settings, check=True)
        told = json.loads(report.read_text())
        checks, minor = told["checks"], told["api_version"][1]
        if name == "engine":
            better = {check: row[1:] for check, row in BETTER.items() if minor in row[0]}
        reports.append({check["id"]: check for check in checks})
        count: dict[str, int] = {}
        for check in checks:
            count[check["result"]] = count.get(check["result"], 0) + 1
        print(f"pypjrt on {plugin.name}: " + ", ".join(f"{n} {result}" for result, n in sorted(count.items())))
    theirs, ours = reports
    good = True
    for name in sorted(theirs | ours):
        their, our = (side.get(name, {"result": "missing", "detail": ""}) for side in (theirs, ours))
        results = (their["result"], our["result"])
        expected = better.get(name, (results[0], results[0], ""))
        if results != expected[:2]:
            good = False
            print(
                f"  {name}: engine {results[0]} ({their['detail']}), arena {results[1]} ({our['detail']}); NOT EXPECTED"
            )
        elif name in better:
            print(f"  {name}: engine {results[0]}, arena {results[1]}: {expected[2]}")
    if missing := better.keys() - (theirs.keys() & ours.keys()):
        good = False
        print(f"  not among the checks: {', '.join(sorted(missing))}")
    return good


def crate(python, folder, engine, library):
    """Builds the program that uses the crate, and runs it on the library; True when it ended well."""
    protoc = folder / "protoc"
    protoc.write_text(f'#!/bin/sh\nexec "{python}" -m grpc_tools.protoc "$@"\n')
    protoc.chmod(0o755)
    # PyPI's libclang comes without the C compiler's own headers.
    headers = subprocess.run(["cc", "-print-file-name=include"], capture_output=True, text=True, check=True).stdout
    settings = os.environ | {
        "PROTOC": str(protoc),
        "BINDGEN_EXTRA_CLANG_ARGS": f"-isystem {headers.strip()}",
        "CARGO_TARGET_DIR": str(folder / "target"),
        "PJRT_ARENA_ENGINE": str(engine),
    }
    manifest = ROOT / "plugin_tests" / "clients" / "pjrt" / "Cargo.toml"
    cargo = [os.environ.get("CARGO", "cargo"), "run", "--quiet", "--locked", "--manifest-path", manifest, "--", library]
    return subprocess.run(cargo, env=settings, check=False).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, default=ROOT / "target" / "debug" / "libpjrt_arena.so")
    parser.add_argument("--engine", type=Path, default=engines.under_test(), help="default: the newest installed")
    parser.add_argument("--envs", type=Path, default=ROOT / "target" / "clients", help="folder for what is fetched")
    arguments = parser.parse_args()
    engine, library = arguments.engine.resolve(strict=True), arguments.library.resolve(strict=True)
    folder = arguments.envs.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    python = environment(folder / "venv")
    good = [conformance(python, folder, engine, library), crate(python, folder, engine, library)]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
