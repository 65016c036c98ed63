"""JAX's profilers on the arena."""

import gzip
import json
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import arena_device, host_array, run_python


def traced(folder, work):
    """The events of a trace of `work`, as Chrome's trace viewer gets them."""
    with jax.profiler.trace(folder):
        work()
    (path,) = folder.glob("plugins/profile/*/*.trace.json.gz")
    assert list(folder.glob("plugins/profile/*/*.xplane.pb"))
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def test_a_trace_shows_the_program_and_the_users_marks(tmp_path):
    step = jax.jit(lambda x: jnp.sin(x) @ x.T)

    def work():
        x = jax.device_put(np.ones((128, 128), np.float32), arena_device())
        with jax.profiler.TraceAnnotation("my own mark"):
            for number in range(3):
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    jax.block_until_ready(step(x))

    names = [event.get("name", "") for event in traced(tmp_path, work)]
    assert "my own mark" in names and names.count("train") == 3
    assert any("PjitFunction" in name for name in names)


@pytest.mark.arena
def test_a_trace_shows_what_the_arena_did(tmp_path):
    """In a plane of its own for each device, with times that lie within the user's mark."""

    def work():
        with jax.profiler.TraceAnnotation("my own mark"):
            for device in jax.devices("arena")[:2]:
                jax.device_put(host_array(offset=16, count=98_765), device).block_until_ready()

    events = traced(tmp_path, work)
    planes = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    ours = {pid: name for pid, name in planes.items() if "pjrt-arena" in name}
    assert sorted(ours.values()) == [f"/device:CUSTOM:pjrt-arena cpu:{number}" for number in (0, 1)]
    (mark,) = (event for event in events if event.get("name") == "my own mark")
    for pid in ours:
        puts = [event for event in events if event.get("pid") == pid and event.get("name") == "allocate"]
        (put,) = (event for event in puts if event["args"]["bytes"] == str(4 * 98_765))
        assert int(put["args"]["bytes_in_use"]) >= 4 * 98_765
        # Microseconds; the two clocks are read one after the other.
        assert mark["ts"] - 1000 <= put["ts"] <= mark["ts"] + mark["dur"] + 1000


@pytest.mark.arena
def test_compactions_and_two_traces_in_a_row(tmp_path):
    code = """
        import glob, gzip, json, sys
        import jax, jax.numpy as jnp

        def trace(folder, work):
            with jax.profiler.trace(folder):
                work()
            (path,) = glob.glob(f"{folder}/plugins/profile/*/*.trace.json.gz")
            return [event for event in json.load(gzip.open(path))["traceEvents"] if "bytes" in event.get("args", {})]
        def fragment():
            arrays = [jnp.full(100_000 + i, 1.0) for i in range(8)]
            del arrays[::2]
            jnp.full(400_000, 2.0).block_until_ready()
        first = trace(sys.argv[1] + "/first", lambda: [fragment() for _ in range(2)])
        names = [event["name"] for event in first]
        moves = [event["args"] for event in first if event["name"] == "compaction"]
        moved = sum(int(move["buffers"]) for move in moves)
        from pjrt_arena import memory
        assert moved == memory.counters().devices[0].num_moves > 0, (moved, memory.counters().devices)
        assert names.count("allocate") >= 18 and names.count("free") >= 8, names
        assert trace(sys.argv[1] + "/second", lambda: None) == []
    """
    (tmp_path / "trace.py").write_text(textwrap.dedent(code))
    run_python(str(tmp_path / "trace.py"), str(tmp_path), PJRT_ARENA_COMPACT="always")


def test_the_device_memory_profile_knows_the_arrays():
    """JAX writes it from its own list of live arrays, as pprof's protocol buffer."""
    keep = jax.device_put(np.ones(12_345, np.float32), arena_device()) + 1
    profile = gzip.decompress(jax.profiler.device_memory_profile())
    for text in (b"buffer", b"allocations", b"test_the_device_memory_profile_knows_the_arrays"):
        assert text in profile
    # 49,380 as a varint: the bytes of our array.
    assert bytes([0xE4, 0x81, 0x03]) in profile
    del keep
