"""How large everything is, in three sizes."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


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
    #: Readings of a time, and steps in one reading.
    readings: int
    steps: int
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
    #: Live arrays at once, and calls of a tiny program.
    arrays: int
    calls: int
    #: Small kernels in one step.
    kernels: int


SIZES = {
    sizes.name: sizes
    for sizes in (
        Sizes(
            "full",
            transformer=(12, 1024, 16, 1024, 4, 16384),
            convolution=(128, 64, 64, 4),
            mlp=(4096, 1024),
            readings=7,
            steps=10,
            limit=8 * GIB,
            compacted=48 * GIB,
            largest=512 * MIB,
            product=8192,
            copies=(64 * MIB, GIB),
            arrays=100_000,
            calls=4000,
            kernels=300,
        ),
        Sizes(
            "small",
            transformer=(2, 192, 4, 128, 8, 256),
            convolution=(8, 32, 32, 4),
            mlp=(512, 128),
            readings=5,
            steps=3,
            limit=256 * MIB,
            compacted=GIB,
            largest=16 * MIB,
            product=512,
            copies=(16 * MIB, 128 * MIB),
            arrays=20_000,
            calls=2000,
            kernels=100,
        ),
        Sizes(
            "tiny",
            transformer=(1, 32, 2, 16, 2, 64),
            convolution=(2, 8, 4, 1),
            mlp=(32, 16),
            readings=3,
            steps=1,
            limit=24 * MIB,
            compacted=48 * MIB,
            largest=2 * MIB,
            product=256,
            copies=(MIB,),
            arrays=500,
            calls=50,
            kernels=10,
        ),
    )
}
