"""The chart of docs/gpus.md, as SVG, of a run's `results.json`: `python -m gpu.chart results.json > chart.svg`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bench.chart import STYLE

from gpu.units import rate, seconds

WIDTH, ROW, GAP = 840, 21, 44
#: Where bars may be: between the names and the numbers.
LEFT, RIGHT = 300, WIDTH - 110
#: A title, what it says, rows of a name and a value, how a value is written, whether the scale is logarithmic, and
#: what is ours.
Panel = tuple[str, list[tuple[str, float, str, bool]], bool]


def panels(report: dict[str, Any]) -> list[Panel]:
    """What is drawn."""
    by_part: dict[str, list[dict[str, Any]]] = {}
    for record in report["records"]:
        if "result" in record:
            by_part.setdefault(record["part"], []).append(record)

    def rows(part: str, value: Any, written: Any) -> list[tuple[str, float, str, bool]]:
        theirs_first = sorted(by_part.get(part, ()), key=lambda each: each["ours"])
        found = [(each["title"], value(each["result"]), each["ours"]) for each in theirs_first]
        return [(title, number, written(number), ours) for title, number, ours in found]

    fact = next(each for each in by_part["driver"][0]["result"]["facts"] if each["name"] == "bandwidth")
    copy = fact["numbers"]["within one"]
    moved = rows("compaction", lambda told: told["bytes"] / told["seconds"], lambda number: rate(number, 1))
    return [
        (
            "8 GiB in use when an array is refused (median of 3)",
            rows("usable", lambda told: 100 * told["share"], lambda number: f"{number:.1f} %"),
            False,
        ),
        (
            "until the error is there, the slowest (logarithmic)",
            rows("usable", lambda told: max(each["seconds"] for each in told["rounds"]), seconds),
            True,
        ),
        (
            "a step of a transformer, state donated",
            rows(
                "steps", lambda told: told["transformer"]["seconds"]["median"], lambda number: f"{1e3 * number:.2f} ms"
            ),
            False,
        ),
        ("arrays moved together", [("the device's own copy", copy, rate(copy, 1), False), *moved], False),
        (
            "12 GiB of arrays, each brought from the host, updated and sent back",
            rows("spilling", lambda told: told["passes"][-1], seconds),
            False,
        ),
    ]


def svg(report: dict[str, Any]) -> str:
    """The chart, as text."""
    drawn = panels(report)
    height = 70 + sum(GAP + ROW * len(rows) for _, rows, _ in drawn)
    root = ElementTree.Element(
        "svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height}", width=f"{WIDTH}", role="img"
    )
    ElementTree.SubElement(root, "style").text = STYLE

    def add(tag: str, text: str = "", **attributes: float | str) -> None:
        element = ElementTree.SubElement(root, tag, {k.rstrip("_"): str(v) for k, v in attributes.items()})
        element.text = text or None

    add("rect", class_="page", x=0.5, y=0.5, width=WIDTH - 1, height=height - 1, rx=6)
    add(
        "text",
        f"pjrt-arena on {report['gpus'][0]['name']}, JAX {report['machine']['packages']['jax']}",
        class_="title",
        x=20,
        y=32,
    )
    at = 52.0
    for title, rows, logarithmic in drawn:
        add("text", title, class_="soft", x=20, y=at + 18)
        at += 26
        values = [value for _, value, _, _ in rows]
        low = min(values) / 10 if logarithmic else 0.0
        for name, value, said, ours in rows:
            share = math.log(value / low) / math.log(max(values) / low) if logarithmic else value / max(values)
            add("text", name, x=LEFT - 10, y=at + 14, text_anchor="end")
            add(
                "rect",
                class_="fast" if ours else "slow",
                x=LEFT,
                y=at + 3,
                width=round(share * (RIGHT - LEFT), 1),
                height=14,
            )
            add("text", said, x=round(LEFT + share * (RIGHT - LEFT) + 8, 1), y=at + 14)
            at += ROW
        at += GAP - 26
    for element in root.iter("text"):
        if "text_anchor" in element.attrib:
            element.set("text-anchor", element.attrib.pop("text_anchor"))
    return ElementTree.tostring(root, encoding="unicode") + "\n"


if __name__ == "__main__":
    print(svg(json.loads(Path(sys.argv[1]).read_text())), end="")
