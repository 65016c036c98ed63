"""JAX on AMD's GPUs, whose memory is ours: by HIP's functions, with a fixed share of `bfc` for programs' scratch.

The GPUs are simulated (`fake_gpu.rocm`); none of AMD's has run it.
"""

from __future__ import annotations

import json

import fake_gpu
import pytest
from fake_gpu import run_on_gpu
from harness import run_python
from test_gpu import FRAGMENT, HEAD, INTACT, STRATEGIES

pytestmark = [
    pytest.mark.arena,
    pytest.mark.skipif(not fake_gpu.is_built(), reason="the GPU for tests is built by cargo, beside the library"),
]

LIMITS = {"PJRT_ARENA_LIMIT": "256MiB", "PJRT_ARENA_GPU_SCRATCH": "25%"}

#: How often the driver's functions were called, whoever asked; the simulated engine calls it by NVIDIA's names only.
COUNTS = """
import ctypes, os
driver = ctypes.CDLL(os.environ["PJRT_ARENA_HIP_DRIVER"])
driver.fake_cuda_counts.restype = ctypes.c_uint64

def calls_of(name):
    return driver.fake_cuda_counts(name.encode())
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return fake_gpu.rocm(tmp_path_factory.mktemp("rocm"))


def told(code: str, machine: dict, **more):
    run = run_on_gpu(HEAD + code, **{**LIMITS, **machine, **more})
    assert "memory stays with the engine" not in run.stderr, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("era", [112, 114])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_arrays_lie_in_the_arena(machine, strategy, era):
    answer = told(
        COUNTS
        + """
import dataclasses
from pjrt_arena import memory
assert "rocm 7" in gpu.client.platform_version, gpu.client.platform_version
assert jax.devices("rocm") == jax.devices("gpu") == [gpu]
host = np.random.default_rng(0).random((300, 400), np.float32)
x = jax.device_put(host)
y = jax.jit(lambda x: jnp.tanh(x @ x.T).sum(axis=0))(x)
assert np.allclose(np.asarray(y), np.tanh(host @ host.T).sum(axis=0), rtol=1e-4)
step = jax.jit(lambda s, d: (s + d, (s * d).sum()), donate_argnums=0)
state = jnp.zeros((1 << 18,))
for number in range(30):
    old = state
    state, loss = step(state, float(number))
    assert old.is_deleted()
assert float(state[7]) == sum(range(30))
copied = jax.device_put(state, may_alias=False)
state, loss = step(state, 1.0)                     # writes where the copy is still read
assert float(copied[7]) == sum(range(30)) and float(state[7]) == sum(range(30)) + 1
held = stats()
counters = memory.counters()
(device,) = counters.devices
calls = {name: calls_of(name) for name in (
    "hipMalloc", "hipSetDevice", "hipMemcpyHtoDAsync", "cuMemCreate", "cuMemcpyHtoDAsync_v2")}
arrays = sum(array.nbytes for array in (x, y, state, loss, copied, old) if not array.is_deleted())
del x, y, state, loss, copied, old
after = stats()
results = dataclasses.asdict(counters.results)
print(json.dumps([held, after, arrays, results, device.device, device.engine_bytes, calls]))
""",
        machine,
        PJRT_ARENA_STRATEGY=strategy,
        era=era,
    )
    held, after, arrays, results, name, engine_bytes, calls = answer
    # Of the limit of 256 MiB programs' scratch has 64 for good, and arrays the rest.
    assert (held["bytes_limit"], held["bytes_reserved"]) == (192 << 20, 0)
    assert arrays <= held["bytes_in_use"] < arrays + (1 << 20) and after["bytes_in_use"] < 4096
    assert (name, engine_bytes) == ("rocm:0", 0)
    # Each step's loss has a destination, and its state goes where it was.
    assert results["placed"] >= 32 and results["donated"] >= 31 and not results["missed"], results
    assert calls["hipMalloc"] > 0 and calls["hipMemcpyHtoDAsync"] > 0
    assert calls["cuMemCreate"] == calls["cuMemcpyHtoDAsync_v2"] == 0, calls
    if strategy == "preallocate":
        assert held["pool_bytes"] == 192 << 20
    if strategy == "platform":
        assert after["pool_bytes"] < 8192, "each array's memory goes back to the driver"


def test_memory_that_runs_out_is_an_error_with_numbers(machine):
    error, share, intact = told(
        """
kept = [full(16, float(number)) for number in range(11)]
error = error_of(lambda: [full(16, 0.0) for _ in range(2)])
share = error_of(lambda: jax.jit(lambda x: (jnp.cumsum(jnp.sort(x)), x + 1)[1] + jnp.sort(x)[0])(jnp.ones((40 << 18,))))
intact = all(float(array[5]) == float(number) for number, array in enumerate(kept))
print(json.dumps([error, share, intact]))
""",
        machine,
    )
    assert error.startswith("RESOURCE_EXHAUSTED: Out of memory") and "limit 192.00MiB" in error, error
    assert "programs' scratch has 64.00MiB beside the limit for good (gpu_scratch)" in error, error
    assert share.startswith("RESOURCE_EXHAUSTED"), share
    assert intact


def test_a_program_whose_scratch_exceeds_the_share_is_refused(machine):
    scratch, refused = told(
        """
