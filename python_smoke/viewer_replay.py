"""What a replay of a snapshot's events says, to hold against what its page says."""

from __future__ import annotations

from typing import Any

from viewer_data import ALLOCATE, FREE, MOVE, PENDING, PIN, PINNED, RETIRE, UNPIN


def replay(device, position):
    """Blocks after so many events of a history that lacks none, by id, in the order of the snapshot's columns."""
    events, blocks = device["events"], {}
    for row in list(zip(*events.values(), strict=True))[:position]:
        time, kind, block, address, size, origin, step, other, _ = row
        if kind == ALLOCATE:
            blocks[block] = [block, address, size, other, 0, origin, step, time, 0]
        elif kind == FREE:
            del blocks[block]
        elif kind == MOVE:
            blocks[block][1] = address
        elif kind == RETIRE:
            blocks[block][4] = PENDING
        elif kind == PIN:
            blocks[block][4], blocks[block][8] = PINNED, other
        elif kind == UNPIN:
            blocks[block][4], blocks[block][8] = 0, 0
    return sorted(blocks.values(), key=lambda block: block[1])


def holes(device, blocks):
    """Sizes of the holes of a device whose regions never changed."""
    found = []
    for start, size in zip(*device["regions"].values(), strict=True):
        reached = start
        for block in blocks:
            if start <= block[1] < start + size:
                found.append(block[1] - reached)
                reached = block[1] + block[2]
        found.append(start + size - reached)
    return [size for size in found if size]


def final_blocks(device):
    return [list(row) for row in zip(*device["blocks"].values(), strict=True)]


def by_origin(data, blocks):
    """Bytes asked for and ids, by label."""
    found: dict[str, list[Any]] = {}
    for block in blocks:
        entry = found.setdefault(data["origins"]["label"][block[5]], [0, set()])
        entry[0] += block[3]
        entry[1].add(block[0])
    return found


def first(run, kind):
    """The position after the first event of a kind."""
    return run["devices"][0]["events"]["kind"].index(kind) + 1
