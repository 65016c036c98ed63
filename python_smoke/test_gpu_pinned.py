"""Arrays in `pinned_host` on a GPU: an arena of their own, its limit, its statistics, and what programs do with it.

The GPUs are simulated (`fake_gpu`). The CPU engine that computes there knows no kinds of memory in programs, nor the
custom call by which JAX tells XLA:GPU of them: it is left out, and a variable of the simulated engine says which
results lie in `pinned_host`. XLA's own engine, where that is behind the arena, needs neither.
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
import gc, json, os
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
from jax._src.interpreters import mlir
from pjrt_arena import memory

if "FAKE_ENGINE_CPU" in os.environ:
    mlir.wrap_with_memory_kind = lambda ctx, x, kind, aval: x
MIB = 1 << 20
gpu = jax.devices()[0]
device, pinned = (SingleDeviceSharding(gpu, memory_kind=kind) for kind in ("device", "pinned_host"))
assert not (jax.device_put(0, device) + 1).is_deleted()

def told(number=0):
    return memory.counters().devices[number].pinned_host

def numbers():
    gc.collect()
    return [getattr(told(), name) for name in ("bytes_in_use", "num_live_blocks", "engine_bytes")]

def host(mib, value):
    return np.full((mib * MIB // 4,), value, np.float32)
"""
    + fake_gpu.ERROR_OF
)


def told(code: str, **machine):
    run = run_on_gpu(HEAD + code, **machine)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("era", fake_gpu.ERAS)
@pytest.mark.parametrize("strategy", ["preallocate", "growing", "platform", "tpu"])
def test_put_read_and_copied_both_ways(strategy, era):
    answer = told(
        """
before = gpu.memory_stats()["bytes_in_use"]
values = np.random.default_rng(0).random((512, 512), np.float32)
there = jax.device_put(values, pinned)
assert there.sharding == pinned
put = numbers()
assert (np.asarray(there) == values).all()
strided = jax.device_put(values[::-2, ::3], pinned)
assert (np.asarray(strided) == values[::-2, ::3]).all()
del strided
x = jax.device_put(there, device)
assert x.sharding == device and (np.asarray(x) == values).all()
on_gpu = gpu.memory_stats()["bytes_in_use"] - before
back = jax.device_put(jax.block_until_ready(x), pinned)
again = jax.device_put(back, pinned, may_alias=False)
assert (np.asarray(back) == values).all() and (np.asarray(again) == values).all()
three = numbers()
del x, again
jax.block_until_ready(jax.device_put(there, device) + 1)
after_step = numbers()
del there, back
gc.collect()
memory.trim()
print(json.dumps([put, on_gpu, three, after_step, numbers(), told().pool_bytes, told().peak_bytes_in_use]))
""",
        PJRT_ARENA_STRATEGY=strategy,
        era=era,
    )
    put, on_gpu, three, after_step, end, pool, peak = answer
    assert put == [MIB, 1, 0] and on_gpu == MIB
    assert three == [3 * MIB, 3, 0] and after_step == [2 * MIB, 2, 0] and end == [0, 0, 0]
    assert pool == 0 and peak == 3 * MIB


MIB = 1 << 20
FULL = """
kept = [jax.device_put(host(4, number), pinned) for number in range(4)]
def intact():
    return all((np.asarray(array) == number).all() for number, array in enumerate(kept))
"""


