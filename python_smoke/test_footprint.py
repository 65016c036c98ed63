"""`pjrt_arena.memory`: what an array takes on a TPU, and how the module speaks to the library."""

import ctypes
import functools
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from harness import run_python
from pjrt_arena import ArenaError, _library, memory

pytestmark = pytest.mark.arena


@pytest.mark.parametrize(
    ("shape", "dtype", "size", "layout"),
    [
        # Sizes that TPUs reported: XLA's docs/errors/error_0102.md, Google's guide to memory errors, JAX's own docs.
        ((16, 1280, 40), jnp.bfloat16, 5_242_880, "T(8,128)(2,1)"),
        ((29_360_128, 10), np.int32, 14 << 30, "T(8,128)"),
        ((327_680, 327_680), "uint8", 107_374_182_400, "T(8,128)(4,1)"),
        # Layouts that dumps of XLA's programs for TPUs show.
        ((), "float32", 512, "T(128)"),
        ((), bool, 512, "T(512)"),
        (10, jnp.float32, 512, "T(128)"),
        ((4096,), "bfloat16", 8192, "T(1024)(128)(2,1)"),
        ((1, 6144), "float32", 6144 * 4, "T(1,128)"),
        ((1, 1), np.bool_, 512, "T(4,128)(4,1)"),
        ((8, 256), ml_dtypes.int4, 1024, "T(8,128)(8,1)E(4)"),
        ((7168, 2048), jnp.float8_e4m3fn, 7168 * 2048, "T(8,128)(4,1)"),
        ((3, 5), np.complex64, 2 * 4 * 128 * 4, "2x T(4,128)"),
        ((3, 5), float, 2 * 4 * 128 * 4, "2x T(4,128)"),
        ((0, 5), np.int16, 0, "T(2,128)(2,1)"),
    ],
)
def test_what_an_array_takes(shape, dtype, size, layout):
    found = memory.tpu_footprint(shape, dtype)
    assert (found.bytes, int(found), found.layout) == (size, size, layout)
    elements = int(np.prod(shape))
    bits = {"int4": 4}.get(np.dtype(dtype).name, 8 * np.dtype(dtype).itemsize)
    assert found.dense_bytes == elements * bits // 8
    assert found.padding_bytes == size - found.dense_bytes
    assert found.dense_bytes <= found.smallest_bytes <= size


def test_every_type_of_a_jax_array_has_a_footprint():
    from jax._src import dtypes

    scalars = {}
    for dtype in dtypes._jax_types:
        try:
            scalars[dtype.name] = memory.tpu_footprint((), dtype).bytes
        except ValueError:
            scalars[dtype.name] = None
    pairs = {"int64", "uint64", "float64", "complex64"}
    missing = {"complex128", "int1", "uint1", "float6_e2m3fn", "float6_e3m2fn"}
    assert {"bfloat16", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint2", "bool"} <= set(scalars)
    for name, size in scalars.items():
        assert size == (None if name in missing else 1024 if name in pairs else 512), name


def test_shape_and_dtype_in_one():
    twelve = memory.tpu_footprint((3, 4), jnp.bfloat16)
    for both in [jax.ShapeDtypeStruct((3, 4), jnp.bfloat16), jnp.ones((3, 4), jnp.bfloat16)]:
        assert memory.tpu_footprint(both) == twelve
    assert memory.tpu_footprint(np.array([3, 4]), jnp.bfloat16) == twelve
    assert memory.tpu_footprint(np.zeros(7, np.float32)).layout == "T(128)"
    trees = jax.eval_shape(lambda: {"weights": jnp.ones((1000, 3)), "bias": jnp.ones(3)})
    assert sum(memory.tpu_footprint(leaf).bytes for leaf in jax.tree.leaves(trees)) == 1000 * 128 * 4 + 512


def test_the_best_order_of_dimensions():
    # JAX on a TPU v5e lays these out so; error_0102.md shows the third.
    for shape, dtype, size, layout in [
        ((16, 8), "float32", 4096, "{0,1:T(8,128)}"),
        ((8, 4), "float32", 2048, "{0,1:T(4,128)}"),
        ((16, 1280, 40), "bfloat16", 1_638_400, "{1,2,0:T(8,128)(2,1)}"),
    ]:
        found = memory.tpu_footprint(shape, dtype)
        assert (found.smallest_bytes, found.smallest_layout) == (size, layout)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (((3,), np.complex128), ValueError, ["c128", "c64"]),
        (((1 << 62, 8), np.int32), ValueError, ["4611686018427387904", "2^64"]),
        (((3, -1), np.int32), ValueError, ["-1", "from 0"]),
        (((1 << 63,), np.int32), ValueError, ["9223372036854775808", "2**63"]),
        (((3, 4),), TypeError, ["dtype is missing"]),
        (((3.5,), np.int32), TypeError, ["3.5"]),
        ((jax.ShapeDtypeStruct((3,), np.int32), np.int32), TypeError, ["ShapeDtypeStruct"]),
        (((3,), "float33"), TypeError, ["float33"]),
        (((3,), "datetime64[s]"), TypeError, ["datetime64[s]"]),
        (((3,), np.str_), TypeError, ["str"]),
    ],
)
def test_what_has_no_footprint(arguments, kind, words):
    with pytest.raises(kind) as caught:
        memory.tpu_footprint(*arguments)
    for word in words:
        assert word in str(caught.value)


