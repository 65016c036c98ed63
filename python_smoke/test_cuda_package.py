"""What the package does where the engine is a GPU's, with packages that stand for JAX's: no GPU, nothing downloaded."""

from __future__ import annotations

import textwrap

import engines
import fake_cuda_packages as fake
import pytest
from harness import run_python
from pjrt_arena import _library

pytestmark = pytest.mark.arena

#: What a child's code may use. `discover` is all of JAX's start but the clients: plugins are found and initialised.
START = """
import jax
from jax._src import xla_bridge
from jaxlib import xla_client

discover = xla_bridge._discover_and_register_pjrt_plugins

def our_table():
    return xla_bridge._backend_factories["arena"].c_api

def given(what):
    return [(name, *rest) for function, name, rest, table in extension.calls if function == what]
"""
OWN_HANDLERS = [("own_solver", "CUDA", 1, 0), ("own_callback", "CUDA", 1, 0)]


@pytest.fixture
def packages(tmp_path):
    """A folder with the packages for CUDA 13."""
    fake.make(tmp_path)
    return tmp_path


def run(folder, code, check=True, kind="cuda", **settings):
    """Runs `code` where JAX uses the arena in front of the engine of `folder`."""
    settings = {"PJRT_ARENA_ENGINE": kind, "PYTHONPATH": fake.search_path(folder), **settings}
    return run_python("-c", START + textwrap.dedent(code), check=check, **settings)


def test_handlers_types_and_triton_reach_the_engine_through_our_table(packages):
    code = """
        from jax_cuda13_plugin import cuda_plugin_extension as extension

        jax.ffi.register_ffi_target("early", extension.capsule("early"), platform="CUDA")
        discover()
        jax.ffi.register_ffi_target("late", {"execute": extension.capsule("late")}, platform="CUDA")
        jax.ffi.register_ffi_type("late_state", {"type_id": extension.capsule("late")}, platform="CUDA")
        assert given("type") == [("own_state",), ("late_state",)], extension.calls
        assert given("handler") == [("early", "CUDA", 1, 0), *OWN, ("late", "CUDA", 1, 0)], extension.calls
        # XLA wants to know the types first.
        assert extension.calls[0][0] == "handler" and extension.calls[1][0] == "type"
        assert all(call[-1] is our_table() for call in extension.calls)
        from jax._src.lib import triton
        assert triton.compile("CUDA", b"kernel", "sm_90", num_warps=4, num_ctas=1, num_stages=1) == (
            our_table(), b"kernel", "sm_90")
    """
    seen = run(packages, code.replace("*OWN", f"*{OWN_HANDLERS}"))
    assert seen.stderr == ""


@pytest.mark.parametrize("hash_seed", ["0", "1", "2"])
def test_beside_the_backend_cuda_of_the_same_library_nothing_is_done_twice(packages, hash_seed):
    # The seed decides which of the two plugins JAX initialises first.
    code = """
        from jax_cuda13_plugin import cuda_plugin_extension as extension

        discover()
        jax.ffi.register_ffi_target("late", {"execute": extension.capsule("late")}, platform="CUDA")
        assert [name for name, *_ in given("handler")] == ["own_solver", "own_callback", "late"], extension.calls
        assert {call[-1] for call in extension.calls} == {"table of cuda"}
        from jax._src.lib import triton
        assert triton.has_compilation_handler("CUDA")
        assert "cuda" not in xla_bridge._backends
    """
    seen = run(packages, code, PYTHONHASHSEED=hash_seed, FAKE_CUDA_REGISTERS="1")
    assert seen.stderr == ""


