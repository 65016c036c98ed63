"""Programs' scratch lies in memory that stays warm, or in malloc's where the user wants that.

What it saves is measured by `bench`; here: which allocations it takes over, that they come back, and that results
stay right.
"""

from __future__ import annotations

import json

import pytest
from harness import run_jax, run_python

pytestmark = pytest.mark.arena

# Two arrays of 8 MiB that are no result: XLA cannot fuse across a barrier.
PROGRAM = """
import dataclasses, json
import jax, jax.numpy as jnp, numpy as np
from pjrt_arena import memory
from harness import eventually

n = 2 << 20
def f(x):
    y = jax.lax.optimization_barrier(jnp.flip(x) * 2)
    z = jax.lax.optimization_barrier(jnp.concatenate([y[n // 2:], y[:n // 2]]))
    return jnp.sum(z * x)

x = jnp.arange(n, dtype=jnp.float32) % 1000
step = jax.jit(f)
scratch_of_program = step.lower(x).compile().memory_analysis().temp_size_in_bytes
jax.block_until_ready(step(x))
before = dataclasses.asdict(memory.counters().scratch)
results = [float(step(x)) for _ in range(10)]
host = np.arange(n, dtype=np.float32) % 1000
y = np.flip(host) * 2
right = float(np.sum(np.concatenate([y[n // 2:], y[:n // 2]]) * host, dtype=np.float64))
# The engine frees after it has said that the program is done.
eventually(lambda: memory.counters().scratch.bytes_in_use, 0)
after = dataclasses.asdict(memory.counters().scratch)
trimmed = {report.device: report.returned_bytes for report in memory.trim()}
print(json.dumps([scratch_of_program, before, after, results, right, trimmed, float(step(x))]))
"""


@pytest.mark.parametrize("strategy", ["preallocate", "growing", "tpu"])
def test_scratch_is_taken_from_memory_that_stays(strategy):
    of_program, before, after, results, right, trimmed, again = told({"PJRT_ARENA_STRATEGY": strategy})
    assert of_program >= 8 << 20
    # One allocation for each run, the size of all of the program's scratch.
    assert after["num_allocs"] - before["num_allocs"] == 10
    assert after["bytes_in_use"] == 0
    assert of_program <= after["warm_bytes"] <= 2 * of_program + (1 << 20)
    assert trimmed["scratch"] >= of_program
    assert results == [results[0]] * 10 == [again] * 10
    assert results[0] == pytest.approx(right, rel=1e-4)


UPDATES = """
import json
import jax, jax.numpy as jnp, numpy as np

def row(cache, at):
    return cache.at[at].set(jnp.tanh(cache[at - 1] + 1))

def two_rows(cache, at):
    return cache.at[at].set(cache[0] * 2).at[at + 1].add(cache[at]), cache[at]

def part(cache, at):
    return jax.lax.dynamic_update_slice(cache, jnp.ones((3, 256)), (at, 0)), cache.sum(axis=0)

def rows(cache, at):
    return cache.at[jnp.arange(3) * 5 + at].multiply(cache[:3])

def looped(cache, at):
    return jax.lax.fori_loop(0, 4, lambda turn, c: c.at[at + turn].add(c[turn]), cache)

def nested(cache, at):
    inner = lambda i, c: jax.lax.fori_loop(0, i, lambda j, c: c.at[i, j].add(c[j, i] * c[i + 1, j] + at), c)
    return jax.lax.fori_loop(0, 8, inner, cache)

cache = jnp.arange(4096 * 256, dtype=jnp.float32).reshape(4096, 256) % 1000
told = {}
for update in (row, two_rows, part, rows, looped, nested):
    compiled = jax.jit(update).lower(cache, 7).compile()
    ours, on_cpu = compiled(cache, 7), jax.jit(update, backend="cpu")(np.asarray(cache), 7)
    same = all(map(np.array_equal, jax.tree.leaves(ours), jax.tree.leaves(on_cpu)))
    shown = compiled.as_text().partition("ENTRY")[2]
    told[update.__name__] = {
        "same": same, "scratch": compiled.memory_analysis().temp_size_in_bytes, "parameters": shown.count(" parameter(")
    }
print(json.dumps([told, bool(np.array_equal(cache, np.arange(4096 * 256).reshape(4096, 256) % 1000))]))
"""


def test_an_update_of_an_argument_needs_no_scratch():
    """It is made in the destination: XLA alone makes it in scratch, and copies it."""
    told, unchanged = json.loads(run_jax(UPDATES).stdout)
    assert unchanged
    # The array has 4 MiB. Where the program itself reads it as well, that is not scratch.
    wrong = {name: of for name, of in told.items() if not of["same"] or of["scratch"] >= 1 << 20}
    assert not wrong
    assert {of["parameters"] for of in told.values()} == {2}


@pytest.mark.parametrize("variables", [{"PJRT_ARENA_SCRATCH": "system"}, {"PJRT_ARENA_STRATEGY": "platform"}])
def test_scratch_is_malloc_s_where_memory_has_to_go_back(variables):
    _, before, after, results, right, trimmed, again = told(variables)
    assert before["num_allocs"] == after["num_allocs"] == 0
    assert "scratch" not in trimmed
    assert results == [results[0]] * 10 == [again] * 10
    assert results[0] == pytest.approx(right, rel=1e-4)


# 256 MiB are scratch; or four arrays of 64 MiB.
TURNS = """
import json, sys
import jax, jax.numpy as jnp

@jax.jit
def program(x):
    return (jax.lax.optimization_barrier(jnp.outer(x, x)) * 2).sum()

def scratch():
    program(jnp.ones(8192)).block_until_ready()

def arrays():
    jax.block_until_ready([jnp.full(16 << 20, number, "float32") for number in range(4)])

def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) >> 10

peaks = []
for name in sys.argv[1:]:
    globals()[name]()
    peaks.append(peak())
print(json.dumps(peaks))
"""


@pytest.mark.parametrize("strategy", ["preallocate", "growing", "tpu"])
@pytest.mark.parametrize("order", [("scratch", "arrays"), ("arrays", "scratch")])
def test_scratch_and_arrays_that_take_turns_lie_in_the_same_memory(strategy, order):
    """Each is 256 MiB, and never is there more at once."""
    said = run_python("-c", TURNS, *order, *order, PJRT_ARENA_STRATEGY=strategy).stdout
    first, *_, last = json.loads(said.splitlines()[-1])
    assert last - first < 96, said


def told(variables: dict[str, str]) -> list:
    return json.loads(run_jax(PROGRAM, **variables).stdout.splitlines()[-1])
