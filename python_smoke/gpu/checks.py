"""Programs whose results are known, for any backend: one function for each ability, each with a way to fail.

What is right comes from NumPy, or from JAX's CPU backend of the same process where NumPy has no such function. Matrix
products of a GPU use shorter floats unless they are told otherwise, so they are told.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
from user_loops import LOOPS

from gpu import beside_torch, progress
from gpu.clock import out_of_memory
from gpu.sizes import KIB, MIB, Sizes

#: Seconds that one check may take. The first on a GPU loads libraries of some hundred megabytes.
LONGEST = 60

CHECKS: dict[str, Callable[[], None]] = {}
#: Those that only the arena promises.
ARENA: set[str] = set()
#: Those that only a GPU has.
GPU: set[str] = set()

device = functools.cache(lambda: jax.devices()[0])
random = np.random.default_rng(11)
SQUARE = random.standard_normal((48, 48)).astype(np.float32)
SYMMETRIC = (SQUARE @ SQUARE.T + 48 * np.eye(48)).astype(np.float32)


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Adds `function` to the list."""
    CHECKS[function.__name__] = function
    return function


def same(function: Callable[..., Any], *arguments: Any, tolerance: float = 1e-4) -> None:
    """Asserts that `function`, jitted, gives here what it gives on JAX's CPU backend."""
    with jax.default_matmul_precision("highest"):
        ours = jax.jit(function)(*jax.device_put(arguments, device()))
        theirs = jax.jit(function)(*jax.device_put(arguments, jax.local_devices(backend="cpu")[0]))
    leaves = list(zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))
    assert leaves, "nothing to compare"
    for our, their in leaves:
        assert our.devices() == {device()}, our.devices()
        np.testing.assert_allclose(np.asarray(our), np.asarray(their), rtol=tolerance, atol=tolerance)


@check
def arithmetic() -> None:
    x = np.arange(100_000, dtype=np.int32)
    assert np.array_equal(jax.jit(lambda x: x * 3 - 7)(x), x * 3 - 7)
    for dtype in ("bfloat16", "float16", "int8", "uint8", "bool", "complex64", "int32"):
        assert np.array_equal(jnp.asarray(x % 2).astype(dtype), jnp.asarray(x % 2, dtype=dtype)), dtype


@check
def matrices() -> None:
    same(lambda a, b: jnp.tanh(a @ b).sum(0), SQUARE, SYMMETRIC)


@check
def sorting() -> None:
    values = random.permutation(50_000).astype(np.float32)
    assert np.array_equal(jnp.sort(values), np.sort(values))
    assert np.array_equal(jax.lax.top_k(values, 10)[0], np.sort(values)[::-1][:10])


@check
def convolutions_and_fft() -> None:
    image = random.standard_normal((2, 16, 16, 3)).astype(np.float32)
    kernel = random.standard_normal((3, 3, 3, 8)).astype(np.float32)
    names = ("NHWC", "HWIO", "NHWC")
    same(lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=names), image, kernel)
    same(lambda x: jnp.abs(jnp.fft.fft2(x)), SQUARE, tolerance=1e-3)


@check
def loops() -> None:
    same(lambda x: jax.lax.scan(lambda c, y: (c * 0.5 + y, c.sum()), x[0], x), SQUARE)
    assert int(jax.jit(lambda n: jax.lax.while_loop(lambda i: i * i < n, lambda i: i + 1, 0))(1000)) == 32
    assert float(jax.jit(lambda p: jax.lax.cond(p > 0, lambda: 1.0, lambda: 2.0))(3)) == 1


@check
def linear_algebra() -> None:
    same(jnp.linalg.cholesky, SYMMETRIC, tolerance=1e-3)
    same(lambda a: jnp.linalg.solve(a, a[0]), SYMMETRIC, tolerance=1e-3)
    same(lambda a: jnp.linalg.eigh(a)[0], SYMMETRIC, tolerance=1e-2)
    same(lambda a: jnp.linalg.svd(a, compute_uv=False), SQUARE, tolerance=1e-3)
    same(lambda a: jnp.abs(jnp.linalg.qr(a)[1]), SQUARE, tolerance=1e-3)


@check
def donation() -> None:
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jax.block_until_ready(jnp.zeros(1 << 16))
    place = x.unsafe_buffer_pointer()
    y = step(x)
    assert x.is_deleted() and y.unsafe_buffer_pointer() == place
    for _ in range(100):
        y = step(y)
    assert np.array_equal(y, np.full(1 << 16, 101, np.float32))


