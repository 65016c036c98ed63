"""Measurements that go wrong in every way, for `test_gpu_script.py`."""

from __future__ import annotations

import atexit
import os
import threading
import time

from gpu import progress


def good(sizes, add):
    print("a line", flush=True)
    strategy, flags = (os.environ.get(name) for name in ("PJRT_ARENA_STRATEGY", "XLA_FLAGS"))
    return {"sum": add + sizes.steps, "strategy": strategy, "flags": flags}


def raises(sizes):
    raise ValueError("not today\nnor tomorrow")


def crashes(sizes):
    print("before the end", flush=True)
    os.abort()


def ends_badly(sizes):
    atexit.register(os.abort)
    return {"all": "well"}


def hangs(sizes):
    print("waiting", flush=True)
    threading.Thread(target=waits_elsewhere, daemon=True).start()
    time.sleep(600)


def waits_elsewhere():
    time.sleep(600)


def falling(module):
    free = iter([8 << 30, 4 << 30])
    module.free_bytes = lambda: next(free)


def copies_instead(sizes):
    from gpu import room

    falling(room)
    return room.compaction(sizes, odd=False, trimmed=True)


def graphs_that_take_memory(sizes):
    from gpu import small

    falling(small)
    return small.graph_memory(sizes)


def other_contents(sizes):
    from gpu import pressure

    pressure.holds = lambda array, value: False
    return pressure.scratch(sizes)


def left_out(sizes):
    raise progress.Skip("no such thing here")


def warns(sizes):
    for turn in range(50):
        print("noise", turn)
        print(f"pjrt-arena[{os.getpid()}] INFO: told", turn)
    print(f"pjrt-arena[{os.getpid()}] WARN: look here")
    print("the end")
    return {}


def none_passes(sizes):
    print("the end of a log", flush=True)
    return {"passed": 0, "of": 1, "failed": [{"name": "one", "error": "not so"}]}


def in_steps(sizes, names=None):
    names = names or ["one", "hung", "two", "dead", "three"]
    answer = {"passed": []}
    for number, name in enumerate(names):
        with progress.step(name, names[number + 1 :], answer, 0.5):
            if name == "hung":
                waits_elsewhere()
            if name == "dead":
                os.abort()
            answer["passed"].append(name)
    return answer
