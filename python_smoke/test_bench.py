"""The benchmark: the guard finds a planted slowdown and nothing else, tables and chart say what was measured, and the
whole runs, tiny, in processes of its own."""

import copy
import json
import os
import re
import shutil
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from bench import chart, guard, limits, results, runner, tables, together, worker
from bench.backends import BACKENDS
from harness import run_python

MIB = 1 << 20
#: Five rounds as a busy machine gives them.
SCATTER = (1.0, 1.04, 0.97, 1.31, 1.02)
FLOORED = {"add_16"}


def made(seconds: dict, peaks: dict | None = None, failures: dict | None = None) -> dict:
    """A report of `seconds[program][backend]`, a list of rounds, as a run would write it."""
    run = results.Run(failures=failures or {})
    for program, backends in seconds.items():
        for backend, rounds in backends.items():
            for number, time in enumerate(rounds):
                peak = (peaks or {}).get((program, backend), 200 * MIB) + number * 4096
                run.add(
                    program,
                    backend,
                    {
                        **worker.quartiles([time]),
                        "fastest": time,
                        "faults": 3.0,
                        "peak_bytes": peak,
                        "peak_data_bytes": peak - 100 * MIB,
                    },
                )
    names = {name for backends in seconds.values() for name in backends}
    programs = [SimpleNamespace(name=name, title=f"title of {name}", floor=name in FLOORED) for name in seconds]
    settings = {"rounds": 5, "quick": False, "started": "", "variables": {}, "seconds": 1.0}
    machine = {**results.machine(), "load_before": 0.5, "load_after": 2.0}
    backends = [backend for name, backend in BACKENDS.items() if name in names]
    return json.loads(json.dumps(results.report(run, programs, backends, settings, machine)))


def scattered(median: float, turn: int = 0) -> list[float]:
    """Five rounds around `median`, in another order for another `turn`."""
    return [median * value for value in SCATTER[turn:] + SCATTER[:turn]]


def usual(**arena: float) -> dict:
    """Twenty programs; those named in `arena` take so many times as long there."""
    names = [f"p{number}" for number in range(20)]
    return {
        name: {
            "builtin": scattered(1e-3 * (number + 1), 0),
            "arena": [value * arena.get(name, 1.0) for value in scattered(5e-4 * (number + 1), number % 5)],
        }
        for number, name in enumerate(names)
    }


def named(old: dict, new: dict, **options) -> list[tuple[str, str, str]]:
    return [(change.program, change.backend, change.kind) for change in guard.compare(old, new, **options).changes]


def test_the_guard_names_a_planted_slowdown_and_nothing_else():
    comparison = guard.compare(made(usual()), made(usual(p7=1.6, p11=1.4)))
    assert [(change.program, change.kind) for change in comparison.bad] == [("p7", "slower"), ("p11", "slower")]
    assert comparison.bad[0].ratio == pytest.approx(1.6)
    assert len(comparison.changes) == 2 and not comparison.warnings
    assert "p7 on arena: slower, 1.60x" in comparison.text()
    # The other way round it is an improvement, which is no reason to fail.
    back = guard.compare(made(usual(p7=1.6)), made(usual()))
    assert not back.bad and [change.kind for change in back.changes] == ["faster"]


def test_the_guard_ignores_noise_and_what_is_too_small_to_matter():
    # The median is 9 % up, but the rounds of both runs lie among each other.
    noisy = [[1.0, 1.1, 0.95, 1.3, 1.02], [1.2, 1.05, 1.01, 1.4, 1.11]]
    steady = [1.0] * 5
    old, new = (made({"p": {"builtin": steady, "arena": rounds}}) for rounds in noisy)
    assert named(old, new) == []
    # Certain, but 2 %: only a smaller threshold names it.
    old, new = (made({"p": {"builtin": steady, "arena": [time] * 5}}) for time in (1.0, 1.02))
    assert named(old, new) == []
    assert named(old, new, threshold=1.01) == [("p", "arena", "slower")]


def test_a_slower_machine_is_not_a_slower_program():
    old = usual()
    slow = {
        name: {backend: [3 * value for value in rounds] for backend, rounds in backends.items()}
        for name, backends in old.items()
    }
    assert named(made(old), made(slow)) == []
    # Without the built-in backend of the same jaxlib there is nothing to measure the machine by.
    other = made(slow)
    other["versions"]["jaxlib"] = "0.0.1"
    comparison = guard.compare(made(old), other)
    assert len(comparison.bad) == 40 and "seconds are compared" in comparison.warnings[0]


