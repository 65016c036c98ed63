"""A stored snapshot in other formats: PyTorch's pickle, a trace for Perfetto, the page, JSON.

The library writes the same of a live process (``src/report/snapshot``); the tests hold the two against each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pjrt_arena import _library, _stacks

#: The ends of file names of snapshots.
FORMATS = (".html", ".json", ".perfetto.json", ".pickle")

#: ``blocks.state``: of arrays that are live and that are pinned; of what waits for a program; of programs' scratch.
_PENDING, _SCRATCH = 2, 3

#: ``events.kind``, as `EventKind` in src/memory/history.rs has it.
_ALLOCATE, _FREE, _RETIRE, _MOVE, _REGION, _REGION_GONE, _FAILED = 0, 1, 2, 5, 6, 7, 8
_COMPACTION, _SCRATCH_NOW, _SPILL, _RETURN = 9, 10, 11, 12

#: What PyTorch calls what happened, for a free of a block that was in use.
_ACTIONS = {
    _ALLOCATE: ("alloc",),
    _FREE: ("free_requested", "free_completed"),
    _RETIRE: ("free_requested",),
    _MOVE: ("free_requested", "free_completed", "alloc"),
    _REGION: ("segment_alloc",),
    _REGION_GONE: ("segment_free",),
    _FAILED: ("oom",),
}


def save(data: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Writes the snapshot `data` to `path`, in the format of its end; see `Snapshot.save`."""
    target = Path(path)
    write_private(target, _encode(data, target))
    return target


