"""JAX's door to pjrt-arena, the plugin that manages device memory itself.

JAX finds this module by its place in the `jax_plugins` namespace (and by the entry point of the
same name), imports it in every program and calls `initialize()`:

    arena not in jax_platforms ........ nothing is loaded, nothing is registered; settings in the environment are a
                                        warning
    arena in jax_platforms, usable .... the library is registered as backend "arena"
    arena in jax_platforms, unusable .. a backend is registered whose start fails with one sentence;
                                        the next start looks again, so a notebook can mend it
    PJRT_NAMES_AND_LIBRARY_PATHS=arena:... JAX loads that library by itself

Where the library is used, it is also given the handlers for custom calls that JAX knows: for the CPU by `_ffi.py`, for
GPUs by `_cuda.py`, which is imported only where the engine is one for GPUs.

The middle case is why a failure is not raised in `initialize()`: JAX would log it with a traceback
and later say only that "arena" is unknown. Raised at the start of the backend, it reaches the user as
"Unable to initialize backend 'arena': <sentence>", from an `import jax` that works.

What programs import is `pjrt_arena`; this package imports that, and never the other way round. The names that were
here before, `memory`, `counters` and `ArenaError`, and ``python -m jax_plugins.arena``, still work, and are deprecated.

Nothing of JAX is imported until `initialize()` runs.
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import TYPE_CHECKING, Any

from jax_plugins.arena import _ffi
from pjrt_arena import _library

if TYPE_CHECKING:
    __version__: str
    ArenaError = _library.ArenaError

__all__ = ["__version__", "initialize"]

NAME = "arena"

#: JAX versions [first, end) that pjrt-arena and its engine were tried with; pyproject.toml says the same.
JAX_TRIED = ((0, 6, 2), (0, 13))

_log = logging.getLogger(__name__)


# Type checkers read the names above: with this function every name would be right.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return _library.version()
        if name == "ArenaError":
            _deprecated("ArenaError", "pjrt_arena.ArenaError")
            return _library.ArenaError
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def counters() -> dict[str, Any]:
    """Deprecated: `pjrt_arena.memory.counters`. This gives the library's own names, as dicts."""
    _deprecated("counters()", "pjrt_arena.memory.counters()")
    counters = _library.load().counters()
    programs = counters["programs"]
    # The former names of these two.
    programs["left_alone"], programs["readdressed"] = programs["not_rewritten"], programs["address_changes"]
    return counters


def _deprecated(name: str, now: str) -> None:
    warnings.warn(f"jax_plugins.arena.{name} is now {now}", DeprecationWarning, stacklevel=3)


def initialize() -> None:
    """Registers the backend "arena" if ``jax_platforms`` names it. JAX calls this; calling it again is harmless.

    Never raises for a library or an engine that cannot be used: see the module's table.
    """
    import jax

    if NAME not in (jax.config.jax_platforms or "").split(","):
        _warn_of_settings_in_vain(jax.config.jax_platforms or "")
        return
    if _library.named_by_jax_variable():
        # JAX registers that library after this function returns, and refuses a second one. It may not be ours.
        try:
            library = _library.load()
            _prepare_gpu(library)
            _ffi.install(library)
            _install_callbacks()
            _install_gpu(library)
        except _library.ArenaError as reason:
            _log.debug("no handlers for custom calls: %s", reason)
        return
    from jax._src import xla_bridge

    if NAME in xla_bridge._backend_factories:
        return
    try:
        path = _usable_library()
        _ffi.install(_library.load())
        _warn_of_untried_jax(jax.__version__)
        _install_callbacks()
        c_api = xla_bridge.register_plugin(NAME, library_path=path)
    except RuntimeError as reason:
        _log.debug("not usable: %s", reason)
        xla_bridge.register_backend_factory(NAME, _start_late, fail_quietly=False)
        return
    # register_plugin calls every name but "cuda" and "rocm" experimental, which is a warning in each
    # program. The public jax.extend.backend.register_backend_factory lets a backend speak for itself.
    xla_bridge.register_backend_factory(NAME, _start, fail_quietly=False, experimental=False, c_api=c_api)
    _install_gpu(_library.load())


def _usable_library() -> str:
    """The library's path, after its own check that an engine is there and answers."""
    library = _library.load()
    library.set_search_path()
    _prepare_gpu(library)
    if reason := library.why_unusable():
        raise _library.ArenaError(reason)
    return os.fspath(library.path)


def _prepare_gpu(library: _library.Library) -> None:
    """What an engine for GPUs wants to find in the process when it is loaded."""
    if engine := library.gpu_engine():
        from jax_plugins.arena import _cuda

        _cuda.prepare(engine)


