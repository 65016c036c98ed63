"""The threads that work, and the gate at which all of them rest for a sample."""

from __future__ import annotations

import threading
import traceback

from turns import Turns

from mixed_soak.workers import Worker

#: So often in a row a worker may find no room, though it has let go of all that it held before it tried again.
MOST_IN_A_ROW = 200


class Gate:
    """Lets threads pass while it is open."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._waiting = 0

    def close(self, threads: int) -> None:
        """Returns once so many threads wait."""
        with self._changed:
            self._closed = True
            while self._waiting < threads:
                self._changed.wait()

    def open(self) -> None:
        """Lets the threads go on."""
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    def closed(self) -> bool:
        """Whether threads should come to rest."""
        return self._closed

    def wait(self) -> None:
        """Waits while the gate is closed."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            while self._closed:
                self._changed.wait()
            self._waiting -= 1


class Thread(threading.Thread):
    """Does a worker's steps until it is told to stop, or one fails."""

    def __init__(self, worker: Worker, gate: Gate, turns: Turns):
        super().__init__(daemon=True)
        self.worker, self.title = worker, type(worker).__name__.lower()
        self.steps = self.exhausted = 0
        self.fault: str | None = None
        self._gate, self._turns, self._stopped = gate, turns, threading.Event()

    def stop(self) -> None:
        """Has the thread end after its step."""
        self._stopped.set()

    def run(self) -> None:
        in_a_row = 0
        while not self._stopped.is_set():
            try:
                if self._gate.closed() or self.fault:
                    self._rest()
                    self._gate.wait()
                if self.fault:
                    self._stopped.wait(0.05)
                    continue
                with self._turns.taken(self.worker.alone):
                    self.worker.step()
                self.steps, in_a_row = self.steps + 1, 0
                if self.worker.pause:
                    self._stopped.wait(self.worker.pause)
            except Exception as error:
                in_a_row += 1
                if "RESOURCE_EXHAUSTED" in str(error) and in_a_row < MOST_IN_A_ROW:
                    self.exhausted += 1
                else:
                    self.fault = "".join(traceback.format_exception(error))
                # Its frames have arrays.
                del error
                self._rest()

    def _rest(self) -> None:
        try:
            self.worker.rest()
        except Exception as error:
            self.fault = self.fault or "".join(traceback.format_exception(error))
