"""The list of facts about the driver: what the design expects, what was found, and whether they agree."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpu.libcuda import Driver

#: Whether it is as expected, what was found, and the numbers.
Found = tuple[bool | None, str, dict[str, Any]]
FACTS: dict[str, tuple[str, Callable[[Driver], Found]]] = {}


def fact(expected: str) -> Callable[[Callable[[Driver], Found]], Callable[[Driver], Found]]:
    """Adds a function to the list, with what the design expects of it."""

    def add(function: Callable[[Driver], Found]) -> Callable[[Driver], Found]:
        FACTS[function.__name__] = (expected, function)
        return function

    return add


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what it returned."""
    start = time.perf_counter()
    value = run()
    return time.perf_counter() - start, value
