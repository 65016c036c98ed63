"""The samples as SVG: resident memory over time, at rest and at work, and what the arenas hold at rest."""

from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree

from bench.chart import STYLE, add

WIDTH, HEIGHT = 840, 360
LEFT, RIGHT, TOP, BOTTOM = 70, WIDTH - 30, 92, HEIGHT - 42

LINES = """
.busy { fill: none; stroke: #d0702a; stroke-width: 1.2 }
.rest { fill: none; stroke: #2f6fd0; stroke-width: 1.8 }
"""


def svg(samples: list[dict[str, Any]], verdict: str) -> str:
    """The chart, as text. The scale of bytes begins at zero, so that a slope looks as large as it is."""
    most = max(max(sample["resident"], sample["resident_busy"]) for sample in samples) / 2**20
    step = 10 ** math.floor(math.log10(most))
    step = next(size for size in (step / 5, step / 2, step, step * 2) if most / size <= 8)
    top, end = step * math.ceil(most / step), max(samples[-1]["seconds"] / 60, 1e-9)

    def place(sample: dict[str, Any], name: str) -> str:
        x = LEFT + (RIGHT - LEFT) * sample["seconds"] / 60 / end
        return f"{x:.1f},{BOTTOM - (BOTTOM - TOP) * sample[name] / 2**20 / top:.1f}"

    size = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "width": str(WIDTH), "height": str(HEIGHT)}
    root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, "role": "img"})
    add(root, "title", text=f"Resident memory of the soak run: {verdict}")
    add(root, "style", text=STYLE + LINES)
    add(root, "rect", **{"class": "page"}, x=0.5, y=0.5, width=WIDTH - 1, height=HEIGHT - 1, rx=8)
    add(root, "text", "Resident memory of the soak run, MiB", **{"class": "title"}, x=20, y=31)
    add(root, "text", verdict, **{"class": "soft"}, x=20, y=51)
    for start, name, text in ((20, "rest", "at rest, all arrays gone"), (220, "busy", "at work")):
        add(root, "line", **{"class": name}, x1=start, x2=start + 22, y1=69, y2=69)
        add(root, "text", text, **{"class": "soft"}, x=start + 28, y=73)
    for number in range(round(top / step) + 1):
        y = round(BOTTOM - (BOTTOM - TOP) * number * step / top, 1)
        add(root, "line", **{"class": "grid" if number else "one"}, x1=LEFT, x2=RIGHT, y1=y, y2=y)
        add(
            root, "text", f"{number * step:g}", **{"class": "soft", "text-anchor": "end"}, x=LEFT - 8, y=round(y + 4, 1)
        )
    for tenth in range(0, 11, 2):
        x = round(LEFT + (RIGHT - LEFT) * tenth / 10, 1)
        minutes = f"{end * tenth / 10:.3g} min"
        add(root, "text", minutes, **{"class": "soft", "text-anchor": "middle"}, x=x, y=BOTTOM + 22)
    for name, kind in (("resident_busy", "busy"), ("resident", "rest")):
        add(root, "polyline", **{"class": kind}, points=" ".join(place(sample, name) for sample in samples))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"
