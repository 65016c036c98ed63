"""What a process wrote, in the few lines that are kept of it."""

from __future__ import annotations

import re

#: The arena's own lines, `pjrt-arena[4711] WARN: ...`.
_OURS = re.compile(r"pjrt-arena\[\d+\] (ERROR|WARN|INFO|DEBUG|TRACE): (.*)")
#: Lines that are kept of each kind: all is said by a few, but for the stacks of a process that went wrong.
OURS, OTHERS, OF_FAILURES = 40, 30, 200
LONGEST = 400
#: What a log says where a capture of a CUDA graph and a call of another thread got in each other's way.
TELLING = {
    "Callback registry is closed": re.compile(r"callback registry is closed", re.IGNORECASE),
    "CUDA error 900": re.compile(
        r"STREAM_CAPTURE_UNSUPPORTED|\berror:? 900\b|\b(gave|answers) 900\b|not permitted when stream is capturing",
        re.IGNORECASE,
    ),
}


def kept(text: str, well: bool) -> list[str]:
    """The arena's lines first, warnings before what it only tells; then the end of the others."""
    lines = [line.rstrip()[:LONGEST] for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if _OURS.search(line)]
    loud = [line for line in ours if _is_loud(line)][:OURS]
    quiet = [line for line in ours if not _is_loud(line)]
    others = [line for line in lines if not _OURS.search(line)]
    return loud + quiet[len(loud) - OURS :] * (len(loud) < OURS) + others[-(OTHERS if well else OF_FAILURES) :]


def warnings(text: str) -> list[str]:
    """What the arena warned of, each once, without the number of the process."""
    found = (_OURS.search(line) for line in text.splitlines())
    said = [f"{match[1]}: {match[2]}"[:LONGEST] for match in found if match and _is_loud(match[0])]
    return list(dict.fromkeys(said))[:OURS]


def telling(text: str) -> list[str]:
    """Which of `TELLING` a log has."""
    return [name for name, pattern in TELLING.items() if pattern.search(text)]


def last(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"last line: {lines[-1][:300]}" if lines else "it printed nothing"


def _is_loud(line: str) -> bool:
    match = _OURS.search(line)
    return match is not None and match[1] in ("ERROR", "WARN")
