"""Starts JAX on the arena, with four devices, before any test is collected.

`pytest python_smoke --bare` runs the tests that are not marked `arena` on the bare engine instead: what fails there
too is the engine's or the test's, not ours.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import engines
import pytest
import tiers

# Where the package is installed, pytest finds it by itself.
pytest_plugins = ["pjrt_arena.pytest_plugin"]

DEVICES = 4
#: What the caller may steer: the library and the engine that are tested.
KEPT = ("PJRT_ARENA_LIBRARY_PATH", engines.VARIABLE)
#: What other processes have counted, where `-n` distributes the tests.
COUNTED = pytest.StashKey[list[dict[str, Any]]]()


def pytest_addoption(parser):
    parser.addoption("--bare", action="store_true", help="run on the bare engine, without the tests marked arena")


def pytest_configure(config):
    # Before harness is imported, because that imports JAX, which reads its variables then.
    for name in list(os.environ):
        if name.startswith(("PJRT_", "XLA_", "JAX_", "TF_CPP_")) and name not in KEPT:
            del os.environ[name]
    if _only_distributes(config):
        return
    if engines.VARIABLE in os.environ:
        os.environ["PJRT_ARENA_ENGINE"] = os.environ[engines.VARIABLE]
    os.environ["JAX_PLATFORMS"] = "arena,cpu"
    if config.getoption("--bare"):
        _name_the_bare_engine(Path(tempfile.mkdtemp()))
    else:
        os.environ["PJRT_ARENA_DEVICES"] = str(DEVICES)
    import harness
    import jax

    devices = jax.devices("arena")
    if len(devices) != DEVICES or jax.devices() != devices:
        raise pytest.UsageError(f"JAX did not start on {DEVICES} devices of the arena: {devices}")
    if not config.getoption("--bare"):
        if not harness.library_is_mapped():
            raise pytest.UsageError("JAX started, but libpjrt_arena.so is not loaded")
        if devices[0].memory_stats() is None:
            raise pytest.UsageError("JAX started, but the device has no memory statistics: this is not pjrt-arena")


def _only_distributes(config) -> bool:
    """Whether this is the process of pytest-xdist that hands tests to others, with `-n`: it needs no JAX."""
    return bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")


def _name_the_bare_engine(folder: Path) -> None:
    description = folder / "engine.json"
    description.write_text(
        json.dumps({"library_path": str(engines.under_test()), "create_options": {"cpu_device_count": DEVICES}})
    )
    os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"] = f"arena:{description}"


# Before pytest chooses by markers.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    names = config.stash[tiers.COLLECTED] = [item.nodeid.removeprefix("python_smoke/") for item in items]
    for item, name in zip(items, names, strict=True):
        if tiers.is_slow(name):
            item.add_marker("slow")
    if config.getoption("--bare"):
        dropped = [item for item in items if item.get_closest_marker("arena")]
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if not item.get_closest_marker("arena")]


def _counters() -> dict[str, dict[str, Any]]:
    from pjrt_arena import memory

    counters = memory.counters()
    return {"programs": dataclasses.asdict(counters.programs), "results": dataclasses.asdict(counters.results)}


def pytest_sessionfinish(session):
    """With `-n` each process tells the one that distributes the tests what it has counted."""
    if hasattr(session.config, "workerinput") and not session.config.getoption("--bare"):
        session.config.workeroutput["counters"] = json.dumps(_counters())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """With `-n`: what a process has counted."""
    if counters := getattr(node, "workeroutput", {}).get("counters"):
        node.config.stash.setdefault(COUNTED, []).append(json.loads(counters))


def _sum(values: list[Any]) -> Any:
    """The sum of numbers, or key by key of dicts of them."""
    if not any(isinstance(value, dict) for value in values):
        return sum(value or 0 for value in values)
    values = [value or {} for value in values]
    return {key: _sum([value.get(key) for value in values]) for key in {key: None for value in values for key in value}}


def pytest_terminal_summary(terminalreporter, config):
    """Where the results of all programs of these processes went: placed in the arena, or why not."""
    if config.getoption("--bare"):
        return
    counted = config.stash.get(COUNTED, []) if _only_distributes(config) else [_counters()]
    if not counted:
        return
    counters = _sum(counted)
    programs, results = counters["programs"], counters["results"]
    terminalreporter.section("programs and results on the arena")
    terminalreporter.line(
        f"programs: {programs['rewritten']} rewritten, not rewritten: {programs['not_rewritten'] or 0}; "
        f"{programs['executions']} executions"
    )
    terminalreporter.line(
        f"results: {results['placed']} placed, {results['donated']} in donated arguments, "
        f"missed: {results['missed'] or 0}, left out by the rules: {results['skipped'] or 0}"
    )


@pytest.fixture(params=[True, False], ids=["Shardy", "GSPMD"])
def shardy(request):
    """Each of XLA's two partitioners in turn; whether it is Shardy."""
    import jax

    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", request.param)
    # Programs compiled under the other one would be found again.
    jax.clear_caches()
    yield request.param
    jax.config.update("jax_use_shardy_partitioner", before)
    jax.clear_caches()
