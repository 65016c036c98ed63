"""Virtual environments with one version of JAX and one engine, for the scripts that try several."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from engines import Engine

#: No package is built: a machine need not have what that takes.
QUIET = ("--quiet", "--only-binary", ":all:")


class Unavailable(Exception):
    """What this machine or the package index has not."""


def find_python(wanted: str) -> str:
    """The path of a Python: of that version, on PATH or of pyenv, or the one at that path.

    Raises:
      Unavailable: there is none; says where it was looked for.
    """
    if os.sep in wanted:
        if not os.access(wanted, os.X_OK) or Path(wanted).is_dir():
            raise Unavailable(f"no Python can be run at {wanted}")
        return wanted
    name = f"python{wanted}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = map(str, sorted(pyenv.glob(f"{wanted}.*/bin/python"), reverse=True))
    for python in filter(None, [shutil.which(name), *found]):
        if f"{version_of(python)}.".startswith(f"{wanted}."):  # pyenv's shims are there without a Python behind them
            return python
    raise Unavailable(f"this machine has no Python {wanted}: neither {name} on PATH nor {pyenv}/{wanted}.*/bin/python")


def pip(python: str | Path, *arguments: str | Path) -> str:
    """Runs pip; gives the reason if it fails, which is its last line that names an error."""
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (run.stdout + run.stderr).strip().splitlines()
    errors = [line for line in lines if "ERROR" in line] or lines or [f"status {run.returncode}"]
    return "" if run.returncode == 0 else errors[-1]


def virtual_environment(place: Path, wanted: str) -> Path:
    """The Python of the virtual environment at `place`, which is made where there is none; `wanted` as for
    `find_python`.

    Raises:
      Unavailable: no such Python, it makes no environments, or something else is at `place`.
    """
    python = place / "bin" / "python"
    if place.exists() and not (place / "pyvenv.cfg").is_file() and (not place.is_dir() or any(place.iterdir())):
        raise Unavailable(f"{place} is there, and is no virtual environment")
    if not python.is_file():
        base = find_python(wanted)
        shutil.rmtree(place, ignore_errors=True)
        made = subprocess.run([base, "-m", "venv", place], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            shutil.rmtree(place, ignore_errors=True)
            said = (made.stdout + made.stderr).strip().splitlines() or [f"status {made.returncode}"]
            raise Unavailable(f"{base} makes no virtual environment: {said[-1]}")
    elif os.sep not in wanted and not f"{version_of(python)}.".startswith(f"{wanted}."):
        raise Unavailable(f"{place} is an environment of Python {version_of(python)}, not {wanted}")
    return python


def version_of(python: str | Path) -> str:
    """Such as 3.12.1."""
    run = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    return run.stdout.removeprefix("Python ").strip()


def site_packages(python: Path) -> Path:
    """Where that Python's packages are installed."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip())


def install(python: Path, *requirements: str) -> None:
    """Installs what the index has as wheels.

    Raises:
      Unavailable: it lacks one for this Python.
    """
    if reason := pip(python, "install", *QUIET, *requirements):
        raise Unavailable(f"pip of Python {version_of(python)}: {reason}")


def install_engine(python: Path, engine: Engine, folder: Path | None = None) -> Path:
    """The path of the engine's library, whose wheel is installed in the environment, or unpacked into `folder`.

    A folder that is on no Python's path leaves the environment as it is: there, pjrt-arena finds by itself what it
    found before. What the wheel asks for is not installed: it names versions of JAX, and others are tried here.

    Raises:
      Unavailable: the index has no such wheel, or the wheel has no such library.
    """
    target: list[str | Path] = []
    if folder:
        target = ["--upgrade", "--target", folder]
    else:
        folder = site_packages(python)
    if target and engine.path(folder).is_file():
        return engine.path(folder)
    if reason := pip(python, "install", *QUIET, "--no-deps", *target, engine.requirement):
        raise Unavailable(f"pip: {reason}")
    if not engine.path(folder).is_file():
        raise Unavailable(f"the wheel {engine.requirement} has no {engine.library}")
    return engine.path(folder)
