"""PyTorch in the same process: arrays go both ways by DLPack, and a CUDA graph is captured while arrays come and go.
And graphs of XLA's whose arguments are of one kind of memory and then of another.

A capture forbids calls of the driver's to its own thread, or to all. XLA asks the driver about its streams every five
seconds, from a thread of its own, and one that is told no closes the client's callbacks for good. So with XLA alone, of
five captures of a second that forbid calls to all, one goes wrong. The long capture forbids them to its own thread; a
short one behind it forbids them to all, and its failure is a finding of its own.
"""

from __future__ import annotations

import importlib.util
import threading
import time
import traceback
from typing import Any

import numpy as np

from gpu import progress
from gpu.sizes import MIB, Sizes

#: How long a capture stays open, in seconds, and the operations in it.
OPEN, OPERATIONS = 1.0, 50
#: The same of one that forbids calls to all threads.
SHORT, FEW = 0.04, 8
#: Seconds that either may take.
LONGEST = 40


def both(sizes: Sizes) -> dict[str, Any]:
    """`exchange`, and both kinds of `capture`; left out where there is no PyTorch with CUDA."""
    if importlib.util.find_spec("torch") is None:
        raise progress.Skip("there is no torch")
    import torch

    if not torch.cuda.is_available():
        raise progress.Skip(f"torch {torch.__version__} finds no CUDA")
    answer: dict[str, Any] = {"torch": torch.__version__} | exchange(torch)
    with progress.step("a capture that forbids calls to its thread", [], answer, LONGEST):
        answer["arrays_beside_capture"] = capture(torch, "thread_local", OPEN, OPERATIONS)
    # The last, because nothing is sure in this process once it goes wrong.
    with progress.step("a capture that forbids calls to all", [], answer, LONGEST):
        try:
            answer["forbidden_to_all"] = {"turns": capture(torch, "global", SHORT, FEW)}
        except Exception as error:
            traceback.print_exc()
            said = " ".join(str(error).split())[:300]
            answer["forbidden_to_all"] = {"error": f"{type(error).__name__}: {said}"}
    return answer


def exchange(torch: Any) -> dict[str, Any]:
    """Values that went to the other side and came back, without a copy either way."""
    import jax
    import jax.numpy as jnp

    host = np.arange(MIB, dtype=np.float32)
    ours = jax.device_put(host)
    theirs = torch.from_dlpack(ours)
    assert np.array_equal(theirs.cpu().numpy(), host), "torch reads other values"
    assert theirs.data_ptr() == ours.unsafe_buffer_pointer(), "torch has a copy"
    doubled = theirs * 2
    torch.cuda.synchronize()
    back = jax.dlpack.from_dlpack(doubled)
    assert np.array_equal(jnp.sin(back), jnp.sin(2 * host)), "JAX reads other values"
    place = doubled.data_ptr()
    copied = back.unsafe_buffer_pointer() != place
    del theirs, doubled
    # What torch lent stays as long as JAX has it.
    others = [torch.full((MIB,), float(turn), device="cuda") for turn in range(8)]
    torch.cuda.synchronize()
    assert np.array_equal(back, 2 * host), "memory that was lent is written to"
    del others
    return {"bytes": host.nbytes, "copied_from_torch": copied}


def capture(torch: Any, mode: str, seconds: float, operations: int) -> int:
    """A graph is captured on one thread, and another one works with arrays meanwhile: how often it came around."""
    import jax

    step = jax.jit(lambda x: x * 2 + 1)
    host = np.arange(MIB, dtype=np.float32)
    # What an engine does once, such as loading kernels, it does before.
    for _ in range(3):
        step(jax.device_put(host)).block_until_ready()
    still = torch.ones(MIB, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        (still * 2 + 1).sum()
    torch.cuda.synchronize()
    opened, closed = threading.Event(), threading.Event()
    failures: list[str] = []
    turns = 0

    def work() -> None:
        nonlocal turns
        opened.wait(30)
        kept: list[Any] = []
        try:
            while not closed.is_set():
                # Many sizes, so that memory is asked for; some are kept, so that holes come and go.
                kept.append(jax.device_put(host[: MIB // 2 + 4096 * (turns % 64)]))
                kept.append(step(jax.device_put(host)))
                if len(kept) > 6:
                    del kept[turns % 5 : turns % 5 + 2]
                turns += 1
            assert all(np.asarray(array)[1] in (1.0, 3.0) for array in kept), "an array has other contents"
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}"[:300])

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode=mode):
            opened.set()
            x = still
            for _ in range(operations):
                x = x * 0.5 + 1
                time.sleep(seconds / operations)
    finally:
        closed.set()
        worker.join(30)
    assert not worker.is_alive(), "the other thread hangs"
    assert not failures, f"beside a capture: {failures[0]}"
    still.fill_(3.0)
    graph.replay()
    torch.cuda.synchronize()
    right = 2 + (3.0 - 2) * 0.5**operations
    assert abs(float(x[7]) - right) < 1e-5, f"the graph gives {float(x[7])}"
    assert turns > 0, "nothing was done beside the capture"
    return turns


def graphs(sizes: Sizes) -> dict[str, Any]:
    """A program with a copy of its argument among many kernels, which XLA makes a CUDA graph of: its argument is ours,
    PyTorch's, and an array that the engine has, by turns, and what it gives is the same."""
    import jax
    import jax.numpy as jnp

    rows = 256
    weights = jnp.asarray(np.random.default_rng(0).standard_normal((rows, rows), np.float32) / 16)

    @jax.jit
    def step(x):
        y = x
        for _ in range(24):
            y = jnp.tanh(y @ weights)
        return x, y, x + 0

    off = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    on = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="device")
    sources = {
        "ours": jnp.full((rows, rows), 0.25),
        "another of ours": jnp.full((rows, rows), 0.25),
        "from pinned_host": jax.device_put(jax.device_put(jnp.full((rows, rows), 0.25), off), on),
    }
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            lent = torch.full((2, rows, rows), 0.25, device="cuda")
            torch.cuda.synchronize()
            sources |= {
                "torch's": jax.dlpack.from_dlpack(lent[0]),
                "another of torch's": jax.dlpack.from_dlpack(lent[1]),
            }
    right = None
    for turn in range(8 * len(sources)):
        name = list(sources)[turn * 7 % len(sources)] if turn >= 4 else "ours"
        found = [float(result[3, 5]) for result in step(sources[name])]
        right = right or found
        assert found == right, f"turn {turn}, {name}: {found} is not {right}"
    return {"kinds": list(sources), "turns": 8 * len(sources)}
