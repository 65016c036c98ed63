"""What `beside_torch.py` asks of PyTorch, on arrays of JAX: for `test_gpu_script.py`."""

from __future__ import annotations

import contextlib
import os
import types

import jax
import jax.numpy as jnp
import numpy as np

__version__ = "played"


class Tensor:
    def __init__(self, value, made=None):
        self.made, self._value = made, value

    @property
    def array(self):
        return self.made() if self.made else self._value

    def __mul__(self, factor):
        return Tensor(None, lambda: self.array * factor)

    def __add__(self, other):
        return Tensor(None, lambda: self.array + other)

    def sum(self):
        return float(self.array.sum())

    def fill_(self, value):
        self._value = jnp.full_like(self._value, value)

    def data_ptr(self):
        if self.made:
            self._value, self.made = jax.block_until_ready(self.array), None
        return self._value.unsafe_buffer_pointer()

    def cpu(self):
        return types.SimpleNamespace(numpy=lambda: np.asarray(self.array))

    def __getitem__(self, at):
        return self.array[at]

    def __dlpack__(self, **more):
        self.data_ptr()
        return self._value.__dlpack__(**more)

    def __dlpack_device__(self):
        return 2, 0


def from_dlpack(array):
    more = float(os.environ.get("PLAYED_TORCH_ADDS", "0"))
    return Tensor(array + more if more else array)


def full(shape, value, device):
    return Tensor(jnp.full(shape, value))


def ones(count, device):
    return full((count,), 1.0, device)


@contextlib.contextmanager
def stream(side):
    yield


@contextlib.contextmanager
def capture(graph, capture_error_mode="global"):
    """A graph; the driver may refuse it in one of the modes."""
    yield
    if os.environ.get("PLAYED_TORCH_REFUSES") == capture_error_mode:
        raise RuntimeError("CUDA error 900: operation not permitted when stream is capturing")


cuda = types.SimpleNamespace(
    is_available=lambda: True,
    synchronize=lambda: None,
    Stream=object,
    stream=stream,
    graph=capture,
    CUDAGraph=lambda: types.SimpleNamespace(replay=lambda: None),
)
