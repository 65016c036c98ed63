"""`gpu/run.sh`: very small rehearsals, on the CPU engine and on a simulated GPU; what becomes of what goes wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import fake_gpu
import pytest
from gpu import driver_facts, inventory, logs
from gpu.__main__ import _wanted
from gpu.backends import Backend, backends
from gpu.plan import PARTS, Job
from gpu.runner import Runner
from gpu.sizes import MIB, SIZES
from harness import ROOT, clean_environment

SCRIPT = ROOT / "python_smoke" / "gpu" / "run.sh"
PLANTED = ROOT / "python_smoke" / "gpu" / "for_tests"
TPU = backends("cpu")["arena_tpu"]
played = pytest.mark.skipif(not fake_gpu.is_built(), reason="the GPU for tests is built by cargo, beside the library")


def run_script(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with this Python and the library under test."""
    from pjrt_arena import _library

    environment = clean_environment(PYTHONPATH=None, PYTHON=sys.executable)
    environment["PJRT_ARENA_LIBRARY_PATH"] = str(_library.locate())
    environment.update(settings)
    with tempfile.TemporaryDirectory() as folder:
        # Where the script has its cache of programs unless it is told.
        environment.setdefault("XDG_CACHE_HOME", folder)
        return subprocess.run(
            [SCRIPT, *arguments], env=environment, capture_output=True, text=True, timeout=600, check=False
        )


@pytest.mark.arena
def test_rehearsal(tmp_path):
    chosen = ("--platform", "cpu", "--size", "tiny", "--backends", "arena_tpu", "--rounds", "1", "--out", str(tmp_path))
    first = run_script(*chosen, "--only", "acde")
    assert first.returncode == 0, first.stdout + first.stderr
    assert run_script(*chosen, "--only", "hj", "--add").returncode == 0
    report = json.loads((tmp_path / "results.json").read_text())
    assert report["schema"] == "pjrt-arena-gpu/1" and report["settings"]["size"] == "tiny"
    results = {}
    for record in report["records"]:
        results.setdefault(record["part"], []).append(record.get("result"))
        assert record["status"] == ("skipped" if record["part"] == "j" else "done"), record
    assert set(results) == set("acdehj")
    other = run_script("--platform", "cpu", "--size", "small", "--out", str(tmp_path), "--add")
    assert other.returncode == 2 and "is of --platform cpu --size tiny" in other.stderr
    (about,) = results["a"]
    assert about["api_version"] and "pjrt-arena" in about["platform_version"]
    before, behind = about["host_memory"]["before"], about["host_memory"]["behind_the_first_array"]
    assert behind["resident"] > before["resident"] > before["own"] > 0
    assert report["warm_up"]["status"] == "done" and "warm-up on arena_tpu: done, " in first.stdout
    sha = report["machine"]["library"]["sha256"]
    assert len(sha) == 12 and {record["library"] for record in report["records"]} == {sha}
    # Both runs are in it.
    assert (tmp_path / "facts.txt").read_text().count("\n$ uname -a\nLinux ") == 2
    (fragmented,) = results["c"]
    assert fragmented["served"] and fragmented["intact"] and fragmented["limit"] == SIZES["tiny"].limit
    (steps,) = results["d"]
    assert all(each["seconds"]["median"] > 0 and each["last_loss"] < each["first_loss"] for each in steps.values())
    (share,) = results["e"]
    assert 0.5 < share["share"] <= 1 and all(0 < each["refused_seconds"] < 60 for each in share["rounds"])
    (small,) = results["h"]
    assert small["live"]["arrays"] == SIZES["tiny"].arrays and small["dispatch"]["one"]["median"] > 0

    text = (tmp_path / "results.md").read_text()
    assert text.startswith("# pjrt-arena on a CPU: a rehearsal\n")
    for part in "acdehj":
        assert f"\n## {PARTS[part]}\n" in text
    assert "\n| arena tpu | 24.0 MiB | " in text and " | served |  | intact |\n" in text
    assert "- arena tpu, `checks.run`: was left out: it is for GPUs\n" in text
    for table in text.split("\n\n"):
        if table.startswith("|"):
            assert len({line.count(" | ") for line in table.splitlines()}) == 1, table


