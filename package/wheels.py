"""Makes the wheels that an index takes: for x86-64 and aarch64, on any Linux whose glibc is not older than GLIBC.

    python package/wheels.py [--out dist] [ARCHITECTURE ...]

Zig links for the old glibc and for the other architecture (package/requirements.txt). Each wheel is held against its
tag by auditwheel, and must have the licences of all that is in it and no path of this machine. Where the wheel of an
architecture cannot be made, a sentence says why. The status is 1 if none was made, or if one is not as it should be.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import third_party
from cargo_build import LIBRARY, REPLAY, Unavailable, compiled, own_paths, said_by

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("x86_64", "aarch64")
#: The oldest that Rust's standard library runs on. JAX's own wheels ask for 2.17 (0.6) to 2.27 (0.12).
GLIBC = "2.17"
#: What reads an exception that is under way: it has to be libgcc's, see cargo_build.py.
UNWINDER = frozenset(
    f"_Unwind_{name}"
    for name in (
        *("Backtrace", "DeleteException", "GetDataRelBase", "GetIPInfo", "GetLanguageSpecificData", "GetRegionStart"),
        *("GetTextRelBase", "RaiseException", "Resume", "SetGR", "SetIP"),
    )
)


def platform_tag(architecture: str) -> str:
    """Such as manylinux_2_17_x86_64."""
    return f"manylinux_{GLIBC.replace('.', '_')}_{architecture}"


def make(architecture: str, folder: Path) -> Path:
    """The path of the wheel for an architecture, in `folder`.

    Raises:
      Unavailable: it cannot be built here.
    """
    built = compiled(ROOT, f"{architecture}-unknown-linux-gnu", GLIBC)
    settings = {"PJRT_ARENA_PREBUILT": str(built[LIBRARY]), "PJRT_ARENA_PLATFORM_TAG": platform_tag(architecture)}
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([*pip, "--wheel-dir", made, ROOT], env=os.environ | settings, check=True)
        (wheel,) = Path(made).glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, folder / wheel.name))


def faults(wheel: Path, architecture: str) -> list[str]:
    """What is wrong with a wheel, as sentences."""
    found = []
    audit = json.loads(said_by(sys.executable, "-m", "auditwheel", "show", "--json", str(wheel), cwd=ROOT))
    if (tag := platform_tag(architecture)) != audit["overall_tag"]:
        found.append(f"auditwheel says {audit['overall_tag']}, and the wheel {tag}")
    with zipfile.ZipFile(wheel) as archive:
        files = {Path(name).name: archive.read(name) for name in archive.namelist()}
    own = {name: UNWINDER - imported(files[name]) for name in sorted({LIBRARY, REPLAY} & files.keys())}
    found += [
        f"{name} has an unwinder of its own: {', '.join(sorted(missing))}" for name, missing in own.items() if missing
    ]
    return found + faults_of_contents(files)


def faults_of_contents(files: dict[str, bytes]) -> list[str]:
    """What is wrong with the files of a wheel, by their names."""
    found = []
    if missing := {LIBRARY, REPLAY, third_party.TEXTS, third_party.STANDARD_LIBRARY} - files.keys():
        found.append(f"it lacks {', '.join(sorted(missing))}")
    for name in sorted({LIBRARY, REPLAY} & files.keys()):
        paths = [path for path in {*own_paths(ROOT), str(Path.home())} if path.encode() in files[name]]
        found += [f"{name} has the path {path} of this machine in it" for path in sorted(paths)]
    return found


def imported(library: bytes) -> set[str]:
    """The names that a library takes from others."""
    from elftools.elf.elffile import ELFFile

    symbols = ELFFile(io.BytesIO(library)).get_section_by_name(".dynsym").iter_symbols()
    return {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE", help=" or ".join(ARCHITECTURES))
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheels")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.architectures if name not in ARCHITECTURES]:
        parser.error(f"ARCHITECTURE={unknown[0]} is not known; allowed: {', '.join(ARCHITECTURES)}")
    made, status = 0, 0
    for architecture in chosen.architectures or ARCHITECTURES:
        try:
            wheel = make(architecture, chosen.out)
        except Unavailable as reason:
            print(f"make wheel: no wheel for {architecture} is made: {reason}", file=sys.stderr)
            continue
        made += 1
        print(f"{wheel}: {wheel.stat().st_size:,} bytes", flush=True)
        for fault in faults(wheel, architecture):
            print(f"make wheel: {wheel.name}: {fault}", file=sys.stderr)
            status = 1
    return status if made else 1


if __name__ == "__main__":
    sys.exit(main())
