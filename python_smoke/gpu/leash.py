"""A process that ends with the one that started it. `python -m gpu.leash COMMAND...` makes one of any command.

Who runs the script may be killed by a signal that leaves no time to tidy up. A child that goes on then holds the GPU,
and most of its memory, when the next one comes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: Tells a process who started it; without it, nobody who is to be compared with.
PARENT_VARIABLE = "GPU_SCRIPT_PARENT"
_SET_PDEATHSIG = 1


def hold() -> None:
    """From now on the kernel ends this process when the thread ends that started it. Stays over `exec`."""
    ctypes.CDLL(None, use_errno=True).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have ended before the call.
    if (parent := os.environ.get(PARENT_VARIABLE)) and os.getppid() != int(parent):
        os._exit(1)


if __name__ == "__main__":
    hold()
    # What the command starts has another parent.
    os.environ.pop(PARENT_VARIABLE, None)
    os.execvp(sys.argv[1], sys.argv[1:])
