"""Reports of a real run: what the files hold, and what they never hold."""

import dataclasses
import io
import itertools
import json
import os
import pickle
import pickletools
import re
from pathlib import Path

import pytest
from harness import run_jax
from pjrt_arena import memory

# A training step with donation, an array that NumPy looks at, one that comes and goes, arrays that a compaction moves,
# an allocation that fails; every report of it.
SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np
from pjrt_arena import memory

folder = sys.argv[1]
with memory.track("before JAX") as early:
    assert str(memory.summary()) == "no device: JAX has not started on the arena"
with memory.track("start", report=lambda track: track.peak_bytes_in_use) as start:
    w = jax.device_put(np.ones((256, 256), np.float32))
    jax.device_put(np.ones((512, 256), np.float32)).delete()
(seen,) = start.devices
assert (seen.device, seen.bytes_in_use_before, seen.bytes_in_use_after, seen.holders) == ("cpu:0", 0, w.nbytes, ())
assert 3 * w.nbytes <= start.peak_bytes_in_use == memory.stats()[0].peak_bytes_in_use and start.holders == ()
assert "JAX started in the block" in str(start)

def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)

step = jax.jit(lambda w, x: w - 0.01 * jax.grad(loss)(w, x), donate_argnums=0)
assert (early.devices, str(early)) == ((), "before JAX: no device: JAX has not started on the arena")
for number in ("bytes_in_use_before", "peak_bytes_in_use", "bytes_in_use_after"):
    try:
        raise AssertionError(f"0 was never measured: {getattr(early, number)}")
    except memory.ArenaError as error:
        assert "track 'before JAX' saw no device: JAX has not started on the arena" in str(error), error
x = jax.device_put(np.full((512, 256), 31337.0, np.float32))
for _ in range(5):
    w = step(w, x)
big = jnp.zeros((1024, 1024)) + 1
del big
seen = np.asarray(x)
w.block_until_ready()
memory.snapshot(f"{folder}/before.html")

@jax.jit
def activations(x):
    return jnp.tanh(x @ x)

square = jnp.ones((1024, 1024))
many = [activations(square).block_until_ready() for _ in range(6)]
kept = many[1::2]
del many
memory.compact()
try:
    jnp.zeros((8192, 8192)).block_until_ready()
    raise AssertionError("64 MiB hold 256")
except jax.errors.JaxRuntimeError as error:
    print(error)
print(memory.summary(top=2))
for end in ("json", "html", "perfetto.json", "pickle"):
    memory.snapshot(f"{folder}/x.{end}")
"""


class NoClasses(pickle.Unpickler):
    """Reads plain values and nothing else."""

    def find_class(self, module, name):
        raise AssertionError(f"the pickle asks for {module}.{name}")

    def persistent_load(self, pid):
        raise AssertionError(f"the pickle asks for {pid}")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of the reports, and what the program printed."""
    folder = tmp_path_factory.mktemp("reports")
    script = SCRIPT.replace("sys.argv[1]", repr(str(folder)))
    # Where NumPy's arrays lie is malloc's choice: all are copied.
    settings = {"PJRT_ARENA_LIMIT": "64MiB", "PJRT_ARENA_DEVICES": "1", "PJRT_ARENA_ZERO_COPY": "off"}
    return folder, run_jax(script, **settings).stdout


@pytest.fixture(scope="module")
def snapshot(run):
    """The last snapshot, as JSON."""
    return json.loads((run[0] / "x.json").read_text())


@pytest.mark.arena
def test_snapshot_names_origins_and_pins(snapshot):
    assert (snapshot["schema"], snapshot["version"]) == ("pjrt-arena.snapshot", 1)
    (device,) = snapshot["devices"]
    assert (device["name"], device["strategy"], device["limit"]) == ("cpu:0", "preallocate", 64 << 20)
    labels = snapshot["origins"]["label"]
    rows = {labels[origin]: row for row, origin in enumerate(device["blocks"]["origin"])}
    result, host = "jit__lambda output 0 f32[256,256]", "from host f32[512,256]"
    assert device["blocks"]["step"][rows[result]] > device["blocks"]["step"][rows[host]] == 0
    why = snapshot["pin_reasons"][device["blocks"]["pin"][rows[host]]]
    assert device["blocks"]["state"][rows[host]] == 1 and "NumPy" in why
    events = device["events"]
    freed = [labels[o] for o, kind in zip(events["origin"], events["kind"], strict=True) if kind == 1]
    assert sum("jit_activations" in label for label in freed) == 3, freed
    assert events["time"] == sorted(events["time"]) and events["time"][-1] <= snapshot["now"]
    (failure,) = device["failures"]
    assert failure["bytes"] == 256 << 20 and failure["text"].startswith("Out of memory")


