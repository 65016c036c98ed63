"""Runs the notebooks of docs/ without Jupyter: each cell in turn in one fresh process, what it prints as its output.

`python python_smoke/notebook.py --write docs/tutorials/x.ipynb` puts today's output into the file.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any


def outputs(path: Path) -> list[str]:
    """What each cell of code prints when the notebook runs from its beginning."""
    # Not for the process of the cells: it imports JAX, and the first cell sets JAX's variables.
    from harness import clean_environment

    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [sys.executable, __file__, "--cells", path.resolve()],
            env=clean_environment(JAX_PLATFORMS=None),
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            timeout=600,
            check=True,
        )
    printed: list[str] = json.loads(run.stdout.splitlines()[-1])
    return printed


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that are run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def stored(path: Path) -> list[str]:
    """What the file says that each cell prints."""
    cells = code_cells(json.loads(path.read_text()))
    return ["".join(line for output in cell["outputs"] for line in output["text"]) for cell in cells]


def _run_cells(path: Path) -> None:
    # A former name in a cell is an error; what JAX does inside of itself is no concern of ours.
    warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")
    printed, names = [], {"__name__": "__main__"}
    for cell in code_cells(json.loads(path.read_text())):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("".join(cell["source"]), path.name, "exec"), names)
        printed.append(out.getvalue())
    print(json.dumps(printed))


def _write(path: Path) -> None:
    notebook = json.loads(path.read_text())
    for number, (cell, text) in enumerate(zip(code_cells(notebook), outputs(path), strict=True), 1):
        cell["execution_count"] = number
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if text else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--write", action="store_true", help="put what the cells print into the file")
    parser.add_argument("--cells", action="store_true", help="run the cells in this process, and print JSON")
    chosen = parser.parse_args()
    if chosen.cells:
        _run_cells(chosen.notebook)
    elif chosen.write:
        _write(chosen.notebook)
    else:
        print(*outputs(chosen.notebook), sep="\n")


if __name__ == "__main__":
    main()
