"""Markdown of a run, for people: a paragraph on the machine, a table for each part, what failed, what was warned of."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Callable
from typing import Any

from gpu import tables_memory
from gpu.clock import spread
from gpu.form import MARK, Record, named, rate, seconds, size, table
from gpu.plan import NO_COMMAND_BUFFERS, PARTS

TITLES = {"transformer": "transformer", "convolution": "convolution net", "mlp": "MLP"}
#: Warnings that are written of one part.
MOST_WARNINGS = 12


def markdown(report: dict[str, Any]) -> str:
    """All of it."""
    names, records = report["settings"]["backends"], report["records"]
    order = collections.defaultdict(int, {name: number for number, name in enumerate(names)})
    text = [f"# pjrt-arena on {_device(report)}", _setup(report)]
    for part, title in PARTS.items():
        # In the order of the columns, whichever ran last.
        chosen = [record for record in records if record["part"] == part]
        chosen.sort(key=lambda record: order[record["backend"]])
        if chosen:
            text.append(f"## {title}")
            # What ended early may have a part of its answer.
            done = [record for record in chosen if "result" in record]
            try:
                text += [_TABLES[part](done, names)] if done else []
            except Exception as error:  # the numbers are in the JSON file, and other parts are to come
                text.append(f"This table could not be made: {type(error).__name__}: {error}")
            text += [*_undone(chosen, names), *_warned(chosen, names)]
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
    library = _library(report)
    flags = f" XLA_FLAGS `{settings['xla_flags']}`." if settings.get("xla_flags") else ""
    small = "" if settings["size"] == "full" else f" Sizes are {settings['size']}: the times say little."
    warm = report.get("warm_up")
    warmed = f" A tiny program before all took {warm['seconds']:.0f} s." if warm else ""
    stopped = f"\n\n**{report['stopped'].splitlines()[0]}**" if report.get("stopped") else ""
    return (
        f"{machine['cpus']} CPUs ({machine['cpu']}), {size(machine['memory_bytes'])}.{driver} "
        f"Python {machine['python']}, {versions}. {report['started']}, {report['seconds']:.0f} s of a budget of "
        f"{settings['budget']:.0f}. A fresh process for each measurement; times are medians."
        f"{library}{warmed}{small}{flags}{stopped}"
    )


def _library(report: dict[str, Any]) -> str:
    """Which library was measured; rows of an earlier run may be of another."""
    found = report["machine"].get("library") or {}
    said = [f"{name} {found[name]}" for name in ("version", "commit", "sha256") if found.get(name)]
    other = {record.get("library") for record in report["records"]} - {found.get("sha256"), None}
    more = f" **Some rows are of another library: sha256 {', '.join(sorted(other))}.**" if other else ""
    return (f" pjrt-arena {', '.join(said)}." if said else "") + more


def _whose(record: Record, names: dict[str, str]) -> str:
    backend: str = record["backend"]
    return names.get(backend, backend)


def _undone(records: list[Record], names: dict[str, str]) -> list[str]:
    """A line for each measurement that has no result, and one for all backends where it went the same way."""
    verbs = {"failed": "failed", "timeout": "took too long", "skipped": "was left out"}
    alike: dict[str, list[str]] = {}
    for record in records:
        if record["status"] != "done":
            noted = f"; the log has: {', '.join(record['noted'])}" if record.get("noted") else ""
            said = f"{_what(record)}: {verbs[record['status']]}: {record['error']}{noted}"
            alike.setdefault(said, []).append(_whose(record, names))
    lines = [f"- {', '.join(dict.fromkeys(backends))}, {said}" for said, backends in alike.items()]
    return ["\n".join(lines)] if lines else []


def _warned(records: list[Record], names: dict[str, str]) -> list[str]:
    """What the arena warned of, each line once."""
    alike: dict[str, list[str]] = {}
    for record in records:
        for line in record.get("warned", ()):
            alike.setdefault(f"{_what(record)}: {line}", []).append(_whose(record, names))
    lines = [f"-{MARK} {', '.join(dict.fromkeys(backends))}, {said}" for said, backends in alike.items()]
    if (more := len(lines) - MOST_WARNINGS) > 0:
        lines[MOST_WARNINGS:] = [f"-{MARK} and {more} more in the JSON file"]
    return ["\n".join(lines)] if lines else []


def _what(record: Record) -> str:
    more = [f"round {record['round']}"] if record["round"] > 1 else []
    more += [f"{name} {value}" for name, value in record["values"].items() if name in ("odd", "trimmed")]
    more += [f"`{record['flags']}`"] if record["flags"] else []
    return " ".join([f"`{record['measure'].removeprefix('gpu.')}`", *more])


def _machine(records: list[Record], names: dict[str, str]) -> str:
    rows, text = [], []
    for record in records:
        told = record["result"]
        if record["measure"] == "gpu.machine.about":
            version = " ".join(told["platform_version"].split())
            api = ".".join(map(str, told["api_version"] or ("built in",)))
            limit = (told["memory_stats"] or {}).get("bytes_limit")
            host = told["host_memory"]
            behind = host["behind_the_first_array"]
            rows.append(
                [
                    named(record, names),
                    f"{told['devices']} x {told['kind']}",
                    api,
                    size(limit) if limit else "none",
                    seconds(told["start_seconds"]),
                    f"{size(behind['resident'])}; its own {size(behind['own'])}, {size(host['before']['own'])} before",
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
    told = (
        table(["", "devices", "C API", "limit", "start", "host memory after an array", "version"], rows) if rows else ""
    )
    return "\n\n".join(part for part in (told, *text) if part)


def _checks(records: list[Record], names: dict[str, str]) -> str:
    rows = []
    for record in records:
        told = record["result"]
        failed = "; ".join(f"{each['name']}: {each['error']}" for each in told["failed"])
        ended = [f"ended in {told['ended_at']}"] if "ended_at" in told else []
        failed = "; ".join([*([failed] if failed else []), *ended])
        rows.append([named(record, names), f"{told['passed']} of {told['of']}", failed.replace("|", "\\|")])
    return table(["", "passed", "failed"], rows)


def _steps(records: list[Record], names: dict[str, str]) -> str:
    columns = [name for name in names if any(record["backend"] == name for record in records)]
    theirs = [name for name in columns if not name.startswith("arena")]
    # What a process had before it ended lacks a model; that it ended is said below.
    rounds: dict[tuple[str, str], list[dict[str, float]]] = {}
    failed: dict[str, list[str]] = {}
    for record in records:
        for model, title in TITLES.items():
            told = record["result"].get(model)
            if told and "error" in told:
                who = failed.setdefault(f"{title}: {told['error']}", [])
                who.extend({named(record, names)} - {*who})
            elif told:
                rounds.setdefault((model, record["backend"]), []).append(told["seconds"])
    medians = {key: statistics.median(each["median"] for each in told) for key, told in rounds.items()}
    rows = []
    for model, title in TITLES.items():
        best = min((medians[model, name] for name in columns if (model, name) in medians), default=None)
        least = min((medians[model, name] for name in theirs if (model, name) in medians), default=None)
        cells = []
        for name in columns:
            if (model, name) not in rounds:
                cells.append("failed")
                continue
            told, middle = rounds[model, name], medians[model, name]
            # Of one round, how its readings differ; of several, how the rounds do.
            around = told[0] if len(told) == 1 else spread([each["median"] for each in told])
            scatter = (around["q3"] - around["q1"]) / 2 / middle
            ratio = f", {middle / least:.3f}x" if least else ""
            cell = f"{seconds(middle)} ±{100 * scatter:.1f} %{ratio}"
            cells.append(f"**{cell}**" if middle == best else cell)
        donated = any((record["result"].get(model) or {}).get("donated") for record in records)
        rows.append([title + (", donated" if donated else ""), *cells])
    counts = {len(told) for told in rounds.values()}
    count = "no" if not counts else str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    note = f"Median of {count} round(s) ± half the distance of the quartiles: of the rounds, and of the readings where "
    note += "there is one round."
    note += " The ratio is to the best of JAX's own allocators; the fastest of all is bold." if theirs else ""
    lines = ["\n".join(f"- {', '.join(who)}, {what}" for what, who in failed.items())] if failed else []
    warned = {record["backend"] for record in records if record.get("warned")}
    head = ["", *(names[name] + (MARK if name in warned else "") for name in columns)]
    return "\n\n".join([table(head, rows), note, *lines])


def _transfers(records: list[Record], names: dict[str, str]) -> str:
    both = [record for record in records if record["measure"] == "gpu.transfers.both"]
    puts = [record for record in records if record["measure"] == "gpu.transfers.puts"]
    made, rows = [], []
    for record in both:
        told, cells = record["result"], []
        for row in told["rows"]:
            cells += [rate(row["bytes"], row[way]["median"]) for way in ("put", "get")]
        rows.append([named(record, names), *cells, f"{100 * told['prefetch']['hidden']:.0f} %"])
    if both:
        sizes = [size(row["bytes"]) for row in both[0]["result"]["rows"]]
        head = [f"{way} {each}" for each in sizes for way in ("device_put", "device_get")]
        made.append(table(["", *head, "of a copy hidden by a step"], rows))
    rows = []
    for record in puts:
        large, many = record["result"]["large"], record["result"]["many"]
        all_bytes = many["count"] * many["bytes"]
        rows.append(
            [
                named(record, names),
                f"{rate(large['bytes'], large['seconds']['median'])} of {size(large['bytes'])}",
                f"{rate(all_bytes, many['seconds']['median'])} of {many['count']} x {size(many['bytes'])}",
                seconds(many["call"]["median"]),
            ]
        )
    if puts:
        made.append(table(["", "device_put of one array", "of many without a pause", "a call of these"], rows))
    return "\n\n".join(made)


def _small(records: list[Record], names: dict[str, str]) -> str:
    rows = []
    for record in records:
        dispatch, live = record["result"]["dispatch"], record["result"]["live"]
        each = live["bytes_per_array"]
        rows.append(
            [
                named(record, names),
                seconds(dispatch["one"]["median"]),
                seconds(dispatch["thirty_two"]["median"]),
                "not known" if each is None else f"{each:.0f} B",
                f"{live['arrays']:,}" + (", then refused" if live.get("refused") else ""),
            ]
        )
    return table(["", "tiny jitted add", "add of 32 arrays", "host memory for a live array", "arrays"], rows)


def _kernels(records: list[Record], names: dict[str, str]) -> str:
    steps, lost = [], []
    for record in records:
        told = record["result"]
        if record["measure"] == "gpu.small.many_kernels":
            without = ", without command buffers" if record["flags"] == NO_COMMAND_BUFFERS else ""
            steps.append([named(record, names) + without, str(told["kernels"]), seconds(told["seconds"]["median"])])
        else:
            seen = (told["free_before"], told["free_after"])
            free = ["not known" if each is None else size(each) for each in seen]
            lost.append([named(record, names), f"{told['steps']:,}", str(told["places"]), *free])
    heads = ["", "products in a step", "step"], ["", "steps", "places of results", "free on the device before", "after"]
    return "\n\n".join(table(head, rows) for head, rows in zip(heads, (steps, lost), strict=True) if rows)


def _sanitizer(records: list[Record], names: dict[str, str]) -> str:
    rows = []
    for record in records:
        told = record["result"]
        rows.append(
            [
                named(record, names),
                str(told.get("sanitizer_errors", "?")),
                f"{told.get('passed', '?')} of {told.get('of', '?')}",
            ]
        )
    note = (
        "compute-sanitizer may report an error that is none where a kernel's bulk copy crosses the border of two "
        "pieces of mapped memory (pytorch issue 196209), so `platform` is the control: its arrays are allocations of "
        "the driver's own."
    )
    return "\n\n".join([table(["", "errors", "checks passed"], rows), note])


_TABLES: dict[str, Callable[[list[Record], dict[str, str]], str]] = {
    "a": _machine,
    "b": _checks,
    "c": tables_memory.fragmented,
    "d": _steps,
    "e": tables_memory.share,
    "f": tables_memory.compaction,
    "g": _transfers,
    "h": _small,
    "i": _kernels,
    "j": _sanitizer,
    "k": tables_memory.facts,
    "l": tables_memory.pressure,
    "m": tables_memory.ends,
    "n": tables_memory.beside_torch,
}