@pytest.mark.arena
@played
def test_on_a_played_gpu(tmp_path):
    """What the CPU engine has no part in: the driver, scratch and arrays of one limit, chunks, the last bytes."""
    machine = fake_gpu.variables(256, gpus=1, latency_us=20, era=114)
    engine = machine.pop("PJRT_ARENA_ENGINE")
    chosen = ("--engine", engine, "--size", "tiny", "--backends", "arena_tpu", "--rounds", "1")
    run = run_script(*chosen, "--out", str(tmp_path), "--only", "klmnfgi", **machine)
    report = json.loads((tmp_path / "results.json").read_text())
    assert run.returncode == 0, run.stdout + run.stderr + json.dumps(report["records"], indent=1)
    results = {}
    for record in report["records"]:
        results.setdefault(record["measure"], []).append(record.get("result"))
        assert record["status"] == ("skipped" if record["part"] == "n" else "done"), record
        if record["part"] not in "kn":
            # What was decided at the start is told unless the caller says otherwise.
            assert "INFO: strategy=tpu (PJRT_ARENA_STRATEGY)" in "".join(record["log"][:5]), record["log"]
        assert record["status"] == "skipped" or 0 <= record["end_seconds"] < record["seconds"]
    facts = {fact["name"]: fact for fact in results["gpu.driver_facts.measure"][0]["facts"]}
    assert set(facts) == set(driver_facts.FACTS) and all(fact["expected"] and fact["found"] for fact in facts.values())
    right = ("device", "kinds_of_memory", "most_of_the_memory", "growth_of_a_pool", "rounding_of_allocations")
    assert [facts[name]["holds"] for name in right] == [True] * len(right), facts
    assert facts["exchange"]["numbers"]["ends"] == [2, 2, 1, 1] and facts["exchange"]["numbers"]["twice"]
    assert facts["range_of_an_address"]["holds"] in (True, None)
    called = facts["calls_of_the_host"]["numbers"]
    assert all(0 < called[name]["median"] <= called[name]["p99"] for name in ("idle", "beside launches")), called
    assert called["launches"] > 0 and facts["pinning"]["numbers"]["bytes"] == 32 * MIB
    assert facts["bandwidth"]["found"].endswith("; bytes are counted once")
    (scratch,) = results["gpu.pressure.scratch"]
    assert scratch["refused"] is None and scratch["scratch_bytes"] > scratch["limit"] // 5 and scratch["refilled"] > 2
    (device,) = results["gpu.pressure.device"]
    assert device["limit"] > 0.96 * 256 * MIB and device["in_use"] > 0.85 * device["limit"]
    assert 0 < device["least_free_bytes"] < 256 * MIB - device["in_use"]
    trimmed, odd, whole = results["gpu.room.compaction"]
    # Half of the arrays had to move into the holes of the others, whichever way they lie.
    for compacted in (trimmed, odd, whole):
        assert compacted["bytes"] > 0 and compacted["largest_free_after"] > 2 * compacted["largest_free_before"]
    assert trimmed["given_back"] > 0 and trimmed["made_bytes"] <= trimmed["bytes"] // 2
    (ends,) = results["gpu.start.ends"]
    assert ends["given_back"] > 0 and all(took > 0 for took in ends["seconds"].values())
    (transfers,) = results["gpu.transfers.both"]
    assert [row["bytes"] for row in transfers["rows"]] == list(SIZES["tiny"].copies)
    (puts,) = results["gpu.transfers.puts"]
    assert puts["many"]["seconds"]["median"] > puts["many"]["call"]["median"] > 0
    graph = results["gpu.small.graph_memory"][0]
    assert graph["places"] > 1 and graph["lost"] <= 0
    text = (tmp_path / "results.md").read_text()
    assert "`beside_torch.both`: was left out: there is no torch" in text and "could not be made" not in text
    assert "| range of an address | the driver takes each chunk" in text and "(!)" not in text
    for table in text.split("\n\n"):
        if table.startswith("|"):
            assert len({line.count(" | ") for line in table.splitlines()}) == 1, table


