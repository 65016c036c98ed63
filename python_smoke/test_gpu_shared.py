"""GPUs that are not the arena's alone: other users of the memory, other users of the engine's pool, callers that run
ahead of them.

The GPUs are simulated (`fake_gpu`). The other user is the test itself, by the driver's own functions: for it the
numbers are the same, whether another process, PyTorch or XLA's autotuner takes the memory.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import fake_gpu
import pytest
from fake_gpu import run_on_gpu
from test_gpu import HEAD

pytestmark = [
    pytest.mark.arena,
    pytest.mark.skipif(not fake_gpu.is_built(), reason="the GPU for tests is built by cargo, beside the library"),
]

OTHER = """
import contextlib, ctypes, os
driver = ctypes.CDLL(os.environ["PJRT_ARENA_CUDA_DRIVER"])

@contextlib.contextmanager
def in_context():
    context, left = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    yield
    assert driver.cuCtxPopCurrent_v2(ctypes.byref(left)) == 0

def free_mib():
    with in_context():
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value // MIB

class Other:
    def __init__(self, mib):
        self.address = ctypes.c_uint64()
        with in_context():
            assert driver.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(mib * MIB)) == 0

    def end(self):
        with in_context():
            assert driver.cuMemFree_v2(self.address) == 0

def through_the_pool(mib):
    # As CuPy and RMM take memory, and XLA's autotuner does.
    with in_context():
        stream, address = ctypes.c_void_p(), ctypes.c_uint64()
        assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
        assert driver.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(mib * MIB), stream) == 0
        assert driver.cuMemFreeAsync(address, stream) == 0 and driver.cuStreamSynchronize(stream) == 0
"""


def told(code: str, **machine):
    run = run_on_gpu(HEAD + OTHER + code, **machine)
    return json.loads(run.stdout.splitlines()[-1]), run.stderr


def test_a_program_that_the_device_has_no_room_for_is_refused_each_time():
    """The limit alone has room. The arguments, donated, are there as long as the engine was not asked; once the others
    have gone it runs."""
    (errors, deleted, value), _ = told(
        """
size = 64 * MIB // 4
step = jax.jit(lambda v: jnp.sort(jnp.sin(v))[::-1].cumsum() + v, donate_argnums=0)
v = jnp.ones((size,), jnp.float32)
step = step.lower(v).compile()
assert step.memory_analysis().temp_size_in_bytes > 32 * MIB
v.block_until_ready()
other = Other(free_mib() - 8)
errors = [error_of(lambda: step(v)) for _ in range(3)]
deleted = v.is_deleted()
other.end()
v = step(v)
print(json.dumps([errors, deleted, float(v[0])]))
""",
        PJRT_ARENA_LIMIT="480MiB",
        PJRT_ARENA_STRATEGY="growing",
    )
    for error in errors:
        assert "RESOURCE_EXHAUSTED" in error and "others use the device too" in error, error
    assert not deleted and value == pytest.approx(1.8414709, rel=1e-5)


def test_what_another_process_holds_is_left_out_until_it_comes_back():
    """XLA's allocator takes a smaller region then, for good (`bfc_allocator.cc`, kBackpedalFactor)."""
    (first, error, second), warnings = told(
        """
other = Other(200)
size = 8 * MIB // 4
kept = [jax.device_put(np.full((size,), float(n), np.float32)) for n in range(24)]
first = [float(array[-1]) for array in kept]
def fill():
    for _ in range(30):
        kept.append(jax.device_put(np.full((size,), 24.0, np.float32)))
        kept[-1].block_until_ready()
error = error_of(fill)
other.end()
more = [jax.device_put(np.full((size,), float(n), np.float32)) for n in range(5)]
print(json.dumps([first, error, [float(array[-1]) for array in more]]))
""",
    )
    assert first == list(range(24)) and second == list(range(5))
    assert "RESOURCE_EXHAUSTED" in error and "of 512.00MiB are free" in error, error
    assert "less than the 384.00MiB of its arena" in warnings, warnings


def test_nobody_waits_for_the_gpu_while_the_engine_starts_a_program(tmp_path):
    """At its first execution XLA captures a graph, which a wait for the whole GPU spoils; also one that takes nothing.
    The engine is held in the middle, and the test captures in its place."""
    header = (Path(__file__).parents[1] / "pjrt_c_api/pjrt_c_api.h").read_text()
    slots = re.findall(r"PJRT_SLOT\((PJRT_\w+)\);", header)
    # By its name it is an engine for GPUs.
    faulty = tmp_path / "libfaulty_cuda_engine.so"
    faulty.symlink_to(fake_gpu.FOLDER / "libfaulty_cpu_engine.so")
    (count, spoilt, kept, value), _ = told(
        f"""
import threading, time
engine = ctypes.CDLL("{faulty}")
step = jax.jit(lambda x: x + 1, donate_argnums=0)
held = step(jax.device_put(np.ones((1024,), np.float32)))
with in_context():
    stream, capturing, address, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == driver.cuStreamCreate(ctypes.byref(capturing), 1) == 0
    before = free_mib()
    # Nobody has waited for what is freed: the driver keeps it until somebody does.
    assert driver.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(200 * MIB), stream) == 0
    assert driver.cuMemFreeAsync(address, stream) == 0
    kept = before - free_mib()
    assert engine.faulty_engine_arm({slots.index("PJRT_LoadedExecutable_Execute")}, ctypes.c_uint64(1), 6)
    results = []
    thread = threading.Thread(target=lambda: results.append(step(held)))
    thread.start()
    while not engine.faulty_engine_is_held():
        time.sleep(0.001)
    assert driver.cuStreamBeginCapture_v2(capturing, 1) == 0
    arrays = []
    def fill():
        while len(arrays) < 30:
            arrays.append(jax.device_put(np.full((16 * MIB // 4,), 1.0, np.float32)).block_until_ready())
    error_of(fill)
    spoilt = driver.cuStreamEndCapture(capturing, ctypes.byref(graph))
    engine.faulty_engine_let_go()
    thread.join()
print(json.dumps([len(arrays), spoilt, kept, float(results[0][0])]))
""",
        FAULTY_ENGINE_BEHIND=str(fake_gpu.FOLDER / "libfake_cuda_engine.so"),
        PJRT_ARENA_ENGINE=str(faulty),
        PJRT_ARENA_LIMIT="480MiB",
        PJRT_ARENA_STRATEGY="growing",
    )
    assert spoilt == 0, f"the graph is spoilt: {spoilt}"
    assert value == 3.0 and kept >= 200 and count < 30, (count, kept, value)


