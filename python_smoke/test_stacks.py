"""Which Python code made an array: `memory.record`, and where the stacks are told."""

from __future__ import annotations

import gc
import json
import pickle
import threading
import weakref
from pathlib import Path

import jax
import numpy as np
import pytest
from harness import arena_device, run_jax
from pjrt_arena import _convert, memory

pytestmark = pytest.mark.arena

HERE = Path(__file__).name


def holder(shape: str) -> memory.Holder:
    """Who holds arrays of this shape on the first device: one origin and stack."""
    (found,) = (one for one in memory.summary(device="cpu:0").devices[0].holders if shape in one.origin)
    return found


@jax.jit
def doubled(x):
    return x * 2


def load(count: int) -> jax.Array:
    # Not aligned, or the CPU would use NumPy's memory in place.
    return jax.device_put(np.ones(count + 1, np.float32)[1:], arena_device())


def test_a_result_and_an_upload_know_their_code():
    with memory.record(python=True):
        x = load(700_001)
        y = doubled(x)
    up, result = holder("from host f32[700001]"), holder("jit_doubled output 0 f32[700001]")
    names = ("load", "test_a_result_and_an_upload_know_their_code")
    assert tuple(frame.name for frame in up.stack[:2]) == names
    assert (result.stack[0].name, result.stack[0].file) == (names[1], __file__)
    # The line is that of the call.
    lines = Path(__file__).read_text().splitlines()
    assert "doubled(x)" in lines[result.stack[0].line - 1] and "jax.device_put" in lines[up.stack[0].line - 1]
    assert up.origin == f"from host f32[700001] at {up.stack[0]}" and str(up.stack[0]).startswith(f"{HERE}:")
    assert not [frame for frame in (*up.stack, *result.stack) if "/jax/" in frame.file]
    # Pytest's own frames are there: the whole stack is.
    assert len(result.stack) > 10
    text = str(memory.summary(top=20, device="cpu:0"))
    assert f"called from {up.stack[1]}" in text and all(len(line) <= 100 for line in text.splitlines())
    del x, y


def test_it_is_off_before_and_afterwards():
    before = load(700_002)
    with memory.record(python=True):
        with memory.record(python=False):
            between = load(700_003)
        kept = load(700_004)
    after = load(700_005)
    assert [bool(holder(f"f32[70000{number}]").stack) for number in (2, 3, 4, 5)] == [False, False, True, False]
    del before, between, kept, after