@pytest.mark.arena
@played
def test_a_driver_that_does_something_else_is_a_row_that_says_no(tmp_path):
    machine = fake_gpu.variables(256, gpus=1, latency_us=20, era=114) | {"FAKE_CUDA_FAIL": "cuMemSetAccess:1:801"}
    chosen = ("--engine", machine.pop("PJRT_ARENA_ENGINE"), "--size", "tiny", "--only", "k")
    run = run_script(*chosen, "--out", str(tmp_path), **machine)
    text = (tmp_path / "results.md").read_text()
    assert run.returncode == 0 and "plain: cuMemSetAccess answers 801; " in text, run.stdout + text
    (row,) = [line for line in text.splitlines() if line.startswith("| kinds of memory |")]
    assert row.endswith("| **no** |") and text.count("| yes |") >= 5


@pytest.mark.arena
@played
@pytest.mark.parametrize("wrong", ["", "values", "global", "thread_local"])
def test_beside_a_played_torch(wrong, tmp_path):
    """What is asked of PyTorch, where an imitation answers: on the side of JAX all is as it would be."""
    machine = fake_gpu.variables(256, gpus=1, latency_us=20, era=114) | {"PYTHONPATH": str(PLANTED / "torch_played")}
    if wrong == "values":
        machine["PLAYED_TORCH_ADDS"] = "1"
    elif wrong:
        machine["PLAYED_TORCH_REFUSES"] = wrong
    chosen = ("--engine", machine.pop("PJRT_ARENA_ENGINE"), "--size", "tiny", "--only", "n", "--backends", "arena_tpu")
    run = run_script(*chosen, "--out", str(tmp_path / "out"), **machine)
    (record,) = json.loads((tmp_path / "out" / "results.json").read_text())["records"]
    text = (tmp_path / "out" / "results.md").read_text()
    if wrong == "values":
        assert run.returncode == 1 and record["error"] == "AssertionError: torch reads other values", record
    elif wrong == "thread_local":
        # The long capture is what counts, and its log says which error it was.
        assert run.returncode == 1 and "CUDA error 900" in record["error"] and record["noted"] == ["CUDA error 900"]
        assert "; the log has: CUDA error 900\n" in text
    else:
        assert record["status"] == "done" and record["result"]["arrays_beside_capture"] > 0, record
        assert "| arena tpu | played | " in text
        short = record["result"]["forbidden_to_all"]
        if wrong:
            assert "CUDA error 900" in short["error"] and record["noted"] == ["CUDA error 900"], record
            assert " | RuntimeError: CUDA error 900: " in text
        else:
            assert "noted" not in record and set(short) <= {"turns", "error"}


@pytest.mark.arena
def test_measurements_of_memory_can_fail(planted):
    """A device whose free memory falls while chunks are exchanged, and while graphs go on; arrays that change."""
    copied, leaked, changed = run_jobs(
        Job("f", "planted.copies_instead", TPU, 20, limit=SIZES["tiny"].compacted),
        Job("i", "planted.graphs_that_take_memory", TPU, 20),
        Job("l", "planted.other_contents", TPU, 20, limit=SIZES["tiny"].limit),
    )
    assert "bytes of memory were made for" in copied["error"], copied
    assert "bytes of the device are gone after 40 steps" in leaked["error"], leaked
    assert changed["error"] == "AssertionError: 10 of 10 arrays have other contents", changed


@pytest.fixture
def planted(monkeypatch):
    """Measurements that go wrong in every way, in a module that children can import."""
    monkeypatch.setenv("PYTHONPATH", f"{PLANTED}:{ROOT / 'python_smoke'}")
    # As a caller might have them.
    monkeypatch.setenv("PJRT_ARENA_STRATEGY", "growing")
    monkeypatch.setenv("XLA_FLAGS", "--nonsense")


def run_jobs(*wanted: Job, budget: float = 300, before: list | None = None, rests: int = 0):
    saved = []
    runner = Runner("tiny", 1.0, 4, budget, lambda records: saved.append(len(records)))
    runner.run(list(wanted), before or [])
    assert saved == list(range(saved[0], saved[0] + len(wanted) + rests))
    return runner.records


