"""What a program costs, where the engine does not say: XLA in jaxlib reads the optimised HLO and counts."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pjrt_arena._library import Library

_log = logging.getLogger(__name__)


def properties(module: bytes) -> dict[str, float]:
    """What JAX's own CPU backend would say of this `HloModuleProto`."""
    from jax.extend import backend
    from jaxlib import _jax

    try:
        from jaxlib._hlo import HloModule
    except ImportError:  # an older jaxlib
        from jaxlib._jax import HloModule

    parsed = HloModule.from_serialized_hlo_module_proto(module)
    cost: dict[str, float] = _jax.hlo_module_cost_analysis(backend.get_backend("cpu"), parsed)
    return cost


def _answer(module: bytes) -> tuple[int, bytes]:
    try:
        lines = [f"{float(value)!r} {name}\n" for name, value in properties(module).items()]
        return -1, "".join(lines).encode()
    except BaseException as error:  # nothing may leave a callback
        _log.debug("jaxlib does not analyse the cost of a program: %r", error)
        return 0, b""


@functools.cache
def install(library: Library) -> None:
    """Has the cost of programs that the engine does not analyse counted here; nothing of JAX is started before it is
    asked for."""
    from jax_plugins.arena import _hooks

    library.install_hook("cost_analysis", _hooks.hook(_answer, inputs=1))
