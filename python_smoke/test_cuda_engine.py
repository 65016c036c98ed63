"""XLA's own CUDA plugin behind the arena, on a GPU that is simulated: it compiles for the GPU, allocates, copies and
launches as on one.

Only with `make test-cuda-engine`, which fetches the plugin. Its kernels are interpreted, so numbers are right and times
are not; cuBLAS and NCCL are simulated, cuDNN and kernels for tensor cores are not there. `test_gpu.py` and others run
on it as well.
"""

from __future__ import annotations

import json
import subprocess
import textwrap

import fake_gpu
import pytest
import rehearse
from fake_gpu import run_on_gpu
from harness import run_python

pytestmark = [
    pytest.mark.arena,
    pytest.mark.skipif(
        not fake_gpu.CUDA, reason="XLA's CUDA plugin is 210 MB to fetch with what it needs: make test-cuda-engine does"
    ),
]

STRATEGIES = ("preallocate", "growing", "platform", "tpu")

#: Beside a CPU, on which everything is computed again.
HEAD = """
import json
import jax, jax.numpy as jnp, numpy as np
from functools import partial
gpu, cpu = jax.devices()[0], jax.devices("cpu")[0]
def agree(f, *arguments, rtol=1e-5, atol=1e-5, **jit):
    with jax.default_device(cpu):
        wanted = jax.jit(f)(*jax.device_put(arguments, cpu))
    for _ in range(3):
        given = jax.jit(f, **jit)(*jax.device_put(arguments, gpu))
        for one, other in zip(jax.tree.leaves(given), jax.tree.leaves(wanted), strict=True):
            assert one.devices() == {gpu} and one.dtype == other.dtype
            np.testing.assert_allclose(np.asarray(one, np.float64), np.asarray(other, np.float64), rtol, atol)
random = np.random.default_rng(0)
def normal(*shape):
    return random.standard_normal(shape, np.float32)
"""

PROGRAMS = """
agree(lambda x: jnp.sin(x) * jnp.exp(x) + jnp.tanh(x) / jnp.sqrt(x * x + 1), normal(1000))
agree(lambda x: (x.sum(), x.sum(0), x.max(1), jnp.argmin(x, 1)), normal(70, 90), rtol=1e-4, atol=1e-4)
agree(jax.nn.softmax, normal(20, 300))
agree(lambda x: x.T + 1, normal(30, 50))
agree(lambda x, i: x[i], normal(40, 8), np.array([3, 39, 0], np.int32))
agree(lambda x, i: x.at[i].add(1.0), normal(40, 8), np.array([3, 3, 0], np.int32))
agree(lambda x: (jnp.cumsum(x), jnp.sort(x), jnp.argsort(x)), normal(300), rtol=1e-4, atol=1e-4)
agree(lambda x: (x // 3) % 7 + (x ^ 5), np.arange(-50, 50, dtype=np.int32))
agree(lambda a, b: a @ b, normal(20, 30), normal(30, 40), rtol=1e-4, atol=1e-4)
agree(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), normal(3, 8, 16), normal(3, 16, 8), rtol=1e-4, atol=1e-4)
agree(lambda x: jax.lax.scan(lambda c, y: (c * 0.5 + y, c.sum()), x[0], x), normal(6, 20), rtol=1e-4, atol=1e-4)
agree(lambda x: jax.lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 2), (0, x)), normal(9))
agree(lambda k: jax.random.uniform(k, (100,)), np.array([0, 7], np.uint32))
agree(lambda x: x.astype(jnp.bfloat16) * 2 + 1, normal(64))
agree(lambda x: jax.pure_callback(lambda v: np.sort(v), jax.ShapeDtypeStruct((64,), np.float32), x) + 1, normal(64))
"""

#: A decoder's block with its optimizer.
TRAINING = """
D, T, V = 16, 8, 32
def loss(w, tokens):
    x = w["embed"][tokens]
    q, k, v = (x @ w[name] for name in "qkv")
    scores = jnp.where(jnp.tril(jnp.ones((T, T), bool)), q @ k.swapaxes(-1, -2) / D**0.5, -1e9)
    x = x + jax.nn.softmax(scores) @ v
    x = x + jax.nn.gelu(x @ w["up"]) @ w["down"]
    logits = x @ w["embed"].T
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)
    return -picked.mean()
def step(state, tokens):
    w, m = state
    value, g = jax.value_and_grad(loss)(w, tokens)
    m = jax.tree.map(lambda a, b: 0.9 * a + b, m, g)
    return (jax.tree.map(lambda a, b: a - 0.05 * b, w, m), m), value
shapes = {"embed": (V, D), "q": (D, D), "k": (D, D), "v": (D, D), "up": (D, 4 * D), "down": (4 * D, D)}
def train(device, steps, donate):
    seeded = np.random.default_rng(1)
    w = {name: seeded.standard_normal(shape, np.float32) * 0.2 for name, shape in shapes.items()}
    batches = [seeded.integers(0, V, (4, T), np.int32) for _ in range(steps)]
    with jax.default_device(device):
        run = jax.jit(step, donate_argnums=0) if donate else jax.jit(step)
        state = jax.device_put((w, jax.tree.map(np.zeros_like, w)), device)
        losses = []
        for batch in batches:
            state, value = run(state, jax.device_put(batch, device))
            losses.append(value)
        return np.array(losses), jax.tree.map(np.asarray, state)
"""


