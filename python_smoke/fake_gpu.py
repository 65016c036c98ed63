"""A machine with GPUs, simulated on one without: XLA's CUDA plugin and NVIDIA's driver are replaced by libraries of
this project; or XLA's ROCm plugin and AMD's driver, by the same two.

    libpjrt_arena.so ---> libfake_cuda_engine.so ---> a CPU engine         computes, on what it takes for device memory
             |                      |
             `--> libfake_cuda.so <-'      the driver: memory of the host, a thread for each stream, a detector of races

Everything from JAX down to the driver's functions is real, but the speed, what kernels do, and what a GPU's hardware
adds. Any operation can be given a latency, so that what is not ordered really happens in the wrong order; the detector
finds it all the same by the order of calls, and ends the process with 70.

With `TEST_CUDA_ENGINE` the engine is XLA's own CUDA plugin, from that folder (`make test-cuda-engine`): it compiles for
the GPU, and the driver interprets its kernels.

    libpjrt_arena.so ---> xla_cuda_plugin.so      allocates, copies, launches kernels: as on a GPU
             |                      |
             `--> libsimulated_gpu.so <-'         also under the names of others of NVIDIA's that it stands for

That library is the driver with kernels and more libraries, from the workspace `plugin_tests/simulator`.

With `TEST_ROCM_ENGINE` there is XLA's own ROCm plugin too, in that folder (`make test-rocm-engine`), for
`test_rocm_engine.py` alone: the driver stands in for AMD's libraries, and runs no kernel.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from harness import run_jax
from pjrt_arena import _library

#: Beside the library under test, where cargo puts both.
FOLDER = Path(os.environ.get("PJRT_ARENA_LIBRARY_PATH") or _library.load().path).parent

#: The folder with XLA's own plugin, where that is the engine.
CUDA = os.environ.get("TEST_CUDA_ENGINE", "")

#: The folder with XLA's own plugin for AMD's GPUs.
ROCM = os.environ.get("TEST_ROCM_ENGINE", "")

#: The driver: with kernels and other libraries where XLA's own engine asks for them.
DRIVER = FOLDER / ("libsimulated_gpu.so" if CUDA or ROCM else "libfake_cuda.so")

#: The versions of the API that the engine may have; XLA's own has its own.
ERAS = (114,) if CUDA else (112, 114)

#: Of tests that sort or multiply hundreds of millions of numbers.
not_interpreted = pytest.mark.skipif(
    bool(CUDA), reason="behind XLA's own engine kernels are interpreted, which takes minutes for this one"
)

#: Of tests of what the simulated engine is told to do by variables of its own.
with_the_simulated_engine = pytest.mark.skipif(bool(CUDA), reason="XLA's own engine cannot be told to do this")

#: The libraries of NVIDIA's that the driver stands in for.
LIBRARIES = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libcudart.so.13",
    "libcudnn.so.9",
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libnccl.so.2",
)

#: Those of AMD's, that one or another version of the plugin is linked with.
AMDS_LIBRARIES = (
    "libamdhip64.so.7",
    "libamd_smi.so.26",
    "libhipblaslt.so.1",
    "libhipfft.so.0",
    "libhsa-runtime64.so.1",
    "libMIOpen.so.1",
    "librccl.so.1",
    "librocblas.so.5",
    "librocm_smi64.so.1",
    "librocm_sysdeps_drm.so.2",
    "librocm_sysdeps_drm_amdgpu.so.1",
    "librocm_sysdeps_numa.so.1",
    "librocprofiler-sdk.so.1",
)

#: XLA's own options: kernels of its emitters and cuBLAS alone, and no choice by time.
FLAGS = (
    "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_gpu_enable_cub_radix_sort=false"
    " --xla_gpu_unsupported_use_all_reduce_one_shot_kernel=false"
)

#: For the code of a test: what a call says that fails.
ERROR_OF = """
def error_of(call):
    try:
        jax.block_until_ready(call())
    except Exception as error:
        return str(error)
    raise SystemExit("no error")
