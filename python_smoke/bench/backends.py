"""What the programs are measured on, and how a process that has imported JAX but started nothing gets there."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import engines

#: Variables of the caller that would change what is measured. `PJRT_ARENA_*` stay, and the report names them.
FOREIGN = ("PJRT_NAMES", "JAX_", "XLA_")


@dataclass(frozen=True)
class Backend:
    """One column of the table."""

    name: str
    title: str
    #: JAX's name of the platform.
    platform: str
    variables: dict[str, str] = field(default_factory=dict)
    #: Whether JAX's CPU backend may run programs in threads of its own, as by default. The others know no such option.
    asynchronous: bool = True
    #: The program writes into so many donated destinations in turn; 0: its results go where the backend puts them.
    destinations: int = 0

    @property
    def floor(self) -> bool:
        """Whether this is a floor: not for programs that have none."""
        return self.destinations > 0


def _arena(name: str, title: str, **variables: str) -> Backend:
    return Backend(name, title, "arena", {f"PJRT_ARENA_{key}": value for key, value in variables.items()})


REFERENCE = "builtin"
#: The smallest: one destination, so one result in memory. The program holds its previous result while it computes the
#: next, so what it can reach is the floor of two; and with our engine's XLA, the bare engine's floor of two.
FLOOR, FLOOR_OF_TWO, FLOOR_OF_ENGINE = "floor", "floor_2", "bare_2"

BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(REFERENCE, "JAX's CPU", "cpu"),
        Backend("synchronous", "JAX's CPU, synchronous", "cpu", asynchronous=False),
        Backend("bare", "bare engine", "bare"),
        _arena("arena", "pjrt-arena", STRATEGY="preallocate"),
        _arena("growing", "growing", STRATEGY="growing"),
        _arena("platform", "platform", STRATEGY="platform"),
        _arena("tpu", "tpu", STRATEGY="tpu"),
        Backend(FLOOR, "floor", "cpu", destinations=1),
        Backend(FLOOR_OF_TWO, "floor of two", "cpu", destinations=2),
        Backend(FLOOR_OF_ENGINE, "bare engine's floor of two", "bare", destinations=2),
    )
}

#: The engine by itself, without pjrt-arena.
OF_THE_ENGINE = frozenset(name for name, backend in BACKENDS.items() if backend.platform == "bare")


def another_library(name: str, path: Path) -> Backend:
    """pjrt-arena as it was built into the file `path`, to compare two builds in one run."""
    return _arena(name, name, STRATEGY="preallocate", LIBRARY_PATH=os.fspath(path.resolve()))


def clean_environment() -> None:
    """Removes what would steer JAX; to be called before JAX is imported."""
    for name in list(os.environ):
        if name.startswith(FOREIGN):
            del os.environ[name]
    # The bare engine logs a harmless line for each program that a newer JAX compiles.
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    # OpenBLAS would start threads when NumPy is imported, and a process with threads must not fork.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"


def engine_path() -> Path:
    """The bare engine's library: the one that PJRT_ARENA_TEST_ENGINE names, or the newest that is installed."""
    return engines.under_test()


def enter(backend: Backend, devices: int, folder: Path) -> None:
    """Makes this process, which has started no backend of JAX yet, use `backend` with `devices` devices.

    `folder` is for files that the process reads.
    """
    import jax

    os.environ.update(backend.variables)
    if backend.platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", devices)
        jax.config.update("jax_cpu_enable_async_dispatch", backend.asynchronous)
    else:
        # "cpu" second, as users have it.
        jax.config.update("jax_platforms", f"{backend.platform},cpu")
    if backend.platform == "arena":
        # The same engine as the bare one's, whatever else is installed.
        os.environ |= {"PJRT_ARENA_DEVICES": str(devices), "PJRT_ARENA_ENGINE": str(engine_path())}
    if backend.platform == "bare":
        description = folder / f"bare-{devices}.json"
        options = {"cpu_device_count": devices}
        description.write_text(json.dumps({"library_path": str(engine_path()), "create_options": options}))
        os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"] = f"bare:{description}"
    if len(jax.devices()) != devices:
        raise RuntimeError(f"{backend.name} has {len(jax.devices())} devices, not {devices}")
