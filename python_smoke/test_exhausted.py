"""Memory that is exhausted: the text is right for the whole call, its hint works, and nothing is moved in vain.

`python -m jax_fuzz.hints` does the same with random programs, of which the last test here runs some.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from harness import run_jax, run_python
from jax_fuzz import hint_text
from jax_fuzz.hint_programs import BOTH, Busy, Drop, Function, Operation, Pin, Program, Put, Run, Unpin
from members import members

pytestmark = pytest.mark.arena

MIB = 1 << 20
STRATEGIES = ("preallocate", "growing", "platform", "tpu")

#: Runs programs in one process, each in a client of its own, follows the hints, and tells of each error.
EXAMINE = """
import json
from jax_fuzz.hint_programs import *
from jax_fuzz.hints import examine

for program in {programs}:
    told = []
    for error in examine(program)[0]:
        one = error.told
        hint = one.in_hint() if one.kind in ("limit", "donate") else ""
        told.append({{"index": error.index, "kind": one.kind, "hint": hint, "text": one.text, "faults": error.faults}})
    print(json.dumps(told))
"""


def examine(*programs: Program) -> list[list[dict[str, Any]]]:
    """The errors of each program, all of them without a fault."""
    run = run_python("-c", EXAMINE.format(programs=list(programs)))
    told = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    assert len(told) == len(programs), run.stdout + run.stderr
    for errors in told:
        for error in errors:
            assert not error["faults"], "\n".join([error["text"], *(": ".join(fault) for fault in error["faults"])])
    return told


def program(
    strategy: str, limit: int, functions: list[Function], operations: list[Operation], **settings: str
) -> Program:
    common = {"strategy": strategy, "limit": f"{limit}MiB", "compact": "off", "devices": "1", "spill": "off"}
    return Program(0, common | settings, functions, operations)


FOUR = Function((16 * MIB,) * 4)
#: 80 MiB are held when the second call begins, and it needs 64 MiB more.
TWICE: list[Operation] = [
    Put("w", 16 * MIB, 0),
    Run(0, ("w",), ("a", "b", "c", "d")),
    Run(0, ("w",), ("e", "f", "g", "h")),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_call_with_several_results_is_told_of_as_a_whole(strategy):
    told = examine(*(program(strategy, limit, [FOUR], TWICE) for limit in (96, 114, 130, 143)))
    for errors in told:
        assert [(error["index"], error["kind"]) for error in errors] == [(2, "limit")], errors
        assert 144 <= int(errors[0]["hint"]) <= 146, errors[0]["text"]
    parts = [("16.00MiB", "32.00MiB"), ("32.00MiB", "16.00MiB"), ("48.00MiB", "0B"), ("48.00MiB", "0B")]
    for errors, (had, more) in zip(told, parts, strict=True):
        assert f"of a call that had {had} and wanted {more} more" in errors[0]["text"], errors[0]["text"]


def test_compaction_is_advised_where_all_results_fit_then():
    fill: list[Operation] = [
        *(Put("a", 28 * MIB, 0), Put("b", 32 * MIB, 0), Put("c", 28 * MIB, 0), Put("d", 32 * MIB, 0)),
        *(Drop("a"), Drop("c")),
    ]

    def with_results(*mib: int) -> Program:
        results = tuple(f"r{number}" for number in range(len(mib)))
        function = Function(tuple(size * MIB for size in mib))
        return program("preallocate", 121, [function], [*fill, Run(0, ("b",), results)])

    told = examine(with_results(16, 48), with_results(16, 40), with_results(16, 16))
    assert [[error["kind"] for error in errors] for errors in told] == [["limit"], ["compact"], []]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_hint_holds_for_scratch_donation_and_both_devices(strategy):
    scratch = program(strategy, 100, [Function((8 * MIB,), scratch=32 * MIB)], [
        *(Put(name, 16 * MIB, 0) for name in "abcd"),
        Run(0, ("a",), ("r",)),
    ])  # fmt: skip
    # What is donated has the first two results, and is there for another attempt.
    donated = program(strategy, 100, [Function((36 * MIB,), updates=2, donated=(0, 1))], [
        *(Put("a", 20 * MIB, 0), Put("b", 20 * MIB, 0), Put("c", 30 * MIB, 0)),
        *(Run(0, ("a", "b"), ("p", "q", "r")), Drop("c"), Run(0, ("a", "b"), ("p", "q", "r"))),
    ], compact="on" if strategy == "tpu" else "off")  # fmt: skip
    # The second device is the fuller one.
    devices = program(strategy, 100, [Function((16 * MIB,) * 3)], [
        *(Put("a", 8 * MIB, BOTH), Put("b", 60 * MIB, 1)),
        Run(0, ("a",), ("p", "q", "r")),
    ], devices="2")  # fmt: skip
    told = examine(scratch, donated, devices)
    # Elsewhere scratch is none of the arena's.
    assert [error["kind"] for error in told[0]] == (["limit"] if strategy == "tpu" else [])
    assert [(error["index"], error["kind"]) for error in told[1]] == [(3, "limit")]
    # Empty regions of `growing` may stay, and under `tpu` the program has scratch of 20 MiB.
    most = {"growing": 150, "tpu": 130}.get(strategy, 108)
    assert 106 <= int(told[1][0]["hint"]) <= most, told[1][0]
    [error] = told[2]
    assert error["kind"] == "limit" and " on cpu:1 [arena" in error["text"], error


def test_a_wait_is_advised_where_it_helps():
    put: list[Operation] = [Put(name, 20 * MIB, 0) for name in "abcd"]
    # What the program under way returns has a region of its own.
    helps = program("growing", 101, [Function((20 * MIB,) * 2)], [*put, Busy("a"), Run(0, ("b",), ("p", "q"))])
    in_vain = program("growing", 101, [Function((20 * MIB,) * 3)], [*put, Busy("a"), Run(0, ("b",), ("p", "q", "r"))])
    told = examine(helps, in_vain)
    assert [[error["kind"] for error in errors] for errors in told] == [["wait"], ["limit"]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_limit_that_is_advised_is_the_least_for_much_too(strategy):
    large = program(strategy, 256, [Function((800 * MIB,))], [Put("a", 8 * MIB, 0), Run(0, ("a",), ("r",))])
    [[error]] = examine(large)
    assert error["kind"] == "limit" and 808 <= int(error["hint"]) <= 816, error


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("spill", ["host", "folder"])
def test_what_can_never_run_spills_nothing(strategy, spill):
    # 80 MiB are idle, and 16 of them the program's argument.
    fill: list[Operation] = [Put(name, 16 * MIB, 0) for name in "abcde"]
    never: list[Operation] = [*fill, Run(0, ("a",), ("p", "q", "r", "s"))]
    runs: list[Operation] = [*fill, Run(0, ("a",), ("p", "q"))]
    settings = {"spill": spill, "spill_limit": "1GiB", "compact": "on" if strategy == "tpu" else "off"}
    told = examine(
        program(strategy, 100, [Function((32 * MIB,) * 4)], never, **settings),
        program(strategy, 100, [Function((32 * MIB,) * 2)], runs, **settings),
    )
    # Nothing helps: not a limit, because the tier may be what is too small elsewhere, and no wait.
    assert [[error["kind"] for error in errors] for errors in told] == [["none"], []]


def test_what_has_room_only_without_its_arguments_spills_nothing():
    # A view keeps a region. The argument comes back before the result, into the only region that could hold that.
    sizes = [4_194_304, 1_048_576, 3_827_480, 10_485_760, 4_278_260, 3_145_728, 3_145_728, 7_340_032, 4_489_288]
    sizes += [12_185_256, 4_626_016, 5_242_880]
    region = program("growing", 70, [Function((41 * MIB,))], [
        *(Put(f"a{number}", size, 0) for number, size in enumerate(sizes)),
        *(Pin("a1"), Run(0, ("a0", "a2"), ("p",)), Run(0, ("a1",), ("q",)), Run(0, ("a0",), ("r",)), Drop("r")),
        *(Put("b", 10 * MIB, 0), Run(0, ("a10",), ("s",))),
    ], compact="on", spill="folder", spill_limit="1GiB")  # fmt: skip
    # One argument waits in a tier that is nearly full: it would have to come back before others could go there.
    sizes = {"a": 11_448_232, "b": 19_467_108, "c": 17_535_936, "d": 6_038_756, "e": 10_142_988, "f": 18_756_032}
    full = program("tpu", 116, [Function((2 * MIB,) * 3)], [
        *(Put(name, size, 0) for name, size in sizes.items()),
        *(Pin("c"), Drop("e"), Put("g", 58 * MIB, 0), Put("h", 7_148_560, 0), Unpin("c")),
        Run(0, ("f", "a"), ("p", "q", "r")),
    ], spill="folder", spill_limit="50MiB")  # fmt: skip
    assert [[error["kind"] for error in errors] for errors in examine(region, full)] == [["none"], ["none"]]


def test_nothing_moves_for_one_result_where_the_others_need_the_hole_that_it_takes():
    # Arrays go to the tier after others have moved, and would leave one hole with what a moved one has taken by then.
    put = {"a": 16_971_068, "b": 5 * MIB, "c": 256, "d": 23_626_252, "e": 18_293_880, "f": 29_117_536}
    put |= {"g": 21_760_756, "h": 21_307_684, "i": 6 * MIB, "j": 34_682_712, "k": 2 * MIB, "l": 22 * MIB}
    functions = [
        Function((12_927_752,) * 3),
        Function((26_335_572,), updates=1, donated=(0,)),
        Function((8 * MIB, 10_408_136, 6 * MIB, 1_342_436), updates=1),
        Function((1000, 256)),
        Function((14 * MIB,) * 4, updates=1, donated=(0,)),
    ]
    moved = program("growing", 200, functions, [
        *(Put(name, size, 0) for name, size in put.items()),
        *(Pin("d"), *map(Drop, "cefgijkl"), Run(0, ("h",), ("m", "n", "o")), Run(1, ("m",), ("p", "q"))),
        *(Run(2, ("o",), ("r", "s", "t", "u", "v")), Pin("r"), Run(3, ("t",), ("w", "x")), Drop("d"), Unpin("r")),
        Run(4, ("q",), ("y", "z", "aa", "ab", "ac")),
    ], compact="on", spill="host", spill_limit="8MiB")  # fmt: skip
    [errors] = examine(moved)
    assert [error["index"] for error in errors] == [11], errors


def test_arguments_come_back_into_holes_that_are_there_before_others_go():
    # The first argument fits at once. Behind what goes for the result it would lie where the result has to.
    runs = program("growing", 155, [Function((66 * MIB,))], [
        *(Put("a", 26_413_904, 0), Put("b", 13_598_936, 0), Put("c", 5 * MIB, 0), Put("d", 19 * MIB, 0), Pin("c")),
        *(Run(0, ("c", "b"), ("p",)), Run(0, ("a",), ("q",)), Run(0, ("d", "b"), ("r",))),
    ], spill="folder", spill_limit="1GiB")  # fmt: skip
    assert examine(runs) == [[]]


@pytest.mark.parametrize("spill", ["host", "folder"])
def test_a_request_above_all_limits_leaves_idle_arrays_where_they_are(spill, tmp_path):
    run = run_jax(
        """
        import time, jax, jax.numpy as jnp, numpy as np
        from pjrt_arena import memory
        host = np.ones(16 << 20, np.uint8)
        kept = [jax.device_put(host) for _ in range(48)]
        jax.block_until_ready(kept)
        for size in (1200 << 20, 1 << 60):
            begun = time.monotonic()
            try:
                jax.block_until_ready(jnp.zeros(size, "uint8"))
                raise SystemExit("there was room")
            except (ValueError, jax.errors.JaxRuntimeError) as error:
                text = str(error)
            assert text.startswith("RESOURCE_EXHAUSTED: ") and "PJRT_ARENA_LIMIT=" not in text, text
            [device] = memory.stats()
            assert device.spill.num_spilled == 0 and device.num_moves == 0, device
            assert device.bytes_in_use >= 768 << 20
            # To compile takes a moment.
            assert time.monotonic() - begun < 5
        print("both refused")
        """,
        PJRT_ARENA_LIMIT="1GiB",
        PJRT_ARENA_ZERO_COPY="off",
        PJRT_ARENA_SPILL="host" if spill == "host" else f"{tmp_path}/",
    )
    assert "both refused" in run.stdout


def test_more_than_a_groups_limit_is_an_error_at_once_that_names_that_limit(tmp_path):
    tmp_path.chmod(0o700)
    with members(tmp_path, {}, {}) as (first, second):
        first.do("keep(4, 4)")
        begun = time.monotonic()
        text = second.do("keep(2, 4)", "error_of(lambda: keep(1, 80))")
        assert time.monotonic() - begun < 5
        assert "of the limit of 64.00MiB are this process's" in text and "PJRT_ARENA_LIMIT=" not in text, text
        assert second.do("check()", "part()['num_asked']") == 0
        assert first.do("check()", "part()['num_given']") == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sizes_are_those_that_were_asked_for(strategy):
    run = run_jax(
        """
        import jax, numpy as np
        from pjrt_arena import memory

        def error():
            try:
                jax.block_until_ready(jax.device_put(np.zeros(16 << 20, np.uint8)))
            except (ValueError, jax.errors.JaxRuntimeError) as error:
                return str(error)

        tiny = [jax.device_put(np.ones(1, np.float32)) for _ in range(8)]
        jax.block_until_ready(tiny)
        print(error())
        [device] = memory.summary().devices
        assert device.bytes_in_use == sum(holder.bytes for holder in device.holders) == 32, device
        large = jax.block_until_ready(jax.device_put(np.ones(1 << 20, np.float32)))
        print(error())
        """,
        PJRT_ARENA_STRATEGY=strategy,
        PJRT_ARENA_LIMIT="8MiB",
        PJRT_ARENA_ZERO_COPY="off",
    )
    lines = [line.strip() for line in run.stdout.splitlines()]
    assert any(" = in use 32B + pending 0B + slack " in line for line in lines), run.stdout
    assert "held by 32B in 8 block(s): from host f32[1]" in lines, run.stdout
    assert any(" = in use 4.00MiB + pending 0B + slack " in line for line in lines), run.stdout
    assert "held by 4.00MiB in 1 block(s): from host f32[1048576]" in lines, run.stdout


def test_no_cause_is_told_that_is_none():
    run = run_jax(
        """
        import mmap, re, resource, jax, numpy as np

        def left():
            size = 1024 * int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1])
            return resource.getrlimit(resource.RLIMIT_AS)[0] - size

        jax.devices()
        resource.setrlimit(resource.RLIMIT_AS, (1 << 40, -1))
        # The region comes with the first array, and is smaller than the limit.
        taken = mmap.mmap(-1, left() - (900 << 20), prot=0, flags=mmap.MAP_PRIVATE)
        kept, host = [], np.ones(1 << 20, np.float32)
        kept.append(jax.block_until_ready(jax.device_put(host)))
        taken.close()
        try:
            while True:
                kept.append(jax.block_until_ready(jax.device_put(host)))
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            print(error)
        """,
        PJRT_ARENA_LIMIT="1GiB",
        PJRT_ARENA_ZERO_COPY="off",
    )
    told = hint_text.read(run.stdout)
    assert not told.faults and told.requested == 4 * MIB, run.stdout
    assert told.pool.high < told.limit.low, f"the region has the whole limit, so this shows nothing:\n{run.stdout}"
    assert told.in_pieces == (told.free.low >= told.requested), run.stdout


def test_random_programs_are_told_the_truth():
    run = run_python("-m", "jax_fuzz.hints", "--programs", "40", "--seed", "1", check=False)
    counts = json.loads(run.stdout.splitlines()[-1])
    assert run.returncode == 0 and not counts.get("wrong"), run.stdout + run.stderr
    assert counts["programs"] == 40 and counts["errors"] >= 15 and counts["followed"] >= 10, counts
