"""What is measured, as data: the worker, the tables and the guard read the same list.

A `Program` names a way to make a `Case`, and a case is two functions:

    prepare()       not timed; what it returns goes to run
    run(prepared)   timed, until the result is there; giving the result back is timed too, as in a user's loop

The number of readings is fixed, so a program that carries a state from one run to the next ends in the same state on
every backend, and the results can be compared. MiB are 2^20 bytes, and all elements are float32 unless said.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bench import models

wait = jax.block_until_ready


@dataclass(frozen=True)
class Sizes:
    """How large the programs are: full, or as small as a check of the harness wants them."""

    quick: bool = False

    def floats(self, mib: int) -> int:
        """Elements of an array of `mib` MiB."""
        return mib * (1 << 18) // (256 if self.quick else 1)

    def width(self, full: int) -> int:
        """A dimension."""
        return max(16, full // 16) if self.quick else full

    def calls(self, full: int) -> int:
        """Calls in one reading."""
        return max(1, full // 100) if self.quick else full


@dataclass
class Case:
    """A program that is ready to run."""

    run: Callable[[Any], Any]
    prepare: Callable[[], Any] = lambda: None
    #: Calls in one run; times are per call.
    calls: int = 1
    #: What is compared between backends, of the last result.
    value: Callable[[Any], Any] = lambda result: result
    #: Where the program is one compiled function without donation: that function and its arguments, for the floor.
    function: Callable | None = None
    arguments: tuple = ()


@dataclass(frozen=True)
class Program:
    """One row of the table."""

    name: str
    title: str
    make: Callable[[Sizes], Case]
    #: Runs that count, and runs before them that do not: the first compiles, the others let the blocks that take
    #: turns be touched once.
    readings: int = 8
    warm: int = 3
    #: Rounds at most, for programs that take long.
    rounds: int | None = None
    devices: int = 1
    #: The results take 16 MiB or more, so the floor is measured.
    floor: bool = False
    #: Allowed difference of results, relative to the mean magnitude. Engines of two versions round differently.
    tolerance: float = 1e-4


def compiled(function: Callable, *arguments: Any, calls: int = 1) -> Case:
    """`function`, jitted, called with the same arguments again and again."""
    step = jax.jit(function)

    def run(_):
        for _ in range(calls):
            result = wait(step(*arguments))
        return result

    return Case(run, calls=calls, function=function, arguments=arguments)


def stepping(function: Callable, state: Any, *arguments: Any, value=lambda state: state) -> Case:
    """`state = function(state, *arguments)`, with the state donated."""
    step = jax.jit(function, donate_argnums=0)
    held = [state]

    def run(_):
        held.append(wait(step(held.pop(), *arguments)))
        return held[0]

    return Case(run, value=value)


def ramp(count: int) -> jax.Array:
    """0, 1, ... 999, 0, 1, ... as floats, on the device."""
    return wait(jax.jit(lambda: (jnp.arange(count, dtype=jnp.int32) % 1000).astype(jnp.float32))())


def noise(*shape: int, seed: int = 0) -> jax.Array:
    """Normal random numbers, the same on every backend, on the device."""
    return wait(jax.device_put(np.random.default_rng(seed).standard_normal(shape, np.float32)))


# --- dispatch and eager programs


def dispatch(sizes: Sizes) -> Case:
    add, x, calls = jax.jit(lambda x: x + 1), wait(jnp.float32(1)), sizes.calls(4000)

    def run(_):
        for _ in range(calls):
            result = add(x)
        return wait(result)

    return Case(run, calls=calls)


def dispatch_many(sizes: Sizes) -> Case:
    add, calls = jax.jit(lambda tree: [x + 1 for x in tree]), sizes.calls(500)
    tree = [wait(jnp.full(16, i, jnp.float32)) for i in range(32)]

    def run(_):
        for _ in range(calls):
            result = add(tree)
        return wait(result)

    return Case(run, calls=calls)


def eager(kib: int, calls: int) -> Callable[[Sizes], Case]:
    def make(sizes: Sizes) -> Case:
        start, times = ramp(kib * 256 // (16 if sizes.quick else 1)), sizes.calls(calls)

        def run(_):
            for _ in range(times):
                x = jnp.sin(start)
                x = x * 2 + start
                x = jnp.maximum(x, 0) - jnp.mean(x)
                x = jnp.where(x > 1, x, start)
            return wait(x)

        return Case(run, calls=times)

    return make


# --- element-wise programs and optimisers


def add(mib: int, calls: int = 1) -> Callable[[Sizes], Case]:
    return lambda sizes: compiled(lambda x: x + 1, ramp(sizes.floats(mib)), calls=sizes.calls(calls))


def adam_update(state, gradients):
    """Adam over lists of arrays: (parameters, means, variances)."""

    def one(p, m, v, g):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v

    return list(map(list, zip(*map(one, *state, gradients), strict=True)))


def sgd_update(parameters, gradients):
    """Stochastic gradient descent over lists of arrays."""
    return [p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)]


def eight(sizes: Sizes, offset: float) -> list[jax.Array]:
    """Eight arrays of 16 MiB."""
    return [wait(jnp.full(sizes.floats(16), offset + i, jnp.float32)) for i in range(8)]


def adam(donated: bool) -> Callable[[Sizes], Case]:
    def make(sizes: Sizes) -> Case:
        return (stepping if donated else compiled)(
            adam_update, [eight(sizes, 0.5 + k) for k in range(3)], eight(sizes, 3.5)
        )

    return make


def sgd(donated: bool) -> Callable[[Sizes], Case]:
    return lambda sizes: (stepping if donated else compiled)(sgd_update, eight(sizes, 0.5), eight(sizes, 1.5))


# --- training steps


def training(make_model: Callable, donated: bool = False) -> Callable[[Sizes], Case]:
    """A step of `models`; the losses are compared, because Adam turns rounding of small gradients into whole steps."""

    def make(sizes: Sizes) -> Case:
        step, state, batch = make_model(sizes.width)
        if donated:
            return stepping(
                lambda state, batch: step(state[0], batch), (state, jnp.float32(0)), batch, value=lambda state: state[1]
            )
        compiled_step, held = jax.jit(step), [state]

        def run(_):
            state, loss = wait(compiled_step(held[0], batch))
            held[0] = state
            return loss

        return Case(run)

    return make


# --- numerical programs


def convolution(sizes: Sizes) -> Case:
    def function(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    return compiled(function, noise(8, sizes.width(64), sizes.width(64), 32), noise(3, 3, 32, 64, seed=1))


def matmul(width: int, calls: int = 1) -> Callable[[Sizes], Case]:
    def make(sizes: Sizes) -> Case:
        n = sizes.width(width)
        return compiled(jnp.matmul, noise(n, n), noise(n, n, seed=1), calls=sizes.calls(calls))

    return make


def scan_small(sizes: Sizes) -> Case:
    width = sizes.width(128)

    def function(carry, weights, inputs):
        def body(carry, x):
            carry = jnp.tanh(carry @ weights) + x
            return carry, carry.mean()

        return jax.lax.scan(body, carry, inputs)

    return compiled(function, noise(width, width), noise(width, width, seed=1) / width, noise(100, 1, width, seed=2))


def scan_large(sizes: Sizes) -> Case:
    def function(carry):
        return jax.lax.scan(lambda carry, _: (carry * 0.5 + jnp.flip(carry), None), carry, length=16)[0]

    return compiled(function, ramp(sizes.floats(4)))


def concatenate(sizes: Sizes) -> Case:
    return compiled(lambda *parts: jnp.concatenate(parts), *(ramp(sizes.floats(32)) for _ in range(4)))


def stack(sizes: Sizes) -> Case:
    return compiled(lambda *parts: jnp.stack(parts), *(ramp(sizes.floats(16)) for _ in range(8)))


# --- transfers


def host_array(count: int, offset: int) -> np.ndarray:
    """Floats in host memory, `offset` bytes after a multiple of 64."""
    room = np.empty(count * 4 + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    placed = room[start : start + count * 4].view(np.float32)
    placed[:] = 0.25
    placed[:: 1 << 10] = 3
    return placed


def put(mib: int, aligned: bool = False, calls: int = 1) -> Callable[[Sizes], Case]:
    """NumPy takes large arrays from malloc, which puts them 16 bytes after a page's beginning."""

    def make(sizes: Sizes) -> Case:
        host, times = host_array(sizes.floats(mib), 0 if aligned else 16), sizes.calls(calls)

        def run(_):
            for _ in range(times):
                result = wait(jax.device_put(host))
            return result

        return Case(run, calls=times)

    return make


