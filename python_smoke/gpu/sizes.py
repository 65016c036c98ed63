"""How large everything is: on a GPU, and for a rehearsal or a test."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def chunk_of(limit: int) -> int:
    """The unit in which memory behind a limit comes and goes (`device/cuda/backing.rs`): a 256th, of 2 to 32 MiB."""
    return 1 << (min(32 * MIB, max(2 * MIB, limit // 256)).bit_length() - 1)


@dataclass(frozen=True)
class Sizes:
    """One size. Lengths are elements, the rest is said."""

    name: str
    #: layers, width, heads, sequence length, sequences, words
    transformer: tuple[int, int, int, int, int, int]
    #: width of the hidden layers, rows of a batch
    mlp: tuple[int, int]
    #: Readings of a time.
    readings: int
    #: Of training steps: readings, so many that one hundredth more or less can be told; steps in one reading at least,
    #: and the seconds that it takes at least.
    step_readings: int
    steps: int
    step_seconds: float
    #: Bytes of memory for what fills it, so that filling is quick; and for what compacts, and for loops.
    limit: int
    compacted: int
    #: Largest array of the part that finds out what share of memory is usable, in bytes.
    largest: int
    #: MiB of a loop's state.
    loop_mib: int
    #: One array that is copied from and to the host, in bytes.
    copy: int
    #: Calls of a tiny program.
    calls: int
    #: Seconds of threads beside compactions.
    threads_seconds: float


SIZES = {
    sizes.name: sizes
    for sizes in (
        Sizes(
            "full",
            transformer=(12, 1024, 16, 1024, 4, 16384),
            mlp=(4096, 1024),
            readings=7,
            step_readings=15,
            steps=10,
            step_seconds=0.2,
            limit=8 * GIB,
            compacted=48 * GIB,
            largest=512 * MIB,
            loop_mib=1024,
            copy=GIB,
            calls=4000,
            threads_seconds=20,
        ),
        Sizes(
            "tiny",
            transformer=(1, 32, 2, 16, 2, 64),
            mlp=(32, 16),
            readings=3,
            step_readings=3,
            steps=1,
            step_seconds=0.0,
            limit=64 * MIB,
            compacted=96 * MIB,
            largest=4 * MIB,
            loop_mib=1,
            copy=MIB,
            calls=50,
            threads_seconds=1,
        ),
    )
}
