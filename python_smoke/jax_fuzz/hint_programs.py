"""Programs that run out of memory: lists of operations, drawn from a seed, and the settings they run with.

A program is data: the same one runs again with other settings, to see whether a hint helps.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

MIB = 1 << 20
#: Programs with this in their seed's draw run on both devices at once.
BOTH = 2


@dataclass(frozen=True)
class Put:
    """An array from the host."""

    name: str
    bytes: int
    #: The number of the device, or `BOTH` for so many bytes on each of two.
    where: int


@dataclass(frozen=True)
class Drop:
    """The last reference to an array goes."""

    name: str


@dataclass(frozen=True)
class Pin:
    """NumPy looks at an array's memory, until it is dropped."""

    name: str


@dataclass(frozen=True)
class Unpin:
    """NumPy looks no longer."""

    name: str


@dataclass(frozen=True)
class Busy:
    """A program begins to use an array, and goes on until it is told to end; the array is dropped meanwhile."""

    name: str


@dataclass(frozen=True)
class Run:
    """A program runs. Its results take the names of arrays that were there before."""

    function: int
    arguments: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Function:
    """What `jax.jit` compiles."""

    #: Bytes of its results on each device, but for those that have the shape of an argument.
    results: tuple[int, ...]
    #: So many results come first that are arguments plus one.
    updates: int = 0
    donated: tuple[int, ...] = ()
    #: Bytes of an array that only the program itself sees.
    scratch: int = 0


Operation = Put | Drop | Pin | Unpin | Busy | Run


@dataclass
class Program:
    """What runs, and with which settings."""

    seed: int
    settings: dict[str, str]
    functions: list[Function] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


def draw(seed: int) -> Program:
    """The program that a seed stands for."""
    rng = random.Random(f"hints {seed}")
    limit = rng.choice((rng.randrange(64, 300), rng.choice((64, 96, 100, 114, 128, 143, 200, 256))))
    settings = {
        "strategy": rng.choice(("preallocate", "growing", "platform", "tpu")),
        "compact": rng.choice(("off", "off", "on")),
        "limit": f"{limit}MiB",
        "devices": rng.choice("1112"),
        "spill": rng.choice(("off",) * 6 + ("host", "folder")),
    }
    if settings["spill"] != "off":
        settings["spill_limit"] = rng.choice(("1GiB", "1GiB", f"{rng.randrange(8, 64)}MiB"))
    return Draft(rng, Program(seed, settings), limit * MIB).finish()


