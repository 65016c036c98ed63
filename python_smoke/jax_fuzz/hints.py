"""Random programs that run out of memory: what the errors say is checked, and each hint is followed.

    python -m jax_fuzz.hints --programs 500 --seed 1        so many programs, with one seed after the other
    python -m jax_fuzz.hints --programs 1 --seed 17 --show  one of them again, with what it does

    hint_programs.py   the program and the settings that a seed stands for
    hint_runs.py       one run of a program, in a client of its own
    hint_text.py       the text of an error: its numbers, and whether they are right

An error's numbers must add up, and be those of the call. A hint is followed in a fresh client that does the same: with
another limit (which must be the least that works, to one percent and one MiB), with compaction, with other donated
arguments; or in the same one, after programs under way have ended. What fails must not have moved or spilled anything.
Where it did, it must do so again with a pause before each operation: a program whose results are there may not have
ended yet.

It prints what was wrong, and ends with a line of counts; the status is 1 where something was wrong.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jax_fuzz import hint_programs, hint_text

if TYPE_CHECKING:
    from jax_fuzz.hint_programs import Program
    from jax_fuzz.hint_runs import Client, Failure
    from jax_fuzz.hint_text import Told

#: Programs of one process: what JAX keeps of clients that are gone grows.
EACH = 100
#: Errors of one program whose hints are followed.
ERRORS = 2
#: Seconds after which a process shows what its threads do, and ends.
LONGEST = 240
#: Seconds before each operation of a program that is run again.
PAUSE = 0.05
#: Seconds that an error may take that nothing is waited for.
AT_ONCE = 4.0


@dataclass
class Exhausted:
    """One error, and how the program came to it."""

    index: int
    told: Told
    #: Whether a program was under way.
    is_busy: bool
    #: Operations that failed before, and those that were tried again after a wait.
    skipped: frozenset[int]
    released: frozenset[int]
    #: Whether something was done in vain.
    is_vain: bool = False
    #: What is wrong: kind and words.
    faults: list[tuple[str, str]] = field(default_factory=list)


def rerun(
    program: Program, at: Exhausted, donated: dict[int, tuple[int, ...]] | None = None, pause: float = 0, **changed: str
) -> tuple[int, Failure] | None:
    """The program once more up to that error, with other settings: where and how it fails, if it does."""
    from jax_fuzz.hint_runs import Client, Failure

    with Client(program, donated, **changed) as client:
        client.pause = pause
        for number, operation in enumerate(program.operations[: at.index + 1]):
            if number in at.skipped:
                continue
            if number in at.released:
                client.release()
            try:
                failure = client.do(operation)
            except RuntimeError as error:
                # What was donated is not there any more.
                return number, Failure(str(error), [], 0, 0, False)
            if failure:
                return number, failure
    return None


def examine(program: Program) -> tuple[list[Exhausted], Counter[str]]:
    """Runs a program and follows the hints of its errors; the errors, and what was counted."""
    from jax_fuzz.hint_runs import Client

    errors, counts = list[Exhausted](), Counter(programs=1)
    skipped, released = set[int](), set[int]()
    with Client(program) as client:
        for number, operation in enumerate(program.operations):
            counts["operations"] += 1
            is_busy = bool(client.threads)
            if not (failure := client.do(operation)):
                continue
            told = hint_text.read(failure.text)
            error = Exhausted(number, told, is_busy, frozenset(skipped), frozenset(released))
            errors.append(error)
            counts[f"hint {told.kind}"] += 1
            known = failure.known[int(told.device.rpartition(":")[2] or 0)]
            error.faults += [("text", fault) for fault in hint_text.faults(told, known)]
            error.is_vain = any(_vain(failure, error))
            if told.kind == "wait":
                released.add(number)
                if again := _after_a_wait(client, number, program):
                    if not _is_next_call(program, error, (number, again)):
                        error.faults.append(("wait", f"after the wait there is no room either:\n{again.text}"))
                    skipped.add(number)
            else:
                skipped.add(number)
            if not client.is_whole(operation) or len(errors) == ERRORS:
                break
    counts["errors"] = len(errors)
    for error in errors:
        if error.is_vain:
            slowly = rerun(program, error, pause=PAUSE)
            error.faults += _vain(slowly[1], error) if slowly and slowly[0] == error.index else ()
        if error.told.kind in FOLLOW:
            error.faults += FOLLOW[error.told.kind](program, error)
        counts["followed"] += error.told.kind not in ("none", "other")
        counts["wrong"] += bool(error.faults)
        counts.update({f"wrong {kind}" for kind, _ in error.faults})
    return errors, counts


def _vain(failure: Failure, error: Exhausted) -> Iterator[tuple[str, str]]:
    # What comes to pass when programs have ended may have been worth moves.
    if failure.moved and (failure.is_too_much or not (error.told.kind == "wait" or error.is_busy)):
        kind = "vain, beyond the limit" if failure.is_too_much else "vain, in pieces"
        yield kind, f"{failure.moved} arrays were moved, spilled or brought back for a call that fails"
    if not error.is_busy and failure.seconds > AT_ONCE:
        yield "slow", f"the error took {failure.seconds:.1f} s, and nothing was under way"


def _after_a_wait(client: Client, number: int, program: Program) -> Failure | None:
    client.release()
    return client.do(program.operations[number])


def _said(program: Program, failed: tuple[int, Failure]) -> str:
    return f"{program.operations[failed[0]]} (operation {failed[0]}) fails then:\n{failed[1].text}"


def _limit(program: Program, at: Exhausted) -> Iterator[tuple[str, str]]:
    enough = int(at.told.in_hint())
    failed = rerun(program, at, limit=f"{enough}MiB")
    if failed and not _is_next_call(program, at, failed):
        yield "limit", f"PJRT_ARENA_LIMIT={enough}MiB is not enough: {_said(program, failed)}"
    less, present = int(enough * 0.99) - 1, int(program.settings["limit"].removesuffix("MiB"))
    if less > present and not rerun(program, at, limit=f"{less}MiB"):
        yield "limit too high", f"PJRT_ARENA_LIMIT={less}MiB is enough, less than the {enough}MiB of the hint"


def _is_next_call(program: Program, at: Exhausted, failed: tuple[int, Failure]) -> bool:
    """Whether the call that failed was no part of what failed first: an array on two devices is put by two calls."""
    number, failure = failed
    operation = program.operations[number]
    on_both = isinstance(operation, hint_programs.Put) and operation.where == hint_programs.BOTH
    return number == at.index and on_both and hint_text.read(failure.text).device != at.told.device


def _compact(program: Program, at: Exhausted) -> Iterator[tuple[str, str]]:
    failed = rerun(program, at, compact="on")
    if failed and not _is_next_call(program, at, failed):
        yield "compact", f"compaction makes no room: {_said(program, failed)}"


def _donate(program: Program, at: Exhausted) -> Iterator[tuple[str, str]]:
    told, name = at.told.in_hint(1), at.told.in_hint(2)
    if not re.fullmatch(r"f\d+", name):
        yield "donate", f"jit_{name} is no program with arguments that could be donated"
        return
    numbers = set(program.functions[int(name[1:])].donated)
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", told):
        numbers |= set(range(int(first), int(last or first) + 1))
    if failed := rerun(program, at, {int(name[1:]): tuple(sorted(numbers))}):
        yield "donate", f"to donate {told} of {name} makes no room: {_said(program, failed)}"


FOLLOW = {"limit": _limit, "compact": _compact, "donate": _donate}


def run(first: int, programs: int, show: bool) -> int:
    """Runs so many programs in this process."""
    import jax

    # Donated arguments that no result can use are no fault.
    warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    total = Counter[str]()
    # Each client begins with a collection, which need not look at what JAX consists of.
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory(prefix="hints-") as cache:
        # A program that is followed is compiled once.
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        for seed in range(first, first + programs):
            faulthandler.dump_traceback_later(LONGEST, exit=True)
            program = hint_programs.draw(seed)
            errors, counts = examine(program)
            total.update(counts)
            if show:
                print(program.settings, *program.functions, *enumerate(program.operations), sep="\n")
            for error in errors:
                if error.faults or show:
                    tell(program, error)
        faulthandler.cancel_dump_traceback_later()
    print(json.dumps(dict(sorted(total.items()))), flush=True)
    return 1 if total["wrong"] else 0


def tell(program: Program, error: Exhausted) -> None:
    """Prints an error, and what is wrong with it."""
    settings = ", ".join(f"{name}={value}" for name, value in program.settings.items())
    lines = [f"seed {program.seed} ({settings}), operation {error.index}: {program.operations[error.index]}"]
    lines += [error.told.text]
    for kind, fault in error.faults:
        lines += [f"  WRONG, {kind}: " + fault.replace("\n", "\n    ")]
    print("\n".join(lines) + "\n", flush=True)


def _many(first: int, programs: int, jobs: int) -> int:
    """Runs programs in processes of `EACH`, so many at the same time."""
    total, folder = Counter[str](), str(Path(__file__).resolve().parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}

    def one(seed: int) -> None:
        count = min(EACH, first + programs - seed)
        command = [sys.executable, "-m", "jax_fuzz.hints", "--seed", str(seed), "--programs", str(count)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        said = done.stdout.splitlines()
        if said and said[-1].startswith("{"):
            total.update(json.loads(said.pop()))
        else:
            total.update({"wrong": 1, "processes that ended": 1})
            said += [done.stderr[-10_000:], f"status {done.returncode}; again: {' '.join(command[1:])}"]
        print("\n".join(said), flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, range(first, first + programs, EACH)))
    print(json.dumps(dict(sorted(total.items()))), flush=True)
    return 1 if total["wrong"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="jax_fuzz.hints", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first program; default: 1")
    parser.add_argument("--programs", type=int, default=100, help="how many; default: 100")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time; default: 1")
    parser.add_argument("--show", action="store_true", help="print each program and each error")
    arguments = parser.parse_args()
    # JAX reads it when it is imported.
    os.environ["JAX_PLATFORMS"] = "arena,cpu"
    if arguments.programs > EACH:
        return _many(arguments.seed, arguments.programs, arguments.jobs)
    return run(arguments.seed, arguments.programs, arguments.show)


if __name__ == "__main__":
    sys.exit(main())
