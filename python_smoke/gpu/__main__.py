"""`python3 python_smoke/gpu --out FOLDER`: see the package for what is asked, and in which order."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: The packages of this tree, whatever else is installed. Children run anywhere.
PATHS = [str(ROOT / "python_smoke"), str(ROOT / "python")]
sys.path[:0] = PATHS

from gpu import jobs, machine, process, report  # noqa: E402
from gpu.backends import backends  # noqa: E402
from gpu.sizes import GIB, SIZES  # noqa: E402

SCHEMA = "pjrt-arena-gpu/2"
#: What a process takes of the device beside its limit: a context, and the code of libraries.
BESIDE = GIB
#: How many checks are tried again with one thing off each, and how many processes run behind one that ended early.
MOST_BROKEN, RESTS = 4, 3
#: Of what is left, what the wave may take; and how long a tiny program may.
SHARE_OF_WAVE, IMPORT_TIME = 0.6, 120.0
#: XLA's pool keeps what it has, and processes run beside each other, so nobody gets all.
SHARE_OF_DEVICE = 0.95


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu", description="Checks and measures pjrt-arena on a machine with a GPU, beside JAX's own allocators."
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for what comes of it")
    parser.add_argument("--budget", type=float, default=540, metavar="SECONDS", help="what does not fit is left out")
    parser.add_argument("--platform", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal without a GPU")
    parser.add_argument(
        "--engine", type=Path, metavar="PATH", help="another engine for the arena than the installed one"
    )
    parser.add_argument("--size", choices=SIZES, help="full on a GPU, tiny on a CPU")
    parser.add_argument("--only", metavar="NAME,...", help=f"stages or parts: {', '.join((*jobs.STAGES, *jobs.PARTS))}")
    parser.add_argument("--backends", metavar="NAME,...", help="all but jax_vmm and jax_platform by default")
    parser.add_argument("--checks", metavar="NAME,...", help="of checks, only these; module.function is one of yours")
    chosen = parser.parse_args()
    for name in (chosen.only or "").split(",") if chosen.only else []:
        if name not in jobs.STAGES and name not in jobs.PARTS:
            parser.error(f"--only={name}: none of {', '.join((*jobs.STAGES, *jobs.PARTS))}")
    if chosen.budget <= 0:
        parser.error(f"--budget={chosen.budget}: must be above 0")
    if chosen.engine and not chosen.engine.is_file():
        parser.error(f"--engine={chosen.engine}: is not a file; it must be the path of a PJRT plugin library")
    known = backends(chosen.platform, str(chosen.engine.resolve()) if chosen.engine else "")
    names = (
        chosen.backends.split(",") if chosen.backends else [n for n in known if n not in ("jax_vmm", "jax_platform")]
    )
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--backends={unknown[0]}: none of {', '.join(known)}")
    chosen.columns = [known[name] for name in known if name in names]
    chosen.size = chosen.size or ("tiny" if chosen.platform == "cpu" else "full")
    library = Path(os.environ.get("PJRT_ARENA_LIBRARY_PATH") or ROOT / "target/release/libpjrt_arena.so").resolve()
    if not library.is_file():
        parser.error(f"{library} is not a file: cargo build --release, or PJRT_ARENA_LIBRARY_PATH=FILE")
    os.environ["PJRT_ARENA_LIBRARY_PATH"] = str(library)
    os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])
    return chosen


class Run:
    """A run: what was asked for, what is left of the time, what came of it so far."""

    def __init__(self, chosen: argparse.Namespace, logs: Path) -> None:
        self._chosen, self._logs = chosen, logs
        self._start = time.monotonic()
        self._shim: dict[str, str] | None = None
        self.report: dict[str, Any] = {
            "schema": SCHEMA,
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "platform": chosen.platform,
            "size": chosen.size,
            "machine": machine.about(),
            "gpus": "not asked",
            "notes": [],
            "records": [],
        }

    def left(self) -> float:
        """Seconds of the budget."""
        return self._chosen.budget - (time.monotonic() - self._start)

    def save(self) -> None:
        """Writes files that are there as a whole at any time."""
        self.report["seconds"] = round(time.monotonic() - self._start, 1)
        for name, text in {
            "results.json": json.dumps(self.report, indent=1) + "\n",
            "results.md": report.markdown(self.report),
        }.items():
            beside = self._chosen.out / (name + ".new")
            beside.write_text(text)
            beside.replace(self._chosen.out / name)

    def total(self) -> int | None:
        """Bytes of the device, as the driver says, or nvidia-smi."""
        for record in self.report["records"]:
            for fact in (record.get("result") or {}).get("facts", ()):
                if total := fact["numbers"].get("total"):
                    return int(total)
        gpus = self.report["gpus"]
        return int(gpus[0]["memory.total"].split()[0]) << 20 if isinstance(gpus, list) else None

    def one(self, job: jobs.Job, most: float, **more: Any) -> dict[str, Any]:
        """Runs a job and keeps its record; behind a check that ended its process the others run, in a new one."""
        left = job.values.get("names")
        for turn in range(1 + RESTS):
            if turn:
                job = dataclasses.replace(job, values={**job.values, "names": left}, note=job.note or "the rest")
            record = {"part": job.part, "measure": job.measure, "title": job.title, "ours": job.backend.ours, **more}
            record |= self._run(job, most)
            self.report["records"].append(record)
            print(
                f"{time.monotonic() - self._start:6.1f} {job.part}, {job.title}: {record['status']}", end="", flush=True
            )
            print(f" {record.get('error', '')}"[:300], flush=True)
            self.save()
            if not (left := record.pop("left", None)):
                break
        return record

    def _run(self, job: jobs.Job, most: float) -> dict[str, Any]:
        total, share = self.total(), None
        if job.limit and not job.backend.ours and job.backend.kind:
            if total is None:
                return {"status": "skipped", "seconds": 0.0, "error": "the device's memory is not known"}
            share = min(0.9, job.limit / total)
        seconds = min(most, self.left(), job.seconds * process.FACTOR + process.START)
        if seconds < min(5.0, job.seconds):
            return {"status": "skipped", "seconds": 0.0, "error": f"{max(0.0, seconds):.0f} s are left for it"}
        environment = job.backend.environment(job.limit, share, job.flags) | job.variables
        if "FIRST_HIDE" in environment and not (environment := self._hiding(environment)):
            return {"status": "skipped", "seconds": 0.0, "error": "there is no C compiler, which makes the shim"}
        return process.run(job, environment, self._chosen.size, seconds, self._logs)

    def _hiding(self, environment: dict[str, str]) -> dict[str, str]:
        """With the driver behind the shim, which is made once."""
        driver = os.environ.get("PJRT_ARENA_CUDA_DRIVER") or "libcuda.so.1"
        if self._shim is None:
            made = self._logs / "libshim.so"
            find = f"import ctypes; ctypes.CDLL({driver!r}); print(open('/proc/self/maps').read())"
            maps = subprocess.run([sys.executable, "-c", find], capture_output=True, text=True, timeout=60, check=False)
            lines = (line.split()[-1] for line in maps.stdout.splitlines() if Path(driver).name in line)
            source = Path(__file__).with_name("shim.c")
            link = ["-Wl,--no-as-needed", next(lines, driver), "-ldl"]
            command = ["cc", "-shared", "-fPIC", "-o", str(made), str(source), *link]
            try:
                subprocess.run(command, capture_output=True, timeout=60, check=True)
                self._shim = {"PJRT_ARENA_CUDA_DRIVER": str(made), "FIRST_DRIVER": driver}
            except (OSError, subprocess.SubprocessError):
                self._shim = {}
        return {**environment, **self._shim} if self._shim else {}

    def begin(self) -> bool:
        """Versions, pages of libraries, and whether JAX can be imported at all."""
        find = [sys.executable, "-c", "import jax, jaxlib; print(jax.__version__, jaxlib.__version__)"]
        try:
            run = subprocess.run(
                find, capture_output=True, text=True, timeout=min(IMPORT_TIME, self.left()), check=False
            )
            said = "" if run.returncode == 0 else " ".join(run.stderr.split())[-600:]
        except subprocess.SubprocessError as error:
            said = str(error)
        if said:
            self.report["notes"].append(f"**`import jax` fails** in {sys.executable}: {said}")
        return not said

    def wave(self, planned: list[jobs.Job]) -> None:
        """All at once, as far as the device's memory goes; then what fails on the arena alone, one thing off each."""
        most = max(10.0, SHARE_OF_WAVE * self.left())
        total = int(SHARE_OF_DEVICE * (self.total() or 64 * GIB))
        gpus = self.report["gpus"]
        alone = isinstance(gpus, list) and gpus[0]["compute_mode"] != "Default"
        workers = 1 if alone else max(2, os.cpu_count() or 2)
        places = process.Places(total)

        def one(job: jobs.Job, **more: Any) -> None:
            with places.of((job.limit or 0) + min(BESIDE, total // 64)):
                self.one(job, most, **more)

        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(one, job) for job in planned]:
                done.result()
            again = []
            for check, record in list(report.broken(self.report["records"]).items())[:MOST_BROKEN]:
                job = next(job for job in planned if job.part == "checks" and job.backend.title in record["title"])
                name = "arithmetic" if check == "the start" else check
                for each, note in zip(jobs.fallbacks(job, name), jobs.FALLBACKS, strict=True):
                    again.append(pool.submit(one, each, again=note, check=check))
            for done in again:
                done.result()

    def archive(self) -> None:
        """The logs, and what XLA chose by trying, for a later run on a machine that has nothing."""
        with tarfile.open(self._chosen.out / "logs.tgz", "w:gz") as tar:
            for log in sorted(self._logs.glob("*.log")):
                tar.add(log, log.name)
        cache = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
        if cache.is_dir():
            with tarfile.open(self._chosen.out / "cache.tgz", "w:gz") as tar:
                tar.add(cache, "cache")


def main() -> int:
    chosen = arguments()
    chosen.out.mkdir(parents=True, exist_ok=True)
    wanted = set(chosen.only.split(",")) if chosen.only else {*jobs.STAGES}
    planned = [
        job for job in jobs.jobs(chosen.platform, SIZES[chosen.size], chosen.columns) if {job.stage, job.part} & wanted
    ]
    if chosen.checks:
        names = {"names": chosen.checks.split(",")}
        planned = [
            dataclasses.replace(job, values=job.values | names) if job.part == "checks" else job for job in planned
        ]
    with tempfile.TemporaryDirectory() as folder:
        run = Run(chosen, Path(folder))
        # XLA chooses kernels by trying them, and others another time: then two backends would run different programs.
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(folder, "cache")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        facts = machine.write_facts(chosen.out / "facts.txt")
        with ThreadPoolExecutor(2) as pool:
            on_gpu = chosen.platform == "cuda"
            pages = pool.submit(machine.page_in) if on_gpu else None
            gpus = pool.submit(machine.gpus) if on_gpu else None
            if run.begin():
                for job in (job for job in planned if job.stage == "facts"):
                    run.one(job, run.left())
                if pages and gpus:
                    print(f"{pages.result() >> 20} MiB of libraries were read", flush=True)
                    run.report["gpus"] = found = gpus.result()
                    run.report["notes"] += [found] if isinstance(found, str) else []
                run.wave([job for job in planned if job.stage == "wave"])
                for job in (job for job in planned if job.stage == "quiet"):
                    run.one(job, run.left())
        facts.join(machine.COMMAND_TIME)
        if facts.is_alive():
            run.report["notes"].append("facts.txt is not there: a command such as nvidia-smi hangs")
        run.save()
        run.archive()
    said = report.verdict(run.report)
    print("\n".join([*said, str(chosen.out / "results.md")]))
    records = run.report["records"]
    return 1 if report.broken(records) or report.failures(records) or not records else 0


if __name__ == "__main__":
    sys.exit(main())