def test_importing_starts_nothing_and_needs_no_library():
    code = """
import sys
from pjrt_arena import memory
assert not {"jax", "numpy"} & set(sys.modules), "nothing is imported before it is needed"
try:
    memory.stats()
except memory.ArenaError as error:
    print(error)
"""
    run = run_python("-c", code, PJRT_ARENA_LIBRARY_PATH="/no/such/library.so")
    assert "PJRT_ARENA_LIBRARY_PATH=/no/such/library.so is not a file" in run.stdout


def test_a_library_without_the_functions_is_named():
    code = """
import _ctypes, os
os.environ["PJRT_ARENA_LIBRARY_PATH"] = _ctypes.__file__
from pjrt_arena import memory
for function in (memory.compact, memory.trim, memory.map, lambda: memory.tpu_footprint(3, "int8")):
    try:
        function()
    except memory.ArenaError as error:
        print(error)
"""
    lines = run_python("-c", code).stdout.splitlines()
    for line, name in zip(lines, ["compact", "trim", "map", "tpu_footprint"], strict=True):
        assert f"has no function pjrt_arena_{name}: it is not pjrt-arena's library, or one of another version" in line


class Answers:
    """Stands for a library: functions that write `texts` as the real ones do, and count their calls."""

    def __init__(self, **texts):
        self.calls = []
        signature = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
        sizes = [ctypes.c_size_t] * 2
        wide = ctypes.CFUNCTYPE(ctypes.c_size_t, *sizes, ctypes.c_void_p, ctypes.c_size_t)
        for name, text in texts.items():
            function = wide if name == "pjrt_arena_map" else signature
            setattr(self, name, function(functools.partial(self.write, name, text.encode())))

    def write(self, name, text, *told):
        *arguments, buffer, capacity = told
        self.calls.append((name, *arguments, capacity))
        cut = text[: capacity - 1] + b"\0"
        ctypes.memmove(buffer, cut, len(cut))
        return len(text)


@pytest.fixture
def answering(monkeypatch):
    def answer(**texts):
        library = object.__new__(_library.Library)
        library.path, library._dll = "fake", Answers(**texts)
        # The callbacks have argument types of their own; setting others is what a real library's functions get.
        monkeypatch.setattr(library, "_function", lambda name, *types, returns: getattr(library._dll, name))
        monkeypatch.setattr(_library, "load", lambda: library)
        return library._dll

    return answer


def test_what_compact_and_trim_tell(answering):
    moved = {"device": "arena:0", "buffers_moved": 3, "bytes_moved": 4096, "seconds": 0.5, "largest_free_before": 1}
    moved |= {"largest_free_after": 9, "pinned_buffers": 1, "pinned_bytes": 256, "pinned_why": {"NumPy view": 1}}
    returned = {"device": "arena:0", "bytes_returned": 1 << 20, "regions_returned": 2, "seconds": 0.25}
    library = answering(
        pjrt_arena_compact=json.dumps([moved | {"told by a newer library": 1}]), pjrt_arena_trim=json.dumps([returned])
    )
    compaction = memory.Compaction(
        device="arena:0",
        num_moves=3,
        moved_bytes=4096,
        seconds=0.5,
        largest_free_block_bytes_before=1,
        largest_free_block_bytes_after=9,
        num_unmoved_blocks=1,
        unmoved_bytes=256,
        unmoved_why={"NumPy view": 1},
    )
    assert memory.compact() == (compaction,)
    trim = memory.Trim(device="arena:0", returned_bytes=1 << 20, num_returned_regions=2, seconds=0.25)
    assert memory.trim() == (trim,)
    assert library.calls == [("pjrt_arena_compact", 1 << 20), ("pjrt_arena_trim", 1 << 20)], "once each"


def test_what_acts_is_never_asked_again(answering):
    library = answering(pjrt_arena_compact=json.dumps(["x" * (1 << 20)]))
    with pytest.raises(ArenaError, match="pjrt_arena_compact has 1048580 bytes to tell"):
        memory.compact()
    assert len(library.calls) == 1
    answering(pjrt_arena_trim='{"error": "device arena:1 is lost"}')
    with pytest.raises(ArenaError, match="arena:1 is lost"):
        memory.trim()


def test_a_map_longer_than_expected_is_asked_for_again(answering):
    text = "#" * 6000
    library = answering(pjrt_arena_map=text)
    assert memory.map(100, 20) == text
    assert library.calls == [("pjrt_arena_map", 100, 20, 4096), ("pjrt_arena_map", 100, 20, 6001)]


def test_stats_are_those_of_the_counters():
    kept = jax.block_until_ready(jnp.ones((256, 256)))
    first = memory.stats()[0]
    assert first.bytes_in_use >= kept.nbytes and first.strategy == "preallocate"
