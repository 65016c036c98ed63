"""Compares two JSON files of the benchmark and names what got slower, or takes more memory, beyond noise.

What is compared is not seconds but `relative`: the time in units of JAX's built-in CPU backend, measured in the same
round. Its code does not change between two builds of pjrt-arena, so a machine that is slower as a whole today cancels
out. Where one of the files lacks the built-in backend, or the two were made with other versions of jaxlib, seconds
are compared. The built-in backend itself and the floor are not judged.

A program got slower on a backend when both hold:

    1. apart     the quartile intervals over the rounds do not overlap, and the gap between them is at least as wide as
                 the wider of the two
    2. enough    the new median is more than THRESHOLD times the old one

The first keeps out what scatters, the second what is certain but too small to matter. That intervals do not overlap
would not be enough: of two sets of five readings of the same thing, one in ten has its quartiles above the other's (26
of the 252 orders of ten readings), and there are more than a hundred figures here. By simulation, five rounds each,
normal noise: at 3 % noise the rules name 3 of 1000 unchanged figures, 78 % of those that got 10 % slower, and 99.8 %
at 20 %; at 10 % noise 14 of 1000 unchanged ones, and 91 % of those that got 50 % slower. So measure what is named a
second time. With fewer than three rounds an interval says next to nothing, and the guard says so.

Memory: the peak resident memory is compared by the same two rules, with the rounds' peaks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.backends import BACKENDS, REFERENCE
from bench.results import show_seconds
from bench.worker import quartiles

#: Smaller changes are not named.
THRESHOLD = 1.05


@dataclass(frozen=True)
class Change:
    """A figure that is beyond noise."""

    program: str
    backend: str
    #: "slower", "faster", "more memory" or "less memory".
    kind: str
    #: New median by old median.
    ratio: float
    old: str
    new: str

    @property
    def bad(self) -> bool:
        """The guard's business."""
        return self.kind in ("slower", "more memory")

    def __str__(self) -> str:
        return f"{self.program} on {self.backend}: {self.kind}, {self.ratio:.2f}x: {self.old} before, {self.new} now"


@dataclass(frozen=True)
class Comparison:
    """What two files say about each other."""

    changes: list[Change]
    #: How many figures were compared.
    compared: int
    #: What makes the comparison weaker than it looks, in sentences.
    warnings: list[str]

    @property
    def bad(self) -> list[Change]:
        """Changes for the worse, the worst first."""
        return sorted((change for change in self.changes if change.bad), key=lambda change: -change.ratio)

    def text(self) -> str:
        """For people."""
        lines = [f"warning: {warning}" for warning in self.warnings]
        lines += [str(change) for change in self.bad]
        lines += [str(change) for change in self.changes if not change.bad]
        worse, better = len(self.bad), len(self.changes) - len(self.bad)
        lines.append(f"{self.compared} figures compared: {worse} worse and {better} better beyond noise")
        return "\n".join(lines)


def _is_floor(name: str) -> bool:
    backend = BACKENDS.get(name)
    return backend is not None and backend.floor


def compare(old: dict, new: dict, threshold: float = THRESHOLD) -> Comparison:
    """`new` against `old`, both as `results.load` returns them."""
    relative, warnings = _comparable(old, new)
    changes: list[Change] = []
    compared, before = 0, {program["name"]: program for program in old["programs"]}
    for program in new["programs"]:
        name = program["name"]
        if name not in before:
            warnings.append(f"{name} is not in the old file")
            continue
        # In the order of the new file; a backend that only one file has is no change.
        for backend, ours in program["backends"].items():
            theirs = before[name]["backends"].get(backend)
            if theirs is None or _is_floor(backend) or (backend == REFERENCE and relative):
                continue
            field = "relative" if relative and "relative" in ours and "relative" in theirs else "seconds"
            shown: Callable[[float], str]
            shown = (lambda value: f"{value:.3f} of JAX's CPU") if field == "relative" else show_seconds
            before_peak, peak = (
                quartiles([each["peak_bytes"] for each in entry["rounds"]]) for entry in (theirs, ours)
            )
            figures: list[tuple[str, str, dict, dict, Callable[[float], str]]] = [
                ("slower", "faster", theirs[field], ours[field], shown),
                ("more memory", "less memory", before_peak, peak, lambda value: f"{value / 2**20:.0f} MiB"),
            ]
            for worse, better, was, now, show in figures:
                compared += 1
                ratio = now["median"] / was["median"]
                if apart(was, now) and ratio > threshold:
                    kind = worse
                elif apart(now, was) and ratio < 1 / threshold:
                    kind = better
                else:
                    continue
                changes.append(Change(name, backend, kind, ratio, show(was["median"]), show(now["median"])))
    now_measured = {program["name"]: program["backends"] for program in new["programs"]}
    for name, program in before.items():
        if lost := sorted(set(program["backends"]) - set(now_measured.get(name, {}))):
            warnings.append(f"{name}: not in the new file: {', '.join(lost)}")
    warnings += [f"failed in the new file: {each['program']} on {each['backend']}" for each in new["failures"]]
    return Comparison(changes, compared, warnings)


def apart(low: dict, high: dict) -> bool:
    """The first rule: `high`'s quartiles lie above `low`'s, and further away than either is wide."""
    return high["q1"] - low["q3"] > max(low["q3"] - low["q1"], high["q3"] - high["q1"])


def _comparable(old: dict, new: dict) -> tuple[bool, list[str]]:
    """Whether times relative to the built-in backend are comparable, and what else differs."""
    warnings = []
    same = old["versions"]["jaxlib"] == new["versions"]["jaxlib"]
    both = all(REFERENCE in each["settings"]["backends"] for each in (old, new))
    if not same:
        warnings.append(
            f"jaxlib {old['versions']['jaxlib']} before and {new['versions']['jaxlib']} now: seconds are compared"
        )
    elif not both:
        warnings.append("a file lacks JAX's built-in backend: seconds are compared, so the machine must be the same")
    warnings += [
        f"{what}: {key} was {old[group][key]} and is {new[group][key]}"
        for group, what, keys in (
            ("machine", "another machine", ("cpu", "cpus", "transparent_hugepage")),
            ("settings", "other settings", ("quick", "variables")),
        )
        for key in keys
        if old[group][key] != new[group][key]
    ]
    for which, each in (("old", old), ("new", new)):
        if each["settings"]["rounds"] < 3:
            warnings.append(f"the {which} file has {each['settings']['rounds']} round(s): too few to tell noise")
    return same and both, warnings