@pytest.mark.parametrize("strategy", ["preallocate", "platform", "tpu"])
def test_the_limit_is_an_error_with_the_numbers_and_nothing_is_lost(strategy):
    answer = told(
        FULL
        + """
x = jax.block_until_ready(jax.device_put(host(4, 9), device))
errors = [error_of(lambda: jax.device_put(host(4, 5), pinned)), error_of(lambda: jax.device_put(x, pinned))]
whole = intact() and (np.asarray(x) == 9).all() and numbers()
kept.pop()
y = jax.device_put(x, pinned)
print(json.dumps([errors, whole, bool((np.asarray(y) == 9).all() and intact()), numbers(), told().bytes_limit]))
""",
        PJRT_ARENA_STRATEGY=strategy,
        PJRT_ARENA_PINNED_LIMIT="18MiB",
    )
    errors, whole, room_again, end, limit = answer
    for error in errors:
        assert "RESOURCE_EXHAUSTED" in error, error
        assert "Out of memory while trying to allocate 4.00MiB (4194304 bytes) on cuda:0 pinned_host [arena, " in error
        assert "limit 18.00MiB, pool " in error and "in use 16.00MiB" in error and "held by" in error
        assert "PJRT_ARENA_PINNED_LIMIT=20MiB would have been enough; the machine has " in error
    assert whole == [16 * MIB, 4, 0] and room_again and end == [16 * MIB, 4, 0] and limit == 18 * MIB


def test_what_the_engine_makes_there_takes_of_the_same_limit():
    """A copy of what a program still writes, and elements that the engine packs."""
    answer = told(
        FULL
        + """
@jax.jit
def busy(x):
    return jax.lax.fori_loop(0, 400, lambda _, x: jnp.tanh(x @ x) + 1, x)[:, :256]
step = busy(jnp.eye(512)).block_until_ready()              # 512 KiB, compiled
def pending():
    return jax.device_put(busy(jnp.eye(512)), pinned)
copy = pending()
by_engine = numbers()[2]
packed = jax.device_put(np.zeros((MIB,), jnp.int4), pinned)
with_packed = numbers()[2]
more = [jax.device_put(host(1, 7), pinned)]
error = error_of(lambda: jax.device_put(np.zeros((8 * MIB,), jnp.int4), pinned))
arena_error = error_of(lambda: [more.append(jax.device_put(host(1, 7), pinned)) for _ in range(8)])
values = np.asarray(busy(jnp.eye(512)))
same = bool((np.asarray(copy) == values).all()) and intact() and all((np.asarray(a) == 7).all() for a in more)
del copy, packed
print(json.dumps([by_engine, with_packed, error, arena_error, same, numbers()[2]]))
""",
        PJRT_ARENA_PINNED_LIMIT="20MiB",
        latency_us=0,
    )
    by_engine, with_packed, error, arena_error, same, end = answer
    assert by_engine == MIB // 2, "a copy of a pending array is the engine's"
    assert with_packed == by_engine + MIB // 2
    assert "RESOURCE_EXHAUSTED" in error and "8.00MiB (8388608 bytes) on cuda:0 pinned_host [the engine's own]" in error
    assert "1.00MiB of them in the engine's memory" in error and "the limit of 20.00MiB" in error
    assert "RESOURCE_EXHAUSTED" in arena_error and "on cuda:0 pinned_host [arena, growing]" in arena_error
    assert same and end == 0


@pytest.mark.parametrize("era", fake_gpu.ERAS)
def test_results_in_pinned_host_land_in_the_arena(era):
    answer = told(
        """
def store(x, y):
    x = jax.device_put(x, device)
    return jax.device_put(jnp.sqrt(x) + y, pinned), x.sum()
values = np.arange(MIB // 4, dtype=np.float32)
x = jax.device_put(values, pinned)
y = jax.device_put(values, device)
program = jax.jit(store, in_shardings=(pinned, device), out_shardings=(pinned, device))
first, total = program(x, y)
assert first.sharding == pinned and total.sharding == device
assert np.allclose(np.asarray(first), np.sqrt(values) + values) and np.isclose(float(total), values.sum(), rtol=1e-4)
at = first.unsafe_buffer_pointer()
analysis = program.lower(x, y).compile().memory_analysis()
numbers_then = numbers()
results = memory.counters().results
del first, total
print(json.dumps([numbers_then, results.missed, results.skipped, numbers(), analysis.alias_size_in_bytes]))
""",
        era=era,
        FAKE_ENGINE_PINNED_RESULTS="jit_store:0",
    )
    placed, missed, skipped, freed, _ = answer
    assert placed == [2 * MIB, 2, 0] and missed == {} and skipped == {} and freed == [MIB, 1, 0]


