"""What the tests share: running code in a fresh JAX process, comparing with JAX's own CPU backend, waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import engines
import jax
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
#: Variables of the caller that would change what a test sees.
FOREIGN = ("PJRT_", "XLA_", "JAX_", "TF_CPP_")


def clean_environment(**settings: str | None) -> dict[str, str]:
    """The caller's environment without variables that steer JAX, XLA or us, and with `settings`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    if "PJRT_ARENA_LIBRARY_PATH" in os.environ:
        kept["PJRT_ARENA_LIBRARY_PATH"] = os.environ["PJRT_ARENA_LIBRARY_PATH"]
    # Another engine than the default is named to every process of the tests.
    if engines.VARIABLE in os.environ:
        kept |= dict.fromkeys((engines.VARIABLE, "PJRT_ARENA_ENGINE"), os.environ[engines.VARIABLE])
    kept["JAX_PLATFORMS"] = "arena,cpu"
    # The package of this source tree, whichever is installed.
    kept["PYTHONPATH"] = os.pathsep.join(map(str, (Path(__file__).parent, ROOT / "python")))
    for name, value in settings.items():
        if value is None:
            kept.pop(name, None)
        else:
            kept[name] = value
    return kept


def run_python(*arguments: str, check: bool = True, **settings: str | None) -> subprocess.CompletedProcess[str]:
    """Runs this Python with `arguments` in a clean environment; a status other than 0 fails unless `check` is off."""
    run = subprocess.run(
        [sys.executable, *arguments],
        env=clean_environment(**settings),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if check and run.returncode != 0:
        raise AssertionError(f"status {run.returncode}\n--- stdout\n{run.stdout}\n--- stderr\n{run.stderr}")
    return run


def run_jax(code: str, check: bool = True, **settings: str | None) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a fresh process where JAX uses the arena."""
    return run_python("-c", textwrap.dedent(code), check=check, **settings)


def beside_the_bare_engine(folder: Path, devices: int = 4) -> dict[str, str]:
    """Settings for a process that has the engine twice: behind the arena, and by itself as the backend "bare"."""
    engine = {"library_path": str(engines.under_test()), "create_options": {"cpu_device_count": devices}}
    description = folder / "engine.json"
    description.write_text(json.dumps(engine))
    return {
        "JAX_PLATFORMS": "arena,bare,cpu",
        "PJRT_NAMES_AND_LIBRARY_PATHS": f"bare:{description}",
        "PJRT_ARENA_DEVICES": str(devices),
    }


def start_error(start=jax.devices) -> str:
    """The text of the error that starting JAX ends with; fails when it starts."""
    try:
        devices = start()
    except RuntimeError as error:
        return str(error)
    raise AssertionError(f"JAX started: {devices}")


def library_is_mapped(name: str = "libpjrt_arena.so") -> bool:
    """Whether this process has a library of that file name loaded."""
    return any(line.endswith("/" + name) for line in Path("/proc/self/maps").read_text().splitlines())


def arena_device(index: int = 0):
    """A device of the arena."""
    return jax.devices("arena")[index]


def stats(device=None) -> dict[str, int]:
    """Memory statistics of a device of the arena, the first unless said otherwise."""
    return (device or arena_device()).memory_stats()


def bytes_in_use(device=None) -> int:
    """Bytes of live arrays on a device of the arena."""
    return stats(device)["bytes_in_use"]


def host_array(start=0.0, offset=0, count=64 * 1024):
    """`start, start + 1, ...`, so many bytes after a multiple of 64: at 0 the CPU uses it in place, at 16 it is copied.

    What NumPy makes of itself may lie either way.
    """
    memory = np.empty(4 * count + 128, np.uint8)
    first = -memory.ctypes.data % 64 + offset
    array = memory[first : first + 4 * count].view(np.float32)
    array[:] = np.arange(count, dtype=np.float32) + np.float32(start)
    return array


def eventually(read, expected, timeout: float = 100.0):
    """Asserts that `read()` becomes `expected`: frees wait for the engine, which finishes on threads of its own.

    The timeout is for a busy machine: only a test that fails uses it up.
    """
    end = time.monotonic() + timeout
    while (seen := read()) != expected and time.monotonic() < end:
        time.sleep(0.002)
    assert seen == expected


def on(device, function, *arguments):
    """Results of `function` run on `device`, as numpy arrays."""
    with jax.default_device(device):
        results = function(*jax.device_put(arguments, device))
        for leaf in jax.tree.leaves(results):
            assert leaf.devices() == {device}
        return jax.tree.map(np.asarray, results)


def assert_same(function, *arguments, exact: bool = False, rtol: float = 2e-5, atol: float = 1e-6):
    """Runs `function` on the arena and on JAX's own CPU backend and compares every result; returns the arena's."""
    ours = on(arena_device(), function, *arguments)
    theirs = on(jax.devices("cpu")[0], function, *arguments)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    assert jax.tree.leaves(ours), "nothing to compare"
    for our, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (our.dtype, our.shape) == (their.dtype, their.shape)
        if exact:
            assert our.tobytes() == their.tobytes()
        else:
            np.testing.assert_allclose(our, their, rtol=rtol, atol=atol)
    return ours
