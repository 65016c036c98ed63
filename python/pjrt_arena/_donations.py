"""Arguments that programs should be donated: `Donation`, and its text."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pjrt_arena._tables import WIDTH, size


@dataclasses.dataclass(frozen=True, slots=True)
class Donation:
    """Arguments of a program that nothing used after a launch, while a result of their shape took memory of its own."""

    #: The program, as in every report: ``jit_step``.
    program: str
    #: The arguments' numbers, counted over the leaves of all arguments as JAX flattens them.
    arguments: tuple[int, ...]
    #: What ``donate_argnums`` for them saves on each device, in bytes.
    bytes: int
    #: So many launches were seen, and after none of them was one of the arguments used again.
    num_launches: int
    #: The devices, as the library names them.
    devices: tuple[str, ...]

    def _text(self, saves: str, when: str, indent: str = "") -> str:
        one = len(self.arguments) == 1
        each = f" on each of {len(self.devices)} devices" if len(self.devices) > 1 else ""
        text = (
            f"donating {_numbered(self.arguments)} of {self.program} (donate_argnums) {saves} {size(self.bytes)}{each}"
            f" {when}; {'it was' if one else 'they were'} not used again in {self.num_launches} of {self.num_launches}"
            " launches"
        )
        return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")


def read_donations(told: Iterable[Mapping[str, Any]]) -> tuple[Donation, ...]:
    """Donations as the library tells them, the one that saves most first."""
    return tuple(
        Donation(one["program"], tuple(one["arguments"]), one["bytes"], one["launches"], tuple(one["devices"]))
        for one in told
    )


def on_all_devices(donations: Iterable[Donation]) -> tuple[Donation, ...]:
    """One donation for those that differ in nothing but the devices."""
    devices: dict[Donation, tuple[str, ...]] = {}
    for one in donations:
        key = dataclasses.replace(one, devices=())
        devices[key] = devices.get(key, ()) + one.devices
    return tuple(dataclasses.replace(one, devices=names) for one, names in devices.items())


def _numbered(numbers: Sequence[int]) -> str:
    """``argument 3``, ``arguments 0 to 11 and 14``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    # Two are a list: 0 and 1.
    parts = [
        part
        for run in runs
        for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(number) for number in run])
    ]
    *before, last = parts
    return f"argument{'s' if len(numbers) > 1 else ''} " + (f"{', '.join(before)} and {last}" if before else last)
