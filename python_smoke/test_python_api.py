"""The package `pjrt_arena`: what its import does, examples, types, devices, former names, and one name for a number."""

import ast
import dataclasses
import doctest
import gc
import graphlib
import html.parser
import importlib
import inspect
import re
import subprocess
import sys
import typing
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pjrt_arena
import pytest
from harness import ROOT, arena_device, run_jax, run_python
from pjrt_arena import _configure, _library, memory

PACKAGE = ROOT / "python" / "pjrt_arena"
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__main__")

CLASSES = [value for name in memory.__all__ if isinstance(value := getattr(memory, name), type)]


def test_importing_it_imports_neither_jax_nor_the_library():
    code = """
import sys
import pjrt_arena
assert not [name for name in sys.modules if name.startswith("pjrt_arena.")], "nothing before it is asked for"
assert set(dir(pjrt_arena)) == set(pjrt_arena.__all__)
from pjrt_arena import configure, memory, summary
assert pjrt_arena.memory is memory and pjrt_arena.summary is memory.summary
assert not {"jax", "jaxlib", "numpy", "jax_plugins"} & set(sys.modules)
from harness import library_is_mapped
assert not library_is_mapped()
for ask in (memory.stats, memory.summary, lambda: configure(strategy="tpu"), lambda: memory.on_oom(print)):
    try:
        ask()
        raise AssertionError("there is no library")
    except pjrt_arena.ArenaError as error:
        assert "PJRT_ARENA_LIBRARY_PATH=/no/such/library.so is not a file" in str(error)
"""
    code = code.replace("from harness import library_is_mapped\nassert not library_is_mapped()\n", "")
    run_python("-c", code, PJRT_ARENA_LIBRARY_PATH="/no/such/library.so")


def _imports(path: Path) -> set[str]:
    """Modules of ours that the file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            found |= {node.module} | {f"{node.module}.{name.name}" for name in node.names}
    return {name for name in found if name.startswith(("pjrt_arena", "jax_plugins"))}


def test_imports_go_one_way():
    graph = {}
    for path in PACKAGE.glob("*.py"):
        wanted = _imports(path)
        assert not [name for name in wanted if name.startswith("jax_plugins")], path.name
        graph[path.stem] = {name.split(".")[1] for name in wanted if "." in name} & set(MODULES)
    assert len(graph) > 10 and {"_library"} < graph["memory"]
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises for a circle
    others = set().union(*(_imports(path) for path in (ROOT / "python" / "jax_plugins").rglob("*.py")))
    assert "pjrt_arena._library" in others


#: Modules whose examples need a process of their own: what begins it, and its settings.
OWN_PROCESS = {
    "_actions": ("import jax; jax.devices()", {"PJRT_ARENA_SPILL": "host", "PJRT_ARENA_LIMIT": "64MiB"}),
    "_configure": ("", {"JAX_PLATFORMS": None}),
}


@pytest.mark.arena
@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name):
    if name in OWN_PROCESS:
        begins, settings = OWN_PROCESS[name]
        code = f"{begins}\nimport doctest\nfrom pjrt_arena import {name}\n"
        code += f"print(doctest.testmod({name}, optionflags=doctest.ELLIPSIS))"
        assert re.fullmatch(r"TestResults\(failed=0, attempted=[1-9]\d*\)\n", run_python("-c", code, **settings).stdout)
        return
    failed, _ = doctest.testmod(_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0


def test_public_functions_have_examples_and_explain_their_arguments():
    functions = {name: value for name in memory.__all__ if not isinstance(value := getattr(memory, name), type)}
    for name, function in functions.items() | {("configure", pjrt_arena.configure)}:
        assert ("Args:" in function.__doc__) == bool(inspect.signature(function).parameters), name
    found = [test for name in MODULES for test in doctest.DocTestFinder().find(_module(name)) if test.examples]
    named = {test.name.rpartition(".")[2] for test in found}
    assert named >= functions.keys() | {"configure", "assert_no_leaks", "assert_peak_below"}


def _module(name):
    return importlib.import_module(f"pjrt_arena.{name}" if name != "__init__" else "pjrt_arena")


USER = """\
from pathlib import Path
import jax
import jax_plugins.arena.memory
import pjrt_arena
from pjrt_arena import memory

