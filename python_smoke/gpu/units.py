"""How numbers and tables are written for people."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Three digits and a unit: 3.42 us, 66.1 ms, 1.20 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size or unit == "us":
            return f"{_three(value / size)} {unit}"
    raise AssertionError("the last unit takes all")


def size(value: float) -> str:
    """Bytes in the largest unit that keeps them at one or above."""
    for unit, bytes_ in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= bytes_:
            return f"{_three(value / bytes_)} {unit}"
    return f"{value:.0f} B"


def rate(bytes_: float, time: float) -> str:
    """Bytes per second, in 10^9."""
    return f"{_three(bytes_ / time / 1e9)} GB/s"


def _three(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table whose columns but the first are numbers."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    lines = [cells[0], ["---", *["---:"] * (len(head) - 1)], *cells[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
