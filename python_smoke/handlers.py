"""Handlers for custom calls, written in C++ against jaxlib's headers and compiled on the spot, and their registration.

scale      y = by * x
count      y = how often this compiled program has called it so far: a state, left by an instantiate handler
throw      a C++ exception
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

SOURCE = """
#include <atomic>
#include <memory>
#include <stdexcept>
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;

static ffi::Error Scale(float by, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = by * x.typed_data()[i];
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(scale, Scale,
    ffi::Ffi::Bind().Attr<float>("by").Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());

static std::atomic<int> alive{0};
struct State {
  static ffi::TypeId id;
  int calls = 0;
  State() { ++alive; }
  ~State() { --alive; }
};
ffi::TypeId State::id = {};
static ffi::TypeInfo state_info = ffi::MakeTypeInfo<State>();

static ffi::ErrorOr<std::unique_ptr<State>> Start() { return std::make_unique<State>(); }
XLA_FFI_DEFINE_HANDLER_SYMBOL(count_start, Start, ffi::Ffi::BindInstantiate());

static ffi::Error Count(State* state, ffi::ResultBuffer<ffi::S32> y) {
  y->typed_data()[0] = ++state->calls;
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(count, Count, ffi::Ffi::Bind().Ctx<ffi::State<State>>().Ret<ffi::Buffer<ffi::S32>>());

static ffi::Error Throw(ffi::ResultBuffer<ffi::S32>) { throw std::runtime_error("thrown on purpose"); }
XLA_FFI_DEFINE_HANDLER_SYMBOL(throws, Throw, ffi::Ffi::Bind().Ret<ffi::Buffer<ffi::S32>>());

extern "C" void* state_id() { return &State::id; }
extern "C" void* state_type() { return &state_info; }
extern "C" int states_alive() { return alive; }
"""

COMPILER = shutil.which(os.environ.get("CXX", "g++"))


def build(folder: Path, optimize: str = "-O0") -> Path:
    """The library, compiled; a few seconds."""
    assert COMPILER, "there is no C++ compiler"
    source, library = folder / "handlers.cc", folder / "handlers.so"
    source.write_text(SOURCE)
    # jaxlib's headers warn when they are not optimized.
    flags = ["-std=c++17", optimize, "-w", "-shared", "-fPIC", f"-I{jax.ffi.include_dir()}"]
    subprocess.run([COMPILER, *flags, "-o", library, source], check=True)
    return library


@functools.cache
def load(library: str) -> ctypes.CDLL:
    """The library, with types for its functions that Python calls."""
    handlers = ctypes.CDLL(library)
    handlers.state_id.restype = handlers.state_type.restype = ctypes.c_void_p
    return handlers


def register(library: Path | str) -> ctypes.CDLL:
    """Registers all handlers, as a user does, under the names in the module's table with "smoke_" before them."""
    handlers = load(os.fspath(library))
    capsule = jax.ffi.pycapsule
    type_id, info = capsule(handlers.state_id()), capsule(handlers.state_type())
    jax.ffi.register_ffi_type("smoke_state", {"type_id": type_id, "type_info": info}, platform="cpu")
    jax.ffi.register_ffi_target("smoke_scale", capsule(handlers.scale), platform="cpu")
    jax.ffi.register_ffi_target("smoke_throw", capsule(handlers.throws), platform="cpu")
    stages = {"instantiate": capsule(handlers.count_start), "execute": capsule(handlers.count)}
    jax.ffi.register_ffi_target("smoke_count", stages, platform="cpu")
    return handlers


def address_of(function) -> int:
    """Where a function of a `ctypes` library is."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def scale(x, by: float):
    """`by * x`, by the handler."""
    return jax.ffi.ffi_call("smoke_scale", jax.ShapeDtypeStruct(x.shape, x.dtype))(x, by=np.float32(by))


def count():
    """How often the program was run."""
    return jax.ffi.ffi_call("smoke_count", jax.ShapeDtypeStruct((1,), jnp.int32), has_side_effect=True)()


def throw():
    """Fails."""
    return jax.ffi.ffi_call("smoke_throw", jax.ShapeDtypeStruct((1,), jnp.int32), has_side_effect=True)()