pjrt_arena.configure(strategy="tpu", limit="8GiB", compact=True, history=None, spill=Path("/tmp"), share=False)
reveal_type(pjrt_arena.stats()[0].bytes_in_use)
reveal_type(memory.stats(device="cpu:0"))
reveal_type(memory.summary(device=jax.devices()[0]).devices[0].spilled)
reveal_type(memory.tpu_footprint((3, 4), "int8"))
reveal_type(memory.tpu_footprint({"a": 1}))
reveal_type(memory.load_snapshot("a.json").devices[0].failures)
reveal_type(memory.sleep(["cpu:0", jax.devices()[1]]))
reveal_type(memory.counters().results.missed)

def told(error: pjrt_arena.OutOfMemoryReport) -> None:
    reveal_type(error.requested_bytes)

with memory.on_oom(told), memory.track("x", device="cpu:0") as seen:
    reveal_type(seen.peak_bytes_in_use)

@memory.track("step", report=print)
def step(x: int) -> int:
    return x

reveal_type(step(1))
memory.stats()[0].in_use_bytes
memory.summary().devices[0].in_use
memory.on_oom(3)
memory.stats(gpu="cpu:0")
memory.sumary()
pjrt_arena.sumary()
pjrt_arena.configure(stratgey="tpu")
pjrt_arena.configure(strategy="fastest", devices=1.5)
memory.wake(devices=None)
jax_plugins.arena.no_such_name
jax_plugins.arena.memory.no_such_name

def shape_without_dtype() -> None:
    reveal_type(memory.tpu_footprint((3, 4)))
