"""The text of exhausted memory: read, and held against itself and against what is known of the call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50, "EiB": 60}
SIZE = r"(\d+(?:\.\d+)?)(B|[KMGTPE]iB)"

#: Kinds of hints, by their words.
KINDS = {
    "limit": r"PJRT_ARENA_LIMIT=(\d+)MiB would have been enough",
    "compact": r"PJRT_ARENA_COMPACT=on would have made room",
    "wait": r"come back when programs under way end; wait for them",
    "donate": r"donating arguments? ([\d ,andto]+) of jit_(\w+) \(donate_argnums\) would have saved",
}


@dataclass(frozen=True)
class Span:
    """A number of bytes as a text tells it: rounded to its last decimal."""

    low: float
    high: float

    @staticmethod
    def read(number: str, unit: str) -> Span:
        """What `1.25` and `MiB` stand for."""
        factor = 1 << UNITS[unit]
        # Half of the last place, and a little for the binary fraction.
        off = 0.0 if unit == "B" else 0.501 * 10.0 ** -len(number.partition(".")[2]) * factor
        return Span(float(number) * factor - off, float(number) * factor + off)

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Span) -> Span:
        return Span(self.low - other.high, self.high - other.low)

    def meets(self, other: Span, slack: float = 0) -> bool:
        """Whether both may be the same number, or differ by no more than `slack`."""
        return self.low <= other.high + slack and other.low <= self.high + slack

    def __str__(self) -> str:
        return f"{self.low / (1 << 20):.4f} to {self.high / (1 << 20):.4f} MiB"


ZERO = Span(0, 0)


def exactly(number: int) -> Span:
    """A number that is known."""
    return Span(number, number)


def _sizes(text: str) -> list[Span]:
    return [Span.read(*found) for found in re.findall(SIZE, text)]


@dataclass
class Told:
    """What a text says. `faults` has what is wrong with its form."""

    text: str
    device: str = ""
    requested: int = 0
    limit: Span = ZERO
    pool: Span = ZERO
    in_use: Span = ZERO
    pending: Span = ZERO
    slack: Span = ZERO
    scratch: Span = ZERO
    free: Span = ZERO
    #: The largest request that would fit, in bytes; None where the device refused memory.
    fits: int | None = None
    #: Sum and blocks of the lines of holders.
    held: Span = ZERO
    blocks: int = 0
    #: Whether it is a program's scratch that found no room: the request is rounded then.
    is_scratch: bool = False
    #: What the call had when it found no room, and what it wanted beside the request; None where it is not told.
    had: Span | None = None
    wanted: Span | None = None
    in_pieces: bool = False
    hints: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Which hint there is; `none` where there is none, `other` for one of no known kind."""
        if not self.hints:
            return "none"
        return next((kind for kind, words in KINDS.items() if re.search(words, self.hints[0])), "other")

    def in_hint(self, group: int = 1) -> str:
        """A part of the hint, as its kind's expression has it."""
        found = re.search(KINDS[self.kind], self.hints[0])
        assert found is not None
        return found[group]


def read(text: str) -> Told:
    """Reads the text of an error."""
    told = Told(text)
    first = re.search(r"Out of memory while trying to allocate \S+ \((\d+) bytes\) on (\S+) \[arena, \w+\]\.", text)
    scratch = re.search(
        r"Attempting to reserve \S+ at the bottom of memory\..*? \((\S+)\) \[arena, tpu\]", text, re.DOTALL
    )
    sums = re.search(r"^  limit (\S+), pool (\S+) = (in use .*)$", text, re.MULTILINE)
    if bool(first) == bool(scratch) or not sums:
        told.faults.append("the text does not begin as it should")
        return told
    if first:
        told.requested, told.device = int(first[1]), first[2]
    elif scratch:
        told.is_scratch, told.device = True, scratch[1]
    told.limit, told.pool = _sizes(f"{sums[1]} {sums[2]}")
    names = {"in use": "in_use", "pending": "pending", "slack": "slack", "programs' scratch": "scratch", "free": "free"}
    for part in sums[3].split(" + "):
        name = next((name for name in names if part.startswith(name)), None)
        if name is None or len(_sizes(part)) != 1:
            told.faults.append(f"not understood: {part!r}")
            continue
        setattr(told, names[name], _sizes(part)[0])
    if found := re.search(r"largest request that would fit \S+ \((\d+) bytes\)", text):
        told.fits = int(found[1])
    for found in re.finditer(rf"^  (?:held by|       ) {SIZE} in (\d+) (?:other )?block\(s\)", text, re.MULTILINE):
        told.held += Span.read(found[1], found[2])
        told.blocks += int(found[3])
    if found := re.search(rf"^  of a call that had {SIZE} and wanted {SIZE} more$", text, re.MULTILINE):
        told.had, told.wanted = Span.read(found[1], found[2]), Span.read(found[3], found[4])
    told.in_pieces = "enough is free, but not in one piece" in text
    told.hints = re.findall(r"^  hint: (.*)$", text, re.MULTILINE)
    return told