def test_programs_agree_with_jaxs_own_cpu():
    run_on_gpu(HEAD + PROGRAMS)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_agrees_with_jaxs_own_cpu(strategy):
    """With CUDA graphs, cuBLAS's products among them; donated and not."""
    run_on_gpu(
        HEAD
        + TRAINING
        + """
wanted, state = train(cpu, 12, True)
for donate in (True, False):
    losses, trained = train(gpu, 12, donate)
    np.testing.assert_allclose(losses, wanted, 1e-4)
    for one, other in zip(jax.tree.leaves(trained), jax.tree.leaves(state)):
        np.testing.assert_allclose(one, other, 1e-3, 1e-4)
assert wanted[-1] < wanted[0]
""",
        PJRT_ARENA_STRATEGY=strategy,
    )


def test_graphs_find_arrays_that_were_moved():
    """Defragmentation between steps: the next step runs on what it finds where it lies then."""
    run_on_gpu(
        HEAD
        + TRAINING
        + """
from pjrt_arena import memory
MIB = 1 << 20
wanted, _ = train(cpu, 8, True)
full = lambda mib, value: jax.device_put(np.full((mib * MIB // 4,), value, np.float32))
count = gpu.memory_stats()["bytes_limit"] // (8 * MIB) - 6           # the rest is for cuBLAS
fill = [full(8, i) for i in range(count)]
losses, _ = train(gpu, 4, True)
kept, fill = fill[::2], None
large = full(gpu.memory_stats()["bytes_limit"] // 3 // MIB, 5.0)
assert memory.summary().devices[0].moved_bytes > 0
again, _ = train(gpu, 8, True)
np.testing.assert_allclose(again, wanted, 1e-4)
assert all((np.asarray(array) == 2.0 * i).all() for i, array in enumerate(kept)) and float(large[-1]) == 5.0
""",
        PJRT_ARENA_STRATEGY="tpu",
        memory_mib=256,
    )


def test_collectives_over_several_gpus():
    run_on_gpu(
        HEAD
        + fake_gpu.COLLECTIVES
        + """
moved = jax.device_put(x, NamedSharding(mesh, P(None, "d")))
np.testing.assert_allclose(np.asarray(moved), host)

# A step over all of them: each has a quarter of the batch, all have the weights.
w, y = normal(12, 3), normal(8, 3)
def step(w, x, y):
    loss, g = jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(w)
    return w - 0.1 * g, loss
all_have, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
run = jax.jit(step, donate_argnums=0, out_shardings=(all_have, all_have))
sharded, plain = jax.device_put(w, all_have), jax.device_put(w, cpu)
for _ in range(5):
    sharded, loss = run(sharded, x, jax.device_put(y, rows))
    plain, wanted = jax.jit(step)(plain, jax.device_put(host, cpu), jax.device_put(y, cpu))
    np.testing.assert_allclose(float(loss), float(wanted), 1e-4)
""",
        gpus=4,
    )


#: Counts what the driver is asked for in a step, for the arena or JAX's own client of the same engine.
COUNTED = """
import ctypes, json, os
if os.environ["JAX_PLATFORMS"] == "cuda":
    from jax._src import hardware_utils
    hardware_utils.has_visible_nvidia_gpu = lambda: True      # it looks for NVIDIA's devices in /dev
import jax, jax.numpy as jnp, numpy as np
driver = ctypes.CDLL("libcuda.so.1")
driver.fake_cuda_counts.restype, driver.fake_cuda_counts.argtypes = ctypes.c_uint64, [ctypes.c_char_p]
NAMES = ("cuGraphLaunch", "cuGraphExecKernelNodeSetParams_v2", "cuGraphExecChildGraphNodeSetParams", "cublasLtMatmul",
         "cuLaunchKernel")
def counts():
    return np.array([driver.fake_cuda_counts(name.encode()) for name in NAMES])
def mlp(w, x, y):
    def loss(w):
        h = x
        for a in w[:-1]:
            h = jnp.tanh(h @ a)
        return ((h @ w[-1] - y) ** 2).mean()
    value, g = jax.value_and_grad(loss)(w)
    return [a - 0.01 * b for a, b in zip(w, g)], value
random = np.random.default_rng(0)
put = lambda *shape: jax.device_put(random.standard_normal(shape, np.float32) * 0.1)
x, y = put(32, 64), put(32, 64)
told = {}
for name, options in {"donated": {"donate_argnums": 0}, "kept": {}}.items():
    step, w = jax.jit(mlp, **options), [put(64, 64) for _ in range(4)]
    for number in range(30):
        if number == 10:
            jax.block_until_ready(w)
            before = counts()
        w = step(w, x, y)[0]                       # nobody waits: the caller is ahead
    jax.block_until_ready(w)
    told[name] = dict(zip(NAMES, ((counts() - before) / 20).tolist()))
print(json.dumps(told))
"""


