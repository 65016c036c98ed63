"""`memory_stats()`: every field, exact, and what programs leave in the counters."""

import gc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import arena_device, bytes_in_use, eventually, stats
from pjrt_arena import memory

pytestmark = pytest.mark.arena

FIELDS = {
    "num_allocs",
    "bytes_in_use",
    "peak_bytes_in_use",
    "largest_alloc_size",
    "bytes_limit",
    "bytes_reserved",
    "peak_bytes_reserved",
    "bytes_reservable_limit",
    "largest_free_block_bytes",
    "pool_bytes",
    "peak_pool_bytes",
}


@pytest.fixture(autouse=True)
def collected():
    gc.collect()


def put(count, dtype=np.float32):
    return jax.block_until_ready(jax.device_put(np.ones(count, dtype), arena_device()) + dtype(1))


def test_every_field_is_there_and_is_a_count():
    seen = stats()
    assert set(seen) == FIELDS
    # jaxlib shows a field that the plugin left unset as -1.
    assert all(isinstance(value, int) and value >= 0 for value in seen.values()), seen


def test_fields_agree_with_one_another():
    x = put(1 << 18)
    seen = stats()
    assert seen["bytes_in_use"] <= seen["peak_bytes_in_use"] <= seen["bytes_limit"]
    assert seen["bytes_in_use"] <= seen["pool_bytes"] <= seen["peak_pool_bytes"] <= seen["bytes_limit"]
    assert seen["largest_free_block_bytes"] <= seen["bytes_limit"] - seen["bytes_in_use"]
    assert x.nbytes <= seen["largest_alloc_size"] <= seen["peak_bytes_in_use"]
    assert seen["num_allocs"] > 0


@pytest.mark.parametrize(("count", "dtype"), [(1, np.float32), (1000, np.float32), (3, np.int8), (1 << 20, np.int8)])
def test_bytes_in_use_is_exact(count, dtype):
    start = bytes_in_use()
    arrays = [put(count, dtype) for _ in range(3)]
    eventually(bytes_in_use, start + 3 * count * np.dtype(dtype).itemsize)
    del arrays[1]
    eventually(bytes_in_use, start + 2 * count * np.dtype(dtype).itemsize)
    arrays.clear()
    eventually(bytes_in_use, start)


def test_peak_remembers():
    start = bytes_in_use()
    big = put(3 << 20)
    high = stats()["peak_bytes_in_use"]
    assert high >= start + big.nbytes
    del big
    eventually(bytes_in_use, start)
    assert stats()["peak_bytes_in_use"] == high
    assert stats()["largest_alloc_size"] >= 3 << 22


def test_allocations_are_counted():
    double = jax.jit(lambda x: x * 2)
    host = np.ones(1 << 10, np.float32)
    jax.block_until_ready(double(jax.device_put(host, arena_device())))  # compiles
    before = stats()["num_allocs"]
    for _ in range(10):
        jax.block_until_ready(double(jax.device_put(host, arena_device())))
    # Each time one for the array from the host, and one for the result unless the last result's block is used again.
    assert 10 <= stats()["num_allocs"] - before <= 20


def test_limit_is_constant():
    before = stats()
    keep = [put(1 << 20) for _ in range(4)]
    after = stats()
    for field in ("bytes_limit", "bytes_reservable_limit"):
        assert before[field] == after[field]
    assert len(keep) == 4


def test_default_limit_is_three_quarters_of_the_machine_shared_by_the_devices():
    limits = {stats(device)["bytes_limit"] for device in jax.devices("arena")}
    assert len(limits) == 1
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    machine = int(total.split()[1]) << 10
    # A control group may allow less than the machine has, never more.
    assert 0 < limits.pop() <= 0.75 * machine / len(jax.devices("arena"))


def test_results_are_placed_in_the_arena():
    """Every result that the rules allow is written by XLA into our block: none of these programs may miss one."""
    before = memory.counters()

    @jax.jit
    def program(x):
        return x + 1, x @ x.T, x.sum(), jnp.sort(x, axis=1)

    results = jax.block_until_ready(program(jax.device_put(np.ones((37, 11), np.float32), arena_device())))
    after = memory.counters()
    assert len(results) == 4
    assert after.programs.rewritten > before.programs.rewritten
    assert after.results.placed - before.results.placed >= 4
    assert after.results.missed == before.results.missed


def test_results_that_the_rules_leave_out_are_counted_with_a_reason():
    before = sum(memory.counters().results.skipped.values())
    x = jax.device_put(np.ones(64, np.int8).astype(jnp.int4), arena_device())
    jax.block_until_ready(jax.jit(lambda x: x.reshape(8, 8))(x))
    assert sum(memory.counters().results.skipped.values()) > before
    assert all(reason for reason in memory.counters().results.skipped)


def test_the_whole_suite_missed_nothing():
    """What the tests before this one ran in this process; alone, what the arithmetic here ran."""
    put(10)
    counters = memory.counters()
    assert counters.results.placed > 0
    assert sum(counters.results.missed.values()) == 0, counters.results


def test_live_arrays_add_up():
    """`jax.live_arrays` and our count agree on what a user holds."""
    start, known = bytes_in_use(), sum(a.nbytes for a in jax.live_arrays("arena"))
    held = [put(n) for n in (5, 50, 500, 5000)]
    grown = sum(a.nbytes for a in jax.live_arrays("arena")) - known
    assert grown == sum(a.nbytes for a in held)
    eventually(lambda: bytes_in_use() - start, grown)