@pytest.mark.parametrize("strategy", ["growing", "platform"])
def test_what_others_have_freed_into_the_engines_pool_is_had_for_arrays(strategy):
    (count, kept), _ = told(
        """
warm = jax.device_put(np.ones(1024, np.float32)).block_until_ready()
before = free_mib()
through_the_pool(200)
kept_by_pool = before - free_mib()
arrays = [jax.device_put(np.full((16 * MIB // 4,), float(n), np.float32)).block_until_ready() for n in range(28)]
assert [float(array[-1]) for array in arrays] == list(range(28))
print(json.dumps([len(arrays), kept_by_pool]))
""",
        PJRT_ARENA_LIMIT="480MiB",
        PJRT_ARENA_STRATEGY=strategy,
    )
    assert count == 28 and kept >= 200, "the pool kept what was freed, as it does for programs"


def test_scratch_that_grows_is_held_once():
    """Each program takes more than the one before; the pool cannot join what these had, and would hold all of it."""
    (held, scratch), _ = told(
        """
def after(mib):
    v = jnp.ones((mib * MIB // 4,), jnp.float32)
    step = jax.jit(lambda v: jnp.sort(jnp.sin(v))[::-1].cumsum()[:8]).lower(v).compile()
    step(v).block_until_ready()
    scratch = step.memory_analysis().temp_size_in_bytes // MIB
    del v
    memory.trim()
    return before - free_mib(), scratch
warm = jax.device_put(np.ones(1024, np.float32)).block_until_ready()
memory.trim()
before = free_mib()
print(json.dumps(list(zip(*[after(mib) for mib in (16, 24, 32, 40)]))))
""",
        PJRT_ARENA_STRATEGY="growing",
        FAKE_CUDA_SEGMENT="2MiB",  # so that what is held is what was taken
    )
    assert scratch[0] >= 32 and list(scratch) == sorted(set(scratch)), scratch
    assert all(now <= most + 8 for now, most in zip(held, scratch, strict=True)), (held, scratch)


def test_the_autotuner_has_what_arrays_do_not_use():
    """All memory is the arena's, and the engine tries kernels out on 100 MiB of its own before it compiles anything."""
    (programs, free), _ = told(
        """
import dataclasses
from pjrt_arena import memory
x = jax.device_put(np.arange(MIB, dtype=np.float32))
assert float(jax.jit(lambda x: x[7] * 2)(x)) == 14.0
print(json.dumps([dataclasses.asdict(memory.counters().programs), free_mib()]))
""",
        PJRT_ARENA_LIMIT="500MiB",
        PJRT_ARENA_HEADROOM="1MiB",
        FAKE_ENGINE_AUTOTUNE="100",
    )
    assert programs["rewritten"] >= 1 and not programs["not_rewritten"], programs
    assert free >= 100, "what it took and freed is the device's again"


def test_the_pool_keeps_nothing_after_the_client():
    """And nothing beyond what programs may have after something was compiled: the autotuner has been there."""
    (before, compiled, after), _ = told(
        """
import gc, jax.extend
warm = jax.device_put(np.ones(1024, np.float32)).block_until_ready()
before = free_mib()
through_the_pool(150)
jax.jit(lambda x: x * 3 + 1).lower(warm).compile()
compiled = free_mib()
through_the_pool(150)
stats.__defaults__ = None
del warm, gpu                                          # whoever has a device has the client
jax.clear_caches()
jax.extend.backend.clear_backends()
gc.collect()
print(json.dumps([before, compiled, free_mib()]))
""",
        PJRT_ARENA_STRATEGY="growing",
    )
    assert before - compiled <= 8 and after >= before, (before, compiled, after)


def test_nobody_waits_for_the_gpu_to_catch_up():
    """A batch a step, and a step that makes its arrays anew: all is asked for while the GPU is at the first steps."""
    (ready, steps), _ = told(
        """
state = [jax.device_put(np.zeros((MIB // 2,), np.float32)) for _ in range(40)]          # of 2 MiB
host = np.ones((MIB // 2,), np.float32)
step = jax.jit(lambda state, batch: [array + batch[0] for array in state])
for _ in range(4):
    state = step(state, jax.device_put(host))
jax.block_until_ready(state)
losses = []
for _ in range(20):
    state = step(state, jax.device_put(host))
    losses.append(state[0])
ready = [loss.is_ready() for loss in losses]
assert [float(array[-1]) for array in state] == [24.0] * 40
print(json.dumps([sum(ready), len(ready)]))
""",
        memory_mib=4096,
        latency_us=20_000,
    )
    # With a wait of 2 ms for each array, 18 had.
    assert ready <= steps // 2, f"{ready} of {steps} had ended before the last was asked for"