@check
def training() -> None:
    from gpu.models import MODELS
    from gpu.sizes import SIZES

    for name, make in MODELS.items():
        step, state, batch = make(SIZES["tiny"])
        step = jax.jit(step, donate_argnums=0)
        losses = []
        for _ in range(30):
            state = step(state, batch)
            losses.append(float(state[-1]))
        assert losses[-1] < losses[0], (name, losses[0], losses[-1])


@check
def dropped_arrays() -> None:
    """Loops in which nobody waits, and whose results are dropped, end as those do whose every result is kept."""
    for name, make in LOOPS.items():
        state, step, times = make(64 * KIB)
        times = min(times, 12)
        dropped, kept = state, [jax.tree.map(jnp.copy, state)]
        for turn in range(times):
            kept.append(jax.block_until_ready(step(kept[-1], turn)))
        del state
        for turn in range(times):
            dropped = step(dropped, turn)
        for ours, theirs in zip(jax.tree.leaves(dropped), jax.tree.leaves(kept[-1]), strict=True):
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs), err_msg=name)


@check
def steps_that_fail() -> None:
    """A loop whose tenth step fails tells that step's error; what was there before and what comes after is right."""

    def host(x: np.ndarray) -> np.ndarray:
        if x[0] == 9:
            raise ValueError("the tenth step")
        return x + 1

    shape = jax.ShapeDtypeStruct((4096,), jnp.float32)
    step = jax.jit(lambda x: jax.pure_callback(host, shape, x) * 1)
    kept, x = jnp.full(4096, 7.0), jnp.zeros(4096)
    try:
        for _ in range(20):
            x = step(x)
        jax.block_until_ready(x)
    except Exception as error:
        assert "the tenth step" in str(error), error
    else:
        raise AssertionError("no error of twenty steps, of which the tenth fails")
    assert float(kept.sum()) == 7 * 4096
    x = jnp.full(4096, 10.0)
    for _ in range(20):
        x = step(x)
    assert np.array_equal(x, np.full(4096, 30, np.float32))


@check
def callbacks() -> None:
    seen = []
    jax.jit(lambda x: jax.debug.callback(lambda x: seen.append(float(x)), x.sum()))(jnp.ones(8))
    jax.effects_barrier()
    assert seen == [8.0], seen
    # One without elements, which is a copy of a constant.
    empty = jax.experimental.io_callback(lambda: np.ones((2, 0), "f4"), jax.ShapeDtypeStruct((2, 0), jnp.float32))
    assert empty.shape == (2, 0)
    shape = jax.ShapeDtypeStruct((1000,), jnp.float32)
    double = jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x) * 2, shape, x) + 1)
    assert np.array_equal(double(np.arange(1000, dtype="f4")), np.arange(1000, dtype="f4") * 2 + 1)


@check
def transfers() -> None:
    whole = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
    for host in (whole, whole.T, whole[::-2, 3:500], whole[:, ::7].astype(np.int8), whole[:0], np.float32(3)):
        assert np.array_equal(jax.device_get(jax.device_put(host)), host)
    moved = [jax.device_put(whole + turn) for turn in range(8)]
    assert all(np.array_equal(array, whole + turn) for turn, array in enumerate(moved))


@check
def memory_kinds() -> None:
    kinds = {memory.kind for memory in device().addressable_memories()}
    assert {"device", "pinned_host"} <= kinds, kinds
    host = jax.device_put(SQUARE, jax.sharding.SingleDeviceSharding(device(), memory_kind="pinned_host"))
    back = jax.device_put(host, jax.sharding.SingleDeviceSharding(device(), memory_kind="device"))
    assert np.array_equal(back, SQUARE) and host.sharding.memory_kind == "pinned_host"


@check
def dlpack() -> None:
    x = jax.device_put(SQUARE)
    again = jax.dlpack.from_dlpack(x)
    assert np.array_equal(again, SQUARE)


@check
def several_threads() -> None:
    step, failures = jax.jit(lambda x: x * 2 + 1), []

    def run(number: int) -> None:
        x = jnp.full(10_000 + number, number, jnp.float32)
        for _ in range(20):
            x = step(x) / 2
        expected = np.float32(number)
        for _ in range(20):
            expected = (expected * 2 + 1) / 2
        if not np.array_equal(x, np.full(10_000 + number, expected)):
            failures.append(number)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures and not any(thread.is_alive() for thread in threads), failures


