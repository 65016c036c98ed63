"""`python -m bench`, with python_smoke on the path: see the package for what is measured and how."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from bench.backends import BACKENDS, OF_THE_ENGINE, Backend, another_library, clean_environment


def _named(parser: argparse.ArgumentParser, option: str, text: str | None, known: dict) -> list:
    """The values that `text` names, in the order of `known`."""
    if text is None:
        return list(known.values())
    names = text.split(",")
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"{option}={text}: {', '.join(unknown)} is none of {', '.join(known)}")
    return [value for name, value in known.items() if name in names]


def _libraries(parser: argparse.ArgumentParser, named: list[str]) -> dict[str, Backend]:
    backends = {}
    for text in named:
        name, _, path = text.partition("=")
        if not name or name in BACKENDS or name in backends or not Path(path).is_file():
            parser.error(f"--library={text}: must be NAME=PATH, with a new name and the path of a file")
        backends[name] = another_library(name, Path(path))
    return backends


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench", description="The same programs on JAX's CPU backend, the bare engine and pjrt-arena."
    )
    parser.add_argument("--only", metavar="NAME,...", help="programs; all by default")
    parser.add_argument("--backends", metavar="NAME,...", help=f"of {', '.join(BACKENDS)}; all by default")
    parser.add_argument(
        "--library",
        metavar="NAME=PATH",
        action="append",
        default=[],
        help="one more build of pjrt-arena, measured in the same rounds under this name",
    )
    parser.add_argument("--rounds", type=int, default=5, help="processes for each program and backend (5)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does the benchmark itself work?")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write everything to this file")
    parser.add_argument("--markdown", type=Path, metavar="PATH", help="write the tables to this file too")
    parser.add_argument("--svg", type=Path, metavar="PATH", help="write the chart to this file")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="JSON", help="measure nothing: tables and chart of this file"
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("OLD.json", "NEW.json"),
        help="measure nothing: name what got slower beyond noise; status 1 if something did",
    )
    parser.add_argument(
        "--threshold", type=float, default=None, help="with --compare: smaller changes are noise (1.05)"
    )
    parser.add_argument("--list", action="store_true", help="the programs")
    return parser


def _measure(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> dict:
    clean_environment()
    from bench import results, runner
    from bench.programs import BY_NAME

    libraries = _libraries(parser, chosen.library)
    backends = [*_named(parser, "--backends", chosen.backends, BACKENDS), *libraries.values()]
    programs = _named(parser, "--only", chosen.only, BY_NAME)
    if chosen.rounds < 1:
        parser.error(f"--rounds={chosen.rounds}: must be 1 or more")
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith("PJRT_ARENA_")}
    # A path says nothing to another machine.
    variables.pop("PJRT_ARENA_LIBRARY_PATH", None)
    settings = {"rounds": chosen.rounds, "quick": chosen.quick, "started": results.now(), "variables": variables}
    machine, start = {**results.machine(), "load_before": os.getloadavg()[0]}, time.monotonic()
    run = runner.run(programs, backends, chosen.rounds, chosen.quick)
    machine["load_after"] = os.getloadavg()[0]
    settings["seconds"] = round(time.monotonic() - start, 1)
    return results.report(run, programs, backends, settings, machine)


def main() -> int:
    parser = _arguments()
    chosen = parser.parse_args()
    from bench import guard, results, tables

    if chosen.list:
        from bench.programs import PROGRAMS

        print("\n".join(f"{program.name:18} {program.title}" for program in PROGRAMS))
        return 0
    if chosen.compare:
        old, new = map(results.load, chosen.compare)
        comparison = guard.compare(old, new, chosen.threshold or guard.THRESHOLD)
        print(comparison.text())
        return 1 if comparison.bad else 0
    report = results.load(chosen.source) if chosen.source else _measure(parser, chosen)
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    text = tables.markdown(report)
    if chosen.markdown:
        chosen.markdown.write_text(text)
    print(text, end="", flush=True)
    if chosen.svg:
        from bench import chart

        chosen.svg.write_text(chart.svg(report))
    # What the bare engine computes is the engine's affair: it is in the table, and no fault of the run.
    return 1 if any(each["backend"] not in OF_THE_ENGINE for each in report["failures"]) else 0


if __name__ == "__main__":
    sys.exit(main())
