"""pypjrt's conformance checker on one plugin, past checks that end the process.

    python conform.py PLUGIN REPORT.json      in an environment that has pypjrt

Each check runs as `python -m pypjrt.conform PLUGIN` runs it, one after the other in one process. When that process
dies, the check that it was in is reported as "crash", and the checker runs again without it.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

#: The checker's output before a check, so that one which ends the process is known.
BEGIN = "conform.py begins "


def child(plugin, report, skipped):
    from pypjrt import conform

    def announced(name, function):
        def run(context):
            print(BEGIN + name, flush=True)
            return function(context)

        return run

    checks = [(category, id_, f"{category}.{id_}", *rest) for category, id_, *rest in conform._CHECKS]
    conform._CHECKS[:] = [
        (category, id_, announced(name, function), optional)
        for category, id_, name, function, optional in checks
        if name not in skipped
    ]
    return conform.main([plugin, "--json", report])


def parent(plugin, report):
    crashed: dict[str, str] = {}
    while True:
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "report.json"
            command = [sys.executable, __file__, plugin, written, *crashed]
            run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if written.exists():
                found = json.loads(written.read_text())
                break
        begun = [line.removeprefix(BEGIN) for line in run.stdout.splitlines() if line.startswith(BEGIN)]
        if not begun or begun[-1] in crashed:
            sys.exit(f"pypjrt's checker failed before its checks:\n{run.stdout}{run.stderr}")
        crashed[begun[-1]] = f"the process ended with status {run.returncode}"
    lost = [
        {"id": name, "category": name.split(".")[0], "result": "crash", "detail": why} for name, why in crashed.items()
    ]
    found["checks"] += lost
    Path(report).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 3 or Path(sys.argv[2]).name == "report.json":
        sys.exit(child(sys.argv[1], sys.argv[2], sys.argv[3:]))
    parent(*sys.argv[1:])