@pytest.mark.arena
def test_undoing_all_events_leads_back_to_nothing(snapshot):
    (device,) = snapshot["devices"]
    for table in (snapshot["origins"], device["blocks"], device["events"], device["regions"]):
        assert len({len(column) for column in table.values()}) == 1
    assert device["events_lost"] == 0
    columns = device["blocks"]
    state = {
        block: (address, held, status)
        for block, address, held, status in zip(
            columns["id"], columns["address"], columns["bytes"], columns["state"], strict=True
        )
    }
    assert len(state) == len(columns["id"])
    regions = sorted(zip(device["regions"]["address"], device["regions"]["bytes"], strict=True))
    kinds = set()
    events = [dict(zip(device["events"], row, strict=True)) for row in zip(*device["events"].values(), strict=True)]
    for event in reversed(events):
        kind, block, address = event["kind"], event["block"], event["address"]
        kinds.add(kind)
        if kind in (0, 2, 3, 4, 5):
            assert state[block][0] == address, event
        if kind == 0:
            assert state.pop(block)[1] == event["bytes"]
        elif kind == 1:
            assert block not in state
            state[block] = (address, event["bytes"], event["before"])
        elif kind in (2, 3, 4):
            # What it was after the event, and cannot have been before.
            now = {2: 2, 3: 1, 4: 0}[kind]
            assert state[block][2] == now != event["before"], event
            state[block] = (*state[block][:2], event["before"])
        elif kind == 5:
            state[block] = (event["other"], *state[block][1:])
        elif kind == 6:
            assert not state
            regions.remove((address, event["bytes"]))
        lying = sorted(state.values())
        for (start, held, _), (following, *_) in itertools.pairwise(lying):
            assert start + held <= following, event
        for start, held, _ in lying:
            assert any(first <= start and start + held <= first + length for first, length in regions), event
    assert (state, regions) == ({}, [])
    assert kinds >= {0, 1, 2, 3, 5, 6, 8, 9}


@pytest.mark.arena
def test_pickle_is_what_pytorchs_viewer_reads(run, snapshot):
    (device,) = snapshot["devices"]
    raw = (run[0] / "x.pickle").read_bytes()
    names = {opcode.name for opcode, _, _ in pickletools.genops(raw)}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "REDUCE", "BUILD", "PERSID", "BINPERSID"}
    torch = NoClasses(io.BytesIO(raw)).load()
    assert set(torch) == {"segments", "device_traces", "allocator_settings", "external_annotations"}
    (segment,), (trace,) = torch["segments"], torch["device_traces"]
    numbers = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream"}
    assert set(segment) >= numbers | {"segment_type", "blocks"}
    # Blocks and holes follow each other without a gap.
    at = segment["address"]
    for block in segment["blocks"]:
        assert block["address"] == at
        at += block["size"]
    assert at == segment["address"] + segment["total_size"]
    active = [block for block in segment["blocks"] if block["state"] != "inactive"]
    assert sum(block["size"] for block in active) == segment["active_size"]
    labels = snapshot["origins"]["label"]
    held = sorted((labels[o], n) for o, n in zip(device["blocks"]["origin"], device["blocks"]["bytes"], strict=True))
    assert sorted((block["frames"][0]["name"], block["size"]) for block in active) == held
    for event in trace:
        assert set(event) >= {"action", "addr", "size", "stream", "time_us", "frames"}
        assert all(set(frame) == {"name", "filename", "line"} for frame in event["frames"])
    assert {event["action"] for event in trace} >= {"alloc", "free_requested", "free_completed", "segment_alloc", "oom"}


