"""XLA's CPU plugins that pjrt-arena is tried on: one wheel of PyPI each, the one that is preferred first.

Three XLAs, three PJRT APIs and three versions of XLA's FFI: what runs on all of them does not hang on one.

    python python_smoke/engines.py [NAME]    prints the library's path, and installs the wheel where it is missing

Tests run on the default, or on the one whose library PJRT_ARENA_TEST_ENGINE names: `make test TEST_ENGINE=0.81`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path

#: Names the library of the engine that tests run on.
VARIABLE = "PJRT_ARENA_TEST_ENGINE"


@dataclass(frozen=True)
class Engine:
    """A wheel with an engine in it."""

    distribution: str
    version: str
    #: The library, in the folder that the wheel is installed in.
    library: str
    #: The version of the PJRT C API that it speaks.
    api: str

    @property
    def requirement(self) -> str:
        """What pip installs."""
        return f"{self.distribution}=={self.version}"

    def path(self, folder: Path | None = None) -> Path:
        """Where the library lies when the wheel is installed in `folder`; without one, in this Python."""
        return Path(folder or sysconfig.get_path("purelib")) / self.library


ENGINES = (
    Engine("lammps-jax-pjrt-cpu", "0.11.2", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", "0.115"),
    Engine("fastatomstruct-xla-cpu", "2026.6.23", "fastatomstruct_xla_cpu/libpjrt_cpu.so", "0.106"),
    Engine("xla-cpu-pjrt", "0.0.1", "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so", "0.81"),
)
DEFAULT = ENGINES[0]


def by_name(name: str) -> Engine:
    """The engine that `name` means: its distribution, DISTRIBUTION==VERSION for another version, or its API.

    Raises:
      ValueError: there is none; names those that there are.
    """
    wanted, _, version = name.partition("==")
    for engine in ENGINES:
        if wanted == engine.distribution:
            return replace(engine, version=version or engine.version)
        if name == engine.api:
            return engine
    known = ", ".join(f"{engine.distribution} ({engine.api})" for engine in ENGINES)
    raise ValueError(f"no engine is called {name!r}; there are {known}")


def of_library(path: str | Path) -> Engine | None:
    """The engine whose library this path ends with."""
    return next((engine for engine in ENGINES if Path(path).as_posix().endswith(f"/{engine.library}")), None)


def under_test() -> Path:
    """The library of the engine that tests run on.

    Raises:
      SystemExit: no engine is installed.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named)
    for engine in ENGINES:
        if engine.path().is_file():
            return engine.path()
    known = ", ".join(engine.requirement for engine in ENGINES)
    raise SystemExit(f"no engine is installed: pip install --no-deps one of {known}")


def described() -> str:
    """The engine that is measured, by its wheel, or by its path where that tells of none."""
    library = under_test()
    engine = of_library(library)
    return f"{engine.distribution} {engine.version} (PJRT {engine.api})" if engine else str(library)


def installed(engine: Engine) -> Path:
    """The library of `engine` in this Python, where pip puts it if it is missing, without what its wheel asks for."""
    if not engine.path().is_file():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", engine.requirement]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return engine.path()


if __name__ == "__main__":
    try:
        print(installed(by_name(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT))
    except ValueError as error:
        sys.exit(f"engines.py: {error}")