def test_the_guard_names_memory_that_grew_and_programs_that_went_missing():
    old = made(usual())
    new = made(usual(), peaks={("p3", "arena"): 240 * MIB})
    assert named(old, new) == [("p3", "arena", "more memory")]
    del new["programs"][5]
    new["failures"] = [{"program": "p5", "backend": "arena", "error": "boom"}]
    new["settings"]["rounds"] = 2
    warnings = guard.compare(old, new).warnings
    assert len(warnings) == 3
    assert "2 round(s)" in warnings[0] and "p5" in warnings[1] and "failed in the new file" in warnings[2]


def test_the_command_ends_with_status_1_where_something_got_slower(tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(made(usual())))
    new.write_text(json.dumps(made(usual(p2=2.0))))
    worse = run_python("-m", "bench", "--compare", str(old), str(new), check=False)
    assert worse.returncode == 1 and "p2 on arena: slower, 2.00x" in worse.stdout
    assert run_python("-m", "bench", "--compare", str(new), str(old)).stdout.endswith(
        "0 worse and 1 better beyond noise\n"
    )
    new.write_text("{}")
    other = run_python("-m", "bench", "--compare", str(old), str(new), check=False)
    assert other.returncode == 1 and "pjrt-arena-bench/1" in other.stderr


@pytest.fixture
def measured() -> dict:
    return made(
        {
            "dispatch": {"builtin": [3e-6] * 5, "bare": [4e-6] * 5, "arena": [4.8e-6] * 5},
            "add_16": {"builtin": [8e-3] * 5, "arena": [2e-3] * 5, "floor": [1.6e-3] * 5, "floor_2": [1.9e-3] * 5},
            "eager": {"builtin": [1e-3] * 5, "bare": [1e-3] * 5, "arena": [9e-4] * 5},
        },
        peaks={("eager", "arena"): 300 * MIB},
        failures={("eager", "bare"): "status 1: boom"},
    )


def test_what_the_bare_engine_computes_is_told_and_does_not_fail_the_run(tmp_path, measured):
    report = tmp_path / "report.json"
    for backend, status in ("bare", 0), ("arena", 1):
        measured["failures"] = [{"program": "eager", "backend": backend, "error": "boom"}]
        report.write_text(json.dumps(measured))
        run = run_python("-m", "bench", "--from", str(report), check=False)
        assert run.returncode == status, run.stderr
        assert f"- FAILED: eager on {backend}: boom" in run.stdout


def test_the_times_beside_a_speed_up_are_those_of_its_round():
    """The medians, 10 and 9 ms, would say that ours is faster; in most rounds it is not."""
    builtin, ours = [8e-3, 10e-3, 14e-3], [9e-3, 12e-3, 7e-3]
    report = made({"sgd": {"builtin": builtin, "bare": [1e-3, 2e-3, 3e-3], "arena": ours}})
    assert "| title of sgd | 0.89x | 8.00 ms | 1.00 ms | 9.00 ms |" in tables.short_table(report)


def test_the_tables(measured):
    text = tables.markdown(measured)
    assert "| title of add_16 | 4.00x | 8.00 ms |  | 2.00 ms | 5.00x | 200 MiB | 200 MiB |" in text
    assert "| geometric mean | 1.41x | | 0.75x | | | | |" in text  # (0.625 * 4 * 1.111) ** (1/3)
    assert (
        "| title of eager (`eager`) | 1.00 ms ±0 %, 100 MiB, 3 faults |  | 900 us ±0 %, 1.11x, 200 MiB, 3 faults |"
        in text
    )
    # Every line of a table has as many cells as its head.
    for block in text.split("\n\n"):
        assert len({line.count("|") for line in block.splitlines() if line.startswith("|")}) <= 1
    short = text[text.index("Short of what is promised") :]
    assert [line.split(":")[0] for line in short.splitlines()[2:]] == [
        "- FAILED",
        "- dispatch",
        "- add_16",
        "- eager",
        "- geometric mean without the programs that have a floor 0.83x; promised",
    ]
    assert "1.20x of the bare engine's time (0.62x of JAX's CPU); promised: at most 1.05" in short
    assert (
        "The worst 3 speed-ups: title of dispatch 0.62x (bare engine: 0.75x), "
        "title of eager 1.11x, title of add_16 4.00x." in text
    )
    assert "1.25x of the floor's time (1.05x of the floor of two); promised" in short
    assert "peak memory 1.50x of JAX's CPU (2.00x without libraries)" in short


