"""The command `pjrt-arena`. Starts no JAX.

    doctor [--json]           every setting, its value and where that came from; the engine; could a program start?
    top [--once]              the processes that share devices, and their parts, again and again
    show SNAPSHOT             a stored snapshot as a table
    diff A B                  what grew between two snapshots, by origin
    convert A B               a stored snapshot in another format
    replay TRACE...           runs arena-replay, which measures strategies on a trace

Exit codes: 0, it did what was asked; 1, it could not, and one sentence on stderr says why; 2, the arguments are wrong;
130, Ctrl-C has ended it, which for `top` is 0. `replay` ends with the code of arena-replay.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pjrt_arena import _convert, _devices, _handlers, _library, memory

REPLAY = "arena-replay"

#: Linux has it where AMD's driver for computing has found a GPU.
AMD = Path("/dev/kfd")

#: `main`'s answer to Ctrl-C, as shells have it: 128 and the number of SIGINT.
INTERRUPTED = 130

#: What ``top --interval`` may be, in seconds.
_SHORTEST, _LONGEST = 0.05, 3600


def main(arguments: list[str] | None = None) -> int:
    """Does what `arguments` say, or the process's own; returns the exit code."""
    # Paths and values may have letters that the terminal's encoding has not.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _act(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # What the system says names the file; what this package says is a sentence.
        said = f"{error.filename}: {error.strerror}" if error.filename else error
        print(f"pjrt-arena: {said}", file=sys.stderr)
        return 1
    except (_library.ArenaError, ValueError) as error:
        print(f"pjrt-arena: {error}", file=sys.stderr)
        return 1
    return code