@pytest.mark.parametrize("hash_seed", ["0", "1", "2"])
def test_beside_the_backend_cuda_of_another_library_both_are_given_everything(packages, tmp_path_factory, hash_seed):
    elsewhere = fake.make(tmp_path_factory.mktemp("elsewhere"))
    code = """
        from jax_cuda13_plugin import cuda_plugin_extension as extension

        discover()
        def tables(wanted):
            return [call[-1] for call in extension.calls if call[1] == wanted]
        jax.ffi.register_ffi_target("late", {"execute": extension.capsule("late")}, platform="CUDA")
        jax.ffi.register_ffi_type("late_state", {"type_id": extension.capsule("late")}, platform="CUDA")
        for name in ("own_state", "own_solver", "late", "late_state"):
            assert tables(name) == ["table of cuda", our_table()], (name, extension.calls)
    """
    seen = run(packages, code, PJRT_ARENA_ENGINE=str(elsewhere), PYTHONHASHSEED=hash_seed, FAKE_CUDA_REGISTERS="1")
    (line,) = seen.stderr.splitlines()
    assert "jax_plugins.xla_cuda13" in line and str(elsewhere) in line and "linear algebra" in line


@pytest.mark.parametrize("hash_seed", ["0", "1", "2"])
def test_the_engines_profiler_is_begun_once_and_a_trace_has_the_arenas_part_too(packages, hash_seed):
    # jaxlib has a profiler of each plugin's table, JAX's own and ours, and starts all of them.
    code = """
        from jax._src.lib import _profiler

        x = jax.numpy.ones(8)
        options = _profiler.ProfileOptions()
        options.raise_error_on_start_failure = True  # as JAX's profile-guided recompilation has it
        session = _profiler.ProfilerSession(options)
        (x * 2).block_until_ready()
        space = session.stop()
        assert b"pjrt-arena cpu:0" in (space if isinstance(space, bytes) else space.serialize_as_string()), len(space)
    """
    run(packages, code, PYTHONHASHSEED=hash_seed, FAKE_CUDA_PROFILES="1")


def test_nvidias_libraries_come_before_the_engine_and_cuda_is_not_registered(packages):
    code = """
        import engines
        from jax_plugins import xla_cuda13
        from harness import library_is_mapped

        xla_cuda13._load_nvidia_libraries = lambda: xla_cuda13.done.append(library_is_mapped(engines.under_test().name))
        discover()
        done = [what for what in xla_cuda13.done if what != "initialize"]
        assert done == [False, "extensions", "versions"], xla_cuda13.done
        assert library_is_mapped(engines.under_test().name)
        assert "cuda" not in xla_bridge._backend_factories
    """
    assert run(packages, code).stderr == ""


