"""`gpu/run.sh`: very small rehearsals, on the CPU engine and on a simulated GPU; what becomes of what goes wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import fake_gpu
import pytest
from gpu import driver_facts, logs, tables
from gpu.__main__ import _rest, _wanted
from gpu.backends import Backend, backends
from gpu.plan import PARTS, Job, jobs
from gpu.runner import Runner
from gpu.sizes import MIB, SIZES
from harness import ROOT, clean_environment

SCRIPT = ROOT / "python_smoke" / "gpu" / "run.sh"
PLANTED = ROOT / "python_smoke" / "gpu" / "for_tests"
TPU = backends("cpu")["arena_tpu"]
played = pytest.mark.skipif(
    not fake_gpu.is_built() or bool(fake_gpu.CUDA), reason="the GPU for tests is built by cargo, beside the library"
)


def run_script(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with this Python and the library under test."""
    from pjrt_arena import _library

    environment = clean_environment(PYTHONPATH=None, PYTHON=sys.executable)
    environment["PJRT_ARENA_LIBRARY_PATH"] = str(_library.locate())
    environment.update(settings)
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
    (fragmented,) = results["c"]
    assert fragmented["served"] and fragmented["intact"] and fragmented["limit"] == SIZES["tiny"].limit
    (steps,) = results["d"]
    assert all(each["seconds"]["median"] > 0 and each["last_loss"] < each["first_loss"] for each in steps.values())
    (share,) = results["e"]
    assert 0.5 < share["share"] <= 1
    (small,) = results["h"]
    assert small["live"]["arrays"] == SIZES["tiny"].arrays and small["dispatch"]["one"]["median"] > 0

    text = (tmp_path / "results.md").read_text()
    assert text.startswith("# pjrt-arena on a CPU: a rehearsal\n")
    for part in "acdehj":
        assert f"\n## {PARTS[part]}\n" in text
    assert "\n| arena tpu | 24.0 MiB | " in text and " | served | intact |\n" in text
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
    right = ("device", "kinds_of_memory", "most_of_the_memory", "growth_of_a_pool")
    assert [facts[name]["holds"] for name in right] == [True] * len(right), facts
    assert facts["exchange"]["numbers"]["ends"] == [2, 2, 1, 1] and facts["exchange"]["numbers"]["twice"]
    assert facts["range_of_an_address"]["holds"] in (True, None)
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
@pytest.mark.parametrize("wrong", [False, True])
def test_beside_a_played_torch(wrong, tmp_path):
    """What is asked of PyTorch, where an imitation answers: on the side of JAX all is as it would be."""
    machine = fake_gpu.variables(256, gpus=1, latency_us=20, era=114) | {"PYTHONPATH": str(PLANTED / "torch_played")}
    if wrong:
        machine["PLAYED_TORCH_ADDS"] = "1"
    chosen = ("--engine", machine.pop("PJRT_ARENA_ENGINE"), "--size", "tiny", "--only", "n", "--backends", "arena_tpu")
    run = run_script(*chosen, "--out", str(tmp_path / "out"), **machine)
    (record,) = json.loads((tmp_path / "out" / "results.json").read_text())["records"]
    if wrong:
        assert run.returncode == 1 and record["error"] == "AssertionError: torch reads other values", record
    else:
        assert record["status"] == "done" and record["result"]["arrays_beside_capture"] > 0, record
        text = (tmp_path / "out" / "results.md").read_text()
        assert "| arena tpu | played | " in text


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
    # Where every thread was, shortly before the end.
    stacks = "\n".join(hung["log"])
    assert "in waits_elsewhere" in stacks and "in hangs" in stacks and hung["log"][0] == "waiting"
    assert "again" not in hung
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


def test_what_there_was_no_time_for_is_a_line_and_a_command():
    records = [
        {"key": f"{part}|x", "part": part, "status": status} | ({"again": True} if again else {})
        for part, status, again in (("a", "done", 0), ("i", "skipped", 1), ("d", "timeout", 1), ("j", "skipped", 0))
    ]
    given = ["--out", "a folder", "--add", "--only", "abdij", "--rounds=1"]
    assert _rest(records, given) == [
        (
            "2 measurements of parts d, i were left out for time; the rest: "
            "run.sh --out 'a folder' --rounds=1 --add --missing --only di"
        )
    ]
    assert _rest(records[:1], given) == []
    planned = [Job("b", name, TPU, 1) for name in ("done", "cut", "new")]
    before = [{"key": planned[0].name}, {"key": planned[1].name, "again": True}]
    assert _wanted(planned, before, missing=True) == planned[1:] and _wanted(planned, before, missing=False) == planned


