"""`python_smoke/gpu`: small rehearsals, on the CPU engine and on a simulated GPU; what becomes of what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fake_gpu
import pytest
from gpu import driver_facts, jobs, process, report
from gpu.backends import backends
from gpu.sizes import MIB, SIZES
from harness import ROOT, clean_environment
from user_loops import LOOPS

SCRIPT = ROOT / "python_smoke" / "gpu"
PLANTED = SCRIPT / "for_tests"
simulated = pytest.mark.skipif(
    not fake_gpu.is_built(), reason="the GPU for tests is built by cargo, beside the library"
)

pytestmark = pytest.mark.arena


def run_script(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with this Python and the library under test, from a folder that has nothing."""
    from pjrt_arena import _library

    environment = clean_environment(PYTHONPATH=settings.pop("PYTHONPATH", None))
    environment |= {"PJRT_ARENA_LIBRARY_PATH": str(_library.locate())} | settings
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [sys.executable, str(SCRIPT), *arguments],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


def rehearse(out: Path, *arguments: str, status: int = 0, **settings: str) -> tuple[dict, str]:
    """A run of size tiny: its report, and its page."""
    run = run_script("--size", "tiny", "--out", str(out), *arguments, **settings)
    page = (out / "results.md").read_text() if (out / "results.md").is_file() else ""
    assert run.returncode == status, run.stdout + run.stderr + page
    assert "could not be made" not in page, page
    # What comes back from a machine that is lent has to be small.
    assert all(path.stat().st_size < 16 * MIB for path in out.iterdir())
    return json.loads((out / "results.json").read_text()), page


def on_simulated_gpu(**settings: str) -> tuple[tuple[str, ...], dict[str, str]]:
    machine = fake_gpu.variables(256, gpus=1, latency_us=20, era=114) | {"FAKE_CUDA_SEGMENT": "2MiB"} | settings
    return ("--engine", machine.pop("PJRT_ARENA_ENGINE")), machine


def well_formed(page: str) -> None:
    for table in page.split("\n\n"):
        if table.startswith("|"):
            assert len({line.count(" | ") for line in table.splitlines()}) == 1, table


def test_rehearsal_on_the_cpu_engine(tmp_path):
    told, page = rehearse(
        tmp_path,
        *("--platform", "cpu", "--backends", "cpu,arena_tpu", "--checks", "arithmetic,donation,callbacks"),
        *("--only", "checks,fragmented,usable,compaction"),
    )
    assert told["schema"] == "pjrt-arena-gpu/2" and told["size"] == "tiny"
    assert all(record["status"] == "done" for record in told["records"]), told["records"]
    assert {record["part"] for record in told["records"]} >= {"checks", "fragmented", "usable", "compaction"}
    assert page.splitlines()[2] == "- All that was asked of the arena went well."
    (fragmented,) = [record["result"] for record in told["records"] if record["part"] == "fragmented"]
    assert fragmented["served"] and fragmented["intact"]
    assert "| JAX's CPU | 3 of 3 |" in page and "| arena tpu | 3 of 3 |" in page
    assert {path.name for path in tmp_path.iterdir()} >= {"facts.txt", "logs.tgz", "results.json", "results.md"}
    well_formed(page)


