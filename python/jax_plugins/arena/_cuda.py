"""What JAX's own GPU plugin does for programs besides registering itself, done for the arena with a GPU's engine.

A good part of what runs on a GPU is in no engine: it comes in a package beside the engine's, or from users, and has to
be given to the engine's library. For the backend "cuda", `jax_plugins.xla_cuda13` does that with its own table of
functions; here the same is done with ours, whose extensions lead to the same engine:

    prepare         before the engine is loaded: NVIDIA's libraries from their wheels, so that the engine finds those
                    copies, and whether their versions fit
    install         once JAX has our library: handlers and types of custom calls (cuSOLVER, cuSPARSE, cuDNN's RNNs,
                    Triton, Mosaic, Python callbacks, and what users register), and up to JAX 0.11.0 the compiler of
                    Triton kernels
    client_options  when the client is created: visible GPUs, mock topologies, the memory of collectives
    stand_in        once it is there: it is what JAX means by "gpu" and "cuda"

Partitioners of custom calls and the profiler need nothing: JAX gives them to every plugin.

Beside the backend "cuda". The package with the engine is a plugin of JAX's too: JAX initialises it in every program,
and it starts no client unless `jax_platforms` names "cuda". jaxlib gives handlers to one function for each platform,
and the first one stays; a second compiler of Triton kernels is an error. So `install` runs after all plugins' start:

    no "cuda" ............................ ours takes the place
    "cuda", whose library is our engine .. all of it has reached the engine: a library has one registry
    "cuda", with another library ......... ours takes the place and calls the other as well; what jaxlib gave before is
                                           missing here, which is a warning

Nothing here raises but `client_options`, for a number that is none: a program without custom calls needs none of it.
What fails is one warning that names it.

ROCm goes the same ways under its own names, with packages made for tests: the real ones were never run, nor was any of
this on a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pjrt_arena._handlers import packages
from pjrt_arena._library import GpuEngine

#: JAX's name for the platform of custom calls, by the engine's kind. ROCm's engine wants it as an option, too.
PLATFORMS = {"cuda": "CUDA", "rocm": "ROCM"}

_log = logging.getLogger(__name__)

_installed = False


def prepare(engine: GpuEngine) -> None:
    """Loads NVIDIA's libraries and checks their versions, by the functions of the engine's own package.

    Registers nothing. An engine that lies in no package finds its libraries as any library does, and nobody knows what
    versions it wants.
    """
    package = _package_of(engine)
    if package is None:
        _log.debug("%s belongs to no installed package: its libraries are left to the loader", engine.path)
        return
    with _warning(f"NVIDIA's libraries could not be loaded by {package.__name__}"):
        _call(package, "_load_nvidia_libraries")
    if os.environ.get("JAX_SKIP_CUDA_CONSTRAINTS_CHECK"):
        return
    with _warning("NVIDIA's libraries do not fit the engine, or cannot be asked for their versions"):
        _call(package, "_import_extensions")
        if getattr(package, "cuda_versions", None) is not None:
            _call(package, "_check_cuda_versions")


def install_when_loaded(engine: GpuEngine, name: str) -> None:
    """`install`, and later `stand_in`, once JAX has initialised all plugins and our library is the backend `name`."""
    from jax._src import xla_bridge

    def callback(c_api: Any) -> None:
        # Called for every plugin's table, in a loop that an exception would end.
        with _warning("programs may fail on arena"):
            registration = xla_bridge._backend_factories[name]
            if registration.c_api is c_api:
                registration.factory = functools.partial(_start, engine.kind, registration.factory)
                install(engine, c_api)

    xla_bridge.register_plugin_callbacks(callback)


def install(engine: GpuEngine, c_api: Any) -> None:
    """Gives the engine, through our table `c_api`, what JAX and users register for GPUs; once in a process."""
    global _installed
    if _installed:
        return
    _installed = True
    extension = _extension(engine)
    if extension is None:
        _log.warning(
            "custom calls (linear algebra, Triton, callbacks) will fail on arena: no %s_plugin_extension in any of %s",
            engine.kind,
            ", ".join(packages(engine)),
        )
        return
    with _warning("custom calls may fail on arena"):
        _Forwarder(engine, extension, c_api).install()
    with _warning("Triton kernels will not compile on arena"):
        _compile_triton(engine, extension, c_api)


def client_options(kind: str) -> dict[str, Any]:
    """The options that JAX gives its own GPU plugin, without the allocator's: those our library reads by itself."""
    from jax._src import xla_bridge

    options: dict[str, Any] = {"platform_name": PLATFORMS[kind] if kind == "rocm" else kind}
    readers: tuple[tuple[str, str, Callable[[int], int]], ...] = (
        ("COLLECTIVE_MEM_SIZE_MB", "collective_memory_size", lambda number: number << 20),
        ("ABORT_COLLECTIVES_ON_FAILURE", "abort_collectives_on_failure", bool),
        ("USE_TFRT_GPU_CLIENT", "use_tfrt_gpu_client", bool),
    )
    for suffix, name, read in readers:
        variable = f"XLA_PYTHON_CLIENT_{suffix}"
        if text := os.environ.get(variable):
            try:
                options[name] = read(int(text))
            except ValueError:
                raise RuntimeError(f"{variable}={text} is not valid; allowed: a whole number") from None
    # NCCL would register arrays that a captured collective uses, by the memory behind their first byte. Ours lie over
    # several pieces of memory, which change places (NVIDIA/nccl issues 1820 and 2332).
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
    options |= xla_bridge._options_from_jax_configs(kind)
    return options


