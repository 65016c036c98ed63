"""Build hook: compiles the plugin and arena-replay with cargo, and puts both beside `pjrt_arena/__init__.py`.

The library is a plain PJRT plugin that links no libpython, so one wheel serves every Python 3: `py3-none-linux_<arch>`.
`make wheel` makes wheels for an index instead, with the tag of the glibc that they were linked for (package/wheels.py).

    PJRT_ARENA_PREBUILT=/path/lib.so   packages that file, and arena-replay if it lies beside it; compiles nothing
    PJRT_ARENA_PLATFORM_TAG=...        replaces the platform part of the tag
"""

import os
import sys
import sysconfig
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.append(str(Path(__file__).resolve().parent / "package"))

import cargo_build
import third_party

PACKAGE = "pjrt_arena"


class CargoBuildHook(BuildHookInterface):
    """Adds the binaries, the licences and the tag to the wheel; leaves an editable install alone."""

    def initialize(self, version, build_data):
        if version == "editable":
            # The package is imported from the source tree then, and takes its library from cargo's
            # target folder. A copy in site-packages would be found by nobody.
            return
        platform = os.environ.get("PJRT_ARENA_PLATFORM_TAG") or sysconfig.get_platform()
        try:
            files = self.binaries() | self.licences()
        except cargo_build.Unavailable as error:
            raise SystemExit(str(error)) from error
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + platform.replace("-", "_").replace(".", "_")
        build_data["force_include"].update({str(path): place for place, path in files.items()})

    def binaries(self):
        """Place in the wheel -> file."""
        root = Path(self.root)
        if not (prebuilt := os.environ.get("PJRT_ARENA_PREBUILT")):
            files = cargo_build.compiled(root, cargo_build.host(root))
        elif (library := Path(prebuilt)).is_file():
            replay = library.with_name(cargo_build.REPLAY)
            files = {cargo_build.LIBRARY: library} | ({replay.name: replay} if replay.is_file() else {})
        else:
            raise SystemExit(f"PJRT_ARENA_PREBUILT={library} is not a file")
        return {f"{PACKAGE}/{name}": path for name, path in files.items()}

    def licences(self):
        """The same for the licence texts of what is in the binaries, beside that of the package."""
        root, made = Path(self.root), Path(self.directory) / third_party.TEXTS
        made.parent.mkdir(parents=True, exist_ok=True)
        crates = third_party.linked_crates(root, cargo_build.host(root))
        made.write_text(third_party.licence_texts(crates))
        folder = f"{self.metadata.core.name.replace('-', '_')}-{self.metadata.version}.dist-info/licenses"
        page = third_party.standard_library(root)
        return {f"{folder}/{third_party.TEXTS}": made} | (
            {f"{folder}/{third_party.STANDARD_LIBRARY}": page} if page else {}
        )
