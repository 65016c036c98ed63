"""Checks that go wrong in every way, for `test_gpu_script.py`."""

from __future__ import annotations

import os
import signal
import threading
import time


def hangs() -> None:
    print("waiting", flush=True)
    threading.Thread(target=waits_elsewhere, daemon=True).start()
    time.sleep(600)


def waits_elsewhere() -> None:
    time.sleep(600)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def aborts() -> None:
    print("F1126 15:45:26.366518     509 cuda_context.cc:102] Not able to get the device_ordinal", flush=True)
    os.abort()


def wants_platform() -> None:
    strategy = os.environ.get("PJRT_ARENA_STRATEGY", "platform")
    if strategy != "platform":
        raise ValueError(f"not under {strategy}")


def wants_no_mapping() -> None:
    """As a check would fail where mapped memory is at fault."""
    if not os.environ["JAX_PLATFORMS"].startswith("arena"):
        return
    from gpu.libcuda import driver

    driver()
    hides = os.environ.get("FIRST_HIDE") == "102" and os.environ["PJRT_ARENA_CUDA_DRIVER"].endswith("libshim.so")
    if not hides:
        raise ValueError("mapped memory has other contents")


def warns() -> None:
    print(f"pjrt-arena[{os.getpid()}] WARN: look here")


def fails_everywhere() -> None:
    raise ValueError("JAX's own allocators fail as well")


def fails_in_the_middle(sizes: object) -> dict[str, int]:
    """A measurement of three steps, not a check."""
    from gpu import progress

    answer = {}
    with progress.step("first", ["second", "third"], answer, 10):
        answer["first"] = 1
    with progress.step("second", ["third"], answer, 10):
        raise ValueError("no figure")
    return answer
