"""Markdown of a run, for people: a paragraph on the machine, a table for each part, and what failed, in full."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from gpu.clock import spread
from gpu.plan import NO_COMMAND_BUFFERS, PARTS

Record = dict[str, Any]
TITLES = {"transformer": "transformer", "convolution": "convolution net", "mlp": "MLP"}


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
    return f"{_three(bytes_ / time / 1e9)} GB/s" if time else "at once"


def _three(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def markdown(report: dict[str, Any]) -> str:
    """All of it."""
    names, records = report["settings"]["backends"], report["records"]
    text = [f"# pjrt-arena on {_device(report)}", _setup(report)]
    for part, title in PARTS.items():
        chosen = [record for record in records if record["part"] == part]
        if chosen:
            text.append(f"## {title}")
            done = [record for record in chosen if record["status"] == "done"]
            try:
                text += [_TABLES[part](done, names)] if done else []
            except Exception as error:  # the numbers are in the JSON file, and other parts are to come
                text.append(f"This table could not be made: {type(error).__name__}: {error}")
            text += _undone(chosen, names)
    return "\n\n".join(text) + "\n"


def _device(report: dict[str, Any]) -> str:
    gpus = report["machine"]["gpus"]
    if report["settings"]["platform"] == "cpu" or isinstance(gpus, str) or not gpus:
        return "a CPU: a rehearsal" if report["settings"]["platform"] == "cpu" else "a machine whose GPUs are not known"
    return f"{len(gpus)} x {gpus[0]['name']}" if len(gpus) > 1 else gpus[0]["name"]


def _setup(report: dict[str, Any]) -> str:
    machine, settings = report["machine"], report["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    gpus = machine["gpus"]
    driver = ""
    if gpus and not isinstance(gpus, str):
        driver = f" Driver {gpus[0]['driver_version']}, {gpus[0]['memory.total']}."
    flags = f" XLA_FLAGS `{settings['xla_flags']}`." if settings.get("xla_flags") else ""
    small = "" if settings["size"] == "full" else f" Sizes are {settings['size']}: the times say little."
    return (
        f"{machine['cpus']} CPUs ({machine['cpu']}), {size(machine['memory_bytes'])}.{driver} "
        f"Python {machine['python']}, {versions}. {report['started']}, {report['seconds']:.0f} s of a budget of "
        f"{settings['budget']:.0f}. A fresh process for each measurement; times are medians.{small}{flags}"
    )


def _undone(records: list[Record], names: dict[str, str]) -> list[str]:
    """A line for each measurement that has no result, and one for all backends where it went the same way."""
    verbs = {"failed": "failed", "timeout": "took too long", "skipped": "was left out"}
    alike: dict[str, list[str]] = {}
    for record in records:
        if record["status"] != "done":
            said = f"{_what(record)}: {verbs[record['status']]}: {record['error']}"
            alike.setdefault(said, []).append(names.get(record["backend"], record["backend"]))
    lines = [f"- {', '.join(dict.fromkeys(backends))}, {said}" for said, backends in alike.items()]
    return ["\n".join(lines)] if lines else []


def _what(record: Record) -> str:
    more = [f"round {record['round']}"] if record["round"] > 1 else []
    more += [f"{name} {value}" for name, value in record["values"].items() if name == "odd"]
    more += [f"`{record['flags']}`"] if record["flags"] else []
    return " ".join([f"`{record['measure'].removeprefix('gpu.')}`", *more])


def _table(head: list[str], rows: list[list[str]]) -> str:
    """A table whose columns but the first are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _machine(records: list[Record], names: dict[str, str]) -> str:
    rows, text = [], []
    for record in records:
        told = record["result"]
        if record["measure"] == "gpu.machine.about":
            version = " ".join(told["platform_version"].split())
            api = ".".join(map(str, told["api_version"] or ("built in",)))
            limit = (told["memory_stats"] or {}).get("bytes_limit")
            rows.append(
                [
                    names[record["backend"]],
                    f"{told['devices']} x {told['kind']}",
                    api,
                    size(limit) if limit else "none",
                    seconds(told["start_seconds"]),
                    version,
                ]
            )
        else:
            said = {True: "yes", False: "no", None: "not seen"}
            text.append(
                f"Views, on {names[record['backend']]}: ready while an earlier kernel runs: "
                f"{said[told['ready_while_busy']]}; let go of while a program uses it: "
                f"{said[told['let_go_while_busy']]}; a donated view's result lies in place: "
                f"{', '.join(said[each] for each in told['in_place'])}; results right: {said[told['results_right']]}."
            )
    table = _table(["", "devices", "C API", "limit", "start", "version"], rows) if rows else ""
    return "\n\n".join(part for part in (table, *text) if part)


def _checks(records: list[Record], names: dict[str, str]) -> str:
    rows = []
    for record in records:
        told = record["result"]
        failed = "; ".join(f"{each['name']}: {each['error']}" for each in told["failed"])
        rows.append([names[record["backend"]], f"{told['passed']} of {told['of']}", failed.replace("|", "\\|")])
    return _table(["", "passed", "failed"], rows)


def _fragmented(records: list[Record], names: dict[str, str]) -> str:
    rows = [
        [
            names[record["backend"]],
            size(record["result"]["limit"]),
            str(record["result"]["kept"]),
            size(record["result"]["wanted"]),
            "served" if record["result"]["served"] else "RESOURCE_EXHAUSTED",
            "intact" if record["result"]["intact"] else "damaged",
        ]
        for record in records
    ]
    return _table(["", "limit", "small results kept", "wanted in one piece", "and", "data"], rows)