@pytest.mark.arena
def test_perfetto_is_trace_event_json(run, snapshot):
    trace = json.loads((run[0] / "x.perfetto.json").read_text())["traceEvents"]
    needed = {"M": {"args"}, "C": {"ts", "args"}, "X": {"ts", "dur"}, "i": {"ts", "s"}}
    for event in trace:
        assert set(event) >= {"name", "ph", "pid"} | needed[event["ph"]], event
        assert isinstance(event["pid"], int) and isinstance(event.get("ts", 0.0), float)
    assert {event["name"] for event in trace} >= {"process_name", "memory", "pool", "compaction", "out of memory"}
    last = [event for event in trace if event["name"] == "memory"][-1]
    blocks = snapshot["devices"][0]["blocks"]
    held = sum(n for n, state in zip(blocks["bytes"], blocks["state"], strict=True) if state in (0, 1))
    assert last["args"]["in use"] == held


@pytest.mark.arena
def test_files_are_private_and_hold_no_contents(run):
    folder, _ = run
    written = {"before.html", "x.html", "x.json", "x.perfetto.json", "x.pickle"}
    assert {path.name for path in folder.iterdir()} == written
    page = (folder / "x.html").read_text()
    assert page.startswith("<!doctype html>") and "http://" not in page.replace("http://www.w3.org", "")
    # Names and sizes, never contents: an array is half a MiB of one number.
    for file in folder.iterdir():
        data = file.read_bytes()
        assert bytes.fromhex("00d2f446") * 2 not in data and data.count(b"31337.0") == 0, file
        assert len(data) < 256 * 1024, file
        assert file.stat().st_mode & 0o7777 == 0o600, file


@pytest.mark.arena
def test_diff_finds_what_was_added(run):
    folder, _ = run
    diff = memory.diff(folder / "before.html", memory.load_snapshot(folder / "x.html"))
    top = diff.origins[0]
    assert top.origin == "jit_activations output 0 f32[1024,1024]"
    assert (top.grown_bytes, top.bytes_before, top.num_blocks_after, top.num_blocks_kept) == (12 << 20, 0, 3, 0)
    by_origin = {growth.origin: growth for growth in diff.origins}
    weights, batch = by_origin["jit__lambda output 0 f32[256,256]"], by_origin["from host f32[512,256]"]
    assert (weights.grown_bytes, weights.num_blocks_kept, batch.grown_bytes, batch.num_blocks_kept) == (0, 1, 0, 1)
    assert diff.same_process and diff.grown_bytes == 16 << 20 and diff.seconds > 0
    lines = str(diff).splitlines()
    assert lines[0].startswith("before.html -> x.html, ") and lines[0].endswith(" later")
    assert re.fullmatch(r"  in use +\d+\.00 KiB +\d+\.\d\d MiB +\+16\.00 MiB", lines[2]), lines
    assert any(re.fullmatch(r"  jit_activations .* 0 B +12\.00 MiB +\+12\.00 MiB +\+3 +0", line) for line in lines)
    assert max(map(len, lines)) <= 100
    back = memory.diff(folder / "x.json", folder / "before.html")
    assert back.grown_bytes == -(16 << 20) and back.origins[-1].grown_bytes == -(12 << 20)


@pytest.mark.arena
def test_error_and_summary_lead_to_the_program(run):
    _, printed = run
    wanted, origin = "jit_broadcast_in_dim output 0 f32[8192,8192]", "jit_activations output 0 f32[1024,1024]"
    assert f"wanted for {wanted}" in printed and f"held by 12.00MiB in 3 block(s): {origin}" in printed
    assert re.search(rf"^  {re.escape(origin)} +12\.00 MiB +\d+ % +3 +\d", printed, re.MULTILINE), printed
    assert max(map(len, printed[printed.index("cpu:0, strategy") :].splitlines())) <= 100


