"""For tests of your own: peaks that do not creep, and arrays that are not left behind.

    from pjrt_arena.testing import assert_peak_below

    with assert_peak_below("64MiB"):            a block
        step(state)

    @assert_peak_below("64MiB")                 each call of a function
    def test_step(): ...

With pytest, `pjrt_arena.pytest_plugin` has the same as a marker, ``@pytest.mark.peak_memory("64MiB")``, and a fixture,
``no_leaked_arrays``. All of it starts JAX. Sizes are in bytes, or texts such as ``"64MiB"``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pjrt_arena import _convert, _devices, _stacks, memory
from pjrt_arena._library import ArenaError
from pjrt_arena._stacks import Frame
from pjrt_arena._tables import size

if TYPE_CHECKING:
    from pjrt_arena._devices import Device
    from pjrt_arena._reports import TrackedDevice

__all__ = ["LeakedArray", "assert_no_leaks", "assert_peak_below", "parse_size"]

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}

#: `blocks.state` of arrays that somebody holds, live and pinned.
_HELD = (0, 1)

#: Holders, and leaked arrays, that a message names.
_TOP = 10


@dataclasses.dataclass(frozen=True, slots=True)
class LeakedArray:
    """An array that was made in a block and is still there after it."""

    #: The device, as the library names it, and what the array is: ``jit_step output 0 f32[256,256]``.
    device: str
    origin: str
    bytes: int
    #: The Python code that made it, the innermost frame first.
    stack: tuple[Frame, ...]

    def __str__(self) -> str:
        callers = "".join(f"\n      called from {frame}" for frame in self.stack[1:])
        return f"{size(self.bytes)} on {self.device}: {self.origin}{callers}"


def parse_size(limit: int | str) -> int:
    """Bytes of a size: a number, or a text such as ``"64MiB"``, ``"1.5 GB"`` or ``"4096"``.

        >>> from pjrt_arena.testing import parse_size
        >>> parse_size("1.5MiB")
        1572864

    Raises:
      ValueError: it is neither, or below 0.
    """
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0:
        return limit
    if isinstance(limit, str) and (found := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", limit)):
        scale = _UNITS.get(found[2].upper())
        if scale is not None:
            return int(float(found[1]) * scale)
    raise ValueError(f'limit={limit!r}; it must be a number of bytes, or a text such as "64MiB" or "1.5GB"')


@contextlib.contextmanager
def assert_peak_below(limit: int | str, *, device: Device | None = None) -> Iterator[None]:
    """Fails where more than `limit` bytes of a device are needed at once, at any time during the block.

        >>> import jax.numpy as jnp
        >>> from pjrt_arena.testing import assert_peak_below
        >>> with assert_peak_below("1GiB"):
        ...     total = jnp.ones(1 << 20).sum()

    It counts what `memory.track` counts: all arrays on the device, those that were there before among them, and with
    the strategy ``tpu`` the scratch of programs. A result counts from the call of its program on, so that nothing has
    to be waited for, and a peak is the same in each run. As a decorator it watches each call.

    Args:
      limit: bytes for each device, as a number or a text such as ``"64MiB"``; as much is allowed.
      device: only this one.

    Raises:
      AssertionError: more was needed; it names who held the memory at the peak, with the stacks if those are recorded.
        An exception of the block itself comes first.
      ArenaError: JAX does not run on the arena.
      ValueError: the limit is no size.
      UnknownDeviceError: there is no such device.
    """
    __tracebackhide__ = True
    most = parse_size(limit)
    _start()
    with memory.track(device=device) as seen:
        yield
    above = [one for one in seen.devices if one.peak_bytes_in_use > most]
    if above:
        raise AssertionError("\n".join(_too_much(one, most) for one in above))


@contextlib.contextmanager
def assert_no_leaks(*, device: Device | None = None) -> Iterator[None]:
    """Fails where arrays that were made in the block are still there after it, and names them with their stacks.

        >>> import jax.numpy as jnp
        >>> from pjrt_arena.testing import assert_no_leaks
        >>> with assert_no_leaks():
        ...     total = float(jnp.ones(1 << 20).sum())

    Python's garbage is collected before it looks. Arrays that the block gave to something which was there before, such
    as a cache, are leaks; so are those of the block's own variables, which Python keeps after it: put them into a
    function. Stacks are recorded meanwhile (`memory.record`).

    Args:
      device: only this one.

    Raises:
      AssertionError: there are such arrays. An exception of the block itself comes first.
      ArenaError: JAX does not run on the arena.
      UnknownDeviceError: there is no such device.
    """
    __tracebackhide__ = True
    _start()
    before = _held(device).keys()
    with memory.record(python=True):
        yield
    gc.collect()
    leaked = [array for key, array in _held(device).items() if key not in before]
    if leaked:
        raise AssertionError(_left(leaked))


def _start() -> None:
    """Starts JAX, on the arena."""
    import jax

    jax.devices()
    if not memory.summary().devices:
        backend = jax.default_backend()
        raise ArenaError(f"JAX runs on {backend}, not on the arena; set JAX_PLATFORMS=arena,cpu before JAX starts.")


def _held(device: Device | None) -> dict[tuple[str, int, int], LeakedArray]:
    """The arrays that are there, by the name and number of their device, and by their block."""
    gc.collect()
    only = None if device is None else _devices.name_of(device)
    with tempfile.TemporaryDirectory() as folder:
        data = memory.load_snapshot(memory.snapshot(Path(folder) / "now.json")).data
    labels = data["origins"]["label"]
    found = {}
    for number, one in enumerate(data["devices"]):
        if only not in (None, one["name"]):
            continue
        for block in _convert.rows(one["blocks"]):
            if block["state"] in _HELD:
                origin = block["origin"]
                stack = _stacks.of_snapshot(data, _stacks.stack_of(data, origin))
                found[one["name"], number, block["id"]] = LeakedArray(
                    one["name"], labels[origin], block["requested"], stack
                )
    return found


def _too_much(one: TrackedDevice, most: int) -> str:
    peak, before = one.peak_bytes_in_use, one.bytes_in_use_before
    head = (
        f"{one.device} needed {size(peak)} ({peak} bytes) at the peak, {size(peak - most)} more than the {size(most)} "
        f"that are allowed; {size(before)} were in use before. Held at the peak by:"
    )
    rows = [head]
    for holder in one.holders[:_TOP]:
        rows.append(f"  {size(holder.bytes)} in {holder.num_blocks} block(s): {holder.origin}")
        rows += [f"      called from {frame}" for frame in holder.stack[1:]]
    if one.holders_unknown:
        rows.append(f"  {one.holders_unknown}")
    return "\n".join(rows)


def _left(leaked: list[LeakedArray]) -> str:
    leaked = sorted(leaked, key=lambda array: -array.bytes)
    total = sum(array.bytes for array in leaked)
    rows = [f"{len(leaked)} array(s) of {size(total)} were made and are still there:"]
    rows += [f"  {array}" for array in leaked[:_TOP]]
    if rest := leaked[_TOP:]:
        rows.append(f"  and {len(rest)} more of {size(sum(array.bytes for array in rest))}")
    return "\n".join(rows)