"""


def test_types_of_a_users_program(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    # JAX's own types are no matter here, and take long.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n[mypy-jax.*]\nfollow_imports = skip\n")
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", tmp_path / "mypy.ini", "--cache-dir", tmp_path, "user.py"],
        cwd=tmp_path,
        # Both: for the namespace `jax_plugins` an installed package would come before MYPYPATH.
        env=dict.fromkeys(("MYPYPATH", "PYTHONPATH"), str(ROOT / "python")) | {"PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    notes = [
        line.partition("note: Revealed type is ")[2].strip('"')
        for line in run.stdout.splitlines()
        if "note: Rev" in line
    ]
    short = [note.replace("builtins.", "").replace("pjrt_arena.", "") for note in notes]
    assert short == [
        "int",
        "tuple[_stats.DeviceStats, ...]",
        "_reports.Spilled | None",
        "_footprint.Footprint",
        "_footprint.Footprints",
        "tuple[_oom.OutOfMemoryReport, ...]",
        "tuple[_actions.Sleep, ...]",
        "typing.Mapping[str, int]",
        "int | None",
        "int",
        "int",
        "Never",
    ], run.stdout
    errors = [line for line in run.stdout.splitlines() if ": error:" in line]
    wrong = ["in_use_bytes", '"in_use"', "on_oom", '"gpu"', '"sumary"', '"sumary"', '"stratgey"', '"strategy"']
    wrong += ['"devices" to "configure"', '"devices" for "wake"', '"no_such_name"', '"no_such_name"']
    assert len(errors) == len(wrong), run.stdout
    for line, word in zip(errors, wrong, strict=True):
        assert word in line, run.stdout


def test_the_types_of_settings_are_those_of_the_library():
    """Names, and where the library lists a few words, those."""
    allowed = {row["name"]: row["allowed"] for row in _library.load().settings()["settings"]}
    hints = typing.get_type_hints(_configure.Settings)
    assert list(hints) == list(allowed)
    listed = 0
    for name, hint in hints.items():
        parts = typing.get_args(hint)
        words = {word for part in parts for word in typing.get_args(part) if typing.get_origin(part) is typing.Literal}
        assert type(None) in parts, name
        if re.fullmatch(r"[a-z]+(, [a-z]+)+", allowed[name]):
            assert words == set(allowed[name].split(", ")) and str not in parts, name
            assert (bool in parts) == ({"on", "off"} <= words), name
            listed += 1
        else:
            assert str in parts and words <= {False}, name
            # What can be off says so.
            assert (False in words) == allowed[name].startswith("off, "), name
    assert listed > 5


def _plain(kind: type) -> set[str]:
    """Fields and properties of a class."""
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    return fields | {name for name, value in vars(kind).items() if isinstance(value, property)}


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if getattr(kind, "FORMER", None)])
def test_former_names_lead_to_present_ones(kind):
    for former, now in kind.FORMER.items():
        names = {now} if isinstance(now, str) else set(now.values())
        assert names <= _plain(kind) and former not in _plain(kind), former


def test_dataclasses_are_frozen_and_have_slots():
    classes = [kind for kind in CLASSES if dataclasses.is_dataclass(kind)]
    assert len(classes) > 15
    for kind in classes:
        assert kind.__dataclass_params__.frozen and "__slots__" in vars(kind), kind


def test_a_former_field_warns_once_and_says_the_new_name():
    trim = memory.Trim(device="cpu:0", returned_bytes=1, num_returned_regions=2, seconds=0.5)
    with pytest.warns(DeprecationWarning, match=r"Trim\.bytes_returned is now: returned_bytes") as caught:
        assert trim.bytes_returned == 1
    assert len(caught) == 1 and caught[0].filename == __file__
    with pytest.raises(AttributeError, match="'Trim' object has no attribute 'nonsense'"):
        trim.nonsense  # noqa: B018
    # What Python itself looks for is no former name.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dataclasses.replace(trim, seconds=1.0) != trim and not hasattr(trim, "__array__")


@pytest.mark.arena
def test_former_names_of_modules_and_functions(tmp_path):
    from jax_plugins import arena

    sys.modules.pop("jax_plugins.arena.memory", None)
    with pytest.warns(DeprecationWarning, match=r"jax_plugins.arena.memory is now pjrt_arena.memory") as caught:
        old = importlib.import_module("jax_plugins.arena.memory")
    assert len(caught) == 1 and old.summary is memory.summary and old.Trim is memory.Trim
    with pytest.warns(DeprecationWarning, match=r"pjrt_arena.memory.stats\(\)") as caught:
        (first, *_) = old.stats()
    assert len(caught) == 1 and first["limit_bytes"] == memory.stats()[0].bytes_limit
    with pytest.warns(DeprecationWarning, match=r"pjrt_arena.memory.counters\(\)") as caught:
        programs = arena.counters()["programs"]
    assert len(caught) == 1 and programs["left_alone"] == programs["not_rewritten"]
    assert programs["readdressed"] == programs["address_changes"]
    with pytest.warns(DeprecationWarning, match="pjrt_arena.ArenaError") as caught:
        assert arena.ArenaError is pjrt_arena.ArenaError
    assert len(caught) == 1
    written = memory.snapshot(tmp_path / "x.json")
    with pytest.warns(DeprecationWarning, match="load_snapshot"):
        assert old.load(written).data["process"] == memory.load_snapshot(written).data["process"]
    with pytest.warns(DeprecationWarning, match="in_use is now: bytes_in_use, peak_bytes_in_use"):
        assert memory.summary().devices[0].in_use.peak >= 0


@pytest.mark.arena
def test_one_number_has_one_name():
    kept = jnp.ones(1 << 18).block_until_ready()
    gc.collect()
    seen: tuple = ()
    # What others left behind may go between two questions: until nothing does.
    for _ in range(1000):
        before = memory.stats()
        summaries, dicts = memory.summary().devices, [device.memory_stats() for device in jax.devices("arena")]
        if before == (seen := memory.stats()):
            break
    assert before == seen
    for told, stats, summary in zip(dicts, before, summaries, strict=True):
        common = set(told) & _plain(memory.DeviceStats)
        assert common >= {"bytes_in_use", "peak_bytes_in_use", "bytes_limit", "num_allocs", "largest_free_block_bytes"}
        assert {name: getattr(stats, name) for name in common} == {name: told[name] for name in common}
        both = _plain(memory.DeviceStats) & _plain(memory.DeviceSummary)
        assert {name: getattr(stats, name) for name in both} == {name: getattr(summary, name) for name in both}
        parts = (stats.pending_bytes, stats.slack_bytes, stats.bytes_reserved, stats.free_bytes)
        assert stats.bytes_in_use + sum(parts) == stats.pool_bytes
    assert memory.stats()[0].bytes_in_use >= kept.nbytes


@pytest.mark.arena
def test_every_function_takes_a_device():
    (second,) = (device for device in jax.devices("arena") if device.id == 1)
    kept = jax.device_put(jnp.ones(1 << 18), second).block_until_ready()
    for meant in (second, "cpu:1"):
        (stats,) = memory.stats(device=meant)
        (summary,) = memory.summary(device=meant).devices
        assert stats.device == summary.device == "cpu:1" and stats.bytes_in_use >= kept.nbytes
        assert memory.map(device=meant).startswith("cpu:1") and "cpu:0" not in memory.map(device=meant)
        assert tuple(done.device for done in memory.compact(device=meant)) == ("cpu:1",)
        assert [done.device for done in memory.trim(device=meant)] == ["cpu:1"]
        with memory.track("one", device=meant) as track:
            passing = jnp.ones(1 << 18).block_until_ready()  # on the first device
        assert [device.device for device in track.devices] == ["cpu:1"]
        # At most: what others left behind may be collected meanwhile.
        assert kept.nbytes <= track.peak_bytes_in_use <= stats.bytes_in_use
        passing.delete()
    high = jax.device_put(jnp.ones(1 << 20), second).block_until_ready()
    peaks = {device.device: device.peak_bytes_in_use for device in memory.stats()}
    high.delete()
    memory.reset_peak(device=second)
    after = {device.device: device.peak_bytes_in_use for device in memory.stats()}
    assert after["cpu:1"] <= peaks["cpu:1"] - (4 << 20) and after["cpu:0"] == peaks["cpu:0"]


@pytest.mark.arena
@pytest.mark.parametrize(
    "ask",
    [
        *(memory.stats, memory.summary, memory.map, memory.compact, memory.trim, memory.reset_peak),
        lambda device: memory.launches("/tmp/never", device=device),
        lambda device: memory.sleep(device, keep=None),
        lambda device: memory.wake([device]),
        lambda device: memory.track(device=device).__enter__(),
    ],
)
def test_an_unknown_device_is_refused_with_those_that_there_are(ask):
    call = ask if ask.__name__ == "<lambda>" else lambda device: ask(device=device)
    for unknown in ("cpu:77", jax.devices("cpu")[0]):
        with pytest.raises(
            ValueError, match=r"is no device of pjrt-arena; there are: cpu:0, cpu:1, cpu:2, cpu:3"
        ) as why:
            call(unknown)
        assert isinstance(why.value, pjrt_arena.UnknownDeviceError) and isinstance(why.value, pjrt_arena.ArenaError)
    with pytest.raises(TypeError, match=r"device=3; it must be a jax\.Device"):
        call(3)


@pytest.mark.arena
def test_a_device_of_jaxs_own_says_so():
    with pytest.raises(
        pjrt_arena.UnknownDeviceError, match=r"cpu:3; it is of JAX's own backend 'cpu': take one of jax"
    ):
        memory.stats(device=jax.devices("cpu")[0])
    with pytest.raises(pjrt_arena.UnknownDeviceError, match=r"cpu:3$"):
        memory.stats(device="cpu:77")


@pytest.mark.arena
def test_foreign_arrays_are_in_the_summary():
    code = """
        import jax
        from harness import host_array
        from pjrt_arena import memory
        assert "nothing was allocated so far" in str(memory.summary(device=jax.devices()[0]))
        x = jax.device_put(host_array())
        (first, second) = memory.summary().devices
        assert (first.foreign_bytes, second.foreign_bytes) == (x.nbytes, 0)
        assert "\\n  foreign         256.00 KiB  in NumPy's" in first.table(), first.table()
        (second,) = memory.summary(device="cpu:1").devices
        assert second.foreign_bytes == 0 and "nothing was allocated" in second.table()
        del x
        assert memory.summary().devices[0].foreign_bytes == 0
    """
    run_jax(code, PJRT_ARENA_DEVICES="2")


@pytest.mark.arena
def test_configure_warns_where_another_platform_comes_first():
    code = """
        import warnings
        import pjrt_arena
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pjrt_arena.configure(limit="64MiB")
        (one,) = caught
        assert (one.category, one.filename) == (UserWarning, "<string>"), one
        assert str(one.message) == "JAX would use cpu by default, as JAX_PLATFORMS=cpu,arena; put arena first"
        import jax
        assert jax.devices("arena")[0].memory_stats()["bytes_limit"] == 64 << 20
        assert jax.devices() == jax.devices("cpu")
    """
    run_jax(code, JAX_PLATFORMS="cpu,arena")


class Tags(html.parser.HTMLParser):
    """The tags and the text of a page; fails where they do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], set(), []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.arena
