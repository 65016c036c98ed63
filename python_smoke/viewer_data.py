"""Snapshots for the viewer's tests: a training run, simulated, and the page that shows it.

`Arena` is a small allocator of its own (best fit, coalescing, compaction around pinned blocks), so that what it records
is consistent: what the viewer undoes and redoes must end at the blocks that are there. The same seed gives the same
snapshot. Run as a program it writes a page: `python viewer_data.py page.html [--large]`.
"""

from __future__ import annotations

import bisect
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

VIEWER = Path(__file__).parent.parent / "src" / "report" / "viewer"
KIB, MIB = 1 << 10, 1 << 20
MS = 1_000_000
GRANULE = 256
ALLOCATE, FREE, RETIRE, PIN, UNPIN, MOVE, REGION, REGION_GONE, OUT_OF_MEMORY, COMPACTION, SCRATCH = range(11)
LIVE, PINNED, PENDING, RESERVED = range(4)
UNKNOWN, RESULT, FROM_HOST, COPY, TRANSFER = range(5)
PIN_REASONS = ["", "a NumPy view or dlpack holds it", "its address was given out", "a program uses it"]
EVENT_COLUMNS = ["time", "kind", "block", "address", "bytes", "origin", "step", "other", "before"]
BLOCK_COLUMNS = ["id", "address", "bytes", "requested", "state", "origin", "step", "born", "pin"]


class Origins:
    """What blocks may come from; the first is always unknown."""

    def __init__(self):
        self.columns: dict[str, list[Any]] = {"kind": [], "program": [], "result": [], "shape": [], "label": []}
        self.add(UNKNOWN, "unknown")

    def add(self, kind, label, program="", result=-1, shape=""):
        for name, value in zip(self.columns, (kind, program, result, shape, label), strict=True):
            self.columns[name].append(value)
        return len(self.columns["kind"]) - 1

    def result(self, program, number, shape):
        return self.add(RESULT, f"{program} output {number} {shape}", program, number, shape)

    def from_host(self, shape):
        return self.add(FROM_HOST, f"from host {shape}", shape=shape)


