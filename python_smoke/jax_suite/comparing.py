"""Compares two runs: what passed in the first and did anything else in the second is a regression."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from running import counts

MISSING = {"o": "missing", "msg": ""}
#: What makes two messages of one cause look different, and what stands for it.
VARYING = [
    (r"\s+", " "),
    (r"^jax\.errors\.", ""),
    (r"lapack_\w+", "lapack_*"),
    (r"%[\w.]+ = .*", ""),
    (r"(Arrays are not equal|Not equal to tolerance).*", r"\1"),
    (r"0x[0-9a-f]+|\d+", "N"),
]


def cause(test: dict) -> str:
    """Outcome and message without what varies from test to test."""
    message = test["msg"]
    for pattern, replacement in VARYING:
        message = re.sub(pattern, replacement, message)
    return f"{test['o']}: {message.strip()[:150]}"


def _cells(counted: Counter) -> str:
    broken = counted["crash"] + counted["timeout"] + counted["notrun"] + counted["missing"]
    return f"{counted['passed']}/{counted['failed']}/{counted['skipped'] + counted['xfailed']}/{broken}"


def compare(base: dict, new: dict, every: bool) -> bool:
    """Prints a table, the regressions by cause and what passes now; whether there is a regression."""
    total: list[Counter[str]] = [Counter(), Counter()]
    regressions: defaultdict[str, list[str]] = defaultdict(list)
    absent, notes, mended = [], [], 0
    print(f"{'passed/failed/skipped/broken':42} {'base':>18} {'new':>18} regressions, mended")
    for name, old in base["files"].items():
        if name not in new["files"]:
            absent.append(name)
            continue
        now = new["files"][name]
        lost = [
            (test, now["tests"].get(test, MISSING))
            for test, outcome in old["tests"].items()
            if outcome["o"] == "passed" and now["tests"].get(test, MISSING)["o"] != "passed"
        ]
        won = sum(
            outcome["o"] != "passed" and now["tests"].get(test, MISSING)["o"] == "passed"
            for test, outcome in old["tests"].items()
        )
        for test, outcome in lost:
            regressions[cause(outcome)].append(test)
        if now["note"] and not old["note"]:
            notes.append(f"{name}: {' '.join(now['note'].split())[:300]}")
        mended += won
        both = [counts(old["tests"]), counts(now["tests"])]
        total = [sum_ + one for sum_, one in zip(total, both, strict=True)]
        print(f"{name:42} {_cells(both[0]):>18} {_cells(both[1]):>18} {len(lost):5} {won:5}")
    every_lost = sum(map(len, regressions.values()))
    print(f"{'TOTAL':42} {_cells(total[0]):>18} {_cells(total[1]):>18} {every_lost:5} {mended:5}")
    if absent:
        print(f"not in the new run: {', '.join(absent)}")
    for why, tests in sorted(regressions.items(), key=lambda item: -len(item[1])):
        print(f"\n{len(tests):5}  {why}")
        for test in tests if every else tests[:3]:
            print(f"         {test}")
    for note in notes:
        print(f"\nnew: {note}")
    return bool(regressions or notes)
