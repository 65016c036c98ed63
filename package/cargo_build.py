"""How cargo builds what goes into a wheel: the library, and `arena-replay` beside it.

Both are stripped, and paths of the machine that builds are replaced. For an index they are linked for an old glibc by
Zig, which has the symbols of each version (`cargo zigbuild`); an installation from source takes the system's linker.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

LIBRARY = "libpjrt_arena.so"
REPLAY = "arena-replay"
HERE = Path(__file__).resolve().parent


class Unavailable(Exception):
    """What a build needs and this machine has not."""


def said_by(*command: str, cwd: Path) -> str:
    """What a program prints.

    Raises:
      Unavailable: it is not there, or failed.
    """
    try:
        run = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, text=True, check=True)
    except OSError as error:
        raise Unavailable(
            f"pjrt-arena is built with Rust, and {command[0]} cannot be run ({error}): it comes from https://rustup.rs"
        ) from error
    except subprocess.CalledProcessError as error:
        raise Unavailable(
            f"{' '.join(command[:2])} failed with status {error.returncode}; its messages are above"
        ) from error
    return run.stdout.strip()


def host(root: Path) -> str:
    """The target that this machine builds for by itself, such as `x86_64-unknown-linux-gnu`."""
    lines = said_by("rustc", "-vV", cwd=root).splitlines()
    return next(line.removeprefix("host: ") for line in lines if line.startswith("host: "))


def own_paths(root: Path) -> dict[str, str]:
    """Folders of this machine that the compiler would write into the library, and what it writes instead."""
    cargo = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    sysroot = Path(said_by("rustc", "--print", "sysroot", cwd=root))
    return {
        str(cargo / "registry" / "src"): "crates",
        str(sysroot / "lib" / "rustlib" / "src" / "rust"): "rust",
        str(root): "pjrt-arena",
    }


def compiled(root: Path, target: str, glibc: str | None = None) -> dict[str, Path]:
    """Builds both; name -> path. With `glibc`, such as 2.17, they run on that version and newer ones.

    Raises:
      Unavailable: a tool is not there, or the build failed.
    """
    flags = os.environ.get("RUSTFLAGS", "").split()
    flags += [f"--remap-path-prefix={path}={name}" for path, name in own_paths(root).items()]
    command = ["cargo", "zigbuild" if glibc else "build", "--target", f"{target}.{glibc}" if glibc else target]
    environment = os.environ | {"CARGO_PROFILE_RELEASE_STRIP": "symbols"}
    if not Path(said_by("rustc", "--print", "target-libdir", "--target", target, cwd=root)).is_dir():
        if not Path(said_by("rustc", "--print", "sysroot", cwd=root), "lib/rustlib/src/rust/library").is_dir():
            raise Unavailable(
                f"there is no standard library of Rust for {target}: `rustup target add {target}` adds it, and"
                " `rustup component add rust-src` its source, which is built then"
            )
        # Cargo's flag that builds the standard library is not stable, so the compiler is told to take it.
        command.append("-Zbuild-std")
        environment["RUSTC_BOOTSTRAP"] = "1"
    if glibc:
        # Zig would put an unwinder of its own into the library. The engine's C++ exceptions are thrown by that of
        # libgcc_s, whose data the other one cannot read, and the process would end.
        flags.append(f"-Clink-arg={shared_unwinder(root, target, glibc)}")
    environment["CARGO_ENCODED_RUSTFLAGS"] = "\x1f".join(flags)
    return artifacts(root, command, environment)


def artifacts(root: Path, command: list[str], environment: Mapping[str, str]) -> dict[str, Path]:
    """Runs cargo; the paths as it reports them, wherever its target folder is."""
    command += ["--release", "--locked", "--message-format=json-render-diagnostics"]
    command += ["--package", "pjrt-arena", "--package", REPLAY, "--lib", "--bins"]
    if shutil.which("cargo") is None:
        raise Unavailable("pjrt-arena is built with Rust, and there is no cargo: install it from https://rustup.rs")
    run = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        raise Unavailable(f"{' '.join(command[:2])} failed with status {run.returncode}; its messages are above")
    messages = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    files = [Path(name) for message in messages for name in message.get("filenames", ())]
    found = {path.name: path for path in files if path.name in (LIBRARY, REPLAY)}
    if missing := [name for name in (LIBRARY, REPLAY) if name not in found]:
        raise Unavailable(f"cargo built no {' and no '.join(missing)}")
    return found


def shared_unwinder(root: Path, target: str, glibc: str) -> Path:
    """A library that stands for libgcc_s.so.1 when the linker looks for symbols."""
    architecture = target.partition("-")[0]
    versions, source = HERE / "libgcc_s.map", HERE / "libgcc_s.c"
    # Cargo links anew where the path is another one; it does not look at the file.
    contents = zlib.crc32(versions.read_bytes() + source.read_bytes())
    folder = Path(os.environ.get("CARGO_TARGET_DIR") or root / "target", "wheel-link", f"{architecture}-{contents:08x}")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libgcc_s.so.1"
    command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-gnu.{glibc}", "-shared"]
    command += ["-nostdlib", "-fPIC", "-o", str(library), f"-Wl,-soname,{library.name}"]
    said_by(*command, f"-Wl,--version-script={versions}", str(source), cwd=root)
    return library
