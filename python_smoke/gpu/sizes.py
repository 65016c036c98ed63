"""How large everything is, in three sizes."""

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
    #: images, their side, channels of the first stage, stages
    convolution: tuple[int, int, int, int]
    #: width of the hidden layers, rows of a batch
    mlp: tuple[int, int]
    #: Readings of a time.
    readings: int
    #: Of training steps: readings, so many that one hundredth more or less can be told; steps in one reading at least,
    #: and the seconds that it takes at least.
    step_readings: int
    steps: int
    step_seconds: float
    #: Bytes of memory for the parts that fill it, so that filling is quick.
    limit: int
    #: Bytes of memory for the part that compacts.
    compacted: int
    #: Largest array of the part that finds out what share of memory is usable, in bytes.
    largest: int
    #: Rows of the matrices whose products keep a device busy.
    product: int
    #: Arrays that are copied from and to the host, in bytes.
    copies: tuple[int, ...]
    #: One array that is put on the device, and how many smaller ones without a pause, in bytes.
    large_put: int
    many_puts: tuple[int, int]
    #: Live arrays at once, and calls of a tiny program.
    arrays: int
    calls: int
    #: Small kernels in one step, and steps that may add nothing to the device's memory.
    kernels: int
    graph_steps: int


SIZES = {
    sizes.name: sizes
    for sizes in (
        Sizes(
            "full",
            transformer=(12, 1024, 16, 1024, 4, 16384),
            convolution=(128, 64, 64, 4),
            mlp=(4096, 1024),
            readings=7,
            step_readings=15,
            steps=10,
            step_seconds=0.2,
            limit=8 * GIB,
            compacted=48 * GIB,
            largest=512 * MIB,
            product=8192,
            copies=(64 * MIB, GIB),
            large_put=4 * GIB,
            many_puts=(512, 4 * MIB),
            arrays=100_000,
            calls=4000,
            kernels=300,
            graph_steps=1000,
        ),
        Sizes(
            "small",
            transformer=(2, 192, 4, 128, 8, 256),
            convolution=(8, 32, 32, 4),
            mlp=(512, 128),
            readings=5,
            step_readings=7,
            steps=3,
            step_seconds=0.0,
            limit=256 * MIB,
            compacted=GIB,
            largest=16 * MIB,
            product=512,
            copies=(16 * MIB, 64 * MIB),
            large_put=256 * MIB,
            many_puts=(64, MIB),
            arrays=20_000,
            calls=2000,
            kernels=100,
            graph_steps=40,
        ),
        Sizes(
            "tiny",
            transformer=(1, 32, 2, 16, 2, 64),
            convolution=(2, 8, 4, 1),
            mlp=(32, 16),
            readings=3,
            step_readings=3,
            steps=1,
            step_seconds=0.0,
            limit=24 * MIB,
            compacted=48 * MIB,
            largest=2 * MIB,
            product=256,
            copies=(MIB,),
            large_put=4 * MIB,
            many_puts=(16, 64 * KIB),
            arrays=500,
            calls=50,
            kernels=10,
            graph_steps=40,
        ),
    )
}
