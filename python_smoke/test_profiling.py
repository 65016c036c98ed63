"""JAX's profilers on the arena."""

import gzip
import json

import jax
import jax.numpy as jnp
import numpy as np
from harness import arena_device


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


def test_the_device_memory_profile_knows_the_arrays():
    """JAX writes it from its own list of live arrays, as pprof's protocol buffer."""
    keep = jax.device_put(np.ones(12_345, np.float32), arena_device()) + 1
    profile = gzip.decompress(jax.profiler.device_memory_profile())
    for text in (b"buffer", b"allocations", b"test_the_device_memory_profile_knows_the_arrays"):
        assert text in profile
    # 49,380 as a varint: the bytes of our array.
    assert bytes([0xE4, 0x81, 0x03]) in profile
    del keep
