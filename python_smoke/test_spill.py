"""More than the limit: arrays that no program uses go to memory of the host, and come back. Each case in a process.

What is computed is compared bit for bit with JAX's CPU backend, which has no limit.
"""

import subprocess
import textwrap

import pytest
from harness import run_jax

pytestmark = pytest.mark.arena

#: Every case begins with this.
COMMON = """
import gc, threading
import jax, jax.numpy as jnp, numpy as np
from harness import arena_device, eventually, stats
from pjrt_arena import memory

MIB = 1 << 20

def spill():
    return memory.counters().devices[0].spill

def ramp(number, mib=1):
    return jax.device_put(np.arange(mib * MIB // 4, dtype=np.float32) + np.float32(number), arena_device())

def check(arrays, add=0):
    for number, array in enumerate(arrays):
        host = np.arange(array.size, dtype=np.float32) + np.float32(number)
        assert (np.asarray(array) == host + np.float32(add)).all(), number
"""


def run_case(code: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs COMMON and `code`, whose arrays all lie in the arena, however NumPy's are aligned."""
    return run_jax(
        COMMON + textwrap.dedent(code),
        **{"PJRT_ARENA_ZERO_COPY": "off", "PJRT_ARENA_SPILL": "host", "PJRT_ARENA_LIMIT": "16MiB"} | settings,
    )


TRAINING = """
    LAYERS, WIDTH = 8, 256

    def layer(weights, x):
        return x + jax.nn.gelu(x @ weights[0]) @ weights[1]

    def update(weights, first, second, x, gradient, step):
        _, pull = jax.vjp(layer, weights, x)
        of_weights, of_x = pull(gradient)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, of_weights)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, of_weights)
        move = lambda w, m, v: w - 1e-3 * (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.999**step)) + 1e-8)
        return jax.tree.map(move, weights, first, second), first, second, of_x

    def train(device):
        with jax.default_device(device):
            forward, backward = jax.jit(layer), jax.jit(update, donate_argnums=(0, 1, 2))
            loss = jax.jit(jax.value_and_grad(lambda x, y: jnp.mean((x - y) ** 2)))
            random = np.random.default_rng(0)
            draw = lambda *dims: jnp.asarray(random.standard_normal(dims, np.float32) / 16)
            state = []
            for _ in range(LAYERS):
                weights = [draw(WIDTH, 4 * WIDTH), draw(4 * WIDTH, WIDTH)]
                state.append((weights, *([jnp.zeros_like(w) for w in weights] for _ in range(2))))
            x, y, losses = draw(16, WIDTH), draw(16, WIDTH), []
            for step in range(1, 21):
                inputs = [x]
                for weights, _, _ in state:
                    inputs.append(forward(weights, inputs[-1]))
                value, gradient = loss(inputs[-1], y)
                for number in reversed(range(LAYERS)):
                    *new, gradient = backward(*state[number], inputs[number], gradient, jnp.float32(step))
                    state[number] = tuple(new)
                losses.append(float(value))
            assert losses[-1] < losses[0]
            return losses, [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]

    assert train(arena_device()) == train(jax.devices("cpu")[0])
    limit = stats()["bytes_limit"]
    assert stats()["peak_bytes_in_use"] <= limit
    counts = spill()
    assert counts.num_brought_back > 20 * LAYERS, counts
    gc.collect()
    eventually(lambda: (stats()["bytes_in_use"], spill().bytes_in_use), (0, 0))
"""


@pytest.mark.parametrize("compact", ["off", "on"])
@pytest.mark.parametrize("strategy", ["preallocate", "growing", "tpu"])
def test_a_training_that_takes_four_times_the_limit_learns_what_it_learns_without_one(strategy, compact):
    # 8 layers of 6 MiB: weights and Adam's state.
    run_case(TRAINING, PJRT_ARENA_LIMIT="12MiB", PJRT_ARENA_STRATEGY=strategy, PJRT_ARENA_COMPACT=compact)


def test_with_a_block_for_each_array_and_everything_spilled_before_each_allocation():
    run_case(TRAINING, PJRT_ARENA_STRATEGY="platform", PJRT_ARENA_LIMIT="12MiB")
    run_case(TRAINING, PJRT_ARENA_SPILL="always")


PREFETCHED = """
    counts = spill()
    assert 0 < counts.num_prefetched <= counts.num_brought_back, counts
"""


@pytest.mark.parametrize("strategy", ["preallocate", "tpu"])
def test_arrays_that_come_back_before_they_are_needed(strategy):
    run_case(TRAINING + PREFETCHED, PJRT_ARENA_LIMIT="12MiB", PJRT_ARENA_STRATEGY=strategy, PJRT_ARENA_PREFETCH="on")


def test_a_spilled_array_is_read_lent_copied_and_deleted_where_it_is():
    run_case("""
    arrays = [ramp(number) for number in range(40)]
    assert spill().num_spilled >= 24 and spill().num_brought_back == 0
    before = spill()
    check(arrays)
    exported = np.from_dlpack(arrays[0])
    assert spill().num_brought_back == 0, "reading needs no way back"
    copies = [jnp.copy(array) for array in arrays[:4]]
    views = [np.asarray(array) for array in arrays[:8]]
    places = [view.ctypes.data for view in views]
    more = [ramp(number) for number in range(40, 60)]
    assert [view.ctypes.data for view in views] == places
    check(views)
    check(copies)
    [array.delete() for array in arrays[8:20]]
    check(arrays[:8])
    del arrays, more, copies
    gc.collect()
    check(views)
    assert (exported == np.arange(MIB // 4)).all()
    """)


def test_programs_read_what_an_outsider_keeps_in_the_tier_and_do_not_consume_it():
    run_case("""
    arrays = [ramp(number) for number in range(40)]
    views = [np.asarray(array) for array in arrays[:4]]
    places = [view.ctypes.data for view in views]
    add = jax.jit(lambda x: x + 1)
    check([add(array) for array in arrays[:4]], 1)
    take = jax.jit(lambda x: x + 1, donate_argnums=0)
    taken = [take(array) for array in arrays]
    check(taken, 1)
    check(views)
    assert [view.ctypes.data for view in views] == places
    # As without a tier, what an outsider refers to is not consumed.
    assert [array.is_deleted() for array in arrays] == 4 * [False] + 36 * [True]
    check(arrays[:4])
    assert spill().num_brought_back >= 20, spill()
    """)


def test_what_does_not_fit_is_an_error_with_the_numbers_of_both_and_nothing_is_lost():
    run_case(
        """
    arrays = []
    try:
        while len(arrays) < 40:
            arrays.append(ramp(len(arrays)))
        raise AssertionError("there was room")
    except (RuntimeError, ValueError) as error:
        text = str(error)
    assert text.startswith("RESOURCE_EXHAUSTED: "), text
    assert "spilled: " in text and "8.00MiB that PJRT_ARENA_SPILL_LIMIT allows" in text, text
    assert "spilled 8.00MiB in 8 block(s): from host f32[262144]" in text, text
    assert len(arrays) >= 22, len(arrays)
    check(arrays)
    # What outsiders keep is named, and not waited for.
    views = [np.asarray(array) for array in arrays]
    try:
        ramp(0, 4)
        raise AssertionError("there was room")
    except (RuntimeError, ValueError) as error:
        kept = "could not be spilled: 16.00MiB in 16 block(s): external references (NumPy views, dlpack)"
        assert kept in str(error), error
    del views
    # A program's own arguments and results must fit; others of it are as they were.
    many = jax.jit(lambda *x: sum(x), donate_argnums=range(20))
    try:
        many(*arrays[:20])
        raise AssertionError("there was room")
    except (RuntimeError, ValueError) as error:
        assert str(error).startswith("RESOURCE_EXHAUSTED: "), error
    assert not any(array.is_deleted() for array in arrays)
    check(arrays)
    del arrays[12:]
    gc.collect()
    total = jax.jit(lambda *x: sum(x))(*arrays)
    assert (np.asarray(total)[:2] == [66, 78]).all(), total
    """,
        PJRT_ARENA_SPILL_LIMIT="8MiB",
    )


ROUNDS = """
    import ctypes
    ends = jax.jit(lambda x: x[0] + x[-1])
    arrays = [ramp(number) for number in range(40)]

    def visit(rounds):
        for _ in range(rounds):
            sums = [float(ends(array)) for array in arrays]
        return sums

    def copied():
        return spill().spilled_bytes - spill().clean_bytes

    sums = visit(3)
    assert sums == [MIB // 4 - 1 + 2 * number for number in range(40)], sums
"""


def test_an_array_that_was_not_written_since_it_came_back_is_not_copied_again():
    run_case(
        ROUNDS
        + """
    from pjrt_arena import memory
    before, spilled = copied(), spill().num_clean
    assert visit(4) == sums
    # The sums themselves are new arrays, of four bytes.
    assert copied() - before < MIB and spill().num_clean > spilled + 4 * 20, spill()
    assert spill().num_predictions_right > 10 * spill().num_predictions_wrong, spill()
    told = memory.summary().devices[0].spilled
    assert (told.waiting_bytes, told.spilled_bytes) == (25 * MIB, spill().spilled_bytes), told
    assert "  spilled " in str(memory.summary()) and " out, " in str(memory.summary())
    view = np.from_dlpack(arrays[7])
    ends(arrays[8])
    assert ctypes.c_float.from_address(view.ctypes.data).value == 7
    ctypes.c_float.from_address(view.ctypes.data).value = 100
    del view
    gc.collect()
    sums[7] += 93
    assert visit(3) == sums, "an outsider's write is lost"
    [array.delete() for array in arrays]
    eventually(lambda: (spill().bytes_in_use, spill().copies_bytes), (0, 0))
    """
    )


def test_copies_give_way_to_arrays_in_the_tier():
    # 24 of the 40 arrays are in the tier, so that there is no room for the copies of all others.
    run_case(ROUNDS + "    assert visit(3) == sums", PJRT_ARENA_SPILL_LIMIT="25MiB")


def test_threads_whose_programs_do_not_fit_together_take_turns():
    run_case("""
    STEPS = 25
    # Each thread's program takes eleven of the sixteen MiB.
    combine = jax.jit(lambda *x: (x[0] + x[1] * 0, x[9] + 1))
    failures = []

    def work(offset):
        try:
            arrays = [ramp(offset + number) for number in range(10)]
            for step in range(STEPS):
                first, last = combine(*arrays[:9], arrays[9])
                arrays[0], arrays[9] = first, last
            for number, array in enumerate(arrays):
                host = np.arange(MIB // 4, dtype=np.float32) + np.float32(offset + number)
                assert (np.asarray(array) == host + (STEPS if number == 9 else 0)).all(), number
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures, failures
    assert spill().num_brought_back > 0
    """)


@pytest.mark.parametrize("compact", ["off", "on"])
def test_an_array_waits_for_what_a_program_in_its_callers_thread_uses(compact):
    run_case(
        """
    import time
    ROUNDS = 20
    inside, found = threading.Event(), 0

    def call(value):
        inside.set()
        time.sleep(0.03)
        return value

    # While it calls back, nothing but the use of its argument says that it is under way.
    back = jax.jit(lambda x: x[:1] + jax.pure_callback(call, jax.ShapeDtypeStruct((), np.float32), x[0]))
    large = ramp(1, 10)
    assert np.asarray(back(large)) == [2]
    for number in range(ROUNDS):
        inside.clear()
        thread = threading.Thread(target=back, args=(large,))
        thread.start()
        inside.wait()
        try:
            ramp(number, 8)
            found += 1
        except (ValueError, jax.errors.JaxRuntimeError) as error:
            assert "in use by a program or transfer" in str(error), error
        thread.join()
    # It waits a tenth of a second where programs call back; a busy machine may be late with the end of some.
    assert found > ROUNDS // 2, found
    check([large], 1)
    """,
        PJRT_ARENA_COMPACT=compact,
    )


def test_several_devices_spill_each_for_itself():
    run_case(
        """
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    devices = jax.devices("arena")
    mesh = Mesh(np.array(devices), "x")
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    host = np.arange(4 * MIB // 4, dtype=np.float32)
    arrays = [jax.device_put(host + number, sharding) for number in range(40)]
    total = jax.jit(lambda a, b: (a + b, jnp.sum(b)))
    for number in range(39):
        both, _ = total(arrays[number], arrays[number + 1])
        assert (np.asarray(both) == 2 * host + 2 * number + 1).all(), number
    each = [device.spill.num_brought_back for device in memory.counters().devices]
    assert len(each) == 4 and min(each) > 0, each
    """,
        PJRT_ARENA_DEVICES="4",
    )


def test_callbacks_read_arrays_that_were_spilled():
    run_case("""
    arrays = [ramp(number) for number in range(40)]
    double = jax.jit(lambda x: x * 2)

    def host(x):
        assert (np.asarray(double(arrays[3])) == 2 * (np.arange(MIB // 4) + 3)).all()
        return np.asarray(x) + 1

    call = jax.jit(lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    for number in (0, 20, 39):
        assert (np.asarray(call(arrays[number])) == np.arange(MIB // 4) + number + 1).all(), number
    """)


def test_bad_words_are_refused():
    run_case(
        """
    try:
        jax.devices("arena")
        raise AssertionError("it was taken")
    except RuntimeError as error:
        assert "PJRT_ARENA_SPILL=disk" in str(error) and "off, host, always" in str(error), error
    """,
        PJRT_ARENA_SPILL="disk",
    )


def test_a_donation_copy_that_finds_room_in_its_turn_is_no_failure(tmp_path):
    report = tmp_path / "oom.html"
    run_case(
        """
    def floats(mib, beside):
        bytes = np.empty(mib * MIB + 128, np.uint8)
        values = bytes[-bytes.ctypes.data % 64 + beside :][: mib * MIB].view(np.float32)
        values[:] = np.arange(mib * MIB // 4, dtype=np.float32)
        return values

    # NumPy's memory is used in place where it is aligned, and copied where it is not.
    host = floats(8, 0)
    arrays = [jax.device_put(floats(1, 4), arena_device()) for _ in range(16)]
    jax.block_until_ready(arrays)
    # The arguments divide the memory.
    [array.delete() for array in arrays[1::2]]
    lent = jax.device_put(host, arena_device())
    eventually(lambda: stats()["bytes_in_use"], 8 * MIB)
    out = jax.jit(lambda x, *all: x + 1, donate_argnums=0, keep_unused=True)(lent, *arrays[::2])
    assert (np.asarray(out) == host + 1).all()
    for number in range(0, 16, 2):
        assert (np.asarray(arrays[number]) == np.arange(MIB // 4)).all(), number
    """,
        PJRT_ARENA_ZERO_COPY="on",
        PJRT_ARENA_COMPACT="off",
        PJRT_ARENA_STRATEGY="preallocate",
        PJRT_ARENA_OOM_REPORT=str(report),
    )
    assert not report.exists(), "a failure was reported"


def test_a_training_whose_arrays_go_to_files_learns_the_same(tmp_path):
    run_case(TRAINING, PJRT_ARENA_LIMIT="12MiB", PJRT_ARENA_SPILL=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_arrays_in_files_are_read_there_and_a_disk_that_fails_harms_nothing_else(tmp_path):
    run_case(
        """
    import os
    arrays = [ramp(number) for number in range(40)]
    assert spill().bytes_in_use >= 24 * MIB and not os.listdir(os.environ["PJRT_ARENA_SPILL"])
    check(arrays)
    assert spill().num_brought_back == 0
    add = jax.jit(lambda x: x + 1)
    check([add(array) for array in arrays], 1)
    for name in os.listdir("/proc/self/fd"):
        path = os.path.join("/proc/self/fd", name)
        if os.path.isfile(path) and os.environ["PJRT_ARENA_SPILL"] in os.readlink(path):
            assert os.stat(path).st_mode & 0o777 == 0o600
            os.truncate(path, 0)
    good = []
    for number, array in enumerate(arrays):
        for read in (
            lambda: np.asarray(array),
            lambda: jax.device_put(array, jax.devices("cpu")[0]).block_until_ready(),
            lambda: jnp.copy(array).block_until_ready(),
            lambda: add(array).block_until_ready(),
        ):
            try:
                read()
                good.append(number)
            except (RuntimeError, ValueError) as error:
                assert "reading 1048576 bytes of a spilled array from " in str(error), error
    assert 0 < len(good) < 160, good
    [array.delete() for number, array in enumerate(arrays) if number not in good]
    fresh = [ramp(number) for number in range(4)]
    check(fresh)
    check([add(array) for array in fresh], 1)
    """,
        PJRT_ARENA_SPILL=str(tmp_path),
    )


def test_arrays_in_files_stay_the_parents_after_a_fork(tmp_path):
    run_case(
        """
    import os
    arrays = [ramp(number) for number in range(40)]
    jax.block_until_ready(arrays)
    child = os.fork()
    if child == 0:
        refused = 0
        for array in arrays:
            try:
                np.asarray(array)
            except RuntimeError as error:
                refused += "of the parent of this process" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) >= 24
    check(arrays)
    """,
        PJRT_ARENA_SPILL=str(tmp_path),
    )


def test_spills_and_returns_are_in_the_history_and_launches_can_be_replayed(tmp_path):
    run_case(
        ROUNDS
        + """
    import json, os
    from pjrt_arena import memory
    folder = os.environ["TEST_FOLDER"]
    memory.snapshot(folder + "/all.json")
    events = json.load(open(folder + "/all.json"))["devices"][0]["events"]
    kinds, counts = events["kind"], spill()
    assert kinds.count(11) == counts.num_spilled and kinds.count(12) == counts.num_brought_back, counts
    # What was copied, of those that were spilled.
    copied = [other for kind, other in zip(kinds, events["other"]) if kind == 11]
    assert sum(copied) == counts.spilled_bytes - counts.clean_bytes and copied.count(0) == counts.num_clean
    memory.snapshot(folder + "/all.perfetto.json")
    trace = json.load(open(folder + "/all.perfetto.json"))["traceEvents"]
    slices = [event for event in trace if event["name"] == "spill"]
    assert len(slices) == counts.num_spilled and all(event["dur"] >= 0 for event in slices)
    told = json.load(open(memory.launches(folder + "/launches.json")))
    assert told["limit"] == 16 * MIB and len(told["launches"]) == 3 * 40, told["limit"]
    assert [launch["program"] for launch in told["launches"]] == 120 * ["jit__lambda"]
    names = [launch["arguments"][0][0] for launch in told["launches"]]
    assert names == 3 * names[:40] and len(set(names)) == 40 and set(names) <= set(told["alive"])
    assert told["launches"][0]["arguments"][0][1:] == [MIB, False]
    """,
        PJRT_ARENA_HISTORY="100000",
        TEST_FOLDER=str(tmp_path),
    )
    run_case(
        """
    from pjrt_arena import memory
    ramp(0)
    try:
        memory.launches("/tmp/never")
        raise AssertionError("there are launches")
    except memory.ArenaError as error:
        assert "no device spills" in str(error), error
    """,
        PJRT_ARENA_SPILL="off",
    )


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    for folder, why in ((tmp_path / "missing", "No such file"), (tmp_path / "link", "it is a symbolic link")):
        run_case(
            f"""
        try:
            ramp(0)
            raise AssertionError("it started")
        except RuntimeError as error:
            assert "arrays cannot go to the folder {folder}: {why}" in str(error), error
        """,
            PJRT_ARENA_SPILL=str(folder),
        )