def test_what_goes_wrong_is_a_row_and_the_run_goes_on(planted, monkeypatch, capsys):
    monkeypatch.setattr("gpu.runner.START", 1)
    records = run_jobs(
        Job("b", "planted.raises", TPU, 20),
        Job("b", "planted.crashes", TPU, 20),
        Job("b", "planted.ends_badly", TPU, 20),
        Job("b", "planted.hangs", TPU, 0.5),
        Job("b", "planted.missing", TPU, 20),
        Job("b", "planted.good", TPU, 20, {"add": 4}, flags="--xla_given"),
    )
    raised, crashed, ended, hung, missing, good = records
    assert (raised["status"], raised["error"]) == ("failed", "ValueError: not today")
    assert crashed["status"] == "failed" and crashed["error"] == "ended by SIGABRT; last line: before the end"
    assert ended["status"] == "failed" and ended["error"].startswith("ended by SIGABRT, its result was there; ")
    assert hung["status"] == "timeout" and hung["error"].endswith("last line: waiting") and hung["seconds"] < 60
    assert hung["timeouts"] == 1 and hung["again"]
    # Where every thread was, shortly before the end.
    stacks = "\n".join(hung["log"])
    assert "in waits_elsewhere" in stacks and "in hangs" in stacks and hung["log"][0] == "waiting"
    assert missing["status"] == "failed" and "missing" in missing["error"]
    assert good["status"] == "done"
    assert good["log"] == ["a line"] and "warned" not in good and "not today" in "".join(raised["log"])
    assert "in crashes" in "".join(crashed["log"]) and ended["result"] == {"all": "well"}
    assert good["result"] == {"sum": 5, "strategy": "tpu", "flags": "--xla_given"}
    assert "planted.crashes on arena_tpu: failed, ended by SIGABRT" in capsys.readouterr().out


def test_what_does_not_fit_the_budget_is_left_out(planted):
    long, short = run_jobs(
        Job("b", "planted.good", TPU, 500, {"add": 1}), Job("b", "planted.good", TPU, 20, {"add": 2})
    )
    assert long["status"] == "skipped" and "500 s" in long["error"] and long["again"]
    assert short["result"]["sum"] == 3 and "again" not in short


def test_what_the_end_of_the_budget_ends_is_to_be_run_again(planted):
    (cut,) = run_jobs(Job("b", "planted.hangs", TPU, 1.5), budget=2)
    assert cut["status"] == "timeout" and cut["again"] and 1 < cut["seconds"] < 60


def test_what_took_too_long_is_run_again_once_and_behind_what_never_ran(planted, monkeypatch):
    monkeypatch.setattr("gpu.runner.START", 0.5)
    slow, new = Job("b", "planted.hangs", TPU, 0.3), Job("b", "planted.good", TPU, 20, {"add": 1})
    first = run_jobs(slow)
    assert _wanted([slow, new], first, missing=True) == [new, slow]
    second = run_jobs(slow, before=first)
    assert second[0]["timeouts"] == 2 and "again" not in second[0]
    assert _wanted([slow, new], second, missing=True) == [new]
    # One that the budget ends has not had its time, however often.
    (cut,) = run_jobs(dataclasses.replace(slow, seconds=1.5), budget=2)
    assert cut["again"] and "timeouts" not in cut
    # The same where a process that went on behind it took too long.
    before = [{"key": slow.name, "status": "failed"}, {"key": "x", "rest_of": slow.name, "again": True}]
    assert _wanted([slow], before, missing=True) == [slow]


def test_one_that_hangs_or_crashes_takes_nothing_from_those_behind_it(planted):
    job = Job("b", "planted.in_steps", TPU, 20)
    records = run_jobs(job, rests=2)
    assert [(record["status"], record["result"]["passed"]) for record in records] == [
        ("timeout", ["one"]),
        ("failed", ["two"]),
        ("done", ["three"]),
    ]
    hung, dead, rest = records
    assert " in `hung`; " in hung["error"] and hung["result"]["ended_at"] == "hung" and hung["seconds"] < 15
    assert "in waits_elsewhere" in "".join(hung["log"])
    assert dead["error"].startswith("ended by SIGABRT in `dead`") and rest["values"] == {"names": ["three"]}
    assert hung.get("rest_of") is None and dead["rest_of"] == rest["rest_of"] == hung["key"]
    # A later run of the same takes the place of all three.
    again = run_jobs(Job("b", "planted.in_steps", TPU, 20), before=records, rests=2)
    assert len(again) == 3


def test_what_cannot_be_measured_here_is_left_out_with_its_reason(planted):
    (record,) = run_jobs(Job("n", "planted.left_out", TPU, 20))
    assert (record["status"], record["error"]) == ("skipped", "no such thing here") and "again" not in record


