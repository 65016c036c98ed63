"""Settings from Python: `configure`."""

from __future__ import annotations

import os
from typing import Any

from pjrt_arena import _library


def configure(**settings: str | int | float | bool | os.PathLike[str] | None) -> None:
    """Sets settings of the library, before JAX starts on the arena.

        import pjrt_arena

        pjrt_arena.configure(strategy="tpu", limit="8GiB")
        import jax                                           # or later: what counts is the first use of a device

    The names are those of the page of settings and of ``pjrt-arena doctor``. A setting becomes its environment variable
    (``PJRT_ARENA_STRATEGY``), so processes that are started from here have it, too; it replaces one that was set
    outside. Client options of JAX still come first. Either all of `settings` are set, or none.

    Args:
      settings: texts as in the variables; numbers; ``True`` and ``False`` for ``on`` and ``off``; paths. None takes
        what was set back, so that the default holds.

    Raises:
      TypeError: there is no setting of that name; the text lists those that there are.
      ValueError: a value is not allowed; the text says what is.
      ArenaError: JAX has started on the arena already, or has loaded the engine, which `engine` and `log` have to
        precede; or there is no library.
    """
    library = _library.load()
    told = library.settings()
    known = {row["name"]: row["variable"] for row in told["settings"]}
    for name in settings:
        if name not in known:
            raise TypeError(f"configure() has no setting {name!r}; allowed: {', '.join(known)}")
    if devices := library.counters()["devices"]:
        names = ", ".join(device.get("name", "a device") for device in devices)
        raise _library.ArenaError(
            f"the backend runs already, with {names}: call configure() before the first use of a device."
        )
    if (engine := told["engine"]) and (late := {"engine", "log"} & settings.keys()):
        raise _library.ArenaError(
            f"{' and '.join(sorted(late))} cannot be set: JAX has loaded the engine {engine} already; call configure()"
            " before the first use of JAX's devices."
        )
    before = {known[name]: os.environ.get(known[name]) for name in settings}
    _set({known[name]: _text(value) for name, value in settings.items()})
    rows = library.settings()["settings"]
    if refused := [row["error"] for row in rows if row["name"] in settings and row["error"]]:
        _set(before)
        raise ValueError("; ".join(refused))


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "on" if value else "off"
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _set(variables: dict[str, str | None]) -> None:
    for name, text in variables.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text
