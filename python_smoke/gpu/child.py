"""One measurement in one process: `python -m gpu.child gpu.MODULE.FUNCTION '{"size": ..., ...}' RESULT.json`.

The function gets the sizes and the other values of the JSON object by name, and returns what goes to the file. Its
exception goes there too, as a text, and makes the status 1; a crash leaves no file, or a file and a bad status.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

from gpu import progress
from gpu.backends import PLATFORM_VARIABLE
from gpu.sizes import SIZES

_SET_PDEATHSIG = 1


def hold() -> None:
    """From now on the kernel ends this process when the thread ends that started it.

    Who runs the script may be killed by a signal that leaves no time to tidy up. A child that goes on then holds the
    GPU, and most of its memory, when the next one comes.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have ended before the call.
    if (parent := os.environ.get(progress.PARENT_VARIABLE)) and os.getppid() != int(parent):
        os._exit(1)


def _right_device() -> None:
    """Fails if JAX ran elsewhere: where it finds no GPU, it leaves "cuda" out and goes on with the other platforms.

    And if it ran on the arena, but in the engine's memory: figures of that would be the engine's.
    """
    import jax

    device = jax.devices()[0]
    platform = "gpu" if os.environ[PLATFORM_VARIABLE] == "cuda" else os.environ[PLATFORM_VARIABLE]
    if device.platform != platform:
        raise RuntimeError(f"JAX ran on {device}, and was to run on a {platform}")
    if os.environ["JAX_PLATFORMS"].startswith("arena"):
        from pjrt_arena import memory

        if not memory.stats()[0].strategy:
            raise RuntimeError("the memory stays with the engine; the arena's warning on standard error says why")


def main(what: str, values: str, target: str) -> int:
    """Measures and writes."""
    module, function = what.rsplit(".", 1)
    given = json.loads(values)
    status = 0
    progress.begin(Path(target))
    try:
        sizes = SIZES[given.pop("size")]
        answer = getattr(importlib.import_module(module), function)(sizes, **given)
        # From here on no step is at fault.
        progress.partial(Path(target)).unlink(missing_ok=True)
        if "jax" in sys.modules:
            _right_device()
    except progress.Skip as why:
        answer = {"skipped": str(why)}
    except BaseException as error:  # SystemExit of a library as well: it is what became of the measurement
        traceback.print_exc()
        said = next(iter(str(error).splitlines()), "")
        answer, status = {"error": f"{type(error).__name__}: {said}"[:600]}, 1
    # The last that is done here: from this file's time on, the process ends.
    progress.write(Path(target), answer)
    return status


if __name__ == "__main__":
    # Before anything that takes time, and before anything that takes the GPU.
    hold()
    # Through the interpreter's end, as any program: a backend that crashes there has failed.
    sys.exit(main(*sys.argv[1:]))
