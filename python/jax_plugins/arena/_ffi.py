"""Gives the engine the custom calls' handlers that JAX knows for the CPU: LAPACK, and what users register.

jaxlib has a registry of its own, which only its built-in CPU backend reads; the engine is another copy of XLA
and has another. jaxlib keeps what Python registers, though, and hands it to one function for each platform:

    jax.ffi.register_ffi_target, early ... kept by jaxlib --+
    jax.ffi.register_ffi_target, later ---------------------+--> _Forwarder --> jaxlib's own registry
    jaxlib's built-in handlers (a list) -----------------------> _Forwarder --> the engine's

The built-in backend installs its function when it starts, and the first one installed stays: ours has to
come first, and does its work too.

Nothing here runs when a program does: the engine calls handlers directly (the library has what the
difference between jaxlib's and the engine's version of XLA FFI needs).
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Any

from pjrt_arena._library import STAGES, ArenaError, Library

#: Handlers of jaxlib's that need what only its own runtime gives them; ours have other code.
HOST_CALLBACKS = frozenset({"xla_ffi_python_cpu_callback", "xla_ffi_partitioned_python_cpu_callback"})

#: The version of custom calls that is XLA FFI; 0 are the functions from before it, which no plugin takes.
TYPED = 1

_log = logging.getLogger(__name__)

_installed = False


def install(library: Library) -> None:
    """Forwards all handlers for the CPU to the engine from now on; once in a process, later calls do nothing.

    Does nothing either if the engine is known to be for another device. Never raises for a handler that
    is there already: what the engine refuses is logged.
    """
    global _installed
    if _installed or not library.serves_cpu_handlers():
        return
    _installed = True
    from jaxlib import xla_client

    forward = _Forwarder(library, xla_client._xla)
    forward.builtin()  # all but HOST_CALLBACKS
    # Types come first: XLA wants to know a state's type before the handler that leaves it. Before jaxlib 0.9 a type
    # has an id alone.
    register_types = getattr(xla_client, "register_custom_type_handler", None)
    register_types = register_types or xla_client.register_custom_type_id_handler
    register_types("cpu", forward.type)
    xla_client.register_custom_call_handler("cpu", forward.handler)
    forward.started()


class _Forwarder:
    """What jaxlib calls for each handler and each type, those from before `started()` first."""

    def __init__(self, library: Library, xla: Any) -> None:
        self._library = library
        self._xla = xla
        #: Sentences on what was refused before anybody was there to be told; None from `started()` on.
        self._refused: list[str] | None = []

    def builtin(self) -> None:
        """Gives the engine those handlers that are in jaxlib's registry from the start."""
        for name, stages in self._xla.custom_call_targets("Host").items():
            # A function from before XLA FFI is a capsule by itself.
            if name not in HOST_CALLBACKS and isinstance(stages, dict):
                try:
                    self._give(name, stages)
                except ArenaError as refused:
                    _log.debug("%s", refused)

    def started(self) -> None:
        """From now on it is a user's call that a refused handler fails."""
        refused, self._refused = self._refused, None
        if refused:
            _log.warning("%d handlers for the CPU are not available on arena; the first: %s", len(refused), refused[0])

    def handler(self, name: str, fn: Any, platform: str, api_version: int = 0, traits: Any = 0) -> None:
        """Registers a custom call's handlers with both; jaxlib's function for it, with the same arguments."""

        def register() -> None:
            self._xla.register_custom_call_target(name, fn, platform, api_version, traits)
            if api_version == TYPED:
                self._give(name, fn, int(traits))
            else:
                _log.debug("%s is no FFI handler: the custom call is there on JAX's own backend alone", name)

        self._attempt(name, register)

    def type(self, name: str, registration: Any) -> None:
        """Registers a type with both; jaxlib's function for it, which gives the type its id."""

        def register() -> None:
            own = getattr(self._xla, "register_custom_type", None) or self._xla.register_custom_type_id
            own(name, registration)
            capsules = registration if isinstance(registration, dict) else {"type_id": registration}
            info = capsules.get("type_info")
            self._library.register_ffi_type(name, _address(capsules["type_id"]), info and _address(info))

        self._attempt(name, register)

    def _give(self, name: str, fn: Any, traits: int = 0) -> None:
        capsules = fn if isinstance(fn, dict) else {"execute": fn}
        # XLA FFI 0.5 has one more, "record", which only GPUs use.
        stages = {stage: _address(capsules[stage]) for stage in STAGES if capsules.get(stage) is not None}
        self._library.register_ffi_handler(name, stages, traits)

    def _attempt(self, name: str, register: Callable[[], None]) -> None:
        try:
            register()
        except Exception as refused:  # jaxlib's own as well: one bad handler must not keep the backend from starting
            if self._refused is None:
                raise
            self._refused.append(f"{name}: {refused}")


def _address(capsule: Any) -> int:
    """What a PyCapsule points to."""
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = pointer(capsule, name(capsule))
    return address
