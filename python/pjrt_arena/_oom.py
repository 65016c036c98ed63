"""What is called when memory is exhausted: `on_oom`."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import functools
import json
import threading
from collections.abc import Callable
from typing import Any

from pjrt_arena import _library


@dataclasses.dataclass(frozen=True, slots=True)
class OutOfMemoryReport:
    """Memory that was asked for in vain: what `on_oom` gives its function. It is no exception; JAX raises its own."""

    #: The device, as the library names it; None where only the engine knows.
    device: str | None
    #: The bytes that were asked for, with what a TPU's tiles add; None likewise.
    requested_bytes: int | None
    #: What they were for: ``jit_step output 0 f32[256,256]``; None likewise.
    origin: str | None
    #: The error's text, without the code before it.
    text: str


class OomHandler:
    """What `on_oom` returns: ``handler.remove()``, or the end of a ``with handler:`` block, ends it."""

    def __init__(self, callback: Callable[[OutOfMemoryReport], object]) -> None:
        self.callback = callback

    def remove(self) -> None:
        """Has the function called no more. A call that is under way in another thread goes on."""
        with _lock:
            if self in _handlers:
                _handlers.remove(self)
                _install()

    def __enter__(self) -> OomHandler:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


_lock = threading.RLock()
_handlers: list[OomHandler] = []


def on_oom(callback: Callable[[OutOfMemoryReport], object] | None) -> OomHandler:
    """Has `callback` called whenever memory is exhausted, with an `OutOfMemoryReport`, before the error is raised.

        >>> from pjrt_arena import memory
        >>> with memory.on_oom(lambda told: memory.snapshot("oom.html")):
        ...     pass

    It is called in the thread whose call fails, and no lock of the library is held: it may look at the memory, write a
    snapshot, and drop arrays, but the call fails all the same. It is not called for what it asks for in vain itself. An
    exception of its own goes to `sys.unraisablehook` and changes nothing. Several functions are called in the order in
    which they came.

    Args:
      callback: the function; None removes all.

    Returns:
      What removes this function again.

    Raises:
      ArenaError: there is no library, or an older one.
      TypeError: `callback` cannot be called.
    """
    if callback is not None and not callable(callback):
        raise TypeError(f"callback={callback!r}; it must be a function, or None to remove all")
    handler = OomHandler(callback or _nothing)
    with _lock:
        before = _handlers[:]
        _handlers[:] = [] if callback is None else [*_handlers, handler]
        try:
            _install()
        except _library.ArenaError:
            _handlers[:] = before
            raise
    return handler


def _nothing(_: OutOfMemoryReport) -> None:
    """Stands where all functions were removed."""


def _install() -> None:
    """Has the library call us while there is somebody to tell."""
    _library.load().on_oom(_told if _handlers else None)


def _tell(report: int, length: int, _: Any) -> None:
    told = json.loads(ctypes.string_at(report, length))
    names = [field.name for field in dataclasses.fields(OutOfMemoryReport)]
    memory = OutOfMemoryReport(**{name: told[name] for name in names})
    with _lock:
        handlers = _handlers[:]
    for handler in handlers:
        # ctypes gives what a callback raises to sys.unraisablehook, which cannot be called from here.
        ctypes.PYFUNCTYPE(None)(functools.partial(handler.callback, memory))()


# It must not die before the process does.
_told = _library.ON_OOM(_tell)


@atexit.register
def _end() -> None:
    # A thread that outlives Python must not call it.
    if _handlers:
        on_oom(None)