def _install_gpu(library: _library.Library, c_api: Any = None) -> None:
    """What runs on GPUs outside of the engine: with `c_api` at once, else when JAX has initialised all plugins."""
    if engine := library.gpu_engine():
        from jax_plugins.arena import _cuda

        _ensure_cpu()
        if c_api is None:
            _cuda.install_when_loaded(engine, NAME)
        else:
            _cuda.install(engine, c_api)


def _ensure_cpu() -> None:
    """Adds JAX's own backend "cpu", for host callbacks.

    JAX hands a callback its arguments on a device of that backend, and raises without one. The arena's devices cannot
    stand in: what a callback does there would wait for the program that waits for the callback.
    """
    import jax

    if "cpu" not in (listed := jax.config.jax_platforms.split(",")):
        jax.config.update("jax_platforms", ",".join([*listed, "cpu"]))


def _install_callbacks() -> None:
    """Host callbacks of an engine for CPUs; without them all other programs run. One for GPUs has JAX's own."""
    from jax_plugins.arena import _callbacks, _cost, _partitioners

    if not _library.load().serves_cpu_handlers():
        return
    _ensure_cpu()
    if reason := _callbacks.install(_library.load()):
        _log.warning("jax.pure_callback, io_callback and jax.debug will fail: %s", reason)
    _partitioners.install(_library.load())
    _cost.install(_library.load())


def _start() -> Any:
    """Backend start: JAX's own, with our options."""
    from jax._src import xla_bridge

    if hasattr(xla_bridge, "make_pjrt_c_api_client"):
        return xla_bridge.make_pjrt_c_api_client(NAME, options=_client_options)
    # JAX before 0.8 keeps it inside register_plugin, out of reach.
    from jax._src import distributed
    from jax._src.lib import xla_client

    if not xla_client.pjrt_plugin_initialized(NAME):
        xla_client.initialize_pjrt_plugin(NAME)
    options = _client_options() | xla_bridge._options_from_jax_configs(NAME)
    job = distributed.global_state
    if job.client is not None:
        options = {"node_id": job.process_id, "num_nodes": job.num_processes} | options
    return xla_client.make_c_api_client(NAME, options, job.client)


def _start_late() -> Any:
    """Backend start after a failed check: looks again, then starts or raises the sentence."""
    path = _usable_library()
    _ffi.install(_library.load())
    from jax._src import xla_bridge
    from jax._src.lib import xla_client

    if not xla_client.pjrt_plugin_loaded(NAME):
        c_api = xla_client.load_pjrt_plugin_dynamically(NAME, path)
        for callback in xla_bridge._plugin_callbacks:  # partitioners of custom calls; JAX calls them before any start
            callback(c_api=c_api)
        _install_gpu(_library.load(), c_api)
    _install_callbacks()
    client = _start()
    if engine := _library.load().gpu_engine():
        from jax_plugins.arena import _cuda

        _cuda.stand_in(engine.kind, client)
    return client


def _client_options() -> dict[str, Any]:
    """Options for the client, read when it is created; `jax_pjrt_client_create_options` is added by JAX and wins.

    An engine for GPUs gets what JAX's own plugin would give it. For the CPU the device count is here because JAX's own
    setting for it never reaches a plugin. -1 means that it is not set, and then the library's variables and XLA's flag
    decide.
    """
    import jax

    if engine := _library.load().gpu_engine():
        from jax_plugins.arena import _cuda

        return _cuda.client_options(engine.kind)
    devices = jax.config.jax_num_cpu_devices
    return {"devices": devices} if devices > 0 else {}


def _warn_of_settings_in_vain(platforms: str) -> None:
    """JAX was started without the arena, though somebody has set it up. `platforms` is what JAX was told to have."""
    if not any(name.startswith("PJRT_ARENA_") for name in os.environ):
        return
    # A library that its own variable names is registered by JAX, which takes it where no platform is named.
    if not platforms and _library.named_by_jax_variable():
        return
    from pjrt_arena import _configure, _devices

    if variables := _configure.in_environment():
        _log.warning(
            "JAX does not use the arena, so these settings have no effect: %s (%s); set JAX_PLATFORMS=%s",
            ", ".join(variables),
            f"jax_platforms is {platforms}" if platforms else "JAX_PLATFORMS is not set",
            _devices.PLATFORMS,
        )


def _warn_of_untried_jax(version: str) -> None:
    first, end = JAX_TRIED
    try:
        this = tuple(int(part) for part in version.split(".")[:3])
    except ValueError:
        return
    if not first <= this < end:
        _log.warning(
            "pjrt-arena %s was tried with jax >=%s,<%s and this is jax %s: install one of those if something fails.",
            _library.version(),
            ".".join(map(str, first)),
            ".".join(map(str, end)),
            version,
        )
