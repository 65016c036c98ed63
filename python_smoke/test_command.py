"""The command `pjrt-arena`: each of its commands with good and with bad input, and conversions of snapshots."""

import collections
import html.parser
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys

import engines
import pytest
import viewer_data
from harness import ROOT, clean_environment, run_jax, run_python
from pjrt_arena import _convert, _library, cli, memory

pytestmark = pytest.mark.arena

# All that a history can have: scratch, donation, arrays that wait, pins, moves, spills and returns, a failure.
SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np
from pjrt_arena import memory

MIB = 1 << 20
make = lambda number, mib=2: jax.device_put(np.full(mib * MIB // 4, number, np.float32), jax.devices("arena")[0])
step = jax.jit(lambda x, y: (jnp.tanh(jnp.flip(x)) @ jnp.ones(x.size) * y, x + 1), donate_argnums=1)
arrays = [make(number) for number in range(20)]           # more than the limit: they are spilled
seen = np.asarray(arrays[3])
total, arrays[5] = step(arrays[4], arrays[5])
memory.snapshot("FOLDER/before.json")
del arrays[::2]
memory.compact()
x = [array + 1 for array in arrays]
try:
    make(1, 64)
    raise AssertionError("32 MiB hold 64")
except (RuntimeError, ValueError):
    pass
jax.block_until_ready(x)
for end in ("json", "pickle", "perfetto.json", "html"):
    memory.snapshot("FOLDER/x." + end)
"""


def written(folder, strategy):
    """The folder, with snapshots of the program in each format."""
    settings = {"PJRT_ARENA_STRATEGY": strategy, "PJRT_ARENA_LIMIT": "32MiB", "PJRT_ARENA_SPILL": "host"}
    run_jax(SCRIPT.replace("FOLDER", str(folder)), **settings, PJRT_ARENA_DEVICES="2", PJRT_ARENA_ZERO_COPY="off")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("tpu"), "tpu")


@pytest.fixture(scope="module")
def growing(tmp_path_factory):
    return written(tmp_path_factory.mktemp("growing"), "growing")


@pytest.fixture(params=["folder", "growing"])
def each(request):
    """A run with scratch, and one whose regions come and go."""
    return request.getfixturevalue(request.param)


def arena(*arguments, check=True, **settings):
    """Runs the command."""
    return run_python("-m", "pjrt_arena", *map(str, arguments), check=check, **settings)


def fails(*arguments, status=1, **settings):
    """The sentence that the command ends with."""
    run = arena(*arguments, check=False, **settings)
    assert (run.returncode, run.stdout) == (status, ""), run.stderr
    assert "Traceback" not in run.stderr
    return run.stderr


def test_conversion_to_pickle_is_what_the_library_writes(each, tmp_path):
    arena("convert", each / "x.json", tmp_path / "y.pickle")
    ours, theirs = (pickle.loads(path.read_bytes()) for path in (tmp_path / "y.pickle", each / "x.pickle"))
    actions = {event["action"] for trace in theirs["device_traces"] for event in trace}
    assert actions >= {"alloc", "free_requested", "free_completed", "oom"}
    assert len(theirs["segments"]) >= 1 and ours == theirs
    # Equal stacks are one object, as in the library's.
    assert len((tmp_path / "y.pickle").read_bytes()) <= len((each / "x.pickle").read_bytes())


def test_conversion_to_a_trace_is_what_the_library_writes(each, tmp_path):
    arena("convert", each / "x.html", tmp_path / "y.perfetto.json")
    ours, theirs = (json.loads(path.read_text()) for path in (tmp_path / "y.perfetto.json", each / "x.perfetto.json"))
    names = {event["name"] for event in theirs["traceEvents"]}
    assert names >= {"memory", "pool", "compaction", "spill", "out of memory"}
    assert ours.keys() == theirs.keys() and len(ours["traceEvents"]) == len(theirs["traceEvents"])
    # Counters end with the snapshot, and the two were written one after the other.
    ends = [max(event.get("ts", 0) for event in trace["traceEvents"]) for trace in (ours, theirs)]
    for our, their in zip(ours["traceEvents"], theirs["traceEvents"], strict=True):
        if (our.get("ts"), their.get("ts")) == tuple(ends):
            del our["ts"], their["ts"]
        assert our == their


@pytest.mark.parametrize("made", ["training_run", "scratch_run", "large_run", "hostile_run", "empty"])
def test_conversions_of_other_snapshots_add_up(made):
    arguments = {"blocks": 500, "events": 2000} if made == "large_run" else {}
    data = getattr(viewer_data, made)(**arguments)
    torch, entries = _convert.torch_snapshot(data), _convert.trace(data)["traceEvents"]
    for number, device in enumerate(data["devices"]):
        segments = [segment for segment in torch["segments"] if segment["device"] == number]
        states = collections.Counter()
        for segment in segments:
            at = segment["address"]
            for block in segment["blocks"]:
                assert block["address"] == at and block["size"] > 0
                at += block["size"]
                states[block["state"]] += block["size"]
            assert at == segment["address"] + segment["total_size"]
        blocks = collections.Counter()
        for state, held in zip(device["blocks"]["state"], device["blocks"]["bytes"], strict=True):
            blocks["active_pending_free" if state == 2 else "active_allocated"] += held
        assert {state: held for state, held in states.items() if state != "inactive"} == blocks
        counted = [entry for entry in entries if entry["pid"] == number + 1 and entry["name"] == "memory"]
        in_use = sum(counted[-1]["args"][name] for name in ("in use", "scratch"))
        assert (in_use, counted[-1]["args"]["pending"]) == (blocks["active_allocated"], blocks["active_pending_free"])
        assert all(value >= 0 for entry in counted for value in entry["args"].values())
    assert made == "empty" or any(trace for trace in torch["device_traces"])


class Page(html.parser.HTMLParser):
    """The snapshot in a page."""

    def __init__(self, text):
        super().__init__()
        self.inside, self.found = False, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.inside = tag == "script" and ("id", "snapshot") in attrs

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.found.append(data)


def test_conversion_to_a_page_and_back(folder, tmp_path):
    arena("convert", folder / "x.json", tmp_path / "y.html")
    written = (tmp_path / "y.html").read_text()
    stored = json.loads((folder / "x.json").read_text())
    assert json.loads("".join(Page(written).found)) == stored
    # All else is the page that the library writes.
    theirs = (folder / "x.html").read_text()
    assert written.partition('id="snapshot"')[0] == theirs.partition('id="snapshot"')[0]
    assert written.rpartition("</script>")[2] == theirs.rpartition("</script>")[2]
    arena("convert", tmp_path / "y.html", tmp_path / "z.json")
    assert json.loads((tmp_path / "z.json").read_text()) == stored
    assert (tmp_path / "y.html").stat().st_mode & 0o7777 == 0o600


def test_a_name_in_a_snapshot_ends_no_script(folder, tmp_path):
    data = json.loads((folder / "x.json").read_text()) | {"command": "</script><script>alert(1)</script>@@SNAPSHOT@@é"}
    (tmp_path / "evil.json").write_text(json.dumps(data))
    arena("convert", tmp_path / "evil.json", tmp_path / "evil.html")
    assert memory.load_snapshot(tmp_path / "evil.html").data == data
    assert "<script>alert" not in (tmp_path / "evil.html").read_text()


def test_what_cannot_be_converted(folder, tmp_path):
    assert fails("convert", folder / "x.json", tmp_path / "y.txt") == (
        "pjrt-arena: a report's file name ends in one of .html, .json, .perfetto.json, .pickle;"
        f" {tmp_path / 'y.txt'} does not\n"
    )
    assert "holds no snapshot" in fails("convert", folder / "x.perfetto.json", tmp_path / "y.json")
    assert fails("convert", tmp_path / "none.json", tmp_path / "y.json").endswith(
        "none.json: No such file or directory\n"
    )
    missing = tmp_path / "none" / "y.json"
    assert fails("convert", folder / "x.json", missing) == f"pjrt-arena: {missing}: No such file or directory\n"
    (tmp_path / "link.json").symlink_to(tmp_path / "target.json")
    assert "is a link" in fails("convert", folder / "x.json", tmp_path / "link.json")
    assert {path.name for path in tmp_path.iterdir()} == {"link.json"}
    # Only the page needs the library.
    arena("convert", folder / "x.json", tmp_path / "y.pickle", PJRT_ARENA_LIBRARY_PATH="/no/such.so")
    said = fails("convert", folder / "x.json", tmp_path / "y.html", PJRT_ARENA_LIBRARY_PATH="/no/such.so")
    assert "PJRT_ARENA_LIBRARY_PATH=/no/such.so is not a file" in said


def test_a_file_that_is_there_is_replaced_as_a_whole(tmp_path, monkeypatch):
    target = tmp_path / "x.json"
    target.write_text("before")
    target.chmod(0o644)
    _convert.write_private(target, b"now")
    assert target.read_bytes() == b"now" and target.stat().st_mode & 0o7777 == 0o600
    monkeypatch.setattr(_convert.os, "fdopen", lambda *_: (_ for _ in ()).throw(OSError("the disk is full")))
    with pytest.raises(OSError, match="full"):
        _convert.write_private(target, b"later")
    assert target.read_bytes() == b"now" and [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_show(folder):
    told = arena("show", folder / "x.html").stdout
    data = json.loads((folder / "x.html").read_text().partition('id="snapshot"')[2].partition(">")[2].partition("<")[0])
    lines = told.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith(f"x.html: process {data['process']} (python), pjrt-arena {data['library']}, ")
    assert "cpu:0, strategy tpu, limit 32.00 MiB" in lines and "cpu:1, strategy tpu, limit 32.00 MiB" in lines
    for title in ("in use", "pinned", "reserved", "pool", "free", "moved", "blocks", "events"):
        assert [line for line in lines if line.startswith(f"  {title} ")], title
    assert arena("show", folder / "before.json", "--top", "1").stdout.count("all others") == 1
    assert "  Out of memory while trying to allocate" in told or "  Attempting to allocate 64.00M" in told
    assert str(memory.load_snapshot(folder / "x.html")) == arena("show", folder / "x.html").stdout.rstrip("\n")


def test_show_and_diff_of_what_is_no_snapshot(folder, tmp_path):
    assert fails("show", tmp_path / "none.json") == f"pjrt-arena: {tmp_path / 'none.json'}: No such file or directory\n"
    assert "holds no snapshot" in fails("show", folder / "x.pickle")
    assert "holds no snapshot" in fails("diff", folder / "x.json", folder / "x.pickle")
    assert fails("show", tmp_path) == f"pjrt-arena: {tmp_path}: Is a directory\n"
    for wrong in (("show",), ("diff", "a"), ("show", "x", "--top", "-1"), ("nonsense",), ("doctor", "more"), ()):
        said = fails(*wrong, status=2)
        assert said.startswith("usage: pjrt-arena") and "error: " in said, wrong


def test_errors_and_help_name_what_is_allowed(capsys):
    for arguments, wanted in (
        (("top", "--interval", "0"), "argument --interval: '0' is not allowed; it must be seconds from 0.05 to 3600"),
        (("top", "--interval", "nan"), "'nan' is not allowed; it must be seconds from 0.05 to 3600"),
        (("show", "x", "--top", "-1"), "argument --top: '-1' is not allowed; it must be a whole number from 0 on"),
        (("show", "x", "--top", "ten"), "argument --top: 'ten' is not allowed; it must be a whole number from 0 on"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments])
        said = capsys.readouterr().err
        assert ended.value.code == 2 and said.endswith(f"{wanted}\n"), said
    for command, wanted in (("top", "from 0.05 to 3600 (default: 1)"), ("show", "from 0 on (default: 10)")):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        assert wanted in " ".join(capsys.readouterr().out.split())


def test_top_ends_with_an_interrupt(tmp_path):
    process = subprocess.Popen(
        # A shell starts what runs in the background with this signal ignored.
        ["env", "--default-signal=INT", sys.executable, "-m", "pjrt_arena", "top", "--interval", "0.05"],
        env=clean_environment(XDG_RUNTIME_DIR=os.fspath(tmp_path), PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "no processes share devices: top shows those that run with PJRT_ARENA_SHARE.\n"
    assert process.stdout.readline() == "The memory of one program: pjrt_arena.memory.summary() in that program.\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")


def test_an_interrupt_at_any_moment_is_no_traceback(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.memory, "groups", interrupted)
    assert cli.main(["top"]) == cli.main(["top", "--once"]) == 0
    monkeypatch.setattr(cli.memory, "load_snapshot", interrupted)
    assert cli.main(["show", "x.json"]) == 130
    monkeypatch.setattr(cli, "_parser", interrupted)
    assert cli.main(["top"]) == 130
    assert capsys.readouterr() == ("", "")


def test_diff(folder):
    told = arena("diff", folder / "before.json", folder / "x.json").stdout
    assert told.rstrip("\n") == str(memory.diff(folder / "before.json", folder / "x.json"))
    assert told.startswith("before.json -> x.json, ") and max(map(len, told.splitlines())) <= 100


def test_doctor_as_json():
    told = json.loads(arena("doctor", "--json", PJRT_ARENA_STRATEGY="growing", PJRT_ARENA_LIMT="1GiB").stdout)
    assert (told["usable"], told["why_unusable"], told["used_by_jax"], told["handlers"]) == (True, None, True, None)
    settings = {row["name"]: row for row in told["settings"]}
    assert (settings["strategy"]["value"], settings["strategy"]["source"]) == ("growing", "PJRT_ARENA_STRATEGY")
    assert settings["engine"]["led_to"] and settings["limit"]["led_to"][0].endswith("in all")
    assert "PJRT_ARENA_LIMT" in told["warnings"][0]
    # The table has the same settings.
    table = arena("doctor").stdout
    assert all(f"\n{name} " in table for name in settings) and len(settings) > 15
    run = arena("doctor", "--json", check=False, PJRT_ARENA_STRATEGY="fastest", JAX_PLATFORMS=None)
    told = json.loads(run.stdout)
    assert run.returncode == 1 and (told["usable"], told["used_by_jax"]) == (False, False)
    assert "PJRT_ARENA_STRATEGY=fastest is not valid" in told["why_unusable"]
    said = fails("doctor", "--json", PJRT_ARENA_LIBRARY_PATH="/no/such.so")
    assert said.startswith("pjrt-arena cannot run: PJRT_ARENA_LIBRARY_PATH=/no/such.so is not a file")


@pytest.mark.parametrize(
    ("platforms", "said"),
    [
        ("arena", "JAX would use the arena: JAX_PLATFORMS=arena"),
        ("arena,cpu", "JAX would use the arena: JAX_PLATFORMS=arena,cpu"),
        ("cpu,arena", "JAX would use cpu by default: JAX_PLATFORMS=cpu,arena; put arena first"),
        ("cpu", "JAX would not use the arena: JAX_PLATFORMS=cpu; set JAX_PLATFORMS=arena,cpu"),
        (None, "JAX would not use the arena: JAX_PLATFORMS is not set; set JAX_PLATFORMS=arena,cpu"),
    ],
)
def test_doctor_says_what_jax_would_use(platforms, said):
    settings = {"JAX_PLATFORMS": platforms, "PJRT_ARENA_ENGINE": os.fspath(engines.under_test())}
    used = said.startswith("JAX would use the arena")
    assert arena("doctor", **settings).stdout.splitlines()[-1] == said
    told = json.loads(arena("doctor", "--json", **settings).stdout)
    assert (told["used_by_jax"], told["hints"]) == (used, [] if used else [said])


DRIVER = "NVIDIA driver for CUDA 12.8: {}: Fake H200, 1.00GiB, compute capability 9.0"


def test_doctor_says_that_a_gpu_would_be_idle(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_PLATFORMS", "arena,cpu")
    monkeypatch.setattr(cli, "AMD", tmp_path / "kfd")

    def hints(source, *here):
        return cli._hints([{"name": "engine", "variable": "PJRT_ARENA_ENGINE", "source": source, "here": here}])

    said = "programs would run on the CPU; for the GPU set PJRT_ARENA_ENGINE={}"
    for gpus in ("1 GPU", "16 GPUs"):
        assert hints("default", DRIVER.format(gpus)) == [said.format("cuda")]
    for here in (DRIVER.format("0 GPUs"), "no NVIDIA driver (libcuda.so.1 not found)"):
        assert hints("default", here) == []
    # Who has chosen an engine knows.
    assert hints("PJRT_ARENA_ENGINE", DRIVER.format("1 GPU")) == []
    (tmp_path / "kfd").touch()
    assert hints("default", "no NVIDIA driver (libcuda.so.1 not found)") == [said.format("rocm")]


def test_doctor_sees_the_gpu_of_a_driver():
    driver = _library.locate().parent / "libfake_cuda.so"
    if not driver.is_file():
        pytest.skip("the simulated driver is not built")
    settings = {"PJRT_ARENA_CUDA_DRIVER": os.fspath(driver)}
    last = "programs would run on the CPU; for the GPU set PJRT_ARENA_ENGINE=cuda"
    named = os.environ.get(engines.VARIABLE)
    run = arena("doctor", **settings)
    assert "= " in run.stdout and (run.stdout.splitlines()[-1] == last) == (not named), run.stdout


def test_the_former_command_warns_and_does_the_same():
    new, old = arena("doctor"), run_python("-m", "jax_plugins.arena")
    assert old.stdout == new.stdout and new.stderr == ""
    assert "DeprecationWarning: python -m jax_plugins.arena is now: pjrt-arena doctor" in old.stderr
    for option in ("--library", "--version"):
        assert run_python("-m", "jax_plugins.arena", option).stdout == arena(option).stdout != ""


def test_a_reader_that_has_enough_is_no_error(folder):
    for command in (("doctor",), ("show", folder / "x.json"), ("doctor", "--json")):
        process = subprocess.Popen(
            [sys.executable, "-m", "pjrt_arena", *map(str, command)],
            env=clean_environment(PYTHONUNBUFFERED="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        process.stdout.close()
        said = process.stderr.read().decode()
        process.stderr.close()
        assert (process.wait(), said) == (0, ""), command


REPLAY = """#!/bin/sh
echo "replayed $*"
exit 7
"""


def test_replay_runs_the_program_beside_the_library_or_on_the_path(tmp_path):
    library = tmp_path / "beside" / "libpjrt_arena.so"
    library.parent.mkdir()
    library.touch()
    settings = {"PJRT_ARENA_LIBRARY_PATH": str(library), "PATH": str(tmp_path / "path")}
    said = fails("replay", "x.trace", **settings)
    assert said.startswith(f"pjrt-arena: arena-replay is neither in {library.parent} nor on PATH: build it with `cargo")
    for place in (tmp_path / "path", library.parent):
        place.mkdir(exist_ok=True)
        (place / "arena-replay").write_text(REPLAY.replace("replayed", f"replayed in {place.name}"))
        (place / "arena-replay").chmod(0o755)
        run = arena("replay", "--policy", "tpu", "x.trace", check=False, **settings)
        assert (run.returncode, run.stdout, run.stderr) == (7, f"replayed in {place.name} --policy tpu x.trace\n", "")


def test_an_installation_without_the_files_says_what_its_user_can_do(tmp_path):
    """Outside of a source tree nobody can build."""
    shutil.copytree(ROOT / "python" / "pjrt_arena", tmp_path / "pjrt_arena", ignore=shutil.ignore_patterns("*.so"))
    settings = {"PYTHONPATH": str(tmp_path), "PATH": str(tmp_path), "PJRT_ARENA_LIBRARY_PATH": None}
    todo = "the installation is incomplete: install pjrt-arena again, or set PJRT_ARENA_LIBRARY_PATH."
    said = fails("--library", **settings)
    assert said == f"pjrt-arena: libpjrt_arena.so was not found in {tmp_path / 'pjrt_arena'}: {todo}\n"
    (tmp_path / "pjrt_arena" / "libpjrt_arena.so").touch()
    assert fails("replay", **settings).endswith(f"nor on PATH: {todo}\n")


def test_the_functions_behind_it_return_the_code(folder, capsys):
    assert cli.main(["show", os.fspath(folder / "x.json")]) == 0
    assert cli.main(["show", os.fspath(folder / "x.pickle")]) == 1
    assert capsys.readouterr().err.startswith("pjrt-arena: ")
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("doctor", "show", "diff", "convert", "replay", "Exit codes"))