LONG = f"jit_{'long_' * 20}name output 17 f32[8]"
# What a library could answer: a device of every number, and one that was not used.
USED = {
    "device": "cpu:0",
    "strategy": "growing",
    "limit_bytes": 16 << 30,
    "in_use": {"current": 3 << 29, "peak": 5 << 30, "allocated": 7 << 40, "freed": (7 << 40) - (3 << 29)},
    "pinned": {"current": 4096, "peak": 1 << 20, "allocated": 3 << 20, "freed": (3 << 20) - 4096},
    "reserved": {"current": 0, "peak": 0, "allocated": 0, "freed": 0},
    "pool": {"current": 2 << 30, "peak": 6 << 30},
    "moved": {"bytes": 12 << 20, "blocks": 1, "compactions": 2, "migrations": 3},
    "spilled": {
        "waiting_bytes": 3 << 30,
        "limit_bytes": 8 << 30,
        "out_bytes": 5 << 40,
        "clean_bytes": 1 << 40,
        "back_bytes": 4 << 40,
    },
    "pending_bytes": 1 << 20,
    "peak_used_bytes": 5 << 30,
    "slack_bytes": 504,
    "free_bytes": 511 << 20,
    "largest_hole_bytes": 384 << 20,
    "fragmentation": 1 - 384 / 511,
    "allocations": 123456,
    "frees": 1,
    "blocks": 87,
    "engine_bytes": 1023,
    "holders": [
        {"origin": "jit_train_step output 3 bf16[8192,8192]", "bytes": 1 << 30, "blocks": 8, "oldest_seconds": 7265.0},
        {"origin": LONG, "bytes": 509 << 20, "blocks": 70, "oldest_seconds": 4.25},
        {"origin": "from host f32[1024,1024]", "bytes": 4 << 20, "blocks": 1, "oldest_seconds": None},
        {"origin": "copy of s32[]", "bytes": 1 << 19, "blocks": 4, "oldest_seconds": 0.004},
        {"origin": "4 others", "bytes": 1016, "blocks": 4, "oldest_seconds": None},
    ],
    "of a newer library": 1,
}
NOTHING = dict.fromkeys(("current", "peak", "allocated", "freed", "bytes", "blocks", "compactions", "migrations"), 0)
UNUSED = {key: NOTHING if isinstance(value, dict) else 0 for key, value in USED.items()} | {
    "device": "cpu:1",
    "strategy": "growing",
    "limit_bytes": 16 << 30,
    "holders": [],
    "spilled": None,
}

GOLDEN = """\
cpu:0, strategy growing, limit 16.00 GiB
                         now        peak   allocated       freed
  in use            1.50 GiB    5.00 GiB    7.00 TiB    7.00 TiB
  pinned            4.00 KiB    1.00 MiB    3.00 MiB    3.00 MiB
  pool              2.00 GiB    6.00 GiB
  free            511.00 MiB
  largest hole    384.00 MiB  fragmentation 25 %
  pending           1.00 MiB  dropped, but a program still uses it
  slack              504 B    taken beyond the sizes asked for
  moved            12.00 MiB  1 block, 2 compactions, 3 moved aside to be pinned
  engine's own      1023 B    not part of the pool or the limit
  foreign           3.00 MiB  in NumPy's or another library's memory; not part of them either
  spilled           3.00 GiB  of 8.00 GiB; 5.00 TiB out, 4.00 TiB back
  blocks              87      123456 allocations and 1 free so far

  held by                                                        bytes   share   blocks    oldest
  jit_train_step output 3 bf16[8192,8192]                     1.00 GiB    67 %        8       2 h
  jit_long_long_long_long_lon…_long_name output 17 f32[8]   509.00 MiB    33 %       70     4.2 s
  from host f32[1024,1024]                                    4.00 MiB   < 1 %        1
  copy of s32[]                                             512.00 KiB   < 1 %        4      4 ms
  all others                                                  1016 B     < 1 %        4

cpu:1, strategy growing, limit 16.00 GiB: nothing was allocated so far"""


class Fake:
    """A library whose answers are known."""

    def summary(self):
        return [USED, UNUSED]

    def counters(self):
        return {"devices": [{"name": "cpu:0", "foreign_bytes": 3 << 20}, {"engine_bytes": 0, "foreign_bytes": 7}]}


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr("pjrt_arena._library.load", Fake)


def test_summary_text(fake):
    summary = memory.summary(top=4)
    assert str(summary) == GOLDEN
    assert summary.devices[0].peak_bytes_in_use == 5 << 30 and len(summary.devices[0].holders) == 5
    with pytest.raises(ValueError, match="top=-1"):
        memory.summary(top=-1)


