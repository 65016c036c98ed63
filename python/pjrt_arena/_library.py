"""Finds libpjrt_arena.so and calls what it exports beside PJRT.

Where the library is looked for, first match wins:

1. ``PJRT_ARENA_LIBRARY_PATH``; it must exist
2. the library that ``PJRT_NAMES_AND_LIBRARY_PATHS=arena:...`` tells JAX to load
3. beside this file: an installed wheel
4. ``target/release`` and ``target/debug`` of the source tree this file lies in: an editable install.
   The one built last is taken, so ``cargo build`` is all that a change needs.

The loader gives one copy of a library per file, so the functions called here see the state of the very
library that JAX runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

FILE_NAME = "libpjrt_arena.so"
PATH_VARIABLE = "PJRT_ARENA_LIBRARY_PATH"
JAX_VARIABLE = "PJRT_NAMES_AND_LIBRARY_PATHS"


class ArenaError(RuntimeError):
    """pjrt-arena cannot be used; the text is one sentence that says why and what to do."""


def named_by_jax_variable() -> Path | None:
    """The library that JAX's own variable names for "arena", if it names one."""
    for entry in os.environ.get(JAX_VARIABLE, "").split(","):
        name, colon, path = entry.partition(":")
        if colon and name == "arena":
            if path.endswith(".json"):
                # JAX reports a bad file itself, with its reason.
                with contextlib.suppress(OSError, ValueError, KeyError):
                    path = json.loads(Path(path).read_text())["library_path"]
            return Path(path)
    return None


def locate() -> Path:
    """Path of the library.

    Raises:
      ArenaError: none is there; names every place that was looked at.
    """
    if named := os.environ.get(PATH_VARIABLE):
        if not Path(named).is_file():
            raise ArenaError(f"{PATH_VARIABLE}={named} is not a file; it must be the path of {FILE_NAME}.")
        return Path(named).resolve()
    if (named_for_jax := named_by_jax_variable()) is not None:
        return named_for_jax
    here = Path(__file__).resolve().parent
    places = [here]
    if checkout := _checkout():
        places += [checkout / "target" / profile for profile in ("release", "debug")]
    found = [place / FILE_NAME for place in places if (place / FILE_NAME).is_file()]
    if not found:
        looked = ", ".join(map(str, places))
        raise ArenaError(f"{FILE_NAME} was not found in {looked}: {how_to_get('cargo build --release')}.")
    if found[0].parent == here:
        return found[0]
    return max(found, key=lambda path: path.stat().st_mtime_ns)


def _checkout() -> Path | None:
    """The source tree that this file lies in; None where the package was installed from a wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "Cargo.toml").is_file() else None


def how_to_get(command: str) -> str:
    """What to do where a file of the package is missing; `command` builds it in a source tree."""
    if _checkout():
        return f"build it with `{command}`, or set {PATH_VARIABLE}"
    return f"the installation is incomplete: install pjrt-arena again, or set {PATH_VARIABLE}"


def load() -> Library:
    """The library at `locate()`, opened.

    Raises:
      ArenaError: there is none, or the file is no library.
    """
    return _open(os.fspath(locate()))


def version() -> str:
    """Version of the installed distribution; of the library where none is installed."""
    try:
        return importlib.metadata.version("pjrt-arena")
    except importlib.metadata.PackageNotFoundError:
        return load().version()


#: `OnOom` in src/api/control/on_oom.rs.
ON_OOM = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)

#: A custom call's stages, in the order of `_Bundle`'s fields.
STAGES = ("instantiate", "prepare", "initialize", "execute")


class _Bundle(ctypes.Structure):
    """``XLA_FFI_Handler_Bundle``: the address of each stage's handler, or None."""

    _fields_ = [(stage, ctypes.c_void_p) for stage in STAGES]


class GpuEngine(NamedTuple):
    """An engine for GPUs."""

    #: ``cuda`` or ``rocm``.
    kind: str
    path: Path


