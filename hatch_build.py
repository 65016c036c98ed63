"""Build hook: compiles the plugin with cargo and puts it beside `pjrt_arena/__init__.py`.

The library is a plain PJRT plugin that links no libpython, so one wheel serves every Python 3:
`py3-none-linux_<arch>`, which `auditwheel repair` can turn into a manylinux tag.

    PJRT_ARENA_PREBUILT=/path/lib.so   packages that file and runs no cargo (cross builds)
    PJRT_ARENA_PLATFORM_TAG=...        replaces the platform part of the tag
"""

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "pjrt_arena"
FILE_NAME = "libpjrt_arena.so"


class CargoBuildHook(BuildHookInterface):
    """Adds the library and the tag to the wheel; leaves an editable install alone."""

    def initialize(self, version, build_data):
        if version == "editable":
            # The package is imported from the source tree then, and takes its library from cargo's
            # target folder. A copy in site-packages would be found by nobody.
            return
        prebuilt = os.environ.get("PJRT_ARENA_PREBUILT")
        library = Path(prebuilt) if prebuilt else self.compile()
        if not library.is_file():
            raise SystemExit(f"PJRT_ARENA_PREBUILT={library} is not a file")
        platform = os.environ.get("PJRT_ARENA_PLATFORM_TAG") or sysconfig.get_platform()
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + platform.replace("-", "_").replace(".", "_")
        build_data["force_include"][str(library)] = f"{PACKAGE}/{FILE_NAME}"

    def compile(self):
        """Path of the library as cargo reports it, wherever its target folder is."""
        if shutil.which("cargo") is None:
            raise SystemExit("pjrt-arena is built with Rust, and there is no cargo: install it from https://rustup.rs")
        command = ["cargo", "build", "--release", "--locked", "--lib", "--package", "pjrt-arena"]
        command.append("--message-format=json-render-diagnostics")
        run = subprocess.run(command, cwd=self.root, stdout=subprocess.PIPE, text=True, check=False)
        if run.returncode != 0:
            raise SystemExit(f"cargo build failed with status {run.returncode}; its messages are above")
        for line in run.stdout.splitlines():
            message = json.loads(line)
            if message["reason"] == "compiler-artifact" and "cdylib" in message["target"]["crate_types"]:
                return next(Path(name) for name in message["filenames"] if name.endswith(".so"))
        raise SystemExit("cargo built no shared library")
