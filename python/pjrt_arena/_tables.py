"""Numbers for people: bytes, ages and lines of text, in columns of one width."""

from __future__ import annotations

import html
from collections.abc import Sequence

#: The longest line of a report, in characters.
WIDTH = 100

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: int) -> str:
    """Bytes in the largest unit that keeps them at one or above: ``12.50 MiB``, ``504 B``."""
    number, unit = _scaled(count)
    return f"{number} {unit}"


def cell(count: int, signed: bool = False) -> str:
    """`size` in 12 characters, the units of a column below each other; with its sign, in 13, if `signed`."""
    number, unit = _scaled(count)
    plus = "+" if signed and count > 0 else ""
    return f"{plus}{number} {unit:<3}".rjust(13 if signed else 12)


def _scaled(count: int) -> tuple[str, str]:
    amount, unit = float(count), _UNITS[0]
    for larger in _UNITS[1:]:
        # As it will be printed: 1024.00 KiB is 1.00 MiB.
        if round(abs(amount), 2) < 1024:
            break
        amount, unit = amount / 1024, larger
    return (str(count) if unit == "B" else f"{amount:.2f}"), unit


def age(seconds: float | None) -> str:
    """A time span of at most 8 characters; empty where it is not known."""
    if seconds is None:
        return ""
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    for unit, length, most in (("min", 60, 100), ("h", 3600, 72)):
        if seconds < most * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def shorten(text: str, width: int) -> str:
    """`text` on one line of at most `width` characters: what is left out is in the middle, as the ends say most."""
    text = " ".join(text.split())
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[-end:]}"


def plural(count: int, noun: str) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def lines(rows: list[str]) -> str:
    """The rows, without blanks at their ends."""
    return "\n".join(row.rstrip() for row in rows)


#: Colours are those of the page around, so it may be light or dark.
_STYLE = """
.pjrt-arena table {border-collapse: collapse; margin: 0 0 1em; color: inherit; background: none}
.pjrt-arena caption {text-align: left; font-weight: bold; color: inherit; padding: 0.2em 0.6em}
.pjrt-arena th, .pjrt-arena td {
  padding: 0.1em 0.6em; text-align: right; border: none; background: none; font-variant-numeric: tabular-nums
}
.pjrt-arena thead th {border-bottom: 1px solid currentColor}
.pjrt-arena .text {text-align: left}
.pjrt-arena tbody th {font-weight: normal}
"""


def page(*parts: str) -> str:
    """An element of a page, of elements: `page_table` gives them."""
    return f'<div class="pjrt-arena"><style>{_STYLE}</style>{"".join(parts)}</div>'


def page_table(caption: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str], str]]) -> str:
    """A table of a page, with every text escaped. A row is a title, numbers, as many as there are, and a note."""

    def row(title: str, numbers: Sequence[str], note: str) -> str:
        padded = [*numbers, *[""] * (len(heads) - 1 - len(numbers))]
        cells = "".join(f"<td>{html.escape(number)}</td>" for number in padded)
        title, note = html.escape(title), html.escape(note)
        return f'<tr><th scope="row" class="text">{title}</th>{cells}<td class="text">{note}</td></tr>'

    titles = "".join(f"<th>{html.escape(head)}</th>" for head in heads[1:])
    return (
        f"<table><caption>{html.escape(caption)}</caption>"
        f'<thead><tr><th class="text">{html.escape(heads[0])}</th>{titles}<th></th></tr></thead>'
        f"<tbody>{''.join(row(*one) for one in rows)}</tbody></table>"
    )