def stand_in(kind: str, client: Any) -> None:
    """Makes `client` JAX's backend "cuda" or "rocm" too, unless `jax_platforms` wants one of that name beside it.

    jaxlib calls the platform of any GPU "gpu". To know which rules a program is lowered by, and where an array of
    DLPack belongs, JAX looks for a backend named "cuda" or "rocm" among those that run; without one it raises.
    """
    import jax
    from jax._src import xla_bridge

    listed = jax.config.jax_platforms.split(",")
    if not any(kind in xla_bridge.expand_platform_alias(name.strip()) for name in listed):
        # JAX holds the lock of this dict while it starts a backend.
        xla_bridge._backends.setdefault(kind, client)


def _start(kind: str, factory: Callable[[], Any]) -> Any:
    client = factory()
    stand_in(kind, client)
    return client


class _Forwarder:
    """What jaxlib calls for each handler and each type."""

    def __init__(self, engine: GpuEngine, extension: Any, c_api: Any) -> None:
        self._platform = PLATFORMS[engine.kind]
        self._engine = engine
        self._extension = extension
        self._c_api = c_api
        #: Until `install` is done it is JAX's start that gives handlers, which nothing may stop; then it is a user.
        self._starting = True
        #: The functions that were there before, of the backend "cuda" with another library.
        self._other_handler: Callable[..., None] | None = None
        self._other_type: Callable[..., None] | None = None

    def install(self) -> None:
        """Takes jaxlib's place for handlers, and gives the extension's own."""
        from jaxlib import xla_client

        handlers, platform = xla_client._custom_callback_handler, self._platform
        if platform in handlers:
            others = _other_libraries(self._engine)
            if not others:
                _log.debug("the backend %s has given the engine its handlers", self._engine.kind)
                return  # users' handlers go there as well
            _log.warning(
                "linear algebra and handlers that were registered early may fail on arena: they were given to the"
                " library of %s, and the engine is %s; one of these two should be left out",
                others[0],
                self._engine.path,
            )
            # Before jaxlib 0.9 a type has an id alone; the place has had this name all the time.
            types = xla_client._custom_type_id_handler
            self._other_handler, handlers[platform] = handlers[platform], self.handler
            self._other_type, types[platform] = types.get(platform), self.type
        else:
            # Types come first: XLA wants to know a state's type before the handler that leaves it.
            take_types = getattr(xla_client, "register_custom_type_handler", None)
            take_types = take_types or xla_client.register_custom_type_id_handler
            take_types(platform, self.type)
            xla_client.register_custom_call_handler(platform, self.handler)
        for name, registration in self._own("ffi_types"):
            self._give_type(name, registration)
        for name, fn in self._own("ffi_handlers", "ffi_registrations"):
            self._give_handler(name, fn, platform, 1)
        self._starting = False

    def _own(self, *names: str) -> list[tuple[str, Any]]:
        """What the extension brings itself; the last of `names` is the oldest."""
        function = next((getattr(self._extension, name) for name in names if hasattr(self._extension, name)), dict)
        return list(function().items())

    def handler(self, name: str, fn: Any, platform: str, api_version: int = 0, traits: Any = 0) -> None:
        """jaxlib's function for a custom call's handlers, with the same arguments."""
        if self._other_handler is not None:
            self._other_handler(name, fn, platform, api_version, traits)
        self._give_handler(name, fn, platform, api_version, traits)

    def type(self, name: str, registration: Any) -> None:
        """jaxlib's function for a type of states or user data."""
        if self._other_type is not None:
            self._other_type(name, registration)
        self._give_type(name, registration)

    def _give_handler(self, name: str, fn: Any, *rest: Any) -> None:
        with self._noted(f"the custom call {name} is not available on arena"):
            self._extension.register_custom_call_target(self._c_api, name, fn, *rest)

    def _give_type(self, name: str, registration: Any) -> None:
        register = getattr(self._extension, "register_custom_type", None) or self._extension.register_custom_type_id
        with self._noted(f"custom calls with the type {name} are not available on arena"):
            register(self._c_api, name, registration)

    def _noted(self, what: str) -> contextlib.AbstractContextManager[None]:
        return _warning(what) if self._starting else contextlib.nullcontext()


