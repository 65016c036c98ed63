"""Names that are no UTF-8, search paths that Python itself ignores, many devices and threads, and systems with little
of something: mappings, address space, disk."""

import os
import sys
import textwrap
from pathlib import Path

import pytest
from harness import run_jax, run_python

pytestmark = pytest.mark.arena

# No program: jaxlib cannot put such a name into one's locations.
EXHAUST = """
import jax, numpy
try:
    jax.device_put(numpy.ones(8 << 20, numpy.float32)).block_until_ready()
except Exception as error:
    print(error)
"""


def test_a_script_whose_name_is_no_utf_8_gets_its_report(tmp_path):
    script, report = tmp_path / os.fsdecode(b"caf\xe9.py"), tmp_path / "report.json"
    script.write_text(EXHAUST)
    settings = {"PJRT_ARENA_LIMIT": "16MiB", "PJRT_ARENA_OOM_REPORT": str(report)}
    run = run_python(str(script), **settings)
    assert "RESOURCE_EXHAUSTED" in run.stdout and "panicked" not in run.stdout + run.stderr, run
    assert '"caf\N{REPLACEMENT CHARACTER}.py"' in report.read_text(encoding="utf-8")


#: The same as a user who gives JAX the library by its path, without the package.
ENGINE = """
import ctypes, os
library = ctypes.CDLL(os.environ["PJRT_ARENA_LIBRARY_PATH"])
text = ctypes.create_string_buffer(1 << 16)
library.pjrt_arena_engine(text, ctypes.c_size_t(len(text)))
print(text.value.decode())
"""


def planted(folder):
    """An engine's file below `folder`, which nobody can load."""
    library = folder / "xla_plugins" / "xla_cpu_pjrt" / "xla_cpu_pjrt.so"
    library.parent.mkdir(parents=True)
    library.write_text("not a library")
    return library


def doctor(*options, cwd, monkeypatch, **settings):
    monkeypatch.chdir(cwd)
    arguments = (*options, "-S", "-c", ENGINE)
    return run_python(*arguments, check=False, PJRT_ARENA_ENGINE=None, PJRT_ARENA_LOG="debug", **settings)


@pytest.mark.parametrize(("options", "seen"), [((), True), (("-I",), False), (("-E",), False)])
def test_pythonpath_is_ignored_where_python_ignores_it(tmp_path, monkeypatch, options, seen):
    library = planted(tmp_path / "path")
    path = str(tmp_path / "path")
    run = doctor(*options, cwd=tmp_path, monkeypatch=monkeypatch, PYTHONPATH=path, VIRTUAL_ENV=None, CONDA_PREFIX=None)
    assert (str(library) in run.stdout + run.stderr) == seen, (sys.version, run)


@pytest.mark.parametrize("path", [":", ":/no/such/folder", None])
def test_the_current_folder_is_not_searched(tmp_path, monkeypatch, path):
    library = planted(tmp_path)
    run = doctor(cwd=tmp_path, monkeypatch=monkeypatch, PYTHONPATH=path, VIRTUAL_ENV=None, CONDA_PREFIX=None)
    assert str(library) not in run.stdout + run.stderr, run
    code = "from pjrt_arena import _library; l = _library.load(); l.set_search_path(); "
    code += "print(l._text('pjrt_arena_engine'))"
    run = run_python("-c", code, PJRT_ARENA_ENGINE=None)
    assert str(library) not in run.stdout, run


BESIDE = """
import faulthandler
faulthandler.dump_traceback_later(300, exit=True)
import gc, threading, time
import jax, jax.numpy as jnp, numpy as np
from harness import bytes_in_use, eventually
from pjrt_arena import memory
devices = jax.devices("arena")
def exhausted(act):
    try:
        jax.block_until_ready(act())
    except (RuntimeError, ValueError) as error:
        assert str(error).startswith("RESOURCE_EXHAUSTED: "), error
        return str(error)
    raise AssertionError("there was room")
"""


def run_beside(code, **settings):
    return run_jax(BESIDE + textwrap.dedent(code), **{"PJRT_ARENA_ZERO_COPY": "off"} | settings)