def test_unfit_versions_are_one_warning_that_can_be_turned_off(packages):
    code = "discover(); assert our_table() is not None"
    (line,) = run(packages, code, FAKE_CUDA_UNFIT="1").stderr.splitlines()
    assert "do not fit the engine" in line and "cuDNN is too old" in line
    quiet = run(packages, code, FAKE_CUDA_UNFIT="1", JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1")
    assert quiet.stderr == ""


def test_a_missing_extension_is_one_warning(tmp_path):
    fake.make(tmp_path, extension=False)
    code = """
        from jax_plugins import xla_cuda13
        del xla_cuda13._import_extensions, xla_cuda13._check_cuda_versions  # as in a version that has none
        discover()
        assert our_table() is not None
    """
    (line,) = run(tmp_path, code).stderr.splitlines()
    assert "custom calls" in line and "jax_cuda13_plugin, jax_cuda12_plugin" in line


def test_a_refused_handler_is_named_and_stops_no_other(packages):
    code = """
        from jax_cuda13_plugin import cuda_plugin_extension as extension

        extension.refuse.update(("own_state", "own_solver"))
        discover()
        assert [name for name, *_ in given("handler")] == ["own_solver", "own_callback"]
        # Once JAX has started it is a user's call that fails.
        extension.refuse.add("late")
        try:
            jax.ffi.register_ffi_target("late", {"execute": extension.capsule("late")}, platform="CUDA")
        except RuntimeError as error:
            assert "late is refused on purpose" in str(error)
        else:
            raise AssertionError("nobody was told")
    """
    state, solver = run(packages, code).stderr.splitlines()
    assert "own_state is refused on purpose" in state and "arena" in state
    assert "own_solver is refused on purpose" in solver and "arena" in solver


def test_each_engine_has_the_extension_of_its_own_version(packages):
    fake.make(packages, major=12)
    code = """
        import jax_cuda12_plugin.cuda_plugin_extension as extension
        import jax_cuda13_plugin.cuda_plugin_extension as another
        discover()
        assert len(given("handler")) == 2 and another.calls == []
    """
    run(packages, code, PJRT_ARENA_ENGINE=str(packages / "jax_plugins/xla_cuda12/xla_cuda_plugin.so"))


def test_rocm_goes_the_same_way(tmp_path):
    fake.make(tmp_path, kind="rocm", major=7)
    code = """
        from jax_rocm7_plugin import rocm_plugin_extension as extension

        discover()
        assert given("handler") == [("own_solver", "ROCM", 1, 0), ("own_callback", "ROCM", 1, 0)]
        from jax_plugins.arena import _client_options
        assert _client_options()["platform_name"] == "ROCM"
    """
    assert run(tmp_path, code, kind="rocm").stderr == ""


def test_a_library_that_jaxs_own_variable_names(packages):
    code = """
        from jax_cuda13_plugin import cuda_plugin_extension as extension

        discover()
        assert len(given("handler")) == 2 and all(call[-1] is our_table() for call in extension.calls)
        assert jax.devices("cuda") == jax.devices("arena")
    """
    run(packages, code, PJRT_NAMES_AND_LIBRARY_PATHS=f"arena:{_library.load().path}")


def test_gpu_and_cuda_mean_the_arena_and_callbacks_have_a_cpu(packages):
    code = """
        assert jax.devices("gpu") == jax.devices("cuda") == jax.devices("arena") == jax.devices()
        assert jax.devices("cpu") != jax.devices()
        # jaxlib's name of the platform, and the one whose rules a program is lowered by.
        assert xla_bridge.canonicalize_platform("gpu") == "cuda"
    """
    run(packages, code, JAX_PLATFORMS="arena")


def test_the_backend_cuda_keeps_its_name_where_it_runs_too(packages):
    code = """
        cuda = xla_client.make_cpu_client()
        xla_bridge.register_backend_factory("cuda", lambda: cuda)
        xla_bridge.hardware_utils.has_visible_nvidia_gpu = lambda: True
        assert jax.devices("cuda") == jax.devices("gpu") == cuda.devices()
        assert jax.devices() == jax.devices("arena") != cuda.devices()
    """
    run(packages, code, JAX_PLATFORMS="arena,cuda,cpu")


def test_an_engine_that_appears_later(packages):
    code = """
        import os
        from harness import start_error
        from jax_cuda13_plugin import cuda_plugin_extension as extension

        assert "/no/such/engine.so" in start_error()
        os.environ["PJRT_ARENA_ENGINE"] = "cuda"
        assert jax.devices("gpu") == jax.devices("arena")
        assert len(given("handler")) == 2
    """
    run(packages, code, PJRT_ARENA_ENGINE="/no/such/engine.so")


FAKE_ENGINE = _library.load().path.parent / "libfake_cuda_engine.so"


@pytest.mark.skipif(not FAKE_ENGINE.is_file(), reason=f"there is no {FAKE_ENGINE}: cargo build --workspace makes it")
def test_programs_are_lowered_by_the_rules_for_cuda(packages):
    code = """
        import jax.numpy as jnp

        (device,) = jax.devices("arena")
        assert (device.platform, jax.default_backend()) == ("gpu", "gpu")
        assert "cusolver_potrf" in jax.jit(jnp.linalg.cholesky).lower(jnp.eye(4)).as_text()
        x = jnp.arange(8.0)
        assert jax.jit(lambda x: x * 2)(x).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
        # DLPack says of the array that it is CUDA's.
        again = jax.dlpack.from_dlpack(x)
        assert again.devices() == {device} and again.tolist() == x.tolist()
    """
    engine = {"PJRT_ARENA_ENGINE": str(FAKE_ENGINE), "FAKE_ENGINE_CPU": str(engines.under_test())}
    run(packages, code, **engine, FAKE_CUDA_GPUS="1")


CREATED = """
from jax._src import distributed

class Seen(Exception):
    pass

def make_c_api_client(name, options=None, distributed_client=None, *rest, **more):
    global seen
    seen = name, dict(options), distributed_client
    raise Seen("on purpose")

xla_client.make_c_api_client = make_c_api_client

def created():
    try:
        jax.devices()
    except RuntimeError as error:
        assert "on purpose" in str(error), error
    return seen
"""


def test_the_client_gets_the_options_of_jaxs_own_plugin(packages):
    code = """
        import os
        jax.config.update("jax_cuda_visible_devices", "1,3")
        jax.config.update("jax_pjrt_client_create_options", "strategy:growing")
        os.environ["XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB"] = "64"
        os.environ["XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE"] = "1"
        assert created() == ("arena", {
            "platform_name": "cuda",
            "visible_devices": [1, 3],
            "enable_mock_nccl": False,
            "collective_memory_size": 64 << 20,
            "abort_collectives_on_failure": True,
            "strategy": "growing",
        }, None), seen
        assert os.environ["NCCL_GRAPH_REGISTER"] == "0"          # registered memory could not change places
    """
    run(packages, CREATED + textwrap.dedent(code))


def test_a_job_of_several_processes_reaches_the_client(packages):
    code = """
        state = distributed.global_state
        state.client, state.process_id, state.num_processes = "the store", 2, 3
        name, options, store = created()
        assert (options["node_id"], options["num_nodes"], store) == (2, 3, "the store"), seen
    """
    run(packages, CREATED + textwrap.dedent(code))


def test_mock_topologies_reach_the_client(packages):
    code = """
        jax.config.update("jax_mock_gpu_topology", "2x4x8")
        name, options, store = created()
        assert options["enable_mock_nccl"] is True and options["mock_gpu_topology"] == "2x4x8", seen
        assert options["num_nodes"] == 8, seen
    """
    run(packages, CREATED + textwrap.dedent(code))


def test_a_bad_number_is_a_sentence(packages):
    code = "from harness import start_error; print(start_error())"
    seen = run(packages, code, XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB="much")
    assert "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB=much is not valid; allowed: a whole number" in seen.stdout


def test_the_table_of_settings_names_the_handlers(packages):
    settings = {"PJRT_ARENA_ENGINE": "cuda", "PYTHONPATH": fake.search_path(packages)}
    told = run_python("-m", "pjrt_arena", "doctor", **settings).stdout
    assert "\nhandlers of custom calls: jax_cuda13_plugin\n" in told
    for name, version in (("jax_cuda13_plugin", "0.11.2"), ("jax_cuda13_pjrt", "0.12.0")):
        told = packages / f"{name}-{version}.dist-info" / "METADATA"
        told.parent.mkdir()
        told.write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    (line,) = [
        line
        for line in run_python("-m", "pjrt_arena", "doctor", **settings).stdout.splitlines()
        if line.startswith("handlers of custom calls: ")
    ]
    assert "jax_cuda13_plugin 0.11.2; the engine is of 0.12.0, and the two must be of one version" in line
    (packages / "jax_cuda13_plugin/cuda_plugin_extension.py").unlink()
    assert "\nno handlers of custom calls: " in run_python("-m", "pjrt_arena", "doctor", **settings).stdout
    assert "handlers" not in run_python("-m", "pjrt_arena", "doctor", **{**settings, "PJRT_ARENA_ENGINE": "cpu"}).stdout


@pytest.mark.parametrize("settings", [{"PJRT_ARENA_ENGINE": "cpu"}, {"JAX_PLATFORMS": "cpu"}], ids=["cpu", "not named"])
def test_nothing_of_it_is_imported_without_a_gpus_engine(packages, settings):
    code = """
        import sys
        from jax_cuda13_plugin import cuda_plugin_extension as extension

        assert jax.devices("cpu")
        assert "jax_plugins.arena._cuda" not in sys.modules and extension.calls == []
        assert "cuda" not in xla_bridge._backends
    """
    run(packages, code, **settings)