class Arena:
    """One device's memory, and a record of all that happens to it."""

    def __init__(self, name, limit, strategy="preallocate", base=0x7F20_0000_0000):
        self.name, self.limit, self.strategy = name, limit, strategy
        self.regions, self.blocks = {}, {}
        self.by_size, self.by_start, self.by_end = [], {}, {}
        self.events: dict[str, list[Any]] = {column: [] for column in EVENT_COLUMNS}
        self.failures = []
        self.time, self.next_id, self.next_base = 0, 1, base
        self.reserved = 0
        self.in_use = self.peak = self.peak_pool = self.moved = self.compactions = self.frees = 0
        self.allocated_total = self.freed_total = 0
        if strategy == "preallocate":
            self.grow(limit)

    def record(self, kind, block=0, address=0, bytes=0, origin=0, step=0, other=0, before=LIVE):
        row = (self.time, kind, block, address, bytes, origin, step, other, before)
        for column, value in zip(EVENT_COLUMNS, row, strict=True):
            self.events[column].append(value)

    def grow(self, size):
        self.regions[self.next_base] = size
        self.record(REGION, address=self.next_base, bytes=size)
        self._add_hole(self.next_base, size)
        self.next_base += size + 64 * MIB
        self.peak_pool = max(self.peak_pool, sum(self.regions.values()))

    def shrink(self, address):
        """Gives back a region that nobody uses."""
        size = self.regions.pop(address)
        self._drop_hole(address)
        self.record(REGION_GONE, address=address, bytes=size)

    def _add_hole(self, start, size):
        before = self.by_end.get(start)
        if before is not None and start not in self.regions:
            size += self.by_start[before]
            self._drop_hole(before)
            start = before
        after = start + size
        if after in self.by_start and after not in self.regions:
            size += self.by_start[after]
            self._drop_hole(after)
        self.by_start[start] = size
        self.by_end[start + size] = start
        bisect.insort(self.by_size, (size, start))

    def _drop_hole(self, start):
        size = self.by_start.pop(start)
        del self.by_end[start + size]
        del self.by_size[bisect.bisect_left(self.by_size, (size, start))]

    @property
    def largest_hole(self):
        return self.by_size[-1][0] if self.by_size else 0

    @property
    def free_bytes(self):
        return sum(self.by_start.values())

    def allocate(self, requested, origin, step=0):
        """The new block's id, or None, and then the failure is recorded."""
        taken = -(-max(requested, 1) // GRANULE) * GRANULE
        at = bisect.bisect_left(self.by_size, (taken, 0))
        if self.strategy == "platform":
            self.grow(taken)
            at = len(self.by_size) - 1
        if at == len(self.by_size) and self.strategy == "growing":
            room = self.limit - sum(self.regions.values())
            if room >= taken:
                self.grow(min(room, max(taken, 64 * MIB)))
                at = bisect.bisect_left(self.by_size, (taken, 0))
        if at == len(self.by_size):
            return None
        size, start = self.by_size[at]
        self._drop_hole(start)
        if size > taken:
            self._add_hole(start + taken, size - taken)
        block, self.next_id = self.next_id, self.next_id + 1
        self.blocks[block] = {
            "id": block,
            "address": start,
            "bytes": taken,
            "requested": requested,
            "state": LIVE,
            "origin": origin,
            "step": step,
            "born": self.time,
            "pin": 0,
        }
        self.record(ALLOCATE, block, start, taken, origin, step, requested)
        self.in_use += requested
        self.allocated_total += requested
        self.peak = max(self.peak, self.in_use)
        return block

    def fail(self, requested, origin, origins):
        free, hole = self.free_bytes, self.largest_hole
        pool = sum(self.regions.values())
        text = (
            f"RESOURCE_EXHAUSTED: Out of memory on {self.name} while allocating {requested} bytes for "
            f"{origins.columns['label'][origin]}.\nThere are {free} bytes free, but the largest hole is {hole} bytes "
            f"and blocks that may not be moved lie between the holes.\n"
            f"  limit {self.limit}, pool {pool} = in use {self.in_use} + free {free}"
        )
        self.failures.append(
            {
                "bytes": requested,
                "origin": origin,
                "program": origins.columns["program"][origin],
                "in_use": self.in_use,
                "free": free,
                "pending": 0,
                "pool": pool,
                "limit": self.limit,
                "largest_hole": hole,
                "text": text,
            }
        )
        self.record(OUT_OF_MEMORY, 0, 0, requested, origin, other=len(self.failures) - 1)

    def note(self, kind, block, **more):
        more.setdefault("before", block["state"])
        self.record(kind, block["id"], block["address"], block["bytes"], block["origin"], block["step"], **more)

    def free(self, block):
        block = self.blocks.pop(block)
        if block["state"] != PENDING:
            self.in_use -= block["requested"]
        self.freed_total += block["requested"]
        self.frees += 1
        self.note(FREE, block, other=block["born"])
        self._add_hole(block["address"], block["bytes"])
        if self.strategy == "platform":
            self.shrink(block["address"])

    def retire(self, block):
        block = self.blocks[block]
        self.note(RETIRE, block)
        block["state"] = PENDING
        self.in_use -= block["requested"]

    def pin(self, block, reason):
        block = self.blocks[block]
        self.note(PIN, block, other=reason)
        block["state"], block["pin"] = PINNED, reason

    def unpin(self, block):
        block = self.blocks[block]
        self.note(UNPIN, block, other=block["pin"])
        block["state"], block["pin"] = LIVE, 0

    def reserve(self, size):
        """Scratch at the bottom of the first region, which must be free."""
        bottom = min(self.regions)
        if self.reserved:
            self._add_hole(bottom, self.reserved)
        before, self.reserved = self.reserved, size
        if size:
            hole = self.by_start[bottom]
            assert hole >= size, "scratch does not fit"
            self._drop_hole(bottom)
            if hole > size:
                self._add_hole(bottom + size, hole - size)
        self.record(SCRATCH, address=bottom, bytes=size, other=before)

    def compact(self):
        """Slides all blocks that may move down to the first room that takes them."""
        began, moves, moved = self.time, 0, 0
        for block in sorted(self.blocks.values(), key=lambda block: block["address"]):
            if block["state"] != LIVE:
                continue
            size, old = block["bytes"], block["address"]
            hole = min((h for h, room in self.by_start.items() if h < old and room >= size), default=None)
            if hole is None:
                continue
            room = self.by_start[hole]
            self._drop_hole(hole)
            if room > size:
                self._add_hole(hole + size, room - size)
            self._add_hole(old, size)
            block["address"] = hole
            self.time += size // 40 + 1000
            self.note(MOVE, block, other=old)
            moves, moved = moves + 1, moved + block["requested"]
        self.time += 50_000
        self.record(COMPACTION, moves, 0, moved, 0, self.time - began, self.largest_hole)
        self.compactions += 1
        self.moved += moved
        return moves

    def device(self, keep=None):
        """As the snapshot has it; of the events, the last `keep`."""
        lost = 0 if keep is None else max(0, len(self.events["time"]) - keep)
        blocks = sorted(self.blocks.values(), key=lambda block: block["address"])
        pending = [block for block in blocks if block["state"] == PENDING]
        pool = sum(self.regions.values())
        taken = sum(block["bytes"] for block in blocks)
        table = {column: [block[column] for block in blocks] for column in BLOCK_COLUMNS}
        if self.reserved:
            row = dict.fromkeys(BLOCK_COLUMNS, 0) | {
                "address": min(self.regions),
                "bytes": self.reserved,
                "requested": self.reserved,
                "state": RESERVED,
            }
            table = {column: [row[column], *values] for column, values in table.items()}
        in_pending = sum(block["requested"] for block in pending)
        return {
            "name": self.name,
            "strategy": self.strategy,
            "compaction": True,
            "limit": self.limit,
            "stats": {
                "in_use": self.in_use,
                "peak_in_use": self.peak,
                "pending": in_pending,
                "slack": taken - self.in_use - in_pending,
                "reserved": self.reserved,
                "free": self.free_bytes,
                "pool": pool,
                "peak_pool": self.peak_pool,
                "largest_hole": self.largest_hole,
                "pinned": sum(block["requested"] for block in blocks if block["state"] == PINNED),
                "allocated_total": self.allocated_total,
                "freed_total": self.freed_total,
                "allocations": self.next_id - 1,
                "frees": self.frees,
                "compactions": self.compactions,
                "moved": self.moved,
                "engine": 3 * MIB,
            },
            "regions": {"address": sorted(self.regions), "bytes": [self.regions[a] for a in sorted(self.regions)]},
            "blocks": table,
            "events": {column: values[lost:] for column, values in self.events.items()},
            "events_lost": lost,
            "failures": self.failures,
        }


def snapshot(origins, devices, now, process=4711, command="train.py", written="1790000000000000000"):
    return {
        "schema": "pjrt-arena.snapshot",
        "version": 1,
        "library": "0.1.0",
        "process": process,
        "command": command,
        "written_unix_ns": written,
        "began_unix_ns": "1789999940000000000",
        "now": now,
        "origins": origins.columns,
        "pin_reasons": PIN_REASONS,
        "devices": devices,
    }


def training_run(*, layers=12, steps=60, seed=1, keep=None, grown=0):
    """A model that trains on cpu:0: activations come and go, each step leaves a loss and some leave a checkpoint, host
    views pin arrays, a batch of twice the size does not fit; cpu:1, growing, holds what was copied there.
    `grown` steps more leave a cache of that many arrays."""
    rng = random.Random(seed)
    origins = Origins()
    weights = [origins.result("jit_init", i, f"f32[{256 << (i % 3)},1024]") for i in range(layers)]
    activations = [origins.result("jit_train_step", i, f"f32[512,{256 << (i % 3)}]") for i in range(layers)]
    loss = origins.result("jit_train_step", layers, "f32[]")
    batch = origins.from_host("bf16[512,1024]")
    metrics = origins.result("jit_evaluate", 0, "f32[64,64]")
    checkpoint = origins.add(COPY, "copy of f32[1024,1024]", shape="f32[1024,1024]")
    cache = origins.result("jit_decode", 0, "bf16[1,128,512]")
    incoming = origins.add(TRANSFER, "transfer from cpu:1 f32[256,1024]", shape="f32[256,1024]")

    first = Arena("cpu:0", 112 * MIB)
    second = Arena("cpu:1", 512 * MIB, "growing", base=0x7F60_0000_0000)

    def tick(least=5, most=40):
        first.time += rng.randint(least, most) * MS // 100
        second.time = first.time

    def fits(arena, size, origin, step):
        block = arena.allocate(size, origin, step)
        if block is None:
            arena.compact()
            block = arena.allocate(size, origin, step)
        return block

    params = [first.allocate((256 << (i % 3)) * 4096, weights[i], 1) for i in range(layers)]
    held, pinned = [], []
    for step in range(2, steps + 2):
        tick()
        data = fits(first, 512 * 1024 * 2, batch, step)
        forward = []
        for i, origin in enumerate(activations):
            tick()
            forward.append(fits(first, 512 * (256 << (i % 3)) * 4 - rng.randrange(3) * 64, origin, step))
            if rng.random() < 0.3:
                held.append(first.allocate(rng.choice((4, 4, 16384, 200_000)), rng.choice((loss, metrics)), step))
        held.append(first.allocate(4, loss, step))
        if step % 9 == 0:
            held.append(fits(first, 4 * MIB, checkpoint, step))
        if step % 6 == 0:
            block = rng.choice([block for block in held if block and first.blocks[block]["state"] == LIVE])
            first.pin(block, rng.choice((1, 1, 2)))
            pinned.append(block)
        if step % 14 == 0 and pinned:
            first.unpin(pinned.pop(rng.randrange(len(pinned))))
        rng.shuffle(forward)
        for block in filter(None, forward):
            tick(1, 8)
            if rng.random() < 0.2:
                first.retire(block)
                tick(1, 8)
            first.free(block)
        first.free(data)
        if step % 4 == 0 and len(held) > 6:
            for _ in range(3):
                block = held.pop(rng.randrange(len(held)))
                if block and first.blocks[block]["state"] == LIVE:
                    first.free(block)
                elif block:
                    held.append(block)
        if step % 5 == 0:
            second.allocate(256 * 4096 * 4, incoming, step)
        if step == steps * 2 // 3:
            first.compact()
        if step == steps * 4 // 5:
            tick()
            first.fail(first.largest_hole + (first.free_bytes - first.largest_hole) // 2, activations[2], origins)
    # Some of the last step are still under way.
    tick()
    last = [fits(first, 512 * (256 << (i % 3)) * 4, activations[i], steps + 2) for i in range(4)]
    first.retire(last[1])
    first.pin(params[0], 3)
    tick(100, 200)
    for step in range(grown):
        tick(1, 3)
        held.append(first.allocate(rng.choice((MIB // 2, MIB // 4, 131072)), cache, steps + 2 + step))
    devices = [first.device(keep), second.device(keep)]
    return snapshot(origins, devices, first.time, written=str(1790000000000000000 + grown * 1_000_000_000))


def large_run(blocks=50_000, events=200_000, seed=7):
    """As many blocks and events as a long run has: small arrays of 300 origins with random lives."""
    rng = random.Random(seed)
    origins = Origins()
    kinds = [origins.result(f"jit_program_{i % 24}", i // 24, f"f32[{rng.randrange(1, 4096)}]") for i in range(280)] + [
        origins.from_host(f"bf16[{i + 1},128]") for i in range(20)
    ]
    arena = Arena("cpu:0", blocks * 200_000)
    live: list[Any] = []
    while len(live) < blocks:
        arena.time += rng.randrange(20_000)
        live.append(arena.allocate(rng.choice((256, 4096, 20_000, 65_536, 130_000)), rng.choice(kinds), len(live) // 8))
    while len(arena.events["time"]) < events + blocks:
        arena.time += rng.randrange(20_000)
        at = rng.randrange(len(live))
        live[at], live[-1] = live[-1], live[at]
        block = live.pop()
        if arena.blocks[block]["state"] == PINNED:
            arena.unpin(block)
        elif rng.random() < 0.02:
            arena.pin(block, 1)
            live.append(block)
            continue
        arena.free(block)
        size = rng.choice((256, 4096, 20_000, 65_536, 130_000, 400_000))
        live.append(arena.allocate(size, rng.choice(kinds), arena.next_id // 8))
        assert live[-1] is not None
    return snapshot(origins, [arena.device(events)], arena.time, command="large.py")


def scratch_run():
    """Strategy tpu: scratch at the bottom grows, shrinks and goes."""
    origins = Origins()
    origin = origins.result("jit_f", 0, "f32[1024]")
    arena = Arena("tpu:0", 16 * MIB)
    arena.strategy = "tpu"
    arena.reserve(4 * MIB)
    blocks = []
    for size in (MIB, 2 * MIB, 3 * MIB):
        arena.time += MS
        blocks.append(arena.allocate(size, origin, 1))
    arena.time += MS
    arena.reserve(0)
    arena.reserve(2 * MIB)
    arena.free(blocks[1])
    arena.time += MS
    return snapshot(origins, [arena.device()], arena.time)


def platform_run(blocks=200):
    """Strategy platform: a region for each block, so many of them."""
    origins = Origins()
    kinds = [origins.result("jit_f", i, f"f32[{64 << i}]") for i in range(6)]
    arena = Arena("cpu:0", 1 << 30, "platform")
    rng, live = random.Random(3), []
    for step in range(2 * blocks):
        arena.time += MS // 4
        which = rng.randrange(6)
        live.append(arena.allocate(256 << (2 * which), kinds[which], step))
        if len(live) > blocks:
            arena.free(live.pop(rng.randrange(blocks)))
    return snapshot(origins, [arena.device()], arena.time)


def hostile_run():
    """Names that try to end the script, to mark text up, to turn it around or to be endless."""
    origins = Origins()
    names = [
        "</script><script>window.harmed = 1</script>",
        "<img src=x onerror='window.harmed = 1'>",
        "\u202eevil\u202d \u200fprogram",
        "x" * 5000,
        "__proto__",
        "\u0000\u2028\u2029 --><!-- ${window.harmed = 1}",
    ]
    arena = Arena("<b>cpu</b>:0</script>", 8 * MIB)
    for name in names:
        arena.time += MS
        arena.allocate(MIB // 2 + 7, origins.add(RESULT, name, name), 3)
    arena.fail(7 * MIB, 1, origins)
    return snapshot(origins, [arena.device()], arena.time, command="</title><script>window.harmed = 1</script>")


def empty():
    return snapshot(Origins(), [], 0)


def page(data) -> str:
    """The viewer's page around a snapshot (a dict, or any text in its place), as the library writes it."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))

    template = (VIEWER / "viewer.html").read_text(encoding="utf-8")
    for name in re.findall(r"@([a-z]+\.(?:js|css))@", template):
        template = template.replace(f"@{name}@", (VIEWER / name).read_text(encoding="utf-8"), 1)
    assert template.count("@@SNAPSHOT@@") == 1
    return template.replace("@@SNAPSHOT@@", text.replace("<", "\\u003c"))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(large_run() if "--large" in sys.argv else training_run()), encoding="utf-8")
