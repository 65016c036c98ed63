"""What is measured, and on what: the library and its source, versions, tools, the machine's settings."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "jax",
    "jaxlib",
    "jax-cuda13-pjrt",
    "jax-cuda13-plugin",
    "jax-cuda12-pjrt",
    "jax-cuda12-plugin",
    "lammps-jax-pjrt-cpu",
    "fastatomstruct-xla-cpu",
    "xla-cpu-pjrt",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-cu12",
    "torch",
    "numpy",
)
#: How packages are called that may matter: all of them are in facts.txt.
RELATED = re.compile(r"(jax|nvidia-|torch|triton|numpy|ml.dtypes|pjrt|.*-xla-)", re.IGNORECASE)
#: How variables are called that change what a program finds, and does, on a GPU.
VARIABLES = re.compile(r"(?!.*(KEY|TOKEN|SECRET))((PYTHON)?PATH$|(LD|CUDA|XLA|JAX|NVIDIA|PJRT|TF_CPP|NCCL|PYTORCH)_)")
#: Asked of the machine for facts.txt, each in a few lines.
COMMANDS = (
    ("uname", "-a"),
    ("ldd", "--version"),
    ("nvidia-smi",),
    ("nvidia-smi", "-q", "-d", "CLOCK,POWER,PERFORMANCE"),
    ("nvcc", "--version"),
)
LINES = 120
SANITIZER = "compute-sanitizer"


def tools() -> str:
    """Where to look for tools of CUDA's: on the path, and where its toolkit puts them, which is often not on it."""
    homes = [home for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    folders = [f"{home}/{folder}" for home in homes for folder in ("bin", SANITIZER)]
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *folders])


def sanitizer() -> str | None:
    """The path of compute-sanitizer."""
    return shutil.which(SANITIZER, path=tools())


def host_memory() -> dict[str, int]:
    """Bytes of the host that this process has: all, and what is its own and no file's."""
    names = {"VmRSS": "resident", "RssAnon": "own"}
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in names:
            found[names[name]] = int(value.split()[0]) * 1024
    return found


def versions() -> dict[str, str]:
    """Of the packages that are measured, and cuDNN's where it is no package."""
    found = {name: version for name in PACKAGES if (version := _version(name))}
    if not any(name.startswith("nvidia-cudnn") for name in found):
        with contextlib.suppress(OSError, AttributeError):
            found["cuDNN"] = str(ctypes.CDLL("libcudnn.so.9").cudnnGetVersion())
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def library() -> dict[str, Any]:
    """The library under test: the start of its sha256, its own version, and the commit of the source tree, if known."""
    found: dict[str, Any] = {"sha256": None, "version": None, "commit": None}
    path = Path(os.environ.get("PJRT_ARENA_LIBRARY_PATH", ""))
    if path.is_file():
        with path.open("rb") as file:
            found["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()[:12]
        with contextlib.suppress(OSError, AttributeError):
            version = ctypes.CDLL(str(path)).pjrt_arena_version
            version.restype = ctypes.c_char_p
            found["version"] = version().decode()
    # Says so if files differ from the commit; takes no lock, as others may work in the tree.
    command = ("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*")
    said = _said(command, GIT_OPTIONAL_LOCKS="0").strip()
    # An error is a sentence.
    found["commit"] = said if said and " " not in said else None
    return found


def _said(command: tuple[str, ...], **more: str) -> str:
    """What a command writes, or why it does not."""
    path = shutil.which(command[0], path=tools())
    if path is None:
        return f"{command[0]} is not installed\n"
    try:
        run = subprocess.run(
            [path, *command[1:]],
            env={**os.environ, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{error}\n"
    return run.stdout


def facts(started: str) -> str:
    """A text for people: what may explain a figure, and is in no table."""
    packages = {
        each.metadata["Name"]: each.version
        for each in importlib.metadata.distributions()
        if RELATED.match(each.metadata["Name"] or "")
    }
    parts = [
        f"## {started}, Python {platform.python_version()}",
        f"library: {library()}",
        "\n".join(f"{name} {version}" for name, version in sorted(packages.items())),
        "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items()) if VARIABLES.match(name)),
    ]
    for command in COMMANDS:
        lines = [line.rstrip() for line in _said(command).splitlines() if line.strip()]
        parts.append("\n".join([f"$ {' '.join(command)}", *lines[:LINES]]))
    return "\n\n".join(parts) + "\n"
