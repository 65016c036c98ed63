"""Groups of processes that share devices (``PJRT_ARENA_SHARE``): `Group`, as a table, and as it changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from pjrt_arena._stats import known
from pjrt_arena._tables import age, cell, lines, shorten, size


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A process that shares a device, and its part."""

    #: Its number, in its own pid namespace, and the beginning of its command's name.
    pid: int
    command: str
    #: ``running``, ``stopped`` (by a signal or a debugger), ``dead``, or ``not visible`` from this pid namespace.
    state: str
    #: Whether it is this process.
    is_self: bool
    #: What it has taken of the device; what of that is in use, and what it could give back at once, as it says.
    held_bytes: int
    used_bytes: int
    idle_bytes: int
    #: What nobody takes from it, and its weight.
    min_bytes: int
    weight: int
    #: What it waits for, and for how long: zeros if it waits for nothing.
    asks_bytes: int
    asks_seconds: float
    #: What it has asked the others for since it is there, and what it has given back for them.
    total_asked_bytes: int
    total_given_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupDevice:
    """A device that processes share."""

    #: The limit of all of them together.
    bytes_limit: int
    members: tuple[GroupMember, ...]

    @property
    def free_bytes(self) -> int:
        """What nobody has taken."""
        return max(self.bytes_limit - sum(member.held_bytes for member in self.members), 0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Processes of this user with the same ``PJRT_ARENA_SHARE``. ``print(group)`` is a table."""

    name: str
    devices: tuple[GroupDevice, ...]
    #: Why the group cannot be read; empty if it can.
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"group {self.name}: {self.error}"
        rows = []
        for number, device in enumerate(self.devices):
            held, free = device.bytes_limit - device.free_bytes, device.free_bytes
            members = "1 process" if len(device.members) == 1 else f"{len(device.members)} processes"
            shared = f"{size(device.bytes_limit)} for {members}"
            rows.append(f"group {self.name}, device {number}: {shared}; {size(held)} held, {size(free)} free")
            if device.members:
                heads = ("held", "in use", "idle", "asked", "given")
                rows.append(f"  {'process':<25}" + "".join(f"{head:>12}" for head in heads) + "  waits for")
            rows += map(_row, sorted(device.members, key=lambda member: -member.held_bytes))
        return lines(rows)


def _row(member: GroupMember) -> str:
    name = shorten(f"{member.pid} {member.command}" + (" (this)" if member.is_self else ""), 24)
    numbers = (
        member.held_bytes,
        member.used_bytes,
        member.idle_bytes,
        member.total_asked_bytes,
        member.total_given_bytes,
    )
    waits = ""
    if member.state != "running":
        waits = f"  {member.state}"
    elif member.asks_bytes:
        waits = f"  {size(member.asks_bytes)}, {age(member.asks_seconds)}"
    return f"  {name:<25}" + "".join(map(cell, numbers)) + waits


def read(told: Iterable[Mapping[str, Any]]) -> tuple[Group, ...]:
    """The groups in the answer of ``pjrt_arena_groups``."""
    groups = []
    for group in told:
        devices = tuple(
            GroupDevice(
                bytes_limit=device["limit_bytes"],
                members=tuple(GroupMember(**known(GroupMember, member)) for member in device["members"]),
            )
            for device in group.get("devices", ())
        )
        groups.append(Group(name=group["name"], devices=devices, error=group.get("error", "")))
    return tuple(groups)