def test_results_of_a_program_that_was_not_rewritten_are_the_engines_within_the_limit():
    answer = told(
        """
kept = [jax.device_put(host(4, number), pinned) for number in range(2)]
def store(x):
    return jax.device_put(x + 1, pinned)
program = jax.jit(store, in_shardings=device, out_shardings=pinned)
x = jax.device_put(host(4, 1), device)
error = error_of(lambda: program(x))
fine = not x.is_deleted() and bool((np.asarray(kept[1]) == 1).all())
del kept[1]
gc.collect()
y = program(x)
ok = bool((np.asarray(y) == 2).all() and (np.asarray(kept[0]) == 0).all())
print(json.dumps([error, fine, ok, numbers(), gpu.memory_stats()["bytes_reserved"]]))
""",
        PJRT_ARENA_PINNED_LIMIT="10MiB",
        PJRT_ARENA_REWRITE="off",
        FAKE_ENGINE_PINNED_RESULTS="jit_store:0",
    )
    error, fine, ok, counts, reserved = answer
    assert (
        "RESOURCE_EXHAUSTED" in error and "Error loading program 'jit_store'" in error and "[the engine's own]" in error
    )
    assert fine and ok and counts == [4 * MIB, 1, 4 * MIB]
    assert reserved == 0, "it is not the GPU's memory"


@pytest.mark.parametrize("era", fake_gpu.ERAS)
def test_an_optimizer_state_that_waits_in_pinned_host(era):
    """Brought to the GPU for a step and back, eagerly and in the program, donated: the state keeps size and place."""
    answer = told(
        """
values = np.random.default_rng(1).random((256, 1024), np.float32)
def update(w, m, g):
    m = 0.9 * m + g
    return w - 0.1 * m, m
w_true, m_true = values.copy(), np.zeros_like(values)

w, m = jax.device_put(values, device), jax.device_put(np.zeros_like(values), pinned)
step = jax.jit(update, donate_argnums=(0, 1))
for number in range(6):                            # eagerly
    w, moved = step(w, jax.device_put(m, device), jnp.full_like(w, number))
    m = jax.device_put(jax.block_until_ready(moved), pinned)
    del moved
    w_true, m_true = update(w_true, m_true, np.float32(number))
assert np.allclose(np.asarray(w), w_true, rtol=1e-5) and np.allclose(np.asarray(m), m_true, rtol=1e-5)
eager = numbers()

def whole(w, m, g):
    w, m = update(w, jax.device_put(m, device), g)
    return w, jax.device_put(m, pinned)
inside = jax.jit(whole, donate_argnums=(0, 1), in_shardings=(device, pinned, device), out_shardings=(device, pinned))
for number in range(6):
    old = m
    w, m = inside(w, m, jnp.full_like(w, number))
    assert old.is_deleted() and m.sharding == pinned
    w_true, m_true = update(w_true, m_true, np.float32(number))
assert np.allclose(np.asarray(w), w_true, rtol=1e-5) and np.allclose(np.asarray(m), m_true, rtol=1e-5)
donated = memory.counters().results.donated
state = numbers()
del w, m, old
print(json.dumps([eager, state, donated, numbers(), told().peak_bytes_in_use]))
""",
        era=era,
        FAKE_ENGINE_PINNED_RESULTS="jit_whole:1",
    )
    eager, state, donated, end, peak = answer
    assert eager == state == [MIB, 1, 0] and end == [0, 0, 0]
    assert donated >= 12 + 6 and peak <= 2 * MIB


