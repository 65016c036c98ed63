"""PyTorch in the same process: arrays go both ways by DLPack, and a CUDA graph is captured while arrays come and go.

The capture forbids calls of the driver's to its own thread alone. One that forbids them to all breaks with XLA by
itself: XLA asks the driver about its streams every five seconds, from a thread of its own.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from typing import Any

import numpy as np

from gpu import progress
from gpu.sizes import MIB

#: How long a capture stays open, in seconds, and the operations in it.
OPEN, OPERATIONS = 1.0, 50


def found() -> Any:
    """PyTorch, where it finds CUDA."""
    if importlib.util.find_spec("torch") is None:
        raise progress.Skip("there is no torch")
    import torch

    if not torch.cuda.is_available():
        raise progress.Skip(f"torch {torch.__version__} finds no CUDA")
    return torch


def exchange(torch: Any) -> None:
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
    assert back.unsafe_buffer_pointer() == doubled.data_ptr(), "JAX has a copy"
    del theirs, doubled
    # What torch lent stays as long as JAX has it.
    others = [torch.full((MIB,), float(turn), device="cuda") for turn in range(8)]
    torch.cuda.synchronize()
    assert np.array_equal(back, 2 * host), "memory that was lent is written to"
    del others


def capture(torch: Any) -> None:
    """A graph is captured on one thread, and another one works with arrays meanwhile."""
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
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            opened.set()
            x = still
            for _ in range(OPERATIONS):
                x = x * 0.5 + 1
                time.sleep(OPEN / OPERATIONS)
    finally:
        closed.set()
        worker.join(30)
    assert not worker.is_alive(), "the other thread hangs"
    assert not failures, f"beside a capture: {failures[0]}"
    still.fill_(3.0)
    graph.replay()
    torch.cuda.synchronize()
    right = 2 + (3.0 - 2) * 0.5**OPERATIONS
    assert abs(float(x[7]) - right) < 1e-5, f"the graph gives {float(x[7])}"
    assert turns > 0, "nothing was done beside the capture"
