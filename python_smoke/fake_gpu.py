"""A machine with GPUs, simulated on one without: XLA's CUDA plugin and NVIDIA's driver are replaced by libraries of
this project; or AMD's, by the same two.

    libpjrt_arena.so ---> libfake_cuda_engine.so ---> a CPU engine         computes, on what it takes for device memory
             |                      |
             `--> libfake_cuda.so <-'      the driver: memory of the host, a thread for each stream, a detector of races

Everything from JAX down to the driver's functions is real, but the speed, what kernels do, and what a GPU's hardware
adds. Any operation can be given a latency, so that what is not ordered really happens in the wrong order; the detector
finds it all the same by the order of calls, and ends the process with 70.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from harness import run_jax
from pjrt_arena import _library

#: Beside the library under test, where cargo puts both.
FOLDER = Path(os.environ.get("PJRT_ARENA_LIBRARY_PATH") or _library.load().path).parent

#: The driver.
DRIVER = FOLDER / "libfake_cuda.so"

#: The versions of the API that the engine may have.
ERAS = (112, 114)

#: For the code of a test: what a call says that fails.
ERROR_OF = """
def error_of(call):
    try:
        jax.block_until_ready(call())
    except Exception as error:
        return str(error)
    raise SystemExit("no error")
"""

#: What a race, a leak of the driver's or a misuse of it ends the process with.
VIOLATION = 70


def is_built() -> bool:
    """Whether there is such a machine: a wheel has only the library, and tests of a wheel have none of this."""
    return all((FOLDER / f"lib{name}.so").is_file() for name in ("fake_cuda", "fake_cuda_engine"))


def variables(memory_mib: int, gpus: int, latency_us: int, era: int) -> dict[str, str]:
    """The environment of a process on such a machine."""
    import engines

    return {
        "FAKE_CUDA_GPUS": str(gpus),
        "FAKE_CUDA_LATENCY_US": str(latency_us),
        "FAKE_CUDA_MEMORY": str(memory_mib << 20),
        "FAKE_CUDA_RDMA": "1",
        "FAKE_CUDA_SEGMENT": "32MiB",
        "FAKE_CUDA_STRICT": "1",
        "FAKE_ENGINE_CPU": str(engines.under_test()),
        "FAKE_ENGINE_ERA": str(era),
        "PJRT_ARENA_CUDA_DRIVER": str(DRIVER),
        "PJRT_ARENA_ENGINE": str(FOLDER / "libfake_cuda_engine.so"),
        "PJRT_ARENA_HEADROOM": "0",
    }


def rocm(folder: Path) -> dict[str, str]:
    """What makes the machine one of AMD's: the engine says so, under a name that does, and the only driver is HIP's."""
    engine = folder / "xla_rocm_plugin.so"
    if not engine.exists():
        engine.symlink_to(FOLDER / "libfake_cuda_engine.so")
    return {
        "FAKE_ENGINE_PLATFORM": "rocm",
        "PJRT_ARENA_CUDA_DRIVER": "/no/such/libcuda.so",
        "PJRT_ARENA_ENGINE": str(engine),
        "PJRT_ARENA_HIP_DRIVER": str(DRIVER),
    }


def run_on_gpu(
    code: str,
    *,
    memory_mib: int = 512,
    gpus: int = 1,
    latency_us: int = 100,
    era: int = 114,
    check: bool = True,
    **settings,
) -> subprocess.CompletedProcess[str]:
    """Runs `code` in a process of its own on such a machine; `settings` are more variables."""
    machine = variables(memory_mib, gpus, latency_us, era)
    return run_jax(code, check=check, **{"JAX_PLATFORMS": "arena,cpu", **machine, **settings})
