"""The arena as a part of a process: limits that the shell sets, and an end while programs run."""

from __future__ import annotations

import pytest
from harness import run_jax

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


@pytest.mark.parametrize("which", ["RLIMIT_AS", "RLIMIT_DATA"])
@pytest.mark.parametrize("strategy", ["preallocate", "growing"])
def test_limits_of_the_shell_leave_room_for_arrays(strategy, which):
    """`ulimit -v` and `-d`, as batch systems set them: libraries and threads are mapped too, so arrays cannot have
    three quarters."""
    run = run_jax(LIMITED.format(which=which, bytes=4 << 30), PJRT_ARENA_STRATEGY=strategy)
    assert 384 << 20 < int(run.stdout.split()[-1]) < 3 << 30


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