def test_a_notebook_shows_a_table():
    kept = jnp.ones(1 << 18).block_until_ready()
    summary = memory.summary(device=arena_device())
    page = Tags(summary._repr_html_())
    assert page.tags == {"div", "style", "table", "caption", "thead", "tbody", "tr", "th", "td"}
    # The same as the text, cell by cell.
    cells = {cell for cell in page.text if cell.strip()}
    assert {"in use", "pool", "free", "now", "peak", "held by"} <= cells and str(summary).splitlines()[0] in cells
    assert kept.nbytes and any(cell.startswith("jit_") for cell in cells)
    evil = dataclasses.replace(
        summary.devices[0],
        holders=(memory.Holder("<script>alert(1)</script> & </table>", 1, 1),),
        strategy="<b>",
    )
    written = memory.Summary((evil, evil))._repr_html_()
    page = Tags(written)
    assert "<script>alert(1)</script> & </table>" in page.text and "script" not in page.tags and "b" not in page.tags
    assert written.count("<table>") == 4
    assert "no device: JAX has not started" in memory.Summary(())._repr_html_()


@pytest.mark.arena
def test_history_off_and_on_while_the_program_runs(tmp_path):
    def events():
        return memory.load_snapshot(memory.snapshot(tmp_path / "x.json")).data["devices"][0]

    memory.history(True)
    kept = jnp.ones(1 << 18).block_until_ready()
    assert events()["events"]["kind"]
    with memory.track("meanwhile") as track:
        memory.history(False)
        high = jnp.ones(1 << 20).block_until_ready()
        high.delete()
        assert events()["events"]["kind"] == []
    (why, *_) = {device.holders_unknown for device in track.devices if device.peak_bytes_in_use} - {None}
    assert "PJRT_ARENA_HISTORY" in why and track.peak_bytes_in_use >= track.bytes_in_use_before + (4 << 20)
    memory.history(True)
    again = jnp.ones(1 << 18).block_until_ready()
    seen = events()
    assert seen["events"]["kind"].count(0) >= 1 and seen["events_lost"] > 0
    del kept, again