def test_logs_are_kept_and_warnings_marked(planted):
    (record,) = run_jobs(Job("h", "planted.warns", TPU, 20))
    assert record["warned"] == ["WARN: look here"]
    log = record["log"]
    # The warning, what the arena told last, what others said last.
    assert log[0].endswith("WARN: look here") and log[logs.OURS - 1].endswith("INFO: told 49")
    assert log[-1] == "the end" and len(log) == logs.OURS + logs.OTHERS and "noise 49" in log
    assert logs.kept("pjrt-arena[1] ERROR: x\n" * 100, True) == ["pjrt-arena[1] ERROR: x"] * logs.OURS


def test_a_run_that_is_killed_leaves_no_child(planted, tmp_path):
    """By a signal that nobody can catch; the child would hold the GPU's memory."""
    code = """
        from gpu.backends import backends
        from gpu.plan import Job
        from gpu.runner import Runner

        job = Job("b", "planted.hangs", backends("cpu")["arena_tpu"], 100)
        Runner("tiny", 1.0, 4, 300, lambda records: None).run([job], [])
    """
    runner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path)
    children = Path(f"/proc/{runner.pid}/task/{runner.pid}/children")
    found = wait_for(lambda: children.read_text().split())
    child = Path(f"/proc/{found[0]}")
    # It is held once it has begun to run Python; its stack of modules is loaded then.
    wait_for(lambda: b"gpu.child" in (child / "cmdline").read_bytes())
    time.sleep(1)
    assert child.exists() and os.getsid(int(found[0])) == os.getsid(0)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    # Who takes orphans in may leave it as a zombie.
    wait_for(lambda: not child.exists() or (child / "stat").read_text().rpartition(")")[2].split()[0] == "Z")


def wait_for(read, timeout: float = 200.0):
    end = time.monotonic() + timeout
    while not (seen := read()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return seen


def test_the_sanitizer_part_has_a_time_of_its_own(planted, monkeypatch, tmp_path):
    """A simulated sanitizer: it runs what it is given and says that there are three errors."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        '#!/bin/sh\necho "$@"\nwhile [ "$1" != "--print-limit" ]; do shift; done\nshift 2\n'
        '"$@"\necho "========= ERROR SUMMARY: 3 errors"\nexit 9\n'
    )
    tool.chmod(0o755)
    # Not on the path, as CUDA's toolkit is installed.
    (tmp_path / "bin").mkdir()
    tool.rename(tmp_path / "bin" / tool.name)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert inventory.sanitizer() == str(tmp_path / "bin" / tool.name)
    cuda = dataclasses.replace(TPU, platform="cuda")
    plain = Job("b", "planted.good", cuda, 20, {"add": 1})
    slow = dataclasses.replace(plain, part="j", seconds=200, sanitized=True)
    short, long = run_jobs(plain, slow, budget=150)
    assert short["status"] == "done" and long["status"] == "skipped" and "about 200 s" in long["error"]
    (record,) = run_jobs(dataclasses.replace(slow, seconds=20))
    assert record["status"] == "done" and record["result"]["sanitizer_errors"] == 3 and record["result"]["sum"] == 2
    assert "--report-api-errors no" in record["result"]["sanitizer"]


def test_a_run_that_is_added_replaces_its_own_rows_only(planted):
    before = run_jobs(Job("b", "planted.good", TPU, 20, {"add": 1}), Job("b", "planted.good", TPU, 20, {"add": 2}))
    after = run_jobs(Job("b", "planted.good", TPU, 20, {"add": 2}, limit=1 << 20), before=before)
    assert [(record["values"], record["limit"]) for record in after] == [({"add": 1}, None), ({"add": 2}, 1 << 20)]


def test_what_is_there_stays_until_there_is_something_in_its_place(planted):
    """A run that is killed, or has no time, costs an earlier one nothing."""
    job, later = Job("b", "planted.good", TPU, 20, {"add": 1}), Job("b", "planted.good", TPU, 20, {"add": 2})
    before = run_jobs(job, later)
    saved = []
    runner = Runner("tiny", 1.0, 4, 300, lambda records: saved.append([record["result"]["sum"] for record in records]))
    runner.run([dataclasses.replace(job, flags=""), later], before)
    assert saved == [[3, 2], [2, 3]]
    (first, second) = run_jobs(dataclasses.replace(job, seconds=500), before=before)
    assert (first["status"], second["status"]) == ("done", "done")


@pytest.mark.parametrize("gate", [True, False])
def test_a_run_on_which_nothing_works_stops_early(gate, planted):
    def checks(name, **values):
        return Job("b", f"planted.{name}", TPU, 20, values)

    behind = Job("c", "planted.good", TPU, 20, {"add": 1})

    def run(*wanted, before=()):
        runner = Runner("tiny", 1.0, 4, 300, lambda records: None)
        return runner.run([*wanted, behind], list(before), gate), len(runner.records)

    said, count = run(checks("raises"), checks("none_passes"))
    if gate:
        assert said.startswith("stopped: the arena passed no check") and count == 2
        assert said.splitlines()[1] == "The last was arena_tpu; the end of its log:"
        assert "\n    one: not so\n" in said and "\n    the end of a log" in said
    else:
        assert (said, count) == (None, 3)
    # One check that passes is enough, as is none that ran: that says nothing.
    assert run(checks("none_passes"), checks("in_steps", names=["one"])) == (None, 3)
    assert run(checks("left_out")) == (None, 2)
    assert run() == (None, 1)


def test_two_cards_are_not_mixed(tmp_path):
    """An earlier run on another card; a simulated `nvidia-smi` names the card of this machine."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 580, 9.0, 1, 2'\n")
    tool.chmod(0o755)
    before = {
        "settings": {"platform": "cuda", "size": "full"},
        "machine": {"gpus": [{"name": "NVIDIA H100", "memory.total": "81559 MiB"}]},
        "records": [],
    }
    (tmp_path / "results.json").write_text(json.dumps(before))
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = run_script("--out", str(tmp_path), "--add", **path)
    assert run.returncode == 2 and "is of NVIDIA H100 (81559 MiB), and here is NVIDIA H200 (143771 MiB)" in run.stderr
    assert json.loads((tmp_path / "results.json").read_text()) == before
    # The same card; nothing is to be run.
    before["machine"]["gpus"] = [{"name": "NVIDIA H200", "memory.total": "143771 MiB"}]
    (tmp_path / "results.json").write_text(json.dumps(before))
    run = run_script("--out", str(tmp_path), "--add", "--only", "k", "--budget", "0.01", **path)
    assert run.returncode == 0 and "are to be had yet" in run.stdout, run.stdout + run.stderr


