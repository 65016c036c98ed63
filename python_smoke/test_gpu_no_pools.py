"""GPUs whose driver has no memory pools: programs' scratch has a fixed share of the limit, in its own allocator.

The GPUs are simulated (`fake_gpu`), with `FAKE_CUDA_POOLS=0`.
"""

from __future__ import annotations

import json

import fake_gpu
import pytest
from fake_gpu import run_on_gpu
from harness import run_python
from test_gpu import HEAD

pytestmark = [
    pytest.mark.arena,
    pytest.mark.skipif(not fake_gpu.is_built(), reason="the GPU for tests is built by cargo, beside the library"),
]

NO_POOLS = {"FAKE_CUDA_POOLS": "0", "PJRT_ARENA_LIMIT": "128MiB", "PJRT_ARENA_GPU_SCRATCH": "25%"}


@pytest.mark.parametrize("strategy", ["preallocate", "growing", "platform", "tpu"])
def test_arrays_and_scratch_each_have_their_part(strategy):
    run = run_on_gpu(
        HEAD
        + """
before = stats()
x = full(8, 1.0)
fits = jax.jit(lambda x: jnp.cumsum(jnp.sort(x))[-1])
scratch = fits.lower(x).compile().memory_analysis().temp_size_in_bytes
assert 8 * MIB <= scratch <= 32 * MIB, scratch
for _ in range(20):
    assert float(fits(x)) == x.size
# More than the share, though the arrays' part is nearly empty: said before anything is consumed.
large = full(40, 1.0)
too_much = jax.jit(lambda x: (jnp.cumsum(jnp.sort(x)), x + 1)[1] + jnp.sort(x)[0], donate_argnums=0)
refused = error_of(lambda: too_much(large))
assert not large.is_deleted() and float(large[3]) == 1.0
del large
# Arrays have all of the rest, and no more.
kept = [full(8, float(number)) for number in range(10)]
array_error = error_of(lambda: [full(8, 0.0) for _ in range(2)])
for _ in range(5):
    assert float(fits(x)) == x.size
assert [float(array[5]) for array in kept] == [float(number) for number in range(10)]
after = stats()
print(json.dumps([before, after, scratch, refused, array_error]))
""",
        PJRT_ARENA_STRATEGY=strategy,
        PJRT_ARENA_LOG="info",
        **NO_POOLS,
    )
    before, after, _, refused, array_error = json.loads(run.stdout.splitlines()[-1])
    # What arrays can have; programs' 32 MiB are beside it.
    assert before["bytes_limit"] == after["bytes_limit"] == before["bytes_reservable_limit"] == 96 << 20
    assert before["bytes_reserved"] == after["bytes_reserved"] == after["peak_bytes_reserved"] == 0
    assert after["bytes_in_use"] < 96 << 20 and after["pool_bytes"] <= 96 << 20
    assert "RESOURCE_EXHAUSTED: Error loading program" in refused, refused
    assert "gpu_scratch=25% (PJRT_ARENA_GPU_SCRATCH)" in refused and "no memory pools" in refused, refused
    assert "RESOURCE_EXHAUSTED" in array_error and "limit 96.00MiB" in array_error, array_error
    assert "programs' scratch has 32.00MiB beside the limit for good (gpu_scratch)" in array_error, array_error
    assert "32.00MiB of 128.00MiB on GPU 0 (no memory pools)" in run.stderr, run.stderr
    assert "gpu_scratch=25% = 32.00MiB per device (PJRT_ARENA_GPU_SCRATCH)" in run.stderr, run.stderr


@pytest.mark.parametrize("strategy", ["preallocate", "growing", "platform", "tpu"])
def test_arrays_that_are_sized_by_the_limit_fit_beside_programs(strategy):
    run = run_on_gpu(
        HEAD
        + """
def left(numbers):
    return numbers["bytes_limit"] - numbers["bytes_in_use"] - numbers["bytes_reserved"]
fits = jax.jit(lambda x: jnp.cumsum(jnp.sort(x))[-1])
start = stats()
# All that it says is left, but for one array: small ones lie somewhere too.
kept = [full(8, float(number)) for number in range(left(start) // (8 * MIB) - 1)]
jax.block_until_ready(kept)
for _ in range(3):
    assert float(fits(kept[1])) == kept[1].size
end = stats()
assert [float(array[5]) for array in kept] == [float(number) for number in range(len(kept))]
print(json.dumps([len(kept), left(end), end["largest_free_block_bytes"], end["bytes_in_use"]]))
""",
        PJRT_ARENA_STRATEGY=strategy,
        **NO_POOLS,
    )
    arrays, left, hole, in_use = json.loads(run.stdout.splitlines()[-1])
    assert arrays == 11 and 88 << 20 <= in_use < 89 << 20
    assert hole <= left <= 8 << 20


