"""The arena as a part of a process: limits that the shell sets, and an end while programs run."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from harness import clean_environment, run_jax

pytestmark = pytest.mark.arena

LIMITED = """
import resource
resource.setrlimit(resource.{which}, ({bytes}, {bytes}))
import jax, jax.numpy as jnp
kept = [jnp.full((16 << 20,), number, jnp.float32) for number in range(6)]
assert [float(array[-1]) for array in kept] == [0, 1, 2, 3, 4, 5]
assert float(jnp.ones((1024, 1024)).sum()) == 1 << 20
print(jax.devices()[0].memory_stats()["bytes_limit"])
"""

#: `forked(child, seconds)` runs `child` in a process of its own, and prints 7 where it returned in time.
FORKED = """
import os, signal, time, traceback
def forked(child, seconds):
    number = os.fork()
    if number == 0:
        try:
            child()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(7)
    end = time.monotonic() + seconds
    while (status := os.waitpid(number, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.002)
    if status[0] == 0:
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
    print(os.waitstatus_to_exitcode(status[1]) if status[0] else "hangs", flush=True)
    return status[0] != 0
"""


@pytest.mark.parametrize("which", ["RLIMIT_AS", "RLIMIT_DATA"])
@pytest.mark.parametrize("strategy", ["preallocate", "growing", "platform", "tpu"])
def test_limits_of_the_shell_leave_room_for_arrays(strategy, which):
    """`ulimit -v` and `-d`, as batch systems set them: libraries and threads are mapped too, so arrays cannot have
    three quarters."""
    run = run_jax(LIMITED.format(which=which, bytes=4 << 30), PJRT_ARENA_STRATEGY=strategy)
    assert 384 << 20 < int(run.stdout.split()[-1]) < 3 << 30


#: Two processors, as what threads need depends on their number.
MULTIPLIES = """
import os, resource
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import jax, jax.numpy as jnp
def used(field):
    return int(open("/proc/self/statm").read().split()[field]) * 4096
most = used({field}) + ({mib} << 20)
resource.setrlimit(resource.{which}, (most, most))
ones = jnp.ones((1024, 1024))
print(float((ones @ ones)[-1, -1]))
"""

#: Counts malloc's arenas but the first: what is in use of each lies at a multiple of 64 MiB, and the rest behind it.
ARENAS = """
maps = [line.split()[:2] for line in open("/proc/self/maps")]
ranges = [([int(end, 16) for end in addresses.split("-")], kind) for addresses, kind in maps]
print(sum(
    used == "rw-p" and rest == "---p" and start % (64 << 20) == 0 and end == start + (64 << 20)
    for ((start, _), used), ((_, end), rest) in zip(ranges, ranges[1:])
))
"""


@pytest.mark.parametrize(("which", "field"), [("RLIMIT_AS", 0), ("RLIMIT_DATA", 5)])
@pytest.mark.parametrize("strategy", ["preallocate", "growing", "platform", "tpu"])
def test_threads_and_malloc_have_what_they_need_under_the_shells_limits(strategy, which, field):
    """XLA's threads end the process where one of them cannot be made."""
    code = MULTIPLIES.format(which=which, field=field, mib=850)
    for _ in range(2):
        assert run_jax(code, PJRT_ARENA_STRATEGY=strategy).stdout == "1024.0\n"


@pytest.mark.parametrize(("which", "field", "flag"), [("RLIMIT_AS", 0, "v"), ("RLIMIT_DATA", 5, "d")])
def test_too_little_for_threads_and_malloc_is_an_error_that_names_the_limit(which, field, flag):
    for mib in (200, 400):
        run = run_jax(MULTIPLIES.format(which=which, field=field, mib=mib), check=False)
        said = run.stderr[-2000:]
        assert run.returncode == 1 and f"`ulimit -{flag}` lets this process map" in said, said
        assert "XLA, threads and malloc need" in said, said


def test_a_limit_of_the_arena_beyond_the_shells_limit_names_that():
    code = MULTIPLIES.format(which="RLIMIT_AS", field=0, mib=850)
    run = run_jax(code, check=False, PJRT_ARENA_LIMIT="850MiB")
    assert run.returncode == 1 and "the limit 850.00MiB (PJRT_ARENA_LIMIT) for each of" in run.stderr
    assert re.search(r"MiB per device; `ulimit -v` lets this process map .*, of which .* are left", run.stderr)


@pytest.mark.parametrize("variable", ["MALLOC_ARENA_MAX=64", "GLIBC_TUNABLES=glibc.malloc.arena_max=64", None])
def test_malloc_has_two_arenas_under_the_shells_limit_where_nobody_says_otherwise(variable):
    code = MULTIPLIES.format(which="RLIMIT_AS", field=0, mib=4000) + ARENAS
    name, _, value = (variable or "MALLOC_ARENA_MAX=").partition("=")
    arenas = int(run_jax(code, **{name: value or None}).stdout.split()[1])
    assert arenas == 1 if variable is None else arenas > 2


#: Four eager operations in a loop; then no call, as where a notebook waits for its reader.
LEFT_ALONE = """
import time
import jax, jax.numpy as jnp
def resident(key):
    return int(open("/proc/self/status").read().split(key + ":")[1].split()[0]) >> 10
x = jnp.ones(16 << 20)
for _ in range(10):
    x = (x * 2 + 1) / 3 - x
x.block_until_ready()
peak, end = resident("VmHWM"), time.monotonic() + 30
# The last arrays that programs used, all but `x`: 128 MiB.
while resident("VmRSS") > peak - 120 and time.monotonic() < end:
    time.sleep(0.1)
print(peak - resident("VmRSS"))
"""


@pytest.mark.parametrize("strategy", ["preallocate", "growing", "platform", "tpu"])
def test_what_programs_used_goes_back_though_no_call_comes(strategy):
    run = run_jax(LEFT_ALONE, PJRT_ARENA_STRATEGY=strategy)
    assert int(run.stdout) >= 120


def test_a_process_ends_while_a_thread_that_nobody_waits_for_computes():
    """The code of the CPU engine's matrix products stays until the process is gone: its threads run it."""
    code = """
    import threading, time
    import jax, jax.numpy as jnp
    x = jnp.ones((3000, 3000))
    product = jax.jit(lambda a: jax.lax.fori_loop(0, 6000, lambda _, b: b @ a / 3000, a)).lower(x).compile()
    def work():
        kept = product(x)
        # A thread that comes back to Python at the end aborts the process, on any backend: this one never does.
        time.sleep(1e6)
    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.5)
    print("end")
    """
    for _ in range(2):
        run = run_jax(code, check=False)
        assert (run.returncode, run.stdout) == (0, "end\n"), run.stderr[-2000:]


ENDING = """
import sys, threading, time
import jax, numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir
# Without what JAX does in a callback: jaxlib's own functions end the process there, on any backend.
plus = Primitive("plus")
plus.def_abstract_eval(lambda aval: aval)
def lower(context, x):
    add = lambda v: (v + np.float32(1),)
    avals = context.avals_in, context.avals_out
    return mlir.emit_python_callback(context, add, None, [x], *avals, has_side_effect=True)[0]
mlir.register_lowering(plus, lower)
x = jax.device_put(np.float32(0))
assert float(jax.jit(plus.bind)(x)) == 1
# The threads do not come back from it, which would end the process, too.
endless = jax.jit(lambda x: jax.lax.fori_loop(0, 1 << 30, lambda _, y: plus.bind(y), x)).lower(x).compile()
for _ in range(3):
    threading.Thread(target=lambda: endless(x), daemon=True).start()
time.sleep(0.5)
# The other threads seldom have the interpreter's lock, so all of them wait for it when the interpreter ends.
sys.setswitchinterval(1)
end = time.monotonic() + 0.5
while time.monotonic() < end:
    pass
print("end")
"""


@pytest.mark.parametrize("runs", [2, 12])
def test_a_process_ends_while_threads_run_callbacks(runs):
    """Python up to 3.13 unwinds the stack of a thread that wants its lock when the interpreter has ended; none of the
    library's frames, of the engine's or of jaxlib's may be unwound."""
    for _ in range(runs):
        run = run_jax(ENDING, check=False)
        assert (run.returncode, run.stdout) == (0, "end\n"), run.stderr[-2000:]


WAITING = """
import os, signal, traceback
# A shell starts what runs in the background with this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
import jax, jax.numpy as jnp, numpy as np
from harness import host_array
first = jax.devices()[0]
long = jax.jit(lambda a: jax.lax.fori_loop(0, 1 << 30, lambda _, b: jnp.sin(b), a).sum())
x = jax.device_put(host_array(offset=16, count=3 << 20), first)
long = long.lower(x).compile()
fill = jax.jit(lambda: jnp.full((11 << 18,), 7, jnp.float32)).lower().compile()
upload = lambda: jax.device_put(host_array(offset=16, count=3 << 20), first)
small = jax.device_put(np.float32(1), first)
busy = long(x)
# There is room for another large array when the program ends, which it does not. A result as large as x would be
# its place.
del x
print("waits", flush=True)
try:
    WAIT()
except KeyboardInterrupt:
    print("interrupted", flush=True)
except Exception:
    # An ordinary end would wait for the program, which does not end.
    traceback.print_exc()
    os._exit(1)
assert not busy.is_ready()
# The client goes on.
assert float(small) == 1
again = jax.device_put(host_array(3, offset=16), first)
assert np.asarray(again)[-1] == (64 << 10) + 2
print("works", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("wait", ["fill", "upload"])
@pytest.mark.parametrize("compact", ["off", "on"])
def test_ctrl_c_ends_a_wait_for_memory(wait, compact):
    settings = {"PJRT_ARENA_LIMIT": "16MiB", "PJRT_ARENA_COMPACT": compact}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WAITING.replace("WAIT", wait))],
        env=clean_environment(**settings),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "waits\n"
        time.sleep(1)  # It waits by now; if not, Python raises KeyboardInterrupt by itself.
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        assert process.stdout.readline() == "interrupted\n"
        # The wait itself would be ten seconds.
        assert time.monotonic() - sent < 5
        assert process.stdout.readline() == "works\n"
        assert process.wait(timeout=100) == 0
    finally:
        process.kill()
        process.wait()


def test_a_child_drops_what_it_has_of_its_parent_and_ends():
    """While threads of the parent compute, of which the child has none. It ends as those of multiprocessing do: what
    JAX does at the end of a process ends a child with a signal, on JAX's own CPU backend as well."""
    code = """
    import gc, os, signal, threading, time, warnings
    import jax, jax.numpy as jnp, numpy as np
    warnings.simplefilter("ignore")  # JAX warns of forks
    plus = jax.jit(lambda x: x + 1)
    again = jax.jit(lambda x: x + 1, donate_argnums=0)
    long = jax.jit(lambda a: jax.lax.fori_loop(0, 10, lambda _, b: b @ a / 1000, a))
    kept = [jnp.full((1 << 18,), number, jnp.float32) for number in range(8)]
    views = [np.asarray(array) for array in kept[:2]]
    x = jnp.ones((1000, 1000))
    over = threading.Event()
    def work():
        mine = plus(kept[0])
        while not over.is_set():
            mine = again(mine)
            [plus(kept[0]) for _ in range(4)]
    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(5):
        busy = long(x)
        child = os.fork()
        if child == 0:
            views.clear()
            kept.pop().delete()
            kept.clear()
            del busy, long, plus, again, x
            gc.collect()
            os._exit(7)
        end = time.monotonic() + 60
        while (status := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.01)
        if status[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status[1]) == 7 and status[0] == child, (number, status)
    over.set()
    for thread in threads:
        thread.join()
    assert [float(array[-1]) for array in kept] == list(range(8))
    print(float(plus(kept[3])[0]))
    """
    assert run_jax(code).stdout == "4.0\n"


def test_a_child_is_told_that_its_parents_client_does_not_work_there():
    """The threads of the engine stayed with the parent: what waits for one of them would wait for ever. What is there
    already is read where it lies. (Not tried: a new program, for which jaxlib waits for a thread of its own.)"""
    code = """
    import os, signal, sys, time, traceback, warnings
    import jax, jax.extend, jax.numpy as jnp, numpy as np
    warnings.simplefilter("ignore")  # JAX warns of forks
    plus = jax.jit(lambda x: x + 1)
    long = jax.jit(lambda a: jax.lax.fori_loop(0, 1 << 30, lambda _, b: jnp.sin(b), a).sum())
    x = jnp.arange(3 << 20, dtype=jnp.float32)
    small = jnp.arange(8).astype(jnp.int4)  # Read by a copy of the engine's.
    plus(x).block_until_ready()
    jax.block_until_ready((x, small))
    compiled = long.lower(x).compile()
    busy = [compiled(x), compiled(x)]
    refused = {
        "a program": lambda: np.asarray(plus(x)),
        "an upload": lambda: jax.device_put(np.ones(1 << 18, np.float32), jax.devices()[0]),
        "a copy to the host": lambda: np.asarray(small),
        "a copy": lambda: jax.device_put(x, jax.devices()[1]),
        "a result under way": lambda: busy[0].block_until_ready(),
        "to read one": lambda: np.asarray(busy[1]),
    }
    def child():
        assert np.asarray(x)[-1] == (3 << 20) - 1
        for what, attempt in refused.items():
            print(what, file=sys.stderr, flush=True)
            try:
                attempt()
            except (RuntimeError, ValueError) as error:
                assert "FAILED_PRECONDITION" in str(error) and "forked" in str(error), error
            else:
                raise AssertionError(what)
        # A client of its own works.
        jax.extend.backend.clear_backends()
        own = jax.device_put(np.arange(1 << 20, dtype=np.float32), jax.devices()[0])
        assert np.asarray(jax.device_put(own, jax.devices()[1]))[-1] == (1 << 20) - 1
        assert own.device.memory_stats()["bytes_in_use"] == 4 << 20
        assert np.asarray(x)[-1] == (3 << 20) - 1
        x.delete()
    forked(child, 60)
    os._exit(0)
    """
    run = run_jax(FORKED + textwrap.dedent(code), PJRT_ARENA_DEVICES="2")
    assert run.stdout.split() == ["7"], run.stderr[-2000:]


def test_a_child_waits_for_no_lock_of_a_thread_that_it_lacks(tmp_path):
    """Threads of the parent compute, compile and ask for statistics: at each fork they may hold any lock."""
    code = """
    import os, signal, threading, time, traceback, warnings
    import jax, jax.extend, jax.numpy as jnp, numpy as np
    from pjrt_arena import memory
    warnings.simplefilter("ignore")  # JAX warns of forks
    folder = os.environ["TEST_FOLDER"]
    plus = jax.jit(lambda x: x + 1)
    again = jax.jit(lambda x: x + 1, donate_argnums=0)
    product = jax.jit(lambda a: a @ a * 1e-3)
    ready, x = jnp.arange(1000.0), jnp.ones((256, 256))
    track = memory.track("parent")
    track.__enter__()
    device = jax.devices()[0]
    over = threading.Event()
    def work():
        y = x
        while not over.is_set():
            y, z = product(y), jnp.ones(1000)
            for _ in range(3):
                z = again(z)
            plus(ready)
            memory.stats()
    for array in (ready, x, product(x), again(jnp.ones(1000)), plus(ready)):
        array.block_until_ready()
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.5)

    def refused(attempt, *texts):
        try:
            attempt()
        except (RuntimeError, ValueError) as error:
            assert all(text in str(error) for text in texts), error
        else:
            raise AssertionError(texts)

    def child(number):
        assert memory.stats() == () and memory.summary().devices == ()
        assert memory.trim() == () and memory.compact() == () and memory.reset_peak() is None
        assert memory.map() == "" and memory.sleep() == () and memory.wake() == ()
        with memory.track("child") as own:
            pass
        assert own.devices == ()
        refused(lambda: track.__exit__(None, None, None), "a child after fork has none of its parent's")
        memory.snapshot(folder + "/child.json")
        assert np.asarray(ready)[-1] == 999
        refused(lambda: plus(ready), "FAILED_PRECONDITION", "forked")
        refused(device.memory_stats, "FAILED_PRECONDITION", "forked")
        if number % 10 == 0:
            jax.extend.backend.clear_backends()
            own = jax.device_put(np.ones(1000, np.float32), jax.devices()[0])
            (stats,) = memory.stats()
            assert stats.bytes_in_use >= 4000, stats
            (given,) = memory.trim(device=jax.devices()[0])
            assert given.device == stats.device

    for number in range(FORKS):
        if not forked(lambda number=number: child(number), 30):
            break
    os._exit(0)
    """
    run = run_jax(FORKED + textwrap.dedent(code.replace("FORKS", "40")), TEST_FOLDER=str(tmp_path))
    assert run.stdout.split() == ["7"] * 40, (run.stdout[-200:], run.stderr[-2000:])


def test_what_malloc_and_arrays_leave_goes_back_before_the_process_is_larger_than_ever():
    """What a thread has freed stays with malloc, and nothing of it is next to the end of its heap."""
    code = """
    import time, threading, jax, jax.numpy as jnp, numpy as np
    mib = lambda: int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) // 1024
    kept = jax.block_until_ready(jnp.ones(32 << 18))
    dropped = jax.block_until_ready(jnp.ones(96 << 18))
    pins = []
    def churn():
        freed = []
        for _ in range(2000):
            freed.append(bytearray(b"x" * (100 << 10)))
            pins.append(bytearray(600))
        # In use for some looks, so that the process has been as large as this.
        time.sleep(1.5)
    thread = threading.Thread(target=churn)
    thread.start()
    thread.join()
    del dropped
    before, users = mib(), []
    while mib() > before - 100 and len(users) < 12:
        users.append(np.full(48 << 17, 1.0))
        deadline = time.monotonic() + 5
        while mib() > before - 100 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert mib() <= before - 100, (before, mib(), len(users))
    assert float(kept.sum()) == 32 << 18
    """
    run_jax(code)
