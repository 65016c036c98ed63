"""Markdown of a run, for people: what is wrong first, then a table for each part. `python -m gpu.report FILE.json`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu.jobs import PARTS
from gpu.units import rate, seconds, size, table

Record = dict[str, Any]
#: How numbers are written, by what their names end with, or have within.
UNITS: tuple[tuple[re.Pattern[str], Callable[[float], str]], ...] = (
    (re.compile(r"share$"), lambda value: f"{100 * value:.1f} %"),
    (re.compile(r"per_array$"), lambda value: f"{value:,.0f} B"),
    (re.compile(r"per_second$"), lambda value: rate(value, 1)),
    (re.compile(r"seconds|(client|first|first_array|one|thirty_two|put|get|many|passes|caller_free)$"), seconds),
    (re.compile(r"(bytes|limit|wanted|in_use|before|after|gained|given_back|out|back|each)$"), size),
)
#: Longer words are left to the JSON file.
SHORT = 60
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
    lines += [
        f"{PARTS.get(each['part'], each['part'])}, {each['title']}: {each['error']}" for each in failures(records)
    ]
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
    for part in dict.fromkeys([*PARTS, *(record["part"] for record in records)]):
        chosen = [record for record in records if record["part"] == part and not record.get("again")]
        rows = [record for record in chosen if "result" in record]
        if not chosen:
            continue
        text.append(f"## {PARTS.get(part, part)}")
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
    """A row for each record, a column for each part of its result."""
    heads = list(dict.fromkeys(head for record in records for head in record["result"]))
    rows = [[record["title"], *(_cell(head, record["result"].get(head)) for head in heads)] for record in records]
    chosen = [0, *(at for at in range(1, len(heads) + 1) if any(row[at] for row in rows))]
    names = ["", *(head.replace("_", " ") for head in heads)]
    return table([names[at] for at in chosen], [[row[at] for at in chosen] for row in rows])


def _cell(name: str, value: Any) -> str:
    """Numbers with the unit that the name has; of a list of them, the first and the last."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = {each: [one[each] for one in value] for each in value[0]}
    if isinstance(value, dict):
        inner = {each: _cell(f"{name}_{each}", told) for each, told in value.items()}
        return ", ".join(f"{each.replace('_', ' ')} {cell}" for each, cell in inner.items() if cell)
    if isinstance(value, list):
        ends = [value[0], value[-1]] if len(value) > 1 else value
        return ", then ".join(_cell(name, end) for end in ends)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return next((unit for words, unit in UNITS if words.search(name)), "{:,}".format)(value)
    return value if isinstance(value, str) and len(value) < SHORT else ""


def driver(records: list[Record]) -> str:
    agreed = {True: "yes", False: "**no**", None: "not known"}
    facts = [fact for record in records for fact in record["result"]["facts"]]
    rows = [[fact["name"].replace("_", " "), fact["expected"], fact["found"], agreed[fact["holds"]]] for fact in facts]
    return table(["", "expected", "found", "as expected"], rows)


def checks(records: list[Record]) -> str:
    rows = []
    for title, told in ((record["title"], record["result"]) for record in records):
        failed = "; ".join(f"{each['name']}: {each['error']}" for each in told["failed"])
        rows.append([title, f"{told['passed']} of {told['of']}", "; ".join(told.get("left_out", ())), failed])
    return table(["", "passed", "left out", "failed"], rows)


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
            cells.append(f"{seconds(took)}{ratio}" if took else "")
        rows.append(cells)
    return table(["", *models], rows)


TABLES: dict[str, Callable[[list[Record]], str]] = {"driver": driver, "checks": checks, "steps": steps}


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text())))