def test_several_gpus_have_one_each():
    answer = told(
        """
gpus = jax.devices()
mesh = Mesh(np.array(gpus), ("i",))
on = lambda kind: NamedSharding(mesh, P("i"), memory_kind=kind)
values = np.arange(MIB // 2, dtype=np.float32)
x = jax.device_put(values, on("pinned_host"))
y = jax.device_put(x, on("device"))
assert (np.asarray(jax.jit(lambda y: y * 2)(y)) == values * 2).all()
far = jax.device_put(jax.device_put(values, gpus[0]).block_until_ready(),
                     SingleDeviceSharding(gpus[1], memory_kind="pinned_host"))
assert (np.asarray(far) == values).all()
there = jax.device_put(values, SingleDeviceSharding(gpus[1], memory_kind="pinned_host"))
near = jax.device_put(there, SingleDeviceSharding(gpus[0], memory_kind="device"))
assert (np.asarray(near) == values).all() and near.devices() == {gpus[0]}
names = [summary.device for summary in memory.summary().devices]
print(json.dumps([[told(number).bytes_in_use for number in (0, 1)], told(1).engine_bytes, names]))
""",
        gpus=2,
    )
    in_use, engine, names = answer
    # From one GPU to what the other one has pinned the engine copies.
    assert in_use == [MIB, 3 * MIB] and engine == 2 * MIB
    assert names == ["cuda:0", "cuda:1", "cuda:0 pinned_host", "cuda:1 pinned_host"]


def test_reports_show_it_once_it_is_used():
    answer = told(
        """
unused = [summary.device for summary in memory.summary().devices]
with memory.track("offload") as seen:
    x = jax.device_put(host(2, 1.0), pinned)
summary = memory.summary().devices[1]
del x
gc.collect()
compacted = [report.device for report in memory.compact()]
memory.reset_peak()
told_now = memory.summary().devices[1]
print(json.dumps([unused, summary.device, summary.strategy, summary.bytes_in_use, summary.peak_bytes_in_use,
                  summary.holders[0].origin,
                  told_now.peak_bytes_in_use, compacted, str(memory.summary()).count("pinned_host")]))
"""
    )
    unused, name, strategy, in_use, peak, origin, peak_later, compacted, shown = answer
    assert unused == ["cuda:0"] and (name, strategy) == ("cuda:0 pinned_host", "growing")
    assert in_use == peak == 2 * MIB and peak_later == 0 and origin == "from host f32[524288]"
    assert compacted == ["cuda:0", "cuda:0 pinned_host"] and shown >= 1


def test_defragmentation_moves_what_can_move():
    answer = told(
        """
arrays = [jax.device_put(host(2, number), pinned) for number in range(8)]
kept, arrays = arrays[::2], None
x = jax.device_put(host(6, 1.0), pinned)
good = all((np.asarray(a) == 2.0 * i).all() for i, a in enumerate(kept)) and (np.asarray(x) == 1).all()
print(json.dumps([bool(good), numbers(), told().moved_bytes]))
""",
        PJRT_ARENA_STRATEGY="tpu",
        PJRT_ARENA_PINNED_LIMIT="16MiB",
    )
    good, counts, moved = answer
    assert good and counts == [14 * MIB, 5, 0] and moved > 0


@pytest.mark.parametrize(
    ("variable", "value", "part"),
    [
        ("PJRT_ARENA_PINNED_LIMIT", "50%", "allowed: bytes per GPU, at least 1MiB (16GiB)"),
        ("PJRT_ARENA_PINNED_LIMIT", "900TiB", "allowed: 1.00MiB to "),
        ("XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "some", "allowed: a whole number of GiB, at least 1"),
    ],
)
def test_limits_that_cannot_be_are_refused(variable, value, part):
    run = run_on_gpu("import jax\njax.devices('arena')", check=False, **{variable: value})
    assert run.returncode not in (0, fake_gpu.VIOLATION), run.stderr
    assert part in run.stderr and variable in run.stderr, run.stderr