@pytest.mark.parametrize("strategy", ["growing", "tpu"])
def test_as_many_devices_as_there_may_be(strategy):
    run_beside(
        """
        assert len(devices) == 4096
        assert {device.memory_stats()["bytes_limit"] for device in devices} == {2 << 20}
        kept = [jax.device_put(np.arange(1000, dtype=np.int32) + device.id, device) for device in devices[::64]]
        # XLA takes devices from 2048 on for those of another process, and runs no programs there, on any backend.
        more = [jax.jit(lambda x: x * 2)(array) for array in kept[:32:16]]
        for number, array in enumerate(kept):
            assert (np.asarray(array) == np.arange(1000) + 64 * number).all()
        for number, array in enumerate(more):
            assert (np.asarray(array) == 2 * (np.arange(1000) + 64 * 16 * number)).all()
        # Each has its own.
        error = exhausted(lambda: jax.device_put(np.zeros(3 << 20, np.uint8), devices[4095]))
        assert "on cpu:4095" in error, error
        held = [device.bytes_in_use for device in memory.stats()]
        assert set(held[::64]) == {4000, 8000} and sum(held) == 4000 * (64 + 2), sum(held)
        """,
        PJRT_ARENA_DEVICES="4096",
        PJRT_ARENA_STRATEGY=strategy,
        PJRT_ARENA_LIMIT="2MiB",
    )


@pytest.mark.parametrize(
    "settings", [{"PJRT_ARENA_STRATEGY": "tpu"}, {"PJRT_ARENA_STRATEGY": "platform"}], ids=["tpu", "platform"]
)
def test_64_threads_allocate_run_and_free_at_once(settings):
    run_beside(
        """
        step = jax.jit(lambda x: (x + 1, x[::2]), donate_argnums=0)
        start, wrong = threading.Barrier(64), []
        def work(number):
            try:
                start.wait(60)
                device = devices[number % 2]
                for turn in range(6):
                    size = 1000 * (1 + (number + turn) % 7)
                    x = jax.device_put(np.arange(size, dtype=np.int32) + number, device)
                    for _ in range(3):
                        x, half = step(x)
                    view = np.asarray(half)
                    if not (np.asarray(x) == np.arange(size) + number + 3).all():
                        wrong.append((number, turn))
                    if not (view == np.arange(0, size, 2) + number + 2).all():
                        wrong.append((number, turn))
            except BaseException as error:
                wrong.append((number, error))
        threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong[:5]
        gc.collect()
        eventually(lambda: [bytes_in_use(device) for device in devices], [0, 0])
        """,
        PJRT_ARENA_DEVICES="2",
        PJRT_ARENA_LIMIT="16MiB",
        **settings,
    )


def test_no_more_mappings_are_an_error_and_freed_ones_come_back():
    """`platform` has a mapping for each array, and Linux allows a process so many (`vm.max_map_count`)."""
    if int(Path("/proc/sys/vm/max_map_count").read_text()) > 1 << 20:
        pytest.skip("too many mappings to use up")
    run_beside(
        """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        PAGE, MOST = 4096, 1 << 20
        host = np.arange(1 << 16, dtype=np.int32)
        put = jax.jit(lambda x: x + 1)
        # What programs need besides is there.
        before = [put(jax.device_put(host, devices[0])) for _ in range(4)]
        memory.stats(), gc.collect()
        beginning = memory.stats()[0]

        # Private, read and write, read only, and so on: Linux joins none of them.
        base = libc.mmap(None, MOST * PAGE, 3, 0x4022, -1, 0)
        used = 0

        def use_up():
            global used
            while used < MOST and libc.mprotect(base + 2 * used * PAGE, PAGE, 1) == 0:
                used += 1
            assert 0 < used < MOST and ctypes.get_errno() == 12, (used, ctypes.get_errno())
            # One more may be made than others can be split into. And Linux would join an array's mapping with a
            # neighbour that is like it, so those where it would come are not.
            protection = 0
            while libc.mmap(None, host.nbytes, protection, 0x4022, -1, 0) != ctypes.c_void_p(-1).value:
                protection ^= 1

        errors, kept = set(), []
        for _ in range(20):
            # Other threads of the process may have given mappings back since.
            use_up()
            try:
                kept.append(jax.device_put(host, devices[0]).block_until_ready())
            except (RuntimeError, ValueError) as error:
                errors.add(str(error))
        for array in kept:
            assert (np.asarray(array) == host).all()
        assert errors, "mappings were not used up"
        for error in errors:
            assert error.startswith("RESOURCE_EXHAUSTED: ") and "Cannot allocate memory" in error, error

        # Some go: the arena works on, and nothing is lost.
        del kept
        libc.munmap(base, MOST * PAGE)
        del before[::2]
        after = [put(jax.device_put(host + number, devices[0])) for number in range(50)]
        for number, array in enumerate(after):
            assert (np.asarray(array) == host + number + 1).all()
        for array in before:
            assert (np.asarray(array) == host + 1).all()
        del after, array, before
        gc.collect()
        eventually(bytes_in_use, 0)
        now = memory.stats()[0]
        assert (now.num_live_blocks, now.pool_bytes) == (0, 0), now
        """,
        PJRT_ARENA_STRATEGY="platform",
    )


