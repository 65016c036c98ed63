"""`jax.distributed` with two processes, each with GPUs of its own: JAX's store of keys and values reaches the engine
through us.

The GPUs are simulated (`fake_gpu`). The simulated engine exchanges what GPUs there are as XLA's does; programs across
processes, and so their collectives, it refuses. What each process computes on its own GPUs is real.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import textwrap

import fake_gpu
import pytest
from fake_gpu import variables
from harness import clean_environment

pytestmark = [
    pytest.mark.arena,
    pytest.mark.skipif(not fake_gpu.is_built(), reason="the GPU for tests is built by cargo, beside the library"),
]

HEAD = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from pjrt_arena import memory

coordinator, process = sys.argv[1], int(sys.argv[2])
own = json.loads(sys.argv[3])
jax.distributed.initialize(coordinator, 2, process, local_device_ids=own, initialization_timeout=60)

def error_of(call):
    try:
        jax.block_until_ready(call())
    except Exception as error:
        return str(error)
    return "no error"
"""


def a_job(code: str, own: tuple = (None, None), **settings: str) -> list[subprocess.CompletedProcess[str]]:
    """Runs `code` in two processes of one job; `own` are the numbers of the GPUs that each may use."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    text = textwrap.dedent(HEAD) + textwrap.dedent(code)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", text, coordinator, str(process), json.dumps(own[process])],
            env=clean_environment(**settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]
    try:
        ended = []
        for process in started:
            out, err = process.communicate(timeout=150)
            ended.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
        return ended
    finally:
        for process in started:
            process.kill()


def told(runs: list[subprocess.CompletedProcess[str]]) -> list[dict]:
    for run in runs:
        assert run.returncode == 0, f"status {run.returncode}\n--- stdout\n{run.stdout}\n--- stderr\n{run.stderr}"
    return [json.loads(run.stdout.splitlines()[-1]) for run in runs]


EACH = """
mine = jax.local_devices()
assert jax.default_backend() == "gpu" and mine[0].platform == "gpu"
device = mine[-1]
host = np.arange(1 << 20, dtype=np.float32) + process
x = jax.device_put(host, device)
y = jax.jit(lambda x: jnp.tanh(x * 0.001) + 1)(x)
assert np.allclose(np.asarray(y), np.tanh(host * 0.001) + 1, rtol=1e-5) and y.devices() == {device}
in_use = device.memory_stats()["bytes_in_use"]
on_default = jnp.ones(1024).devices() == {mine[0]}
del x, y

# All GPUs of this process together, with a collective among them.
mesh = jax.sharding.Mesh(np.array(mine), ("d",))
z = jax.device_put(np.arange(8 * len(mine), dtype=np.float32), jax.NamedSharding(mesh, jax.P("d")))
assert float(jax.jit(lambda z: (z * 2).sum())(z)) == 2 * sum(range(8 * len(mine)))
z = jax.device_put(z, mine[0])
assert z.tolist() == list(range(8 * len(mine)))

# GPUs of the other process can be named, and no more.
other = next(device for device in jax.devices() if device.process_index != process)
client = mine[0].client
assert (client.device_count(), client.local_device_count()) == (len(jax.devices()), len(mine))
assert [client.device_from_local_hardware_id(each.local_hardware_id) for each in mine] == mine
assert all(kind.kind in ("device", "pinned_host", "unpinned_host") for kind in device.addressable_memories())
stats_error = error_of(lambda: other.memory_stats())
there = jax.device_put(np.ones(4, np.float32), other)                   # JAX makes an array without a part here
assert not there.is_fully_addressable and not there.addressable_shards
read_error = error_of(lambda: np.asarray(there))
copy_error = error_of(lambda: jax.device_put(z, other))
assert z.tolist() == list(range(8 * len(mine)))

# An array over both processes holds the parts of this one; a program over both is refused, and nothing is lost.
everywhere = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
total = len(jax.devices())
parts = [jax.device_put(np.full((2,), float(device.id), np.float32), device) for device in mine]
whole = jax.make_array_from_single_device_arrays(
    (2 * total,), jax.NamedSharding(everywhere, jax.P("d")), parts)
assert not whole.is_fully_addressable and len(whole.addressable_shards) == len(mine)
program_error = error_of(lambda: jax.jit(lambda whole: whole + 1)(whole))
assert [part.tolist() for part in parts] == [[float(device.id)] * 2 for device in mine]
assert [shard.data.tolist() for shard in whole.addressable_shards] == [[float(device.id)] * 2 for device in mine]
memory.compact()
assert float(jax.jit(lambda x: (x + 1).sum())(jax.device_put(np.ones(64, np.float32), device))) == 128
print(json.dumps({
    "processes": jax.process_count(),
    "index": jax.process_index(),
    "devices": [[device.id, device.process_index, device.local_hardware_id] for device in jax.devices()],
    "local": [device.id for device in mine],
    "arenas": [row.device for row in memory.stats()],
    "in_use": in_use,
    "on_default": on_default,
    "stats_error": stats_error,
    "read_error": read_error,
    "copy_error": copy_error,
    "program_error": program_error,
}))
"""


@pytest.mark.parametrize("strategy", ["preallocate", "tpu"])
def test_two_processes_are_one_job(strategy):
    # The second process may use one GPU only, the second of its machine.
    own, ordinals = (None, [1]), ([0, 1], [1])
    here = [(number, 0) for number in range(len(ordinals[0]))] + [(len(ordinals[0]), 1)]
    machine = variables(256, 2, 100, 114)
    answers = told(a_job(EACH, own=own, PJRT_ARENA_STRATEGY=strategy, PJRT_ARENA_COMPACT="on", **machine))
    for index, answer in enumerate(answers):
        assert (answer["processes"], answer["index"]) == (2, index)
        assert [tuple(device[:2]) for device in answer["devices"]] == here
        assert answer["local"] == [device for device, process in here if process == index]
        # An arena for each GPU of this process, named as in the job, and none for others.
        assert answer["arenas"] == [f"cuda:{number}" for number in answer["local"]]
        assert 8 << 20 <= answer["in_use"] < 9 << 20 and answer["on_default"]
        assert "devices of other processes" in answer["program_error"], answer["program_error"]
        for error in (answer["stats_error"], answer["read_error"]):
            assert "addressable" in error or "another process" in error, error
        assert "Cross-host transfers are not supported" in answer["copy_error"], answer["copy_error"]
        assert [device[2] for device in answer["devices"] if device[0] in answer["local"]] == ordinals[index]


def test_without_pools_too():
    machine = variables(256, 2, 100, 114)
    answers = told(a_job(EACH, PJRT_ARENA_LIMIT="128MiB", FAKE_CUDA_POOLS="0", **machine))
    assert [answer["local"] for answer in answers] == [[0, 1], [2, 3]]


def test_an_engine_that_knows_no_jobs_says_so():
    """XLA's CPU plugin would show each process as the only one, and each would compute the whole."""
    code = """
    try:
        jax.devices()
    except RuntimeError as error:
        print(json.dumps(str(error)))
    """
    for index, error in enumerate(told(a_job(code))):
        assert f"this is process {index} of 2" in error and "takes no part in jobs of several processes" in error, error