@simulated
def test_on_a_simulated_gpu(tmp_path):
    """What the CPU engine has no part in: the driver, scratch and arrays of one limit, chunks, the last bytes."""
    engine, machine = on_simulated_gpu()
    told, page = rehearse(
        tmp_path,
        *engine,
        *(
            "--backends",
            "arena_preallocate,arena_growing,arena_tpu",
            "--checks",
            "arithmetic,donation,graphs,torch_arrays",
        ),
        *("--only", "facts,checks,scratch,threads,refusals,compaction,loops,nearly_all"),
        **machine,
    )
    results: dict[str, list] = {}
    for record in told["records"]:
        results.setdefault(record["measure"], []).append(record.get("result"))
        assert record["status"] == "done", record
    facts = {fact["name"]: fact for fact in results["gpu.driver_facts.measure"][0]["facts"]}
    assert set(facts) == set(driver_facts.FACTS) and all(fact["expected"] and fact["found"] for fact in facts.values())
    assert all(facts[name]["holds"] for name in ("device", "kinds_of_memory", "most_of_the_memory")), facts
    for checked in results["gpu.checks.run"]:
        # There is no PyTorch.
        assert (checked["passed"], checked["left_out"]) == (3, ["torch_arrays: there is no torch"])
    (scratch,) = results["gpu.room.scratch"]
    assert scratch["scratch_bytes"] > scratch["limit"] // 5
    assert all(threads["checked"] for threads in results["gpu.threads.run"])
    for device in results["gpu.room.nearly_all"]:
        assert device["limit"] > 0.96 * 256 * MIB and device["in_use"] > 0.85 * device["limit"]
        assert 0 < device["free_bytes"] < 256 * MIB - device["in_use"]
    for compacted in results["gpu.room.compaction"]:
        assert compacted["bytes"] > 0 and compacted["largest_free_after"] > 2 * compacted["largest_free_before"]
    trimmed = results["gpu.room.compaction"][2]
    assert trimmed["given_back"] > 0 and trimmed["made_bytes"] <= trimmed["bytes"] // 2
    assert all(loops.keys() == LOOPS.keys() for loops in results["gpu.loops.run"])
    assert "nvidia-smi is not installed" in page
    well_formed(page)


