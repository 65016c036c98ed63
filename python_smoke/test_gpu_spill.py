"""More than a GPU holds: arrays go to pinned memory of the host, and come back. The GPU is simulated (`fake_gpu`), and
ends the process where something is read, written or freed that is still in use.
"""

import textwrap

import fake_gpu
import pytest
from fake_gpu import run_on_gpu
from test_spill import PREFETCHED, TRAINING

pytestmark = [
    pytest.mark.arena,
    pytest.mark.skipif(not fake_gpu.is_built(), reason="the GPU for tests is built by cargo, beside the library"),
]

#: Every case begins with this.
COMMON = (
    """
import gc, threading
import jax, jax.numpy as jnp, numpy as np
from harness import eventually
from pjrt_arena import memory

MIB = 1 << 20
gpu = jax.devices()[0]
arena_device = lambda: gpu
assert gpu.platform == "gpu"

def stats():
    return gpu.memory_stats()

def spill(number=0):
    return memory.stats()[number].spill

def ramp(number, mib=1, device=gpu):
    return jax.device_put(np.arange(mib * MIB // 4, dtype=np.float32) + np.float32(number), device)

def check(arrays, add=0):
    for number, array in enumerate(arrays):
        host = np.arange(array.size, dtype=np.float32) + np.float32(number)
        assert (np.asarray(array) == host + np.float32(add)).all(), number
"""
    + fake_gpu.ERROR_OF
)


def run_case(code: str, *, check: bool = True, **settings):
    settings = {"PJRT_ARENA_SPILL": "host", "PJRT_ARENA_LIMIT": "16MiB"} | settings
    return run_on_gpu(COMMON + textwrap.dedent(code), check=check, **settings)


@pytest.mark.parametrize("strategy", ["preallocate", "growing", "platform", "tpu"])
def test_a_training_that_takes_four_times_the_limit_learns_what_it_learns_without_one(strategy):
    run_case(TRAINING, PJRT_ARENA_STRATEGY=strategy, PJRT_ARENA_LIMIT="16MiB")


def test_arrays_that_come_back_before_they_are_needed():
    run_case(TRAINING + PREFETCHED, PJRT_ARENA_LIMIT="16MiB", PJRT_ARENA_PREFETCH="on")


def test_everything_spilled_before_each_allocation():
    run_case(TRAINING, PJRT_ARENA_SPILL="always", PJRT_ARENA_LIMIT="64MiB", latency_us=20)


@pytest.mark.parametrize("era", fake_gpu.ERAS)
def test_a_spilled_array_is_read_copied_lent_donated_and_deleted(era):
    run_case(
        """
    arrays = [ramp(number) for number in range(40)]
    assert spill().num_spilled >= 24 and spill().num_brought_back == 0, spill()
    check(arrays)
    copies = [jnp.copy(array) for array in arrays[:4]]
    check(copies)
    exported = [array.__dlpack__() for array in arrays[:3]]
    add = jax.jit(lambda x: x + 1)
    check([add(array) for array in arrays[:6]], 1)
    more = [ramp(number) for number in range(40, 60)]
    take = jax.jit(lambda x: x + 1, donate_argnums=0)
    taken = [take(array) for array in arrays[3:12]]
    check([array - 3 for array in taken], 1)
    refused = error_of(lambda: take(arrays[0]))
    assert "external reference" in refused, refused
    check(arrays[:3])
    [array.delete() for array in arrays[12:20]]
    elsewhere = jax.device_put(arrays[20:30], jax.devices()[1])
    check([array - 20 for array in elsewhere])
    moved = jax.device_put(arrays[30], jax.sharding.SingleDeviceSharding(gpu, memory_kind="pinned_host"))
    assert (np.asarray(moved) == np.asarray(arrays[30])).all()
    assert spill().num_brought_back > 0
    del arrays, more, taken, copies, elsewhere, exported, moved
    gc.collect()
    eventually(lambda: (stats()["bytes_in_use"], spill().bytes_in_use), (0, 0))
    """,
        era=era,
        gpus=2,
    )


def test_an_address_of_a_spilled_array_is_one_on_the_gpu():
    run_case(
        """
    arrays = [ramp(number) for number in range(40)]
    assert spill().num_brought_back == 0
    exported = [array.__dlpack__() for array in arrays[::5]]
    lent = spill().num_brought_back
    assert lent > 0, "none of eight was away, or none came back"
    addresses = [array.unsafe_buffer_pointer() for array in arrays[1::20]]
    more = [ramp(number) for number in range(40, 60)]
    assert addresses == [array.unsafe_buffer_pointer() for array in arrays[1::20]]
    check(arrays)
    """
    )


