"""`run.sh`, or `python -m gpu` with python_smoke on the path: see the package for what is measured and how."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from gpu import inventory, machine, tables
from gpu.backends import Backend, backends
from gpu.plan import PARTS, Job, jobs
from gpu.runner import Runner, job_of
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
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for what comes of it")
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
    parser.add_argument(
        "--missing", action="store_true", help="with --add: run only what has no row yet, or is to be had again"
    )
    parser.add_argument("--gate", action="store_true", help="stop behind part b if no check passed on the arena")
    return parser


def _columns(parser: argparse.ArgumentParser, platform: str, engine: str, names: str | None) -> list[Backend]:
    known = backends(platform, engine)
    chosen = names.split(",") if names else list(known)
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"--backends={names}: {unknown[0]} is none of {', '.join(known)}")
    return [known[name] for name in known if name in chosen]


def _before(
    parser: argparse.ArgumentParser, path: Path, platform: str, size: str, gpus: list[dict[str, str]] | str
) -> list[dict[str, Any]]:
    """The records of an earlier run, which must have measured the same thing on a card of the same kind."""
    earlier = json.loads(path.read_text())
    had = {name: earlier["settings"][name] for name in ("platform", "size")}
    if had != {"platform": platform, "size": size}:
        parser.error(f"--add: {path} is of --platform {had['platform']} --size {had['size']}")
    then, now = _cards(earlier["machine"]["gpus"]), _cards(gpus)
    # Where nvidia-smi said nothing, nothing is known.
    if platform == "cuda" and then and now and then != now:
        parser.error(f"--add: {path} is of {', '.join(then)}, and here is {', '.join(now)}: take another --out")
    return earlier["records"]


def _cards(gpus: list[dict[str, str]] | str) -> list[str]:
    """Names and memory; none where they are not known."""
    return [] if isinstance(gpus, str) else [f"{gpu['name']} ({gpu['memory.total']})" for gpu in gpus]


def _share_cache(library: str | None) -> None:
    """One compilation cache for all processes, unless the caller names one.

    XLA chooses kernels by trying them, and chooses others another time. Then two backends would run different programs,
    whose times differ by more than the one hundredth that is to be told; and each process would spend its time on
    trying. The cache is not in the folder of results, which are taken elsewhere. A program that an older library made
    must not run under a newer one, so each library has a folder.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(home / "pjrt-arena-gpu" / (library or "unknown")))


def _wanted(planned: list[Job], before: list[dict[str, Any]], missing: bool) -> list[Job]:
    """All, or without those of which an earlier run has a row, unless that is to be had again.

    What took too long once comes behind what never ran.
    """
    if not missing:
        return planned
    again = {job_of(record) for record in before if record.get("again")}
    slow = {job_of(record) for record in before if record.get("timeouts")}
    had = {job_of(record) for record in before} - again
    return sorted((job for job in planned if job.name not in had), key=lambda job: job.name in slow)


def _rest(records: list[dict[str, Any]], arguments: list[str]) -> list[str]:
    """A line on what is to be run again, with the command that goes on; none where all was done."""
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
    return [f"{len(left)} measurements of parts {', '.join(parts)} are to be had yet; the rest: {command}"]


def _replace(path: Path, text: str) -> None:
    """Writes a file that is there as a whole at any time."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    beside.replace(path)


def main() -> int:
    # What is asked of the machine before the first measurement counts: a call may be ended at a fixed time.
    start = time.monotonic()
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
    results, host = chosen.out / "results.json", machine.host()
    goes_on = chosen.add and results.is_file()
    before = _before(parser, results, chosen.platform, size, host["gpus"]) if goes_on else []
    wanted = _wanted(planned, before, chosen.missing)
    # A CPU has no kernels to choose from.
    if chosen.platform == "cuda":
        _share_cache(host["library"]["sha256"])
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with (chosen.out / "facts.txt").open("a" if goes_on else "w") as facts:
        facts.write(inventory.facts(started))
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "started": started,
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
        "machine": host,
    }

    def save(records: list[dict[str, Any]]) -> None:
        report["seconds"] = round(time.monotonic() - start, 1)
        report["records"] = records
        _replace(results, json.dumps(report, indent=1) + "\n")
        _replace(chosen.out / "results.md", tables.markdown(report))

    left = chosen.budget - (time.monotonic() - start)
    runner = Runner(size, *SCALES[size], left, save, chosen.xla_flags, host["library"]["sha256"])
    # The driver's own process needs no engine.
    if first := next((job.backend for job in wanted if job.backend in columns), None):
        report["warm_up"] = warm = runner.warm_up(first)
        said = f"{warm['seconds']:.1f} s" + (f"; {warm['error']}" if "error" in warm else "")
        print(f"warm-up on {first.name}: {warm['status']}, {said}", flush=True)
    stopped = runner.run(wanted, before, chosen.gate)
    if stopped:
        report["stopped"] = stopped
    save(runner.records)
    rest = [] if stopped else _rest(runner.records, arguments)
    print("\n".join([*([stopped] if stopped else []), f"{results}\n{chosen.out / 'results.md'}", *rest]))
    failed = [record for record in runner.records if record["status"] in ("failed", "timeout")]
    return 1 if failed or stopped else 0


if __name__ == "__main__":
    sys.exit(main())