def test_several_gpus_and_their_copies():
    run = run_on_gpu(
        HEAD
        + """
devices = jax.devices()
mesh = jax.make_mesh((4,), ("d",))
x = jax.device_put(np.arange(1 << 16, dtype=np.float32), jax.NamedSharding(mesh, jax.P("d")))
total = jax.jit(lambda x: (x * 2).sum())(x)
assert float(total) == 2 * sum(range(1 << 16))
there = jax.device_put(x, devices[3])
assert (np.asarray(there) == np.arange(1 << 16)).all()
print(json.dumps([device.memory_stats()["bytes_limit"] for device in devices]))
""",
        gpus=4,
        memory_mib=128,
        FAKE_CUDA_POOLS="0",
        PJRT_ARENA_LIMIT="64MiB",
    )
    # Half of it is programs'.
    assert json.loads(run.stdout.splitlines()[-1]) == [32 << 20] * 4


def test_copies_of_what_is_still_written_have_room_within_the_share():
    run = run_on_gpu(
        HEAD
        + """
other = jax.devices()[1]
double = jax.jit(lambda x: x * 2)
x = full(12, 3.0)
jax.block_until_ready(double(x))
copies = [jax.device_put(double(x), other) for _ in range(2)]
error = error_of(lambda: jax.device_put(double(x), other))
assert [float(copy[5]) for copy in copies] == [6.0, 6.0]
del copies[0]
copies.append(jax.device_put(double(x), other))
assert [float(copy[5]) for copy in copies] == [6.0, 6.0]
print(json.dumps(error))
""",
        gpus=2,
        latency_us=20_000,
        **NO_POOLS,
    )
    error = json.loads(run.stdout.splitlines()[-1])
    assert error.startswith(
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12.00MiB (12582912 bytes) on cuda:1 [the"
    ), error
    assert "have 32.00MiB, of which such arrays hold 24.00MiB; gpu_scratch=25% (PJRT_ARENA_GPU_SCRATCH)" in error, error


def test_with_pools_the_share_means_nothing():
    run = run_on_gpu(HEAD + "print(stats()['bytes_reserved'])", PJRT_ARENA_LIMIT="128MiB", PJRT_ARENA_GPU_SCRATCH="25%")
    assert int(run.stdout.splitlines()[-1]) == 0 and "memory pools" not in run.stderr


def test_a_share_that_leaves_nothing_is_refused():
    run = run_on_gpu(HEAD, check=False, **{**NO_POOLS, "PJRT_ARENA_GPU_SCRATCH": "128MiB"})
    assert run.returncode != 0
    assert "gpu_scratch=128.00MiB (PJRT_ARENA_GPU_SCRATCH) is 128.00MiB of the limit of 128.00MiB" in run.stderr, (
        run.stderr
    )
    assert "allowed: 2.00MiB to 126.00MiB" in run.stderr


@pytest.mark.parametrize("pools", ["0", "1"])
def test_the_table_of_settings_says_it(pools):
    machine = fake_gpu.variables(512, 1, 0, 114)
    table = run_python(
        "-m", "pjrt_arena", "doctor", check=False, **{**machine, **NO_POOLS, "FAKE_CUDA_POOLS": pools}
    ).stdout
    table = " ".join(table.split())
    assert "gpu_scratch 25% PJRT_ARENA_GPU_SCRATCH" in table, table
    assert ("32.00MiB of 128.00MiB on GPU 0 (no memory pools)" in table) == (pools == "0"), table
    assert ("compute capability 9.0, no memory pools" in table) == (pools == "0"), table
