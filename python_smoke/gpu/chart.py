"""The chart of docs/gpus.md, as SVG, of a run's `results.json`: `python -m gpu.chart results.json > chart.svg`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bench.chart import STYLE, add

from gpu.units import rate, seconds

WIDTH, ROW, GAP = 840, 21, 44
#: Where bars may be: between the names and the numbers.
LEFT, RIGHT = 300, WIDTH - 110
#: A part, what is told of it, its number in a result, how that is written, and whether the scale is logarithmic.
Panel = tuple[str, str, Callable[[dict[str, Any]], float], Callable[[float], str], bool]
PANELS: tuple[Panel, ...] = (
    (
        "usable",
        "8 GiB in use when an array is refused (median of 3)",
        lambda told: 100 * told["share"],
        lambda number: f"{number:.1f} %",
        False,
    ),
    (
        "usable",
        "until the error is there, the slowest (logarithmic)",
        lambda told: max(each["seconds"] for each in told["rounds"]),
        seconds,
        True,
    ),
    (
        "steps",
        "a step of a transformer, state donated",
        lambda told: told["transformer"]["seconds"]["median"],
        lambda number: f"{1e3 * number:.2f} ms",
        False,
    ),
    (
        "compaction",
        "arrays moved together",
        lambda told: told["bytes"] / told["seconds"],
        lambda number: rate(number, 1),
        False,
    ),
    (
        "spilling",
        "12 GiB of arrays, each brought from the host, updated and sent back",
        lambda told: told["passes"][-1],
        seconds,
        False,
    ),
)


def svg(report: dict[str, Any]) -> str:
    """The chart, as text."""
    root = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg", width=f"{WIDTH}", role="img")
    add(root, "style", STYLE)
    page = ElementTree.SubElement(root, "rect", {"class": "page", "x": "0.5", "y": "0.5", "rx": "6"})
    what = f"pjrt-arena on {report['gpus'][0]['name']}, JAX {report['machine']['packages']['jax']}"
    add(root, "text", what, **{"class": "title"}, x=20, y=32)
    at = 52
    for part, title, value, written, logarithmic in PANELS:
        found = [each for each in report["records"] if each["part"] == part and "result" in each]
        rows = [(each["title"], value(each["result"]), each["ours"]) for each in found]
        rows.sort(key=lambda row: row[2])
        if not rows:
            continue
        if part == "compaction":
            facts = [fact for each in report["records"] if each["part"] == "driver" for fact in each["result"]["facts"]]
            copy = next(fact["numbers"]["within one"] for fact in facts if fact["name"] == "bandwidth")
            rows.insert(0, ("the device's own copy", copy, False))
        add(root, "text", title, **{"class": "soft"}, x=20, y=at + 18)
        at += 26
        most, low = max(number for _, number, _ in rows), min(number for _, number, _ in rows) / 10
        for name, number, ours in rows:
            share = math.log(number / low) / math.log(most / low) if logarithmic else number / most
            width = round(share * (RIGHT - LEFT), 1)
            add(root, "text", name, **{"text-anchor": "end"}, x=LEFT - 10, y=at + 14)
            add(root, "rect", **{"class": "fast" if ours else "slow"}, x=LEFT, y=at + 3, width=width, height=14)
            add(root, "text", written(number), x=LEFT + width + 8, y=at + 14)
            at += ROW
        at += GAP - 26
    height = at + 18
    root.set("viewBox", f"0 0 {WIDTH} {height}")
    page.attrib |= {"width": str(WIDTH - 1), "height": str(height - 1)}
    return ElementTree.tostring(root, encoding="unicode") + "\n"


if __name__ == "__main__":
    print(svg(json.loads(Path(sys.argv[1]).read_text())), end="")
