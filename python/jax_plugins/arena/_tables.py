"""Numbers for people: bytes, ages and lines of text, in columns of one width."""

from __future__ import annotations

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
