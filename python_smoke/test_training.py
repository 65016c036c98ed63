"""Training as users do it: with optax, for long, and from several threads."""

import gc
import threading

import jax
import jax.numpy as jnp
import model
import numpy as np
import pytest
from harness import arena_device, bytes_in_use, eventually, on


def train(steps, seed=0):
    parameters, state, optimiser = model.initial_state(seed)
    step = model.make_step(optimiser)
    key = jax.random.key(seed + 1)
    losses = []
    for _ in range(steps):
        parameters, state, key, value = step(parameters, state, key)
        losses.append(value)
    return jnp.stack(losses), parameters


def test_training_learns_and_agrees_with_the_builtin_backend():
    ours, _ = on(arena_device(), lambda: train(150))
    theirs, _ = on(jax.devices("cpu")[0], lambda: train(150))
    assert ours[-10:].mean() < 0.2 * ours[0]
    np.testing.assert_allclose(ours, theirs, rtol=2e-2, atol=1e-4)


@pytest.mark.arena
def test_soak_memory_is_flat_and_nothing_is_left():
    gc.collect()
    start = bytes_in_use()
    parameters, state, optimiser = model.initial_state()
    step = model.make_step(optimiser)
    key = jax.random.key(1)
    live = []
    for i in range(400):
        parameters, state, key, value = step(parameters, state, key)
        if i % 50 == 49:
            jax.block_until_ready((parameters, state, key, value))
            gc.collect()
            live.append(bytes_in_use())
    held = sum(leaf.nbytes for leaf in jax.tree.leaves((parameters, state, value))) + 8
    assert len(set(live[1:])) == 1, live
    assert live[-1] >= start + held
    del parameters, state, key, value
    # Constants that a compiled program holds go with the program.
    del step, optimiser
    gc.collect()
    jax.clear_caches()
    gc.collect()
    eventually(lambda: bytes_in_use() <= start, True)


@pytest.mark.parametrize("kind", ["programs", "transfers", "mixed with deletion"])
def test_threads(kind):
    threads, rounds, failures = 8, 40, []
    double = jax.jit(lambda x: x * 2)
    donate = jax.jit(lambda x: x + 1, donate_argnums=0)
    start = threading.Barrier(threads)

    def work(number):
        try:
            start.wait()
            for i in range(rounds):
                host = np.full(4096 + number, number * 1000 + i, np.int32)
                x = jax.device_put(host, arena_device())
                if kind == "programs":
                    assert np.asarray(double(x)).tolist() == (host * 2).tolist()
                elif kind == "transfers":
                    assert np.asarray(x).tolist() == host.tolist()
                else:
                    y = donate(double(x))
                    x.delete()
                    assert np.asarray(y).tolist() == (host * 2 + 1).tolist()
        except BaseException as error:  # reported by the test, which runs in another thread
            failures.append(error)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
        assert not worker.is_alive()
    assert failures == []


@pytest.mark.arena
def test_threads_leave_nothing_behind():
    gc.collect()
    start = bytes_in_use()
    test_threads("mixed with deletion")
    gc.collect()
    eventually(bytes_in_use, start)
