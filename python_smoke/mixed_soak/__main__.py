"""The run: `python -m mixed_soak --minutes 60`. It ends with status 1 where memory grew or an array was wrong."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SETTINGS = {
    "JAX_PLATFORMS": "arena,cpu",
    "PJRT_ARENA_STRATEGY": "tpu",
    "PJRT_ARENA_COMPACT": "on",
    "PJRT_ARENA_DEVICES": "4",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="mixed_soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between samples")
    parser.add_argument("--out", type=Path, default=Path("target/soak"), help="OUT.jsonl and OUT.svg are written")
    arguments = parser.parse_args()
    # Before JAX is imported.
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from mixed_soak import workers

    os.environ.setdefault("PJRT_ARENA_LIMIT", workers.LIMIT)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    return run(arguments.minutes * 60, arguments.every, arguments.out)


def run(length: float, every: float, out: Path) -> int:
    """Works for so many seconds; 1 if something was wrong."""
    import jax
    from turns import Turns

    from mixed_soak import plot, samples
    from mixed_soak.gate import Gate, Thread
    from mixed_soak.workers import all_workers

    gate, turns = Gate(), Turns()
    threads = [Thread(worker, gate, turns) for worker in all_workers(jax.devices("arena"))]
    for thread in threads:
        thread.start()
    seen: list[dict[str, Any]] = []
    start, expected, done = time.monotonic(), None, False
    with out.with_suffix(".jsonl").open("w", encoding="utf-8") as file:
        while not done:
            # The first rest is what the others are compared with; compiling takes most of the time before it.
            time.sleep(max(0.0, min(every, start + length - time.monotonic())))
            busy = samples.resident()
            faulthandler.dump_traceback_later(300, exit=True)
            gate.close(len(threads))
            now = samples.at_rest(expected)
            faulthandler.cancel_dump_traceback_later()
            expected = expected or now
            sample = {
                "seconds": round(time.monotonic() - start, 1),
                "resident": samples.resident(),
                "resident_busy": busy,
                "books": now,
                **samples.counted(),
                "exhausted": sum(thread.exhausted for thread in threads),
                "steps": [[thread.title, thread.steps] for thread in threads],
            }
            seen.append(sample)
            print(json.dumps(sample), file=file, flush=True)
            done = time.monotonic() >= start + length or any(thread.fault for thread in threads)
            if not done:
                gate.open()
    for thread in threads:
        thread.stop()
    gate.open()
    for thread in threads:
        thread.join(60)
    faults, text = samples.verdict(seen)
    faults += [f"{thread.title}: {thread.fault}" for thread in threads if thread.fault]
    out.with_suffix(".svg").write_text(plot.svg(seen, text), encoding="utf-8")
    last = seen[-1]
    done_steps = ", ".join(f"{title} {steps:,}" for title, steps in last["steps"])
    print(f"{last['seconds']:.0f} s, {len(seen)} samples; steps: {done_steps}")
    moved = f"{last['moved_bytes'] / 2**30:.1f} GiB in {last['moved_blocks']:,} blocks"
    print(f"compactions {last['compactions']:,}, moved {moved}")
    print(f"no room {last['exhausted']:,} times, after which the worker began anew; books at rest {last['books']}")
    print(text)
    for fault in faults:
        print(f"FAULT: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
