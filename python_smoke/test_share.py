"""Processes that share the limit of their devices. Each member is a process of its own (`members`)."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from harness import run_jax, run_python
from members import Member, members

pytestmark = pytest.mark.arena

MIB = 1 << 20


def held(*all_of_them: Member) -> list[int]:
    return [member.do(expression="part()['held_bytes']") for member in all_of_them]


@pytest.fixture
def runtime(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


def test_what_lies_idle_goes_to_who_needs_it(runtime):
    with members(runtime, {}, {}) as (first, second):
        # The loop has the arena keep what it frees: it would take it again.
        first.do("for _ in range(4):\n keep(10, 4)\n kept.clear()\n gc.collect()")
        assert held(first, second)[0] > 32 * MIB
        second.do("keep(12, 4); check()")
        assert sum(held(first, second)) <= 64 * MIB
        told = second.do(expression="part()")
        assert told["num_asked"] >= 1 and told["name"] == "test" and told["bytes_limit"] == 64 * MIB
        assert first.do(expression="part()")["given_bytes"] >= 16 * MIB
        both = second.do(expression="others()")
        assert {member["pid"] for member in both} == {first.pid, second.pid}
        assert {member["state"] for member in both} == {"running"}
        shown = second.do(expression="str(memory.groups()[0])")
        assert shown.startswith("group test, device 0: 64.00 MiB for 2 processes; "), shown
        assert f"{first.pid} python" in shown and f"{second.pid} python (this)" in shown, shown
        second.do("kept.clear(); gc.collect()")
        first.do("keep(12, 4, 100); check()")
        assert sum(held(first, second)) <= 64 * MIB
        first.end()
        second.end()
    assert not list((runtime / "pjrt-arena").iterdir()), "the last one removes the file"


def test_holes_are_joined_for_others(runtime):
    with members(runtime, {}, {}) as (first, second):
        # In use are 18 MiB of 54, nowhere two of their quarters side by side.
        first.do("keep(216, 0.25); kept = kept[::3]; gc.collect()")
        assert held(first)[0] > 32 * MIB
        second.do("keep(1, 32); check()")
        assert first.do("check()", "part()")["num_given"] >= 1
        assert sum(held(first, second)) <= 64 * MIB


def test_arrays_are_spilled_for_others_down_to_what_one_is_entitled_to(runtime):
    spill = {"PJRT_ARENA_SPILL": "host"}
    with members(runtime, spill, spill) as (first, second):
        first.do("keep(12, 4)")
        second.do("keep(7, 4); check()")
        first.do("check()")
        spilled = first.do(expression="memory.stats()[0].spill.spilled_bytes")
        assert 12 * MIB <= spilled <= 24 * MIB, spilled
        # Half of the limit is each one's: the second does not get more, and spills its own.
        second.do("keep(6, 4, 7); check()")
        first.do("check()")
        mine = first.do(expression="part()['held_bytes']")
        assert mine >= 24 * MIB and sum(held(first, second)) <= 64 * MIB, mine


def test_who_can_spill_does_not_wait_long_for_what_others_cannot_give(runtime):
    with members(runtime, {}, {"PJRT_ARENA_SPILL": "host"}) as (first, second):
        first.do("keep(12, 4)")
        second.do("keep(4, 4)")
        begun = time.monotonic()
        # The first one owes it, by its part, and has neither idle memory nor a place for its arrays.
        second.do("keep(2, 4, 4); check()")
        waited = time.monotonic() - begun
        # The first of the two waits a second; it was ten, and then an error.
        assert 1 <= waited < 8, waited
        assert second.do(expression="memory.stats()[0].spill.spilled_bytes") >= 8 * MIB


def test_a_launch_asks_others_before_it_spills(runtime):
    spill = {"PJRT_ARENA_SPILL": "host"}
    with members(runtime, {}, spill) as (first, second):
        first.do("for _ in range(4):\n keep(10, 4)\n kept.clear()\n gc.collect()")
        assert held(first)[0] > 32 * MIB
        second.do("keep(4, 4); step = jax.jit(lambda x: x + 1)")
        second.do("made = [jax.block_until_ready(step(array)) for _, array in kept * 2]; check()")
        assert second.do(expression="memory.stats()[0].spill.spilled_bytes") == 0
        assert first.do(expression="part()['given_bytes']") > 0


def test_weights_divide_what_is_not_guaranteed(runtime):
    spill = {"PJRT_ARENA_SPILL": "host"}
    with members(runtime, spill | {"PJRT_ARENA_SHARE_WEIGHT": "300"}, spill) as (first, second):
        first.do("keep(14, 4)")
        second.do("keep(12, 4); check()")
        first.do("check()")
        mine = first.do(expression="part()['held_bytes']")
        assert mine >= 40 * MIB, mine


def test_a_minimum_is_left_and_an_error_names_who_has_the_memory(runtime):
    with members(runtime, {"PJRT_ARENA_SHARE_MIN": "24MiB"}, {}) as (first, second):
        text = second.do("keep(9, 4)", "error_of(lambda: keep(4, 4))")
        assert text.startswith("RESOURCE_EXHAUSTED: "), text
        assert "of the limit of 64.00MiB are this process's" in text, text
        assert f"process {first.pid} (" in text and "24.00MiB guaranteed" in text, text
        second.do("check()")
        # It is there for the one that it is guaranteed to.
        first.do("keep(5, 4); check()")
        assert first.do(expression="part()['num_asked']") == 0


def test_a_member_that_is_killed_leaves_its_part_to_the_others(runtime):
    with members(runtime, {}, {}) as (first, second):
        first.do("keep(13, 4)")
        second.tell("keep(13, 4); check()")
        time.sleep(0.1)
        os.kill(first.pid, signal.SIGKILL)
        second.answer()
        assert [member["is_self"] for member in second.do(expression="others()")] == [True]
        second.end()
    assert not list((runtime / "pjrt-arena").iterdir())


def test_a_member_that_is_stopped_is_waited_for_a_while_and_named(runtime):
    with members(runtime, {}, {}) as (first, second):
        first.do("keep(6, 8); kept.clear(); gc.collect(); keep(6, 8)")
        os.kill(first.pid, signal.SIGSTOP)
        begun = time.monotonic()
        second.tell(expression="error_of(lambda: keep(5, 8))")
        # After a second it says so, long before the error.
        line = second.complaint()
        told = time.monotonic() - begun
        text = second.answer()
        waited = time.monotonic() - begun
        assert "it is stopped, and gives nothing" in text and f"process {first.pid} (" in text, text
        # It waits for ten seconds, as for programs under way.
        assert 9 < waited < 60, waited
        assert 1 <= told < waited - 5, (told, waited)
        size, left = re.search(
            r"WARN: (\S+) on cpu:0 are waited for, (\S+)s more at most, from others of", line
        ).groups()
        assert size == "8.00MiB" and waited - told - 2 < float(left) <= 9.1, (line, told, waited)
        assert f"process {first.pid} (" in line and "it is stopped, and gives nothing" in line, line
        os.kill(first.pid, signal.SIGCONT)
        first.do("kept.clear(); gc.collect()")
        # A wait that is short says nothing, and the other one was told of once.
        second.do("keep(5, 8); check()")
        assert "are waited for" not in second.end()


#: Locks the books of a group, as a process has them that is stopped while it takes memory.
SEIZE = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
print("locked", flush=True)
sys.stdin.read()
"""