"""

#: Likewise: collectives over four GPUs, against NumPy.
COLLECTIVES = """
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("d",))
host = np.random.default_rng(0).standard_normal((8, 12), np.float32)
x = jax.device_put(host, NamedSharding(mesh, P("d")))
over = lambda f, out=P("d"): np.asarray(jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=out))(x))
parts = host.reshape(4, 2, 12)
np.testing.assert_allclose(over(lambda v: jax.lax.psum(v, "d"), P()), parts.sum(0), 1e-5)
np.testing.assert_allclose(over(lambda v: jax.lax.pmax(v, "d"), P()), parts.max(0))
gathered = over(lambda v: jax.lax.all_gather(v, "d")).reshape(4, 8, 12)
np.testing.assert_allclose(gathered, np.broadcast_to(host, (4, 8, 12)))
swapped = over(lambda v: jax.lax.all_to_all(v.reshape(4, 6), "d", 0, 0))
np.testing.assert_allclose(swapped.reshape(4, 4, 6), host.reshape(4, 4, 6).swapaxes(0, 1))
scattered = over(lambda v: jax.lax.psum_scatter(v.reshape(4, 6), "d"))
np.testing.assert_allclose(scattered, parts.sum(0).ravel(), 1e-5)
turned = over(lambda v: jax.lax.ppermute(v, "d", [(i, (i + 1) % 4) for i in range(4)]))
np.testing.assert_allclose(turned, np.roll(host, 2, 0))
"""

#: What a race, a leak of the driver's or a misuse of it ends the process with.
VIOLATION = 70


def is_built() -> bool:
    """Whether there is such a machine: a wheel has only the library, and tests of a wheel have none of this."""
    return all((FOLDER / f"lib{name}.so").is_file() for name in ("fake_cuda", "fake_cuda_engine"))


def toolkit() -> Path:
    """A folder with what XLA compiles with of CUDA's toolkit: an assembler, and NVIDIA's functions as LLVM code."""
    folder = FOLDER / "simulated_cuda"
    functions = next(Path(CUDA).glob("toolkit/nvidia/*/nvvm/libdevice/libdevice.10.bc"), None)
    if functions is None:
        raise FileNotFoundError(f"no libdevice.10.bc below {CUDA}/toolkit; `make test-cuda-engine` fetches it")
    for place, found in {
        "bin/ptxas": Path(__file__).parent / "simulated_toolkit/bin/ptxas",
        "bin/nvlink": Path(__file__).parent / "simulated_toolkit/bin/ptxas",
        "nvvm/libdevice/libdevice.10.bc": functions,
        **{f"lib/{name}": DRIVER for name in LIBRARIES},
    }.items():
        link = folder / place
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.resolve() != found.resolve():
            link.unlink(missing_ok=True)
            link.symlink_to(found)
    return folder


def real(machine: dict[str, str]) -> dict[str, str]:
    """The machine with XLA's own plugin."""
    folder = toolkit()
    return {name: value for name, value in machine.items() if not name.startswith("FAKE_ENGINE_")} | {
        "LD_LIBRARY_PATH": str(folder / "lib"),
        # JAX's own plugin lies there too, and asks for versions of libraries that nothing here needs.
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        # With JAX's handlers for GPUs, which register with the engine.
        "PYTHONPATH": f"{Path(__file__).parent}:{CUDA}",
        "PJRT_ARENA_ENGINE": str(Path(CUDA) / "jax_plugins/xla_cuda13/xla_cuda_plugin.so"),
        "XLA_FLAGS": f"{FLAGS} --xla_gpu_cuda_data_dir={folder}",
    }


def variables(memory_mib: int, gpus: int, latency_us: int, era: int) -> dict[str, str]:
    """The environment of a process on such a machine."""
    import engines

    machine = {
        "FAKE_CUDA_GPUS": str(gpus),
        "FAKE_CUDA_LATENCY_US": str(latency_us),
        "FAKE_CUDA_MEMORY": str(memory_mib << 20),
        "FAKE_CUDA_STRICT": "1",
        "FAKE_ENGINE_CPU": str(engines.under_test()),
        "FAKE_ENGINE_ERA": str(era),
        "PJRT_ARENA_CUDA_DRIVER": str(DRIVER),
        "PJRT_ARENA_ENGINE": str(FOLDER / "libfake_cuda_engine.so"),
        "PJRT_ARENA_HEADROOM": "0",
    }
    return real(machine) if CUDA else machine


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


def rocm_engine(installed: bool = True) -> dict[str, str | None]:
    """What makes the machine one of AMD's with XLA's own plugin. Where ROCm is not `installed` for all programs, its
    libraries lie where the plugin alone looks: beside it, in `rocm/lib`."""
    folder = FOLDER / "simulated_rocm"
    plugins = Path(ROCM) / "jax_plugins"
    links = {f"rocm/lib/{name}": DRIVER for name in AMDS_LIBRARIES}
    links["xla_rocm7/xla_rocm_plugin.so"] = plugins / "xla_rocm7/xla_rocm_plugin.so"
    for place, found in links.items():
        link = folder / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(found)
    return {
        "LD_LIBRARY_PATH": str(folder / "rocm/lib") if installed else None,
        "PJRT_ARENA_CUDA_DRIVER": "/no/such/libcuda.so",
        "PJRT_ARENA_ENGINE": str(folder / "xla_rocm7/xla_rocm_plugin.so"),
        # With JAX's handlers for AMD's GPUs, which register with the engine.
        "PYTHONPATH": f"{Path(__file__).parent}:{ROCM}",
        # No choice between kernels by time, and none of XLA's own for small sums: there are no kernels.
        "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_unsupported_use_all_reduce_one_shot_kernel=false",
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