def test_footprints_of_a_pytree():
    shapes = jax.eval_shape(lambda: {"w": [jnp.ones((1000, 3))] * 2, "b": jnp.ones(3, jnp.bfloat16), "none": None})
    found = memory.tpu_footprint(shapes)
    assert found.tree["b"] == memory.tpu_footprint((3,), "bfloat16") and found.tree["none"] is None
    assert jax.tree.structure(found.tree) == jax.tree.structure(shapes)
    each = jax.tree.leaves(found.tree)
    assert int(found) == found.bytes == sum(one.bytes for one in each) == 2 * 1000 * 128 * 4 + each[0].bytes
    assert found.padding_bytes == found.bytes - found.dense_bytes > 0
    assert found.smallest_bytes == sum(one.smallest_bytes for one in each) < found.bytes
    assert memory.tpu_footprint({}) == memory.Footprints({}, 0, 0, 0)
    with pytest.raises(TypeError, match="the pytree has a str; allowed are objects with a shape and a dtype"):
        memory.tpu_footprint({"a": jnp.ones(3), "b": "x"})
    with pytest.raises(TypeError, match="positional-only"):
        memory.tpu_footprint(shape=(3,), dtype="int8")
    for missing in ((), [], 3, (3, 4)):
        with pytest.raises(TypeError, match="dtype is missing"):
            memory.tpu_footprint(missing)