def _encode(data: Mapping[str, Any], target: Path) -> bytes:
    name = target.name.lower()
    if name.endswith(".perfetto.json"):
        return json.dumps(trace(data), separators=(",", ":")).encode()
    if name.endswith(".json"):
        return _json(data).encode()
    if name.endswith(".html"):
        if page := _library.load().snapshot_page(_json(data)):
            return page.encode()
        raise ValueError("the library does not take this snapshot for JSON")
    if name.endswith(".pickle"):
        # As old as the viewer may want it.
        return pickle.dumps(torch_snapshot(data), protocol=2)
    raise ValueError(f"a report's file name ends in one of {', '.join(FORMATS)}; {target} does not")


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def write_private(target: Path, contents: bytes) -> None:
    """Writes a file for its user alone (mode 0600), as a whole or not at all; a link or a folder is refused.

    Raises:
      OSError: it cannot be written.
    """
    if target.is_symlink() or (target.exists() and not target.is_file()):
        raise OSError(f"{target} is a link, a folder or a device; give the path of a file")
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, error.strerror, os.fspath(target)) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(contents)
        Path(temporary).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def rows(columns: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """The rows of a table that is stored by columns."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def torch_snapshot(data: Mapping[str, Any]) -> dict[str, Any]:
    """What PyTorch's memory viewer opens: segments with their blocks, and for each device what happened."""
    origins, began = data["origins"], int(data["began_unix_ns"]) // 1000
    # Equal stacks are one object, which a pickle has once.
    stacks: dict[tuple[int, int], list[dict[str, Any]]] = {}

    def stack(row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The frame that says where a block came from, and those of the Python code that made it."""
        key = (row["origin"], row["step"])
        if key not in stacks:
            file = origins["program"][key[0]] or "pjrt-arena"
            made_by = _stacks.of_snapshot(data, _stacks.stack_of(data, key[0]))
            stacks[key] = [
                {"name": origins["label"][key[0]], "filename": file, "line": key[1]},
                *({"name": frame.name, "filename": frame.file, "line": frame.line} for frame in made_by),
            ]
        return stacks[key]

    def segment(number: int, device: Mapping[str, Any], region: Mapping[str, int]) -> dict[str, Any]:
        begin, end = region["address"], region["address"] + region["bytes"]
        blocks, at = [], begin
        inside = (block for block in rows(device["blocks"]) if begin <= block["address"] < end)
        for block in sorted(inside, key=lambda block: int(block["address"])):
            if block["address"] > at:
                blocks.append(_hole(at, block["address"]))
            state = "active_pending_free" if block["state"] == _PENDING else "active_allocated"
            sizes = {"size": block["bytes"], "requested_size": block["requested"]}
            blocks.append({"address": block["address"], **sizes, "state": state, "frames": stack(block)})
            at = block["address"] + block["bytes"]
        if end > at:
            blocks.append(_hole(at, end))
        active = [block for block in blocks if block["state"] != "inactive"]
        return {
            "device": number,
            "address": begin,
            "total_size": region["bytes"],
            "allocated_size": sum(block["size"] for block in active if block["state"] == "active_allocated"),
            "active_size": sum(block["size"] for block in active),
            "requested_size": sum(block["requested_size"] for block in active),
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }

    def actions(device: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        for event in rows(device["events"]):
            names = _ACTIONS.get(event["kind"], ())
            if event["kind"] == _FREE and event["before"] == _PENDING:
                names = ("free_completed",)
            for name in names:
                moved_from = event["kind"] == _MOVE and name != "alloc"
                address = 0 if name == "oom" else event["other"] if moved_from else event["address"]
                time = began + event["time"] // 1000
                action = {"action": name, "addr": address, "size": event["bytes"], "stream": 0, "time_us": time}
                if name == "oom":
                    action["device_free"] = device["stats"]["free"]
                yield {**action, "frames": stack(event)}

    devices = data["devices"]
    return {
        "segments": [
            segment(number, device, region)
            for number, device in enumerate(devices)
            for region in rows(device["regions"])
        ],
        "device_traces": [list(actions(device)) for device in devices],
        "allocator_settings": {"allocator": "pjrt-arena"},
        "external_annotations": [],
    }


def _hole(begin: int, end: int) -> dict[str, Any]:
    return {"address": begin, "size": end - begin, "requested_size": 0, "state": "inactive", "frames": []}


def trace(data: Mapping[str, Any]) -> dict[str, Any]:
    """The history in the Chrome trace event format: each device is a process; times are microseconds since 1970."""
    entries: list[dict[str, Any]] = []
    for number, device in enumerate(data["devices"]):
        for name, text in (
            ("process_name", f"pjrt-arena {device['name']}"),
            ("thread_name", "compactions and failures"),
        ):
            entries.append({"name": name, "ph": "M", "pid": number + 1, "tid": 0, "args": {"name": text}})
        entries += _course(data, number + 1, device)
    return {"traceEvents": entries, "displayTimeUnit": "ms"}


def _course(data: Mapping[str, Any], pid: int, device: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Counters as they changed, a slice for each compaction and move to or from the tier, an instant for a failure."""
    began, events = int(data["began_unix_ns"]), list(rows(device["events"]))
    sums = _now(device)
    for event in reversed(events):
        _apply(sums, event, -1)

    def at(nanos: int, name: str, kind: str, **more: Any) -> dict[str, Any]:
        # The order of the library's: a double keeps a quarter of a microsecond.
        return {"name": name, "ph": kind, "ts": float(began + nanos) / 1000.0, "pid": pid, "tid": 0, **more}

    def memory(nanos: int) -> dict[str, Any]:
        told = {name: sums[name] for name in ("in use", "pending", "scratch")}
        return at(nanos, "memory", "C", args=told)

    def pool(nanos: int) -> dict[str, Any]:
        return at(nanos, "pool", "C", args={"pool": sums["pool"]})

    first = events[0]["time"] if events else data["now"]
    yield from (memory(first), pool(first))
    for event in events:
        before, time, kind = dict(sums), event["time"], event["kind"]
        _apply(sums, event, 1)
        if {**sums, "pool": before["pool"]} != before:
            yield memory(time)
        if sums["pool"] != before["pool"]:
            yield pool(time)
        if kind in (_COMPACTION, _SPILL, _RETURN):
            name = {_COMPACTION: "compaction", _SPILL: "spill", _RETURN: "return"}[kind]
            copied = {"bytes": event["bytes"], "bytes copied": event["other"]}
            moved = {
                "buffers moved": event["block"],
                "bytes moved": event["bytes"],
                "largest hole after": event["other"],
            }
            args = moved if kind == _COMPACTION else copied
            yield at(max(time - event["step"], 0), name, "X", dur=event["step"] / 1000.0, args=args)
        if kind == _FAILED:
            args = {"bytes": event["bytes"], "for": data["origins"]["label"][event["origin"]]}
            yield at(time, "out of memory", "i", s="p", args=args)
    yield from (memory(data["now"]), pool(data["now"]))


def _now(device: Mapping[str, Any]) -> dict[str, int]:
    """What blocks take, by what they are, when the snapshot was taken."""
    sums = {"in use": 0, "pending": 0, "scratch": 0, "pool": sum(device["regions"]["bytes"])}
    blocks = device["blocks"]
    for state, held in zip(blocks["state"], blocks["bytes"], strict=True):
        sums[{_PENDING: "pending", _SCRATCH: "scratch"}.get(state, "in use")] += held
    return sums


def _apply(sums: dict[str, int], event: Mapping[str, Any], sign: int) -> None:
    """What an event changes; with -1, what undoing it does."""
    kind, held = event["kind"], sign * event["bytes"]
    if kind == _ALLOCATE:
        sums["in use"] += held
    elif kind == _FREE:
        sums["pending" if event["before"] == _PENDING else "in use"] -= held
    elif kind == _RETIRE:
        sums["in use"] -= held
        sums["pending"] += held
    elif kind in (_REGION, _REGION_GONE):
        sums["pool"] += held if kind == _REGION else -held
    elif kind == _SCRATCH_NOW:
        sums["scratch"] = event["bytes"] if sign > 0 else event["other"]
