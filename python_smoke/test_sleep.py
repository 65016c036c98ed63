"""Devices that sleep and wake: all arrays go to the host or to files, and come back. Each case in a process."""

import pytest
from test_spill import run_case

pytestmark = pytest.mark.arena


def test_a_device_sleeps_and_wakes():
    run_case(
        """
    from pjrt_arena import memory
    add = jax.jit(lambda x: x + 1)
    kept, arrays = ramp(100), [ramp(number) for number in range(10)]
    arrays = [add(array) for array in arrays]
    [told] = memory.sleep(keep={"a": [kept]})
    assert told.device == "cpu:0" and told.spilled_bytes == 10 * MIB, told
    assert told.bytes_in_use == stats()["bytes_in_use"] == MIB, told
    assert [(holder.bytes, holder.num_blocks) for holder in told.holders] == [(MIB, 1)], told
    assert "from host f32[262144]" in told.holders[0].origin, told
    assert spill().bytes_in_use == 10 * MIB
    # Programs wake what they need.
    assert float(add(arrays[0])[0]) == 2
    assert stats()["bytes_in_use"] >= 2 * MIB
    [told] = memory.wake(jax.devices("arena"))
    assert (told.brought_back_bytes, told.waiting_bytes) == (9 * MIB, 0), told
    check(arrays, 1)
    views = [np.asarray(array) for array in arrays[:4]]
    [told] = memory.sleep(["cpu:0"])
    assert (told.spilled_bytes, told.bytes_in_use) == (7 * MIB, 4 * MIB), told
    for wrong, text in ((["cpu:7"], "'cpu:7'"), ("cpu:7", "'cpu:7'"), (jax.devices("cpu"), "CpuDevice(id=0)")):
        try:
            memory.sleep(wrong)
        except memory.ArenaError as error:
            assert f"{text} is no device of pjrt-arena; there are: cpu:0" in str(error), error
        else:
            raise AssertionError(wrong)
    try:
        memory.sleep(keep=[np.zeros(3)])
        raise AssertionError("kept what is no array of JAX")
    except TypeError as error:
        assert "keep has a ndarray" in str(error), error
    """,
        PJRT_ARENA_LIMIT="64MiB",
    )
    run_case(
        """
    from pjrt_arena import memory
    ramp(0)
    try:
        memory.sleep()
        raise AssertionError("it slept")
    except memory.ArenaError as error:
        assert "cpu:0 cannot sleep: its arrays have nowhere to go" in str(error), error
    """,
        PJRT_ARENA_SPILL="off",
    )


def test_sleep_spills_once_while_threads_launch_and_says_what_is_still_under_way():
    run_case(
        """
    add, stop = jax.jit(lambda x: x + 1), threading.Event()
    arrays = [ramp(number) for number in range(10)]

    def work(number):
        while not stop.is_set():
            add(arrays[number]).block_until_ready()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(3)]
    [thread.start() for thread in threads]
    told = [memory.sleep()[0] for _ in range(5)]
    stop.set()
    [thread.join() for thread in threads]
    # Ten arrays, and the results of three threads.
    assert max(one.spilled_bytes for one in told) <= 16 * MIB, told
    [told] = memory.sleep()
    assert (told.num_under_way, told.bytes_in_use) == (0, 0), told
    inside, ends = threading.Event(), threading.Event()

    def host(x):
        inside.set()
        ends.wait()
        return x

    call = jax.jit(lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1)
    thread = threading.Thread(target=lambda: call(arrays[0]).block_until_ready(), daemon=True)
    thread.start()
    inside.wait()
    [told] = memory.sleep()
    assert told.num_under_way >= 1 and told.bytes_in_use >= MIB and told.holders, told
    ends.set()
    thread.join()
    eventually(lambda: (lambda told: (told.num_under_way, told.bytes_in_use))(memory.sleep()[0]), (0, 0))
    check(arrays)
    """,
        PJRT_ARENA_LIMIT="64MiB",
    )


def test_one_array_that_cannot_be_read_does_not_keep_the_others_away(tmp_path):
    run_case(
        """
    import os
    arrays = [ramp(number) for number in range(10)]
    [told] = memory.sleep()
    assert told.spilled_bytes == 10 * MIB, told
    paths = [os.path.join("/proc/self/fd", name) for name in sorted(os.listdir("/proc/self/fd"), key=int)]
    files = [path for path in paths if os.path.isfile(path) and os.environ["PJRT_ARENA_SPILL"] in os.readlink(path)]
    # Two arrays of ten, neither the first nor the last.
    assert [os.stat(path).st_size // MIB for path in files] == [2, 2, 4, 8]
    os.truncate(files[1], 0)
    try:
        memory.wake()
        raise AssertionError("all could be read")
    except memory.ArenaError as error:
        assert "cpu:0: reading 1048576 bytes of a spilled array from " in str(error), error
        assert str(error).endswith("; 8,388,608 bytes of others came back"), error
    assert (stats()["bytes_in_use"], spill().bytes_in_use) == (8 * MIB, 10 * MIB)
    assert spill().copies_bytes == 8 * MIB
    """,
        PJRT_ARENA_SPILL=str(tmp_path),
        PJRT_ARENA_LIMIT="64MiB",
    )


def test_a_device_that_sleeps_gives_its_memory_back_when_its_arrays_are_in_files(tmp_path):
    run_case(
        """
    from pjrt_arena import memory
    def resident():
        with open("/proc/self/smaps_rollup") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("Rss:"))
    ramp(0).block_until_ready()
    before = resident()
    arrays = [ramp(number, 8) for number in range(32)]
    assert resident() > before + 200 * MIB
    [told] = memory.sleep()
    assert told.spilled_bytes >= 256 * MIB and told.bytes_in_use == 0, told
    assert resident() < before + 32 * MIB, (resident() - before) / MIB
    memory.wake()
    check(arrays)
    """,
        PJRT_ARENA_SPILL=str(tmp_path),
        PJRT_ARENA_LIMIT="512MiB",
    )


def test_a_device_on_which_nothing_is_done_goes_to_sleep_by_itself(tmp_path):
    run_case(
        """
    arrays = [ramp(number) for number in range(10)]
    eventually(lambda: stats()["bytes_in_use"], 0)
    assert spill().bytes_in_use == 10 * MIB
    add = jax.jit(lambda x: x + 1)
    check([add(array) for array in arrays], 1)
    eventually(lambda: stats()["bytes_in_use"], 0)
    """,
        PJRT_ARENA_SPILL=str(tmp_path),
        PJRT_ARENA_LIMIT="512MiB",
        PJRT_ARENA_SLEEP_AFTER="1",
    )
