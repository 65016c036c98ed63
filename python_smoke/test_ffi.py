"""Custom calls on the CPU: LAPACK, handlers that users register, buffer callbacks; the same as on JAX's own backend."""

from __future__ import annotations

import ctypes
import gc
import logging

import handlers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import arena_device, assert_same, eventually, on, run_jax
from jax.experimental.buffer_callback import buffer_callback
from pjrt_arena import ArenaError, _library
from test_compaction import TPU, run_case

pytestmark = pytest.mark.arena

needs_compiler = pytest.mark.skipif(handlers.COMPILER is None, reason="no C++ compiler to make handlers with")

rng = np.random.default_rng(4)
GENERAL = rng.standard_normal((12, 12)).astype(np.float32)
SYMMETRIC = (GENERAL @ GENERAL.T + 12 * np.eye(12)).astype(np.float32)
DIAGONALS = [rng.standard_normal(12).astype(np.float32) for _ in range(3)]
DIAGONALS[1] += 8

LINEAR_ALGEBRA = {
    "eigh": (jnp.linalg.eigh, SYMMETRIC),
    "eig": (jnp.linalg.eig, GENERAL),
    "cholesky": (jnp.linalg.cholesky, SYMMETRIC),
    "solve": (jnp.linalg.solve, GENERAL, GENERAL[:, 0]),
    "svd": (jnp.linalg.svd, GENERAL),
    "qr": (jnp.linalg.qr, GENERAL),
    "schur": (jax.scipy.linalg.schur, GENERAL),
    "lu": (jax.scipy.linalg.lu, GENERAL),
    "hessenberg": (jax.scipy.linalg.hessenberg, GENERAL),
    "triangular solve": (lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True), SYMMETRIC, GENERAL),
    "tridiagonal solve": (jax.lax.linalg.tridiagonal_solve, *DIAGONALS, GENERAL),
}


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The compiled handlers."""
    return handlers.build(tmp_path_factory.mktemp("handlers"))


@pytest.fixture(scope="session")
def registered(library):
    """The compiled handlers, registered while both backends run."""
    jax.devices("cpu")
    return handlers.register(library)


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_linear_algebra(name):
    function, *arguments = LINEAR_ALGEBRA[name]
    # The same LAPACK on the same machine: the same bits.
    assert_same(jax.jit(function), *arguments, exact=True)


def test_batches_gradients_and_double_precision():
    batch = np.stack([SYMMETRIC, 2 * SYMMETRIC, SYMMETRIC.T])
    assert_same(jax.jit(jax.vmap(jnp.linalg.cholesky)), batch, exact=True)
    assert_same(jax.jit(jax.grad(lambda x: jnp.linalg.eigh(x)[0].sum() + jnp.linalg.slogdet(x)[1])), SYMMETRIC)
    with jax.enable_x64(True):
        complex_ = SYMMETRIC + 1j * (GENERAL - GENERAL.T)
        assert_same(jax.jit(jnp.linalg.eigh), complex_.astype(np.complex128), exact=True)


def test_buffer_callbacks():
    def callback(context, out, x, y):
        assert "execute" in str(context.stage).lower()
        np.asarray(out)[:] = np.asarray(x) + 2 * np.asarray(y)

    call = buffer_callback(callback, jax.ShapeDtypeStruct((1000,), jnp.float32))
    x = np.arange(1000, dtype=np.float32)
    assert_same(jax.jit(lambda x: 1 + call(x, x + 1)), x, exact=True)


def test_an_error_in_a_buffer_callback_is_the_programs():
    def callback(context, out):
        raise ValueError("not today")

    call = buffer_callback(callback, jax.ShapeDtypeStruct((8,), jnp.float32))
    with pytest.raises(Exception, match="not today"):
        on(arena_device(), jax.jit(call))


def test_a_buffer_callback_is_told_that_there_is_no_stream():
    """jaxlib up to 0.11.0 takes the error apart as its own Abseil lays it out, which need not be the engine's."""
    said = []

    def callback(context, out):
        for _ in range(100):
            with pytest.raises(Exception, match="XLA FFI GPU context is not available") as raised:
                context.stream  # noqa: B018
            said.append(str(raised.value))
        np.asarray(out)[:] = 1

    call = buffer_callback(callback, jax.ShapeDtypeStruct((8,), jnp.float32))
    for device in (arena_device(), jax.devices("cpu")[0]):
        assert np.array_equal(on(device, jax.jit(call)), np.ones(8, np.float32))
    assert len(said) == 200 and len(set(said)) == 1, set(said)


@needs_compiler
def test_handlers_registered_after_the_backends_started(registered):
    x = np.arange(1000, dtype=np.float32)
    assert_same(jax.jit(lambda x: 1 + handlers.scale(x, 3)), x, exact=True)
    handlers.register(registered._name)  # the same again is nothing new


@needs_compiler
def test_a_state_belongs_to_its_program(registered):
    for device in (arena_device(), jax.devices("cpu")[0]):
        before = registered.states_alive()
        with jax.default_device(device):
            programs = [jax.jit(lambda turn=turn: turn + handlers.count()).lower().compile() for turn in range(2)]
        assert registered.states_alive() == before + 2
        assert [int(program()[0]) for program in (programs[0], programs[0], programs[1])] == [1, 2, 2]
        del programs
        gc.collect()
        eventually(registered.states_alive, before)