@pytest.mark.parametrize(("ours", "short"), [(1.02, False), (1.04, True)])
def test_what_the_bare_engine_reaches_is_the_measure(ours, short):
    report = made({"eager": {"builtin": [5e-4] * 5, "bare": [1e-3] * 5, "arena": [ours * 1e-3] * 5}})
    named = f"- eager: {ours:.2f}x of the bare engine's time" in tables.findings(report)
    assert named == short


def test_a_run_that_keeps_all_promises_says_so():
    report = made({"add_16": {"builtin": [8e-3] * 5, "arena": [2e-3] * 5, "floor": [2e-3] * 5}})
    assert tables.findings(report) == "All promises kept."


def test_the_chart(measured):
    root = ElementTree.fromstring(chart.svg(measured))
    tag = "{http://www.w3.org/2000/svg}"
    bars = [bar for bar in root.iter(f"{tag}rect") if bar.get("class") in ("fast", "slow")][2:]
    assert [bar.get("class") for bar in bars] == ["slow", "fast", "fast"]
    one = next(float(line.get("x1")) for line in root.iter(f"{tag}line") if line.get("class") == "one")
    begin = [float(bar.get("x")) for bar in bars]
    end = [float(bar.get("x")) + float(bar.get("width")) for bar in bars]
    assert end[0] == pytest.approx(one) and begin[1] == begin[2] == one
    # A log scale: 4x is twice as far as 2x would be, and 1.11x takes a 13th of 4x.
    assert (end[1] - one) / (end[2] - one) == pytest.approx(13.16, rel=0.02)
    assert "4.00x" in [text.text for text in root.iter(f"{tag}text")]
    assert len(list(root.iter(f"{tag}path"))) == 2  # the legend's diamond, and the one floor


def test_backends_take_turns_and_the_floor_only_where_it_is_defined():
    programs = [
        SimpleNamespace(name="a", floor=True, rounds=None),
        SimpleNamespace(name="b", floor=False, rounds=2),
    ]
    backends = [BACKENDS[name] for name in ("builtin", "arena", "floor")]
    plan = [
        (number, program.name, backend.name)
        for number, program, group in runner.turns(programs, backends, 3)
        for backend in group
    ]
    assert [name for number, program, name in plan if program == "a"] == [
        "builtin",
        "arena",
        "floor",
        "arena",
        "floor",
        "builtin",
        "floor",
        "builtin",
        "arena",
    ]
    assert [(number, name) for number, program, name in plan if program == "b"] == [
        (0, "arena"),
        (0, "builtin"),
        (1, "builtin"),
        (1, "arena"),
    ]


def test_other_results_are_told_apart():
    value = [[10.0, 40.0], [40.0, 40.0], [3.0, 3.0]]
    assert runner.difference(value, value, 1e-4) is None
    for place, wrong in ((0, 10.1), (1, float("nan")), (2, 3.001)):
        other = copy.deepcopy(value)
        other[place][0] = wrong
        assert f"number {place}" in runner.difference(other, value, 1e-4)
    assert runner.difference(value[:2], value, 1e-4) == "2 numbers instead of 3"


def test_a_result_that_differs_fails_whoever_was_measured_first(capsys):
    """`tpu` computes something else and has its turn before the reference; `bare` breaks down."""
    backends = [BACKENDS[name] for name in ("tpu", "arena", "bare", "builtin")]
    program = SimpleNamespace(name="p", floor=False, rounds=None, tolerance=1e-4)
    asked = []

    def measured(program, backend):
        asked.append(backend.name)
        if backend.name == "bare":
            return None, "status -11: "
        value = [[2.0 if backend.name == "tpu" else 1.0, 1.0]]
        return {"median": 0.25, "value": value}, None

    run = runner.collect(list(runner.turns([program], backends, 2)), measured)
    assert set(run.failures) == {("p", "tpu"), ("p", "bare")}
    assert "differs from that on builtin" in run.failures["p", "tpu"] and "2.0" in run.failures["p", "tpu"]
    # They are not measured again, and not reported; the others are.
    assert asked == ["tpu", "arena", "bare", "builtin", "arena", "builtin"]
    assert run.of("p", "tpu") is None and len(run.readings["p", "arena"]) == 2
    assert "[7/8, 0.0 min left] round 2 p builtin: 250 ms" in capsys.readouterr().err


