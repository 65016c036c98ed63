"""Functions of this package that the library asks things of; `src/api/hooks.rs`."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: `Give` in src/api/hooks.rs.
_GIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)

#: Functions that the library has; they must not die before the process does.
_kept: list[Any] = []


def hook(answer: Callable[..., tuple[int, bytes]], *, inputs: int) -> Any:
    """A C function over so many pieces of memory, pointer and size each, that gives the code and the bytes of `answer`.

    `answer` is called on any thread and must not raise.
    """

    def ask(*arguments: int) -> None:
        *memory, give, reply = arguments
        pieces = [ctypes.string_at(*piece) for piece in zip(memory[::2], memory[1::2], strict=True)]
        code, said = answer(*pieces)
        _GIVE(give)(reply, code, said, len(said))

    _kept.append(
        ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, ctypes.c_size_t] * inputs, ctypes.c_void_p, ctypes.c_void_p)(ask)
    )
    return _kept[-1]
