"""What the machine and its versions are, and how the engine treats views of memory that is not its own."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any, ClassVar

from gpu import inventory
from gpu.clock import chain
from gpu.sizes import Sizes

QUERIED = "name,memory.total,driver_version,compute_cap,clocks.max.sm,clocks.max.mem"


def host() -> dict[str, Any]:
    """The machine, without JAX."""
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = next((int(line.split()[1]) << 10 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "cpu": cpu or platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": inventory.versions(),
        "library": inventory.library(),
        "gpus": _gpus(),
        "compute_sanitizer": inventory.sanitizer(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _gpus() -> list[dict[str, str]] | str:
    command = ["nvidia-smi", f"--query-gpu={QUERIED}", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi: {error}"
    return [
        dict(zip(QUERIED.split(","), (field.strip() for field in line.split(",")), strict=False))
        for line in run.stdout.splitlines()
        if line.strip()
    ]


def about(sizes: Sizes) -> dict[str, Any]:
    """What JAX shows of a backend, and what its client and the first array take of the host's memory."""
    import jax
    import jax.numpy as jnp
    from jax._src import xla_bridge

    before = inventory.host_memory()
    start = time.perf_counter()
    device = jax.devices()[0]
    started = time.perf_counter() - start
    # An allocator may keep a record of each piece of memory that it could give out, from the first one on.
    first = jnp.zeros(1).block_until_ready()
    behind = inventory.host_memory()
    del first
    names = [name for name, client in xla_bridge.backends().items() if client is device.client]
    return {
        "device": str(device),
        "kind": device.device_kind,
        "devices": jax.device_count(),
        "platform": device.platform,
        "platform_version": device.client.platform_version,
        "api_version": xla_bridge.backend_pjrt_c_api_version(names[0]),
        "memory_stats": device.memory_stats(),
        "memories": [memory.kind for memory in device.addressable_memories()],
        "start_seconds": started,
        "host_memory": {"before": before, "behind_the_first_array": behind},
    }


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _Tensor(ctypes.Structure):
    """``DLTensor`` with what owns it: ``DLManagedTensor``."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class _Lent:
    """Memory of an array, lent to the engine as a foreign view of float32; `returned` tells when it let go of it."""

    _kept: ClassVar[list[Any]] = []  # what the engine may still call

    def __init__(self, address: int, count: int, on_gpu: bool) -> None:
        self.returned = False
        self._shape = (ctypes.c_int64 * 1)(count)
        self._deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._take_back)
        self._type = 2 if on_gpu else 1  # kDLCUDA, kDLCPU
        self._tensor = _Tensor(
            data=address,
            device=_Device(self._type, 0),
            rank=1,
            code=2,
            bits=32,
            lanes=1,
            shape=self._shape,
            deleter=ctypes.cast(self._deleter, ctypes.c_void_p),
        )
        _Lent._kept.append(self)

    def _take_back(self, _tensor: int) -> None:
        self.returned = True

    def view(self, device: Any) -> Any:
        """The engine's array on this memory, made without a stream: ordered after nothing that is said here."""
        from jax._src.lib import _jax

        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        capsule = new(ctypes.addressof(self._tensor), b"dltensor", None)
        make = _jax.dlpack_managed_tensor_to_buffer
        for more in ((None, self._type), (None,), ()):  # jaxlib's newest first
            try:
                return make(capsule, device, None, *more)
            except TypeError as error:
                refused = error
        raise refused


def views(sizes: Sizes) -> dict[str, Any]:
    """How the engine itself treats views: what the arena rests on, and what changed between versions.

    ready_while_busy   a view is ready while a kernel that was queued before it still runs (C API 0.114 and newer);
                       otherwise it waits for what was queued
    let_go_while_busy  memory of a view is let go of while a program that uses it still runs
    in_place           a donated view's result lies at the view's address: one result, the first and second of two

    None: the kernel was too short to tell.
    """
    import jax
    import jax.numpy as jnp

    device = jax.devices()[0]
    on_gpu, count = device.platform == "gpu", 1 << 18
    start = weights = jax.block_until_ready(jnp.eye(sizes.product))
    use = jax.jit(lambda view, x: view + x[0, 0])
    few = chain(8)
    jax.block_until_ready((few(start, weights), use(jnp.zeros(count), start)))
    before = time.perf_counter()
    few(start, weights).block_until_ready()
    # About a third of a second, so that what is asked while it runs is asked in time.
    work = chain(min(400, int(8 * 0.33 / (time.perf_counter() - before)) + 1))
    work(start, weights).block_until_ready()

    lenders = [jax.block_until_ready(jnp.full(count, turn, jnp.float32)) for turn in range(5)]
    addresses = [lender.unsafe_buffer_pointer() for lender in lenders]
    lent = [_Lent(address, count, on_gpu) for address in addresses]

    busy = work(start, weights)
    view = lent[0].view(device)
    ready, still = view.is_ready(), not busy.is_ready()
    busy.block_until_ready()

    busy = work(start, weights)
    result = use(lent[1].view(device), busy)
    gc.collect()
    let_go, running = lent[1].returned, not result.is_ready()
    result.block_until_ready()

    one = jax.jit(lambda x: x + 1, donate_argnums=0)(lent[2].view(device))
    two = jax.jit(lambda x, y: (x * 2, y + 3), donate_argnums=(0, 1))(lent[3].view(device), lent[4].view(device))
    found = [array.unsafe_buffer_pointer() for array in (one, *two)]
    right = [float(array[7]) for array in (one, *two)] == [3.0, 6.0, 7.0]
    return {
        "ready_while_busy": ready if still else None,
        "let_go_while_busy": let_go if running else None,
        "in_place": [found[0] == addresses[2], found[1] == addresses[3], found[2] == addresses[4]],
        "results_right": right,
    }
