"""Which installed packages have the handlers of custom calls for a GPU's engine. Starts no JAX."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re

from pjrt_arena._library import GpuEngine

#: Packages with handlers where the engine's path does not tell its own, best first.
PACKAGES = {
    "cuda": ("jax_cuda13_plugin", "jax_cuda12_plugin", "jaxlib.cuda"),
    "rocm": ("jax_rocm7_plugin", "jax_rocm60_plugin", "jaxlib.rocm"),
}


def packages(engine: GpuEngine) -> list[str]:
    """Packages that may have the handlers: first the one of the engine's own CUDA or ROCm version."""
    named = re.fullmatch(rf"xla_({engine.kind}\d+)", engine.path.parent.name)
    own = [f"jax_{named[1]}_plugin"] if named else []
    return own + [package for package in PACKAGES[engine.kind] if package not in own]


def describe(engine: GpuEngine) -> str:
    """One line on what runs beside the engine, for the table of settings. Starts no JAX."""
    for package in packages(engine):
        try:
            found = importlib.util.find_spec(f"{package}.{engine.kind}_plugin_extension")
        except ImportError:
            continue
        if found is not None:
            named = re.fullmatch(r"jax_(\w+)_plugin", package)
            handlers, own = _version(f"jax-{named[1]}-plugin" if named else "jaxlib"), _version(_distribution(engine))
            apart = f"; the engine is of {own}, and the two must be of one version" if own not in ("", handlers) else ""
            return f"handlers of custom calls: {package} {handlers}".rstrip() + apart
    wanted = f"{', '.join(packages(engine))}; JAX's extra brings one, such as jax[cuda13]"
    return f"no handlers of custom calls: linear algebra, Triton and callbacks will fail without one of {wanted}"


def _distribution(engine: GpuEngine) -> str:
    """The wheel that brings the engine, by the name of its folder: ``xla_cuda13`` is of ``jax-cuda13-pjrt``."""
    return f"jax-{engine.path.parent.name.removeprefix('xla_')}-pjrt"


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
