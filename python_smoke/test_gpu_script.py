"""`gpu/run.sh`: a very small rehearsal on the CPU engine, and what becomes of measurements that go wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from gpu import tables
from gpu.backends import Backend, backends
from gpu.plan import PARTS, Job, jobs
from gpu.runner import Runner
from gpu.sizes import SIZES
from harness import ROOT, clean_environment

SCRIPT = ROOT / "python_smoke" / "gpu" / "run.sh"
TPU = backends("cpu")["arena_tpu"]


def run_script(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with this Python and the library under test."""
    from jax_plugins.arena import _library

    environment = clean_environment(PYTHONPATH=None, PYTHON=sys.executable)
    environment["PJRT_ARENA_LIBRARY_PATH"] = str(_library.locate())
    environment.update(settings)
    return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.arena
def test_rehearsal(tmp_path):
    chosen = ("--platform", "cpu", "--size", "tiny", "--backends", "arena_tpu", "--rounds", "1", "--out", str(tmp_path))
    first = run_script(*chosen, "--only", "acdef")
    assert first.returncode == 0, first.stdout + first.stderr
    assert run_script(*chosen, "--only", "ghj", "--add").returncode == 0
    report = json.loads((tmp_path / "results.json").read_text())
    assert report["schema"] == "pjrt-arena-gpu/1" and report["settings"]["size"] == "tiny"
    results = {}
    for record in report["records"]:
        results.setdefault(record["part"], []).append(record.get("result"))
        assert record["status"] == ("skipped" if record["part"] == "j" else "done"), record
    assert set(results) == set("acdefghj")
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
    # Half of the arrays had to move into the holes of the others, whichever way they lie.
    for compacted in results["f"]:
        assert compacted["bytes"] > 0 and compacted["largest_free_after"] > 2 * compacted["largest_free_before"]
    (transfers,) = results["g"]
    assert [row["bytes"] for row in transfers["rows"]] == list(SIZES["tiny"].copies)
    (small,) = results["h"]
    assert small["live"]["arrays"] == SIZES["tiny"].arrays and small["dispatch"]["one"]["median"] > 0

    text = (tmp_path / "results.md").read_text()
    assert text.startswith("# pjrt-arena on a CPU: a rehearsal\n")
    for part in "acdefghj":
        assert f"\n## {PARTS[part]}\n" in text
    assert "\n| arena tpu | 24.0 MiB | " in text and " | served | intact |\n" in text
    assert "- arena tpu, `checks.run`: was left out: it is for GPUs\n" in text
    for table in text.split("\n\n"):
        if table.startswith("|"):
            assert len({line.count(" | ") for line in table.splitlines()}) == 1, table


PLANTED = """
    import atexit, os, time

    def good(sizes, add):
        print("a line", flush=True)
        strategy, flags = (os.environ.get(name) for name in ("PJRT_ARENA_STRATEGY", "XLA_FLAGS"))
        return {"sum": add + sizes.steps, "strategy": strategy, "flags": flags}

    def raises(sizes):
        raise ValueError("not today\\nnor tomorrow")

    def crashes(sizes):
        print("before the end", flush=True)
        os.abort()

    def ends_badly(sizes):
        atexit.register(os.abort)
        return {"all": "well"}

    def hangs(sizes):
        print("waiting", flush=True)
        time.sleep(600)
"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """Measurements that go wrong in every way, in a module that children can import."""
    (tmp_path / "planted.py").write_text(textwrap.dedent(PLANTED))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'python_smoke'}")
    # As a caller might have them.
    monkeypatch.setenv("PJRT_ARENA_STRATEGY", "growing")
    monkeypatch.setenv("XLA_FLAGS", "--nonsense")


def run_jobs(*wanted: Job, budget: float = 300, before: list | None = None):
    saved = []
    runner = Runner("tiny", 1.0, budget, lambda records: saved.append(len(records)))
    runner.run(list(wanted), before or [])
    assert saved == list(range(saved[0], saved[0] + len(wanted)))
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
    assert missing["status"] == "failed" and "missing" in missing["error"]
    assert good["status"] == "done"
    assert good["result"] == {"sum": 5, "strategy": "tpu", "flags": "--xla_given"}
    assert "planted.crashes on arena_tpu: failed, ended by SIGABRT" in capsys.readouterr().out


def test_what_does_not_fit_the_budget_is_left_out(planted):
    long, short = run_jobs(
        Job("b", "planted.good", TPU, 500, {"add": 1}), Job("b", "planted.good", TPU, 20, {"add": 2})
    )
    assert long["status"] == "skipped" and "500 s" in long["error"]
    assert short["result"]["sum"] == 3


def test_a_run_that_is_added_replaces_its_own_rows_only(planted):
    before = run_jobs(Job("b", "planted.good", TPU, 20, {"add": 1}), Job("b", "planted.good", TPU, 20, {"add": 2}))
    after = run_jobs(Job("b", "planted.good", TPU, 20, {"add": 2}, limit=1 << 20), before=before)
    assert [(record["values"], record["limit"]) for record in after] == [({"add": 1}, None), ({"add": 2}, 1 << 20)]


def test_both_sides_get_the_same_memory():
    cuda = backends("cuda")
    runner = Runner("full", 1.0, 100, lambda records: None)
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
    # What is worth most fits the default budget.
    assert sum(job.seconds for job in planned if job.part in "abcg" or (job.part, job.round) == ("d", 1)) < 1000


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
    assert text.startswith("# pjrt-arena on NVIDIA H200\n")
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
    with pytest.raises(RuntimeError, match="^ValueError: no cuDNN$"):
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
    "arguments, settings, said",
    [
        ((), {"PJRT_ARENA_LIBRARY_PATH": "/no/such.so"}, "/no/such.so is not a file"),
        ((), {"PYTHON": "/no/such/python"}, "/no/such/python has no jax"),
        (("--only", "az"), {}, "--only=az: z is none of"),
        (("--platform", "cpu", "--backends", "arena_fast"), {}, "arena_fast is none of cpu, arena_preallocate"),
        (("--budget", "0"), {}, "must be above 0"),
        (("--engine", "/no/such.so"), {}, "--engine=/no/such.so: is not a file"),
    ],
    ids=["library", "python", "part", "backend", "budget", "engine"],
)
def test_bad_arguments_are_a_sentence(arguments, settings, said, tmp_path):
    run = run_script(*arguments, "--out", str(tmp_path / "out"), **settings)
    assert run.returncode == 2 and said in run.stderr, run.stderr
    assert not (tmp_path / "out").exists()
    assert os.access(SCRIPT, os.X_OK) and Path(SCRIPT).read_text().startswith("#!/bin/sh\n")
