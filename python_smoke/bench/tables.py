"""Markdown: a short table for docs/benchmarks.md, a full one, and what falls short of the promises.

The promises: within 5 % of the floor where there is one, never below 0.97x of what the bare engine reaches, 1.1x on the
geometric mean, a tiny dispatch at most 1.05x of the bare engine's, peak memory at most 1.10x of the built-in's. Where
the floor of one destination is missed, the line also compares with the floor of two, and with that of the bare engine:
what the engine takes longer for than JAX's own XLA, no allocator can give back.
"""

from __future__ import annotations

import statistics

from bench.backends import FLOOR, FLOOR_OF_ENGINE, FLOOR_OF_TWO, REFERENCE
from bench.results import geometric_mean, show_ratio, show_seconds

OURS = "arena"
NEAR_FLOOR, SLOWEST, MEAN, DISPATCH, PEAK = 1.05, 0.97, 1.10, 1.05, 1.10
#: So many of the programs that gain least are named.
WORST = 5


def markdown(report: dict) -> str:
    """All of it."""
    parts = [setup(report), short_table(report), worst(report), full_table(report), findings(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def setup(report: dict) -> str:
    """One paragraph: where and how this was measured."""
    machine, versions, settings = report["machine"], report["versions"], report["settings"]
    quick = " Quick: sizes are tiny, and the times mean nothing." if settings["quick"] else ""
    variables = "".join(f" {name}={value}." for name, value in settings["variables"].items())
    return (
        f"{machine['cpus']} CPUs ({machine['cpu']}), {machine['memory_bytes'] / 2**30:.1f} GiB, load "
        f"{machine['load_before']:.1f} before and {machine['load_after']:.1f} after; jax {versions['jax']}, engine "
        f"{versions['engine']}, pjrt-arena {versions['pjrt_arena']}. {settings['rounds']} round(s), a "
        f"fresh process for each program and backend in each round: medians of the rounds' medians, and half the "
        f"distance of their quartiles.{variables}{quick}"
    )


def short_table(report: dict) -> str:
    """The programs that JAX's CPU backend and ours were both timed with, the fastest first.

    The times are those of one round: the one whose speed-up is the median. So a reader who divides them gets what is
    said.
    """
    lines = [
        "| | speed-up | JAX's CPU | bare engine | pjrt-arena | floor | peak, JAX's CPU | peak, pjrt-arena |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    programs = [each for each in report["programs"] if "speedup" in each["backends"].get(OURS, {})]
    for program in sorted(programs, key=lambda each: -each["backends"][OURS]["speedup"]["median"]):
        backends = program["backends"]
        theirs, ours, bare, floor = (backends.get(name) for name in (REFERENCE, OURS, "bare", FLOOR))
        middle = _middle_round(ours, theirs)
        cells = [
            program["title"],
            show_ratio(ours["speedup"]["median"]),
            show_seconds(theirs["rounds"][middle]["median"]),
            show_seconds(bare["rounds"][middle]["median"]) if bare else "",
            show_seconds(ours["rounds"][middle]["median"]),
            show_ratio(floor["speedup"]["median"]) if floor and "speedup" in floor else "",
            _mib(theirs["peak_bytes"]),
            _mib(ours["peak_bytes"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    ratios = _speedups(report, OURS)
    if not ratios:
        return ""
    bare_ratios = _speedups(report, "bare")
    mean = f"| geometric mean | {show_ratio(geometric_mean(ratios))} | |"
    lines.append(f"{mean} {show_ratio(geometric_mean(bare_ratios)) if bare_ratios else ''} | | | | |")
    return "\n".join(lines)


def full_table(report: dict) -> str:
    """Every backend: time, speed-up over the built-in backend, peak without libraries, page faults per call."""
    names = report["settings"]["backends"]
    lines = [
        "Each cell: time, speed-up, peak resident memory without libraries and JAX's import, page faults per call.",
        "",
        f"| | {' | '.join(names.values())} |",
        "|---|" + "---|" * len(names),
    ]
    for program in report["programs"]:
        cells = []
        for name in names:
            entry = program["backends"].get(name)
            if entry is None:
                cells.append("")
                continue
            said = [_time(entry)]
            if name != REFERENCE and "speedup" in entry:
                said.append(show_ratio(entry["speedup"]["median"]))
            said += [_mib(entry["peak_data_bytes"]), f"{entry['faults']:.3g} faults"]
            cells.append(", ".join(said))
        lines.append(f"| {program['title']} (`{program['name']}`) | {' | '.join(cells)} |")
    means = [
        "" if name == REFERENCE or not (ratios := _speedups(report, name)) else show_ratio(geometric_mean(ratios))
        for name in names
    ]
    lines.append(f"| geometric mean | {' | '.join(means)} |")
    return "\n".join(lines)


def findings(report: dict) -> str:
    """What falls short of the promises, and what failed."""
    lines = [f"- FAILED: {each['program']} on {each['backend']}: {each['error']}" for each in report["failures"]]
    for program in report["programs"]:
        name, backends = program["name"], program["backends"]
        theirs, ours, floor = (backends.get(key) for key in (REFERENCE, OURS, FLOOR))
        if ours is None:
            continue
        if floor and (ratio := _paired(ours, floor)) > NEAR_FLOOR:
            others = [
                f"{_paired(ours, backends[key]):.2f}x of {title}"
                for key, title in ((FLOOR_OF_TWO, "the floor of two"), (FLOOR_OF_ENGINE, "the bare engine's"))
                if key in backends
            ]
            also = f" ({', '.join(others)})" if others else ""
            lines.append(f"- {name}: {ratio:.2f}x of the floor's time{also}; promised: at most {NEAR_FLOOR}")
        bare = backends.get("bare")
        most = DISPATCH if name == "dispatch" else 1 / SLOWEST
        if bare and (ratio := _paired(ours, bare)) > most:
            also = f" ({show_ratio(ours['speedup']['median'])} of JAX's CPU)" if "speedup" in ours else ""
            lines.append(f"- {name}: {ratio:.2f}x of the bare engine's time{also}; promised: at most {most:.2f}")
        if theirs and (ratio := ours["peak_bytes"] / theirs["peak_bytes"]) > PEAK:
            data = ours["peak_data_bytes"] / theirs["peak_data_bytes"]
            lines.append(
                f"- {name}: peak memory {ratio:.2f}x of JAX's CPU ({data:.2f}x without libraries); "
                f"promised: at most {PEAK}"
            )
    ratios = [
        program["backends"][OURS]["speedup"]["median"]
        for program in report["programs"]
        if not program["floor"] and "speedup" in program["backends"].get(OURS, {})
    ]
    if ratios and (mean := geometric_mean(ratios)) < MEAN:
        lines.append(f"- geometric mean without the programs that have a floor {mean:.2f}x; promised: at least {MEAN}")
    return "\n".join(["Short of what is promised:", "", *lines]) if lines else "All promises kept."


def worst(report: dict) -> str:
    """The programs that gain least, as one line, with what the bare engine reaches; "" if nothing was compared."""
    ours = [
        (program["backends"][OURS]["speedup"]["median"], program)
        for program in report["programs"]
        if "speedup" in program["backends"].get(OURS, {})
    ]
    said = []
    for ratio, program in sorted(ours, key=lambda each: each[0])[:WORST]:
        bare = program["backends"].get("bare", {}).get("speedup")
        also = f" (bare engine: {show_ratio(bare['median'])})" if bare else ""
        said.append(f"{program['title']} {show_ratio(ratio)}{also}")
    return f"The worst {len(said)} speed-ups: {', '.join(said)}." if said else ""


def _speedups(report: dict, backend: str) -> list[float]:
    return [
        program["backends"][backend]["speedup"]["median"]
        for program in report["programs"]
        if "speedup" in program["backends"].get(backend, {})
    ]


def _paired(ours: dict, other: dict) -> float:
    """Median over the rounds of our time in units of the other's in the same round."""
    pairs = zip(ours["rounds"], other["rounds"], strict=True)
    return statistics.median(one["median"] / another["median"] for one, another in pairs)


def _middle_round(ours: dict, theirs: dict) -> int:
    """The round with the median speed-up; of an even number of rounds the lower one of the two in the middle."""
    ratios = [other["median"] / one["median"] for one, other in zip(ours["rounds"], theirs["rounds"], strict=True)]
    return ratios.index(statistics.median_low(ratios))


def _time(entry: dict) -> str:
    seconds = entry["seconds"]
    spread = (seconds["q3"] - seconds["q1"]) / 2 / seconds["median"]
    return f"{show_seconds(seconds['median'])} ±{100 * spread:.0f} %"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
