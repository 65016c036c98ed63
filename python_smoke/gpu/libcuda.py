"""The driver's functions that the script calls by itself, through ctypes: those of the library that the arena uses.

A function that returns an error raises `Refused`, one that the library lacks raises `Missing`: a simulated driver has
not all of them, and an old one neither.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: An address of the device. Written out, because ctypes passes Python's numbers as 32 bits.
Address = ctypes.c_uint64
Pointer = ctypes.c_void_p
Size = ctypes.c_size_t

#: CUdevice_attribute
ATTRIBUTES = {"mapping": 102, "posix": 103, "rdma": 110, "pools": 115}
NON_BLOCKING, PORTABLE = 1, 1


class Refused(Exception):
    """What the driver answered."""


class Missing(Exception):
    """A function that the library does not have."""


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Flags(ctypes.Structure):
    _fields_ = [
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class Properties(ctypes.Structure):
    """``CUmemAllocationProp``."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", _Flags),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def properties(posix: bool = True, rdma: bool = False) -> Properties:
    """Memory that is pinned on the first device."""
    made = Properties(type=1, handles=int(posix), location=Location(1, 0))
    made.flags.rdma = int(rdma)
    return made


class Driver:
    """The first device, and its primary context: the one that XLA and the arena use."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self.call("cuInit", ctypes.c_uint(0))
        self.context = self.out(Pointer, "cuDevicePrimaryCtxRetain", ctypes.c_int(0))

    def call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise Missing(f"the library has no {name}") from None
        if code := function(*arguments):
            raise Refused(f"{name} answers {code}")

    def out(self, kind: Any, name: str, *arguments: Any) -> Any:
        """What the function writes through its first argument."""
        value = kind()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the context this thread's, for as long as it takes: what JAX has made current comes back."""
        self.call("cuCtxPushCurrent_v2", Pointer(self.context))
        try:
            yield
        finally:
            self.out(Pointer, "cuCtxPopCurrent_v2")

    def attribute(self, number: int) -> int:
        return self.out(ctypes.c_int, "cuDeviceGetAttribute", ctypes.c_int(number), ctypes.c_int(0))

    def memory(self) -> tuple[int, int]:
        """Bytes that are free on the device, and all."""
        free, total = Size(), Size()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def granularity(self) -> int:
        """The unit that the driver recommends for chunks."""
        return self.out(Size, "cuMemGetAllocationGranularity", ctypes.byref(properties()), ctypes.c_int(1))

    # Memory in chunks, as regions of the arena are made of it.

    def reserve(self, bytes_: int, align: int = 0) -> int:
        return self.out(Address, "cuMemAddressReserve", Size(bytes_), Size(align), Address(0), Address(0))

    def unreserve(self, at: int, bytes_: int) -> None:
        self.call("cuMemAddressFree", Address(at), Size(bytes_))

    def create(self, bytes_: int, of: Properties | None = None) -> int:
        return self.out(Address, "cuMemCreate", Size(bytes_), ctypes.byref(of or properties()), Address(0))

    def release(self, handle: int) -> None:
        self.call("cuMemRelease", Address(handle))

    def map(self, at: int, bytes_: int, handle: int) -> None:
        self.call("cuMemMap", Address(at), Size(bytes_), Size(0), Address(handle), Address(0))

    def open(self, at: int, bytes_: int) -> None:
        """Lets the device read and write there."""
        access = _Access(Location(1, 0), 3)
        self.call("cuMemSetAccess", Address(at), Size(bytes_), ctypes.byref(access), Size(1))

    def unmap(self, at: int, bytes_: int) -> None:
        self.call("cuMemUnmap", Address(at), Size(bytes_))

    # Allocations.

    def allocate(self, bytes_: int) -> int:
        return self.out(Address, "cuMemAlloc_v2", Size(bytes_))

    def free(self, at: int) -> None:
        self.call("cuMemFree_v2", Address(at))

    def pin(self, bytes_: int) -> int:
        """Memory of the host."""
        return self.out(Pointer, "cuMemHostAlloc", Size(bytes_), ctypes.c_uint(PORTABLE))

    def unpin(self, at: int) -> None:
        self.call("cuMemFreeHost", Pointer(at))

    # Streams.

    def stream(self) -> int:
        return self.out(Pointer, "cuStreamCreate", ctypes.c_uint(NON_BLOCKING))

    def wait(self, stream: int) -> None:
        self.call("cuStreamSynchronize", Pointer(stream))

    def end(self, stream: int) -> None:
        self.call("cuStreamDestroy_v2", Pointer(stream))


@functools.cache
def driver() -> Driver:
    """The library that the arena uses."""
    return Driver(os.environ.get("PJRT_ARENA_CUDA_DRIVER") or "libcuda.so.1")


def memory() -> tuple[int, int] | None:
    """Bytes that are free on the first GPU, whoever has the others, and all; `None` where there is no driver."""
    try:
        with driver().current():
            return driver().memory()
    except (OSError, Refused, Missing):
        return None


def free_bytes() -> int | None:
    """The first of `memory`."""
    found = memory()
    return found[0] if found else None
