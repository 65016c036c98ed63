"""`make bench`: one table, one run: JAX's built-in CPU backend, the bare engine, pjrt-arena.

Each backend is measured in fresh processes, the three in turn and in another order each round, so that a slow minute
of the machine hits all of them; the table shows the median of the rounds. A process measures each row several times
and reports its own median. The results of the programs must agree, or the run fails.

  dispatch     jitted x + 1 of a scalar, called in a row, results dropped
  x + 1        of 256 MB, a new result each time, the old one dropped first
  Adam         a step for 8 arrays of 16 MB, not donated and donated
  np.asarray   of a fresh 256 MB array
  device_put   of a 256 MB numpy array, 64-byte aligned (which a CPU backend may adopt without a copy) and not
"""

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BACKENDS = {"builtin": "JAX's CPU", "bare": "bare engine", "arena": "pjrt-arena"}
ROWS = {
    "dispatch": ("dispatch of a tiny jitted add", "us"),
    "add": ("x + 1 over 256 MB", "ms"),
    "adam": ("Adam update of 8 x 16 MB", "ms"),
    "adam_donated": ("the same, donated", "ms"),
    "asarray": ("np.asarray of 256 MB", "ms"),
    "put_aligned": ("device_put of 256 MB, aligned", "ms"),
    "put": ("device_put of 256 MB, not aligned", "ms"),
}