def get(mib: int, calls: int = 1) -> Callable[[Sizes], Case]:
    """`np.asarray` of arrays that have no copy on the host yet."""

    def make(sizes: Sizes) -> Case:
        x, double, times = ramp(sizes.floats(mib)), jax.jit(lambda x: x * 2), sizes.calls(calls)
        return Case(
            lambda arrays: [np.asarray(array) for array in arrays],
            prepare=lambda: [wait(double(x)) for _ in range(times)],
            calls=times,
            value=lambda views: views[-1],
        )

    return make


def loader(sizes: Sizes) -> Case:
    """Batches of six sizes between 1 and 12 MiB, each put on the device and scaled; three are held at a time."""
    rows = [sizes.floats(mib) for mib in (1, 2, 3, 5, 8, 12)]
    order = np.random.default_rng(5).integers(len(rows), size=sizes.calls(32)).tolist()
    host, scale = host_array(max(rows), 16), jax.jit(lambda x: (x - 0.5) * 2)

    def run(_):
        queue: collections.deque[jax.Array] = collections.deque(maxlen=3)
        for index in order:
            queue.append(scale(jax.device_put(host[: rows[index]])))
        return wait(list(queue))

    return Case(run, calls=len(order))


# --- four devices


def sharded(sizes: Sizes, mib: int) -> tuple[jax.sharding.Mesh, jax.Array]:
    """Four devices, and an array with `mib` MiB on each of them."""
    mesh = jax.make_mesh((4,), ("d",), devices=jax.devices()[:4])
    host = np.arange(4 * sizes.floats(mib), dtype=np.float32) % 1000
    return mesh, wait(jax.device_put(host, NamedSharding(mesh, PartitionSpec("d"))))


