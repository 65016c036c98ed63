"""`python -m jax_plugins.arena`: what a program started from here would run with. Starts no JAX."""

from __future__ import annotations

import argparse
import io
import os
import sys

from jax_plugins.arena import _library


def _who_uses_it() -> str:
    """Whether JAX, started from here, would run on the arena."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    names = [name.strip() for name in platforms.split(",")]
    if "arena" not in names:
        said = f"JAX_PLATFORMS={platforms}" if platforms else "JAX_PLATFORMS is not set"
        return f"JAX would not use the arena: {said}; set JAX_PLATFORMS=arena,cpu"
    return f"JAX would use the arena: JAX_PLATFORMS={platforms}"


def main(arguments: list[str] | None = None) -> int:
    """Prints the table; returns 1, with a sentence on stderr, where a program could not start."""
    parser = argparse.ArgumentParser(
        prog="python -m jax_plugins.arena",
        description="Prints every setting of pjrt-arena, its value and where that came from, without starting JAX.",
    )
    parser.add_argument("--library", action="store_true", help="print only the path of the library")
    parser.add_argument("--version", action="store_true", help="print only the version")
    chosen = parser.parse_args(arguments)
    # Paths and values may have letters that the terminal's encoding has not.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        if chosen.version:
            print(_library.version())
            return 0
        library = _library.load()
        if chosen.library:
            print(library.path)
            return 0
        library.set_search_path()
        # This loads the engine. Then the table finds a driver where the engine alone looks, as a program does.
        reason = library.why_unusable()
        print(library.doctor().rstrip("\n"))
        if engine := library.gpu_engine():
            from jax_plugins.arena import _cuda

            print(f"\n{_cuda.describe(engine)}")
        print(f"\n{_who_uses_it()}")
    except _library.ArenaError as error:
        reason = str(error)
    if reason:
        print(f"pjrt-arena cannot run: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