@pytest.mark.arena
def test_the_whole_benchmark_tiny(tmp_path):
    written = tmp_path / "out.json"
    nonsense = tmp_path / "no_library.so"
    nonsense.write_text("this is no library")
    run = run_python(
        "-m",
        "bench",
        "--quick",
        "--rounds",
        "2",
        "--only",
        "dispatch,adam",
        "--backends",
        "builtin,bare,arena,floor",
        "--library",
        f"broken={nonsense}",
        "--json",
        str(written),
        "--markdown",
        str(tmp_path / "out.md"),
        "--svg",
        str(tmp_path / "out.svg"),
        check=False,
        PJRT_ARENA_LOG="error",
    )
    # The one that cannot work fails the run, and is named; all others were measured.
    assert run.returncode == 1, run.stderr
    report = results.load(written)
    assert {(each["program"], each["backend"]) for each in report["failures"]} == {
        ("dispatch", "broken"),
        ("adam", "broken"),
    }, report["failures"]
    assert "no_library.so" in report["failures"][0]["error"]
    assert report["settings"]["variables"] == {"PJRT_ARENA_LOG": "error"}
    assert [program["name"] for program in report["programs"]] == ["dispatch", "adam"]
    dispatch, adam = (program["backends"] for program in report["programs"])
    assert list(dispatch) == ["builtin", "bare", "arena"] and list(adam) == ["builtin", "bare", "arena", "floor"]
    for entry in (*dispatch.values(), *adam.values()):
        assert len(entry["rounds"]) == 2
        seconds = entry["seconds"]
        assert 0 < seconds["q1"] <= seconds["median"] <= seconds["q3"] < 10
        assert 0 < entry["peak_data_bytes"] < entry["peak_bytes"] < 4 << 30
    # It was the arena, and Adam's 24 results lay there.
    assert adam["arena"]["rounds"][0]["results"]["placed"] >= 24
    assert "results" not in adam["bare"]["rounds"][0]
    assert "[18/18" in run.stderr and "min left" in run.stderr
    assert (tmp_path / "out.md").read_text() == run.stdout == tables.markdown(report)
    assert (tmp_path / "out.svg").read_text() == chart.svg(report)


def test_ratios_are_those_of_neighbours():
    # A machine that gets slower all the time: ratios of medians would say the same of any two backends.
    slower = [1.1**number for number in range(40)]
    runs = [{"cpu": slower, "bare": [1.2 * value for value in slower], "arena": [1.5 * value for value in slower]}] * 3
    ratios = together.summary(runs)["ratios"]
    assert {name: ratio["median"] for name, ratio in ratios.items()} == pytest.approx(
        {"arena/bare": 1.25, "arena/cpu": 1.5, "bare/cpu": 1.2}
    )


def test_backends_run_together_in_one_process(tmp_path):
    path = tmp_path / "together.json"
    run = run_python(
        "-m", "bench.together", "--quick", "--processes", "2", "--rounds", "2", "--json", str(path), "dispatch"
    )
    assert "| `dispatch` |" in run.stdout
    row = json.loads(path.read_text())["programs"]["dispatch"]
    assert row["seconds"].keys() == {"cpu", "bare", "arena"} and min(row["seconds"].values()) > 0


def test_two_builds_run_together_in_one_process(tmp_path):
    path, old = tmp_path / "builds.json", tmp_path / "old.so"
    shutil.copy(os.environ["PJRT_ARENA_LIBRARY_PATH"], old)
    counts = ("--quick", "--processes", "1", "--rounds", "2")
    run = run_python("-m", "bench.together", *counts, "--against", str(old), "--json", str(path), "dispatch")
    assert "| before | now | now / before |" in run.stdout
    row = json.loads(path.read_text())["programs"]["dispatch"]
    assert row["seconds"].keys() == {"before", "now"} and row["ratios"].keys() == {"now/before"}


def test_how_far_callers_run_ahead():
    run = run_python("-m", "bench.ahead", "--lengths", "2", "--calls", "3", "--rounds", "1")
    time = r"[\d.]+ (?:us|ms|s)"
    assert re.fullmatch(rf"\| 2 ms (\| {time}, {time} ){{3}}\|", run.stdout.splitlines()[-1]), run.stdout
    refused = run_python("-m", "bench.ahead", "--lengths", "0", check=False)
    assert refused.returncode == 2 and "--lengths must be above 0" in refused.stderr


#: Megabytes that a loop may take beyond a twentieth: what the system gives a process differs so much from run to run.
SCATTER_MB = 10
WHOLE = ("-m", "bench.whole", "--only", "idle,eager,solver", "--strategies", "preallocate,tpu", "--rounds", "1")


