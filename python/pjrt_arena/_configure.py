"""Settings from Python: `configure`."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from pjrt_arena import _devices, _library

#: Bytes, as a number or as in the variable: ``"8GiB"``, and ``"40%"`` where a share is allowed.
_Size: TypeAlias = int | str
_Path: TypeAlias = str | os.PathLike[str]
_Switch: TypeAlias = bool | Literal["on", "off"]


class Settings(TypedDict, total=False):
    """What `configure` takes; the page of settings says what each means. False is ``off``; None is the default."""

    strategy: Literal["preallocate", "growing", "platform", "tpu"] | None
    limit: _Size | None
    compact: bool | Literal["on", "off", "always"] | None
    share: str | Literal[False] | None
    share_min: _Size | None
    share_weight: int | str | None
    spill: _Path | Literal[False] | None
    spill_limit: _Size | None
    prefetch: _Switch | None
    sleep_after: int | str | Literal[False] | None
    tpu_tiles: _Switch | None
    huge_pages: _Switch | None
    engine: _Path | None
    cuda_driver: _Path | None
    hip_driver: _Path | None
    headroom: _Size | None
    gpu_scratch: _Size | None
    pinned_limit: _Size | None
    devices: int | str | None
    rewrite: _Switch | None
    scratch: Literal["warm", "system"] | None
    zero_copy: _Switch | None
    history: int | str | None
    oom_report: _Path | Literal[False] | None
    log: str | Literal[False] | None


def configure(**settings: Unpack[Settings]) -> None:
    """Sets settings of the library, before JAX starts on the arena, and has JAX start there.

        >>> import pjrt_arena
        >>> pjrt_arena.configure(strategy="tpu", limit="64MiB")
        >>> import jax                                       # or before: what counts is the first use of a device
        >>> jax.devices()[0].memory_stats()["bytes_limit"]
        67108864

    The names are those of the page of settings and of ``pjrt-arena doctor``. A setting becomes its environment variable
    (``PJRT_ARENA_STRATEGY``), so processes that are started from here have it, too; it replaces one that was set
    outside. Client options of JAX still come first. Either all of `settings` are set, or none.

    Where neither the variable ``JAX_PLATFORMS`` nor ``jax.config.jax_platforms`` names a platform, both become
    ``arena,cpu``. Where they name others, or others before the arena, they stay, and a `UserWarning` says that JAX will
    not use the arena, or not by default; another one says so where JAX has started on other devices already.

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
    _name_the_arena()


def _name_the_arena() -> None:
    """Has JAX use the arena, if nothing says what it shall use; warns where something else does."""
    named, where = _devices.platforms()
    if named and not _devices.names_arena(named):
        text = f"{where}={named} does not name the arena, so JAX will not use it; it must be {_devices.PLATFORMS}"
        warnings.warn(text, UserWarning, stacklevel=3)
        return
    if named and not _devices.puts_arena_first(named):
        text = f"JAX would use {named.partition(',')[0]} by default, as {where}={named}; put arena first"
        warnings.warn(text, UserWarning, stacklevel=3)
    if not named:
        os.environ[_devices.VARIABLE] = _devices.PLATFORMS
    # A variable that was set after JAX was imported has told it nothing.
    if (jax := sys.modules.get("jax")) and not jax.config.jax_platforms:
        jax.config.update("jax_platforms", named or _devices.PLATFORMS)
    if running := _running():
        text = f"JAX runs on {running} already, not on the arena; call configure() before the first use of a device"
        warnings.warn(text, UserWarning, stacklevel=3)


def in_environment() -> list[str]:
    """Variables of settings that are set, but for those that say what is logged and where files are."""
    variables = {f"PJRT_ARENA_{name.upper()}" for name in Settings.__annotations__}
    variables -= {"PJRT_ARENA_LOG", "PJRT_ARENA_CUDA_DRIVER", "PJRT_ARENA_HIP_DRIVER"}
    given = {name: value for name in variables if (value := os.environ.get(name))}
    if os.sep in given.get("PJRT_ARENA_ENGINE", ""):
        del given["PJRT_ARENA_ENGINE"]
    return sorted(given)


def _running() -> str:
    """The platforms that JAX has started on; empty before it has."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    # Private to JAX: without it there is no warning.
    backends: dict[str, Any] = getattr(bridge, "_backends", {})
    return ", ".join(backends)


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