class Library:
    """The functions of one opened libpjrt_arena.so. All are callable from any thread."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        try:
            self._dll = ctypes.CDLL(path)
        except OSError as error:
            raise ArenaError(f"{path} cannot be loaded: {error}.") from None

    def set_search_path(self) -> None:
        """Tells the library in which folders engine wheels may be installed: Python's own search path."""
        function = self._function("pjrt_arena_set_search_path", ctypes.c_char_p, returns=None)
        # Path.is_dir raises for a folder that may not be looked into. The empty one is the current folder: no wheel is
        # installed there, and whoever fills it is not to say which library is loaded.
        folders = [os.path.abspath(folder) for folder in sys.path if folder and os.path.isdir(folder)]  # noqa: PTH100, PTH112
        function(os.fsencode(":".join(folders)))

    def gpu_engine(self) -> GpuEngine | None:
        """The engine, where it is known to be a GPU's; where there is none, `why_unusable` says why. Loads nothing."""
        told = json.loads(self._text("pjrt_arena_engine"))
        return GpuEngine(told["kind"], Path(told["path"])) if told.get("kind") in ("cuda", "rocm") else None

    def why_unusable(self) -> str:
        """One sentence on why no client could be created; empty when one could. Loads the engine."""
        return self._text("pjrt_arena_check")

    def doctor(self) -> str:
        """The table of every setting: value, where it came from, what is allowed; the engine; the memory."""
        return self._text("pjrt_arena_doctor")

    def doctor_json(self) -> dict[str, Any]:
        """The same as JSON: ``settings``, ``warnings`` and ``overridden``."""
        told: dict[str, Any] = self.ask("pjrt_arena_doctor_json")
        return told

    def settings(self) -> dict[str, Any]:
        """As `doctor_json`, without a look at engines and drivers, and with ``engine``, the one that is loaded."""
        told: dict[str, Any] = self.ask("pjrt_arena_settings")
        return told

    def counters(self) -> dict[str, Any]:
        """What was counted so far; see `pjrt_arena.memory.counters`."""
        counters: dict[str, Any] = self.ask("pjrt_arena_counters")
        return counters

    def version(self) -> str:
        """Version of the library itself."""
        version: bytes = self._function("pjrt_arena_version", returns=ctypes.c_char_p)()
        return version.decode()

    def map(self, width: int, rows: int, device: str | None) -> str:
        """See `pjrt_arena.memory.map`."""
        screen = (ctypes.c_size_t, max(width, 0)), (ctypes.c_size_t, max(rows, 0))
        if device is None:
            return self._text("pjrt_arena_map", *screen)
        return self._text("pjrt_arena_map_device", (ctypes.c_char_p, device.encode()), *screen)

    def summary(self) -> list[dict[str, Any]]:
        """What each device's memory comes to; see `pjrt_arena.memory.summary`."""
        devices: list[dict[str, Any]] = json.loads(self._text("pjrt_arena_summary", room=1 << 16))
        return devices

    def snapshot(self, path: bytes) -> str:
        """Writes a snapshot to `path`; the sentence on why not, empty when it worked."""
        return self._text("pjrt_arena_snapshot", (ctypes.c_char_p, path), again=False)

    def snapshot_page(self, json_text: str) -> str:
        """The page that shows this snapshot."""
        return self._text("pjrt_arena_snapshot_page", (ctypes.c_char_p, json_text.encode()), room=1 << 20)

    def reset_peak(self, device: str | None) -> None:
        """Sets the peaks of every device, or of this one, to what there is now."""
        if device is None:
            self._function("pjrt_arena_reset_peak", returns=ctypes.c_int)()
        elif refused := self._text("pjrt_arena_reset_peak_device", (ctypes.c_char_p, device.encode())):
            raise ArenaError(refused)

    def history(self, enabled: bool) -> None:
        """Whether devices remember the last events."""
        self._function("pjrt_arena_history", ctypes.c_int, returns=ctypes.c_int)(int(enabled))

    def record_python(self, enabled: bool, left_out: Iterable[str]) -> None:
        """Whether arrays keep the Python stack that made them; files in these folders are left out."""
        folders = (ctypes.c_char_p, "\n".join(left_out).encode(errors="surrogateescape"))
        if refused := self._text("pjrt_arena_record_python", (ctypes.c_int, int(enabled)), folders):
            raise ArenaError(refused)

    def records_python(self) -> bool:
        """Whether they do."""
        return bool(self._function("pjrt_arena_records_python", returns=ctypes.c_int)())

    def on_oom(self, function: Any) -> None:
        """Has the library call this `ON_OOM`, which must stay for ever, when memory is exhausted; None ends that."""
        address = ctypes.cast(function, ctypes.c_void_p) if function is not None else None
        self._function("pjrt_arena_on_oom", ctypes.c_void_p, ctypes.c_void_p, returns=None)(address, None)

    def track_begin(self) -> int:
        """Begins to watch every device there is; the track's number, or 0 if there are too many."""
        track: int = self._function("pjrt_arena_track_begin", returns=ctypes.c_uint64)()
        return track

    def track_end(self, track: int) -> Any:
        """Ends a track and says what it saw. Asked again for more room, the library says the same."""
        return json.loads(self._text("pjrt_arena_track_end", (ctypes.c_uint64, track), room=1 << 16))

    def tpu_footprint(self, element_type: str, dims: list[int]) -> dict[str, Any]:
        """What an array takes on a TPU, or ``error``. `element_type` is XLA's name, `dims` are of 64 bits."""
        numbers = (ctypes.c_int64 * len(dims))(*dims)
        name = (ctypes.c_char_p, element_type.encode())
        rank = (ctypes.c_size_t, len(dims))
        text = self._text("pjrt_arena_tpu_footprint", name, (type(numbers), numbers), rank)
        footprint: dict[str, Any] = json.loads(text)
        return footprint

    def install_python_callbacks(self, table: ctypes.Structure) -> str:
        """See `_callbacks.install`; the sentence on why not, empty when it worked."""
        return self._text("pjrt_arena_install_python_callbacks", (ctypes.c_void_p, ctypes.addressof(table)))

    def partitioner(self, name: str) -> tuple[str, int]:
        """What was registered for splitting this custom call: ``callbacks`` and their address, ``batch``, or none."""
        types = (ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p))
        address = ctypes.c_void_p()
        encoded = name.encode()
        kind = self._function("pjrt_arena_partitioner", *types, returns=ctypes.c_int)(encoded, len(encoded), address)
        return ("", "callbacks", "batch")[kind], address.value or 0

    def install_hook(self, name: str, hook: Any) -> None:
        """Has the library call this function of `_hooks.hook`, which must stay for ever; the first of a name stays."""
        self._function(f"pjrt_arena_install_{name}", ctypes.c_void_p, returns=None)(ctypes.cast(hook, ctypes.c_void_p))

    def ask(self, name: str, *arguments: tuple[Any, Any]) -> Any:
        """Calls a function that tells something in JSON. `arguments` are (type, value)."""
        return json.loads(self._text(name, *arguments))

    def act(self, name: str, *arguments: tuple[Any, Any]) -> list[dict[str, Any]]:
        """Calls a function that does something to each device at every call and tells of it in JSON.

        Asking again for more room would do it again, so the room is ample at once. `arguments` are (type, value).

        Raises:
          ArenaError: the function says that it cannot.
        """
        answer = json.loads(self._text(name, *arguments, room=1 << 20, again=False))
        if isinstance(answer, dict) and "error" in answer:
            raise ArenaError(answer["error"])
        done: list[dict[str, Any]] = answer
        return done

    def serves_cpu_handlers(self) -> bool:
        """Whether the engine computes on the CPU, as far as is known: handlers for the CPU are for it. Loads it."""
        return bool(self._function("pjrt_arena_ffi_is_for_cpu", returns=ctypes.c_int)())

    def register_ffi_handler(self, name: str, stages: dict[str, int], traits: int = 0) -> None:
        """Registers the handlers of a custom call with the engine; `stages` gives the address for each stage's name.

        Raises:
          ArenaError: the engine, or the library, refuses them; it says why, and of which custom call.
        """
        bundle = _Bundle(*(stages.get(stage) for stage in STAGES))
        self._register(
            "pjrt_arena_ffi_register_handler", name, (ctypes.POINTER(_Bundle), bundle), (ctypes.c_uint32, traits)
        )

    def register_ffi_type(self, name: str, type_id: int, type_info: int | None) -> None:
        """Registers a type of handlers' states or user data: addresses of its id and of its ``XLA_FFI_TypeInfo``.

        Raises:
          ArenaError: as `register_ffi_handler`.
        """
        pointer = ctypes.c_void_p
        self._register("pjrt_arena_ffi_register_type", name, (pointer, type_id), (pointer, type_info))

    def _register(self, function: str, name: str, *arguments: tuple[Any, Any]) -> None:
        names = ((ctypes.c_char_p, name.encode()), (ctypes.c_char_p, b"cpu"))
        if refused := self._text(function, *names, *arguments):
            raise ArenaError(refused)

    def _text(self, name: str, *arguments: tuple[Any, Any], room: int = 4096, again: bool = True) -> str:
        """Calls a function that writes text: it returns the length needed and cuts at the room given.

        `arguments` are (type, value) and come before the buffer. Without `again` a text that is cut is an error.
        """
        types = [kind for kind, _ in arguments]
        function = self._function(name, *types, ctypes.c_char_p, ctypes.c_size_t, returns=ctypes.c_size_t)
        while True:
            buffer = ctypes.create_string_buffer(room)
            length = function(*(value for _, value in arguments), buffer, room)
            if length < room:
                # By length where it is 0: nothing need have been written then.
                return buffer.value.decode(errors="replace") if length else ""
            if not again:
                raise ArenaError(f"{name} has {length} bytes to tell, and there is room for {room - 1}.")
            room = length + 1

    def _function(self, name: str, *arguments: Any, returns: Any) -> Any:
        try:
            function = getattr(self._dll, name)
        except AttributeError:
            raise ArenaError(
                f"{self.path} has no function {name}: it is not pjrt-arena's library, or one of another version."
            ) from None
        function.argtypes = list(arguments)
        function.restype = returns
        return function


@functools.cache
def _open(path: str) -> Library:
    return Library(path)