def test_a_loop_that_does_not_wait_takes_no_more_memory_than_on_jaxs_cpu_backend(tmp_path):
    """But for the second XLA, which a process that does nothing shows."""
    path = tmp_path / "whole.json"
    said = run_python(*WHOLE, "--json", str(path)).stdout
    assert [line.split(" | ")[0] for line in said.splitlines()[2:]] == ["| idle", "| eager", "| solver"]
    runs = json.loads(path.read_text())["runs"]
    peaks = {name: {backend: one[0]["peak"] for backend, one in runs[name].items()} for name in runs}
    for strategy in ("preallocate", "tpu"):
        second = peaks["idle"][strategy] - peaks["idle"]["cpu"]
        for name in ("eager", "solver"):
            assert peaks[name][strategy] - second <= 1.05 * peaks[name]["cpu"] + SCATTER_MB, (name, strategy, peaks)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--only", "eagr"], "--only=eagr: none of idle, eager, ahead, sgd"),
        (["--strategies", "bfc"], "--strategies=bfc: none of preallocate, growing, platform, tpu"),
        (["--rounds", "0"], "--mib, --rounds and --steps must be 1 or more"),
        (["--set", "limit"], "--set=limit: no SETTING=VALUE, such as limit=2GiB"),
        (["--steps", "0"], "--mib, --rounds and --steps must be 1 or more"),
    ],
)
def test_whole_processes_say_what_is_allowed(given, said):
    run = run_python("-m", "bench.whole", *given, check=False)
    assert run.returncode == 2 and said in run.stderr


def test_limits_tell_how_processes_end(tmp_path):
    path = tmp_path / "limits.json"
    given = ("--limits", "v0.6,d4,none", "--strategies", "tpu", "--rounds", "1", "--json", str(path))
    said = run_python("-m", "bench.limits", *given).stdout.splitlines()
    assert said[0] == "| limit | cpu | tpu |"
    assert said[2].startswith("| `ulimit -v`, 0.6 GB | 1 ") and said[2].endswith(" | 1 names the limit |"), said
    assert said[3:] == ["| `ulimit -d`, 4 GB | 1 ok | 1 ok |", "| none | 1 ok | 1 ok |"]
    assert json.loads(path.read_text())["runs"]["v0.6"]["tpu"][0][0] == "names the limit"


def test_a_control_group_leaves_room_beside_arrays_or_is_named():
    try:
        with limits.control_group(160 << 20):
            pass
    except OSError as error:
        pytest.skip(f"the system lets no control group be made: {error}")
    given = ("--limits", "g0.15,g0.3", "--fill", "--strategies", "tpu", "--rounds", "1")
    said = run_python("-m", "bench.limits", *given).stdout.splitlines()
    # JAX's CPU backend goes on until the system kills it.
    cells = " | 1 SIGKILL | 1 names the limit |", " | 1 SIGKILL | 1 ok |"
    assert said[2:] == [f"| control group, 0.{size} GB{cell}" for size, cell in zip((15, 3), cells, strict=True)], said


def test_limits_fail_where_a_strategy_ends_by_a_signal_and_jaxs_cpu_backend_does_not():
    assert limits.ended(-6, "") == "SIGABRT" and limits.ended(1, "no memory") == "error"
    runs = {
        "v1": {"cpu": ["ok", "SIGABRT"], "tpu": ["SIGABRT", "ok"]},
        "v4": {"cpu": ["ok", "ok"], "tpu": ["ok", "SIGSEGV"], "growing": ["ok", "names the limit"]},
    }
    assert limits.broken(runs) == ["`ulimit -v`, 4 GB: tpu ended by a signal, JAX's CPU backend was well"]
    filled = limits.broken(runs, fill=True)
    assert filled == ["`ulimit -v`, 1 GB: tpu ended by a signal", "`ulimit -v`, 4 GB: tpu ended by a signal"]
    assert "| `ulimit -v`, 4 GB | 2 ok | 1 ok, 1 SIGSEGV | 1 ok, 1 names the limit |" in limits.table(
        {"v4": runs["v4"]}
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--limits", "x4"], "--limits=x4: none of v1, v1.5"),
        (["--limits", "v"], "--limits=v: none of v1, v1.5"),
        (["--strategies", "bfc"], "--strategies=bfc: none of preallocate, growing, platform, tpu"),
        (["--rounds", "0"], "--rounds and --at-once must be 1 or more"),
    ],
)
def test_limits_say_what_is_allowed(given, said):
    run = run_python("-m", "bench.limits", *given, check=False)
    assert run.returncode == 2 and said in run.stderr