def environment(backend: str, folder: Path) -> dict[str, str]:
    """Variables for a process that measures `backend`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PJRT_NAMES", "JAX_", "XLA_"))}
    # The bare engine logs a harmless line for each program that a newer JAX compiles.
    kept["TF_CPP_MIN_LOG_LEVEL"] = "3"
    if backend == "builtin":
        kept["JAX_PLATFORMS"] = "cpu"
        return kept
    kept["JAX_PLATFORMS"] = "arena,cpu"
    if backend == "bare":
        spec = importlib.util.find_spec("xla_plugins.xla_cpu_pjrt")
        if spec is None:
            raise SystemExit("the engine is not installed: pip install xla-cpu-pjrt==0.0.1")
        engine = Path(spec.submodule_search_locations[0]) / "xla_cpu_pjrt.so"
        description = folder / "bare.json"
        description.write_text(json.dumps({"library_path": str(engine), "create_options": {"cpu_device_count": 1}}))
        kept["PJRT_NAMES_AND_LIBRARY_PATHS"] = f"arena:{description}"
    return kept


def measure(backend: str) -> dict:
    """Every row once, in this process; the median of several readings each."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def timed(prepare, run, times, unit):
        readings = []
        for _ in range(times):
            prepared = prepare()
            start = time.perf_counter()
            result = run(prepared)
            readings.append((time.perf_counter() - start) * unit)
            del result, prepared
        # The first reading warms up.
        return statistics.median(readings[1:])

    nothing = lambda: None  # noqa: E731
    wait = jax.block_until_ready
    seconds, check = {}, {}
    add = jax.jit(lambda x: x + 1)

    tiny = wait(jnp.float32(1))
    check["dispatch"] = float(wait(add(tiny)))

    def dispatch(_, calls=5000):
        for _ in range(calls):
            result = add(tiny)
        wait(result)

    seconds["dispatch"] = timed(nothing, dispatch, 8, 1e6 / 5000)

    count = 64 * 1024 * 1024
    host = np.arange(count, dtype=np.float32) % 1000
    x = wait(jnp.array(host, copy=True))
    check["add"] = [float(v) for v in np.asarray(add(x))[:: count // 7]]
    seconds["add"] = timed(nothing, lambda _: wait(add(x)), 12, 1e3)

    seconds["asarray"] = timed(lambda: wait(x * 2), np.asarray, 6, 1e3)
    check["asarray"] = float(np.asarray(x * 2)[12345])
    room = np.empty(host.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64
    for name, offset in (("put_aligned", start), ("put", start + 4)):
        placed = room[offset : offset + host.nbytes].view(np.float32)
        placed[:] = host
        seconds[name] = timed(nothing, lambda _, placed=placed: wait(jax.device_put(placed)), 6, 1e3)
        check[name] = float(np.asarray(jax.device_put(placed))[54321])
    del x, room, placed, host

    def adam(parameters, means, variances, gradients):
        def one(p, m, v, g):
            m = 0.9 * m + 0.1 * g
            v = 0.999 * v + 0.001 * g * g
            return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v

        return list(zip(*map(one, parameters, means, variances, gradients), strict=True))

    arrays = [[wait(jnp.full(4 * 1024 * 1024, 0.5 + i + k)) for i in range(8)] for k in range(4)]
    plain = jax.jit(adam)
    check["adam"] = [float(leaf[17]) for leaf in jax.tree.leaves(plain(*arrays))]
    seconds["adam"] = timed(nothing, lambda _: wait(plain(*arrays)), 12, 1e3)
    donated = jax.jit(adam, donate_argnums=(0, 1, 2))

    def step(_):
        arrays[:3] = wait(donated(*arrays))

    seconds["adam_donated"] = timed(nothing, step, 12, 1e3)
    check["adam_donated"] = [float(leaf[17]) for leaf in jax.tree.leaves(arrays)]
    report = {"rows": seconds, "check": check}
    if backend == "arena":
        from jax_plugins import arena

        report["counters"] = arena.counters()
    return report


def agree(checks: dict[str, dict]) -> None:
    """Fails unless every backend computed the same."""

    def flat(value):
        return value if isinstance(value, list) else [value]

    reference = checks["builtin"]
    for backend, check in checks.items():
        for name, value in check.items():
            for here, there in zip(flat(value), flat(reference[name]), strict=True):
                if abs(here - there) > 1e-5 * max(1.0, abs(there)):
                    raise SystemExit(f"{name} differs: {backend} has {here}, JAX's CPU backend {there}")


def table(medians: dict[str, dict[str, float]]) -> str:
    """The table in Markdown."""
    columns = [BACKENDS[backend] for backend in medians]
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for name, (title, unit) in ROWS.items():
        cells = " | ".join(f"{medians[backend][name]:.3g}" for backend in medians)
        lines.append(f"| {title} ({unit}) | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes for each backend")
    parser.add_argument("--only", default=",".join(BACKENDS), help="comma-separated, builtin among them")
    parser.add_argument("--json", type=Path, help="also write all readings to this file")
    parser.add_argument("--worker", choices=BACKENDS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        json.dump(measure(chosen.worker), sys.stdout)
        return
    backends = chosen.only.split(",")
    if unknown := set(backends) - set(BACKENDS):
        parser.error(f"--only={chosen.only}: {', '.join(sorted(unknown))} is none of {', '.join(BACKENDS)}")
    if "builtin" not in backends:
        parser.error("--only must name builtin: the others are checked against it")
    rounds: dict[str, list[dict]] = {backend: [] for backend in backends}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(chosen.rounds):
            turn = number % len(backends)
            for backend in backends[turn:] + backends[:turn]:
                run = subprocess.run(
                    [sys.executable, __file__, "--worker", backend],
                    env=environment(backend, Path(folder)),
                    capture_output=True,
                    text=True,
                )
                if run.returncode != 0:
                    raise SystemExit(f"{BACKENDS[backend]} ended with status {run.returncode}:\n{run.stderr}")
                rounds[backend].append(json.loads(run.stdout))
            agree({backend: reports[-1]["check"] for backend, reports in rounds.items()})
    medians = {
        backend: {name: statistics.median(report["rows"][name] for report in reports) for name in ROWS}
        for backend, reports in rounds.items()
    }
    print(table(medians))
    print(f"\nmedian of {chosen.rounds} processes each, {os.cpu_count()} CPUs, {platform.machine()}; results agree")
    if chosen.json:
        chosen.json.write_text(json.dumps({"medians": medians, "rounds": rounds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