class Draft:
    """A program that is being drawn; keeps what is there, as if nothing failed."""

    def __init__(self, rng: random.Random, program: Program, limit: int) -> None:
        self.rng, self.program, self.limit = rng, program, limit
        #: Bytes and place of each array.
        self.there: dict[str, tuple[int, int]] = {}
        self.pinned: list[str] = []
        self.number = 0
        self.add = program.operations.append

    def finish(self) -> Program:
        """Draws everything."""
        rng = self.rng
        self.fill(rng.uniform(0.4, 1.0))
        for _ in range(rng.choice((0, 1, 1, 2))):
            self.pin()
        self.thin_out(rng.choice((0.0, 0.3, 0.5, 0.5, 0.7)))
        match rng.randrange(4):
            case 0:
                self.loop()
            case 1:
                self.loop()
                self.mixed(4)
            case _:
                self.mixed(rng.randrange(4, 12))
        return self.program

    def name(self) -> str:
        self.number += 1
        return f"a{self.number}"

    def place(self) -> int:
        return 0 if self.program.settings["devices"] == "1" else self.rng.choice((0, 0, 1, BOTH))

    def size(self, most: int) -> int:
        """Bytes: small ones, whole MiB, or odd."""
        rng = self.rng
        kind = rng.randrange(10)
        if kind == 0:
            return rng.choice((4, 28, 256, 1000, 4096, 70_000))
        if kind < 6:
            return rng.randrange(1, max(2, most // MIB)) * MIB
        return rng.randrange(1, max(2, most // 4)) * 4

    def put(self, bytes_: int, where: int) -> str:
        name = self.name()
        self.add(Put(name, bytes_, where))
        self.there[name] = (bytes_, where)
        return name

    def drop(self, name: str) -> None:
        self.add(Drop(name))
        self.there.pop(name)
        if name in self.pinned:
            self.pinned.remove(name)

    def on(self, device: int) -> int:
        """Bytes on a device."""
        return sum(bytes_ for bytes_, where in self.there.values() if where in (device, BOTH))

    def fill(self, part: float) -> None:
        for _ in range(24):
            where = self.place()
            bytes_ = self.size(self.limit // 6)
            if max(self.on(device) for device in (0, 1)) + bytes_ > part * self.limit:
                break
            self.put(bytes_, where)

    def thin_out(self, part: float) -> None:
        for name in list(self.there):
            if self.rng.random() < part and name not in self.pinned:
                self.drop(name)

    def pin(self) -> None:
        names = [name for name, (_, where) in self.there.items() if where != BOTH and name not in self.pinned]
        if names:
            self.pinned.append(self.rng.choice(names))
            self.add(Pin(self.pinned[-1]))

    def function(self, updates: int, count: int) -> int:
        """A new function with results that may be too large for what is there."""
        rng = self.rng
        most = max(2 * MIB, int(self.limit * rng.choice((0.1, 0.2, 0.3, 0.6))) // max(1, count))
        results = tuple(self.size(most) for _ in range(count))
        if rng.random() < 0.3 and count:
            results = (results[0],) * count
        donated = tuple(number for number in range(updates) if rng.random() < 0.4)
        scratch = rng.randrange(1, max(2, self.limit // 8 // MIB)) * MIB if rng.random() < 0.25 else 0
        self.program.functions.append(Function(results, updates, donated, scratch))
        return len(self.program.functions) - 1

    def run(self, function: int, arguments: tuple[str, ...], keep: float) -> None:
        what = self.program.functions[function]
        where = self.there[arguments[0]][1]
        sizes = [self.there[name][0] for name in arguments[: what.updates]] + list(what.results)
        results = tuple(self.name() for _ in sizes)
        self.add(Run(function, arguments, results))
        for number in what.donated:
            self.there.pop(arguments[number])
        for name, bytes_ in zip(results, sizes, strict=True):
            self.there[name] = (bytes_, where)
            if self.rng.random() > keep:
                self.drop(name)

    def arguments(self, count: int) -> tuple[str, ...]:
        """Arrays of the same place."""
        if not self.there:
            self.put(4096, self.place())
        first = self.rng.choice(list(self.there))
        others = [name for name, (_, where) in self.there.items() if where == self.there[first][1] and name != first]
        return (first, *self.rng.sample(others, min(count - 1, len(others))))

    def mixed(self, steps: int) -> None:
        """Calls, arrays, and what comes between them."""
        rng, known = self.rng, -1
        for _ in range(steps):
            match rng.choices(("run", "put", "drop", "pin", "unpin", "busy"), (6, 3, 3, 1, 1, 0.5))[0]:
                case "run":
                    arguments = self.arguments(rng.choice((1, 1, 2)))
                    # To compile takes longer than all else, so most calls are of a program that is there.
                    if known < 0 or rng.random() < 0.2 or self.program.functions[known].updates:
                        updates = rng.choice((0, 0, 1, len(arguments)))
                        known = self.function(updates, rng.randrange(1 if not updates else 0, 7 - updates))
                    self.run(known, arguments, rng.choice((0.3, 0.9)))
                case "put":
                    self.put(self.size(int(self.limit * rng.choice((0.1, 0.3, 0.7, 1.3)))), self.place())
                case "drop" if self.there:
                    self.drop(rng.choice(list(self.there)))
                case "pin":
                    self.pin()
                case "unpin" if self.pinned:
                    self.add(Unpin(self.pinned.pop()))
                case "busy":
                    names = [name for name in self.there if name not in self.pinned and self.there[name][1] != BOTH]
                    if names and not any(isinstance(operation, Busy) for operation in self.program.operations):
                        name = rng.choice(names)
                        self.add(Busy(name))
                        self.there.pop(name)

    def loop(self) -> None:
        """A training step that is called again and again with its own results, while other arrays come."""
        rng = self.rng
        count, where = rng.randrange(1, 5), self.place()
        state = tuple(self.put(self.size(self.limit // (3 * count)), where) for _ in range(count))
        extra = tuple(self.size(self.limit // 20) for _ in range(rng.choice((0, 0, 1))))
        donated = rng.choice(((), (), (), tuple(range(count)), (0,)))
        self.program.functions.append(Function(extra, count, donated))
        function = len(self.program.functions) - 1
        for _ in range(rng.randrange(3, 7)):
            results = (*state, *(self.name() for _ in extra))
            self.add(Run(function, state, results))
            self.there |= {name: (bytes_, where) for name, bytes_ in zip(results[count:], extra, strict=True)}
            if rng.random() < 0.7:
                self.put(self.size(self.limit // 10), self.place())