def test_books_that_a_stopped_process_has_locked_are_an_error_soon(runtime):
    with members(runtime, {}, {}) as (first, _second):
        first.do("keep(1, 4)")
        command = [sys.executable, "-c", SEIZE, str(runtime / "pjrt-arena" / "test")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as seizer:
            assert seizer.stdout is not None and seizer.stdout.readline() == b"locked\n"
            os.kill(seizer.pid, signal.SIGSTOP)
            begun = time.monotonic()
            text = first.do(expression="error_of(lambda: keep(4, 8))")
            waited = time.monotonic() - begun
            seizer.kill()
        assert f"process {seizer.pid}" in text and "has held the lock of its books for 2 s" in text, text
        # Once, and not for each of the halves that it tried before.
        assert waited < 12, waited
        first.do("keep(1, 8); check()")


def test_a_process_whose_groups_file_was_removed_takes_no_more(runtime):
    with members(runtime, {}, {}) as (first, second):
        first.do("keep(2, 4)")
        (runtime / "pjrt-arena" / "test").unlink()
        # Each looks once a second.
        time.sleep(2.5)
        text = first.do(expression="error_of(lambda: keep(6, 8))")
        assert "its file was removed while it has members" in text and "enable-linger" in text, text
        first.do("check()")
        assert first.end().count("its file was removed while it has members") == 1
        second.end()


def test_an_ask_counts_as_long_as_somebody_waits(runtime):
    with members(runtime, {}, {}) as (first, second):
        first.do("for _ in range(4):\n keep(10, 4)\n kept.clear()\n gc.collect()")
        os.kill(first.pid, signal.SIGSTOP)
        second.tell("keep(12, 4); check()")
        time.sleep(1)
        os.kill(first.pid, signal.SIGCONT)
        second.answer()
        assert first.do(expression="part()")["num_given"] >= 1


def test_a_process_gives_while_python_holds_its_lock_or_sleeps(runtime):
    with members(runtime, {}, {}) as (first, second):
        first.do("for _ in range(4):\n keep(10, 4)\n kept.clear()\n gc.collect()")
        first.do("import ctypes")
        # `PyDLL` keeps Python's lock while the function runs.
        first.tell("ctypes.PyDLL(None).usleep(20_000_000)")
        second.do("keep(12, 4); check()")
        assert first.process.poll() is None
        first.kill()


def test_devices_are_shared_each_for_itself(runtime):
    two = {"PJRT_ARENA_DEVICES": "2"}
    with members(runtime, two, two) as (first, second):
        first.do("keep(12, 4, 0, 0)")
        second.do("keep(12, 4, 0, 1); check()")
        both = [first.do(expression=f"part({number})['held_bytes']") for number in (0, 1)]
        assert both[0] >= 48 * MIB and both[1] == 0, both
        assert second.do(expression="part(1)['num_asked']") == 0


def test_programs_share_as_arrays_do(runtime):
    train = """
    state = [ramp(number, 2) for number in range(6)]
    step = jax.jit(lambda s: [x * 0.5 + 1 for x in s], donate_argnums=0)
    for _ in range(30):
        state = step(state)
    sums = [float(x[0]) for x in state]
    """
    with members(runtime, *3 * [{"PJRT_ARENA_LIMIT": "48MiB"}]) as everybody:
        for member in everybody:
            member.tell(train, "sums")
        answers = [member.answer() for member in everybody]
        assert answers[0] == answers[1] == answers[2]


def test_another_limit_is_told_and_does_not_count(runtime):
    with members(runtime, {}) as (first,), members(runtime, {"PJRT_ARENA_LIMIT": "32MiB"}) as (second,):
        assert second.do(expression="device().memory_stats()['bytes_limit']") == 64 * MIB
        wrote = second.end()
        assert "the limit of device 0 is 64.00MiB" in wrote and "32.00MiB" in wrote, wrote
        first.end()


def test_a_file_that_cannot_be_used_is_named_and_the_process_goes_on_alone(runtime):
    folder = runtime / "pjrt-arena"
    with members(runtime, {}) as (first,):
        with (folder / "test").open("r+b") as file:
            file.write(b"something else")
        with members(runtime, {}) as (second,):
            second.do("keep(15, 4); check()", "None")
            wrote = second.end()
            assert "share=test (PJRT_ARENA_SHARE) has no effect" in wrote and "damaged" in wrote, wrote
        first.kill()


def test_a_link_is_not_followed(runtime):
    folder = runtime / "pjrt-arena"
    folder.mkdir(0o700)
    (folder / "test").symlink_to(runtime / "elsewhere")
    with members(runtime, {}) as (alone,):
        alone.do("keep(1); check()")
        assert "share=test (PJRT_ARENA_SHARE) has no effect" in alone.end()
    assert not (runtime / "elsewhere").exists()


def test_what_cannot_be_shared_is_refused(runtime):
    settings = {"XDG_RUNTIME_DIR": str(runtime), "PJRT_ARENA_SHARE": "test", "PJRT_ARENA_LIMIT": "64MiB"}
    run = run_jax("import jax; jax.devices()", check=False, **settings, PJRT_ARENA_STRATEGY="tpu")
    assert run.returncode == 1 and "PJRT_ARENA_STRATEGY asks for tpu, which takes all memory" in run.stderr
    run = run_jax("import jax; jax.devices()", check=False, **settings, PJRT_ARENA_SHARE_MIN="65MiB")
    assert run.returncode == 1 and "a minimum of 65.00MiB" in run.stderr and "64.00MiB" in run.stderr, run.stderr


def test_a_child_after_a_fork_leaves_its_parents_part_alone(runtime):
    with members(runtime, {}, {}) as (first, second):
        first.do("keep(4, 4)")
        status = first.do(
            """
            child = os.fork()
            if child == 0:
                os._exit(0)
            """,
            "os.waitpid(child, 0)[1]",
        )
        assert status == 0
        assert held(first)[0] >= 16 * MIB
        second.do("keep(10, 4); check()")
        first.do("check()")
        assert sum(held(first, second)) <= 64 * MIB


def test_asks_and_gifts_are_in_the_history(runtime, tmp_path):
    with members(runtime, {}, {}) as (first, second):
        first.do("for _ in range(4):\n keep(10, 4)\n kept.clear()\n gc.collect()")
        second.do("keep(12, 4)")
        kinds = []
        for number, member in enumerate((first, second)):
            path = tmp_path / f"{number}.json"
            member.do(f"from pjrt_arena import memory; memory.snapshot({str(path)!r})")
            kinds.append(set(json.loads(path.read_text())["devices"][0]["events"]["kind"]))
        asked, given = 13, 14
        assert given in kinds[0] and asked in kinds[1], kinds


def test_the_command_shows_groups(runtime):
    top = ("-m", "pjrt_arena", "top", "--once")
    with members(runtime, {"PJRT_ARENA_SHARE_MIN": "1MiB"}) as (first,):
        first.do("keep(4, 4)")
        shown = run_python(*top, XDG_RUNTIME_DIR=str(runtime)).stdout
        assert "group test, device 0: 64.00 MiB for 1 process; 16.00 MiB held, 48.00 MiB free" in shown, shown
        assert f"{first.pid} python" in shown and max(map(len, shown.splitlines())) <= 100
        first.do("check()")
        first.end()
    assert "no processes share devices" in run_python(*top, XDG_RUNTIME_DIR=str(runtime)).stdout