def all_sum(sizes: Sizes) -> Case:
    mesh, x = sharded(sizes, 16)
    summed = jax.shard_map(
        lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec()
    )
    return compiled(summed, x)


def four_adds(sizes: Sizes) -> Case:
    _, x = sharded(sizes, 16)
    return compiled(lambda x: x * 2 + 1, x)


def fft(sizes: Sizes) -> Case:
    return compiled(jnp.fft.fft2, noise(sizes.width(1024), sizes.width(2048)).astype(jnp.complex64))


def transpose(sizes: Sizes) -> Case:
    return compiled(jnp.transpose, noise(sizes.width(1024), sizes.width(1024)), calls=sizes.calls(4))


def pooling(sizes: Sizes) -> Case:
    """The first pooling of a ResNet, on 8 images."""

    def function(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    return compiled(function, noise(8, sizes.width(112), sizes.width(112), 64))


def products(sizes: Sizes) -> Case:
    count = sizes.width(4096)
    return compiled(jnp.matmul, noise(count, 16, 16), noise(count, 16, 16, seed=1), calls=sizes.calls(4))


def softmax(sizes: Sizes) -> Case:
    return compiled(jax.nn.softmax, noise(sizes.width(2048), sizes.width(2048)))


def layer_norm(sizes: Sizes) -> Case:
    def function(x, scale, shift):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale + shift

    width = sizes.width(2048)
    return compiled(function, noise(width, width), noise(width, seed=1), noise(width, seed=2))


def cummax(sizes: Sizes) -> Case:
    return compiled(jax.lax.cummax, noise(sizes.floats(4)))


PROGRAMS = (
    Program("dispatch", "tiny jitted add", dispatch, readings=15),
    Program("dispatch_many", "jitted add of 32 tiny arrays", dispatch_many, readings=12),
    Program("eager", "eager chain, 4 KiB", eager(4, 200)),
    Program("eager_4", "eager chain, 4 MiB", eager(4096, 4)),
    Program("add_1", "x + 1, 1 MiB", add(1, calls=50)),
    Program("add_16", "x + 1, 16 MiB", add(16, calls=4), floor=True, readings=15),
    Program("add_256", "x + 1, 256 MiB", add(256), floor=True, readings=7),
    Program("adam", "Adam, 8 x 16 MiB", adam(donated=False), floor=True, readings=6),
    Program("adam_donated", "Adam, 8 x 16 MiB, donated", adam(donated=True), readings=6),
    Program("sgd", "SGD, 8 x 16 MiB", sgd(donated=False), floor=True),
    Program("sgd_donated", "SGD, 8 x 16 MiB, donated", sgd(donated=True)),
    Program("mlp", "training step, MLP", training(models.mlp), readings=12, tolerance=1e-2),
    Program(
        "mlp_donated", "training step, MLP, donated", training(models.mlp, donated=True), readings=12, tolerance=1e-2
    ),
    Program(
        "transformer", "training step, transformer", training(models.transformer), readings=5, warm=2, tolerance=1e-2
    ),
    Program("convolution", "convolution 3x3, 8 MiB", convolution, readings=15),
    Program("matmul_256", "matmul 256", matmul(256, calls=20), readings=20),
    Program("matmul_1024", "matmul 1024", matmul(1024, calls=2), readings=12),
    Program("matmul_4096", "matmul 4096", matmul(4096), floor=True, readings=2, warm=2, rounds=3),
    Program("sort", "sort, 1 MiB", lambda sizes: compiled(jnp.sort, noise(sizes.floats(1))), readings=6),
    Program("fft", "FFT 1024 x 2048, complex64", fft, floor=True),
    Program("scan", "scan, 100 steps of a small carry", scan_small, readings=20),
    Program("scan_4", "scan, 16 steps of a 4 MiB carry", scan_large, readings=20),
    Program("transpose", "transpose, 4 MiB", transpose, readings=15),
    Program("pooling", "max-pooling 3x3, 24.5 MiB", pooling, readings=12),
    Program("products", "4096 products of 16 x 16", products, readings=15),
    Program("softmax", "softmax 2048 x 2048", softmax, floor=True, readings=15),
    Program("layer_norm", "layer norm 2048 x 2048", layer_norm, floor=True, readings=15),
    Program("cummax", "cumulative maximum of 2^20", cummax, readings=15),
    Program("concatenate", "concatenate to 128 MiB", concatenate, floor=True),
    Program("stack", "stack to 128 MiB", stack, floor=True),
    Program("put_1", "device_put, 1 MiB", put(1, calls=50)),
    Program("put_64", "device_put, 64 MiB", put(64)),
    Program("put_256", "device_put, 256 MiB", put(256), readings=6),
    Program("put_256_aligned", "device_put, 256 MiB, 64-byte aligned", put(256, aligned=True), readings=6),
    Program("get_1", "np.asarray, 1 MiB", get(1, calls=50)),
    Program("get_64", "np.asarray, 64 MiB", get(64, calls=2)),
    Program("get_256", "np.asarray, 256 MiB", get(256), readings=6),
    Program("four_adds", "2 x + 1 on four devices, 16 MiB each", four_adds, devices=4, floor=True, readings=15),
    Program("all_sum", "psum over four devices, 16 MiB each", all_sum, devices=4, floor=True, readings=15),
    Program("loader", "data loader, a batch of 1 to 12 MiB", loader),
)

BY_NAME = {program.name: program for program in PROGRAMS}
