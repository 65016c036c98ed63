"""pytest plugin of one child process: which tests there are, which began, how each ended, one JSON line each.

The lines are all that is left of a process that crashes, so each is written out at once. A test whose end is in
the log already is not run again: that is how a file goes on after a crash.

Set by `running.py`: JAX_SUITE_LOG, the log; JAX_SUITE_KEEP, how many tests of the file are kept, 0 for all;
JAX_SUITE_PLUGIN, the path of a bare PJRT plugin to run on, if it is one.
"""

import contextlib
import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any

LOG = os.environ.get("JAX_SUITE_LOG", "")
KEEP = int(os.environ.get("JAX_SUITE_KEEP", "0"))
PLUGIN = os.environ.get("JAX_SUITE_PLUGIN")

#: Outcome, message and seconds of the tests that are running, over setup, call and teardown.
_running: dict[str, dict[str, Any]] = {}


def _write(**line):
    with Path(LOG).open("a") as log:
        log.write(json.dumps(line) + "\n")


def read(path):
    """The lines of a log. A crash may have cut one off."""
    with Path(path).open() as log:
        for line in log:
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def chosen(names, keep):
    """The `keep` names of the smallest crc32, all for 0: the same in every run and on every machine."""
    if not keep or len(names) <= keep:
        return set(names)
    return set(sorted(names, key=lambda name: (zlib.crc32(name.encode()), name))[:keep])


def pytest_configure(config):
    if PLUGIN:
        _register(PLUGIN)


def _register(path):
    """A bare plugin under the name "bare". JAX's own variable for that (PJRT_NAMES_AND_LIBRARY_PATHS) has fixed
    options, and JAX's tests ask for a number of devices when they are imported, which is later."""
    import jax
    from jax._src import xla_bridge

    def options():
        wanted = jax.config.jax_num_cpu_devices
        return {"cpu_device_count": wanted if wanted > 0 else 1}

    # A test counts warnings, and JAX warns of any plugin by another name than its own.
    xla_bridge._nonexperimental_plugins.add("bare")
    xla_bridge.register_plugin("bare", priority=500, library_path=path, options=options)


def pytest_collection_modifyitems(items):
    keep = chosen([item.nodeid for item in items], KEEP)
    items[:] = [item for item in items if item.nodeid in keep]
    _write(collected=[item.nodeid for item in items])
    ended = {line["id"] for line in read(LOG) if "id" in line}
    items[:] = [item for item in items if item.nodeid not in ended]


def pytest_collectreport(report):
    if report.failed:
        _write(collect_error=str(report.longrepr)[-1500:])


def pytest_runtest_logstart(nodeid):
    _write(start=nodeid)


def pytest_runtest_logreport(report):
    test = _running.setdefault(report.nodeid, {"o": "passed", "msg": "", "t": 0.0})
    test["t"] += report.duration
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        test |= {"o": "failed", "msg": (crash.message if crash else str(report.longrepr))[:1500]}
    elif report.skipped and test["o"] == "passed":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        test |= {"o": "xfailed" if hasattr(report, "wasxfail") else "skipped", "msg": str(reason)[:300]}
    if report.when == "teardown":
        _write(id=report.nodeid, **_running.pop(report.nodeid) | {"t": round(test["t"], 3)})


def pytest_sessionfinish(exitstatus):
    _write(finish=int(exitstatus), backend=_backend(), arena=_arena())


def _backend():
    """What the default backend says of itself; None where no test of this file started one."""
    xla_bridge = sys.modules.get("jax._src.xla_bridge")
    if xla_bridge is None or not xla_bridge.backends_are_initialized():
        return None
    return xla_bridge.get_backend().platform_version


def _arena():
    """What the arena did, and with which engine: proof that what was asked for took place."""
    try:
        library = sys.modules["pjrt_arena._library"].load()
        counted = library.counters()
        engine = library.ask("pjrt_arena_engine").get("path")
    except Exception:  # Another backend: the package is not imported, or has loaded no library.
        return None
    names = ("compactions", "moved_blocks", "engine_bytes")
    devices = {name: sum(device.get(name, 0) for device in counted["devices"]) for name in names}
    return {"programs": counted["programs"], "results": counted["results"], "engine": engine} | devices
