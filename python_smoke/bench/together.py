"""Small programs on all backends in one process, block by block in turn: `python -m bench.together`.

A program of some microseconds differs between two processes, and between two minutes of a shared machine, by more than
the backends do. Here each block of calls has its neighbours on the other backends milliseconds away, and what is told
is the median of the ratios of neighbours, with their quartiles. That is repeated in several processes, because how the
heap happens to lie lasts as long as a process does. Memory cannot be told apart this way: for that there is
`python -m bench`.

    process 1    cpu bare arena | arena bare cpu | cpu bare arena | ...     one block each, the order turning
    process 2    ...

`--against OLD.so` compares two builds of pjrt-arena in the same way, in place of the three backends. A process has one
engine to a build, so each build gets a copy of the engine's file.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.backends import clean_environment, engine_path
from bench.worker import quartiles

#: JAX's name of each platform, and its title.
Titles = dict[str, str]
BACKENDS = {"cpu": "JAX's CPU", "bare": "bare engine", "arena": "pjrt-arena"}
BUILDS = {"before": "before", "now": "now"}
#: What is divided by what.
RATIOS = (("arena", "bare"), ("arena", "cpu"), ("bare", "cpu"), ("now", "before"))
PROGRAMS = ("dispatch", "dispatch_many", "eager", "add_1")


def three_backends(folder: Path) -> Titles:
    """Has JAX know the three backends."""
    description = folder / "bare.json"
    options = {"cpu_device_count": 1}
    description.write_text(json.dumps({"library_path": str(engine_path()), "create_options": options}))
    os.environ |= {
        "PJRT_NAMES_AND_LIBRARY_PATHS": f"bare:{description}",
        "PJRT_ARENA_DEVICES": "1",
        # The same engine as the bare one's, whatever else is installed.
        "PJRT_ARENA_ENGINE": str(engine_path()),
    }
    import jax

    jax.config.update("jax_platforms", "arena,cpu,bare")
    return BACKENDS


def two_builds(folder: Path, old: Path) -> Titles:
    """Has JAX know the library `old` and the present one, each with a copy of the engine."""
    import jax
    from jax._src import xla_bridge
    from pjrt_arena import _library

    for name, library in (("before", old), ("now", _library.locate())):
        engine = folder / f"{name}.so"
        shutil.copy(engine_path(), engine)
        # The variable for what the library looks up when it is loaded, the option for its client.
        os.environ["PJRT_ARENA_ENGINE"] = str(engine)
        options = {"engine": str(engine), "devices": 1, "strategy": "preallocate", "limit": "25%"}
        xla_bridge.register_plugin(name, library_path=str(library), options=options, priority=500)
    jax.config.update("jax_platforms", "before,now,cpu")
    return BUILDS


def measure(program: str, rounds: int, quick: bool, old: Path | None) -> dict[str, list[float]]:
    """Seconds per call of each block, by backend. In a process that has not imported JAX."""
    with tempfile.TemporaryDirectory() as folder:
        names = three_backends(Path(folder)) if old is None else two_builds(Path(folder), old)
        import jax

        devices = {name: jax.devices(name)[0] for name in names}
    from bench.programs import BY_NAME, Sizes

    cases = {}
    for name, device in devices.items():
        with jax.default_device(device):
            cases[name] = BY_NAME[program].make(Sizes(quick))
            for _ in range(3):
                cases[name].run(cases[name].prepare())
    seconds: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    for number in range(rounds):
        for name in list(names)[:: 1 if number % 2 else -1]:
            case = cases[name]
            with jax.default_device(devices[name]):
                prepared = case.prepare()
                start = time.perf_counter()
                result = case.run(prepared)
                del result
                seconds[name].append((time.perf_counter() - start) / case.calls)
    return seconds


def summary(runs: list[dict[str, list[float]]]) -> dict[str, Any]:
    """Medians of all blocks, and of the ratios of neighbours, of the processes `runs`."""
    blocks = {name: [value for run in runs for value in run[name]] for name in runs[0]}
    ratios = {}
    for above, below in RATIOS:
        if above not in blocks:
            continue
        values = [one / other for one, other in zip(blocks[above], blocks[below], strict=True)]
        ratios[f"{above}/{below}"] = quartiles(values)
    return {"seconds": {name: statistics.median(values) for name, values in blocks.items()}, "ratios": ratios}


def table(report: dict[str, Any]) -> str:
    """Markdown."""
    titles = BUILDS if report["against"] else BACKENDS
    heads = [*titles.values(), *(f"{titles[above]} / {titles[below]}" for above, below in RATIOS if above in titles)]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for name, row in report["programs"].items():
        times = [f"{row['seconds'][backend] * 1e6:.3g} us" for backend in titles]
        ratios = [f"{ratio['median']:.2f} ({ratio['q1']:.2f} to {ratio['q3']:.2f})" for ratio in row["ratios"].values()]
        lines.append(f"| `{name}` | {' | '.join(times + ratios)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.together", description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=PROGRAMS, help=f"without any: {' '.join(PROGRAMS)}")
    parser.add_argument("--processes", type=int, default=5, help="one after another (5)")
    parser.add_argument("--rounds", type=int, default=40, help="blocks of each backend in a process (40)")
    parser.add_argument(
        "--against", type=Path, metavar="OLD.so", help="compare this build of pjrt-arena with the present"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it work?")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures to this file")
    chosen = parser.parse_args()
    if min(chosen.processes, chosen.rounds) < 1:
        parser.error("--processes and --rounds must be 1 or more")
    clean_environment()
    from bench.programs import BY_NAME

    if unfit := [name for name in chosen.programs if name not in BY_NAME or BY_NAME[name].devices != 1]:
        parser.error(f"{', '.join(unfit)}: must be programs for one device, of `python -m bench --list`")
    counts = {"processes": chosen.processes, "rounds": chosen.rounds, "quick": chosen.quick}
    old = chosen.against and chosen.against.resolve()
    report: dict[str, Any] = {**counts, "against": bool(old), "programs": {}}
    context = multiprocessing.get_context("spawn")
    for program in chosen.programs:
        runs = []
        for _ in range(chosen.processes):
            with context.Pool(1) as pool:
                runs.append(pool.apply(measure, (program, chosen.rounds, chosen.quick, old)))
        report["programs"][program] = summary(runs)
        print(f"{program}: done", file=sys.stderr, flush=True)
    print(table(report), end="")
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
