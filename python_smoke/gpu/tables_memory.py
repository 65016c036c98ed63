"""Tables of the parts about memory: what fits, what is moved, what the driver does."""

from __future__ import annotations

from typing import Any

from gpu.form import Record, named, rate, seconds, size, table

Names = dict[str, str]


def fragmented(records: list[Record], names: Names) -> str:
    rows = [
        [
            named(record, names),
            size(record["result"]["limit"]),
            str(record["result"]["kept"]),
            size(record["result"]["wanted"]),
            "served" if record["result"]["served"] else "RESOURCE_EXHAUSTED",
            _refused(record["result"]),
            "intact" if record["result"]["intact"] else "damaged",
        ]
        for record in records
    ]
    return table(["", "limit", "small results kept", "wanted in one piece", "and", "refused after", "data"], rows)


def _refused(told: dict[str, Any]) -> str:
    """How long it took until the error was there; empty where there was none."""
    return seconds(told["refused_seconds"]) if "refused_seconds" in told else ""


def share(records: list[Record], names: Names) -> str:
    rows = []
    for record in records:
        told = record["result"]
        shares = [each["share"] for each in told["rounds"]]
        worst = min(told["rounds"], key=lambda each: each["share"])
        refused = "none: the limit is not kept"
        if worst["limit_kept"]:
            refused = f"{size(worst['refused_bytes'])} with {size(worst['free_bytes'])} free"
        rows.append(
            [
                named(record, names),
                size(told["limit"]),
                f"{100 * told['share']:.1f} %",
                f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %",
                refused,
                ", ".join(filter(None, map(_refused, told["rounds"]))),
            ]
        )
    head = ["", "limit", "in use when one is refused", "over the rounds", "refused in the worst", "refused after"]
    return table(head, rows)


def compaction(records: list[Record], names: Names) -> str:
    rows = []
    for record in records:
        told = record["result"]
        kind = "whole chunks" if not record["values"]["odd"] else "not whole chunks"
        if told.get("given_back") is not None:
            kind += f", {size(told['given_back'])} of holes given back before"
        made = told.get("made_bytes")
        rows.append(
            [
                f"{named(record, names)}, arrays of {size(told['array_bytes'])}, {kind}",
                size(told["limit"]),
                f"{size(told['bytes'])} in {told['buffers']}",
                seconds(told["seconds"]),
                rate(told["bytes"], told["seconds"]),
                f"{size(told['largest_free_before'])} to {size(told['largest_free_after'])}",
                "not known" if made is None else size(made),
            ]
        )
    return table(["", "limit", "moved", "time", "rate", "largest hole", "memory made for it"], rows)


def pressure(records: list[Record], names: Names) -> str:
    scratch, device = [], []
    for record in records:
        told = record["result"]
        if record["measure"] == "gpu.pressure.scratch":
            scratch.append(
                [
                    named(record, names),
                    size(told["limit"]),
                    f"{told['arrays']} of {size(told['array_bytes'])}",
                    f"{size(told['scratch_bytes'])}, "
                    + (f"refused: holes have {size(told['room'])} of whole chunks" if told["refused"] else "served"),
                    ", then ".join(map(seconds, told["seconds"])),
                    f"{told['refilled']} more arrays, data intact",
                ]
            )
        else:
            least = told["least_free_bytes"]
            device.append(
                [
                    named(record, names),
                    size(told["limit"]),
                    size(told["in_use"]),
                    size(told["scratch_bytes"]),
                    seconds(told["seconds"]),
                    "not known" if least is None else size(least),
                ]
            )
    head = ["", "limit", "arrays among holes", "scratch of a program", "program", "refilled with"]
    other = ["", "limit", "in use", "scratch of a step", "transformer's step", "least that was free on the device"]
    return "\n\n".join(table(*each) for each in ((head, scratch), (other, device)) if each[1])


def ends(records: list[Record], names: Names) -> str:
    rows = []
    for record in records:
        told = record["result"]["seconds"]
        trim = f"{seconds(told['trim'])} for {size(record['result']['given_back'])}" if "trim" in told else ""
        last = [seconds(record["end_seconds"]) if "end_seconds" in record else "not known"]
        said = [seconds(told[name]) for name in ("client", "first_array", "second_array")]
        after = [seconds(told["array_after_trim"]) if trim else ""]
        rows.append([named(record, names), *said, trim, *after, *last])
    heads = ["`jax.devices()`", "first `jnp.zeros(1)`", "second", "`memory.trim()`", "array behind it", "the end"]
    return table(["", *heads], rows)


def beside_torch(records: list[Record], names: Names) -> str:
    rows = []
    for record in records:
        told = record["result"]
        turns, short = told.get("arrays_beside_capture"), told.get("forbidden_to_all", {})
        said = f"{short['turns']:,} turns" if "turns" in short else short.get("error", "not known").replace("|", "\\|")
        rows.append(
            [
                named(record, names),
                told["torch"],
                "copied" if told["copied_from_torch"] else "in place",
                "not known" if turns is None else f"{turns:,} turns",
                said,
            ]
        )
    heads = ["torch", "values equal both ways, torch's arrays", "arrays beside a capture of a second"]
    return table(["", *heads, "beside a short one that forbids calls to all threads"], rows)


def facts(records: list[Record], names: Names) -> str:
    """A row for each fact: expected, found."""
    agreed = {True: "yes", False: "**no**", None: "not known"}
    rows = [
        [fact["name"].replace("_", " "), fact["expected"], fact["found"].replace("|", "\\|"), agreed[fact["holds"]]]
        for record in records
        for fact in record["result"]["facts"]
    ]
    return table(["", "expected", "found", "as expected"], rows)
