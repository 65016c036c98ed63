"""Processes that share one budget: `python -m bench.sharing turns`, `times`, `chaos`.

turns   Four processes whose peaks come in turn and sum up to three times the budget: one budget for all of them beside
        fixed quarters of it, and beside no limit; seconds.
times   From an ask to the memory: what lies idle, what has to be compacted, what has to be spilled; milliseconds.
chaos   Processes with random demand, killed, stopped and started again at random; sampled from outside.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from members import Member

MIB = 1 << 20

#: How long a call may wait for memory, in seconds: what the library says of calls that wait for programs.
BOUND = 10.0

#: What members of `turns` and `chaos` know besides.
WORK = """
from functools import partial
import random, threading

@partial(jax.jit, static_argnums=1)
def fill(value, count):
    return jnp.arange(count, dtype=jnp.float32) + value

@jax.jit
def right(array, value):
    return (array == jnp.arange(array.size, dtype=jnp.float32) + value).all()

@partial(jax.jit, donate_argnums=0)
def step(array):
    return array + 1

def peak(mib, steps=20):
    arrays = [fill(float(number), 8 * MIB // 4) for number in range(mib // 8)]
    for _ in range(steps):
        arrays = [step(array) for array in arrays]
    assert all(bool(right(array, number + steps)) for number, array in enumerate(arrays))

peak(8, 1)
"""


def settings(group: str, limit_mib: int | None, **more: str) -> dict[str, str]:
    told = {"PJRT_ARENA_SHARE": group, "PJRT_ARENA_LIMIT": f"{limit_mib}MiB"} | more
    if limit_mib is None:
        del told["PJRT_ARENA_LIMIT"]
    return told


@contextmanager
def started(each: list[dict[str, str]], code: str) -> Iterator[list[Member]]:
    """Processes that have run `code`, in a runtime folder of their own."""
    with tempfile.TemporaryDirectory() as runtime:
        processes = [
            Member(f"process {number}", {"XDG_RUNTIME_DIR": runtime} | more) for number, more in enumerate(each)
        ]
        try:
            for process in processes:
                process.answer()
            for process in processes:
                process.do(code)
            yield processes
        finally:
            for process in processes:
                process.kill()


def turns(rounds: int, budget: int) -> None:
    """Each of four processes in turn has a peak of three quarters of the budget."""
    high = budget * 3 // 4
    variants = {
        "one budget": settings("turns", budget),
        "no limit": settings("off", None, PJRT_ARENA_STRATEGY="growing", PJRT_ARENA_COMPACT="on"),
        "fixed quarters": settings("off", budget // 4, PJRT_ARENA_STRATEGY="growing", PJRT_ARENA_COMPACT="on"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    failed: dict[str, str] = {}
    for _ in range(rounds):
        for name, told in variants.items():
            if name in failed:
                continue
            with started(4 * [told], WORK) as processes:
                begun = time.perf_counter()
                try:
                    for _ in range(3):
                        for process in processes:
                            process.do(f"peak({high})")
                except AssertionError as error:
                    lines = [line for line in str(error).splitlines() if "RESOURCE_EXHAUSTED" in line]
                    failed[name] = lines[-1] if lines else str(error)
                    continue
                seconds[name].append(time.perf_counter() - begun)
    print(f"four processes, three turns each, {high} MiB at the peak, {4 * high} in all; budget {budget} MiB")
    base = statistics.median(seconds["no limit"])
    for name, each in seconds.items():
        if name in failed:
            print(f"  {name:<16} fails: {failed[name][:120]}")
        else:
            median = statistics.median(each)
            spread = f"{min(each):.2f} to {max(each):.2f}"
            print(f"  {name:<16} {median:.2f} s ({spread}), {median / base:.2f} of no limit, {len(each)} rounds")


#: What the one that gives has before each request, and how much is asked for.
STATES = {
    # The arena keeps what a loop takes again and again.
    "idle": ("for _ in range(4):\n keep(24, 4)\n kept.clear()\n gc.collect()", ""),
    "compacted": ("keep(384, 0.25); kept = kept[::3]; gc.collect()", "check(); kept.clear(); gc.collect()"),
    "spilled": ("keep(31, 4)", "check(); kept.clear(); gc.collect()"),
}


def times(rounds: int) -> None:
    """A request of 64 of 128 MiB, when the other one has nearly all."""
    print("from an ask for 64 MiB to the memory, in milliseconds: median (least to most)")
    for name, (before, after) in STATES.items():
        spill = {"PJRT_ARENA_SPILL": "host"} if name == "spilled" else {}
        with started(2 * [settings("times", 128, **spill)], "ramp(0)") as (giver, asker):
            taken, given = [], []
            for _ in range(rounds):
                giver.do(before)
                had = giver.do(expression="part()")
                waited = asker.do(
                    "told = part(); keep(1, 64); told = [part(), told]",
                    "told[0]['asked_seconds'] - told[1]['asked_seconds'] if told[0]['num_asked'] > told[1]['num_asked']"
                    " else None",
                )
                has = giver.do(after, "part()")
                if waited is not None:
                    taken.append(1e3 * waited)
                    given.append((has["given_bytes"] - had["given_bytes"]) / MIB)
                asker.do("check(); kept.clear(); gc.collect(); memory.trim()")
            print(
                f"  {name:<10} {statistics.median(taken):6.2f} ({min(taken):.2f} to {max(taken):.2f}), "
                f"{len(taken)} of {rounds} had to ask; {statistics.median(given):.0f} MiB given"
            )


#: A member of `chaos`: random demand until it is told to stop.
DEMAND = """
waits, rounds, refused, wrong = [0.0], 0, 0, 0
stop = threading.Event()

def demand(seed, most):
    global rounds, refused, wrong
    source = random.Random(seed)
    while not stop.is_set():
        arrays = []
        try:
            for _ in range(source.randrange(1, most)):
                count = source.choice((1, 2, 4, 8)) * MIB // 4
                value = float(source.randrange(1000))
                begun = time.monotonic()
                array = jax.block_until_ready(fill(value, count))
                waits.append(time.monotonic() - begun)
                arrays.append((value, array))
                if len(arrays) > 4 and source.random() < 0.3:
                    del arrays[source.randrange(len(arrays))]
            time.sleep(source.random() * 0.2)
        except Exception as error:
            assert "RESOURCE_EXHAUSTED" in str(error), error
            waits.append(time.monotonic() - begun)
            refused += 1
        try:
            wrong += sum(not bool(right(array, value)) for value, array in arrays)
        except Exception as error:
            assert "RESOURCE_EXHAUSTED" in str(error), error
        rounds += 1
        longest[0] = max(longest[0], *waits)
        del waits[:-1], arrays

longest = [0.0]
# What the process itself takes for such work, beside arrays, is there before it is looked at.
threading.Timer(2.0, stop.set).start()
demand(0, 14)
stop.clear()
gc.collect(); memory.trim(); waits, rounds, refused = [0.0], 0, 0
"""


def resident(pid: int) -> int:
    """Bytes of the process in memory that the system was asked for without a reserve (`MAP_NORESERVE`): the arena's
    regions, and nothing else where malloc has one arena and programs' scratch, which the limit leaves out, is its."""
    total = rss = 0
    with Path(f"/proc/{pid}/smaps").open() as maps:
        for line in maps:
            if line.startswith("Rss:"):
                rss = int(line.split()[1]) << 10
            elif line.startswith("VmFlags:") and " nr" in line:
                total += rss
    return total


class Demanding:
    """A process with random demand."""

    def __init__(self, number: int, runtime: str, told: dict[str, str]) -> None:
        self.number, self.runtime, self.told = number, runtime, told
        self.process = Member(f"process {number}", {"XDG_RUNTIME_DIR": runtime} | told)
        self.fresh = 0
        self.stopped_until = 0.0

    def begin(self, seed: int) -> None:
        self.process.answer()
        self.process.do(WORK)
        self.process.do(DEMAND)
        self.fresh = resident(self.process.pid)
        self.process.do(f"thread = threading.Thread(target=demand, args=({seed}, 14)); thread.start()")


def chaos(minutes: float, count: int, budget: int, seed: int) -> None:
    """The sum of what processes hold is sampled with all of them stopped at once."""
    source = random.Random(seed)
    # Then malloc's memory is told from the arena's.
    told = settings("chaos", budget, MALLOC_ARENA_MAX="1", PJRT_ARENA_SCRATCH="system")
    counts = {"killed": 0, "stopped": 0, "samples": 0, "above": 0}
    most = 0
    with tempfile.TemporaryDirectory() as runtime:
        running = [Demanding(number, runtime, told) for number in range(count)]
        try:
            for each in running:
                each.begin(source.randrange(1 << 30))
            end = time.monotonic() + 60 * minutes
            while time.monotonic() < end:
                time.sleep(source.random() * 0.5)
                now = time.monotonic()
                for each in running:
                    if each.stopped_until and each.stopped_until < now:
                        os.kill(each.process.pid, signal.SIGCONT)
                        each.stopped_until = 0.0
                chosen = source.randrange(count)
                luck = source.random()
                if luck < 0.08:
                    running[chosen].process.kill()
                    counts["killed"] += 1
                    running[chosen] = Demanding(chosen, runtime, told)
                    running[chosen].begin(source.randrange(1 << 30))
                elif luck < 0.2 and not running[chosen].stopped_until:
                    os.kill(running[chosen].process.pid, signal.SIGSTOP)
                    running[chosen].stopped_until = now + source.random() * 2
                    counts["stopped"] += 1
                total = sample(running)
                counts["samples"] += 1
                counts["above"] += total > budget * MIB
                most = max(most, total)
            report(running, counts, most, budget)
        finally:
            for each in running:
                each.process.kill()


def sample(running: list[Demanding]) -> int:
    """What all of them have in memory beyond what each had at its start, at one instant."""
    for each in running:
        os.kill(each.process.pid, signal.SIGSTOP)
    total = sum(max(resident(each.process.pid) - each.fresh, 0) for each in running)
    for each in running:
        if not each.stopped_until:
            os.kill(each.process.pid, signal.SIGCONT)
    return total


def report(running: list[Demanding], counts: dict[str, int], most: int, budget: int) -> None:
    for each in running:
        os.kill(each.process.pid, signal.SIGCONT)
    for each in running:
        each.process.tell("stop.set(); thread.join(); gc.collect(); memory.trim()")
    for each in running:
        each.process.answer()
    numbers = "dict(wrong=wrong, rounds=rounds, refused=refused, longest=longest[0], held=part()['held_bytes'])"
    ended: list[dict[str, Any]] = [each.process.do(expression=numbers) for each in running]
    print(f"{len(running)} processes, budget {budget} MiB: {counts['killed']} killed, {counts['stopped']} stopped")
    print(f"{counts['samples']} samples: {most / MIB:.0f} MiB at most, {counts['above']} above the budget")
    total = {name: sum(each[name] for each in ended) for name in ("rounds", "refused", "wrong", "held")}
    print(
        f"{total['rounds']} rounds of those that live, {total['refused']} found no room, {total['wrong']} arrays wrong"
    )
    longest = max(each["longest"] for each in ended)
    print(f"longest wait {longest:.2f} s, {BOUND:.0f} s are allowed; {total['held']} bytes held at the end")
    for each in running:
        each.process.end()
    left = list((Path(running[0].runtime) / "pjrt-arena").iterdir())
    print(f"files of groups left: {len(left)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sharing", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("turns", "times", "chaos"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--mib", type=int, default=512, help="the budget (default: 512)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.what == "turns":
        turns(chosen.rounds, chosen.mib)
    elif chosen.what == "times":
        times(chosen.rounds)
    else:
        chaos(chosen.minutes, chosen.processes, chosen.mib, chosen.seed)


if __name__ == "__main__":
    main()