@pytest.mark.arena
def test_a_snapshot_has_its_numbers_by_name(run, snapshot):
    read = memory.load_snapshot(run[0] / "x.json")
    (device,), (told,) = read.devices, snapshot["devices"]
    assert (device.device, device.strategy, device.bytes_limit) == ("cpu:0", "preallocate", 64 << 20)
    parts = (device.pending_bytes, device.slack_bytes, device.bytes_reserved, device.free_bytes)
    assert device.bytes_in_use + sum(parts) == device.pool_bytes and device.bytes_in_use == read.bytes_in_use > 0
    assert device.total_allocated_bytes - device.total_freed_bytes == device.bytes_in_use
    assert device.peak_bytes_in_use == told["stats"]["peak_in_use"] > device.bytes_in_use
    assert device.pinned_bytes == 512 << 10 and device.moved_bytes > 0 and device.num_compactions >= 1
    assert (device.num_blocks, device.num_events) == (len(told["blocks"]["id"]), len(told["events"]["kind"]))
    # The names are those of a live device, and they mean the same.
    fields = {field.name for field in dataclasses.fields(memory.SnapshotDevice)}
    others = {
        name
        for kind in (memory.DeviceSummary, memory.DeviceStats)
        for name in [*(field.name for field in dataclasses.fields(kind)), *vars(kind)]
    }
    assert fields - others == {"num_events", "num_lost_events", "failures"}
    largest = device.holders[0]
    assert (largest.origin, largest.num_blocks) == ("jit_activations output 0 f32[1024,1024]", 3)
    assert read.holders == device.holders and read.failures == device.failures
    assert sum(holder.num_blocks for holder in read.holders) == device.num_blocks
    (failure,) = read.failures
    assert (failure.device, failure.requested_bytes) == ("cpu:0", 256 << 20)
    assert failure.origin == "jit_broadcast_in_dim output 0 f32[8192,8192]" and failure.text.startswith("Out of memory")
    assert str(read).endswith(device.table())


@pytest.mark.arena
def test_reset_peak():
    import jax.numpy as jnp

    passing = jnp.zeros((1 << 20,), jnp.float32)
    used = memory.summary().devices[0]
    passing.delete()
    memory.reset_peak()
    after = memory.summary().devices[0]
    # At most: what others left behind may be collected meanwhile.
    assert after.bytes_in_use <= after.peak_bytes_in_use <= used.bytes_in_use - (4 << 20)
    assert after.total_allocated_bytes >= used.total_allocated_bytes


@pytest.mark.arena
def test_snapshots_that_cannot_be_written(tmp_path):
    with pytest.raises(ValueError, match=r"x\.txt") as refused:
        memory.snapshot(tmp_path / "x.txt")
    for end in (".html", ".json", ".perfetto.json", ".pickle"):
        assert end in str(refused.value)
    with pytest.raises(ValueError, match="null character"):
        memory.snapshot("x\0.json")
    with pytest.raises(FileNotFoundError) as missing:
        memory.snapshot(tmp_path / "none" / "x.json")
    assert missing.value.filename == os.fspath(tmp_path / "none" / "x.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "target.json")
    with pytest.raises(OSError, match="symbolic link"):
        memory.snapshot(tmp_path / "link.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(OSError, match="folder"):
        memory.snapshot(tmp_path / "folder.json")
    assert {path.name for path in tmp_path.iterdir()} == {"link.json", "folder.json"}
    # Over a file that anyone may read.
    path = tmp_path / "X.JSON"
    path.touch(0o644)
    assert memory.snapshot(os.fspath(path)) == path and path.stat().st_mode & 0o7777 == 0o600
    assert memory.load_snapshot(path).data["schema"] == "pjrt-arena.snapshot"


def test_files_that_are_no_snapshots(tmp_path):
    for name, text, why in (
        ("a.json", "{", "holds no snapshot"),
        ("b.json", '{"traceEvents": []}', "holds no snapshot"),
        ("c.html", '<script id="other">{"schema": "pjrt-arena.snapshot", "version": 1}</script>', "holds no snapshot"),
        (
            "d.html",
            '<p><script id="snapshot">{"schema": "pjrt-arena.snapshot", "version": 2}</script>',
            "version 2; .* version 1",
        ),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=why) as refused:
            memory.load_snapshot(tmp_path / name)
        assert name in str(refused.value)
    (tmp_path / "e.pickle").write_bytes(b"\x80\x02}.")
    with pytest.raises(ValueError, match="holds no snapshot"):
        memory.load_snapshot(Path(tmp_path / "e.pickle"))
    with pytest.raises(FileNotFoundError):
        memory.diff(tmp_path / "none.json", tmp_path / "a.json")
