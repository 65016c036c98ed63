"""What others wrote of the wheel's two binaries: the crates that are linked in, and Rust's standard library.

    python package/third_party.py [TARGET]      the licence report: crate, version, licence, where its source is

The wheel has the licence texts as `THIRD-PARTY-LICENSES.txt`, and those of the standard library as the page that comes
with Rust. `deny.toml` says which licences may be there at all.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

from cargo_build import REPLAY, Unavailable, host, said_by

TEXTS = "THIRD-PARTY-LICENSES.txt"
STANDARD_LIBRARY = "RUST-STANDARD-LIBRARY.html"
#: How files with licence texts are called in crates.
LICENCE_FILE = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)([-_.].*)?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, order=True)
class Crate:
    """A crate that is linked in, as cargo describes it."""

    name: str
    version: str
    licence: str
    repository: str
    folder: Path

    def texts(self) -> list[str]:
        """Its licence texts.

        Raises:
          Unavailable: it has none.
        """
        files = sorted(path for path in self.folder.iterdir() if LICENCE_FILE.fullmatch(path.name) and path.is_file())
        if not files:
            raise Unavailable(f"the crate {self.name} {self.version} has no file with its licence in {self.folder}")
        return ["\n".join(line.rstrip() for line in path.read_text().strip().splitlines()) for path in files]


def linked_crates(root: Path, target: str) -> list[Crate]:
    """All crates of others in the library and in arena-replay, by name. No macros and build scripts: they only run."""
    tree = ["cargo", "tree", "--locked", "--target", target, "--edges", "normal,no-proc-macro", "--prefix", "none"]
    lines = said_by(*tree, "--package", "pjrt-arena", "--package", REPLAY, cwd=root).splitlines()
    linked = {(words[0], words[1].removeprefix("v")) for line in lines if len(words := line.split()) > 1}
    described = json.loads(said_by("cargo", "metadata", "--locked", "--format-version", "1", cwd=root))
    return sorted(
        Crate(
            package["name"],
            package["version"],
            package["license"] or "",
            package["repository"] or "",
            Path(package["manifest_path"]).parent,
        )
        for package in described["packages"]
        if package["source"] and (package["name"], package["version"]) in linked
    )


def licence_texts(crates: list[Crate]) -> str:
    """One text after the other, each once, with the crates that it is of."""
    users: dict[str, list[str]] = {}
    for crate in crates:
        for text in crate.texts():
            users.setdefault(text, []).append(f"{crate.name} {crate.version}")
    parts = ["libpjrt_arena.so and arena-replay contain these crates:", report(crates)]
    parts += [f"{'=' * 78}\n{', '.join(dict.fromkeys(names))}\n{'=' * 78}\n\n{text}" for text, names in users.items()]
    return "\n\n".join(parts) + "\n"


def report(crates: list[Crate]) -> str:
    """A line for each crate."""
    cells = [(crate.name, crate.version, crate.licence, crate.repository) for crate in crates]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[3]]).rstrip() for row in cells)


def standard_library(root: Path) -> Path | None:
    """The page with the licences of Rust's standard library and of the crates in it; a distribution's Rust has none."""
    page = Path(said_by("rustc", "--print", "sysroot", cwd=root), "share", "doc", "rust", "COPYRIGHT-library.html")
    return page if page.is_file() else None


def main() -> None:
    root = Path(__file__).resolve().parents[1]
    try:
        print(report(linked_crates(root, sys.argv[1] if len(sys.argv) > 1 else host(root))))
    except Unavailable as error:
        sys.exit(f"third_party.py: {error}")


if __name__ == "__main__":
    main()
