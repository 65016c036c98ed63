"""Markdown of a run, for people: what is wrong first, then a table for each part. `python -m gpu.report FILE.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu.jobs import PARTS
from gpu.units import rate, seconds, size, table

Record = dict[str, Any]
VERBS = {"failed": "failed", "timeout": "took too long", "skipped": "was left out"}


def states(record: Record) -> dict[str, str]:
    """Of each check that a process was to run: ok, its error, or `-` where it was not reached."""
    result = record.get("result") or {}
    failed = {each["name"]: each["error"] for each in result.get("failed", ())}
    found = {name: failed.get(name, "ok") for name in result.get("seconds", {})}
    if record["status"] in ("failed", "timeout"):
        # Without a step the process ended before its first check.
        found[result.get("ended_at", "the start")] = record["error"]
    return found


def broken(records: list[Record]) -> dict[str, Record]:
    """The checks that fail on the arena and on none of JAX's own allocators, each with the first record of it."""
    theirs: set[str] = set()
    ours: dict[str, Record] = {}
    for record in (each for each in records if each["part"] == "checks" and not each.get("again")):
        wrong = {name for name, state in states(record).items() if state != "ok"}
        if record["ours"]:
            ours |= {name: record for name in wrong if name not in ours}
        else:
            theirs |= wrong
    return {name: record for name, record in ours.items() if name not in theirs}


def failures(records: list[Record]) -> list[Record]:
    """What did not end well on the arena, checks apart."""
    bad = ("failed", "timeout")
    return [each for each in records if each["ours"] and each["part"] != "checks" and each["status"] in bad]


def verdict(report: dict[str, Any]) -> list[str]:
    """What is wrong, a line for each."""
    records, lines = report["records"], list(report["notes"])
    for name, record in broken(records).items():
        lines.append(f"**{name}** fails on {record['title']} and on none of JAX's allocators: {states(record)[name]}")
        tried = {each["again"]: states(each).get(name, "-") for each in records if each.get("check") == name}
        passes = [note for note, state in tried.items() if state == "ok"]
        lines.append(f"  - it passes with: {', '.join(passes) or 'nothing that was tried'}")
        lines += [f"  - {note}: {state}" for note, state in tried.items() if state not in ("ok", states(record)[name])]
    lines += [f"{PARTS[each['part']]}, {each['title']}: {each['error']}" for each in failures(records)]
    return lines or ["All that was asked of the arena went well."]


def markdown(report: dict[str, Any]) -> str:
    """All of it."""
    machine, gpus, records = report["machine"], report["gpus"], report["records"]
    of = gpus[0]["name"] if isinstance(gpus, list) else "a CPU: a rehearsal" if report["platform"] == "cpu" else gpus
    driver = f" Driver {gpus[0]['driver_version']}, {gpus[0]['memory.total']}." if isinstance(gpus, list) else ""
    wanted = ("jax", "jaxlib", "jax-cuda13-pjrt", "jax-cuda12-pjrt", "torch", "numpy")
    versions = ", ".join(f"{name} {machine['packages'][name]}" for name in wanted if name in machine["packages"])
    small = "" if report["size"] == "full" else f" Sizes are {report['size']}: times say little."
    text = [
        f"# pjrt-arena on {of}",
        "\n".join(f"- {line}" if not line.startswith(" ") else line for line in verdict(report)),
        " ".join(
            [
                f"{machine['cpus']} CPUs ({machine['cpu']}), {size(machine['memory_bytes'])}.{driver}",
                f"Python {machine['python']}, {versions}. {report['started']}, {report['seconds']:.0f} s.",
                "A fresh process for each row; times are medians.",
                f"The library's sha256 begins with {machine['library']}.{small}",
            ]
        ),
    ]
    for part, title in PARTS.items():
        chosen = [record for record in records if record["part"] == part and not record.get("again")]
        rows = [record for record in chosen if "result" in record]
        if not chosen:
            continue
        text.append(f"## {title}")
        try:
            text += [TABLES.get(part, columns)(rows)] if rows else []
        except (
            KeyError,
            TypeError,
            ValueError,
        ) as error:  # the numbers are in the JSON file, and other parts are to come
            text.append(f"This table could not be made: {type(error).__name__}: {error}")
        said = [
            f"- {each['title']} {VERBS[each['status']]}: {each['error']}" for each in chosen if each["status"] != "done"
        ]
        said += [f"- (!) {each['title']}: {line}" for each in chosen for line in each.get("warned", ())]
        text += ["\n".join(dict.fromkeys(said))] if said else []
    return "\n\n".join(text) + "\n"


