"""One measurement in one process: `python -m gpu.child gpu.MODULE.FUNCTION '{"size": ..., ...}' RESULT.json`.

The function gets the sizes and the other values of the JSON object by name, and returns what goes to the file. Its
exception goes there too, as a text, and makes the status 1; a crash leaves no file.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from gpu.sizes import SIZES


def main(what: str, values: str, target: str) -> int:
    """Measures and writes."""
    module, function = what.rsplit(".", 1)
    given = json.loads(values)
    status = 0
    try:
        sizes = SIZES[given.pop("size")]
        answer = getattr(importlib.import_module(module), function)(sizes, **given)
    except BaseException as error:  # SystemExit of a library as well: it is what became of the measurement
        traceback.print_exc()
        said = next(iter(str(error).splitlines()), "")
        answer, status = {"error": f"{type(error).__name__}: {said}"[:600]}, 1
    Path(target).write_text(json.dumps(answer))
    # Not through the interpreter's end: what a backend does there is no part of the measurement, and may take long.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