def test_arrays_of_threads_know_their_code():
    made = []

    def work(count):
        made.append(doubled(load(count)))

    with memory.record(python=True):
        threads = [threading.Thread(target=work, args=(700_100 + number,)) for number in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    for number in range(8):
        found = holder(f"jit_doubled output 0 f32[{700_100 + number}]")
        assert found.stack[0].name.endswith("<locals>.work") and found.stack[1].name == "Thread.run"
    made.clear()


def test_of_a_deep_stack_the_innermost_frames_are_kept():
    def deeper(levels, count):
        return load(count) if levels == 0 else deeper(levels - 1, count)

    with memory.record(python=True):
        arrays = [deeper(300, 700_201), deeper(300, 700_201), deeper(3, 700_202)]
    deep, shallow = holder("f32[700201]"), holder("f32[700202]")
    assert deep.num_blocks == 2 and len(deep.stack) <= 129
    assert {frame.name for frame in deep.stack[1:-1]} == {deep.stack[1].name}
    assert deep.stack[-1] == memory.Frame("", 0, "frames further out")
    assert sum(frame.name == deep.stack[1].name for frame in shallow.stack) == 4
    assert shallow.stack[-1].name != "frames further out"
    del arrays


def test_code_that_goes_is_not_mixed_up_and_goes_when_recording_ends():
    """While it lasts, a code object stays: another one at its address would be taken for it."""
    arrays, gone = [], []
    with memory.record(python=True):
        for number in range(15):
            names = {"load": load}
            source = "\n" * number + f"def made_{number}():\n    return load({700_300 + number})\n"
            exec(compile(source, f"<made {number}>", "exec"), names)
            function = names[f"made_{number}"]
            arrays.append(function())
            gone.append(weakref.ref(function.__code__))
            del names, function
            gc.collect()
        assert all(code() is not None for code in gone)
    for number in range(15):
        frame = holder(f"f32[{700_300 + number}]").stack[1]
        assert frame == memory.Frame(f"<made {number}>", number + 2, f"made_{number}")
    # JAX keeps the code of the call that made an array as long as the array.
    arrays.clear()
    gc.collect()
    assert not [code for code in gone if code() is not None]


def test_frames_of_jax_may_be_kept():
    with memory.record(python=True, jax_frames=True):
        x = load(700_401)
    stack = holder("f32[700401]").stack
    assert "/jax/" in stack[0].file and "load" in {frame.name for frame in stack}
    with memory.record(python=True):
        y = load(700_402)
    assert holder("f32[700402]").stack[0].name == "load"
    del x, y


def test_peaks_of_tracks_tell_of_it():
    with memory.record(python=True), memory.track() as seen:
        x = load(700_501)
    (found,) = (one for one in seen.holders if "f32[700501]" in one.origin)
    assert found.stack[0].name == "load"
    assert f"f32[700501] at {found.stack[0]}" in found.origin and f"called from {found.stack[1]}" in str(seen)
    del x


def test_snapshots_tell_of_it(tmp_path):
    with memory.record(python=True):
        x = load(700_601)
        before = memory.load_snapshot(memory.snapshot(tmp_path / "a.json"))
        y = doubled(x)
    told = holder("from host f32[700601]").stack
    for name in ("b.json", "b.html", "b.pickle"):
        memory.snapshot(tmp_path / name)
    after = memory.load_snapshot(tmp_path / "b.json")
    data = after.data
    row = next(
        row for row, label in enumerate(data["origins"]["label"]) if label.startswith("from host f32[700601] at")
    )
    stack, lines = data["origins"]["stack"][row], []
    while stack >= 0:
        frame = data["stacks"]["frame"][stack]
        lines.append(memory.Frame(*(data["frames"][key][frame] for key in ("file", "line", "name"))))
        stack = data["stacks"]["caller"][stack]
    assert tuple(lines) == told and len(told) > 2
    assert f"called from {told[1]}" in after.table(top=20)

    (grown,) = (one for one in memory.diff(before, after).origins if "jit_doubled output 0 f32[700601]" in one.origin)
    assert grown.num_blocks_after == 1 and f" at {HERE}:" in grown.origin

    # PyTorch's form has the frames behind the one of ours; what is converted is what the library writes.
    written = pickle.loads((tmp_path / "b.pickle").read_bytes())
    converted = _convert.torch_snapshot(data)
    for snapshot in (written, converted):
        frames = [block["frames"] for segment in snapshot["segments"] for block in segment["blocks"]]
        (mine,) = (one for one in frames if one and one[0]["name"].startswith("from host f32[700601]"))
        assert [(one["filename"], one["line"], one["name"]) for one in mine[1:]] == [
            (frame.file, frame.line, frame.name) for frame in told
        ]
    del x, y


def test_a_snapshot_of_an_older_library_has_none(tmp_path):
    x = load(700_651)
    data = json.loads(memory.snapshot(tmp_path / "a.json").read_text())
    del data["stacks"], data["frames"], data["origins"]["stack"]
    (tmp_path / "b.json").write_text(json.dumps(data))
    old = memory.load_snapshot(tmp_path / "b.json")
    assert "held by" in old.table() and "called from" not in old.table()
    assert old.save(tmp_path / "c.pickle").stat().st_size > 0 and memory.diff(old, old).grown_bytes == 0
    del x


def test_an_error_of_exhausted_memory_names_the_code():
    code = """
    import jax, jax.numpy as jnp, numpy as np
    from pjrt_arena import memory
    def load():
        return jax.device_put(np.ones(1 + (5 << 20), np.float32)[1:])
    memory.record(python=True)
    kept = [load() for _ in range(3)]
    try:
        load().block_until_ready()
    except (ValueError, RuntimeError) as error:
        print(error)
    assert memory.summary().devices[0].holders[0].stack[0].name == "load"
    """
    said = run_jax(code, PJRT_ARENA_LIMIT="64MiB").stdout
    assert "wanted for from host f32[5242880] at <string>:5 (load)" in said, said
    assert "held by 60.00MiB in 3 block(s): from host f32[5242880] at <string>:5 (load)" in said, said


def test_recording_waits_for_pythons_lock():
    """Threads that compute in Python hold it; what they run meanwhile is recorded, too."""
    stop, turns = threading.Event(), []

    def work():
        while not stop.is_set():
            turns.append(sum(range(1000)))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with memory.record(python=True):
            x = load(700_701)
            for _ in range(20):
                x = doubled(x)
    finally:
        stop.set()
        thread.join()
    assert holder("jit_doubled output 0 f32[700701]").stack[0].name == "test_recording_waits_for_pythons_lock"
    assert turns and float(x[0]) == 2.0**20
