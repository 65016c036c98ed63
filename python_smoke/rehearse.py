"""The GPU script on XLA's own CUDA plugin and a simulated GPU: `rehearse.py ARGUMENTS`, as `make gpu-rehearsal` does.

JAX's own allocators run there too. What is counted is so on a GPU as well: what fits, what is refused, what is moved.
Times are those of an interpreter of kernels, and nobody ends a rehearsal after ten minutes.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import fake_gpu
from harness import ROOT, clean_environment

SCRIPT = ROOT / "python_smoke" / "gpu" / "run.sh"
#: Enough for every part of size "small": its largest limit, and what the engine takes beside that.
MEMORY_MIB = 1152


def command(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """What to run, and with which variables. The script keeps none of the caller's XLA_FLAGS, so they are arguments."""
    machine = fake_gpu.variables(MEMORY_MIB, gpus=1, latency_us=20, era=114)
    flags, engine = machine.pop("XLA_FLAGS"), machine.pop("PJRT_ARENA_ENGINE")
    if not any(argument.split("=")[0] == "--budget" for argument in arguments):
        arguments = ["--budget", "1500", *arguments]
    toolkit = fake_gpu.toolkit()
    machine["PATH"] = f"{toolkit / 'bin'}:{os.environ['PATH']}"
    machine["PYTHON"] = sys.executable
    # One cache for all processes, as on a GPU, but none that a real GPU or another rehearsal sees.
    cache = fake_gpu.FOLDER / "gpu-rehearsal-cache"
    shutil.rmtree(cache, ignore_errors=True)
    machine["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    machine["PYTHONPATH"] = f"{Path(__file__).parent}/simulated_toolkit/site:{machine['PYTHONPATH']}"
    return (
        [str(SCRIPT), "--platform", "cuda", "--engine", engine, "--xla-flags", flags, *arguments],
        clean_environment(**machine),
    )


if __name__ == "__main__":
    if not fake_gpu.CUDA:
        sys.exit("rehearse.py: TEST_CUDA_ENGINE must name a folder with XLA's CUDA plugin; `make gpu-rehearsal` does")
    line, variables = command(sys.argv[1:])
    os.execve(line[0], line, variables)