@check
def memory_errors() -> None:
    limit = (device().memory_stats() or {}).get("bytes_limit")
    if not limit:
        return  # JAX's CPU backend has no limit to run into
    for _ in range(3):
        try:
            jax.block_until_ready(jnp.zeros(2 * limit // 4, jnp.float32))
        except Exception as error:
            assert out_of_memory(error), error
        else:
            raise AssertionError(f"an array of twice the limit of {limit} bytes was given out")
    assert float(jnp.ones(MIB).sum()) == MIB


@check
def triton_kernels() -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    def kernel(x, y, out):
        out[...] = x[...] + y[...]

    x = np.arange(256, dtype=np.float32)
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    add = pl.pallas_call(kernel, out_shape=shape, compiler_params=triton.CompilerParams(num_warps=1))
    assert np.array_equal(jax.jit(add)(x, 2 * x), 3 * x)


@check
def graphs() -> None:
    """Many kernels and a copy of the argument, which XLA makes a CUDA graph of, with arguments of several kinds."""
    rows, sharding = 256, jax.sharding.SingleDeviceSharding
    weights = jnp.asarray(random.standard_normal((rows, rows), np.float32) / 16)

    @jax.jit
    def step(x):
        y = x
        for _ in range(24):
            y = jnp.tanh(y @ weights)
        return x, y, x + 0

    def source() -> jax.Array:
        return jnp.full((rows, rows), 0.25)

    away = jax.device_put(source(), sharding(device(), memory_kind="pinned_host"))
    sources = [source(), source(), jax.device_put(away, sharding(device(), memory_kind="device"))]
    with contextlib.suppress(progress.Skip):
        lent = (torch := beside_torch.found()).full((2, rows, rows), 0.25, device="cuda")
        torch.cuda.synchronize()
        sources += [jax.dlpack.from_dlpack(each) for each in lent]
    seen = [[tuple(float(result[3, 5]) for result in step(x)) for x in sources] for _ in range(8)]
    assert all(row == seen[0] for row in seen), seen
    # A kind may have a program of its own, for which XLA may have chosen kernels that round in another order.
    np.testing.assert_allclose(seen[0], [seen[0][0]] * len(sources), rtol=1e-5)


@check
def torch_arrays() -> None:
    beside_torch.exchange(beside_torch.found())


@check
def torch_capture() -> None:
    beside_torch.capture(beside_torch.found())


GPU |= {"triton_kernels", "graphs", "torch_arrays", "torch_capture"}


@check
def statistics() -> None:
    gc.collect()
    before = device().memory_stats()["bytes_in_use"]
    kept = jax.block_until_ready([jnp.full(MIB // 4, turn, jnp.float32) for turn in range(8)])
    assert device().memory_stats()["bytes_in_use"] - before == 8 * MIB
    del kept
    gc.collect()
    assert device().memory_stats()["bytes_in_use"] == before


@check
def compaction_and_reports() -> None:
    from pjrt_arena import memory

    arrays = [jnp.full(50_000 + turn, turn, jnp.float32) for turn in range(64)]
    jax.block_until_ready(arrays)
    del arrays[::2]
    gc.collect()
    memory.compact()
    assert all(bool((array == 2 * turn + 1).all()) for turn, array in enumerate(arrays))
    assert str(memory.summary()) and memory.map()
    with tempfile.TemporaryDirectory() as folder:
        assert memory.snapshot(Path(folder) / "x.json").stat().st_size > 1000


@check
def results_lie_in_the_arena() -> None:
    from pjrt_arena import memory

    before = memory.counters().results
    x = jax.jit(lambda x: x + 1)(jnp.arange(4096.0))
    after = memory.counters().results
    assert float(x[1]) == 2 and after.placed > before.placed and after.missed == before.missed, after


ARENA |= {"statistics", "compaction_and_reports", "results_lie_in_the_arena"}


def _named(name: str) -> Callable[[], None]:
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function) if module else CHECKS[name]


def run(sizes: Sizes, ours: bool, names: list[str] | None = None, longest: float = LONGEST) -> dict[str, Any]:
    """Runs the checks that hold for this backend; what failed has its reason. One that hangs ends the process.

    `names` are theirs, or of a function of the caller's: `module.function`. `longest`: seconds that one may take.
    """
    chosen = names or [
        name for name in CHECKS if (ours or name not in ARENA) and (device().platform == "gpu" or name not in GPU)
    ]
    answer: dict[str, Any] = {"passed": 0, "of": len(chosen), "left_out": [], "failed": [], "seconds": {}}
    for number, name in enumerate(chosen):
        with progress.step(name, chosen[number + 1 :], answer, longest):
            start = time.perf_counter()
            try:
                _named(name)()
                answer["passed"] += 1
            except progress.Skip as why:
                answer["left_out"].append(f"{name}: {why}")
            except Exception as error:
                said = " ".join(str(error).split())[:300]
                answer["failed"].append({"name": name, "error": f"{type(error).__name__}: {said}"})
            answer["seconds"][name] = round(time.perf_counter() - start, 3)
    return answer