def _compile_triton(engine: GpuEngine, extension: Any, c_api: Any) -> None:
    """Registers the engine's compiler of Triton kernels; JAX from 0.11.1 on has it without us."""
    if not hasattr(extension, "compile_triton_to_asm") or importlib.util.find_spec("jax._src.lib.triton") is None:
        return
    triton = importlib.import_module("jax._src.lib.triton")
    platform = PLATFORMS[engine.kind]
    if hasattr(triton, "register_compilation_handler") and not triton.has_compilation_handler(platform):
        compiler = functools.partial(extension.compile_triton_to_asm, c_api)
        triton.register_compilation_handler(platform, compiler)


def _package_of(engine: GpuEngine) -> ModuleType | None:
    """The package of `jax_plugins` whose library the engine is; to import it registers nothing."""
    name = f"jax_plugins.{engine.path.parent.name}"
    with _warning(f"{name}, which has the engine, cannot be imported"):
        if (
            engine.path.parent.name.isidentifier()
            and (spec := importlib.util.find_spec(name))
            and spec.origin
            and Path(spec.origin).parent.resolve() == engine.path.parent.resolve()
        ):
            return importlib.import_module(name)
    return None


def _other_libraries(engine: GpuEngine) -> list[str]:
    """Plugins of JAX's for the same kind of GPU that were imported and have a library that is not the engine."""
    own = engine.path.parent.resolve()
    pattern = re.compile(rf"jax_plugins\.xla_{engine.kind}\d*")
    return [
        name
        for name, module in list(sys.modules.items())
        if pattern.fullmatch(name) and Path(getattr(module, "__file__", None) or os.devnull).parent.resolve() != own
    ]


def _extension(engine: GpuEngine) -> ModuleType | None:
    """The module with jaxlib's handlers for GPUs, which is not part of jaxlib."""
    for package in packages(engine):
        try:
            return importlib.import_module(f"{package}.{engine.kind}_plugin_extension")
        except ImportError as reason:
            _log.debug("no handlers in %s: %s", package, reason)
    return None


def _call(package: ModuleType, name: str) -> None:
    """Calls a function of the engine's package; versions without it did not need it, or do it elsewhere."""
    if (function := getattr(package, name, None)) is not None:
        function()
    else:
        _log.debug("%s has no %s", package.__name__, name)


@contextlib.contextmanager
def _warning(what: str) -> Iterator[None]:
    """Makes one warning of whatever goes wrong inside."""
    try:
        yield
    except Exception as reason:
        _log.warning("%s: %s", what, reason)
