"""JAX on GPUs whose memory is ours: every strategy, defragmentation, one budget, the order of copies and programs.

The GPUs are simulated (`fake_gpu`); on real ones the same is shown by `python_smoke/gpu`. In each test a process that
leaves the driver's rules, or reads, writes, moves or frees memory that something else still uses, fails.
"""

from __future__ import annotations

import json

import fake_gpu
import pytest
from fake_gpu import run_on_gpu

pytestmark = [
    pytest.mark.arena,
    pytest.mark.skipif(not fake_gpu.is_built(), reason="the GPU for tests is built by cargo, beside the library"),
]

HEAD = (
    """
import json
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from pjrt_arena import memory

gpu = jax.devices()[0]
assert (gpu.platform, jax.default_backend()) == ("gpu", "gpu"), gpu
MIB = 1 << 20

def stats(device=gpu):
    return device.memory_stats()

def full(mib, value):
    return jax.device_put(np.full((mib * MIB // 4,), value, np.float32))
"""
    + fake_gpu.ERROR_OF
)

STRATEGIES = ("preallocate", "growing", "platform", "tpu")


def told(code: str, **machine) -> dict:
    run = run_on_gpu(HEAD + code, **machine)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("era", fake_gpu.ERAS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_programs_transfers_and_donation(strategy, era):
    answer = told(
        """
host = np.random.default_rng(0).random((300, 400), np.float32)
x = jax.device_put(host)
y = jax.jit(lambda x: jnp.tanh(x @ x.T).sum(axis=0))(x)
assert np.allclose(np.asarray(y), np.tanh(host @ host.T).sum(axis=0), rtol=1e-4)
assert (np.asarray(jax.device_put(host[::-2, ::3])) == host[::-2, ::3]).all()      # strided
step = jax.jit(lambda s, d: (s + d, (s * d).sum()), donate_argnums=0)
state, at = jnp.zeros((1 << 18,)), []
for number in range(30):
    old = state
    state, loss = step(state, float(number))
    at.append(state.unsafe_buffer_pointer() if number == 29 else 0)
    assert old.is_deleted()
assert float(state[7]) == sum(range(30))
copied = jax.device_put(state, may_alias=False)
state, loss = step(state, 1.0)                     # writes where the copy is still read
assert float(copied[7]) == sum(range(30)) and float(state[7]) == sum(range(30)) + 1
grads = jax.grad(lambda w: jnp.square(w).sum())(jnp.arange(8.0))
assert grads.tolist() == [2.0 * i for i in range(8)]
del x, y, state, loss, copied, old, grads
print(json.dumps({"in_use": stats()["bytes_in_use"], "limit": stats()["bytes_limit"], "pool": stats()["pool_bytes"]}))
""",
        PJRT_ARENA_STRATEGY=strategy,
        era=era,
    )
    assert answer["limit"] == 384 << 20
    assert answer["in_use"] < 4096
    if strategy == "platform":
        assert answer["pool"] < 8192, "each array's memory goes back to the driver"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_arrays_without_elements_have_no_address_and_take_nothing(strategy):
    """As on JAX's own `cuda`: XLA asks for the GPU of any other address (engine behaviour T42)."""
    told(
        """
before = stats()["bytes_in_use"]
made = {
    "put": jax.device_put(np.ones((2, 0), np.float32)),
    "result": jax.jit(lambda x: x[:, :0] + 1)(jnp.ones((3, 2))),
    "donated": jax.jit(lambda x: x * 2, donate_argnums=0)(jnp.zeros((0, 5))),
    "one of several": jax.jit(lambda x: (x + 1, x[:0], x * 2))(jnp.arange(4.0))[1],
}
made["copied"] = jnp.array(made["put"], copy=True)
made["argument"] = jax.jit(lambda e, x: e * x[0])(made["put"], np.full(2, 42, np.float32))
for name, array in made.items():
    assert array.unsafe_buffer_pointer() == 0, name
    assert np.asarray(array).shape == array.shape
assert stats()["bytes_in_use"] == before, stats()
print("{}")
""",
        PJRT_ARENA_STRATEGY=strategy,
    )


FRAGMENT = """
size = 8
count = stats()["bytes_limit"] // (size * MIB) - 1
arrays = [full(size, i) for i in range(count)]
kept, arrays = arrays[::2], None
large = lambda: jnp.ones((stats()["bytes_limit"] // 3 // 4,), jnp.float32)
"""
INTACT = "intact = all((np.asarray(a) == 2.0 * i).all() for i, a in enumerate(kept))\n"


def test_defragmentation_makes_room_that_other_strategies_do_not_have():
    """jax-ml/jax#9064 on a GPU."""
    answer = told(
        FRAGMENT + "error = error_of(large)\n" + INTACT + "print(json.dumps([error, intact]))",
        PJRT_ARENA_STRATEGY="preallocate",
    )
    error, intact = answer
    assert error.startswith("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 128.00MiB") and intact
    assert "enough is free, but not in one piece" in error
    answer = told(
        FRAGMENT
        + "x = large()\nassert float(x[-1]) == 1.0 and float(x.sum()) == x.size\n"
        + INTACT
        + "moved = memory.summary().devices[0]\n"
        + "print(json.dumps([intact, moved.moved_bytes]))",
        PJRT_ARENA_STRATEGY="tpu",
    )
    assert answer[0] and answer[1] != 0


@pytest.mark.parametrize("settings", [{"PJRT_ARENA_STRATEGY": "tpu"}, {"PJRT_ARENA_SPILL": "always"}])
def test_an_address_that_the_cuda_array_interface_told_stays(settings):
    """jaxlib refers to the array only while it makes the answer; CuPy and Numba use it as long as the array lives."""
    stayed, intact = told(
        FRAGMENT
        + """
addresses = lambda: [array.__cuda_array_interface__["data"][0] for array in kept[1::12]]
before = addresses()
x = jnp.ones((stats()["bytes_limit"] // 4 // 4,), jnp.float32)
assert float(x.sum()) == x.size
memory.compact()
stayed = addresses() == before
"""
        + INTACT
        + "print(json.dumps([stayed, intact]))",
        **settings,
    )
    assert stayed and intact


def test_arrays_and_scratch_share_one_limit():
    """Arrays give memory to programs' scratch and take it back; a program that does not fit consumes nothing."""
    answer = told(
        """
n = 12 << 20                                          # 48 MiB
@partial(jax.jit, donate_argnums=0)
def program(x):
    return jnp.sort(jnp.cumsum(jnp.sort(x[::-1])) % 97) + x
x = jax.device_put((np.arange(n) % 7).astype(np.float32))
compiled = program.lower(x).compile()
scratch = compiled.memory_analysis().temp_size_in_bytes
x = compiled(x)
first = float(x[5])
reserved = stats()["bytes_reserved"]
rest = []
error = error_of(lambda: [rest.append(full(8, 1)) or jax.block_until_ready(rest) for _ in range(100)])
taken_back = stats()["bytes_reserved"]
refused = error_of(lambda: compiled(x))
rest.pop()
survived = not x.is_deleted() and float(x[5]) == first
del rest
x = compiled(x)
print(json.dumps([scratch, reserved, error[:30], taken_back, refused, survived, bool(jnp.isfinite(x).all()),
                  stats()["bytes_reserved"]]))
"""
    )
    scratch, reserved, error, taken_back, refused, survived, finite, again = answer
    # A 64th of the limit is granted beside it.
    beside = 6 << 20
    assert scratch >= 48 << 20 and scratch - beside <= reserved <= scratch + (16 << 20)
    assert error.startswith("RESOURCE_EXHAUSTED: Out of") and taken_back < 16 << 20
    assert refused.startswith("RESOURCE_EXHAUSTED: Error loading program 'jit_program', which takes ")
    assert "programs' scratch" in refused and survived and finite and again >= scratch - beside


SORTS = """
def sorts(mib):
    \"\"\"A program whose result has so many MiB, and its scratch about as many.\"\"\"
    rows = mib * MIB // 4 // 64
    program = jax.jit(lambda x: jnp.sort(
        jnp.tile(x[:64], (rows, 1)) * jnp.arange(1.0, rows + 1)[:, None], axis=1)[::-1])
    return program, rows
def expected(x, rows):
    return np.sort(np.asarray(x)[:64] * np.arange(1.0, rows + 1, dtype=np.float32)[:, None], axis=1)[::-1]
"""


def test_a_programs_own_results_make_way_for_its_scratch():
    """Where its result goes first, it cuts one chunk more in two than elsewhere, which the scratch needs whole."""
    answer = told(
        SORTS
        + """
limit = stats()["bytes_limit"] // MIB
program, rows = sorts(12)
compiled = program.lower(jax.ShapeDtypeStruct((19 * MIB // 4,), np.float32)).compile()
scratch = compiled.memory_analysis().temp_size_in_bytes / MIB
# | x 19 | 4 | y | the result, 12 | rest |: all of these begin and end in the middle of a chunk, which has 2.
spare = int(scratch) + 1 | 1
x = full(19, 3.0)
gap = full(4, 0.0)
y = full(limit - 19 - 12 - spare, 5.0)
del gap
free = limit - stats()["bytes_in_use"] / MIB
z = compiled(x)
good = bool((np.asarray(z) == expected(x, rows)).all() and (np.asarray(x) == 3).all() and (np.asarray(y) == 5).all())
reserved = stats()["bytes_reserved"] / MIB
del z
rest = full(2, 7.0)                                  # now nothing helps
refused = error_of(lambda: compiled(x))
good &= not x.is_deleted() and bool((np.asarray(rest) == 7).all() and (np.asarray(y) == 5).all())
del rest
z = compiled(x)
good &= bool((np.asarray(z) == expected(x, rows)).all())
print(json.dumps([good, scratch, spare, free, reserved, refused]))
""",
        PJRT_ARENA_STRATEGY="tpu",
        PJRT_ARENA_LIMIT="64MiB",
    )
    good, scratch, spare, free, reserved, refused = answer
    assert good and spare - 2 < scratch <= spare and free == 12 + spare, "the sizes are those of the case"
    # A 64th of the limit is granted beside it.
    assert scratch - 1 <= reserved <= spare
    assert refused.startswith("RESOURCE_EXHAUSTED: Error loading program 'jit__lambda', which takes "), refused


def test_arrays_use_the_memory_behind_other_holes_before_they_take_scratch_back():
    """So that the next program finds its scratch where it was."""
    answer = told(
        SORTS
        + """
program, rows = sorts(40)
x = full(1, 3.0)
compiled = program.lower(x).compile()
scratch = compiled.memory_analysis().temp_size_in_bytes / MIB
size = int(scratch) + 2
low, between, high = full(size, 0.0), full(1, 1.0), full(size + 10, 2.0)
result = full(41, 0.0)                               # where the program's goes
rest = full((stats()["bytes_limit"] - stats()["bytes_in_use"]) // MIB - 1, 4.0)
del low, high, result
z = compiled(x)
before = stats()["bytes_reserved"] / MIB
array = full(size - 1, 6.0)                          # fits best where the scratch was taken from
after = stats()["bytes_reserved"] / MIB
good = bool((np.asarray(z) == expected(x, rows)).all()
            and (np.asarray(array) == 6).all() and (np.asarray(rest) == 4).all())
print(json.dumps([good, scratch, before, after]))
""",
        PJRT_ARENA_STRATEGY="preallocate",
    )
    good, scratch, before, after = answer
    assert good and scratch - 6 <= before == after


@pytest.mark.parametrize("strategy", ["preallocate", "growing"])
def test_arrays_wait_for_scratch_that_a_program_under_way_has(strategy):
    answer = told(
        SORTS
        + """
program, rows = sorts(40)
x = full(1, 3.0)
compiled = program.lower(x).compile()
scratch = int(compiled.memory_analysis().temp_size_in_bytes / MIB)
rest = full(stats()["bytes_limit"] // MIB - 1 - 40 - scratch - 4, 4.0).block_until_ready()
host = np.full((scratch * MIB // 4,), 6.0, np.float32)
for _ in range(2):
    z = compiled(x)
    array = jax.device_put(host)
    assert (np.asarray(array) == 6).all() and (np.asarray(z) == expected(x, rows)).all()
    del z, array
print(json.dumps(bool((np.asarray(rest) == 4).all())))
""",
        PJRT_ARENA_STRATEGY=strategy,
    )
    assert answer


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_copies_of_what_is_still_written_have_room_within_the_limit(strategy):
    """The engine makes them, in its pool: it is asked once there is room, and not where there is none."""
    before, held, after, error, packed, again, intact = told(
        """
import ctypes, os
from pjrt_arena import memory
other = jax.devices()[1]
driver = ctypes.CDLL(os.environ["PJRT_ARENA_CUDA_DRIVER"])
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == 0
def taken():
    driver.cuCtxPushCurrent_v2(context)
    assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    return (total.value - free.value) / MIB
def by_engine():
    return memory.counters().devices[1].engine_bytes / MIB
def there(mib, value):
    return jax.device_put(full(mib, value), other)
double = jax.jit(lambda x: x * 2)
x = full(16, 3.0)
kept = [there(20, float(number)) for number in range(5)]
jax.block_until_ready((double(x), kept))
before = taken()
copy = jax.device_put(double(x), other)
held = by_engine()
after = taken()
error = error_of(lambda: jax.device_put(double(x), other))
packed = error_of(lambda: jax.device_put(np.ones(32 * MIB, jnp.int4), other))
assert by_engine() == held and float(copy[5]) == 6.0
del kept[2]
again = jax.device_put(double(x), other)
again = [by_engine(), float(again[7]), taken()]
intact = all(float(array[9]) == float(number) for array, number in zip(kept, (0, 1, 3, 4)))
del copy
large = there(18, 1.0)                            # in the memory that the copy had
assert float(large[3]) == 1.0
print(json.dumps([before, held, after, error, packed, again, intact]))
""",
        gpus=2,
        latency_us=20_000,
        PJRT_ARENA_STRATEGY=strategy,
        PJRT_ARENA_LIMIT="128MiB",
        FAKE_CUDA_SEGMENT="2MiB",  # what the pool rounds up to, beside a limit so small
    )
    assert before <= 128 and held == 16, (before, held)
    # Beside the limit there are 2 MiB for all that programs take.
    assert after <= 130 and again[2] <= 130 and again[:2] == [32, 6.0], (after, again)
    assert error.startswith(
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 16.00MiB (16777216 bytes) on cuda:1 [the"
    ), error
    assert "would pass the limit of 128.00MiB" in error, error
    # Elements of less than a byte, too, which are taken for whole ones until they are there.
    assert packed.startswith("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 32.00MiB"), packed
    assert intact


def test_the_next_batch_is_put_on_the_device_while_a_step_runs():
    """The copy is not behind the step. The GPU's memory is looked at past the API: an engine may tell both at once."""
    answer = told(
        """
import ctypes, time
@jax.jit
def step(w, x):
    return jax.lax.fori_loop(0, 200, lambda _, w: jnp.tanh(w @ w) + x.mean(), w)
w, batch = jnp.eye(256) * 0.5, jax.device_put(np.ones((256, 256), np.float32))
step(w, batch).block_until_ready()
first = []
for number in range(4):
    running = step(w, batch)
    following = jax.device_put(np.full((256, 256), number + 1, np.float32))
    there = ctypes.cast(following.unsafe_buffer_pointer() + following.nbytes - 4, ctypes.POINTER(ctypes.c_float))
    deadline = time.monotonic() + 60
    while there.contents.value != number + 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    first.append(not running.is_ready())
    assert (np.asarray(following) == number + 1).all()
    running.block_until_ready()
    w, batch = running, following
print(json.dumps(first))
""",
        latency_us=0,
    )
    assert any(answer), "every copy waited for the step before it"


def test_a_training_loop_finds_its_arrays_where_they_were():
    """So that CUDA graphs need not be recorded anew: the state is donated, the loss and the batch are gone when the
    next come."""
    steady, moved = told(
        """
from pjrt_arena import memory
@partial(jax.jit, donate_argnums=0)
def step(w, x):
    loss, grad = jax.value_and_grad(lambda w: jnp.square(jnp.tanh(x @ w) - 1).mean())(w)
    return w - 0.1 * grad, loss
count = lambda: memory.counters().programs.address_changes
w = jnp.ones((64, 64))
def run(steps):
    global w
    for number in range(steps):
        x = jax.device_put(np.full((32, 64), number, np.float32))
        w, loss = step(w, x)
        float(loss)
        del x, loss
run(5)
before = count()
run(50)
steady = count() - before
rest = [full(1, 0) for _ in range(8)]                 # now the batch lies elsewhere
w = jax.device_put(np.asarray(w))
run(1)
print(json.dumps([steady, count() - before]))
""",
    )
    assert steady <= 2 and moved > steady


def test_several_gpus():
    answer = told(
        """
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
gpus = jax.devices()
on_second = jax.device_put(jax.device_put(np.arange(1000.0, dtype=np.float32), gpus[0]), gpus[1])
assert on_second.devices() == {gpus[1]} and (np.asarray(on_second) == np.arange(1000)).all()
mesh = Mesh(np.array(gpus), ("i",))
x = jax.device_put(np.arange(64, dtype=np.float32).reshape(16, 4), NamedSharding(mesh, P("i")))
total = jax.jit(lambda x: (x * 2).sum())(x)
y = jax.jit(lambda x: x + x.mean(), out_shardings=NamedSharding(mesh, P("i")))(x)
assert float(total) == 2 * 2016 and np.allclose(np.asarray(y), np.arange(64).reshape(16, 4) + 31.5)
print(json.dumps([stats(gpu)["bytes_in_use"] for gpu in gpus]))
""",
        gpus=2,
    )
    assert len(answer) == 2 and all(answer)


def test_memory_goes_back_when_asked():
    answer = told(
        """
x = full(64, 1.0)
before = memory.trim()[0].returned_bytes
assert float(x.sum()) == x.size
y = full(200, 2.0)
assert float(y[-1]) == 2.0 and float(x[-1]) == 1.0
print(json.dumps(before))
"""
    )
    assert answer >= 256 << 20


def test_without_the_driver_the_engine_keeps_its_memory():
    run = run_on_gpu(
        HEAD + "print(float(jnp.arange(10.0).sum()), 'pool_bytes' in stats())",
        PJRT_ARENA_CUDA_DRIVER="/no/such/libcuda.so",
    )
    assert run.stdout.splitlines()[-1].startswith("45.0")
    assert "memory stays with the engine: no NVIDIA driver" in run.stderr and "/no/such/libcuda.so" in run.stderr


@pytest.mark.parametrize(
    ("variable", "value", "part"),
    [
        ("PJRT_GPU_ENABLE_ASYNC_DISPATCH", "1", "allowed: 0, or unset"),
        ("XLA_FLAGS", "--xla_gpu_command_buffer_update_mode=NEVER_UPDATE", "xla_gpu_command_buffer_update_mode"),
        ("PJRT_ARENA_HEADROOM", "1TiB", "leaves nothing of the GPU's"),
        ("PJRT_ARENA_LIMIT", "600MiB", "allowed: at most 512.00MiB per device"),
    ],
)
def test_what_would_break_it_is_refused(variable, value, part):
    run = run_on_gpu("import jax\njax.devices('arena')", check=False, **{variable: value})
    assert run.returncode not in (0, fake_gpu.VIOLATION), run.stderr
    assert part in run.stderr and (variable in run.stderr or "limit" in part), run.stderr


def test_a_planted_race_is_found():
    """The detector itself: reading what is still being written, past the API, ends the process with its own code."""
    run = run_on_gpu(
        HEAD
        + """
import ctypes, os
driver = ctypes.CDLL(os.environ["PJRT_ARENA_CUDA_DRIVER"])
x = full(16, 1.0)
driver.fake_cuda_host_access(ctypes.c_uint64(x.unsafe_buffer_pointer()), ctypes.c_uint64(16 * MIB), ctypes.c_bool(True))
x.block_until_ready()
""",
        check=False,
        latency_us=2000,
    )
    assert run.returncode == fake_gpu.VIOLATION, run.stderr
    assert "violation" in run.stderr
