"""Packages that look like JAX's for GPUs and write down what is done with them, for machines without one.

    jax_cuda13_plugin/cuda_plugin_extension.py   handlers, types and the compiler of Triton kernels; records every call
    jax_plugins/xla_cuda13/__init__.py           JAX's own plugin: records, and registers as the real one if it is told
    jax_plugins/xla_cuda13/xla_cuda_plugin.so    the engine: it passes all on to the CPU's, under a name of CUDA's

The names of their functions and the order of calls are those of jax-cuda13-pjrt and jax-cuda13-plugin 0.7 to 0.12.
"""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import engines
from harness import ROOT

EXTENSION = """
    import ctypes

    #: (function, arguments without the table, the table) of every call.
    calls = []
    #: Names that are refused.
    refuse = set()

    def capsule(text):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(id(text), None, None)

    def _record(function, c_api, name, *rest):
        calls.append((function, name, rest, c_api))
        if name in refuse:
            raise RuntimeError(f"{name} is refused on purpose")

    def register_custom_call_target(c_api, name, fn, platform, api_version=0, traits=0):
        _record("handler", c_api, name, platform, api_version, int(traits))

    def register_custom_type(c_api, name, registration):
        _record("type", c_api, name)

    def ffi_handlers():
        return {"own_solver": {"execute": capsule("solver")}, "own_callback": {"execute": capsule("callback")}}

    def ffi_types():
        return {"own_state": {"type_id": capsule("state")}}

    def compile_triton_to_asm(c_api, module, arch_name, num_warps, num_ctas, num_stages):
        return c_api, module, arch_name
"""

PLUGIN = """
    import functools
    import os

    done = []
    cuda_versions = cuda_plugin_extension = None

    def _load_nvidia_libraries():
        done.append("libraries")

    def _import_extensions():
        global cuda_versions, cuda_plugin_extension
        done.append("extensions")
        import jax_{kind}{major}_plugin.{kind}_plugin_extension as cuda_plugin_extension
        cuda_versions = object()

    def _check_cuda_versions(raise_on_first_error=False, debug=False):
        done.append("versions")
        if "FAKE_CUDA_UNFIT" in os.environ:
            raise RuntimeError("Unable to use CUDA because of the following issues: cuDNN is too old")

    def initialize():
        done.append("initialize")
        if "FAKE_CUDA_PROFILES" in os.environ:
            from jax._src import xla_bridge
            library = os.path.join(os.path.dirname(__file__), "xla_{kind}_plugin.so")
            xla_bridge.register_plugin("{kind}", priority=500, library_path=library)
        if "FAKE_CUDA_REGISTERS" not in os.environ:
            return
        from jaxlib import xla_client
        _import_extensions()
        extension, table = cuda_plugin_extension, "table of {kind}"
        xla_client.register_custom_type_handler("{platform}", functools.partial(extension.register_custom_type, table))
        handler = functools.partial(extension.register_custom_call_target, table)
        xla_client.register_custom_call_handler("{platform}", handler)
        for name, value in extension.ffi_types().items():
            xla_client.register_custom_type(name, value, platform="{platform}")
        for name, value in extension.ffi_handlers().items():
            xla_client.register_custom_call_target(name, value, platform="{platform}", api_version=1)
        from jax._src.lib import triton
        triton.register_compilation_handler("{platform}", functools.partial(extension.compile_triton_to_asm, table))
"""


#: The CPU's engine, which refuses the options of a GPU's client (from PJRT 0.106 on): it is created without any. Its
#: profiler is as XLA's: one session at a time, whoever began it.
ENGINE = r"""
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include "pjrt_c_api.h"
#include "pjrt_c_api_extensions.h"
enum { HEAD = 5, CLIENT_CREATE = HEAD + 10, OPTIONS = 2, NUM_OPTIONS = 3 };
static void* table[HEAD + 256];
static int sessions, other_session;
#define SESSION_ERROR ((PLUGIN_Profiler_Error*)&other_session)
static void error_destroy(PLUGIN_Profiler_Error_Destroy_Args* args) {}
static void error_message(PLUGIN_Profiler_Error_Message_Args* args) {
  args->message = "Another profiling session active.", args->message_size = strlen(args->message);
}
static PLUGIN_Profiler_Error* error_get_code(PLUGIN_Profiler_Error_GetCode_Args* args) { args->code = 6; return NULL; }
static PLUGIN_Profiler_Error* profiler_create(PLUGIN_Profiler_Create_Args* args) {
  static int own[64], made;
  args->profiler = (PLUGIN_Profiler*)&own[made++];
  return NULL;
}
static PLUGIN_Profiler_Error* profiler_end(PLUGIN_Profiler_Args* args) {
  sessions -= *(int*)args->profiler, *(int*)args->profiler = 0;
  return NULL;
}
static PLUGIN_Profiler_Error* profiler_start(PLUGIN_Profiler_Args* args) {
  if (sessions) return SESSION_ERROR;
  sessions = *(int*)args->profiler = 1;
  return NULL;
}
static PLUGIN_Profiler_Error* profiler_data(PLUGIN_Profiler_CollectData_Args* args) {
  args->buffer_size_in_bytes = 0;
  return NULL;
}
static PLUGIN_Profiler_Api api = {sizeof api, NULL, error_destroy, error_message, error_get_code,
                                  profiler_create, profiler_end, profiler_start, profiler_end, profiler_data};
static PJRT_Profiler_Extension profiler = {{sizeof profiler, PJRT_Extension_Type_Profiler, NULL}, &api, 0};
static void* (*create)(void**);
static void* create_without_options(void** args) {
  void *options = args[OPTIONS], *count = args[NUM_OPTIONS];
  args[OPTIONS] = args[NUM_OPTIONS] = NULL;
  void* error = create(args);
  args[OPTIONS] = options, args[NUM_OPTIONS] = count;
  return error;
}
const void* GetPjrtApi(void) {
  if (!create) {
    void* engine = dlopen("THE_ENGINE", RTLD_NOW | RTLD_LOCAL);
    const size_t* theirs = ((const size_t* (*)(void))dlsym(engine, "GetPjrtApi"))();
    memcpy(table, theirs, *theirs);
    profiler.base.next = table[1];
    table[1] = &profiler;
    create = (void* (*)(void**))table[CLIENT_CREATE];
    table[CLIENT_CREATE] = (void*)create_without_options;
  }
  return table;
}
"""


def make(folder: Path, kind: str = "cuda", major: int = 13, extension: bool = True) -> Path:
    """Writes the packages for one kind of GPU below `folder`, and returns the engine's path."""
    plugin = folder / "jax_plugins" / f"xla_{kind}{major}"
    plugin.mkdir(parents=True)
    text = PLUGIN.format(kind=kind, major=major, platform=kind.upper())
    (plugin / "__init__.py").write_text(textwrap.dedent(text))
    library = plugin / f"xla_{kind}_plugin.so"
    code = ENGINE.replace("THE_ENGINE", str(engines.under_test()))
    compiler = ["gcc", "-shared", "-fPIC", f"-I{ROOT / 'pjrt_c_api'}", "-x", "c", "-", "-o", str(library)]
    subprocess.run(compiler, input=code, text=True, check=True)
    if extension:
        package = folder / f"jax_{kind}{major}_plugin"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / f"{kind}_plugin_extension.py").write_text(textwrap.dedent(EXTENSION))
    return library


def search_path(folder: Path) -> str:
    """PYTHONPATH for a process that finds the packages below `folder`, and the package under test."""
    return ":".join(map(str, (folder, ROOT / "python", ROOT / "python_smoke")))