def _steps(records: list[Record], names: dict[str, str]) -> str:
    columns = [name for name in names if any(record["backend"] == name for record in records)]
    rows = []
    failed: dict[str, list[str]] = {}
    for model, title in TITLES.items():
        rounds: dict[str, list[float]] = {name: [] for name in columns}
        for record in records:
            told = record["result"][model]
            if "error" in told:
                who = failed.setdefault(f"{title}: {told['error']}", [])
                who.extend({names[record["backend"]]} - {*who})
            else:
                rounds[record["backend"]].append(told["seconds"]["median"])
        best = min((statistics.median(times) for times in rounds.values() if times), default=None)
        cells = []
        for name in columns:
            if best is None or not rounds[name]:
                cells.append("failed")
                continue
            told = spread(rounds[name])
            scatter = (told["q3"] - told["q1"]) / 2 / told["median"]
            scattered = f" ±{100 * scatter:.0f} %" if len(rounds[name]) > 1 else ""
            cell = f"{seconds(told['median'])}{scattered}, {told['median'] / best:.2f}x"
            cells.append(f"**{cell}**" if told["median"] == best else cell)
        donated = any(record["result"][model].get("donated") for record in records)
        rows.append([title + (", donated" if donated else ""), *cells])
    least = min(sum(record["backend"] == name for record in records) for name in columns)
    most = max(sum(record["backend"] == name for record in records) for name in columns)
    count = str(least) if least == most else f"{least} to {most}"
    scatter_said = "half the distance of their quartiles, " if most > 1 else ""
    note = f"Median of {count} round(s), {scatter_said}and the ratio to the best."
    lines = ["\n".join(f"- {', '.join(who)}, {what}" for what, who in failed.items())] if failed else []
    return "\n\n".join([_table(["", *(names[name] for name in columns)], rows), note, *lines])


def _share(records: list[Record], names: dict[str, str]) -> str:
    rows = []
    for record in records:
        told = record["result"]
        shares = [each["share"] for each in told["rounds"]]
        worst = min(told["rounds"], key=lambda each: each["share"])
        refused = "none: the limit is not kept"
        if worst["limit_kept"]:
            refused = f"{size(worst['refused_bytes'])} with {size(worst['free_bytes'])} free"
        rows.append(
            [
                names[record["backend"]],
                size(told["limit"]),
                f"{100 * told['share']:.1f} %",
                f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %",
                refused,
            ]
        )
    return _table(["", "limit", "in use when one is refused", "over the rounds", "refused in the worst"], rows)


def _compaction(records: list[Record], names: dict[str, str]) -> str:
    rows = []
    for record in records:
        told = record["result"]
        remapped = sum(count for name, count in told["counters"].items() if "remap" in name and "bytes" in name)
        rows.append(
            [
                f"{names[record['backend']]}, arrays of {size(told['array_bytes'])}"
                + ("" if record["values"]["odd"] else ", whole pages"),
                size(told["limit"]),
                f"{size(told['bytes'])} in {told['buffers']}" + (f", {size(remapped)} remapped" if remapped else ""),
                seconds(told["seconds"]),
                rate(told["bytes"], told["seconds"]),
                f"{size(told['largest_free_before'])} to {size(told['largest_free_after'])}",
            ]
        )
    return _table(["", "limit", "moved", "time", "rate", "largest hole"], rows)


def _transfers(records: list[Record], names: dict[str, str]) -> str:
    rows = []
    for record in records:
        told, cells = record["result"], []
        for row in told["rows"]:
            cells += [rate(row["bytes"], row[way]["median"]) for way in ("put", "get")]
        rows.append([names[record["backend"]], *cells, f"{100 * told['prefetch']['hidden']:.0f} %"])
    sizes = [size(row["bytes"]) for row in records[0]["result"]["rows"]]
    head = [f"{way} {each}" for each in sizes for way in ("device_put", "device_get")]
    return _table(["", *head, "of a copy hidden by a step"], rows)


def _small(records: list[Record], names: dict[str, str]) -> str:
    rows = [
        [
            names[record["backend"]],
            seconds(record["result"]["dispatch"]["one"]["median"]),
            seconds(record["result"]["dispatch"]["thirty_two"]["median"]),
            f"{record['result']['live']['bytes_per_array']:.0f} B",
            f"{record['result']['live']['arrays']:,}",
        ]
        for record in records
    ]
    return _table(["", "tiny jitted add", "add of 32 arrays", "host memory for a live array", "arrays"], rows)


def _kernels(records: list[Record], names: dict[str, str]) -> str:
    rows = [
        [
            names[record["backend"]] + (", without command buffers" if record["flags"] == NO_COMMAND_BUFFERS else ""),
            str(record["result"]["kernels"]),
            seconds(record["result"]["seconds"]["median"]),
        ]
        for record in records
    ]
    return _table(["", "products in a step", "step"], rows)


def _sanitizer(records: list[Record], names: dict[str, str]) -> str:
    rows = []
    for record in records:
        told = record["result"]
        rows.append(
            [
                names[record["backend"]],
                str(told.get("sanitizer_errors", "?")),
                f"{told.get('passed', '?')} of {told.get('of', '?')}",
            ]
        )
    return _table(["", "errors", "checks passed"], rows)


_TABLES: dict[str, Callable[[list[Record], dict[str, str]], str]] = {
    "a": _machine,
    "b": _checks,
    "c": _fragmented,
    "d": _steps,
    "e": _share,
    "f": _compaction,
    "g": _transfers,
    "h": _small,
    "i": _kernels,
    "j": _sanitizer,
}