def test_a_limit_of_a_few_pages():
    code = """
        import jax, jax.numpy as jnp
        try:
            print(float(jnp.arange(100.0).sum()))
        except RuntimeError as error:
            print(error)
    """
    run = run_jax(code, PJRT_ARENA_LIMIT="16KiB")
    assert "PJRT_ARENA_LIMIT=16KiB is not valid; allowed: bytes per device, at least 1MiB" in run.stdout, run.stdout
    for strategy in ("preallocate", "growing", "platform", "tpu"):
        assert run_jax(code, PJRT_ARENA_LIMIT="1MiB", PJRT_ARENA_STRATEGY=strategy).stdout == "4950.0\n"


@pytest.mark.parametrize("strategy", ["tpu", "platform"])
def test_little_address_space(strategy):
    """`ulimit -v` with little above what JAX has mapped itself: a smaller arena, or an error that says so."""
    run = run_jax(
        """
        import resource, jax, jax.numpy as jnp, numpy as np
        jax.devices("cpu")
        mapped = int(open("/proc/self/statm").read().split()[0]) * 4096
        most = mapped + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        try:
            kept = [jax.device_put(np.full(1 << 20, turn, np.int32), jax.devices("arena")[0]) for turn in range(8)]
            assert all((np.asarray(array) == turn).all() for turn, array in enumerate(kept))
            print("works", jax.devices("arena")[0].memory_stats()["bytes_limit"])
            try:
                jax.device_put(np.broadcast_to(np.int32(1), 1 << 28), jax.devices("arena")[0])
            except (RuntimeError, ValueError, MemoryError) as error:
                print(str(error).splitlines()[0] if str(error) else "MemoryError")
        except RuntimeError as error:
            print(error)
        """,
        PJRT_ARENA_STRATEGY=strategy,
        PJRT_ARENA_LIMIT=None,
    )
    assert run.stdout.startswith("works"), run.stdout


@pytest.mark.parametrize("name", ["report.json", "report.html", "report.pickle"])
def test_a_full_disk_takes_no_report_and_the_error_stays(tmp_path, name):
    report = tmp_path / name
    run = run_beside(
        """
        import resource, signal
        kept = [jax.device_put(np.zeros(1 << 18, np.float32), devices[0]) for _ in range(4)]
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        error = exhausted(lambda: jax.device_put(np.zeros(1 << 23, np.float32), devices[0]))
        assert "Out of memory while trying to allocate" in error, error
        assert float(kept[3].sum()) == 0
        """,
        PJRT_ARENA_LIMIT="16MiB",
        PJRT_ARENA_OOM_REPORT=str(report),
    )
    assert "no report of exhausted memory" in run.stderr and str(report) in run.stderr, run.stderr
    assert "File too large" in run.stderr, run.stderr
    assert list(tmp_path.iterdir()) == []
