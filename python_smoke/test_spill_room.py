"""What is done before arrays are spilled, what a tier that refuses says, and what goes back to the system."""

from test_spill import run_case


def test_arrays_are_compacted_before_others_are_spilled():
    run_case(
        """
    arrays = [ramp(number) for number in range(16)]
    del arrays[::2]
    gc.collect()
    # Eight MiB are free, in pieces of one.
    four = jax.jit(lambda x: jnp.tile(x, 4))(arrays[0])
    assert (np.asarray(four) == np.tile(np.arange(MIB // 4) + 1, 4)).all()
    assert spill().num_spilled == 0, spill()
    five = jax.jit(lambda x: jnp.tile(x, 5))(arrays[0])
    assert (np.asarray(five) == np.tile(np.arange(MIB // 4) + 1, 5)).all()
    # One was missing.
    assert spill().spilled_bytes <= 2 * MIB, spill()
    """,
        PJRT_ARENA_COMPACT="on",
    )


def test_arguments_that_come_back_together():
    run_case("""
    arrays = [ramp(number) for number in range(40)]
    total = jax.jit(lambda *x: sum(x))
    for first in range(0, 40, 10):
        # One of them twice.
        args = [*arrays[first : first + 10], arrays[first]]
        out = np.asarray(total(*args))
        want = 11 * np.arange(MIB // 4, dtype=np.float32) + np.float32(11 * first + 45)
        assert (out == want).all(), first
    check(arrays)
    """)


def test_trimming_gives_the_memory_of_the_tier_back():
    run_case("""
    def resident():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))

    arrays = [ramp(number) for number in range(80)]
    assert spill().bytes_in_use == 64 * MIB
    # What is left keeps the tier in one piece.
    kept = arrays[::8]
    [array.delete() for number, array in enumerate(arrays) if number % 8]
    del arrays
    before = resident()
    given = memory.trim()
    # The device has no more than 16.
    assert given[0].returned_bytes > 40 * MIB, given
    assert before - resident() > 40 * MIB, (before, resident())
    for number, array in enumerate(kept):
        assert (np.asarray(array)[:2] == [8 * number, 8 * number + 1]).all(), number
    check([ramp(number) for number in range(40)])
    """)


def test_a_tier_that_the_system_refuses_memory_says_why(tmp_path):
    run_case(
        """
    import resource
    ramp(0)
    # No file of the tier may be larger.
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    arrays = []
    try:
        while len(arrays) < 40:
            arrays.append(ramp(len(arrays)))
        raise AssertionError("there was room")
    except (RuntimeError, ValueError) as error:
        text = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert text.startswith("RESOURCE_EXHAUSTED: "), text
    assert "could not be spilled: 16.00MiB in 16 block(s): no room in the tier" in text, text
    assert "the tier's last error: " in text and "larger than `ulimit -f` allows" in text, text
    check(arrays)
    arrays += [ramp(number) for number in range(len(arrays), 40)]
    check(arrays)
    """,
        PJRT_ARENA_SPILL=str(tmp_path),
    )


def test_launches_of_two_threads_are_noted_once_and_in_order(tmp_path):
    run_case(
        """
    import json, os
    # Two programs at a time do not fit: launches wait, and try again.
    total = jax.jit(lambda *x: sum(x))
    failures = []

    def work(offset):
        try:
            arrays = [ramp(offset + number) for number in range(9)]
            for _ in range(30):
                total(*arrays).block_until_ready()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures, failures
    path = os.path.join(os.environ["TEST_FOLDER"], "launches.json")
    memory.launches(path)
    with open(path) as file:
        steps = [launch["step"] for launch in json.load(file)["launches"]]
    assert len(steps) >= 90 and steps == sorted(set(steps)), steps
    """,
        TEST_FOLDER=str(tmp_path),
    )


def test_a_launch_that_waits_for_another_program_says_so():
    result = run_case(
        """
    import time
    large = [jnp.zeros(MIB // 4, device=arena_device()) for _ in range(10)]
    sines = lambda count, x, *others: jax.lax.fori_loop(0, count, lambda _, y: jnp.sin(y), x)
    turns = jax.jit(sines, keep_unused=True)
    turns(1, large[0]).block_until_ready()
    turns(1, *large).block_until_ready()
    count = 64
    while True:
        since = time.perf_counter()
        turns(count, large[0]).block_until_ready()
        took = time.perf_counter() - since
        if took > 0.2:
            break
        count *= 4
    running = threading.Thread(target=lambda: turns(int(count * 4 / took), *large).block_until_ready())
    running.start()
    time.sleep(0.5)
    arrays = [ramp(number) for number in range(9)]
    total = jax.jit(lambda *x: sum(x))(*arrays)
    assert float(total[0]) == 36, total
    running.join()
    """,
        PJRT_ARENA_COMPACT="on",
        PJRT_ARENA_LOG="info",
    )
    assert "waits for memory, for 1." in result.stderr, result.stderr
