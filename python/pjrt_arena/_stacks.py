"""Which Python code makes arrays: `record`, and the frames that reports name."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pjrt_arena import _library

#: Packages whose frames are left out, as JAX's own tracebacks leave them out.
_LEFT_OUT = ("jax", "jaxlib", "jax_plugins", "pjrt_arena")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """A line of Python code that was under way when an array was made."""

    #: The file, as Python knows it, and the line, from 1 on.
    file: str
    line: int
    #: The function, with its class: ``Model.load``, ``<module>``.
    name: str

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line} ({self.name})"


class Recording:
    """What `record` returns: the end of a ``with recording:`` block sets it back to what it was before."""

    def __init__(self, before: bool) -> None:
        self._before = before

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        _set(self._before)


def record(*, python: bool, jax_frames: bool = False) -> Recording:
    """Whether each array keeps the Python stack that made it: for `summary`, out-of-memory errors, snapshots, `track`.

        >>> import jax.numpy as jnp
        >>> from pjrt_arena import memory
        >>> with memory.record(python=True):
        ...     x = jnp.ones(1 << 20)
        >>> first = memory.summary(device="cpu:0").devices[0]
        >>> [holder.stack[0].name for holder in first.holders if "f32[1048576]" in holder.origin]
        ['<module>']

    Recording is off at the start. It holds for all devices and threads, from the next array on; arrays keep their stack
    when it ends. A call that makes arrays takes Python's lock for it, and each stack is kept once; `DeviceStats` and
    the numbers of peaks are the same. A thread that Python does not know makes arrays without a stack, and of a stack
    deeper than 128 frames the innermost are kept.

    Args:
      python: on or off.
      jax_frames: keep the frames of JAX's own code, too.

    Returns:
      What sets it back at the end of a ``with`` block; it need not be used.

    Raises:
      ArenaError: there is no library, or an older one; or this Python does not tell of its frames.
    """
    before = _library.load().records_python()
    _set(python, jax_frames)
    return Recording(before)


def _set(python: bool, jax_frames: bool = False) -> None:
    _library.load().record_python(bool(python), _folders() if python and not jax_frames else ())


def _folders() -> list[str]:
    """The folders of those packages that are there."""
    specs = (importlib.util.find_spec(name) for name in _LEFT_OUT)
    return [str(Path(folder).absolute()) for spec in specs if spec for folder in spec.submodule_search_locations or ()]


def read_frames(told: Iterable[Mapping[str, Any]]) -> tuple[Frame, ...]:
    """Frames as the library names them, the innermost first."""
    return tuple(Frame(one["file"], one["line"], one["name"]) for one in told)


def of_snapshot(data: Mapping[str, Any], stack: int) -> tuple[Frame, ...]:
    """The frames of a stack of a stored snapshot, the innermost first; none for -1."""
    found = []
    while stack >= 0:
        row = data["stacks"]["frame"][stack]
        found.append({name: column[row] for name, column in data["frames"].items()})
        stack = data["stacks"]["caller"][stack]
    return read_frames(found)


def stack_of(data: Mapping[str, Any], origin: int) -> int:
    """The stack of an origin of a stored snapshot; -1 without one, or from an older library."""
    stacks: list[int] = data["origins"].get("stack", [])
    return stacks[origin] if stacks else -1
