"""`run.sh`, or `python -m gpu` with python_smoke on the path: see the package for what is measured and how."""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from gpu import machine, tables
from gpu.backends import Backend, backends
from gpu.plan import PARTS, Job, jobs
from gpu.runner import Runner
from gpu.sizes import SIZES

SCHEMA = "pjrt-arena-gpu/1"
#: A job's expected time at a size, in units of that at full size on a GPU, and how often it may take that. A run on a
#: GPU has nine minutes, and one job that hangs must not take half of them; a rehearsal may share its machine.
SCALES = {"full": (1.0, 2), "small": (0.7, 4), "tiny": (0.15, 10)}


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run.sh",
        description="Checks and measures pjrt-arena on a machine with a GPU, beside JAX's own allocators.",
        epilog="Parts: " + "; ".join(f"{name} {title}" for name, title in PARTS.items()),
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for results.json and results.md")
    parser.add_argument("--budget", type=float, default=540, metavar="SECONDS", help="what does not fit is left out")
    parser.add_argument("--platform", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal without a GPU")
    parser.add_argument(
        "--engine", type=Path, metavar="PATH", help="another engine for the arena than the installed one"
    )
    parser.add_argument("--xla-flags", default="", metavar="FLAGS", help="XLA_FLAGS of every process, on all backends")
    parser.add_argument("--size", choices=SIZES, help="full on a GPU, small on a CPU, tiny for tests")
    parser.add_argument("--only", metavar="PARTS", default="".join(PARTS), help="letters of parts, such as abd")
    parser.add_argument("--backends", metavar="NAME,...", help="columns; all by default")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of training steps")
    parser.add_argument("--add", action="store_true", help="keep what the folder has of parts that do not run now")
    parser.add_argument("--missing", action="store_true", help="with --add: run only what the folder has no result of")
    return parser


def _columns(parser: argparse.ArgumentParser, platform: str, engine: str, names: str | None) -> list[Backend]:
    known = backends(platform, engine)
    chosen = names.split(",") if names else list(known)
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"--backends={names}: {unknown[0]} is none of {', '.join(known)}")
    return [known[name] for name in known if name in chosen]


def _before(parser: argparse.ArgumentParser, path: Path, platform: str, size: str) -> list[dict[str, Any]]:
    """The records of an earlier run, which must have measured the same thing."""
    earlier = json.loads(path.read_text())
    had = {name: earlier["settings"][name] for name in ("platform", "size")}
    if had != {"platform": platform, "size": size}:
        parser.error(f"--add: {path} is of --platform {had['platform']} --size {had['size']}")
    return earlier["records"]


def _wanted(planned: list[Job], before: list[dict[str, Any]], missing: bool) -> list[Job]:
    """Without those of which an earlier run has a row, unless it says that only time was missing."""
    had = {record["key"] for record in before if not record.get("again")} if missing else set()
    return [job for job in planned if job.name not in had]


def _rest(records: list[dict[str, Any]], arguments: list[str]) -> list[str]:
    """A line on what there was no time for, with the command that goes on; none where all was done."""
    left = [record for record in records if record.get("again")]
    if not left:
        return []
    parts = "".join(part for part in PARTS if any(record["part"] == part for record in left))
    given, skip = [], False
    for argument in arguments:
        if not skip and argument.split("=")[0] not in ("--add", "--missing", "--only"):
            given.append(argument)
        skip = argument == "--only"
    command = shlex.join(["run.sh", *given, "--add", "--missing", "--only", parts])
    return [f"{len(left)} measurements of parts {', '.join(parts)} were left out for time; the rest: {command}"]


def _replace(path: Path, text: str) -> None:
    """Writes a file that is there as a whole at any time."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    beside.replace(path)


def main() -> int:
    parser = _arguments()
    arguments = sys.argv[1:]
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.only.replace(",", "")) - set(PARTS):
        parser.error(f"--only={chosen.only}: {min(unknown)} is none of {''.join(PARTS)}")
    if chosen.budget <= 0 or chosen.rounds < 1:
        parser.error(f"--budget={chosen.budget} --rounds={chosen.rounds}: must be above 0")
    if chosen.missing and not chosen.add:
        parser.error("--missing: means nothing without --add")
    size = chosen.size or ("small" if chosen.platform == "cpu" else "full")
    if chosen.engine and not chosen.engine.is_file():
        parser.error(f"--engine={chosen.engine}: is not a file; it must be the path of a PJRT plugin library")
    engine = str(chosen.engine.resolve()) if chosen.engine else ""
    columns = _columns(parser, chosen.platform, engine, chosen.backends)
    planned = [job for job in jobs(chosen.platform, SIZES[size], columns, chosen.rounds) if job.part in chosen.only]
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = chosen.out / "results.json"
    before = _before(parser, results, chosen.platform, size) if chosen.add and results.is_file() else []
    wanted = _wanted(planned, before, chosen.missing)
    start = time.monotonic()
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "settings": {
            "platform": chosen.platform,
            "size": size,
            "budget": chosen.budget,
            "only": chosen.only,
            "rounds": chosen.rounds,
            "xla_flags": chosen.xla_flags,
            "engine": chosen.engine.name if chosen.engine else None,
            # All there are: rows of an earlier run may have others.
            "backends": {name: backend.title for name, backend in backends(chosen.platform).items()},
        },
        "machine": machine.host(),
    }

    def save(records: list[dict[str, Any]]) -> None:
        report["seconds"] = round(time.monotonic() - start, 1)
        report["records"] = records
        _replace(results, json.dumps(report, indent=1) + "\n")
        _replace(chosen.out / "results.md", tables.markdown(report))

    runner = Runner(size, *SCALES[size], chosen.budget, save, chosen.xla_flags)
    runner.run(wanted, before)
    save(runner.records)
    print("\n".join([f"{results}\n{chosen.out / 'results.md'}", *_rest(runner.records, arguments)]))
    failed = [record for record in runner.records if record["status"] in ("failed", "timeout")]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