def columns(records: list[Record]) -> str:
    """A row for each record, with what `CELLS` makes of its result."""
    made = [(record["title"], CELLS[record["measure"]](record["result"])) for record in records]
    heads = list(dict.fromkeys(head for _, cells in made for head in cells))
    return table(["", *heads], [[title, *(cells.get(head, "") for head in heads)] for title, cells in made])


def driver(records: list[Record]) -> str:
    agreed = {True: "yes", False: "**no**", None: "not known"}
    facts = [fact for record in records for fact in record["result"]["facts"]]
    rows = [[fact["name"].replace("_", " "), fact["expected"], fact["found"], agreed[fact["holds"]]] for fact in facts]
    return table(["", "expected", "found", "as expected"], rows)


def steps(records: list[Record]) -> str:
    """Median of a step, and its ratio to the best of JAX's own allocators."""
    models = list(dict.fromkeys(model for record in records for model in record["result"] if model != "ended_at"))

    def median(record: Record, model: str) -> float | None:
        told = record["result"].get(model) or {}
        return told["seconds"]["median"] if "seconds" in told else None

    rows = []
    for record in records:
        cells = [record["title"]]
        for model in models:
            took = median(record, model)
            least = min(
                (other for each in records if not each["ours"] and (other := median(each, model))), default=None
            )
            ratio = f", {took / least:.3f}x" if took and least else ""
            cells.append(f"{seconds(took)}{ratio}" if took else str(record["result"].get(model, {}).get("error", "")))
        rows.append(cells)
    return table(["", *models], rows)


def _usable(told: Record) -> dict[str, str]:
    shares = [100 * each["share"] for each in told["rounds"]]
    return {
        "limit": size(told["limit"]),
        "in use when an array is refused": f"{100 * told['share']:.1f} %",
        "over the rounds": f"{min(shares):.1f} to {max(shares):.1f} %",
        "refused after": seconds(max(each["seconds"] for each in told["rounds"])),
    }


def _checks(told: Record) -> dict[str, str]:
    failed = "; ".join(f"{each['name']}: {each['error']}" for each in told["failed"])
    return {"passed": f"{told['passed']} of {told['of']}", "failed": failed}


def _fragmented(told: Record) -> dict[str, str]:
    return {
        "limit": size(told["limit"]),
        "small results kept": str(told["kept"]),
        "wanted in one piece": size(told["wanted"]),
        "and": ("served" if told["served"] else "RESOURCE_EXHAUSTED") + _after(told["seconds"]),
        "data": "intact" if told.get("intact") else "not compared",
    }


def _after(took: float | None) -> str:
    return "" if took is None else f" after {seconds(took)}"


def _scratch(told: Record) -> dict[str, str]:
    return {
        "limit": size(told["limit"]),
        "arrays among holes": f"{told['arrays']} of {size(told['array_bytes'])}",
        "scratch of a program": f"{size(told['scratch_bytes'])}, {'refused' if told['refused'] else 'served'}",
        "program": ", then ".join(map(seconds, told["seconds"])),
    }


def _torch(told: Record) -> dict[str, str]:
    short = told.get("forbidden_to_all", {})
    return {
        "torch": told["torch"],
        "torch's arrays": "copied" if told["copied_from_torch"] else "in place",
        "arrays beside a capture of a second": f"{told['arrays_beside_capture']} turns",
        "beside one that forbids calls to all threads": short.get("error") or f"{short.get('turns')} turns",
    }


