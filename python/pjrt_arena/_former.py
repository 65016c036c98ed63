"""Former names of fields, which still work."""

from __future__ import annotations

import types
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar


class Renamed:
    """Gives an object's fields their former names as well, with a `DeprecationWarning` that says the new one."""

    __slots__ = ()

    #: The field for each former name; or, where that named an object, the field for each name within.
    FORMER: ClassVar[Mapping[str, str | Mapping[str, str]]] = {}

    # Type checkers know the present names alone.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if (now := kind.FORMER.get(name)) is None:
                raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
            names = now if isinstance(now, str) else ", ".join(now.values())
            warnings.warn(f"{kind.__name__}.{name} is now: {names}", DeprecationWarning, stacklevel=2)
            if isinstance(now, str):
                return getattr(self, now)
            return types.SimpleNamespace(**{former: getattr(self, field) for former, field in now.items()})