def test_what_is_kept_of_the_callers_environment(monkeypatch):
    for name in ("PJRT_ARENA_LOG", "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_X64", "PJRT_ARENA_COMPACT"):
        monkeypatch.setenv(name, "debug")
    ours, theirs = (backends("cuda")[name].environment("97%", None, "") for name in ("arena_tpu", "jax_bfc"))
    assert ours["PJRT_ARENA_LIMIT"] == "97%" and ours["PJRT_ARENA_LOG"] == "debug"
    for each in (ours, theirs):
        assert each["JAX_COMPILATION_CACHE_DIR"] == "debug" and not {"JAX_ENABLE_X64", "PJRT_ARENA_COMPACT"} & set(each)
    monkeypatch.delenv("PJRT_ARENA_LOG")
    assert backends("cuda")["arena_tpu"].environment(None, None, "")["PJRT_ARENA_LOG"] == "info"


def test_the_sanitizer_part_has_a_time_of_its_own(planted, monkeypatch, tmp_path):
    """A simulated sanitizer: it runs what it is given and says that there are three errors."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        '#!/bin/sh\necho "$@"\nwhile [ "$1" != "--print-limit" ]; do shift; done\nshift 2\n'
        '"$@"\necho "========= ERROR SUMMARY: 3 errors"\nexit 9\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
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


def test_both_sides_get_the_same_memory():
    cuda = backends("cuda")
    runner = Runner("full", 1.0, 2, 100, lambda records: None)
    runner.records = [
        {
            "part": "a",
            "measure": "gpu.machine.about",
            "backend": "jax_bfc",
            "result": {"memory_stats": {"bytes_limit": 75}},
        },
        {"part": "c", "measure": "gpu.room.fragmented", "backend": "jax_bfc", "result": {"limit": 19}},
    ]
    assert runner._total() == 100
    assert runner._limit(Job("c", "gpu.room.fragmented", cuda["arena_tpu"], 1, limit=20)) == 19
    assert runner._limit(Job("e", "gpu.room.share", cuda["arena_tpu"], 1, limit=20)) == 20
    theirs = cuda["jax_cuda_async"].environment(20, 0.2, "")
    assert (theirs["JAX_PLATFORMS"], theirs["XLA_PYTHON_CLIENT_ALLOCATOR"]) == ("cuda,cpu", "cuda_async")
    assert float(theirs["XLA_CLIENT_MEM_FRACTION"]) == 0.2 and "PJRT_ARENA_LIMIT" not in theirs
    ours = cuda["arena_growing"].environment(19, 0.2, "")
    assert (ours["JAX_PLATFORMS"], ours["PJRT_ARENA_ENGINE"], ours["PJRT_ARENA_LIMIT"]) == ("arena,cpu", "cuda", "19")
    assert "XLA_CLIENT_MEM_FRACTION" not in ours


def test_the_plan_for_a_gpu():
    columns = list(backends("cuda").values())
    planned = jobs("cuda", SIZES["full"], columns, 3)
    assert len({job.key for job in planned}) == len(planned)
    assert {job.part for job in planned} == set(PARTS)
    # The first round of every allocator and strategy comes before any second one, and rounds start with another.
    rounds = [(job.round, job.backend.name) for job in planned if job.part == "d"]
    assert [number for number, _ in rounds] == sorted(number for number, _ in rounds)
    assert all({name for at, name in rounds if at == number} == {each.name for each in columns} for number in (1, 2, 3))
    assert len({rounds[0][1], rounds[8][1], rounds[16][1]}) == 3
    # First the driver, then what is right and what fits, under each strategy; what a run is for fits its budget.
    assert (planned[0].part, planned[0].measure) == ("k", "gpu.driver_facts.measure")
    first = planned[: next(at for at, job in enumerate(planned) if job.part == "d")]
    assert {job.backend.name for job in first if job.part == "b"} == {each.name for each in columns if each.ours}
    assert {job.part for job in first} == set("kabcelfmn")
    assert sum(job.seconds for job in first if job.part in "kabce") <= 540


def test_tables_name_what_failed():
    report = {
        "started": "2026-01-01T00:00:00+00:00",
        "seconds": 60.0,
        "settings": {"platform": "cuda", "size": "full", "budget": 1500, "backends": {"jax_bfc": "JAX bfc"}},
        "machine": {
            "cpu": "a CPU",
            "cpus": 16,
            "memory_bytes": 1 << 37,
            "python": "3.12",
            "packages": {"jax": "0.11.2"},
            "gpus": [{"name": "NVIDIA H200", "driver_version": "580", "memory.total": "143771 MiB"}],
        },
        "records": [
            {
                "part": "d",
                "measure": "gpu.steps.train",
                "backend": "jax_bfc",
                "values": {},
                "flags": "",
                "round": number,
                "status": "done",
                "result": {
                    model: {"seconds": {"median": 0.01 * number}, "donated": model != "mlp"} for model in tables.TITLES
                },
            }
            for number in (1, 2, 3)
        ]
        + [
            {
                "part": "i",
                "measure": "gpu.small.many_kernels",
                "backend": "jax_bfc",
                "values": {},
                "flags": "--xla_x=",
                "round": 1,
                "status": "timeout",
                "error": "ended after 120 s; it printed nothing",
            }
        ],
    }
    text = tables.markdown(report)
    assert text.startswith("# pjrt-arena on NVIDIA H200\n") and "(!)" not in text
    warned = {**report["records"][0], "warned": ["WARN: look here"]}
    text = tables.markdown({**report, "records": [warned, {**warned, "round": 2}, *report["records"][2:]]})
    assert "|  | JAX bfc (!) |" in text and "\n- (!) JAX bfc, `steps.train`: WARN: look here\n" in text
    text = tables.markdown(report)
    assert "| MLP | **20.0 ms ±25 %, 1.00x** |" in text and "| transformer, donated |" in text
    assert "- JAX bfc, `small.many_kernels` `--xla_x=`: took too long: ended after 120 s; it printed nothing\n" in text
    assert "Driver 580, 143771 MiB." in text
    other = {**report["records"][-1], "backend": "arena_tpu"}
    text = tables.markdown({**report, "records": [*report["records"], other]})
    broken = [{**report["records"][0], "result": {}}, report["records"][-1]]
    assert "could not be made: KeyError: 'transformer'" in tables.markdown({**report, "records": broken})
    assert text.count("ended after 120 s") == 1 and "- JAX bfc, arena_tpu, `small.many_kernels` " in text
    # One model that fails on one of two backends, in one of its rounds or in all.
    for record in report["records"][:2]:
        record["result"]["convolution"] = {"error": "JaxRuntimeError: no cuDNN"}
    ours = {**report["records"][0], "backend": "arena_tpu", "result": dict(report["records"][2]["result"])}
    ours["result"]["transformer"] = {"error": "JaxRuntimeError: too large"}
    ours["result"]["convolution"] = {"error": "JaxRuntimeError: no cuDNN"}
    report["settings"]["backends"]["arena_tpu"] = "arena tpu"
    text = tables.markdown({**report, "records": [*report["records"], ours]})
    assert "| transformer, donated | **20.0 ms ±25 %, 1.00x** | failed |" in text
    assert "- JAX bfc, arena tpu, convolution net: JaxRuntimeError: no cuDNN\n" in text and text.count("no cuDNN") == 1
    assert "- arena tpu, transformer: JaxRuntimeError: too large\n" in text


def test_a_model_that_fails_costs_no_other_its_figures(monkeypatch):
    from gpu import steps

    def one(name, sizes, donate):
        if name in failing:
            raise ValueError("no cuDNN\nand more")
        return {"donated": donate}

    monkeypatch.setattr(steps, "_one", one)
    names = list(steps.MODELS)
    failing = names[:1]
    assert steps.train(SIZES["tiny"], names[1:2]) == {
        names[0]: {"error": "ValueError: no cuDNN"},
        names[1]: {"donated": True},
        names[2]: {"donated": False},
    }
    failing = names
    with pytest.raises(RuntimeError, match=r"^ValueError: no cuDNN$"):
        steps.train(SIZES["tiny"], [])


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