@needs_compiler
def test_an_exception_in_a_handler_is_the_programs_error(registered):
    for device in (arena_device(), jax.devices("cpu")[0]):
        with jax.default_device(device), pytest.raises(Exception, match="thrown on purpose"):
            jax.block_until_ready(jax.jit(handlers.throw)())
    assert_same(jax.jit(lambda x: handlers.scale(x, 2)), np.ones(4, np.float32))


@needs_compiler
def test_a_refused_handler_fails_the_call_that_registers_it(registered):
    address = handlers.address_of
    _library.load().register_ffi_handler("smoke_taken", {"execute": address(registered.scale)})
    with pytest.raises(ArenaError, match="FFI handler smoke_taken on platform cpu: Duplicate"):
        jax.ffi.register_ffi_target("smoke_taken", jax.ffi.pycapsule(registered.throws), platform="cpu")
    # JAX's own backend took it all the same.
    with jax.default_device(jax.devices("cpu")[0]), pytest.raises(Exception, match="thrown on purpose"):
        jax.block_until_ready(jax.jit(jax.ffi.ffi_call("smoke_taken", jax.ShapeDtypeStruct((1,), jnp.int32)))())


@needs_compiler
def test_a_function_from_before_ffi_is_left_to_jax(registered, caplog):
    with caplog.at_level(logging.DEBUG, "jax_plugins.arena._ffi"):
        jax.ffi.register_ffi_target("smoke_untyped", untyped_capsule(registered), platform="cpu", api_version=0)
    assert "smoke_untyped" in caplog.text


def untyped_capsule(loaded):
    """As jaxlib wants them: it looks at the name."""
    builder = ctypes.pythonapi.PyCapsule_New
    builder.restype, builder.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return builder(handlers.address_of(loaded.scale), b"xla._CUSTOM_CALL_TARGET", None)


def test_what_is_refused_at_the_start_is_told_once_and_stops_nothing():
    run = run_jax(
        """
        import jax, jax.numpy as jnp

        for name in ("one", "two"):
            jax.ffi.register_ffi_target(name, "no capsule", platform="cpu")
        assert jax.devices()[0].memory_stats() is not None
        print(jnp.linalg.eigh(jnp.diag(jnp.arange(3.0)))[0])
        """
    )
    assert "[0. 1. 2.]" in run.stdout
    assert run.stderr.count("2 handlers for the CPU are not available on arena; the first: one: ") == 1, run.stderr


EARLY = """
import handlers, jax, jax.numpy as jnp, numpy as np
if {early}:
    handlers.register({library!r})
assert jax.devices()[0].memory_stats() is not None, "this is not the arena"
if not {early}:
    handlers.register({library!r})
x = jnp.arange(1000, dtype=jnp.float32)
assert np.array_equal(jax.jit(lambda x: handlers.scale(x, 3))(x), 3 * np.arange(1000, dtype="f4"))
assert [int(f()[0]) for f in [jax.jit(handlers.count)] * 3] == [1, 2, 3]
print(jnp.linalg.eigh(jnp.diag(x[:3]))[0])
"""


@needs_compiler
@pytest.mark.parametrize(("early", "platforms"), [(True, "arena,cpu"), (False, "arena")])
def test_handlers_in_a_fresh_process(library, early, platforms):
    run = run_jax(EARLY.format(early=early, library=str(library)), JAX_PLATFORMS=platforms)
    assert "[0. 1. 2.]" in run.stdout
    assert "not available" not in run.stderr


def test_a_library_that_jaxs_own_variable_names_has_handlers_too():
    run = run_jax(
        """
        import jax, jax.numpy as jnp

        assert jax.devices()[0].memory_stats() is not None
        print(jnp.linalg.eigh(jnp.diag(jnp.arange(3.0)))[0])
        """,
        PJRT_NAMES_AND_LIBRARY_PATHS=f"arena:{_library.load().path}",
    )
    assert "[0. 1. 2.]" in run.stdout


def test_nothing_happens_without_the_arena():
    run_jax(
        """
        import jax
        from harness import library_is_mapped
        from jax_plugins.arena import _ffi

        assert jax.devices()[0].platform == "cpu"
        assert not _ffi._installed and not library_is_mapped()
        """,
        JAX_PLATFORMS="cpu",
    )


def test_custom_calls_while_arrays_move():
    run_case(
        """
        from jax.experimental.buffer_callback import buffer_callback

        work = Fragments(("float32", "int8"))
        x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
        symmetric = jax.device_put(x @ x.T / 1e6 + 64 * np.eye(64, dtype=np.float32), arena_device())
        values = np.linalg.eigvalsh(np.asarray(symmetric).copy())

        def callback(context, out, x):
            np.asarray(out)[:] = np.asarray(x) + 1

        call = buffer_callback(callback, jax.ShapeDtypeStruct(symmetric.shape, symmetric.dtype))
        program = jax.jit(lambda x: (jnp.linalg.eigvalsh(x), call(x)))
        moves = memory.stats()[0].num_moves
        for turn in range(5):
            seen, added = program(symmetric)
            # `symmetric` lies among what moves; neither result may be of another time.
            memory.compact()
            np.testing.assert_allclose(np.asarray(seen), values, rtol=1e-3)
            assert np.array_equal(np.asarray(added), np.asarray(symmetric).copy() + 1)
            work.kept.pop(turn)
            gc.collect()
        assert memory.stats()[0].num_moves > moves
        """,
        **TPU,
    )