def test_jax_that_finds_no_gpu_does_not_count_as_one(monkeypatch):
    """JAX leaves "cuda" out where there is no GPU, and goes on with "cpu"."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'python'}:{ROOT / 'python_smoke'}")
    planned = Job("a", "gpu.small.dispatch", dataclasses.replace(backends("cpu")["cpu"], platform="cuda"), 60)
    monkeypatch.setattr(
        Backend, "environment", lambda *_: {**os.environ, "GPU_SCRIPT_PLATFORM": "cuda", "JAX_PLATFORMS": "cpu"}
    )
    (record,) = run_jobs(planned)
    assert record["status"] == "failed" and "and was to run on a gpu" in record["error"]


@pytest.mark.parametrize(
    ("arguments", "settings", "said"),
    [
        ((), {"PJRT_ARENA_LIBRARY_PATH": "/no/such.so"}, "/no/such.so is not a file"),
        ((), {"PYTHON": "/no/such/python"}, "/no/such/python has no jax"),
        (("--only", "az"), {}, "--only=az: z is none of"),
        (("--platform", "cpu", "--backends", "arena_fast"), {}, "arena_fast is none of cpu, arena_preallocate"),
        (("--budget", "0"), {}, "must be above 0"),
        (("--missing",), {}, "--missing: means nothing without --add"),
        (("--engine", "/no/such.so"), {}, "--engine=/no/such.so: is not a file"),
    ],
    ids=["library", "python", "part", "backend", "budget", "missing", "engine"],
)
def test_bad_arguments_are_a_sentence(arguments, settings, said, tmp_path):
    run = run_script(*arguments, "--out", str(tmp_path / "out"), **settings)
    assert run.returncode == 2 and said in run.stderr, run.stderr
    assert not (tmp_path / "out").exists()
    assert os.access(SCRIPT, os.X_OK) and Path(SCRIPT).read_text().startswith("#!/bin/sh\n")
