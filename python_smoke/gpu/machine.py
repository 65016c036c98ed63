"""What the machine is, and what is measured on it: without JAX, and nothing of it may take long or fail."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

#: Packages that may matter.
RELATED = re.compile(r"(jax|nvidia-|torch|triton|numpy|ml.dtypes|pjrt|.*-xla-)", re.IGNORECASE)
#: How variables are called that change what a program finds, and does, on a GPU.
VARIABLES = re.compile(r"(?!.*(KEY|TOKEN|SECRET))((PYTHON)?PATH$|(LD|CUDA|XLA|JAX|NVIDIA|PJRT|TF_CPP|NCCL|PYTORCH)_)")
COMMANDS = (
    ("uname", "-a"),
    ("ldd", "--version"),
    ("nvidia-smi",),
    ("nvidia-smi", "-q", "-d", "CLOCK,POWER,PERFORMANCE"),
    ("nvcc", "--version"),
)
LINES, COMMAND_TIME = 60, 15.0
QUERIED = ("name", "memory.total", "driver_version", "compute_mode")
#: What the kernel says of GPUs and of processes that it ended.
KERNEL = re.compile(r"nvrm|xid|out of memory|killed process", re.IGNORECASE)


def said(command: tuple[str, ...]) -> str:
    """What a command writes, or why it does not."""
    path = shutil.which(command[0], path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"]))
    if path is None:
        return f"{command[0]} is not installed\n"
    try:
        run = subprocess.run(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMMAND_TIME,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{error}\n"
    return run.stdout


def gpus() -> list[dict[str, str]] | str:
    """What nvidia-smi knows of each, or what it says instead."""
    answer = said(("nvidia-smi", f"--query-gpu={','.join(QUERIED)}", "--format=csv,noheader"))
    rows = [line.split(",") for line in answer.splitlines() if line.strip()]
    if not rows or any(len(row) != len(QUERIED) for row in rows):
        return f"nvidia-smi: {answer.strip()[:300]}"
    return [dict(zip(QUERIED, (field.strip() for field in row), strict=True)) for row in rows]


def about() -> dict[str, Any]:
    """The machine, the packages, the library under test."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    memory = Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
    library = Path(os.environ.get("PJRT_ARENA_LIBRARY_PATH", ""))
    packages = {
        each.metadata["Name"]: each.version
        for each in importlib.metadata.distributions()
        if RELATED.match(each.metadata["Name"] or "")
    }
    return {
        "cpu": next(
            (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine()
        ),
        "cpus": os.cpu_count(),
        "memory_bytes": int(memory) << 10,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": dict(sorted(packages.items())),
        "library": hashlib.sha256(library.read_bytes()).hexdigest()[:12] if library.is_file() else None,
    }


def facts() -> str:
    """A text for people: what may explain a figure, and is in no table."""
    parts = ["\n".join(f"{name}={value}" for name, value in sorted(os.environ.items()) if VARIABLES.match(name))]
    for command in COMMANDS:
        lines = [line.rstrip() for line in said(command).splitlines() if line.strip()]
        parts.append("\n".join([f"$ {' '.join(command)}", *lines[:LINES]]))
    kernel = [line for line in said(("dmesg",)).splitlines() if KERNEL.search(line)]
    return "\n\n".join([*parts, "\n".join(["$ dmesg", *kernel[-LINES:]])]) + "\n"


def write_facts(path: Path) -> threading.Thread:
    """Writes them beside all else: a driver that hangs hangs nvidia-smi, too."""
    thread = threading.Thread(target=lambda: path.write_text(facts()), daemon=True)
    thread.start()
    return thread


def page_in() -> int:
    """Reads the large libraries, eight at once: each process would read them one by one, from a slow place perhaps."""
    root = Path(sysconfig.get_path("purelib"))
    folders = (root / name for name in ("jaxlib", "jax_plugins", "jax_cuda13_plugin", "jax_cuda12_plugin", "nvidia"))
    files = [path for folder in folders for path in folder.rglob("*.so*") if path.stat().st_size > 1 << 20]

    def read(path: Path) -> int:
        with path.open("rb", buffering=0) as file:
            while file.read(8 << 20):
                pass
            return file.tell()

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(read, files))
