"""The chart of docs/benchmarks.md: a bar per program, how many times as fast as JAX's own CPU backend, on a log scale.

    x + 1, 256 MiB   |=================|---|  ◆   4.9x      bar: median of the rounds, line: their quartiles
    tiny jitted add =|                            0.84x     ◆: the floor

SVG is written by hand, because a plotting library would be the largest thing that the benchmark needs. The colours
follow the reader's light or dark mode, and the chart brings its own background, since a page may not follow it.
"""

from __future__ import annotations

import math
from xml.etree import ElementTree

from bench.backends import FLOOR
from bench.results import geometric_mean, show_ratio
from bench.tables import OURS

WIDTH, ROW, TOP, BOTTOM = 840, 22, 92, 34
#: Where bars may be: between the names and the numbers.
LEFT, RIGHT = 290, WIDTH - 76
TICKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32)

STYLE = """
text { font: 13.5px system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 }
.soft { fill: #59636e; font-size: 12px }
.page { fill: #ffffff; stroke: #d1d9e0 }
.grid { stroke: #e4e8ec }
.one { stroke: #818b98 }
.fast { fill: #2f6fd0 }
.slow { fill: #d0702a }
.spread { stroke: #1f2328; stroke-opacity: .55; stroke-width: 1.5 }
.floor { fill: #ffffff; stroke: #1f2328; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .soft { fill: #9198a1 }
  .page { fill: #0d1117; stroke: #3d444d }
  .grid { stroke: #23292f }
  .one { stroke: #6e7681 }
  .fast { fill: #5593ee }
  .slow { fill: #e08a45 }
  .spread { stroke: #e6edf3; stroke-opacity: .7 }
  .floor { fill: #0d1117; stroke: #e6edf3 }
}
"""


def svg(report: dict) -> str:
    """The chart of a report, as text.

    Raises:
      SystemExit: the report lacks the built-in backend or pjrt-arena.
    """
    rows = [
        (program["title"], ours["speedup"], program["backends"].get(FLOOR, {}).get("speedup"))
        for program in report["programs"]
        if "speedup" in (ours := program["backends"].get(OURS, {}))
    ]
    if not rows:
        raise SystemExit("no chart: it needs the backends builtin and arena")
    return _Chart(rows, report).text()


class _Chart:
    def __init__(self, rows: list, report: dict):
        self._rows, self._report = rows, report
        seen = [value for _, speedup, _ in rows for value in (speedup["q1"], speedup["q3"])]
        seen += [floor["median"] for _, _, floor in rows if floor]
        # A bar that would be longer is cut, and says so with an arrow.
        self._low = next(low for low in (0.7, 0.45, 0.24) if low < min(seen) or low == 0.24)
        self._high = max(2.2, max(seen) * 1.08)
        self._height = TOP + ROW * len(rows) + BOTTOM

    def _x(self, value: float) -> float:
        clipped = min(max(value, self._low), self._high)
        share = math.log(clipped / self._low) / math.log(self._high / self._low)
        return round(LEFT + share * (RIGHT - LEFT), 1)

    def text(self) -> str:
        root = ElementTree.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {WIDTH} {self._height}",
                "width": str(WIDTH),
                "height": str(self._height),
                "role": "img",
            },
        )
        mean = geometric_mean([speedup["median"] for _, speedup, _ in self._rows])
        title = "How many times as fast as JAX's CPU backend"
        add(root, "title", text=f"{title}: pjrt-arena, geometric mean {show_ratio(mean)}")
        add(root, "style", text=STYLE)
        add(root, "rect", **{"class": "page"}, x=0.5, y=0.5, width=WIDTH - 1, height=self._height - 1, rx=8)
        add(root, "text", title, **{"class": "title"}, x=20, y=31)
        machine, settings = self._report["machine"], self._report["settings"]
        where = f"pjrt-arena on {machine['cpus']} CPUs ({machine['cpu']}), median of {settings['rounds']}"
        add(root, "text", f"{where}; geometric mean {show_ratio(mean)}", **{"class": "soft"}, x=20, y=51)
        self._legend(root)
        bottom = TOP + ROW * len(self._rows)
        for tick in TICKS:
            if self._low <= tick <= self._high:
                x = self._x(tick)
                add(root, "line", **{"class": "grid" if tick != 1 else "one"}, x1=x, x2=x, y1=TOP - 4, y2=bottom + 4)
                add(root, "text", f"{tick:g}x", **{"class": "soft", "text-anchor": "middle"}, x=x, y=bottom + 20)
        for number, row in enumerate(self._rows):
            self._bar(root, TOP + ROW * number + ROW / 2, *row)
        ElementTree.indent(root)
        return ElementTree.tostring(root, encoding="unicode") + "\n"

    def _legend(self, root: ElementTree.Element) -> None:
        y = 73
        add(root, "rect", **{"class": "fast"}, x=20, y=y - 9, width=22, height=10, rx=2)
        add(root, "text", "faster", **{"class": "soft"}, x=48, y=y)
        add(root, "rect", **{"class": "slow"}, x=96, y=y - 9, width=22, height=10, rx=2)
        add(root, "text", "slower", **{"class": "soft"}, x=124, y=y)
        add(root, "line", **{"class": "spread"}, x1=178, x2=200, y1=y - 4, y2=y - 4)
        add(root, "text", "quartiles", **{"class": "soft"}, x=206, y=y)
        if any(floor for _, _, floor in self._rows):
            _diamond(root, 278, y - 4)
            warm = "the same program writing into its own donated, warm result"
            add(root, "text", warm, **{"class": "soft"}, x=290, y=y)

    def _bar(self, root: ElementTree.Element, y: float, title: str, speedup: dict, floor: dict | None) -> None:
        one, end = self._x(1), self._x(speedup["median"])
        add(root, "text", title, **{"text-anchor": "end"}, x=LEFT - 14, y=y + 4.5)
        kind = "fast" if round(speedup["median"], 2) >= 1 else "slow"
        add(root, "rect", **{"class": kind}, x=min(one, end), y=y - 6.5, width=max(1, abs(end - one)), height=13, rx=2)
        low, high = self._x(speedup["q1"]), self._x(speedup["q3"])
        if high - low > 2:
            add(root, "line", **{"class": "spread"}, x1=low, x2=high, y1=y, y2=y)
        if speedup["median"] < self._low:
            add(root, "path", **{"class": kind}, d=f"M{LEFT - 7} {y}l8 -6.5v13z")
        if floor is not None:
            _diamond(root, self._x(floor["median"]), y)
        add(root, "text", show_ratio(speedup["median"]), **{"text-anchor": "end"}, x=WIDTH - 20, y=y + 4.5)


def _diamond(root: ElementTree.Element, x: float, y: float) -> None:
    add(root, "path", **{"class": "floor"}, d=f"M{x} {y - 5}l5 5l-5 5l-5 -5z")


def add(parent: ElementTree.Element, tag: str, text: str | None = None, **attributes: object) -> None:
    """Adds an element with these attributes."""
    ElementTree.SubElement(parent, tag, {name: str(value) for name, value in attributes.items()}).text = text
