"""Host callbacks: `jax.pure_callback`, `jax.experimental.io_callback`, `jax.debug.*` on the arena.

The handler that the engine calls is in the library, which knows nothing of Python by itself. `install`
passes in, once, the addresses of the functions of Python's and NumPy's C API that it needs, and the
objects that it uses. From then on no Python code of ours runs in a callback, but for an exception's text.
"""

from __future__ import annotations

import ctypes
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from pjrt_arena._library import Library

#: NumPy's name for each element type of XLA's FFI, by its number there.
_DTYPES = {
    1: "bool",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "uint8",
    7: "uint16",
    8: "uint32",
    9: "uint64",
    10: "float16",
    11: "float32",
    12: "float64",
    15: "complex64",
    16: "bfloat16",
    18: "complex128",
    19: "float8_e5m2",
    20: "float8_e4m3fn",
    21: "int4",
    22: "uint4",
    23: "float8_e4m3b11fnuz",
    24: "float8_e5m2fnuz",
    25: "float8_e4m3fnuz",
    26: "int2",
    27: "uint2",
    28: "float8_e4m3",
    29: "float8_e3m4",
    32: "float4_e2m1fn",
    33: "float8_e8m0fnu",
}

#: Places of functions in NumPy's table, which has been the same since NumPy 1.0.
_ARRAY_TYPE, _COPY_INTO, _FROM_ANY, _NEW_FROM_DESCR = 2, 50, 69, 94


class _Table(ctypes.Structure):
    """The library's `Table` (src/api/python/mod.rs)."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("object_size", ctypes.c_size_t),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "is_finalizing",
                "gil_ensure",
                "gil_release",
                "inc_ref",
                "dec_ref",
                "vectorcall",
                "tuple_item",
                "error_fetch",
                "error_normalize",
                "error_clear",
                "text",
                "array_new",
                "array_from",
                "array_copy",
                "array_type",
                "none",
                "describe",
            )
        ),
        ("dtypes", ctypes.c_void_p * 64),
    ]


#: Objects whose addresses the library has; they must not die before the process does.
_kept: list[Any] = []


def install(library: Library) -> str:
    """Has the engine call Python for the custom calls of host callbacks; one sentence if it cannot, else empty."""
    numpy_functions = _numpy_functions()
    table = _Table(
        struct_size=ctypes.sizeof(_Table),
        object_size=object.__basicsize__,
        is_finalizing=_address("Py_IsFinalizing", "_Py_IsFinalizing"),
        gil_ensure=_address("PyGILState_Ensure"),
        gil_release=_address("PyGILState_Release"),
        inc_ref=_address("Py_IncRef"),
        dec_ref=_address("Py_DecRef"),
        vectorcall=_address("PyObject_Vectorcall"),
        tuple_item=_address("PyTuple_GetItem"),
        error_fetch=_address("PyErr_Fetch"),
        error_normalize=_address("PyErr_NormalizeException"),
        error_clear=_address("PyErr_Clear"),
        text=_address("PyUnicode_AsUTF8AndSize"),
        array_new=numpy_functions[_NEW_FROM_DESCR],
        array_from=numpy_functions[_FROM_ANY],
        array_copy=numpy_functions[_COPY_INTO],
        array_type=numpy_functions[_ARRAY_TYPE],
        none=id(None),
        describe=id(_describe),
    )
    _kept.append(_describe)
    for number, name in _DTYPES.items():
        scalar = getattr(np, name + "_" if name == "bool" else name, None) or getattr(ml_dtypes, name, None)
        if scalar is not None:  # narrow floats and integers came with newer versions of ml_dtypes
            _kept.append(np.dtype(scalar))
            table.dtypes[number] = id(_kept[-1])
    return library.install_python_callbacks(table)


def _address(*names: str) -> int:
    """Address of the first of these functions that this Python has."""
    for name in names:
        if (function := getattr(ctypes.pythonapi, name, None)) is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def _numpy_functions() -> Any:
    """NumPy's table of C functions."""
    try:
        import numpy._core._multiarray_umath as numpy_core
    except ImportError:  # NumPy 1
        import numpy.core._multiarray_umath as numpy_core
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = pointer(numpy_core._ARRAY_API, None)
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))


def _describe(kind: type[BaseException], exception: BaseException, traceback: TracebackType | None) -> str:
    """An exception as jaxlib's own handler words it: every frame of the thread down to where it was raised."""
    lines = []
    if traceback is not None:
        while traceback.tb_next is not None:
            traceback = traceback.tb_next
        frames = []
        frame: FrameType | None = traceback.tb_frame
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        lines.append("Traceback (most recent call last):\n")
        for frame in reversed(frames):
            code = frame.f_code
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}\n')
    try:
        said = str(exception)
    except BaseException as second:
        said = f"(str() of it raised {type(second).__name__})"
    lines.append(f"{kind.__name__}: {said}")
    return "".join(lines)
