"""The GPU script without its processes: what it plans, where it keeps what, and how its tables read."""

from __future__ import annotations

import contextlib
import os

import pytest
from gpu import logs, progress, tables
from gpu.__main__ import _rest, _share_cache, _wanted
from gpu.backends import backends
from gpu.clock import repeats
from gpu.plan import PARTS, Job, jobs
from gpu.runner import Runner
from gpu.sizes import SIZES

TPU = backends("cpu")["arena_tpu"]


def test_what_there_was_no_time_for_is_a_line_and_a_command():
    records = [
        {"key": f"{part}|x", "part": part, "status": status} | ({"again": True} if again else {})
        for part, status, again in (("a", "done", 0), ("i", "skipped", 1), ("d", "timeout", 1), ("j", "skipped", 0))
    ]
    given = ["--out", "a folder", "--add", "--only", "abdij", "--rounds=1"]
    assert _rest(records, given) == [
        (
            "2 measurements of parts d, i are to be had yet; the rest: "
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
    # The driver knows better; without either, what needs it is to be run again.
    told = {"facts": [{"name": "device", "numbers": {"total": 120}}, {"name": "chunks", "numbers": {}}]}
    runner.records.append({"part": "k", "measure": "gpu.driver_facts.measure", "backend": "driver", "result": told})
    assert runner._total() == 120
    unknown = Runner("full", 1.0, 2, 100, lambda records: None)
    skipped = unknown._one(Job("c", "gpu.room.fragmented", cuda["jax_bfc"], 1, limit=20))
    assert skipped["status"] == "skipped" and skipped["again"] and "not known" in skipped["error"]
    assert unknown._one(Job("d", "planted.none", cuda["jax_bfc"], 200))["error"].startswith("it takes about")
    assert runner._limit(Job("c", "gpu.room.fragmented", cuda["arena_tpu"], 1, limit=20)) == 19
    assert runner._limit(Job("e", "gpu.room.share", cuda["arena_tpu"], 1, limit=20)) == 20
    theirs = cuda["jax_cuda_async"].environment(20, 0.2, "")
    assert (theirs["JAX_PLATFORMS"], theirs["XLA_PYTHON_CLIENT_ALLOCATOR"]) == ("cuda,cpu", "cuda_async")
    assert float(theirs["XLA_CLIENT_MEM_FRACTION"]) == 0.2 and "PJRT_ARENA_LIMIT" not in theirs
    ours = cuda["arena_growing"].environment(19, 0.2, "")
    assert (ours["JAX_PLATFORMS"], ours["PJRT_ARENA_ENGINE"], ours["PJRT_ARENA_LIMIT"]) == ("arena,cpu", "cuda", "19")
    assert "XLA_CLIENT_MEM_FRACTION" not in ours


def rounds_begin(planned: list[Job], number: int) -> int:
    return next(at for at, job in enumerate(planned) if job.part == "d" and job.round == number)


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
    # compute-sanitizer, and its control, before training steps are repeated; every allocator dispatches.
    names = {part: [job.backend.name for job in planned if job.part == part] for part in PARTS}
    assert max(at for at, job in enumerate(planned) if job.part == "j") < rounds_begin(planned, 2)
    # One of those may take longer than a check takes by itself, but not longer than the process.
    assert all(60 < job.values["longest"] < 2 * job.seconds for job in planned if job.part == "j")
    assert names["j"] == ["arena_tpu", "arena_platform"] and names["h"] == [each.name for each in columns]
    assert names["n"] == ["jax_bfc", "arena_tpu", "arena_growing"]
    assert {*names["g"]} == {"jax_bfc", "arena_preallocate", "arena_tpu"}
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
                    model: {
                        "seconds": {"median": 0.01 * number, "q1": 0.01, "q3": 0.012},
                        "donated": model != "mlp",
                    }
                    for model in tables.TITLES
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
    assert "| MLP | **20.0 ms ±25.0 %, 1.000x** |" in text and "| transformer, donated |" in text
    assert "- JAX bfc, `small.many_kernels` `--xla_x=`: took too long: ended after 120 s; it printed nothing\n" in text
    assert "Driver 580, 143771 MiB." in text
    other = {**report["records"][-1], "backend": "arena_tpu"}
    text = tables.markdown({**report, "records": [*report["records"], other]})
    broken = [{**report["records"][0], "result": None}, report["records"][-1]]
    assert "could not be made: AttributeError: " in tables.markdown({**report, "records": broken})
    assert text.count("ended after 120 s") == 1 and "- JAX bfc, arena_tpu, `small.many_kernels` " in text
    # One model that fails on one of two backends, in one of its rounds or in all.
    for record in report["records"][:2]:
        record["result"]["convolution"] = {"error": "JaxRuntimeError: no cuDNN"}
    ours = {**report["records"][0], "backend": "arena_tpu", "result": dict(report["records"][2]["result"])}
    ours["result"]["transformer"] = {"error": "JaxRuntimeError: too large"}
    ours["result"]["convolution"] = {"error": "JaxRuntimeError: no cuDNN"}
    report["settings"]["backends"]["arena_tpu"] = "arena tpu"
    text = tables.markdown({**report, "records": [*report["records"], ours]})
    assert "| transformer, donated | **20.0 ms ±25.0 %, 1.000x** | failed |" in text
    assert "- JAX bfc, arena tpu, convolution net: JaxRuntimeError: no cuDNN\n" in text and text.count("no cuDNN") == 1
    assert "- arena tpu, transformer: JaxRuntimeError: too large\n" in text
    # One hundredth can be told; the ratio is to JAX's own, also where ours is faster; one round has its readings.
    ours["result"] = {"mlp": {"seconds": {"median": 0.00994, "q1": 0.0099, "q3": 0.01}}}
    ended = {**ours, "status": "timeout", "error": "ended", "result": {"ended_at": "transformer"}}
    text = tables.markdown(
        {**report, "records": [report["records"][2] | {"round": 1}, report["records"][0], ended, ours]}
    )
    assert "| MLP | 20.0 ms ±25.0 %, 1.000x | **9.94 ms ±0.5 %, 0.497x** |" in text, text
    theirs = {**report["records"][0], "result": {"mlp": {"seconds": {"median": 0.01, "q1": 0.01, "q3": 0.01}}}}
    assert "| **9.94 ms ±0.5 %, 0.994x** |" in tables.markdown({**report, "records": [theirs, ours]})
    other = tables.markdown({**report, "records": [{**theirs, "library": "abc"}], "stopped": "stopped: why\nand a log"})
    assert "another library: sha256 abc" in other and "\n\n**stopped: why**\n" in other


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


def test_a_model_that_takes_too_long_costs_no_other_its_figures(monkeypatch):
    from gpu import steps

    monkeypatch.setattr(steps, "_one", lambda name, sizes, donate: {"donated": donate})
    begun = []

    def step(name, left, answer, seconds):
        begun.append((name, left, sorted(answer), seconds))
        return contextlib.nullcontext()

    monkeypatch.setattr(progress, "step", step)
    first, second, third = steps.MODELS
    # As the runner asks for what is left once the first was ended.
    assert steps.train(SIZES["tiny"], [first]) == {name: {"donated": name == first} for name in steps.MODELS}
    assert set(steps.train(SIZES["tiny"], [], names=begun[0][1])) == {second, third}
    assert begun[:3] == [
        (first, [second, third], [], steps.LONGEST),
        (second, [third], [first], steps.LONGEST),
        (third, [], sorted([first, second]), steps.LONGEST),
    ]


def test_a_reading_of_steps_is_long_enough():
    assert (repeats(0.5, 0.2), repeats(0.015, 0.2), repeats(0.0, 0.0)) == (1, 14, 1)


def test_the_cache_is_one_for_all_and_the_callers_own_if_there_is_one(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
    _share_cache("abc")
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "mine"
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    _share_cache("abc")
    kept = backends("cuda")["jax_bfc"].environment(None, None, "")["JAX_COMPILATION_CACHE_DIR"]
    assert kept == f"{tmp_path}/pjrt-arena-gpu/abc"
    # Programs of another library are others.
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    _share_cache("def")
    assert os.environ["JAX_COMPILATION_CACHE_DIR"].endswith("/def")


def test_what_a_log_tells_of_a_capture():
    assert logs.telling("INTERNAL: Callback registry is closed.") == ["Callback registry is closed"]
    for line in (
        "cuMemCreate gave 900, x",
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "CUDA error: operation not permitted when stream is capturing",
    ):
        assert logs.telling(line) == ["CUDA error 900"], line
    assert logs.telling("step 900 of 1000, error 9001") == []