@pytest.mark.parametrize("strategy", ["preallocate", "growing", "tpu"])
def test_graphs_are_recorded_as_seldom_as_in_jaxs_own_client(strategy):
    """A step finds its arrays where it, or the one before it, found them, as with the allocator that XLA itself has."""
    ours = json.loads(run_on_gpu(COUNTED, PJRT_ARENA_STRATEGY=strategy).stdout.splitlines()[-1])
    machine = fake_gpu.variables(512, 1, 100, 114)
    theirs = run_python("-c", textwrap.dedent(COUNTED), **{**machine, "JAX_PLATFORMS": "cuda"})
    theirs = json.loads(theirs.stdout.splitlines()[-1])
    for name, counted in theirs.items():
        assert counted["cuGraphLaunch"] == ours[name]["cuGraphLaunch"] == 1
        for call, times in counted.items():
            assert ours[name][call] <= times + 0.5, (name, call, ours, theirs)


def test_a_run_that_fails_leaves_its_memory_to_those_before_it():
    """The engine says at once that it could not launch a kernel, while the GPU still does what came before."""
    run_on_gpu(
        HEAD
        + """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
driver.fake_cuda_configure.argtypes = [ctypes.c_char_p] * 2
N = 1 << 14
put = lambda value: jax.device_put(np.full(N, value, np.float32), gpu)
add = jax.jit(lambda x: x + 1)
@jax.jit
def two(x):
    first = jax.lax.optimization_barrier(x + 2)
    return first, first.reshape(-1, 4).sum(1)
x = put(1)
jax.block_until_ready([add(x), two(x)])
for round in range(4):
    for program, kernel in ((add, 1), (two, 1), (two, 2)):
        y = add(x)
        z = add(y)
        del y
        assert driver.fake_cuda_configure(b"fail", b"cuLaunchKernelEx:%d:701" % kernel) == 0
        try:
            jax.block_until_ready(program(x))
            raise SystemExit("it was launched")
        except jax.errors.JaxRuntimeError as error:
            assert "Failed to launch" in str(error), error
        assert not z.is_ready(), "the GPU is done already"
        others = [put(value) for value in (7, 8, 9)]
        assert (np.asarray(z) == 3).all(), round
        for other, value in zip(others, (7, 8, 9)):
            assert (np.asarray(other) == value).all(), round
del others, other, z
import gc; gc.collect()                                  # tracebacks may hold results
assert gpu.memory_stats()["bytes_in_use"] == x.nbytes
""",
        latency_us=20_000,
    )


def test_what_a_library_of_the_engine_throws_is_an_error():
    """cuDNN's front end throws C++ exceptions where cuDNN refuses, as the stand-in for it does. Nothing but ours lies
    between it and JAX."""
    run_on_gpu(
        HEAD
        + """
x, k = put(normal(1, 4, 8, 8)), put(normal(4, 4, 3, 3))
try:
    jax.block_until_ready(jax.jit(lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"))(x, k))
    raise SystemExit("cuDNN is there")
except RuntimeError as error:
    assert "the engine threw a C++ exception" in str(error) and "cudnn" in str(error), error
agree(lambda x: x * 2 + 1, normal(64))
assert gpu.memory_stats()["bytes_in_use"] == x.nbytes + k.nbytes
""".replace("put(", "jax.device_put(")
    )


def test_the_gpu_script_measures_on_it(tmp_path):
    """`gpu/run.sh` as on a GPU, with one of JAX's own allocators beside the arena."""
    for arguments in (
        ["--backends", "jax_bfc,arena_tpu", "--only", "acd"],
        ["--backends", "arena_tpu", "--only", "ef", "--add"],
    ):
        line, variables = rehearse.command(["--size", "tiny", "--rounds", "1", "--out", str(tmp_path), *arguments])
        run = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=300, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "results.json").read_text())
    results = {(record["part"], record["backend"]): record["result"] for record in report["records"]}
    theirs, ours = results["c", "jax_bfc"], results["c", "arena_tpu"]
    assert theirs["intact"] and ours["intact"] and (theirs["served"], ours["served"]) == (False, True)
    for backend in ("jax_bfc", "arena_tpu"):
        steps = results["d", backend]
        assert all(steps[name]["last_loss"] < steps[name]["first_loss"] for name in ("transformer", "mlp")), steps
        assert "cudnn" in steps["convolution"]["error"].lower()  # which is not there
    # Of 24 MiB, in arrays of up to 2 MiB.
    assert results["e", "arena_tpu"]["share"] > 0.95, results["e", "arena_tpu"]
    assert results["f", "arena_tpu"]["bytes"] > 0