large = full(80, 1.0)
program = jax.jit(lambda x: (jnp.cumsum(jnp.sort(x)), x + 1)[1] + jnp.sort(x)[0], donate_argnums=0)
scratch = program.lower(large).compile().memory_analysis().temp_size_in_bytes
refused = error_of(lambda: program(large))
assert not large.is_deleted() and float(large[3]) == 1.0
print(json.dumps([scratch, refused]))
""",
        machine,
    )
    assert scratch > 64 << 20
    assert "RESOURCE_EXHAUSTED: Error loading program" in refused, refused
    assert "gpu_scratch=25% (PJRT_ARENA_GPU_SCRATCH) divides the limit" in refused, refused


def test_compaction_makes_room(machine):
    error, intact = told(
        FRAGMENT + "error = error_of(large)\n" + INTACT + "print(json.dumps([error, intact]))",
        machine,
        PJRT_ARENA_STRATEGY="preallocate",
    )
    assert "enough is free, but not in one piece" in error and intact, error
    intact, moved, copies = told(
        COUNTS
        + FRAGMENT
        + "x = large()\nassert float(x[-1]) == 1.0 and float(x.sum()) == x.size\n"
        + INTACT
        + "from pjrt_arena import memory\n"
        + "moved = memory.counters().devices[0].moved_bytes\n"
        + 'print(json.dumps([intact, moved, calls_of("hipMemcpyDtoDAsync")]))',
        machine,
        PJRT_ARENA_STRATEGY="tpu",
    )
    assert intact and moved >= 8 << 20 and copies > 0, (moved, copies)


@pytest.mark.parametrize("peer", ["1", "0"])
def test_copies_between_gpus(machine, peer):
    held, calls = told(
        COUNTS
        + """
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
gpus = jax.devices()
there = jax.device_put(jax.device_put(np.arange(1000.0, dtype=np.float32), gpus[0]), gpus[1])
assert there.devices() == {gpus[1]} and (np.asarray(there) == np.arange(1000)).all()
mesh = Mesh(np.array(gpus), ("i",))
x = jax.device_put(np.arange(64, dtype=np.float32).reshape(16, 4), NamedSharding(mesh, P("i")))
total = jax.jit(lambda x: (x * 2).sum())(x)
assert float(total) == 2 * 2016
print(json.dumps([[stats(gpu)["bytes_in_use"] for gpu in gpus],
                  calls_of("hipMemcpyAsync") + calls_of("hipMemcpyPeerAsync")]))
""",
        machine,
        gpus=2,
        FAKE_CUDA_PEER=peer,
    )
    assert all(held) and calls > 0


def test_pinned_memory_of_the_host(machine):
    kind, back, in_use = told(
        """
from jax.sharding import SingleDeviceSharding
pinned = SingleDeviceSharding(gpu, memory_kind="pinned_host")
there = jax.device_put(np.arange(1 << 16, dtype=np.float32), pinned)
back = jax.device_put(there, SingleDeviceSharding(gpu, memory_kind="device"))
from pjrt_arena import memory
(device,) = memory.counters().devices
print(json.dumps([there.sharding.memory_kind, float(back[77]), device.pinned_host.bytes_in_use]))
""",
        machine,
    )
    assert (kind, back) == ("pinned_host", 77.0) and in_use >= 1 << 18


@pytest.mark.parametrize("driver", ["/no/such/libamdhip64.so", "another"])
def test_without_a_driver_that_fits_the_engine_keeps_its_memory(machine, driver):
    """The second is a library that has none of HIP's functions."""
    named = machine["PJRT_ARENA_ENGINE"] if driver == "another" else driver
    run = run_on_gpu(
        HEAD + "print(float(jnp.arange(10.0).sum()), stats()['bytes_limit'] >> 20)",
        **{**machine, "PJRT_ARENA_HIP_DRIVER": named},
    )
    # And has its usual three quarters, not a share for scratch alone.
    assert run.stdout.splitlines()[-1] == "45.0 384"
    assert "memory stays with the engine: no AMD driver" in run.stderr, run.stderr
    assert ("has no symbol hipInit" if driver == "another" else f"({driver} not found)") in run.stderr, run.stderr


def test_a_driver_that_shows_nothing_at_first_gets_no_arena(machine):
    """The engine was not told to keep to a share then, and may take the memory that arrays would have."""
    run = run_on_gpu(
        HEAD + "print(float(jnp.arange(10.0).sum()))", **{**machine, "FAKE_CUDA_FAIL": "hipDriverGetVersion:1:999"}
    )
    assert run.stdout.splitlines()[-1] == "45.0"
    assert "memory stays with the engine" in run.stderr, run.stderr


def test_the_table_of_settings_says_it(machine):
    variables = {**fake_gpu.variables(512, 2, 0, 114), **LIMITS, **machine}
    table = " ".join(run_python("-m", "pjrt_arena", "doctor", check=False, **variables).stdout.split())
    assert "here: AMD driver for HIP 7.0: 2 GPUs: 2 x Fake MI300X, 512.00MiB, compute capability 9.4" in table, table
    assert "no memory pools, compute" not in table and "64.00MiB of 256.00MiB on GPU 0" in table, table
    assert "hip_driver" in table and "PJRT_ARENA_HIP_DRIVER" in table
    variables["PJRT_ARENA_HIP_DRIVER"] = "/no/such/libamdhip64.so"
    table = " ".join(run_python("-m", "pjrt_arena", "doctor", check=False, **variables).stdout.split())
    assert "here: no AMD driver (/no/such/libamdhip64.so not found)" in table, table