def _act(given: list[str]) -> int:
    # The options of replay are arena-replay's.
    if given[:1] == ["replay"]:
        return _replay(given[1:])
    chosen = _parser().parse_args(given)
    return int(chosen.act(chosen))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pjrt-arena",
        description="Settings and memory snapshots of pjrt-arena, the memory manager behind JAX's devices.",
        epilog="Exit codes: 0, done; 1, it could not be done, and stderr says why; 2, the arguments are wrong; "
        "130, it was interrupted, which for top is 0.",
    )
    version = parser.add_mutually_exclusive_group()
    version.add_argument("--version", action="store_const", dest="act", const=_version, help="print the version")
    version.add_argument("--library", action="store_const", dest="act", const=_path, help="print the library's path")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")

    def command(name: str, act: Callable[[Any], int], words: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
        made.set_defaults(act=act)
        return made

    doctor = command("doctor", _doctor, "show every setting, its value and where that came from, and the engine")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    top = command("top", _top, "show the processes that share devices, and their parts, until it is interrupted")
    top.add_argument("--once", action="store_true", help="show them once")
    interval = f"seconds between two looks, from {_SHORTEST} to {_LONGEST} (default: 1)"
    top.add_argument("--interval", metavar="S", type=_seconds, default=1.0, help=interval)
    show = command("show", _show, "show a stored snapshot as a table")
    show.add_argument("snapshot", metavar="SNAPSHOT", help="a .json or .html file of memory.snapshot()")
    top_help = "name so many holders of each device, from 0 on (default: 10)"
    show.add_argument("--top", metavar="N", type=_count, default=10, help=top_help)
    diff = command("diff", _diff, "show what grew between two stored snapshots, by origin")
    diff.add_argument("before", metavar="A", help="a .json or .html file of memory.snapshot()")
    diff.add_argument("after", metavar="B", help="a later one")
    convert = command("convert", _convert_to, "write a stored snapshot in another format")
    convert.add_argument("source", metavar="A", help="a .json or .html file of memory.snapshot()")
    convert.add_argument("target", metavar="B", help=f"the end says the format: {', '.join(_convert.FORMATS)}")
    # Its arguments are not read here.
    command("replay", _version, f"run {REPLAY}, which measures strategies on a trace").add_argument("trace", nargs="*")
    parser.set_defaults(act=lambda _: parser.error("a command is missing: see pjrt-arena --help"))
    return parser


def _count(text: str) -> int:
    with contextlib.suppress(ValueError):
        if (count := int(text)) >= 0:
            return count
    raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it must be a whole number from 0 on")


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if _SHORTEST <= (seconds := float(text)) <= _LONGEST:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it must be seconds from {_SHORTEST} to {_LONGEST}")


def _version(_: Any) -> int:
    print(_library.version())
    return 0


def _path(_: Any) -> int:
    print(_library.load().path)
    return 0


def _doctor(chosen: Any) -> int:
    try:
        library = _library.load()
    except _library.ArenaError as error:
        return _unusable(str(error))
    library.set_search_path()
    # This loads the engine. Then the table finds a driver where the engine alone looks, as a program does.
    reason = library.why_unusable()
    engine = library.gpu_engine()
    handlers = _handlers.describe(engine) if engine else None
    told_of_settings = library.doctor_json()
    hints = _hints(told_of_settings["settings"])
    if chosen.json:
        told = {
            "version": _library.version(),
            "library": os.fspath(library.path),
            "usable": not reason,
            "why_unusable": reason or None,
            "used_by_jax": _is_used(),
            "handlers": handlers,
            "hints": hints,
            **told_of_settings,
        }
        print(json.dumps(told, indent=2, ensure_ascii=False))
        return 1 if reason else 0
    print(library.doctor().rstrip("\n"))
    if handlers:
        print(f"\n{handlers}")
    if _is_used():
        print(f"\nJAX would use the arena: {_devices.VARIABLE}={os.environ[_devices.VARIABLE]}")
    for hint in hints:
        print(f"\n{hint}")
    return _unusable(reason) if reason else 0


def _unusable(reason: str) -> int:
    print(f"pjrt-arena cannot run: {reason}", file=sys.stderr)
    return 1


def _is_used() -> bool:
    """Whether JAX, started from here, would have its arrays on the arena."""
    return _devices.puts_arena_first(os.environ.get(_devices.VARIABLE, ""))


def _hints(settings: list[dict[str, Any]]) -> list[str]:
    """What keeps programs that are started from here off the arena, or off the machine's GPU."""
    hints = []
    if not _is_used():
        platforms = os.environ.get(_devices.VARIABLE, "")
        said = f"{_devices.VARIABLE}={platforms}" if platforms else f"{_devices.VARIABLE} is not set"
        if _devices.names_arena(platforms):
            hints.append(f"JAX would use {platforms.partition(',')[0]} by default: {said}; put arena first")
        else:
            hints.append(f"JAX would not use the arena: {said}; set {_devices.VARIABLE}={_devices.PLATFORMS}")
    (engine,) = (row for row in settings if row["name"] == "engine")
    if engine["source"] == "default" and (kind := _gpu(engine["here"])):
        hints.append(f"programs would run on the CPU; for the GPU set {engine['variable']}={kind}")
    return hints


def _gpu(drivers: list[str]) -> str | None:
    """The engine for the machine's GPU; `drivers` is what the library says of NVIDIA's, which it asks."""
    if any(re.match(r"NVIDIA driver for \S+ \S+: [1-9]", said) for said in drivers):
        return "cuda"
    return "rocm" if AMD.exists() else None


#: What `top` says where no processes share devices.
_NOBODY = """\
no processes share devices: top shows those that run with PJRT_ARENA_SHARE.
The memory of one program: pjrt_arena.memory.summary() in that program."""


def _top(chosen: Any) -> int:
    clears = sys.stdout.isatty() and not chosen.once
    # Ctrl-C is how it ends, whatever it does at that moment.
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            shown = "\n\n".join(map(str, memory.groups())) or _NOBODY
            # The screen's upper left corner; then what is below the text goes.
            print(f"\x1b[H\x1b[J{shown}" if clears else shown, flush=True)
            if chosen.once:
                break
            time.sleep(chosen.interval)
    return 0


def _show(chosen: Any) -> int:
    print(memory.load_snapshot(chosen.snapshot).table(chosen.top))
    return 0


def _diff(chosen: Any) -> int:
    print(memory.diff(chosen.before, chosen.after))
    return 0


def _convert_to(chosen: Any) -> int:
    memory.load_snapshot(chosen.source).save(chosen.target)
    return 0


def _replay(arguments: list[str]) -> int:
    return subprocess.run([_find_replay(), *arguments], check=False).returncode


def _find_replay() -> str:
    """The program, beside the library or where the shell finds it."""
    beside = _library.locate().parent / REPLAY
    if beside.is_file():
        return os.fspath(beside)
    if found := shutil.which(REPLAY):
        return found
    how = _library.how_to_get(f"cargo build --release -p {REPLAY}")
    raise _library.ArenaError(f"{REPLAY} is neither in {beside.parent} nor on PATH: {how}.")