def _compaction(told: Record) -> dict[str, str]:
    return {
        "limit": size(told["limit"]),
        "moved": f"{size(told['bytes'])} in {told['buffers']}",
        "time": seconds(told["seconds"]),
        "rate": rate(told["bytes"], told["seconds"]),
        "largest hole": f"{size(told['largest_free_before'])} to {size(told['largest_free_after'])}",
        "memory made for it": "not known" if told["made_bytes"] is None else size(told["made_bytes"]),
    }


def _loops(told: Record) -> dict[str, str]:
    def cell(each: Record) -> str:
        used = f", {size(each['device_bytes'])} of the device" if each["device_bytes"] else ""
        return f"{seconds(each['seconds'])} ({seconds(each['caller_free'])}){used}"

    return {name: cell(each) for name, each in told.items()}


def _spilling(told: Record) -> dict[str, str]:
    passes = [seconds(each) for each in told["passes"]]
    copied = f"{size(told['out'])} out, {size(told['back'])} back" if "out" in told else ""
    return {"arrays": size(told["bytes"]), "first pass": passes[0], "last pass": passes[-1], "copied": copied}


def _sleep(told: Record) -> dict[str, str]:
    gained = "not known" if told["gained"] is None else size(told["gained"])
    return {
        "arrays": size(told["bytes"]),
        **{name: seconds(took) for name, took in told["seconds"].items()},
        "free by it": gained,
    }


def _nearly_all(told: Record) -> dict[str, str]:
    free = "not known" if told["free_bytes"] is None else size(told["free_bytes"])
    return {
        "limit": size(told["limit"]),
        "in use": size(told["in_use"]),
        "step": seconds(told["seconds"]),
        "free": free,
    }


def _client(told: Record) -> dict[str, str]:
    return {
        "device": told["kind"],
        "limit": size(told["limit"]) if told["limit"] else "none",
        "client": seconds(told["client"]),
        "first array": seconds(told["first_array"]) if told["first_array"] else "",
        "memory of the host": size(told["host_bytes"]),
        "version": told["version"],
    }


def _costs(told: Record) -> dict[str, str]:
    each = told["bytes_per_array"]
    return {
        "tiny jitted add": seconds(told["one"]),
        "add of 32 arrays": seconds(told["thirty_two"]),
        "host memory for a live array": "not known" if each is None else f"{each:.0f} B",
        "arrays": f"{told['arrays']:,}",
    }


def _transfers(told: Record) -> dict[str, str]:
    cells = {f"{way} {size(told['bytes'])}": rate(told["bytes"], told[way[7:]]) for way in ("device_put", "device_get")}
    if "count" in told:
        cells[f"device_put {told['count']} x {size(told['each'])}"] = rate(told["count"] * told["each"], told["many"])
    return cells


CELLS: dict[str, Callable[[Record], dict[str, str]]] = {
    "gpu.checks.run": _checks,
    "gpu.room.fragmented": _fragmented,
    "gpu.room.scratch": _scratch,
    "gpu.room.usable": _usable,
    "gpu.room.refusals": lambda told: {name: seconds(each["seconds"]) for name, each in told.items()},
    "gpu.room.compaction": _compaction,
    "gpu.room.nearly_all": _nearly_all,
    "gpu.beside_torch.both": _torch,
    "gpu.beside_torch.graphs": lambda told: {"arguments": ", ".join(told["kinds"]), "turns": str(told["turns"])},
    "gpu.threads.run": lambda told: {name.replace("_", " "): f"{number:,}" for name, number in told.items()},
    "gpu.tier.sharing": lambda told: {name: seconds(took) for name, took in told["seconds"].items()},
    "gpu.tier.spilling": _spilling,
    "gpu.tier.by_hand": _spilling,
    "gpu.tier.sleeping": _sleep,
    "gpu.small.client": _client,
    "gpu.small.costs": _costs,
    "gpu.loops.run": _loops,
    "gpu.transfers.run": _transfers,
}
TABLES: dict[str, Callable[[list[Record]], str]] = {"driver": driver, "steps": steps}


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text())))
