"""Threads that run programs side by side, or one of them alone.

XLA's CPU client has as many threads as devices. A program over all of them waits for itself on each, and where other
threads' programs take one meanwhile, all wait for ever: JAX's own CPU backend, too. So such a program runs alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Lets many in together, or one alone, in the order in which they come."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._given = 0
        self._called = 0

    @contextmanager
    def taken(self, alone: bool) -> Iterator[None]:
        """While this is entered, nobody else is if `alone`."""
        with self._changed:
            number, self._given = self._given, self._given + 1
            self._changed.wait_for(
                lambda: self._called == number and (self._inside == 0 if alone else self._inside >= 0)
            )
            self._called += 1
            self._inside = -1 if alone else self._inside + 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._inside = 0 if alone else self._inside - 1
                self._changed.notify_all()
