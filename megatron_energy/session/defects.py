"""Errors of ours, and of the network between ranks: they end what we do, never the training, and one line says so."""

import contextlib
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Step = tuple[str, Callable[[], object]]
"""(what is lost if it fails, what to do)."""


def noted(error: Exception, directory: Path | None = None) -> str:
    """What to tell the user. ``directory``: RUN_DIR, on the rank that writes it; where the error happened goes into error.txt there."""
    told = f"an error in megatron-energy ({type(error).__name__}: {error}"
    if directory is None:
        return f"{told})"
    with contextlib.suppress(OSError):
        (directory / "error.txt").write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return f"{told}; see error.txt in the run directory)"


def no_exchange(error: Exception) -> str:
    """Likewise, of an error while ranks talk to each other: mostly the network, or a rank that has died."""
    return f"the exchange between ranks failed ({type(error).__name__}: {error})"


class Fence:
    """Keeps errors away from the training: the first one ends, for good, what is fenced in.

    Example::

        records = Fence(lambda why: say(f"no more records: {why}"), directory=run_dir)
        records.run(lambda: reporter.write(iteration, writer))

    Args:
        ended: told once why; gives clocks back, or says what is switched off from here on.
        directory: see :func:`noted`.
        describe: the error in words, instead of :func:`noted`.

    Attributes:
        failed: why nothing is done any more; empty while all is well.
    """

    def __init__(
        self, ended: Callable[[str], object], directory: Path | None = None, describe: Callable[[Exception], str] | None = None
    ) -> None:
        self.failed = ""
        self._ended, self._describe = ended, describe or (lambda error: noted(error, directory))

    def run(self, task: Callable[[], T]) -> T | None:
        """What the task returns; None where it failed, or one before it did."""
        if self.failed:
            return None
        try:
            return task()
        except Exception as error:  # noqa: BLE001 -- whatever it is, training goes on
            self.end(self._describe(error))
            return None

    def end(self, why: str) -> None:
        """End it for another reason than an exception."""
        if not self.failed:
            self.failed = why
            with contextlib.suppress(Exception):  # such as a standard output that nobody reads any more
                self._ended(why)


def end_all(steps: Sequence[Step], say: Callable[[str], None], directory: Path | None = None) -> None:
    """The end of a session: every step in order, whatever becomes of the others. One line for each that fails."""
    for lost, step in steps:
        Fence(partial(_say_lost, say, lost), directory).run(step)


def _say_lost(say: Callable[[str], None], lost: str, why: str) -> None:
    say(f"{lost}: {why}")
