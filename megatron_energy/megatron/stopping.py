"""Signals that ask a rank to stop: it ends like a script that calls ``sys.exit``, so that its session closes."""

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a scheduler that ends the job, a terminal that goes away."""


class Stopping:
    """Raises in the main thread when the process is asked to stop.

    Attributes:
        number: the signal that came first; None: none yet.
        closing: set once the script is over: what comes then is noted and interrupts nothing.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.closing = False

    def install(self, instead_of: Handler = signal.SIG_DFL) -> None:
        """Handle the stop signals that ``instead_of`` handles now: others are the script's, or ignored on purpose (nohup)."""
        for number in STOP_SIGNALS:
            if signal.getsignal(number) == instead_of:
                signal.signal(number, self._handle)
        os.register_at_fork(after_in_child=self.remove)

    def remove(self) -> None:
        """Back to Python's own handlers: processes that the script forks (data loaders) have no session, signals end them at once."""
        for number in STOP_SIGNALS:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    def check(self) -> None:
        """Raise again for a signal that has come: imports in a bare ``except`` swallow what its handler raised."""
        if self.number is not None:
            self._raise(self.number)

    def exit_status(self, otherwise: int) -> int:
        """128 + n if signal n has come, else ``otherwise``."""
        return otherwise if self.number is None else 128 + self.number

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.number is None:
            self.number = number
        if self.closing:
            return
        self._raise(number)

    @staticmethod
    def _raise(number: int) -> None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)