def test_a_donated_array_that_stays_in_the_tier_is_copied_by_the_gpu():
    """The host may not touch a GPU's memory here."""
    run_case(
        """
    arrays = [ramp(0, 4) for _ in range(5)]
    addresses = [array.unsafe_buffer_pointer() for array in arrays]

    def is_on_gpu(address):
        ranges = [line.split()[0] for line in open("/proc/self/maps") if "fake-gpu" in line]
        ends = [[int(end, 16) for end in range.split("-")] for range in ranges]
        return any(start <= address < end for start, end in ends)

    # Four fill the GPU, and their addresses keep them there.
    [x] = [array for array, address in zip(arrays, addresses) if not is_on_gpu(address)]
    [array.delete() for array in arrays if array is not x]
    y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    check([y], 1)
    assert x.is_deleted()
    """,
        FAKE_CUDA_GUARD="1",
    )


def test_what_does_not_fit_names_both_memories_and_nothing_is_lost():
    run_case(
        """
    arrays = [ramp(number) for number in range(20)]
    error = error_of(lambda: jax.jit(lambda *a: a[0] + 1, donate_argnums=0, keep_unused=True)(*arrays))
    assert error.startswith("RESOURCE_EXHAUSTED") and "spilled: " in error and "PJRT_ARENA_SPILL_LIMIT" in error, error
    assert not any(array.is_deleted() for array in arrays)
    check(arrays)
    error = error_of(lambda: [ramp(number) for number in range(40)])
    assert error.startswith("RESOURCE_EXHAUSTED"), error
    assert "of the 8.00MiB that PJRT_ARENA_SPILL_LIMIT allows" in error, error
    check(arrays)
    """,
        PJRT_ARENA_SPILL_LIMIT="8MiB",
    )


def test_threads_whose_programs_do_not_fit_together_take_turns():
    run_case(
        """
    sums = jax.jit(lambda *a: sum(a))
    sets = [[ramp(4 * of + number) for number in range(4)] for of in range(8)]
    failed = []

    def work(of):
        try:
            for _ in range(10):
                expected = 4 * np.arange(MIB // 4, dtype=np.float32) + np.float32(sum(range(4 * of, 4 * of + 4)))
                assert np.allclose(np.asarray(sums(*sets[of])), expected, rtol=1e-6)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(of,)) for of in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed, failed
    """,
        PJRT_ARENA_LIMIT="8MiB",
    )


@pytest.mark.parametrize("strategy", ["growing", "tpu"])
def test_a_gpu_that_sleeps_gives_its_memory_back_to_the_driver(strategy):
    """As far as the driver's books say."""
    run_case(
        """
    import ctypes, os
    driver = ctypes.CDLL(os.environ["PJRT_ARENA_CUDA_DRIVER"] if "PJRT_ARENA_CUDA_DRIVER" in os.environ else DRIVER)

    def free():
        values = [ctypes.c_size_t(), ctypes.c_size_t()]
        assert driver.cuMemGetInfo_v2(*map(ctypes.byref, values)) == 0
        return values[0].value

    ramp(0).delete()
    context = ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    memory.trim()
    fresh = free()
    arrays = [ramp(number, 4) for number in range(32)]
    arrays = [jax.jit(lambda x: x + 1)(array) for array in arrays]
    assert fresh - free() >= 128 * MIB
    [told] = memory.sleep()
    assert told.bytes_spilled == 128 * MIB and told.bytes_in_use == 0 and not told.holders, told
    assert fresh - free() <= 2 * MIB, fresh - free()
    assert float(jnp.sum(arrays[3][:2])) == 9
    [told] = memory.wake()
    check(arrays, 1)
    """.replace("DRIVER)", f"{str(fake_gpu.DRIVER)!r})"),
        PJRT_ARENA_STRATEGY=strategy,
        PJRT_ARENA_LIMIT="384MiB",
        memory_mib=512,
    )


def test_a_folder_is_refused():
    run = run_case("ramp(0)", check=False, PJRT_ARENA_SPILL="/tmp")
    assert run.returncode == 1
    assert "PJRT_ARENA_SPILL=/tmp is a folder, and GPUs' arrays are spilled to pinned memory" in run.stderr