#: What goes wrong: settings, the check, and what the page has to say.
PLANTS = {
    "a check that hangs": ("planted.hangs", "`planted.hangs`; last line: waiting"),
    "a process that is killed": ("planted.is_killed", "ended by SIGKILL in `planted.is_killed`"),
    "a process that XLA ends": ("planted.aborts", "last line: cuda_context.cc:102] Not able to get the device_ordinal"),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_what_goes_wrong_is_named_and_costs_nobody_else_anything(plant, tmp_path):
    check, said = PLANTS[plant]
    record, log = job_of(
        tmp_path, "gpu.checks.run", {"ours": True, "names": ["planted.warns", check, "donation"], "longest": 8}
    )
    assert said in record["error"], record
    assert record["result"]["ended_at"] == check and record["left"] == ["donation"] and record["result"]["passed"] == 1
    if plant == "a check that hangs":
        # Where every thread was, before it was ended.
        assert "in waits_elsewhere" in log and "in hangs" in log and record["status"] == "timeout"
    record |= {"part": "checks", "ours": True, "title": "arena tpu"}
    assert report.states(record)[check] == record["error"]


def test_a_step_that_fails_costs_the_others_nothing(tmp_path):
    """Where the measurement itself raises, what it had is kept, and the next process goes on behind it."""
    record, _ = job_of(tmp_path, "planted.fails_in_the_middle", {})
    assert record["status"] == "failed" and record["error"] == "ValueError: no figure", record
    assert record["result"] == {"first": 1, "ended_at": "second"} and record["left"] == ["third"]


def job_of(folder: Path, measure: str, values: dict, seconds: float = 60) -> tuple[dict, str]:
    tpu = backends("cpu")["arena_tpu"]
    job = jobs.Job("wave", "checks", measure, tpu, seconds, values)
    environment = tpu.environment(SIZES["tiny"].limit, None, "") | {
        "PYTHONPATH": os.pathsep.join(map(str, (PLANTED, ROOT / "python_smoke", ROOT / "python")))
    }
    record = process.run(job, environment, "tiny", seconds, folder)
    return record, (folder / record["log"]).read_text()


@simulated
@pytest.mark.parametrize(("check", "passes"), [("wants_platform", "platform"), ("wants_no_mapping", "no mapping")])
def test_what_fails_on_the_arena_is_tried_with_one_thing_off_each(check, passes, tmp_path):
    engine, machine = on_simulated_gpu(PYTHONPATH=str(PLANTED))
    chosen = (
        "--backends",
        "arena_tpu",
        "--only",
        "checks",
        "--checks",
        f"arithmetic,planted.{check}",
        "--budget",
        "200",
    )
    told, page = rehearse(tmp_path, *engine, *chosen, status=1, **machine)
    assert f"**planted.{check}** fails on arena tpu and on none of JAX's allocators: ValueError: " in page, page
    assert f"\n  - it passes with: {passes}\n" in page, page
    assert {record["again"] for record in told["records"] if "again" in record} == set(jobs.FALLBACKS)


@simulated
@pytest.mark.parametrize(
    ("settings", "row", "said"),
    [
        ({"FAKE_CUDA_FAIL": "cuMemSetAccess:1:999"}, "kinds of memory", "memory of GPU 0 is made without RDMA"),
        ({"FAKE_CUDA_POOLS": "0"}, "device", "memory pools"),
    ],
    ids=["mapping", "pools"],
)
def test_a_driver_that_lacks_something_is_a_row_that_says_no_and_a_warning(settings, row, said, tmp_path):
    engine, machine = on_simulated_gpu(**settings)
    chosen = ("--backends", "arena_tpu", "--only", "driver,checks", "--checks", "arithmetic")
    _, page = rehearse(tmp_path, *engine, *chosen, **machine)
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {row} |")]
    assert line.endswith("| **no** |"), page
    with __import__("tarfile").open(tmp_path / "logs.tgz") as tar:
        log = "".join(tar.extractfile(each).read().decode() for each in tar.getmembers() if "checks" in each.name)
    assert said in log, log


def test_jax_that_cannot_be_imported_is_what_is_wrong(tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "jax.py").write_text("raise ImportError('libfoo.so.3 is missing')\n")
    told, page = rehearse(tmp_path / "out", "--platform", "cpu", "--only", "checks", status=1, PYTHONPATH=str(broken))
    assert not told["records"] and "**`import jax` fails**" in page and "libfoo.so.3 is missing" in page


@simulated
def test_an_nvidia_smi_that_hangs_costs_a_few_seconds(tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nsleep 600\n")
    tool.chmod(0o755)
    engine, machine = on_simulated_gpu(PATH=f"{tmp_path}:{os.environ['PATH']}")
    chosen = ("--backends", "arena_tpu", "--only", "driver,checks", "--checks", "arithmetic")
    _, page = rehearse(tmp_path / "out", *engine, *chosen, **machine)
    assert "- nvidia-smi: Command '" in page and "timed out" in page, page
    assert "timed out" in (tmp_path / "out" / "facts.txt").read_text()


def test_one_that_is_killed_leaves_no_child(tmp_path):
    """By a signal that nobody can catch; the child would hold the GPU's memory."""
    code = f"""
import sys
sys.path[:0] = {[str(ROOT / "python_smoke"), str(ROOT / "python")]!r}
import test_gpu_script as script
from pathlib import Path
script.job_of(Path({str(tmp_path)!r}), "gpu.checks.run", {{"ours": True, "names": ["planted.hangs"]}})
"""
    runner = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    children = Path(f"/proc/{runner.pid}/task/{runner.pid}/children")
    (found, *_) = wait_for(lambda: children.read_text().split())
    child = Path(f"/proc/{found}")
    # It is held once it has begun to run Python; its stack of modules is loaded then.
    wait_for(lambda: b"gpu.child" in (child / "cmdline").read_bytes())
    time.sleep(1)
    assert child.exists() and os.getsid(int(found)) == os.getsid(0)
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


def test_places_are_no_more_than_there_are():
    places, order = process.Places(10), []
    with places.of(6), places.of(4):
        order.append("both")
    # What is wanted is more than there is, and has all of it when nobody else has any.
    with places.of(30):
        order.append("all")
    assert order == ["both", "all"]


def test_the_plan_for_a_gpu():
    columns = [backend for name, backend in backends("cuda").items() if name not in ("jax_vmm", "jax_platform")]
    planned = jobs.jobs("cuda", SIZES["full"], columns)
    assert len({(job.part, job.title, job.measure) for job in planned}) == len(planned)
    assert {job.part for job in planned} == set(jobs.PARTS)
    assert {job.backend.name for job in planned if job.part == "checks"} == {backend.name for backend in columns}
    stages = [job.stage for job in planned]
    assert stages == sorted(stages, key=jobs.STAGES.index)
    # A call of ten minutes: the wave shares the device, the rest has it for itself.
    wave = [job for job in planned if job.stage == "wave"]
    together = sum(job.seconds * ((job.limit or 0) + (1 << 30)) for job in wave) / (75 << 30)
    alone = sum(job.seconds for job in planned if job.stage != "wave")
    assert max(together, *(job.seconds for job in wave)) + alone < 540


def test_what_is_kept_of_the_callers_environment(monkeypatch):
    for name in ("PJRT_ARENA_LOG", "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_X64", "PJRT_ARENA_COMPACT"):
        monkeypatch.setenv(name, "debug")
    ours, theirs = (backends("cuda")[name].environment(19, 0.2, "") for name in ("arena_tpu", "jax_cuda_async"))
    assert ours["PJRT_ARENA_LIMIT"] == "19" and ours["PJRT_ARENA_LOG"] == "debug"
    for each in (ours, theirs):
        assert each["JAX_COMPILATION_CACHE_DIR"] == "debug" and not {"JAX_ENABLE_X64", "PJRT_ARENA_COMPACT"} & set(each)
    assert (theirs["JAX_PLATFORMS"], theirs["XLA_PYTHON_CLIENT_ALLOCATOR"]) == ("cuda,cpu", "cuda_async")
    assert float(theirs["XLA_CLIENT_MEM_FRACTION"]) == 0.2 and "PJRT_ARENA_LIMIT" not in theirs


def test_what_fails_on_jaxs_own_allocators_is_not_the_arenas():
    def record(ours: bool, **failed: str) -> dict:
        told = {
            "failed": [{"name": name, "error": error} for name, error in failed.items()],
            "seconds": dict.fromkeys("abc", 1),
        }
        return {"part": "checks", "ours": ours, "status": "done", "title": "x", "result": told}

    records = [record(False, a="no"), record(True, a="no", b="wrong"), record(True, b="wrong", c="wrong")]
    assert report.broken(records) == {"b": records[1], "c": records[2]}
    crashed = {"part": "checks", "ours": True, "status": "failed", "title": "x", "error": "ended by SIGSEGV"}
    assert set(report.broken([crashed])) == {"the start"}


@pytest.mark.parametrize(
    ("arguments", "settings", "said"),
    [
        ((), {"PJRT_ARENA_LIBRARY_PATH": "/no/such.so"}, "/no/such.so is not a file"),
        (("--only", "driver,zebra"), {}, "--only=zebra: none of facts, wave, quiet, driver"),
        (
            ("--platform", "cpu", "--backends", "arena_fast"),
            {},
            "--backends=arena_fast: none of cpu, arena_preallocate",
        ),
        (("--budget", "0"), {}, "must be above 0"),
        (("--engine", "/no/such.so"), {}, "--engine=/no/such.so: is not a file"),
    ],
    ids=["library", "part", "backend", "budget", "engine"],
)
def test_bad_arguments_are_a_sentence(arguments, settings, said, tmp_path):
    run = run_script(*arguments, "--out", str(tmp_path / "out"), **settings)
    assert run.returncode == 2 and said in run.stderr, run.stderr
    assert not (tmp_path / "out").exists()
