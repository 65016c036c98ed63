"""Processes that share a GPU's memory: physical chunks change hands. Each has a simulated GPU (`fake_gpu`) whose books
are its own; the limit that they share is the group's.
"""

import fake_gpu
import pytest
from fake_gpu import variables
from members import members

pytestmark = [
    pytest.mark.arena,
    pytest.mark.skipif(not fake_gpu.is_built(), reason="the GPU for tests is built by cargo, beside the library"),
]

MIB = 1 << 20

#: What the simulated driver has given to this process, in bytes.
DRIVER = """
import ctypes
driver = ctypes.CDLL(DRIVER)
context = ctypes.c_void_p()
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxPushCurrent_v2(context) == 0

def taken():
    values = [ctypes.c_size_t(), ctypes.c_size_t()]
    assert driver.cuMemGetInfo_v2(*map(ctypes.byref, values)) == 0
    return values[1].value - values[0].value

before = taken()

driver.fake_cuda_configure.argtypes = [ctypes.c_char_p] * 2

def refuse(calls):
    for call in range(1, calls + 1):
        assert driver.fake_cuda_configure(b"fail", b"cuMemCreate:%d" % call) == 0
""".replace("CDLL(DRIVER)", f"CDLL({str(fake_gpu.DRIVER)!r})")


@pytest.mark.parametrize("spill", ["off", "host"])
def test_chunks_change_hands(tmp_path, spill):
    tmp_path.chmod(0o700)
    machine = variables(memory_mib=512, gpus=1, latency_us=20, era=114) | {"PJRT_ARENA_SPILL": spill}
    with members(tmp_path, machine, machine) as (first, second):
        for member in (first, second):
            assert member.do(expression="device().platform") == "gpu"
            member.do(DRIVER)

        def sums():
            held = [member.do(expression="part()['held_bytes']") for member in (first, second)]
            driver = [member.do(expression="taken() - before") for member in (first, second)]
            assert sum(held) <= 64 * MIB, held
            assert all(of <= by + 2 * MIB for of, by in zip(driver, held, strict=True)), (held, driver)
            return driver

        first.do("keep(12, 4); check()")
        assert sums()[0] >= 46 * MIB
        if spill == "off":
            # Holes of 4 MiB between arrays of 4 MiB: the memory behind them goes without a move.
            first.do("kept = kept[::2]; gc.collect()")
        second.do("keep(8, 4); check()")
        first.do("check()")
        driver = sums()
        assert driver[1] >= 30 * MIB and driver[0] <= 34 * MIB, driver
        assert second.do(expression="part()['num_asked']") >= 1
        assert first.do(expression="part()['given_bytes']") >= 14 * MIB
        # Programs, too, whose scratch is the group's as well.
        second.do("step = jax.jit(lambda x: jnp.sort(x)[::-1]); sums = [float(step(a)[0]) for n, a in kept[:2]]")
        sums()
        first.end()
        second.end()


def test_an_array_of_many_chunks_is_asked_for_as_a_whole(tmp_path):
    tmp_path.chmod(0o700)
    machine = variables(memory_mib=512, gpus=1, latency_us=20, era=114)
    with members(tmp_path, machine, machine) as (first, second):
        # Holes of 4 MiB, with two chunks behind each, are 24 of 48 MiB, and 16 are free: who takes what is free chunk
        # by chunk lacks only the next one, and gives all back before it asks for that.
        first.do("keep(12, 4); kept = kept[::2]; gc.collect()")
        second.do("keep(1, 30); check()")
        told = second.do(expression="part()")
        assert told["num_asked"] == 1 and told["asked_bytes"] >= 12 * MIB, told
        assert first.do("check()", "part()")["given_bytes"] >= 12 * MIB
        # What programs take is refused with the names of those who have the memory.
        second.do("values = ramp(0, 1); sort = jax.jit(lambda x: jnp.sort(jnp.tile(x, 60))[::-1][:8])")
        text = second.do(expression="error_of(lambda: sort(values).block_until_ready())")
        assert f"process {first.pid} (" in text and "of the limit of 64.00MiB are this process's" in text, text
        first.end()
        second.end()


def test_a_hole_whose_memory_others_have_is_filled_again(tmp_path):
    """A few bytes fit in a hole, and the memory behind it went to the other process: that is asked for."""
    tmp_path.chmod(0o700)
    machine = variables(memory_mib=512, gpus=1, latency_us=20, era=114) | {"PJRT_ARENA_SPILL": "host"}
    with members(tmp_path, machine, machine) as (first, second):
        first.do("keep(24, 2); kept = kept[::2]; gc.collect()")
        second.do("keep(26, 2); check()")
        assert first.do(expression="part()['given_bytes']") >= 20 * MIB
        first.do("few = [ramp(number, 1 / 64) for number in range(3)]; check()")
        second.do("check()")
        assert first.do(expression="part()['num_asked']") >= 1
        first.end()
        second.end()


def test_the_driver_may_have_memory_of_a_dead_process_for_a_moment(tmp_path):
    tmp_path.chmod(0o700)
    machine = variables(memory_mib=512, gpus=1, latency_us=20, era=114)
    with members(tmp_path, machine, machine) as (first, second):
        second.do(DRIVER)
        first.do("keep(12, 4)")
        second.do("keep(2, 4)")
        first.kill()
        # The third array is of the dead one's memory. The driver refuses the next ones for a while, and then gives it:
        # an allocation that is not tried again has 20 calls refused.
        second.do("keep(3, 4, first=2); refuse(100); keep(8, 4, first=5); check()")
        # Where nobody has died the driver's word is final.
        second.do("time.sleep(1.5); kept = kept[:1]; gc.collect(); memory.trim(); refuse(100)")
        text = second.do(expression="error_of(lambda: ramp(0, 40))")
        assert "CUDA_ERROR_OUT_OF_MEMORY" in text and "of the limit of 64.00MiB are this process's" in text, text
        second.do("check()")
        second.end()


def test_devices_of_another_platform_are_not_shared(tmp_path):
    tmp_path.chmod(0o700)
    machine = variables(memory_mib=512, gpus=1, latency_us=20, era=114)
    with members(tmp_path, {}) as (first,), members(tmp_path, machine) as (second,):
        first.do("keep(1, 4); check()")
        second.do("keep(1, 4); check()")
        wrote = second.end()
        assert "has no effect" in wrote and "its members share devices of the platform `cpu`" in wrote, wrote
        first.end()
