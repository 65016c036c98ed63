"""Functions made of random operations, for `jax.jit`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from jax_fuzz.control import CONTROL
from jax_fuzz.terms import TERMS, Array, Term

#: What an array must have to be an argument in another one's place.
Aval = tuple[str, tuple[int, ...]]


def aval(x: Array) -> Aval:
    """Type and shape of an array."""
    return str(x.dtype), tuple(x.shape)


def is_exhausted(error: BaseException) -> bool:
    """Whether there was no memory. jaxlib raises ValueError or RuntimeError for that."""
    return str(error).startswith("RESOURCE_EXHAUSTED: ")


def act(term: Term, seed: int, values: Sequence[Array], most: int) -> Array | None:
    """Applies an operation; None where JAX refuses it for these arrays."""
    try:
        made = term(random.Random(seed), values, most)
    except (TypeError, ValueError, IndexError) as error:
        if is_exhausted(error):
            raise
        return None
    return made if made is not None and made.size <= most else None


@dataclass
class Program:
    """A function of arrays, which a seed decides; compiled once for each placement of its arguments."""

    seed: int
    length: int
    most: int
    #: Its arguments, and which of them are donated.
    arguments: list[Aval]
    donated: tuple[int, ...]
    compiled: dict[Any, Callable[..., Any]] = field(default_factory=dict)

    def __call__(self, *arguments: Array) -> Any:
        """Traces the function."""
        rng, values = random.Random(self.seed), list(arguments)
        for _ in range(self.length):
            term = rng.choice(CONTROL) if rng.random() < 0.2 else rng.choice(TERMS)
            if (made := act(term, rng.getrandbits(32), values, self.most)) is not None:
                values.append(made)
        # Several results, among them arguments as they are, and one twice.
        results = [rng.choice(values) for _ in range(rng.choice((0, 1, 1, 2, 3, 5)))] + values[len(arguments) :][-2:]
        return {"first": results[:1], "rest": tuple(results[1:])} if rng.random() < 0.2 else results

    def run(self, arguments: Sequence[Array], out_shardings: Any = None) -> list[Array]:
        """Calls the compiled function."""
        if (jitted := self.compiled.get(out_shardings)) is None:
            more = {} if out_shardings is None else {"out_shardings": out_shardings}
            # Not the object itself, which `jax.jit` would want to be hashable.
            jitted = jax.jit(self.__call__, donate_argnums=self.donated, **more)
            self.compiled[out_shardings] = jitted
        return jax.tree.leaves(jitted(*arguments))