@dataclass
class Known:
    """What is known of a call that failed, of its device, at the instant before it."""

    strategy: str
    spills: bool
    #: Sizes that the call may ask for, one after the other; empty where that is not known.
    sizes: list[int]
    #: Whether `sizes` is all that the call asks for.
    is_all: bool
    #: Sizes of its arguments, which may have to come back from where they were spilled to.
    arguments: list[int]
    in_use: int
    blocks: int


#: Results up to so many bytes may come from a cache that asks for nothing, and scalars of JAX's own come and go.
SMALL = 64 << 10


def faults(told: Told, known: Known) -> Iterator[str]:
    """What is wrong with a text."""
    yield from told.faults
    if told.faults:
        return
    sums = told.in_use + told.pending + told.slack + told.scratch + told.free
    if not sums.meets(told.pool):
        yield f"the parts of the pool sum to {sums}, not to {told.pool}"
    if told.held.high and not told.held.meets(told.in_use):
        yield f"holders sum to {told.held}, and in use are {told.in_use}"
    if not told.held.high and told.in_use.low > 0:
        yield "nobody holds what is in use"
    had = told.had or ZERO
    if not known.spills:
        # What it had may be scratch, which is not in use.
        before = Span(told.in_use.low, (told.in_use + told.scratch).high) - had
        if not before.meets(exactly(known.in_use), SMALL):
            yield f"in use are {before} but for the call's own, and before it {known.in_use} bytes were"
        if told.held.high and not told.had and abs(told.blocks - known.blocks) > 2:
            yield f"the lines of holders have {told.blocks} blocks, and there were {known.blocks}"
    if (
        not told.is_scratch
        and known.sizes
        and told.requested not in known.sizes + (known.arguments if known.spills else [])
        and not (told.wanted and not known.is_all)
    ):
        yield f"{told.requested} bytes are no size of the call's: {known.sizes}"
    large = [size for size in known.sizes if size > SMALL]
    if known.is_all and len(large) > 1 and told.had is None:
        yield "several results, and no line says what the call had and wanted"
    if known.is_all and told.had and told.wanted and not told.is_scratch:
        whole = told.had + exactly(told.requested) + told.wanted
        # Arguments that come back are a part of it, too.
        small = sum(size for size in known.sizes if size <= SMALL) + (sum(known.arguments) if known.spills else 0)
        if not whole.meets(exactly(sum(large)), small + SMALL):
            yield f"the call had and wanted {whole} together, and it is of {sum(known.sizes)} bytes"
    if told.fits is not None and told.fits >= told.requested and told.had is None:
        yield f"{told.fits} bytes would fit, and {told.requested} were asked for"
    if told.in_pieces and not told.is_scratch:
        whole_region = known.strategy in ("preallocate", "tpu")
        reach = told.free if whole_region else told.limit - (sums - told.free)
        if reach.high < told.requested:
            yield f"not in one piece are {reach} for {told.requested} bytes"
    if len(told.hints) > 1:
        yield f"{len(told.hints)} hints"
    if told.kind == "other":
        yield f"a hint of no known kind: {told.hints[0]}"
    if told.kind == "limit" and known.spills:
        yield "a hint of a limit, and arrays may be spilled"
    if told.kind == "wait" and told.hints[0].startswith("0B "):
        yield "0B come back when programs end"
